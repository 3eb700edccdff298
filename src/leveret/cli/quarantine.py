"""`leveret job quarantine`: jobs whose records cannot be read."""

from __future__ import annotations

import click

from leveret.cli import output
from leveret.cli.base import Command, Group, parse_jobid

_HERE = "leveret.cli.quarantine"
VERBS = {
    "list": (_HERE, "list_", "List the quarantined jobs, and why they are."),
    "export": ("leveret.cli.upkeep", "export", "Write what can be read of one as one JSON object."),
    "kill": (_HERE, "kill", "End what still runs of one."),
    "remove": (_HERE, "remove", "Delete one for good."),
}


@click.group("quarantine", cls=Group, verbs=VERBS)
@click.pass_context
def quarantine(ctx: click.Context) -> None:
    """Jobs whose records cannot be read. They take no step; what they hold is kept until their tasks are gone."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


@click.command("list", cls=Command, prefix="job quarantine", examples=(("leveret job quarantine list", ""),))
@click.option("--json", "as_json", is_flag=True, help="[{id, f58, why, events, userid, t_submit, resources, tasks}].")
def list_(as_json: bool) -> int:
    """List the quarantined jobs: what is kept allocated for them, what still runs, and why they are here."""
    from leveret.client import Client

    with Client() as client:
        jobs = client.quarantined()
    if as_json:
        output.json_data(jobs, pretty=output.is_terminal(1))
    elif jobs:
        rows = [
            (output.f58(job["id"]), job["resources"] or "-", ",".join(job["tasks"]) or "-", job["why"]) for job in jobs
        ]
        output.table(rows, ("JOBID", "RESOURCES", "RUNNING", "WHY"))
    return 0


@click.command("kill", cls=Command, prefix="job quarantine", usage="id...")
@click.argument("jobids", metavar="id...", nargs=-1, required=True)
def kill(jobids: tuple[str, ...]) -> int:
    """End what still runs of quarantined jobs: SIGTERM, after five seconds SIGKILL."""
    from leveret.client import Client

    with Client() as client:
        for jobid in jobids:
            if not client.quarantine_kill(parse_jobid(jobid)):
                output.note(f"{jobid}: nothing of it runs")
    return 0


@click.command(
    "remove",
    cls=Command,
    prefix="job quarantine",
    usage="id...",
    examples=(("leveret job quarantine export ƒ2oY3Gx7 > lost.json", "keep what there is of it, before"),),
)
@click.argument("jobids", metavar="id...", nargs=-1, required=True)
def remove(jobids: tuple[str, ...]) -> int:
    """Delete quarantined jobs for good. To jobs that depend on them they have failed."""
    from leveret.client import Client

    with Client() as client:
        for jobid in jobids:
            client.quarantine_remove(parse_jobid(jobid))
    return 0
