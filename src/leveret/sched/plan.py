"""When a request can start: the time table of what is free, with what is promised to others. Pure; times are seconds.

What jobs hold becomes free at the expiration of their R; a job that overruns it is taken to end soon, and one without a time
limit to hold its resources for UNLIMITED_S. Nothing is ever freed by this: it is an estimate, from which promises
(bookings) are made that backfill must not break.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Container, Generator, Iterable
from typing import TYPE_CHECKING

from leveret.sched.pool import Cap, PoolNode, bits, need_of_node, slots_of

if TYPE_CHECKING:
    from leveret.core.jobspec import Digest
    from leveret.sched.pool import Pool

UNLIMITED_S = 1e9
"""How long a job without a time limit is taken to run: about 30 years."""
SOON_S = 1.0
"""When a job that has overrun is taken to end, from now on."""
#: times that differ by less are the same: sums of large numbers are not exact
EPSILON_S = 1e-5
#: nodes that are looked at between two chances to pause
NODES_A_TICK = 200
#: at most so many booked nodes are looked into one by one; above that they are left alone as wholes
CAPS_MAX = 256

Step = tuple[float, int, int, int]
"""(from this time on, cores, GPUs, MB)."""


class Booking:
    """Resources that are promised from `start` until `end`: a waiting job's, or an advance reservation."""

    __slots__ = ("end", "mask", "name", "parts", "start")

    def __init__(self, name: object, start: float, end: float, parts: dict[int, Cap]) -> None:
        self.name = name
        self.start = start
        self.end = end
        self.parts = parts  #: rank → what of it
        self.mask = functools.reduce(lambda mask, rank: mask | 1 << rank, parts, 0)

    def __repr__(self) -> str:
        return f"Booking({self.name!r}, {self.start}..{self.end}, {self.parts})"


