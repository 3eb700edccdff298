"""`leveret jobtap`: load, list and remove plugins."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group
from leveret.errors import InvalidError, NotFoundError

VERBS = {
    "load": (__name__, "load", "Load a plugin from a file or by its name."),
    "list": (__name__, "list_", "List plugins."),
    "remove": (__name__, "remove", "Remove plugins."),
    "query": (__name__, "query", "Show one plugin."),
}


@click.group("jobtap", cls=Group, verbs=VERBS)
@click.pass_context
def jobtap(ctx: click.Context) -> None:
    """Plugins that take part in jobs' lives. They stay loaded when the daemon is killed or restarted."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


@click.command(
    "load",
    cls=Command,
    prefix="jobtap",
    usage="[OPTIONS...] FILE.py|NAME [KEY=VAL...]",
    examples=(("leveret jobtap load ./tape.py rate=10", "a file, with configuration"),),
)
@click.option(
    "-r",
    "--remove",
    "removed",
    metavar="NAME",
    help="Remove this plugin first (a glob); one of the same name hands its holds over.",
)
@click.argument("plugin")
@click.argument("conf", nargs=-1, metavar="[KEY=VAL...]")
def load(removed: str | None, plugin: str, conf: tuple[str, ...]) -> int:
    """Load a plugin: FILE.py (its name is the file's), or the NAME of an installed one."""
    from leveret.client import Client

    values: dict[str, Any] = {}
    for text in conf:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidError(f"`{text}` is not KEY=VAL")
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    if plugin.endswith(".py") or "/" in plugin:
        path = os.path.abspath(plugin)
        if not os.path.isfile(path):
            raise NotFoundError(f"{plugin} not found")
        plugin = path
    with Client() as client:
        try:
            client.jobtap_load(plugin, values, removed or "")
        except NotFoundError as failure:
            raise NotFoundError(f"{plugin} not found", failure.hint)
    return 0


@click.command("list", cls=Command, prefix="jobtap", usage="[-a]")
@click.option("-a", "--all", "every", is_flag=True, help="Built-in plugins too.")
@click.option("--json", "as_json", is_flag=True, help="{plugins: [{name, path, builtin, holds}]}.")
def list_(every: bool, as_json: bool) -> int:
    """List the names of plugins."""
    from leveret.client import Client

    with Client() as client:
        plugins = [plugin for plugin in client.jobtap() if every or not plugin.get("builtin")]
    if as_json:
        output.json_data({"plugins": plugins})
    else:
        output.data_lines(str(plugin["name"]) for plugin in plugins)
    return 0


@click.command("remove", cls=Command, prefix="jobtap", usage="[--force] NAME...")
@click.option("--force", is_flag=True, help="End the open holds of the plugin as failed.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(force: bool, names: tuple[str, ...]) -> int:
    """Remove plugins by name or glob; `all` removes every one that is not built in.

    A plugin with open holds is not removed: the message names the jobs.
    """
    from leveret.client import Client

    with Client() as client:
        for name in names:
            if not remove_matching(client, "*" if name == "all" else name, force) and name != "all":
                raise NotFoundError(f"{name} not found")
    return 0


def remove_matching(client: Any, pattern: str, force: bool) -> int:
    """Remove plugins whose name matches; built-in ones only by their exact name. Returns how many."""
    from fnmatch import fnmatchcase

    count = 0
    for plugin in client.jobtap():
        name = str(plugin["name"])
        if name == pattern or (not plugin.get("builtin") and fnmatchcase(name, pattern)):
            client.jobtap_remove(name, force)
            count += 1
    return count


@click.command("query", cls=Command, prefix="jobtap", usage="NAME")
@click.argument("name")
def query(name: str) -> int:
    """Show what is known of one plugin, as JSON."""
    from leveret.client import Client

    with Client() as client:
        output.json_data(client.jobtap_query(name))
    return 0
