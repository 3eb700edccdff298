"""The resource eventlog (RFC 44): which nodes there are, which are online, which are drained and why. Pure.

`apply_event(state, event) -> state` is the fold, live and on replay; nothing else changes a state. Unknown events
and keys are kept in the log and move nothing: others note here what belongs to nodes rather than to jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from leveret.core import hostlist, idset
from leveret.core.event import Event
from leveret.errors import EventError, FormatError

#: how a `drain` meets a node that is drained already: what was said first stays, or the reason is new, or the time too
KEEP, REASON, REASON_AND_TIME = 0, 1, 2
#: `resource-define`: where the inventory came from
METHODS = ("configuration", "dynamic-discovery", "reload", "job-info", "kvs")


class Drain(msgspec.Struct, frozen=True):
    """Why a node gets no new work."""

    timestamp: float  #: seconds since the epoch
    reason: str = ""
    userid: int | None = None  #: who said so; ours (RFC 44 has no such key)


class ResourceState(msgspec.Struct, frozen=True):
    """Everything the resource eventlog says. Sets and keys are ranks of the instance (its execution targets)."""

    hosts: dict[int, str] = {}  #: of the last `restart`: rank to host
    online: frozenset[int] = frozenset()
    torpid: frozenset[int] = frozenset()  #: not heard from for a while, and not offline yet
    drains: dict[int, Drain] = {}
    absent: dict[str, Drain] = {}  #: drained hosts that are not of the instance now; drained again when they come back
    method: str = ""  #: of the last `resource-define`
    expiration: float = 0.0  #: of the whole instance; seconds since the epoch, 0 = none
    t_last: float = 0.0
    n: int = 0  #: events so far

    @property
    def offline(self) -> frozenset[int]:
        return frozenset(self.hosts) - self.online


Change = dict[str, Any]


def _ids(event: Event, key: str = "idset") -> list[int]:
    text = event.get(key)
    if not isinstance(text, str):
        raise EventError(f"{event.name}: `{key}` must be an idset", path=f"context.{key}")
    try:
        return idset.parse(text)
    except FormatError as error:
        raise EventError(f"{event.name}: {error.message}", path=f"context.{key}") from None


def _hosts(event: Event) -> list[str]:
    text = event.get("nodelist")
    if not isinstance(text, str):
        raise EventError(f"{event.name}: `nodelist` must be a hostlist", path="context.nodelist")
    try:
        return hostlist.parse(text)
    except FormatError as error:
        raise EventError(f"{event.name}: {error.message}", path="context.nodelist") from None


def _map(state: ResourceState, ranks: list[int], names: list[str]) -> list[tuple[int | None, str]]:
    """(rank, host) as they are now: a host that has moved to another rank is found there, one that is gone has None."""
    first: dict[str, int] = {}
    for rank, host in state.hosts.items():
        first.setdefault(host, rank)
    if len(ranks) != len(names):  # what names no hosts means the ranks
        names = [state.hosts.get(rank, "") for rank in ranks]
    return [
        (rank if state.hosts.get(rank, host) == host and rank in state.hosts else first.get(host), host)
        for rank, host in zip(ranks, names, strict=True)
    ]


def _restart(state: ResourceState, event: Event) -> Change:
    ranks, names = _ids(event, "ranks"), _hosts(event)
    if len(ranks) != len(names):
        raise EventError(f"restart: {len(ranks)} ranks, {len(names)} hosts", path="context.nodelist")
    new = ResourceState(hosts=dict(zip(ranks, names, strict=True)))
    drains: dict[int, Drain] = {}
    absent: dict[str, Drain] = {}
    old = [(rank, state.hosts[rank], drain) for rank, drain in state.drains.items()]
    for rank, host, drain in [*old, *((-1, host, drain) for host, drain in state.absent.items())]:
        where = _map(new, [rank], [host])[0][0]
        if where is None:
            absent[host] = drain
        else:
            drains.setdefault(where, drain)
    online = frozenset(_ids(event, "online")) & frozenset(new.hosts)
    return {"hosts": new.hosts, "online": online, "torpid": frozenset(), "drains": drains, "absent": absent}


def _define(state: ResourceState, event: Event) -> Change:
    return {"method": str(event.get("method", ""))}


def _update(state: ResourceState, event: Event) -> Change:
    return {"expiration": float(event.get("expiration", 0.0))}


def _drain(state: ResourceState, event: Event) -> Change:
    reason, userid, overwrite = event.get("reason"), event.get("userid"), event.get("overwrite", KEEP)
    drains, absent = dict(state.drains), dict(state.absent)
    for rank, host in _map(state, _ids(event), _hosts(event)):
        old = absent.get(host) if rank is None else drains.get(rank)
        if old is not None and overwrite == KEEP:
            continue
        since = old.timestamp if old is not None and overwrite == REASON else event.timestamp
        new = Drain(since, str(reason or ""), userid if isinstance(userid, int) else None)
        if rank is None:
            absent[host] = new
        else:
            drains[rank] = new
    return {"drains": dict(sorted(drains.items())), "absent": absent}


def _undrain(state: ResourceState, event: Event) -> Change:
    drains, absent = dict(state.drains), dict(state.absent)
    for rank, host in _map(state, _ids(event), _hosts(event)):
        if rank is not None:
            drains.pop(rank, None)
        absent.pop(host, None)
    return {"drains": drains, "absent": absent}


def _online(state: ResourceState, event: Event) -> Change:
    return {"online": state.online | (frozenset(_ids(event)) & frozenset(state.hosts))}


def _offline(state: ResourceState, event: Event) -> Change:
    gone = frozenset(_ids(event))
    return {"online": state.online - gone, "torpid": state.torpid - gone}


def _torpid(state: ResourceState, event: Event) -> Change:
    return {"torpid": state.torpid | (frozenset(_ids(event)) & frozenset(state.hosts))}


def _lively(state: ResourceState, event: Event) -> Change:
    return {"torpid": state.torpid - frozenset(_ids(event))}


def _truncate(state: ResourceState, event: Event) -> Change:
    change: Change = {}
    hosts = state.hosts
    if event.get("ranks") is not None:
        hosts = change["hosts"] = dict(zip(_ids(event, "ranks"), _hosts(event), strict=True))
    change["online"] = frozenset(_ids(event, "online")) & frozenset(hosts)
    change["torpid"] = frozenset(_ids(event, "torpid")) & frozenset(hosts)
    drains: dict[int, Drain] = {}
    for ranks, said in (event.get("drain") or {}).items():
        for rank in idset.parse(ranks):
            drains[rank] = Drain(float(said["timestamp"]), str(said.get("reason", "")), said.get("userid"))
    change["drains"] = dict(sorted(drains.items()))
    absent = event.get("absent") or {}  # ours
    change["absent"] = {host: msgspec.convert(said, Drain) for host, said in absent.items()}
    if event.get("discovery-method") is not None:
        change["method"] = str(event.get("discovery-method"))
    return change


_EFFECTS: dict[str, Callable[[ResourceState, Event], Change]] = {
    "restart": _restart,
    "resource-define": _define,
    "resource-update": _update,
    "drain": _drain,
    "undrain": _undrain,
    "online": _online,
    "offline": _offline,
    "torpid": _torpid,
    "lively": _lively,
    "truncate": _truncate,
}


def apply_event(state: ResourceState, event: Event, *, strict: bool = True) -> ResourceState:
    """The state after one more event. Raises EventError (strict) when a known event's context is malformed.

    Lenient (replay), such an event is counted and moves nothing.
    """
    effect = _EFFECTS.get(event.name)
    change: Change = {}
    if effect is not None:
        try:
            change = effect(state, event)
        except (EventError, FormatError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
            if strict:
                raise error if isinstance(error, EventError) else EventError(f"{event.name}: {error}") from None
    return replace(state, **change, n=state.n + 1, t_last=max(state.t_last, event.timestamp))


def replay(events: Iterable[Event]) -> ResourceState:
    """The state that a whole log describes (lenient)."""
    state = ResourceState()
    for event in events:
        state = apply_event(state, event, strict=False)
    return state


def truncated(state: ResourceState) -> dict[str, Any]:
    """The context of a `truncate` event that stands for all events so far (RFC 44)."""
    same: dict[tuple[float, str, int | None], list[int]] = {}
    for rank, drain in state.drains.items():
        same.setdefault((drain.timestamp, drain.reason, drain.userid), []).append(rank)
    return {
        "online": idset.encode(state.online),
        "torpid": idset.encode(state.torpid),
        "drain": {
            idset.encode(ranks): {"timestamp": when, "reason": reason, "userid": userid}
            for (when, reason, userid), ranks in same.items()
        },
        "absent": {host: msgspec.to_builtins(drain) for host, drain in state.absent.items()},
        "ranks": idset.encode(state.hosts),
        "nodelist": hostlist.encode(state.hosts.values()),
        "discovery-method": state.method,
    }
