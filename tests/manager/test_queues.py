"""Queues (RFC 33): what policy fills in and refuses, enable and stop over a crash, waiting, and `update`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rig import UID, Rig, simulate, spec

from leveret import config
from leveret.core.event import Event
from leveret.core.job import Job
from leveret.core.verdict import COMPLETED
from leveret.errors import ConfigError, ConflictError, ForbiddenError, InvalidError, NotFoundError

NAMED = """\
[policy.jobspec.defaults.system]
queue = "batch"
duration = "10m"
[policy.limits]
duration = "1h"
job-size.max.nnodes = 2
job-size.min.ncores = 1
[queues.batch]
[queues.debug]
requires = ["fast"]
[queues.debug.policy]
limits.duration = "1m"
limits.job-size.max.nnodes = -1
limits.job-size.max.ncores = 3
jobspec.defaults.system.duration = "30s"
[queues.night.policy]
limits.duration = "0"
access.allow-user = ["root"]
"""


def rig_of(tmp_path: Path, text: str = "", **options: Any) -> Rig:
    path = tmp_path / "leveret.toml"
    path.write_text(text)
    return Rig(tmp_path, config=config.load(path), **options)


def job(ntasks: int = 1, nnodes: int = 0, *, queue: str = "", duration_s: float = 0.0) -> dict[str, Any]:
    out = spec(ntasks, nnodes, duration_s=duration_s)
    if queue:
        out["attributes"]["system"]["queue"] = queue
    return out


async def submit(rig: Rig, body: dict[str, Any], urgency: int = 16, userid: int = UID) -> int:
    jobid, _ = rig.manager.submit(body, urgency, [], userid)
    await rig.quiet()
    return jobid


def last(rig: Rig, jobid: int, name: str) -> Event:
    return [event for event in rig.stored(jobid) if event.name == name][-1]


def started(rig: Rig) -> None:
    rig.manager.queues.change("start", [], everything=True)


def test_policy_fills_in_and_the_original_is_kept(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, NAMED)
        plain = await submit(rig, job(), urgency=0)
        system = rig.manager.jobspec(plain)["attributes"]["system"]
        assert (system["queue"], system["duration"]) == ("batch", 600.0)
        original = rig.manager.original_jobspec(plain)
        assert "queue" not in original["attributes"]["system"] and original["attributes"]["system"]["duration"] == 0
        debug = job(queue="debug")
        debug["attributes"]["system"]["constraints"] = {"hostlist": ["node0"]}
        jobid = await submit(rig, debug, urgency=0)
        for _ in range(2):
            system = rig.manager.jobspec(jobid)["attributes"]["system"]
            assert system["duration"] == 30.0
            assert system["constraints"] == {"and": [{"hostlist": ["node0"]}, {"properties": ["fast"]}]}
            original = rig.manager.original_jobspec(jobid)["attributes"]["system"]
            assert (original["queue"], original["constraints"]) == ("debug", {"hostlist": ["node0"]})
            await rig.restart()
        rig.close()

    simulate(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (job(duration_s=3601), r"requested duration \(1h\) exceeds policy limit of 1h for queue batch"),
        (
            job(duration_s=61, queue="debug"),
            r"requested duration \(1.017m\) exceeds policy limit of 1m for queue debug",
        ),
        (job(3, 3), r"requested nnodes \(3\) exceeds policy limit of 2 for queue batch"),
        (job(4, 4, queue="debug"), r"requested ncores \(4\) exceeds policy limit of 3 for queue debug"),
    ],
)
def test_limits_of_one_job(tmp_path: Path, body: dict[str, Any], why: str) -> None:
    async def run() -> None:
        rig = rig_of(tmp_path, NAMED)
        with pytest.raises(InvalidError, match=why):
            rig.manager.submit(body, 16, [], UID)
        assert rig.manager.entries == {}
        # the queue's own values win: unlimited nodes, unlimited time
        for good in (job(3, 3, queue="debug"), job(queue="night", duration_s=1e6)):
            await submit(rig, good, urgency=0)
        rig.close()

    simulate(run)


def test_limits_without_named_queues(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, '[policy.limits]\nduration = "1m"\njob-size.min.nnodes = 2\njob-size.max.ngpus = 0\n')
        for bad, why in (
            (job(2, 2), r"requested duration \(unlimited\) exceeds policy limit of 1m$"),
            (job(2, duration_s=5), r"requested nnodes \(0\) is under policy limit of 2$"),
            (job(2, 2, duration_s=5, queue="x"), "'x' is not a valid queue"),
        ):
            with pytest.raises(InvalidError, match=why):
                rig.manager.submit(bad, 16, [], UID)
        await submit(rig, job(2, 2, duration_s=5), urgency=0)
        rig.close()

    simulate(body)


def test_an_unknown_queue_and_one_without_a_default(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, "[queues.one]\n[queues.two]\n")
        with pytest.raises(ForbiddenError, match="Invalid queue 'three' specified"):
            rig.manager.submit(job(queue="three"), 16, [], UID)
        with pytest.raises(InvalidError, match="there is no default queue"):
            rig.manager.submit(job(), 16, [], UID)
        assert await submit(rig, job(queue="two"), urgency=0)
        rig.close()

    simulate(body)


def test_access(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, NAMED)
        with pytest.raises(ForbiddenError, match="queue night does not take jobs of this user"):
            rig.manager.submit(job(queue="night"), 16, [], UID + 77)
        assert await submit(rig, job(queue="night"), urgency=0, userid=0)
        assert await submit(rig, job(queue="night"), urgency=0)  # the owner
        with pytest.raises(ForbiddenError, match="urgency >16"):
            rig.manager.submit(job(), 17, [], UID + 77)
        rig.close()

    simulate(body)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[policy.jobspec.defaults.system]\nqueue = 'x'\n", "`x` is not a configured queue"),
        ("[policy.limits]\nduration = 'soon'\n", r":2: policy.limits.duration: invalid Flux standard duration"),
        ("[queues.a.policy.limits]\nduration = 'soon'\n", r":2: queues.a.policy.limits.duration: invalid"),
        ("[policy.limits]\njob-size.max.nnodes = -2\n", "policy.limits.job-size.max.nnodes: must be -1"),
        ("[queues.'a b']\n", "is not a name for a queue"),
        ("[queues.a.policy.jobspec.defaults.system]\nqueue = 'a'\n", "cannot have a default queue"),
    ],
)
def test_a_policy_that_cannot_be(tmp_path: Path, text: str, why: str) -> None:
    async def body() -> None:
        with pytest.raises(ConfigError, match=why):
            rig_of(tmp_path, text)

    simulate(body)


def test_a_bad_key_of_a_queue_is_named(tmp_path: Path) -> None:
    path = tmp_path / "leveret.toml"
    path.write_text("[queues.a]\nfoo=1\n")
    with pytest.raises(ConfigError, match=r":2: unknown key `queues.a.foo`"):
        config.load(path)


def test_disable_and_stop_over_a_crash(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path)
        change = rig.manager.queues.change
        assert change("disable", [])[0]["disable_reason"] == "disabled by administrator"
        change("disable", [], reason="closed")
        change("stop", [], reason="repairs")
        await rig.quiet()
        for _ in range(2):
            record = rig.manager.queues.listing()["queues"][0]
            assert (record["enabled"], record["disable_reason"]) == (False, "closed")
            assert (record["started"], record["stop_reason"]) == (False, "repairs")
            with pytest.raises(InvalidError, match="job submission is disabled: closed"):
                rig.manager.submit(job(), 16, [], UID)
            await rig.restart()
        rig.manager.queues.change("enable", [])
        first = await submit(rig, job())
        assert rig.story(first)[-1] == "priority" and "start" not in [c[0] for c in rig.engine.calls]
        assert rig.manager.record(rig.manager.entries[first])["waiting_for"] == "scheduling is stopped: repairs"
        assert rig.manager.queues.listing()["alloc_queued"] == 1
        rig.check()
        await rig.restart()
        assert rig.story(first)[-2:] == ["flux-restart", "priority"]
        rig.manager.queues.change("start", [])
        await rig.quiet()
        await rig.run(first)
        assert rig.verdict(first).result == COMPLETED
        rig.over()
        # not kept: the state before comes back
        rig.manager.queues.change("stop", [], checkpoint=False)
        rig.manager.queues.change("disable", [], checkpoint=False)
        await rig.restart()
        record = rig.manager.queues.listing()["queues"][0]
        assert record["enabled"] and record["started"]
        rig.close()

    simulate(body)


def test_named_queues_are_stopped_at_first_and_are_independent(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, '[queues.a]\n[queues.b]\n[policy.jobspec.defaults.system]\nqueue = "a"\n')
        one, two = await submit(rig, job()), await submit(rig, job(queue="b"))
        assert [c[0] for c in rig.engine.calls] == []
        with pytest.raises(InvalidError, match="Named queues are defined"):
            rig.manager.queues.change("start", [])
        with pytest.raises(InvalidError, match="Use --all"):
            rig.manager.queues.change("disable", [])
        with pytest.raises(InvalidError, match="'c' is not a valid queue"):
            rig.manager.queues.change("start", ["b", "c"])
        assert not any(q.started for q in rig.manager.queues.all.values())  # refused, and unchanged
        rig.manager.queues.change("start", ["b"])
        await rig.quiet()
        await rig.run(two)
        assert rig.job(two).done and not rig.job(one).allocated
        # a request that is queued is taken back when its queue is stopped
        rig.manager.queues.change("start", ["a"])
        rig.manager.queues.change("stop", ["a"])
        await rig.quiet()
        assert not rig.job(one).allocated
        rig.check()
        started(rig)
        await rig.quiet()
        await rig.run(one)
        rig.over()
        rig.close()

    simulate(body)


def test_waiting_for_quiet_queues(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path)
        queues = rig.manager.queues
        assert await queues.wait("idle", [], 0) == {"done": True, "jobs": 0}
        running, held = await submit(rig, job()), await submit(rig, job(), urgency=0)
        assert await queues.wait("idle", [], 0) == {"done": False, "jobs": 2}
        idle = asyncio.ensure_future(queues.wait("idle", [], None))
        drain = asyncio.ensure_future(queues.wait("drain", [], None))
        await rig.quiet()
        assert not idle.done() and not drain.done()
        await rig.run(running)
        assert await idle == {"done": True, "jobs": 1}
        assert not drain.done()
        await rig.cancel(held)
        assert await drain == {"done": True, "jobs": 0}
        with pytest.raises(InvalidError):
            await queues.wait("nothing", [], None)
        rig.over()
        rig.close()

    simulate(body)


# ---- update ------------------------------------------------------------------------------------------


def test_update_of_a_pending_job(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path)
        jobid = await submit(rig, job(duration_s=60), urgency=0)
        update = rig.manager.updates.update
        assert update(jobid, {"duration": 120}, UID) == {"attributes.system.duration": 120.0}
        await rig.quiet()
        assert rig.story(jobid)[-3:] == ["priority", "jobspec-update", "priority"]
        for bad, why in (
            ({"nosuch": 1}, "update of attributes.system.nosuch not supported"),
            ({"name": "x"}, "update of attributes.system.job.name not supported"),
            ({"duration": 1, "foo": 2}, "update of attributes.system.foo not supported"),
            ({"duration": -1}, "not negative"),
            ({"duration": "1h"}, "must be a number"),
            ({"queue": "x"}, "'x' is not a valid queue"),
            ({}, "nothing to update"),
        ):
            with pytest.raises(InvalidError, match=why):
                update(jobid, bad, UID)
        with pytest.raises(NotFoundError, match="unknown job id"):
            update(1234, {"duration": 1}, UID)
        with pytest.raises(ForbiddenError):
            update(jobid, {"duration": 1}, UID + 1)
        await rig.restart()
        assert rig.manager.entries[jobid].digest.duration_s == 120.0
        assert rig.manager.jobspec(jobid)["attributes"]["system"]["duration"] == 120.0
        rig.manager.set_urgency(jobid, 16, UID)
        await rig.quiet()
        assert rig.engine.calls[-1][3]["duration_s"] == 120.0
        await rig.run(jobid)
        with pytest.raises(ConflictError, match="job is inactive"):
            rig.manager.updates.update(jobid, {"duration": 1}, UID)
        rig.over()
        rig.close()

    simulate(body)


def test_a_request_in_the_queue_is_replaced(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path)
        first, second = await submit(rig, job(2)), await submit(rig, job(2, duration_s=60))
        rig.manager.updates.update(second, {"duration": 120}, UID)
        await rig.quiet()
        rig.check()
        await rig.run(first)
        assert rig.manager.entries[second].rset is not None
        assert rig.engine.calls[0][3]["duration_s"] == 120.0
        await rig.run(second)
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_update_of_a_running_job_moves_its_limit(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path)
        jobid = await submit(rig, job(duration_s=60))
        rig.engine.take("start")
        rig.say(jobid, "start")
        await rig.quiet()
        begun = rig.job(jobid).t_start
        rig.clock.advance(10)
        rig.manager.updates.update(jobid, {"duration": 300}, UID)
        with pytest.raises(InvalidError, match="update of queue for running job not supported"):
            rig.manager.updates.update(jobid, {"queue": "foo"}, UID)
        await rig.quiet()
        assert last(rig, jobid, "resource-update").context == {"expiration": begun + 300}
        assert rig.engine.take("limit")[3] == pytest.approx(290)
        if crash:  # the helper may not have heard of it
            await rig.restart()
            assert rig.engine.take("limit")[3] == pytest.approx(290)
        with pytest.raises(InvalidError, match="in the past"):
            rig.manager.updates.update(jobid, {"duration": 5}, UID)
        rig.manager.updates.update(jobid, {"duration": 0}, UID)
        await rig.quiet()
        assert rig.engine.take("limit")[3] is None
        assert rig.manager.record(rig.manager.entries[jobid])["expiration"] == 0
        rig.say(jobid, "exit", status=0)
        await rig.quiet()
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_update_of_the_queue(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, NAMED, sizes=[2, 2], properties={"fast": [1]})
        jobid = await submit(rig, job(duration_s=20))
        update = rig.manager.updates.update
        assert update(jobid, {"queue": "debug"}, UID)["attributes.system.constraints"] == {"properties": ["fast"]}
        await rig.quiet()
        assert rig.manager.entries[jobid].digest.queue == "debug"
        assert rig.manager.queues.listing(["debug"])["queues"][0]["resources"]["all"]["nnodes"] == 1
        assert update(jobid, {"queue": "batch"}, UID)["attributes.system.constraints"] == {}
        update(jobid, {"duration": 120}, UID)
        with pytest.raises(InvalidError, match=r"requested duration \(2m\) exceeds policy limit of 1m for queue debug"):
            update(jobid, {"queue": "debug"}, UID)
        rig.manager.queues.change("disable", ["debug"], reason="full")
        with pytest.raises(InvalidError, match="job submission to debug is disabled: full"):
            update(jobid, {"queue": "debug", "duration": 10}, UID)
        assert rig.manager.entries[jobid].digest.queue == "batch"
        await rig.quiet()
        await rig.restart()
        assert rig.manager.entries[jobid].digest.queue == "batch"
        rig.manager.queues.change("start", ["debug"])
        await rig.quiet()
        assert not rig.job(jobid).allocated
        rig.close()

    simulate(body)


def test_the_owner_lifts_a_limit_and_the_job_is_immutable_for_its_user(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, '[policy.limits]\nduration = "1m"\n')
        user = UID + 1
        jobid = await submit(rig, job(duration_s=20), urgency=0, userid=user)
        rig.manager.updates.update(jobid, {"duration": 50}, user)
        with pytest.raises(InvalidError, match="exceeds policy limit"):
            rig.manager.updates.update(jobid, {"duration": 61}, user)
        rig.manager.updates.update(jobid, {"duration": 3600}, UID)
        for _ in range(2):
            with pytest.raises(ForbiddenError, match="job is immutable due to previous instance owner update"):
                rig.manager.updates.update(jobid, {"duration": 30}, user)
            await rig.quiet()
            await rig.restart()
        assert "set-flags" in rig.story(jobid)
        rig.close()

    simulate(body)


def test_the_site_says_what_else_may_be_updated(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, '[job-manager]\nupdate-allow = ["job.name", "x.*"]\n')
        jobid = await submit(rig, job(), urgency=0)
        rig.manager.updates.update(jobid, {"name": "other", "attributes.system.x.y": [1]}, UID)
        await rig.quiet()
        await rig.restart()
        assert rig.manager.record(rig.manager.entries[jobid])["name"] == "other"
        assert rig.manager.jobspec(jobid)["attributes"]["system"]["x"] == {"y": [1]}
        with pytest.raises(InvalidError, match="must be a string"):
            rig.manager.updates.update(jobid, {"name": 5}, UID)
        rig.close()

    simulate(body)


def test_nothing_happens_in_cleanup(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path)
        jobid = await submit(rig, job(duration_s=60))
        rig.engine.take("start")
        rig.say(jobid, "start")
        await rig.quiet()
        await rig.cancel(jobid)
        before: Job = rig.job(jobid)
        with pytest.raises(ConflictError, match="job is ending"):
            rig.manager.updates.update(jobid, {"duration": 600}, UID)
        assert rig.job(jobid) == before
        rig.close()

    simulate(body)
