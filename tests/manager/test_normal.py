"""Jobs from submit to clean on the real manager and store, with helpers that a test plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import UID, Config, Rig, simulate, spec

from leveret.config import JobManager, Perilog, load
from leveret.core.jobspec import setattr_path
from leveret.core.verdict import CANCELED, COMPLETED, FAILED, TIMEOUT
from leveret.errors import ConfigError, ConflictError, EventError, InvalidError, JobspecError, NotFoundError

PERILOG = Config(job_manager=JobManager(prolog=Perilog(["prolog"]), epilog=Perilog(["epilog"])))
TO_ALLOC = ["submit", "validate", "depend", "priority", "alloc"]
END = ["release", "free", "clean"]


def test_an_ordinary_job(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        await rig.run(jobid)
        assert rig.story(jobid) == [*TO_ALLOC, "start", "finish", *END]
        assert rig.verdict(jobid).result == COMPLETED
        rig.engine.drained()
        rig.over()
        assert rig.log.take_errors() == []
        rig.close()

    simulate(body)


def test_the_contexts_are_those_of_rfc_21(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(flags=["waitable"])
        await rig.run(jobid, 768)
        assert [(e.name, e.context) for e in rig.stored(jobid)] == [
            ("submit", {"userid": UID, "urgency": 16, "flags": 4, "version": 1}),
            ("validate", None),
            ("depend", None),
            ("priority", {"priority": 16}),
            ("alloc", {"annotations": {"sched": {"resource_summary": "rank0/core0"}}}),
            ("start", None),
            ("finish", {"status": 768}),
            ("release", {"ranks": "all", "final": True}),
            ("free", None),
            ("clean", None),
        ]
        rig.close()

    simulate(body)


def test_prolog_and_epilog(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, config=PERILOG)
        jobid = await rig.submit()
        await rig.work(jobid, "prolog")
        await rig.run(jobid)
        assert not rig.job(jobid).done
        await rig.work(jobid, "epilog")
        assert rig.story(jobid) == [
            *TO_ALLOC,
            "prolog-start(job-manager.prolog)",
            "prolog-finish(job-manager.prolog)",
            "start",
            "finish",
            "epilog-start(job-manager.epilog)",
            "release",
            "epilog-finish(job-manager.epilog)",
            "free",
            "clean",
        ]
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_nothing_is_started_before_the_ask_is_on_disk(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid, done = rig.manager.submit(spec(), 16, [], UID)
        for _ in range(50):
            await rig.passes()
            if rig.engine.calls:
                break
            assert rig.store.kv(jobid, f"ask/job/{jobid}/0") is None
            before = rig.store.commits
            rig.store.step()
            assert rig.store.commits <= before + 1
        assert done.done()
        assert rig.store.kv(jobid, f"ask/job/{jobid}/0") is not None
        rig.engine.take("start", f"job/{jobid}")
        rig.engine.drained()
        rig.close()

    simulate(body)


def test_two_nodes_start_when_both_have_and_finish_when_both_have(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[2, 2])
        jobid = await rig.submit(3, 2)
        for node in (0, 1):
            rig.engine.take("start", f"job/{jobid}", node)
        rig.engine.drained()
        rig.say(jobid, "start", 1)
        await rig.quiet()
        assert not rig.job(jobid).started
        rig.say(jobid, "start", 0)
        await rig.quiet()
        assert rig.job(jobid).started
        rig.say(jobid, "exit", 0, status=512)
        await rig.quiet()
        assert rig.job(jobid).status is None
        rig.say(jobid, "exit", 1, status=256)
        await rig.quiet()
        assert rig.job(jobid).status == 512, "the larger one is the job's"
        rig.over()
        rig.close()

    simulate(body)


def test_records_that_come_again_change_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        unit = rig.engine.helpers[0].units[f"job/{jobid}"]
        rig.say(jobid, "start")
        rig.say(jobid, "output", stream="stdout", rank=0, data="hello\n")
        for _ in range(3):
            rig.manager.units.on_records(0, f"job/{jobid}", list(unit.records))
        await rig.quiet()
        rig.manager.units.on_records(0, f"job/{jobid}", list(unit.records))
        rig.say(jobid, "exit", status=0, deliver=False)
        for _ in range(2):
            rig.manager.units.on_records(0, f"job/{jobid}", list(unit.records))
        await rig.quiet()
        rig.manager.units.on_records(0, f"job/{jobid}", list(unit.records))
        await rig.quiet()
        assert rig.story(jobid) == [*TO_ALLOC, "start", "finish", *END]
        output = b"".join(row[3] for row in rig.store.guest(jobid, "guest.output"))
        assert output.count(b"hello") == 1
        assert f"job/{jobid}" not in rig.engine.helpers[0].units, "and the helper may forget it"
        rig.over()
        rig.close()

    simulate(body)


def test_a_helper_that_is_lost_ends_what_it_ran_and_nothing_is_started_again(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        running, waiting = await rig.submit(2), await rig.submit(2)
        rig.engine.take("start", f"job/{running}")
        rig.say(running, "start")
        await rig.quiet()
        rig.engine.lose(0)
        await rig.quiet()
        rig.engine.introduce(0)
        await rig.quiet()
        assert rig.story(running)[5:] == ["start", "exception(node-failure)", "finish", *END]
        assert rig.verdict(running).result == FAILED
        assert "helper lost on node0" in (rig.job(running).fatal or pytest.fail("no cause")).note
        await rig.run(waiting)
        assert rig.verdict(waiting).result == COMPLETED
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_helper_that_is_lost_before_it_has_heard_of_the_job(tmp_path: Path) -> None:
    """The ask is on its way to the disk when the helper dies: the next helper must not run it."""

    async def body() -> None:
        rig = Rig(tmp_path)
        jobid, _ = rig.manager.submit(spec(), 16, [], UID)
        for _ in range(50):
            await rig.passes()
            entry = rig.manager.entries[jobid]
            if entry.asks:
                break
            rig.store.step()
        assert entry.asks and not rig.engine.calls
        rig.engine.lose(0)
        rig.engine.introduce(0)
        await rig.quiet()
        rig.engine.drained()
        assert rig.engine.starts == {}
        assert rig.verdict(jobid).result == FAILED
        rig.over()
        rig.close()

    simulate(body)


def test_start_failed_and_timeout(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        absent = await rig.submit()
        rig.engine.take("start")
        rig.say(absent, "start-failed", message="task 0 (host node0): start failed: x: No such file or directory")
        rig.say(absent, "exit", status=127 << 8)
        await rig.quiet()
        assert rig.story(absent)[5:] == ["start", "exception(exec)", "finish", *END]
        assert (rig.verdict(absent).result, rig.verdict(absent).exit_code) == (FAILED, 127)
        late = await rig.submit(duration_s=5)
        rig.engine.take("start")
        rig.say(late, "start")
        rig.say(late, "timeout")
        rig.say(late, "exit", status=142 << 8)
        await rig.quiet()
        assert rig.story(late)[5:] == ["start", "exception(timeout)", "finish", *END]
        assert (rig.verdict(late).result, rig.verdict(late).exit_code) == (TIMEOUT, 142)
        rig.engine.drained()  # the helper ends what overran its limit itself
        rig.over()
        rig.close()

    simulate(body)


# ---- cancel -----------------------------------------------------------------------------------------


def test_cancel_while_it_waits(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        first, second = await rig.submit(2), await rig.submit(2)
        await rig.cancel(second)
        assert rig.story(second) == ["submit", "validate", "depend", "priority", "exception(cancel)", "clean"]
        assert rig.verdict(second).result == CANCELED
        rig.engine.take("start", f"job/{first}")
        rig.engine.drained()
        with pytest.raises(ConflictError, match="inactive"):
            rig.manager.cancel(second, "", UID)
        with pytest.raises(NotFoundError):
            rig.manager.cancel(12345, "", UID)
        rig.check()
        rig.close()

    simulate(body)


def test_cancel_while_it_runs(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        rig.engine.take("start")
        rig.say(jobid, "start")
        await rig.quiet()
        await rig.cancel(jobid)
        assert rig.engine.take("signal")[3:] == (15, 5.0)
        assert rig.manager.pool.free_cores() == 1, "nothing is freed under tasks that are being ended"
        await rig.cancel(jobid)
        rig.engine.drained()  # asked once
        rig.say(jobid, "exit", status=36608)
        await rig.quiet()
        assert rig.story(jobid)[5:] == ["start", "exception(cancel)", "exception(cancel)", "finish", *END]
        assert (rig.verdict(jobid).result, rig.verdict(jobid).exit_code) == (CANCELED, 143)
        rig.over()
        rig.close()

    simulate(body)


def test_cancel_while_the_start_is_on_its_way(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        rig.engine.take("start")
        await rig.cancel(jobid)
        rig.engine.take("signal")
        assert rig.story(jobid)[-1] == "exception(cancel)", "free and clean wait for the end of a requested start"
        rig.say(jobid, "start")
        rig.say(jobid, "exit", status=36608)
        await rig.quiet()
        assert rig.story(jobid)[5:] == ["exception(cancel)", "start", "finish", *END]
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_a_plain_cancel_after_finish_is_refused_with_the_holders_name(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(epilog=Perilog(["epilog"]))))
        jobid = await rig.submit()
        await rig.run(jobid)
        with pytest.raises(ConflictError, match=r"job-manager\.epilog"):
            rig.manager.cancel(jobid, "", UID)
        await rig.work(jobid, "epilog")
        assert rig.verdict(jobid).result == COMPLETED
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("passes", range(12))
def test_cancel_at_any_moment_around_the_prolog(tmp_path: Path, passes: int) -> None:
    """However close behind each other alloc, the prolog's ask and the cancel are: the prolog is told, or never begun."""

    async def body() -> None:
        rig = Rig(tmp_path, config=PERILOG)
        jobid, _ = rig.manager.submit(spec(), 16, [], UID)
        seen = 0
        if passes == 0:
            rig.manager.scheduling._slice()  # submit, alloc and cancel in one commit
        for _ in range(400 if passes else 0):
            await rig.passes(1)
            if rig.manager.entries[jobid].job.allocated:
                if seen == passes:
                    break
                seen += 1
                if passes > 5 and seen > 5:
                    rig.store.step()
            else:
                rig.store.step()
        rig.manager.cancel(jobid, "", UID)
        await rig.quiet()
        unit = f"work/{jobid}/prolog"
        if unit in rig.engine.helpers[0].units:
            rig.engine.take("start", unit)
            assert rig.engine.take("signal", unit)[3] == 15
            rig.say(jobid, "exit", work="prolog", status=15)
            await rig.quiet()
        await rig.work(jobid, "epilog")
        assert rig.story(jobid)[5:] == [
            "prolog-start(job-manager.prolog)",
            "exception(cancel)",
            "epilog-start(job-manager.epilog)",
            "prolog-finish(job-manager.prolog)",
            "epilog-finish(job-manager.epilog)",
            "free",
            "clean",
        ]
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


