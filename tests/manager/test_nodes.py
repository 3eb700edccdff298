"""Nodes come and go, are drained and undrained, on the real manager and store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import Rig, simulate

from leveret.core.event import decode
from leveret.core.resourcelog import replay
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
            ("resource-define", {"method": "dynamic-discovery"}),
            ("online", {"idset": "0-1"}),
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
        assert names(rig)[2:] == ["online", "offline", "online"]
        rig.manager.resources.online([0])  # it is: nothing is said
        assert names(rig)[2:] == ["online", "offline", "online"]
        rig.over()
        rig.close()

    simulate(body)
