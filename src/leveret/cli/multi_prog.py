"""`leveret multi-prog`: a command of its own for each task of a job (MPMD)."""

from __future__ import annotations

import os
import shlex

import click

from leveret.cli import output
from leveret.cli.base import Command
from leveret.cli.output import Fail
from leveret.errors import FormatError, InvalidError

ANY = "*"


@click.command(
    "multi-prog",
    cls=Command,
    usage="[OPTIONS] CONFIG [ARGS...]",
    wraps=True,
    examples=(("leveret run -n4 leveret multi-prog my.conf", "lines such as `0-1 ./ocean %t`, `* ./land`"),),
)
@click.option("-n", "--dry-run", metavar="RANKS", help="Print what these ranks would run.")
@click.argument("config", metavar="CONFIG")
def multi_prog(dry_run: str | None, config: str) -> int:
    """Run the command that a file names for this task: each line is an idset of ranks, or *, and a command.

    %t in the command is the task's rank, %o its place among the ranks of the line. Quotes and # are the shell's.
    """
    lines = read(config)
    if dry_run is not None:
        from leveret.core import idset

        for rank in idset.parse(dry_run):
            output.data(f"{rank}: {shlex.join(command_of(lines, rank, config))}")
        return 0
    rank_text = os.environ.get("FLUX_TASK_RANK", "")
    if not rank_text.isdigit():
        raise Fail(
            "FLUX_TASK_RANK is not set",
            hint="this runs as the command of a job; --dry-run=RANKS shows what it would do",
        )
    command = command_of(lines, int(rank_text), config)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        output.note(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def read(path: str) -> list[tuple[list[int] | None, list[str]]]:
    """(ranks, command) of each line; None for `*`. Raises InvalidError with the line."""
    from leveret.core import idset

    lines: list[tuple[list[int] | None, list[str]]] = []
    seen: set[int] = set()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}")
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
            if not words:
                continue
            ranks = None if words[0] == ANY else idset.parse(words[0])
        except (ValueError, FormatError) as error:
            raise InvalidError(f"{path}:{number}: {error}")
        if len(words) < 2:
            raise InvalidError(f"{path}:{number}: no command")
        twice = seen.intersection(ranks or ())
        if twice:
            raise InvalidError(f"{path}:{number}: a second command for rank {min(twice)}")
        seen.update(ranks or ())
        lines.append((ranks, words[1:]))
    return lines


def command_of(lines: list[tuple[list[int] | None, list[str]]], rank: int, path: str) -> list[str]:
    """The command of a rank; a line that names it goes before `*`."""
    named = next(((ranks, command) for ranks, command in lines if ranks is not None and rank in ranks), None)
    found = named or next((line for line in lines if line[0] is None), None)
    if found is None:
        raise InvalidError(f"{path}: no command for rank {rank}")
    ranks, command = found
    offset = ranks.index(rank) if ranks is not None else rank
    return [word.replace("%t", str(rank)).replace("%o", str(offset)) for word in command]
