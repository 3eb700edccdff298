"""The verdict, the phase and the return code, from the log alone."""

from __future__ import annotations

from typing import Any

import pytest
import stories
from hypothesis import given
from hypothesis import strategies as st
from stories import FATAL, WARNING, hold, unhold

from leveret.core.verdict import (
    CANCELED,
    COMPLETED,
    FAILED,
    TIMEOUT,
    exit_code_of,
    phase,
    record,
    returncode,
    verdict,
)


def finish(status: int) -> tuple[str, dict[str, Any]]:
    return "finish", {"status": status}


def exception(type_: str, severity: int = 0) -> tuple[str, dict[str, Any]]:
    return "exception", {"type": type_, "severity": severity, "note": type_}


CASES = [
    # (story, result, exit code, cause)
    ([*stories.STARTED, finish(0)], COMPLETED, 0, None),
    ([*stories.STARTED, finish(768)], FAILED, 3, None),
    ([*stories.STARTED, finish(35072)], FAILED, 137, None),
    ([*stories.STARTED, finish(15)], FAILED, 143, None),
    (stories.STARTED, FAILED, 1, None),
    ([*stories.SCHED, FATAL], CANCELED, 1, "cancel"),
    ([*stories.STARTED, FATAL, finish(36608)], CANCELED, 143, "cancel"),
    ([*stories.STARTED, FATAL, finish(0)], CANCELED, 1, "cancel"),
    ([*stories.STARTED, exception("timeout"), finish(36352)], TIMEOUT, 142, "timeout"),
    ([*stories.STARTED, exception("exec"), finish(32512)], FAILED, 127, "exec"),
    ([*stories.RUN, exception("prolog")], FAILED, 1, "prolog"),
    ([*stories.STARTED, finish(0), exception("stage-out")], FAILED, 1, "stage-out"),
    ([*stories.STARTED, finish(768), exception("stage-out")], FAILED, 3, "stage-out"),
    # the first fatal one is the cause, and nothing later improves or changes it
    ([*stories.STARTED, FATAL, exception("timeout"), finish(0)], CANCELED, 1, "cancel"),
    ([*stories.STARTED, exception("timeout"), FATAL, finish(0)], TIMEOUT, 1, "timeout"),
    ([*stories.STARTED, exception("data"), WARNING, finish(0)], FAILED, 1, "data"),
    ([*stories.STARTED, WARNING, finish(0), exception("epilog", 2)], COMPLETED, 0, None),
    ([*stories.STARTED, finish(0), exception("cancel", 1)], COMPLETED, 0, None),
]


@pytest.mark.parametrize(("story", "result", "code", "cause"), CASES)
def test_verdict(story: list[Any], result: str, code: int, cause: str | None) -> None:
    end = verdict(stories.job(story))
    assert (end.result, end.exit_code) == (result, code)
    assert (end.cause.type if end.cause else None) == cause
    assert end.success == (result == COMPLETED)


@given(st.integers(0, 65535), st.lists(st.tuples(st.sampled_from(["cancel", "timeout", "x"]), st.integers(0, 7))))
def test_a_verdict_is_completed_only_without_any_fatal_exception(status: int, raised: list[tuple[str, int]]) -> None:
    story = [*stories.STARTED, finish(status), *(exception(t, s) for t, s in raised)]
    end = verdict(stories.job(story))
    fatal = [t for t, s in raised if s == 0]
    assert end.success == (status == 0 and not fatal)
    assert (end.exit_code == 0) == end.success
    if fatal:
        assert end.result == {"cancel": CANCELED, "timeout": TIMEOUT}.get(fatal[0], FAILED)


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (256, 1), (65280, 255), (9, 137), (15, 143), (139, 139), (36608, 143)]
)
def test_exit_codes(status: int, code: int) -> None:
    assert exit_code_of(status) == code


def test_returncode_as_flux_prints_it() -> None:
    assert returncode(stories.job(stories.SCHED)) is None
    assert returncode(stories.job([*stories.SCHED, FATAL, "clean"])) == -128
    assert returncode(stories.job([*stories.SCHED, exception("alloc"), "clean"])) == 1
    assert returncode(stories.job(stories.DONE)) == 0


PHASES = [
    (stories.NEW, ("new", "validation")),
    ([*stories.DEPEND, hold("dependency", "after-success=f1"), hold("dependency", "b")], ("depend", "after-success=f1, b")),
    (stories.IN_PRIORITY, ("priority", "priority")),
    (stories.SCHED, ("sched", "resources")),
    ([*stories.IN_PRIORITY, ("priority", {"priority": 0})], ("held", "urgency above 0")),
    (stories.RUN, ("starting", "start")),
    ([*stories.RUN, hold("prolog", "p"), hold("part", "stage-in", blocks=["start"])], ("prolog", "p, stage-in")),
    ([*stories.RUN, hold("part", "stage-in", blocks=["start"])], ("stage-in", "stage-in")),
    ([*stories.RUN, hold("part", "later")], ("starting", "start")),
    (stories.STARTED, ("running", "tasks")),
    ([*stories.STARTED, FATAL], ("ending", "tasks to end")),
    ([*stories.FINISHED, hold("epilog", "e"), hold("part", "stage-out")], ("epilog", "e, stage-out")),
    ([*stories.FINISHED, hold("part", "stage-out"), hold("epilog", "e")], ("stage-out", "stage-out, e")),
    (stories.FINISHED, ("cleanup", "")),
    (stories.DONE, ("done", "")),
]  # fmt: skip


@pytest.mark.parametrize(("story", "want"), PHASES)
def test_the_phase_names_every_holder(story: list[Any], want: tuple[str, str]) -> None:
    assert phase(stories.job(story)) == want


def test_the_record_of_an_active_job_has_no_result_yet() -> None:
    out = record(stories.job([*stories.STARTED, WARNING]))
    assert (out["state"], out["done"], out["result"], out["exit_code"], out["returncode"]) == (
        "RUN",
        False,
        None,
        None,
        None,
    )
    assert (out["exception_occurred"], out["exception_type"], out["exception_severity"]) == (True, "note", 3)
    assert "t_cleanup" not in out


def test_the_record_of_an_ended_job_says_the_verdict() -> None:
    out = record(stories.job([*stories.STARTED, FATAL, finish(36608), stories.RELEASE, "free", "clean"]))
    assert (out["result"], out["success"], out["exit_code"], out["waitstatus"]) == (CANCELED, False, 143, 36608)
    assert out["cause"] == {"type": "cancel", "severity": 0, "note": ""}
    assert out["t_inactive"] == 110.0


def test_the_record_lists_open_dependencies() -> None:
    job = stories.job([*stories.DEPEND, hold("dependency", "a"), hold("dependency", "b"), unhold("dependency", "a")])
    assert record(job)["dependencies"] == ["b"]
