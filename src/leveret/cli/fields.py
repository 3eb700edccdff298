"""The fields of `jobs -o`: what each is called, and its value in a job's record."""

from __future__ import annotations

import time
from typing import Any

from leveret.cli import output
from leveret.cli.printer import signal_name

Record = dict[str, Any]

STATE_LETTER = {
    "NEW": "N",
    "DEPEND": "D",
    "PRIORITY": "P",
    "SCHED": "S",
    "RUN": "R",
    "CLEANUP": "C",
    "INACTIVE": "I",
}
RESULT_LETTERS = {"COMPLETED": "CD", "FAILED": "F", "CANCELED": "CA", "TIMEOUT": "TO"}
EMOJI = {
    "NEW": "🥚",
    "DEPEND": "⛓",
    "PRIORITY": "🎲",
    "SCHED": "⏳",
    "RUN": "🐇",
    "CLEANUP": "🧹",
    "COMPLETED": "😎",
    "FAILED": "💩",
    "CANCELED": "🛑",
    "TIMEOUT": "⌛",
}
ID_FORMS = ("dec", "hex", "dothex", "kvs", "words", "f58", "f58plain", "emoji")

#: field → heading
HEADINGS = {
    "id": "JOBID",
    **{f"id.{form}": "JOBID" for form in ID_FORMS},
    "userid": "UID",
    "username": "USER",
    "urgency": "URG",
    "priority": "PRI",
    "state": "STATE",
    "state_single": "S",
    "state_emoji": "STATE",
    "status": "STATUS",
    "status_abbrev": "ST",
    "status_emoji": "STATUS",
    "name": "NAME",
    "cwd": "CWD",
    "queue": "QUEUE",
    "bank": "BANK",
    "project": "PROJECT",
    "ntasks": "NTASKS",
    "ncores": "NCORES",
    "nnodes": "NNODES",
    "ngpus": "NGPUS",
    "duration": "DURATION",
    "ranks": "RANKS",
    "nodelist": "NODELIST",
    "success": "SUCCESS",
    "result": "RESULT",
    "result_abbrev": "RESULT",
    "result_emoji": "RESULT",
    "returncode": "RC",
    "exit_code": "EXIT",
    "waitstatus": "WSTATUS",
    "exception.occurred": "EXCEPTION-OCCURRED",
    "exception.severity": "EXCEPTION-SEVERITY",
    "exception.type": "EXCEPTION-TYPE",
    "exception.note": "EXCEPTION-NOTE",
    "t_submit": "T_SUBMIT",
    "t_depend": "T_DEPEND",
    "t_priority": "T_PRIORITY",
    "t_sched": "T_SCHED",
    "t_run": "T_RUN",
    "t_cleanup": "T_CLEANUP",
    "t_inactive": "T_INACTIVE",
    "t_remaining": "T_REMAINING",
    "runtime": "RUNTIME",
    "expiration": "EXPIRATION",
    "annotations": "ANNOTATIONS",
    "sched": "SCHED",
    "user": "USER",
    "dependencies": "DEPENDENCIES",
    "contextual_info": "INFO",
    "contextual_time": "TIME",
    "inactive_reason": "INACTIVE-REASON",
    "phase": "PHASE",
    "waiting_for": "WAITING-FOR",
    "holds": "HOLDS",
    "holder": "HOLDER",
    "progress": "PROGRESS",
    "hold_age": "HELD",
    "flags": "FLAGS",
}
#: fields that are 0.0 where Flux has them so
TIMES = frozenset(
    {"t_submit", "t_depend", "t_priority", "t_sched", "t_run", "t_cleanup", "t_inactive", "expiration", "duration"}
)

