"""`leveret job status|wait|info|list|last|id|timeleft`: what only looks or waits."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.cli.choices import JOB_FORM
from leveret.cli.printer import exit_code_of, exit_message
from leveret.errors import FormatError, InvalidError, NotFoundError, NothingToWaitError

RESULT_NUMBERS = {"COMPLETED": 1, "FAILED": 2, "CANCELED": 4, "TIMEOUT": 8}
STATE_NUMBERS = {"NEW": 1, "DEPEND": 2, "PRIORITY": 4, "SCHED": 8, "RUN": 16, "CLEANUP": 32, "INACTIVE": 64}
NO_LIMIT_S = 4294967295


@click.command(
    "status",
    cls=Command,
    prefix="job",
    usage="id [id...]",
    examples=(("leveret job status $a $b || echo failed", "wait for two jobs"),),
)
@click.option("-v", "--verbose", is_flag=True, help="Say what each job did.")
@click.option("-j", "--json", "as_json", is_flag=True, help="A result object per job.")
@click.option("-e", "--exception-exit-code", type=int, metavar="N", help="Code for jobs that only an exception ended.")
@click.argument("ids", nargs=-1, required=True, metavar="id [id...]", shell_complete=complete_jobids)
def status(verbose: bool, as_json: bool, exception_exit_code: int | None, ids: tuple[str, ...]) -> int:
    """Wait until jobs are done. The exit code is the largest of theirs."""
    from leveret.client import Client

    numbers = [(text, parse_jobid(text)) for text in ids]
    records: dict[int, dict[str, Any]] = {}
    with Client() as client:
        for text, jobid in numbers:
            try:
                records[jobid] = client.job(jobid)
            except NotFoundError:
                raise NotFoundError(f"{text}: No such job")
        if verbose and len(numbers) > 1:
            output.note(f"fetching status for {len(numbers)} jobs")
        for line in client.wait_many([jobid for jobid, job in records.items() if not job["done"]]):
            records[line["id"]] = line["job"]
        if verbose and len(numbers) > 1:
            output.note("all done.")
    worst = 0
    for jobid in dict.fromkeys(jobid for _, jobid in numbers):
        job = records[jobid]
        code = int(job.get("exit_code") or 0)
        if code and job.get("waitstatus") is None and exception_exit_code is not None:
            code = exception_exit_code
        worst = max(worst, code)
        if as_json:
            output.json_data(result_object(job))
        if verbose and code and (job.get("waitstatus") is not None or output.NAME != "flux"):
            cause = job.get("cause")
            what = f"exception type={cause.get('type')}" if cause else f"exited with exit code {code}"
            output.note(f"{output.f58(jobid)}: {what}")
    return worst


def result_object(job: dict[str, Any]) -> dict[str, Any]:
    """Flux's result object."""
    keys = ["t_submit", "t_run", "exception_type", "exception_note", "exception_severity", "t_cleanup", "waitstatus"]
    result = {"id": job["id"], "exception_occurred": bool(job.get("exception_occurred"))}
    result |= {key: job[key] for key in keys if job.get(key) is not None}
    result["result"] = RESULT_NUMBERS.get(job.get("result") or "", 0)
    return result


@click.command(
    "wait",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] [id]",
    examples=(
        ("leveret job wait ƒ2oY3Gx7", "any job"),
        ("leveret submit --flags=waitable --cc=0-9 ./part; leveret job wait --all", "all that were submitted so"),
    ),
)
@click.option("-a", "--all", "every", is_flag=True, help="All waitable jobs.")
@click.option("-v", "--verbose", is_flag=True, help="A line for successes also.")
@click.argument("jobid", metavar="[id]", required=False, shell_complete=complete_jobids)
def wait(every: bool, verbose: bool, jobid: str | None) -> int:
    """Wait until a job is clean. Exit codes: 0 success, 1 the job failed, 2 not waitable, 3 nothing to wait for, 4 no daemon.

    Without an id it waits for the next job that was submitted with the flag `waitable`, and prints its id.
    """
    from leveret.client import Client

    if every and jobid is not None:
        raise click.UsageError("an id and --all cannot be used together")
    with Client() as client:
        if every:
            return wait_all(client, verbose)
        job = client.wait(parse_jobid(jobid)) if jobid is not None else client.wait_next()
    if jobid is None:
        output.data(output.f58(job["id"]))
    if job.get("success"):
        if verbose:
            output.note("job completed successfully")
        return 0
    output.note(why_failed(job))
    return 1


