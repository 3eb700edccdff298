"""The stand-in answers as a real API server does: facts measured on kube-apiserver 1.36, one test each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from kube import JSON_PATCH, NS, OURS, G, Kube, V, kube
from standin import Standin


def on_bare(check: Callable[[Kube, Standin], Awaitable[None]]) -> Callable[[], None]:
    """Run `check` against a server without webhook and controllers, as the contract was measured."""

    def test() -> None:
        async def run() -> None:
            async with Standin(webhook=False, controllers=False) as standin, kube(standin.server.url) as client:
                async with asyncio.timeout(30):
                    await check(client, standin)

        asyncio.run(run())

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


@contextlib.asynccontextmanager
async def one(client: Kube) -> AsyncIterator[tuple[str, Any]]:
    code, made = await client.workflow("fluxjob-1234", "#DW jobdw type=xfs capacity=10GiB name=p1")
    assert code == 201
    yield f"{NS}/workflows/fluxjob-1234", made


@on_bare
async def test_discovery_lists_kinds_versions_and_subresources(client: Kube, _: Standin) -> None:
    _code, groups = await client("GET", "/apis")
    group = next(item for item in groups["groups"] if item["name"] == G)
    assert group["preferredVersion"]["version"] == V
    assert [item["version"] for item in group["versions"]] == ["v1alpha7", "v1alpha6"]
    code, found = await client("GET", f"/apis/{G}/{V}")
    names = [item["name"] for item in found["resources"]]
    assert code == 200 and sum("/" not in name for name in names) == 10
    assert sorted(name for name in names if "/" in name) == [
        "clientmounts/status", "directivebreakdowns/status", "persistentstorageinstances/status",
        "servers/status", "storages/status", "systemconfigurations/status",
    ]  # fmt: skip


@on_bare
async def test_definitions_can_be_posted(client: Kube, _: Standin) -> None:
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "required": ["size"], "properties": {"size": {"type": "integer"}}}},
    }
    versions = [
        {
            "name": "v1",
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema},
        }
    ]
    definition = {
        "metadata": {"name": "boxes.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Box", "plural": "boxes"},
            "scope": "Namespaced",
            "versions": versions,
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert [(await client("POST", path, definition))[0] for _ in range(2)] == [201, 409]
    assert (
        await client("POST", "/apis/example.com/v1/namespaces/default/boxes", {"metadata": {"name": "b"}, "spec": {}})
    )[0] == 422


@on_bare
async def test_create_and_create_twice(client: Kube, _: Standin) -> None:
    async with one(client) as (_path, made):
        assert made["metadata"]["resourceVersion"].isdigit() and made["metadata"]["uid"]
        assert made["spec"]["forceReady"] is False and made["spec"]["hurry"] is False
        code, again = await client.workflow("fluxjob-1234", "#DW jobdw type=xfs capacity=10GiB name=p1")
        assert (code, again["reason"]) == (409, "AlreadyExists")


@on_bare
async def test_the_schema_is_checked(client: Kube, _: Standin) -> None:
    code, said = await client.workflow("fluxjob-9", spec={"desiredState": "Nope"})
    assert code == 422
    assert said["message"].startswith(
        'Workflow.dataworkflowservices.github.io "fluxjob-9" is invalid: spec.desiredState: Unsupported value: "Nope": supported values: "Proposal"'
    )
    code, said = await client.workflow("fluxjob-9", spec={"userID": "x"})
    assert (
        code == 422
        and 'is invalid: spec.userID: Invalid value: "string": spec.userID in body must be of type integer'
        in said["message"]
    )
    code, made = await client.workflow("fluxjob-9", spec={"bogus": 1, "jobID": 77})
    assert code == 201 and "bogus" not in made["spec"] and made["spec"]["jobID"] == 77


@on_bare
async def test_patches_and_the_watch_that_sees_them(client: Kube, _: Standin) -> None:
    async with one(client) as (path, made):
        _code, listed = await client("GET", f"{NS}/workflows")
        version = listed["metadata"]["resourceVersion"]
        watching = asyncio.create_task(client.watch(f"{NS}/workflows", version, 2))
        code, now = await client.merge(path, {"spec": {"desiredState": "Setup"}})
        assert (code, now["spec"]["desiredState"], now["spec"]["wlmID"], now["metadata"]["generation"]) == (
            200,
            "Setup",
            "flux",
            2,
        )
        # a Workflow has no status subresource: its status is patched on the object
        code, now = await client.merge(path, {"status": {"state": "Setup", "ready": True, "status": "Completed"}})
        assert code == 200 and now["status"]["ready"] is True
        assert [(event["type"], event["object"]["metadata"]["name"]) for event in await watching] == [
            ("MODIFIED", "fluxjob-1234")
        ] * 2
        assert (await client.merge(f"{path}/status", {"status": {"ready": False}}))[0] == 404
        replay = await client.watch(f"{NS}/workflows", made["metadata"]["resourceVersion"], 2, 2)
        assert [event["type"] for event in replay] == ["MODIFIED", "MODIFIED"]


@on_bare
async def test_a_version_that_is_too_old_is_410(client: Kube, standin: Standin) -> None:
    async with one(client) as (_path, _made):
        (event,) = await client.watch(f"{NS}/workflows", 1, 1, 3)
        assert event["type"] == "ERROR" and event["object"]["code"] == 410 and event["object"]["reason"] == "Expired"
        _code, listed = await client("GET", f"{NS}/workflows")
        await client.merge(f"{NS}/workflows/fluxjob-1234", {"metadata": {"labels": {"a": "b"}}})
        standin.store.compact()
        (event,) = await client.watch(f"{NS}/workflows", listed["metadata"]["resourceVersion"], 1, 3)
        assert event["object"]["code"] == 410


@on_bare
async def test_selectors_of_lists_and_watches(client: Kube, _: Standin) -> None:
    async with one(client) as (path, made):
        version = made["metadata"]["resourceVersion"]
        await client.merge(path, {"metadata": {"labels": {"a": "b"}}})
        await client.merge(path, {"metadata": {"labels": {"a": "c"}}})
        for selector, count in (("a=zzz", 0), ("a=c", 1), ("a!=c", 0), ("a", 1), ("!a", 0), ("a=c,b!=x", 1)):
            assert len((await client("GET", f"{NS}/workflows", labelSelector=selector))[1]["items"]) == count, selector
        assert (
            len((await client("GET", f"{NS}/workflows", fieldSelector="metadata.name=fluxjob-1234"))[1]["items"]) == 1
        )
        assert (
            len((await client("GET", f"{NS}/workflows", fieldSelector="metadata.name!=fluxjob-1234"))[1]["items"]) == 0
        )
        assert (await client("GET", f"{NS}/workflows", fieldSelector="spec.userID=1"))[0] == 400
        assert await client.watch(f"{NS}/workflows", version, 1, 1, labelSelector="a=zzz") == []
        # what comes to fit a selector is ADDED for it, what no longer fits DELETED
        seen = await client.watch(f"{NS}/workflows", version, 2, 3, labelSelector="a=b")
        assert [event["type"] for event in seen] == ["ADDED", "DELETED"]


@on_bare
async def test_time_outs_and_bookmarks(client: Kube, standin: Standin) -> None:
    standin.server.bookmark_s = 0.1
    seen = await client.watch(f"{NS}/workflows", standin.store.version, 99, 1, allowWatchBookmarks="true")
    assert seen and {event["type"] for event in seen} == {"BOOKMARK"}
    assert seen[0]["object"]["metadata"]["resourceVersion"] == str(standin.store.version)
    assert await client.watch(f"{NS}/workflows", standin.store.version, 99, 1) == []


@on_bare
async def test_a_put_needs_the_present_version(client: Kube, _: Standin) -> None:
    async with one(client) as (path, made):
        await client.merge(path, {"metadata": {"labels": {"a": "b"}}})
        code, said = await client("PUT", path, made)
        assert (code, said["reason"]) == (409, "Conflict")
        code, said = await client.merge(
            path, {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"a": "z"}}}
        )
        assert (code, said["reason"]) == (409, "Conflict")
        _code, now = await client("GET", path)
        assert (await client("PUT", path, now))[0] == 200


@on_bare
async def test_status_is_a_subresource_of_storages(client: Kube, _: Standin) -> None:
    code, made = await client(
        "POST", f"{NS}/storages", {"metadata": {"name": "rabbit-9"}, "spec": {}, "status": {"capacity": 5}}
    )
    assert code == 201 and made["spec"] == {"mode": "Live", "state": "Enabled"} and "status" not in made
    path = f"{NS}/storages/rabbit-9"
    assert "status" not in (await client.merge(path, {"status": {"capacity": 99}}))[1]
    code, now = await client.merge(
        f"{path}/status", {"status": {"capacity": 77, "status": "Ready"}, "spec": {"state": "Disabled"}}
    )
    assert code == 200 and now["status"] == {"capacity": 77, "status": "Ready"} and now["spec"]["state"] == "Enabled"
    assert (await client.merge(path, {"spec": {"state": "Disabled"}}))[1]["status"]["capacity"] == 77
    code, now = await client("PATCH", path, [{"op": "replace", "path": "/spec/state", "value": "Enabled"}], JSON_PATCH)
    assert code == 200 and now["spec"]["state"] == "Enabled"
    assert (await client("PATCH", path, [{"op": "test", "path": "/spec/state", "value": "Gone"}], JSON_PATCH))[0] == 422
    assert (await client("PATCH", path, {"spec": {}}, "application/strategic-merge-patch+json"))[0] == 415


@on_bare
async def test_finalizers_hold_what_is_deleted(client: Kube, _: Standin) -> None:
    async with one(client) as (path, _made):
        code, _said = await client("DELETE", path)
        still, now = await client("GET", path)
        assert (code, still) == (200, 200) and now["metadata"]["deletionTimestamp"]
        code, said = await client.merge(path, {"metadata": {"finalizers": ["x.y/z", OURS]}})
        assert code == 422 and "metadata.finalizers: Forbidden: no new finalizers can be added" in said["message"]
        assert (await client.merge(path, {"metadata": {"finalizers": []}}))[0] == 200
        assert (await client("GET", path))[0] == 404


@on_bare
async def test_versions_and_pages(client: Kube, _: Standin) -> None:
    assert (await client("GET", f"/apis/{G}/v1alpha6/namespaces/default/storages"))[0] == 200
    assert (await client("GET", f"/apis/{G}/v1alpha4/namespaces/default/storages"))[0] == 404
    for name in ("b", "c", "d"):
        await client("POST", f"/apis/{G}/{V}/namespaces/x-{name}/storages", {"metadata": {"name": name}, "spec": {}})
    names, token = [], ""
    while True:
        _code, page = await client(
            "GET", f"/apis/{G}/{V}/storages", limit="2", **({"continue": token} if token else {})
        )
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert names == ["rabbit-0", "b", "c", "d"]


# -- the ways in which it fails when it is asked to ------------------------------------------------


@on_bare
async def test_faults(client: Kube, standin: Standin) -> None:
    path = f"{NS}/storages/rabbit-0"
    standin.fault("status", resource="storages", code=503)
    assert [(await client("GET", path))[0] for _ in range(2)] == [503, 200]
    standin.fault("denied", method="PATCH", resource="systemstatuses", times=0)
    code, said = await client.merge(f"{NS}/systemstatuses/default", {"data": {"nodes": {"n": "Enabled"}}})
    assert code == 403 and 'cannot patch resource "systemstatuses"' in said["message"]
    standin.fault("cut-before", method="PATCH", resource="storages")
    with pytest.raises(aiohttp.ClientError):
        await client.merge(path, {"spec": {"state": "Disabled"}})
    assert (await client("GET", path))[1]["spec"]["state"] == "Enabled"
    standin.fault("cut-after", method="PATCH", resource="storages")
    with pytest.raises(aiohttp.ClientError):
        await client.merge(path, {"spec": {"state": "Disabled"}})
    assert (await client("GET", path))[1]["spec"]["state"] == "Disabled"
    standin.fault("expire", resource="storages", watch=True)
    (event,) = await client.watch(f"{NS}/storages", standin.store.version, 1)
    assert event["object"]["code"] == 410
    standin.fault("drop-watch", resource="storages", watch=True, events=0)
    with pytest.raises((aiohttp.ClientError, ValueError)):
        await client.watch(f"{NS}/storages", 0, 99)
    assert [action for action, _ in standin.faults.met] == [
        "status",
        "denied",
        "cut-before",
        "cut-after",
        "expire",
        "drop-watch",
    ]


@on_bare
async def test_a_restart_keeps_what_was_stored(client: Kube, standin: Standin) -> None:
    async with one(client) as (path, made):
        watching = asyncio.create_task(client.watch(f"{NS}/workflows", standin.store.version, 1))
        while not any(request.watch for request in standin.log.entries):
            await asyncio.sleep(0.01)
        await standin.restart()
        with pytest.raises(aiohttp.ClientError):
            await watching
        _code, now = await client("GET", path)
        assert now["metadata"]["uid"] == made["metadata"]["uid"]


def test_a_token_is_asked_for() -> None:
    async def run() -> None:
        async with Standin(token="sesame") as standin, kube(standin.server.url) as client:
            assert (await client("GET", f"{NS}/storages"))[0] == 401

    asyncio.run(run())
