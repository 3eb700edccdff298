"""`leveret job attach`."""

from __future__ import annotations

import click

from leveret.cli.attach import Attach, Options
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.cli.choices import EVENT
from leveret.errors import InvalidError, NotFoundError


@click.command(
    "attach",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] id",
    attached={"--tail": "10"},
    examples=(
        ("leveret job attach $(leveret job last)", "the last job"),
        ("leveret job attach -w finish ƒ2oY3Gx7", "until the tasks are over; epilogs and data may still run"),
    ),
)
@click.option("-E", "--show-events", is_flag=True, help="Show the job's events on stderr.")
@click.option("-X", "--show-exec", is_flag=True, help="Show the events of its execution on stderr.")
@click.option("--show-status", is_flag=True, help="Show a line of status until the job starts.")
@click.option(
    "-w", "--wait-event", metavar="NAME", type=EVENT, default="", help="Return at this event (default: the job's end)."
)
@click.option("-l", "--label-io", is_flag=True, help="Prefix lines with the task's rank.")
@click.option("-v", "--verbose", count=True, help="Say more; -vv shows events, -vvv the execution's too.")
@click.option("-q", "--quiet", is_flag=True, help="No notes such as `redirected to`, no status line.")
@click.option("-r", "--read-only", is_flag=True, help="Forward no stdin and no signals.")
@click.option("-u", "--unbuffered", is_flag=True, help="Forward stdin as it comes.")
@click.option("-i", "--stdin-ranks", metavar="RANKS", default="all", help="Forward stdin to these ranks only.")
@click.option("--tail", metavar="[=NUM]", type=int, help="Show only the last NUM lines of what is there (10).")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
def attach(
    show_events: bool,
    show_exec: bool,
    show_status: bool,
    wait_event: str,
    label_io: bool,
    verbose: int,
    quiet: bool,
    read_only: bool,
    unbuffered: bool,
    stdin_ranks: str,
    tail: int | None,
    jobid: str,
) -> int:
    """Attach to a job: show its output from the beginning, forward stdin and signals, end with the job.

    It ends when all parts of the job are done, with the job's exit code. Ctrl-C twice cancels the job, Ctrl-C
    and then Ctrl-Z leaves it running. A job that is over is shown again in full.
    """
    from leveret.client import Client

    number = parse_jobid(jobid)
    if stdin_ranks != "all":
        from leveret.core import idset

        if not idset.parse(stdin_ranks):
            raise InvalidError("--stdin-ranks: the set is empty")
    options = Options(
        show_events=show_events or verbose >= 2,
        show_exec=show_exec or verbose >= 3,
        show_status=show_status,
        wait_event=wait_event,
        label=label_io,
        quiet=quiet,
        verbose=verbose,
        read_only=read_only,
        unbuffered=unbuffered,
        stdin_ranks=stdin_ranks,
        tail=tail,
    )
    with Client() as client:
        try:
            return Attach(client, number, options).run()
        except NotFoundError as failure:
            raise NotFoundError(f"Failed to attach to {jobid}: No such job", failure.hint)
