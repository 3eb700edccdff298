"""`leveret jobs`: list jobs as a table, JSON or ids.

Left out of Flux's options: -R, -L, --recurse-all and --threads (recursion into child instances).
"""

from __future__ import annotations

import os
import time
from typing import Any

import click

from leveret.cli import fields, output
from leveret.cli.base import JOBID, Command
from leveret.cli.cancel import user_of
from leveret.cli.choices import FILTER, FORMAT, USER, WHEN
from leveret.cli.format import Format
from leveret.errors import FormatError, InvalidError

PENDING, RUNNING = ("DEPEND", "PRIORITY", "SCHED"), ("RUN", "CLEANUP")
STATES = {
    "pending": PENDING,
    "running": RUNNING,
    "active": PENDING + RUNNING,
    "inactive": ("INACTIVE",),
    "depend": ("DEPEND",),
    "priority": ("PRIORITY",),
    "sched": ("SCHED",),
    "run": ("RUN",),
    "cleanup": ("CLEANUP",),
}
RESULTS = ("completed", "failed", "canceled", "timeout")
COUNT_DEFAULT = 1000
COLOURS = {"F": "31", "TO": "31", "CA": "33", "R": "32", "C": "36"}


@click.command(
    "jobs",
    cls=Command,
    usage="[OPTIONS] [JOBID...]",
    attached={"-w": "0", "--width": "0", "--color": "always"},
    examples=(
        ("leveret jobs -a", "all of your jobs, also those that are over"),
        ("leveret jobs -f failed,timeout -o endreason", "why jobs failed"),
        ("leveret jobs -no '{id.f58} {status} {runtime!F}'", "a format of your own"),
    ),
)
@click.option("-a", "every_state", is_flag=True, help="Jobs in all states.")
@click.option("-A", "every_user", is_flag=True, help="Jobs of all users.")
@click.option("-c", "--count", type=int, metavar="N", default=COUNT_DEFAULT, help="At most N jobs (1000; 0: no limit).")
@click.option(
    "-f",
    "--filter",
    "filters",
    metavar="STATE|RESULT",
    type=FILTER,
    multiple=True,
    help="Only these states or results.",
)
@click.option("--since", metavar="WHEN", help="Jobs that ended since -FSD or a time; implies -a.")
@click.option("-n", "--no-header", is_flag=True, help="No header line.")
@click.option("-u", "--user", metavar="USERNAME|UID", type=USER, help="Jobs of a user, or `all`.")
@click.option("--name", metavar="JOB-NAME", help="Jobs with this name.")
@click.option("-q", "--queue", metavar="QUEUE,...", help="Jobs of these queues.")
@click.option("-i", "--include", metavar="HOSTS|RANKS", help="Jobs on these hosts or ranks.")
@click.option(
    "-o",
    "--format",
    "form",
    metavar="FORMAT",
    type=FORMAT,
    help="Format string, or a named format (`help` lists them).",
)
@click.option("--sort", metavar="KEY,...", help="Sort by fields; -KEY reverses.")
@click.option("-w", "--width", metavar="[N]", help="Cut lines to N columns (attached; alone: the terminal's).")
@click.option("--json", "as_json", is_flag=True, help="{jobs: [...]}, or one object for one id.")
@click.option("--ids", is_flag=True, help="Ids only.")
@click.option("--color", metavar="[WHEN]", type=WHEN, default="auto", help="never, always or auto.")
@click.option("--stats", is_flag=True, help="A line of counts ahead of the table.")
@click.option("--stats-only", is_flag=True, help="Counts only; exit code 1 if nothing is active.")
@click.argument("jobids", nargs=-1, type=JOBID, metavar="[JOBID...]")
def jobs(jobids: tuple[tuple[str, int], ...], **params: Any) -> int:
    """List jobs: by default yours that are active, newest first."""
    from leveret.client import Client

    if params["form"] == "help":
        output.data(formats_help())
        return 0
    form = Format(format_text(params["form"]), fields.heading)
    query = None if jobids else query_of(params)
    with Client() as client:
        if params["stats"] or params["stats_only"]:
            line, active = stats(client)
            output.data(line)
            if params["stats_only"]:
                return int(not active)
        if query is None:
            if params["every_state"] or params["filters"] or params["since"]:
                output.warning("Filtering options ignored with jobid list")
            records, missing = by_ids(client, jobids)
        else:
            records, missing = by_query(client, query, params["count"]), []
    if params["include"]:
        records = included(records, params["include"])
    records = in_order(records, params["sort"].split(",") if params["sort"] else form.sort_keys)
    if params["as_json"]:
        shown = [fields.as_json(job) for job in records]
        output.json_data(shown[0] if len(jobids) == 1 and shown else {"jobs": shown})
    elif params["ids"]:
        output.data_lines(output.f58(job["id"]) for job in records)
    elif not (jobids and not records):
        lines = form.lines(records, fields.value_of, not params["no_header"])
        lines = cut(lines, params["width"])
        if output.colours(params["color"]):
            lines = coloured(lines, records)
        output.data_lines(lines)
    for text in missing:
        output.plain(f"JobID {text} unknown")
    return int(bool(missing) and not records)


def format_text(name: str | None) -> str:
    """A named format's string, or the string itself."""
    name = name or os.environ.get("LEVERET_JOBS_FORMAT_DEFAULT") or "default"
    if name in fields.FORMATS:
        return fields.FORMATS[name][0]
    if "{" not in name:
        guess = f" (Did you mean '{{{name}}}'?)"
        raise InvalidError(f"--format: No such format {name}{guess}", f"named formats: {', '.join(fields.FORMATS)}")
    return name


