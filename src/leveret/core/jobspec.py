"""Jobspec version 1: what a job asks for and what it runs (RFC 25; RFC 14, 26 and 31 for what that refers to).

A jobspec is plain JSON data. `validate` says whether it may be submitted, `digest` draws out of a valid one what the
scheduler and listings need, `build` makes one. Two departures from Flux, which takes both: an empty `resources` list
and a negative duration are refused. So is a command that is one string: RFC 25 says list, its schema says either.
"""

from __future__ import annotations

import json
import math
from typing import Any

from leveret.core import perresource
from leveret.core.jobspec_attributes import check_attributes, is_int, is_mapping
from leveret.errors import InvalidError, JobspecError

COUNT_MAX = 2**31 - 1
"""The largest count of nodes, slots, cores, gpus or tasks, each and multiplied."""

#: of `memory` in a slot, in MiB; without one it is MB
MEMORY_UNITS = {
    "KB": 1 / 1024,
    "MB": 1,
    "GB": 1024,
    "TB": 1024**2,
    "KiB": 1 / 1024,
    "MiB": 1,
    "GiB": 1024,
    "TiB": 1024**2,
}

_TOP_KEYS = ("attributes", "resources", "tasks", "version")


class Digest:
    """What the scheduler, the engine and listings need of a jobspec.

    Counts are of the whole job, except those whose name says otherwise.
    """

    __slots__ = (
        "bank",
        "constraints",
        "cores_per_slot",
        "cwd",
        "dependencies",
        "duration_s",
        "exclusive",
        "gpus_per_slot",
        "memory_per_slot_mb",
        "name",
        "nnodes",
        "nslots",
        "ntasks",
        "project",
        "queue",
        "reservation",
        "shape",
        "slots_per_node",
        "tasks_total",
    )

    nslots: int
    """Slots of the whole job, also when nodes are asked for."""
    slots_per_node: int
    """0 when no nodes are asked for."""
    cores_per_slot: int
    gpus_per_slot: int
    memory_per_slot_mb: int
    """0 when none is asked for."""
    nnodes: int
    """0 when no nodes are asked for; the scheduler then takes slots where it finds them."""
    exclusive: bool
    """Whole nodes only."""
    ntasks: int
    tasks_total: int | None
    """`tasks[0].count.total`; None for one task a slot."""
    duration_s: float
    """0 is unlimited."""
    name: str
    """`attributes.system.job.name`, or the last part of the path of the command."""
    queue: str
    reservation: str
    """The reservation whose nodes it is to run on (ours), or ""."""
    bank: str
    project: str
    cwd: str
    dependencies: list[dict[str, Any]]
    """RFC 26 objects, in the order of the jobspec."""
    constraints: dict[str, Any] | None
    """An RFC 31 object, or None. Set it with `constrain`."""
    shape: tuple[Any, ...]
    """Equal for requests that need the same resources, whatever their duration; the last part is the constraint."""

    def constrain(self, constraint: dict[str, Any] | None) -> None:
        """Another constraint: the job's own, and its queue's (RFC 33)."""
        self.constraints = constraint or None
        self.shape = (
            self.nnodes,
            self.slots_per_node,
            self.nslots,
            self.cores_per_slot,
            self.gpus_per_slot,
            self.memory_per_slot_mb,
            self.exclusive,
            json.dumps(constraint, sort_keys=True) if constraint else "",
        )


def validate(spec: object) -> None:
    """Check a whole jobspec (RFC 25). Raises JobspecError whose `path` names the first bad key, such as
    `resources[0].with[0].count`; a missing key is named by the path that it should have."""
    if not is_mapping(spec):
        raise JobspecError("jobspec must be a mapping")
    for key in _TOP_KEYS:
        if key not in spec:
            raise JobspecError(f"Missing key ({key})", path=key)
    for key in spec:
        if key not in _TOP_KEYS:
            raise JobspecError(f"Extraneous key ({key})", path=str(key))
    if not is_int(spec["version"]) or spec["version"] != 1:
        raise JobspecError("version must be 1", path="version")
    label, nnodes, nslots = _check_resources(spec["resources"])
    _check_tasks(spec["tasks"], label, nnodes, nslots)
    check_attributes(spec["attributes"])


ENVIRONMENT = "attributes.system.environment."


