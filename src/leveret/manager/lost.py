"""Nodes that are lost, and tasks that cannot be killed: a job ends all the same, after a time that is written down.

A node whose helper is away is offline at once. When it stays away for `[exec] node-lost-timeout`, what ran there is taken
to be over; should the helper come back with it after all, it is killed there. Tasks that live `[exec] max-kill-time`
after their job was ended are given up, and their node is drained: what runs there nobody wants any more.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.config import duration_error
from leveret.core import duration
from leveret.core import jobid as jobids
from leveret.core.job import Job
from leveret.errors import FormatError
from leveret.manager.entry import Entry, NodeAsk
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.manager import Manager


class Lost:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        settings = manager.config.exec
        self.lost_timeout_s = self._seconds("node-lost-timeout", settings.node_lost_timeout)
        self.max_kill_s = self._seconds("max-kill-time", settings.max_kill_time)
        self._away: dict[int, Any] = {}  #: node whose helper is away → timer
        self._kills: dict[int, Any] = {}  #: job whose tasks are being killed → timer

    def _seconds(self, key: str, text: str) -> float:
        try:
            return duration.parse(text)
        except FormatError as error:
            raise duration_error(self.manager.config, f"exec.{key}", error.message) from None

    # ---- nodes -------------------------------------------------------------------------------------

    def on_gone(self, node: int) -> None:
        """The connection to a node's helper was lost."""
        self.manager.resources.offline([node])
        self._forget_node(node)
        when = self.manager.clock.time() + self.lost_timeout_s
        self._away[node] = self.manager.clock.call_at(when, partial(self._gone_for_good, node))

    def on_back(self, node: int, incarnation: str, units: dict[str, dict[str, Any]]) -> None:
        """A helper is there (again): what it runs that nobody waits for is killed, then the node has work again."""
        self._forget_node(node)
        for name, unit in units.items():
            entry = self.manager.entry_of_unit(name)
            ask = entry.asks.get((name, node)) if entry is not None else None
            if ask is None:
                ask = self.manager.housekeeping.ask_of(name, node)
            wanted = ask is not None and ask.incarnation == incarnation and ask.status is None
            wanted = wanted or self.manager.quarantine.of_unit(name) is not None
            if not wanted and unit.get("ended") is False:
                self.manager.log.warning("killed what a lost node still ran", node=node, unit=name)
                self.manager.engine.signal(node, name, signal.SIGKILL, 0.0)
            elif not wanted and ask is None:  # its job has ended, and the helper was away when it was to forget it
                self.manager.units.tell(node, name, int(unit.get("n", 0)), True)
        self.manager.resources.come(node)

    def _forget_node(self, node: int) -> None:
        if (timer := self._away.pop(node, None)) is not None:
            timer.cancel()

    def _gone_for_good(self, node: int) -> None:
        del self._away[node]
        manager = self.manager
        host = manager.inventory.rset.ranks[node].host
        asks = [ask for _entry, ask in self._asks_of(node)] + list(manager.housekeeping.asks(node))
        for incarnation in {ask.incarnation for ask in asks}:
            manager.log.warning("node lost", node=node, host=host)
            manager.units.on_lost(node, host, incarnation)

    def _asks_of(self, node: int) -> list[tuple[Entry, NodeAsk]]:
        entries = self.manager.entries.values()
        return [(e, ask) for e in entries for ask in e.asks.values() if ask.node == node and ask.status is None]

    # ---- tasks that cannot be killed -----------------------------------------------------------------

    def watch_kill(self, entry: Entry) -> None:
        """The job's tasks are being ended: from the exception on they have `max-kill-time` to go."""
        job = entry.job
        if job.fatal is None or job.id in self._kills:
            return
        when = job.fatal.timestamp + self.max_kill_s
        self._kills[job.id] = self.manager.clock.call_at(when, partial(self._unkillable, job.id))

    def finished(self, job: Job) -> None:
        if (timer := self._kills.pop(job.id, None)) is not None:
            timer.cancel()

    def _unkillable(self, jobid: int) -> None:
        self._kills.pop(jobid, None)
        entry = self.manager.entries.get(jobid)
        if entry is None or entry.job.status is not None:
            return
        f58 = jobids.encode(jobid)
        left = [ask for ask in entry.job_asks() if ask.status is None]
        with Turn(self.manager, "unkillable"):
            nodes = [ask.node for ask in left if ask.node in self.manager.resources.state.hosts]
            if nodes := [node for node in nodes if node not in self.manager.resources.excluded]:
                self.manager.resources.drain(nodes, f"unkillable processes for job {f58}", update=True)
        for ask in left:
            self.manager.units.unkillable(entry, ask)