def formats_help() -> str:
    named = {
        name: text for name, (_, text) in fields.FORMATS.items() if output.NAME != "flux" or name not in fields.OURS
    }
    rows = [f"  {name:<12} {text.replace('leveret', output.NAME)}" for name, text in named.items()]
    shown = ["", f"Configured {output.NAME}-jobs output formats:", "", *rows]
    if output.NAME != "flux":
        shown += ["", f"Fields: {', '.join(fields.HEADINGS)}"]
    return "\n".join(shown)


def query_of(params: dict[str, Any]) -> dict[str, Any]:
    """What to ask the daemon for. `states` and `results` are a union."""
    query: dict[str, Any] = {"states": [], "results": []}
    names = [name.lower() for text in params["filters"] for name in text.split(",") if name]
    for name in names:
        if name in STATES:
            query["states"] += STATES[name]
        elif name in RESULTS:
            query["results"].append(name.upper())
        else:
            raise InvalidError(f"Invalid filter specified: {name}", f"one of {', '.join([*STATES, *RESULTS])}")
    if not names and not params["every_state"] and params["since"] is None:
        query["states"] = list(STATES["active"])
    if params["since"] is not None:
        query["since"] = since_of(params["since"], time.time())
    user = "all" if params["every_user"] else user_of(params["user"])
    query["user"] = None if user == "all" else user if user is not None else str(os.getuid())
    query["name"] = params["name"]
    query["queue"] = params["queue"]
    return query


def since_of(text: str, now: float) -> float:
    """Seconds since the epoch of `-FSD`, an epoch or a time."""
    from leveret.cli.submission import begin_time
    from leveret.core import duration

    if text.startswith("-"):
        try:
            return now - duration.parse(text[1:])
        except FormatError:
            raise InvalidError(f'--since: Invalid datetime: "{text}"', "for example -1h or 2031-05-01T09:00")
    try:
        return float(text)
    except ValueError:
        moment = begin_time(text, now)
    return moment - 86400 if moment > now and ":" in text and len(text) <= 8 else moment


def by_query(client: Any, query: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Newest first; says on stderr when there are more than `count`."""
    if count < 0:
        raise InvalidError("--count: must not be negative")
    states, results = query.pop("states"), query.pop("results")
    asked = count + 1 if count else 0
    found: dict[int, dict[str, Any]] = {}
    for part in [{"states": states}] * bool(states) + [{"results": results}] * bool(results) or [{}]:
        found.update((job["id"], job) for job in client.jobs(count=asked, **part, **query))
    records = sorted(found.values(), key=lambda job: job["id"], reverse=True)
    if count and len(records) > count:
        output.plain(f"warning: output truncated at {count} jobs.")
        output.plain("Use --count to increase returned results or use filters to alter results.")
        del records[count:]
    return records


def by_ids(client: Any, jobids: tuple[tuple[str, int], ...]) -> tuple[list[dict[str, Any]], list[str]]:
    """Records in the order asked for, and the spellings of unknown ids."""
    found: dict[int, dict[str, Any]] = {}
    numbers = [jobid for _, jobid in jobids]
    for first in range(0, len(numbers), 200):
        part = numbers[first : first + 200]
        found.update((job["id"], job) for job in client.jobs(ids=part, count=0))
    return [found[n] for n in numbers if n in found], [text for text, n in jobids if n not in found]


def included(records: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Jobs that run or ran on any of these ranks or hosts."""
    from leveret.core import hostlist, idset

    try:
        ranks = set(idset.parse(text))
    except FormatError:
        hosts = set(hostlist.parse(text))
        return [job for job in records if hosts & set(hostlist.parse(job.get("nodelist") or ""))]
    return [job for job in records if ranks & set(idset.parse(str(job.get("ranks") or "")))]


def in_order(records: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    for key in reversed(keys):
        name = key.removeprefix("-")
        if fields.heading(name) is None:
            raise InvalidError(f"Invalid sort key: {name}")
        records = sorted(records, key=lambda job: sortable(fields.value_of(job, name)), reverse=key.startswith("-"))
    return records


def sortable(value: Any) -> tuple[int, float, str]:
    """Numbers before text, so that a column with empty cells sorts too."""
    if isinstance(value, int | float):
        return 1, float(value), ""
    return (0 if value == "" else 2), 0.0, str(value)


def cut(lines: list[str], width: str | None) -> list[str]:
    if width is None:
        return lines
    try:
        columns = int(width) or output.terminal_width(1)
    except ValueError:
        raise InvalidError(f"--width: `{width}` is not a number")
    return [line[:columns] for line in lines]


def coloured(lines: list[str], records: list[dict[str, Any]]) -> list[str]:
    """Rows by their status; the header, if there is one, stays as it is."""
    head = len(lines) - len(records)
    codes = [""] * head + [COLOURS.get(fields.status_abbrev(job), "") for job in records]
    return [f"\x1b[{code}m{line}\x1b[0m" if code else line for code, line in zip(codes, lines, strict=True)]


def stats(client: Any) -> tuple[str, int]:
    """Flux's line of counts, and how many jobs are active."""
    records = client.jobs(count=0)
    running = sum(job["state"] in RUNNING for job in records)
    pending = sum(job["state"] in (*PENDING, "NEW") for job in records)
    completed = sum(job.get("result") == "COMPLETED" for job in records)
    failed = len(records) - running - pending - completed
    return (
        f"{running} running, {completed} completed, {failed} failed, {pending} pending, 0 inactive purged",
        running + pending,
    )
