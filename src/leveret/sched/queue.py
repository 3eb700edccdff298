"""Who gets resources next: pending requests by priority, and passes over them in slices. Pure; times are seconds.

A pass is an iterator. It yields (jobid, Rset) for each allocation that it makes, and None now and then, so that the
caller may pause it and go on later; between two steps requests may come and go and resources may be released.

Policies differ in how many jobs that cannot start get a booking (a promise of resources at a time) that others must not break:
fifo none, since nobody may pass them; easy one in each queue; hybrid some; conservative all, up to a depth.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from leveret.core.jobspec import Digest
from leveret.core.resources import Rset
from leveret.errors import InvalidError
from leveret.sched.plan import UNLIMITED_S, Booking, Plan
from leveret.sched.pool import Cap, Pool
from leveret.sched.storage import Need, Storage

Key = tuple[int, int]
"""(−priority, jobid): the order of the queue."""

#: requests that are passed over between two chances to pause
REQUESTS_A_TICK = 256
QUEUE_DEPTH = 1000
RESERVATION_DEPTH = 64


class Policy(NamedTuple):
    """`queue_depth`: jobs that cannot start after which a pass ends; `reservation_depth`: jobs of each queue that get a booking;
    `overtake`: whether jobs without one may start before them."""

    name: str = "fcfs"
    queue_depth: int = QUEUE_DEPTH
    reservation_depth: int = 0
    overtake: bool = False


def policy(name: str, queue_depth: int | None = None, reservation_depth: int | None = None) -> Policy:
    """The policy of that name. Raises InvalidError."""
    depth = QUEUE_DEPTH if queue_depth is None else queue_depth
    promises = RESERVATION_DEPTH if reservation_depth is None else reservation_depth
    if depth < 1:
        raise InvalidError("queue-depth must be at least 1", path="sched.queue-params.queue-depth")
    if promises < 1:
        raise InvalidError("reservation-depth must be at least 1", path="sched.policy-params.reservation-depth")
    known = {
        "fcfs": Policy("fcfs", depth),
        "fifo": Policy("fcfs", depth),
        "easy": Policy("easy", depth, 1, True),
        "hybrid": Policy("hybrid", depth, promises, True),
        "conservative": Policy("conservative", depth, promises),
    }
    if name not in known:
        raise InvalidError(f"unknown queue policy `{name}`", "policies: " + ", ".join(known), "sched.queue-policy")
    return known[name]


class Request:
    """A job that waits for resources."""

    __slots__ = ("bucket", "jobid", "key", "planned", "priority", "queue", "reservation", "storage", "want")

    def __init__(
        self, jobid: int, priority: int, want: Digest, queue: str, reservation: str, storage: Need | None
    ) -> None:
        self.jobid = jobid
        self.priority = priority
        self.want = want
        self.queue = queue
        self.reservation = reservation
        self.storage = storage
        self.key: Key = (-priority, jobid)
        self.planned = (-1, 0.0)  #: version of the pool and time at which its booking was made
        self.bucket: Bucket

    @property
    def lasts(self) -> float:
        return self.want.duration_s or UNLIMITED_S


class Bucket:
    """Requests that need the same resources, in one queue: when one cannot be met, none can."""

    __slots__ = ("heap", "name", "queue", "size")

    def __init__(self, name: object, queue: str) -> None:
        self.name = name
        self.queue = queue
        self.heap: list[Key] = []  #: may hold keys of requests that are gone
        self.size = 0  #: requests that are not gone


class Reservation(NamedTuple):
    """Nodes that are kept for some users from `start` to `end` (Flux has no such thing)."""

    name: str
    start: float
    end: float
    ranks: tuple[int, ...]
    users: tuple[int, ...] = ()  #: user ids; none: anybody who names it


class Scheduler:
    """Pending allocation requests, highest priority first, then lowest job id (the older job)."""

    def __init__(self, pool: Pool, rules: Policy | None = None) -> None:
        self.pool = pool
        self.policy = rules or policy("fcfs")
        self.plan = Plan(pool)
        self.storage = Storage()
        #: why a job may not start now ("" when it may): limits, set by whoever knows them
        self.blocked: Callable[[int], str] | None = None
        self.stopped: dict[str, str] = {}  #: queues that are not scheduled → why
        self.reservations: dict[str, Reservation] = {}
        self._want: dict[int, Request] = {}
        self._buckets: dict[object, Bucket] = {}
        self._merge: list[tuple[Key, int, Bucket]] | None = None  #: of the pass under way
        self._serial = 0
        self._caps: dict[tuple[object, ...], dict[int, Cap] | None] = {}  #: of this pass, since the last allocation

    def __len__(self) -> int:
        return len(self._want)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._want

    def request(self, jobid: int) -> Request | None:
        return self._want.get(jobid)

    def order(self, queue: str | None = None) -> list[int]:
        """The waiting jobs, first one first."""
        found = [r.key for r in self._want.values() if queue is None or r.queue == queue]
        return [jobid for _, jobid in sorted(found)]

    def add(
        self,
        jobid: int,
        priority: int,
        want: Digest,
        *,
        queue: str = "",
        reservation: str = "",
        storage: Need | None = None,
    ) -> None:
        """Queue a request; asking again replaces it. `reservation` names the one whose nodes it is to run on; `storage` is
        leased with the nodes (`self.storage`)."""
        self.withdraw(jobid)
        request = Request(jobid, priority, want, queue, reservation, storage)
        self._want[jobid] = request
        name = (want.shape, queue, reservation, storage)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(name, queue)
        request.bucket = bucket
        bucket.size += 1
        heapq.heappush(bucket.heap, request.key)
        if self._merge is not None and bucket.heap[0] == request.key:
            self._push(self._merge, bucket)
        if self.plan.bookings:
            # promises to jobs of lower priority do not bind this one
            for other in [r for name in self.plan.bookings if isinstance(name, int) and (r := self._want.get(name))]:
                if other.queue == queue and other.key > request.key:
                    self.plan.remove(other.jobid)

    def withdraw(self, jobid: int) -> None:
        """Forget a request; harmless when there is none."""
        request = self._want.pop(jobid, None)
        if request is not None:
            bucket = request.bucket
            bucket.size -= 1
            if not bucket.size:
                bucket.heap.clear()
                del self._buckets[bucket.name]
            if self.plan.bookings:
                self.plan.remove(jobid)

    def reprioritise(self, jobid: int, priority: int) -> None:
        """Another priority; harmless when the job does not wait."""
        request = self._want.get(jobid)
        if request is not None and request.priority != priority:
            self.add(
                jobid,
                priority,
                request.want,
                queue=request.queue,
                reservation=request.reservation,
                storage=request.storage,
            )

    def pause(self, queue: str = "", reason: str = "") -> None:
        """Give nothing to the requests of a queue until `resume`."""
        self.stopped[queue] = reason
        for request in list(self._want.values()) if self.plan.bookings else ():
            if request.queue == queue:
                self.plan.remove(request.jobid)

    def resume(self, queue: str = "") -> None:
        self.stopped.pop(queue, None)

    # ---- reservations -------------------------------------------------------------------------

    def reserve(self, reservation: Reservation) -> None:
        """Keep nodes for a time. Jobs that run there are not touched."""
        parts = {}
        for rank in reservation.ranks:
            if (node := self.pool.nodes.get(rank)) is not None:
                parts[rank] = Cap(node.ncores, node.gpus.bit_count(), node.memory_mb)
        self.reservations[reservation.name] = reservation
        self.plan.add(Booking(("reservation", reservation.name), reservation.start, reservation.end, parts))
        for name in [name for name in self.plan.bookings if isinstance(name, int)]:
            self.plan.remove(name)  # made without it

    def unreserve(self, name: str) -> None:
        self.reservations.pop(name, None)
        self.plan.remove(("reservation", name))

    def wake_at(self, now: float) -> float | None:
        """When a reservation begins or ends next: somebody may be able to start then."""
        times = [t for r in self.reservations.values() for t in (r.start, r.end) if t > now]
        return min(times, default=None)

    def within(self, request: Request, now: float) -> tuple[int, str]:
        """The nodes that the request may have because of the reservation that it names, and why it has to wait now."""
        if not request.reservation:
            return -1, ""
        found = self.reservations.get(request.reservation)
        if found is None:
            return 0, f"reservation {request.reservation} is not there"
        mask = 0
        for rank in found.ranks:
            mask |= 1 << rank
        if now < found.start:
            return mask, f"reservation {found.name} has not begun"
        if now + request.want.duration_s > found.end or not request.want.duration_s:
            return mask, f"reservation {found.name} ends before the job would"
        return mask, ""

    # ---- a pass -------------------------------------------------------------------------------

    def schedule(self, now: float = 0.0) -> Iterator[tuple[int, Rset] | None]:
        """One pass: allocations that can be made now. Each is taken from the pool as it is yielded, and no longer waits."""
        merge: list[tuple[Key, int, Bucket]] = []
        for number, bucket in enumerate(list(self._buckets.values())):
            self._push(merge, bucket)
            if number % 2000 == 1999:
                yield None
        self._merge = merge
        behind: set[str] = set()  #: queues of which no more may start
        aside: list[Request] = []  #: passed over; others of their bucket may start
        self._caps.clear()
        #: what cannot be had in this pass: shape and reservation → the shortest duration for which it cannot
        refused: dict[object, float] = {}
        promised: dict[str, int] = {}  #: queue → bookings of this pass
        steps = seen = 0  #: requests looked at; of these, requests that could not start
        try:
            while merge and seen < self.policy.queue_depth:
                key, _, bucket = heapq.heappop(merge)
                head = self._head(bucket)
                if head is None or bucket.queue in behind or bucket.queue in self.stopped:
                    continue
                if head != key:
                    self._push(merge, bucket)
                    continue
                request = self._want[head[1]]
                steps += 1
                if steps % REQUESTS_A_TICK == 0:
                    yield None
                    if self._want.get(request.jobid) is not request:
                        self._push(merge, bucket)
                        continue
                if self.blocked is not None and self.blocked(request.jobid):
                    seen += 1
                    self._set_aside(request, aside, merge)
                    continue
                within, why = self.within(request, now)
                if why:
                    self._set_aside(request, aside, merge)
                    continue
                rset = self._try(request, now, within, refused)
                if rset is not None:
                    heapq.heappop(bucket.heap)
                    self.withdraw(request.jobid)
                    if bucket.heap:
                        self._push(merge, bucket)
                    yield request.jobid, rset
                    continue
                seen += 1
                if self.policy.reservation_depth:
                    yield None
                    if self._want.get(request.jobid) is not request:
                        self._push(merge, bucket)
                        continue
                count = promised.get(bucket.queue, 0)
                if request.storage is not None and self.policy.overtake and self.pool.fits(request.want, within):
                    # it waits for storage alone, whose end nobody can tell: no nodes are kept for it
                    self.plan.remove(request.jobid)
                elif count < self.policy.reservation_depth:
                    promised[bucket.queue] = count + 1
                    yield from self._promise(request, now, within)
                    if self._want.get(request.jobid) is not request:
                        self._push(merge, bucket)
                        continue
                elif not self.policy.overtake:
                    behind.add(bucket.queue)
                    continue
                else:
                    self.plan.remove(request.jobid)
                    if refused.get(bucket.name) == 0.0:
                        continue  # the whole bucket
                self._set_aside(request, aside, merge)
        finally:
            for request in aside:
                if self._want.get(request.jobid) is request:
                    heapq.heappush(request.bucket.heap, request.key)
            if self._merge is merge:
                self._merge = None

    def _set_aside(self, request: Request, aside: list[Request], merge: list[tuple[Key, int, Bucket]]) -> None:
        heapq.heappop(request.bucket.heap)
        aside.append(request)
        self._push(merge, request.bucket)

    def _try(self, request: Request, now: float, within: int, refused: dict[object, float]) -> Rset | None:
        """Allocate what is free and promised to nobody else, with its storage."""
        if request.storage is None:
            return self._try_within(request, now, within, refused)
        if request.bucket.name in refused and not self.plan.bookings:
            return None
        for mask in self.storage.choices(request.storage, self.pool.candidates(request.want) & within):
            rset = self._try_within(request, now, mask, {})
            if rset is None:
                continue
            amounts = self.storage.place(request.storage, rset.ranks)
            if amounts is not None:
                self.storage.lease(request.jobid, amounts, now)
                return rset
            self.pool.release(rset)
        refused[request.bucket.name] = min(request.lasts, refused.get(request.bucket.name, UNLIMITED_S))
        return None

    def _try_within(self, request: Request, now: float, within: int, refused: dict[object, float]) -> Rset | None:
        want, bucket = request.want, request.bucket
        booking = self.plan.bookings.get(request.jobid) if self.plan.bookings else None
        if not self.plan.bookings:
            if bucket.name in refused:
                return None
            rset = self.pool.allocate(want, within)
            if rset is None:
                refused[bucket.name] = 0.0
        else:
            if request.lasts >= refused.get(bucket.name, UNLIMITED_S * 2) and booking is None:
                return None
            end = now + request.lasts
            skip = (request.jobid, ("reservation", request.reservation))
            promised = self.plan.promised(now, end, skip)
            mask = within
            for other in promised:
                mask &= ~other.mask
            rset = self.pool.allocate(want, mask)
            if rset is None and promised:
                if not self.pool.fits(want, within):
                    refused[bucket.name] = 0.0
                elif not want.exclusive and (caps := self._caps_of(promised, now, end)) is not None:
                    rset = self.pool.allocate(want, within, caps)
            if rset is None:
                refused[bucket.name] = min(
                    refused.get(bucket.name, UNLIMITED_S * 2), request.lasts if promised else 0.0
                )
        if rset is not None:
            self._caps.clear()
            rset.starttime = now
            rset.expiration = now + want.duration_s if want.duration_s else 0.0
        return rset

    def _caps_of(self, promised: list[Booking], now: float, end: float) -> dict[int, Cap] | None:
        key = tuple(promised)
        if key not in self._caps:
            self._caps[key] = self.plan.caps(promised, now, end)
        return self._caps[key]

    def _promise(self, request: Request, now: float, within: int) -> Generator[None, None, None]:
        """A booking for a request that cannot start; one that it has stays, unless an earlier one is to be had."""
        old = self.plan.bookings.get(request.jobid)
        version, planned = request.planned
        good = old is not None and old.start > now and not old.mask & ~self.pool.usable()
        # a large pool is not searched again for each job that ends
        patience_s = len(self.pool.nodes) * (1 + self.policy.reservation_depth / 8) / 1000
        if good and (version == self.pool.version or now - planned < patience_s):
            return
        version = self.pool.version
        skip = (request.jobid, ("reservation", request.reservation))
        horizon = old.start if good and old is not None else math.inf
        found = yield from self.plan.earliest(request.jobid, request.want, now, skip, within, horizon)
        if self._want.get(request.jobid) is not request:
            return
        request.planned = (version, now)
        if found is None:
            if not good:
                self.plan.remove(request.jobid)
        elif not good or old is None or found.start <= old.start:
            self.plan.add(found)

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
