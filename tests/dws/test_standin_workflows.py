"""The stand-in's webhook and controllers: the verdicts, breakdowns and lives measured on the real ones (mock hardware)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from kube import NS, OURS, G, Kube, V, kube
from standin import Standin

GIB = 2**30
XFS = "#DW jobdw type=xfs capacity=1GiB name=p1"


@contextlib.asynccontextmanager
async def cluster(**more: Any) -> AsyncIterator[tuple[Kube, Standin]]:
    async with Standin(**more) as standin, kube(standin.server.url) as client:
        async with asyncio.timeout(60):
            yield client, standin


def run(check: Callable[..., Awaitable[None]], *args: Any) -> None:
    asyncio.run(check(*args))


# -- the webhook -----------------------------------------------------------------------------------

DENIED = [
    (["foo_test"], "missing '#DW' prefix in directive 'foo_test'"),
    (["#DW bogus a=b"], "invalid directive '#DW bogus a=b'"),
    (["#DW jobdw type=xfs name=p1"], "missing required argument '^capacity$'"),
    (["#DW jobdw type=ext4 capacity=1GiB name=p1"], "argument 'type' invalid string 'ext4'"),
    (["#DW jobdw type=xfs capacity=1PiB name=p1"], "argument 'capacity' invalid string '1PiB'"),
    (["#DW jobdw type=xfs capacity=1GiB name=P1"], "argument 'name' invalid string 'P1'"),
    (["#DW jobdw type=xfs capacity=1GiB name=p"], "argument 'name' invalid string 'p'"),
    (
        ["#DW jobdw type=xfs capacity=1GiB name=p1 name=p2"],
        "repeated argument 'name' in directive '#DW jobdw type=xfs capacity=1GiB name=p1 name=p2'",
    ),
    (["#DW jobdw type=xfs capacity=1GiB name=p1 foo=1"], "unsupported argument 'foo'"),
    (
        ["#DW jobdw type=xfs capacity=1GiB name=p1 requires=copy-offload,copy-offload"],
        "argument 'requires' word 'copy-offload' repeated in list 'copy-offload,copy-offload'",
    ),
    (
        ["#DW jobdw type=xfs capacity=1GiB name=p1 requires=zzz"],
        "argument 'requires' invalid string 'zzz' in list 'zzz'",
    ),
    (["#DW jobdw type=xfs capacity= name=p1"], "argument 'capacity' invalid string ''"),
    (["#DW jobdw type=xfs capacity name=p1"], "argument 'capacity' requires value"),
    ([XFS, XFS], "value 'p1' must be unique within 'jobdw_name'"),
]


@pytest.mark.parametrize("directives,text", DENIED)
def test_directives_are_denied(directives: list[str], text: str) -> None:
    async def check() -> None:
        async with cluster() as (client, _):
            code, said = await client.workflow("fluxjob-1", *directives)
            assert (code, said["reason"]) == (403, "Forbidden")
            assert said["message"] == f'admission webhook "vworkflow.kb.io" denied the request: {text}'
            assert (await client("GET", f"{NS}/workflows/fluxjob-1"))[0] == 404

    run(check)


@pytest.mark.parametrize(
    "spec,text",
    [
        ({"desiredState": "Setup"}, 'Spec.DesiredState: Invalid value: "Setup": desired state must start in Proposal'),
        ({"hurry": True}, "Spec.Hurry: Forbidden: the hurry flag may not be set on creation"),
    ],
)
def test_a_creation_is_denied(spec: dict[str, Any], text: str) -> None:
    async def check() -> None:
        async with cluster() as (client, _):
            code, said = await client.workflow("fluxjob-1", XFS, spec=spec)
            assert code == 403 and said["message"].endswith(f"denied the request: {text}")

    run(check)


def test_rules_are_data() -> None:
    async def check() -> None:
        async with cluster() as (client, _):
            path = f"/apis/{G}/{V}/namespaces/dws-system/dwdirectiverules/nnf"
            _code, rules = await client("GET", path)
            rules["spec"].append(
                {
                    "command": "fast",
                    "watchStates": "Proposal",
                    "ruleDefs": [{"key": "^n$", "type": "integer", "min": 1, "max": 4, "isRequired": True}],
                }
            )
            assert (await client("PUT", path, rules))[0] == 200
            assert (await client.workflow("fluxjob-1", "#DW fast n=3"))[0] == 201
            for text, why in (
                ("n=9", "greather than maximum value 4"),
                ("n=0", "less than minimum value 1"),
                ("n=x", "invalid integer 'x'"),
            ):
                code, said = await client.workflow("fluxjob-2", f"#DW fast {text}")
                assert code == 403 and why in said["message"]
            await client("DELETE", path)
            code, said = await client.workflow("fluxjob-2", XFS)
            assert said["message"].endswith("unable to find ruleset in namespace: dws-system")

    run(check)


# -- Proposal: breakdowns and semantic errors ------------------------------------------------------

RABBITS = [f"{G}/storage=Rabbit"]
NEAR, FAR = {"priority": "mandatory", "type": "physical"}, {"priority": "mandatory", "type": "network"}


def per_compute(label: str, least: int) -> dict[str, Any]:
    return {
        "allocationStrategy": "AllocatePerCompute",
        "constraints": {"labels": RABBITS},
        "label": label,
        "minimumCapacity": least,
    }


def lustre(least: int) -> list[dict[str, Any]]:
    alone = {"colocation": [{"key": "lustre-mgt", "type": "exclusive"}], "count": 1, "labels": RABBITS}
    return [
        {
            "allocationStrategy": "AllocateAcrossServers",
            "constraints": {"labels": RABBITS, "scale": 5},
            "label": "ost",
            "minimumCapacity": least,
        },
        {
            "allocationStrategy": "AllocateAcrossServers",
            "constraints": alone,
            "label": "mgtmdt",
            "minimumCapacity": 5 * GIB,
        },
    ]


LUSTRE_ACCESS = [[FAR, {"priority": "bestEffort", "type": "physical"}], [FAR]]
BREAKDOWNS: dict[str, tuple[list[str], list[tuple[list[dict[str, Any]], list[list[dict[str, str]]] | None]]]] = {
    "xfs": (["#DW jobdw type=xfs capacity=10GiB name=p1"], [([per_compute("xfs", 11051991040)], [[NEAR]])]),
    "gfs2": (["#DW jobdw type=gfs2 capacity=10GB name=p1"], [([per_compute("gfs2", 10314572800)], [[FAR, NEAR]])]),
    "raw": (["#DW jobdw type=raw capacity=1TiB name=p1"], [([per_compute("raw", 1099826200576)], [[NEAR]])]),
    "lustre": (["#DW jobdw type=lustre capacity=100GiB name=p1"], [(lustre(107374182400), LUSTRE_ACCESS)]),
    "two": (
        ["#DW jobdw type=xfs capacity=10GiB name=p1", "#DW jobdw type=lustre capacity=1TB name=p2"],
        [([per_compute("xfs", 11051991040)], [[NEAR]]), (lustre(10**12), LUSTRE_ACCESS)],
    ),
    "empty": ([], []),
    "create": (["#DW create_persistent type=lustre capacity=10GiB name=shared"], [(lustre(10737418240), None)]),
    "destroy": (["#DW destroy_persistent name=shared"], []),
}
DRIVERS = {
    "jobdw": ["Proposal", "Setup", "PreRun", "PostRun", "Teardown"],
    "create_persistent": ["Proposal", "Setup", "Teardown"],
    "destroy_persistent": ["Proposal", "Teardown"],
    "persistentdw": ["Proposal", "Setup", "PreRun", "PostRun", "Teardown"],
    "copy_in": ["Proposal", "DataIn", "Teardown"],
    "copy_out": ["Proposal", "DataOut", "Teardown"],
}


def drivers_of(directives: list[str]) -> list[tuple[int, str]]:
    return [(i, state) for i, one in enumerate(directives) for state in DRIVERS[one.split()[1]]]


@pytest.mark.parametrize("name", BREAKDOWNS)
def test_a_proposal_is_broken_down(name: str) -> None:
    directives, expected = BREAKDOWNS[name]

    async def check() -> None:
        async with cluster() as (client, standin):
            await client.workflow("fluxjob-17", *directives)
            status = (await client.until("fluxjob-17", lambda status: status.get("ready")))[-1]
            assert (status["state"], status["status"], status.get("message")) == ("Proposal", "Completed", None)
            assert status["env"] == {"DW_WORKFLOW_NAME": "fluxjob-17", "DW_WORKFLOW_NAMESPACE": "default"}
            assert status["computes"] == {"kind": "Computes", "name": "fluxjob-17", "namespace": "default"}
            have = [(one["dwdIndex"], one["watchState"], one["status"]) for one in status.get("drivers", [])]
            assert have == [
                (i, state, "Completed" if state == "Proposal" else "Pending") for i, state in drivers_of(directives)
            ]
            named = [
                {"kind": "DirectiveBreakdown", "name": f"fluxjob-17-{i}", "namespace": "default"}
                for i in range(len(expected))
            ]
            assert status.get("directiveBreakdowns", []) == named
            workflow = standin.objects("workflows")["fluxjob-17"]
            assert set(workflow["metadata"]["finalizers"]) == {OURS, f"{G}/workflow", "nnf.cray.hpe.com/nnf_workflow"}
            for index, (sets, access) in enumerate(expected):
                servers = "shared" if name == "create" else f"fluxjob-17-{index}"
                breakdown = standin.objects("directivebreakdowns")[f"fluxjob-17-{index}"]["status"]
                reference = {"kind": "Servers", "name": servers, "namespace": "default"}
                lifetime = "persistent" if name == "create" else "job"
                assert breakdown["storage"] == {"allocationSets": sets, "lifetime": lifetime, "reference": reference}
                if access is None:
                    assert "compute" not in breakdown
                else:
                    located = [
                        {"access": one, "reference": {"fieldPath": f"servers.spec.allocationSets[{i}]", **reference}}
                        for i, one in enumerate(access)
                    ]
                    assert breakdown["compute"] == {"constraints": {"location": located}}
                made = standin.objects("servers")[servers]
                assert made["spec"] == {} and made["status"]["ready"] is False
                label = "persistentstorage.name" if name == "create" else "workflow.name"
                assert made["metadata"]["labels"][f"{G}/{label}"] == ("shared" if name == "create" else "fluxjob-17")

    run(check)


REFUSED = {
    "bad-copy": (
        [XFS, "#DW copy_in source=/no/such destination=$DW_JOB_p1"],
        "global Lustre file system containing '/no/such' not found",
    ),
    "bad-copy2": (
        ["#DW jobdw type=raw capacity=1GiB name=p1", "#DW copy_out source=$DW_JOB_p1 destination=/lus/x"],
        "data movement can not be used with raw allocations",
    ),
    "two-create": (
        [
            "#DW create_persistent type=xfs capacity=1GiB name=aa",
            "#DW create_persistent type=xfs capacity=1GiB name=bb",
        ],
        "only a single create_persistent or destroy_persistent directive is allowed per workflow",
    ),
    "nops": (["#DW persistentdw name=nope"], "PersistentStorageInstance 'nope' not found"),
    "no-job": ([XFS, "#DW copy_in source=/lus/a destination=$DW_JOB_other"], "job storage instance 'other' not found"),
    "zero": (["#DW jobdw type=xfs capacity=0GiB name=p1"], "'capacity' must be a non-zero value"),
    "container": (["#DW container name=cc profile=none"], "no valid container profile found"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_proposal_is_refused(name: str) -> None:
    directives, text = REFUSED[name]

    async def check() -> None:
        async with cluster() as (client, _standin):
            assert (await client.workflow("fluxjob-23", *directives))[0] == 201
            status = (await client.until("fluxjob-23", lambda status: status.get("status") == "Error"))[-1]
            assert (status["state"], status["ready"]) == ("Proposal", False)
            assert status["message"] == f"DW Directive 0: User error: {text}"
            assert "directiveBreakdowns" not in status and "elapsedTimeLastState" not in status
            if "container" not in name:
                have = [(one["dwdIndex"], one["watchState"], one["status"]) for one in status["drivers"]]
                assert have == [
                    (i, state, "Error" if at == 0 else "Pending")
                    for at, (i, state) in enumerate(drivers_of(directives))
                ]
            # nothing recovers but Teardown
            path = f"{NS}/workflows/fluxjob-23"
            assert (await client.merge(path, {"spec": {"desiredState": "Setup"}}))[0] == 403
            assert (await client.merge(path, {"spec": {"desiredState": "Teardown"}}))[0] == 200
            await client.until("fluxjob-23", lambda status: status.get("state") == "Teardown" and status["ready"])

    run(check)


# -- order -----------------------------------------------------------------------------------------


def test_the_order_of_states_is_kept() -> None:
    async def check() -> None:
        async with cluster() as (client, standin):
            path = f"{NS}/workflows/fluxjob-17"
            await client.workflow("fluxjob-17", XFS)
            await client.until("fluxjob-17", lambda status: status.get("ready"))
            for spec, text in (
                ({"desiredState": "DataIn"}, 'Spec.DesiredState: Invalid value: "DataIn": states cannot be skipped'),
                ({"jobID": "zz"}, "Spec.JobID: Forbidden: field is immutable"),
                ({"hurry": True}, "Spec.Hurry: Invalid value: true: the hurry flag may be set only in Teardown"),
                ({"userID": 5}, "Spec.UserID: Forbidden: field is immutable"),
            ):
                code, said = await client.merge(path, {"spec": spec})
                assert code == 403 and said["message"].endswith(f"denied the request: {text}")
            standin.trouble("Setup", "hold", "allocation set not ready")
            await client.merge(path, {"spec": {"desiredState": "Setup"}})
            await client.until(
                "fluxjob-17", lambda status: status.get("message") == "DW Directive 0: allocation set not ready"
            )
            code, said = await client.merge(path, {"spec": {"desiredState": "Proposal"}})
            assert code == 403 and said["message"].endswith(
                'Spec.DesiredState: Invalid value: "Proposal": DesiredState cannot progress backwards'
            )
            code, said = await client.merge(path, {"spec": {"desiredState": "DataIn"}})
            assert code == 403 and said["message"].endswith(
                'Status.State: Invalid value: "Setup": current desired state not yet achieved'
            )
            assert (await client.merge(path, {"spec": {"forceReady": True}}))[0] == 200
            status = (await client.until("fluxjob-17", lambda status: status["ready"]))[-1]
            assert (status["state"], status["status"], status["message"]) == ("Setup", "Completed", "Forced Ready")
            assert standin.objects("workflows")["fluxjob-17"]["spec"]["forceReady"] is True
            await client.merge(path, {"spec": {"desiredState": "Teardown"}})
            status = (
                await client.until("fluxjob-17", lambda status: status["state"] == "Teardown" and status["ready"])
            )[-1]
            assert "message" not in status and standin.objects("workflows")["fluxjob-17"]["spec"]["forceReady"] is False
            await client("DELETE", path)
            assert len((await client("GET", path))[1]["metadata"]["finalizers"]) == 3
            await client.merge(
                path,
                {
                    "metadata": {
                        "finalizers": [
                            one
                            for one in standin.objects("workflows")["fluxjob-17"]["metadata"]["finalizers"]
                            if one != OURS
                        ]
                    }
                },
            )
            while (await client("GET", path))[0] == 200:
                await asyncio.sleep(0.01)
            assert standin.leftovers() == []

    run(check)


# -- whole lives -----------------------------------------------------------------------------------

W, OK = "DriverWait", "Completed"
MOUNT, UNMOUNT, SET = "pending mount", "pending unmount", "allocation set not ready"
MOUNT_ERROR = "Internal error: unable to mount file system on client nodes"
Seen = tuple[str | None, bool, str | None, str | None]


def life(*steps: tuple[str | None, bool, str | None, str | None]) -> list[Seen]:
    return [(state, ready, status, f"DW Directive 0: {text}" if text else None) for state, ready, status, text in steps]


#: what was seen of the real ones, looking every 80 ms
LIVES: dict[str, list[Seen]] = {
    "xfs": life(
        (None, False, None, None), ("Proposal", False, W, None), ("Proposal", True, OK, None), ("Setup", False, W, "allocation"),
        ("Setup", False, W, SET), ("Setup", True, OK, None), ("DataIn", True, OK, None), ("PreRun", False, W, MOUNT), ("PreRun", True, OK, None),
        ("PostRun", False, W, None), ("PostRun", False, W, UNMOUNT), ("PostRun", True, OK, None), ("DataOut", True, OK, None),
        ("Teardown", False, W, "delete"), ("Teardown", True, OK, None),
    ),
    "gfs2": life(
        (None, False, None, None), ("Proposal", False, W, None), ("Proposal", True, OK, None), ("Setup", False, W, None), ("Setup", False, W, SET),
        ("Setup", True, OK, None), ("DataIn", False, W, None), ("DataIn", True, OK, None), ("PreRun", False, W, None), ("PreRun", False, W, MOUNT),
        ("PreRun", False, W, MOUNT_ERROR), ("PreRun", False, W, MOUNT), ("PreRun", True, OK, None), ("PostRun", False, W, None),
        ("PostRun", False, W, UNMOUNT), ("PostRun", True, OK, None), ("DataOut", True, OK, None), ("Teardown", False, W, None),
        ("Teardown", False, W, "delete"), ("Teardown", True, OK, None),
    ),
    "raw": life(
        (None, False, None, None), ("Proposal", False, W, None), ("Proposal", True, OK, None), ("Setup", False, W, "allocation"),
        ("Setup", False, W, SET), ("Setup", True, OK, None), ("DataIn", True, OK, None), ("PreRun", False, W, None), ("PreRun", False, W, MOUNT),
        ("PreRun", False, W, MOUNT_ERROR), ("PreRun", False, W, MOUNT), ("PreRun", True, OK, None), ("PostRun", False, W, UNMOUNT),
        ("PostRun", True, OK, None), ("DataOut", False, W, None), ("DataOut", True, OK, None), ("Teardown", False, W, None),
        ("Teardown", False, W, "delete"), ("Teardown", True, OK, None),
    ),
    "lustre": life(
        (None, False, None, None), ("Proposal", False, W, None), ("Proposal", True, OK, None), ("Setup", False, W, "allocation"),
        ("Setup", False, W, SET), ("Setup", False, W, "Internal error: could not allocate storage"),
        ("Teardown", False, W, "delete"), ("Teardown", True, OK, None),
    ),
}  # fmt: skip


async def live(client: Kube, standin: Standin, kind: str) -> tuple[list[Seen], dict[str, Any]]:
    """Drive one workflow as a workload manager does: (what was seen of it, what stood where on the way)."""
    name, path, facts = "fluxjob-7", f"{NS}/workflows/fluxjob-7", {}
    statuses: list[dict[str, Any]] = []
    watching = asyncio.create_task(collect(client, statuses))
    while not any(request.watch for request in standin.log.entries):
        await asyncio.sleep(0.01)
    capacity = "4GB" if kind == "lustre" else "1GiB"
    await client.workflow(name, f"#DW jobdw type={kind} capacity={capacity} name=my-fs")
    await client.until(name, lambda status: status.get("state") == "Proposal" and status["ready"])
    sets = standin.objects("directivebreakdowns")[f"{name}-0"]["status"]["storage"]["allocationSets"]
    filled = [
        {
            "label": one["label"],
            "allocationSize": one["minimumCapacity"],
            "storage": [
                {"name": "rabbit-0", "allocationCount": 2 if one["allocationStrategy"] == "AllocatePerCompute" else 1}
            ],
        }
        for one in sets
    ]
    assert (await client.merge(f"{NS}/servers/{name}-0", {"spec": {"allocationSets": filled}}))[0] == 200
    for state in ("Setup", "DataIn", "PreRun", "PostRun", "DataOut", "Teardown"):
        if state == "DataIn":
            await client.merge(f"{NS}/computes/{name}", {"data": [{"name": "compute-0"}, {"name": "compute-1"}]})
        if kind == "lustre" and state != "Setup":
            state = "Teardown"
        code, said = await client.merge(path, {"spec": {"desiredState": state}})
        assert code == 200, said
        if kind == "lustre" and state == "Setup":
            await client.until(name, lambda status: "could not allocate" in status.get("message", ""))
            facts["Servers"] = standin.objects("servers")[f"{name}-0"]["status"]
            continue
        status = (
            await client.until(name, lambda status, state=state: status.get("state") == state and status["ready"])
        )[-1]
        assert status["elapsedTimeLastState"][-1] == "s"
        facts[state] = (status.get("env"), list(standin.store.objects[G, "clientmounts"].values()))
        if state == "Setup":
            facts["Servers"] = standin.objects("servers")[f"{name}-0"]["status"]
        if state == "Teardown":
            break
    while statuses[-1].get("state") != "Teardown" or not statuses[-1]["ready"]:
        await asyncio.sleep(0.01)
    watching.cancel()
    seen: list[Seen] = []
    for status in statuses:
        one = (status.get("state"), status.get("ready", False), status.get("status"), status.get("message"))
        if not seen or seen[-1] != one:
            seen.append(one)
    facts["uid"] = standin.objects("workflows")[name]["metadata"]["uid"]
    return seen, facts


async def collect(client: Kube, into: list[dict[str, Any]]) -> None:
    async with client.session.get(f"{NS}/workflows", params={"watch": "true", "timeoutSeconds": "60"}) as answer:
        async for line in answer.content:
            into.append(json.loads(line)["object"].get("status") or {})


@pytest.mark.parametrize("kind", LIVES)
def test_a_whole_life(kind: str) -> None:
    async def check() -> None:
        async with cluster() as (client, standin):
            standin.driver.lustre = False  # as the mock hardware of the measurement
            seen, facts = await live(client, standin, kind)
            expected = LIVES[kind]
            rest = iter(seen)
            assert all(one in rest for one in expected), f"not in this order: {expected}\nbut: {seen}"
            # what was between two looks then, and can be seen now, is only the beginning of a state …
            extra = [one for one in seen if one not in expected]
            assert all(one[1:] == (False, W, None) or one[3] == "DW Directive 0: allocation" for one in extra), extra
            # … and each state is entered and left once, in order
            steps = [one[:2] for one in seen if one[0]]
            deduplicated = [one for i, one in enumerate(steps) if i == 0 or steps[i - 1] != one]
            states = (
                ["Proposal", "Setup", "Teardown"]
                if kind == "lustre"
                else ["Proposal", "Setup", "DataIn", "PreRun", "PostRun", "DataOut", "Teardown"]
            )
            assert [one for one in deduplicated if not (kind == "lustre" and one == ("Setup", True))] == [
                (state, ready)
                for state in states
                for ready in (False, True)
                if not (kind == "lustre" and (state, ready) == ("Setup", True))
            ]
            if kind == "lustre":
                sizes = {one["label"]: one["storage"]["rabbit-0"] for one in facts["Servers"]["allocationSets"]}
                assert sizes == {
                    "ost": {"allocationSize": 4000055296, "ready": False},
                    "mgtmdt": {"allocationSize": 5368709120, "ready": False},
                }
                assert facts["Servers"]["ready"] is False
                return
            assert facts["Servers"]["allocationSets"] == [
                {"label": kind, "storage": {"rabbit-0": {"allocationSize": 2776629248, "ready": True}}}
            ]
            mount = f"/mnt/nnf/{facts['uid']}-0"
            env = {"DW_JOBS": f"my-fs:{mount}", f"DW_JOB_{kind.upper()}": mount, "DW_JOB_my_fs": mount}
            env |= {"DW_WORKFLOW_NAME": "fluxjob-7", "DW_WORKFLOW_NAMESPACE": "default"}
            shape = ("none", "file") if kind == "raw" else (kind, "directory")
            for state, want in (("PreRun", "mounted"), ("PostRun", "unmounted")):
                assert facts[state][0] == env
                shown = {}
                for one in facts[state][1]:
                    assert one["status"] == {
                        "allReady": True,
                        "mounts": [{"ready": True, "state": want}] * len(one["spec"]["mounts"]),
                    }
                    assert one["spec"]["desiredState"] == want
                    paths = [
                        (mounted["mountPath"], mounted["type"], mounted["targetType"])
                        for mounted in one["spec"]["mounts"]
                    ]
                    shown[one["metadata"]["namespace"], one["metadata"]["name"]] = paths
                both = {
                    (node, "default-fluxjob-7-0-computes"): [(mount, *shape)] for node in ("compute-0", "compute-1")
                }
                if kind != "xfs":
                    both["rabbit-0", "default-fluxjob-7-0-servers"] = [
                        (f"{mount}/rabbit-0-{i}", *shape) for i in range(2)
                    ]
                assert shown == both
            assert facts["Teardown"][1] == []

    run(check)


# -- trouble ---------------------------------------------------------------------------------------


async def at_prerun(client: Kube) -> None:
    name = "fluxjob-7"
    await client.workflow(name, XFS)
    await client.until(name, lambda status: status.get("ready"))
    storage = [{"name": "rabbit-0", "allocationCount": 2}]
    await client.merge(
        f"{NS}/servers/{name}-0",
        {"spec": {"allocationSets": [{"label": "xfs", "allocationSize": 2**31, "storage": storage}]}},
    )
    for state in ("Setup", "DataIn"):
        await client.merge(f"{NS}/workflows/{name}", {"spec": {"desiredState": state}})
        await client.until(name, lambda status, state=state: status["state"] == state and status["ready"])
    await client.merge(f"{NS}/computes/{name}", {"data": [{"name": "compute-0"}, {"name": "compute-1"}]})
    await client.merge(f"{NS}/workflows/{name}", {"spec": {"desiredState": "PreRun"}})


def test_a_mount_that_never_comes_is_waited_for_until_the_node_is_disabled() -> None:
    async def check() -> None:
        async with cluster() as (client, standin):
            standin.driver.stuck_nodes.add("compute-1")
            await at_prerun(client)
            while not standin.store.find(
                standin.driver.kind("clientmounts"), "compute-0", "default-fluxjob-7-0-computes"
            ):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert standin.objects("workflows")["fluxjob-7"]["status"]["ready"] is False
            await client.merge(f"{NS}/systemstatuses/default", {"data": {"nodes": {"compute-1": "Disabled"}}})
            await client.until("fluxjob-7", lambda status: status["state"] == "PreRun" and status["ready"])

    run(check)


def test_setup_waits_for_a_rabbit_that_is_offline_and_refuses_what_does_not_fit() -> None:
    async def check() -> None:
        async with cluster(capacity_bytes=8 * GIB) as (client, standin):
            standin.rabbit("rabbit-0", status="Offline")
            setup = asyncio.create_task(at_prerun(client))
            while (standin.objects("servers").get("fluxjob-7-0") or {"status": {}})["status"].get(
                "allocationSets"
            ) is None:
                await asyncio.sleep(0.01)
            assert standin.objects("servers")["fluxjob-7-0"]["status"]["ready"] is False
            standin.rabbit("rabbit-0", status="Ready")
            await setup
            assert standin.driver.used() == {"rabbit-0": 2 * 2**31}
            for size, text in (
                (3 * GIB, "Internal error: insufficient capacity available"),
                (2, "WLM error: storage directive requirements were not satisfied"),
            ):
                name = f"fluxjob-{size}"
                await client.workflow(name, XFS)
                await client.until(name, lambda status: status.get("ready"))
                storage = [{"name": "rabbit-0", "allocationCount": 2}]
                await client.merge(
                    f"{NS}/servers/{name}-0",
                    {"spec": {"allocationSets": [{"label": "xfs", "allocationSize": size, "storage": storage}]}},
                )
                await client.merge(f"{NS}/workflows/{name}", {"spec": {"desiredState": "Setup"}})
                status = (await client.until(name, lambda status: status["status"] == "Error"))[-1]
                assert status["message"] == f"DW Directive 0: {text}"

    run(check)


def test_copies_and_persistent_storage() -> None:
    async def check() -> None:
        async with cluster() as (client, standin):
            await client.workflow("fluxjob-1", "#DW create_persistent type=xfs capacity=1GiB name=keep")
            await client.until("fluxjob-1", lambda status: status.get("ready"))
            storage = [{"name": "rabbit-0", "allocationCount": 2}]
            await client.merge(
                f"{NS}/servers/keep",
                {"spec": {"allocationSets": [{"label": "xfs", "allocationSize": 2**31, "storage": storage}]}},
            )
            for state in ("Setup", "Teardown"):
                await client.merge(f"{NS}/workflows/fluxjob-1", {"spec": {"desiredState": state}})
                await client.until(
                    "fluxjob-1", lambda status, state=state: status["state"] == state and status["ready"]
                )
            assert standin.objects("persistentstorageinstances")["keep"]["status"]["state"] == "Active"
            assert standin.driver.used() == {"rabbit-0": 2**32}
            await client.workflow(
                "fluxjob-2", "#DW persistentdw name=keep", "#DW copy_in source=/lus/a destination=$DW_PERSISTENT_keep"
            )
            await client.until("fluxjob-2", lambda status: status.get("ready"))
            assert "storage" not in standin.objects("directivebreakdowns")["fluxjob-2-0"]["status"]
            await client.merge(f"{NS}/computes/fluxjob-2", {"data": [{"name": "compute-0"}]})
            for state in ("Setup", "DataIn", "PreRun"):
                await client.merge(f"{NS}/workflows/fluxjob-2", {"spec": {"desiredState": state}})
                await client.until(
                    "fluxjob-2", lambda status, state=state: status["state"] == state and status["ready"]
                )
            moved = standin.objects("nnfdatamovements")["fluxjob-2-1"]["status"]
            assert (moved["state"], moved["status"], moved["commandStatus"]["progress"]) == ("Finished", "Success", 100)
            consumers = standin.objects("persistentstorageinstances")["keep"]["spec"]["consumerReferences"]
            assert [one["name"] for one in consumers] == ["fluxjob-2"]
            await client.workflow("fluxjob-3", "#DW destroy_persistent name=keep")
            await client.until("fluxjob-3", lambda status: status.get("ready"))
            await client.merge(f"{NS}/workflows/fluxjob-3", {"spec": {"desiredState": "Teardown"}})
            status = (await client.until("fluxjob-3", lambda status: status["status"] == "Error"))[-1]
            assert status["message"].endswith("User error: persistent storage cannot be deleted while in use")
            await client.merge(f"{NS}/workflows/fluxjob-2", {"spec": {"desiredState": "Teardown"}})
            await client.until("fluxjob-2", lambda status: status["state"] == "Teardown" and status["ready"])
            await client.workflow("fluxjob-4", "#DW destroy_persistent name=keep")
            await client.until("fluxjob-4", lambda status: status.get("ready"))
            await client.merge(f"{NS}/workflows/fluxjob-4", {"spec": {"desiredState": "Teardown"}})
            await client.until("fluxjob-4", lambda status: status["state"] == "Teardown" and status["ready"])
            assert standin.objects("persistentstorageinstances") == {} and standin.driver.used() == {}

    run(check)


def test_a_life_goes_on_after_a_restart_in_each_state() -> None:
    async def check() -> None:
        async with cluster() as (client, standin):
            crashed: list[str] = []

            async def restarts() -> None:
                while len(crashed) < 7:
                    state = ((standin.objects("workflows").get("fluxjob-7") or {}).get("status") or {}).get("state")
                    if state and state not in crashed:
                        crashed.append(state)
                        await standin.restart()
                    await asyncio.sleep(0)

            async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
                while True:
                    try:
                        return await call()
                    except Exception as error:
                        assert not isinstance(error, AssertionError), error
                        await asyncio.sleep(0.02)

            restarting = asyncio.create_task(restarts())
            await insist(lambda: client.workflow("fluxjob-7", XFS))
            path = f"{NS}/workflows/fluxjob-7"
            for state in ("Proposal", "Setup", "DataIn", "PreRun", "PostRun", "DataOut", "Teardown"):
                if state == "Setup":
                    storage = [{"name": "rabbit-0", "allocationCount": 1}]
                    fill = {"spec": {"allocationSets": [{"label": "xfs", "allocationSize": 2**31, "storage": storage}]}}
                    await insist(lambda fill=fill: client.merge(f"{NS}/servers/fluxjob-7-0", fill))
                    await insist(lambda: client.merge(f"{NS}/computes/fluxjob-7", {"data": [{"name": "compute-0"}]}))
                if state != "Proposal":
                    code, said = await insist(lambda state=state: client.merge(path, {"spec": {"desiredState": state}}))
                    assert code == 200, said
                await insist(
                    lambda state=state: client.until(
                        "fluxjob-7", lambda status: status.get("state") == state and status["ready"]
                    )
                )
            await restarting
            assert len(crashed) == 7 and standin.driver.used() == {}

    run(check)
