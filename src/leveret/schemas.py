"""JSON Schemas (2020-12) of what `--json` prints, by the name of the command. `leveret schema NAME` prints one, the API serves
them, docs/schema has them as files (tools/schemas.py). Keys may be added later; none that is here changes its meaning.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STR: Schema = {"type": "string"}
INT: Schema = {"type": "integer"}
NUM: Schema = {"type": "number"}
BOOL: Schema = {"type": "boolean"}
ANY: Schema = {"type": "object"}
TIME: Schema = {"type": "number", "description": "seconds since the epoch"}
SECONDS: Schema = {"type": "number", "description": "seconds"}


def null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def table(schema: Schema) -> Schema:
    """Any keys, values of one kind."""
    return {"type": "object", "additionalProperties": schema}


def obj(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


_STATES = ("NEW", "DEPEND", "PRIORITY", "SCHED", "RUN", "CLEANUP", "INACTIVE")
_RESULTS = ("COMPLETED", "FAILED", "CANCELED", "TIMEOUT")
_PROGRESS = null(obj({}, {"done": NUM, "total": NUM, "unit": STR, "note": STR}))
_HOLD = obj(
    {
        "kind": one_of("dependency", "prolog", "epilog", "part"),
        "name": STR,
        "owner": one_of("user", "site"),
        "since": TIME,
    },
    {
        "plugin": STR,
        "blocks": many(STR),
        "deadline": null(TIME),
        "progress": _PROGRESS,
        "note": STR,
        "loaded": BOOL,
        "uses": one_of("nodes", "storage", "none"),
        "lease_s": null(NUM),
        "lease_until": null(TIME),
        "overdue": BOOL,
        "id": INT,
        "f58": STR,
        "state": one_of(*_STATES),
    },
)
_TIMES = ("submit", "depend", "priority", "sched", "run", "cleanup", "inactive", "start", "finish")
JOB = obj(
    {
        "id": INT,
        "f58": STR,
        "jobid": STR,
        "userid": INT,
        "username": STR,
        "urgency": INT,
        "flags": INT,
        "state": one_of(*_STATES),
        "status": one_of(*_STATES, *_RESULTS),
        "done": BOOL,
        "phase": STR,
        "waiting_for": STR,
        "name": STR,
        "cwd": STR,
        "queue": STR,
        "bank": STR,
        "project": STR,
        "ntasks": INT,
        "duration": SECONDS,
        "expiration": TIME,
        "runtime": SECONDS,
        "t_submit": TIME,
        "dependencies": many(STR),
        "holds": many(_HOLD),
        "annotations": ANY,
        "exception": obj({"occurred": BOOL}, {"type": STR, "severity": INT, "note": STR}),
    },
    {
        "priority": INT,
        "result": one_of(*_RESULTS),
        "success": BOOL,
        "exit_code": INT,
        "returncode": INT,
        "waitstatus": INT,
        "cause": null(obj({"type": STR, "severity": INT, "note": STR})),
        "nnodes": INT,
        "ncores": INT,
        "ngpus": INT,
        "ranks": STR,
        "nodelist": STR,
        **{f"t_{name}": TIME for name in _TIMES},
    },
)
_COUNTS = obj({"nnodes": INT, "ncores": INT, "ngpus": INT})
_SIZES = obj({}, {"nnodes": INT, "ncores": INT, "ngpus": INT})
QUEUE = obj(
    {
        "name": STR,
        "default": BOOL,
        "enabled": BOOL,
        "disable_reason": STR,
        "started": BOOL,
        "stop_reason": STR,
        "requires": many(STR),
        "defaults": obj({"timelimit": null(SECONDS)}),
        "limits": obj({"timelimit": null(SECONDS), "min": _SIZES, "max": _SIZES}),
        "resources": obj(dict.fromkeys(("all", "free", "allocated", "up", "down"), _COUNTS)),
    }
)
_NODES = many(
    obj(
        {"state": STR, "nnodes": INT, "ncores": INT, "ngpus": INT, "ranks": STR, "nodelist": STR},
        {
            "online": BOOL,
            "properties": many(STR),
            "queues": many(STR),
            "queue": STR,
            "reason": STR,
            "timestamp": null(TIME),
            "user": STR,
            "userid": null(INT),
        },
    )
)
_PROBLEMS = many({})
_RABBIT = obj(
    {
        "name": STR,
        "status": STR,
        "enabled": BOOL,
        "capacity_bytes": INT,
        "allocated_bytes": INT,
        "external_bytes": INT,
        "computes": table(STR),
        "message": STR,
    }
)
_MOVEMENT = obj(
    {
        "name": STR,
        "directive": INT,
        "source": STR,
        "destination": STR,
        "state": STR,
        "status": STR,
        "message": STR,
        "bytes_done": INT,
        "bytes_total": INT,
        "files_done": INT,
        "files_total": INT,
        "t_start": TIME,
        "t_end": TIME,
        "restarts": INT,
        "command": STR,
    }
)
_WORKFLOW = obj(
    {
        "jobid": INT,
        "name": STR,
        "uid": STR,
        "desired": STR,
        "state": STR,
        "ready": BOOL,
        "status": STR,
        "message": STR,
        "hurry": BOOL,
        "directives": many(STR),
        "timings": table(STR),
        "computes": many(STR),
        "mounts": table(BOOL),
        "allocated": table(INT),
        "unallocated": many(STR),
        "deleting": BOOL,
        "movements": many(_MOVEMENT),
    }
)
_TIDIED = obj({"nnodes": INT, "ranks": STR, "nodelist": STR})

#: command → what its `--json` prints
SCHEMAS: dict[str, Schema] = {
    "jobs": {"anyOf": [obj({"jobs": many(JOB)}), JOB]},
    "job status": obj(
        {"id": INT, "exception_occurred": BOOL, "t_submit": TIME},
        {
            "exception_type": STR,
            "exception_severity": INT,
            "exception_note": STR,
            "t_run": TIME,
            "t_cleanup": TIME,
            "waitstatus": INT,
            "result": INT,
        },
    ),
    "job parts": obj(
        {
            "items": many(
                obj(
                    {
                        "part": STR,
                        "source": STR,
                        "destination": STR,
                        "status": STR,
                        "attempts": INT,
                        "allowed": INT,
                        "bytes": null(NUM),
                        "duration_s": SECONDS,
                        "error": STR,
                        "wait_status": INT,
                    }
                )
            )
        }
    ),
    "housekeeping list": obj(
        {"jobs": many(obj({"id": INT, "t_start": TIME, "allocated": _TIDIED, "pending": _TIDIED}))}
    ),
    "job holds": obj({"holds": many(_HOLD)}),
    "job quarantine list": many(
        obj(
            {"id": INT, "f58": STR, "why": STR},
            {"events": INT, "userid": null(INT), "t_submit": null(TIME), "resources": {}, "tasks": {}},
        )
    ),
    "explain": obj(
        {
            "jobs": many(
                obj(
                    {
                        "id": INT,
                        "state": one_of(*_STATES),
                        "reasons": many(
                            {
                                "type": "object",
                                "required": ["kind", "text"],
                                "properties": {"kind": STR, "text": STR},
                                "additionalProperties": True,
                            }
                        ),
                        "estimate": null(TIME),
                        "note": STR,
                    },
                    {"position": INT, "waiting": INT},
                )
            )
        }
    ),
    "reservation list": obj(
        {
            "reservations": many(
                obj(
                    {
                        "name": STR,
                        "start": TIME,
                        "end": TIME,
                        "ranks": STR,
                        "nnodes": INT,
                        "users": many({}),
                        "state": STR,
                    },
                    {"busy": STR, "nodelist": STR},
                )
            )
        }
    ),
    "eventlog check": many(
        obj({"file": STR, "kind": STR, "events": INT, "problems": _PROBLEMS}, {"state": null(STR), "result": null(STR)})
    ),
    "rabbit list": obj(
        {"adapter": STR, "synced": BOOL, "trouble": STR, "rabbits": many(_RABBIT)},
    ),
    "rabbit status": obj({"workflows": many(_WORKFLOW)}),
    "rabbit persistent": obj(
        {
            "persistent": many(
                obj(
                    {
                        "name": STR,
                        "type": STR,
                        "userid": INT,
                        "state": STR,
                        "capacity_bytes": INT,
                        "consumers": many(STR),
                        "directive": STR,
                    }
                )
            )
        }
    ),
    "getrabbit": many(STR),
    "queue list": obj({"queues": many(QUEUE)}),
    "queue status": obj({"queues": many(QUEUE), "alloc_queued": INT, "alloc_pending": INT, "running": INT}),
    "status": obj(
        {
            "pid": INT,
            "helpers": many(obj({"pid": null(INT), "node": INT, "host": STR, "connected": BOOL})),
            "uri": STR,
            "state_dir": STR,
            "version": STR,
            "protocol": INT,
            "started": TIME,
            "jobs": obj(dict.fromkeys(_STATES, INT)),
        },
        {"quarantined": INT},
    ),
    "dump": obj({"path": STR, "bytes": INT, "files": INT, "missing": many(STR)}),
    "restore": obj({"state_dir": STR, "files": INT, "jobs": INT, "running": {}}),
    "fsck": obj(
        {"state_dir": STR, "jobs": INT, "problems": _PROBLEMS},
        {"schema": INT, "in_use": BOOL, "repaired": many({}), "left": {}},
    ),
    "jobtap list": obj({"plugins": many(obj({"name": STR, "path": STR, "builtin": BOOL, "holds": INT}))}),
    "resource list": _NODES,
    "resource status": _NODES,
    "resource drain": _NODES,
    "demo": obj(
        {"job": ANY, "events": many(ANY), "results": {}, "directory": STR},
        {"timings": {"type": "object", "description": "with --rabbit: state of the storage → how long it took"}},
    ),
    "version": obj({"client": STR, "daemon": null(STR)}),
}


def schema(name: str) -> Schema | None:
    """The published schema of a command; None: it has none."""
    found = SCHEMAS.get(name)
    if found is None:
        return None
    title = f"leveret {name} --json"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **found}


def file_name(name: str) -> str:
    return name.replace(" ", "-") + ".json"
