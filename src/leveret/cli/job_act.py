"""`leveret job cancel|raise|kill|urgency|submit`: what changes a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from leveret.cli import output, submission
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.cli.choices import FLAG, SIGNAL, URGENCY
from leveret.errors import FormatError, InvalidError, LeveretError, NotFoundError

#: Errors that are about the daemon and not about the job.
INSTANCE_ERRORS = ("unreachable", "busy", "version", "internal", "forbidden")


def each(what: str, ids: list[str], action: Callable[[Any, int], None]) -> int:
    """Do something to each job; one that refuses gets a line `WHAT ID: why`, and the exit code is 1."""
    from leveret.client import Client

    numbers = [(text, parse_jobid(text)) for text in ids]
    code = 0
    with Client() as client:
        for text, jobid in numbers:
            try:
                action(client, jobid)
            except LeveretError as refused:
                if refused.code in INSTANCE_ERRORS:
                    raise
                reason = "unknown job id" if isinstance(refused, NotFoundError) else refused.message
                output.note(f"{what} {text}: {reason}")
                if refused.hint:
                    output.plain(f"hint: {refused.hint}")
                code = 1
    return code


def ids_and_note(words: tuple[str, ...]) -> tuple[list[str], str]:
    """Leading job ids, and the rest as a note. The first word must be an id."""
    from leveret.core import jobid as jobids

    ids = [words[0]]
    for word in words[1:]:
        try:
            jobids.parse(word)
        except FormatError:
            break
        ids.append(word)
    return ids, " ".join(words[len(ids) :])


WORDS = click.argument("words", nargs=-1, required=True, metavar="ids... [note...]", shell_complete=complete_jobids)


@click.command(
    "cancel",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] ids... [note...]",
    examples=(("leveret job cancel ƒ2oY3Gx7 wrong input", "with a note"),),
)
@click.option("-m", "--message", metavar="NOTE", help="Note of the exception (or trailing words).")
@WORDS
def cancel(message: str | None, words: tuple[str, ...]) -> int:
    """Cancel jobs. It does not wait for their end."""
    ids, rest = ids_and_note(words)
    note = message if message is not None else rest
    return each("cancel", ids, lambda client, jobid: client.cancel(jobid, note))


@click.command(
    "raise",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] ids... [note...]",
    examples=(("leveret job raise -s 1 -t mytool ƒ2oY3Gx7 disk is slow", "a warning on the job's record"),),
)
@click.option("-s", "--severity", type=int, metavar="N", default=0, help="0-7; 0 is fatal (default 0).")
@click.option("-t", "--type", "kind", metavar="TYPE", default="cancel", help="Type of the exception (default cancel).")
@click.option("-m", "--message", metavar="NOTE", help="Note (or trailing words).")
@WORDS
def raise_(severity: int, kind: str, message: str | None, words: tuple[str, ...]) -> int:
    """Raise an exception for jobs (RFC 21). A fatal one ends them."""
    ids, rest = ids_and_note(words)
    note = message if message is not None else rest
    return each("raise", ids, lambda client, jobid: client.raise_(jobid, kind, severity, note))


@click.command(
    "kill",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] ids...",
    examples=(("leveret job kill -s USR1 ƒ2oY3Gx7", "a signal by its name"),),
)
@click.option(
    "-s", "--signal", "name", metavar="SIG", type=SIGNAL, default="TERM", help="Name or number (default TERM)."
)
@click.argument("ids", nargs=-1, required=True, metavar="ids...", shell_complete=complete_jobids)
def kill(name: str, ids: tuple[str, ...]) -> int:
    """Send a signal to all tasks of jobs."""
    number = signal_of(name)
    return each("kill", list(ids), lambda client, jobid: client.kill(jobid, number))


def signal_of(name: str) -> int:
    """A signal by number or name, with or without SIG."""
    import signal

    if name.isdigit() and 0 < int(name) < signal.NSIG:
        return int(name)
    found = getattr(signal, "SIG" + name.upper().removeprefix("SIG"), None)
    if not isinstance(found, signal.Signals):
        raise InvalidError(f"kill: Invalid signal {name}", "for example TERM, KILL or USR1")
    return int(found)


STEPS = {"up": 1, "down": -1}


@click.command(
    "urgency",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] id urgency",
    examples=(("leveret job urgency ƒ2oY3Gx7 hold", "keep it from starting"),),
)
@click.option("-v", "--verbose", is_flag=True, help="Print the previous urgency.")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
@click.argument("value", metavar="urgency", type=URGENCY)
def urgency(verbose: bool, jobid: str, value: str) -> int:
    """Set a job's urgency: 0-31, hold, expedite or default; `up` and `down` move it by one."""
    from leveret.client import Client

    number = parse_jobid(jobid)
    wanted = 0 if value in STEPS else submission.urgency_of(value)
    with Client() as client:
        try:
            if value in STEPS:
                wanted = min(31, max(0, int(client.job(number)["urgency"]) + STEPS[value]))
            old = client.urgency(number, wanted)
        except LeveretError as refused:
            if refused.code in INSTANCE_ERRORS:
                raise
            reason = "unknown job id" if isinstance(refused, NotFoundError) else refused.message
            raise InvalidError(f"{jobid}: {reason}", refused.hint)
    if verbose:
        output.plain(f"old urgency: { {0: 'job held', 31: 'job expedited'}.get(old, old) }")
    return 0


@click.command(
    "submit",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] [FILE]",
    examples=(("leveret run --dry-run hostname | leveret job submit", "a jobspec from a pipe"),),
)
@click.option("-u", "--urgency", "value", metavar="N", type=URGENCY, help="0-31, hold, expedite or default.")
@click.option("-f", "--flags", metavar="FLAGS", type=FLAG, default="", help="debug, waitable or novalidate.")
@click.argument("path", metavar="[FILE]", default="-")
def submit(value: str | None, flags: str, path: str) -> int:
    """Submit a jobspec as JSON (RFC 25) from a file or stdin, and print the job's id."""
    from leveret.client import Client

    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as lines:
                text = lines.read()
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}")
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise InvalidError(f"jobspec: invalid JSON: {error}")
    if not isinstance(spec, dict):
        raise InvalidError("jobspec must be a mapping")
    with Client() as client:
        jobid = client.submit(spec, submission.urgency_of(value), submission.flags_of(flags))
    output.data(output.f58(jobid))
    return 0