_WHOSE = "{id.f58:>12} ?:{queue:<8.8} {username:<8.8} {name:<10.10+}"
_SIZES = "{ntasks:>6} {nnodes:>6h}"
_NOW = "{contextual_time!F:>8h} {contextual_info}"
#: named formats that Flux does not have
OURS = ("held",)
#: name → (format, what it is for)
FORMATS = {
    "default": (f"{_WHOSE} {{status_abbrev:>2.2}} {_SIZES} {_NOW}", "Default leveret-jobs format string"),
    "cute": (
        f"{_WHOSE} {{status_emoji:>5.5}} {_SIZES} {_NOW}",
        "Cute leveret-jobs format string (default with emojis)",
    ),
    "long": (
        f"{_WHOSE} {{status:>9.9}} {_SIZES} {{t_submit!d:%b%d %R::>12}} {{t_remaining!F:>12h}} {_NOW}",
        "Extended leveret-jobs format string",
    ),
    "deps": (
        "{id.f58:>12} ?:{queue:<8.8} {name:<10.10+} {urgency:<3} {priority:<12} {state:<8.8} {dependencies}",
        "Show job urgency, priority, and dependencies",
    ),
    "endreason": (
        f"{_WHOSE} {{status_abbrev:>2.2}} {{t_inactive!d:%b%d %R::>12h}} {{inactive_reason}}",
        "Show why each job ended",
    ),
    "held": (
        (
            "{id.f58:>12} {name:<10.10+} {status_abbrev:>2.2} {phase:<12.12+} ?:{holder:<8} "
            "{hold_age!F:>8h} ?:{progress:>8} {waiting_for}"
        ),
        "Show what each job waits for, who holds it, since when, and how far that is",
    ),
}


def heading(name: str) -> str | None:
    """The heading of a field; None if there is no such field."""
    if name in HEADINGS:
        return HEADINGS[name]
    if name.startswith(("annotations.", "sched.", "user.")):
        return name.upper()
    return None


def value_of(job: Record, name: str) -> Any:
    """The value of a field as Flux has it: "" where there is none."""
    if name.startswith("id."):
        from leveret.core import jobid as jobids

        return output.f58(job["id"]) if name == "id.f58" else jobids.encode(job["id"], name[3:])
    special = SPECIAL.get(name)
    if special is not None:
        return special(job)
    if name in TIMES:
        return float(job.get(name) or 0.0)
    if name.startswith("exception."):
        value = job.get(name.replace(".", "_"))
        return bool(value) if name == "exception.occurred" else "" if value is None else value
    head, dot, rest = name.partition(".")
    if head in ("annotations", "sched", "user"):
        return annotation(job, rest if head == "annotations" else f"{head}{dot}{rest}")
    value = job.get(name)
    return "" if value is None else value


def annotation(job: Record, path: str) -> Any:
    value: Any = job.get("annotations") or {}
    for key in path.split(".") if path else ():
        value = value.get(key) if isinstance(value, dict) else None
    if value is None or value == {}:
        return ""
    return output.json_text(value) if isinstance(value, dict | list) else value


def status(job: Record) -> str:
    """The state, or the result of a job that is over."""
    return str(job.get("result") or "FAILED") if job.get("state") == "INACTIVE" else str(job.get("state", ""))


def status_abbrev(job: Record) -> str:
    text = status(job)
    return RESULT_LETTERS.get(text) or STATE_LETTER.get(text, "?")


def runtime(job: Record) -> float:
    """Seconds from RUN to CLEANUP, or to now."""
    begin = job.get("t_run") or 0.0
    if not begin:
        return 0.0
    return max(float((job.get("t_cleanup") or time.time()) - begin), 0.0)


def t_remaining(job: Record) -> float:
    expiration = job.get("expiration") or 0.0
    if job.get("state") != "RUN" or not expiration:
        return 0.0
    return max(float(expiration - time.time()), 0.0)


def dependencies(job: Record) -> str:
    return ",".join(dependency_text(text) for text in job.get("dependencies") or ())


def dependency_text(description: str) -> str:
    """`begin-time=EPOCH` as `begin@HH:MM:SS`, with the date if it is not within a day."""
    scheme, _, value = description.partition("=")
    if scheme != "begin-time":
        return description
    try:
        moment = float(value)
    except ValueError:
        return description
    near = abs(moment - time.time()) < 86400
    return "begin@" + time.strftime("%H:%M:%S" if near else "%b%d-%H:%M", time.localtime(moment))


