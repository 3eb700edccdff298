"""Storage as a resource: capacity of servers ("rabbits") with the nodes that each of them reaches. Pure; amounts in bytes.

A lease is made with the allocation of the nodes and outlives their release: it ends when the storage is confirmed to be gone
(`gone`). A lease that is given up becomes a debt: its bytes stay taken, it is listed, and `gone` repays it.

Invariant: for every server `free = capacity − leases − debts`, whatever its state; nothing else changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from leveret.errors import ConflictError, NotFoundError
from leveret.sched.pool import bits

HELD, DEBT = "held", "debt"


class Server(NamedTuple):
    name: str
    capacity: int
    ranks: tuple[int, ...]
    """Nodes that it reaches directly."""


class Need(NamedTuple):
    """What a job asks for beside its nodes. At least one of the two is above 0."""

    per_node: int = 0
    """On a server that reaches the node, for each node of the job."""
    in_all: int = 0
    """Once for the job, on servers that reach a node of it (`single`: on one server)."""
    single: bool = False
    anywhere: bool = False
    """`in_all` may be on any server, reached over the network."""


class Lease(NamedTuple):
    jobid: int
    amounts: dict[str, int]
    """Server to bytes."""
    state: str = HELD
    since: float = 0.0
    note: str = ""
    """Why it was given up."""


class Storage:
    """All servers, and who has what of them."""

    def __init__(self, servers: Iterable[Server] = ()) -> None:
        self.servers: dict[str, Server] = {}
        self.up: dict[str, bool] = {}
        self.leases: dict[int, Lease] = {}
        self._masks: dict[str, int] = {}
        self.define(servers)

    def define(self, servers: Iterable[Server]) -> None:
        """The servers that there are; leases stay, also on servers that are not there now."""
        self.servers = {server.name: server for server in servers}
        self.up = {name: self.up.get(name, True) for name in self.servers}
        self._masks = {name: sum(1 << rank for rank in set(s.ranks)) for name, s in self.servers.items()}

    def set_state(self, name: str, up: bool) -> None:
        """A server that is down gets no new leases. Raises NotFoundError."""
        if name not in self.servers:
            raise NotFoundError(f"storage server `{name}` is not there")
        self.up[name] = up

    def free(self, name: str) -> int:
        """Bytes that nobody has or owes; below 0 when the server has become smaller than its leases."""
        taken = sum(lease.amounts.get(name, 0) for lease in self.leases.values())
        return self.servers[name].capacity - taken

    def _open(self) -> dict[str, int]:
        """Server to free bytes, of those that are up."""
        return {name: max(0, self.free(name)) for name in self.servers if self.up[name]}

    def shortage(self, need: Need, nnodes: int) -> str:
        """Why the need can never be met, or "". Servers that are down may come back."""
        capacities = {name: server.capacity for name, server in self.servers.items()}
        if need.per_node:
            places = 0
            for name, capacity in capacities.items():
                places += min(self._masks[name].bit_count(), capacity // need.per_node)
            if places < max(nnodes, 1):
                return (
                    f"unsatisfiable request: need {need.per_node} bytes of storage on each of {max(nnodes, 1)} node(s), "
                    f"only {places} such node(s) (largest server: {max(capacities.values(), default=0)})"
                )
        has = max(capacities.values(), default=0) if need.single else sum(capacities.values())
        if need.in_all > has:
            what = "on one server" if need.single else "in all"
            return f"unsatisfiable request: need {need.in_all} bytes of storage {what}, there are {has}"
        return ""

    def choices(self, need: Need, candidates: int) -> Iterator[int]:
        """Sets of nodes, best first: an allocation within one of them can be given what it needs now.

        `candidates` are the nodes that could be had now (bit r for rank r).
        """
        free = self._open()
        if need.in_all and need.single:
            names = sorted((n for n in free if free[n] >= need.in_all), key=lambda n: (free[n], n))
            for name in names:
                rest = {**free, name: free[name] - need.in_all}
                reach = candidates if need.anywhere else candidates & self._masks[name]
                if mask := self._served(need, rest, reach):
                    yield mask
            return
        if need.in_all > sum(free.values()):
            return
        if need.in_all and not need.anywhere:
            # servers with most room first, until they have enough: the job is to run where these reach
            chosen, room = 0, 0
            for name in sorted(free, key=lambda n: (-free[n], n)):
                if self._masks[name] & candidates:
                    chosen, room = chosen | self._masks[name], room + free[name]
                if room >= need.in_all and (mask := self._served(need, free, candidates & chosen)):
                    yield mask
            return
        if mask := self._served(need, free, candidates):
            yield mask

    def _served(self, need: Need, free: dict[str, int], candidates: int) -> int:
        """Of the candidates those that get their storage, never more of a server than it has room for."""
        if not need.per_node:
            return candidates
        out = 0
        for name in sorted(free, key=lambda n: (-free[n], n)):
            there = candidates & self._masks[name] & ~out
            room = free[name] // need.per_node
            if there.bit_count() > room:
                there = sum(1 << rank for rank in bits(there)[:room])
            out |= there
        return out

    def place(self, need: Need, ranks: Iterable[int]) -> dict[str, int] | None:
        """Server to bytes for a job on these nodes; None when it does not fit now."""
        free = self._open()
        amounts: dict[str, int] = {}
        ranks = sorted(set(ranks))

        def put(name: str, amount: int) -> None:
            free[name] -= amount
            amounts[name] = amounts.get(name, 0) + amount

        if need.in_all:
            reach = sum(1 << rank for rank in ranks)
            able = [n for n in free if need.anywhere or self._masks[n] & reach]
            if need.single:
                # the tightest that fits, so that large requests keep finding room
                fits = sorted((n for n in able if free[n] >= need.in_all), key=lambda n: (free[n], n))
                if not fits:
                    return None
                put(fits[0], need.in_all)
            else:
                left = need.in_all
                for name in sorted(able, key=lambda n: (-free[n], n)):
                    part = min(left, free[name])
                    if part:
                        put(name, part)
                        left -= part
                if left:
                    return None
        if need.per_node:
            for rank in ranks:
                able = [n for n in free if self._masks[n] >> rank & 1 and free[n] >= need.per_node]
                if not able:
                    return None
                put(max(able, key=lambda n: (free[n], n)), need.per_node)
        return amounts

    # ---- leases -------------------------------------------------------------------------------

    def lease(self, jobid: int, amounts: dict[str, int], now: float = 0.0) -> Lease:
        """Take what `place` has found. Raises ConflictError; nothing is taken then."""
        if jobid in self.leases:
            raise ConflictError("the job has a lease of storage already")
        for name, amount in amounts.items():
            if amount < 0 or name not in self.servers or amount > self.free(name):
                raise ConflictError(f"storage server {name}: {amount} bytes are not free")
        lease = self.leases[jobid] = Lease(jobid, dict(amounts), HELD, now)
        return lease

    def restore(self, lease: Lease) -> None:
        """A lease of an earlier daemon: it stands, whatever the servers look like now."""
        self.leases[lease.jobid] = lease

    def give_up(self, jobid: int, note: str, now: float) -> Lease:
        """Nobody waits any longer for the storage to go: it is a debt. Raises NotFoundError."""
        lease = self.leases.get(jobid)
        if lease is None:
            raise NotFoundError("the job has no lease of storage")
        if lease.state != DEBT:
            lease = self.leases[jobid] = lease._replace(state=DEBT, note=note, since=now)
        return lease

    def gone(self, jobid: int) -> Lease:
        """The storage is confirmed to be gone: the lease ends, or the debt is repaid. Raises NotFoundError."""
        lease = self.leases.pop(jobid, None)
        if lease is None:
            raise NotFoundError("the job has no lease of storage")
        return lease

    def debts(self) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.state == DEBT]
