"""A job is a fold of its eventlog: `apply_event(job, event) -> job`, and nothing else changes one.

The same function serves live, on replay, in the CLI and in tests. Strict (posting): an event that
RFC 21 or DESIGN forbids raises EventError and nothing has changed. Lenient (replay): it is kept,
counted in `anomalies`, and moves nothing, except that `clean` always ends a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from leveret.core.event import Event, check_context
from leveret.core.transitions import (
    CLEANUP,
    FATAL,
    INACTIVE,
    LEGAL,
    NEW,
    PRIORITY,
    SCHED,
    TRANSITIONS,
    State,
)
from leveret.errors import EventError

FLAG_DEBUG, FLAG_WAITABLE, FLAG_NOVALIDATE = 2, 4, 8
#: set by `set-flags` alone: the instance owner has lifted a limit for the job, its user may not update it any more
FLAG_IMMUTABLE = 32
FLAGS = {"debug": FLAG_DEBUG, "waitable": FLAG_WAITABLE, "novalidate": FLAG_NOVALIDATE}

#: what a cancel means for a job's data and parts: keep it (the default); end what moves data; kill tasks and end
#: every part of the user at once. A site's cleanup runs in any case.
INTENTS = ("keep", "discard", "force")

#: kind of hold → what it keeps the job from (DESIGN section 2); a part says so itself
BLOCKS: dict[str, tuple[str, ...]] = {
    "dependency": ("depend",),
    "prolog": ("start", "free", "clean"),
    "epilog": ("free", "clean"),
    "part": ("clean",),
}
OPENERS = {"dependency-add": "dependency", "prolog-start": "prolog", "epilog-start": "epilog", "part-start": "part"}
CLOSERS = {
    "dependency-remove": "dependency",
    "prolog-finish": "prolog",
    "epilog-finish": "epilog",
    "part-finish": "part",
}
OPEN_EVENT = {kind: name for name, kind in OPENERS.items()}
CLOSE_EVENT = {kind: name for name, kind in CLOSERS.items()}


class AlreadyOpen(EventError):
    """Starting a hold that is open: harmless, and changes nothing."""


class Hold(msgspec.Struct, frozen=True):
    """A named reason why a job may not take its next step."""

    kind: str  #: dependency, prolog, epilog or part
    name: str  #: the RFC's `description`; used once per job and kind
    since: float  #: seconds since the epoch
    owner: str  #: `user`: its failure is the job's; `site`: its failure is a warning
    blocks: tuple[str, ...]  #: of depend, start, free, clean
    uses: str = "none"  #: nodes, storage or none
    deadline: float | None = None  #: absolute, seconds since the epoch
    role: str = ""  #: of a part: `data` moves data; `auxiliary` only goes with the others and ends when they have ended

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"


class Cause(msgspec.Struct, frozen=True):
    """An exception event's essence."""

    type: str
    severity: int
    note: str
    userid: int | None = None
    timestamp: float = 0.0
    wait_status: int | None = None  #: what the tasks' status is because of it, where it says so


