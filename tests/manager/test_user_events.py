"""Events, memos and purges that users ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import UID, Rig, simulate, spec

from leveret.config import Config, JobManager
from leveret.core import jobid as jobids
from leveret.core.event import CONTEXTS, NO_CONTEXT
from leveret.core.job import CLOSERS
from leveret.core.transitions import LEGAL
from leveret.errors import ConflictError, InvalidError, NotFoundError
from leveret.manager import userevents
from leveret.manager.queries import Queries


def record(rig: Rig, jobid: int) -> dict[str, Any]:
    found = Queries(rig.manager)._record(jobid)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "name", sorted({*CONTEXTS, *NO_CONTEXT, *LEGAL, "jobspec-update", "memo", "give-up"} - set(CLOSERS))
)
def test_an_event_that_would_drive_the_job_is_refused(tmp_path: Path, name: str) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(urgency=0)
        before = rig.story(jobid)
        with pytest.raises(InvalidError, match="cannot be posted by hand"):
            userevents.post_event(rig.manager, jobid, name, {}, UID)
        await rig.quiet()
        assert rig.story(jobid) == before
        rig.close()

    simulate(body)


def test_any_other_event_is_posted_and_moves_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(urgency=0)
        state = rig.job(jobid).state
        for name in ("checkpoint", "bad name", "debug.x"):
            userevents.post_event(rig.manager, jobid, name, {"step": 7}, UID)
        for bad in ("", "x" * 65, "a\nb"):
            with pytest.raises(InvalidError, match="name is"):
                userevents.post_event(rig.manager, jobid, bad, None, UID)
        await rig.quiet()
        await rig.restart()
        assert rig.story(jobid)[4:] == ["checkpoint", "bad name", "debug.x", "flux-restart", "priority"]
        assert rig.job(jobid).state is state
        await rig.cancel(jobid)
        with pytest.raises(ConflictError, match="inactive"):
            userevents.post_event(rig.manager, jobid, "late", None, UID)
        with pytest.raises(NotFoundError):
            userevents.post_event(rig.manager, 12345, "x", None, UID)
        rig.close()

    simulate(body)


def test_memos_merge_in_order_and_volatile_ones_are_lost_at_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(urgency=0)
        userevents.memo(rig.manager, jobid, {"a": 1, "deep": {"x": 1}}, False)
        userevents.memo(rig.manager, jobid, {"v": 1}, True)
        userevents.memo(rig.manager, jobid, {"a": None, "deep": {"y": 2}}, False)
        await rig.quiet()
        assert record(rig, jobid)["annotations"]["user"] == {"deep": {"x": 1, "y": 2}, "v": 1}
        await rig.restart()
        assert record(rig, jobid)["annotations"]["user"] == {"deep": {"x": 1, "y": 2}}
        with pytest.raises(InvalidError, match="empty"):
            userevents.memo(rig.manager, jobid, {}, False)
        rig.close()

    simulate(body)


def test_the_debug_flag_logs_requests(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit(flags=["debug"])
        assert rig.story(jobid)[3:6] == ["priority", "debug.alloc-request", "alloc"]
        assert "debug.start-request" in rig.story(jobid)
        rig.close()

    simulate(body)


# Purging


def test_a_purge_leaves_the_verdict_and_nothing_else(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])
        good, bad = await rig.submit(), await rig.submit()
        await rig.run(good)
        await rig.run(bad, status=256)
        active = await rig.submit(urgency=0)
        purges, store = rig.manager.purges, rig.manager.store
        with pytest.raises(ConflictError, match="active"):
            purges.check([good, active])
        with pytest.raises(NotFoundError):
            purges.check([12345])
        with rig.store_turn() as turn:
            turn.batch.guest(good, "guest.output", 100, 1, True, b'{"node":0,"file":"aa/x.out","start":0,"end":9}')
        await rig.quiet()
        purges.check([good, bad])
        purges.purge([good, bad])
        await rig.quiet()
        assert rig.engine.take("remove_output", node=0)[2] == "aa/x.out"
        assert store.leftovers() == []
        for jobid in (good, bad):
            assert rig.manager.outcome(jobid) is None
            assert list(store.all_events(jobid)) == [] and store.kv_keys(jobid) == [] and store.job_row(jobid) is None
        assert store.inactive_count() == 0 and store.purged_count() == 2
        await rig.restart()
        # dependencies are decided as before
        rig.manager.submit(spec(dependencies=[{"scheme": "afterok", "value": jobids.encode(good)}]), 0, [], UID)
        with pytest.raises(InvalidError, match="failed or was canceled"):
            rig.manager.submit(spec(dependencies=[{"scheme": "afterok", "value": jobids.encode(bad)}]), 0, [], UID)
        rig.close()

    simulate(body)


def test_the_id_of_a_purged_job_is_not_given_again(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        jobid = await rig.submit()
        await rig.run(jobid)
        rig.manager.purges.purge([jobid])
        await rig.quiet()
        await rig.restart()
        rig.clock.now -= 50  # a clock that was set back
        assert await rig.submit(urgency=0) > jobid
        rig.close()

    simulate(body)


def test_files_are_unlinked_by_the_next_daemon_when_one_dies_before_it(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path)
        with rig.store_turn() as turn:
            turn.op("INSERT INTO leftover VALUES(0, 'bb/y.out')")
        await rig.quiet()
        await rig.restart()
        assert rig.engine.take("remove_output", node=0)[2] == "bb/y.out"
        assert rig.manager.store.leftovers() == []
        rig.close()

    simulate(body)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({"inactive_num_limit": 2}, 2), ({"inactive_age_limit": "1h"}, 0), ({"inactive_age_limit": "1d"}, 5)],
)
def test_the_limits(tmp_path: Path, limits: dict[str, Any], kept: int) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, config=Config(job_manager=JobManager(**limits)), sizes=[8])
        ids = [await rig.submit() for _ in range(5)]
        for jobid in ids:
            await rig.run(jobid)
        rig.clock.now += 7200
        rig.manager.purges._look()
        await rig.quiet()
        assert rig.manager.store.inactive_count() == kept
        # those that ended last stay
        assert [jobid for jobid in ids if rig.manager.outcome(jobid) is not None] == ids[len(ids) - kept :]
        rig.close()

    simulate(body)


# One of a name at a time


def test_singleton(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[4])

        async def submit(name: str, single: bool) -> int:
            jobspec = spec(dependencies=[{"scheme": "singleton", "value": ""}] if single else None)
            if name:
                jobspec["attributes"]["system"]["job"] = {"name": name}
            jobid, _ = rig.manager.submit(jobspec, 16, [], UID)
            await rig.quiet()
            return jobid

        with pytest.raises(InvalidError, match="require a job name"):
            await submit("", True)
        first, other = await submit("s", False), await submit("t", True)
        second, third = await submit("s", True), await submit("s", True)
        assert "dependency-add(singleton)" not in rig.story(other)
        assert rig.story(second) == rig.story(third) == ["submit", "dependency-add(singleton)", "validate"]
        await rig.restart()
        await rig.run(first)
        assert "dependency-remove(singleton)" in rig.story(second)
        assert "dependency-remove(singleton)" not in rig.story(third)
        await rig.run(second)
        assert "dependency-remove(singleton)" in rig.story(third)
        rig.close()

    simulate(body)
