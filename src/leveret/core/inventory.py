"""What an instance has: its nodes by rank, as discovered or as `[resource]` of the configuration describes them. Pure.

Memory is in MiB (2^20 bytes) per node; 0 means that it is not known and not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import msgspec

from leveret.core import hostlist, idset
from leveret.core.resources import Node, Rset
from leveret.errors import FormatError, InvalidError

T = TypeVar("T")
_SCALE = {"M": 1, "G": 1 << 10, "T": 1 << 20}


class Found(msgspec.Struct):
    """What one machine has for us, within the limits that were given to us (exec/discover.py)."""

    cores: int = 1
    memory_mb: int = 0
    gpus: int = 0


class Entry(Protocol):
    """`[[resource.config]]` (config.py has it)."""

    @property
    def hosts(self) -> str: ...
    @property
    def cores(self) -> str | None: ...
    @property
    def gpus(self) -> str | None: ...
    @property
    def memory(self) -> str | None: ...
    @property
    def properties(self) -> list[str]: ...


class Inventory(msgspec.Struct):
    rset: Rset
    """Every node with its host, cores, gpus and properties; excluded ones too."""
    method: str = "dynamic-discovery"
    """Where it comes from: as `resource-define` of RFC 44 has it."""
    memory_mb: dict[int, int] = {}
    excluded: frozenset[int] = frozenset()
    """Ranks that get no work, by configuration."""
    missing: dict[int, str] = {}
    """Rank to what the configuration has and the machine has not; these are drained."""

    def properties(self, rank: int) -> list[str]:
        return [name for name, ranks in self.rset.properties.items() if rank in ranks]


def alike(hosts: Iterable[tuple[int, str, Iterable[int]]]) -> Inventory:
    """An inventory of (rank, host, cores)."""
    return Inventory(Rset({rank: Node(host, tuple(cores)) for rank, host, cores in hosts}))


def discovered(hosts: Iterable[str], found: Found) -> Inventory:
    """Nodes of one machine, each with all that it has."""
    names = list(hosts)
    cores, gpus = tuple(range(found.cores)), tuple(range(found.gpus))
    nodes = {rank: Node(host, cores, gpus) for rank, host in enumerate(names)}
    return Inventory(Rset(nodes), memory_mb=dict.fromkeys(nodes, found.memory_mb))


def described(entries: Iterable[Entry]) -> Inventory:
    """Nodes of `[[resource.config]]`: ranks in order of first mention; later entries add to a host. Raises InvalidError."""
    ranks: dict[str, int] = {}
    nodes: dict[int, Node] = {}
    memory: dict[int, int] = {}
    properties: dict[str, set[int]] = {}
    for number, entry in enumerate(entries):
        at = f"resource.config[{number}]"
        hosts = _parsed(hostlist.parse, entry.hosts, f"{at}.hosts")
        if not hosts:
            raise InvalidError(f"{at}.hosts: names no host", path=at)
        cores = _parsed(idset.parse, entry.cores, f"{at}.cores")
        gpus = _parsed(idset.parse, entry.gpus, f"{at}.gpus")
        mb = _parsed(megabytes, entry.memory, f"{at}.memory")
        for name in entry.properties:
            if not name or any(char in "!&'\"^`|()" for char in name):
                raise InvalidError(f"{at}.properties: `{name}` is not a valid property name", path=at)
        for host in hosts:
            rank = ranks.setdefault(host, len(ranks))
            node = nodes.setdefault(rank, Node(host, ()))
            if cores is not None:
                node.cores = tuple(cores)
            if gpus is not None:
                node.gpus = tuple(gpus)
            if mb is not None:
                memory[rank] = mb
            for name in entry.properties:
                properties.setdefault(name, set()).add(rank)
    if not nodes:
        raise InvalidError("resource.config: describes no node", path="resource.config")
    for node in nodes.values():
        if not node.cores:
            raise InvalidError(f"resource.config: {node.host} has no cores", "give it `cores`", path="resource.config")
    rset = Rset(nodes, properties={name: tuple(sorted(some)) for name, some in properties.items()})
    return Inventory(rset, "configuration", memory)


def of_r(rset: Rset) -> Inventory:
    """The nodes of an R document (RFC 20). Raises InvalidError for ranks that do not count from 0."""
    if list(rset.ranks) != list(range(len(rset.ranks))) or not rset.ranks:
        raise InvalidError(f"R: ranks must be 0 to N, not `{rset.ranks_idset()}`", "`leveret R remap` numbers them")
    for rank, node in rset.ranks.items():
        node.host = node.host or f"node{rank}"
    whole = Rset(rset.ranks, expiration=rset.expiration, properties=rset.properties)
    return Inventory(whole, "configuration")


def exclude(inventory: Inventory, text: str) -> frozenset[int]:
    """The ranks that an idset or a hostlist names. Raises InvalidError for what is not there."""
    ranks = inventory.rset.ranks
    try:
        some = idset.parse(text)
    except FormatError:
        names = _parsed(hostlist.parse, text, "resource.exclude") or []
        known = {node.host for node in ranks.values()}
        if unknown := [name for name in names if name not in known]:
            raise InvalidError(f"resource.exclude: no such host: {hostlist.encode(unknown)}", path="resource.exclude")
        return frozenset(rank for rank, node in ranks.items() if node.host in set(names))
    if not ranks.keys() >= set(some):
        raise InvalidError(
            f"resource.exclude: `{text}`: there are ranks {idset.encode(ranks)}", path="resource.exclude"
        )
    return frozenset(some)


def reserve(inventory: Inventory, text: str) -> None:
    """Take cores from nodes for the system: `CORES[@RANKS] …`, as Flux's `resource.reserve`. Raises InvalidError."""
    for word in text.split():
        cores, at, ranks = word.partition("@")
        gone = set(_parsed(idset.parse, cores, "resource.reserve") or ())
        where = set(_parsed(idset.parse, ranks, "resource.reserve") or ()) if at else set(inventory.rset.ranks)
        for rank, node in inventory.rset.ranks.items():
            if rank in where:
                node.cores = tuple(core for core in node.cores if core not in gone)
                if not node.cores:
                    raise InvalidError(f"resource.reserve: {node.host} has no core left", path="resource.reserve")


