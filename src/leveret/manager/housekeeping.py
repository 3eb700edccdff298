"""[job-manager.housekeeping]: a command on each node of a job that is over, before the node goes back to the scheduler.

The job's `free` gives its nodes to housekeeping, not to the pool, in the same turn; its `clean` begins the command.
Nodes go back one by one as they are done. One that fails, or that was lost, is drained; that an operator ends the
command is no fault of the node. There is a row per node (table `housekeeping`) until it goes back, so a restart
goes on where it was; a process is never begun twice (PROCESS.md). What happened is in the resource eventlog.

Invariant: nodes of active jobs + nodes in housekeeping + free nodes = the pool, with no overlap.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.config import duration_error
from leveret.core import duration, hostlist, idset, resources
from leveret.core import jobid as jobids
from leveret.core.resources import Rset
from leveret.errors import ConflictError, FormatError, InvalidError, NotFoundError
from leveret.manager.entry import Entry, NodeAsk
from leveret.manager.turn import Turn
from leveret.manager.workruns import work_spec

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

NAME = "housekeeping"
LOST_STATUS = 137 << 8
#: of a command that is being ended: from SIGTERM to SIGKILL
KILL_TIMEOUT_S = 90.0
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Place:
    """One node of one job."""

    __slots__ = ("ask", "done", "killed", "lost", "rset")

    def __init__(self, rset: Rset) -> None:
        self.rset = rset  #: the job's share of the node
        self.ask: NodeAsk | None = None  #: the command, once it was asked for
        self.killed = False  #: an operator has ended it
        self.lost = False  #: the job has lost the node: nothing runs there any more
        self.done = False  #: over, and not given back yet (release-after)


class Run:
    """The housekeeping of one job."""

    __slots__ = ("jobid", "places", "t_start", "timer", "userid", "waiters")

    def __init__(self, jobid: int, userid: int, t_start: float) -> None:
        self.jobid = jobid
        self.userid = userid
        self.t_start = t_start  #: of the command; before that, of `free`
        self.places: dict[int, Place] = {}  #: what is not given back, by rank
        self.timer: Any = None  #: release-after; True once it has passed
        self.waiters: list[asyncio.Future[None]] = []


class Housekeeping:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        conf = manager.config.job_manager.housekeeping
        self.command = conf.command
        try:
            self.release_after_s = duration.parse(conf.release_after)
        except FormatError as error:
            key = "job-manager.housekeeping.release-after"
            raise duration_error(manager.config, key, error.message) from None
        self.runs: dict[int, Run] = {}

    # ---- from a job to here, and from here to the pool ---------------------------------------------

    def take(self, turn: Turn, entry: Entry) -> bool:
        """`free` is in the turn: keep the nodes. False when there is nothing to do and they may go."""
        rset = entry.rset
        if not self.command or rset is None:
            return False
        run = Run(entry.job.id, entry.job.userid, turn.now)
        lost = entry.lost()
        for rank in rset.ranks:
            place = run.places[rank] = Place(rset.subset([rank]))
            place.lost = rank in lost
            self._save(turn, run, rank)
        self.runs[run.jobid] = run

        def undo() -> None:
            del self.runs[run.jobid]

        turn.undo.append(undo)
        return True

    def begin(self, turn: Turn, jobid: int) -> None:
        """`clean` is in the turn: run the command."""
        run = self.runs.get(jobid)
        if run is None:
            return
        run.t_start = turn.now
        ranks = idset.encode(run.places)
        self.manager.resources.post("housekeeping-start", {"id": jobid, "idset": ranks})
        engine = self.manager.engine
        for rank, place in list(run.places.items()):
            if place.ask is not None:
                continue
            if place.lost:
                self._over(turn, run, rank, LOST_STATUS)
                continue
            ask = place.ask = NodeAsk(f"work/{jobid}/{NAME}", rank, engine.incarnation(rank))
            self._save(turn, run, rank)

            def undo(place: Place = place) -> None:
                place.ask = None

            turn.undo.append(undo)
            turn.after.append(self._send(run, ask))

    def _send(self, run: Run, ask: NodeAsk) -> Callable[[], None]:
        return lambda: self.manager.perform.send(ask, self._spec(run, ask))

    def _spec(self, run: Run, ask: NodeAsk) -> dict[str, Any]:
        env = {
            "FLUX_JOB_ID": jobids.encode(run.jobid),
            "FLUX_JOB_USERID": str(run.userid),
            "LEVERET_URI": self.manager.uri,
            "FLUX_URI": self.manager.uri,
            "LEVERET_NODE_RANK": str(ask.node),
        }
        return work_spec(run.jobid, ask.unit, self.command or ["true"], None, env, None, KILL_TIMEOUT_S)

    def _save(self, turn: Turn, run: Run, rank: int) -> None:
        place = run.places[rank]
        ask = place.ask.encode().decode() if place.ask is not None else None
        flags = [place.killed, place.lost, place.done]
        body = _encode([run.userid, run.t_start, place.rset.to_dict(), ask, flags])
        turn.op("INSERT OR REPLACE INTO housekeeping VALUES(?,?,?)", run.jobid, rank, body)

    def _over(self, turn: Turn, run: Run, rank: int, status: int) -> None:
        """The command has ended on a node, or never will."""
        place = run.places[rank]
        name = jobids.encode(run.jobid)
        if place.lost:
            self._drain(rank, f"{NAME} could not run for job {name}: helper lost")
        elif status and not place.killed:
            self._drain(rank, f"{NAME} failed for job {name}")
        place.done = True
        if self.release_after_s == 0 or run.timer is True or all(p.done for p in run.places.values()):
            self._release(turn, run, [r for r, p in run.places.items() if p.done])
        else:
            self._save(turn, run, rank)
            self._arm(run)

    def _arm(self, run: Run) -> None:
        if run.timer is None and not math.isinf(self.release_after_s):
            when = self.manager.clock.time() + self.release_after_s
            run.timer = self.manager.clock.call_at(when, lambda: self._release_time(run))

    def _release_time(self, run: Run) -> None:
        run.timer = True
        if run.jobid in self.runs and (ready := [r for r, p in run.places.items() if p.done]):
            with Turn(self.manager, NAME) as turn:
                self._release(turn, run, ready)

    def _release(self, turn: Turn, run: Run, ranks: list[int]) -> None:
        for rank in ranks:
            place = run.places.pop(rank)
            turn.op("DELETE FROM housekeeping WHERE job=? AND node=?", run.jobid, rank)
            self.manager.scheduling.release(place.rset)
            turn._freed.append(place.rset)
            turn.undo.append(lambda rank=rank, place=place: run.places.__setitem__(rank, place))  # type: ignore[misc]
        if not run.places:
            del self.runs[run.jobid]
            turn.undo.append(lambda: self.runs.__setitem__(run.jobid, run))
        self.manager.resources.post("housekeeping-finish", {"id": run.jobid, "idset": idset.encode(ranks)})
        turn.after.append(lambda: self._tell(run))

    def _tell(self, run: Run) -> None:
        if not run.places:
            if run.timer not in (None, True):
                run.timer.cancel()
            for future in run.waiters:
                if not future.done():
                    future.set_result(None)

    def _drain(self, rank: int, reason: str) -> None:
        if rank in self.manager.resources.state.hosts and rank not in self.manager.resources.excluded:
            self.manager.resources.drain([rank], reason, update=True)

    # ---- what helpers say ----------------------------------------------------------------------------

    def ask_of(self, unit: str, node: int) -> NodeAsk | None:
        """Our ask, if it is one of ours that is not over."""
        if not unit.endswith(f"/{NAME}"):
            return None
        run = self.runs.get(int(unit.split("/")[1]))
        place = run.places.get(node) if run is not None else None
        return place.ask if place is not None else None

    def asks(self, node: int) -> Iterator[NodeAsk]:
        """Asks of a node that have not been answered."""
        for run in self.runs.values():
            place = run.places.get(node)
            if place is not None and place.ask is not None and place.ask.status is None:
                yield place.ask

    def on_records(self, node: int, ask: NodeAsk, records: list[dict[str, Any]]) -> None:
        """As Units.on_records: effects and the fact that they were applied are one transaction."""
        last = int(records[-1]["n"])
        records = [record for record in records if record["n"] > ask.applied]
        if not records:
            self.manager.units.tell(node, ask.unit, last, ask.status is not None)
            return
        ask.applied = last
        run = self.runs[int(ask.unit.split("/")[1])]
        work_log = self.manager.units.work_log
        with Turn(self.manager, NAME) as turn:
            for record in records:
                kind = record["k"]
                if kind == "output":
                    work_log.output(ask.unit, node, record)
                elif kind == "start-failed":
                    work_log.say(ask.unit, node, "stderr", str(record["message"]))
                elif kind == "exit":
                    work_log.ended(ask.unit, node)
                    ask.status = int(record["status"])
            if ask.status is not None:
                self._over(turn, run, node, ask.status)
            else:
                self._save(turn, run, node)
            ended = ask.status is not None

            def told() -> None:
                ask.stored = max(ask.stored, last)
                self.manager.engine.ack(node, ask.unit, last)
                if ended:
                    self.manager.engine.forget(node, ask.unit)

            turn.after.append(told)

    def on_lost(self, node: int, incarnation: str) -> None:
        """This incarnation of a node's helper is gone with all that it ran."""
        for ask in [ask for ask in self.asks(node) if ask.incarnation == incarnation]:
            run = self.runs[int(ask.unit.split("/")[1])]
            with Turn(self.manager, NAME) as turn:
                ask.status, ask.lost, run.places[node].lost = LOST_STATUS, True, True
                self._over(turn, run, node, LOST_STATUS)

    def catch_up(self, node: int, incarnation: str, units: Iterable[str]) -> Iterator[Callable[[], None]]:
        """What a helper that is there again has not got: to be sent to it."""
        for ask in self.asks(node):
            if ask.incarnation == incarnation and ask.unit not in units and not ask.applied:
                yield self._send(self.runs[int(ask.unit.split("/")[1])], ask)

    # ---- starting again ------------------------------------------------------------------------------

    def recover(self) -> None:
        """Take the nodes before anybody else does."""
        for jobid, rank, body in self.manager.store.housekeeping():
            userid, t_start, rset, ask, (killed, lost, done) = _decode(body)
            run = self.runs.setdefault(jobid, Run(jobid, userid, t_start))
            place = run.places[rank] = Place(resources.from_dict(rset))
            place.killed, place.lost, place.done = killed, lost, done
            if ask is not None:
                place.ask = NodeAsk.decode(f"work/{jobid}/{NAME}", rank, ask.encode())
            try:
                self.manager.pool.take(place.rset)
            except ConflictError as error:  # a job has it: better that than a daemon that does not start
                self.manager.log.error("housekeeping dropped", job=jobids.encode(jobid), why=error.message)
                del run.places[rank]
        self.runs = {jobid: run for jobid, run in self.runs.items() if run.places}

    def go_on(self) -> None:
        """After recovery: begin what was not begun, if its job is over; give back what is done."""
        for run in list(self.runs.values()):
            if run.jobid in self.manager.entries:
                continue
            with Turn(self.manager, NAME) as turn:
                if any(place.ask is None for place in run.places.values()):
                    self.begin(turn, run.jobid)
            if run.jobid in self.runs and any(place.done for place in run.places.values()):
                self._release_time(run)

    # ---- what people ask -----------------------------------------------------------------------------

    def listing(self) -> list[dict[str, Any]]:
        """Jobs with nodes in housekeeping: {id, t_start, allocated: {nnodes, ranks, nodelist}, pending: …}."""
        return [
            {
                "id": run.jobid,
                "t_start": run.t_start,
                "allocated": _nodes(run.places),
                "pending": _nodes({rank: place for rank, place in run.places.items() if not place.done}),
            }
            for run in self.runs.values()
        ]

    def kill(self, jobid: int | None, targets: str | None, every: bool, signum: int) -> int:
        """Signal commands. Returns how many. Raises InvalidError, NotFoundError; nothing has changed then."""
        if not every and jobid is None and targets is None:
            raise InvalidError("specify at least one of --targets, --jobid, or --all")
        if not 1 <= signum <= 64:
            raise InvalidError(f"invalid signal number {signum}", path="signal")
        if jobid is not None and jobid not in self.runs:
            raise NotFoundError(f"no housekeeping runs for job {jobids.encode(jobid)}")
        ranks = None if targets is None else set(self.manager.resources.targets(targets))
        found: list[NodeAsk] = []
        with Turn(self.manager, NAME) as turn:
            for run in self.runs.values():
                if jobid not in (None, run.jobid):
                    continue
                for rank, place in run.places.items():
                    if (ranks is None or rank in ranks) and place.ask is not None and place.ask.status is None:
                        place.killed = True
                        self._save(turn, run, rank)
                        found.append(place.ask)
            for ask in found:
                turn.after.append(
                    lambda ask=ask: self.manager.engine.signal(ask.node, ask.unit, signum, None)  # type: ignore[misc]
                )
        return len(found)

    async def wait(self, jobid: int) -> None:
        """Return once the job is over and its nodes are given back. Raises NotFoundError."""
        if jobid not in self.runs and self.manager.outcome(jobid) is None:
            raise NotFoundError("unknown job id")
        await self.manager.wait_inactive(jobid)
        if (run := self.runs.get(jobid)) is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            run.waiters.append(future)
            await future


def _nodes(places: dict[int, Place]) -> dict[str, Any]:
    hosts = hostlist.encode(place.rset.ranks[rank].host for rank, place in places.items())
    return {"nnodes": len(places), "ranks": idset.encode(places), "nodelist": hosts}
