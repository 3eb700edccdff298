"""The plugins `limits` and `fairshare`: counting, waiting with a reason, refusing; usage that decays and survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import UID, Rig, simulate, spec

from leveret import config
from leveret.errors import InvalidError

ADA, BOB = 54_001, 54_002  # nobody's
A, B = str(ADA), str(BOB)


def rig_of(tmp_path: Path, name: str, conf: str, more: str = "", cores: int = 8) -> Rig:
    path = tmp_path / "leveret.toml"
    path.write_text(f'{more}\n[[job-manager.plugins]]\nload = "{name}"\nconf = {{{conf}}}\n')
    return Rig(tmp_path, config=config.load(path), sizes=[cores])


async def submit(rig: Rig, userid: int = ADA, ntasks: int = 1, queue: str = "", urgency: int = 16) -> int:
    body: dict[str, Any] = spec(ntasks)
    if queue:
        body["attributes"]["system"]["queue"] = queue
    jobid, _ = rig.manager.submit(body, urgency, [], userid)
    await rig.quiet()
    return jobid


def running(rig: Rig, *ids: int) -> list[bool]:
    return [rig.job(i).allocated for i in ids]


async def reason(rig: Rig, jobid: int) -> str:
    record = rig.manager.record(rig.manager.entries[jobid])
    found = [r["text"] for r in (await rig.manager.scheduling.explain(jobid))["reasons"] if r["kind"] == "limit"]
    text = record["annotations"].get("sched", {}).get("reason_pending", "")
    assert (found or [""])[0] == text
    assert not text or record["waiting_for"] == text
    return str(text)


@pytest.mark.parametrize("crash", [False, True])
def test_a_job_over_a_running_limit_waits_with_a_reason_and_others_pass(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, "limits", f"max-running-jobs = 1, users = {{ {B} = {{max-running-jobs = 2}} }}")
        one, two = await submit(rig), await submit(rig)
        other = [await submit(rig, BOB) for _ in range(3)]
        if crash:
            await rig.restart()
        assert running(rig, one, two, *other) == [True, False, True, True, False]
        assert await reason(rig, two) == f"max-running-jobs: user {A} has 1 of 1 running jobs"
        assert await reason(rig, other[2]) == f"max-running-jobs: user {B} has 2 of 2 running jobs"
        assert await reason(rig, one) == ""
        await rig.run(one)
        assert running(rig, two, other[2]) == [True, False]
        assert await reason(rig, two) == ""
        for jobid in (two, other[0], other[1], other[2]):
            await rig.run(jobid)
        plugin = rig.manager.registry.get("limits")
        assert plugin is not None and plugin.query() == {"counts": {}}
        rig.over()
        rig.close()

    simulate(body)


def test_the_running_limit_counts_until_free(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, "limits", "max-cores = 4, max-nodes = 3")
        big, small = await submit(rig, ntasks=3), await submit(rig, ntasks=2)
        assert await reason(rig, small) == f"max-cores: user {A} has 3 of 4 cores"
        more = await submit(rig)
        assert running(rig, big, small, more) == [True, False, True]
        with pytest.raises(InvalidError, match=r"the job needs 5 cores: the limit max-cores of user \d+ is 4"):
            await submit(rig, ntasks=5)
        rig.manager.holds.open(big, "epilog", "tidy", {})
        await rig.run(big)
        assert running(rig, small) == [False]
        rig.manager.works.end(big, "epilog/tidy", 0, "")
        await rig.quiet()
        assert running(rig, small) == [True]
        await rig.run(small)
        await rig.run(more)
        rig.over()
        rig.close()

    simulate(body)


def test_active_limits_refuse_and_leave_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, "limits", "max-active-jobs = 2")
        one, _two = await submit(rig, urgency=0), await submit(rig, urgency=0)
        for _ in range(3):
            with pytest.raises(InvalidError, match="has 2 active jobs: the limit max-active-jobs is 2"):
                await submit(rig)
        assert await submit(rig, BOB, urgency=0)
        await rig.restart()
        with pytest.raises(InvalidError, match="has 2 active jobs"):
            await submit(rig)
        await rig.cancel(one)
        assert await submit(rig, urgency=0)
        rig.close()

    simulate(body)


def test_limits_of_queues_follow_an_update(tmp_path: Path) -> None:
    async def body() -> None:
        queues = '[queues.a]\n[queues.b]\n[policy.jobspec.defaults.system]\nqueue = "a"\n'
        conf = "queues = { a = { max-running-jobs = 2, per-user = { max-running-jobs = 1 } } }"
        rig = rig_of(tmp_path, "limits", conf, queues)
        rig.manager.queues.change("start", [], everything=True)
        jobs = [await submit(rig), await submit(rig), await submit(rig, BOB), await submit(rig, UID)]
        assert running(rig, *jobs) == [True, False, True, False]
        assert await reason(rig, jobs[1]) == "max-running-jobs: queue a has 2 of 2 running jobs"
        rig.manager.updates.update(jobs[1], {"queue": "b"}, UID)
        await rig.quiet()
        assert running(rig, jobs[1]) == [True]
        await rig.run(jobs[0])
        assert running(rig, jobs[3]) == [True]
        for jobid in jobs[1:]:
            await rig.run(jobid)
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize(
    ("name", "conf", "why"),
    [
        ("limits", "max-jobs = 1", "unknown key `max-jobs`"),
        ("limits", "max-cores = 'x'", "must be a whole number"),
        ("limits", "users = 5", "`users` must be a table"),
        ("limits", "queues = {a = {per-user = {b = 1}}}", "queues.a.per-user: unknown key `b`"),
        ("fairshare", "half-live = '1d'", "unknown key `half-live`"),
        ("fairshare", "half-life = '0'", "half-life must be a time above 0"),
        ("fairshare", "half-life = 'x'", "half-life: invalid Flux standard duration"),
        ("fairshare", "shares = {a = -1}", "shares.a must be a number"),
    ],
)
def test_bad_configuration_is_named(tmp_path: Path, name: str, conf: str, why: str) -> None:
    async def body() -> None:
        with pytest.raises(InvalidError, match=why):
            rig_of(tmp_path, name, conf)

    simulate(body)


# ---- fair share --------------------------------------------------------------------------------------


def priority(rig: Rig, jobid: int) -> int:
    found = rig.job(jobid).priority
    assert found is not None
    return found


@pytest.mark.parametrize("crash", [False, True])
def test_who_has_used_less_goes_first(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, "fairshare", "half-life = '1h'", cores=1)
        first = await submit(rig, ADA)
        waiting = [await submit(rig, ADA), await submit(rig, BOB)]
        rig.clock.advance(100)
        await rig.run(first)  # 100 core-seconds of ada's, stored with `free`
        if crash:
            await rig.restart()
        plugin = rig.manager.registry.get("fairshare")
        assert plugin is not None
        assert plugin.query()["users"][A]["core_seconds"] == pytest.approx(100, abs=0.1)
        # what waited was let in by the priorities of before; from now on bob is ahead
        now_runs = next(i for i in waiting if rig.job(i).allocated)
        late = [await submit(rig, ADA), await submit(rig, BOB)]
        assert priority(rig, late[1]) > priority(rig, late[0])
        await rig.run(now_runs)
        other = next(i for i in waiting if i != now_runs)
        if other == waiting[1]:  # bob's
            assert running(rig, other, *late) == [True, False, False]
        rig.close()

    simulate(body)


def test_priorities_are_looked_at_again_when_a_job_has_ended_and_from_time_to_time(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, "fairshare", "half-life = '1h', settle = '5s', period = '1m', max-age = '1h'", cores=2)
        block = await submit(rig, UID, ntasks=2)
        ada, bob = await submit(rig, ADA, ntasks=2), await submit(rig, BOB, ntasks=2)
        assert priority(rig, ada) == priority(rig, bob)
        before = priority(rig, ada)
        rig.clock.advance(61)
        await rig.quiet()
        assert before < priority(rig, ada) == priority(rig, bob)  # older
        await rig.run(block)
        assert running(rig, ada) == [True]
        rig.clock.advance(30)
        again = await submit(rig, ADA, ntasks=2)
        low = priority(rig, again)
        await rig.run(ada)
        rig.clock.advance(6)
        await rig.quiet()
        assert running(rig, bob) == [True]
        story = rig.story(again)
        assert story.count("priority") >= 1 and priority(rig, again) != 0
        rig.clock.advance(8 * 3600)  # eight half-lives
        await rig.quiet()
        assert priority(rig, again) > low
        rig.close()

    simulate(body)


def test_shares_age_and_urgency(tmp_path: Path) -> None:
    async def body() -> None:
        conf = f"shares = {{ {A} = 3, {B} = 1, none = 0 }}, half-life = '1h', age-weight = 0, urgency-weight = 10"
        rig = rig_of(tmp_path, "fairshare", conf, cores=1)
        block = await submit(rig, UID)
        plugin: Any = rig.manager.registry.get("fairshare")
        now = rig.clock.now
        plugin._used = {A: (300.0, now), B: (100.0, now)}
        plugin._running.clear()
        plugin._active.pop(plugin._user(UID), None)
        factors = plugin.factors(now)
        assert factors[A] == pytest.approx(0.5) and factors[B] == pytest.approx(0.5) and factors["none"] == 0
        plugin._used[B] = (200.0, now)
        more = plugin.factors(now)
        assert more[A] > 0.5 > more[B]
        half = plugin.factors(now + 3600)  # everybody's decays alike
        assert half[A] == pytest.approx(more[A])
        low, high = await submit(rig, ADA, urgency=10), await submit(rig, ADA, urgency=16)
        assert priority(rig, high) - priority(rig, low) == 60
        held, urgent = await submit(rig, ADA, urgency=0), await submit(rig, UID, urgency=31)
        assert (priority(rig, held), priority(rig, urgent)) == (0, 4294967295)
        await rig.run(block)
        rig.close()

    simulate(body)


def test_usage_is_charged_once(tmp_path: Path) -> None:
    async def body() -> None:
        rig = rig_of(tmp_path, "fairshare", "half-life = '1000d'")
        for _ in range(3):
            jobid = await submit(rig, ntasks=2)
            rig.clock.advance(10)
            await rig.restart()
            await rig.run(jobid)
        plugin: Any = rig.manager.registry.get("fairshare")
        assert plugin.query()["users"][A]["core_seconds"] == pytest.approx(60, abs=0.01)
        assert [name for name, _ in rig.store.notes("plugin/fairshare")] == [A]
        rig.over()
        rig.close()

    simulate(body)


def test_r44_a_node_that_is_gone_is_bookkeeping_for_a_job_in_its_epilog(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1, 1])
        first, second = await submit(rig), await submit(rig)
        rig.manager.holds.open(second, "epilog", "tidy", {})
        await rig.run(second, node=1)
        await rig.run(first)
        assert rig.job(second).state.name == "CLEANUP" and rig.manager.entries[second].rset is not None
        await rig.crash()
        rig.engine.sizes = [1]
        del rig.engine.helpers[1], rig.engine.connected[1]
        rig.boot()
        await rig.quiet()
        rig.manager.works.end(second, "epilog/tidy", 0, "")
        await rig.quiet()
        assert rig.story(second)[-3:] == ["epilog-finish(tidy)", "free", "clean"]
        assert not [event for event in rig.story(second) if event.startswith("exception")]
        await rig.run(await submit(rig))
        rig.over()
        rig.close()

    simulate(body)
