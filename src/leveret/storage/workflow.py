"""What is due next for a job's workflow: from the job's eventlog and the storage's own state, nothing else. Pure.

Neither side needs a memory: `plan` says how far the workflow should be for the job as it is now, `next_step` what to ask
of the storage to get there from where it is. Both may be asked again at any time, after a restart of either side too.

    DEPEND … SCHED   Proposal
    RUN              Setup → DataIn → PreRun, then the tasks
    CLEANUP          tasks were started:  wait for `finish`, then PostRun → DataOut → Teardown
                     never started, workflow in error, intent discard or force: straight to Teardown
    INACTIVE, gone   straight to Teardown (an orphan)
"""

from __future__ import annotations

import re

import msgspec

from leveret.core.job import Job
from leveret.core.transitions import CLEANUP, INACTIVE, RUN
from leveret.storage.port import (
    DATA_OUT,
    ERROR,
    POST_RUN,
    PRE_RUN,
    PROPOSAL,
    SETUP,
    STATES,
    TEARDOWN,
    TRANSIENT,
    View,
)

#: what the person who ended the job wants of its data
KEEP, DISCARD, FORCE = "keep", "discard", "force"
#: parts that the plugin itself holds; others that use the nodes may write to the storage still
OUR_PARTS = frozenset({"dws-data-out", "dws-teardown"})


class Plan(msgspec.Struct, frozen=True):
    """How far a workflow should be now."""

    goal: str  #: of STATES
    direct: bool = False  #: past all states in between; Teardown only
    hurry: bool = False
    why: str = ""  #: what is waited for before more is asked, for listings


class Step(msgspec.Struct, frozen=True):
    """One thing to ask of the storage; `create`, `remove`, or `advance` to `state`."""

    what: str
    state: str = ""
    hurry: bool = False


CREATE, REMOVE = Step("create"), Step("remove")


def plan(job: Job | None, view: View | None, *, start_requested: bool = False, intent: str = KEEP) -> Plan:
    """How far the job's workflow should be. `job` None: nobody knows it (any more).

    `start_requested`: the engine was asked to start the tasks, which may run although `start` is not logged yet.
    """
    if job is None or job.state is INACTIVE:
        return Plan(TEARDOWN, direct=True, why="the job is over")
    if job.state is not CLEANUP and job.state is not RUN:
        return Plan(PROPOSAL)
    broken = view is not None and view.status == ERROR
    if job.state is RUN:
        return (
            Plan(TEARDOWN, direct=True, why="the workflow is in error") if broken and not job.started else Plan(PRE_RUN)
        )
    if not job.started and not start_requested:
        return Plan(TEARDOWN, direct=True, hurry=intent != KEEP, why="the job never started")
    if job.status is None:
        # tasks may be running in it: whatever comes next waits for their end
        return Plan(PRE_RUN, why="the tasks have not finished")
    if intent != KEEP:
        return Plan(TEARDOWN, direct=True, hurry=True, why="the data is not wanted")
    if broken:
        return Plan(TEARDOWN, direct=True, why="the workflow is in error")
    if view is not None and not view.reached(PRE_RUN) and view.desired != TEARDOWN:
        return Plan(TEARDOWN, direct=True, why="the storage was never mounted")
    writers = [h.name for h in job.holds.values() if h.kind == "part" and h.uses == "nodes" and h.name not in OUR_PARTS]
    if writers and view is not None and view.desired == PRE_RUN:
        return Plan(PRE_RUN, why=f"{', '.join(writers)} may still write to it")
    return Plan(TEARDOWN)


def next_step(wanted: Plan, view: View | None) -> Step | None:
    """What to ask for now; None while an answer is awaited, or when all is as it should be."""
    if view is None:
        return CREATE if wanted.goal == PROPOSAL else None
    if view.deleting:
        return None
    if view.desired == TEARDOWN:
        if view.state == TEARDOWN and view.ready and wanted.goal == TEARDOWN:
            return REMOVE
        return Step("advance", TEARDOWN, hurry=True) if wanted.hurry and not view.hurry and wanted.direct else None
    if wanted.goal == TEARDOWN and wanted.direct:
        return Step("advance", TEARDOWN, hurry=wanted.hurry)
    if STATES.index(view.desired) >= STATES.index(wanted.goal):
        return None
    if view.state == view.desired and view.ready:
        return Step("advance", STATES[STATES.index(view.desired) + 1])
    return None


