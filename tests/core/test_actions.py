"""What is due next, by level: from the job and from what is in flight."""

from __future__ import annotations

from typing import Any

import pytest
import stories
from stories import FATAL, RELEASE, hold, unhold

from leveret.core.actions import Ask, Post, next_actions

TIMEOUT = ("exception", {"type": "timeout", "severity": 0, "note": ""})

CASES: list[tuple[list[Any], set[str], list[str]]] = [
    # (story, in flight, what is due: `ask ...` or the name of an event)
    (stories.NEW, set(), []),
    (stories.DEPEND, set(), ["depend"]),
    ([*stories.DEPEND, hold("dependency")], set(), []),
    ([*stories.DEPEND, hold("dependency"), unhold("dependency")], set(), ["depend"]),
    ([*stories.DEPEND, hold("epilog")], set(), ["depend"]),
    (stories.IN_PRIORITY, set(), ["ask priority"]),
    (stories.IN_PRIORITY, {"priority"}, []),
    (stories.SCHED, set(), ["ask alloc"]),
    (stories.SCHED, {"alloc"}, []),
    ([*stories.IN_PRIORITY, ("priority", {"priority": 0})], set(), []),
    ([*stories.IN_PRIORITY, ("priority", {"priority": 0})], {"alloc"}, ["ask withdraw"]),
    (stories.RUN, set(), ["ask start"]),
    (stories.RUN, {"start"}, []),
    ([*stories.RUN, hold("prolog")], set(), []),
    ([*stories.RUN, hold("part", blocks=["start"])], set(), []),
    ([*stories.RUN, hold("part")], set(), ["ask start"]),
    (stories.STARTED, set(), []),
    # a fatal exception before anything was asked
    ([*stories.NEW, FATAL], set(), ["clean"]),
    ([*stories.DEPEND, hold("dependency"), FATAL], set(), ["clean"]),
    ([*stories.SCHED, FATAL], {"alloc"}, ["ask withdraw", "clean"]),
    ([*stories.SCHED, FATAL], set(), ["clean"]),
    ([*stories.SCHED, hold("epilog"), FATAL], {"alloc"}, ["ask withdraw"]),
    ([*stories.SCHED, hold("epilog"), FATAL, unhold("epilog")], set(), ["clean"]),
    # … with resources, under a prolog, with a start on its way
    ([*stories.RUN, FATAL], set(), ["free"]),
    ([*stories.RUN, hold("prolog"), FATAL], set(), ["ask stop"]),
    ([*stories.RUN, hold("prolog"), FATAL], {"stop"}, []),
    ([*stories.RUN, hold("part", blocks=["start"]), FATAL], set(), ["ask stop"]),
    ([*stories.RUN, hold("part"), FATAL], set(), ["free"]),
    ([*stories.RUN, FATAL], {"start"}, ["ask kill"]),
    ([*stories.RUN, FATAL], {"start", "kill"}, []),
    ([*stories.STARTED, FATAL], set(), ["ask kill"]),
    ([*stories.STARTED, TIMEOUT], {"start"}, ["ask kill"]),
    ([*stories.STARTED, FATAL], {"kill"}, []),
    ([*stories.STARTED, FATAL, stories.FINISH], set(), ["release"]),
    # the ordinary end
    (stories.FINISHED, set(), ["release"]),
    ([*stories.FINISHED, hold("epilog")], set(), ["release"]),
    ([*stories.FINISHED, hold("epilog"), RELEASE], set(), []),
    ([*stories.FINISHED, RELEASE], set(), ["free"]),
    ([*stories.FINISHED, hold("part"), RELEASE], set(), ["free"]),
    ([*stories.FINISHED, hold("part", uses="nodes"), RELEASE], set(), []),
    ([*stories.FINISHED, hold("part"), RELEASE, "free"], set(), []),
    ([*stories.FINISHED, RELEASE, "free"], set(), ["clean"]),
    (stories.DONE, set(), []),
    # late answers are undone
    ([*stories.SCHED, FATAL, "alloc"], set(), ["free"]),
    ([*stories.RUN, FATAL, "start"], {"kill"}, []),
    ([*stories.RUN, FATAL, "start", stories.FINISH], set(), ["release"]),
    # back to PRIORITY
    ([*stories.SCHED, "flux-restart"], {"alloc"}, ["ask priority"]),
    ([*stories.SCHED, ("urgency", {"urgency": 1, "userid": 7})], set(), ["ask priority"]),
    ([*stories.SCHED, ("jobspec-update", {"attributes.a": 1})], set(), ["ask priority"]),
]


@pytest.mark.parametrize(("story", "in_flight", "want"), CASES)
def test_what_is_due(story: list[Any], in_flight: set[str], want: list[str]) -> None:
    job = stories.job(story)
    due = next_actions(job, in_flight)
    assert [f"ask {a.what}" if isinstance(a, Ask) else a.name for a in due] == want
    assert next_actions(job, in_flight) == due, "asking twice gives the same"


def test_a_user_part_that_failed_while_tasks_ran_is_the_jobs_failure_at_finish() -> None:
    failed = ("part-finish", {"description": "x", "status": 256, "note": "no space"})
    job = stories.job([*stories.STARTED, hold("part"), failed])
    assert next_actions(job, set()) == []
    job = stories.post(job, *stories.FINISH)
    assert next_actions(job, set()) == [Post("exception", {"type": "part", "severity": 0, "note": "no space"})]
    job = stories.post(job, "exception", {"type": "part", "severity": 0, "note": "no space"})
    assert next_actions(job, set()) == [Post("release", {"ranks": "all", "final": True})]


def test_the_final_release_says_all() -> None:
    assert next_actions(stories.job(stories.FINISHED), set()) == [Post("release", {"ranks": "all", "final": True})]
