"""Daemons and helpers that die: one example for each thing that the simulation has taught, and the plain cases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rig import UID, Config, Rig, simulate, spec

from leveret.config import JobManager, Perilog
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.verdict import CANCELED, COMPLETED, FAILED
from leveret.plugins.hooks import Answers, EpilogHold, PartHold, Plugin, PrologHold

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # of daemons that were killed

PERILOG = Config(job_manager=JobManager(prolog=Perilog(["prolog"]), epilog=Perilog(["epilog"])))
TO_ALLOC = ["submit", "validate", "depend", "priority", "alloc"]
END = ["release", "free", "clean"]


class Gate(Plugin):
    """Prolog and epilog with work in the daemon; the test's context counts and holds the gates."""

    async def work(self, name: str) -> int:
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.conf["context"].setdefault(name, []).append(gate)
        return await gate

    def state_sched(self, job: Job) -> Answers:
        return None if "epilog/again" in job.holds else EpilogHold("again", self.work("again"))

    def state_run(self, job: Job) -> Answers:
        return PrologHold("pro", self.work("pro"))

    async def resume(self, job: Job, hold: Hold) -> int | None:
        return await self.work(hold.name)


def test_a_waiting_job_is_restarted_by_name_and_keeps_its_place(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        running, first, second = [await rig.submit(2) for _ in range(3)]
        waiting = await rig.submit(dependencies=[{"scheme": "afterok", "value": str(second)}])
        held = await rig.submit(urgency=0)
        await rig.restart()
        assert rig.story(first) == ["submit", "validate", "depend", "priority", "flux-restart", "priority"]
        assert rig.story(held) == rig.story(first)
        assert rig.story(running) == TO_ALLOC, "jobs that are not in SCHED get nothing"
        assert rig.story(waiting)[-1] == "validate"
        rig.check()
        for jobid in (running, first, second, waiting):
            await rig.run(jobid)
        rig.manager.set_urgency(held, 16, UID)
        await rig.quiet()
        await rig.run(held)
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("when", ["asked", "started", "printing", "exited", "over"])
def test_tasks_do_not_notice_that_the_daemon_died(tmp_path: Path, when: str) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        rig.engine.take("start")
        unit = f"job/{jobid}"
        places = ["asked", "started", "printing", "exited", "over"]
        if when in places[1:]:
            rig.say(jobid, "start")
        if when in places[2:]:
            rig.say(jobid, "output", stream="stdout", rank=0, data="one\n")
            await rig.quiet()
        if when in places[3:]:
            rig.say(jobid, "exit", status=0, deliver=when == "over")
        # what was delivered and is not on disk comes again
        await rig.restart()
        kinds = [r["k"] for r in rig.engine.helpers[0].units[unit].records]
        for kind, fields in [
            ("start", {}),
            ("output", {"stream": "stdout", "rank": 0, "data": "one\n"}),
            ("exit", {"status": 0}),
        ]:
            if kind not in kinds:
                rig.say(jobid, kind, deliver=False, **fields)
        rig.engine.deliver(0, unit)
        await rig.quiet()
        assert rig.story(jobid) == [*TO_ALLOC, "start", "finish", *END]
        output = b"".join(row[3] for row in rig.store.guest(jobid, "guest.output"))
        assert output.count(b"one") == 1
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_an_ask_that_was_stored_and_not_sent_is_sent_once(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        rig.engine.connected[0] = False
        jobid = await rig.submit()
        assert rig.engine.starts == {}
        assert rig.store.kv_of_active("ask/")
        await rig.restart()
        await rig.run(jobid)
        await rig.restart()
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_an_ask_of_a_helper_that_died_with_the_daemon_is_never_repeated(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, config=PERILOG)
        jobid = await rig.submit()
        rig.engine.take("start", f"work/{jobid}/prolog")
        await rig.crash()
        rig.engine.lose(0)
        rig.boot()
        await rig.quiet()
        await rig.work(jobid, "epilog")
        assert rig.story(jobid)[5:] == [
            "prolog-start(job-manager.prolog)", "exception(prolog)", "epilog-start(job-manager.epilog)",
            "prolog-finish(job-manager.prolog)", "epilog-finish(job-manager.epilog)", "free", "clean",
        ]  # fmt: skip
        assert rig.verdict(jobid).result == FAILED
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_cancel_that_was_stored_is_carried_out_after_the_crash(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        rig.engine.take("start")
        rig.say(jobid, "start")
        await rig.quiet()
        rig.engine.connected[0] = False
        await rig.cancel(jobid)
        await rig.restart()
        assert rig.engine.take("signal", f"job/{jobid}")[3] == 15
        rig.say(jobid, "exit", status=36608)
        await rig.quiet()
        assert rig.verdict(jobid).result == CANCELED
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_record_is_acknowledged_only_when_it_is_on_disk_also_when_it_comes_again(tmp_path: Path) -> None:
    """Else a crash in between loses it, and the tasks would be started anew."""

    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        rig.engine.take("start")
        known = rig.engine.helpers[0].units[f"job/{jobid}"]
        rig.say(jobid, "start")
        for _ in range(3):
            rig.engine.deliver(0, f"job/{jobid}")
        assert known.acked == 0
        rig.say(jobid, "exit", status=0)
        rig.engine.deliver(0, f"job/{jobid}")  # the job is INACTIVE in memory by now
        await rig.passes()
        assert rig.manager.entries[jobid].job.done
        assert known.acked == 0
        await rig.restart()
        assert rig.job(jobid).started is False
        rig.engine.deliver(0, f"job/{jobid}")
        await rig.quiet()
        assert rig.story(jobid) == [*TO_ALLOC, "start", "finish", *END]
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_helper_that_is_lost_while_the_end_is_on_its_way_to_the_disk(tmp_path: Path) -> None:
    """The job is INACTIVE in memory and still there: it must not end a second time."""

    class Part(Plugin):
        def event_start(self, job: Job, event: Event) -> Answers:
            return PartHold("p", self.manager_run(job))

        async def manager_run(self, job: Job) -> int:
            return (await self.manager.run(job.id, "p", ["x"])).status

    async def body() -> None:
        rig = Rig(tmp_path, [Part])
        jobid = await rig.submit()
        rig.engine.take("start")
        rig.say(jobid, "start")
        await rig.quiet()
        rig.say(jobid, "exit", status=0)
        await rig.quiet()
        rig.manager.works.end(jobid, "part/p", 0)
        assert rig.manager.entries[jobid].job.done
        rig.engine.lose(0)
        rig.engine.introduce(0)
        await rig.quiet()
        assert rig.story(jobid)[-1] == "clean"
        rig.over()
        rig.close()

    simulate(body)


def test_work_that_is_stopped_before_it_has_begun_closes_its_hold(tmp_path: Path) -> None:
    async def body() -> None:
        gates: dict[str, list[Any]] = {}
        rig = Rig(tmp_path, [Gate], context=gates)
        jobid, _ = rig.manager.submit(spec(), 16, [], UID)
        rig.manager.scheduling._slice()
        rig.manager.cancel(jobid, "", UID)  # all in one commit
        await rig.quiet()
        assert "pro" not in gates
        assert rig.story(jobid)[-1] == "prolog-finish(pro)"
        gates["again"][0].set_result(0)
        await rig.quiet()
        assert rig.verdict(jobid).result == CANCELED
        rig.over()
        rig.close()

    simulate(body)


def test_a_hold_that_the_restart_itself_opens_is_begun_once(tmp_path: Path) -> None:
    async def body() -> None:
        gates: dict[str, list[Any]] = {}
        rig = Rig(tmp_path)
        first, second = await rig.submit(2), await rig.submit(2)
        rig.plugins, rig.context = [Gate], gates  # the plugin comes with the new daemon
        await rig.restart()
        assert rig.story(second)[-2:] == ["priority", "epilog-start(again)"]
        assert len(gates["again"]) == 1
        await rig.restart()
        assert len(gates["again"]) == 2
        gates["again"][1].set_result(0)
        await rig.quiet()
        await rig.run(first)
        gates["pro"][-1].set_result(0)
        await rig.quiet()
        await rig.run(second)
        assert rig.verdict(second).result == COMPLETED
        rig.over()
        rig.close()

    simulate(body)


def test_a_stop_never_overtakes_the_start_that_it_is_for(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, config=PERILOG)
        jobid, _ = rig.manager.submit(spec(), 16, [], UID)
        unit = f"work/{jobid}/prolog"
        for _ in range(50):
            await rig.passes()
            if any(a.unit == unit for a in rig.manager.entries[jobid].asks.values()):
                break
            rig.store.step()
        assert rig.engine.calls == []
        rig.manager.perform.stop_run(jobid, "prolog", 5.0)
        await rig.quiet()
        assert [call[0] for call in rig.engine.calls] == ["start", "signal"]
        rig.close()

    simulate(body)


def test_a_log_that_cannot_be_read_is_put_aside_and_the_others_go_on(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])
        bad, good = await rig.submit(), await rig.submit()
        rig.engine.take("start", f"job/{bad}")
        await rig.crash()
        import sqlite3

        db = sqlite3.connect(tmp_path / "leveret.db")
        db.execute("UPDATE event SET line = ? WHERE job = ? AND n = 2", (b"not json", bad))
        db.commit()
        db.close()
        rig.boot()
        await rig.quiet()
        assert [(event, details["why"][:27]) for event, details in rig.log.take_errors()] == [
            ("job quarantined", "event 2 of the eventlog: no")
        ]
        await rig.run(good)
        assert rig.story(good)[-1] == "clean"
        rig.close()

    simulate(body)


def test_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        seen = []
        for _ in range(5):
            seen.append(await rig.submit(urgency=0))
            await rig.restart()
        assert seen == sorted(set(seen))
        rig.close()

    simulate(body)
