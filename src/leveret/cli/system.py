"""`leveret uptime|dmesg|getattr|env|help`: about the instance, and about us."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, NoSuchVerb
from leveret.cli.choices import WHEN, Values
from leveret.errors import InvalidError, NotFoundError


def instance_status() -> dict[str, Any]:
    from leveret.client import Client

    with Client(start=False, patience_s=2.0) as client:
        return client.status()


@click.command("uptime", cls=Command, examples=(("leveret uptime", "on one line"),))
def uptime() -> int:
    """Print the time, the state, for how long the instance has run, its owner, its depth and how many nodes it has."""
    from leveret.core import duration

    status = instance_status()
    up = duration.encode(round(max(time.time() - float(status["started"]), 0.0), 1))
    owner = owner_of(status["state_dir"])
    lost = sum(not helper.get("connected", True) for helper in status["helpers"])
    parts = [f"run {up}", f"owner {owner}", "depth 0", f"size {len(status['helpers'])}"]
    parts += [f"{lost} offline"] if lost else []
    output.data(f" {time.strftime('%H:%M:%S')} {',  '.join(parts)}")
    return 0


def owner_of(path: str) -> str:
    import pwd

    try:
        uid = os.stat(path).st_uid
    except OSError:
        uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


ATTRIBUTES = ("hostlist", "instance-level", "local-uri", "rank", "rundir", "size", "statedir", "version")


@click.command("getattr", cls=Command, usage="[OPTIONS] NAME", examples=(("leveret getattr size", "number of nodes"),))
@click.argument("name", metavar="NAME", type=Values(lambda: ATTRIBUTES))
def getattr_(name: str) -> int:
    """Print an attribute: hostlist, instance-level, local-uri, rank, rundir, size, statedir or version."""
    from leveret.core import hostlist

    if name not in ATTRIBUTES:
        raise InvalidError(f"getattr {name}: No such attribute", f"one of {', '.join(ATTRIBUTES)}")
    status = instance_status()
    helpers = sorted(status["helpers"], key=lambda one: one["node"])
    socket = str(status["uri"]).partition("://")[2]
    values = {
        "hostlist": hostlist.encode(helper["host"] for helper in helpers),
        "instance-level": "0",
        "local-uri": status["uri"],
        "rank": "0",
        "rundir": os.path.dirname(socket),
        "size": str(len(helpers)),
        "statedir": status["state_dir"],
        "version": status["version"],
    }
    output.data(values[name])
    return 0


# The log of the daemon: JSON lines in the state directory


@click.command(
    "dmesg",
    cls=Command,
    usage="[OPTIONS...]",
    attached={"-L": "always", "--color": "always"},
    examples=(("leveret dmesg -H", "with times for people"), ("leveret dmesg -f", "go on as more is logged")),
)
@click.option("-f", "--follow", is_flag=True, help="Go on as more is logged.")
@click.option("-n", "--new", is_flag=True, help="Only what is logged from now on.")
@click.option("-H", "--human", is_flag=True, help="Times for people.")
@click.option("-d", "--delta", is_flag=True, help="With -H: the time since the line before.")
@click.option("-L", "--color", metavar="[WHEN]", type=WHEN, default="auto", help="always, never or auto (attached).")
def dmesg(follow: bool, new: bool, human: bool, delta: bool, color: str) -> int:
    """Print the log of the instance's daemon."""
    path = os.path.join(instance_status()["state_dir"], "daemon.log")
    form = LogFormat(human, delta, output.colours(color))
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            if new:
                log.seek(0, os.SEEK_END)
            for line in followed(log, path) if follow or new else log:
                output.data(form.line(line))
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror}", "the log can only be read on the instance's machine")
    return 0


def followed(log: Any, path: str) -> Iterator[str]:
    """Lines of a file that grows, and of the one that takes its place when it is rotated."""
    while True:
        line = log.readline()
        if line:
            while not line.endswith("\n"):
                time.sleep(0.05)
                line += log.readline()
            yield line
            continue
        try:
            if os.stat(path).st_ino != os.fstat(log.fileno()).st_ino:
                log = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
                continue
        except OSError:
            pass
        time.sleep(0.2)


class LogFormat:
    """`TIME leveret.LEVEL[0]: event key=value`."""

    def __init__(self, human: bool, delta: bool, colour: bool) -> None:
        self.human = human
        self.delta = delta
        self.colour = colour
        self._minute = -1
        self._base = 0.0

    def line(self, text: str) -> str:
        try:
            entry = json.loads(text)
        except ValueError:
            return text.rstrip("\n")
        stamp, level, event = str(entry.pop("timestamp", "")), entry.pop("level", "info"), entry.pop("event", "")
        component = str(entry.pop("component", output.NAME))
        values = " ".join(
            f"{key}={value if isinstance(value, str) else output.json_text(value)}" for key, value in entry.items()
        )
        level = {"error": "err", "critical": "crit"}.get(level, level)
        head = f"{self._time(stamp)} {component}.{level}[0]:"
        if self.colour:
            head = f"\x1b[{'31' if level in ('err', 'crit') else '32'}m{head}\x1b[0m"
        return f"{head} {event} {values}".rstrip().replace("\n", "\n    ")

    def _time(self, stamp: str) -> str:
        if not self.human:
            return stamp
        from datetime import datetime

        try:
            moment = datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return stamp
        minute = int(moment // 60)
        if minute != self._minute:
            self._minute, self._base = minute, moment
            return time.strftime("[%b%d %H:%M]", time.localtime(moment))
        since = moment - self._base
        if self.delta:
            self._base = moment
        return f"[{since:+11.6f}]"


# The environment of commands that are to find the instance


@click.command(
    "env",
    cls=Command,
    usage="[OPTIONS...] [COMMAND...]",
    wraps=True,
    examples=(
        ('eval "$(leveret env | grep URI)"', "address the same instance from another shell"),
        ("leveret env ./script", "run something that finds it"),
    ),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def env(command: tuple[str, ...]) -> int:
    """Run a command with the instance's address in its environment, or print that environment."""
    from leveret.client import Client

    with Client(start=False) as client:
        uri = client.uri
    environ = {**os.environ, "LEVERET_URI": uri, "FLUX_URI": uri}
    if not command:
        output.data_lines(f"{name}={value}" for name, value in environ.items())
        return 0
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        output.note(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


@click.command(
    "help", cls=Command, usage="[VERB...]", examples=(("leveret help job attach", "as leveret job attach --help"),)
)
@click.argument("words", nargs=-1, metavar="[VERB...]")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Show the help of a verb, or the list of verbs."""
    parent = ctx.parent
    assert parent is not None
    context = parent
    for word in words:
        command = context.command.get_command(context, word) if isinstance(context.command, click.Group) else None
        if command is None:
            if not isinstance(context.command, click.Group):
                raise InvalidError(f"{context.command_path} has no verbs")
            raise NoSuchVerb(word, context.command, context)  # type: ignore[arg-type]
        context = click.Context(command, info_name=word, parent=context, **command.context_settings)
    output.data(context.get_help())
    return 0
