"""Who watches which job. A watcher is only told *that* something is new and reads it from the store:

no queue can overflow, a slow reader costs nothing, and what it sees is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Feed:
    """Watchers by job id."""

    def __init__(self) -> None:
        self._watchers: dict[int, set[asyncio.Event]] = {}
        self._all: set[asyncio.Event] = set()
        self._ends: dict[int, list[tuple[list[int], asyncio.Event]]] = {}

    def watch(self, jobid: int) -> asyncio.Event:
        """An event that is set whenever the job has news; give it back with `unwatch`."""
        event = asyncio.Event()
        self.add((jobid,), event)
        return event

    def unwatch(self, jobid: int, event: asyncio.Event) -> None:
        self.drop((jobid,), event)

    def add(self, jobids: Iterable[int], event: asyncio.Event) -> None:
        """One event for many jobs."""
        self._all.add(event)
        for jobid in jobids:
            self._watchers.setdefault(jobid, set()).add(event)

    def drop(self, jobids: Iterable[int], event: asyncio.Event) -> None:
        self._all.discard(event)
        for jobid in jobids:
            watchers = self._watchers.get(jobid)
            if watchers is not None:
                watchers.discard(event)
                if not watchers:
                    del self._watchers[jobid]

    def watch_ends(self, jobids: Iterable[int], ended: list[int], event: asyncio.Event) -> None:
        """Append each of the jobs to `ended` as it becomes inactive, and set the event."""
        self._all.add(event)
        for jobid in jobids:
            self._ends.setdefault(jobid, []).append((ended, event))

    def unwatch_ends(self, jobids: Iterable[int], event: asyncio.Event) -> None:
        self._all.discard(event)
        for jobid in jobids:
            left = [pair for pair in self._ends.pop(jobid, ()) if pair[1] is not event]
            if left:
                self._ends[jobid] = left

    def ended(self, jobid: int) -> None:
        for ended, event in self._ends.pop(jobid, ()):
            ended.append(jobid)
            event.set()

    def publish(self, jobids: Iterable[int]) -> None:
        for jobid in jobids:
            watchers = self._watchers.get(jobid)
            if watchers:
                for event in watchers:
                    event.set()

    def wake_all(self) -> None:
        """At shutdown: let every stream look at what it should do."""
        for event in self._all:
            event.set()