def wait_all(client: Any, verbose: bool) -> int:
    code = 0
    while True:
        try:
            job = client.wait_next()
        except NothingToWaitError:
            return code
        name = output.f58(job["id"])
        if not job.get("success"):
            output.plain(f"{name}: {why_failed(job)}")
            code = 1
        elif verbose:
            output.plain(f"{name}: job completed successfully")


def why_failed(job: dict[str, Any]) -> str:
    """The tasks' end if that says it, else the cause of the verdict."""
    message = exit_message(job.get("waitstatus"))
    cause = job.get("cause")
    if cause and (not message or exit_code_of(job.get("waitstatus") or 0) == 0):
        return f"Fatal exception type={cause.get('type')} {cause.get('note') or ''}"
    return message or "job failed"


KEYS = """some useful keys are:
  J                    - signed jobspec
  R                    - allocated resources
  eventlog             - primary job eventlog
  jobspec              - job specification
  guest.exec.eventlog  - execution eventlog
  guest.input          - job input log
  guest.output         - job output log"""


@click.command(
    "info",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] id key",
    examples=(("leveret job info ƒ2oY3Gx7 R", "what it was given"),),
)
@click.option("-o", "--original", is_flag=True, help="The jobspec as it was submitted.")
@click.option("-b", "--base", is_flag=True, help="Without the updates of the eventlog.")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
@click.argument("key", metavar="key", required=False)
def info(original: bool, base: bool, jobid: str, key: str | None) -> int:
    """Print a key of a job: jobspec, R, J, eventlog, guest.exec.eventlog, guest.input, guest.output, guest.NAME."""
    from leveret.client import Client

    if key is None:
        output.plain(f"usage: {output.NAME} job info id key")
        output.plain(KEYS)
        return 1 if output.NAME == "flux" else 2
    number = parse_jobid(jobid)
    with Client() as client:
        try:
            text = client.key(number, key, original=original, base=base)
        except NotFoundError:
            try:
                client.job(number)
            except NotFoundError:
                raise NotFoundError("invalid job id")
            raise NotFoundError(f"{key}: key not found")
    output.write(1, output.encode(text if text.endswith("\n") else text + "\n"))
    return 0


@click.command(
    "list", cls=Command, prefix="job", usage="[OPTIONS]", examples=(("leveret job list -a -c 5", "the last five"),)
)
@click.option("-a", "--all", "every", is_flag=True, help="Jobs that are over too.")
@click.option("-c", "--count", type=int, metavar="N", default=1000, help="At most N jobs (1000; 0: no limit).")
def list_(every: bool, count: int) -> int:
    """Print records of jobs, newest first, one JSON object a line."""
    return print_records(count, None if every else ["DEPEND", "PRIORITY", "SCHED", "RUN", "CLEANUP"])


@click.command("list-inactive", cls=Command, prefix="job", usage="[OPTIONS]")
@click.option("-c", "--count", type=int, metavar="N", default=1000, help="At most N jobs (1000; 0: no limit).")
def list_inactive(count: int) -> int:
    """Print records of jobs that are over, newest first, one JSON object a line."""
    return print_records(count, ["INACTIVE"])


@click.command("list-ids", cls=Command, prefix="job", usage="id [id...]")
@click.argument("ids", nargs=-1, required=True, metavar="id [id...]", shell_complete=complete_jobids)
def list_ids(ids: tuple[str, ...]) -> int:
    """Print records of these jobs, one JSON object a line."""
    from leveret.client import Client

    numbers = [parse_jobid(text) for text in ids]
    with Client() as client:
        for text, jobid in zip(ids, numbers, strict=True):
            try:
                output.json_data(numbered(client.job(jobid)))
            except NotFoundError:
                raise NotFoundError(f"{text}: No such job")
    return 0


def print_records(count: int, states: list[str] | None) -> int:
    from leveret.client import Client

    with Client() as client:
        records = client.jobs(count=count, states=states)
    output.data_lines(output.json_text(numbered(job)) for job in records)
    return 0


