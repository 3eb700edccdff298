"""Parts of the helper's loop: its log, its timers, its one worker thread.

Standard library only.
"""

from __future__ import annotations

import heapq
import os
import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable

from . import procs

#: The longest sleep: how late a vanished directory, or the end of a suspend, is noticed.
SLEEP_S_MAX = 3.0


def say(text: str) -> None:
    """A line for the helper's log."""
    try:
        print(f"helper[{os.getpid()}]: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass


class Appointment:
    """An entry of the timer heap; ``callback`` is None once it is over or called off."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call back; harmless when it is over."""
        if self.callback is not None:
            self.callback = None
            self._timers.dead += 1


class Timers:
    """Appointments by ``procs.boottime()``."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Appointment]] = []
        self._count = 0
        #: cancelled entries that are still in the heap
        self.dead = 0

    def at(self, when_s: float, callback: Callable[[], None]) -> Appointment:
        if self.dead > 64 and self.dead > len(self._heap) // 2:
            # A million jobs with an hour's limit must not leave a million entries for an hour.
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self.dead = 0
        self._count += 1
        appointment = Appointment(self, callback)
        heapq.heappush(self._heap, (when_s, self._count, appointment))
        return appointment

    def next_s(self) -> float:
        """Seconds until the next one is due, at most SLEEP_S_MAX."""
        if not self._heap:
            return SLEEP_S_MAX
        return min(max(self._heap[0][0] - procs.boottime(), 0.0), SLEEP_S_MAX)

    def run(self) -> None:
        """Call what is due."""
        now = procs.boottime()
        while self._heap and self._heap[0][0] <= now:
            appointment = heapq.heappop(self._heap)[2]
            callback, appointment.callback = appointment.callback, None
            if callback is None:
                self.dead -= 1
            else:
                callback()


class Worker:
    """One thread, started when first needed, for file work that may take long."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._todo: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]]] = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def offload(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="files", daemon=True)
            self._thread.start()
        self._todo.put((work, then))

    def _run(self) -> None:
        while True:
            work, then = self._todo.get()
            try:
                work()
            except Exception:
                say(traceback.format_exc())
            self._done.append(then)
            self._wake()

    def take(self) -> None:
        """In the loop: call what follows finished work."""
        while self._done:
            self._done.popleft()()
