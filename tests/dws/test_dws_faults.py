"""The adapter among faults: of the way (cut, 5xx, 410, dropped watches), of the server (restarts), of storage, and its own end.

`LEVERET_FAULT_SCHEDULES=300` runs more random schedules than CI does; a seed that failed is run alone by
`LEVERET_FAULT_SEED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from driving import ORDER, Adapter, WorkflowError, cluster, on_standin

from leveret.storage.port import ERROR, PRE_RUN, PROPOSAL, SETUP, TEARDOWN, TRANSIENT, Request

pytestmark = on_standin

SEEDS = (
    [int(os.environ["LEVERET_FAULT_SEED"])]
    if "LEVERET_FAULT_SEED" in os.environ
    else range(int(os.environ.get("LEVERET_FAULT_SCHEDULES", "20")))
)
XFS = "#DW jobdw type=xfs capacity=1GiB name=p1"


def run(check: Callable[..., Awaitable[None]], *args: Any) -> None:
    asyncio.run(check(*args))


class Oracle:
    """Looks at the server's store, not at the adapter: what was made, and in which order states were desired."""

    def __init__(self, standin: Any) -> None:
        self.made: Counter[str] = Counter()
        self.desired: dict[str, list[str]] = {}
        self.filled: Counter[tuple[str, str]] = Counter()
        standin.store.listeners.append(self._look)
        self.standin = standin

    def _look(self, kind: Any, change: str, one: dict[str, Any]) -> None:
        name = one["metadata"]["name"]
        if kind.plural != "workflows" or change == "DELETED":
            return
        self.made[name] += change == "ADDED"
        states = self.desired.setdefault(name, [])
        if not states or states[-1] != one["spec"]["desiredState"]:
            states.append(one["spec"]["desiredState"])

    def check(self, name: str, *, whole: bool) -> None:
        assert self.made[name] == 1, f"{name} was made {self.made[name]} times"
        if whole:
            assert self.desired[name] == list(ORDER)
        else:
            steps = self.desired[name]
            assert steps[-1] == TEARDOWN and steps[:-1] == list(ORDER[: len(steps) - 1])


async def see_through(one: Adapter, job: int, directives: list[str], hosts: list[str], notes: dict[int, str]) -> None:
    """One job from wherever it is to its end; `notes` is what a manager has on disk."""
    await one.until(lambda: one.dws.synced)
    if job not in notes:
        notes[job] = "ok"
    if one.dws.view(job) is None and notes[job] != "removing":
        await one.dws.create(Request(job, 1000, 1000, tuple(directives), len(hosts)))
    if notes[job] != "removing":
        await one.until(lambda: one.dws.view(job), job)
        try:
            await one.go_on(job, hosts)
        except WorkflowError as error:
            notes[-job] = str(error)
            await one.dws.advance(job, TEARDOWN)
            await one.reach(job, TEARDOWN)
        notes[job] = "removing"
    await one.remove(job)
    notes[job] = "gone"


