"""Jobs whose records cannot be read (DESIGN 5.6): put aside, the others go on.

A quarantined job takes no step. Its resources stay allocated until the helper of each of its nodes has said that nothing
of it is left there; what its tasks still say is kept as it came, in the eventlog `guest.lost`. It is listed, exported and
removed by hand (`leveret job quarantine`); until then it is where it was, for whoever can mend it (`leveret fsck`).
"""

from __future__ import annotations

import signal
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from leveret.core import jobid as jobids
from leveret.core import resources
from leveret.core.event import Event, decode, encode
from leveret.core.job import Job, apply_event
from leveret.core.transitions import INACTIVE, NEW
from leveret.errors import ConflictError, FormatError, LeveretError, NotFoundError
from leveret.manager.entry import NodeAsk
from leveret.manager.ports import Batch
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

LOST = "guest.lost"
#: kv key of the last record of UNIT/NODE that is kept in `guest.lost`
APPLIED = "lost/"
KILL_TIMEOUT_S = 5.0
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Aside:
    """One quarantined job."""

    __slots__ = ("applied", "incarnations", "job", "jobid", "lines", "live", "rset", "waiting", "why")

    def __init__(self, jobid: int, why: str) -> None:
        self.jobid = jobid
        self.why = why
        self.job = Job(jobid)  #: as far as its log can be read; never done
        self.rset: resources.Rset | None = None  #: what is kept allocated for it; None once that is over
        self.waiting: set[int] = set()  #: nodes that may still run something of it
        self.live: set[tuple[str, int]] = set()  #: (unit, node) that a helper has, and that has not ended
        self.incarnations: set[tuple[int, str]] = set()  #: (node, helper) that were asked to run something
        self.applied: dict[tuple[str, int], int] = {}  #: (unit, node) → last record that is stored
        self.lines = 1  #: number of the next line of guest.lost


