"""DWS objects and what they mean: request bodies out, views in. Pure.

Names and labels are those that DWS and Flux use, so that sites' tools find what they know: Workflow and Computes
`fluxjob-<decimal id>`, the finalizer that keeps a Workflow until its Teardown was seen, `wlmID: flux`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from leveret.core.jobid import encode
from leveret.storage.port import (
    DRIVER_WAIT,
    PROPOSAL,
    STATES,
    AllocationSet,
    Breakdown,
    Location,
    Movement,
    Persistent,
    Rabbit,
    Request,
)

GROUP = "dataworkflowservices.github.io"
NNF_GROUP = "nnf.cray.hpe.com"
#: versions that are known here, newest first
VERSIONS = ("v1alpha7", "v1alpha6")
NNF_VERSIONS = ("v1alpha11", "v1alpha10", "v1alpha9", "v1alpha8")
FINALIZER = "flux-framework.readthedocs.io/workflow"
WORKFLOW_LABEL = f"{GROUP}/workflow.name"
#: which instance made a Workflow: others' are never touched
INSTANCE_LABEL = "leveret/instance"
_NAME = re.compile(r"^fluxjob-(\d+)$")
_PERSISTENT = f"{GROUP}/persistentstorage.name"
_FIELD = re.compile(r"allocationSets\[(\d+)\]")

Object = Mapping[str, Any]


def name_of(jobid: int) -> str:
    return f"fluxjob-{jobid}"


def jobid_of(name: str) -> int | None:
    found = _NAME.match(name)
    return int(found[1]) if found else None


def metadata(one: Object) -> Mapping[str, Any]:
    return one.get("metadata") or {}


def labels(one: Object) -> Mapping[str, str]:
    return metadata(one).get("labels") or {}


def owner_jobid(one: Object) -> int | None:
    """The job that an object was made for, by its label or its name."""
    return jobid_of(labels(one).get(WORKFLOW_LABEL) or str(metadata(one).get("name") or ""))


# ---- requests ------------------------------------------------------------------------------------------


def workflow(request: Request, instance: str) -> dict[str, Any]:
    """The body that makes a job's Workflow."""
    marks = {INSTANCE_LABEL: instance} if instance else {}
    return {
        "kind": "Workflow",
        "metadata": {"name": name_of(request.jobid), "finalizers": [FINALIZER], "labels": marks},
        "spec": {
            "desiredState": PROPOSAL,
            "dwDirectives": list(request.directives),
            "jobID": encode(request.jobid, ascii=True),
            "userID": request.userid,
            "groupID": request.groupid,
            "wlmID": "flux",
            "forceReady": False,
        },
    }


def same(one: Object, request: Request, instance: str) -> bool:
    """Whether a Workflow that is there already is the one that was asked for."""
    spec = one.get("spec") or {}
    return (
        list(spec.get("dwDirectives") or []) == list(request.directives)
        and spec.get("userID") == request.userid
        and labels(one).get(INSTANCE_LABEL, "") == instance
    )


def desire(state: str, hurry: bool = False) -> dict[str, Any]:
    return {"spec": {"desiredState": state} | ({"hurry": True} if hurry else {})}


def without_finalizer(one: Object) -> dict[str, Any] | None:
    """The patch that lets go of an object, or None when we do not hold it. It names the version that it was made from: of a
    stale list it would add finalizers back, which is refused while an object is deleted."""
    have = metadata(one).get("finalizers") or []
    if FINALIZER not in have:
        return None
    rest = [each for each in have if each != FINALIZER]
    return {"metadata": {"finalizers": rest, "resourceVersion": metadata(one).get("resourceVersion")}}


def computes(hosts: Sequence[str]) -> dict[str, Any]:
    return {"data": [{"name": host} for host in hosts]}