def updated(spec: dict[str, Any], updates: dict[str, Any]) -> dict[str, Any]:
    """The jobspec with the dotted keys of `jobspec-update` events set (RFC 21); `spec` itself does not change."""
    spec = dict(spec)
    for key, value in updates.items():
        if key.startswith(ENVIRONMENT):  # a variable's name may have dots
            path, last = ENVIRONMENT[:-1].split("."), key[len(ENVIRONMENT) :]
        else:
            *path, last = key.split(".")
        where = spec
        for part in path:
            inner = where.get(part)
            where[part] = dict(inner) if isinstance(inner, dict) else {}
            where = where[part]
        where[last] = value
    return spec


def digest(spec: dict[str, Any]) -> Digest:
    """The Digest of a valid jobspec; the behaviour for an invalid one is undefined."""
    result = Digest()
    vertex = spec["resources"][0]
    result.nnodes, result.slots_per_node, result.exclusive = 0, 0, False
    slot = vertex
    if vertex["type"] == "node":
        slot = vertex["with"][0]
        result.nnodes = vertex["count"]
        result.slots_per_node = slot["count"]
        result.exclusive = vertex.get("exclusive", False)
    result.nslots = slot["count"] * (result.nnodes or 1)
    result.cores_per_slot = result.gpus_per_slot = result.memory_per_slot_mb = 0
    for child in slot["with"]:
        if child["type"] == "core":
            result.cores_per_slot = child["count"]
        elif child["type"] == "memory":  # ours: RFC 25 has none, RFC 14 does
            result.memory_per_slot_mb = math.ceil(child["count"] * MEMORY_UNITS[child.get("unit", "MB")])
        else:
            result.gpus_per_slot = child["count"]
    task = spec["tasks"][0]
    result.tasks_total = task["count"].get("total")
    result.ntasks = result.nslots if result.tasks_total is None else result.tasks_total
    system = spec["attributes"]["system"]
    options = (system.get("shell") or {}).get("options") or {}
    if "per-resource" in options:
        ncores = 0 if result.exclusive else result.nslots * result.cores_per_slot
        result.ntasks = perresource.ntasks(options["per-resource"], result.nnodes, ncores) or result.ntasks
    result.duration_s = float(system["duration"])
    result.name = system.get("job", {}).get("name") or task["command"][0].rpartition("/")[2] or task["command"][0]
    result.queue = system.get("queue", "")
    result.reservation = system.get("reservation", "")
    result.bank = system.get("bank", "")
    result.project = system.get("project", "")
    result.cwd = system.get("cwd", "")
    result.dependencies = system.get("dependencies", [])
    result.constrain(system.get("constraints"))
    return result


