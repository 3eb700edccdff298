"""What plugins keep with a job and change of it: per-job data, the digest of an updated jobspec, update requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import jobspec as jobspecs
from leveret.core.job import Job
from leveret.errors import EventError, InvalidError, LeveretError
from leveret.manager.entry import Entry
from leveret.plugins.hooks import UpdateJobspec

if TYPE_CHECKING:
    from leveret.manager.manager import Manager
    from leveret.manager.turn import Turn

PREFIX = "plugin/"
#: key of what a plugin has said with SetNodeEnv
NODE_ENV = "node-env"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def _row(plugin: str, key: str) -> str:
    return f"{PREFIX}{plugin}/{key}"


def remember(turn: Turn, entry: Entry, plugin: str, values: dict[str, Any]) -> None:
    """Keep values for a plugin, in the turn of what caused it. Raises TypeError for what is not JSON."""
    rows = {key: None if value is None else _encode(value) for key, value in values.items()}
    turn.touch(entry)
    data = dict(entry.data.get(plugin, {}))
    for key, row in rows.items():
        if row is None:
            data.pop(key, None)
            turn.batch.delete(entry.job.id, _row(plugin, key))
        else:
            data[key] = _decode(row)  # what is given back is the same before and after a restart
            turn.batch.put(entry.job.id, _row(plugin, key), row)
    entry.data[plugin] = data


def restore(entry: Entry, key: str, value: bytes) -> None:
    """One row, after a restart."""
    plugin, _, name = key.partition("/")
    entry.data.setdefault(plugin, {})[name] = _decode(value)


def node_env(entry: Entry, host: str) -> dict[str, str]:
    """What plugins add to the environment of the tasks on a node."""
    found: dict[str, str] = {}
    for data in entry.data.values():
        if NODE_ENV in data:
            found |= data[NODE_ENV].get(host, {})
    return found


def keys(entry: Entry) -> Iterator[str]:
    """The rows of an active job."""
    for plugin, data in entry.data.items():
        for key in data:
            yield _row(plugin, key)


def new_digest(manager: Manager, job: Job, updates: dict[str, Any] | None) -> jobspecs.Digest | None:
    """What the scheduler needs of a job whose jobspec was updated; None when only its environment was.

    Raises EventError when there is no jobspec any more that could run.
    """
    if all(key.startswith(jobspecs.ENVIRONMENT) for key in updates or ()):
        return None
    spec = jobspecs.updated(manager.base_jobspec(job.id), job.updates)
    try:
        jobspecs.validate(spec)
    except LeveretError as error:
        raise EventError(f"jobspec-update: {error.message}", error.hint, error.path) from None
    return jobspecs.digest(spec)


def hook_of(key: str) -> str:
    """attributes.system.KEY → update_KEY, attributes.KEY → update_KEY; dots and dashes are underscores."""
    short = key.removeprefix("attributes.").removeprefix("system.")
    return "update_" + "".join(c if c.isalnum() else "_" for c in short)


def ask_update(manager: Manager, job: Job, updates: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Ask plugins about a request to update dotted keys: (updates with what they add, keys that a plugin took).

    Raises InvalidError when one refuses, or fails: what a plugin guards is not changed behind its back.
    """
    result = dict(updates)
    taken: set[str] = set()
    for key, value in updates.items():
        for answer in manager.registry.call_update(hook_of(key), str(job.id), job, value):
            taken.add(key)
            if isinstance(answer, UpdateJobspec):
                result |= answer.updates
            elif answer is not None:
                raise InvalidError(getattr(answer, "reason", f"{key}: refused"), getattr(answer, "hint", ""), key)
    return result, taken


def encode_owner(plugin: str, lease_s: float | None) -> bytes:
    """The stored form of who closes a hold: a plugin's name, or a lease."""
    return plugin.encode() if lease_s is None else _encode({"lease_s": lease_s})


def decode_owner(value: bytes) -> tuple[str, float | None]:
    if value.startswith(b"{"):
        return "", float(_decode(value)["lease_s"])
    return value.decode(), None
