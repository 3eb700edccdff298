"""The pool: which cores, GPUs and how much memory are free, and on which nodes. Pure; ids and hosts come from the caller.

Invariant: for every node `free ⊆ all`, and a resource is free exactly when no allocation holds it.
Only `release` frees anything: no clock ever does. Sets of nodes are Python integers with bit r for rank r, and nodes
are kept sorted by what they have free, so that no request has to look at every node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from leveret.core import constraint as constraints
from leveret.core.jobspec import Digest
from leveret.core.resources import Node, Rset
from leveret.errors import ConflictError


class PoolNode:
    """One node: bit masks over its core and GPU ids, and memory in MB (0: not known, so not scheduled)."""

    __slots__ = (
        "bit",
        "cores",
        "cores_free",
        "drained",
        "excluded",
        "gpus",
        "gpus_free",
        "held",
        "host",
        "memory_free_mb",
        "memory_mb",
        "ncores",
        "properties",
        "rank",
        "up",
    )

    def __init__(
        self,
        rank: int,
        host: str,
        cores: Iterable[int],
        gpus: Iterable[int] = (),
        memory_mb: int = 0,
        properties: Iterable[str] = (),
    ) -> None:
        self.rank = rank
        self.host = host
        self.cores = _mask(cores)
        self.gpus = _mask(gpus)
        self.memory_mb = memory_mb
        self.properties = frozenset(properties)
        self.ncores = self.cores.bit_count()
        self.cores_free = self.cores
        self.gpus_free = self.gpus
        self.memory_free_mb = memory_mb
        self.up = True
        self.drained = False
        self.excluded = False
        self.bit = 1 << rank
        #: mask of cores of an allocation → mask of its GPUs, its memory, and the set that it belongs to
        self.held: dict[int, tuple[int, int, Rset]] = {}

    def holders(self) -> list[tuple[int, int, int, float, float]]:
        """What is held here: (cores, GPUs, MB, start, expiration)."""
        return [
            (cores.bit_count(), gpus.bit_count(), memory, rset.starttime, rset.expiration)
            for cores, (gpus, memory, rset) in self.held.items()
        ]

    def signature(self) -> object:
        """Equal for nodes that have the same free, and whose holders end alike."""
        if not self.held:
            return (self.cores_free.bit_count(), self.gpus_free.bit_count(), self.memory_free_mb, self.ncores)
        if len(self.held) == 1:
            return (self.cores_free.bit_count(), self.gpus_free.bit_count(), self.memory_free_mb, *self.holders())
        return (
            self.cores_free.bit_count(),
            self.gpus_free.bit_count(),
            self.memory_free_mb,
            *sorted(self.holders()),
        )

    @property
    def idle(self) -> bool:
        return self.cores_free == self.cores and self.gpus_free == self.gpus and self.memory_free_mb == self.memory_mb

    @property
    def allocatable(self) -> bool:
        return self.up and not self.drained and not self.excluded


class Amounts(NamedTuple):
    """Cores of the pool. `total = free + allocated + drained + down + excluded`."""

    total: int
    free: int  #: free and allocatable
    allocated: int  #: held, whatever the state of the node
    drained: int  #: not held, on drained nodes
    down: int  #: not held, on nodes that are not up
    excluded: int  #: not held, on excluded nodes


class Cap(NamedTuple):
    """What of a node may be used at most."""

    cores: int
    gpus: int
    memory_mb: int


Part = tuple[PoolNode, int, int, int]
"""(node, mask of cores, mask of GPUs, MB of memory)."""


@functools.lru_cache(maxsize=4096)
def _lowest(mask: int, count: int) -> int:
    """The `count` lowest set bits of `mask`."""
    if count == mask.bit_count():
        return mask
    out = 0
    for _ in range(count):
        bit = mask & -mask
        out |= bit
        mask ^= bit
    return out


@functools.lru_cache(maxsize=4096)
def _few_bits(mask: int) -> tuple[int, ...]:
    out = []
    while mask:
        bit = mask & -mask
        out.append(bit.bit_length() - 1)
        mask ^= bit
    return tuple(out)


def bits(mask: int) -> tuple[int, ...]:
    """The set bits, ascending."""
    if mask < 1 << 128:
        return _few_bits(mask)
    # a large mask: its bytes, so that each step does not copy all of it
    found = []
    for at, byte in enumerate(mask.to_bytes((mask.bit_length() + 7) // 8, "little")):
        if byte:
            found += [at * 8 + i for i in range(8) if byte >> i & 1]
    return tuple(found)


def _mask(ids: Iterable[int]) -> int:
    out = 0
    for i in ids:
        out |= 1 << i
    return out


class Pool:
    """All nodes of the instance, by rank."""

    def __init__(self, nodes: Iterable[PoolNode] = ()) -> None:
        self.nodes: dict[int, PoolNode] = {}
        self.version = 0  #: changes whenever something becomes free or a node changes its state
        #: free cores → allocatable nodes with exactly so many
        self._by_free: list[int] = [0]
        #: the same for GPUs
        self._by_gpus: list[int] = [0]
        self._idle = 0  #: allocatable nodes of which nothing is taken
        self._usable = 0  #: allocatable nodes
        self.cores_free = 0  #: on allocatable nodes
        self._sets: dict[object, int] = {}  #: answers that depend on no allocation
        self.load(nodes)

    def load(self, nodes: Iterable[PoolNode]) -> None:
        """Other nodes altogether, all free."""
        self.nodes = {node.rank: node for node in sorted(nodes, key=lambda node: node.rank)}
        most = max((node.ncores for node in self.nodes.values()), default=0)
        self._by_free = [0] * (most + 1)
        self._by_gpus = [0] * (max((node.gpus.bit_count() for node in self.nodes.values()), default=0) + 1)
        self._idle = self._usable = self.cores_free = 0
        self._sets.clear()
        self.version += 1
        for node in self.nodes.values():
            self._enter(node)

    # ---- the index ----------------------------------------------------------------------------

    def _enter(self, node: PoolNode) -> None:
        if not node.allocatable:
            return
        count = node.cores_free.bit_count()
        self._by_free[count] |= node.bit
        self._by_gpus[node.gpus_free.bit_count()] |= node.bit
        self._usable |= node.bit
        self.cores_free += count
        if node.idle:
            self._idle |= node.bit

    def _leave(self, node: PoolNode) -> None:
        if not node.allocatable:
            return
        count = node.cores_free.bit_count()
        self._by_free[count] ^= node.bit
        self._by_gpus[node.gpus_free.bit_count()] ^= node.bit
        self._usable ^= node.bit
        self.cores_free -= count
        if self._idle & node.bit:
            self._idle ^= node.bit

    def _change(self, parts: list[Part], sign: int) -> None:
        """Take parts (−1) or give them back (1), and put the nodes where they then belong in the index."""
        if len(parts) < 4:
            for node, cores, gpus, memory in parts:
                self._leave(node)
                node.cores_free ^= cores
                node.gpus_free ^= gpus
                node.memory_free_mb += sign * memory
                self._enter(node)
            return
        # many nodes: those that move alike are moved together, since each step would copy masks of all nodes
        moves: dict[tuple[int, int, int, int, bool, bool], list[PoolNode]] = {}
        for node, cores, gpus, memory in parts:
            before = (node.cores_free.bit_count(), node.gpus_free.bit_count(), node.idle)
            node.cores_free ^= cores
            node.gpus_free ^= gpus
            node.memory_free_mb += sign * memory
            if node.allocatable:
                count, gpus_count = node.cores_free.bit_count(), node.gpus_free.bit_count()
                move = (before[0], count, before[1], gpus_count, before[2], node.idle)
                moves.setdefault(move, []).append(node)
                self.cores_free += count - before[0]
        for (was, count, gpus_were, gpus_count, was_idle, idle), nodes in moves.items():
            mask = _ranks(nodes)
            self._by_free[was] ^= mask
            self._by_free[count] |= mask
            self._by_gpus[gpus_were] ^= mask
            self._by_gpus[gpus_count] |= mask
            if was_idle != idle:
                self._idle ^= mask

    def set_state(
        self,
        ranks: Iterable[int],
        *,
        up: bool | None = None,
        drained: bool | None = None,
        excluded: bool | None = None,
    ) -> None:
        """Change the state of nodes; what is not said stays. What jobs hold there stays held. Unknown ranks are skipped."""
        for rank in ranks:
            node = self.nodes.get(rank)
            if node is None:
                continue
            self._leave(node)
            node.up = node.up if up is None else up
            node.drained = node.drained if drained is None else drained
            if excluded is not None and excluded != node.excluded:
                node.excluded = excluded
                self._sets.clear()
            self._enter(node)
        self.version += 1

    # ---- asking -------------------------------------------------------------------------------

    def matching(self, constraint: constraints.Constraint | None, key: str | None = None) -> int:
        """The nodes that a constraint allows, whatever their state."""
        name = ("constraint", constraints.key(constraint) if key is None else key)
        found = self._sets.get(name)
        if found is None:
            test = constraints.compiled(constraint)
            found = _ranks(n for n in self.nodes.values() if test(n.rank, n.host, n.properties))
            self._sets[name] = found
        return found

    def capable(self, want: Digest) -> int:
        """The nodes that could give a slot (or a node's slots) of the request if nothing were taken; excluded ones cannot."""
        name = ("capable", want.shape)
        found = self._sets.get(name)
        if found is None:
            cores, gpus, memory = need_per_node(want)
            found = _ranks(
                n
                for n in self.nodes.values()
                if not n.excluded and n.ncores >= cores and n.gpus.bit_count() >= gpus and _memory(n.memory_mb, memory)
            )
            found &= self.matching(want.constraints, want.shape[-1])
            self._sets[name] = found
        return found

    def usable(self) -> int:
        """Nodes that are up, not drained and not excluded."""
        return self._usable

    def shortage(self, want: Digest, within: int = -1) -> str:
        """Why the request can never be met by this pool, or "" (wording as Flux's). Drained and lost nodes may come back."""
        cores, gpus, memory = want.cores_per_slot, want.gpus_per_slot, want.memory_per_slot_mb
        name = ("shortage", want.shape, within)
        if name in self._sets:
            return ""
        able = self.capable(want) & within
        if want.nnodes:
            if able.bit_count() < want.nnodes:
                kind = "exclusive node(s)" if want.exclusive else "node(s)"
                return f"unsatisfiable request: need {want.nnodes} {kind}, only {able.bit_count()} eligible"
            self._sets[name] = 1
            return ""
        nodes = [self.nodes[rank] for rank in bits(able)]
        slots = sum(slots_of(n.ncores, n.gpus.bit_count(), n.memory_mb, cores, gpus, memory) for n in nodes)
        if slots >= want.nslots:
            self._sets[name] = 1
            return ""
        eligible = self.matching(want.constraints, want.shape[-1]) & within
        nodes = [n for n in self.nodes.values() if eligible & n.bit and not n.excluded]
        if gpus:
            return (
                f"unsatisfiable request: need {want.nslots} slot(s) with {gpus} GPU(s) each, "
                f"only {slots} available (total GPUs: {sum(n.gpus.bit_count() for n in nodes)})"
            )
        memory_too = f" and {memory} MB of memory" if memory else ""
        total = f"total cores: {sum(n.ncores for n in nodes)}"
        if memory:
            total += f", total memory: {sum(n.memory_mb for n in nodes)} MB"
        return (
            f"unsatisfiable request: need {want.nslots} slot(s) of {cores} core(s){memory_too}, "
            f"only {slots} such slot(s) available ({total})"
        )

    # ---- taking and giving back ---------------------------------------------------------------

    def allocate(self, want: Digest, mask: int = -1, caps: Mapping[int, Cap] | None = None) -> Rset | None:
        """Take what is asked for, lowest ranks and ids first; None when it is not free now.

        `mask` are the nodes that may be used, `caps` says of some of them how much at most.
        """
        chosen = self._choose(want, mask, caps)
        if chosen is None:
            return None
        self._change(chosen, -1)
        ranks = {node.rank: Node(node.host, bits(cores), bits(gpus), memory) for node, cores, gpus, memory in chosen}
        rset = Rset(ranks, nslots=want.nslots)
        for node, cores, gpus, memory in chosen:
            node.held[cores] = (gpus, memory, rset)
        return rset

    def fits(self, want: Digest, mask: int = -1, caps: Mapping[int, Cap] | None = None) -> bool:
        """Whether `allocate` would give something."""
        return self._choose(want, mask, caps) is not None

    def candidates(self, want: Digest) -> int:
        """Allocatable nodes with enough free cores and GPUs for one slot (or one node) of the request."""
        cores, gpus, _ = need_per_node(want)
        if want.exclusive:
            return self._idle & self.capable(want)
        out = 0
        for mask in self._by_free[cores:]:
            if mask:
                out |= mask
        if out and gpus:
            enough = 0
            for mask in self._by_gpus[gpus:]:
                enough |= mask
            out &= enough
        if out and want.constraints:
            out &= self.matching(want.constraints, want.shape[-1])
        return out

    def _choose(self, want: Digest, mask: int, caps: Mapping[int, Cap] | None) -> list[Part] | None:
        if not want.exclusive and want.nslots * want.cores_per_slot > self.cores_free:
            return None
        able = self.candidates(want) & mask
        if not able:
            return None
        return self._choose_nodes(want, able, caps) if want.nnodes else self._choose_slots(want, able, caps)

    def _choose_nodes(self, want: Digest, able: int, caps: Mapping[int, Cap] | None) -> list[Part] | None:
        if able.bit_count() < want.nnodes:
            return None
        cores, gpus, memory = need_per_node(want)
        chosen: list[Part] = []
        for node in self._each(able):
            if want.exclusive:
                if caps is None or node.rank not in caps:
                    chosen.append((node, node.cores, node.gpus, node.memory_mb))
            elif self._offer(node, cores, gpus, memory, caps):
                chosen.append((node, _lowest(node.cores_free, cores), _lowest(node.gpus_free, gpus), memory))
            if len(chosen) == want.nnodes:
                return chosen
        return None

    def _choose_slots(self, want: Digest, able: int, caps: Mapping[int, Cap] | None) -> list[Part] | None:
        left = want.nslots
        cores, gpus, memory = want.cores_per_slot, want.gpus_per_slot, want.memory_per_slot_mb
        if left > 64 and left > sum(
            (mask & able).bit_count() * (count // cores) for count, mask in enumerate(self._by_free) if mask
        ):
            return None
        chosen: list[Part] = []
        for node in self._each(able):
            take = min(left, self._offer(node, cores, gpus, memory, caps))
            if take > 0:
                chosen.append(
                    (
                        node,
                        _lowest(node.cores_free, take * cores),
                        _lowest(node.gpus_free, take * gpus) if gpus else 0,
                        take * memory,
                    )
                )
                left -= take
                if not left:
                    return chosen
        return None

    def _each(self, mask: int) -> Iterator[PoolNode]:
        nodes = self.nodes
        for _ in range(64):  # mostly the first ones do
            if not mask:
                return
            bit = mask & -mask
            yield nodes[bit.bit_length() - 1]
            mask ^= bit
        for rank in bits(mask):
            yield nodes[rank]

    @staticmethod
    def _offer(node: PoolNode, cores: int, gpus: int, memory: int, caps: Mapping[int, Cap] | None) -> int:
        free = node.cores_free.bit_count()
        cap = caps.get(node.rank) if caps else None
        if cap is None:
            gpus_free = node.gpus_free.bit_count() if gpus else 0
            return slots_of(free, gpus_free, node.memory_free_mb if node.memory_mb else -1, cores, gpus, memory)
        gpus_free = min(node.gpus_free.bit_count(), cap.gpus)
        memory_free = min(node.memory_free_mb, cap.memory_mb) if node.memory_mb else -1
        return slots_of(min(free, cap.cores), gpus_free, memory_free, cores, gpus, memory)

    def take(self, rset: Rset) -> None:
        """Mark an allocation of an earlier daemon as taken. Raises ConflictError on overlap; nothing is taken then."""
        parts = self._parts(rset)
        for node, cores, gpus, memory in parts:
            if cores & ~node.cores_free or gpus & ~node.gpus_free or memory > node.memory_free_mb:
                raise ConflictError(f"rank {node.rank}: two jobs hold the same resources")
        self._change(parts, -1)
        for node, cores, gpus, memory in parts:
            if cores:
                node.held[cores] = (gpus, memory, rset)

    def release(self, rset: Rset) -> None:
        """Give an allocation, or some ranks of it, back. Raises ConflictError when some of it is free already; nothing is
        given back then."""
        parts = self._parts(rset)
        for node, cores, gpus, memory in parts:
            if cores & node.cores_free or gpus & node.gpus_free or node.memory_free_mb + memory > node.memory_mb:
                raise ConflictError(f"rank {node.rank}: released twice")
        self._change(parts, 1)
        for node, cores, _, _ in parts:
            node.held.pop(cores, None)
        self.version += 1

    def _parts(self, rset: Rset) -> list[Part]:
        """What of a set is in this pool, without what this instance no longer has."""
        found = ((self.nodes.get(rank), part) for rank, part in rset.ranks.items())
        return [
            (n, _mask(p.cores) & n.cores, _mask(p.gpus) & n.gpus, min(p.memory_mb, n.memory_mb))
            for n, p in found
            if n is not None
        ]

    # ---- amounts ------------------------------------------------------------------------------

    def free_cores(self) -> int:
        """Cores that no job holds, whatever the state of their node."""
        return sum(node.cores_free.bit_count() for node in self.nodes.values())

    def total_cores(self) -> int:
        return sum(node.ncores for node in self.nodes.values())

    def amounts(self) -> Amounts:
        """How the cores are shared out. Each core is counted once: excluded before down before drained."""
        free = drained = down = excluded = held = 0
        for node in self.nodes.values():
            count = node.cores_free.bit_count()
            held += node.ncores - count
            if node.excluded:
                excluded += count
            elif not node.up:
                down += count
            elif node.drained:
                drained += count
            else:
                free += count
        return Amounts(self.total_cores(), free, held, drained, down, excluded)

    def check(self, held: Iterable[Rset]) -> list[str]:
        """What is wrong when these, and no others, hold resources: overlaps, and what differs from the pool. [] is well."""
        wrong: list[str] = []
        cores, gpus = dict.fromkeys(self.nodes, 0), dict.fromkeys(self.nodes, 0)
        memory = dict.fromkeys(self.nodes, 0)
        for rset in held:
            for node, its_cores, its_gpus, its_memory in self._parts(rset):
                if cores[node.rank] & its_cores or gpus[node.rank] & its_gpus:
                    wrong.append(f"rank {node.rank}: two jobs hold the same resources")
                cores[node.rank] |= its_cores
                gpus[node.rank] |= its_gpus
                memory[node.rank] += its_memory
        free = idle = usable = 0
        for rank, node in self.nodes.items():
            if node.cores_free != node.cores & ~cores[rank] or node.gpus_free != node.gpus & ~gpus[rank]:
                wrong.append(f"rank {rank}: what is free is not what no job holds")
            if node.memory_free_mb != node.memory_mb - memory[rank]:
                wrong.append(f"rank {rank}: free memory is not what no job holds")
            if node.allocatable:
                free += node.cores_free.bit_count()
                usable |= node.bit
                idle |= node.bit if node.idle else 0
                if not self._by_free[node.cores_free.bit_count()] & node.bit:
                    wrong.append(f"rank {rank}: is not where the index has it")
        together = 0
        for mask in self._by_free:
            if together & mask:
                wrong.append("a node is twice in the index")
            together |= mask
        if (free, idle, usable, usable) != (self.cores_free, self._idle, self._usable, together):
            wrong.append("the index does not agree with the nodes")
        return wrong


def _ranks(nodes: Iterable[PoolNode]) -> int:
    found = bytearray()
    for node in nodes:
        at = node.rank >> 3
        if at >= len(found):
            found.extend(bytes(at + 1 - len(found)))
        found[at] |= 1 << (node.rank & 7)
    return int.from_bytes(found, "little")


def need_per_node(want: Digest) -> tuple[int, int, int]:
    """Cores, GPUs and MB that one node must give: for all slots of a node when nodes are asked for, else for one slot."""
    if want.nnodes and want.slots_per_node > 1:
        n = want.slots_per_node
        return want.cores_per_slot * n, want.gpus_per_slot * n, want.memory_per_slot_mb * n
    return want.cores_per_slot, want.gpus_per_slot, want.memory_per_slot_mb


def need_of_node(want: Digest, node: PoolNode) -> tuple[int, int, int]:
    """The same; for exclusive requests all of the node."""
    if want.exclusive:
        return node.ncores, node.gpus.bit_count(), node.memory_mb
    return need_per_node(want)


def _memory(has_mb: int, wants_mb: int) -> bool:
    """Memory that is not known is not scheduled."""
    return not wants_mb or not has_mb or has_mb >= wants_mb


def slots_of(has_cores: int, has_gpus: int, has_mb: int, cores: int, gpus: int, memory: int) -> int:
    """How many slots of (cores, gpus, memory) fit into what there is. `has_mb` −1: memory is not counted."""
    fit = has_cores // cores if cores else 1 << 30
    if gpus:
        fit = min(fit, has_gpus // gpus)
    if memory and has_mb >= 0:
        fit = min(fit, has_mb // memory)
    return fit
