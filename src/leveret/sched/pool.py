"""The pool: which cores and GPUs are free. Pure; ids and hosts come from the caller.

Invariant: for every node `free ⊆ all`, and a resource is free exactly when no allocation holds it.
Only `release` frees anything: no clock ever does.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.core.jobspec import Digest
from leveret.core.resources import Node, Rset
from leveret.errors import ConflictError


class PoolNode:
    """One node: bit masks over its core and GPU ids."""

    __slots__ = ("cores", "cores_free", "gpus", "gpus_free", "host", "rank", "up")

    def __init__(self, rank: int, host: str, cores: Iterable[int], gpus: Iterable[int] = ()) -> None:
        self.rank = rank
        self.host = host
        self.cores = sum(1 << i for i in cores)
        self.gpus = sum(1 << i for i in gpus)
        self.cores_free = self.cores
        self.gpus_free = self.gpus
        self.up = True

    @property
    def idle(self) -> bool:
        return self.cores_free == self.cores and self.gpus_free == self.gpus


def _lowest(mask: int, count: int) -> int:
    """The `count` lowest set bits of `mask`."""
    out = 0
    for _ in range(count):
        bit = mask & -mask
        out |= bit
        mask ^= bit
    return out


def _bits(mask: int) -> tuple[int, ...]:
    out = []
    while mask:
        bit = mask & -mask
        out.append(bit.bit_length() - 1)
        mask ^= bit
    return tuple(out)


def _mask(ids: Iterable[int]) -> int:
    out = 0
    for i in ids:
        out |= 1 << i
    return out


class Pool:
    """All nodes of the instance, by rank."""

    def __init__(self, nodes: Iterable[PoolNode]) -> None:
        self.nodes = {node.rank: node for node in nodes}

    # ---- asking -------------------------------------------------------------------------------

    def shortage(self, want: Digest) -> str:
        """Why the request can never be met by this pool, or "" (wording as Flux's)."""
        cores, gpus = want.cores_per_slot, want.gpus_per_slot
        if want.nnodes:
            per_node = max(1, want.slots_per_node)
            fit = [
                n
                for n in self.nodes.values()
                if n.cores.bit_count() >= cores * per_node and n.gpus.bit_count() >= gpus * per_node
            ]
            if len(fit) < want.nnodes:
                kind = "exclusive node(s)" if want.exclusive else "node(s)"
                return f"unsatisfiable request: need {want.nnodes} {kind}, only {len(fit)} eligible"
            return ""
        slots = sum(_slots(n.cores, n.gpus, cores, gpus) for n in self.nodes.values())
        if slots >= want.nslots:
            return ""
        if gpus:
            total = sum(n.gpus.bit_count() for n in self.nodes.values())
            return (
                f"unsatisfiable request: need {want.nslots} slot(s) with {gpus} GPU(s) each, "
                f"only {slots} available (total GPUs: {total})"
            )
        total = sum(n.cores.bit_count() for n in self.nodes.values())
        return (
            f"unsatisfiable request: need {want.nslots} slot(s) of {cores} core(s), "
            f"only {slots} such slot(s) available (total cores: {total})"
        )

    # ---- taking and giving back ---------------------------------------------------------------

    def allocate(self, want: Digest) -> Rset | None:
        """Take what is asked for, lowest ranks and ids first; None when it is not free now."""
        chosen = self._choose_nodes(want) if want.nnodes else self._choose_slots(want)
        if chosen is None:
            return None
        ranks = {}
        for node, cores, gpus in chosen:
            node.cores_free &= ~cores
            node.gpus_free &= ~gpus
            ranks[node.rank] = Node(node.host, _bits(cores), _bits(gpus))
        return Rset(ranks, nslots=want.nslots)

    def _choose_nodes(self, want: Digest) -> list[tuple[PoolNode, int, int]] | None:
        per_node = max(1, want.slots_per_node)
        cores, gpus = want.cores_per_slot * per_node, want.gpus_per_slot * per_node
        chosen: list[tuple[PoolNode, int, int]] = []
        for node in self.nodes.values():
            if not node.up:
                continue
            if want.exclusive:
                if node.idle and node.cores.bit_count() >= cores and node.gpus.bit_count() >= gpus:
                    chosen.append((node, node.cores, node.gpus))
            elif node.cores_free.bit_count() >= cores and node.gpus_free.bit_count() >= gpus:
                chosen.append((node, _lowest(node.cores_free, cores), _lowest(node.gpus_free, gpus)))
            if len(chosen) == want.nnodes:
                return chosen
        return None

    def _choose_slots(self, want: Digest) -> list[tuple[PoolNode, int, int]] | None:
        left = want.nslots
        cores, gpus = want.cores_per_slot, want.gpus_per_slot
        chosen: list[tuple[PoolNode, int, int]] = []
        for node in self.nodes.values():
            if not node.up:
                continue
            take = min(left, _slots(node.cores_free, node.gpus_free, cores, gpus))
            if take > 0:
                chosen.append((node, _lowest(node.cores_free, take * cores), _lowest(node.gpus_free, take * gpus)))
                left -= take
                if not left:
                    return chosen
        return None

    def take(self, rset: Rset) -> None:
        """Mark an allocation of an earlier daemon as taken. Raises ConflictError on overlap; nothing is taken then."""
        parts = self._parts(rset)
        for node, cores, gpus in parts:
            if cores & ~node.cores_free or gpus & ~node.gpus_free:
                raise ConflictError(f"rank {node.rank}: two jobs hold the same resources")
        for node, cores, gpus in parts:
            node.cores_free &= ~cores
            node.gpus_free &= ~gpus

    def release(self, rset: Rset) -> None:
        """Give an allocation back. Raises ConflictError when some of it is free already; nothing is given back then."""
        parts = self._parts(rset)
        for node, cores, gpus in parts:
            if cores & node.cores_free or gpus & node.gpus_free:
                raise ConflictError(f"rank {node.rank}: released twice")
        for node, cores, gpus in parts:
            node.cores_free |= cores
            node.gpus_free |= gpus

    def _parts(self, rset: Rset) -> list[tuple[PoolNode, int, int]]:
        """(node, cores, gpus) of a set, without what this instance no longer has."""
        found = ((self.nodes.get(rank), part) for rank, part in rset.ranks.items())
        return [(n, _mask(p.cores) & n.cores, _mask(p.gpus) & n.gpus) for n, p in found if n is not None]

    def free_cores(self) -> int:
        return sum(node.cores_free.bit_count() for node in self.nodes.values())

    def total_cores(self) -> int:
        return sum(node.cores.bit_count() for node in self.nodes.values())


def _slots(cores_mask: int, gpus_mask: int, cores: int, gpus: int) -> int:
    """How many slots of (cores, gpus) fit into what the masks hold."""
    fit = cores_mask.bit_count() // cores if cores else 1 << 30
    return min(fit, gpus_mask.bit_count() // gpus) if gpus else fit
