"""`leveret run`: submit one job and attach to it."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli import envrules, output, submission, taskopts
from leveret.cli.choices import EVENT
from leveret.cli.submission_command import SubmissionCommand


@click.command(
    "run",
    cls=SubmissionCommand,
    usage="[OPTIONS...] COMMAND [ARGS...]",
    help_names=("--help",),
    wraps=True,
    examples=(
        ("leveret run hostname", "one task on one core"),
        ("leveret run -n4 -c2 -t 10m ./solver --steps 100", "four tasks of two cores, ten minutes at most"),
        ("leveret run --stage-in data/:in --stage-out out/:results ./step", "move data before and after"),
    ),
)
@submission.options(
    click.option(
        "--wait-event",
        metavar="NAME",
        type=EVENT,
        help="Return at this event and not at the job's end (as job attach -w).",
    ),
)
def run(**params: Any) -> int:
    """Run a job and stay with it: its output is shown here, and its exit code is returned.

    `run` ends when the job is clean, which is when its tasks, epilogs, data movement and every
    other part are over. `--wait-event=finish` returns when the tasks are over.
    """
    for notice in submission.deprecations(params["dependency"]):
        output.plain(notice)
    urgency, flags = submission.urgency_of(params["urgency"]), submission.flags_of(params["flags"])
    stdin_ranks = taskopts.ranks_of(params["input"])
    if stdin_ranks:
        params["input"] = ""
    spec = submission.build(params, envrules.apply(params["env"], envrules.inherited()))
    if params["dry_run"]:
        output.json_data(spec)
        return 0
    from leveret.cli.attach import Attach, Options
    from leveret.client import Client

    interactive = "pty" in spec["attributes"]["system"]["shell"]["options"] and prepare_terminal(spec)
    with Client() as client:
        jobid = client.submit(spec, urgency, flags)
        output.verb = "job"  # from here on the messages are those of attach, as in Flux
        if params["verbose"]:
            output.plain(f"jobid: {output.f58(jobid)}")
        how = Options(
            show_events=params["verbose"] >= 2,
            show_exec=params["verbose"] >= 3,
            wait_event=params["wait_event"] or "",
            label=params["label_io"],
            unbuffered=params["unbuffered"],
            stdin_ranks=stdin_ranks or "all",
            no_stdin=bool(params["input"]),
            interactive=interactive,
            owns=True,
        )
        return Attach(client, jobid, how).run()


def prepare_terminal(spec: dict[str, Any]) -> bool:
    """Whether the job's terminal is to be ours; then it has the size of ours from the beginning."""
    from leveret.cli import terminal

    options = spec["attributes"]["system"]["shell"]["options"]
    if not terminal.wants(options):
        return False
    if (size := terminal.size()) is not None:
        options["pty"]["size"] = size
    return True
