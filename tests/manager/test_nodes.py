"""Nodes come and go, are drained and undrained, on the real manager and store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import Config, Rig, simulate

from leveret.config import Exec, JobManager, Perilog
from leveret.core.event import decode
from leveret.core.resourcelog import replay
from leveret.core.resources import Node, Rset
from leveret.errors import ConflictError, InvalidError


def events(rig: Rig) -> list[tuple[str, Any]]:
    """The stored resource eventlog."""
    return [(event.name, event.context) for event in map(decode, (line for _, line in rig.store.resource_events()))]


def names(rig: Rig) -> list[str]:
    return [name for name, _ in events(rig)]


def test_what_is_said_at_the_start(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[2, 2])
        await rig.quiet()
        assert events(rig) == [
            ("restart", {"ranks": "0-1", "online": "", "nodelist": "node[0-1]"}),
            ("online", {"idset": "0"}),
            ("resource-define", {"method": "dynamic-discovery"}),
            ("online", {"idset": "1"}),
        ]
        rig.close()

    simulate(body)


def test_a_drained_node_gets_no_new_work_and_its_job_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1])
        first = await rig.submit()
        rig.engine.take("start", f"job/{first}", 0)
        rig.manager.resources.drain([0], "bad node", userid=7)
        await rig.quiet()
        second, third = await rig.submit(), await rig.submit()
        rig.engine.take("start", f"job/{second}", 1)
        rig.say(first, "start", 0)
        rig.say(first, "exit", 0, status=0)
        await rig.quiet()
        assert rig.job(first).done and rig.job(third).state.name == "SCHED"
        await rig.restart()  # as by kill -9: the drain is still there
        assert rig.manager.resources.state.drains[0].reason == "bad node"
        assert rig.job(third).state.name == "SCHED"
        rig.manager.resources.undrain([0])
        await rig.quiet()
        await rig.run(third, node=0)
        assert rig.job(third).done
        drained = next(context for name, context in events(rig) if name == "drain")
        want = {"idset": "0", "nodelist": "node0", "reason": "bad node", "overwrite": 0, "userid": 7}
        assert drained == want
        rig.close()

    simulate(body)


def test_drain_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1])
        resources = rig.manager.resources
        resources.drain([1], "first")
        before = resources.state
        with pytest.raises(ConflictError, match="rank 1 already drained"):
            resources.drain([0, 1], "second")
        with pytest.raises(InvalidError, match="idset is out of range"):
            resources.drain([7])
        with pytest.raises(ConflictError, match="rank 0 not drained"):
            resources.undrain([0])
        with pytest.raises(InvalidError, match="invalid hosts: foo"):
            resources.targets("foo")
        assert resources.state is before
        resources.drain([0, 1], "second", update=True)
        assert [d.reason for d in resources.state.drains.values()] == ["second", "first"]
        resources.drain([1], "third", overwrite=1)
        assert resources.state.drains[1].reason == "third"
        await rig.quiet()
        assert replay(map(decode, (line for _, line in rig.store.resource_events()))) == resources.state
        rig.close()

    simulate(body)


def test_a_drain_is_of_the_turn_that_it_is_made_in(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1])
        await rig.quiet()
        before, known = rig.manager.resources.state, names(rig)
        with pytest.raises(RuntimeError), rig.store_turn():
            rig.manager.resources.drain([0], "of no turn")
            assert 0 in rig.manager.resources.state.drains
            raise RuntimeError
        assert rig.manager.resources.state is before
        await rig.quiet()
        assert names(rig) == known
        job = await rig.submit()
        rig.engine.take("start", f"job/{job}", 0)  # rank 0 is free as before
        with rig.store_turn() as turn:
            rig.manager.resources.drain([0], "together")
            turn.op("INSERT INTO meta VALUES('t', '1')")
        await rig.quiet()
        assert names(rig) == [*known, "drain"] and rig.store.meta("t") == "1"
        rig.close()

    simulate(body)


def test_an_offline_node_gets_no_work_until_it_is_back(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1])
        rig.manager.resources.offline([0])
        job = await rig.submit()
        assert rig.job(job).state.name == "SCHED"
        rig.manager.resources.online([0])
        await rig.quiet()
        await rig.run(job)
        assert rig.job(job).done
        assert names(rig) == ["restart", "online", "resource-define", "offline", "online"]
        rig.manager.resources.online([0])  # it is: nothing is said
        await rig.quiet()
        assert names(rig)[3:] == ["offline", "online"]
        rig.over()
        rig.close()

    simulate(body)


def eofs(rig: Rig, jobid: int) -> list[tuple[str, str]]:
    """(stream, rank) of the ends of streams in the stored output."""
    found = []
    for _n, _count, _extent, lines in rig.store.guest(jobid, "guest.output", 1, 1000):
        for event in map(decode, lines.splitlines()):
            if event.get("eof"):
                found.append((event.get("stream"), event.get("rank")))
    return found


def test_r70_a_lost_node_closes_its_streams_and_the_job_ends(tmp_path: Path) -> None:
    """One of three nodes is lost while it prints: the others are ended, each stream has one end, before `finish`."""

    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1, 1])
        job = await rig.submit(3, 3)
        for node in range(3):
            rig.engine.take("start", f"job/{job}", node)
            rig.say(job, "start", node)
        await rig.quiet()
        rig.say(job, "output", 1, stream="stdout", rank=1, data="half a li")
        rig.say(job, "output", 1, stream="stderr", rank=1, eof=True)
        await rig.quiet()
        rig.engine.lose(1)
        rig.engine.introduce(1)
        await rig.quiet()
        for node in (0, 2):
            assert rig.engine.take("signal", f"job/{job}", node)[3] == 15
            for stream in ("stdout", "stderr"):
                rig.say(job, "output", node, stream=stream, rank=node, eof=True)
            rig.say(job, "exit", node, status=143 << 8)
        await rig.quiet()
        assert rig.story(job)[5:] == ["start", "exception(node-failure)", "finish", "release", "free", "clean"]
        assert sorted(eofs(rig, job)) == sorted((s, str(r)) for r in range(3) for s in ("stdout", "stderr"))
        assert rig.verdict(job).result == "FAILED"
        assert names(rig)[-2:] == ["offline", "online"]
        rig.over()
        rig.close()

    simulate(body)


def test_r26_a_node_that_stays_away_ends_its_job_and_what_it_still_runs_is_killed_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1])
        job = await rig.submit(2, 2)
        for node in range(2):
            rig.engine.take("start", f"job/{job}", node)
            rig.say(job, "start", node)
        await rig.quiet()
        rig.engine.cut(1)
        rig.clock.advance(29)
        await rig.quiet()
        assert rig.job(job).state.name == "RUN" and rig.manager.resources.state.online == {0}
        rig.clock.advance(2)
        await rig.quiet()
        rig.engine.take("signal", f"job/{job}", 0)
        rig.say(job, "exit", 0, status=143 << 8)
        await rig.quiet()
        assert rig.verdict(job).result == "FAILED"
        assert (rig.job(job).fatal or pytest.fail("no cause")).type == "node-failure"
        later = await rig.submit(2, 2)
        assert rig.job(later).state.name == "SCHED"  # not on a node that is away
        rig.engine.introduce(1)
        assert rig.engine.take("signal", f"job/{job}", 1)[3] == 9
        rig.say(job, "exit", 1, status=137 << 8)
        await rig.quiet()
        assert f"job/{job}" not in rig.engine.helpers[1].units  # acknowledged and forgotten
        for node in range(2):
            rig.engine.take("start", f"job/{later}", node)
            rig.say(later, "exit", node, status=0)
        await rig.quiet()
        assert rig.story(job)[-1] == "clean" and rig.story(job).count("finish") == 1
        rig.over()
        rig.close()

    simulate(body)


def test_a_node_that_is_back_in_time_costs_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        job = await rig.submit()
        rig.engine.take("start", f"job/{job}", 0)
        rig.say(job, "start")
        await rig.quiet()
        rig.engine.cut(0)
        rig.clock.advance(20)
        rig.engine.introduce(0)
        rig.clock.advance(100)
        rig.say(job, "exit", status=0)
        await rig.quiet()
        assert rig.verdict(job).result == "COMPLETED"
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_r36_tasks_that_cannot_be_killed_are_given_up_and_their_node_is_drained(tmp_path: Path) -> None:
    """One wall-clock limit from the exception on, over a restart of the daemon too."""

    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1], config=Config(exec=Exec(max_kill_time="6s")))
        job = await rig.submit(2, 2)
        for node in range(2):
            rig.engine.take("start", f"job/{job}", node)
            rig.say(job, "start", node)
        await rig.quiet()
        await rig.cancel(job)
        rig.engine.take("signal", f"job/{job}", 0)
        rig.engine.take("signal", f"job/{job}", 1)
        rig.say(job, "exit", 0, status=143 << 8)
        await rig.quiet()
        rig.clock.advance(4)
        await rig.restart()
        rig.clock.advance(1.5)
        await rig.quiet()
        assert rig.job(job).status is None
        rig.clock.advance(1)
        await rig.quiet()
        assert rig.verdict(job).result == "CANCELED"
        assert rig.story(job)[5:9] == ["start", "exception(cancel)", "exception(unkillable)", "finish"]
        assert set(rig.manager.resources.state.drains) == {1}
        assert "unkillable processes for job" in rig.manager.resources.state.drains[1].reason
        rig.engine.calls.clear()
        rig.say(job, "exit", 1, status=137 << 8)  # it dies after all
        await rig.quiet()
        assert rig.story(job).count("finish") == 1 and f"job/{job}" not in rig.engine.helpers[1].units
        following = await rig.submit()
        await rig.run(following, node=0)
        rig.over()
        rig.close()

    simulate(body)


def test_jobs_on_nodes_that_the_instance_has_no_more_end_by_name(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1])
        kept, gone = await rig.submit(), await rig.submit()
        for job, node in ((kept, 0), (gone, 1)):
            rig.engine.take("start", f"job/{job}", node)
            rig.say(job, "start", node)
        rig.manager.resources.drain([1], "old")
        await rig.quiet()
        await rig.crash()
        rig.engine.sizes = [1]
        del rig.engine.helpers[1], rig.engine.connected[1]
        rig.boot()
        await rig.quiet()
        assert rig.verdict(gone).result == "FAILED" and rig.job(kept).state.name == "RUN"
        fatal = rig.job(gone).fatal
        assert fatal is not None and fatal.type == "node-failure" and "node1" in fatal.note
        said = [(event, details) for _level, event, details in rig.log.lines]
        assert ("the inventory has changed", {"what": "gone: node1"}) in said
        rig.say(kept, "exit", status=0)
        await rig.quiet()
        rig.over()
        rig.close()

    simulate(body)


def test_reload_changes_what_nodes_have_while_nothing_is_held(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[2, 2])
        resources = rig.manager.resources
        resources.drain([1], "stays")
        new = Rset({0: Node("", (0,), (0,)), 1: Node("", (0, 1, 2))}, properties={"big": (1,)})
        job = await rig.submit()
        with pytest.raises(ConflictError, match="jobs hold resources"):
            resources.reload(new)
        await rig.run(job)
        with pytest.raises(InvalidError, match="rank 1 missing"):
            resources.reload(Rset({0: Node("", (0,))}))
        both = Rset({**new.ranks, 9: Node("", (0,))}, properties={"big": (1, 9)})
        with pytest.raises(InvalidError, match="invalid rank 9"):
            resources.reload(both)
        resources.reload(both, force=True)
        await rig.quiet()
        assert resources.document()["R"] == {
            "version": 1,
            "execution": {
                "R_lite": [
                    {"rank": "0", "children": {"core": "0", "gpu": "0"}},
                    {"rank": "1", "children": {"core": "0-2"}},
                ],
                "nodelist": ["node[0-1]"],
                "properties": {"big": "1"},
            },
        }
        assert events(rig)[-1] == ("resource-define", {"method": "reload"})
        rig.check()
        waits = await rig.submit(2)  # of the three cores of the drained node, none
        assert rig.job(waits).state.name == "SCHED"
        resources.undrain([1])
        await rig.quiet()
        assert rig.manager.record(rig.manager.entry(waits))["ranks"] == "0-1"
        for node in (0, 1):
            rig.engine.take("start", f"job/{waits}", node)
            rig.say(waits, "exit", node, status=0)
        await rig.quiet()
        rig.over()
        rig.close()

    simulate(body)


def test_the_log_begins_anew_when_it_has_become_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.manager.resources.EVENTS_MAX", 20)

    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1])
        rig.manager.resources.drain([1], "kept", userid=5)
        for _ in range(10):
            rig.manager.resources.offline([0])
            rig.manager.resources.online([0])
        await rig.quiet()
        drains = rig.manager.resources.state.drains
        await rig.restart()
        assert names(rig) == ["truncate", "restart", "online", "resource-define", "online"]
        assert rig.manager.resources.state.drains == drains
        rig.check()
        await rig.restart()
        assert names(rig)[0] == "truncate" and rig.manager.resources.state.drains == drains
        rig.check()
        rig.close()

    simulate(body)


def test_r78_the_limit_clocks_tasks_only_and_r_says_when_it_ends(tmp_path: Path) -> None:
    """A prolog takes longer than the job may run: R's expiration moves with the start."""

    async def body() -> None:
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(prolog=Perilog(["prolog"]))))
        job = await rig.submit(duration_s=30.0)
        allocated = rig.clock.now
        rig.clock.advance(100)
        await rig.work(job, "prolog")
        spec = rig.engine.take("start", f"job/{job}")[3]
        assert spec["duration_s"] == 30.0  # from the start of the tasks on, at the helper
        rig.clock.advance(2)
        rig.say(job, "start")
        await rig.quiet()
        started = rig.clock.now
        assert started == allocated + 102
        updates = [event.context for event in rig.stored(job) if event.name == "resource-update"]
        assert updates == [{"expiration": started + 30}]
        assert rig.manager.record(rig.manager.entry(job))["expiration"] == started + 30
        await rig.restart()
        entry = rig.manager.entry(job)
        assert entry.rset is not None and entry.rset.expiration == started + 30
        rig.clock.advance(30)
        rig.say(job, "timeout")
        rig.say(job, "exit", status=142 << 8)
        await rig.quiet()
        assert rig.verdict(job).result == "TIMEOUT"
        at_once = await rig.submit(duration_s=30.0)
        assert "resource-update" not in rig.story(at_once)
        rig.close()

    simulate(body)
