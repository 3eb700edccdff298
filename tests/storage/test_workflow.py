"""Where a workflow should be, and the way there, for every kind of end of a job."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from leveret.core.event import Event
from leveret.core.job import Job, replay
from leveret.storage import workflow
from leveret.storage.port import ERROR, STATES, View
from leveret.storage.workflow import DISCARD, FORCE, KEEP, Limits, Plan, Step, next_step, plan

SUBMIT = ("submit", {"userid": 1, "urgency": 16, "flags": 0, "version": 1})
RUNNING: list[tuple[str, dict[str, Any] | None]] = [
    SUBMIT,
    ("validate", None),
    ("depend", None),
    ("priority", {"priority": 16}),
    ("alloc", None),
]
CANCEL = ("exception", {"type": "cancel", "severity": 0, "note": "", "userid": 1})
TIMEOUT = ("exception", {"type": "timeout", "severity": 0, "note": "", "userid": 1})
START, FINISH = ("start", None), ("finish", {"status": 0})
POST = ("part-start", {"description": "post", "owner": "user", "uses": "nodes"})


def job(*events: Any) -> Job:
    return replay(1, [Event(float(n), name, context) for n, (name, context) in enumerate(events, 1)])


def walk(the_job: Job, view: View, **more: Any) -> list[str]:
    """The states that are asked for until nothing more is, when each is reached at once."""
    states = []
    while step := next_step(plan(the_job, view, **more), view):
        if step.what == "remove":
            return [*states, "remove"]
        assert step.what == "advance"
        timings = {**view.timings, view.state: "1ms"}
        view = replace(view, desired=step.state, state=step.state, ready=True, timings=timings, hurry=step.hurry)
        states.append(step.state + ("!" if step.hurry else ""))
    return states


NEW = View(1, "fluxjob-1", state="Proposal", ready=True, status="Completed")
MOUNTED = replace(NEW, desired="PreRun", state="PreRun")
ORDERLY, STRAIGHT = ["PostRun", "DataOut", "Teardown", "remove"], ["Teardown", "remove"]


def test_the_whole_way() -> None:
    pending = job(SUBMIT, ("validate", None))
    assert next_step(plan(pending, None), None) == Step("create")
    assert walk(pending, NEW) == []
    assert walk(job(*RUNNING), NEW) == ["Setup", "DataIn", "PreRun"]
    assert walk(job(*RUNNING, START), MOUNTED) == []
    assert walk(job(*RUNNING, START, FINISH), MOUNTED) == ORDERLY


@pytest.mark.parametrize(
    ("events", "view", "more", "states"),
    [
        # the job never started
        ([SUBMIT, ("validate", None), CANCEL], NEW, {}, STRAIGHT),
        ([*RUNNING, CANCEL], replace(NEW, desired="DataIn", state="DataIn", ready=False), {}, STRAIGHT),
        ([*RUNNING, CANCEL], MOUNTED, {"intent": FORCE}, ["Teardown!", "remove"]),
        # a start was requested: tasks may be running
        ([*RUNNING, CANCEL], MOUNTED, {"start_requested": True}, []),
        ([*RUNNING, START, CANCEL], MOUNTED, {}, []),
        ([*RUNNING, START, CANCEL], MOUNTED, {"intent": FORCE}, []),
        # time limit and plain cancel keep the data
        ([*RUNNING, START, TIMEOUT, FINISH], MOUNTED, {}, ORDERLY),
        ([*RUNNING, START, CANCEL, FINISH], MOUNTED, {"intent": KEEP}, ORDERLY),
        ([*RUNNING, START, CANCEL, FINISH], MOUNTED, {"intent": DISCARD}, ["Teardown!", "remove"]),
        ([*RUNNING, START, CANCEL, FINISH], MOUNTED, {"intent": FORCE}, ["Teardown!", "remove"]),
        # a discard while data is moving
        (
            [*RUNNING, START, FINISH, CANCEL],
            replace(NEW, desired="DataOut", state="DataOut", ready=False),
            {"intent": DISCARD},
            ["Teardown!", "remove"],
        ),
        # errors of the workflow
        ([*RUNNING], replace(NEW, desired="Setup", state="Setup", ready=False, status=ERROR), {}, STRAIGHT),
        ([*RUNNING, START], replace(MOUNTED, status=ERROR), {}, []),
        ([*RUNNING, START, FINISH], replace(MOUNTED, desired="DataOut", status=ERROR, ready=False), {}, STRAIGHT),
        # orphans
        ([*RUNNING, START, FINISH, ("release", {"ranks": "all", "final": True}), ("free", None), ("clean", None)], MOUNTED, {}, STRAIGHT),
    ],
)  # fmt: skip
def test_every_end(events: list[Any], view: View, more: dict[str, Any], states: list[str]) -> None:
    assert walk(job(*events), view, **more) == states


def test_nobody_knows_the_job() -> None:
    assert [s for s in [next_step(plan(None, MOUNTED), MOUNTED)] if s] == [Step("advance", "Teardown")]


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_asked_while_an_answer_is_awaited(state: str) -> None:
    view = replace(NEW, desired=state, state=state, ready=False)
    for the_job in (job(*RUNNING), job(*RUNNING, START), job(*RUNNING, START, FINISH)):
        step = next_step(plan(the_job, view), view)
        # what was never mounted has nothing to unmount or to copy
        assert step is None or (the_job.status is not None and step == Step("advance", "Teardown"))
    late = replace(view, state=STATES[max(0, STATES.index(state) - 1)], ready=True)
    if state not in ("Proposal",):
        assert next_step(plan(job(*RUNNING, START), late), late) is None


def test_after_a_restart_the_way_is_taken_up_where_it_was() -> None:
    over = job(*RUNNING, START, FINISH)
    for at, state in enumerate(STATES[3:], 3):
        view = replace(NEW, desired=state, state=state)
        assert walk(over, view) == [*STATES[at + 1 :], "remove"]


def test_nothing_is_unmounted_under_a_part_that_uses_the_nodes() -> None:
    assert plan(job(*RUNNING, START, POST, FINISH), MOUNTED).why == "post may still write to it"
    assert walk(job(*RUNNING, START, POST, FINISH), MOUNTED) == []
    done = ("part-finish", {"description": "post", "status": 0})
    assert walk(job(*RUNNING, START, POST, FINISH, done), MOUNTED) == ORDERLY


def test_what_is_being_deleted_is_left_alone() -> None:
    view = replace(NEW, deleting=True)
    assert next_step(Plan("Teardown", direct=True), view) is None
    assert next_step(Plan("Teardown"), None) is None


def test_hurry_can_be_asked_for_later() -> None:
    view = replace(NEW, desired="Teardown", state="Teardown", ready=False)
    assert next_step(Plan("Teardown", direct=True, hurry=True), view) == Step("advance", "Teardown", True)
    assert next_step(Plan("Teardown", direct=True, hurry=True), replace(view, hurry=True)) is None


def test_what_has_been_reached() -> None:
    going = replace(NEW, desired="PostRun", state="PostRun", ready=False)
    assert not workflow.unmounted(going) and workflow.unmounted(replace(going, ready=True))
    out = replace(NEW, desired="DataOut", state="DataOut", ready=False)
    assert workflow.unmounted(out) and not workflow.delivered(out) and workflow.delivered(replace(out, ready=True))
    end = replace(NEW, desired="Teardown", state="Teardown", ready=False)
    assert not workflow.unmounted(end) and not workflow.gone(end)
    assert workflow.unmounted(replace(end, timings={"PostRun": "1s"})) and workflow.unmounted(
        replace(end, mounts={"a": False})
    )
    assert not workflow.unmounted(replace(end, mounts={"a": False, "b": True}))
    assert workflow.gone(None) and workflow.gone(replace(end, ready=True))


def test_limits() -> None:
    limits = Limits(setup_s=10, pre_run_s=20, post_run_s=30, data_out_s=40, transient_s=5)
    view = replace(NEW, desired="Setup", state="Setup", ready=False, since=100.0)
    when, late = workflow.deadline(view, limits) or (0.0, None)
    assert when == 110 and late and (late.what, late.type, late.severity) == ("setup", "dws-timeout", 0)
    assert workflow.deadline(replace(view, ready=True), limits) is None
    assert workflow.deadline(view, Limits()) is None
    stuck = replace(view, status="TransientCondition", message="why")
    when, late = workflow.deadline(stuck, limits, t_transient=102.0) or (0.0, None)
    assert when == 107 and late and late.note.endswith("'TransientCondition' state too long: why")
    post = replace(view, desired="PostRun", state="PostRun")
    when, late = workflow.deadline(post, limits, t_post_run=90.0) or (0.0, None)
    assert when == 130 and late and late.what in ("post-run", "data-out")
    out = replace(view, desired="DataOut", state="DataOut")
    when, late = workflow.deadline(out, limits, t_post_run=90.0) or (0.0, None)
    assert when == 130 and late and (late.type, late.severity) == ("teardown-timeout", 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("157.403ms", 0.157403), ("2.276088s", 2.276088), ("1m2.5s", 62.5), ("45µs", 45e-6), ("1h0m1s", 3601)],
)
def test_durations(text: str, seconds: float) -> None:
    assert workflow.seconds_of(text) == pytest.approx(seconds)
    assert workflow.seconds_of(workflow.written(seconds)) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("text", ["", "5", "5x", "1s ", "-1s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError):
        workflow.seconds_of(text)
