"""`leveret resource eventlog`."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command
from leveret.cli.choices import EVENT_FORMAT, TIME_FORMAT, WHEN
from leveret.cli.eventfmt import matches
from leveret.cli.job_events import context_test, event_format
from leveret.errors import FormatError, InvalidError, NotFoundError


class Over(Exception):
    """The time is up. (Not a TimeoutError, which is an error of the connection.)"""


@click.command(
    "eventlog",
    cls=Command,
    prefix="resource",
    attached={"-L": "always", "--color": "always"},
    examples=(
        ("leveret resource eventlog -H", "with times for people"),
        ("leveret resource eventlog -F -i 3", "what happens to rank 3"),
        ("leveret resource eventlog -t 1m -w online -m idset=3", "until rank 3 is online"),
    ),
)
@click.option("-f", "--format", "form", metavar="FORMAT", type=EVENT_FORMAT, default="text", help="text or json.")
@click.option("-T", "--time-format", metavar="FORMAT", type=TIME_FORMAT, default="raw", help="raw, iso or offset.")
@click.option("-H", "--human", is_flag=True, help="Times for people.")
@click.option("-L", "--color", metavar="[WHEN]", type=WHEN, default="auto", help="always, never or auto (attached).")
@click.option("-F", "--follow", is_flag=True, help="Keep printing.")
@click.option("-t", "--timeout", metavar="FSD", help="With -F or -w: give up after this time.")
@click.option("-w", "--wait", metavar="EVENT", help="Until this event is posted, which is printed.")
@click.option("-m", "--match-context", metavar="KEY=VAL", help="With -w: what the event must carry.")
@click.option("-i", "--include", metavar="TARGETS", help="Only events about these ranks or hosts.")
def eventlog(
    form: str,
    time_format: str,
    human: bool,
    color: str,
    follow: bool,
    timeout: str | None,
    wait: str | None,
    match_context: str | None,
    include: str | None,
) -> int:
    """Print the resource eventlog: nodes online and offline, drained and undrained (RFC 44)."""
    from leveret.client import Client

    events = event_format(form, time_format, human, color)
    if match_context and not wait:
        raise click.UsageError("-m/--match-context needs -w/--wait")
    key, value = context_test(match_context)
    values = [value, match_context.partition("=")[2] if match_context else None]
    with Client() as client:
        wanted = ranks_of(client, include) if include is not None else None
        if timeout is not None:
            arm(timeout)
        try:
            for event in client.resource_events(follow=follow or wait is not None):
                if wanted is not None and not concerns(event, wanted):
                    events.skip(event)
                    continue
                # idsets are text that often looks like a number
                found = wait is not None and any(matches(event, wait, key, one) for one in values)
                if wait is None or follow or found:
                    output.data(events.line(event))
                else:
                    events.skip(event)
                if found:
                    return 0
        except Over:
            if wait is None:
                return 0
            raise NotFoundError(f"eventlog timeout on event '{wait}'")
    if wait is not None:
        raise NotFoundError(f"event '{wait}' never received")
    return 0


@click.command(
    "reload",
    cls=Command,
    prefix="resource",
    usage="[OPTIONS] PATH",
    examples=(("leveret resource reload R.json", "other cores, GPUs and properties for the same nodes"),),
)
@click.option("-f", "--force", is_flag=True, help="Leave out ranks that the instance has not.")
@click.argument("path")
def reload(force: bool, path: str) -> int:
    """Use the resource set (RFC 20) of a file until the next start, while no job holds resources."""
    import json

    from leveret.client import Client

    try:
        with open(path) as file:
            rset = json.load(file)
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}")
    except ValueError as error:
        raise InvalidError(f"{path}: {error}", "a resource set (RFC 20), as JSON")
    with Client() as client:
        client.reload_resources(rset, force=force)
    return 0


def arm(timeout: str) -> None:
    """Raise Over after this time, whatever is being read then."""
    import signal

    from leveret.core import duration

    def over(*_: Any) -> None:
        raise Over

    try:
        seconds = duration.parse(timeout)
    except FormatError:
        raise InvalidError(f"invalid timeout '{timeout}'", "for example 10s or 500ms")
    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))


def ranks_of(client: Any, include: str) -> frozenset[int]:
    from leveret.core import resources
    from leveret.core.resourceview import targets

    return targets(resources.from_dict(client.resources()["R"]), include)


def concerns(event: dict[str, Any], wanted: frozenset[int]) -> bool:
    """Events that name no nodes concern all."""
    from leveret.core import idset

    context = event.get("context") or {}
    text = context.get("idset", context.get("ranks"))
    try:
        return text is None or bool(wanted & set(idset.parse(text)))
    except FormatError:
        return True
