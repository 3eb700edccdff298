"""`leveret queue`: list, enable, disable, start, stop and wait for queues (RFC 33)."""

from __future__ import annotations

import os
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group
from leveret.cli.format import Format
from leveret.errors import FormatError, InvalidError

VERBS = {
    "list": (__name__, "list_", "List queues with their state, defaults and limits."),
    "status": (__name__, "status", "Say whether queues take jobs and are scheduled."),
    "enable": (__name__, "enable", "Take jobs."),
    "disable": (__name__, "disable", "Take no jobs."),
    "start": (__name__, "start", "Give resources to jobs."),
    "stop": (__name__, "stop", "Give no resources to jobs; what runs goes on."),
    "drain": (__name__, "drain", "Wait until there is no active job."),
    "idle": (__name__, "idle", "Wait until nothing runs or asks for resources."),
}
INF = float("inf")
KINDS = ("nnodes", "ncores", "ngpus")
STATES = ("all", "free", "allocated", "up", "down")

#: field → heading
HEADINGS = {
    "queue": "QUEUE",
    "queuem": "QUEUE",
    "submission": "SUBMIT",
    "scheduling": "SCHED",
    "enabled": "EN",
    "started": "ST",
    "enabled.ascii": "EN",
    "started.ascii": "ST",
    "defaults.timelimit": "TDEFAULT",
    "limits.timelimit": "TLIMIT",
    **{f"limits.{part}.{kind}": kind.upper() for part in ("range", "range.effective") for kind in KINDS},
    **{f"limits.{part}.{kind}": f"{part.upper()}{kind.upper()}" for part in ("min", "max") for kind in KINDS},
    **{f"resources.{state}.{kind}": kind.upper() for state in STATES for kind in KINDS},
}
_RANGES = " ".join(f"{{limits.range.effective.{kind}:>10}}" for kind in KINDS)
FORMATS = {
    "default": (
        f"?:{{queuem:<8.8}} {{enabled:>2}} {{started:>2}} {{defaults.timelimit!F:>8}} {{limits.timelimit!F:>8}} {_RANGES}",
        "Default leveret-queue list format string",
    )
}


def value_of(queue: dict[str, Any], name: str) -> Any:
    """The value of a field; unlimited is inf."""
    simple = {
        "queue": queue["name"],
        "queuem": queue["name"] + "*" * queue["default"],
        "submission": "enabled" if queue["enabled"] else "disabled",
        "scheduling": "started" if queue["started"] else "stopped",
        "enabled": "✔" if queue["enabled"] else "✗",
        "started": "✔" if queue["started"] else "✗",
        "enabled.ascii": "y" if queue["enabled"] else "n",
        "started.ascii": "y" if queue["started"] else "n",
        "defaults.timelimit": queue["defaults"]["timelimit"] or INF,
        "limits.timelimit": queue["limits"]["timelimit"] or INF,
    }
    if name in simple:
        return simple[name]
    *path, kind = name.split(".")
    if path[0] == "resources":
        return queue["resources"][path[1]][kind]
    low, high = queue["limits"]["min"].get(kind, 0), queue["limits"]["max"].get(kind, INF)
    if path[-1] == "min":
        return low
    if path[-1] == "max":
        return high
    if path[-1] == "effective":
        high = min(high, queue["resources"]["all"][kind])
    return f"{low}-{high}"


