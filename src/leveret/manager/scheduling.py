"""Scheduling in the manager: requests go in, allocations come out, each in a turn of its own; passes run in slices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from leveret.core.resources import Rset
from leveret.manager.entry import Entry
from leveret.manager.turn import Turn
from leveret.sched.pool import Pool, PoolNode
from leveret.sched.queue import Scheduler

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

_encode = msgspec.json.Encoder().encode
#: a slice of a pass ends after so long, so that the daemon's doors stay open
SLICE_S = 0.01


class Scheduling:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.pool = Pool(_nodes(manager))
        self.queue = Scheduler(self.pool)
        self._wanted = False
        self._pass: Iterator[tuple[int, Rset] | None] | None = None
        self._again = False  #: something has changed since the pass under way began

    def request(self, entry: Entry) -> None:
        """Queue (again) a job's request for resources."""
        self.queue.add(entry.job.id, entry.job.priority or 0, entry.digest, queue=entry.digest.queue)
        self.want_schedule()

    def withdraw(self, jobid: int) -> None:
        self.queue.withdraw(jobid)

    def release(self, rset: Rset) -> None:
        """An allocation, or some ranks of it (`Rset.subset`), goes back to the pool."""
        self.pool.release(rset)
        self.want_schedule()

    def want_schedule(self) -> None:
        self._again = True
        if not self._wanted:
            self._wanted = True
            self.manager.clock.call_soon(self._slice)

    def _slice(self) -> None:
        """A part of a pass; the rest follows in the next pass of the loop."""
        self._wanted = False
        if self._pass is None:
            self._again = False
            self._pass = self.queue.schedule(self.manager.clock.time())
        end = time.perf_counter() + SLICE_S
        for found in self._pass:
            if found is not None:
                self._allocated(*found)
            if time.perf_counter() > end:
                break
        else:
            self._pass = None
            if not self._again:
                return
        self._wanted = True
        self.manager.clock.call_soon(self._slice)

    def _allocated(self, jobid: int, rset: Rset) -> None:
        entry = self.manager.entries[jobid]
        now = self.manager.clock.time()
        rset.starttime = now
        rset.expiration = now + entry.digest.duration_s if entry.digest.duration_s else 0.0
        entry.rset = rset
        try:
            with Turn(self.manager, "alloc") as turn:
                turn.batch.put(jobid, "R", _encode(rset.to_dict()))
                turn.post(entry, "alloc", {"annotations": {"sched": {"resource_summary": rset.summary()}}})
        except Exception:
            self.manager.log.exception("alloc failed", job=jobid)
            self.pool.release(rset)
            entry.rset = None


def _nodes(manager: Manager) -> Iterator[PoolNode]:
    """The inventory as the pool wants it."""
    inventory = manager.inventory
    having: dict[int, set[str]] = {}
    for name, ranks in inventory.rset.properties.items():
        for rank in ranks:
            having.setdefault(rank, set()).add(name)
    for rank, node in inventory.rset.ranks.items():
        memory_mb = inventory.memory_mb.get(rank, 0)
        yield PoolNode(rank, node.host, node.cores, node.gpus, memory_mb, having.get(rank, ()))
