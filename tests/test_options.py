"""docs/options.md is what tools/options.py makes of the parser, and every option of ours has a help text."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from leveret.cli.base import Command
from leveret.cli.main import cli

TOOL = Path(__file__).parent.parent / "tools" / "options.py"
spec = importlib.util.spec_from_file_location("options_tool", TOOL)
assert spec is not None and spec.loader is not None
options = importlib.util.module_from_spec(spec)
spec.loader.exec_module(options)


def test_the_page_is_up_to_date() -> None:
    """Made in a process of its own: click keeps what it found for a command, and other tests have asked it before."""
    script = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['page']())"
    done = subprocess.run(
        [sys.executable, "-c", script, str(TOOL)], capture_output=True, encoding="utf-8", timeout=120, check=True
    )
    assert options.PAGE.read_text() == done.stdout, "run: python tools/options.py"


def test_a_difference_without_a_reason_is_an_error() -> None:
    row = {"short": "", "long": "--nosuch", "argument": "", "meaning": ""}
    with pytest.raises(LookupError, match="no reason"):
        options.verdict("flux run", options.command_of("flux run"), row)
    with pytest.raises(LookupError, match="no reason"):
        options.verdict("flux nosuch", None, row)


def test_every_option_of_flux_is_judged_once() -> None:
    data = json.loads(options.DATA.read_text())
    assert sum(len(rows) for rows in data.values()) == 443
    for command, rows in data.items():
        for row in rows:
            what, why = options.verdict(command, options.command_of(command), row)
            assert (what == "same") == (not why)


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(("name", "command"), list(commands(cli, "leveret")), ids=str)
def test_every_option_has_a_help_text(name: str, command: click.Command) -> None:
    assert command.help, name
    assert isinstance(command, Command)
    for param in command.get_params(click.Context(command, info_name=name, **command.context_settings)):
        if isinstance(param, click.Option):
            assert param.help, f"{name} {param.opts}"
