"""First in, first out, by priority: the head of the queue is never overtaken. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from leveret.core.jobspec import Digest
from leveret.core.resources import Rset
from leveret.sched.pool import Pool


class Fifo:
    """Pending allocation requests, highest priority first, then lowest job id (the older job)."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._order: list[tuple[int, int]] = []  #: sorted (−priority, jobid)
        self._want: dict[int, tuple[int, Digest]] = {}  #: jobid → (priority, request)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, jobid: int, priority: int, want: Digest) -> None:
        """Queue a request; asking again replaces it."""
        self.withdraw(jobid)
        self._want[jobid] = (priority, want)
        bisect.insort(self._order, (-priority, jobid))

    def withdraw(self, jobid: int) -> None:
        """Forget a request; harmless when there is none."""
        entry = self._want.pop(jobid, None)
        if entry is not None:
            index = bisect.bisect_left(self._order, (-entry[0], jobid))
            del self._order[index]

    def schedule(self) -> Iterator[tuple[int, Rset]]:
        """Allocations that can be made now, one at a time; each is taken from the pool as it is yielded."""
        done = 0
        try:
            while done < len(self._order):
                jobid = self._order[done][1]
                rset = self.pool.allocate(self._want[jobid][1])
                if rset is None:
                    return
                done += 1
                del self._want[jobid]
                yield jobid, rset
        finally:
            del self._order[:done]
