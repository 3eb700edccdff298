"""Holds by plugins and through the API, in every state and on every way out. Among them the second request: a plugin
that takes an epilog hold when a job enters CLEANUP, for jobs that never had resources too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rig import UID, Config, Rig, simulate, spec

from leveret.config import JobManager, Perilog, Staging
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.verdict import CANCELED, COMPLETED, FAILED
from leveret.errors import ConflictError, EventError, InvalidError
from leveret.plugins.hooks import (
    Answers,
    DependencyHold,
    EpilogHold,
    Finish,
    PartHold,
    Plugin,
    Post,
    PrologHold,
    Raise,
    WorkFailed,
)

PERILOG = Config(job_manager=JobManager(prolog=Perilog(["prolog"]), epilog=Perilog(["epilog"])))
TO_SCHED = ["submit", "validate", "depend", "priority"]
TO_ALLOC = [*TO_SCHED, "alloc"]
END = ["release", "free", "clean"]


class Tape(Plugin):
    """The second request."""

    def state_cleanup(self, job: Job) -> Answers:
        return EpilogHold("to-tape")


def finish(rig: Rig, jobid: int, name: str, status: int = 0, plugin: str = "tape") -> None:
    found = rig.manager.registry.get(plugin)
    assert found is not None
    found.manager.finish(jobid, name, status)


# ---- the second request -----------------------------------------------------------------------------


def test_a_job_canceled_while_pending_is_clean_only_when_the_plugin_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Tape])
        held = await rig.submit(urgency=0)
        await rig.cancel(held)
        assert rig.story(held) == [*TO_SCHED, "exception(cancel)", "epilog-start(to-tape)"]
        with pytest.raises(EventError, match="no hold `other`"):
            finish(rig, held, "other")
        finish(rig, held, "to-tape")
        await rig.quiet()
        assert rig.story(held) == [
            *TO_SCHED, "exception(cancel)", "epilog-start(to-tape)", "epilog-finish(to-tape)", "clean",
        ]  # fmt: skip
        assert rig.verdict(held).result == CANCELED
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_an_exception_in_sched(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Tape])
        first, second = await rig.submit(2), await rig.submit(2)
        assert "alloc" in rig.manager.entries[second].in_flight
        rig.manager.raise_exception(second, "oops", 0, "why", UID)
        await rig.quiet()
        assert len(rig.manager.queue) == 0, "the request is withdrawn"
        if crash:
            await rig.restart()
        assert rig.story(second) == [*TO_SCHED, "exception(oops)", "epilog-start(to-tape)"]
        finish(rig, second, "to-tape")
        await rig.quiet()
        assert rig.story(second)[-2:] == ["epilog-finish(to-tape)", "clean"]
        assert "free" not in rig.story(second)
        assert rig.verdict(second).result == FAILED
        await rig.run(first)
        finish(rig, first, "to-tape")
        await rig.quiet()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_an_exception_in_a_prolog(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Tape], Config(job_manager=JobManager(prolog=Perilog(["prolog"]))))
        jobid = await rig.submit()
        rig.engine.take("start", f"work/{jobid}/prolog")
        await rig.cancel(jobid)
        assert rig.engine.take("signal", f"work/{jobid}/prolog")[3:] == (15, 60.0)
        if crash:
            await rig.restart()
            rig.engine.take("signal", f"work/{jobid}/prolog")
        finish(rig, jobid, "to-tape")
        await rig.quiet()
        assert rig.story(jobid)[-1] == "epilog-finish(to-tape)", "no node is freed under a live prolog"
        rig.say(jobid, "exit", work="prolog", status=15)
        await rig.quiet()
        assert rig.story(jobid)[5:] == [
            "prolog-start(job-manager.prolog)",
            "exception(cancel)",
            "epilog-start(to-tape)",
            "epilog-finish(to-tape)",
            "prolog-finish(job-manager.prolog)",
            "free",
            "clean",
        ]
        assert rig.verdict(jobid).result == CANCELED
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("tape", [False, True])
def test_a_failing_prolog_with_an_epilog_configured(tmp_path: Path, tape: bool) -> None:
    """What real Flux 0.88 gets wrong (tests/data/flux/perilog-fail-prolog.jsonl)."""

    async def body() -> None:
        rig = Rig(tmp_path, [Tape] if tape else [], PERILOG)
        jobid = await rig.submit()
        await rig.work(jobid, "prolog", 256)
        extra = ["epilog-start(to-tape)"] if tape else []
        assert rig.story(jobid)[5:] == [
            "prolog-start(job-manager.prolog)",
            "exception(prolog)",
            *extra,
            "epilog-start(job-manager.epilog)",
            "prolog-finish(job-manager.prolog)",
        ]
        await rig.work(jobid, "epilog")
        if tape:
            finish(rig, jobid, "to-tape")
            await rig.quiet()
        closing = ["epilog-finish(job-manager.epilog)", *(["epilog-finish(to-tape)"] if tape else [])]
        assert rig.story(jobid)[9 + tape :] == [*closing, "free", "clean"]
        assert rig.verdict(jobid).result == FAILED
        fatal = rig.job(jobid).fatal
        assert fatal is not None and fatal.note == "prolog exited with code=1 on node0 (rank 0)"
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_two_hundred_jobs_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Tape], sizes=[4])
        jobs = [rig.manager.submit(spec(), 16 if i % 2 else 0, [], UID)[0] for i in range(200)]
        await rig.quiet()
        for jobid in jobs:
            rig.manager.cancel(jobid, "", UID)
        await rig.quiet()
        for _, _, unit, *_ in [c for c in rig.engine.calls if c[0] == "start"]:
            rig.say(int(unit.split("/")[1]), "start")
            rig.say(int(unit.split("/")[1]), "exit", status=36608)
        await rig.quiet()
        assert all("clean" not in rig.story(jobid) for jobid in jobs)
        assert len(rig.manager.entries) == 200
        for jobid in reversed(jobs):
            finish(rig, jobid, "to-tape")
        await rig.quiet()
        assert all(rig.story(jobid)[-2:] in (["epilog-finish(to-tape)", "clean"], ["free", "clean"]) for jobid in jobs)
        assert sum("free" in rig.story(jobid) for jobid in jobs) == len(rig.engine.starts) > 0
        rig.over()
        rig.close()

    simulate(body)


def test_a_job_that_ran_is_held_too_and_its_nodes_with_it(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Tape])
        jobid = await rig.submit(2)
        await rig.run(jobid)
        assert rig.story(jobid)[5:] == ["start", "finish", "epilog-start(to-tape)", "release"]
        assert rig.manager.pool.free_cores() == 0
        finish(rig, jobid, "to-tape", 256)
        await rig.quiet()
        assert rig.story(jobid)[9:] == ["exception(epilog)", "epilog-finish(to-tape)", "free", "clean"]
        assert rig.verdict(jobid).result == COMPLETED, "the site's failure is a warning"
        rig.over()
        rig.close()

    simulate(body)


# ---- every kind of hold, every kind of end ----------------------------------------------------------


class Everywhere(Plugin):
    """A hold at every moment, without work."""

    def state_depend(self, job: Job) -> Answers:
        return [DependencyHold("dep"), PartHold("whole-life", owner="site")]

    def state_run(self, job: Job) -> Answers:
        return [PrologHold("pro"), PartHold("in", blocks=["start"], uses="nodes")]

    def event_start(self, job: Job, event: Event) -> Answers:
        return PartHold("beside")

    def event_finish(self, job: Job, event: Event) -> Answers:
        return PartHold("out")

    def state_cleanup(self, job: Job) -> Answers:
        return EpilogHold("epi")


def test_each_hold_keeps_back_its_step_and_no_other(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Everywhere])
        jobid = await rig.submit()

        async def end(name: str) -> None:
            finish(rig, jobid, name, plugin="everywhere")
            await rig.quiet()

        assert rig.story(jobid) == ["submit", "validate", "dependency-add(dep)", "part-start(whole-life)"]
        await end("dep")
        assert rig.story(jobid)[-3:] == ["alloc", "prolog-start(pro)", "part-start(in)"]
        await end("pro")
        rig.engine.drained()
        await end("in")
        await rig.run(jobid)
        assert rig.story(jobid)[-6:] == [
            "start", "part-start(beside)", "finish", "epilog-start(epi)", "part-start(out)", "release",
        ]  # fmt: skip
        await end("beside")
        await end("epi")
        assert rig.story(jobid)[-1] == "free"
        await end("whole-life")
        assert rig.story(jobid)[-1] == "part-finish(whole-life)"
        await end("out")
        assert rig.story(jobid)[-1] == "clean"
        assert rig.verdict(jobid).result == COMPLETED
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("at", ["dep", "run", "finish"])
def test_a_fatal_exception_at_each_place_waits_for_all_of_them(tmp_path: Path, at: str) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Everywhere])
        jobid = await rig.submit()
        if at in ("run", "finish"):
            finish(rig, jobid, "dep", plugin="everywhere")
            await rig.quiet()
        if at == "finish":
            for name in ("pro", "in"):
                finish(rig, jobid, name, plugin="everywhere")
            await rig.quiet()
            await rig.run(jobid)
        rig.manager.raise_exception(jobid, "oops", 0, "", UID)
        await rig.quiet()
        for hold in list(rig.job(jobid).holds.values()):
            assert "clean" not in rig.story(jobid)
            if hold.kind != "dependency":
                finish(rig, jobid, hold.name, plugin="everywhere")
                await rig.quiet()
        assert rig.story(jobid)[-1] == "clean"
        assert rig.verdict(jobid).result == FAILED
        assert rig.manager.entries == {}
        rig.check()
        rig.close()

    simulate(body)


VERDICTS = [
    # (owner, when the part ends, severity of the exception, verdict, exit code)
    ("user", "before", 0, FAILED, 1),
    ("user", "after", 0, FAILED, 1),
    ("site", "before", 2, COMPLETED, 0),
    ("site", "after", 2, COMPLETED, 0),
]


@pytest.mark.parametrize(("owner", "when", "severity", "result", "code"), VERDICTS)
def test_a_part_that_fails_though_the_tasks_exit_0(
    tmp_path: Path, owner: str, when: str, severity: int, result: str, code: int
) -> None:
    class Parts(Plugin):
        def event_start(self, job: Job, event: Event) -> Answers:
            return PartHold("mine", owner=owner)

    async def body() -> None:
        rig = Rig(tmp_path, [Parts])
        jobid = await rig.submit()
        rig.engine.take("start")
        rig.say(jobid, "start")
        await rig.quiet()
        if when == "after":
            rig.say(jobid, "exit", status=0)
            await rig.quiet()
        finish(rig, jobid, "mine", 256, "parts")
        await rig.quiet()
        if when == "before":
            assert rig.job(jobid).state.name == "RUN", "the tasks go on"
            rig.say(jobid, "exit", status=0)
            await rig.quiet()
        severities = [e.get("severity") for e in rig.stored(jobid) if e.name == "exception"]
        assert severities == [severity]
        assert (rig.verdict(jobid).result, rig.verdict(jobid).exit_code) == (result, code)
        if (owner, when) == ("user", "before"):
            assert rig.story(jobid)[7:] == ["part-finish(mine)", "finish", "exception(part)", *END]
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_stage_in_and_out(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, config=Config(staging=Staging(copier=["cp", "{src}", "{dst}"])))
        items = {"in": [{"src": "a", "dst": "b/"}], "out": [{"src": "c", "dst": "/d"}, {"src": "e", "dst": "f"}]}
        jobid = await rig.submit(staging=items)
        assert rig.engine.take("start", f"work/{jobid}/stage-in")[3]["argv"] == ["cp", "/dir/a", "/dir/b/"]
        rig.engine.drained()
        rig.manager.units.on_progress(f"work/{jobid}/stage-in", {"done": 3, "total": 9, "unit": "B"})
        entry = rig.manager.entries[jobid]
        assert entry.progress == {"part/stage-in": {"done": 3, "total": 9, "unit": "B"}}
        rig.say(jobid, "exit", work="stage-in", status=0, stderr_tail="")
        await rig.quiet()
        await rig.run(jobid)
        await rig.work(jobid, "stage-out-1")
        assert rig.story(jobid)[-1] != "clean"
        await rig.work(jobid, "stage-out-2", 256, tail="cp: no space left\n")
        assert rig.story(jobid)[5:] == [
            "part-start(stage-in)", "part-finish(stage-in)", "start", "finish", "part-start(stage-out-1)",
            "part-start(stage-out-2)", "release", "free", "part-finish(stage-out-1)", "exception(stage-out)",
            "part-finish(stage-out-2)", "clean",
        ]  # fmt: skip
        end = rig.verdict(jobid)
        assert (end.result, end.exit_code) == (FAILED, 1)
        assert end.cause is not None and end.cause.note == "stage-out-2: e to f: cp: no space left"
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_failed_stage_in_starts_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(staging={"in": [{"src": "a", "dst": "b"}], "out": [{"src": "c", "dst": "d"}]})
        await rig.work(jobid, "stage-in", 256, tail="a: No such file or directory")
        assert rig.story(jobid)[5:] == [
            "part-start(stage-in)", "exception(stage-in)", "part-finish(stage-in)", "free", "clean",
        ]  # fmt: skip
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


# ---- work behind holds ------------------------------------------------------------------------------


class Works(Plugin):
    """Holds with work; a test's gates decide how it ends."""

    def work(self, job: Job, name: str) -> Any:
        async def wait() -> int:
            gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.conf["context"].setdefault(name, []).append(gate)
            return await gate

        return wait()

    def state_run(self, job: Job) -> Answers:
        return PrologHold("pro", self.work(job, "pro"), deadline_s=100)

    def event_finish(self, job: Job, event: Event) -> Answers:
        return EpilogHold("epi", self.work(job, "epi"), deadline_s=100)

    async def resume(self, job: Job, hold: Hold) -> int | None:
        return await self.work(job, hold.name)


