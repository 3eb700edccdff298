"""The second request: an epilog hold, taken when a job enters CLEANUP, keeps it from `clean` whatever led there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import Instance, Ledger, in_order, load_hold, until, words

NAME = "to-tape"


def hold_epilogs(instance: Instance, **moments: Any) -> None:
    load_hold(instance, cleanup=[("epilog", NAME, {})], **moments)


def let_go(instance: Instance, jobid: str, status: int = 0) -> None:
    instance.client.finish_hold(jobid, NAME, status, kind="epilog")


def assert_held(instance: Instance, jobid: str) -> None:
    """In CLEANUP, with the hold open and no `clean`: now, and after another job has been through everything."""
    record = instance.wait_state(jobid, "CLEANUP")
    assert f"epilog/{NAME}" in [f"{h['kind']}/{h['name']}" for h in record["holds"]]
    other = instance.submit("--urgency=0", "true")
    instance.client.cancel(other)
    until(lambda: instance.holds(other) == [f"epilog/{NAME}"], "the other job is held")
    let_go(instance, other)
    instance.wait(other)
    names = instance.names(jobid)
    assert names.count("epilog-start") == 1
    assert "clean" not in names and "epilog-finish" not in names
    assert instance.record(jobid)["done"] is False


def test_r09_a_canceled_job_without_resources_waits_for_its_epilog_hold(instance: Instance) -> None:
    hold_epilogs(instance)
    jobid = instance.submit("--urgency=0", "true")
    attached = instance.popen("job", "attach", jobid)
    try:
        instance.leveret("cancel", jobid, check=0)
        assert_held(instance, jobid)
        assert attached.poll() is None, "attach has left a job that is not over"
        let_go(instance, jobid)
        assert instance.wait(jobid)["result"] == "CANCELED"
        assert attached.wait(60) == 1
    finally:
        attached.kill()
        attached.communicate()
    names = instance.names(jobid)
    assert names == words("submit validate depend priority exception epilog-start epilog-finish clean")
    assert instance.contexts(jobid, "epilog-start") == [{"description": NAME}]
    assert instance.contexts(jobid, "epilog-finish") == [{"description": NAME, "status": 0}]


def test_r09_the_same_for_a_job_that_waits_for_a_dependency(instance: Instance) -> None:
    hold_epilogs(instance)
    first = instance.submit("--urgency=0", "true")
    jobid = instance.submit(f"--dependency=afterok:{first}", "true")
    instance.client.cancel(jobid)
    assert_held(instance, jobid)
    let_go(instance, jobid)
    instance.wait(jobid)
    assert instance.names(jobid)[-3:] == ["epilog-start", "epilog-finish", "clean"]
    instance.client.cancel(first)
    until(lambda: instance.holds(first) == [f"epilog/{NAME}"], "the first is held")
    let_go(instance, first)
    instance.wait(first)


def test_r09_the_same_for_an_exception_in_sched(instance: Instance) -> None:
    hold_epilogs(instance)
    running = instance.submit("-N1", "sleep", "1000")
    instance.wait_event(running, "start")
    jobid = instance.submit("-N1", "true")
    instance.wait_state(jobid, "SCHED")
    instance.leveret("job", "raise", "--severity=0", "--type=site", "-m", "not today", jobid, check=0)
    assert_held(instance, jobid)
    let_go(instance, jobid)
    assert instance.wait(jobid)["result"] == "FAILED"
    names = instance.names(jobid)
    assert names[-4:] == ["exception", "epilog-start", "epilog-finish", "clean"]
    assert "free" not in names and "alloc" not in names
    instance.client.cancel(running)
    instance.wait_state(running, "CLEANUP")
    instance.wait_event(running, "release")
    assert "free" not in instance.names(running)  # an epilog keeps the nodes too
    let_go(instance, running)
    instance.wait(running)
    in_order(instance.names(running), "epilog-start", "epilog-finish", "free", "clean")


def test_r09_an_unsatisfiable_job_waits_for_its_epilog_hold(instance: Instance) -> None:
    hold_epilogs(instance)
    jobid = instance.submit("-N2", "true")
    assert_held(instance, jobid)
    let_go(instance, jobid)
    instance.wait(jobid)
    assert instance.names(jobid)[-4:] == ["exception", "epilog-start", "epilog-finish", "clean"]


def test_r09_the_same_for_an_exception_in_a_prolog_hold(instance: Instance) -> None:
    hold_epilogs(instance, run=[("prolog", "prepare", {})])
    jobid = instance.submit("true")
    instance.wait_event(jobid, "prolog-start")
    instance.client.raise_(jobid, "site", 0, "no")
    instance.wait_state(jobid, "CLEANUP")
    assert instance.holds(jobid) == ["prolog/prepare", f"epilog/{NAME}"]
    let_go(instance, jobid)
    # the epilog is over and the prolog is not: no node is freed under a live prolog
    until(lambda: instance.holds(jobid) == ["prolog/prepare"], "the epilog hold is closed")
    assert not {"free", "clean"} & set(instance.names(jobid))
    instance.client.finish_hold(jobid, "prepare", 15, kind="prolog")
    instance.wait(jobid)
    names = instance.names(jobid)
    in_order(names, "prolog-start", "exception", "epilog-start", "epilog-finish", "prolog-finish", "free", "clean")
    assert "start" not in names
    assert instance.contexts(jobid, "exception") == instance.contexts(jobid, "exception")[:1]


@pytest.mark.parametrize("prolog", ["fail 0 1", "hang"], ids=["prolog-fails", "canceled-in-prolog"])
def test_r09_r12_the_same_for_a_prolog_with_an_epilog_configured(
    launch: Callable[..., Instance], ledger: Ledger, prolog: str
) -> None:
    instance = launch(config=ledger.perilog("prolog", prolog) + ledger.perilog("epilog"))
    hold_epilogs(instance)
    jobid = instance.submit("true")
    if prolog == "hang":
        until(lambda: "prolog" in ledger.phases(jobid), "the prolog runs")
        instance.client.cancel(jobid)
    instance.wait_event(jobid, "epilog-finish")  # the site's own; the plugin's is still open
    assert instance.holds(jobid) == [f"epilog/{NAME}"]
    assert not {"free", "clean"} & set(instance.names(jobid))
    let_go(instance, jobid)
    record = instance.wait(jobid)
    assert record["result"] == ("CANCELED" if prolog == "hang" else "FAILED")
    names = instance.names(jobid)
    assert names.count("epilog-start") == names.count("epilog-finish") == 2
    in_order(names, "prolog-start", "exception", "prolog-finish", "free", "clean")
    assert names[-2:] == ["free", "clean"] and "start" not in names
    phases = ledger.phases(jobid)
    assert phases.count("epilog") == phases.count("prolog") == 1  # R12: undone once, where it had begun


def test_r09_two_hundred_jobs_at_once(instance: Instance) -> None:
    hold_epilogs(instance)
    printed = instance.leveret("submit", "--urgency=0", "--cc=0-199", "true", check=0).out.split()
    assert len(printed) == 200
    done = instance.leveret("cancel", "--all")
    assert (done.code, done.err) == (0, "leveret-cancel: Canceled 200 jobs (0 errors)\n")
    records = instance.client.jobs(states=["cleanup"], count=0)
    assert len(records) == 200
    assert {(hold["kind"], hold["name"]) for record in records for hold in record["holds"]} == {("epilog", NAME)}
    ids = [record["id"] for record in records]
    for jobid in ids[:100]:
        instance.client.finish_hold(jobid, NAME, kind="epilog")
    for jobid in ids[:100]:
        instance.client.wait(jobid)
    assert {r["id"] for r in instance.client.jobs(states=["cleanup"], count=0)} == set(ids[100:])
    for jobid in ids[100:]:
        instance.client.finish_hold(jobid, NAME, kind="epilog")
    for jobid in ids:
        record = instance.client.wait(jobid)
        assert record["result"] == "CANCELED"
        names = [event["name"] for event in instance.client.eventlog(jobid)]
        assert names == words("submit validate depend priority exception epilog-start epilog-finish clean")


def test_r09_the_hold_survives_a_killed_daemon(instance: Instance) -> None:
    hold_epilogs(instance)
    jobid = instance.submit("--urgency=0", "true")
    instance.client.cancel(jobid)
    assert instance.holds(jobid) == [f"epilog/{NAME}"]
    instance.crash()
    assert_held(instance, jobid)
    let_go(instance, jobid)
    instance.wait(jobid)
    assert instance.names(jobid) == words("submit validate depend priority exception epilog-start epilog-finish clean")