# ---- urgency ----------------------------------------------------------------------------------------


def test_urgency_holds_expedites_and_reorders(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        first = await rig.submit(2)
        held = await rig.submit(2, urgency=0)
        second, third = await rig.submit(2), await rig.submit(2)
        assert rig.manager.set_urgency(third, 31, UID) == 16
        await rig.quiet()
        assert rig.job(third).priority == 4294967295
        assert len(rig.manager.queue) == 2
        await rig.run(first)
        await rig.run(third)
        await rig.run(second)
        assert rig.story(held) == ["submit", "validate", "depend", "priority"]
        assert rig.job(held).priority == 0
        rig.engine.drained()
        rig.manager.set_urgency(held, 5, UID)
        await rig.quiet()
        assert rig.story(held)[4:] == ["urgency", "priority", "alloc"]
        with pytest.raises(InvalidError, match="out of range"):
            rig.manager.set_urgency(held, 32, UID)
        await rig.run(held)
        rig.over()
        rig.close()

    simulate(body)


def test_a_job_that_is_held_again_leaves_the_queue(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        first, second = await rig.submit(2), await rig.submit(2)
        rig.manager.set_urgency(second, 0, UID)
        await rig.quiet()
        await rig.run(first)
        rig.check()
        assert len(rig.manager.queue) == 0
        assert rig.job(second).allocated is False
        await rig.cancel(second)
        rig.over()
        rig.close()

    simulate(body)


def test_what_can_never_be_had_is_accepted_and_fails_with_the_reason(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(3)
        assert rig.story(jobid) == ["submit", "validate", "depend", "priority", "exception(alloc)", "clean"]
        assert (rig.job(jobid).fatal or pytest.fail()).note == (
            "unsatisfiable request: need 3 slot(s) of 1 core(s), only 2 such slot(s) available (total cores: 2)"
        )
        rig.over()
        rig.close()

    simulate(body)


# ---- refused submissions ----------------------------------------------------------------------------


def bad(path: str, value: Any) -> dict[str, Any]:
    out = spec()
    setattr_path(out, path, value)
    return out


REFUSED: list[tuple[dict[str, Any], int, list[str], type[Exception], str]] = [
    (spec(), 32, [], InvalidError, "urgency range"),
    (spec(), -1, [], InvalidError, "urgency range"),
    (spec(), 16, ["wait-able"], InvalidError, "unknown flag"),
    ({**spec(), "version": 2}, 16, [], JobspecError, "version must be 1"),
    (bad("queue", "batch"), 16, [], InvalidError, "'batch' is not a valid queue"),
    (bad("dependencies", [{"scheme": "sometime", "value": "x"}]), 16, [], InvalidError, "sometime"),
    (bad("dependencies", [{"scheme": "afterok", "value": "x y"}]), 16, [], InvalidError, "not a valid jobid"),
    (bad("dependencies", [{"scheme": "afterok", "value": "ƒ1"}]), 16, [], InvalidError, "job not found"),
    (bad("staging", {"up": []}), 16, [], InvalidError, "attributes.system.staging"),
    (bad("staging", {"in": [{"src": "", "dst": "b"}]}), 16, [], InvalidError, r"staging.in\[0\]"),
]


@pytest.mark.parametrize(("jobspec", "urgency", "flags", "kind", "why"), REFUSED)
def test_a_refused_submission_leaves_nothing_behind(
    tmp_path: Path, jobspec: dict[str, Any], urgency: int, flags: list[str], kind: type[Exception], why: str
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        with pytest.raises(kind, match=why):
            rig.manager.submit(jobspec, urgency, flags, UID)
        await rig.quiet()
        for table in ("job", "active", "event", "kv", "env", "guest", "done"):
            assert rig.store.read.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0, table
        assert rig.manager.entries == {} and rig.manager._fresh == {}
        jobid = await rig.submit()
        await rig.run(jobid)
        rig.over()
        assert rig.log.take_errors() == []
        rig.close()

    simulate(body)


def test_what_a_refused_submission_was_to_wait_for_does_not_touch_the_next_job(tmp_path: Path) -> None:
    """Its dependency on a living job must not come back to whoever is submitted next."""

    async def body() -> None:
        rig = Rig(tmp_path)
        antecedent = await rig.submit(2)
        both = [{"scheme": "afternotok", "value": str(antecedent)}, {"scheme": "afterok", "value": "ƒ1"}]
        with pytest.raises(InvalidError, match="job not found"):
            rig.manager.submit(spec(dependencies=both), 16, [], UID)
        innocent = await rig.submit(2)
        await rig.run(antecedent)
        assert rig.job(innocent).fatal is None
        await rig.run(innocent)
        rig.over()
        rig.close()

    simulate(body)


# ---- a turn that fails ------------------------------------------------------------------------------


def test_an_illegal_event_undoes_the_whole_turn(tmp_path: Path) -> None:
    from leveret.manager.turn import Turn

    async def body() -> None:
        rig = Rig(tmp_path)
        running, waiting, held = await rig.submit(2), await rig.submit(2), await rig.submit(2, urgency=0)
        manager = rig.manager
        entries = [manager.entries[i] for i in (running, waiting, held)]

        def picture() -> Any:
            return (
                [(e.job, set(e.in_flight), dict(e.owners), dict(e.lines), set(e.dirty)) for e in entries],
                manager.queue.order(),
                manager.pool.free_cores(),
                [rig.story(e.job.id) for e in entries],
            )

        before = picture()
        for entry in entries:
            with pytest.raises(EventError, match="not possible"), Turn(manager) as turn:
                turn.post(entry, "memo", {"k": 1})
                if entry.job.priority == 0:
                    turn.post(entry, "urgency", {"urgency": 9, "userid": UID})
                turn.post(entry, "validate")
            await rig.quiet()
            assert picture() == before
        # … and when it is only what follows that is refused: settling is undone too

        def impossible(*args: Any) -> Any:
            raise EventError("no release today")

        for entry in entries:
            real = manager.feed.publish
            with pytest.raises(EventError, match="no release"), Turn(manager) as turn:
                turn.post(entry, "exception", manager.exception("x", 0, ""))
                turn._settle()
                impossible()
            assert manager.feed.publish == real
            await rig.quiet()
            assert picture() == before
        rig.engine.take("start")
        rig.engine.drained()
        rig.check()
        rig.close()

    simulate(body)


def test_a_free_that_is_undone_does_not_give_the_cores_away(tmp_path: Path) -> None:
    from leveret.manager.turn import Turn

    async def body() -> None:
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(prolog=Perilog(["prolog"]))))
        jobid = await rig.submit(2)
        entry = rig.manager.entries[jobid]
        with pytest.raises(RuntimeError), Turn(rig.manager) as turn:
            turn.post(entry, "prolog-finish", {"description": "job-manager.prolog", "status": 0})
            turn.post(entry, "exception", rig.manager.exception("x", 0, ""))
            turn.post(entry, "free")
            raise RuntimeError
        await rig.quiet()
        assert rig.manager.pool.free_cores() == 0
        assert list(entry.owners) == ["prolog/job-manager.prolog"]
        rig.check()
        await rig.work(jobid, "prolog")
        await rig.run(jobid)
        rig.over()
        rig.close()

    simulate(body)


# ---- the configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "key"),
    [("job-manager.prolog", "timeout"), ("job-manager.prolog", "kill-timeout"), ("job-manager.epilog", "timeout"),
     ("job-manager.epilog", "kill-timeout"), ("exec", "kill-timeout"), ("staging", "timeout")],
)  # fmt: skip
def test_a_duration_that_cannot_be_read_stops_the_start_and_says_where(tmp_path: Path, table: str, key: str) -> None:
    path = tmp_path / "leveret.toml"
    path.write_text(f"\n[{table}]\n{key} = 'a while'\n")

    async def body() -> None:
        with pytest.raises(ConfigError, match="invalid Flux standard duration") as caught:
            Rig(tmp_path, config=load(path))
        assert caught.value.message.startswith(f"{path}:3: {table}.{key}: ")

    simulate(body)


def test_unlimited_timeouts(tmp_path: Path) -> None:
    async def body() -> None:
        perilog = Perilog(["x"], timeout="infinity")
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(prolog=perilog, epilog=perilog)))
        jobid = await rig.submit()
        assert rig.job(jobid).holds["prolog/job-manager.prolog"].deadline is None
        assert rig.engine.helpers[0].units[f"work/{jobid}/prolog"].spec["duration_s"] is None
        await rig.work(jobid, "prolog")
        await rig.run(jobid)
        await rig.work(jobid, "epilog")
        rig.over()
        rig.close()

    simulate(body)
