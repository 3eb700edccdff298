"""The verdict: one pure function of the eventlog, called by every door (DESIGN section 3).

Also what a door prints beside it: the phase, what the job waits for, Flux's return code.
"""

from __future__ import annotations

from typing import Any

import msgspec

from leveret.core.job import Cause, Hold, Job
from leveret.core.transitions import CLEANUP, DEPEND, INACTIVE, NEW, PRIORITY, RUN, SCHED

COMPLETED, FAILED, CANCELED, TIMEOUT = "COMPLETED", "FAILED", "CANCELED", "TIMEOUT"


class Verdict(msgspec.Struct, frozen=True):
    """How a job ended. `exit_code` is what run, attach, job status and submit --wait return."""

    result: str
    exit_code: int
    waitstatus: int | None  #: `finish` status; None when the tasks never finished
    cause: Cause | None  #: the first fatal exception

    @property
    def success(self) -> bool:
        return self.result == COMPLETED


def exit_code_of(waitstatus: int) -> int:
    """The shell's exit code for a wait status: 128+signal when it was killed by one."""
    signal = waitstatus & 0x7F
    return 128 + signal if signal else (waitstatus >> 8) & 0xFF


def verdict(job: Job) -> Verdict:
    """How the job ended, or would end if nothing further happened.

    Any severity-0 exception makes the job not COMPLETED: `cancel` → CANCELED, `timeout` → TIMEOUT, else FAILED.
    Without one a nonzero `finish` status is FAILED, and no `finish` is never COMPLETED.
    """
    code = exit_code_of(job.status) if job.status is not None else 0
    if job.fatal is not None:
        result = {"cancel": CANCELED, "timeout": TIMEOUT}.get(job.fatal.type, FAILED)
    elif job.status is None or job.status != 0:
        result = FAILED
    else:
        result = COMPLETED
    if result != COMPLETED and code == 0:
        code = 1
    return Verdict(result, code, job.status, job.fatal)


def returncode(job: Job) -> int | None:
    """Flux's `returncode` field: None while active, −128 for a job canceled before it started."""
    if not job.done:
        return None
    if job.status is None and job.fatal is not None and job.fatal.type == "cancel":
        return -128
    return verdict(job).exit_code


def _names(holds: list[Hold]) -> str:
    return ", ".join(hold.name for hold in holds)


def phase(job: Job) -> tuple[str, str]:
    """(phase, what the job waits for), ready to print; holders are named, all of them."""
    state = job.state
    if state is INACTIVE:
        return "done", ""
    if state is NEW:
        return "new", "validation"
    if state is DEPEND:
        return "depend", _names(job.blocked("depend"))
    if state is PRIORITY:
        return "priority", "priority"
    if state is SCHED:
        return ("held", "urgency above 0") if job.priority == 0 else ("sched", "resources")
    if state is RUN:
        if job.started:
            return "running", "tasks"
        holders = job.blocked("start")
        return (
            (holders[0].name if holders[0].kind == "part" else "prolog", _names(holders))
            if holders
            else ("starting", "start")
        )
    if state is CLEANUP and job.started and job.status is None:
        return "ending", "tasks to end"
    holders = list(job.holds.values())
    if holders:
        first = holders[0]
        return (first.name if first.kind == "part" else first.kind), _names(holders)
    return "cleanup", ""


def record(job: Job) -> dict[str, Any]:
    """The part of a job's API record that its eventlog alone decides."""
    name, waiting = phase(job)
    out: dict[str, Any] = {
        "id": job.id,
        "userid": job.userid,
        "urgency": job.urgency,
        "priority": job.priority,
        "flags": job.flags,
        "state": job.state.name,
        "done": job.done,
        "phase": name,
        "waiting_for": waiting,
        "result": None,
        "success": None,
        "exit_code": None,
        "returncode": None,
        "waitstatus": job.status,
        "cause": None,
        "exception_occurred": job.worst is not None,
        "dependencies": [h.name for h in job.blocked("depend")],
        "annotations": job.annotations,
        "expiration": job.expiration,
    }
    if job.worst is not None:
        out["exception_type"] = job.worst.type
        out["exception_severity"] = job.worst.severity
        out["exception_note"] = job.worst.note
    if job.done:
        end = verdict(job)
        out |= {
            "result": end.result,
            "success": end.success,
            "exit_code": end.exit_code,
            "returncode": returncode(job),
        }
        if end.cause is not None:
            out["cause"] = {"type": end.cause.type, "severity": end.cause.severity, "note": end.cause.note}
    for key in (
        "t_submit",
        "t_depend",
        "t_priority",
        "t_sched",
        "t_run",
        "t_cleanup",
        "t_inactive",
        "t_start",
        "t_finish",
    ):
        if value := getattr(job, key):
            out[key] = value
    return out