def disable(reason: str, date: str) -> dict[str, Any]:
    """The patch that takes a rabbit out of service."""
    return {
        "metadata": {"annotations": {"disable_reason": reason, "disable_date": date}},
        "spec": {"state": "Disabled"},
    }


def denial(message: str) -> str:
    """A refusal's text without the webhook's own prefix."""
    return message.partition("denied the request: ")[2] or message


def by_webhook(message: str) -> bool:
    return message.startswith("admission webhook")


# ---- views ---------------------------------------------------------------------------------------------


def breakdown(one: Object) -> Breakdown:
    """Of a DirectiveBreakdown that is ready."""
    status = one.get("status") or {}
    storage = status.get("storage") or {}
    located = ((status.get("compute") or {}).get("constraints") or {}).get("location") or []
    return Breakdown(
        directive_index(one),
        str(storage.get("lifetime") or "persistent"),
        tuple(_allocation_set(each) for each in storage.get("allocationSets") or []),
        tuple(_location(each) for each in located),
    )


def directive_index(one: Object) -> int:
    """Which directive an object belongs to: by label, else by its name `<workflow>-<index>`."""
    said = labels(one).get(f"{NNF_GROUP}/directive_index") or str(metadata(one).get("name") or "").rpartition("-")[2]
    return int(said) if said.isdigit() else 0


def _allocation_set(one: Mapping[str, Any]) -> AllocationSet:
    constraints = one.get("constraints") or {}
    return AllocationSet(
        str(one.get("label") or ""),
        str(one.get("allocationStrategy") or ""),
        int(one.get("minimumCapacity") or 0),
        tuple(constraints.get("labels") or ()),
        int(constraints.get("scale") or 0),
        int(constraints.get("count") or 0),
        tuple((str(each.get("type")), str(each.get("key"))) for each in constraints.get("colocation") or ()),
    )


def _location(one: Mapping[str, Any]) -> Location:
    index = _FIELD.search(str((one.get("reference") or {}).get("fieldPath") or ""))
    access = tuple((str(each.get("type")), str(each.get("priority"))) for each in one.get("access") or ())
    return Location(int(index[1]) if index else 0, access)


def servers_name(one: Object) -> str:
    """The Servers object that a breakdown refers to; empty when its storage is there already."""
    reference = ((one.get("status") or {}).get("storage") or {}).get("reference") or {}
    return str(reference.get("name") or "")


def allocated(servers: Iterable[Object]) -> tuple[dict[str, int], list[str]]:
    """(rabbit → bytes, rabbits whose allocations are not ready), over all Servers given."""
    total: dict[str, int] = {}
    late: list[str] = []
    for one in servers:
        for each in (one.get("status") or {}).get("allocationSets") or []:
            for rabbit, size in (each.get("storage") or {}).items():
                total[rabbit] = total.get(rabbit, 0) + int(size.get("allocationSize") or 0)
                if not size.get("ready") and rabbit not in late:
                    late.append(rabbit)
    return total, late


def mounts(clientmounts: Iterable[Object], hosts: Sequence[str]) -> dict[str, bool]:
    """Compute → whether all its mounts are there; empty while none was asked for."""
    found: dict[str, bool] = {}
    for one in clientmounts:
        if not str(metadata(one).get("name") or "").endswith("-computes"):
            continue
        spec, status = one.get("spec") or {}, one.get("status") or {}
        node = str(spec.get("node") or metadata(one).get("namespace") or "")
        states = [each.get("state") == "mounted" and bool(each.get("ready")) for each in status.get("mounts") or []]
        wanted = spec.get("desiredState") == "mounted"
        # an unmount that is not through still is a mount
        there = bool(states) and all(states) if wanted else not status.get("allReady", False)
        found[node] = found.get(node, True) and there
    return (dict.fromkeys(hosts, False) | found) if found else {}


def environment(status: Mapping[str, Any]) -> dict[str, str]:
    """`DW_PERSISTENT_` with nothing after it is a slip of NNF's and no variable of a job."""
    return {key: str(value) for key, value in (status.get("env") or {}).items() if not key.endswith("_")}


