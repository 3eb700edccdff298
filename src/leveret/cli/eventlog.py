"""`leveret eventlog`: eventlogs as files, whoever wrote them."""

from __future__ import annotations

import sys
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group, complete_jobids, parse_jobid
from leveret.errors import FormatError, LeveretError, NotFoundError

VERBS = {"check": ("leveret.cli.eventlog", "check", "Tell whether eventlogs keep RFC 18 and RFC 21.")}
#: what a log that cannot be read, or is none, makes of the exit code
EXIT_UNREADABLE = 2


@click.group("eventlog", cls=Group, verbs=VERBS)
@click.pass_context
def eventlog(ctx: click.Context) -> None:
    """Look at eventlogs as files."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


@click.command(
    "check",
    cls=Command,
    prefix="eventlog check",
    usage="[OPTIONS] FILE...",
    examples=(
        ("leveret eventlog check job.jsonl", "an eventlog of Leveret or of Flux"),
        ("leveret job export ƒ2oY3Gx7 | leveret eventlog check -", "all logs of an exported job"),
        ("leveret eventlog check --job ƒ2oY3Gx7", "a job of the instance"),
    ),
)
@click.option("--json", "as_json", is_flag=True, help="[{file, kind, events, state, result, problems}], one a log.")
@click.option(
    "--job", "jobs", metavar="JOBID", multiple=True, shell_complete=complete_jobids, help="A job of the instance."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code says it.")
@click.argument("files", metavar="FILE", nargs=-1, type=click.Path())
def check(as_json: bool, jobs: tuple[str, ...], quiet: bool, files: tuple[str, ...]) -> int:
    """Tell whether eventlogs keep RFC 18, RFC 21 and the rules of holds: one line `FILE:LINE: message` a violation.

    FILE is an eventlog (of a job, of its execution or output, of resources) or the record that `job export` wrote;
    `-` is stdin. Exit code 0: all keep the rules; 1: one does not; 2: one cannot be read.
    """
    if not (files or jobs):
        raise click.UsageError("name a FILE, or a job with --job")
    found: list[dict[str, Any]] = []
    code = 0
    for name in files:
        try:
            found += check_text("stdin" if name == "-" else name, read(name))
        except LeveretError as failure:
            code = EXIT_UNREADABLE
            output.error(failure)
    for jobid in jobs:
        found += check_job(jobid)
    if any(log["problems"] for log in found):
        code = max(code, 1)
    if as_json:
        output.json_data(found, pretty=output.is_terminal(1))
    elif not quiet:
        for log in found:
            output.data_lines(f"{log['file']}:{problem['line']}: {problem['message']}" for problem in log["problems"])
    return code


def read(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise NotFoundError(f"cannot read `{name}`: {error.strerror}")


def check_text(name: str, text: bytes) -> list[dict[str, Any]]:
    """What is wrong with a log, or with each log of a record. Raises FormatError."""
    from leveret.core import jobrecord, logcheck

    if text.lstrip()[:1] == b"{" and jobrecord.FORMAT.encode() in text[:200]:
        import json

        try:
            record = json.loads(text)
        except ValueError as error:
            raise FormatError(f"{name}: a damaged job record: {error}")
        if jobrecord.is_record(record):
            try:
                reports = jobrecord.check_record(record)
            except FormatError as error:
                raise FormatError(f"{name}: {error.message}")
            return [as_dict(f"{name}:{log}", report) for log, report in reports.items()]
    return [as_dict(name, logcheck.check(text))]


def as_dict(name: str, report: Any) -> dict[str, Any]:
    problems = [{"line": one.line, "message": one.message, "event": one.event or None} for one in report.problems]
    return {
        "file": name,
        "kind": report.kind,
        "events": report.events,
        "state": report.state or None,
        "result": report.result or None,
        "problems": problems,
    }


def check_job(jobid: str) -> list[dict[str, Any]]:
    from leveret.client import Client

    number = parse_jobid(jobid)
    found = []
    with Client() as client:
        for key in ("eventlog", "guest.exec.eventlog"):
            try:
                text = client.key(number, key)
            except NotFoundError:
                if key == "eventlog":
                    raise NotFoundError(f"job {jobid} not found")
                continue
            found += check_text(f"{jobid}:{key}", text.encode())
    return found
