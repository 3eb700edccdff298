"""Jobs at every place of their life, made by posting plain events (for tests of the pure core)."""

from __future__ import annotations

from typing import Any

from leveret.core.event import Event
from leveret.core.job import Job, apply_event

SUBMIT = ("submit", {"userid": 7, "urgency": 16, "flags": 0, "version": 1})
PRIORITY = ("priority", {"priority": 16})
FATAL = ("exception", {"type": "cancel", "severity": 0, "note": ""})
WARNING = ("exception", {"type": "note", "severity": 3, "note": "careful"})
FINISH = ("finish", {"status": 0})
RELEASE = ("release", {"ranks": "all", "final": True})

Step = "str | tuple[str, dict[str, Any] | None]"

NEW = [SUBMIT]
DEPEND = [*NEW, "validate"]
IN_PRIORITY = [*DEPEND, "depend"]
SCHED = [*IN_PRIORITY, PRIORITY]
RUN = [*SCHED, "alloc"]
STARTED = [*RUN, "start"]
FINISHED = [*STARTED, FINISH]
DONE = [*FINISHED, RELEASE, "free", "clean"]


def events(steps: list[Any], at: float = 100.0) -> list[Event]:
    """One event a second."""
    return [
        Event(at + number, step) if isinstance(step, str) else Event(at + number, step[0], step[1])
        for number, step in enumerate(steps)
    ]


def job(steps: list[Any]) -> Job:
    """The job that has seen these events (posted strictly)."""
    found = Job(1)
    for event in events(steps):
        found = apply_event(found, event)
    return found


def post(before: Job, name: str, context: dict[str, Any] | None = None) -> Job:
    return apply_event(before, Event(before.t_last + 1, name, context))


def hold(kind: str, name: str = "x", **more: Any) -> tuple[str, dict[str, Any]]:
    """The event that opens a hold."""
    return ("dependency-add" if kind == "dependency" else f"{kind}-start"), {"description": name, **more}


def unhold(kind: str, name: str = "x", status: int = 0) -> tuple[str, dict[str, Any]]:
    """The event that closes it."""
    if kind == "dependency":
        return "dependency-remove", {"description": name}
    return f"{kind}-finish", {"description": name, "status": status}
