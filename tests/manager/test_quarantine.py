"""Jobs whose records are damaged are put aside: the others go on, and nothing that was theirs is given away too early."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from rig import Rig, simulate

from leveret.core.jobrecord import check_record
from leveret.errors import ConflictError, NotFoundError
from leveret.manager.export import export
from leveret.manager.queries import Queries


def damage(path: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    """To the database of a daemon that is dead."""
    db = sqlite3.connect(path / "leveret.db")
    for sql, args in statements:
        assert db.execute(sql, args).rowcount > 0, sql
    db.commit()
    db.close()


#: what can happen to the row of a job that runs → part of what is said about it
DAMAGES: dict[str, tuple[str, str]] = {
    "garbage": ("UPDATE event SET line=CAST('not json' AS BLOB) WHERE job=? AND n=2", "event 2 of the eventlog"),
    "torn": ("UPDATE event SET line=CAST(substr(line, 1, 40) AS BLOB) WHERE job=? AND n=5", "event 5 of the eventlog"),
    "not text": ("UPDATE event SET line=x'ff00ff' WHERE job=? AND n=1", "event 1 of the eventlog"),
    "gap": ("DELETE FROM event WHERE job=? AND n=3", "event 3 is missing"),
    "no log": ("DELETE FROM event WHERE job=?", "does not begin with `submit`"),
    "no jobspec": ("DELETE FROM job WHERE id=?", "jobspec is missing"),
    "jobspec": ("UPDATE job SET jobspec=x'7b' WHERE id=?", "jobspec cannot be read"),
    "R": ("UPDATE kv SET value=x'7b7d' WHERE job=? AND key='R'", ""),
    "no R": ("DELETE FROM kv WHERE job=? AND key='R'", "resources (R) are missing"),
    "ask": ("UPDATE kv SET value=x'5b' WHERE job=? AND key LIKE 'ask/%'", "cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_what_it_holds_stays_allocated_until_its_tasks_are_gone(tmp_path: Path, kind: str) -> None:
    sql, said = DAMAGES[kind]

    async def body() -> None:
        rig = Rig(tmp_path, sizes=[2])
        bad = await rig.submit(1)
        rig.engine.take("start", f"job/{bad}")
        rig.say(bad, "start")
        await rig.quiet()
        good = await rig.submit(1)
        await rig.crash()
        damage(tmp_path, (sql, (bad,)))
        rig.boot()
        await rig.quiet()
        (aside,) = rig.manager.quarantine.listing()
        assert aside["id"] == bad and said in aside["why"]
        assert aside["tasks"] == [f"job/{bad}"]
        assert [event for event, _ in rig.log.take_errors()] == ["job quarantined"]
        # a third job finds one core in use by the healthy one, and the other by the quarantined one
        third = await rig.submit(1)
        assert rig.job(third).state.name == "SCHED", "the core of a quarantined job that runs was given away"
        await rig.run(good)
        assert rig.story(good)[-1] == "clean"
        await rig.run(third)
        # its tasks end: what they said is kept, and the core is free for a job that wants both
        rig.say(bad, "output", stream="stdout", rank=0, data="the last words\n")
        await rig.quiet()
        assert rig.manager.quarantine.listing()[0]["resources"] != ""
        wide = await rig.submit(2)
        assert rig.job(wide).state.name == "SCHED"
        rig.say(bad, "exit", status=0)
        await rig.quiet()
        assert f"job/{bad}" not in rig.engine.helpers[0].units, "the helper may forget it"
        listed = rig.manager.quarantine.listing()[0]
        assert (listed["resources"], listed["tasks"]) == ("", [])
        await rig.run(wide)
        assert rig.story(wide)[-1] == "clean"
        lost = b"".join(row[3] for row in rig.store.guest(bad, "guest.lost"))
        assert [json.loads(line)["context"]["k"] for line in lost.splitlines()] == ["output", "exit"]
        assert b"the last words" in lost
        # it is there again after the next start, and until it is removed
        await rig.restart()
        assert [one["id"] for one in rig.manager.quarantine.listing()] == [bad]
        rig.close()

    simulate(body)


def test_a_helper_that_is_gone_leaves_nothing_allocated(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1])
        bad = await rig.submit(1)
        rig.say(bad, "start")
        await rig.quiet()
        await rig.crash()
        rig.engine.lose(0)
        damage(tmp_path, ("UPDATE event SET line=x'78' WHERE job=? AND n=1", (bad,)))
        rig.boot()
        await rig.quiet()
        (aside,) = rig.manager.quarantine.listing()
        assert (aside["resources"], aside["tasks"]) == ("", [])
        rig.engine.calls.clear()
        await rig.run(await rig.submit(1))
        rig.close()

    simulate(body)


def test_a_job_that_gave_its_resources_back_keeps_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1])
        bad = await rig.submit(1)
        rig.manager.holds.open(bad, "part", "p", {"owner": "user", "blocks": [], "uses": "none"})
        await rig.run(bad)
        assert rig.story(bad)[-1] == "free"
        await rig.crash()
        damage(tmp_path, ("UPDATE event SET line=x'78' WHERE job=? AND n=1", (bad,)))
        rig.boot()
        await rig.quiet()
        assert rig.manager.quarantine.listing()[0]["resources"] == ""
        await rig.run(await rig.submit(1))
        rig.close()

    simulate(body)


def test_doors_say_so_and_dependents_wait_until_it_is_removed(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[2])
        bad = await rig.submit(1)
        rig.say(bad, "start")
        await rig.quiet()
        after = [{"scheme": "afterany", "value": str(bad)}]
        dependent = await rig.submit(1, dependencies=after)
        await rig.crash()
        damage(tmp_path, ("UPDATE event SET line=x'78' WHERE job=? AND n=2", (bad,)))
        rig.boot()
        await rig.quiet()
        queries = Queries(rig.manager)

        async def asked(what: Any) -> Any:
            task = asyncio.ensure_future(what)
            await rig.quiet()
            return await task

        for question in (
            lambda: queries.record(bad),
            lambda: queries.key(bad, "eventlog"),
            lambda: queries.events(bad, ["eventlog"], follow=True, status=False, ending=asyncio.Event()),
        ):
            with pytest.raises(ConflictError, match="quarantined: event 2"):
                await asked(question())
        with pytest.raises(ConflictError, match="quarantined"):
            rig.manager.cancel(bad, "", 1000)
        assert [record["id"] for record in await asked(queries.listing())] == [dependent]
        later = await rig.submit(1, dependencies=after)
        assert {rig.job(one).state.name for one in (dependent, later)} == {"DEPEND"}
        # what can be read is exported, what cannot stands there as it is
        record = json.loads(b"".join([piece async for piece in await asked(export(queries, bad))]))
        assert record["quarantined"].startswith("event 2")
        assert record["jobspec"]["tasks"] and record["R"]["execution"]
        assert record["eventlog"][1] == "x" and record["eventlog"][0]["name"] == "submit"
        assert check_record(record)["eventlog"].problems[0].line == 2
        with pytest.raises(ConflictError, match="still run"):
            rig.manager.quarantine.remove(bad)
        assert rig.manager.quarantine.kill(bad) == 1
        rig.engine.take("signal", f"job/{bad}")
        rig.say(bad, "exit", status=15)
        await rig.quiet()
        rig.manager.quarantine.remove(bad)
        await rig.quiet()
        assert rig.manager.quarantine.listing() == []
        with pytest.raises(NotFoundError):
            rig.manager.quarantine.get(bad)
        for one in (dependent, later):
            await rig.run(one)
        assert rig.store.last_id() >= bad and rig.store.purged(bad) == ("FAILED", 1, None, "lost")
        await rig.restart()
        assert rig.manager.quarantine.listing() == [] and rig.manager.entries == {}
        rig.close()

    simulate(body)


def test_a_damaged_environment_is_never_replaced_by_an_empty_one(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1])
        from rig import spec

        jobspec = spec()
        jobspec["attributes"]["system"]["environment"] = {"A": "1"}
        bad, _ = rig.manager.submit(jobspec, 0, [], 1000)
        await rig.quiet()
        good = await rig.submit(1, urgency=0)
        await rig.crash()
        damage(tmp_path, ("DELETE FROM env WHERE hash NOT NULL", ()))
        rig.boot()
        await rig.quiet()
        assert [one["id"] for one in rig.manager.quarantine.listing()] == [bad]
        assert list(rig.manager.entries) == [good]
        rig.close()

    simulate(body)


def test_a_damaged_record_of_an_inactive_job_hides_no_other(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[1])
        jobs = [await rig.submit(1) for _ in range(3)]
        for one in jobs:
            await rig.run(one)
        await rig.crash()
        damage(
            tmp_path,
            ("UPDATE done SET record=x'7b' WHERE id=?", (jobs[1],)),
            ("INSERT INTO resource_event SELECT max(n) + 1, x'78' FROM resource_event", ()),
            ("UPDATE meta SET value='' WHERE key='resource.R'", ()),
            ("INSERT INTO meta VALUES('queue/', '[')", ()),
        )
        rig.boot()
        await rig.quiet()
        queries = Queries(rig.manager)
        assert [record["id"] for record in await queries.listing()] == [jobs[2], jobs[0]]
        with pytest.raises(ConflictError, match="damaged"):
            await queries.record(jobs[1])
        rig.close()

    simulate(body)
