"""Prologs and epilogs per node: exactly once where they begin, faults of nodes apart from what users do."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig import Config, Rig, simulate

from leveret.config import JobManager, Perilog
from leveret.core.verdict import CANCELED, COMPLETED, FAILED

PER_RANK = Config(
    job_manager=JobManager(
        prolog=Perilog(["prolog"], per_rank=True, kill_timeout="10s"), epilog=Perilog(["epilog"], per_rank=True)
    )
)


def three(path: Path, config: Config = PER_RANK) -> Rig:
    return Rig(path, config=config, sizes=[1, 1, 1])


def drains(rig: Rig) -> dict[int, str]:
    return {rank: drain.reason for rank, drain in rig.manager.resources.state.drains.items()}


async def tasks(rig: Rig, jobid: int, nodes: range) -> None:
    for node in nodes:
        rig.engine.take("start", f"job/{jobid}", node)
    for node in nodes:
        rig.say(jobid, "start", node)
    for node in nodes:
        rig.say(jobid, "exit", node, status=0)
    await rig.quiet()


def test_each_node_of_the_job_and_no_other(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await rig.submit(2, 2)
        for node in (0, 1):
            spec = rig.engine.take("start", f"work/{jobid}/prolog", node)[3]
            assert spec["env"]["FLUX_JOB_RANKS"] == "0-1" and spec["duration_s"] == 1800
            rig.say(jobid, "exit", node, "prolog", status=0)
            await rig.quiet()
            assert ("start", f"job/{jobid}") in {(c[0], c[2]) for c in rig.engine.calls} or node == 0
        await tasks(rig, jobid, range(2))
        for node in (1, 0):
            await rig.work(jobid, "epilog", node=node)
        assert rig.verdict(jobid).result == COMPLETED and drains(rig) == {}
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_a_prolog_that_fails_on_one_node(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await rig.submit(3, 3)
        await rig.work(jobid, "prolog", 256, node=1)
        assert drains(rig) == {1: f"prolog failed for job {f58(jobid)}"}, "at once, not when the others have ended"
        assert not rig.job(jobid).exceptions
        if crash:
            await rig.restart()
        await rig.work(jobid, "prolog", node=0)
        await rig.work(jobid, "prolog", node=2)
        assert not rig.job(jobid).started
        for node in range(3):  # where a prolog began the epilog runs, also where it failed
            await rig.work(jobid, "epilog", node=node)
        end = rig.verdict(jobid)
        assert end.result == FAILED and end.cause is not None
        assert end.cause.note == "prolog exited with code=1 on node1 (rank 1)"
        assert rig.job(jobid).closed["prolog/job-manager.prolog"] == 256
        assert list(drains(rig)) == [1]
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def f58(jobid: int) -> str:
    from leveret.core import jobid as jobids

    return jobids.encode(jobid)


@pytest.mark.parametrize("crash", [False, True])
def test_r30_a_canceled_prolog_is_no_fault_of_its_nodes(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await rig.submit(2, 2)
        for node in (0, 1):
            rig.engine.take("start", f"work/{jobid}/prolog", node)
        await rig.cancel(jobid)
        for node in (0, 1):
            assert rig.engine.take("signal", f"work/{jobid}/prolog", node)[3:] == (15, 10.0)
        if crash:
            await rig.restart()
            rig.engine.calls = [c for c in rig.engine.calls if c[0] != "signal"]  # they are asked again
        rig.say(jobid, "exit", 0, "prolog", status=15)
        rig.say(jobid, "exit", 1, "prolog", status=9)  # it did not heed SIGTERM for the kill timeout
        await rig.quiet()
        assert drains(rig) == {1: f"prolog canceled then timed out for job {f58(jobid)}"}
        for node in (0, 1):
            await rig.work(jobid, "epilog", node=node)
        assert rig.verdict(jobid).result == CANCELED and rig.job(jobid).exceptions == 1
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_an_overrun_prolog_is_fatal_and_drains_its_node(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await rig.submit(2, 2)
        await rig.work(jobid, "prolog", node=0)
        rig.engine.take("start", f"work/{jobid}/prolog", 1)
        rig.say(jobid, "timeout", 1, "prolog", deliver=False)
        rig.say(jobid, "exit", 1, "prolog", status=15)
        await rig.quiet()
        assert drains(rig) == {1: f"prolog timed out for job {f58(jobid)}"}
        for node in (0, 1):
            await rig.work(jobid, "epilog", node=node)
        end = rig.verdict(jobid)
        assert end.result == FAILED and end.cause and end.cause.note == "prolog timed out on node1 (rank 1)"
        assert not rig.job(jobid).started
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_an_epilog_that_fails_on_one_node_drains_that_one(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = three(tmp_path, Config(job_manager=JobManager(epilog=Perilog(["epilog"], per_rank=True))))
        jobid = await rig.submit(3, 3)
        await tasks(rig, jobid, range(3))
        await rig.work(jobid, "epilog", node=0)
        if crash:
            await rig.restart()
        await rig.work(jobid, "epilog", 512, node=1)
        assert not rig.job(jobid).freed
        await rig.work(jobid, "epilog", node=2)
        job = rig.job(jobid)
        assert rig.verdict(jobid).result == COMPLETED and job.worst is not None and job.worst.severity == 2
        assert job.worst.note == "epilog exited with code=2 on node1 (rank 1)"
        assert drains(rig) == {1: f"epilog failed for job {f58(jobid)}"}
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_lost_node_runs_no_epilog_and_is_drained(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await rig.submit(2, 2)
        for node in (0, 1):
            await rig.work(jobid, "prolog", node=node)
        for node in (0, 1):
            rig.engine.take("start", f"job/{jobid}", node)
            rig.say(jobid, "start", node)
        rig.engine.lose(1)
        rig.engine.introduce(1)
        await rig.quiet()
        rig.engine.calls = [c for c in rig.engine.calls if c[0] != "signal"]
        rig.say(jobid, "exit", 0, status=0)
        await rig.quiet()
        await rig.restart()  # that it is lost survives
        await rig.work(jobid, "epilog", node=0)
        assert rig.verdict(jobid).result == FAILED
        assert drains(rig) == {1: f"epilog could not run for job {f58(jobid)}: helper lost"}
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_an_epilog_whose_helper_dies_is_never_repeated(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path)
        jobid = await rig.submit(2, 2)
        for node in (0, 1):
            await rig.work(jobid, "prolog", node=node)
        await tasks(rig, jobid, range(2))
        for node in (0, 1):
            rig.engine.take("start", f"work/{jobid}/epilog", node)
        await rig.crash()
        rig.engine.lose(0)
        rig.boot()
        await rig.quiet()
        rig.say(jobid, "exit", 1, "epilog", status=0)
        await rig.quiet()
        assert rig.verdict(jobid).result == COMPLETED
        assert drains(rig) == {0: f"epilog lost its helper for job {f58(jobid)}"}
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_an_epilog_without_limit_raises_an_alarm_and_a_give_up_drains_where_it_still_runs(tmp_path: Path) -> None:
    async def body() -> None:
        rig = three(tmp_path, Config(job_manager=JobManager(epilog=Perilog(["epilog"], per_rank=True, alarm="10s"))))
        jobid = await rig.submit(3, 3)
        await tasks(rig, jobid, range(3))
        for node in (0, 2):
            await rig.work(jobid, "epilog", node=node)
        rig.log.lines.clear()
        rig.clock.advance(25)
        said = [event for _level, event, details in rig.log.lines if details.get("alarm")]
        assert said == [f"{f58(jobid)}: epilog has run for {age}s on node1" for age in (10, 20)]
        assert not rig.job(jobid).freed
        rig.manager.works.end(jobid, "epilog/job-manager.epilog", 256, "given up")
        await rig.quiet()
        assert rig.job(jobid).done and drains(rig) == {1: f"epilog did not end for job {f58(jobid)}"}
        rig.close()

    simulate(body)
