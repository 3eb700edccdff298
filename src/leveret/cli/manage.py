"""`leveret status`, `shutdown`, `version` and `completion`."""

from __future__ import annotations

import click

from leveret import __version__
from leveret.cli import output
from leveret.cli.base import Command
from leveret.errors import LeveretError, UnreachableError


@click.command("status", cls=Command, examples=(("leveret status --json", "for scripts"),))
@click.option(
    "--json", "as_json", is_flag=True, help="{pid, helpers, uri, state_dir, version, protocol, started, jobs}."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code says whether it runs (4: it does not).")
def status(as_json: bool, quiet: bool) -> int:
    """Show the instance that commands talk to. It is not started for this."""
    from leveret.cli.start import describe
    from leveret.client import Client

    with Client(start=False, patience_s=2.0) as client:
        answer = client.status()
    if as_json:
        output.json_data(answer, pretty=output.is_terminal(1))
    elif not quiet:
        output.table(describe(answer))
    return 0


@click.command("shutdown", cls=Command, examples=(("leveret shutdown", "cancel what runs, and end"),))
@click.option("-t", "--timeout", metavar="FSD", default="10s", help="How long jobs may take to end (default 10s).")
@click.option("-k", "--keep", is_flag=True, help="End the daemon only; tasks run on and the next daemon finds them.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing if no instance runs.")
def shutdown(timeout: str, keep: bool, quiet: bool) -> int:
    """End the instance. Running jobs are canceled first; their epilogs and data movement get the timeout.

    It returns when the daemon is gone, so that the next command starts a fresh one.
    """
    import time

    from leveret.cli.start import end_processes, start_time
    from leveret.client import Client
    from leveret.core import duration

    timeout_s = duration.parse(timeout)
    try:
        with Client(start=False, patience_s=1.0) as client:
            answer = client.status()
            left = client.shutdown(timeout_s, keep)
    except UnreachableError as failure:
        if not failure.message.startswith("no daemon"):
            raise
        if not quiet:
            output.note("no instance runs")
        return 0
    for text in left:
        output.note(f"left behind: {text}")
    pid, deadline = int(answer["pid"]), time.monotonic() + timeout_s + 10
    while start_time(pid):
        if time.monotonic() > deadline:
            raise UnreachableError(f"the daemon (pid {pid}) has not ended", f"see {answer.get('state_dir')}/daemon.err")
        time.sleep(0.02)
    if not keep:
        end_processes([int(helper["pid"]) for helper in answer.get("helpers", []) if helper.get("pid")])
    return 0


@click.command("version", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="{client, daemon} versions.")
def version(as_json: bool) -> int:
    """Print the version of this command, and of the daemon if one runs."""
    from leveret.client import Client

    daemon = ""
    try:
        with Client(start=False, patience_s=0.0) as client:
            daemon = str(client.status().get("version", ""))
    except LeveretError:
        pass
    if as_json:
        output.json_data({"client": __version__, "daemon": daemon or None})
    else:
        output.table([("leveret", __version__), ("daemon", daemon or "not running")])
    return 0


@click.command(
    "completion",
    cls=Command,
    usage="[bash|zsh|fish]",
    examples=(('eval "$(leveret completion bash)"', "in ~/.bashrc"),),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), default="bash")
def completion(shell: str) -> int:
    """Print a script that completes verbs, options and job ids in your shell."""
    from click.shell_completion import get_completion_class

    from leveret.cli.main import cli

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    output.data(found(cli, {}, "leveret", "_LEVERET_COMPLETE").source().strip())
    return 0
