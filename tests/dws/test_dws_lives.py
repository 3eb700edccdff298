"""The adapter drives whole lives: the states in their order, by the requests of the interface and no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from driving import ORDER, WorkflowError, cluster, jobid, on_standin
from standin.semantics import Profile, Site

from leveret.storage.port import COMPLETED, DATA_OUT, DRIVER_WAIT, PRE_RUN, SETUP, TEARDOWN, Request, StorageRefused

GIB = 2**30


def run(check: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(check())


@pytest.mark.parametrize("kind", ["xfs", "gfs2", "raw"])
def test_a_life(kind: str) -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            job, hosts = jobid(), one.hosts()[:2]
            view = await one.live(job, [f"#DW jobdw type={kind} capacity=1GiB name=my-fs"], hosts, PRE_RUN)
            mount = f"/mnt/nnf/{view.uid}-0"
            assert view.env["DW_JOB_my_fs"] == mount and view.env[f"DW_JOB_{kind.upper()}"] == mount
            assert view.computes == tuple(hosts)
            await one.until(lambda: one.dws.view(job).mounts == dict.fromkeys(hosts, True))  # by a watch of its own
            assert set(view.timings) == set(ORDER[:4]) and all(text.endswith("s") for text in view.timings.values())
            await one.until(lambda: sum(one.dws.view(job).allocated.values()) == len(hosts) * (GIB + (300 << 20)))
            view = await one.go_on(job, hosts, TEARDOWN)
            await one.until(lambda: not any(one.dws.view(job).allocated.values()))
            # nothing but the seven states, each begun and reached, in order
            states = [(state, ready) for state, ready, _ in one.seen[job] if state]
            assert states == [(state, ready) for state in ORDER for ready in (False, True)]
            assert {status for _, _, status in one.seen[job]} == {DRIVER_WAIT, COMPLETED}
            await one.remove(job)
            assert job not in one.dws.jobs()

    run(check)


@on_standin
def test_the_requests_of_a_life() -> None:
    """Each thing is asked once; nothing is polled."""

    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            began = len(there.standin.log.entries)
            await one.live(77, ["#DW jobdw type=xfs capacity=1GiB name=p1"], ["compute-0", "compute-1"])
            await one.remove(77)
            asked = [request for request in there.standin.log.entries[began:] if not request.watch]
            assert [request.what for request in asked] == [
                "create workflows",
                "patch servers/fluxjob-77-0",
                "patch computes/fluxjob-77",
                *["patch workflows/fluxjob-77"] * 6,
                "delete workflows/fluxjob-77",
                "patch workflows/fluxjob-77",
            ]
            assert all(request.code in (200, 201) for request in asked)
            bodies = [request.body for request in asked]
            assert bodies[0]["metadata"]["finalizers"] == ["flux-framework.readthedocs.io/workflow"]
            assert bodies[0]["spec"] == {
                "desiredState": "Proposal", "dwDirectives": ["#DW jobdw type=xfs capacity=1GiB name=p1"], "jobID": "f2L",
                "userID": 1000, "groupID": 1000, "wlmID": "flux", "forceReady": False,
            }  # fmt: skip
            storage = [{"name": "rabbit-0", "allocationCount": 2}]
            allocation = {"label": "xfs", "allocationSize": GIB + (300 << 20), "storage": storage}
            assert bodies[1] == {"spec": {"allocationSets": [allocation]}}
            assert bodies[2] == {"data": [{"name": "compute-0"}, {"name": "compute-1"}]}
            assert [body["spec"]["desiredState"] for body in bodies[3:9]] == list(ORDER[1:])
            assert bodies[10]["metadata"]["finalizers"] and bodies[10]["metadata"]["resourceVersion"]
            assert there.standin.leftovers() == []

    run(check)


@on_standin
@pytest.mark.parametrize(
    "directives",
    [
        ["#DW jobdw type=xfs capacity=10GiB name=p1"],
        ["#DW jobdw type=gfs2 capacity=10GB name=p1"],
        ["#DW jobdw type=raw capacity=1TiB name=p1"],
        ["#DW jobdw type=lustre capacity=100GiB name=p1"],
        ["#DW jobdw type=xfs capacity=10GiB name=p1", "#DW jobdw type=lustre capacity=1TB name=p2"],
        [],
        ["#DW create_persistent type=lustre capacity=10GiB name=shared"],
        ["#DW destroy_persistent name=shared"],
    ],
)
@pytest.mark.parametrize("metadata", ["combined", "separate", "external"])
def test_every_breakdown_of_the_transcript_becomes_servers_that_are_taken(directives: list[str], metadata: str) -> None:
    """The stand-in's driver checks what was written as NNF does: labels, sizes, counts, colocation."""

    async def check() -> None:
        rabbits = {"rabbit-0": ("compute-0", "compute-1"), "rabbit-1": ("compute-2",)}
        site = Site(Profile(metadata=metadata))
        async with cluster(rabbits=rabbits, site=site) as there, there.adapter() as one:
            began = time.time()
            view = await one.live(3, directives, ["compute-0", "compute-1", "compute-2"], SETUP)
            assert began - 1 <= view.since <= time.time() + 1
            await one.end(3)

    run(check)


