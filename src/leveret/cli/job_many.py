"""`leveret job raiseall|killall|purge`: what changes many jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.cli.cancel import STATES, user_of
from leveret.cli.choices import SIGNAL, STATE, USER
from leveret.errors import FormatError, InvalidError, LeveretError

FOR_ALL = ("unreachable", "busy", "version", "internal", "forbidden")


def act_on_all(jobs: list[dict[str, Any]], force: bool, what: str, action: Callable[[int], None]) -> int:
    """Do it to each job, if confirmed; and say how many there were."""
    if not force:
        output.note(f"Command matched {counted(len(jobs))} (-f to confirm)")
        return 0
    errors = 0
    for job in jobs:
        try:
            action(job["id"])
        except LeveretError as refused:
            if refused.code in FOR_ALL:
                raise
            errors += 1
    output.note(f"{what} {counted(len(jobs) - errors)} ({errors} error{'' if errors == 1 else 's'})")
    return int(errors > 0)


def counted(number: int) -> str:
    return f"{number} job{'' if number == 1 else 's'}"


def states_of(text: str) -> list[str]:
    wanted: list[str] = []
    for name in text.split(","):
        if name.lower() not in STATES:
            raise InvalidError(f"error parsing --states: {name} is unknown", f"one of {', '.join(STATES)}")
        wanted += STATES[name.lower()]
    return wanted


@click.command(
    "raiseall",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] type [note...]",
    examples=(("leveret job raiseall -f -s 0 cancel wrong input", "end all of your jobs, with a note"),),
)
@click.option("-s", "--severity", type=int, metavar="N", default=7, help="0-7; 0 is fatal (default 7).")
@click.option("-u", "--user", metavar="USER", type=USER, help="Jobs of this user, or `all`.")
@click.option("-S", "--states", metavar="STATES", type=STATE, default="active", help="Jobs in these states (active).")
@click.option("-f", "--force", is_flag=True, help="Do it; else only count.")
@click.argument("kind", metavar="type")
@click.argument("note", nargs=-1, metavar="[note...]")
def raiseall(severity: int, user: str | None, states: str, force: bool, kind: str, note: tuple[str, ...]) -> int:
    """Raise an exception for all of your jobs that match."""
    from leveret.client import Client

    wanted = states_of(states)
    if not 0 <= severity <= 7:
        raise InvalidError("invalid exception severity", "0 to 7")
    with Client() as client:
        jobs = client.jobs(states=wanted, user=user_of(user) or str(os.getuid()), count=0)
        text = " ".join(note)
        return act_on_all(jobs, force, "Raised exception on", lambda jobid: client.raise_(jobid, kind, severity, text))


@click.command(
    "killall",
    cls=Command,
    prefix="job",
    usage="[OPTIONS]",
    examples=(("leveret job killall -f -s USR1", "a signal to the tasks of all of your running jobs"),),
)
@click.option("-s", "--signal", "name", metavar="SIG", type=SIGNAL, default="TERM", help="Name or number (TERM).")
@click.option("-u", "--user", metavar="USER", type=USER, help="Jobs of this user, or `all`.")
@click.option("-f", "--force", is_flag=True, help="Do it; else only count.")
def killall(name: str, user: str | None, force: bool) -> int:
    """Send a signal to the tasks of all of your running jobs."""
    from leveret.cli.job_act import signal_of
    from leveret.cli.printer import signal_name
    from leveret.client import Client

    number = signal_of(name)
    with Client() as client:
        jobs = client.jobs(states=["RUN"], user=user_of(user) or str(os.getuid()), count=0)
        return act_on_all(jobs, force, signal_name(number), lambda jobid: client.kill(jobid, number))


@click.command(
    "purge",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] [id ...]",
    examples=(
        ("leveret job purge --age-limit=30d --force", "what ended more than a month ago"),
        ("leveret job purge --force ƒ2oY3Gx7", "one job"),
    ),
)
@click.option("--age-limit", metavar="FSD", help="Jobs that ended longer ago than this.")
@click.option("--num-limit", type=int, metavar="COUNT", help="All but the COUNT jobs that ended last.")
@click.option("-f", "--force", is_flag=True, help="Do it; else only count.")
@click.option("--batch", type=int, metavar="COUNT", default=50, help="Jobs per request (default 50).")
@click.argument("ids", nargs=-1, metavar="[id ...]", shell_complete=complete_jobids)
def purge(age_limit: str | None, num_limit: int | None, force: bool, batch: int, ids: tuple[str, ...]) -> int:
    """Delete jobs that are over, with their output. Their verdicts stay, for the jobs that depend on them."""
    from leveret.client import Client
    from leveret.core import duration

    numbers = [parse_jobid(text) for text in ids]
    limits: dict[str, Any] = {"num_limit": num_limit}
    if age_limit is not None:
        try:
            limits["age_limit_s"] = duration.parse(age_limit)
        except FormatError:
            raise InvalidError(f"purge: invalid age-limit '{age_limit}'", "a duration, for example 30d")
    if numbers and (age_limit is not None or num_limit is not None):
        raise InvalidError("purge: ids and limits cannot be used together")
    with Client() as client:
        try:
            if numbers:
                answer = client.purge(numbers, dry_run=not force)
                purged = answer["count"]
            else:
                answer = client.purge(**limits, count=batch, dry_run=not force)
                purged = answer["count"]
                while force and answer["count"]:
                    answer = client.purge(**limits, count=batch)
                    purged += answer["count"]
        except LeveretError as refused:
            if refused.code in FOR_ALL:
                raise
            refused.message = f"purge: {refused.message}"
            raise
    if force:
        output.data(f"purged {purged} inactive jobs, {answer['total']} remaining")
    else:
        output.data(f"use --force to purge {purged} of {answer['total']} inactive jobs")
    return 0