def build(
    command: list[str],
    *,
    ntasks: int | None = None,
    nnodes: int = 0,
    cores_per_task: int = 1,
    gpus_per_task: int = 0,
    exclusive: bool = False,
    duration_s: float = 0.0,
    name: str = "",
    queue: str = "",
    cwd: str = "",
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A jobspec from the per-task options, one task a slot.

    `ntasks` None is one task, or one a node on exclusive nodes when `nnodes` is given, as in Flux; 0 is one task.
    When tasks do not divide evenly among nodes, the slots are rounded up and `count.total` says how many tasks there
    are (RFC 25, use case 2.1). An infinite duration is 0, which is unlimited. Raises InvalidError for counts that
    cannot be, JobspecError for an empty command.
    """
    if not command:
        raise JobspecError("job command and arguments are missing", path="tasks[0].command")
    if ntasks is None:
        ntasks, exclusive = nnodes or 1, exclusive or nnodes > 0
    ntasks = ntasks or 1
    for value, least, what in (
        (nnodes, 0, "node count"),
        (ntasks, 1, "task count"),
        (cores_per_task, 1, "cores per task"),
        (gpus_per_task, 0, "gpus per task"),
    ):
        if value < least:
            raise InvalidError(f"{what} must be at least {least}")
        if value > COUNT_MAX:
            raise InvalidError(f"{what} must be at most {COUNT_MAX}")
    if nnodes > ntasks:
        raise InvalidError("node count must not be greater than task count")
    if exclusive and not nnodes:
        raise InvalidError("exclusive can only be set with a node count", hint="add `-N`")
    if not duration_s >= 0:
        raise InvalidError("duration must not be negative")

    within: list[dict[str, Any]] = [{"type": "core", "count": cores_per_task}]
    if gpus_per_task:
        within.append({"type": "gpu", "count": gpus_per_task})
    slots = -(-ntasks // nnodes) if nnodes else ntasks
    resource: dict[str, Any] = {"type": "slot", "count": slots, "with": within, "label": "task"}
    count = {"per_slot": 1}
    if nnodes:
        node: dict[str, Any] = {"type": "node", "count": nnodes}
        if exclusive:
            node["exclusive"] = True
        node["with"] = [resource]
        resource = node
        if ntasks % nnodes:
            count = {"total": ntasks}

    if duration_s == float("inf"):
        duration_s = 0
    system: dict[str, Any] = {
        "duration": int(duration_s) if duration_s == int(duration_s) else duration_s,
        "environment": dict(environment or {}),
        "shell": {"options": {}},
    }
    for key, text in (("cwd", cwd), ("queue", queue)):
        if text:
            system[key] = text
    if name:
        system["job"] = {"name": name}
    return {
        "resources": [resource],
        "tasks": [{"command": list(command), "slot": "task", "count": count}],
        "attributes": {"system": system},
        "version": 1,
    }


def setattr_path(spec: dict[str, Any], path: str, value: object) -> None:
    """Set a jobspec attribute in place, as `--setattr` does; missing levels are made.

    `a.b` is `attributes.system.a.b`. A key that begins with `system.` or `user.` goes under `attributes`, one that
    begins with `.` too, and one that begins with `attributes.` is taken as it is. Raises JobspecError for an empty
    part of the path, and where a part of it already holds something else than a mapping.
    """
    if path.startswith("."):
        path = f"attributes{path}" if not path.startswith(".attributes.") else path[1:]
    elif path.startswith(("system.", "user.")):
        path = f"attributes.{path}"
    elif not path.startswith("attributes."):
        path = f"attributes.system.{path}"
    _set(spec, path, value)


def setopt(spec: dict[str, Any], path: str, value: object) -> None:
    """Set a shell option in place, as `--setopt` does: `a.b` is `attributes.system.shell.options.a.b`.

    Raises JobspecError as `setattr_path` does.
    """
    _set(spec, f"attributes.system.shell.options.{path}", value)


def _set(spec: dict[str, Any], path: str, value: object) -> None:
    parts = path.split(".")
    if not all(parts):
        raise JobspecError(f'"{path}" is not a valid attribute: a part of it is empty', path=path)
    place = spec
    for depth, part in enumerate(parts[:-1], start=1):
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            where = ".".join(parts[:depth])
            raise JobspecError(f"{where} is not a mapping, so {path} cannot be set", path=where)
    place[parts[-1]] = value


def _check_resources(resources: object) -> tuple[str, int, int]:
    """The label of the slot, the nodes (0 when none are asked for) and the slots of the whole job."""
    if not isinstance(resources, list):
        raise JobspecError("resources must be a list", path="resources")
    if len(resources) != 1:
        why = "jobspec has no resources" if not resources else "resources must have exactly one element"
        raise JobspecError(why, path="resources" if not resources else "resources[1]")
    path = "resources[0]"
    vertex = _check_vertex(resources[0], path, ("node", "slot"))
    nnodes = 0
    if vertex["type"] == "node":
        nnodes = vertex["count"]
        within = _check_with(vertex, path, 1)
        path = f"{path}.with[0]"
        vertex = _check_vertex(within[0], path, ("slot",))
    nslots = vertex["count"] * (nnodes or 1)
    if nslots > COUNT_MAX:
        raise JobspecError(f"{path}.count makes more than {COUNT_MAX} slots", path=f"{path}.count")
    if "label" not in vertex:
        raise JobspecError(f"{path}.label is a required key", path=f"{path}.label")
    kinds = []
    for index, item in enumerate(_check_with(vertex, path, 3)):
        at = f"{path}.with[{index}]"
        child = _check_vertex(item, at, ("core", "gpu", "memory"))
        if "with" in child:
            raise JobspecError(f"{at}.with is not allowed in a {child['type']}", path=f"{at}.with")
        if child["type"] in kinds:
            raise JobspecError(f"{at}.type repeats {child['type']}", path=f"{at}.type")
        if child["count"] * nslots > COUNT_MAX:
            raise JobspecError(f"{at}.count makes more than {COUNT_MAX} in the job", path=f"{at}.count")
        if child["type"] == "memory" and child.get("unit", "MB") not in MEMORY_UNITS:
            raise JobspecError(f"{at}.unit must be one of {', '.join(MEMORY_UNITS)}", path=f"{at}.unit")
        kinds.append(child["type"])
    if "core" not in kinds:
        raise JobspecError(f"{path}.with must contain a core", path=f"{path}.with")
    label: str = vertex["label"]
    return label, nnodes, nslots


def _check_vertex(vertex: object, path: str, types: tuple[str, ...]) -> dict[str, Any]:
    if not is_mapping(vertex):
        raise JobspecError(f"{path} must be a mapping", path=path)
    for key in ("type", "count"):
        if key not in vertex:
            raise JobspecError(f"{path}.{key} is a required key", path=f"{path}.{key}")
    if vertex["type"] not in types:
        raise JobspecError(f"{path}.type must be {' or '.join(types)}", path=f"{path}.type")
    if not is_int(vertex["count"]) or not 1 <= vertex["count"] <= COUNT_MAX:
        raise JobspecError(f"{path}.count must be an integer of at least 1", path=f"{path}.count")
    for key, value in vertex.items():
        at = f"{path}.{key}"
        if key in ("unit", "label"):
            if not isinstance(value, str):
                raise JobspecError(f"{at} must be a string", path=at)
        elif key == "exclusive" and vertex["type"] in ("node", "slot"):
            if not isinstance(value, bool):
                raise JobspecError(f"{at} must be true or false", path=at)
        elif key not in ("type", "count", "with"):
            raise JobspecError(f"Extraneous key ({at})", path=at)
    return vertex


def _check_with(vertex: dict[str, Any], path: str, length_max: int) -> list[object]:
    if "with" not in vertex:
        raise JobspecError(f"{path}.with is a required key", path=f"{path}.with")
    within = vertex["with"]
    if not isinstance(within, list) or not within:
        raise JobspecError(f"{path}.with must be a list of resources", path=f"{path}.with")
    if len(within) > length_max:
        at = f"{path}.with[{length_max}]"
        raise JobspecError(f"{path}.with has more than {length_max} element(s)", path=at)
    return within


def _check_tasks(tasks: object, label: str, nnodes: int, nslots: int) -> None:
    if not isinstance(tasks, list):
        raise JobspecError("tasks must be a list", path="tasks")
    if len(tasks) != 1:
        raise JobspecError("tasks must have exactly one element", path="tasks[1]" if tasks else "tasks")
    task = tasks[0]
    if not is_mapping(task):
        raise JobspecError("tasks[0] must be a mapping", path="tasks[0]")
    for key in ("command", "slot", "count"):
        if key not in task:
            raise JobspecError(f"tasks[0].{key} is a required key", path=f"tasks[0].{key}")
    for key in task:
        if key not in ("command", "slot", "count"):
            raise JobspecError(f"Extraneous key (tasks[0].{key})", path=f"tasks[0].{key}")
    command = task["command"]
    if not isinstance(command, list) or not command:
        raise JobspecError("tasks[0].command must be a list of strings, not empty", path="tasks[0].command")
    for index, word in enumerate(command):
        at = f"tasks[0].command[{index}]"
        if not isinstance(word, str):
            raise JobspecError(f"{at} must be a string", path=at)
        if "\0" in word or (index == 0 and not word):
            raise JobspecError(f"{at} must not {'hold a NUL' if word else 'be empty'}", path=at)
    if task["slot"] != label:
        raise JobspecError("tasks[0].slot must be the label of the slot in resources", path="tasks[0].slot")
    count = task["count"]
    if not is_mapping(count) or len(count) != 1:
        raise JobspecError("tasks[0].count must have one key, per_slot or total", path="tasks[0].count")
    for key, value in count.items():
        at = f"tasks[0].count.{key}"
        if key == "per_slot":
            if not is_int(value) or value != 1:
                raise JobspecError(f"{at} must be 1", path=at)
        elif key == "total":
            least = max(nnodes, 1)
            if not is_int(value) or not least <= value <= nslots:
                raise JobspecError(f"{at} must be an integer from {least} to {nslots}", path=at)
        else:
            raise JobspecError(f"Extraneous key ({at})", path=at)