def test_lustre_and_two_directives_are_placed_legally() -> None:
    async def check() -> None:
        rabbits = {f"rabbit-{i}": (f"compute-{2 * i}", f"compute-{2 * i + 1}") for i in range(3)}
        async with cluster(rabbits=rabbits) as there, there.adapter() as one:
            hosts = [host for rabbit in one.dws.rabbits() for host in rabbit.computes][:3]
            job = jobid()
            directives = [
                "#DW jobdw type=xfs capacity=1GiB name=p1",
                "#DW jobdw type=lustre capacity=20GiB name=p2",
            ]
            view = await one.live(job, directives, hosts, SETUP if there.standin is None else DATA_OUT)
            assert len(view.breakdowns) == 2 and [part.label for part in view.breakdowns[1].sets] == ["ost", "mgtmdt"]
            await one.end(job)

    run(check)


def test_what_the_webhook_denies_is_refused_and_leaves_nothing() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            job = jobid()
            with pytest.raises(StorageRefused, match=r"^argument 'type' invalid string 'ext4'$"):
                await one.dws.create(Request(job, 1000, 1000, ("#DW jobdw type=ext4 capacity=1GiB name=p1",)))
            assert one.dws.view(job) is None
            # and it could have been known at once, from the rules that were seen
            assert "ext4" in one.dws.check(["#DW jobdw type=ext4 capacity=1GiB name=p1"], 1000)
            assert one.dws.check(["#DW jobdw type=xfs capacity=1GiB name=p1"], 1000) == ""

    run(check)


def test_a_proposal_that_fails_ends_by_teardown() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            job = jobid()
            with pytest.raises(WorkflowError, match="User error: PersistentStorageInstance 'nope' not found"):
                await one.live(job, ["#DW persistentdw name=nope"], one.hosts())
            await one.end(job)
            assert job not in one.dws.jobs()

    run(check)


def test_made_twice_it_is_the_same_and_somebody_elses_is_not_taken() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one, there.adapter(instance="other") as other:
            job = jobid()
            request = Request(job, 1000, 1000, ("#DW jobdw type=xfs capacity=1GiB name=p1",))
            await one.dws.create(request)
            first = (await one.reach(job, "Proposal")).uid
            await one.dws.create(request)
            assert one.dws.view(job).uid == first
            assert other.dws.view(job) is None and job not in other.dws.jobs()
            with pytest.raises(StorageRefused, match="somebody else"):
                await other.dws.create(request)
            await other.dws.advance(job, TEARDOWN)
            await other.dws.remove(job)
            assert one.dws.view(job).desired == "Proposal"
            await one.end(job)

    run(check)


def test_another_adapter_goes_on_where_the_first_was() -> None:
    """A restart of Leveret in each state: everything is found again in the cluster."""

    async def check() -> None:
        async with cluster() as there:
            job = jobid()
            async with there.adapter() as one:
                hosts = one.hosts()[:1]
                await one.live(job, ["#DW jobdw type=xfs capacity=1GiB name=p1"], hosts, "Proposal")
            for state in ORDER[1:]:
                async with there.adapter() as one:
                    assert list(one.dws.jobs()) == [job] or there.standin is None
                    await one.go_on(job, hosts, state)
            async with there.adapter() as one:
                await one.remove(job)

    run(check)


@on_standin
def test_copies_show_their_progress_and_failed_ones_come_first() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            fs = "#DW jobdw type=xfs capacity=1GiB name=p1"
            copies = [f"#DW copy_in source=/lus/{name} destination=$DW_JOB_p1" for name in ("a", "b")]
            await one.live(5, [fs, *copies], ["compute-0"], "DataIn")
            moved = await one.dws.movements(5)
            assert [(one.directive, one.state, one.status) for one in moved] == [
                (1, "Finished", "Success"),
                (2, "Finished", "Success"),
            ]
            assert moved[0].source == "/lus/a" and moved[0].bytes_done == moved[0].bytes_total == 1024
            assert moved[0].t_end >= moved[0].t_start > 0
            await one.end(5)
            there.standin.driver.missing_paths.add("/lus/b")
            with pytest.raises(
                WorkflowError, match="data movement operation failed during 'DataIn', message: source file"
            ):
                await one.live(6, [fs, *copies], ["compute-0"])
            moved = await one.dws.movements(6)
            assert (moved[0].status, moved[0].directive) == ("Invalid", 2)
            await one.end(6)
            assert there.standin.leftovers() == []

    run(check)


@on_standin
def test_persistent_storage_outlives_its_job() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            await one.live(1, ["#DW create_persistent type=xfs capacity=1GiB name=keep"], ["compute-0"], SETUP)
            await one.end(1)
            (kept,) = await one.dws.persistent()
            assert (kept.name, kept.type, kept.userid, kept.state, kept.consumers) == (
                "keep",
                "xfs",
                1000,
                "Active",
                (),
            )
            assert kept.capacity_bytes == GIB + (300 << 20)
            view = await one.live(2, ["#DW persistentdw name=keep"], ["compute-1"], PRE_RUN)
            assert view.env["DW_PERSISTENT_keep"] and "DW_PERSISTENT_" not in view.env
            assert (await one.dws.persistent())[0].consumers == ("fluxjob-2",)
            await one.end(2)
            await one.live(3, ["#DW destroy_persistent name=keep"], ["compute-0"], "Proposal")
            await one.end(3)
            assert await one.dws.persistent() == []
            assert there.standin.driver.used() == {}

    run(check)


@on_standin
def test_a_token_and_a_container_log() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one:
            there.standin.site.containers["hello"] = {}
            directives = [
                "#DW jobdw type=gfs2 capacity=1GiB name=p1 requires=copy-offload",
                "#DW container name=cc profile=hello",
            ]
            view = await one.live(4, directives, ["compute-0"], PRE_RUN)
            assert view.token == "token-of-the-job"
            assert await one.dws.container_log(4) == "container started\n"
            await one.end(4)
            assert await one.dws.container_log(4) == ""

    run(check)
