"""The resource eventlog (RFC 44) and its fold."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core import resourcelog
from leveret.core.event import Event
from leveret.core.resourcelog import Drain, ResourceState, apply_event, replay
from leveret.errors import EventError

RESTART = ("restart", {"ranks": "0-3", "online": "", "nodelist": "n[0-3]"})


def log(*events: tuple[str, dict[str, Any]]) -> ResourceState:
    return replay(Event(float(at), name, context) for at, (name, context) in enumerate(events, 1))


def drain(ids: str, hosts: str, reason: str = "", overwrite: int = 0, **more: Any) -> tuple[str, dict[str, Any]]:
    return "drain", {"idset": ids, "nodelist": hosts, "reason": reason, "overwrite": overwrite, **more}


def test_nodes_come_and_go() -> None:
    state = log(RESTART, ("online", {"idset": "0-2"}), ("torpid", {"idset": "1"}), ("offline", {"idset": "0"}))
    assert (state.online, state.offline, state.torpid) == ({1, 2}, {0, 3}, {1})
    assert log(RESTART, ("online", {"idset": "1,9"}), ("lively", {"idset": "1"})).online == {1}
    gone = log(RESTART, ("online", {"idset": "1"}), ("torpid", {"idset": "1"}), ("offline", {"idset": "1"}))
    assert gone.torpid == frozenset()  # what is offline is not torpid


def test_a_restart_forgets_who_was_online_and_keeps_what_is_drained() -> None:
    state = log(RESTART, ("online", {"idset": "0-3"}), drain("2", "n2", "bad", userid=7), RESTART)
    assert state.online == frozenset()
    assert state.drains == {2: Drain(3.0, "bad", 7)}


@pytest.mark.parametrize(("overwrite", "left"), [(0, Drain(2.0, "a")), (1, Drain(2.0, "b")), (2, Drain(3.0, "b"))])
def test_what_a_second_drain_changes(overwrite: int, left: Drain) -> None:
    assert log(RESTART, drain("1", "n1", "a"), drain("1", "n1", "b", overwrite)).drains == {1: left}


def test_undrain() -> None:
    state = log(RESTART, drain("0-2", "n[0-2]"), ("undrain", {"idset": "1", "nodelist": "n1"}))
    assert set(state.drains) == {0, 2}


def test_a_drained_host_keeps_its_drain_at_another_rank_and_while_it_is_away() -> None:
    """RFC 44: the ranks of a log may be others by now; the hosts tell."""
    moved = ("restart", {"ranks": "0-2", "online": "", "nodelist": "n[1-3]"})
    state = log(RESTART, drain("0,2", "n[0,2]", "bad"), moved)
    assert set(state.drains) == {1} and set(state.absent) == {"n0"}
    back = log(RESTART, drain("0,2", "n[0,2]", "bad"), moved, RESTART)
    assert set(back.drains) == {0, 2} and back.absent == {}
    # ranks that share a host stay themselves
    both = ("restart", {"ranks": "0-1", "online": "", "nodelist": "h,h"})
    assert set(log(both, drain("1", "h"), both).drains) == {1}


def test_unknown_events_are_kept_and_move_nothing() -> None:
    state = log(RESTART, ("housekeeping-start", {"idset": "0"}))
    assert state.n == 2 and state == log(RESTART, ("whatever", {}))


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("online", {}),
        ("online", {"idset": "x"}),
        ("drain", {"idset": "0"}),
        ("restart", {"ranks": "0-1", "online": "", "nodelist": "a"}),
    ],
)
def test_what_is_malformed_is_refused_and_on_replay_moves_nothing(name: str, context: dict[str, Any]) -> None:
    state = log(RESTART, ("online", {"idset": "0"}))
    with pytest.raises(EventError):
        apply_event(state, Event(9.0, name, context))
    after = apply_event(state, Event(9.0, name, context), strict=False)
    assert (after.hosts, after.online, after.drains, after.n) == (state.hosts, state.online, state.drains, state.n + 1)


def test_truncate_stands_for_all_before_it() -> None:
    state = log(
        ("restart", {"ranks": "0-4", "online": "", "nodelist": "n[0-4]"}),
        ("resource-define", {"method": "configuration"}),
        drain("4", "n4", "gone"),
        RESTART,
        ("online", {"idset": "0-3"}),
        drain("1-2", "n[1-2]", "bad", userid=3),
        drain("3", "n3", "other"),
        ("torpid", {"idset": "0"}),
    )
    short = replay([Event(state.t_last, "truncate", resourcelog.truncated(state))])
    for field in ("hosts", "online", "torpid", "drains", "absent", "method"):
        assert getattr(short, field) == getattr(state, field), field
