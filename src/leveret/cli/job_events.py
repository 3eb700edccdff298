"""`leveret job eventlog` and `leveret job wait-event`."""

from __future__ import annotations

import json
import select
import time
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.cli.choices import EVENT, EVENT_FORMAT, PATH, TIME_FORMAT
from leveret.cli.choices import WHEN as WHENS
from leveret.cli.eventfmt import EventFormat, matches
from leveret.errors import FormatError, InvalidError, NotFoundError

WHEN = ("always", "never", "auto")


def format_options(function: Any) -> Any:
    """-f, -T, -H, -L and -p, which both verbs have."""
    for option in (
        click.option(
            "-p", "--path", metavar="PATH", type=PATH, default="eventlog", help="exec, output, input or guest.NAME."
        ),
        click.option(
            "-L", "--color", metavar="[WHEN]", type=WHENS, default="auto", help="always, never or auto (attached)."
        ),
        click.option("-H", "--human", is_flag=True, help="Times for people."),
        click.option(
            "-T", "--time-format", metavar="FORMAT", type=TIME_FORMAT, default="raw", help="raw, iso or offset."
        ),
        click.option(
            "-f", "--format", "form", metavar="FORMAT", type=EVENT_FORMAT, default="text", help="text or json."
        ),
    ):
        function = option(function)
    return function


def event_format(form: str, time_format: str, human: bool, color: str) -> EventFormat:
    if color not in WHEN:
        raise click.UsageError(f"-L/--color is {', '.join(WHEN)}, not `{color}`")
    if time_format == "human" or human:
        checked = EventFormat(form, time_format)  # a wrong -T is an error also with -H
        return EventFormat(checked.form, "human", output.colours(color))
    return EventFormat(form, time_format, output.colours(color))


def no_such(jobid: str, failure: NotFoundError) -> NotFoundError:
    """Which of job and path is missing."""
    if "path" in failure.message:
        return failure
    return NotFoundError(f"job {jobid} not found")


@click.command(
    "eventlog",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] id",
    attached={"-L": "always", "--color": "always"},
    examples=(
        ("leveret job eventlog -H ƒ2oY3Gx7", "with times for people"),
        ("leveret job eventlog -F -p exec ƒ2oY3Gx7", "follow the events of the execution"),
    ),
)
@format_options
@click.option("-F", "--follow", is_flag=True, help="Keep printing until the job is done.")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
def eventlog(form: str, time_format: str, human: bool, color: str, path: str, follow: bool, jobid: str) -> int:
    """Print a job's eventlog: one event a line, oldest first (RFC 18, RFC 21)."""
    from leveret.client import Client

    number = parse_jobid(jobid)
    events = event_format(form, time_format, human, color)
    with Client() as client:
        try:
            for line in client.events(number, [path], follow=follow):
                if "event" in line:
                    output.data(events.line(line["event"]))
        except NotFoundError as failure:
            raise no_such(jobid, failure)
    return 0


@click.command(
    "wait-event",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] id event",
    attached={"-L": "always", "--color": "always"},
    examples=(
        ("leveret job wait-event ƒ2oY3Gx7 start", "until its tasks start"),
        ("leveret job wait-event -t 10s -m status=0 ƒ2oY3Gx7 finish", "with a timeout and a value"),
    ),
)
@format_options
@click.option("-t", "--timeout", metavar="DURATION", help="Give up after this time (exit code 1).")
@click.option("-m", "--match-context", metavar="KEY=VAL", help="What the event must carry (JSON, else a string).")
@click.option("-c", "--count", type=int, metavar="COUNT", default=1, help="How many matches are needed.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the event.")
@click.option("-v", "--verbose", is_flag=True, help="Print all earlier events too.")
@click.option("-W", "--waitcreate", is_flag=True, help="Wait for the eventlog to appear.")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
@click.argument("event", metavar="event", type=EVENT)
def wait_event(
    form: str,
    time_format: str,
    human: bool,
    color: str,
    path: str,
    timeout: str | None,
    match_context: str | None,
    count: int,
    quiet: bool,
    verbose: bool,
    waitcreate: bool,
    jobid: str,
    event: str,
) -> int:
    """Wait until a job has an event, and print it. Exit code 1 if the job ends without it."""
    from leveret.client import Client, EventStream

    number = parse_jobid(jobid)
    events = event_format(form, time_format, human, color)
    deadline = deadline_of(timeout)
    key, value = context_test(match_context)
    if count < 1:
        raise InvalidError("count must be > 0")
    with Client() as client:
        try:
            stream = EventStream(client, number, [path])
        except NotFoundError as failure:
            raise no_such(jobid, failure)
        with stream:
            while not stream.ended:
                if not stream.pending and not readable(stream.fileno(), deadline):
                    raise NotFoundError(f"wait-event timeout on event '{event}'")
                for line in stream.pump():
                    if "event" not in line:
                        continue
                    found = matches(line["event"], event, key, value)
                    count -= found
                    if (found and not count and not quiet) or (verbose and not quiet):
                        output.data(events.line(line["event"]))
                    else:
                        events.skip(line["event"])
                    if not count:
                        return 0
    raise NotFoundError(f"event '{event}' never received")


def deadline_of(timeout: str | None) -> float | None:
    if timeout is None:
        return None
    from leveret.core import duration

    try:
        return time.monotonic() + duration.parse(timeout)
    except FormatError:
        if output.NAME == "flux":
            output.verb = "job wait-event"  # as Flux has it here, and only here
        raise InvalidError(
            f"wait-event: Invalid argument for option 'timeout': '{timeout}'", "for example 10s or 500ms"
        )


def context_test(text: str | None) -> tuple[str | None, Any]:
    if text is None:
        return None, None
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidError("must specify a context test as key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def readable(fd: int, deadline: float | None) -> bool:
    """Wait for a descriptor; false when the deadline passes first."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if deadline is None else max(deadline - time.monotonic(), 0) * 1000))
