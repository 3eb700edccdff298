"""`leveret update`: set attributes of an active job."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import JOBID, Command
from leveret.errors import InvalidError, NotFoundError

DURATION = "attributes.system.duration"


@click.command(
    "update",
    cls=Command,
    usage="[OPTIONS...] JOBID KEY=VALUE [KEY=VALUE ...]",
    examples=(
        ("leveret update ƒ2oY3Gx7 duration=+10m", "ten minutes more, also while it runs"),
        ("leveret update ƒ2oY3Gx7 queue=debug", "to another queue, before it has resources"),
    ),
)
@click.option("-n", "--dry-run", is_flag=True, help="Print the updates as JSON and send nothing.")
@click.option("-v", "--verbose", is_flag=True, help="Say what was updated.")
@click.option("--wait", is_flag=True, help="For Flux's scripts: an update is always complete when this returns.")
@click.argument("jobid", type=JOBID, metavar="JOBID")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE")
def update(dry_run: bool, verbose: bool, wait: bool, jobid: tuple[str, int], pairs: tuple[str, ...]) -> int:
    """Set attributes of an active job: all of them, or none.

    `duration` is a time (RFC 23), or a change of the present one with + or -; `name` is the job's name. A key that
    does not begin with `attributes.` is below `attributes.system.`. What can be updated is up to the site: `duration`
    (also of a running job) and `queue` always.
    """
    from leveret.client import Client

    updates: dict[str, Any] = {}
    with Client() as client:
        for pair in pairs:
            key, equals, text = pair.partition("=")
            if not equals or not key:
                raise click.UsageError(f"argument KEY=VALUE: `{pair}` is not KEY=VALUE")
            key = full_key(key)
            try:
                updates[key] = duration_of(client, jobid[1], text) if key == DURATION else value_of(text)
            except NotFoundError:
                raise NotFoundError("unknown job id") from None
        if dry_run:
            output.data(json.dumps(updates, ensure_ascii=False))
            return 0
        done = client.update(jobid[1], updates)
    if verbose:
        for key in updates:
            output.note(f"INFO: updated {key} to {done.get(key)}")
    return 0


def full_key(key: str) -> str:
    if key == "name":
        return "attributes.system.job.name"
    return key if key.startswith(("attributes.", "tasks.", "resources.")) else f"attributes.system.{key}"


def value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def duration_of(client: Any, jobid: int, text: str) -> float:
    """Seconds of `[+-]FSD`; a sign changes what the job has now."""
    from leveret.core import duration

    sign = text[:1] if text[:1] in "+-" else ""
    seconds = duration.parse(text[len(sign) :] if sign else text)
    if not sign:
        return 0.0 if math.isinf(seconds) else seconds
    now = float(client.job(jobid).get("duration") or 0.0)
    if not now:
        raise InvalidError("the job has no time limit that could be changed", "set one: duration=1h")
    seconds = now + (seconds if sign == "+" else -seconds)
    if seconds <= 0 or math.isinf(seconds):
        raise InvalidError(f"duration {text} leaves nothing of {duration.encode(now)}", "0 would be unlimited")
    return seconds
