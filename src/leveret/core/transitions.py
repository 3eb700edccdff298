"""The state machine of RFC 21 as a table, and the diagram drawn from it.

`TRANSITIONS[(state, event)]` is the next state. An event that is legal in a state but does not
move it is in `LEGAL` only. What else must hold (no open hold, `finish` before `free` …) is in
`job.py` beside the effect.
"""

from __future__ import annotations

import enum


class State(enum.IntEnum):
    """RFC 21 states; the numbers are Flux's, so that third-party JSON readers agree."""

    NEW = 1
    DEPEND = 2
    PRIORITY = 4
    SCHED = 8
    RUN = 16
    CLEANUP = 32
    INACTIVE = 64


NEW, DEPEND, PRIORITY, SCHED, RUN, CLEANUP, INACTIVE = State

#: RFC 21 virtual states
PENDING = (DEPEND, PRIORITY, SCHED)
RUNNING = (RUN, CLEANUP)
ACTIVE = (NEW, DEPEND, PRIORITY, SCHED, RUN, CLEANUP)
BEFORE_CLEANUP = (NEW, DEPEND, PRIORITY, SCHED, RUN)

#: a severity-0 exception is written `exception(0)` in the table
FATAL = "exception(0)"

TRANSITIONS: dict[tuple[State, str], State] = {
    (NEW, "validate"): DEPEND,
    (NEW, "invalidate"): INACTIVE,
    (DEPEND, "depend"): PRIORITY,
    (PRIORITY, "priority"): SCHED,
    (SCHED, "urgency"): PRIORITY,
    (SCHED, "jobspec-update"): PRIORITY,
    (SCHED, "flux-restart"): PRIORITY,
    (SCHED, "alloc"): RUN,
    (RUN, "finish"): CLEANUP,
    **{(state, FATAL): CLEANUP for state in BEFORE_CLEANUP},
    (CLEANUP, "clean"): INACTIVE,
}

#: event → states in which it may be posted. Names that are not here (RFC 21 allows further
#: events: memo, debug.*, a site's own) are legal in every active state and move nothing.
LEGAL: dict[str, tuple[State, ...]] = {
    "validate": (NEW,),
    "invalidate": (NEW,),
    "dependency-add": (NEW, DEPEND),
    "dependency-remove": (NEW, DEPEND, CLEANUP),
    "depend": (DEPEND,),
    "priority": (PRIORITY, SCHED),
    "urgency": BEFORE_CLEANUP,
    "jobspec-update": BEFORE_CLEANUP,
    "resource-update": (RUN, CLEANUP),
    "alloc": (SCHED, CLEANUP),
    "prolog-start": BEFORE_CLEANUP,
    "prolog-finish": ACTIVE,
    "start": (RUN, CLEANUP),
    "finish": (RUN, CLEANUP),
    "epilog-start": ACTIVE,
    "epilog-finish": ACTIVE,
    "part-start": ACTIVE,
    "part-finish": ACTIVE,
    "release": (RUN, CLEANUP),
    "free": (CLEANUP,),
    "clean": (CLEANUP,),
}


def mermaid() -> str:
    """The state diagram of ARCHITECTURE.md, drawn from the table."""
    lines = ["stateDiagram-v2", "    [*] --> NEW : submit"]
    merged: dict[tuple[State, State], list[str]] = {}
    for (state, event), target in TRANSITIONS.items():
        merged.setdefault((state, target), []).append(event)
    for (state, target), events in merged.items():
        lines.append(f"    {state.name} --> {target.name} : {', '.join(events)}")
    lines.append("    INACTIVE --> [*]")
    return "\n".join(lines) + "\n"
