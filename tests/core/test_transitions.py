"""RFC 21's table: every event in every state is legal as written here by hand, or refused with nothing changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import stories
from stories import FATAL, hold

from leveret.core.job import Job
from leveret.core.transitions import (
    ACTIVE,
    BEFORE_CLEANUP,
    LEGAL,
    PENDING,
    RUNNING,
    TRANSITIONS,
    State,
    mermaid,
)
from leveret.errors import EventError

ORDER = [State.NEW, State.DEPEND, State.PRIORITY, State.SCHED, State.RUN, State.CLEANUP, State.INACTIVE]
LETTER = dict(zip("NDPSRCI", ORDER, strict=True))

#: event → for NEW DEPEND PRIORITY SCHED RUN CLEANUP INACTIVE: `-` refused, `=` stays, or the next state's letter
TABLE = {
    "submit":            "-------",
    "validate":          "D------",
    "invalidate":        "I------",
    "set-flags":         "======-",
    "dependency-add":    "==-----",
    "dependency-remove": "==---=-",
    "depend":            "-P-----",
    "priority":          "--S=---",
    "urgency":           "===P=--",
    "jobspec-update":    "===P=--",
    "flux-restart":      "===P==-",
    "resource-update":   "----==-",
    "alloc":             "---R-=-",
    "prolog-start":      "=====--",
    "prolog-finish":     "======-",
    "start":             "----==-",
    "finish":            "----C=-",
    "epilog-start":      "======-",
    "epilog-finish":     "======-",
    "part-start":        "======-",
    "part-finish":       "======-",
    "release":           "----==-",
    "free":              "-----=-",
    "clean":             "-----I-",
    "exception(0)":      "CCCCC=-",
    "exception(1)":      "======-",
    "memo":              "======-",
    "debug.somebodys":   "======-",
}  # fmt: skip

CONTEXT: dict[str, dict[str, Any] | None] = {
    "submit": stories.SUBMIT[1],
    "set-flags": {"flags": ["waitable"]},
    "dependency-add": {"description": "fresh"},
    "dependency-remove": {"description": "x"},
    "priority": {"priority": 5},
    "urgency": {"urgency": 5, "userid": 7},
    "jobspec-update": {"attributes.system.duration": 60},
    "resource-update": {"expiration": 9.0},
    "prolog-start": {"description": "fresh"},
    "prolog-finish": {"description": "x", "status": 0},
    "finish": {"status": 0},
    "epilog-start": {"description": "fresh"},
    "epilog-finish": {"description": "x", "status": 0},
    "part-start": {"description": "fresh"},
    "part-finish": {"description": "x", "status": 0},
    "release": {"ranks": "all", "final": True},
    "exception(0)": {"type": "t", "severity": 0, "note": ""},
    "exception(1)": {"type": "t", "severity": 1, "note": ""},
    "memo": {"k": 1},
    "debug.somebodys": {"any": ["thing"]},
}

#: every state, in all the ways to be in it that matter to some event
VARIANTS: dict[State, list[list[Any]]] = {
    State.NEW: [stories.NEW, *([*stories.NEW, hold(k)] for k in ("dependency", "prolog", "epilog", "part"))],
    State.DEPEND: [stories.DEPEND, *([*stories.DEPEND, hold(k)] for k in ("dependency", "prolog", "epilog", "part"))],
    State.PRIORITY: [
        stories.IN_PRIORITY,
        *([*stories.IN_PRIORITY, hold(k)] for k in ("prolog", "epilog", "part")),
        [*stories.SCHED, ("urgency", {"urgency": 3, "userid": 7})],
    ],
    State.SCHED: [stories.SCHED, *([*stories.SCHED, hold(k)] for k in ("prolog", "epilog", "part"))],
    State.RUN: [
        stories.RUN,
        stories.STARTED,
        *([*stories.RUN, hold(k)] for k in ("prolog", "epilog", "part")),
    ],
    State.CLEANUP: [
        [*stories.SCHED, FATAL],
        [*stories.DEPEND, hold("dependency"), FATAL],
        [*stories.RUN, FATAL],
        [*stories.RUN, hold("prolog"), FATAL],
        [*stories.STARTED, FATAL],
        stories.FINISHED,
        [*stories.FINISHED, hold("epilog")],
        [*stories.FINISHED, hold("part")],
        [*stories.FINISHED, stories.RELEASE, "free"],
    ],
    State.INACTIVE: [
        stories.DONE,
        [*stories.SCHED, FATAL, "clean"],
        [*stories.NEW, "invalidate"],
        [*stories.DEPEND, hold("dependency"), FATAL, "clean"],
    ],
}


def event_of(row: str) -> tuple[str, dict[str, Any] | None]:
    return re.sub(r"\(\d\)", "", row), CONTEXT.get(row)


def test_the_table_here_is_whole() -> None:
    assert set(LEGAL) <= set(TABLE)
    assert {event for _, event in TRANSITIONS} <= set(TABLE)
    assert all(stories.job(steps).state is state for state, variants in VARIANTS.items() for steps in variants)


@pytest.mark.parametrize("state", ORDER, ids=lambda s: s.name)
@pytest.mark.parametrize("row", TABLE)
def test_every_event_in_every_state(row: str, state: State) -> None:
    cell = TABLE[row][ORDER.index(state)]
    name, context = event_of(row)
    taken: list[Job] = []
    for steps in VARIANTS[state]:
        before = stories.job(steps)
        frozen = msgspec.json.encode(before)
        try:
            taken.append(stories.post(before, name, context))
        except EventError as error:
            assert error.message.startswith(name), "the message begins with the event's name"
        assert msgspec.json.encode(before) == frozen, "a job never changes, refused or not"
    if cell == "-":
        assert not taken
    else:
        assert taken
        want = state if cell == "=" else LETTER[cell]
        assert {after.state for after in taken} == {want}


@pytest.mark.parametrize("row", TABLE)
def test_nothing_but_submit_comes_first(row: str) -> None:
    name, context = event_of(row)
    if name == "submit":
        assert stories.post(Job(1), name, context).state is State.NEW
        return
    with pytest.raises(EventError, match="first event must be submit"):
        stories.post(Job(1), name, context)


def test_the_next_state_stamps_its_time() -> None:
    job = stories.job(stories.DONE)
    assert (job.t_submit, job.t_depend, job.t_priority, job.t_sched, job.t_run) == (100, 101, 102, 103, 104)
    assert (job.t_start, job.t_finish, job.t_cleanup, job.t_inactive) == (105, 106, 106, 109)


def test_a_transition_that_goes_nowhere_does_not_stamp() -> None:
    job = stories.post(stories.job(stories.SCHED), "priority", {"priority": 3})
    assert (job.state, job.priority, job.t_sched) == (State.SCHED, 3, 103)


def test_virtual_states() -> None:
    assert set(PENDING) == {State.DEPEND, State.PRIORITY, State.SCHED}
    assert set(RUNNING) == {State.RUN, State.CLEANUP}
    assert set(ACTIVE) == set(State) - {State.INACTIVE}
    assert set(BEFORE_CLEANUP) == set(ACTIVE) - {State.CLEANUP}
    assert [int(s) for s in ORDER] == [1, 2, 4, 8, 16, 32, 64]


def test_the_diagram_has_an_edge_for_every_transition_and_no_other() -> None:
    edges: set[tuple[str, str, str]] = set()
    for source, target, names in re.findall(r"^    (\w+) --> (\w+) : (.+)$", mermaid(), re.MULTILINE):
        edges |= {(source, name, target) for name in names.split(", ")}
    assert edges == {(s.name, name, t.name) for (s, name), t in TRANSITIONS.items()}


def test_the_diagram_in_the_documentation_is_the_table() -> None:
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
    blocks = re.findall(r"^```mermaid\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert mermaid() in blocks
