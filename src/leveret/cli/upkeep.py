"""`leveret dump`, `restore`, `fsck` and `job export`."""

from __future__ import annotations

import os
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.errors import LeveretError, from_dict

ARCHIVES = (".tar",)


@click.command(
    "export",
    cls=Command,
    prefix="job export",
    usage="id",
    examples=(("leveret job export ƒ2oY3Gx7 > job.json", "jobspec, R, eventlogs and output, for other places"),),
)
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
def export(jobid: str) -> int:
    """Write everything about a job as one JSON object: jobspec, R, eventlogs and all of its output.

    Of a quarantined job: what can be read. `leveret eventlog check` reads it.
    """
    from leveret.client import Client

    with Client() as client:
        client.export(parse_jobid(jobid), lambda piece: output.write(1, piece))
    return 0


@click.command(
    "dump",
    cls=Command,
    usage="[OPTIONS] FILE.tar|DIR",
    examples=(("leveret dump /backup/leveret-monday.tar", "one file"), ("leveret dump /backup/monday", "a directory")),
)
@click.option("--json", "as_json", is_flag=True, help="{path, bytes, files, missing}.")
@click.argument("target", metavar="FILE.tar|DIR", type=click.Path())
def dump(as_json: bool, target: str) -> int:
    """Copy the instance while it runs: its database as of one moment, and the output files. Nothing is overwritten."""
    from leveret.client import Client

    path = os.path.abspath(target)
    with Client() as client:
        done = client.dump(path, archive=path.endswith(ARCHIVES))
    if as_json:
        output.json_data(done)
    else:
        output.note(f"{done['files']} files, {done['bytes']} bytes in {done['path']}")
    for name in done["missing"]:
        output.warning(f"`{name}` is not there; see `leveret fsck`")
    return 0


@click.command(
    "restore",
    cls=Command,
    usage="[OPTIONS] FILE|DIR",
    examples=(("leveret restore /backup/monday.tar --statedir ~/restored", "leveret start -S would run it"),),
)
@click.option("--statedir", metavar="DIR", type=click.Path(), required=True, help="Where to: empty, or not there yet.")
@click.option("--json", "as_json", is_flag=True, help="{state_dir, files, jobs, running}.")
@click.argument("source", metavar="FILE|DIR", type=click.Path())
def restore(statedir: str, as_json: bool, source: str) -> int:
    """Make an instance's state directory of what `dump` wrote. Jobs that ran then have failed (`helper lost`)."""
    done = offline("restore", os.path.abspath(source), "--statedir", os.path.abspath(statedir))
    if as_json:
        output.json_data(done)
    else:
        output.note(f"{done['jobs']} jobs in {done['state_dir']}; {done['running']} of them ran")
    return 0


@click.command(
    "fsck",
    cls=Command,
    examples=(
        ("leveret fsck", "your own instance, also while it runs"),
        ("leveret fsck --repair --statedir DIR", "when no daemon runs on it"),
    ),
)
@click.option(
    "--statedir",
    metavar="DIR",
    type=click.Path(),
    help="Which instance (default: the one that LEVERET_URI names, else your own).",
)
@click.option("--repair", is_flag=True, help="Mend what can be; what is taken out is kept in lost+found.")
@click.option("--json", "as_json", is_flag=True, help="{state_dir, schema, jobs, in_use, problems, repaired, left}.")
def fsck(statedir: str | None, repair: bool, as_json: bool) -> int:
    """Check an instance's state: database, every job's records and eventlog, and what belongs to no job.

    Exit code 0: all is well (or is now); 1: there are problems; 2: it cannot be checked.
    """
    from leveret import instance

    directory = os.path.abspath(statedir) if statedir else addressed() or instance.default_state_dir()
    try:
        found = offline("fsck", "--statedir", directory, *(["--repair"] if repair else []))
    except LeveretError as failure:
        output.error(failure)
        return 2
    if as_json:
        output.json_data(found, pretty=output.is_terminal(1))
        return 1 if found["left"] else 0
    for problem in found["problems"]:
        where = f"{problem['f58']}: " if problem.get("f58") else ""
        output.data(f"{problem['severity']}: {problem['what']}: {where}{problem['message']}")
    for text in found["repaired"]:
        output.data(f"repaired: {text}")
    output.note(f"{found['jobs']} jobs, {len(found['problems'])} problems, {found['left']} left in {directory}")
    return 1 if found["left"] else 0


def addressed() -> str:
    """The state directory of the instance that LEVERET_URI names and that runs, else ""."""
    from leveret.client import Client

    if not os.environ.get("LEVERET_URI"):
        return ""
    try:
        with Client(start=False, patience_s=2.0) as client:
            return str(client.status()["state_dir"])
    except LeveretError:
        return ""


def offline(*args: str) -> dict[str, Any]:
    """Run a verb of leveret.store.offline in a process of its own: commands do not import the daemon's side."""
    import json
    import subprocess
    import sys

    command = [sys.executable, "-P", "-m", "leveret.store.offline", *args]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise LeveretError(f"`{args[0]}` ended without an answer (exit code {done.returncode})")
    if "error" in answer:
        raise from_dict(answer["error"])
    return answer