class Job(msgspec.Struct, frozen=True):
    """Everything the eventlog says about a job."""

    id: int
    state: State = NEW
    userid: int = -1
    urgency: int = 16
    flags: int = 0
    priority: int | None = None  #: None until the first `priority` event
    holds: dict[str, Hold] = {}  #: open holds by key, in the order in which they were opened
    closed: dict[str, int] = {}  #: keys of holds that have been closed → status
    fatal: Cause | None = None  #: the first severity-0 exception: the cause of the verdict
    worst: Cause | None = None  #: the most severe exception, the first among equals
    exceptions: int = 0  #: how many exception events there are
    allocated: bool = False  #: `alloc` was logged
    started: bool = False  #: `start` was logged; once per job, ever
    status: int | None = None  #: `finish` status (wait status), None without a finish
    released: bool = False  #: the final `release` was logged
    freed: bool = False  #: `free` was logged; only after `allocated`
    annotations: dict[str, Any] = {}
    updates: dict[str, Any] = {}  #: jobspec-update, by dotted key
    intent: str = ""  #: of the farthest `cancel`: keep, discard or force (see INTENTS)
    expiration: float = 0.0  #: resource-update; seconds since the epoch, 0 = none
    t_submit: float = 0.0
    t_depend: float = 0.0
    t_priority: float = 0.0
    t_sched: float = 0.0
    t_run: float = 0.0
    t_cleanup: float = 0.0
    t_inactive: float = 0.0
    t_start: float = 0.0
    t_finish: float = 0.0
    t_last: float = 0.0  #: timestamp of the last event; timestamps never decrease within a job
    n: int = 0  #: events so far
    failed_parts: dict[
        str, str
    ] = {}  #: user parts that failed while tasks ran: name → note; they take effect at `finish`
    anomalies: int = 0  #: illegal events met on replay

    @property
    def done(self) -> bool:
        return self.state is INACTIVE

    @property
    def immutable(self) -> bool:
        return bool(self.flags & FLAG_IMMUTABLE)

    def ended_by(self, intent: str) -> list[Hold]:
        """The open parts of the user that a cancel with this intent ends."""
        parts = [hold for hold in self.holds.values() if hold.kind == "part" and hold.owner == "user"]
        if intent == "discard":
            return [hold for hold in parts if hold.role == "data" or hold.uses == "storage"]
        return parts if intent == "force" else []

    def blocked(self, step: str) -> list[Hold]:
        """The open holds that keep the job from `step`, in the order in which they were opened."""
        return [hold for hold in self.holds.values() if step in hold.blocks]


_TIMES = {
    State.DEPEND: "t_depend",
    State.PRIORITY: "t_priority",
    State.SCHED: "t_sched",
    State.RUN: "t_run",
    State.CLEANUP: "t_cleanup",
    State.INACTIVE: "t_inactive",
}

Change = dict[str, Any]


def _open(job: Job, event: Event) -> Change:
    kind = OPENERS[event.name]
    name = str(event.get("description"))
    key = f"{kind}/{name}"
    if key in job.holds:
        raise AlreadyOpen(f"{event.name}: {kind} `{name}` is open already")
    if key in job.closed:
        raise EventError(f"{event.name}: {kind} `{name}` was closed already", "a name is used once per job")
    if kind == "prolog" and job.started:
        raise EventError(f"{event.name}: the job has started already")
    blocks = BLOCKS[kind]
    uses = "none"
    if kind == "part":
        uses = event.get("uses", "none")
        wanted = {"clean", *event.get("blocks", ())}
        if uses == "nodes":
            wanted.add("free")
        if "start" in wanted:
            # nothing is taken from under a part that is still preparing the nodes
            wanted.add("free")
        blocks = tuple(step for step in ("start", "free", "clean") if step in wanted)
    owner = event.get("owner") or ("user" if kind == "part" else "site")
    hold = Hold(kind, name, event.timestamp, owner, blocks, uses, event.get("deadline"), event.get("role", ""))
    return {"holds": {**job.holds, key: hold}}


def _close(job: Job, event: Event) -> Change:
    kind = CLOSERS[event.name]
    name = str(event.get("description"))
    key = f"{kind}/{name}"
    if key not in job.holds:
        what = "was closed already" if key in job.closed else "is not open"
        raise EventError(f"{event.name}: {kind} `{name}` {what}", "open: " + (", ".join(job.holds) or "none"))
    hold = job.holds[key]
    status = int(event.get("status", 0))
    change: Change = {
        "holds": {k: v for k, v in job.holds.items() if k != key},
        "closed": {**job.closed, key: status},
    }
    user = hold.owner == "user" and hold.role != "auxiliary"
    if status and kind == "part" and user and job.started and job.status is None and job.fatal is None:
        change["failed_parts"] = {**job.failed_parts, name: str(event.get("note", ""))}
    return change


