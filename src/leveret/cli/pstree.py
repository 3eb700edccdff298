"""`leveret pstree`: the running jobs of an instance as a tree. Child instances are not looked into yet."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Any

import click

from leveret.cli import fields, output
from leveret.cli.base import JOBID, Command
from leveret.cli.choices import FILTER
from leveret.cli.format import Format
from leveret.cli.jobs import by_ids, by_query, query_of

DETAILS = {
    "default": "{id.f58:>12} {username:<8.8} {status_abbrev:>2.2} {ntasks:>6h} {nnodes:>6h} {runtime!F:>8h} ",
    "resources": "{id.f58:>12} {ntasks:>6h} {nnodes:>6h} {ncores:>6h} {ngpus:>6h} ",
}
#: (between siblings, before the last, beside, below the last)
CONNECTORS = {
    "normal": ("├── ", "└── "),
    "compact": ("├─", "└─"),
    "ascii": ("|-- ", "`-- "),
}


@click.command(
    "pstree",
    cls=Command,
    usage="[OPTIONS] [JOBID...]",
    examples=(("leveret pstree -a", "jobs in all states"), ("leveret pstree -x", "with a table beside it")),
)
@click.option("-a", "--all", "every_state", is_flag=True, help="Jobs in all states.")
@click.option("-c", "--count", type=int, metavar="N", default=1000, help="At most N jobs (1000).")
@click.option("-f", "--filter", "filters", metavar="STATE|RESULT", type=FILTER, multiple=True, help="Only these.")
@click.option("-l", "--long", is_flag=True, help="Do not cut long lines.")
@click.option("-p", "--parent-ids", is_flag=True, help="Ids before the labels of parents.")
@click.option("-x", "--extended", is_flag=True, help="A table beside the tree (--details=default).")
@click.option("-d", "--details", metavar="NAME", type=click.Choice([*DETAILS]), help="A table: default or resources.")
@click.option("-n", "--no-header", is_flag=True, help="No header line above the table.")
@click.option("-X", "--no-combine", is_flag=True, help="One line for each of several equal jobs.")
@click.option("-o", "--label", metavar="FORMAT", help="Label of a job, a format of `jobs`.")
@click.option("--parent-label", metavar="FORMAT", help="Label of a job that is an instance.")
@click.option("--detail-format", metavar="FORMAT", help="A format of `jobs` for the table.")
@click.option("--skip-root", metavar="yes|no", type=click.Choice(["yes", "no"]), help="Leave the root out, or not.")
@click.option("-C", "--compact", is_flag=True, help="Narrow lines.")
@click.option("--ascii", "as_ascii", is_flag=True, help="Lines of ASCII characters.")
@click.argument("jobids", nargs=-1, type=JOBID, metavar="[JOBID...]")
def pstree(jobids: tuple[tuple[str, int], ...], **params: Any) -> int:
    """Show jobs as a tree; equal ones are combined as N*[name]."""
    from leveret.client import Client

    label = params["label"] or ("{name}:{status_abbrev}" if params["every_state"] else "{name}")
    details = params["detail_format"] or DETAILS.get(params["details"] or ("default" if params["extended"] else ""))
    with Client() as client:
        if jobids:
            jobs, missing = by_ids(client, jobids)
            for text in missing:
                output.note(f"ERROR: JobID {text} unknown")
        else:
            if not params["filters"] and not params["every_state"]:
                params["filters"] = ("running",)
            query = query_of({"every_user": False, "user": None, "name": None, "queue": None, "since": None, **params})
            jobs, missing = by_query(client, query, params["count"]), []
    shape = Format(label, fields.heading)
    labels = [line for job in jobs for line in shape.lines([job], fields.value_of, False)]
    skip_root = params["skip_root"] == "yes" if params["skip_root"] else bool(details or jobids)
    lines = [] if skip_root else ["."]
    between, last = CONNECTORS["ascii" if params["as_ascii"] else "compact" if params["compact"] else "normal"]
    rows = combined(labels, not (params["no_combine"] or details))
    for at, text in enumerate(rows):
        lines.append(text if skip_root else (last if at == len(rows) - 1 else between) + text)
    if details:
        table = Format(details, fields.heading).lines(jobs, fields.value_of, not params["no_header"])
        head = table[: len(table) - len(jobs)]
        root = [] if skip_root else [" " * max(map(len, table), default=0)]
        left = [*head, *root, *table[len(head) :]]
        lines = [one + two for one, two in zip(left, [""] * len(head) + lines, strict=True)]
    if not params["long"]:
        columns = int(os.environ.get("COLUMNS") or 0) or (output.terminal_width(1, 0) if output.is_terminal(1) else 0)
        lines = [line[:columns] if columns else line for line in lines]
    output.data_lines(line.rstrip() for line in lines)
    return int(bool(missing) and not jobs)


def combined(labels: list[str], wanted: bool) -> list[str]:
    """Equal labels as `N*[label]`, in order of their first."""
    if not wanted:
        return labels
    counts: dict[str, int] = {}
    for text, group in groupby(labels):
        counts[text] = counts.get(text, 0) + len(list(group))
    return [f"{count}*[{text}]" if count > 1 else text for text, count in counts.items()]
