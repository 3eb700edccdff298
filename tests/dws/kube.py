"""A bare HTTP client for the tests of the stand-in: requests in, (code, body) out. It also speaks to a real cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

G, V = "dataworkflowservices.github.io", "v1alpha7"
NS = f"/apis/{G}/{V}/namespaces/default"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
OURS = "flux-framework.readthedocs.io/workflow"


class Kube:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def __call__(
        self, method: str, path: str, body: Any = None, how: str = "application/json", **query: str
    ) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        async with self.session.request(method, path, data=data, headers={"Content-Type": how}, params=query) as answer:
            text = await answer.text()
            try:
                return answer.status, json.loads(text)
            except ValueError:
                return answer.status, text

    async def merge(self, path: str, body: Any) -> tuple[int, Any]:
        return await self("PATCH", path, body, MERGE)

    async def watch(
        self, path: str, version: str | int, events: int, seconds: float = 5, **query: str
    ) -> list[dict[str, Any]]:
        """The first `events` events, or those that came before the server's time-out."""
        params = {"watch": "true", "resourceVersion": str(version), "timeoutSeconds": str(seconds), **query}
        found: list[dict[str, Any]] = []
        async with self.session.get(path, params=params, timeout=aiohttp.ClientTimeout(total=seconds + 20)) as answer:
            async for line in answer.content:
                if line.strip():
                    found.append(json.loads(line))
                if len(found) >= events:
                    break
        return found

    async def workflow(self, name: str, *directives: str, spec: dict[str, Any] | None = None) -> tuple[int, Any]:
        body = {
            "metadata": {"name": name, "finalizers": [OURS]},
            "spec": {
                "desiredState": "Proposal",
                "dwDirectives": list(directives),
                "jobID": "f1",
                "userID": 1000,
                "groupID": 1000,
                "wlmID": "flux",
            }
            | (spec or {}),
        }
        return await self("POST", f"{NS}/workflows", body)

    async def until(self, name: str, done: Any, seconds: float = 20) -> list[dict[str, Any]]:
        """Watch a workflow until `done(status)`; every status that was seen."""
        seen: list[dict[str, Any]] = []
        params = {"watch": "true", "timeoutSeconds": str(seconds), "fieldSelector": f"metadata.name={name}"}
        async with asyncio.timeout(seconds), self.session.get(f"{NS}/workflows", params=params) as answer:
            async for line in answer.content:
                event = json.loads(line)
                seen.append(event["object"].get("status") or {})
                if done(seen[-1]):
                    return seen
        raise AssertionError(f"{name} never got there: {seen[-1] if seen else None}")


@asynccontextmanager
async def kube(url: str) -> AsyncIterator[Kube]:
    async with aiohttp.ClientSession(url) as session:
        yield Kube(session)
