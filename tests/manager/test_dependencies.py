"""Dependencies on other jobs: the whole table, live, at submission, and over a crash."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from rig import UID, Rig, simulate, spec

from leveret.core import jobid as jobids
from leveret.core.job import Job
from leveret.core.verdict import CANCELED, COMPLETED, FAILED, TIMEOUT
from leveret.errors import EventError, InvalidError
from leveret.plugins.hooks import Answers, PartHold, Plugin

SCHEMES = ["afterok", "afternotok", "afterany", "afterexcept", "afterstart"]
DESCRIPTION = {
    "afterok": "after-success",
    "afternotok": "after-failure",
    "afterany": "after-finish",
    "afterexcept": "after-except",
    "afterstart": "after-start",
}
#: how the antecedent ends → its verdict, and whether each of SCHEMES is satisfied by it
TABLE: dict[str, tuple[str, str]] = {
    "ok": (COMPLETED, "y n y n y"),
    "fail": (FAILED, "n y y n y"),
    "timeout": (TIMEOUT, "n y y y y"),
    "canceled pending": (CANCELED, "n y y y n"),
    "canceled running": (CANCELED, "n y y y y"),
    "data failed": (FAILED, "n y y y y"),
}
CASES = [
    (ending, scheme, cell == "y")
    for ending, (_, row) in TABLE.items()
    for scheme, cell in zip(SCHEMES, row.split(), strict=True)
]


class Data(Plugin):
    """A user part after the tasks."""

    def state_cleanup(self, job: Job) -> Answers:
        return PartHold("data") if self.manager.jobspec(job.id)["attributes"].get("user") else None


async def end(rig: Rig, jobid: int, ending: str) -> None:
    if ending == "canceled pending":
        await rig.cancel(jobid)
        return
    rig.engine.take("start", f"job/{jobid}")
    rig.say(jobid, "start")
    await rig.quiet()
    if ending == "canceled running":
        await rig.cancel(jobid)
        rig.engine.take("signal", f"job/{jobid}")
    if ending == "timeout":
        rig.say(jobid, "timeout")
    status = {"ok": 0, "data failed": 0, "fail": 256, "timeout": 36352, "canceled running": 36608}[ending]
    rig.say(jobid, "exit", status=status)
    await rig.quiet()
    if ending == "data failed":
        assert not rig.job(jobid).done
        plugin = rig.manager.registry.get("data")
        assert plugin is not None
        plugin.manager.finish(jobid, "data", 256)
        await rig.quiet()


async def antecedent(rig: Rig, ending: str) -> int:
    """A job that is going to end like that."""
    return await rig.submit(urgency=0 if "pending" in ending else 16, **({"data": 1} if "data" in ending else {}))


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("ending", "scheme", "satisfied"), CASES)
def test_r54_the_table(tmp_path: Path, ending: str, scheme: str, satisfied: bool, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Data], sizes=[4])
        first = await antecedent(rig, ending)
        second = await rig.submit(dependencies=[{"scheme": scheme, "value": jobids.encode(first)}])
        name = f"{DESCRIPTION[scheme]}={jobids.encode(first)}"
        assert rig.story(second) == ["submit", f"dependency-add({name})", "validate"]
        if crash:
            await rig.restart()
        await end(rig, first, ending)
        assert rig.verdict(first).result == TABLE[ending][0]
        if satisfied:
            assert rig.story(second)[3:6] == [f"dependency-remove({name})", "depend", "priority"]
            await rig.run(second)
            assert rig.verdict(second).result == COMPLETED
        else:
            assert rig.story(second)[3:] == ["exception(dependency)", "clean"]
            why = "job never started" if ending == "canceled pending" else "can never be satisfied"
            fatal = rig.job(second).fatal
            assert fatal is not None and fatal.note == f"dependency {name} {why}"
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize(("ending", "scheme", "satisfied"), CASES)
def test_an_antecedent_that_is_over_already(tmp_path: Path, ending: str, scheme: str, satisfied: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Data], sizes=[4])
        first = await antecedent(rig, ending)
        await end(rig, first, ending)
        dependencies = [{"scheme": scheme, "value": str(first)}]
        for crash in (False, True):
            if crash:
                await rig.restart()
            if satisfied:
                second = await rig.submit(dependencies=dependencies)
                name = f"{DESCRIPTION[scheme]}={jobids.encode(first)}"
                assert rig.story(second)[:4] == [
                    "submit", f"dependency-add({name})", f"dependency-remove({name})", "validate",
                ]  # fmt: skip
                await rig.run(second)
            else:
                with pytest.raises(InvalidError, match=f"dependency: {scheme}: job"):
                    rig.manager.submit(spec(dependencies=dependencies), 16, [], UID)
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_ends_that_nobody_saw_are_answered_after_a_crash(tmp_path: Path) -> None:
    """The antecedent's end is on disk, and the daemon died before it told the dependent."""

    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])
        first = await rig.submit()
        ok, notok, start = [
            await rig.submit(dependencies=[{"scheme": scheme, "value": str(first)}])
            for scheme in ("afterok", "afternotok", "afterstart")
        ]
        plugin = rig.manager.registry.get("dependencies")
        assert plugin is not None
        plugin._waiting.clear()  # type: ignore[attr-defined]
        rig.engine.take("start")
        rig.say(first, "start")
        rig.say(first, "exit", status=0)
        await rig.quiet()
        assert all(rig.job(i).state.name == "DEPEND" for i in (ok, notok, start))
        await rig.restart()
        for jobid in (ok, start):
            await rig.run(jobid)
        assert rig.verdict(notok).result == FAILED
        rig.over()
        rig.close()

    simulate(body)