def contextual_info(job: Record) -> str:
    state = job.get("state")
    if state == "DEPEND":
        return f"depends:{dependencies(job)}" if job.get("dependencies") else ""
    if state in ("PRIORITY", "SCHED"):
        return "held" if job.get("urgency") == 0 or job.get("priority") == 0 else ""
    if state == "CLEANUP" and job.get("waiting_for") and job.get("waitstatus") is not None:
        return " ".join(filter(None, (f"finishing:{job['waiting_for']}", progress(job))))
    hosts = str(job.get("nodelist") or "")
    if state in ("RUN", "CLEANUP") and job.get("holds") and job.get("waiting_for") not in ("", "tasks", "tasks to end"):
        return f"{hosts} {job['phase']}:{job['waiting_for']}".strip()  # who keeps it from starting
    return hosts


def inactive_reason(job: Record) -> str:
    """Why a job ended, in a few words; "" while it is active."""
    if job.get("state") != "INACTIVE":
        return ""
    result, cause, waitstatus = job.get("result"), job.get("cause") or {}, job.get("waitstatus")
    note = cause.get("note") or ""
    if result == "CANCELED":
        return f"Canceled: {note}" if note else "Canceled"
    if result == "TIMEOUT":
        return "Timeout"
    kind = cause.get("type")
    if kind and (waitstatus is None or waitstatus == 0 or kind != "exec"):
        return f"Exception: type={kind} note={note}"
    if waitstatus is None:
        return ""
    code = 128 + (waitstatus & 0x7F) if waitstatus & 0x7F else waitstatus >> 8
    return signal_name(code - 128) if code > 128 else f"Exit {code}"


def holds(job: Record) -> str:
    return ",".join(str(hold.get("name")) for hold in job.get("holds") or ())


def first_hold(job: Record) -> Record:
    """The hold that the phase names: the first that keeps the job from its next step."""
    waiting = str(job.get("waiting_for") or "").split(", ")
    found = job.get("holds") or ()
    return next((hold for hold in found if hold.get("name") in waiting), {})


def holder(job: Record) -> str:
    """Who closes that hold: a plugin, or `outside`; "" when nothing is held."""
    hold = first_hold(job)
    if not hold:
        return ""
    return str(hold.get("plugin") or "outside") + ("" if hold.get("loaded", True) else " (not loaded)")


def progress(job: Record) -> str:
    """How far it is, in per cent or as said; "" when it does not say."""
    said = first_hold(job).get("progress") or {}
    done, total = said.get("done"), said.get("total")
    if done is None:
        return str(said.get("note") or "")
    return f"{100 * done / total:.0f}%" if total else f"{done:g} {said.get('unit') or ''}".strip()


def hold_age(job: Record) -> float:
    """Seconds since it was opened."""
    since = first_hold(job).get("since")
    return max(time.time() - since, 0.0) if since else 0.0


def ranks(job: Record) -> str:
    """Several ranks stand in brackets."""
    text = str(job.get("ranks") or "")
    return f"[{text}]" if text and not text.isdigit() else text


SPECIAL = {
    "ranks": ranks,
    "state_single": lambda job: STATE_LETTER.get(job.get("state", ""), "?"),
    "state_emoji": lambda job: EMOJI.get(job.get("state", ""), ""),
    "status": status,
    "status_abbrev": status_abbrev,
    "status_emoji": lambda job: EMOJI.get(status(job), ""),
    "result_abbrev": lambda job: RESULT_LETTERS.get(job.get("result") or "", ""),
    "result_emoji": lambda job: EMOJI.get(job.get("result") or "", ""),
    "runtime": runtime,
    "contextual_time": runtime,
    "t_remaining": t_remaining,
    "dependencies": dependencies,
    "contextual_info": contextual_info,
    "inactive_reason": inactive_reason,
    "holds": holds,
    "holder": holder,
    "progress": progress,
    "hold_age": hold_age,
}


def as_json(job: Record) -> Record:
    """A record in the shape of `flux jobs --json`, with what Leveret adds; keys without a value are left out."""
    result = {key: value for key, value in job.items() if value is not None and not key.startswith("exception_")}
    result["jobid"] = output.f58(job["id"])
    result["status"] = status(job)
    result["runtime"] = runtime(job)
    exception: Record = {"occurred": bool(job.get("exception_occurred"))}
    if exception["occurred"]:
        exception |= {key: job.get(f"exception_{key}") for key in ("type", "severity", "note")}
    result["exception"] = exception
    return result
