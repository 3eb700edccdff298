"""The items of --stage-in and --stage-out: how they are named, when they are due, and what is kept of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from leveret.core.job import Job
from leveret.plugins.hooks import Reject

#: of one direction
ITEMS_MAX = 10_000
#: with more items than this, one part has all of them
PARTS_MAX = 16
#: characters of a path or an error that are kept
TEXT_MAX = 1000
#: of the keys under which rows are kept with the job
PREFIX = "part/"
WHEN = ("always", "on-success", "on-failure")


class Item(NamedTuple):
    src: str
    dst: str
    when: str
    run: str  #: name of its process
    key: str  #: of its row


class Row(msgspec.Struct):
    """What is kept of an item: its result."""

    part: str = ""
    source: str = ""
    destination: str = ""
    status: str = ""  #: done, failed, skipped; "" when it was not tried
    attempts: int = 0
    allowed: int = 0  #: attempts, before it is given up
    bytes: int | None = None  #: as the copier says; None when it does not
    duration_s: float = 0.0  #: of all attempts
    error: str = ""
    wait_status: int = 0

    @classmethod
    def new(cls, part: str, item: Item, status: str, note: str = "") -> Row:
        return cls(part, item.src[:TEXT_MAX], item.dst[:TEXT_MAX], status, error=note)


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Row).decode


def names(which: str, count: int) -> list[str]:
    """stage-in, or stage-in-1, stage-in-2 … when there are several."""
    return [f"stage-{which}"] if count == 1 else [f"stage-{which}-{i}" for i in range(1, count + 1)]


def all_items(system: dict[str, Any], which: str) -> list[Item]:
    found = (system.get("staging") or {}).get(which) or []
    runs = names(which, len(found))
    return [
        Item(one["src"], one["dst"], one.get("when", "always"), run, f"{PREFIX}{which}/{number:05d}")
        for number, (one, run) in enumerate(zip(found, runs, strict=True), 1)
    ]


def parts(system: dict[str, Any], which: str) -> list[str]:
    """The parts of one direction: one an item, or one for all of very many."""
    found = (system.get("staging") or {}).get(which) or []
    return names(which, len(found)) if len(found) <= PARTS_MAX else [f"stage-{which}"]


def of_part(system: dict[str, Any], name: str) -> list[Item]:
    """The items that a part moves; none when there is no such part."""
    for which in ("in", "out"):
        if name in parts(system, which):
            found = all_items(system, which)
            return found if len(found) > PARTS_MAX else [item for item in found if item.run == name]
    return []


def due(job: Job, when: str) -> bool:
    """Whether a stage-out takes place. Data is kept when a job is canceled or runs into its limit (DESIGN section 3)."""
    if job.intent in ("discard", "force"):
        return False
    if job.fatal is not None:
        good = job.fatal.type in ("cancel", "timeout")
    else:
        good = job.status == 0
    return when == "always" or good == (when == "on-success")


def check(system: dict[str, Any]) -> Reject | None:
    """`attributes.system.staging` and `post` of a jobspec."""
    return _check_staging(system.get("staging")) or _check_post(system.get("post"))


def _check_staging(staging: Any) -> Reject | None:
    if staging is None:
        return None
    path = "attributes.system.staging"
    if not isinstance(staging, dict) or set(staging) - {"in", "out", "retries", "on-failure"}:
        return Reject(f"{path}: must be an object with the keys `in`, `out`, `retries` and `on-failure`")
    if type(staging.get("retries", 0)) is not int or not 0 <= staging.get("retries", 0) <= 100:
        return Reject(f"{path}.retries: must be a number from 0 to 100")
    if staging.get("on-failure", "fail") not in ("fail", "hold"):
        return Reject(f"{path}.on-failure: must be `fail` or `hold`")
    for which in ("in", "out"):
        found = staging.get(which, [])
        if not isinstance(found, list) or len(found) > ITEMS_MAX:
            return Reject(f"{path}.{which}: must be a list of at most {ITEMS_MAX} items")
        for number, item in enumerate(found):
            where = f"{path}.{which}[{number}]"
            ok = isinstance(item, dict) and {"src", "dst"} <= set(item) <= {"src", "dst", "when"}
            if not ok or not all(isinstance(item[k], str) and item[k] and "\0" not in item[k] for k in ("src", "dst")):
                return Reject(f"{where}: must be {{src, dst}}, two non-empty paths")
            if "when" in item and (which == "in" or item["when"] not in WHEN):
                return Reject(f"{where}.when: must be {', '.join(WHEN)}, of a stage-out")
    return None


def _check_post(post: Any) -> Reject | None:
    if post is None:
        return None
    path = "attributes.system.post"
    command = post.get("command") if isinstance(post, dict) else None
    if not isinstance(post, dict) or set(post) - {"command", "timeout"}:
        return Reject(f"{path}: must be an object with the keys `command` and `timeout`")
    if not isinstance(command, list) or not command or not all(isinstance(w, str) and "\0" not in w for w in command):
        return Reject(f"{path}.command: must be a list of words")
    timeout = post.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout < 0):
        return Reject(f"{path}.timeout: must be seconds")
    return None
