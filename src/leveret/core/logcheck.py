"""Does an eventlog, ours or Flux's, keep RFC 18, RFC 21 and the holds' contract? Line by line.

`check` takes the text of a whole log and never raises: what cannot be read is a problem of its line, and the rest is
judged as if that line were not there. Which log it is (of a job, of its execution, of its output, of the resources)
is read from its first event.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from leveret.core import resourcelog
from leveret.core.event import Event, decode
from leveret.core.job import AlreadyOpen, Job, apply_event
from leveret.core.verdict import verdict
from leveret.errors import EventError, FormatError

#: the first event of a log that is not a job's primary eventlog → what it is
_FIRST = {
    "init": "exec",
    "starting": "exec",
    "shell.init": "exec",
    "header": "output",
    "restart": "resource",
    "resource-define": "resource",
}


class Problem(msgspec.Struct, frozen=True):
    """One violation."""

    line: int  #: of the text, from 1
    message: str
    event: str = ""  #: name of the event, where it could be read


class Report(msgspec.Struct, frozen=True):
    """What `check` found."""

    kind: str  #: job (RFC 21), exec, output (RFC 24) or resource (RFC 44)
    events: int  #: that could be read
    problems: list[Problem]
    state: str = ""  #: of a job's log: the state that it leads to
    result: str = ""  #: of a job's log that has ended: the verdict


def check(text: bytes) -> Report:
    """Every violation of a log in its order; see the module. `text`: newline-terminated lines (RFC 18)."""
    problems: list[Problem] = []
    events: list[tuple[int, Event]] = []
    if not text.strip():
        return Report("job", 0, [Problem(1, "the log is empty: RFC 18 says that it shall not be created empty")])
    lines = text.split(b"\n")
    torn = lines.pop()
    for number, line in enumerate(lines, 1):
        _read(number, line, events, problems)
    if torn:
        number = len(lines) + 1
        problems.append(Problem(number, "torn: the last line does not end with a newline"))
        _read(number, torn, events, problems)
    kind = _FIRST.get(events[0][1].name, "job") if events else "job"
    state = result = ""
    if kind == "job":
        job = _job(events, problems)
        state = job.state.name if events else ""
        result = verdict(job).result if job.done else ""
    elif kind == "resource":
        _resource(events, problems)
    else:
        _guest(kind, events, problems)
    return Report(kind, len(events), sorted(problems, key=lambda problem: problem.line), state, result)


def _read(number: int, line: bytes, events: list[tuple[int, Event]], problems: list[Problem]) -> None:
    try:
        event = decode(line)
    except FormatError as error:
        what = "an empty line" if not line.strip() else error.message
        problems.append(Problem(number, what))
        return
    if not event.timestamp > 0:
        problems.append(Problem(number, f"{event.name}: the timestamp must be greater than zero", event.name))
    if not event.name:
        problems.append(Problem(number, "the event has no name"))
    events.append((number, event))


def _job(events: list[tuple[int, Event]], problems: list[Problem]) -> Job:
    job = Job(0)
    for number, event in events:
        try:
            apply_event(job, event)
        except AlreadyOpen:
            pass  # starting what is open changes nothing, and is no error
        except EventError as error:
            problems.append(Problem(number, error.message, event.name))
            if event.name == "free" and job.allocated:
                # the resources are gone all the same: what is wrong with `clean` is something else then
                job = replace(job, freed=True)
        job = apply_event(job, event, strict=False)
    return job


def _resource(events: list[tuple[int, Event]], problems: list[Problem]) -> None:
    state = resourcelog.ResourceState()
    for number, event in events:
        try:
            resourcelog.apply_event(state, event)
        except EventError as error:
            problems.append(Problem(number, error.message, event.name))
        state = resourcelog.apply_event(state, event, strict=False)


def _guest(kind: str, events: list[tuple[int, Event]], problems: list[Problem]) -> None:
    """RFC 24 wants the header first, and once; other logs of the guest space are free but for RFC 18."""
    for place, (number, event) in enumerate(events):
        if kind != "output":
            continue
        if event.name == "header" and place:
            problems.append(Problem(number, "header: must be the first event, and there is one", event.name))
        elif event.name == "data" and not isinstance(event.get("stream"), str):
            problems.append(Problem(number, "data: missing key `stream`", event.name))


def whole(rows: Iterable[tuple[int, bytes]]) -> list[Event]:
    """The events of a job's log from its stored rows (n, line). Raises FormatError when some is missing or damaged."""
    events: list[Event] = []
    for n, line in rows:
        if n != len(events) + 1:
            raise FormatError(f"event {len(events) + 1} is missing from the eventlog")
        try:
            events.append(decode(line))
        except FormatError as error:
            raise FormatError(f"event {n} of the eventlog: {error.message}") from None
    if not events or events[0].name != "submit":
        raise FormatError("the eventlog does not begin with `submit`")
    return events
