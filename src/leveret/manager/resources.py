"""The nodes of the instance: their eventlog (RFC 44), and what follows from it for the scheduler.

A change is an event, stored in the turn that brings it about: call these inside an open turn and the event is
in its transaction, or outside and it gets one of its own. Drained and offline nodes get no new work; jobs on them go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import hostlist, idset, resourcelog, resources
from leveret.core import inventory as inventories
from leveret.core.event import Event, decode, encode
from leveret.core.resourcelog import KEEP, ResourceState, apply_event
from leveret.core.resources import Node, Rset
from leveret.errors import ConflictError, FormatError, InvalidError
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
DISCOVERED = "dynamic-discovery"
#: where the store keeps the instance's R
R_KEY = "resource.R"
#: events of the log beyond which a restart begins it anew
EVENTS_MAX = 20_000
#: watchers of the resource eventlog wait for news of this "job"
FEED_KEY = -1


class Resources:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.state = ResourceState()
        self.excluded: frozenset[int] = manager.inventory.excluded  #: by configuration
        self._row = 0  #: of the last event
        self._begun = False
        self._coming: set[int] = set()  #: ranks that come online with the next event

    # ---- the log -----------------------------------------------------------------------------------

    def post(self, name: str, context: dict[str, Any]) -> None:
        """Append an event to the resource eventlog. Raises EventError; nothing has changed then.

        Names that RFC 44 does not know are kept, and change no node's state.
        """
        turn = self.manager.turn
        if turn is not None:
            self._post(turn, name, context)
            return
        with Turn(self.manager, "resource") as turn:
            self._post(turn, name, context)

    def _post(self, turn: Turn, name: str, context: dict[str, Any]) -> None:
        old = self.state
        event = Event(max(turn.now, old.t_last), name, context)
        self._set(apply_event(old, event))
        self._row += 1
        turn.op("INSERT INTO resource_event VALUES(?,?)", self._row, encode(event))

        def undo() -> None:
            self._row -= 1
            self._set(old)

        turn.undo.append(undo)
        turn.after.append(lambda: self.manager.feed.publish((FEED_KEY,)))

    def _set(self, new: ResourceState) -> None:
        """Show the scheduler what has changed."""
        old, self.state = self.state, new
        changed = (old.online ^ new.online) | (old.torpid ^ new.torpid) | (old.drains.keys() ^ new.drains.keys())
        if changed:
            self._show(changed & self.manager.inventory.rset.ranks.keys())

    def _show(self, ranks: Iterable[int]) -> None:
        state = self.state
        groups: dict[tuple[bool, bool, bool], list[int]] = {}
        for rank in ranks:
            up = rank in state.online and rank not in state.torpid
            groups.setdefault((up, rank in state.drains, rank in self.excluded), []).append(rank)
        for (up, drained, excluded), some in groups.items():
            self.manager.pool.set_state(some, up=up, drained=drained, excluded=excluded)
        self.manager.want_schedule()

    # ---- starting ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Replay the log; then say what there is now. Every node is offline until its helper is there."""
        manager, inventory = self.manager, self.manager.inventory
        for row, text in manager.store.resource_events():
            self._row = row
            try:
                self.state = apply_event(self.state, decode(text), strict=False)
            except FormatError as error:
                manager.log.error("damaged event of the resource eventlog", row=row, why=error.message)
        nodes = inventory.rset.ranks
        self.excluded = inventory.excluded
        with Turn(manager, "resource") as turn:
            if self.state.n > EVENTS_MAX:
                self._truncate(turn)
            self.post(
                "restart",
                {
                    "ranks": idset.encode(nodes),
                    "online": "",
                    "nodelist": hostlist.encode(node.host for node in nodes.values()),
                },
            )
            if inventory.method != DISCOVERED:
                self._define(turn, inventory.rset, inventory.method)
            if both := self.excluded & self.state.drains.keys():
                self.undrain(both)  # a node is not both
            for rank, why in inventory.missing.items():
                if rank not in self.excluded:
                    self.drain([rank], why, update=True)
        self._show(nodes)
        if self.state.drains:
            manager.log.info("drained nodes", ranks=idset.encode(self.state.drains))

    def _define(self, turn: Turn, rset: Rset, method: str) -> None:
        """The instance has these nodes: the set and the event are one transaction."""
        manager = self.manager
        before = manager.store.meta(R_KEY)
        if before is not None:
            try:
                for change in inventories.difference(resources.from_dict(_decode(before)), rset):
                    manager.log.warning("the inventory has changed", what=change)
            except (FormatError, msgspec.DecodeError) as error:
                manager.log.error("the inventory of the last time is damaged", why=str(error))
        turn.op("INSERT OR REPLACE INTO meta VALUES(?,?)", R_KEY, _encode(rset.to_dict()).decode())
        self.post("resource-define", {"method": method})

    def _truncate(self, turn: Turn) -> None:
        """One event in place of all before it: a node that comes and goes for years must not fill the disk."""
        context = resourcelog.truncated(self.state)
        turn.op("DELETE FROM resource_event")
        self._post(turn, "truncate", context)

    # ---- nodes come and go ---------------------------------------------------------------------------

    def come(self, rank: int) -> None:
        """As `online`; ranks that come in one loop pass, or before `begin`, share an event."""
        if not self._coming and self._begun:
            self.manager.clock.call_soon(self.arrived)
        self._coming.add(rank)

    def begin(self) -> None:
        """Everybody has said hello. Where nodes are discovered, the first one comes before what it is (as in Flux)."""
        self._begun = True
        inventory = self.manager.inventory
        with Turn(self.manager, "resource") as turn:
            if inventory.method == DISCOVERED:
                if self._coming:
                    first = min(self._coming)
                    self._coming.discard(first)
                    self.online([first])
                self._define(turn, inventory.rset, inventory.method)
            self.arrived()

    def arrived(self) -> None:
        """Those that have come are online."""
        ranks, self._coming = sorted(self._coming), set()
        self.online(ranks)

    def online(self, ranks: Iterable[int]) -> None:
        """These nodes can take work; those that are online already are not named again."""
        self._transition("online", (rank for rank in ranks if rank in self.state.offline))

    def offline(self, ranks: Iterable[int]) -> None:
        """These nodes are gone."""
        gone = set(ranks)
        self._coming -= gone
        self._transition("offline", gone & self.state.online)

    def torpid(self, ranks: Iterable[int]) -> None:
        """These have not been heard from for a while."""
        self._transition("torpid", (set(ranks) & self.state.online) - self.state.torpid)

    def lively(self, ranks: Iterable[int]) -> None:
        self._transition("lively", set(ranks) & self.state.torpid)

    def _transition(self, name: str, ranks: Iterable[int]) -> None:
        if some := idset.encode(ranks):
            self.post(name, {"idset": some})

    # ---- draining ------------------------------------------------------------------------------------

    def drain(
        self,
        ranks: Iterable[int],
        reason: str = "",
        *,
        userid: int | None = None,
        overwrite: int = KEEP,
        update: bool = False,
    ) -> None:
        """Give these nodes no new work. What runs there goes on.

        Of nodes that are drained already, with `update` the old reason stays, with `overwrite` 1 it is replaced, with 2
        its time too; else ConflictError. Raises InvalidError for ranks that are not there or that are excluded;
        nothing has changed then.
        """
        some = self._known(ranks)
        if excluded := self.excluded & set(some):
            raise InvalidError(
                f"{_ranks(excluded)} excluded by configuration", "a node cannot be both excluded and drained"
            )
        already = [rank for rank in some if rank in self.state.drains]
        if already and not update and overwrite == KEEP:
            raise ConflictError(f"{_ranks(already)} already drained", "Use --force to overwrite existing drain reason")
        context: dict[str, Any] = {"idset": idset.encode(some), "nodelist": self._nodelist(some)}
        if reason:
            context["reason"] = reason
        context["overwrite"] = overwrite
        if userid is not None:
            context["userid"] = userid
        self.post("drain", context)
        self.manager.log.info("drained", ranks=context["idset"], nodelist=context["nodelist"], reason=reason)

    def undrain(
        self, ranks: Iterable[int], *, userid: int | None = None, force: bool = False, reason: str = ""
    ) -> None:
        """Let these nodes have work again. Raises InvalidError, and unless `force` ConflictError when one is not drained."""
        some = self._known(ranks)
        others = [rank for rank in some if rank not in self.state.drains]
        if others and not force:
            raise ConflictError(f"{_ranks(others)} not drained")
        if len(others) == len(some):
            return
        some = [rank for rank in some if rank in self.state.drains]
        context: dict[str, Any] = {"idset": idset.encode(some), "nodelist": self._nodelist(some), "overwrite": 0}
        if reason:
            context["reason"] = reason
        if userid is not None:
            context["userid"] = userid
        self.post("undrain", context)
        self.manager.log.info("undrained", ranks=context["idset"], nodelist=context["nodelist"])

    def document(self) -> dict[str, Any]:
        """Everything that `leveret resource` shows (core/resourceview.py makes its rows of it)."""
        state, pool = self.state, self.manager.pool
        held = {}
        for rank, node in pool.nodes.items():
            cores, gpus = node.cores & ~node.cores_free, node.gpus & ~node.gpus_free
            if cores or gpus:
                held[rank] = Node(node.host, _bits(cores), _bits(gpus))
        same: dict[resourcelog.Drain, list[int]] = {}
        for rank, drain in state.drains.items():
            same.setdefault(drain, []).append(rank)
        memory: dict[int, list[int]] = {}
        for rank, mb in self.manager.inventory.memory_mb.items():
            memory.setdefault(mb, []).append(rank)
        return {
            "R": self.manager.inventory.rset.to_dict(),
            "method": state.method,
            "allocated": Rset(held).to_dict(),
            "online": idset.encode(state.online),
            "torpid": idset.encode(state.torpid),
            "exclude": idset.encode(self.excluded),
            "drain": [{"ranks": idset.encode(ranks), **msgspec.to_builtins(drain)} for drain, ranks in same.items()],
            "housekeeping": idset.encode(self.housekeeping()),
            "queues": {name: idset.encode(ranks) for name, ranks in self.queues().items()},
            "memory_mb": {idset.encode(ranks): mb for mb, ranks in memory.items() if mb},
        }

    def housekeeping(self) -> Iterable[int]:
        """Nodes that are being tidied up."""
        return {rank for run in self.manager.housekeeping.runs.values() for rank in run.places}

    def queues(self) -> dict[str, list[int]]:
        """The nodes of each configured queue: those with all the properties that it requires."""
        nodes = self.manager.pool.nodes.values()
        return {
            name: [node.rank for node in nodes if node.properties >= set(queue.policy.requires)]
            for name, queue in self.manager.queues.all.items()
            if name
        }

    def reload(self, rset: Rset, *, force: bool = False) -> None:
        """Another inventory for the same ranks; a restart finds its own again. Raises InvalidError, ConflictError.

        With `force`, ranks that the instance has not are left out. Refused while jobs hold resources.
        """
        manager = self.manager
        if others := rset.ranks.keys() - self.state.hosts.keys():
            if not force:
                raise InvalidError(f"R: invalid {_ranks(others)}", f"the instance has {idset.encode(self.state.hosts)}")
            rset = rset.subset(rset.ranks.keys() & self.state.hosts.keys())
            kept = {name: tuple(r for r in ranks if r in rset.ranks) for name, ranks in rset.properties.items()}
            rset.properties = {name: ranks for name, ranks in kept.items() if ranks}
        if missing := self.state.hosts.keys() - rset.ranks.keys():
            raise InvalidError(
                f"R: {_ranks(missing)} missing", "a reload changes cores, GPUs and properties, not nodes"
            )
        if manager.pool.amounts().allocated:
            raise ConflictError("jobs hold resources", "wait until the queue is idle: `leveret queue idle`")
        for rank, node in rset.ranks.items():
            node.host = self.state.hosts[rank]
        inventory = manager.inventory
        inventory.rset = rset
        manager.scheduling.reload()
        with Turn(manager, "reload") as turn:
            self._define(turn, rset, "reload")
        self._show(rset.ranks)

    def _known(self, ranks: Iterable[int]) -> list[int]:
        some = sorted(set(ranks))
        if not some:
            raise InvalidError("no nodes are named")
        if not self.state.hosts.keys() >= set(some):
            raise InvalidError("idset is out of range", f"the instance has ranks {idset.encode(self.state.hosts)}")
        return some

    def _nodelist(self, ranks: Iterable[int]) -> str:
        return hostlist.encode(self.state.hosts[rank] for rank in ranks)

    def targets(self, text: str, *, strict: bool = True) -> list[int]:
        """The ranks of an idset or hostlist. Raises InvalidError; lenient, what is not there is left out."""
        hosts = self.state.hosts
        try:
            ranks = idset.parse(text)
        except FormatError:
            pass
        else:
            return self._known(ranks) if strict else [rank for rank in ranks if rank in hosts]
        try:
            names = hostlist.parse(text)
        except FormatError as error:
            raise InvalidError(f"invalid targets: {error.message}") from None
        wanted = set(names)
        unknown = [name for name in names if name not in set(hosts.values())]
        if unknown and strict:
            raise InvalidError(f"invalid targets: invalid hosts: {hostlist.encode(unknown)}")
        return [rank for rank, host in hosts.items() if host in wanted]


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(at for at in range(mask.bit_length()) if mask >> at & 1)


def _ranks(ranks: Iterable[int]) -> str:
    some = sorted(ranks)
    return f"rank{'s' if len(some) > 1 else ''} {idset.encode(some)}"
