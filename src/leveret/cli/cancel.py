"""`leveret cancel`: cancel jobs by id, or all that match."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import JOBID, Command
from leveret.cli.choices import STATE, USER
from leveret.errors import InvalidError, LeveretError, NotFoundError

STATES = {
    "depend": ("DEPEND",),
    "priority": ("PRIORITY",),
    "sched": ("SCHED",),
    "run": ("RUN",),
    "cleanup": ("CLEANUP",),
    "pending": ("DEPEND", "PRIORITY", "SCHED"),
    "running": ("RUN", "CLEANUP"),
    "active": ("DEPEND", "PRIORITY", "SCHED", "RUN", "CLEANUP"),
}


@click.command(
    "cancel",
    cls=Command,
    usage="[OPTIONS] [JOBID...]",
    examples=(
        ("leveret cancel ƒ2oY3Gx7", "one job"),
        ("leveret cancel --all --states=pending -m 'wrong input'", "all that wait, with a note"),
    ),
)
@click.option("--all", "every", is_flag=True, help="Every job that matches.")
@click.option("-n", "--dry-run", is_flag=True, help="Say how many jobs it would be only.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about how many were canceled.")
@click.option("-u", "--user", metavar="USER", type=USER, help="Jobs of this user, or `all`.")
@click.option("-S", "--states", metavar="STATES", type=STATE, help="Jobs in these states (default active).")
@click.option("-m", "--message", metavar="NOTE", default="", help="Note of the exception.")
@click.option("--discard-data", is_flag=True, help="Stage nothing out, and end what does (default: data is kept).")
@click.option("--force", is_flag=True, help="Kill the tasks at once, and end every part of the user too.")
@click.argument("ids", nargs=-1, type=JOBID, metavar="[JOBID...]")
def cancel(
    every: bool,
    dry_run: bool,
    quiet: bool,
    user: str | None,
    states: str | None,
    message: str,
    discard_data: bool,
    force: bool,
    ids: tuple[tuple[str, int], ...],
) -> int:
    """Cancel jobs. It does not wait for their end; a canceled job still runs its epilogs and keeps its data.

    Once the tasks are over a job cannot be canceled, but --discard-data ends what still moves data, and --force
    every part of the user. A site's cleanup always runs.
    """
    from leveret.client import Client

    select = every or user is not None or states is not None
    if ids and select:
        raise InvalidError("Job ids and --all, --user or --states cannot be used together")
    if not ids and not select:
        raise InvalidError("No target jobs were provided", "name job ids, or say --all")
    if select:
        wanted = states_of(states)
        uid = user_of(user)
    intent = "force" if force else "discard" if discard_data else "keep"
    with Client() as client:
        if not select:
            return cancel_ids(client, [jobid for _, jobid in ids], message, dry_run, intent)
        jobs = client.jobs(states=wanted, user=uid, count=0)
        if not jobs:
            if not quiet:
                output.note("Matched 0 jobs")
            return 0
        if dry_run:
            output.note(f"Would cancel {counted(len(jobs))}")
            return 0
        errors = sum(not cancel_one(client, job["id"], message, intent) for job in jobs)
        if not quiet or errors:
            output.note(f"Canceled {counted(len(jobs) - errors)} ({errors} error{'s' if errors != 1 else ''})")
        return int(errors > 0)


def counted(number: int) -> str:
    return f"{number} job{'' if number == 1 else 's'}"


def cancel_ids(client: Any, ids: list[int], message: str, dry_run: bool, intent: str = "keep") -> int:
    if dry_run:
        output.note(f"Would cancel {counted(len(ids))}")
        return 0
    return int(sum(not cancel_one(client, jobid, message, intent) for jobid in ids) > 0)


def cancel_one(client: Any, jobid: int, message: str, intent: str = "keep") -> bool:
    try:
        client.cancel(jobid, message, intent)
        return True
    except NotFoundError:
        output.note(f"ERROR: {output.f58(jobid)}: unknown job id")
    except LeveretError as refused:
        if refused.code in ("unreachable", "version", "busy"):
            raise
        output.note(f"ERROR: {output.f58(jobid)}: {refused.message}")
        if refused.hint:
            output.plain(f"hint: {refused.hint}")
    return False


def states_of(text: str | None) -> list[str]:
    wanted: list[str] = []
    for name in (text or "active").split(","):
        if name.lower() not in STATES:
            raise InvalidError(f"Invalid state {name} specified", f"one of {', '.join(STATES)}")
        wanted += STATES[name.lower()]
    return wanted


def user_of(text: str | None) -> str | None:
    """A uid as text, None for our own, "all" for everybody. Raises InvalidError for an unknown name."""
    if text is None or text == "all" or text.isdigit():
        return text
    import pwd

    try:
        return str(pwd.getpwnam(text).pw_uid)
    except KeyError:
        raise InvalidError(f"Invalid user {text} specified")