@click.group("queue", cls=Group, verbs=VERBS)
@click.pass_context
def queue(ctx: click.Context) -> None:
    """Queues of jobs. Without configured ones there is one, which has no name."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


def _names(text: str | None) -> list[str]:
    return [name for name in (text or "").split(",") if name]


def _chosen(option: str | None, words: tuple[str, ...]) -> list[str]:
    if option is not None and words:
        raise InvalidError(f"Conflicting queues specified as --queue={option} and {' '.join(words)}")
    return _names(option) if option is not None else list(words)


@click.command("list", cls=Command, prefix="queue", examples=(("leveret queue list --json", "for scripts"),))
@click.option("-q", "--queue", metavar="QUEUE,...", help="Only these queues.")
@click.option("-n", "--no-header", is_flag=True, help="No header line.")
@click.option("-o", "--format", "form", metavar="FORMAT", help="Format string, or a named format (`help` lists them).")
@click.option("--json", "as_json", is_flag=True, help="{queues: [...]}; times in seconds, null is unlimited.")
def list_(queue: str | None, no_header: bool, form: str | None, as_json: bool) -> int:
    """List queues: whether they are enabled and started, their default time limit, and limits."""
    from leveret.client import Client

    if form == "help":
        output.data_lines(f"  {name:<12} {text}" for name, (_, text) in FORMATS.items())
        output.data(f"Fields: {', '.join(HEADINGS)}")
        return 0
    name = form or os.environ.get("LEVERET_QUEUE_LIST_FORMAT_DEFAULT") or "default"
    if name not in FORMATS and "{" not in name:
        raise InvalidError(f"--format: No such format {name}", f"named formats: {', '.join(FORMATS)}")
    layout = Format(FORMATS[name][0] if name in FORMATS else name, HEADINGS.get)
    with Client() as client:
        answer = client.queues(_names(queue))
    if as_json:
        output.json_data({"queues": answer["queues"]})
        return 0
    rows = answer["queues"]
    for key in reversed(layout.sort_keys):
        field = key.removeprefix("-")
        if field not in HEADINGS:
            raise InvalidError(f"Invalid sort key: {field}")
        rows = sorted(rows, key=lambda row: value_of(row, field), reverse=key.startswith("-"))
    lines = layout.lines(rows, value_of, not no_header)
    if output.colours("auto"):
        lines = [line.replace("✔", "\x1b[32m✔\x1b[0m").replace("✗", "\x1b[31m✗\x1b[0m") for line in lines]
    output.data_lines(lines)
    return 0


def _submission(queue: dict[str, Any]) -> str:
    if queue["enabled"]:
        return _line(queue, "Job submission is enabled")
    return _line(queue, f"Job submission is disabled: {queue['disable_reason']}")


def _scheduling(queue: dict[str, Any]) -> str:
    if queue["started"]:
        return _line(queue, "Scheduling is started")
    why = f": {queue['stop_reason']}" if queue["stop_reason"] else ""
    return _line(queue, f"Scheduling is stopped{why}")


def _line(queue: dict[str, Any], text: str) -> str:
    return f"{queue['name']}: {text}" if queue["name"] else text


def _details(answer: dict[str, Any]) -> list[str]:
    return [
        f"{answer['alloc_queued']} alloc requests queued",
        f"{answer['alloc_pending']} alloc requests pending to scheduler",
        f"{answer['running']} running jobs",
    ]


@click.command("status", cls=Command, prefix="queue", usage="[OPTIONS...] [QUEUE]")
@click.option("-q", "--queue", metavar="NAME", help="Only this queue.")
@click.option("-v", "--verbose", is_flag=True, help="Count requests and running jobs too.")
@click.option("--json", "as_json", is_flag=True, help="{queues, alloc_queued, alloc_pending, running}.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]")
def status(queue: str | None, verbose: bool, as_json: bool, queues: tuple[str, ...]) -> int:
    """Say whether queues take jobs (enabled) and are scheduled (started), and why not."""
    from leveret.client import Client

    names = _chosen(queue, queues)
    with Client() as client:
        answer = _ask("status", lambda: client.queues(names))
    if as_json:
        output.json_data(answer)
        return 0
    for one in answer["queues"]:
        output.data_lines((_submission(one), _scheduling(one)))
    if verbose:
        output.data_lines(_details(answer))
    return 0


def _ask(action: str, question: Any) -> Any:
    """Errors begin with the action, as in Flux."""
    try:
        return question()
    except InvalidError as refused:
        word = {"disable": "enable", "stop": "start"}.get(action, action)
        text = refused.message if refused.message.startswith("Named queues") else f"{word}: {refused.message}"
        raise InvalidError(text, refused.hint, refused.path) from None


def _change(
    action: str, everything: bool, quiet: bool, verbose: bool, names: list[str], message: str = "", keep: bool = True
) -> int:
    from leveret.client import Client

    with Client() as client:
        changed = _ask(
            action,
            lambda: client.change_queues(action, names, everything=everything, reason=message, checkpoint=keep),
        )
        if not quiet:
            say = _submission if action in ("enable", "disable") else _scheduling
            output.data_lines(say(one) for one in changed)
            if verbose:
                output.data_lines(_details(client.queues()))
    return 0


def _options(function: Any) -> Any:
    for option in reversed(
        [
            click.option("-q", "--queue", metavar="NAME", help="This queue."),
            click.option("-a", "--all", "everything", is_flag=True, help="All queues."),
            click.option("--quiet", is_flag=True, help="Print errors only."),
            click.option("-v", "--verbose", is_flag=True, help="Count requests and running jobs too."),
            click.argument("queues", nargs=-1, metavar="[QUEUE...]"),
        ]
    ):
        function = option(function)
    return function


def _reasons(function: Any) -> Any:
    function = click.option("--nocheckpoint", is_flag=True, help="Do not keep this over a restart.")(function)
    return click.option("-m", "--message", metavar="REASON", default="", help="Why; users are shown it.")(function)


@click.command("enable", cls=Command, prefix="queue", usage="[OPTIONS...] [QUEUE...]")
@_options
def enable(queue: str | None, everything: bool, quiet: bool, verbose: bool, queues: tuple[str, ...]) -> int:
    """Let jobs be submitted."""
    return _change("enable", everything, quiet, verbose, _chosen(queue, queues))


@click.command(
    "disable",
    cls=Command,
    prefix="queue",
    usage="[OPTIONS...] [QUEUE...]",
    examples=(("leveret queue disable -m 'maintenance at noon' batch", "submissions to batch are refused with that"),),
)
@_options
@_reasons
def disable(
    queue: str | None,
    everything: bool,
    quiet: bool,
    verbose: bool,
    queues: tuple[str, ...],
    message: str,
    nocheckpoint: bool,
) -> int:
    """Refuse submissions, with a reason; jobs that are there already go on."""
    return _change("disable", everything, quiet, verbose, _chosen(queue, queues), message, not nocheckpoint)


@click.command("start", cls=Command, prefix="queue", usage="[OPTIONS...] [QUEUE...]")
@_options
def start(queue: str | None, everything: bool, quiet: bool, verbose: bool, queues: tuple[str, ...]) -> int:
    """Give resources to jobs."""
    return _change("start", everything, quiet, verbose, _chosen(queue, queues))


@click.command("stop", cls=Command, prefix="queue", usage="[OPTIONS...] [QUEUE...]")
@_options
@_reasons
def stop(
    queue: str | None,
    everything: bool,
    quiet: bool,
    verbose: bool,
    queues: tuple[str, ...],
    message: str,
    nocheckpoint: bool,
) -> int:
    """Give no more resources to jobs: they wait, and what runs goes on."""
    return _change("stop", everything, quiet, verbose, _chosen(queue, queues), message, not nocheckpoint)


def _wait(what: str, timeout: str | None, names: list[str]) -> dict[str, Any]:
    from leveret.client import Client
    from leveret.core import duration

    try:
        timeout_s = None if timeout is None else duration.parse(timeout)
    except FormatError as error:
        raise InvalidError(f"{what}: --timeout: {error.message}", error.hint) from None
    if timeout_s == INF:
        timeout_s = None
    with Client() as client:
        answer: dict[str, Any] = _ask(what, lambda: client.wait_queues(what, names, timeout_s))
    if not answer["done"]:
        raise InvalidError(f"{what}: timeout")
    return answer


@click.command("drain", cls=Command, prefix="queue", usage="[OPTIONS...] [QUEUE...]")
@click.option("-t", "--timeout", metavar="DURATION", help="Give up after this time (exit code 1).")
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
def drain(timeout: str | None, queues: tuple[str, ...]) -> int:
    """Wait until no job is active, in all queues or in these."""
    _wait("drain", timeout, list(queues))
    return 0


@click.command("idle", cls=Command, prefix="queue", usage="[OPTIONS...] [QUEUE...]")
@click.option("-t", "--timeout", metavar="DURATION", help="Give up after this time (exit code 1).")
@click.option("--quiet", is_flag=True, help="Print errors only.")
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
def idle(timeout: str | None, quiet: bool, queues: tuple[str, ...]) -> int:
    """Wait until no job runs (or is in cleanup) or asks for resources; then say how many jobs are pending."""
    answer = _wait("idle", timeout, list(queues))
    if not quiet:
        output.data(f"{answer['jobs']} jobs")
    return 0
