"""`leveret pgrep` and `leveret pkill`: jobs by name or range of ids."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from leveret.cli import fields, output
from leveret.cli.base import Command
from leveret.cli.choices import FILTER, FORMAT, USER
from leveret.cli.format import Format
from leveret.errors import FormatError, InvalidError, LeveretError


def options(function: Any) -> Any:
    """What both verbs have."""
    for option in (
        click.argument("expression", nargs=-1, required=True, metavar="EXPRESSION..."),
        click.option("--max-entries", type=int, metavar="N", default=1000, help="Look at most at N jobs (1000)."),
        click.option("-c", "--count", type=int, metavar="N", default=1000, help="At most N matches (1000)."),
        click.option("-q", "--queue", metavar="QUEUE,...", help="Jobs of these queues."),
        click.option(
            "-f", "--filter", "filters", metavar="STATE|RESULT", type=FILTER, multiple=True, help="Only these."
        ),
        click.option("-u", "--user", metavar="USER", type=USER, help="Jobs of a user, or `all`."),
        click.option("-A", "every_user", is_flag=True, help="Jobs of all users."),
    ):
        function = option(function)
    return function


def matching(client: Any, expression: tuple[str, ...], params: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs that match, newest first."""
    from leveret.cli.jobs import query_of

    test = test_of(expression)
    query = query_of({"every_state": False, "since": None, "name": None, **params})
    states, results = query.pop("states"), query.pop("results")
    found: dict[int, dict[str, Any]] = {}
    for part in [{"states": states}] * bool(states) + [{"results": results}] * bool(results) or [{}]:
        found.update((job["id"], job) for job in client.jobs(count=params["max_entries"], **part, **query))
    return [job for _, job in sorted(found.items(), reverse=True) if test(job)][: params["count"] or None]


def test_of(expression: tuple[str, ...]) -> Any:
    """Whether a job matches: a pattern for its name, and a range of ids `ID1..ID2`; both must if both are given."""
    from leveret.core import jobid as jobids

    pattern, bounds = None, None
    for word in expression:
        first, dots, last = word.partition("..")
        if dots and not word.startswith("name:"):
            try:
                bounds = jobids.parse(first), jobids.parse(last)
                continue
            except FormatError:
                pass
        if pattern is not None:
            raise InvalidError("only one search pattern may be supplied")
        try:
            pattern = re.compile(word.removeprefix("name:"))
        except re.error as error:
            raise InvalidError(f"Error in pattern '{word}': {error}")
    return lambda job: (
        (pattern is None or pattern.search(job.get("name") or "") is not None)
        and (bounds is None or bounds[0] <= job["id"] <= bounds[1])
    )


@click.command(
    "pgrep",
    cls=Command,
    usage="[OPTIONS] EXPRESSION...",
    examples=(
        ("leveret pgrep '^sim'", "ids of active jobs whose name begins with sim"),
        ("leveret pgrep -a -o long solver", "in the long format of jobs, also those that are over"),
    ),
)
@click.option("-a", "every_state", is_flag=True, help="Jobs in all states.")
@options
@click.option("-o", "--format", "form", metavar="FORMAT", type=FORMAT, help="A format of `jobs` (default: ids only).")
@click.option("-n", "--no-header", is_flag=True, help="No header line.")
def pgrep(expression: tuple[str, ...], form: str | None, no_header: bool, **params: Any) -> int:
    """Print the ids of jobs whose name matches a regular expression, or that lie in a range ID1..ID2."""
    from leveret.cli.jobs import format_text
    from leveret.client import Client

    form = form or os.environ.get(f"{output.NAME.upper()}_PGREP_FORMAT_DEFAULT")
    with Client() as client:
        jobs = matching(client, expression, params)
    if not jobs:
        return 1
    if form is None:
        output.data_lines(output.f58(job["id"]) for job in jobs)
    else:
        output.data_lines(Format(format_text(form), fields.heading).lines(jobs, fields.value_of, not no_header))
    return 0


@click.command(
    "pkill",
    cls=Command,
    usage="[OPTIONS] EXPRESSION...",
    examples=(("leveret pkill -w '^sim'", "cancel them and wait for their ends"),),
)
@options
@click.option("-w", "--wait", "stay", is_flag=True, help="Wait until the jobs are over.")
def pkill(expression: tuple[str, ...], stay: bool, **params: Any) -> int:
    """Cancel jobs whose name matches a regular expression, or that lie in a range ID1..ID2."""
    from leveret.client import Client

    errors = 0
    with Client() as client:
        jobs = matching(client, expression, {"every_state": False, **params})
        if not jobs:
            return 1
        for job in jobs:
            try:
                client.cancel(job["id"])
            except LeveretError as refused:
                if refused.code in ("unreachable", "version", "busy"):
                    raise
                output.note(f"ERROR: {output.f58(job['id'])}: {refused.message}")
                errors += 1
        done = len(jobs) - errors
        output.note(f"INFO: Canceled {done} job{'' if done == 1 else 's'}")
        if stay:
            for _ in client.wait_many([job["id"] for job in jobs], brief=True):
                pass
    return int(errors > 0)
