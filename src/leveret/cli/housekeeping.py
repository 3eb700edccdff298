"""`leveret housekeeping list|kill|wait`: what nodes do after a job, before another one gets them."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group, complete_jobids, parse_jobid
from leveret.cli.format import Format
from leveret.errors import InvalidError, NotFoundError

VERBS = {
    "list": (__name__, "list_", "List jobs whose nodes are in housekeeping."),
    "kill": (__name__, "kill", "End housekeeping commands."),
    "wait": (__name__, "wait", "Wait until the nodes of a job are free again."),
}
HEADINGS = {
    "id": "JOBID",
    "id.f58": "JOBID",
    "id.dec": "JOBID",
    "runtime": "RUNTIME",
    "t_start": "START",
    "nnodes": "NNODES",
    "ranks": "RANKS",
    "nodelist": "NODELIST",
    "allocated.nnodes": "NNODES",
    "allocated.ranks": "RANKS",
    "allocated.nodelist": "NODELIST",
    "pending.nnodes": "#ACTIVE",
    "pending.ranks": "RANKS",
    "pending.nodelist": "NODELIST",
}
FORMATS = {
    "default": (
        "{id.f58:>12} {nnodes:>6} {pending.nnodes:>7} {runtime!F:>8} {nodelist}",
        "Default leveret-housekeeping list format string",
    )
}


def value_of(row: dict[str, Any], name: str) -> Any:
    if name in ("id", "id.f58"):
        return output.f58(row["id"])
    if name == "id.dec":
        return row["id"]
    if name == "runtime":
        return round(max(0.0, time.time() - row["t_start"]), 3)
    if name == "t_start":
        return row["t_start"]
    part, _, key = name.rpartition(".")
    return row[part or "allocated"][key]


@click.group("housekeeping", cls=Group, verbs=VERBS)
@click.pass_context
def housekeeping(ctx: click.Context) -> None:
    """What nodes do after a job ([job-manager.housekeeping]) before the scheduler has them again."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


def _within(rows: list[dict[str, Any]], targets: str) -> list[dict[str, Any]]:
    """Only what touches these ranks or hosts; those that there are not match nothing."""
    from leveret.core import hostlist, idset
    from leveret.errors import FormatError

    def matches(row: dict[str, Any]) -> bool:
        hosts = hostlist.parse(row["allocated"]["nodelist"])
        ranks = idset.parse(row["allocated"]["ranks"])
        try:
            return bool(set(idset.parse(targets)) & set(ranks))
        except FormatError:
            return bool(set(hostlist.parse(targets)) & set(hosts))

    try:
        return [row for row in rows if matches(row)]
    except FormatError as error:
        raise InvalidError(f"invalid targets: {error.message}") from None


@click.command("list", cls=Command, prefix="housekeeping", examples=(("leveret housekeeping list", "who is at it"),))
@click.option("-i", "--include", metavar="TARGETS", help="Only what touches these ranks (idset) or hosts (hostlist).")
@click.option("-n", "--no-header", is_flag=True, help="No header line.")
@click.option("-o", "--format", "form", metavar="FORMAT", help="Format string, or a named format (`help` lists them).")
@click.option("--json", "as_json", is_flag=True, help="{jobs: [{id, t_start, allocated, pending}]}.")
def list_(include: str | None, no_header: bool, form: str | None, as_json: bool) -> int:
    """List jobs that are over and whose nodes are being tidied: allocated are not given back, pending not done."""
    from leveret.client import Client

    if form == "help":
        output.data_lines(f"  {name:<12} {text}" for name, (_, text) in FORMATS.items())
        output.data(f"Fields: {', '.join(HEADINGS)}")
        return 0
    name = form or os.environ.get("LEVERET_HOUSEKEEPING_LIST_FORMAT_DEFAULT") or "default"
    if name not in FORMATS and "{" not in name:
        raise InvalidError(f"--format: No such format {name}", f"named formats: {', '.join(FORMATS)}")
    layout = Format(FORMATS[name][0] if name in FORMATS else name, HEADINGS.get)
    with Client() as client:
        rows = client.housekeeping()
    if include is not None:
        rows = _within(rows, include)
    if as_json:
        output.json_data({"jobs": rows})
        return 0
    for key in reversed(layout.sort_keys):
        field = key.removeprefix("-")
        if field not in HEADINGS:
            raise InvalidError(f"Invalid sort key: {field}")
        rows = sorted(rows, key=lambda row: value_of(row, field), reverse=key.startswith("-"))
    output.data_lines(layout.lines(rows, value_of, not no_header))
    return 0


@click.command(
    "kill",
    cls=Command,
    prefix="housekeeping",
    examples=(("leveret housekeeping kill -t node3", "what hangs on one node; it is not drained for that"),),
)
@click.option("-s", "--signal", "signum", metavar="SIGNUM", type=int, default=15, help="Signal (default 15, SIGTERM).")
@click.option("-t", "--targets", metavar="RANK|HOSTS", help="On these nodes.")
@click.option("-j", "--jobid", metavar="JOBID", help="Of this job.")
@click.option("--all", "every", is_flag=True, help="Of all jobs.")
def kill(signum: int, targets: str | None, jobid: str | None, every: bool) -> int:
    """Signal housekeeping commands; their nodes go back to the scheduler when they have ended."""
    from leveret.client import Client

    if not every and jobid is None and targets is None:
        output.note("ERROR: specify at least one of --targets, --jobid, or --all")
        return 1
    with Client() as client:
        client.kill_housekeeping(
            None if jobid is None else parse_jobid(jobid), targets=targets, all=every, signum=signum
        )
    return 0


@click.command(
    "wait",
    cls=Command,
    prefix="housekeeping",
    usage="JOBID",
    examples=(("leveret housekeeping wait ƒ2oY3Gx7", "until its nodes are free again"),),
)
@click.argument("jobid", metavar="JOBID", shell_complete=complete_jobids)
def wait(jobid: str) -> int:
    """Wait until a job is over and its nodes have gone back to the scheduler, or are drained."""
    from leveret.client import Client

    number = parse_jobid(jobid)
    with Client() as client:
        try:
            client.wait_housekeeping(number)
        except NotFoundError:
            raise NotFoundError(f"job {jobid} not found")
    return 0
