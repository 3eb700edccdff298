"""R: a set of concrete resources, by rank (RFC 20, version 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leveret.core import hostlist, idset
from leveret.errors import FormatError


class Node:
    """The part of a set on one execution target: its host, the logical ids of its cores and gpus, ascending, and MB of memory."""

    __slots__ = ("cores", "gpus", "host", "memory_mb")

    def __init__(self, host: str, cores: tuple[int, ...], gpus: tuple[int, ...] = (), memory_mb: int = 0) -> None:
        self.host = host
        self.cores = cores
        self.gpus = gpus
        self.memory_mb = memory_mb

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Node)
            and self.host == other.host
            and self.cores == other.cores
            and self.gpus == other.gpus
            and self.memory_mb == other.memory_mb
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Node({self.host!r}, {self.cores!r}, {self.gpus!r})"


class Rset:
    """A resource set. Times are seconds since the Unix epoch; 0 is unset."""

    __slots__ = ("expiration", "nslots", "properties", "ranks", "starttime")

    ranks: dict[int, Node]
    """Rank to Node, in ascending order of rank."""
    starttime: float
    expiration: float
    nslots: int
    """Task slots of the job that holds the set; 0 when it is no job's."""
    properties: dict[str, tuple[int, ...]]
    """Property to the ranks that have it, ascending (RFC 20)."""

    def __init__(
        self,
        ranks: dict[int, Node] | None = None,
        starttime: float = 0.0,
        expiration: float = 0.0,
        nslots: int = 0,
        properties: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.ranks = dict(sorted(ranks.items())) if ranks else {}
        self.starttime = starttime
        self.expiration = expiration
        self.nslots = nslots
        self.properties = properties or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rset) and all(getattr(self, key) == getattr(other, key) for key in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rset({self.summary()!r}, nslots={self.nslots}, {self.starttime}..{self.expiration})"

    @classmethod
    def from_dict(cls, obj: object) -> Rset:
        """The same as the function `from_dict` of this module."""
        return from_dict(obj)

    def subset(self, ranks: Iterable[int]) -> Rset:
        """The part of the set on these ranks."""
        kept = {rank: self.ranks[rank] for rank in ranks if rank in self.ranks}
        return Rset(kept, self.starttime, self.expiration, self.nslots, self.properties)

    def ncores(self) -> int:
        """All cores of the set."""
        return sum(len(node.cores) for node in self.ranks.values())

    def ngpus(self) -> int:
        """All gpus of the set."""
        return sum(len(node.gpus) for node in self.ranks.values())

    def nnodes(self) -> int:
        """Ranks of the set: a host with two ranks counts twice, as in Flux."""
        return len(self.ranks)

    def ranks_idset(self) -> str:
        """The ranks as an RFC 22 idset without brackets: `0-3,7`."""
        return idset.encode(self.ranks)

    def nodelist(self) -> str:
        """The hosts in order of rank as an RFC 29 hostlist; "" when no host is known."""
        return hostlist.encode(node.host for node in self.ranks.values() if node.host)

    def summary(self) -> str:
        """The annotation `resource_summary`: `rank[0-1]/core[0-3],gpu0 rank2/core0`; "" for the empty set."""
        parts = []
        for (cores, gpus), ranks in self._groups():
            children = [
                name + idset.encode(ids, brackets=True) for name, ids in (("core", cores), ("gpu", gpus)) if ids
            ]
            parts.append(f"rank{idset.encode(ranks, brackets=True)}/{','.join(children)}")
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """R as JSON data (RFC 20). Ranks with the same children share an entry; what is unset is left out."""
        r_lite = []
        for (cores, gpus), ranks in self._groups():
            children = {"core": idset.encode(cores)}
            if gpus:
                children["gpu"] = idset.encode(gpus)
            r_lite.append({"rank": idset.encode(ranks), "children": children})
        execution: dict[str, Any] = {"R_lite": r_lite}
        if self.starttime:
            execution["starttime"] = self.starttime
        if self.expiration:
            execution["expiration"] = self.expiration
        if self.nslots:
            execution["nslots"] = self.nslots
        if nodelist := self.nodelist():
            execution["nodelist"] = [nodelist]
        if self.properties:
            execution["properties"] = {name: idset.encode(ranks) for name, ranks in self.properties.items()}
        document: dict[str, Any] = {"version": 1, "execution": execution}
        memory: dict[int, list[int]] = {}
        for rank, node in self.ranks.items():
            if node.memory_mb:
                memory.setdefault(node.memory_mb, []).append(rank)
        if memory:  # RFC 20 leaves `scheduling` to the scheduler
            document["scheduling"] = {"memory_mb": {idset.encode(ranks): mb for mb, ranks in memory.items()}}
        return document

    def _groups(self) -> list[tuple[tuple[tuple[int, ...], tuple[int, ...]], list[int]]]:
        """((cores, gpus), ranks) of the ranks with the same children, by first rank."""
        groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for rank, node in self.ranks.items():
            groups.setdefault((node.cores, node.gpus), []).append(rank)
        return list(groups.items())


def from_dict(obj: object) -> Rset:
    """The set that an R document describes (RFC 20). Of the key `scheduling` only `memory_mb` is kept; unknown keys are not.

    Without `nodelist`, hosts are those of `node` in R_lite, else "". Raises FormatError whose `path` names the bad key.
    """
    document = _mapping(obj, "R")
    version = document.get("version")
    if isinstance(version, bool) or version != 1:
        raise _bad("version", "must be 1")
    execution = _mapping(document.get("execution"), "execution")
    entries = execution.get("R_lite")
    if not isinstance(entries, list):
        raise _bad("execution.R_lite", "must be a list")
    ranks: dict[int, Node] = {}
    for index, entry in enumerate(entries):
        path = f"execution.R_lite[{index}]"
        entry = _mapping(entry, path)
        children = _mapping(entry.get("children"), f"{path}.children")
        cores = _ids(children.get("core"), f"{path}.children.core")
        gpus = _ids(children.get("gpu", ""), f"{path}.children.gpu")
        host = entry.get("node", "")
        if not isinstance(host, str):
            raise _bad(f"{path}.node", "must be a string")
        for rank in _ids(entry.get("rank"), f"{path}.rank"):
            if rank in ranks:
                raise _bad(f"{path}.rank", f"repeats rank {rank}")
            ranks[rank] = Node(host, cores, gpus)
    result = Rset(
        ranks,
        _seconds(execution, "starttime"),
        _seconds(execution, "expiration"),
        _slots(execution),
        _properties(execution.get("properties", {}), ranks),
    )
    if result.expiration and result.expiration <= result.starttime:
        raise _bad("execution.expiration", "must be greater than starttime")
    if "nodelist" in execution:
        hosts = _hosts(execution["nodelist"])
        if len(hosts) != len(ranks):
            raise _bad("execution.nodelist", f"has {len(hosts)} hosts for {len(ranks)} ranks")
        for node, host in zip(result.ranks.values(), hosts, strict=True):
            node.host = host
    _read_memory(document.get("scheduling"), ranks)
    return result


def _read_memory(scheduling: object, ranks: dict[int, Node]) -> None:
    """Ours: `scheduling.memory_mb` is {idset of ranks: MB}. What other schedulers keep there is not looked at."""
    memory = scheduling.get("memory_mb") if isinstance(scheduling, dict) else None
    for text, mb in memory.items() if isinstance(memory, dict) else ():
        for rank in _ids(text, "scheduling.memory_mb"):
            if rank in ranks and isinstance(mb, int) and not isinstance(mb, bool) and mb >= 0:
                ranks[rank].memory_mb = mb


def _bad(path: str, why: str) -> FormatError:
    return FormatError(f"{path} {why}", path=path)


def _mapping(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(path, "must be a mapping")
    return value


def _ids(value: object, path: str) -> tuple[int, ...]:
    if not isinstance(value, str):
        raise _bad(path, "must be an idset")
    try:
        return tuple(idset.parse(value))
    except FormatError as error:
        raise FormatError(f"{path}: {error.message}", path=path)


def _hosts(value: object) -> list[str]:
    path = "execution.nodelist"
    if not isinstance(value, list):
        raise _bad(path, "must be a list of hostlists")
    hosts: list[str] = []
    for index, text in enumerate(value):
        at = f"{path}[{index}]"
        if not isinstance(text, str):
            raise _bad(at, "must be a hostlist")
        try:
            hosts += hostlist.parse(text)
        except FormatError as error:
            raise FormatError(f"{at}: {error.message}", path=at)
    return hosts


def _seconds(execution: dict[str, Any], key: str) -> float:
    value = execution.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise _bad(f"execution.{key}", "must be seconds since the epoch")
    return float(value)


def _slots(execution: dict[str, Any]) -> int:
    value = execution.get("nslots", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _bad("execution.nslots", "must be an integer of at least 0")
    return value


def _properties(value: object, ranks: dict[int, Node]) -> dict[str, tuple[int, ...]]:
    path = "execution.properties"
    found: dict[str, tuple[int, ...]] = {}
    for name, text in _mapping(value, path).items():
        at = f"{path}.{name}"
        if not isinstance(name, str) or not name or any(char in "!&'\"^`|()" for char in name):
            raise _bad(at, "is not a valid property name")
        found[name] = _ids(text, at)
        if not ranks.keys() >= set(found[name]):
            raise _bad(at, "names a rank that is not in R_lite")
    return found
