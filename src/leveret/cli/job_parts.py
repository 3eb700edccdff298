"""`leveret job parts|retry-part`: what a job moved, item by item, and trying again what failed."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.errors import NotFoundError

HEADER = ("PART", "STATUS", "TRIES", "BYTES", "TIME", "SOURCE", "DESTINATION", "ERROR")


def row(item: dict[str, Any]) -> list[str]:
    from leveret.core import duration

    size = "-" if item["bytes"] is None else str(item["bytes"])
    took = duration.encode(round(item["duration_s"], 2)) if item["attempts"] else "-"
    tries = str(item["attempts"])
    return [item["part"], item["status"], tries, size, took, item["source"], item["destination"], item["error"] or "-"]


@click.command(
    "parts",
    cls=Command,
    prefix="job",
    usage="[--json] id",
    examples=(("leveret job parts ƒ2oY3Gx7", "what was moved, and what was not and why"),),
)
@click.option(
    "--json", "as_json", is_flag=True, help="{items: [{part, source, destination, status, bytes, error, ...}]}."
)
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
def parts(as_json: bool, jobid: str) -> int:
    """List the items of --stage-in and --stage-out that were tried, with their results; also after the job's end."""
    from leveret.client import Client

    number = parse_jobid(jobid)
    with Client() as client:
        try:
            items = client.parts(number)
        except NotFoundError:
            raise NotFoundError(f"job {jobid} not found")
    if as_json:
        output.json_data({"items": items})
    elif items:
        output.table([row(item) for item in items], HEADER)
    return 0


@click.command(
    "retry-part",
    cls=Command,
    prefix="job",
    usage="id NAME",
    examples=(("leveret job retry-part ƒ2oY3Gx7 stage-out", "the disk has space again"),),
)
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
@click.argument("name", metavar="NAME")
def retry_part(jobid: str, name: str) -> int:
    """Try what failed of a part that is held open (--on-part-failure=hold) again."""
    from leveret.client import Client

    with Client() as client:
        client.retry_part(parse_jobid(jobid), name)
    return 0
