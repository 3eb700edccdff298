"""Where allocations go: breakdowns and the job's nodes into `Servers.spec.allocationSets`. Pure.

The decision is made from strategy and constraints, never from labels of file systems, as HPE's guide asks (DWS, Servers):

- `AllocatePerCompute`: on each rabbit as many allocations as it has nodes of the job, each of the whole minimum
- `AllocatePerServer`: one on each of the job's rabbits
- `AllocateSingleServer`: one; `AllocateAcrossServers` with a count: so many equal parts, on the rabbits with most nodes
- `AllocateAcrossServers` else: in proportion to the nodes, on as many of the job's rabbits as `scale` hints at
- `labels` must be on the rabbit; `exclusive` sets of one colocation key go to different rabbits
- storage that computes must reach physically is on the job's own rabbits, any other may be elsewhere if it must
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, gcd
from typing import Any

import msgspec

from leveret.storage.port import AllocationSet, Breakdown, StorageRefused

#: what `scale` means "one allocation on each rabbit" (1 … 10; the stock profile says 5)
_SCALE_WHOLE = 5
#: the smallest target of a file system across servers
TARGET_MIN_BYTES = 4 << 30


class Server(msgspec.Struct, frozen=True):
    """A rabbit as one that storage may be placed on."""

    name: str
    computes: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    usable: bool = True  #: Ready and Enabled
    free_bytes: int | None = None  #: None = not known


def place(
    breakdown: Breakdown,
    nodes: Sequence[str],
    servers: Iterable[Server],
    taken: dict[str, set[str]] | None = None,
    avoid: Mapping[str, set[str]] | None = None,
    *,
    target_min_bytes: int = TARGET_MIN_BYTES,
) -> list[dict[str, Any]]:
    """The allocation sets of one directive, for the nodes of its job.

    `taken`: colocation key → rabbits that the same workflow took already (added to). `avoid`: the same of others, which
    is kept away from where there is a choice. Raises StorageRefused when no legal placing exists.
    """
    known = {one.name: one for one in servers}
    weights = _weights(nodes, known.values())
    taken = {} if taken is None else taken
    # those that are exclusive have least choice
    order = sorted(range(len(breakdown.sets)), key=lambda i: not breakdown.sets[i].colocation)
    filled: dict[int, dict[str, Any]] = {}
    for index in order:
        filled[index] = _fill(breakdown, index, nodes, known, weights, taken, avoid or {}, target_min_bytes)
    return [filled[index] for index in sorted(filled)]


def _weights(nodes: Sequence[str], servers: Iterable[Server]) -> dict[str, int]:
    """Rabbit → how many of the job's nodes are behind it."""
    behind = {host: one.name for one in servers for host in one.computes}
    weights: dict[str, int] = {}
    for node in nodes:
        if node in behind:
            weights[behind[node]] = weights.get(behind[node], 0) + 1
    return weights


def _fill(
    breakdown: Breakdown,
    index: int,
    nodes: Sequence[str],
    known: Mapping[str, Server],
    weights: Mapping[str, int],
    taken: dict[str, set[str]],
    avoid: Mapping[str, set[str]],
    target_min_bytes: int,
) -> dict[str, Any]:
    want = breakdown.sets[index]
    access = [pair for one in breakdown.locations if one.set == index for pair in one.access]
    physical = ("physical", "mandatory") in access
    labelled = {name for name, one in known.items() if _has(one, want.labels)}
    near = [name for name in weights if name in labelled]
    if want.strategy in ("AllocatePerCompute", "AllocatePerServer"):
        homeless = sorted(set(nodes) - {host for name in near for host in known[name].computes})
        if homeless or not near:
            hosts = ", ".join(homeless) or "none of the job's nodes"
            raise StorageRefused(f"{want.label} storage needs a rabbit behind each node; without one: {hosts}")
        counts = {name: weights[name] if want.strategy == "AllocatePerCompute" else 1 for name in near}
        _take(want, counts, taken)
        return _set(want, want.minimum_bytes, counts)
    choice = _choice(want, near, [] if physical else sorted(labelled), known, weights, taken, avoid)
    if not choice:
        why = f"exclusive for {', '.join(key for _, key in want.colocation)}" if want.colocation else "with its labels"
        raise StorageRefused(f"no rabbit is left for {want.label} storage ({why})")
    if want.strategy == "AllocateSingleServer" or want.count:
        parts = 1 if want.strategy == "AllocateSingleServer" else want.count
        size = max(ceil(want.minimum_bytes / parts), target_min_bytes)
        fitting = [name for name in choice if _fits(known[name], size)] or choice
        own = [name for name in fitting if name in weights]
        spread = fitting if want.colocation else own or fitting
        counts = {}
        for number in range(parts):
            name = spread[number % len(spread)]
            counts[name] = counts.get(name, 0) + 1
    else:
        counts = _across(want, choice, weights)
        size = max(ceil(want.minimum_bytes / sum(counts.values())), target_min_bytes)
    _take(want, counts, taken)
    return _set(want, size, counts)


def _choice(
    want: AllocationSet,
    near: Sequence[str],
    anywhere: Sequence[str],
    known: Mapping[str, Server],
    weights: Mapping[str, int],
    taken: Mapping[str, set[str]],
    avoid: Mapping[str, set[str]],
) -> list[str]:
    """Rabbits to use, best first: the job's own before others, those with most nodes first."""
    own = {name for _, key in want.colocation for name in taken.get(key, ())}
    others = {name for _, key in want.colocation for name in avoid.get(key, ())}
    names = [name for name in dict.fromkeys([*near, *anywhere]) if name not in own]
    usable = [name for name in names if known[name].usable] or names
    rank = {name: (name in others, -weights.get(name, 0), -(known[name].free_bytes or 0), name) for name in usable}
    best = sorted(usable, key=lambda name: rank[name])
    if want.colocation:
        return best
    # without need the job stays on its own rabbits
    return [name for name in best if name in weights] or best


def _across(want: AllocationSet, choice: Sequence[str], weights: Mapping[str, int]) -> dict[str, int]:
    scale = want.scale or _SCALE_WHOLE
    used = choice[: max(1, ceil(len(choice) * min(scale, _SCALE_WHOLE) / _SCALE_WHOLE))]
    shares = {name: max(1, weights.get(name, 1)) for name in used}
    common = gcd(*shares.values())
    times = max(1, round(scale / _SCALE_WHOLE))
    return {name: share // common * times for name, share in shares.items()}


def _has(server: Server, labels: Sequence[str]) -> bool:
    pairs = (label.partition("=") for label in labels)
    return all(server.labels.get(key) == value for key, _, value in pairs)


def _fits(server: Server, size: int) -> bool:
    return server.free_bytes is None or server.free_bytes >= size


def _take(want: AllocationSet, counts: Mapping[str, int], taken: dict[str, set[str]]) -> None:
    for _, key in want.colocation:
        taken.setdefault(key, set()).update(counts)


def _set(want: AllocationSet, size: int, counts: Mapping[str, int]) -> dict[str, Any]:
    storage = [{"name": name, "allocationCount": count} for name, count in sorted(counts.items())]
    return {"label": want.label, "allocationSize": size, "storage": storage}
