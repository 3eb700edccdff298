"""The options of verbs that submit many jobs (`submit`, `bulksubmit`), and where `--log` and `--log-stderr` lead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from leveret.cli import output
from leveret.cli.choices import EVENT
from leveret.errors import InvalidError

MANY_OPTIONS = (
    click.option("--cc", metavar="IDSET", help="One copy per id; sets FLUX_JOB_CC, and {cc} is replaced."),
    click.option("--bcc", metavar="IDSET", help="As --cc, without FLUX_JOB_CC."),
    click.option("--wait", is_flag=True, help="Wait until all jobs are clean; exit with the worst code."),
    click.option("--wait-event", metavar="NAME", type=EVENT, help="Wait until every job has this event."),
    click.option("--watch", is_flag=True, help="Show all jobs' output; implies --wait."),
    click.option("--log", metavar="FILE", help="Ids and messages go to a file; with {cc} in its name, one per copy."),
    click.option("--log-stderr", metavar="FILE", help="Messages go to this file."),
    click.option("--progress", is_flag=True, help="Show a progress bar (on a terminal)."),
    click.option("--jps", is_flag=True, help="Show jobs per second in the progress bar."),
)


class Logs:
    """`--log` and `--log-stderr` while the verb runs. A name with braces is a file per job: see `logged`."""

    def __init__(self, params: dict[str, Any]) -> None:
        self._names = [name if name and "{" not in name else "" for name in (params["log"], params["log_stderr"])]

    def __enter__(self) -> None:
        self._until = logged(*self._names)
        self._until.__enter__()

    def __exit__(self, *_: object) -> None:
        self._until.__exit__(None, None, None)


@contextmanager
def logged(out: str, err: str) -> Iterator[None]:
    """What is printed meanwhile goes to these files; "" leaves it where it goes, but messages follow `out`."""
    before = dict(output.targets)
    opened: dict[str, int] = {}
    try:
        for name, fds in ((out, (1, 2)), (err, (2,))):
            if name:
                if name not in opened:
                    opened[name] = _open(name)
                output.targets.update((fd, opened[name]) for fd in fds)
        yield
    finally:
        output.targets.clear()
        output.targets.update(before)
        for fd in opened.values():
            os.close(fd)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InvalidError(f"--log: {path}: {error.strerror}")
