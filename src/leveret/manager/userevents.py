"""Events that users post: memos, and events of their own. Strict: what would drive a job is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.event import CONTEXTS, NO_CONTEXT, check_context
from leveret.core.job import CLOSERS, merge
from leveret.core.transitions import LEGAL
from leveret.errors import InvalidError
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

#: names that are ours to post, with what to use in their place
DRIVING = frozenset({*CONTEXTS, *NO_CONTEXT, *LEGAL, "jobspec-update", "memo", "give-up"})
INSTEAD = {
    "exception": "leveret job raise",
    "urgency": "leveret job urgency",
    "memo": "leveret job memo",
    "give-up": "leveret job give-up",
    "part-start": "the API's holds",
}
NAME_MAX = 64
CONTEXT_MAX = 65536


def post_event(manager: Manager, jobid: int, name: str, context: dict[str, Any] | None, userid: int) -> None:
    """Post an event of the user's own (RFC 21 allows further events); it moves nothing.

    The finish or remove of an open hold is a give-up on it, by that user. Raises InvalidError for a name that is ours, ConflictError when the job is inactive; nothing has changed then.
    """
    if not name or len(name) > NAME_MAX or not name.isprintable():
        raise InvalidError(f"an event's name is 1 to {NAME_MAX} printable characters", path="name")
    entry = manager.entry(jobid)
    if name in CLOSERS:
        given = {"description": "", "status": 0, **(context or {})}
        key = manager.find_hold(jobid, CLOSERS[name], str(given["description"]))
        check_context(name, given)
        manager.holds.give_up(jobid, key, userid, f"{name} was posted", given["status"])
        return
    if name in DRIVING:
        instead = INSTEAD.get(name)
        raise InvalidError(
            f"the event `{name}` cannot be posted by hand: it would drive the job",
            f"use {instead}" if instead else "any other name may be posted",
            path="name",
        )
    with Turn(manager, "post-event") as turn:
        turn.post(entry, name, context or None)


def memo(manager: Manager, jobid: int, values: dict[str, Any], volatile: bool) -> None:
    """Add to the job's `user` annotations; null removes a key. `volatile`: without an event, lost at a restart."""
    if not values:
        raise InvalidError("the memo is empty", path="memo")
    entry = manager.entry(jobid)
    if volatile:
        shown = entry.annotations if entry.annotations is not None else entry.job.annotations
        entry.annotations = merge(shown, {"user": values})
        manager.feed.publish((jobid,))
        return
    with Turn(manager, "memo") as turn:
        turn.post(entry, "memo", values)
        if entry.annotations is not None:
            merged = merge(entry.annotations, {"user": values})
            turn.after.append(lambda: setattr(entry, "annotations", merged))