def state_of(status: Mapping[str, Any]) -> tuple[str, str]:
    """(state, status) with words that are not known left out."""
    state = str(status.get("state") or "")
    return state if state in STATES else "", str(status.get("status") or DRIVER_WAIT)


_SIZE = re.compile(r"^\s*([0-9.]+)\s*([KMGTPE]?)(i?)B?\s*$", re.IGNORECASE)


def size_bytes(text: str) -> int:
    """`1.000 KiB`, as a movement's progress has it; 0 when it is not a size."""
    found = _SIZE.match(text)
    if found is None:
        return 0
    power = " KMGTPE".index(found[2].upper() or " ")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def when(text: str) -> float:
    """A timestamp of Kubernetes in seconds since the epoch, 0 when there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def movement(one: Object) -> Movement:
    """Of an NnfDataMovement. Its progress is a percentage: what is to do in all is reckoned from that."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    command = status.get("commandStatus") or {}
    share, done = int(command.get("progress") or 0), size_bytes(str(command.get("data") or ""))
    files = int(command.get("files") or 0)
    return Movement(
        name=str(metadata(one).get("name") or ""),
        directive=directive_index(one),
        source=str((spec.get("source") or {}).get("path") or ""),
        destination=str((spec.get("destination") or {}).get("path") or ""),
        state=str(status.get("state") or "Starting"),
        status=str(status.get("status") or ""),
        message=str(status.get("message") or ""),
        bytes_done=done,
        bytes_total=done * 100 // share if share else 0,
        files_done=files,
        files_total=files if share == 100 else 0,
        t_start=when(str(status.get("startTime") or "")),
        t_end=when(str(status.get("endTime") or "")),
        restarts=int(status.get("restarts") or 0),
        command=str(command.get("command") or ""),
    )


def rabbit(storage: Object, configured: Sequence[str], used_bytes: int) -> Rabbit:
    """Of a Storage; `configured` are its computes by SystemConfiguration, which says more than a rabbit that is down."""
    status = storage.get("status") or {}
    seen = {
        str(one.get("name")): str(one.get("status") or "Unknown")
        for one in (status.get("access") or {}).get("computes") or []
    }
    known = {host: seen.get(host, "Unknown") for host in configured} if configured else seen
    enabled = (storage.get("spec") or {}).get("state", "Enabled") == "Enabled"
    return Rabbit(
        name=str(metadata(storage).get("name") or ""),
        status=str(status.get("status") or "Starting"),
        enabled=enabled,
        capacity_bytes=int(status.get("capacity") or 0),
        allocated_bytes=used_bytes,
        computes=known,
        message=str(status.get("message") or metadata(storage).get("annotations", {}).get("disable_reason") or ""),
    )


def configured_computes(configuration: Object | None) -> dict[str, list[str]]:
    """Rabbit → its computes, by SystemConfiguration, in order of their index."""
    found: dict[str, list[str]] = {}
    for one in ((configuration or {}).get("spec") or {}).get("storageNodes") or []:
        access = sorted(one.get("computesAccess") or [], key=lambda each: int(each.get("index") or 0))
        found[str(one.get("name"))] = [str(each.get("name")) for each in access]
    return found


def persistent(one: Object, servers: Object | None) -> Persistent:
    spec, status = one.get("spec") or {}, one.get("status") or {}
    size, _ = allocated([servers] if servers else [])
    return Persistent(
        name=str(metadata(one).get("name") or ""),
        type=str(spec.get("fsType") or ""),
        userid=int(spec.get("userID") or 0),
        state=str(status.get("state") or "Creating"),
        capacity_bytes=sum(size.values()),
        consumers=tuple(str(each.get("name")) for each in spec.get("consumerReferences") or ()),
        directive=str(spec.get("dwDirective") or ""),
    )
