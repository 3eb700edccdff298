"""The narrow way to a Kubernetes API server: a few verbs on JSON objects, by lightkube's configuration and credentials.

lightkube reads the kubeconfig (in-cluster, `$KUBECONFIG`, `~/.kube/config`; tokens, client certificates, exec plugins)
and hands over an HTTP client. Lists, watches, versions and retries are ours (`reflector`), since no library of this
kind keeps deletions across a 410. Nothing else of the project imports lightkube.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from leveret.errors import ConfigError

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
#: the first item of every watch: the server has taken it
OPEN: Object = {"type": "OPEN"}
#: statuses that say "not now": asked again after a pause (401: a token that is being renewed)
AGAIN = (401, 408, 425, 429, 500, 502, 503, 504)
_PAGE = 500


class KubeError(Exception):
    """The server's answer was No (`Status` of kind Failure)."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


class KubeUnreachable(Exception):
    """No answer, or one that says that there is none now. Whether the request was carried out is not known."""


class Kind(NamedTuple):
    """A resource: `version` is the served one, by discovery."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [base, *(("namespaces", namespace) if namespace else ()), self.plural, name, sub]
        return "/".join(part for part in parts if part)


class Backoff:
    """Pauses that double up to a limit, with jitter so that many clients do not come back together."""

    def __init__(self, first_s: float, max_s: float, dice: random.Random) -> None:
        self.first_s = first_s
        self.max_s = max_s
        self._dice = dice
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        whole = min(self.max_s, self.first_s * 2 ** min(self._failures, 30))
        self._failures += 1
        return float(whole * (0.5 + self._dice.random() / 2))

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s())


class Kube:
    """One API server. At most `in_flight_max` requests are under way at a time, watches apart."""

    def __init__(
        self, kubeconfig: str = "", context: str = "", *, in_flight_max: int = 16, timeout_s: float = 30
    ) -> None:
        try:
            import httpx2
            from lightkube import KubeConfig
            from lightkube.config.client_adapter import AsyncClient, ConnectionParams
            from lightkube.config.models import User
            from lightkube.core.exceptions import ConfigError as KubeConfigError
        except ImportError as error:
            raise ConfigError(
                "storage on Kubernetes needs the package lightkube", "install it with: pip install 'leveret[dws]'"
            ) from error
        try:
            config = (KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()).get(context or None)
        except (KubeConfigError, OSError, ValueError, KeyError) as error:
            raise ConfigError(f"kubeconfig: {error}", "set KUBECONFIG, or [rabbit] kubeconfig") from error
        assert config is not None
        if config.user is None:
            config = config._replace(user=User())
        self._lost = httpx2.HTTPError
        self._timeout_of: Callable[..., Any] = httpx2.Timeout
        self._timeout_s = timeout_s
        # requests wait for the gate, not for a connection: watches need theirs all the time
        self._client = AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(timeout_s, pool=None)))
        self._gate = asyncio.Semaphore(in_flight_max)

    async def close(self) -> None:
        await self._client.aclose()

    # ---- requests ----------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer's JSON (text where it is not JSON). Raises KubeError or KubeUnreachable."""
        raw = None if body is None else json.dumps(body)
        async with self._gate:
            try:
                answer = await self._client.request(
                    method, path, content=raw, params=dict(params or {}), headers={"Content-Type": content}
                )
            except self._lost as error:
                raise KubeUnreachable(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        return _read(answer.status_code, answer.content)

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        found: Object = await self.request("GET", kind.path(namespace, name))
        return found

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> tuple[list[Object], str]:
        """(all objects, the version of the list), by pages."""
        found: list[Object] = []
        params = {"limit": str(_PAGE)} | ({"labelSelector": labels} if labels else {})
        while True:
            page = await self.request("GET", kind.path(namespace), params=params)
            found += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue")
            if not token:
                return found, str(metadata.get("resourceVersion", ""))
            params["continue"] = token

    async def create(self, kind: Kind, body: Object, namespace: str) -> Object:
        made: Object = await self.request("POST", kind.path(namespace), body)
        return made

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, sub: str = "") -> Object:
        """A merge patch (RFC 7386)."""
        now: Object = await self.request("PATCH", kind.path(namespace, name, sub), body, content=MERGE)
        return now

    async def delete(self, kind: Kind, name: str, namespace: str, uid: str = "") -> Object:
        """What the server said: the object that is now marked, or a Status. With `uid` only that very object."""
        body = {"preconditions": {"uid": uid}} if uid else None
        said: Object = await self.request("DELETE", kind.path(namespace, name), body)
        return said

    # ---- watches -----------------------------------------------------------------------------------

    async def watch(
        self, kind: Kind, version: str, namespace: str = "", *, timeout_s: int = 300
    ) -> AsyncIterator[Object]:
        """OPEN, then events since `version` until the server ends the watch. Raises KubeError (also for an ERROR event) or KubeUnreachable."""
        params = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        try:
            async with self._client.stream(
                "GET",
                kind.path(namespace),
                params=params,
                timeout=self._timeout_of(self._timeout_s, read=timeout_s + 30),
            ) as answer:
                if answer.status_code != 200:
                    _read(answer.status_code, await answer.aread())
                yield OPEN
                async for line in answer.aiter_lines():
                    if not line.strip():
                        continue
                    event = json.loads(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise KubeError(
                            int(status.get("code") or 500),
                            str(status.get("reason") or ""),
                            str(status.get("message") or ""),
                        )
                    yield event
        except self._lost as error:
            raise KubeUnreachable(f"watch of {kind.plural}: {type(error).__name__}: {error}".rstrip(": ")) from error
        except ValueError as error:
            raise KubeUnreachable(f"watch of {kind.plural} was cut") from error

    # ---- discovery ---------------------------------------------------------------------------------

    async def served(self, group: str, known: tuple[str, ...], first: str = "") -> str:
        """The version of `group` to speak: `first` if it is served, the preferred one if it is `known`, else the newest known
        one that is served. Raises KubeError 404 when there is none."""
        found = await self.request("GET", f"/apis/{group}")
        versions = [str(one.get("version")) for one in found.get("versions") or []]
        preferred = str((found.get("preferredVersion") or {}).get("version") or "")
        for one in (first, preferred, *known):
            if one and one in versions and (one == first or one in known):
                return one
        raise KubeError(
            404, "NotFound", f"{group} is served in {', '.join(versions) or 'no version'}, none of which is known here"
        )


def _read(code: int, content: bytes) -> Any:
    try:
        body = json.loads(content) if content else {}
    except ValueError:
        body = content.decode(errors="replace")
    if code < 400:
        return body
    told = body if isinstance(body, dict) else {}
    message = str(told.get("message") or body or f"HTTP {code}")
    if code in AGAIN:
        raise KubeUnreachable(f"HTTP {code}: {message}")
    raise KubeError(code, str(told.get("reason") or ""), message)