def numbered(job: dict[str, Any]) -> dict[str, Any]:
    """A record with Flux's numbers for state and result, which scripts read here."""
    shown = {key: value for key, value in job.items() if value is not None}
    shown["state"] = STATE_NUMBERS.get(job.get("state", ""), 0)
    if job.get("result"):
        shown["result"] = RESULT_NUMBERS.get(job["result"], 0)
    return shown


@click.command(
    "last",
    cls=Command,
    prefix="job",
    usage="[N|SLICE]",
    examples=(("leveret job last", "the last job"), ("leveret job last '[1:3]'", "the two before it")),
)
@click.argument("which", metavar="[N|SLICE]", required=False)
def last(which: str | None) -> int:
    """Print the ids of your last jobs, newest first: one, N, or a Python slice of them all."""
    from leveret.client import Client

    wanted = slice_of(which)
    count = wanted.stop if wanted.start is None and wanted.step is None and (wanted.stop or -1) > 0 else 0
    with Client() as client:
        # the listing has active jobs first; the last job submitted may be over
        records = client.jobs(count=count and max(count, 1000), user=str(os.getuid())) if wanted.stop != 0 else []
    ids = [output.f58(jobid) for jobid in sorted((job["id"] for job in records), reverse=True)][wanted]
    if not ids:
        raise NotFoundError("job history is empty")
    output.data_lines(ids)
    return 0


def slice_of(text: str | None) -> slice:
    if text is None:
        return slice(1)
    if text.isdigit():
        return slice(int(text))
    match = re.fullmatch(r"\[(-?\d*):(-?\d*)(?::(-?\d*))?\]", text)
    single = re.fullmatch(r"\[(-?\d+)\]", text)
    try:
        if single:
            at = int(single[1])
            return slice(at, at + 1 if at != -1 else None)
        if match:
            parts = [int(part) if part else None for part in match.groups()]
            if parts[2] != 0:
                return slice(*parts)
    except ValueError:
        pass
    raise click.UsageError(f"`{text}` is no number and no slice", click.get_current_context())


@click.command(
    "id",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] [id ...]",
    examples=(("leveret job id --to=words ƒ2oY3Gx7", "one that can be told over the telephone"),),
)
@click.option(
    "-t",
    "--to",
    metavar="FORM",
    type=JOB_FORM,
    default="dec",
    help="dec, kvs, hex, dothex, words, f58, f58plain or emoji.",
)
@click.argument("ids", nargs=-1, metavar="[id ...]", shell_complete=complete_jobids)
def id_(to: str, ids: tuple[str, ...]) -> int:
    """Convert job ids between the spellings of RFC 19. Without ids they are read from stdin."""
    from leveret.core import jobid as jobids

    if to not in jobids.FORMS:
        raise InvalidError(f"Unknown to={to}", f"one of {', '.join(jobids.FORMS)}")
    for text in ids or sys.stdin.read().split():
        try:
            number = jobids.parse(text)
        except FormatError:
            raise FormatError(f"{text}: malformed input")
        output.data(jobids.encode(number, to, output.ascii_ids()))
    return 0


@click.command("timeleft", cls=Command, prefix="job", usage="[OPTIONS] [id]")
@click.option("-H", "--human", is_flag=True, help="A duration and not seconds.")
@click.argument("jobid", metavar="[id]", required=False, shell_complete=complete_jobids)
def timeleft(human: bool, jobid: str | None) -> int:
    """Print the seconds until a job's time limit (default: the job we are in). 4294967295 is no limit."""
    from leveret.client import Client
    from leveret.core import duration

    text = jobid or os.environ.get("FLUX_JOB_ID")
    if not text:  # of the instance, then, which has no limit
        output.data(duration.encode(float("inf")) if human else str(NO_LIMIT_S))
        return 0
    number = parse_jobid(text)
    with Client() as client:
        try:
            job = client.job(number)
        except NotFoundError:
            raise NotFoundError(f"{text}: no such jobid")
    state, expiration = job.get("state"), float(job.get("expiration") or 0.0)
    if state == "INACTIVE":
        left = 0.0
    elif state not in ("RUN", "CLEANUP"):
        raise InvalidError(f"{text}: job has not started")
    elif not expiration:
        left = float("inf")
    else:
        left = max(expiration - time.time(), 0.0)
    if human:
        output.data(duration.encode(left))
    else:
        output.data(str(NO_LIMIT_S if left == float("inf") else int(left)))
    return 0