def test_a_chain_falls_as_in_the_goldens(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        first = await rig.submit(urgency=0)
        second = await rig.submit(dependencies=[{"scheme": "afterok", "value": str(first)}])
        third = await rig.submit(dependencies=[{"scheme": "afterok", "value": str(second)}])
        await rig.cancel(first)
        for jobid, before in ((second, first), (third, second)):
            fatal = rig.job(jobid).fatal
            assert fatal is not None
            assert fatal.note == f"dependency after-success={jobids.encode(before)} job never started"
        rig.over()
        rig.close()

    simulate(body)


def test_several_dependencies_on_one_job_and_on_several(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])
        a, b = await rig.submit(), await rig.submit()
        last = await rig.submit(
            dependencies=[
                {"scheme": "afterstart", "value": str(a)},
                {"scheme": "afterok", "value": str(a)},
                {"scheme": "afterany", "value": str(b)},
            ]
        )
        await rig.run(b, 256)
        rig.engine.take("start", f"job/{a}")
        rig.say(a, "start")
        await rig.quiet()
        assert [h.name for h in rig.job(last).blocked("depend")] == [f"after-success={jobids.encode(a)}"]
        rig.say(a, "exit", status=0)
        await rig.quiet()
        await rig.run(last)
        assert rig.verdict(last).result == COMPLETED
        rig.over()
        rig.close()

    simulate(body)


def test_a_dependent_that_is_canceled_is_not_raised_from_the_dead(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        first = await rig.submit()
        second = await rig.submit(dependencies=[{"scheme": "afternotok", "value": str(first)}])
        await rig.cancel(second)
        assert rig.story(second)[-2:] == ["exception(cancel)", "clean"]
        await rig.run(first)
        assert rig.verdict(second).result == CANCELED
        assert rig.log.take_errors() == []
        rig.over()
        rig.close()

    simulate(body)


def test_the_old_name_of_afterstart_is_taken_with_a_notice(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])
        first = await rig.submit()
        second = await rig.submit(dependencies=[{"scheme": "after", "value": str(first)}])
        name = f"after-start={jobids.encode(first)}"
        assert rig.story(second) == ["submit", "exception(dependency)", f"dependency-add({name})", "validate"]
        assert rig.stored(second)[1].get("severity") == 3
        await rig.run(first)
        await rig.run(second)
        assert rig.verdict(second).result == COMPLETED
        rig.over()
        rig.close()

    simulate(body)