def _submit(job: Job, event: Event) -> Change:
    if job.n:
        raise EventError("submit: must be the first event")
    return {
        "userid": event.get("userid", -1),
        "urgency": event.get("urgency", 16),
        "flags": event.get("flags", 0),
        "t_submit": event.timestamp,
    }


def _invalidate(job: Job, event: Event) -> Change:
    return {"holds": {}} if job.holds else {}


def _depend(job: Job, event: Event) -> Change:
    if holds := job.blocked("depend"):
        raise EventError(f"depend: held by {', '.join(h.name for h in holds)}")
    return {}


def _priority(job: Job, event: Event) -> Change:
    return {"priority": event.get("priority", 0)}


def _urgency(job: Job, event: Event) -> Change:
    return {"urgency": event.get("urgency", 16)}


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """RFC 21 memo rule: new keys replace, null removes; objects are merged."""
    out = dict(old)
    for key, value in new.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merge(out[key], value)
        else:
            out[key] = value
    return out


def _alloc(job: Job, event: Event) -> Change:
    if job.allocated:
        raise EventError("alloc: the job has resources already")
    annotations = event.get("annotations")
    change: Change = {"allocated": True}
    if isinstance(annotations, dict):
        change["annotations"] = merge(job.annotations, annotations)
    return change


def _start(job: Job, event: Event) -> Change:
    if job.started:
        raise EventError("start: the job was started already", "a job starts once, ever")
    if not job.allocated or job.freed:
        raise EventError("start: the job has no resources")
    if job.state is State.RUN and (holds := job.blocked("start")):
        raise EventError(f"start: held by {', '.join(h.name for h in holds)}")
    return {"started": True, "t_start": event.timestamp}


def _finish(job: Job, event: Event) -> Change:
    if not job.started:
        raise EventError("finish: the job was not started")
    if job.status is not None:
        raise EventError("finish: the job has finished already")
    return {"status": event.get("status", 0), "t_finish": event.timestamp}


def _release(job: Job, event: Event) -> Change:
    if not job.allocated or job.freed:
        raise EventError("release: the job has no resources")
    if job.released:
        raise EventError("release: the final release was logged already")
    if event.get("final") and job.started and job.status is None:
        raise EventError("release: the tasks have not finished")
    return {"released": bool(event.get("final"))}


def _free(job: Job, event: Event) -> Change:
    if not job.allocated or job.freed:
        raise EventError("free: the job has no resources")
    if job.started and job.status is None:
        raise EventError("free: the tasks have not finished")
    if holds := job.blocked("free"):
        raise EventError(f"free: held by {', '.join(h.key for h in holds)}")
    return {"freed": True}


def _clean(job: Job, event: Event) -> Change:
    if job.allocated and not job.freed:
        raise EventError("clean: the resources are not free")
    if holds := job.blocked("clean"):
        raise EventError(f"clean: held by {', '.join(h.key for h in holds)}")
    return {"holds": {}} if job.holds else {}


def _exception(job: Job, event: Event) -> Change:
    cause = Cause(
        str(event.get("type", "")),
        int(event.get("severity", 0)),
        str(event.get("note", "")),
        event.get("userid"),
        event.timestamp,
        status if type(status := event.get("wait_status")) is int else None,
    )
    change: Change = {"exceptions": job.exceptions + 1}
    if job.worst is None or cause.severity < job.worst.severity:
        change["worst"] = cause
    if cause.type == "cancel" and cause.severity == 0:
        intent = event.get("intent")
        intent = intent if intent in INTENTS else "keep"
        if not job.intent or INTENTS.index(intent) > INTENTS.index(job.intent):
            change["intent"] = intent
    if cause.severity == 0 and job.fatal is None:
        change["fatal"] = cause
        if job.failed_parts:
            change["failed_parts"] = {}
    return change


