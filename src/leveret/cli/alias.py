"""`leveret alias`: a `flux` that is Leveret, for scripts that call Flux."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import click

from leveret.cli import output
from leveret.cli.base import Command
from leveret.errors import ConflictError, InvalidError

MARK = "# written by `leveret alias`"


@click.command(
    "alias",
    cls=Command,
    usage="DIR",
    examples=(("leveret alias ~/flux-bin; PATH=~/flux-bin:$PATH ./script", "a script for Flux runs on Leveret"),),
)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
def alias(directory: str) -> int:
    """Write a `flux` into DIR that runs this Leveret with LEVERET_AS_FLUX=1: its messages begin with `flux-…`.

    A `flux` that we did not write is not overwritten.
    """
    path = os.path.join(directory, "flux")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            ours = MARK in file.read(4096)
    except FileNotFoundError:
        ours = not os.path.lexists(path)
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}")
    if not ours or os.path.islink(path):
        raise ConflictError(f"{path} is there already, and is not ours", "choose another folder, or move it away")
    text = f'#!/bin/sh\n{MARK}\nLEVERET_AS_FLUX=1 exec {" ".join(map(shlex.quote, command()))} "$@"\n'
    new = f"{path}.{os.getpid()}"
    try:
        os.makedirs(directory, exist_ok=True)
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o755)
        os.replace(new, path)
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}")
    output.data(path)
    return 0


def command() -> list[str]:
    """How this Leveret is run."""
    beside = os.path.join(os.path.dirname(sys.executable), "leveret")
    if os.access(beside, os.X_OK):
        return [beside]
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) == "leveret" and os.access(script, os.X_OK):
        return [script]
    found = shutil.which("leveret")
    return [found] if found else [sys.executable, "-m", "leveret"]