def test_work_is_resumed_after_a_crash_and_the_hold_closes_when_it_ends(tmp_path: Path) -> None:
    async def body() -> None:
        gates: dict[str, list[asyncio.Future[int]]] = {}
        rig = Rig(tmp_path, [Works], context=gates)
        jobid = await rig.submit()
        await rig.restart()
        assert len(gates["pro"]) == 2
        gates["pro"][1].set_result(0)
        await rig.quiet()
        await rig.run(jobid)
        await rig.restart()
        await rig.restart()
        gates["epi"][2].set_result(0)
        await rig.quiet()
        assert rig.story(jobid) == [
            *TO_ALLOC, "prolog-start(pro)", "prolog-finish(pro)", "start", "finish", "epilog-start(epi)", "release",
            "epilog-finish(epi)", "free", "clean",
        ]  # fmt: skip
        rig.over()
        rig.close()

    simulate(body)


ENDS = [
    # (how the work of an epilog ends, finish status, note of the exception)
    (lambda gate: gate.set_result(0), 0, None),
    (lambda gate: gate.set_result(768), 768, "epi ended with status 768"),
    (lambda gate: gate.set_exception(WorkFailed("no tape", 512)), 512, "no tape"),
    (lambda gate: gate.set_exception(ValueError("odd")), 256, "plugin works: ValueError: odd"),
]


