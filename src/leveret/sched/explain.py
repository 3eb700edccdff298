"""Why a job waits for resources, and when it may start. Pure; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from leveret.core import constraint as constraints
from leveret.core import idset
from leveret.core.jobspec import Digest
from leveret.sched.plan import UNLIMITED_S
from leveret.sched.pool import Pool, bits, need_per_node, slots_of
from leveret.sched.queue import Request, Scheduler

Reason = dict[str, Any]
"""`kind` (held, dependency, queue-stopped, limit, reservation, resources, behind, promised …), `text`, and details."""

#: jobs before a job that are planned for an estimate of its start
AHEAD_MAX = 200


def reasons(scheduler: Scheduler, jobid: int, now: float, show: Callable[[int], str] = str) -> list[Reason]:
    """Why a request has not been met, most telling first; [] when it could be met now. `show` writes job ids."""
    request = scheduler.request(jobid)
    if request is None:
        return []
    found: list[Reason] = []
    if request.queue in scheduler.stopped:
        queue, why = request.queue, scheduler.stopped[request.queue]
        text = why or (f"queue {queue} is stopped" if queue else "scheduling is stopped")
        found.append({"kind": "queue-stopped", "text": text, "queue": queue})
    if scheduler.blocked is not None and (limit := scheduler.blocked(jobid)):
        found.append({"kind": "limit", "text": limit})
    within, why = scheduler.within(request, now)
    if why:
        found.append({"kind": "reservation", "text": why, "reservation": request.reservation})
    short = shortage_now(scheduler.pool, request.want, within)
    if short is not None:
        found.append(short)
    elif request.storage is not None and not any(
        scheduler.storage.choices(request.storage, scheduler.pool.candidates(request.want) & within)
    ):
        storage = scheduler.storage
        free = {name: max(0, storage.free(name)) for name in storage.servers if storage.up[name]}
        asks = [f"{request.storage.per_node} bytes for each node"] * bool(request.storage.per_node)
        asks += [f"{request.storage.in_all} bytes in all"] * bool(request.storage.in_all)
        text = f"needs storage: {' and '.join(asks)}; free: " + (
            ", ".join(f"{n} {b}" for n, b in free.items()) or "none"
        )
        if debts := storage.debts():
            text += f"; {sum(sum(d.amounts.values()) for d in debts)} bytes are debts of {len(debts)} jobs"
        found.append({"kind": "storage", "text": text, "free": free})
    elif promised := _promised(scheduler, request, now, show):
        found.append(promised)
    ahead = [other for other in scheduler.order(request.queue) if other != jobid]
    before = [other for other in ahead if scheduler._want[other].key < request.key]
    if before:
        more = f" and {len(before) - 1} more" if len(before) > 1 else ""
        text = f"{show(before[0])}{more} wait{'s' * (len(before) == 1)} before it"
        found.append({"kind": "behind", "text": text, "jobs": before[:10], "count": len(before)})
    return found


def shortage_now(pool: Pool, want: Digest, within: int = -1) -> Reason | None:
    """What is missing at this moment, and how much there is; None when the resources are free."""
    if pool.fits(want, within):
        return None
    able = pool.capable(want) & within
    usable = able & pool.usable()
    cores, gpus, memory = need_per_node(want)
    each = f"{cores} core{'s' * (cores > 1)}"
    each += f", {gpus} GPU{'s' * (gpus > 1)}" if gpus else ""
    each += f", {memory} MB" if memory else ""
    nodes = [pool.nodes[rank] for rank in bits(usable)]
    if want.nnodes:
        needs, unit = want.nnodes, "node(s)"
        if want.exclusive:
            free = sum(node.idle for node in nodes)
            what = "idle node(s)"
        else:
            free = sum(
                node.cores_free.bit_count() >= cores
                and node.gpus_free.bit_count() >= gpus
                and (not node.memory_mb or node.memory_free_mb >= memory)
                for node in nodes
            )
            what = f"node(s) with {each} free"
        has = f"{free} of {able.bit_count()} eligible {unit[:-3]}s"
    else:
        needs, what = want.nslots, f"slot(s) of {each}"
        free = sum(
            slots_of(
                node.cores_free.bit_count(),
                node.gpus_free.bit_count(),
                node.memory_free_mb if node.memory_mb else -1,
                cores,
                gpus,
                memory,
            )
            for node in nodes
        )
        has = f"{free} free on {able.bit_count()} eligible node{'s' * (able.bit_count() != 1)}"
    text = f"needs {needs} {what}: {has}"
    if want.constraints:
        text += f" ({constraints.describe(want.constraints)})"
    reason: Reason = {"kind": "resources", "needs": needs, "free": free, "eligible": idset.encode(bits(able))}
    away = {
        "drained": [n.rank for rank in bits(able) if (n := pool.nodes[rank]).drained],
        "down": [n.rank for rank in bits(able) if not (n := pool.nodes[rank]).up],
    }
    for state, ranks in away.items():
        if ranks:
            text += f"; {len(ranks)} {state}: rank{'s' * (len(ranks) > 1)} {idset.encode(ranks)}"
            reason[state] = idset.encode(ranks)
    return {**reason, "text": text}


def _promised(scheduler: Scheduler, request: Request, now: float, show: Callable[[int], str]) -> Reason | None:
    """Resources that are free, but promised to others before the job would end."""
    skip = (request.jobid, ("reservation", request.reservation))
    names = [b.name for b in scheduler.plan.promised(now, now + request.lasts, skip)]
    if not names:
        return None
    jobs = [name for name in names if isinstance(name, int)]
    kept = [name[1] for name in names if isinstance(name, tuple)]
    said = []
    if jobs:
        said.append("it would delay " + ", ".join(map(show, jobs[:5])))
    if kept:
        said.append("it would not end before reservation " + ", ".join(kept))
    return {"kind": "promised", "text": "; ".join(said), "jobs": jobs, "reservations": kept}


def estimate(scheduler: Scheduler, jobid: int, now: float) -> Generator[None, None, tuple[float | None, str]]:
    """(when it may start at the latest if nothing of higher priority comes and jobs run to their limits, or None; a remark).

    Every job before it is planned first. Yields now and then, so that the caller may pause.
    """
    request = scheduler.request(jobid)
    if request is None:
        return None, "it does not wait for resources"
    if request.queue in scheduler.stopped:
        return None, "its queue is stopped"
    plan = scheduler.plan.copy()
    order = [other for other in scheduler.order() if scheduler._want[other].queue not in scheduler.stopped]
    before = order[: order.index(jobid)]
    if len(before) > AHEAD_MAX:
        return None, f"{len(before)} jobs wait before it: too many for an estimate"
    latest: dict[str, float] = {}
    for other in [*before, jobid]:
        waits = scheduler.request(other)
        if waits is None:
            continue
        booking = plan.bookings.get(other)
        if booking is None or booking.start <= now:
            within, _ = scheduler.within(waits, now)
            begin = scheduler.reservations.get(waits.reservation)
            at = max(now, begin.start) if begin is not None else now
            skip = (other, ("reservation", waits.reservation))
            booking = yield from plan.earliest(other, waits.want, at, skip, within)
            if booking is None:
                if other == jobid:
                    return None, "nodes that it needs are drained or down"
                continue
            plan.add(booking)
        start = booking.start
        if not scheduler.policy.overtake and scheduler.policy.reservation_depth == 0:
            start = latest[waits.queue] = max(start, latest.get(waits.queue, now))
        if other == jobid:
            if start - now > UNLIMITED_S / 10:
                return None, "it waits for jobs that have no time limit"
            return start, ""
    return None, "it has just left the queue"
