"""Queues, updates and what users met with them, from the command line, on real processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from harness import Instance, Ledger, until

NAMED = (
    '[queues.batch]\n[queues.debug.policy]\nlimits.duration = "1m"\n[policy.jobspec.defaults.system]\nqueue = "batch"\n'
)


def test_what_operators_say_outlives_the_daemon(launch: Callable[..., Instance]) -> None:
    instance = launch(config=NAMED)
    first = instance.submit("true")
    assert instance.leveret("queue", "start").code == 1
    assert instance.leveret("queue", "start", "debug", check=0).out == "debug: Scheduling is started\n"
    assert instance.leveret("queue", "disable", "-m", "full", "debug", check=0).out == (
        "debug: Job submission is disabled: full\n"
    )
    instance.leveret("queue", "disable", "--nocheckpoint", "--quiet", "batch", check=0)
    instance.crash()
    status = instance.leveret("queue", "status", check=0).out.splitlines()
    assert status == [
        "batch: Job submission is enabled",
        "batch: Scheduling is stopped",
        "debug: Job submission is disabled: full",
        "debug: Scheduling is started",
    ]
    refused = instance.leveret("submit", "-q", "debug", "-t1s", "true")
    assert (refused.code, refused.err) == (1, "[Errno 22] job submission to debug is disabled: full\n")
    record = instance.record(first)
    assert (record["state"], record["queue"], record["waiting_for"]) == ("SCHED", "batch", "queue batch is stopped")
    listed = instance.leveret("queue", "list", "-no", "{queuem} {enabled.ascii}{started.ascii} {limits.timelimit}").out
    assert listed == "batch* yn inf\ndebug ny 60.0\n"
    instance.leveret("queue", "start", "--all", check=0)
    assert instance.leveret("queue", "idle", "--timeout=60s", check=0).out == "0 jobs\n"
    assert instance.wait(first)["result"] == "COMPLETED"


def test_the_limit_of_a_running_job_moves(shared: Instance) -> None:
    soon = shared.submit("-t", "1h", "sleep", "1000")
    later = shared.submit("-t", "2s", "sleep", "5")
    for jobid in (soon, later):
        shared.wait_event(jobid, "start")
    assert shared.leveret("update", "-v", later, "duration=+1h", check=0).err.startswith(
        "leveret-update: INFO: updated attributes.system.duration to 3602.0"
    )
    assert shared.wait(later)["result"] == "COMPLETED"  # it would have ended after 2 s
    shared.leveret("update", soon, "duration=6s", check=0)
    end = shared.wait(soon)
    assert (end["result"], end["exit_code"]) == ("TIMEOUT", 142)
    assert len(shared.contexts(soon, "resource-update")) >= 1


def test_urgency_up_and_down(shared: Instance) -> None:
    jobid = shared.submit("--urgency=0", "true")
    for word, expected in (("up", 1), ("up", 2), ("down", 1), ("down", 0), ("down", 0)):
        shared.leveret("queue", "stop", "--quiet", check=0)
        shared.leveret("job", "urgency", jobid, word, check=0)
        assert shared.record(jobid)["urgency"] == expected
    shared.leveret("queue", "start", "--quiet", check=0)
    shared.leveret("job", "urgency", jobid, "default", check=0)
    assert shared.wait(jobid)["result"] == "COMPLETED"


def test_r14_no_clock_frees_a_node_before_its_epilog(launch: Callable[..., Instance], ledger: Ledger) -> None:
    instance = launch(config=ledger.perilog("epilog", "ok 3"))
    first = instance.submit("-N1", "-t", "1s", "sleep", "1000")
    second = instance.submit("-N1", "true")
    ends = [instance.wait(jobid)["result"] for jobid in (first, second)]
    assert ends == ["TIMEOUT", "COMPLETED"]
    freed = next(e["timestamp"] for e in instance.eventlog(first) if e["name"] == "free")
    given = next(e["timestamp"] for e in instance.eventlog(second) if e["name"] == "alloc")
    assert given >= freed
    names = instance.names(first)
    assert names.index("epilog-finish") < names.index("free")


def test_r26_a_lost_node_is_a_failure_and_the_worst_copy_decides(launch: Callable[..., Instance]) -> None:
    instance = launch()
    worst = instance.leveret("submit", "--cc=0-3", "--wait", "sh", "-c", "exit $FLUX_JOB_CC")
    assert worst.code == 3
    found: list[int] = []
    waiter = threading.Thread(
        target=lambda: found.append(instance.leveret("submit", "--quiet", "--wait", "sleep", "1000").code)
    )
    waiter.start()
    job = until(lambda: next((j for j in instance.client.jobs(states=["run"]) if j.get("t_start")), None), "it runs")
    helper = next(h["pid"] for h in instance.client.status()["helpers"])
    os.kill(int(helper), signal.SIGKILL)
    waiter.join(120)
    assert found and found[0] != 0
    assert instance.record(job["id"])["result"] == "FAILED"
