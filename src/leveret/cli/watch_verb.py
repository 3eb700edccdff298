"""`leveret watch`: follow the output of jobs until they are over."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import JOBID, Command
from leveret.cli.choices import FILTER
from leveret.cli.jobs import COUNT_DEFAULT, by_ids, by_query, query_of


@click.command(
    "watch",
    cls=Command,
    usage="[OPTIONS] [JOBID...]",
    examples=(
        ("leveret watch --active --progress", "all that runs or waits, with a progress bar"),
        ("leveret watch -l $(leveret job last 3)", "three jobs, each line with its job and task"),
    ),
)
@click.option("-a", "--active", is_flag=True, help="All active jobs.")
@click.option("-A", "--all", "every_state", is_flag=True, help="All jobs, also those that are over.")
@click.option("-c", "--count", type=int, metavar="N", default=COUNT_DEFAULT, help="At most N jobs (1000; 0: no limit).")
@click.option(
    "-f", "--filter", "filters", metavar="STATE|RESULT", type=FILTER, multiple=True, help="By state or result."
)
@click.option("--since", metavar="WHEN", help="Jobs that ended since -FSD or a time; implies -A.")
@click.option("--progress", is_flag=True, help="Show a progress bar (on a terminal).")
@click.option("--jps", is_flag=True, help="Show jobs per second in the progress bar.")
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with its job and task.")
@click.option("-v", "--verbose", count=True, help="Show more: -vv shows events.")
@click.argument("jobids", nargs=-1, type=JOBID, metavar="[JOBID...]")
def watch(jobids: tuple[tuple[str, int], ...], **params: Any) -> int:
    """Show the output of jobs, from the beginning, until they are over. Exits with the worst of their codes."""
    from leveret.cli import watch as followed
    from leveret.client import Client

    selected = params["active"] or params["every_state"] or params["filters"] or params["since"] is not None
    if not jobids and not selected:
        raise click.UsageError("at least one job id or selection option is required", click.get_current_context())
    with Client() as client:
        if jobids:
            records, missing = by_ids(client, jobids)
            for text in missing:
                output.note(f"ERROR: JobID {text} unknown")
        else:
            query = query_of({"every_user": False, "user": None, "name": None, "queue": None, **params})
            records = by_query(client, query, params["count"])
        if not records:
            output.note("INFO: No matching jobs")
            return 0
        ids = sorted(job["id"] for job in records)
        bar = None
        if params["progress"]:
            if output.is_terminal(1):
                from leveret.cli.progress import Progress

                since = min(float(job.get("t_submit") or 0.0) for job in records)
                bar = Progress(client.uri, ids, params["jps"], since)
            else:
                output.plain(f"{output.NAME}: WARNING: stdout is not a tty. Ignoring --progress option")
        return followed.watch(client, ids, params["label_io"], True, params["verbose"], bar)