JOBS = {
    1: ([XFS], ["compute-0", "compute-1"], ""),
    2: (["#DW jobdw type=gfs2 capacity=1GiB name=p1", "#DW copy_in source=/lus/a destination=$DW_JOB_p1"], ["compute-2"], ""),
    3: (["#DW jobdw type=lustre capacity=10GiB name=p1", "#DW copy_out source=$DW_JOB_p1 destination=/lus/b"], ["compute-1", "compute-3"], ""),
    4: ([XFS, "#DW copy_in source=/lus/gone destination=$DW_JOB_p1"], ["compute-3"], "data movement operation failed"),
    5: (["#DW persistentdw name=nope"], ["compute-0"], "PersistentStorageInstance 'nope' not found"),
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_schedule(seed: int) -> None:
    async def check() -> None:
        dice = random.Random(seed)
        rabbits = {"rabbit-0": ("compute-0", "compute-1"), "rabbit-1": ("compute-2", "compute-3")}
        async with cluster(rabbits=rabbits, pace_s=dice.choice((0.0, 0.002))) as there:
            standin, notes = there.standin, {}
            oracle = Oracle(standin)
            standin.driver.missing_paths.add("/lus/gone")
            standin.faults.seeded(seed, dice.choice((0.05, 0.15, 0.3)))
            trouble = asyncio.create_task(_trouble(standin, dice))
            crashes = dice.randrange(4)
            while {notes.get(job) for job in JOBS} != {"gone"}:
                async with there.adapter(seed=seed, in_flight_max=4) as one:
                    left = [job for job in JOBS if notes.get(job) != "gone"]
                    tasks = [asyncio.create_task(see_through(one, job, *JOBS[job][:2], notes)) for job in left]
                    patience = 0.05 + dice.random() / 2 if crashes else None
                    done, pending = await asyncio.wait(tasks, timeout=patience)
                    crashes -= crashes > 0
                    for task in pending:
                        task.cancel()
                    await asyncio.gather(*pending, return_exceptions=True)
                    for task in done:
                        task.result()
            trouble.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await trouble
            for job, (_, _, error) in JOBS.items():
                assert error in notes.get(-job, "") and bool(error) == (-job in notes)
                oracle.check(f"fluxjob-{job}", whole=not error)
            assert standin.leftovers() == [] and standin.driver.used() == {}

    run(check)


async def _trouble(standin: Any, dice: random.Random) -> None:
    """Now and then the server restarts, forgets its history, or storage is in a bad way for a while."""
    for _ in range(6):
        await asyncio.sleep(dice.random() / 5)
        what = dice.choice(("restart", "compact", "transient", "offline", "stuck"))
        if what == "restart":
            await standin.restart(dice.random() / 20)
        elif what == "compact":
            standin.store.compact()
        elif what == "transient":
            standin.trouble(dice.choice(ORDER), "TransientCondition")
            await asyncio.sleep(dice.random() / 10)
            standin.calm()
        elif what == "offline":
            standin.rabbit("rabbit-0", status="Offline")
            await asyncio.sleep(dice.random() / 10)
            standin.rabbit("rabbit-0", status="Ready")
        else:
            standin.driver.stuck_nodes.add("compute-0")
            await asyncio.sleep(dice.random() / 10)
            standin.calm()


# -- one fault at a time, where it hurts most ------------------------------------------------------


@pytest.mark.parametrize("number", range(11))
@pytest.mark.parametrize("action", ["cut-before", "cut-after", "status"])
def test_each_write_of_a_life_may_fail_once(number: int, action: str) -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            oracle = Oracle(there.standin)
            writes = iter(range(1000))
            there.standin.faults._random = lambda request: _only(request, writes, number, action)
            await one.live(7, [XFS], ["compute-0"])
            await one.remove(7)
            assert len(there.standin.faults.met) == 1
            oracle.check("fluxjob-7", whole=True)
            assert there.standin.leftovers() == []

    run(check)


def _only(request: Any, writes: Any, number: int, action: str) -> Any:
    from standin.faults import Fault

    if request.method == "GET" or next(writes) != number:
        return None
    return Fault(action, code=500)


def test_what_went_while_nobody_watched_is_told() -> None:
    """A deletion that falls into the gap between two watches, whose history is gone (410)."""

    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            await one.live(8, [XFS], ["compute-0"], PROPOSAL)
            standin = there.standin
            refused = standin.fault("status", method="GET", resource="workflows", times=0)  # nobody can list or watch
            await standin.restart()
            await one.until(lambda: not one.dws.synced)
            await one.until(lambda: one.dws.trouble)
            workflows = standin.driver.kind("workflows")
            standin.store.delete(workflows, "default", "fluxjob-8")
            standin.store.patch(workflows, "default", "fluxjob-8", {"metadata": {"finalizers": None}})
            standin.store.compact()
            assert one.dws.view(8) is not None
            standin.faults.planned.remove(refused)
            await one.until(lambda: one.dws.view(8) is None)
            await one.until(lambda: one.dws.synced and not one.dws.trouble)

    run(check)


@pytest.mark.parametrize("watching", [True, False])
def test_a_workflow_that_is_deleted_by_hand_goes(watching: bool) -> None:
    """Also one whose removal was cut short by our own end, between the deletion and the finalizer."""

    async def check() -> None:
        async with cluster() as there:
            workflows = there.standin.driver.kind("workflows")
            async with there.adapter() as one:
                await one.live(8, [XFS], ["compute-0"], PRE_RUN)
                if watching:
                    there.standin.store.delete(workflows, "default", "fluxjob-8")
                    await one.until(lambda: one.dws.view(8) is None)
            if not watching:
                there.standin.store.delete(workflows, "default", "fluxjob-8")
                async with there.adapter() as one:
                    await one.until(lambda: one.dws.view(8) is None)
            assert there.standin.leftovers() == [] and there.standin.driver.used() == {}

    run(check)


def test_a_server_that_is_not_there_at_the_start_is_waited_for() -> None:
    async def check() -> None:
        async with cluster() as there:
            await there.standin.stop()
            async with there.adapter() as one:
                assert not one.dws.synced and one.dws.trouble and list(one.dws.jobs()) == []
                creating = asyncio.create_task(one.live(9, [XFS], ["compute-0"]))
                await asyncio.sleep(0.05)
                assert not creating.done()
                await there.standin.start()
                await creating
                await one.until(lambda: one.dws.synced and not one.dws.trouble)
                await one.remove(9)

    run(check)


def test_an_error_ends_in_teardown_and_a_transient_condition_is_seen() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            there.standin.trouble("Setup", "TransientCondition", "busy")
            living = asyncio.create_task(one.live(1, [XFS], ["compute-0"]))
            view = await one.until(lambda: (view := one.dws.view(1)) and view.status == TRANSIENT and view)
            assert view.message == "DW Directive 0: busy" and view.state == SETUP
            there.standin.trouble("Setup", "Error", "Internal error: broken")
            with pytest.raises(WorkflowError, match="DW Directive 0: Internal error: broken"):
                await living
            assert one.dws.view(1).status == ERROR
            there.standin.calm()
            await one.end(1)
            assert there.standin.leftovers() == []

    run(check)


def test_a_mount_that_never_comes_is_tolerated_or_disabled() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            hosts = ["compute-0", "compute-1"]
            there.standin.driver.stuck_nodes.add("compute-1")
            for job in (1, 2):
                await one.live(job, [XFS], hosts, "DataIn")
                await one.dws.advance(job, PRE_RUN)
                await one.until(lambda job=job: one.dws.view(job).mounts == {"compute-0": True, "compute-1": False})
                assert not one.dws.view(job).ready
                if job == 1:
                    await one.dws.force_ready(job)
                else:
                    await one.dws.set_nodes({"compute-1": False})
                await one.reach(job, PRE_RUN)
                assert one.dws.view(job).mounts == {"compute-0": True, "compute-1": False}
            await one.end(2)
            await one.end(1)  # the node is disabled: its unmount is not waited for either
            await one.dws.set_nodes({"compute-1": True})
            assert there.standin.objects("systemstatuses")["default"]["data"]["nodes"] == {"compute-1": "Enabled"}

    run(check)


def test_a_rabbit_that_goes_away() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            before = one.health
            there.standin.rabbit("rabbit-0", status="Offline")
            await one.until(lambda: one.health > before and one.dws.rabbits()[0].status == "Offline")
            living = asyncio.create_task(one.live(1, [XFS], ["compute-0"], SETUP))
            await one.until(lambda: (view := one.dws.view(1)) and view.unallocated == ("rabbit-0",))
            there.standin.rabbit("rabbit-0", status="Ready")
            await living
            there.standin.compute("rabbit-0", "compute-1", "Offline")
            await one.until(lambda: one.dws.rabbits()[0].computes == {"compute-0": "Ready", "compute-1": "Offline"})
            await one.until(lambda: one.dws.rabbits()[0].allocated_bytes > 0)
            # what does not give its storage back is taken out of service
            there.standin.rabbit("rabbit-0", status="Offline")
            await one.dws.abort(1)
            workflow = there.standin.objects("workflows")["fluxjob-1"]
            assert workflow["spec"]["desiredState"] == TEARDOWN and workflow["spec"]["hurry"] is True
            storage = there.standin.objects("storages")["rabbit-0"]
            assert (
                storage["spec"]["state"] == "Disabled"
                and "fluxjob-1" in storage["metadata"]["annotations"]["disable_reason"]
            )
            there.standin.rabbit("rabbit-0", status="Ready")
            await one.reach(1, TEARDOWN)
            await one.remove(1)

    run(check)


def test_what_a_site_does_not_allow_is_a_feature_less() -> None:
    async def check() -> None:
        async with cluster() as there:
            for method, resource in (
                ("PATCH", "systemstatuses"),
                ("PATCH", "storages"),
                ("GET", "nnfdatamovements"),
                ("GET", "secrets"),
            ):
                there.standin.fault("denied", method=method, resource=resource, times=0)
            async with there.adapter() as one:
                assert one.dws.synced and one.dws.trouble == ""
                await one.dws.set_nodes({"compute-0": False})
                directive = "#DW jobdw type=gfs2 capacity=1GiB name=p1 requires=copy-offload"
                view = await one.live(1, [directive], ["compute-0"], PRE_RUN)
                assert view.token == "" and await one.dws.movements(1) == []
                await one.dws.abort(1)
                await one.reach(1, TEARDOWN)
                await one.remove(1)

    run(check)


def test_an_older_version_is_spoken_where_it_is_served() -> None:
    async def check() -> None:
        async with cluster() as there:
            async with there.adapter(api_version="v1alpha6") as one:
                await one.live(1, [XFS], ["compute-0"])
                await one.remove(1)
            asked = [request for request in there.standin.log.entries if request.resource]
            assert {request.version for request in asked if request.group.startswith("data")} == {"v1alpha6"}
            assert {request.version for request in asked if request.group.startswith("nnf")} == {"v1alpha11"}

    run(check)


def test_a_flood_is_not_let_through() -> None:
    """Many jobs, a slow server, a restart in between: never more than so many requests at a time, and none twice."""
    jobs = int(os.environ.get("LEVERET_FLOOD_JOBS", "60"))
    delay_s = float(os.environ.get("LEVERET_FLOOD_DELAY", "0.02"))

    async def check() -> None:
        async with cluster(seconds=30 + jobs * delay_s * 12, capacity_bytes=2**60) as there:
            oracle = Oracle(there.standin)
            there.standin.faults.delay_s = delay_s
            hosts = ["compute-0", "compute-1"]
            async with there.adapter(in_flight_max=16) as one:
                await asyncio.gather(*(one.live(job, [XFS], hosts, SETUP) for job in range(1, jobs + 1)))
            began = len(there.standin.log.entries)
            async with there.adapter(in_flight_max=16) as one:
                # a restart finds everything by lists: one of each kind, a page of them at a time, and no request a job
                assert len(one.dws.jobs()) == jobs
                found = [
                    request
                    for request in there.standin.log.entries[began:]
                    if request.method == "GET" and not request.watch
                ]
                kinds = ("workflows", "directivebreakdowns", "servers", "computes", "storages", "systemconfigurations",
                         "clientmounts", "nnfdatamovements", "dwdirectiverules")  # fmt: skip
                lists = Counter(request.resource for request in found if request.resource)
                assert set(lists) == set(kinds) and max(lists.values()) <= -(-jobs // 500)
                assert all(not request.name for request in found)
                await asyncio.gather(*(one.go_on(job, hosts) for job in range(1, jobs + 1)))
                await asyncio.gather(*(one.remove(job) for job in range(1, jobs + 1)))
            assert there.standin.log.in_flight_max <= 16
            writes = [request for request in there.standin.log.entries if request.method != "GET"]
            assert len(writes) == jobs * 11 and all(request.code in (200, 201) for request in writes)
            for job in range(1, jobs + 1):
                oracle.check(f"fluxjob-{job}", whole=True)
            assert there.standin.leftovers() == []

    run(check)