def test_the_same_dependency_twice(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        first = await rig.submit()
        twice = [
            {"scheme": "afterok", "value": str(first)},
            {"scheme": "afterok", "value": jobids.encode(first, "hex")},
        ]
        second = await rig.submit(dependencies=twice)
        await rig.run(first)
        await rig.run(second)
        assert rig.log.take_errors() == []
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_r55_afterfinish_waits_for_the_tasks_only(tmp_path: Path, crash: bool) -> None:
    """R55: `afterfinish` is the opt-in; `afterok` includes the antecedent's data."""

    async def body() -> None:
        rig = Rig(tmp_path, [Data], sizes=[4])
        first = await rig.submit(data=1)
        early, usual = [
            await rig.submit(dependencies=[{"scheme": scheme, "value": str(first)}])
            for scheme in ("afterfinish", "afterok")
        ]
        name = f"after-tasks={jobids.encode(first)}"
        rig.engine.take("start")
        rig.say(first, "start")
        await rig.quiet()
        assert rig.story(early) == ["submit", f"dependency-add({name})", "validate"]
        rig.say(first, "exit", status=0)
        await rig.quiet()
        assert not rig.job(first).done
        if crash:
            await rig.restart()
        await rig.run(early)
        late = await rig.submit(dependencies=[{"scheme": "afterfinish", "value": str(first)}])
        assert rig.story(late)[1:3] == [f"dependency-add({name})", f"dependency-remove({name})"]
        await rig.run(late)
        assert rig.story(usual)[-1] == "validate"
        plugin = rig.manager.registry.get("data")
        assert plugin is not None
        plugin.manager.finish(first, "data", 0)
        await rig.quiet()
        await rig.run(usual)
        assert {rig.verdict(i).result for i in (early, late, usual)} == {COMPLETED}
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("ending", TABLE)
def test_afterfinish_is_satisfied_by_every_end(tmp_path: Path, ending: str) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, [Data], sizes=[4])
        first = await antecedent(rig, ending)
        second = await rig.submit(dependencies=[{"scheme": "afterfinish", "value": str(first)}])
        await end(rig, first, ending)
        await rig.run(second)
        third = await rig.submit(dependencies=[{"scheme": "afterfinish", "value": str(first)}])
        await rig.run(third)
        rig.over()
        rig.close()

    simulate(body)


def test_r53_the_outcome_of_a_purged_job_is_known(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])
        good, bad = await rig.submit(), await rig.submit()
        await rig.run(good)
        await rig.run(bad, 256)
        rig.manager.purges.purge([good, bad])
        await rig.quiet()
        for _ in range(2):
            await rig.run(await rig.submit(dependencies=[{"scheme": "afterok", "value": str(good)}]))
            with pytest.raises(InvalidError, match="failed or was canceled"):
                await rig.submit(dependencies=[{"scheme": "afterok", "value": str(bad)}])
            await rig.restart()
        rig.over()
        rig.close()

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_r56_a_chain_of_1000_falls_in_one_turn(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])
        head = await rig.submit()
        chain = [head]
        for _ in range(1000):
            dependencies = [{"scheme": "afterok", "value": str(chain[-1])}]
            chain.append(rig.manager.submit(spec(dependencies=dependencies), 16, [], UID)[0])
        await rig.quiet()
        if crash:
            await rig.restart()
        commits = rig.store.commits
        await rig.run(head, 256)
        assert rig.store.commits - commits <= 4  # the head's records, and the fall of all the others
        for before, jobid in pairwise(chain):
            fatal = rig.job(jobid).fatal
            assert fatal is not None and jobids.encode(before) in fatal.note
            assert rig.job(jobid).done
        rig.engine.drained()
        rig.over()
        rig.close()

    simulate(body)


def test_r56_unknown_ids_and_cycles_are_refused(tmp_path: Path) -> None:
    """A job can only name earlier ones, so there is no cycle to find."""

    async def body() -> None:
        rig = Rig(tmp_path)
        first = await rig.submit(urgency=0)
        for value in ("999999", str(first + (1 << 24)), jobids.encode(first + 1)):
            with pytest.raises(InvalidError, match="job not found"):
                await rig.submit(dependencies=[{"scheme": "afterok", "value": value}])
        with pytest.raises(InvalidError, match=r"update of attributes.system.dependencies not supported"):
            rig.manager.updates.update(first, {"dependencies": [{"scheme": "afterok", "value": str(first)}]}, UID)
        assert list(rig.manager.entries) == [first]
        rig.close()

    simulate(body)


def test_a_closed_dependency_cannot_be_added_again(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        first = await rig.submit(urgency=0)
        jobid = await rig.submit(dependencies=[{"scheme": "afterok", "value": str(first)}])
        hold = rig.job(jobid).blocked("depend")[0].name
        rig.manager.holds.open(jobid, "dependency", "mine", {})
        await rig.quiet()
        rig.manager.works.end(jobid, rig.manager.find_hold(jobid, "dependency", "mine"), 0, "")
        await rig.quiet()
        await rig.restart()
        before = rig.job(jobid)
        with pytest.raises(EventError, match="was closed already"):
            rig.manager.holds.open(jobid, "dependency", "mine", {})
        assert rig.job(jobid) == before and [h.name for h in before.blocked("depend")] == [hold]
        rig.close()

    simulate(body)
