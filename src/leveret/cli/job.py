"""`leveret job`: the verbs for single jobs."""

from __future__ import annotations

import click

from leveret.cli import output
from leveret.cli.base import Group

ACT, ASK, EVENTS = "leveret.cli.job_act", "leveret.cli.job_ask", "leveret.cli.job_events"
MANY, MORE = "leveret.cli.job_many", "leveret.cli.job_more"

#: verb → (module, attribute, short help)
VERBS = {
    "attach": ("leveret.cli.job_attach", "attach", "Show a job's output and stay with it until it is done."),
    "status": (ASK, "status", "Wait for jobs; exit with the worst of their exit codes."),
    "wait": (ASK, "wait", "Wait for a job, or for the next of those submitted as waitable."),
    "wait-event": (EVENTS, "wait_event", "Wait for an event of a job."),
    "eventlog": (EVENTS, "eventlog", "Print a job's eventlog."),
    "info": (ASK, "info", "Print the jobspec, R, an eventlog or another key of a job."),
    "list": (ASK, "list_", "Print records of jobs as JSON lines."),
    "list-ids": (ASK, "list_ids", ""),
    "list-inactive": (ASK, "list_inactive", ""),
    "last": (ASK, "last", "Print the ids of the last jobs."),
    "id": (ASK, "id_", "Convert job ids between their spellings."),
    "timeleft": (ASK, "timeleft", "Print the seconds until a job's time limit."),
    "cancel": (ACT, "cancel", "Cancel jobs."),
    "raise": (ACT, "raise_", "Raise an exception for jobs."),
    "kill": (ACT, "kill", "Send a signal to jobs' tasks."),
    "raiseall": (MANY, "raiseall", "Raise an exception for all jobs that match."),
    "killall": (MANY, "killall", "Send a signal to the tasks of all running jobs."),
    "purge": (MANY, "purge", "Delete jobs that are over."),
    "memo": (MORE, "memo", "Note values on a job."),
    "taskmap": (MORE, "taskmap", "Print which task ran where."),
    "hostpids": (MORE, "hostpids", "Print HOST:PID of a job's tasks."),
    "stats": (MORE, "stats", "Print counts of jobs."),
    "namespace": (MORE, "namespace", "Print the name of jobs' guest spaces."),
    "parts": ("leveret.cli.job_parts", "parts", "List what a job staged in and out, with results."),
    "retry-part": ("leveret.cli.job_parts", "retry_part", "Try what failed of a part again."),
    "holds": ("leveret.cli.job_holds", "holds", "List what keeps jobs waiting, and who holds it."),
    "give-up": ("leveret.cli.job_holds", "give_up", "Wait for a hold of a job no longer."),
    "urgency": (ACT, "urgency", "Set a job's urgency."),
    "export": ("leveret.cli.upkeep", "export", "Write everything about a job as one JSON object."),
    "quarantine": ("leveret.cli.quarantine", "quarantine", "Jobs whose records cannot be read: list, export, remove."),
    "submit": (ACT, "submit", "Submit a jobspec as JSON."),
}


@click.group("job", cls=Group, verbs=VERBS)
@click.pass_context
def job(ctx: click.Context) -> None:
    """Look at a job, wait for it, act on it."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(1 if output.NAME == "flux" else 2)
