"""Who gets resources next: pending requests by priority, and passes over them in slices. Pure.

A pass is an iterator. It yields (jobid, Rset) for each allocation that it makes, and None now and then, so that the
caller may pause it and go on later; between two steps requests may come and go and resources may be released.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from leveret.core.jobspec import Digest
from leveret.core.resources import Rset
from leveret.sched.pool import Pool

Key = tuple[int, int]
"""(−priority, jobid): the order of the queue."""


class Request:
    """A job that waits for resources."""

    __slots__ = ("bucket", "jobid", "key", "priority", "queue", "want")

    def __init__(self, jobid: int, priority: int, want: Digest, queue: str) -> None:
        self.jobid = jobid
        self.priority = priority
        self.want = want
        self.queue = queue
        self.key: Key = (-priority, jobid)
        self.bucket: Bucket


class Bucket:
    """Requests that need the same resources, in one queue: when one cannot be met, none can."""

    __slots__ = ("heap", "name", "queue", "size")

    def __init__(self, name: object, queue: str) -> None:
        self.name = name
        self.queue = queue
        self.heap: list[Key] = []  #: may hold keys of requests that are gone
        self.size = 0  #: requests that are not gone


class Scheduler:
    """Pending allocation requests, highest priority first, then lowest job id (the older job).

    First in, first out: the head of a queue is never overtaken within its queue.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        #: why a job may not start now ("" when it may): limits, set by whoever knows them
        self.blocked: Callable[[int], str] | None = None
        self.stopped: dict[str, str] = {}  #: queues that are not scheduled → why
        self._want: dict[int, Request] = {}
        self._buckets: dict[object, Bucket] = {}
        self._merge: list[tuple[Key, int, Bucket]] | None = None  #: of the pass under way
        self._serial = 0

    def __len__(self) -> int:
        return len(self._want)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._want

    def order(self, queue: str | None = None) -> list[int]:
        """The waiting jobs, first one first."""
        found = [r.key for r in self._want.values() if queue is None or r.queue == queue]
        return [jobid for _, jobid in sorted(found)]

    def add(self, jobid: int, priority: int, want: Digest, *, queue: str = "") -> None:
        """Queue a request; asking again replaces it."""
        self.withdraw(jobid)
        request = Request(jobid, priority, want, queue)
        self._want[jobid] = request
        name = (want.shape, queue)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(name, queue)
        request.bucket = bucket
        bucket.size += 1
        heapq.heappush(bucket.heap, request.key)
        if self._merge is not None and bucket.heap[0] == request.key:
            self._push(self._merge, bucket)

    def withdraw(self, jobid: int) -> None:
        """Forget a request; harmless when there is none."""
        request = self._want.pop(jobid, None)
        if request is not None:
            bucket = request.bucket
            bucket.size -= 1
            if not bucket.size:
                bucket.heap.clear()
                del self._buckets[bucket.name]

    def reprioritise(self, jobid: int, priority: int) -> None:
        """Another priority; harmless when the job does not wait."""
        request = self._want.get(jobid)
        if request is not None and request.priority != priority:
            self.add(jobid, priority, request.want, queue=request.queue)

    def pause(self, queue: str = "", reason: str = "") -> None:
        """Give nothing to the requests of a queue until `resume`."""
        self.stopped[queue] = reason

    def resume(self, queue: str = "") -> None:
        self.stopped.pop(queue, None)

    # ---- a pass -------------------------------------------------------------------------------

    def schedule(self, now: float = 0.0) -> Iterator[tuple[int, Rset] | None]:
        """One pass: allocations that can be made now. Each is taken from the pool as it is yielded, and no longer waits."""
        merge: list[tuple[Key, int, Bucket]] = []
        for bucket in self._buckets.values():
            self._push(merge, bucket)
        heapq.heapify(merge)
        self._merge = merge
        behind: set[str] = set()  #: queues whose head has to wait
        aside: list[Request] = []  #: may not start for a reason of their own; others may pass them
        seen = 0
        try:
            while merge:
                key, _, bucket = heapq.heappop(merge)
                head = self._head(bucket)
                if head is None or bucket.queue in behind or bucket.queue in self.stopped:
                    continue
                if head != key:
                    self._push(merge, bucket)
                    continue
                request = self._want[head[1]]
                if self.blocked is not None and self.blocked(request.jobid):
                    heapq.heappop(bucket.heap)
                    aside.append(request)
                    self._push(merge, bucket)
                    seen += 1
                    if seen % 256 == 0:
                        yield None
                    continue
                rset = self.pool.allocate(request.want)
                if rset is None:
                    behind.add(bucket.queue)
                    continue
                heapq.heappop(bucket.heap)
                self.withdraw(request.jobid)
                if bucket.heap:
                    self._push(merge, bucket)
                yield request.jobid, rset
        finally:
            for request in aside:
                if self._want.get(request.jobid) is request:
                    heapq.heappush(request.bucket.heap, request.key)
            if self._merge is merge:
                self._merge = None

    def _push(self, merge: list[tuple[Key, int, Bucket]], bucket: Bucket) -> None:
        head = self._head(bucket)
        if head is not None:
            self._serial += 1
            heapq.heappush(merge, (head, self._serial, bucket))

    def _head(self, bucket: Bucket) -> Key | None:
        """The first key of a bucket that still waits there."""
        heap = bucket.heap
        while heap:
            request = self._want.get(heap[0][1])
            if request is not None and request.key == heap[0] and request.bucket is bucket:
                return heap[0]
            heapq.heappop(heap)
        return None
