"""Nodes between a job and the pool: kept, tidied, given back one by one; also over a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig import Config, Rig, simulate

from leveret.config import Housekeeping, JobManager
from leveret.core import jobid as jobids
from leveret.core.verdict import COMPLETED


def three(path: Path, release_after: str = "0") -> Rig:
    tidy = Housekeeping(["tidy"], release_after)
    return Rig(path, config=Config(job_manager=JobManager(housekeeping=tidy)), sizes=[1, 1, 1])


def drains(rig: Rig) -> dict[int, str]:
    return {rank: drain.reason for rank, drain in rig.manager.resources.state.drains.items()}


async def job(rig: Rig, nodes: range = range(3)) -> int:
    jobid = await rig.submit(len(nodes), len(nodes))
    for node in nodes:
        rig.engine.take("start", f"job/{jobid}", node)
        rig.say(jobid, "start", node)
    for node in nodes:
        rig.say(jobid, "exit", node, status=0)
    await rig.quiet()
    return jobid


def idle(rig: Rig) -> set[int]:
    rig.check()
    return {rank for rank, node in rig.manager.pool.nodes.items() if node.cores_free == node.cores}


@pytest.mark.parametrize("crash", [False, True])
def test_nodes_go_back_one_by_one(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await job(rig)
        assert rig.verdict(jobid).result == COMPLETED, "the job is over"
        assert rig.story(jobid)[-2:] == ["free", "clean"]
        assert idle(rig) == set()
        following = await rig.submit(1, 1)
        for node in range(3):
            rig.engine.take("start", f"work/{jobid}/housekeeping", node)
        rig.engine.drained()
        assert [(r["pending"]["ranks"], r["allocated"]["ranks"]) for r in rig.manager.housekeeping.listing()] == [
            ("0-2", "0-2")
        ]
        rig.say(jobid, "exit", 1, "housekeeping", status=0)
        if crash:
            await rig.crash()
            rig.boot()
            rig.engine.deliver(1, f"work/{jobid}/housekeeping")  # it was not acknowledged, and comes again
        await rig.quiet()
        rig.engine.take("start", f"job/{following}", 1)  # the node that is done, and at once
        rig.say(jobid, "exit", 0, "housekeeping", status=0)
        await rig.quiet()
        assert idle(rig) == {0}
        if crash:
            await rig.restart()
            assert idle(rig) == {0}
        rig.say(jobid, "exit", 2, "housekeeping", status=0)
        rig.say(following, "start", 1)
        rig.say(following, "exit", 1, status=0)
        await rig.quiet()
        assert idle(rig) == {0, 2}, "the second job has housekeeping too"
        await rig.work(following, "housekeeping", node=1)
        assert idle(rig) == {0, 1, 2} and rig.manager.housekeeping.runs == {} and drains(rig) == {}
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_release_after(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path, "60s")
        jobid = await job(rig)
        await rig.work(jobid, "housekeeping", node=0)
        rig.clock.advance(59)
        await rig.work(jobid, "housekeeping", node=1)
        assert idle(rig) == set()
        assert rig.manager.housekeeping.listing()[0]["pending"]["ranks"] == "2"
        rig.clock.advance(1)
        await rig.quiet()
        assert idle(rig) == {0, 1}
        await rig.work(jobid, "housekeeping", node=2)
        assert idle(rig) == {0, 1, 2}
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_all_together_with_an_infinite_release_after(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = three(tmp_path, "infinity")
        jobid = await job(rig)
        await rig.work(jobid, "housekeeping", node=0)
        await rig.work(jobid, "housekeeping", node=1)
        if crash:
            await rig.restart()
            assert idle(rig) in (set(), {0, 1})  # a restart may give back what is done
        else:
            assert idle(rig) == set()
        await rig.work(jobid, "housekeeping", node=2)
        assert idle(rig) == {0, 1, 2}
        rig.close()

    simulate(body)


def test_only_a_node_that_fails_is_drained_and_not_one_that_was_killed(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await job(rig)
        assert rig.manager.housekeeping.kill(None, "2", False, 15) == 1
        await rig.quiet()
        assert rig.engine.take("signal", f"work/{jobid}/housekeeping", 2)[3:] == (15, None)
        await rig.restart()  # that it was killed is on the disk
        await rig.work(jobid, "housekeeping", 256, node=0)
        await rig.work(jobid, "housekeeping", node=1)
        await rig.work(jobid, "housekeeping", 15, node=2)
        assert drains(rig) == {0: f"housekeeping failed for job {jobids.encode(jobid)}"}
        assert idle(rig) == {0, 1, 2}
        rig.over()
        rig.close()

    simulate(body)


def test_a_lost_node_runs_nothing_more_and_is_drained(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await rig.submit(3, 3)
        for node in range(3):
            rig.engine.take("start", f"job/{jobid}", node)
            rig.say(jobid, "start", node)
        rig.engine.lose(1)
        rig.engine.introduce(1)
        await rig.quiet()
        rig.engine.calls = [c for c in rig.engine.calls if c[0] != "signal"]
        for node in (0, 2):
            rig.say(jobid, "exit", node, status=0)
        await rig.quiet()
        for node in (0, 2):
            rig.engine.take("start", f"work/{jobid}/housekeeping", node)
        rig.engine.drained()
        assert drains(rig) == {1: f"housekeeping could not run for job {jobids.encode(jobid)}: helper lost"}
        rig.engine.lose(2)  # this one dies in its housekeeping
        rig.engine.introduce(2)
        rig.say(jobid, "exit", 0, "housekeeping", status=0)
        await rig.quiet()
        assert set(drains(rig)) == {1, 2}
        assert rig.manager.housekeeping.runs == {}
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_crash_between_the_asks_and_the_helpers_repeats_none(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await job(rig)
        for node in range(3):
            rig.engine.take("start", f"work/{jobid}/housekeeping", node)
        await rig.crash()
        rig.engine.lose(0)
        rig.boot()
        await rig.quiet()
        rig.engine.drained()  # neither the lost one again nor those that run
        assert set(drains(rig)) == {0}
        for node in (1, 2):
            rig.say(jobid, "exit", node, "housekeeping", status=0)
        await rig.quiet()
        rig.over()
        rig.close()

    simulate(body)
