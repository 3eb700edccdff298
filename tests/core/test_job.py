"""A job is a fold of its log: holds by name, strict posting, lenient replay, and real logs of Flux."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import stories
from automaton import Broken, check
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import FATAL, FINISH, RELEASE, WARNING, hold, post, unhold

from leveret.core.event import Event, decode_log
from leveret.core.job import FLAG_DEBUG, FLAG_WAITABLE, AlreadyOpen, Job, apply_event, replay, violations
from leveret.core.transitions import State
from leveret.core.verdict import CANCELED, COMPLETED, FAILED, TIMEOUT, verdict
from leveret.errors import EventError

DATA = Path(__file__).parents[1] / "data" / "flux"
#: the primary eventlogs (behaviours.jsonl is another kind of file: scenarios)
LOGS = sorted(p for p in DATA.glob("*.jsonl") if not p.name.endswith((".exec.jsonl", "behaviours.jsonl")))
KINDS = ("dependency", "prolog", "epilog", "part")
#: the logs that did not end well
RESULTS = {
    "afterok-never": FAILED,
    "cancel-early": CANCELED,
    "cancel-held": CANCELED,
    "cancel-running": CANCELED,
    "exit3": FAILED,
    "notfound": FAILED,
    "perilog-cancel-in-epilog": CANCELED,
    "perilog-cancel-in-prolog": CANCELED,
    "perilog-fail-prolog": FAILED,
    "perilog-fatal-in-epilog": FAILED,
    "sigkill": FAILED,
    "timeout": TIMEOUT,
    "unsatisfiable": FAILED,
}


def refused(before: Job, name: str, context: dict[str, Any] | None = None) -> EventError:
    """Post what must be refused: the error, after seeing that nothing has changed."""
    frozen = msgspec.json.encode(before)
    with pytest.raises(EventError) as caught:
        post(before, name, context)
    assert msgspec.json.encode(before) == frozen
    return caught.value


# ---- real logs --------------------------------------------------------------------------------------


def test_the_real_logs_are_there() -> None:
    assert len(LOGS) == 25
    assert set(RESULTS) <= {p.stem for p in LOGS}


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
class TestRealLogs:
    def test_only_the_broken_one_is_flagged(self, path: Path) -> None:
        found = violations(decode_log(path.read_bytes()))
        if path.stem == "perilog-fail-prolog":
            assert found == [
                "10: free: held by epilog/job-manager.epilog",
                "11: clean: the resources are not free",
            ]
        else:
            assert found == []

    def test_the_independent_checker_says_the_same(self, path: Path) -> None:
        log = [(event.name, event.context) for event in decode_log(path.read_bytes())]
        if path.stem == "perilog-fail-prolog":
            with pytest.raises(Broken, match="free under epilog"):
                check(log)
        else:
            assert check(log).at == "gone"

    def test_it_replays_to_its_end(self, path: Path) -> None:
        events = decode_log(path.read_bytes())
        job = replay(5, events)
        assert job.state is State.INACTIVE
        assert job.n == len(events)
        assert not job.holds
        assert verdict(job).result == RESULTS.get(path.stem, COMPLETED)
        assert replay(5, events) == job

    def test_every_beginning_of_it_replays(self, path: Path) -> None:
        events = decode_log(path.read_bytes())
        for count in range(len(events)):
            job = replay(5, events[:count])
            assert job.n == count
            assert job.state is not State.INACTIVE
            assert replay(5, events[:count]) == job

    def test_strict_and_lenient_agree_on_what_is_legal(self, path: Path) -> None:
        job = Job(5)
        for event in decode_log(path.read_bytes()):
            lenient = apply_event(job, event, strict=False)
            if lenient.anomalies == job.anomalies:
                assert apply_event(job, event) == lenient
            job = lenient


# ---- holds ------------------------------------------------------------------------------------------

#: kind → where it can be opened and closed again
PLACE = {"dependency": stories.DEPEND, "prolog": stories.RUN, "epilog": stories.FINISHED, "part": stories.FINISHED}


@pytest.mark.parametrize("kind", KINDS)
class TestHolds:
    def test_open_and_close(self, kind: str) -> None:
        opened = post(stories.job(PLACE[kind]), *hold(kind, "a"))
        assert list(opened.holds) == [f"{kind}/a"]
        closed = post(opened, *unhold(kind, "a", 256))
        assert not closed.holds
        assert closed.closed == {f"{kind}/a": 0 if kind == "dependency" else 256}

    def test_start_of_what_is_open_changes_nothing(self, kind: str) -> None:
        opened = post(stories.job(PLACE[kind]), *hold(kind, "a"))
        assert isinstance(refused(opened, *hold(kind, "a")), AlreadyOpen)
        assert violations([*stories.events([*PLACE[kind], hold(kind, "a"), hold(kind, "a")])]) == []

    def test_a_name_is_used_once(self, kind: str) -> None:
        closed = post(post(stories.job(PLACE[kind]), *hold(kind, "a")), *unhold(kind, "a"))
        error = refused(closed, *hold(kind, "a"))
        assert not isinstance(error, AlreadyOpen)
        assert "closed already" in error.message
        assert "closed already" in refused(closed, *unhold(kind, "a")).message

    def test_finish_of_what_is_not_open(self, kind: str) -> None:
        opened = post(stories.job(PLACE[kind]), *hold(kind, "a"))
        error = refused(opened, *unhold(kind, "b"))
        assert f"{kind} `b` is not open" in error.message
        assert f"{kind}/a" in error.hint

    def test_names_of_other_kinds_are_other_names(self, kind: str) -> None:
        other = "epilog" if kind != "epilog" else "part"
        job = post(stories.job(PLACE[kind]), *hold(other, "a"))
        job = post(job, *hold(kind, "a"))
        assert sorted(job.holds) == sorted([f"{other}/a", f"{kind}/a"])

    def test_order_of_opening_is_kept(self, kind: str) -> None:
        job = stories.job(PLACE[kind])
        for name in ("z", "a", "m"):
            job = post(job, *hold(kind, name))
        job = post(job, *unhold(kind, "a"))
        assert [h.name for h in job.holds.values()] == ["z", "m"]
        assert job.holds[f"{kind}/z"].since == job.t_last - 3


BLOCKED = [
    # (story, hold, step that is kept back, the step's event)
    (stories.DEPEND, hold("dependency"), ("depend", None)),
    (stories.RUN, hold("prolog"), ("start", None)),
    (stories.SCHED, hold("prolog"), ("clean", None)),
    (stories.FINISHED, hold("epilog"), ("free", None)),
    (stories.SCHED, hold("epilog"), ("clean", None)),
    (stories.SCHED, hold("part"), ("clean", None)),
    (stories.RUN, hold("part", blocks=["start"]), ("start", None)),
    (stories.FINISHED, hold("part", blocks=["free"]), ("free", None)),
    (stories.FINISHED, hold("part", uses="nodes"), ("free", None)),
]


@pytest.mark.parametrize(("story", "opener", "step"), BLOCKED)
def test_a_hold_keeps_back_its_step(story: list[Any], opener: tuple[str, dict[str, Any]], step: Any) -> None:
    kind = "dependency" if opener[0] == "dependency-add" else opener[0].partition("-")[0]
    job = post(stories.job(story), *opener)
    if step[0] in ("clean",):
        job = post(job, *FATAL)
    if step[0] == "free" and job.started:
        job = post(job, *RELEASE)
    assert "held by" in refused(job, *step).message
    assert job.blocked(step[0])
    assert step[0] in {event for event, _ in [step]}
    after = post(post(job, *unhold(kind)), *step)
    assert after.n == job.n + 2


@pytest.mark.parametrize(
    ("context", "blocks"),
    [
        ({}, ("clean",)),
        ({"blocks": ["clean"]}, ("clean",)),
        ({"blocks": ["free"]}, ("free", "clean")),
        ({"blocks": ["start"]}, ("start", "free", "clean")),
        ({"blocks": [], "uses": "nodes"}, ("free", "clean")),
        ({"blocks": [], "uses": "storage"}, ("clean",)),
    ],
)
def test_a_part_says_itself_what_it_blocks(context: dict[str, Any], blocks: tuple[str, ...]) -> None:
    job = post(stories.job(stories.RUN), "part-start", {"description": "p", **context})
    assert job.holds["part/p"].blocks == blocks


def test_a_part_that_blocks_clean_only_lets_the_nodes_go() -> None:
    job = stories.job([*stories.FINISHED, hold("part"), RELEASE, "free"])
    assert job.freed
    assert "held by part/x" in refused(job, "clean").message


def test_owners() -> None:
    job = stories.job([*stories.RUN, hold("prolog"), hold("epilog"), hold("part")])
    job = post(job, *hold("part", "sites", owner="site", deadline=9.5))
    assert {key: h.owner for key, h in job.holds.items()} == {
        "prolog/x": "site",
        "epilog/x": "site",
        "part/x": "user",
        "part/sites": "site",
    }
    assert job.holds["part/sites"].deadline == 9.5


def test_a_dependency_left_open_by_a_fatal_exception_does_not_keep_the_job() -> None:
    job = stories.job([*stories.DEPEND, hold("dependency"), FATAL, "clean"])
    assert job.state is State.INACTIVE
    assert not job.holds


# ---- what steps need --------------------------------------------------------------------------------


def test_start_once_ever() -> None:
    assert "started already" in refused(stories.job(stories.STARTED), "start").message
    assert "no resources" in refused(stories.job([*stories.RUN, FATAL, "free"]), "start").message


def test_free_waits_for_the_finish_of_a_start() -> None:
    job = stories.job([*stories.STARTED, FATAL])
    assert "tasks have not finished" in refused(job, "free").message
    assert post(post(job, *FINISH), "free").freed


def test_a_late_start_and_a_late_alloc_are_taken_and_undone() -> None:
    late = stories.job([*stories.SCHED, FATAL, "alloc"])
    assert late.state is State.CLEANUP
    assert "resources are not free" in refused(late, "clean").message
    assert post(post(late, "free"), "clean").done
    started = stories.job([*stories.RUN, hold("prolog"), FATAL, "start"])
    assert started.started
    assert started.state is State.CLEANUP


def test_no_free_without_resources_and_only_once() -> None:
    assert "no resources" in refused(stories.job([*stories.SCHED, FATAL]), "free").message
    assert "no resources" in refused(stories.job([*stories.FINISHED, "free"]), "free").message


def test_release() -> None:
    job = stories.job([*stories.STARTED, ("release", {"ranks": "1", "final": False})])
    assert not job.released
    assert "have not finished" in refused(job, *RELEASE).message
    job = post(post(job, *FINISH), *RELEASE)
    assert job.released
    assert "logged already" in refused(job, *RELEASE).message
    assert "no resources" in refused(post(job, "free"), *RELEASE).message


def test_finish_needs_a_start_and_comes_once() -> None:
    assert "not started" in refused(stories.job(stories.RUN), *FINISH).message
    assert "finished already" in refused(stories.job(stories.FINISHED), *FINISH).message


def test_no_prolog_after_start() -> None:
    assert "started already" in refused(stories.job(stories.STARTED), *hold("prolog")).message


def test_timestamps_must_not_decrease() -> None:
    job = stories.job(stories.NEW)
    with pytest.raises(EventError, match="timestamps"):
        apply_event(job, Event(job.t_last - 0.001, "validate"))
    assert apply_event(job, Event(job.t_last, "validate")).state is State.DEPEND


def test_bad_contexts_are_refused_with_the_path() -> None:
    error = refused(stories.job(stories.STARTED), "finish", {"status": "0"})
    assert error.path == "context.status"


def test_flags() -> None:
    job = post(stories.job(stories.NEW), "set-flags", {"flags": ["waitable", "debug", "somebodys"]})
    assert job.flags == FLAG_WAITABLE | FLAG_DEBUG


def test_memo_merges_and_null_removes() -> None:
    job = stories.job(
        [*stories.RUN, ("memo", {"a": 1, "b": {"x": 1, "y": 2}}), ("memo", {"a": None, "b": {"x": None}})]
    )
    assert job.annotations == {"user": {"b": {"y": 2}}}
    assert post(job, "memo", {"b": None}).annotations == {}
    assert post(job, "memo", None).annotations == job.annotations


def test_alloc_brings_its_annotations_and_updates_are_kept_by_key() -> None:
    job = stories.job([*stories.SCHED, ("alloc", {"annotations": {"sched": {"resource_summary": "rank0/core0"}}})])
    job = post(job, "memo", {"k": 1})
    assert job.annotations == {"sched": {"resource_summary": "rank0/core0"}, "user": {"k": 1}}
    job = post(job, "jobspec-update", {"attributes.system.duration": 5})
    job = post(job, "jobspec-update", {"attributes.system.duration": 9, "attributes.x": 1})
    assert job.updates == {"attributes.system.duration": 9, "attributes.x": 1}
    assert post(job, "resource-update", {"expiration": 77}).expiration == 77.0


def test_unknown_events_are_kept_and_move_nothing() -> None:
    job = stories.job(stories.RUN)
    after = post(job, "debug.free-request", {"any": [1]})
    assert after == msgspec.structs.replace(job, n=job.n + 1, t_last=job.t_last + 1)


def test_the_first_fatal_exception_is_the_cause_and_the_worst_is_kept_apart() -> None:
    job = stories.job([*stories.STARTED, WARNING, ("exception", {"type": "t", "severity": 2, "note": ""})])
    assert (job.fatal, job.worst and job.worst.type, job.exceptions) == (None, "t", 2)
    job = post(post(job, *FATAL), "exception", {"type": "late", "severity": 0, "note": "", "userid": 3})
    assert job.fatal is not None and job.fatal.type == "cancel"
    assert job.worst is not None and job.worst.type == "cancel"
    assert post(job, *WARNING).fatal == job.fatal


class TestUserPartsThatFailWhileTasksRun:
    def test_they_take_effect_at_finish(self) -> None:
        job = stories.job([*stories.STARTED, hold("part", "mine"), hold("part", "sites", owner="site")])
        job = post(job, "part-finish", {"description": "mine", "status": 256, "note": "why"})
        job = post(job, "part-finish", {"description": "sites", "status": 256})
        assert (job.state, job.failed_parts) == (State.RUN, {"mine": "why"})

    def test_a_fatal_exception_comes_first(self) -> None:
        job = stories.job([*stories.STARTED, hold("part"), unhold("part", "x", 1), FATAL])
        assert job.failed_parts == {}
        job = stories.job([*stories.STARTED, hold("part"), FATAL, unhold("part", "x", 1)])
        assert job.failed_parts == {}

    def test_after_finish_they_are_an_exception_of_their_own(self) -> None:
        assert stories.job([*stories.FINISHED, hold("part"), unhold("part", "x", 1)]).failed_parts == {}


# ---- lenient replay ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    ["depend", "alloc", "finish", FINISH, unhold("epilog"), "validate", ("free", {"k": 1}), ("submit", stories.SUBMIT[1]),
     ("priority", {"priority": "high"}), ("exception", {"severity": 9}), "start"],
)  # fmt: skip
def test_on_replay_an_illegal_event_is_kept_flagged_and_moves_nothing(bad: Any) -> None:
    story = stories.events([*stories.FINISHED, bad])
    before = replay(1, story[:-1])
    after = replay(1, story)
    assert after == msgspec.structs.replace(before, n=before.n + 1, anomalies=1, t_last=story[-1].timestamp)
    assert violations(story) != []


def test_on_replay_time_never_goes_back() -> None:
    events = [*stories.events(stories.DEPEND), Event(50.0, "depend"), Event(200.0, "depend")]
    job = replay(1, events)
    assert (job.state, job.anomalies, job.t_last) == (State.PRIORITY, 1, 200.0)
    assert violations(events) == ["3: depend: timestamps must not decrease"]


@pytest.mark.parametrize("story", [stories.NEW, stories.SCHED, stories.STARTED, [*stories.FINISHED, hold("epilog")]])
def test_on_replay_clean_always_ends_a_job(story: list[Any]) -> None:
    job = replay(1, stories.events([*story, "clean"]))
    assert (job.state, job.holds, job.anomalies) == (State.INACTIVE, {}, 1)
    assert job.t_inactive == job.t_last
    again = replay(1, stories.events([*story, "clean", "memo"]))
    assert (again.state, again.anomalies) == (State.INACTIVE, 2)


NAMES = [
    "submit", "validate", "set-flags", "dependency-add", "dependency-remove", "depend", "priority", "urgency",
    "jobspec-update", "resource-update", "alloc", "prolog-start", "prolog-finish", "start", "finish", "epilog-start",
    "epilog-finish", "part-start", "part-finish", "release", "free", "clean", "exception", "memo", "other",
]  # fmt: skip
KEYS = [
    "description", "status", "severity", "type", "note", "priority", "urgency", "userid", "flags", "version", "final",
    "ranks", "annotations", "user", "expiration", "deadline", "blocks", "owner", "uses", "attributes.x",
]  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 20) | st.floats(allow_nan=False) | st.sampled_from(["", "x", "user"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2),
    max_leaves=4,
)
contexts = st.none() | st.dictionaries(st.sampled_from(KEYS), values, max_size=5)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from(NAMES), contexts), max_size=12), st.sampled_from([0, 1, 4, 5, 6, 7]))
def test_no_event_that_can_be_read_stops_a_replay(steps: list[Any], at: int) -> None:
    events = stories.events([*stories.DONE[:at], *steps])
    job = replay(1, events)
    assert job.n == len(events)
    assert job.anomalies <= len(violations(events)) + len(steps)
    assert replay(1, events) == job
    for name, context in steps:
        try:
            post(job, name, context)
        except EventError:
            pass


@pytest.mark.parametrize("name", NAMES)
def test_no_single_value_stops_a_replay(name: str) -> None:
    """Every key with every kind of value, in every place, alone and beside what is required."""
    right = {"description": "x", "status": 0, "severity": 1, "type": "t", "note": "", "priority": 1, "urgency": 1,
             "userid": 1, "flags": 0, "version": 1, "final": True, "ranks": "all"}  # fmt: skip
    kinds = [None, True, -1, 2**70, 0.5, "x", [], ["x"], [[]], {}, {"user": 5}, {"user": {"k": 1}}, {"sched": None}]
    for at in range(len(stories.DONE) + 1):
        start = stories.job(stories.DONE[:at])
        for key in KEYS:
            for value in kinds:
                for context in ({key: value}, {**right, key: value}):
                    after = apply_event(start, Event(start.t_last, name, context), strict=False)
                    assert after.n == start.n + 1
                    apply_event(after, Event(after.t_last, "memo", {"k": {"l": 1}}), strict=False)


def test_a_log_without_submit_is_flagged() -> None:
    assert violations(stories.events(["validate"])) == ["1: validate: the first event must be submit"]
