"""`leveret reservation`: nodes that are kept for somebody or something for a time."""

from __future__ import annotations

import time
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group
from leveret.errors import InvalidError

VERBS = {
    "add": (__name__, "add", "Keep nodes for a time."),
    "list": (__name__, "list_", "List reservations."),
    "remove": (__name__, "remove", "Give reserved nodes back."),
}


@click.group("reservation", cls=Group, verbs=VERBS)
@click.pass_context
def reservation(ctx: click.Context) -> None:
    """Reservations in time: jobs that would not be over before one begins start elsewhere, or after it."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


def uid_of(name: str) -> int:
    if name.isdigit():
        return int(name)
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise InvalidError(f"--user: there is no user `{name}`")


@click.command(
    "add",
    cls=Command,
    prefix="reservation",
    usage="[OPTIONS...] NAME",
    examples=(
        ("leveret reservation add maint --begin-time=22:00 --duration=2h", "all nodes tonight"),
        ("leveret reservation add class -N4 --requires=gpu --begin-time=+1d --duration=3h --user=ada", "for a course"),
        ("leveret submit --reservation=class -t 1h ./lesson", "a job inside it"),
    ),
)
@click.option("--begin-time", metavar="+FSD|TIME", default="now", help="When it begins (default now).")
@click.option("--duration", "lasts", metavar="FSD", required=True, help="How long it lasts.")
@click.option("-N", "--nodes", type=click.IntRange(min=1), metavar="N", help="So many nodes (default: all).")
@click.option("--requires", metavar="CONSTRAINT", default="", help="Of these nodes (RFC 35), e.g. host:node[1-4].")
@click.option("--user", "users", metavar="USER", multiple=True, help="Who may use it (default: who names it).")
@click.argument("name")
def add(begin_time: str, lasts: str, nodes: int | None, requires: str, users: tuple[str, ...], name: str) -> int:
    """Keep nodes for a time. Jobs that run there are not touched."""
    from leveret.cli.submission import begin_time as moment
    from leveret.client import Client
    from leveret.core import duration

    start, seconds = moment(begin_time, time.time()), duration.parse(lasts)
    uids = [uid_of(user) for user in users]
    with Client() as client:
        made = client.reserve(name, start, seconds, nodes or 0, requires, uids)
    if made["busy"]:
        output.note(f"jobs may still run at its begin on ranks {made['busy']}; they are not ended")
    output.data(f"{made['name']} ranks {made['ranks']}")
    return 0


@click.command("list", cls=Command, prefix="reservation", usage="[OPTIONS...]")
@click.option("-n", "--no-header", is_flag=True, help="Leave the header out.")
@click.option("--json", "as_json", is_flag=True, help="{reservations: [{name, start, end, ranks, users, state}]}.")
def list_(no_header: bool, as_json: bool) -> int:
    """List reservations, the next one first."""
    from leveret.client import Client

    with Client() as client:
        found = client.reservations()
    if as_json:
        output.json_data({"reservations": found})
        return 0
    rows = [
        [r["name"], r["state"], _clock(r["start"]), _clock(r["end"]), str(r["nnodes"]), r["ranks"], _users(r)]
        for r in found
    ]
    output.table(rows, None if no_header else ["NAME", "STATE", "BEGIN", "END", "NNODES", "RANKS", "USERS"])
    return 0


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when))


def _users(found: dict[str, Any]) -> str:
    return ",".join(map(str, found["users"])) or "-"


@click.command("remove", cls=Command, prefix="reservation", usage="NAME...")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: tuple[str, ...]) -> int:
    """Give reserved nodes back."""
    from leveret.client import Client

    with Client() as client:
        for name in names:
            client.unreserve(name)
    return 0
