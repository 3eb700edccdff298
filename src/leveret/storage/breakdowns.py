"""What each directive needs of storage servers, as NNF's stock profile computes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec

from leveret.core.directives import Directive
from leveret.storage.port import AllocationSet, Breakdown, Location

LABEL = "dataworkflowservices.github.io/storage=Rabbit"
PER_COMPUTE, ACROSS, SINGLE = "AllocatePerCompute", "AllocateAcrossServers", "AllocateSingleServer"
PHYSICAL, NETWORK = ("physical", "mandatory"), ("network", "mandatory")
LUSTRE_MGT = (("exclusive", "lustre-mgt"),)


class Profile(msgspec.Struct, frozen=True):
    """The numbers of an NnfStorageProfile; the defaults are the stock one's."""

    scaling: float = 1.0
    padding_bytes: int = 300 << 20  #: xfs, gfs2 and raw
    lustre_scale: int = 5
    mdt_bytes: int = 5 << 30


STOCK = Profile()


def breakdown(index: int, directive: Directive, profile: Profile = STOCK) -> Breakdown | None:
    """None for a directive that needs no storage of its own (copies, containers, destroy_persistent)."""
    if directive.command == "persistentdw":
        return Breakdown(index, "persistent", (), (Location(0, (PHYSICAL,)),))
    if directive.command not in ("jobdw", "create_persistent"):
        return None
    kind, bytes_ = directive.get("type"), ceil(directive.capacity_bytes * profile.scaling)
    sets: tuple[AllocationSet, ...]
    locations: tuple[Location, ...]
    if kind == "lustre":
        sets = (
            AllocationSet("ost", ACROSS, bytes_, (LABEL,), scale=profile.lustre_scale),
            AllocationSet("mgtmdt", ACROSS, profile.mdt_bytes, (LABEL,), count=1, colocation=LUSTRE_MGT),
        )
        locations = (Location(0, (NETWORK, ("physical", "bestEffort"))), Location(1, (NETWORK,)))
    else:
        sets = (AllocationSet(kind, PER_COMPUTE, bytes_ + profile.padding_bytes, (LABEL,)),)
        locations = (Location(0, (NETWORK, PHYSICAL) if kind == "gfs2" else (PHYSICAL,)),)
    if directive.command == "create_persistent":
        return Breakdown(index, "persistent", sets)
    return Breakdown(index, "job", sets, locations)


def breakdowns(directives: Sequence[Directive], profile: Profile = STOCK) -> tuple[Breakdown, ...]:
    """Of all directives that have one."""
    found = (breakdown(index, directive, profile) for index, directive in enumerate(directives))
    return tuple(one for one in found if one is not None)


def per_node_bytes(found: Sequence[Breakdown], nnodes: int) -> dict[str, int]:
    """type → bytes for each node: what is per compute, and the share of a Lustre's OSTs."""
    total: dict[str, int] = {}
    for one in found:
        for part in one.sets:
            if part.strategy == PER_COMPUTE:
                total[part.label] = total.get(part.label, 0) + part.minimum_bytes
            elif part.label == "ost":
                total["lustre"] = total.get("lustre", 0) + ceil(part.minimum_bytes / max(1, nnodes))
    return total