@pytest.mark.parametrize(("how", "status", "note"), ENDS)
def test_however_work_ends_the_hold_closes(tmp_path: Path, how: Any, status: int, note: str | None) -> None:
    async def body() -> None:
        gates: dict[str, list[asyncio.Future[int]]] = {}
        rig = Rig(tmp_path, [Works], context=gates)
        jobid = await rig.submit()
        gates["pro"][0].set_result(0)
        await rig.quiet()
        await rig.run(jobid)
        how(gates["epi"][0])
        await rig.quiet()
        closing = next(e for e in rig.stored(jobid) if e.name == "epilog-finish")
        assert closing.get("status") == status
        notes = [(e.get("severity"), e.get("note")) for e in rig.stored(jobid) if e.name == "exception"]
        assert notes == ([(2, note)] if note else [])
        assert rig.verdict(jobid).result == COMPLETED
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_a_deadline_ends_a_hold_also_after_a_crash(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        gates: dict[str, list[asyncio.Future[int]]] = {}
        rig = Rig(tmp_path, [Works], context=gates)
        jobid = await rig.submit()
        opened = next(e for e in rig.stored(jobid) if e.name == "prolog-start")
        assert opened.get("deadline") == rig.clock.now + 100
        rig.clock.advance(60)
        if crash:
            await rig.restart()
        rig.clock.advance(39)
        await rig.quiet()
        assert rig.job(jobid).holds
        rig.clock.advance(2)
        await rig.quiet()
        assert rig.story(jobid)[5:] == [
            "prolog-start(pro)", "exception(prolog)", "prolog-finish(pro)", "free", "clean",
        ]  # fmt: skip
        assert gates["pro"][-1].cancelled()
        rig.over()
        rig.close()

    simulate(body)


def test_an_unlimited_deadline_is_none(tmp_path: Path) -> None:
    class Unlimited(Plugin):
        def state_cleanup(self, job: Job) -> Answers:
            return EpilogHold("epi", deadline_s=float("inf"))

    async def body() -> None:
        rig = Rig(tmp_path, [Unlimited])
        jobid = await rig.submit(urgency=0)
        await rig.cancel(jobid)
        assert rig.job(jobid).holds["epilog/epi"].deadline is None
        rig.check()
        finish(rig, jobid, "epi", plugin="unlimited")
        await rig.quiet()
        rig.over()
        rig.close()

    simulate(body)


def test_a_cancel_stops_the_work_of_a_prolog_but_not_of_an_epilog(tmp_path: Path) -> None:
    async def body() -> None:
        gates: dict[str, list[asyncio.Future[int]]] = {}
        rig = Rig(tmp_path, [Works], context=gates)
        jobid = await rig.submit()
        await rig.cancel(jobid)
        assert gates["pro"][0].cancelled()
        assert rig.story(jobid)[5:] == ["prolog-start(pro)", "exception(cancel)", "prolog-finish(pro)", "free", "clean"]
        other = await rig.submit()
        gates["pro"][1].set_result(0)
        await rig.quiet()
        await rig.run(other)
        rig.manager.raise_exception(other, "oops", 0, "", UID)
        await rig.quiet()
        assert not gates["epi"][0].done()
        gates["epi"][0].set_result(0)
        await rig.quiet()
        assert rig.verdict(other).result == FAILED
        rig.over()
        rig.close()

    simulate(body)


# ---- the API's holds --------------------------------------------------------------------------------


def test_holds_of_somebody_outside(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(urgency=0)
        manager = rig.manager
        manager.holds.open(jobid, "part", "mine", {"blocks": ["free"], "owner": "user"})
        with pytest.raises(EventError, match="open already"):
            manager.holds.open(jobid, "part", "mine", {})
        with pytest.raises(EventError, match="blocks"):
            manager.holds.open(jobid, "part", "odd", {"blocks": ["everything"]})
        with pytest.raises(InvalidError, match="no such kind"):
            manager.holds.open(jobid, "wish", "x", {})
        await rig.quiet()
        rig.check()
        await rig.cancel(jobid)
        assert rig.story(jobid)[-1] == "exception(cancel)"
        manager.works.end(jobid, manager.find_hold(jobid, "", "mine"), 0)
        await rig.quiet()
        assert rig.story(jobid)[-2:] == ["part-finish(mine)", "clean"]
        with pytest.raises(ConflictError):
            manager.holds.open(jobid, "part", "late", {})
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize(("kind", "context"), [("prolog", {}), ("part", {"blocks": ["start"]})])
def test_what_blocks_start_is_refused_once_the_start_was_asked(tmp_path: Path, kind: str, context: Any) -> None:
    """Else the engine's answer would find the door closed."""

    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        with pytest.raises(EventError, match="requested already"):
            rig.manager.holds.open(jobid, kind, "late", context)
        await rig.run(jobid)
        assert rig.verdict(jobid).result == COMPLETED
        rig.over()
        rig.close()

    simulate(body)


# ---- plugins that misbehave -------------------------------------------------------------------------

MOMENTS = [
    "new", "state_depend", "state_priority", "state_sched", "state_run", "state_cleanup", "state_inactive", "event",
    "event_submit", "event_alloc", "event_start", "event_finish", "event_clean", "priority",
]  # fmt: skip


@pytest.mark.parametrize("error", [RuntimeError("boom"), InvalidError("boom"), EventError("boom"), KeyError("boom")])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_plugin_that_raises_stops_no_other(tmp_path: Path, moment: str, error: Exception) -> None:
    def boom(self: Plugin, *args: Any) -> Any:
        raise error

    broken = type("Broken", (Plugin,), {moment: boom})

    async def body() -> None:
        rig = Rig(tmp_path, [broken, Tape])
        jobid = await rig.submit()
        await rig.run(jobid)
        finish(rig, jobid, "to-tape")
        await rig.quiet()
        assert rig.verdict(jobid).result == COMPLETED
        assert "epilog-finish(to-tape)" in rig.story(jobid)
        errors = rig.log.take_errors()
        assert errors and all(e == "plugin failed" and d["plugin"] == "broken" for e, d in errors)
        assert all(d["job"] == str(jobid) and "boom" in d["trace"] for _, d in errors)
        rig.over()
        rig.close()

    simulate(body)


ODD_ANSWERS: dict[str, Any] = {
    "no answer at all": 17,
    "a list with something odd": [EpilogHold("fine"), "odd"],
    "a dependency in RUN": DependencyHold("late"),
    "a hold without a name": PartHold(""),
    "blocks what there is not": PartHold("x", blocks=["everything"]),
    "an owner that there is not": PartHold("x", owner="root"),
    "finish of what is not open": Finish("epilog", "never"),
    "an exception that is none": Raise("", 0, ""),
    "an event that is not possible": Post("validate"),
    "another job that there is not": Finish("epilog", "x", job=99),
}


@pytest.mark.parametrize("what", ODD_ANSWERS)
def test_an_answer_that_cannot_be_is_logged_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    class Odd(Plugin):
        def state_run(self, job: Job) -> Answers:
            return ODD_ANSWERS[what]

    async def body() -> None:
        rig = Rig(tmp_path, [Odd])
        jobid = await rig.submit()
        assert rig.manager.entries[jobid].owners == {}
        assert rig.store.kv_of_active("hold/") == []
        await rig.run(jobid)
        assert rig.verdict(jobid).result == COMPLETED
        assert rig.story(jobid) == [*TO_ALLOC, "start", "finish", *END]
        assert bool(rig.log.take_errors()) == (what != "another job that there is not")
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("value", [-1, 2**32, "high", 1.5, True, [3]])
def test_a_priority_that_is_none_is_left_to_the_default(tmp_path: Path, value: Any) -> None:
    class Prio(Plugin):
        def priority(self, job: Job) -> Any:
            return value

    async def body() -> None:
        rig = Rig(tmp_path, [Prio])
        jobid = await rig.submit()
        assert rig.job(jobid).priority == 16
        assert rig.log.take_errors()
        await rig.run(jobid)
        rig.over()
        rig.close()

    simulate(body)


def test_a_plugins_priority_counts(tmp_path: Path) -> None:
    class Prio(Plugin):
        def priority(self, job: Job) -> int | None:
            return 500 if self.manager.jobspec(job.id)["attributes"].get("user", {}).get("vip") else None

    async def body() -> None:
        rig = Rig(tmp_path, [Prio])
        first, second, vip = await rig.submit(2), await rig.submit(2), await rig.submit(2, vip=True)
        assert (rig.job(second).priority, rig.job(vip).priority) == (16, 500)
        for jobid in (first, vip, second):
            await rig.run(jobid)
        rig.over()
        rig.close()

    simulate(body)


def test_the_same_name_twice_in_one_answer_is_one_hold(tmp_path: Path) -> None:
    class Twice(Plugin):
        begun: ClassVar[list[str]] = []

        def work(self, which: str) -> Any:
            async def wait() -> None:
                self.begun.append(which)

            return wait()

        def state_cleanup(self, job: Job) -> Answers:
            return [EpilogHold("epi", self.work("first")), EpilogHold("epi", self.work("second"))]

    async def body() -> None:
        rig = Rig(tmp_path, [Twice])
        jobid = await rig.submit(urgency=0)
        await rig.cancel(jobid)
        assert rig.story(jobid)[4:] == ["exception(cancel)", "epilog-start(epi)", "epilog-finish(epi)", "clean"]
        assert Twice.begun == ["first"]
        rig.over()
        rig.close()

    simulate(body)


def test_a_finish_from_within_a_hook_does_not_overtake_the_other_plugins(tmp_path: Path) -> None:
    """One plugin closes its hold in the very moment in which the next one is about to open its own."""

    class Early(Plugin):
        def state_depend(self, job: Job) -> Answers:
            return PartHold("early")

        def state_cleanup(self, job: Job) -> Answers:
            self.manager.finish(job.id, "early")
            return None

    async def body() -> None:
        rig = Rig(tmp_path, [Early, Tape])
        jobid = await rig.submit(urgency=0)
        await rig.cancel(jobid)
        assert rig.story(jobid)[5:] == ["exception(cancel)", "part-finish(early)", "epilog-start(to-tape)"]
        finish(rig, jobid, "to-tape")
        await rig.quiet()
        assert rig.story(jobid)[-1] == "clean"
        assert rig.log.take_errors() == []
        rig.over()
        rig.close()

    simulate(body)


def test_a_plugin_with_open_holds_is_not_unloaded_and_loads_survive_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "keeper.py"
    file.write_text(
        "from leveret.plugins.hooks import EpilogHold, Plugin\n"
        "class Keeper(Plugin):\n"
        "    def state_cleanup(self, job):\n"
        "        return EpilogHold('kept')\n"
    )

    async def body() -> None:
        rig = Rig(tmp_path)
        assert rig.manager.tap.load(str(file), {}) == "keeper"
        await rig.quiet()
        with pytest.raises(ConflictError, match="loaded already"):
            rig.manager.tap.load(str(file), {})
        await rig.restart()
        jobid = await rig.submit(urgency=0)
        await rig.cancel(jobid)
        assert rig.story(jobid)[-1] == "epilog-start(kept)"
        with pytest.raises(ConflictError, match="open holds"):
            rig.manager.tap.remove("keeper")
        assert {p["name"]: p["holds"] for p in rig.manager.tap.listing()}["keeper"] == 1
        await rig.restart()
        assert {p["name"]: p["holds"] for p in rig.manager.tap.listing()}["keeper"] == 1
        finish(rig, jobid, "kept", plugin="keeper")
        await rig.quiet()
        rig.manager.tap.remove("keeper")
        await rig.quiet()
        await rig.restart()
        assert "keeper" not in [p["name"] for p in rig.manager.tap.listing()]
        rig.over()
        rig.close()

    simulate(body)