class Plan:
    """Bookings, over what the pool holds now."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.bookings: dict[object, Booking] = {}
        self._on: dict[int, dict[object, Booking]] = {}  #: rank → bookings there

    def __contains__(self, name: object) -> bool:
        return name in self.bookings

    def copy(self) -> Plan:
        """A plan to try things in."""
        other = Plan(self.pool)
        other.bookings = dict(self.bookings)
        other._on = {rank: dict(there) for rank, there in self._on.items()}
        return other

    def add(self, booking: Booking) -> None:
        self.remove(booking.name)
        self.bookings[booking.name] = booking
        for rank in booking.parts:
            self._on.setdefault(rank, {})[booking.name] = booking

    def remove(self, name: object) -> Booking | None:
        booking = self.bookings.pop(name, None)
        for rank in booking.parts if booking is not None else ():
            there = self._on[rank]
            del there[name]
            if not there:
                del self._on[rank]
        return booking

    # ---- now ----------------------------------------------------------------------------------

    def promised(self, now: float, end: float, skip: Container[object] = ()) -> list[Booking]:
        """The bookings that a job from `now` to `end` may meet."""
        return [
            b
            for b in self.bookings.values()
            if b.start < end - EPSILON_S and b.end > now + EPSILON_S and b.name not in skip
        ]

    def caps(self, promised: Iterable[Booking], now: float, end: float) -> dict[int, Cap] | None:
        """What of each booked node can be used until `end` without touching a promise; None when they are too many."""
        mask = 0
        promised = list(promised)
        for booking in promised:
            mask |= booking.mask
        if mask.bit_count() > CAPS_MAX:
            return None
        skip = self.bookings.keys() - {b.name for b in promised}
        found = {}
        for rank in bits(mask):
            steps = [s for s in self._steps(self.pool.nodes[rank], now, skip) if s[0] < end - EPSILON_S]
            cores, gpus, memory = (min(max(0, step[i]) for step in steps) for i in (1, 2, 3))
            found[rank] = Cap(int(cores), int(gpus), int(memory))
        return found

    # ---- later --------------------------------------------------------------------------------

    def _steps(self, node: PoolNode, now: float, skip: Container[object]) -> list[Step]:
        """What is free on a node, over time; bookings are taken off. The first step is at `now`."""
        cores, gpus, memory = node.cores_free.bit_count(), node.gpus_free.bit_count(), node.memory_free_mb
        changes: list[Step] = [
            (ends(rset_start, expiration, now), its_cores, its_gpus, its_memory)
            for its_cores, its_gpus, its_memory, rset_start, expiration in node.holders()
        ]
        for booking in self._on.get(node.rank, {}).values():
            if booking.name in skip or booking.end <= now:
                continue
            cap = booking.parts[node.rank]
            if booking.start <= now:
                cores, gpus, memory = cores - cap.cores, gpus - cap.gpus, memory - cap.memory_mb
            else:
                changes.append((booking.start, -cap.cores, -cap.gpus, -cap.memory_mb))
            changes.append((booking.end, cap.cores, cap.gpus, cap.memory_mb))
        steps: list[Step] = [(now, cores, gpus, memory)]
        changes.sort()
        for at, more_cores, more_gpus, more_memory in changes:
            cores, gpus, memory = cores + more_cores, gpus + more_gpus, memory + more_memory
            if at == steps[-1][0]:
                steps[-1] = (at, cores, gpus, memory)
            else:
                steps.append((at, cores, gpus, memory))
        return steps

    def earliest(
        self,
        name: object,
        want: Digest,
        now: float,
        skip: Container[object] = (),
        within: int = -1,
        horizon: float = math.inf,
    ) -> Generator[None, None, Booking | None]:
        """The earliest booking that the request can have beside the others; None when the nodes that are there cannot
        give it before `horizon`. Yields now and then, so that the caller may pause."""
        lasts = want.duration_s or UNLIMITED_S
        wanted = want.nnodes or want.nslots
        able = self.pool.capable(want) & self.pool.usable() & within
        groups: dict[object, tuple[PoolNode, list[int]]] = {}
        for number, rank in enumerate(bits(able)):
            if number % NODES_A_TICK == NODES_A_TICK - 1:
                yield
            node = self.pool.nodes[rank]
            there = self._on.get(rank)
            key = (node.signature(), tuple(there) if there else None)
            group = groups.get(key)
            if group is None:
                groups[key] = (node, [rank])
            else:
                group[1].append(rank)
        # (time, 0 rises before it is looked at / 1 falls after, group, slots from then on)
        changes: list[tuple[float, int, int, int]] = []
        kinds = list(groups.values())
        for number, (node, _) in enumerate(kinds):
            if number % 10 == 9:
                yield
            steps = self._steps(node, now, skip)
            changes += [(at, falls, number, slots) for at, falls, slots in _offers(want, node, steps, lasts, horizon)]
        changes.sort()
        offer = [0] * len(kinds)
        total, index = 0, 0
        while index < len(changes):
            at, falls = changes[index][:2]
            while index < len(changes) and changes[index][:2] == (at, falls):
                _, _, number, slots = changes[index]
                total += (slots - offer[number]) * len(kinds[number][1])
                offer[number] = slots
                index += 1
            if not falls and total >= wanted:
                return Booking(name, at, at + lasts, _share(want, kinds, offer, wanted))
            if index % 1000 == 999:
                yield
        return None


def ends(start: float, expiration: float, now: float) -> float:
    """When what is held is taken to become free."""
    if not expiration:
        return max(start + UNLIMITED_S, now + SOON_S)
    return max(expiration, now + SOON_S)


def _offers(
    want: Digest, node: PoolNode, steps: list[Step], lasts: float, horizon: float
) -> list[tuple[float, int, int]]:
    """How many slots (nodes: 0 or 1) a job can have that starts at a time and lasts so long: (time, falls, slots)."""
    cores, gpus, memory = need_of_node(want, node)
    counted = node.memory_mb > 0
    if steps[-1][0] > horizon + lasts:
        steps = [step for step in steps if step[0] <= horizon + lasts]
    slots = [slots_of(max(0, c), max(0, g), max(0, m) if counted else -1, cores, gpus, memory) for _, c, g, m in steps]
    if want.nnodes:
        slots = [min(1, s) for s in slots]
    else:
        slots = [min(want.nslots, s) for s in slots]
    times = [step[0] for step in steps]
    count = len(times)
    if all(slots[i] <= slots[i + 1] for i in range(count - 1)):
        return [(times[i], 0, slots[i]) for i in range(count) if i == 0 or slots[i] != slots[i - 1]]
    points = {(at, 0) for at in times if at <= horizon}
    points |= {
        (times[i] - lasts, 1) for i in range(1, count) if slots[i] < slots[i - 1] and times[i] - lasts >= times[0]
    }
    # the least of a window that slides over the steps
    found: list[tuple[float, int, int]] = []
    window: deque[int] = deque()  #: steps in it, each with more slots than those before
    first = behind = 0
    for at, falls in sorted(points):
        until = at + lasts + (EPSILON_S if falls else -EPSILON_S)
        while behind < count and times[behind] < until:
            while window and slots[window[-1]] >= slots[behind]:
                window.pop()
            window.append(behind)
            behind += 1
        while first + 1 < count and times[first + 1] <= at:
            first += 1
        while window[0] < first:
            window.popleft()
        least = slots[window[0]]
        if not found or found[-1][2] != least:
            found.append((at, falls, least))
    return found


def _share(want: Digest, kinds: list[tuple[PoolNode, list[int]]], offer: list[int], wanted: int) -> dict[int, Cap]:
    """What each node gives: lowest ranks first."""
    offering = sorted((rank, number) for number, (_, ranks) in enumerate(kinds) if offer[number] for rank in ranks)
    parts: dict[int, Cap] = {}
    for rank, number in offering:
        take = min(wanted, offer[number])
        parts[rank] = Cap(*(take * amount for amount in need_of_node(want, kinds[number][0])))
        wanted -= take
        if not wanted:
            break
    return parts