class Quarantine:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.jobs: dict[int, Aside] = {}

    def __contains__(self, jobid: int) -> bool:
        return jobid in self.jobs

    # ---- putting aside (recovery) --------------------------------------------------------------------

    def put(self, jobid: int, error: BaseException) -> None:
        """From now on the job is quarantined, because of that. Its resources are seen to by `settle`."""
        if jobid in self.jobs:
            return
        why = error.message if isinstance(error, LeveretError) else f"{type(error).__name__}: {error}"
        entry = self.manager.entries.pop(jobid, None)
        aside = self.jobs[jobid] = Aside(jobid, why)
        aside.job = entry.job if entry is not None else self._readable(jobid)
        if aside.job.state is INACTIVE:
            aside.job = replace(aside.job, state=NEW)
        self.manager.log.error("job quarantined", job=jobids.encode(jobid), why=why)

    def _readable(self, jobid: int) -> Job:
        job = Job(jobid)
        names: set[str] = set()
        try:
            for line in self.manager.store.all_events(jobid):
                try:
                    event = decode(line)
                except FormatError:
                    continue
                names.add(event.name)
                job = apply_event(job, event, strict=False)
        except sqlite3.Error:
            pass  # the rest of it lies on a damaged page
        # after a gap the fold takes little; these two matter: did tasks start, are the resources given back
        return replace(job, started="start" in names, freed="free" in names)

    def settle(self, asks: list[tuple[int, str, bytes]]) -> None:
        """Once the other jobs have theirs: keep the resources of the quarantined. `asks`: (job, UNIT/NODE, value)."""
        nodes: dict[int, set[int]] = {}
        for jobid, key, value in asks:
            if (aside := self.jobs.get(jobid)) is None:
                continue
            unit, _, text = key.rpartition("/")
            if not text.isdigit():
                continue
            nodes.setdefault(jobid, set()).add(int(text))
            try:
                ask = NodeAsk.decode(unit, int(text), value)
            except Exception:
                continue  # whose it was is unknown; the helper knows what it has
            aside.incarnations.add((ask.node, ask.incarnation))
            aside.applied[(unit, ask.node)] = ask.stored
        for aside in self.jobs.values():
            self._keep(aside, nodes.get(aside.jobid, set()))
            try:
                aside.lines = self.manager.store.guest_next(aside.jobid).get(LOST, 1)
                for unit, node in list(aside.applied):
                    body = self.manager.store.kv(aside.jobid, f"{APPLIED}{unit}/{node}")
                    aside.applied[(unit, node)] = max(aside.applied[(unit, node)], int(body or 0))
            except (sqlite3.Error, ValueError):
                aside.lines = 1 << 30  # beyond whatever is there

    def _keep(self, aside: Aside, nodes: set[int]) -> None:
        """Take its R; where that cannot be read, all of the nodes that were asked. Not what another job has."""
        manager = self.manager
        if aside.job.freed:
            return
        hosts = manager.inventory.rset.ranks
        try:
            stored = manager.store.kv(aside.jobid, "R")
            if stored is None and not nodes:
                return
            wanted = resources.from_dict(_decode(stored)) if stored is not None else None
        except Exception:  # however it is damaged
            wanted = None
        if wanted is None:
            wanted = resources.Rset({node: hosts[node] for node in nodes if node in hosts})
        others = [entry.rset for entry in manager.entries.values() if entry.rset is not None and not entry.job.freed]
        others += [other.rset for other in self.jobs.values() if other is not aside and other.rset is not None]
        kept: dict[int, resources.Node] = {}
        for rank, node in wanted.ranks.items():
            if rank not in hosts:
                continue
            theirs = [rset.ranks[rank] for rset in others if rank in rset.ranks]
            cores = set(node.cores).difference(*(n.cores for n in theirs))
            gpus = set(node.gpus).difference(*(n.gpus for n in theirs))
            if cores or gpus:
                kept[rank] = resources.Node(node.host, tuple(sorted(cores)), tuple(sorted(gpus)))
        rset = resources.Rset(kept)
        try:
            manager.pool.take(rset)
        except ConflictError as error:
            manager.log.error("not kept allocated", job=jobids.encode(aside.jobid), why=error.message)
            return
        aside.rset = rset
        aside.waiting = set(kept)
        if not kept:
            aside.rset = None

    def of_unit(self, unit: str) -> Aside | None:
        return self.jobs.get(_job_of(unit))

    # ---- what helpers say ------------------------------------------------------------------------------

    def have(self, node: int, incarnation: str) -> dict[str, int]:
        """As Recovery.have, for the quarantined."""
        return {
            unit: n
            for aside in self.jobs.values()
            if (node, incarnation) in aside.incarnations
            for (unit, where), n in aside.applied.items()
            if where == node
        }

    def incarnations(self, node: int, but: str) -> set[str]:
        """Helpers of that node, other than the one that lives, that may have left something of the quarantined."""
        return {
            old
            for aside in self.jobs.values()
            if node in aside.waiting
            for where, old in aside.incarnations
            if where == node and old != but
        }

    def on_connected(self, node: int, units: dict[str, Any]) -> None:
        """A helper says what it has; what older ones have left has been ended by now."""
        for aside in list(self.jobs.values()):
            aside.live = {(unit, where) for unit, where in aside.live if where != node}
            aside.live |= {(unit, node) for unit in units if _job_of(unit) == aside.jobid}
            self._look(aside, node)

    def on_records(self, node: int, unit: str, records: list[dict[str, Any]]) -> bool:
        """Keep what the tasks of a quarantined job say. False: it is none."""
        aside = self.of_unit(unit)
        if aside is None:
            return False
        key = (unit, node)
        fresh = [record for record in records if record["n"] > aside.applied.get(key, 0)]
        last = int(records[-1]["n"])
        ended = any(record["k"] == "exit" for record in records)
        batch = Batch()
        if fresh:
            body = b"".join(
                encode(Event(float(r["ts"]), "record", {"unit": unit, "node": node, **r})) + b"\n" for r in fresh
            )
            batch.guest(aside.jobid, LOST, aside.lines, len(fresh), False, body)
            batch.put(aside.jobid, f"{APPLIED}{unit}/{node}", str(last).encode())
            aside.lines += len(fresh)
            aside.applied[key] = last
        batch.on_commit.append(partial(self._told, aside, node, unit, last, ended))
        self.manager.store.commit(batch)
        return True

    def _told(self, aside: Aside, node: int, unit: str, last: int, ended: bool) -> None:
        self.manager.engine.ack(node, unit, last)
        if ended:
            self.manager.engine.forget(node, unit)
            aside.live.discard((unit, node))
            self._look(aside, node)

    def _look(self, aside: Aside, node: int) -> None:
        """Nothing of it is left on a node? When none is left anywhere, its resources are free."""
        if any(where == node for _, where in aside.live):
            return
        aside.waiting.discard(node)
        if aside.rset is not None and not aside.waiting:
            rset, aside.rset = aside.rset, None
            self.manager.pool.release(rset)
            self.manager.want_schedule()
            self.manager.log.info("resources of a quarantined job are free", job=jobids.encode(aside.jobid))

    # ---- what people ask for ---------------------------------------------------------------------------

    def get(self, jobid: int) -> Aside:
        """Raises NotFoundError."""
        aside = self.jobs.get(jobid)
        if aside is None:
            raise NotFoundError("no such job is quarantined", "see `leveret job quarantine list`")
        return aside

    def refusal(self, jobid: int) -> ConflictError:
        """What a door says that is asked about it as if it were any job."""
        why = self.jobs[jobid].why
        return ConflictError(f"job is quarantined: {why}", "see `leveret job quarantine`, and `leveret fsck`")

    def listing(self) -> list[dict[str, Any]]:
        """{id, f58, why, events, userid, t_submit, resources, tasks} of each; `tasks` are units that still run."""
        return [
            {
                "id": aside.jobid,
                "f58": jobids.encode(aside.jobid),
                "why": aside.why,
                "events": aside.job.n,
                "userid": aside.job.userid,
                "t_submit": aside.job.t_submit,
                "resources": aside.rset.summary() if aside.rset is not None else "",
                "tasks": sorted({unit for unit, _ in aside.live}),
            }
            for aside in self.jobs.values()
        ]

    def kill(self, jobid: int) -> int:
        """End what still runs of it. Returns how many units that are."""
        live = self.get(jobid).live
        for unit, node in live:
            self.manager.engine.signal(node, unit, signal.SIGTERM, KILL_TIMEOUT_S)
        return len(live)

    def remove(self, jobid: int) -> None:
        """Delete all that is left of it; what stays is that it failed. Raises ConflictError while its tasks run."""
        aside = self.get(jobid)
        if aside.live:
            raise ConflictError("its tasks still run", "end them: leveret job quarantine kill")
        manager = self.manager
        files = manager.store.output_files([jobid])
        with Turn(manager, "quarantine") as turn:
            turn.op("INSERT OR REPLACE INTO purged VALUES(?,?,?,?,?)", jobid, "FAILED", aside.job.started, None, "lost")
            for table, column in (("event", "job"), ("guest", "job"), ("kv", "job"), ("active", "id"), ("job", "id")):
                turn.op(f"DELETE FROM {table} WHERE {column}=?", jobid)
            for node, file in files:
                turn.op("INSERT OR IGNORE INTO leftover VALUES(?,?)", node, file)
            turn.after.append(lambda: manager.purges.unlink(files))
            turn.after.append(manager.recovery.dependencies_restored)
        del self.jobs[jobid]
        aside.waiting.clear()
        if aside.rset is not None:
            rset, aside.rset = aside.rset, None
            manager.pool.release(rset)
            manager.want_schedule()
        manager.log.warning("quarantined job removed", job=jobids.encode(jobid))


def _job_of(unit: str) -> int:
    parts = unit.split("/")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