def verify(inventory: Inventory, found: Found) -> dict[int, str]:
    """Rank to what the machine has not, of nodes that all are this machine."""
    short: dict[int, str] = {}
    for rank, node in inventory.rset.ranks.items():
        parts = []
        if cores := [core for core in node.cores if core >= found.cores]:
            parts.append(f"core{idset.encode(cores, brackets=True)}")
        if gpus := [gpu for gpu in node.gpus if gpu >= found.gpus]:
            parts.append(f"gpu{idset.encode(gpus, brackets=True)}")
        if parts:
            short[rank] = f"missing resources: rank{rank}/{','.join(parts)}"
    return short


def difference(old: Rset, new: Rset) -> list[str]:
    """What changed from one inventory to the next, in words; nothing when they are the same."""
    before = {node.host: node for node in old.ranks.values()}
    after = {node.host: node for node in new.ranks.values()}
    said = []
    if gone := [host for host in before if host not in after]:
        said.append(f"gone: {hostlist.encode(gone)}")
    if come := [host for host in after if host not in before]:
        said.append(f"new: {hostlist.encode(come)}")
    changed = [
        host
        for host, node in after.items()
        if host in before and (before[host].cores, before[host].gpus) != (node.cores, node.gpus)
    ]
    if changed:
        said.append(f"changed: {hostlist.encode(changed)}")
    return said


def megabytes(text: str) -> int:
    """`64G`, `512M` or `1T` in MiB; a bare number is MiB. Raises FormatError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([MGT])(?:iB|B)?)?\s*", text, re.IGNORECASE)
    if match is None:
        raise FormatError(f"`{text}` is not a size: a number and M, G or T")
    return int(float(match[1]) * _SCALE[(match[2] or "M").upper()])


def _parsed(parse: Callable[[str], T], text: str | None, at: str) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except FormatError as error:
        raise InvalidError(f"{at}: {error.message}", path=at) from None
