"""The kinds that a workload manager meets: groups, served versions, scopes, subresources and schemas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .schema import Schema, array, boolean, enum, integer, mapping, obj, string

DWS = "dataworkflowservices.github.io"
NNF = "nnf.cray.hpe.com"

STATES = ("Proposal", "Setup", "DataIn", "PreRun", "PostRun", "DataOut", "Teardown")


@dataclass(frozen=True)
class Kind:
    group: str
    #: served versions, the preferred (storage) one first
    versions: tuple[str, ...]
    kind: str
    plural: str
    schema: Schema = field(hash=False, compare=False)
    #: `status` is a subresource: the main resource ignores it, `/status` changes nothing else
    status: bool = False
    #: the group of Kubernetes itself takes strategic merge patches, custom resources do not
    core: bool = False
    namespaced: bool = True

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def full(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_health = (
    "Starting",
    "Ready",
    "Disabled",
    "NotPresent",
    "Offline",
    "Failed",
    "Degraded",
    "Drained",
    "Fenced",
    "Unknown",
)
_int_or_string: Schema = {"x-kubernetes-int-or-string": True}
_free: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_reference = {
    "type": "object",
    "properties": {
        k: string() for k in ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid")
    },
}
_error = obj(
    "debugMessage severity type",
    debugMessage=string(),
    userMessage=string(),
    severity=enum("Minor", "Major", "Fatal"),
    type=enum("Internal", "User", "WLM"),
)

_driver = obj(
    "completed driverID dwdIndex lastHB taskID watchState",
    completed=boolean(),
    completeTime=string(),
    driverID=string(),
    dwdIndex=integer(),
    error=string(),
    lastHB=integer(),
    message=string(),
    status=enum("Pending", "Queued", "Running", "Completed", "TransientCondition", "Error", "DriverWait"),
    taskID=string(),
    watchState=enum(*STATES),
)

_workflow = obj(
    spec=obj(
        "desiredState dwDirectives forceReady groupID jobID userID wlmID",
        desiredState=enum(*STATES),
        dwDirectives=array(string()),
        forceReady=boolean(default=False),
        groupID=integer(),
        hurry=boolean(default=False),
        jobID=_int_or_string,
        userID=integer(),
        wlmID=string(),
    ),
    status=obj(
        "ready",
        computes=_reference,
        desiredStateChange=string(),
        directiveBreakdowns=array(_reference),
        drivers=array(_driver),
        elapsedTimeLastState=string(),
        env=mapping(string()),
        message=string(),
        ready=boolean(),
        readyChange=string(),
        requires=array(string()),
        state=enum(*STATES),
        status=enum("Completed", "DriverWait", "TransientCondition", "Error"),
        workflowToken=obj("secretName secretNamespace", secretName=string(), secretNamespace=string()),
    ),
)

_allocation_set = obj(
    "allocationStrategy label minimumCapacity",
    allocationStrategy=enum("AllocatePerCompute", "AllocatePerServer", "AllocateAcrossServers", "AllocateSingleServer"),
    constraints=obj(
        colocation=array(obj("key type", key=string(), type=enum("exclusive"))),
        count=integer(minimum=1),
        labels=array(string()),
        scale=integer(minimum=1, maximum=10),
    ),
    label=enum("raw", "xfs", "gfs2", "mgt", "mdt", "mgtmdt", "ost"),
    minimumCapacity=integer(minimum=1),
)

_breakdown = obj(
    spec=obj("directive userID", directive=string(), userID=integer()),
    status=obj(
        "ready",
        compute=obj(
            constraints=obj(
                location=array(
                    obj(
                        "access reference",
                        access=array(
                            obj(
                                "priority type",
                                priority=enum("mandatory", "bestEffort"),
                                type=enum("physical", "network"),
                            )
                        ),
                        reference=_reference,
                    )
                )
            )
        ),
        error=_error,
        ready=boolean(),
        requires=array(string()),
        storage=obj(
            "lifetime", allocationSets=array(_allocation_set), lifetime=enum("job", "persistent"), reference=_reference
        ),
    ),
)

_servers = obj(
    spec=obj(
        allocationSets=array(
            obj(
                "allocationSize label storage",
                allocationSize=integer(minimum=1),
                label=string(),
                storage=array(obj("allocationCount name", allocationCount=integer(minimum=1), name=string())),
            )
        )
    ),
    status=obj(
        "ready",
        allocationSets=array(
            obj(
                "label storage",
                label=string(),
                storage=mapping(obj("allocationSize ready", allocationSize=integer(), ready=boolean())),
            )
        ),
        error=_error,
        lastUpdate=string(),
        ready=boolean(),
    ),
)

_device = obj(
    capacity=integer(),
    firmwareVersion=string(),
    model=string(),
    serialNumber=string(),
    slot=string(),
    status=enum(*_health),
    wearLevel=integer(),
)
_node = obj(name=string(), status=enum(*_health))
_storage = obj(
    spec={**obj(mode=enum("Live", "Testing", default="Live"), state=enum("Enabled", "Disabled", default="Enabled"))},
    status=obj(
        "capacity",
        access=obj(computes=array(_node), protocol=enum("PCIe"), servers=array(_node)),
        capacity=integer(default=0),
        devices=array(_device),
        message=string(),
        rebootRequired=boolean(),
        status=enum(*_health),
        type=enum("NVMe"),
    ),
)

_mount = obj(
    "device mountPath options setPermissions targetType type",
    compute=string(),
    device={
        "type": "object",
        "properties": {
            "type": enum("lustre", "lvm", "reference"),
            "lvm": _free,
            "lustre": _free,
            "deviceReference": _free,
        },
        "required": ["type"],
    },
    groupID=integer(),
    mountPath=string(),
    options=string(),
    setPermissions=boolean(),
    targetType=enum("file", "directory"),
    type=enum("lustre", "xfs", "gfs2", "none"),
    userID=integer(),
)
_clientmount = obj(
    spec=obj(
        "desiredState mounts node",
        desiredState=enum("mounted", "unmounted"),
        mounts=array(_mount, minItems=1),
        node=string(),
    ),
    status=obj(
        "allReady mounts",
        allReady=boolean(),
        error=_error,
        mounts=array(obj("ready state", ready=boolean(), state=enum("mounted", "unmounted"))),
    ),
)

_rule = obj(
    "command ruleDefs",
    command=string(),
    driverLabel=string(),
    watchStates=string(),
    ruleDefs=array(
        obj(
            "key type",
            isRequired=boolean(),
            isValueRequired=boolean(),
            key=string(),
            max=integer(),
            min=integer(),
            pattern=string(),
            patterns=array(string()),
            type=string(),
            uniqueWithin=string(),
        )
    ),
)

_psi = obj(
    spec=obj(
        "dwDirective fsType name state userID",
        consumerReferences=array(_reference),
        dwDirective=string(),
        fsType=enum("raw", "xfs", "gfs2", "lustre"),
        name=string(),
        state=enum("Active", "Destroying"),
        userID=integer(),
    ),
    status=obj("state", error=_error, servers=_reference, state=enum("Creating", "Active", "Destroying", "Degraded")),
)

_sysconf = obj(
    spec=obj(
        "portsCooldownInSeconds",
        externalComputeNodes=array(obj("name", name=string())),
        ports=array(_int_or_string),
        portsCooldownInSeconds=integer(default=60),
        storageNodes=array(
            obj(
                "name type",
                computesAccess=array(obj("index name", index=integer(), name=string())),
                name=string(),
                type=string(),
            )
        ),
    ),
    status=obj("ready", error=_error, ready=boolean()),
)

_movement = obj(
    spec=obj(
        cancel=boolean(default=False),
        source=obj(path=string(), storageReference=_reference),
        destination=obj(path=string(), storageReference=_reference),
        userId=integer(),
        groupId=integer(),
        profileReference=_reference,
    ),
    status=obj(
        state=enum("Starting", "Running", "Finished"),
        status=enum("Success", "Failed", "Invalid", "Cancelled"),
        message=string(),
        startTime=string(),
        endTime=string(),
        restarts=integer(),
        commandStatus=obj(
            command=string(),
            elapsedTime=string(),
            progress=integer(),
            lastMessage=string(),
            lastMessageTime=string(),
            seconds=string(),
            items=integer(),
            directories=integer(),
            files=integer(),
            links=integer(),
            data=string(),
            rate=string(),
        ),
    ),
)


def _dws(kind: str, schema: Schema, *, plural: str = "", status: bool = False) -> Kind:
    return Kind(DWS, ("v1alpha7", "v1alpha6"), kind, plural or kind.lower() + "s", schema, status=status)


KINDS: tuple[Kind, ...] = (
    _dws("Workflow", _workflow),
    _dws("DirectiveBreakdown", _breakdown, status=True),
    _dws("Servers", _servers, plural="servers", status=True),
    _dws("Computes", obj(data=array(obj("name", name=string()))), plural="computes"),
    _dws("Storage", _storage, status=True),
    _dws("ClientMount", _clientmount, status=True),
    _dws("SystemStatus", obj(data=obj(nodes=mapping(enum("Enabled", "Disabled")))), plural="systemstatuses"),
    _dws("SystemConfiguration", _sysconf, status=True),
    _dws("PersistentStorageInstance", _psi, status=True),
    _dws("DWDirectiveRule", obj(spec=array(_rule))),
    Kind(NNF, ("v1alpha11", "v1alpha10"), "NnfDataMovement", "nnfdatamovements", _movement, status=True),
    Kind("", ("v1",), "Secret", "secrets", obj(data=mapping(string()), type=string()), core=True),
    Kind("", ("v1",), "Pod", "pods", obj(spec=_free, status=_free), core=True, status=True),
)


def of_definition(definition: dict[str, Any]) -> Kind:
    """A kind out of a posted CustomResourceDefinition (apiextensions v1)."""
    spec = definition["spec"]
    served = [one for one in spec["versions"] if one.get("served")]
    stored = next(one for one in spec["versions"] if one.get("storage"))
    versions = tuple(sorted((one["name"] for one in served), key=lambda name: name != stored["name"]))
    schema = dict(stored["schema"]["openAPIV3Schema"])
    hidden = ("apiVersion", "kind", "metadata")
    schema["properties"] = {key: one for key, one in schema.get("properties", {}).items() if key not in hidden}
    names = spec["names"]
    return Kind(
        spec["group"],
        versions,
        names["kind"],
        names["plural"],
        schema,
        status="status" in (stored.get("subresources") or {}),
    )
