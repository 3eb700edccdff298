"""`leveret job holds|give-up`: who keeps jobs waiting, and not waiting for one of them any longer."""

from __future__ import annotations

import time
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.errors import InvalidError, LeveretError, NotFoundError

HEADER = ("JOBID", "KIND", "NAME", "OWNER", "HOLDER", "AGE", "DEADLINE", "PROGRESS")


def seconds_text(seconds: float) -> str:
    """`4.5s`, `3.50m`: a duration as listings have it."""
    from leveret.core import duration

    return duration.encode(round(max(seconds, 0.0), 1))


def holder(hold: dict[str, Any]) -> str:
    """Who closes the hold: a plugin, or somebody outside (with a lease or without)."""
    if hold["plugin"]:
        return str(hold["plugin"]) + ("" if hold.get("loaded", True) else " (not loaded)")
    return "outside, leased" if hold.get("lease_s") else "outside"


def row(hold: dict[str, Any], now: float) -> list[str]:
    from leveret.cli.attach import progress_text

    age = seconds_text(now - hold["since"]) + (" !" if hold.get("overdue") else "")
    deadline = hold.get("deadline")
    left = "-" if deadline is None else "in " + seconds_text(deadline - now) if deadline > now else "passed"
    progress = hold.get("progress") or {}
    text = " ".join(filter(None, (progress_text(progress), str(progress.get("note") or ""))))
    names = (output.f58(hold["id"]), hold["kind"], hold["name"], hold["owner"], holder(hold))
    return [*map(str, names), age, left, text or "-"]


@click.command(
    "holds",
    cls=Command,
    prefix="job",
    usage="[--json] [id ...]",
    examples=(("leveret job holds", "everything that keeps a job waiting"),),
)
@click.option(
    "--json", "as_json", is_flag=True, help="{holds: [{id, kind, name, owner, plugin, since, deadline, ...}]}."
)
@click.argument("ids", nargs=-1, metavar="[id ...]", shell_complete=complete_jobids)
def holds(as_json: bool, ids: tuple[str, ...]) -> int:
    """List open holds, oldest job first: what keeps jobs from starting, from giving their nodes back, from being done.

    A `!` behind the age: the hold has no deadline and lasts longer than the instance's alarm.
    """
    from leveret.client import Client

    numbers = [parse_jobid(text) for text in ids]
    found: list[dict[str, Any]] = []
    with Client() as client:
        for text, jobid in zip(ids, numbers, strict=True):
            try:
                found += client.holds(jobid)
            except NotFoundError:
                raise NotFoundError(f"job {text} not found")
        if not ids:
            found = client.holds()
    if as_json:
        output.json_data({"holds": found})
    elif found:
        now = time.time()
        output.table([row(hold, now) for hold in found], HEADER)
    return 0


@click.command(
    "give-up",
    cls=Command,
    prefix="job",
    usage="--part NAME [--reason TEXT] id",
    examples=(("leveret job give-up --part=to-tape --reason='tape robot is down' ƒ2oY3Gx7", "and the job goes on"),),
)
@click.option("--part", "name", metavar="NAME", required=True, help="The hold's name, or KIND/NAME (see `job holds`).")
@click.option("--reason", metavar="TEXT", default="", help="Why, for the record.")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
def give_up(name: str, reason: str, jobid: str) -> int:
    """Wait for a hold of a job no longer, and say what may be left behind. The eventlog says who did it.

    A user's part, and a prolog, end as failed, and so does the job. What the site owns is a warning; a dependency is
    waived.
    """
    from leveret.client import Client

    number = parse_jobid(jobid)
    kind, slash, rest = name.partition("/")
    if slash and kind in ("dependency", "prolog", "epilog", "part"):
        name = rest
    else:
        kind = ""
    if not name:
        raise InvalidError("--part needs the name of a hold", "see `leveret job holds`")
    with Client() as client:
        try:
            event = client.give_up(number, name, kind=kind, reason=reason)
        except NotFoundError:
            raise NotFoundError(f"job {jobid} not found")
        except LeveretError as refused:
            refused.hint = refused.hint or "see `leveret job holds`"
            raise
    left = event.get("left")
    output.note(f"gave up on {event['kind']} {event['description']}" + (f"; left behind: {left}" if left else ""))
    return 0
