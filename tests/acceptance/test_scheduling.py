"""Fifo over the cores of the instance's nodes, urgency and priority order."""

from __future__ import annotations

import re

from harness import Instance, until, words


def held_by(instance: Instance) -> str:
    """A job that has every core, so that others queue up."""
    jobid = instance.submit(f"-N{instance.size}", "sleep", "1000")
    instance.wait_event(jobid, "start")
    return jobid


def started_in_order(instance: Instance, ids: list[str]) -> list[str]:
    records = [instance.wait(jobid) for jobid in ids]
    return [jobid for _, jobid in sorted(zip([r["t_run"] for r in records], ids, strict=True))]


def test_urgency_0_holds_until_it_is_raised(shared: Instance) -> None:
    jobid = shared.submit("--urgency=0", "true")
    assert shared.leveret("jobs", "-no", "{state} {urgency} {priority}", jobid).out == "SCHED 0 0\n"
    assert "held" in shared.leveret("jobs", "-n", jobid).out
    other = shared.submit("true")
    shared.wait(other)  # resources are there; the held job does not take them
    assert shared.record(jobid)["phase"] == "held"
    done = shared.leveret("job", "urgency", "-v", jobid, "20")
    assert (done.code, done.err) == (0, "old urgency: job held\n")
    shared.wait(jobid)
    assert shared.names(jobid) == words(
        "submit validate depend priority urgency priority alloc start finish release free clean"
    )
    assert [c["priority"] for c in shared.contexts(jobid, "priority")] == [0, 20]
    again = shared.leveret("job", "urgency", jobid, "1")
    assert (again.code, again.err) == (1, f"leveret-job: {jobid}: job is inactive\n")


def test_urgency_0_takes_a_pending_job_out_of_the_queue(shared: Instance) -> None:
    blocker = held_by(shared)
    pending = shared.submit("-N1", "true")
    shared.wait_state(pending, "SCHED")
    shared.leveret("job", "urgency", pending, "hold", check=0)
    shared.client.cancel(blocker)
    shared.wait(blocker)
    shared.wait(shared.submit("-N1", "true"))  # a later job passes the held one
    assert shared.record(pending)["state"] == "SCHED"
    shared.leveret("job", "urgency", pending, "default", check=0)
    assert shared.wait(pending)["result"] == "COMPLETED"


def test_jobs_start_by_priority_and_within_it_by_age(shared: Instance) -> None:
    blocker = held_by(shared)
    ids = {}
    for name, urgency in (("a", 16), ("b", 20), ("c", 10), ("d", 31), ("e", 20), ("f", 16)):
        ids[name] = shared.submit("-N1", f"--urgency={urgency}", "true")
    assert shared.record(ids["d"])["priority"] == 4294967295  # expedited
    shared.client.cancel(blocker)
    order = started_in_order(shared, list(ids.values()))
    assert [name for jobid in order for name in ids if ids[name] == jobid] == list("dbeafc")


def test_urgency_of_a_pending_job_changes_its_place(shared: Instance) -> None:
    blocker = held_by(shared)
    first, second = shared.submit("-N1", "true"), shared.submit("-N1", "true")
    shared.wait_state(second, "SCHED")
    assert shared.client.urgency(second, 30) == 16
    shared.client.cancel(blocker)
    assert started_in_order(shared, [first, second]) == [second, first]


def test_fifo_a_large_job_is_not_overtaken(four: Instance) -> None:
    """Strict fifo: what comes later waits, even where it would fit."""
    running = four.submit("-N3", "sleep", "1000")
    four.wait_event(running, "start")
    large = four.submit("-N4", "true")
    small = four.submit("-N1", "true")
    four.wait_state(small, "SCHED")
    four.client.cancel(running)
    assert started_in_order(four, [large, small]) == [large, small]


def test_jobs_share_a_node_by_cores_and_never_a_core(shared: Instance) -> None:
    cores = shared.cores
    first = [shared.submit("sleep", "1000") for _ in range(cores)]
    for jobid in first:
        shared.wait_event(jobid, "start")
    last = shared.submit("true")
    shared.wait_state(last, "SCHED")
    summaries = [shared.contexts(jobid, "alloc")[0]["annotations"]["sched"]["resource_summary"] for jobid in first]
    assert sorted(summaries) == sorted(f"rank0/core{core}" for core in range(cores))
    shared.client.cancel(first[0])
    assert shared.wait(last)["result"] == "COMPLETED"
    assert shared.contexts(last, "alloc")[0]["annotations"]["sched"]["resource_summary"] == summaries[0]


def test_bad_urgencies_are_refused(shared: Instance) -> None:
    jobid = shared.submit("--urgency=0", "true")
    done = shared.leveret("job", "urgency", jobid, "32")
    assert (done.code, done.err) == (1, f"leveret-job: {jobid}: urgency value is out of range\n")
    done = shared.leveret("job", "urgency", jobid, "foo")
    assert done.code == 1 and 'error parsing urgency: "foo"' in done.err
    done = shared.leveret("submit", "--urgency=99", "true")
    assert done.code != 0 and re.search(r"urgency", done.err)
    assert shared.names(jobid) == words("submit validate depend priority")


def test_after_two_hundred_small_jobs_every_core_is_free(shared: Instance) -> None:
    """What is given back is given back: one job that needs the whole node runs at the end."""
    done = shared.leveret("submit", "--wait", "--quiet", "--cc=1-200", "true")
    assert done.code == 0, done.err
    until(lambda: shared.client.jobs(states=["active"], count=0) == [], "all are over")
    assert shared.run("-N1", "echo", "all of it").out == "all of it\n"