def _memo(job: Job, event: Event) -> Change:
    old = job.annotations.get("user")
    user = merge(old if isinstance(old, dict) else {}, event.context or {})
    annotations = {**job.annotations, "user": user}
    if not user:
        del annotations["user"]
    return {"annotations": annotations}


def _jobspec_update(job: Job, event: Event) -> Change:
    return {"updates": {**job.updates, **(event.context or {})}}


def _resource_update(job: Job, event: Event) -> Change:
    if not job.allocated or job.freed:
        raise EventError("resource-update: the job has no resources")
    return {"expiration": float(event.get("expiration", job.expiration))}


def _set_flags(job: Job, event: Event) -> Change:
    flags = job.flags
    for name in event.get("flags", ()):
        flags |= FLAG_IMMUTABLE if name == "immutable" else FLAGS.get(name, 0)
    return {"flags": flags}


_EFFECTS: dict[str, Callable[[Job, Event], Change]] = {
    "submit": _submit,
    "set-flags": _set_flags,
    **dict.fromkeys(OPENERS, _open),
    **dict.fromkeys(CLOSERS, _close),
    "invalidate": _invalidate,
    "depend": _depend,
    "priority": _priority,
    "urgency": _urgency,
    "alloc": _alloc,
    "start": _start,
    "finish": _finish,
    "release": _release,
    "free": _free,
    "clean": _clean,
    "exception": _exception,
    "memo": _memo,
    "jobspec-update": _jobspec_update,
    "resource-update": _resource_update,
}


def apply_event(job: Job, event: Event, *, strict: bool = True) -> Job:
    """The job after one more event.

    Raises EventError (strict) when the event is illegal here; `job` itself never changes.
    """
    name = event.name
    try:
        change = _checked(job, event)
    except EventError:
        if strict:
            raise
        if name != "clean" or job.state is INACTIVE:
            return replace(job, n=job.n + 1, anomalies=job.anomalies + 1, t_last=max(job.t_last, event.timestamp))
        # real logs hold a `clean` under an open hold: it ends the job all the same
        change = {"anomalies": job.anomalies + 1, "state": INACTIVE, "t_inactive": event.timestamp, "holds": {}}
    change["n"] = job.n + 1
    change["t_last"] = event.timestamp
    return replace(job, **change)


def _checked(job: Job, event: Event) -> Change:
    name = event.name
    state = job.state
    if state is INACTIVE:
        raise EventError(f"{name}: the job is inactive")
    if job.n == 0 and name != "submit":
        raise EventError(f"{name}: the first event must be submit")
    if event.timestamp < job.t_last:
        raise EventError(f"{name}: timestamps must not decrease")
    legal = LEGAL.get(name)
    if legal is not None and state not in legal:
        raise EventError(f"{name}: not possible in state {state.name}")
    check_context(name, event.context)
    effect = _EFFECTS.get(name)
    change = effect(job, event) if effect is not None else {}
    fatal = name == "exception" and event.get("severity") == 0
    target = TRANSITIONS.get((state, FATAL if fatal else name))
    if target is not None and target is not state:
        change["state"] = target
        change[_TIMES[target]] = event.timestamp
    return change


def replay(jobid: int, events: Iterable[Event]) -> Job:
    """The job that a whole eventlog describes (lenient)."""
    job = Job(jobid)
    for event in events:
        job = apply_event(job, event, strict=False)
    return job


def violations(events: Iterable[Event]) -> list[str]:
    """What in a log breaks RFC 21 or the holds' contract: `N: message` for each event, N from 1."""
    job = Job(0)
    found: list[str] = []
    for number, event in enumerate(events, 1):
        try:
            apply_event(job, event)
        except AlreadyOpen:
            pass
        except EventError as error:
            found.append(f"{number}: {error.message}")
        job = apply_event(job, event, strict=False)
    return found


__all__ = ["CLEANUP", "PRIORITY", "SCHED", "AlreadyOpen", "Cause", "Hold", "Job", "apply_event", "replay", "violations"]
