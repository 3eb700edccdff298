"""`leveret`: the console entry point. Verbs are loaded when used, so that each pays only for itself."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

from leveret import __version__
from leveret.cli import output
from leveret.cli.base import Group, usage_error
from leveret.errors import InternalError, LeveretError

#: verb → (module, attribute, short help); one without a text is not listed
VERBS = {
    "run": ("leveret.cli.run", "run", "Run a job and stay with it until all of its parts are done."),
    "submit": ("leveret.cli.submit", "submit", "Submit jobs and print their ids."),
    "bulksubmit": ("leveret.cli.bulk", "bulksubmit", "Submit a job for each of many inputs."),
    "watch": ("leveret.cli.watch_verb", "watch", "Show the output of jobs until they are over."),
    "jobs": ("leveret.cli.jobs", "jobs", "List jobs."),
    "pgrep": ("leveret.cli.pgrep", "pgrep", "Print the ids of jobs by name."),
    "pkill": ("leveret.cli.pgrep", "pkill", "Cancel jobs by name."),
    "pstree": ("leveret.cli.pstree", "pstree", "Show running jobs as a tree."),
    "cancel": ("leveret.cli.cancel", "cancel", "Cancel jobs."),
    "job": ("leveret.cli.job", "job", "Look at and act on one job: attach, eventlog, wait, kill …"),
    "explain": ("leveret.cli.explain", "explain", "Say why jobs wait and when they may start."),
    "reservation": ("leveret.cli.reservation", "reservation", "Keep nodes for a time."),
    "eventlog": ("leveret.cli.eventlog", "eventlog", "Check eventlogs, ours and Flux's."),
    "post-job-event": ("leveret.cli.job_more", "post_job_event", "Post an event of your own to a job."),
    "update": ("leveret.cli.update", "update", "Set attributes of a job: its time limit, its queue."),
    "queue": ("leveret.cli.queue", "queue", "List, enable, disable, start, stop and wait for queues."),
    "start": ("leveret.cli.start", "start", "Run an instance around a command or in the foreground."),
    "shutdown": ("leveret.cli.manage", "shutdown", "End the instance."),
    "status": ("leveret.cli.manage", "status", "Show the instance: daemon, helpers, where it lives."),
    "housekeeping": ("leveret.cli.housekeeping", "housekeeping", "What nodes do after a job: list, end, wait for it."),
    "dump": ("leveret.cli.upkeep", "dump", "Copy the instance while it runs."),
    "restore": ("leveret.cli.upkeep", "restore", "Make an instance's state of a dump."),
    "fsck": ("leveret.cli.upkeep", "fsck", "Check an instance's state, and repair it."),
    "jobtap": ("leveret.cli.jobtap", "jobtap", "Load, list and remove plugins."),
    "uptime": ("leveret.cli.system", "uptime", "Say how long the instance has been up."),
    "dmesg": ("leveret.cli.system", "dmesg", "Print the instance's log."),
    "getattr": ("leveret.cli.system", "getattr_", "Print an attribute of the instance."),
    "hostlist": ("leveret.cli.hostlist_verb", "hostlist", "Combine lists of hosts."),
    "resource": ("leveret.cli.resource", "resource", "Nodes: list them, drain them, say why."),
    "rabbit": ("leveret.cli.rabbit", "rabbit", "Rabbits: list them, and the storage that jobs have on them."),
    "getrabbit": (
        "leveret.cli.rabbit",
        "getrabbit",
        "Say which rabbits belong to jobs or nodes, and which nodes to rabbits.",
    ),
    "R": ("leveret.cli.rset", "R", "Read, write and combine resource sets."),
    "env": ("leveret.cli.system", "env", "Print or use the environment of the instance."),
    "multi-prog": ("leveret.cli.multi_prog", "multi_prog", "Run a command of its own for each task of a job."),
    "alias": ("leveret.cli.alias", "alias", "Write a `flux` that is Leveret."),
    "help": ("leveret.cli.system", "help_", "Show the help of a verb."),
    "demo": ("leveret.cli.demo", "demo", "Show a whole job: data in, two tasks, data out."),
    "completion": ("leveret.cli.manage", "completion", "Print a script that completes verbs, options and job ids."),
    "schema": ("leveret.cli.schema", "schema", "Print the JSON Schema of what a command prints with --json."),
    "version": ("leveret.cli.manage", "version", "Print versions."),
}


@click.group("leveret", cls=Group, verbs=VERBS, invoke_without_command=True)
@click.option("--version", "-V", is_flag=True, help="Print the version and leave.")
@click.pass_context
def cli(ctx: click.Context, version: bool) -> None:
    """A job manager that speaks Flux's job model: a job is done when all of its parts are done.

    The first command starts your own instance; `leveret start` runs one around a command, and LEVERET_URI
    addresses any other.
    """
    if version:
        output.data(f"leveret {__version__}")
        ctx.exit(0)
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


def run_cli(args: Sequence[str]) -> int:
    """Run a command line. Returns the exit code; everything else has been printed."""
    output.verb = ""
    output.targets.clear()
    try:
        # not cli.main(): it makes an exit code 1 of a broken pipe
        with cli.make_context(output.NAME, list(args)) as context:
            code = cli.invoke(context)
    except click.UsageError as failure:
        return usage_error(failure)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except LeveretError as failure:
        return output.error(failure)
    except BrokenPipeError:
        return output.EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return output.EXIT_INTERRUPTED
    except Exception as bug:
        return internal_error(bug)
    return code if isinstance(code, int) else 0


def internal_error(bug: Exception) -> int:
    """A bug of ours. One line, and where it happened; everything with LEVERET_TRACEBACK set."""
    import traceback

    if os.environ.get("LEVERET_TRACEBACK"):
        output.plain(traceback.format_exc().rstrip())
    frame = traceback.extract_tb(bug.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    hint = "this is a bug in leveret; LEVERET_TRACEBACK=1 shows more"
    return output.error(InternalError(f"{type(bug).__name__}: {bug} ({where})", hint))


def main() -> None:
    """The console script. Leaves by `os._exit`: taking the interpreter down would cost a fifth of a short command."""
    gc.set_threshold(50_000)
    if "_LEVERET_COMPLETE" in os.environ:  # click's own protocol for the shell's completion
        cli.main(prog_name="leveret", complete_var="_LEVERET_COMPLETE")
        return
    code = output.EXIT_BROKEN_PIPE
    try:
        code = run_cli(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    os._exit(code)
