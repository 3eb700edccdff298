"""The states of resources as `leveret resource` and the API show them: rows of nodes in one state. Pure.

Made from the document of `GET /v1/resources`, so that every door shows the same.
The scheduler's view (`list`): free, allocated, down, up, all; excluded nodes are not in it, and a drained node is
down, whatever runs there. The operator's view (`status`): avail, exclude, draining, drained, torpid, housekeeping and
allocated, each online or offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from leveret.core import hostlist, idset, resources
from leveret.core.resources import Node, Rset
from leveret.errors import FormatError, InvalidError

LIST_STATES = ("up", "down", "allocated", "free", "all")
LIST_DEFAULT = ("free", "allocated", "down")
STATUS_STATES = (
    "avail", "exclude", "draining", "drained", "drain", "allocated", "torpid", "housekeeping", "online", "offline",
)  # fmt: skip
STATUS_DEFAULT = ("avail", "exclude", "draining", "drained", "torpid", "housekeeping")


class Row(msgspec.Struct):
    """Nodes (or parts of them) in one state."""

    state: str
    rset: Rset
    online: bool = True
    reason: str = ""
    timestamp: float = 0.0  #: of the drain; 0: none
    userid: int | None = None
    queues: tuple[str, ...] = ()

    @property
    def state_text(self) -> str:
        """With an asterisk where the nodes are offline."""
        return self.state if self.online else f"{self.state}*"


class View:
    """One answer of `GET /v1/resources`."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.everything = resources.from_dict(document["R"])
        self.held = resources.from_dict(document["allocated"])
        self.online = _set(document["online"])
        self.torpid = _set(document["torpid"])
        self.exclude = _set(document["exclude"])
        self.housekeeping = _set(document["housekeeping"])
        self.queues = {name: _set(ranks) for name, ranks in document["queues"].items()}
        self.drains: dict[int, dict[str, Any]] = {}
        for drain in document["drain"]:
            self.drains.update(dict.fromkeys(_set(drain["ranks"]), drain))
        self.wanted = frozenset(self.everything.ranks)

    def only(self, *, include: str | None = None, queues: Iterable[str] = ()) -> None:
        """Leave out all other nodes; hosts and ranks that are not there are no error, queues are."""
        if include is not None:
            self.wanted &= targets(self.everything, include)
        names = list(queues)
        if unknown := [name for name in names if name not in self.queues]:
            known = ", ".join(self.queues) or "none is configured"
            raise InvalidError(f"{unknown[0]}: no such queue", f"queues: {known}")
        if names:
            self.wanted &= frozenset().union(*(self.queues[name] for name in names))

    # ---- the scheduler's view ------------------------------------------------------------------------

    def rows(self, states: Iterable[str] = LIST_DEFAULT) -> list[Row]:
        """A row a state, in the order asked for; a row may be empty."""
        names = [name.strip() for name in states]
        if unknown := [name for name in names if name not in LIST_STATES]:
            raise InvalidError(f"Invalid resource state {unknown[0]} specified", f"one of {', '.join(LIST_STATES)}")
        visible = self.wanted - self.exclude
        up = (visible & self.online) - self.torpid - self.drains.keys()
        held = self.held.ranks
        sets = {
            "all": self._part(visible),
            "up": self._part(up),
            "down": self._part(visible - up),
            "allocated": self._part(visible, lambda rank, node: held.get(rank, _NOTHING)),
            "free": self._part(up, lambda rank, node: _minus(node, held.get(rank, _NOTHING))),
        }
        return [Row(name, sets[name]) for name in names]

    def _part(self, ranks: Iterable[int], what: Callable[[int, Node], Node] | None = None) -> Rset:
        nodes: dict[int, Node] = {}
        for rank in sorted(ranks):
            whole = self.everything.ranks[rank]
            node = whole if what is None else what(rank, whole)
            if node.cores or node.gpus:
                nodes[rank] = Node(whole.host, node.cores, node.gpus)
        properties = {
            name: some
            for name, all_ranks in self.everything.properties.items()
            if (some := tuple(rank for rank in all_ranks if rank in nodes))
        }
        return Rset(nodes, properties=properties, expiration=self.everything.expiration)

    def by_node(self, rows: Iterable[Row]) -> list[Row]:
        """Each row as rows of nodes that are in the same queues and have the same properties; empty ones stay."""
        out: list[Row] = []
        for row in rows:
            groups: dict[tuple[Any, ...], list[int]] = {}
            for rank in row.rset.ranks:
                in_queues = tuple(name for name, ranks in self.queues.items() if rank in ranks)
                properties = tuple(name for name, ranks in row.rset.properties.items() if rank in ranks)
                groups.setdefault((in_queues, properties), []).append(rank)
            for (in_queues, _), ranks in groups.items():
                out.append(msgspec.structs.replace(row, rset=_only(row.rset, ranks), queues=in_queues))
            if not groups:
                out.append(row)
        return out

    # ---- the operator's view -------------------------------------------------------------------------

    def status(self, states: Iterable[str] = STATUS_DEFAULT) -> list[Row]:
        """Rows of nodes in the same state, with the same reason, time and user. One that is asked for and has no node is empty."""
        names = [name.strip() for name in states]
        if unknown := [name for name in names if name not in STATUS_STATES]:
            raise InvalidError(f"Invalid resource state {unknown[0]} specified", f"one of {', '.join(STATUS_STATES)}")
        wanted = [each for name in names for each in (("draining", "drained") if name == "drain" else (name,))]
        filters = [name for name in wanted if name in ("online", "offline")]
        kinds = [name for name in wanted if name not in filters] or list(STATUS_DEFAULT)
        rows: list[Row] = []
        for state in dict.fromkeys(kinds):
            found = self._status_of(state, filters)
            rows += found or [Row(state, Rset())]
        return rows

    def _status_of(self, state: str, filters: list[str]) -> list[Row]:
        groups: dict[tuple[Any, ...], list[int]] = {}
        for rank in sorted(self.wanted):
            if not self._is(rank, state):
                continue
            online = rank in self.online
            if filters and ("online" if online else "offline") not in filters:
                continue
            drain = self.drains.get(rank, {}) if state in ("draining", "drained") else {}
            key = (not online, drain.get("timestamp") or 0.0, drain.get("reason") or "", drain.get("userid"))
            groups.setdefault(key, []).append(rank)
        return [
            Row(state, _only(self.everything, ranks), not offline, reason, when, userid)
            for (offline, when, reason, userid), ranks in groups.items()
        ]

    def _is(self, rank: int, state: str) -> bool:
        busy = rank in self.held.ranks
        drained, excluded, torpid = rank in self.drains, rank in self.exclude, rank in self.torpid
        if state == "avail":
            return not (drained or excluded or torpid)
        return {
            "exclude": excluded,
            "draining": drained and busy,
            "drained": drained and not busy,
            "allocated": busy,
            "torpid": torpid,
            "housekeeping": rank in self.housekeeping,
        }[state]

    def drained(self) -> list[Row]:
        """Every drain, oldest first."""
        rows = [row for row in self.status(("drained", "draining")) if row.rset.ranks]
        return sorted(rows, key=lambda row: (row.timestamp, min(row.rset.ranks)))


_NOTHING = Node("", ())


def _minus(node: Node, other: Node) -> Node:
    cores, gpus = set(other.cores), set(other.gpus)
    return Node(
        node.host,
        tuple(core for core in node.cores if core not in cores),
        tuple(gpu for gpu in node.gpus if gpu not in gpus),
    )


def _only(rset: Rset, ranks: Iterable[int]) -> Rset:
    some = sorted(ranks)
    properties = {
        name: mine for name, its in rset.properties.items() if (mine := tuple(rank for rank in its if rank in some))
    }
    return Rset({rank: rset.ranks[rank] for rank in some}, properties=properties)


def _set(text: str) -> frozenset[int]:
    return frozenset(idset.parse(text))


def targets(rset: Rset, text: str) -> frozenset[int]:
    """The ranks that an idset or a hostlist names, of those that are there. Raises InvalidError when it is neither."""
    try:
        return frozenset(idset.parse(text)) & rset.ranks.keys()
    except FormatError:
        pass
    try:
        names = set(hostlist.parse(text))
    except FormatError as error:
        raise InvalidError(f"invalid targets: {error.message}") from None
    return frozenset(rank for rank, node in rset.ranks.items() if node.host in names)
