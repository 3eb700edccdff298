"""`leveret schema`: what `--json` prints, as JSON Schema."""

from __future__ import annotations

import click

from leveret import schemas
from leveret.cli import output
from leveret.cli.base import Command
from leveret.errors import NotFoundError


@click.command(
    "schema",
    cls=Command,
    usage="[COMMAND...]",
    examples=(("leveret schema queue list", "the schema of `leveret queue list --json`"),),
)
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
def schema(words: tuple[str, ...]) -> int:
    """Print the JSON Schema of what a command prints with --json; without a command, the names of all of them."""
    if not words:
        output.data_lines(schemas.SCHEMAS)
        return 0
    name = " ".join(words)
    found = schemas.schema(name)
    if found is None:
        raise NotFoundError(f"`{name}` has no schema", "there are: " + ", ".join(schemas.SCHEMAS))
    output.json_data(found, pretty=True)
    return 0
