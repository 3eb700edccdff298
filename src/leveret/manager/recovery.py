"""Starting again: replay, then one ordinary step per job; and what helpers that come back are told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import hostlist, resources
from leveret.core import jobid as jobids
from leveret.core import jobspec as jobspecs
from leveret.core.event import decode
from leveret.core.job import replay
from leveret.core.logcheck import whole
from leveret.core.transitions import SCHED
from leveret.errors import FormatError, InternalError, LeveretError
from leveret.manager import plugindata
from leveret.manager.entry import Entry, NodeAsk
from leveret.manager.ports import Batch
from leveret.manager.turn import Turn
from leveret.manager.units import INPUT, _bytes
from leveret.manager.updates import DURATION
from leveret.plugins.dependencies import Dependencies

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

_decode = msgspec.json.Decoder().decode


class Recovery:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self._environments: set[str] = set()  #: hashes that have been found whole
        self._held: list[tuple[int, str]] = []  #: (job, hold) that an earlier daemon has left to plugins

    def recover(self) -> None:
        """Replay every active job. No event is posted before all plugins are loaded and have seen the jobs."""
        self.manager.resources.recover()
        self.manager.scheduling.recover()
        self.manager.tap.load_builtin()
        self.manager.tap.load_configured()
        for name, source, conf in self.manager.store.plugins():
            try:
                # it was loaded after, and over, a configured one of its name
                self.manager.tap.load(source, _decode(conf), remember=False, replace=name)
            except Exception as error:
                self.manager.log.error("plugin not loaded", plugin=name, why=str(error))
        for jobid in self.manager.store.active_ids():
            try:
                self._recover_job(jobid)
            except Exception as error:
                self.manager.quarantine.put(jobid, error)
        asks = self.manager.store.kv_of_active("ask/")
        self._of_active(asks, self._recover_ask)
        self._of_active(self.manager.store.kv_of_active("hold/"), self._recover_hold)
        self._of_active(self.manager.store.kv_of_active(plugindata.PREFIX), plugindata.restore)
        self._take_resources()
        self.manager.quarantine.settle(asks)
        self.manager.housekeeping.recover()
        self.manager.queues.recovered()
        for entry in list(self.manager.entries.values()):
            self.manager.registry.call("new", str(entry.job.id), entry.job)

    def _of_active(self, rows: list[tuple[int, str, bytes]], recover: Callable[[Entry, str, bytes], None]) -> None:
        """Each row to its job; one that cannot be read puts the job aside."""
        for jobid, key, value in rows:
            if (entry := self.manager.entries.get(jobid)) is not None:
                try:
                    recover(entry, key, value)
                except Exception as error:
                    self.manager.quarantine.put(jobid, InternalError(f"what was kept of it cannot be read: {error!r}"))

    def _recover_ask(self, entry: Entry, key: str, value: bytes) -> None:
        unit, _, node = key.rpartition("/")
        ask = NodeAsk.decode(unit, int(node), value)
        entry.asks[(unit, ask.node)] = ask
        if unit == entry.unit and entry.job.status is None:
            entry.in_flight.add("start")

    def _recover_hold(self, entry: Entry, key: str, value: bytes) -> None:
        if key in entry.job.holds:
            entry.owners[key], lease_s = plugindata.decode_owner(value)
            if lease_s is not None:
                entry.leases[key] = lease_s
            self._held.append((entry.job.id, key))

    def _take_resources(self) -> None:
        for entry in list(self.manager.entries.values()):
            if entry.rset is not None and not entry.job.freed:
                try:
                    self.manager.pool.take(entry.rset)
                except LeveretError as error:
                    self.manager.quarantine.put(entry.job.id, error)

    def _rows(self, jobid: int) -> Iterator[tuple[int, bytes]]:
        after = 0
        while page := self.manager.store.events(jobid, after):
            yield from page
            after = page[-1][0]

    def _recover_job(self, jobid: int) -> None:
        row = self.manager.store.job_row(jobid)
        if row is None:
            raise FormatError("its jobspec is missing")
        job = replay(jobid, whole(self._rows(jobid)))
        if job.done:
            raise FormatError("the eventlog ends with `clean`, and its record is missing")
        try:
            spec = _decode(row[1])
            entry = Entry(job, jobspecs.digest(jobspecs.updated(spec, job.updates) if job.updates else spec))
        except (msgspec.DecodeError, LeveretError, LookupError, TypeError) as error:
            raise FormatError(f"its jobspec cannot be read: {error}") from None
        entry.env_hash = row[2]
        stored = self.manager.store.kv(jobid, "R")
        if stored is not None and job.allocated:
            entry.rset = resources.from_dict(_decode(stored))
            if job.expiration or DURATION in job.updates:
                entry.rset.expiration = job.expiration
        elif job.allocated and not job.freed:
            raise FormatError("its resources (R) are missing")
        self._check_environment(row[2])
        entry.lines = self.manager.store.guest_next(jobid)
        entry.timed_out = job.fatal is not None and job.fatal.type == "timeout"
        entry.task_exit = "guest.exec.eventlog" in entry.lines and any(
            b'"shell.task-exit"' in row[3] for row in self.manager.store.guest(jobid, "guest.exec.eventlog", limit=1000)
        )
        if INPUT in entry.lines:
            self._recover_stdin(entry)
        self.manager.entries[jobid] = entry

    def _check_environment(self, digest: str | None) -> None:
        """A job must not run with another environment than its own."""
        if digest is None or digest in self._environments:
            return
        body = self.manager.store.env(digest)
        if hashlib.blake2b(body, digest_size=16).hexdigest() != digest:
            raise FormatError("its environment is missing or damaged")
        self._environments.add(digest)

    def _recover_stdin(self, entry: Entry) -> None:
        at = 1
        while rows := self.manager.store.guest(entry.job.id, INPUT, at):
            for n, count, _extent, lines in rows:
                at = n + count
                for text in lines.splitlines():
                    event = decode(text)
                    if event.name == "data":
                        entry.stdin_bytes += len(_bytes(event.context or {}))
                        if event.get("eof") and event.get("rank") == "all":
                            entry.in_flight.add("eof")
        entry.stdin_recorded = entry.stdin_bytes

    def go_on(self) -> None:
        """After recovery, with the engine connected: one ordinary step per job, and open holds to their plugins."""
        self.manager.resources.begin()
        for entry in list(self.manager.entries.values()):
            try:
                with Turn(self.manager, "restart") as turn:
                    turn.touched.setdefault(entry.job.id, entry)
                    if entry.job.state is SCHED:
                        turn.post(entry, "flux-restart")
                self.manager.units.watch_exit_again(entry)
            except Exception:
                self.manager.log.exception("job cannot go on", job=jobids.encode(entry.job.id))
        self._end_on_gone_nodes()
        # those that were on disk; what the turns above have opened begins by itself
        for jobid, key in self._held:
            held = self.manager.entries.get(jobid)
            hold = held.job.holds.get(key) if held is not None else None
            if held is None or hold is None:
                continue
            owner = held.owners.get(key, "")
            plugin = self.manager.registry.get(owner)
            if plugin is not None:
                self.manager.works.resume(held, hold, plugin)
                continue
            self.manager.works.arm(jobid, hold)
            self.manager.holds.lease(held, key)
            if owner:
                self.manager.holds.orphan(held, hold)
        self._held.clear()
        self.manager.housekeeping.go_on()
        self.manager.purges.start()
        self.dependencies_restored()

    def dependencies_restored(self) -> None:
        """Jobs that wait for others that have ended while nobody looked."""
        dependencies = self.manager.registry.get("dependencies")
        if isinstance(dependencies, Dependencies) and self.manager.entries:
            any_entry = next(iter(self.manager.entries.values()))
            with Turn(self.manager, "dependencies") as turn:
                for answer in dependencies.restored():
                    turn.answer(any_entry, dependencies, answer)
                turn._drain()

    def _end_on_gone_nodes(self) -> None:
        """Jobs on nodes that the instance no longer has: nobody will ever hear of their tasks again."""
        nodes = self.manager.inventory.rset.ranks
        for entry in list(self.manager.entries.values()):
            job, rset = entry.job, entry.rset
            if rset is None or job.freed or job.status is not None:
                continue
            gone = {rank: node.host for rank, node in rset.ranks.items() if rank not in nodes}
            if not gone:
                continue
            hosts = hostlist.encode(host or f"rank{rank}" for rank, host in gone.items())
            self.manager.log.warning("a job's nodes are gone", job=jobids.encode(job.id), hosts=hosts)
            if job.fatal is None:
                with Turn(self.manager, "gone") as turn:
                    note = f"{hosts}: not a node of this instance any more"
                    turn.post(entry, "exception", self.manager.exception("node-failure", 0, note))
            for ask in list(entry.asks.values()):
                if ask.node in gone and ask.status is None:
                    self.manager.units.lost(entry, ask, gone[ask.node])

    def on_connected(self, node: int, incarnation: str, units: dict[str, dict[str, Any]]) -> None:
        """A helper is there: send again, to the same incarnation only, what it has not got."""
        self.manager.lost.on_back(node, incarnation, units)
        self.manager.quarantine.on_connected(node, units)
        batch = Batch()  # it writes nothing: what is sent here is on disk by then, as everything that is ever sent
        for entry in self.manager.entries.values():
            for ask in entry.asks.values():
                if ask.node != node or ask.incarnation != incarnation:
                    continue
                if ask.status is None:
                    batch.on_commit.append(partial(self._catch_up, entry, ask, units, "kill" in entry.in_flight))
                elif (
                    ask.unit in units and units[ask.unit].get("ended") is not False
                ):  # it was told to forget, and has not heard it
                    last = int(units[ask.unit].get("n", ask.applied))
                    self.manager.units.tell(node, ask.unit, max(last, ask.applied), True)
        batch.on_commit += self.manager.housekeeping.catch_up(node, incarnation, units)
        if batch:
            self.manager.store.commit(batch)

    def _catch_up(self, entry: Entry, ask: NodeAsk, units: dict[str, dict[str, Any]], kill: bool) -> None:
        if self.manager.entries.get(entry.job.id) is not entry:
            return  # the job has ended while this waited for the disk
        if ask.unit not in units:
            if ask.applied:
                return
            spec = ask.spec if ask.spec is not None else self.manager.perform.task_specs(entry).get(ask.node)
            if spec is not None:
                self.manager.perform.send(ask, spec)
        if ask.unit in entry.unwanted and ask.status is None:
            self.manager.engine.signal(ask.node, ask.unit, 15, self.manager.perform.kill_timeout_s)
        if ask.unit == entry.unit and ask.status is None:
            if DURATION in entry.job.updates:
                self.manager.perform.limit(entry, ask)  # it may not have heard of an update
            received = int(units.get(ask.unit, {}).get("stdin", 0))
            ask.stdin_acked = max(ask.stdin_acked, received)
            self.manager.units.replay_stdin(entry, ask, received)
            if kill and entry.job.fatal is not None and entry.job.fatal.type != "timeout":
                self.manager.engine.signal(ask.node, ask.unit, 15, self.manager.perform.kill_timeout_s)

    def have(self, node: int, incarnation: str) -> dict[str, int]:
        """unit → number of the last record that is stored, for one helper."""
        stored = self.manager.quarantine.have(node, incarnation) | {
            ask.unit: ask.stored
            for entry in self.manager.entries.values()
            for ask in entry.asks.values()
            if ask.node == node and ask.incarnation == incarnation
        }
        tidying = self.manager.housekeeping.asks(node)
        return stored | {ask.unit: ask.stored for ask in tidying if ask.incarnation == incarnation}

    def lost_asks(self, node: int, incarnation: str) -> set[str]:
        """Incarnations other than the living one that asks of a node were made to."""
        lost = self.manager.quarantine.incarnations(node, but=incarnation) | {
            ask.incarnation
            for entry in self.manager.entries.values()
            for ask in entry.asks.values()
            if ask.node == node and ask.incarnation != incarnation and ask.status is None
        }
        tidying = self.manager.housekeeping.asks(node)
        return lost | {ask.incarnation for ask in tidying if ask.incarnation != incarnation}
