"""Scheduling in the manager: requests go in, allocations come out, each in a turn of its own; passes run in slices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import constraint as constraints
from leveret.core import idset
from leveret.core import jobid as jobids
from leveret.core.jobspec import Digest
from leveret.core.resources import Rset
from leveret.core.transitions import DEPEND, INACTIVE, PRIORITY, RUN, SCHED
from leveret.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from leveret.manager.entry import Entry
from leveret.manager.leases import Leases
from leveret.manager.turn import Turn
from leveret.sched import explain as explaining
from leveret.sched.pool import Pool, PoolNode, bits
from leveret.sched.queue import Reservation, Scheduler, policy

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

_encode = msgspec.json.Encoder().encode
_reservation = msgspec.json.Decoder(Reservation).decode
#: a slice of a pass ends after so long, so that the daemon's doors stay open
SLICE_S = 0.01


class Scheduling:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.pool = Pool(_nodes(manager))
        conf = manager.config.sched
        rules = policy(conf.queue_policy, conf.queue_params.queue_depth, conf.policy_params.reservation_depth)
        self.queue = Scheduler(self.pool, rules)
        self.leases = Leases(manager)
        self._wanted = False
        self._pass: Iterator[tuple[int, Rset] | None] | None = None
        self._again = False  #: something has changed since the pass under way began
        self._timer: Any = None  #: of the next begin or end of a reservation

    def check(self, digest: Digest) -> None:
        """What can be said of a request at submit. Raises InvalidError."""
        if self.manager.config.ingest.feasibility and (shortage := self.pool.shortage(digest)):
            raise InvalidError(shortage)
        if digest.reservation and digest.reservation not in self.queue.reservations:
            raise InvalidError(
                f"reservation `{digest.reservation}` is not there",
                "see `leveret reservation list`",
                "attributes.system.reservation",
            )

    def admit(self, digest: Digest, userid: int) -> None:
        """Raises ForbiddenError when the request names a reservation of other users."""
        if digest.reservation:
            found = self.queue.reservations.get(digest.reservation)
            if found is not None and found.users and userid not in found.users:
                raise ForbiddenError(f"reservation `{digest.reservation}` is not for you")

    def reload(self) -> None:
        """The inventory is another one; nothing is held."""
        self.pool.load(_nodes(self.manager))
        self.want_schedule()

    def request(self, entry: Entry) -> None:
        """Queue (again) a job's request for resources."""
        digest = entry.digest
        self.queue.add(
            entry.job.id,
            entry.job.priority or 0,
            digest,
            queue=digest.queue,
            reservation=digest.reservation,
            storage=self.leases.needs.get(entry.job.id),
        )
        self.want_schedule()

    def withdraw(self, jobid: int) -> None:
        """Forget a job's request; one that waited may have kept others back."""
        if jobid in self.queue:
            self.queue.withdraw(jobid)
            self.want_schedule()

    def release(self, rset: Rset) -> None:
        """An allocation, or some ranks of it (`Rset.subset`), goes back to the pool."""
        self.pool.release(rset)
        self.want_schedule()

    # ---- passes ------------------------------------------------------------------------------------

    def want_schedule(self) -> None:
        self._again = True
        if not self._wanted and (self._pass is not None or len(self.queue)):
            self._wanted = True
            self.manager.clock.call_soon(self._slice)

    def _slice(self) -> None:
        """A part of a pass; the rest follows in the next pass of the loop."""
        self._wanted = False
        if self._pass is None:
            self._again = False
            self.queue.blocked = self._blocked if self.manager.registry.has("blocked") else None
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
        if not self._wanted:
            self._wanted = True
            self.manager.clock.call_soon(self._slice)

    def _blocked(self, jobid: int) -> str:
        """Why plugins do not let a job have resources now; listings show it."""
        entry = self.manager.entries[jobid]
        reason = self.manager.registry.first_text("blocked", str(jobid), entry.job)
        if reason != entry.reason:
            entry.reason = reason
            self.manager.feed.publish((jobid,))
        return reason

    def _allocated(self, jobid: int, rset: Rset) -> None:
        entry = self.manager.entries[jobid]
        now = self.manager.clock.time()
        rset.starttime = now
        rset.expiration = now + entry.digest.duration_s if entry.digest.duration_s else 0.0
        entry.rset = rset
        try:
            with Turn(self.manager, "alloc") as turn:
                turn.batch.put(jobid, "R", _encode(rset.to_dict()))
                self.leases.allocated(turn, jobid)
                turn.post(entry, "alloc", {"annotations": {"sched": {"resource_summary": rset.summary()}}})
        except Exception:
            self.manager.log.exception("alloc failed", job=jobid)
            self.pool.release(rset)
            self.leases.undone(jobid)
            entry.rset = None

    # ---- reservations ------------------------------------------------------------------------------

    def recover(self) -> None:
        self.leases.recover()
        for _, value in self.manager.store.notes("reservation"):
            self.queue.reserve(_reservation(value))
        self._reservations_due()

    def reserve(
        self,
        name: str,
        start: float,
        duration_s: float,
        nodes: int,
        constraint: constraints.Constraint | None,
        users: list[int],
    ) -> dict[str, Any]:
        """Keep nodes for a time: so many of those that the constraint allows, or (0) all of these. Raises InvalidError,
        ConflictError; nothing has changed then."""
        if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise InvalidError(f"`{name}` is no name for a reservation", "letters, digits and `-_.`", "name")
        if name in self.queue.reservations:
            raise ConflictError(f"reservation `{name}` is there already", "see `leveret reservation list`")
        now = self.manager.clock.time()
        start, end = max(start, now), start + duration_s
        if not duration_s > 0 or end <= now:
            raise InvalidError("a reservation must end after it begins, and in the future", path="duration")
        mask = self.pool.matching(constraint)
        for other in self.queue.reservations.values():
            if other.start < end and other.end > start:
                for rank in other.ranks:
                    mask &= ~(1 << rank)
        free = [node for rank in bits(mask) if not (node := self.pool.nodes[rank]).excluded]
        if len(free) < max(nodes, 1):
            raise ConflictError(
                f"need {max(nodes, 1)} node(s) from then on, only {len(free)} are not reserved otherwise"
            )

        def busy_then(node: PoolNode) -> bool:
            return any(not expiration or expiration > start for *_, expiration in node.holders())

        if nodes:
            free = sorted(free, key=lambda node: (busy_then(node), not node.allocatable, node.rank))[:nodes]
        ranks = tuple(sorted(node.rank for node in free))
        reservation = Reservation(name, start, end, ranks, tuple(users))
        with Turn(self.manager, "reservation") as turn:
            turn.op("INSERT INTO note VALUES('reservation', ?, ?)", name, _encode(reservation))
        self.queue.reserve(reservation)
        self._reservations_due()
        return self.reservation(reservation)

    def unreserve(self, name: str) -> None:
        if name not in self.queue.reservations:
            raise NotFoundError(f"reservation `{name}` is not there", "see `leveret reservation list`")
        with Turn(self.manager, "reservation") as turn:
            turn.op("DELETE FROM note WHERE kind='reservation' AND name=?", name)
        self.queue.unreserve(name)
        self._reservations_due()

    def reservation(self, reservation: Reservation) -> dict[str, Any]:
        now = self.manager.clock.time()
        nodes = [self.pool.nodes[rank] for rank in reservation.ranks if rank in self.pool.nodes]
        held = [node.rank for node in nodes if any(not e or e > reservation.start for *_, e in node.holders())]
        return {
            "name": reservation.name,
            "start": reservation.start,
            "end": reservation.end,
            "ranks": idset.encode(reservation.ranks),
            "nnodes": len(reservation.ranks),
            "users": list(reservation.users),
            "state": "active" if reservation.start <= now else "planned",
            "busy": idset.encode(held) if reservation.start > now else "",
        }

    def list_reservations(self) -> list[dict[str, Any]]:
        return [self.reservation(r) for r in sorted(self.queue.reservations.values(), key=lambda r: (r.start, r.name))]

    def _reservations_due(self) -> None:
        """Drop what is over, and look again when the next one begins or ends."""
        now = self.manager.clock.time()
        for name in [r.name for r in self.queue.reservations.values() if r.end <= now]:
            self.queue.unreserve(name)
            with Turn(self.manager, "reservation") as turn:
                turn.op("DELETE FROM note WHERE kind='reservation' AND name=?", name)
        if self._timer is not None:
            self._timer.cancel()
        when = self.queue.wake_at(now)
        self._timer = self.manager.clock.call_at(when, self._reservations_due) if when is not None else None
        self.want_schedule()

    # ---- explaining --------------------------------------------------------------------------------

    async def explain(self, jobid: int) -> dict[str, Any]:
        """Why a job waits and when it may start: {id, state, reasons: [{kind, text, …}], estimate, note, waiting, position}."""
        entry = self.manager.entries.get(jobid)
        if entry is None and (job := self.manager.outcome(jobid)) is None:
            raise NotFoundError("unknown job id")
        out: dict[str, Any] = {"id": jobid, "state": "INACTIVE", "reasons": [], "estimate": None, "note": ""}
        if entry is None or entry.job.state is INACTIVE:
            out["note"] = "the job is over"
            return out
        job = entry.job
        out["state"] = job.state.name
        reasons: list[dict[str, Any]] = out["reasons"]
        for hold in job.holds.values():
            kind = "dependency" if hold.kind == "dependency" else "hold"
            text = f"dependency {hold.name}" if kind == "dependency" else f"{hold.kind} {hold.name} is not over"
            reasons.append({"kind": kind, "name": hold.name, "text": text, "since": hold.since})
        if job.urgency == 0 or (job.state is SCHED and job.priority == 0):
            text = "it is held (urgency 0)" if job.urgency == 0 else "its priority is 0"
            reasons.append({"kind": "held", "text": text})
        if job.state is DEPEND:
            return out
        if job.state is PRIORITY:
            reasons.append({"kind": "priority", "text": "it has no priority yet"})
        elif job.state is SCHED and jobid in self.queue:
            reasons += explaining.reasons(self.queue, jobid, self.manager.clock.time(), jobids.encode)
            order = self.queue.order()
            out |= {"position": order.index(jobid) + 1, "waiting": len(order)}
            steps = explaining.estimate(self.queue, jobid, self.manager.clock.time())
            end = time.perf_counter() + SLICE_S
            while True:
                try:
                    next(steps)
                except StopIteration as last:
                    out["estimate"], out["note"] = last.value
                    break
                if time.perf_counter() > end:
                    await asyncio.sleep(0)
                    end = time.perf_counter() + SLICE_S
        elif job.state is RUN and not job.started and not reasons:
            reasons.append({"kind": "start", "text": "it has its resources; its tasks are being started"})
        elif job.state is RUN:
            out["note"] = "the job runs"
        return out


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
