"""Scheduling on the whole manager: nothing is freed by a clock (R14), nothing stays allocated (R67), leases are durable."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from rig import UID, Rig, simulate, spec

from leveret.config import Config, Sched
from leveret.core.transitions import RUN, SCHED
from leveret.errors import InvalidError, LeveretError, NotFoundError
from leveret.plugins.hooks import Answers, EpilogHold, Plugin
from leveret.sched.storage import DEBT, HELD, Need, Server

JOBS = 2000


class Tidy(Plugin):
    """An epilog that nobody ends by itself."""

    def event_finish(self, job: object, event: object) -> Answers:
        return EpilogHold("tidy")


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_r14_only_a_release_frees_never_a_time_limit(tmp_path: Path, policy: str) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Tidy], Config(sched=Sched(policy)))
        first = await rig.submit(2, duration_s=2.0)
        second = await rig.submit(2, duration_s=2.0)
        rig.clock.advance(1000)
        rig.manager.want_schedule()
        await rig.quiet()
        assert rig.job(second).state is SCHED, "the tasks have not ended"
        await rig.run(first)
        rig.clock.advance(1000)
        rig.manager.want_schedule()
        await rig.quiet()
        assert rig.job(second).state is SCHED, "the epilog has not ended"
        rig.manager.works.end(first, rig.manager.find_hold(first, "epilog", "tidy"), 0, "")
        await rig.quiet()
        assert rig.job(second).state is RUN and rig.job(first).done
        freed = next(event.timestamp for event in rig.stored(first) if event.name == "free")
        assert freed <= next(event.timestamp for event in rig.stored(second) if event.name == "alloc")
        rig.close()

    simulate(body)


def whole(rig: Rig) -> None:
    """The pool is what the jobs hold, and the rest: free, drained or down."""
    manager = rig.manager
    held = [e.rset for e in manager.entries.values() if e.rset is not None and e.job.allocated and not e.job.freed]
    assert manager.pool.check(held) == []
    amounts = manager.pool.amounts()
    assert amounts.total == amounts.free + amounts.allocated + amounts.drained + amounts.down + amounts.excluded
    assert amounts.allocated == sum(rset.ncores() for rset in held)


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_r67_after_2000_jobs_with_cancels_lost_nodes_and_killed_daemons_nothing_is_allocated(
    tmp_path: Path, policy: str
) -> None:
    async def body() -> None:
        rng = random.Random(67)
        rig = Rig(tmp_path, config=Config(sched=Sched(policy)), sizes=[4, 4, 2, 8])
        ids: list[int] = []
        crashes = losses = drains = 0
        while len(ids) < JOBS or rig.manager.entries:
            what = rng.random()
            active = list(rig.manager.entries)
            if len(ids) < JOBS and (what < 0.4 or not active):
                for _ in range(rng.randint(1, 8)):
                    nnodes = rng.choice([0, 0, 0, 1, 2])
                    count = nnodes * rng.randint(1, 2) if nnodes else rng.randint(1, 6)
                    wanted = spec(count, nnodes, duration_s=float(rng.choice([0, 10, 100])))
                    ids.append(rig.manager.submit(wanted, rng.randint(1, 31), [], UID)[0])
            elif what < 0.5:
                try:
                    rig.manager.cancel(rng.choice(active), "", UID)
                except LeveretError:
                    pass  # its tasks have just finished
            elif what < 0.52:
                crashes += 1
                await rig.crash()
                rig.boot()
            elif what < 0.54:
                losses += 1
                node = rng.randrange(4)
                rig.engine.lose(node)
                rig.engine.introduce(node)
            elif what < 0.58:
                drains += 1
                rank = rng.randrange(4)
                rig.manager.pool.set_state([rank], drained=not rig.manager.pool.nodes[rank].drained)
                rig.manager.want_schedule()
            else:
                await rig.quiet()
                whole(rig)
                for node, helper in rig.engine.helpers.items():
                    for name, unit in list(helper.units.items()):
                        if unit.over:
                            rig.engine.deliver(node, name)
                        elif rng.random() < 0.6 or unit.signals or len(ids) >= JOBS:
                            if not unit.records:
                                unit.add("start", rig.clock.now)
                            unit.add("exit", rig.clock.now, status=unit.signals[0] if unit.signals else 0)
                            rig.engine.deliver(node, name)
                rig.engine.calls.clear()
                rig.clock.advance(rng.random())
            if len(ids) >= JOBS:
                rig.manager.pool.set_state(range(4), drained=False)
                rig.manager.want_schedule()
        await rig.quiet()
        whole(rig)
        rig.over()
        assert crashes > 5 and losses > 5 and drains > 5
        stored = [jobid for jobid in ids if rig.store.job_row(jobid) is not None]  # the rest was never acknowledged
        assert len(stored) > JOBS * 0.9 and all(rig.store.done_record(jobid) is not None for jobid in stored)
        await rig.restart()
        whole(rig)
        assert rig.manager.pool.amounts().free == 18
        rig.close()

    simulate(body)


def test_leases_of_storage_outlive_nodes_jobs_and_daemons(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[2, 2])
        servers = [Server("r0", 100, (0,)), Server("r1", 50, (1,))]

        async def again() -> None:
            await rig.quiet()
            await rig.restart()
            rig.manager.scheduling.leases.define(servers)

        rig.manager.scheduling.leases.define(servers)
        storage = lambda: rig.manager.queue.storage  # noqa: E731
        first = await rig.submit(1, 1, urgency=0)
        with pytest.raises(InvalidError, match="need 500 bytes of storage in all, there are 150"):
            rig.manager.scheduling.leases.need(first, Need(in_all=500))
        rig.manager.scheduling.leases.need(first, Need(per_node=80))
        await again()
        rig.manager.set_urgency(first, 16, UID)
        await rig.quiet()
        entry = rig.manager.entries[first]
        assert entry.rset is not None and list(entry.rset.ranks) == [0]
        await again()
        assert storage().leases[first].amounts == {"r0": 80}
        await rig.run(first)
        assert rig.job(first).done, "nodes and job are over"
        await again()
        assert (storage().leases[first].state, storage().free("r0")) == (HELD, 20)
        second = await rig.submit(1, 1, urgency=0)
        rig.manager.scheduling.leases.need(second, Need(in_all=90, single=True))
        rig.manager.set_urgency(second, 16, UID)
        await rig.quiet()
        assert rig.job(second).state is SCHED
        about = await rig.manager.scheduling.explain(second)
        assert about["reasons"][0]["kind"] == "storage"
        rig.manager.scheduling.leases.give_up(first, "no answer")
        await again()
        assert [(d.jobid, d.state, d.note) for d in storage().debts()] == [(first, DEBT, "no answer")]
        assert rig.job(second).state is SCHED, "a debt is still taken"
        rig.manager.scheduling.leases.gone(first)
        assert storage().free("r0") == 20, "it is given to others only once that is on disk"
        await rig.quiet()
        assert rig.job(second).state is RUN
        await again()
        assert list(storage().leases) == [second]
        with pytest.raises(NotFoundError):
            rig.manager.scheduling.leases.gone(first)
        rig.close()

    simulate(body)