# ---- what has been reached, for the holds that wait for it ----------------------------------------------


def unmounted(view: View | None) -> bool:
    """Whether no compute node has the storage (any more) after the tasks."""
    if view is None or view.state == DATA_OUT:
        return True
    if view.state == TEARDOWN:
        gone = bool(view.mounts) and not any(view.mounts.values())
        return view.ready or POST_RUN in view.timings or gone
    return view.state == POST_RUN and view.ready


def delivered(view: View | None) -> bool:
    """Whether copying out is over, well or not."""
    return view is None or view.state == TEARDOWN or (view.state == DATA_OUT and view.ready)


def gone(view: View | None) -> bool:
    """Whether the storage has been given back."""
    return view is None or (view.state == TEARDOWN and view.ready)


# ---- time --------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True):
    """Seconds; 0 is no limit (DWS.md rows 14 to 18)."""

    setup_s: float = 0.0
    pre_run_s: float = 0.0
    post_run_s: float = 0.0
    data_out_s: float = 0.0  #: PostRun and DataOut together
    teardown_s: float = 0.0  #: after which what does not give back its storage is given up
    transient_s: float = 10.0


class Overdue(msgspec.Struct, frozen=True):
    """A limit that has passed: the exception that says so."""

    what: str  #: setup, pre-run, post-run, data-out, teardown or transient
    type: str
    severity: int
    note: str


def deadline(
    view: View, limits: Limits, *, t_post_run: float = 0.0, t_transient: float = 0.0
) -> tuple[float, Overdue] | None:
    """The next limit of a workflow and when it passes (seconds since the epoch); None when there is none.

    `t_post_run`: when PostRun was asked for, 0 if it was not; `t_transient`: since when it is in TransientCondition.
    """
    found: list[tuple[float, Overdue]] = []
    if view.status == TRANSIENT and t_transient and limits.transient_s:
        note = f"DWS/Rabbit interactions failed: workflow in 'TransientCondition' state too long: {view.message}"
        found.append((t_transient + limits.transient_s, Overdue("transient", "exception", 0, note)))
    if not view.ready and view.since:
        for state, seconds, overdue in (
            (SETUP, limits.setup_s, Overdue("setup", "dws-timeout", 0, "File system creation took too long")),
            (PRE_RUN, limits.pre_run_s, Overdue("pre-run", "dws-timeout", 0, "timed out waiting for mounts")),
            (
                POST_RUN,
                limits.post_run_s,
                Overdue("post-run", "rabbit-timeout", 0, "unmounts timed out, skipping data movement"),
            ),
            (
                TEARDOWN,
                limits.teardown_s,
                Overdue("teardown", "dws-epilog-timeout", 0, "the storage is not given back"),
            ),
        ):
            if view.desired == state and seconds:
                found.append((view.since + seconds, overdue))
    if view.desired in (POST_RUN, DATA_OUT) and limits.data_out_s and t_post_run:
        late = Overdue("data-out", "teardown-timeout", 1, "skipping rabbit data movement")
        found.append((t_post_run + limits.data_out_s, late))
    return min(found, key=lambda item: item[0]) if found else None


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|µs|us|ms|s|m|h)")
_SCALE = {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """Seconds of a duration as DWS writes it: `157.403ms`, `2.276088s`, `1m2.5s`. Raises ValueError."""
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise ValueError(f"not a duration: {text!r}")
    return float(sum(float(number) * _SCALE[unit] for number, unit in parts))


def written(seconds: float) -> str:
    """The same the other way: milliseconds below a second, microseconds' resolution."""
    if seconds < 1:
        return f"{seconds * 1000:.3f}".rstrip("0").rstrip(".") + "ms"
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:.6f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{text}" if minutes else text
