"""`leveret explain`: why a job waits, and when it may start."""

from __future__ import annotations

import time
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.errors import NotFoundError


@click.command(
    "explain",
    cls=Command,
    usage="[OPTIONS...] JOBID...",
    examples=(("leveret explain $(leveret job last)", "why the last job waits, and when it may start"),),
)
@click.option("--json", "as_json", is_flag=True, help="{jobs: [{id, state, reasons: [{kind, text, ...}], estimate}]}.")
@click.argument("ids", nargs=-1, required=True, metavar="JOBID...", shell_complete=complete_jobids)
def explain(as_json: bool, ids: tuple[str, ...]) -> int:
    """Say why jobs wait and when they may start, as the scheduler sees it now.

    The start is an estimate: jobs run to their time limits, and nothing of a higher priority comes.
    """
    from leveret.client import Client

    numbers = [(text, parse_jobid(text)) for text in ids]
    found: list[dict[str, Any]] = []
    with Client() as client:
        for text, jobid in numbers:
            try:
                found.append(client.explain(jobid))
            except NotFoundError:
                raise NotFoundError(f"{text}: No such job")
    if as_json:
        output.json_data({"jobs": found})
        return 0
    for about in found:
        output.data_lines(lines(about, time.time()))
    return 0


def lines(about: dict[str, Any], now: float) -> list[str]:
    """The answer for people."""
    reasons = about["reasons"]
    waits = f"{output.f58(about['id'])} {about['state']}"
    out = [f"{waits}: " + (reasons[0]["text"] if reasons else about["note"] or "nothing keeps it from its next step")]
    out += [f"  also: {reason['text']}" for reason in reasons[1:]]
    if about.get("position"):
        out.append(f"  place in the queue: {about['position']} of {about['waiting']}")
    if about["estimate"] is not None:
        from leveret.core import duration

        wait_s = about["estimate"] - now
        when = "now" if wait_s < 1 else f"in {duration.encode(wait_s)}"
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["estimate"]))
        out.append(f"  may start: {when} ({clock})")
    elif reasons and about["note"]:
        out.append(f"  may start: not known: {about['note']}")
    return out
