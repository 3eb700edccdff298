"""Jobspec resources from the per-resource options: so many cores or nodes, and tasks for each (RFC 25).

Tasks then are not slots: the shell option `per-resource` says how many there are for each node or core.
"""

from __future__ import annotations

from typing import Any

from leveret.errors import InvalidError


def resources(
    *,
    nnodes: int = 0,
    cores: int = 0,
    tasks_per_node: int = 0,
    tasks_per_core: int = 0,
    gpus_per_node: int = 0,
    exclusive: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """`resources` of the jobspec, and the shell option `per-resource` (None: one task a slot).

    Nodes without a number of cores are taken whole. Raises InvalidError for what cannot be.
    """
    if tasks_per_node and tasks_per_core:
        raise InvalidError("Do not specify both the number of tasks per node and per core")
    if gpus_per_node and not nnodes:
        raise InvalidError("gpus-per-node must be specified with a node count", "add `-N`")
    if exclusive and not nnodes:
        raise InvalidError("exclusive can only be set with a node count", "add `-N`")
    if not nnodes and not cores:
        raise InvalidError("Number of nodes and/or cores must be specified with per-resource options", "add `--cores`")
    if nnodes and cores % nnodes:
        raise InvalidError("number of cores must be evenly divisible by node count")
    for value, name in (
        (nnodes, "node count"),
        (cores, "core count"),
        (tasks_per_node, "tasks per node"),
        (tasks_per_core, "tasks per core"),
        (gpus_per_node, "gpus per node"),
    ):
        if value < 0:
            raise InvalidError(f"{name} must be at least 0")
    per_resource: dict[str, Any] | None = None
    if tasks_per_node or tasks_per_core:
        per_resource = {"type": "node" if tasks_per_node else "core", "count": tasks_per_node or tasks_per_core}
    within: list[dict[str, Any]] = [{"type": "core", "count": cores // nnodes if nnodes and cores else 1}]
    if gpus_per_node:
        within.append({"type": "gpu", "count": gpus_per_node})
    slot: dict[str, Any] = {"type": "slot", "count": 1 if nnodes else cores, "with": within, "label": "task"}
    if not nnodes:
        return [slot], per_resource
    node: dict[str, Any] = {"type": "node", "count": nnodes}
    if exclusive or not cores:
        node["exclusive"] = True
    node["with"] = [slot]
    return [node], per_resource


def ntasks(per_resource: object, nnodes: int, ncores: int) -> int | None:
    """How many tasks the shell option asks for; None when it is no such option, or not known before resources are.

    `ncores` are those of the whole job, 0 when they are not known (whole nodes).
    """
    if not isinstance(per_resource, dict):
        return None
    count = per_resource.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        return None
    if per_resource.get("type") == "node" and nnodes:
        return nnodes * count
    if per_resource.get("type") == "core" and ncores:
        return ncores * count
    return None
