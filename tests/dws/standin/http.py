"""The Kubernetes REST dialect over real HTTP: discovery, lists, watches, writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from aiohttp import web

from . import store as stores
from .faults import Fault, Faults
from .kinds import Kind, of_definition
from .requests import Request, RequestLog
from .store import Object, Refused, Store

_PATCHES = {"application/merge-patch+json": "merge", "application/json-patch+json": "json"}
_STRATEGIC = "application/strategic-merge-patch+json"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Cut(Exception):
    """The connection goes away without an answer."""


class Server:
    """Serves one `Store` on one port; `start` and `stop` may be called again, the store stays."""

    def __init__(self, store: Store, *, token: str = "", bookmark_s: float = 1.0) -> None:
        self.store, self.token, self.bookmark_s = store, token, bookmark_s
        self.log, self.faults = RequestLog(), Faults()
        self.port = 0
        #: pod logs by (namespace, name)
        self.pod_logs: dict[tuple[str, str], str] = {}
        self._runner: web.ServerRunner | None = None
        self._number = 0

    async def start(self) -> None:
        logging.getLogger("aiohttp").setLevel(logging.ERROR)
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            for queue in self.store.watchers:
                queue.put_nowait(None)
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- one request -------------------------------------------------------------------

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        raw = await http.read()
        self._number += 1
        request = Request(self._number, http.method, http.path, dict(http.query), None, http.content_type)
        self._parse(request)
        self.log.add(request)
        self.log.in_flight += not request.watch
        request.in_flight = self.log.in_flight
        try:
            if self.token and http.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            try:
                request.body = json.loads(raw) if raw else None
            except ValueError as error:
                raise Refused(400, "BadRequest", f"error decoding body: {error}") from None
            if self.faults.delay_s:
                await asyncio.sleep(self.faults.delay_s)
            fault = self.faults.of(request)
            await self._before(request, fault)
            if request.watch:
                return await self._watch(http, request, fault)
            code, body = self._do(request)
            if fault is not None and fault.action == "cut-after":
                raise Cut
        except Refused as refused:
            code, body = refused.code, refused.status()
        except Cut:
            if http.transport is not None:
                http.transport.abort()
            return web.Response(status=500)
        finally:
            self.log.in_flight -= not request.watch
        request.code, request.answer = code, body
        if isinstance(body, str):
            return web.Response(status=code, text=body, content_type="text/plain")
        headers = {"Retry-After": "0"} if code == 429 else None
        return web.Response(status=code, text=json.dumps(body), content_type="application/json", headers=headers)

    def _parse(self, request: Request) -> None:
        parts = request.path.strip("/").split("/")
        if parts[0] == "api" and len(parts) > 1:
            request.version, rest = parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 2:
            request.group, request.version, rest = parts[1], parts[2], parts[3:]
        else:
            return
        if len(rest) > 2 and rest[0] == "namespaces":
            request.namespace, rest = rest[1], rest[2:]
        request.resource, request.name, request.sub = [*rest, "", "", ""][:3]
        request.watch = request.query.get("watch", "") in ("true", "1") and request.method == "GET"

    async def _before(self, request: Request, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.action == "delay":
            await asyncio.sleep(fault.delay_s)
        elif fault.action == "cut-before":
            raise Cut
        elif fault.action == "status":
            reason = {429: "TooManyRequests", 503: "ServiceUnavailable", 504: "Timeout"}.get(
                fault.code, "InternalError"
            )
            raise Refused(fault.code, reason, "the server is currently unable to handle the request")
        elif fault.action == "denied":
            raise Refused(
                403,
                "Forbidden",
                f'{request.resource}.{request.group} "{request.name}" is forbidden: User "flux" cannot {request.verb} resource '
                f'"{request.resource}" in API group "{request.group}" in the namespace "{request.namespace}"',
            )
        elif fault.action == "expire" and not request.watch:
            raise Refused(410, "Expired", "too old resource version")

    def _do(self, request: Request) -> tuple[int, Any]:
        path = request.path.rstrip("/")
        if path == "/version":
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0-standin"}
        if path in ("/healthz", "/readyz", "/livez"):
            return 200, "ok"
        if path.startswith(_DEFINITIONS):
            return self._define(request)
        if not request.resource:
            return 200, self._discover(request, path)
        kind = self._kind(request)
        if request.sub == "log" and kind.plural == "pods":
            self.store.get(kind, request.namespace, request.name)
            return 200, self.pod_logs.get((request.namespace, request.name), "")
        if request.sub and not (request.sub == "status" and kind.status):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        handler = getattr(self, f"_{request.method.lower()}", None)
        if handler is None:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        code, body = handler(kind, request)
        return code, body

    def _kind(self, request: Request) -> Kind:
        kind = self.store.kinds.get((request.group, request.resource))
        if kind is None or request.version not in kind.versions:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return kind

    def _shown(self, kind: Kind, request: Request, one: Object) -> Object:
        return {
            "apiVersion": f"{kind.group}/{request.version}" if kind.group else request.version,
            "kind": kind.kind,
            **one,
        }

    # -- verbs -------------------------------------------------------------------------

    def _get(self, kind: Kind, request: Request) -> tuple[int, Object]:
        if request.name:
            return 200, self._shown(kind, request, self.store.get(kind, request.namespace, request.name))
        query = request.query
        items, metadata = self.store.page(
            kind,
            request.namespace,
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
            int(query.get("limit") or 0),
            query.get("continue", ""),
        )
        shown = [self._shown(kind, request, one) for one in items]
        version = f"{kind.group}/{request.version}" if kind.group else request.version
        return 200, {"apiVersion": version, "kind": f"{kind.kind}List", "metadata": metadata, "items": shown}

    def _post(self, kind: Kind, request: Request) -> tuple[int, Object]:
        if request.name:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        return 201, self._shown(kind, request, self.store.create(kind, request.namespace, request.body or {}))

    def _put(self, kind: Kind, request: Request) -> tuple[int, Object]:
        return 200, self._shown(
            kind, request, self.store.update(kind, request.namespace, request.name, request.body or {}, sub=request.sub)
        )

    def _patch(self, kind: Kind, request: Request) -> tuple[int, Object]:
        how = _PATCHES.get(request.content_type)
        if how is None and request.content_type == _STRATEGIC and kind.core:
            how = "merge"
        if how is None:
            raise Refused(
                415,
                "UnsupportedMediaType",
                f"the body of the request was in an unknown format - accepted media types include: {', '.join(_PATCHES)}",
            )
        if (how == "json") != isinstance(request.body, list):
            raise Refused(400, "BadRequest", "error decoding patch: json: cannot unmarshal")
        done = self.store.patch(kind, request.namespace, request.name, request.body, how=how, sub=request.sub)
        return 200, self._shown(kind, request, done)

    def _delete(self, kind: Kind, request: Request) -> tuple[int, Object]:
        if not request.name:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        one, gone = self.store.delete(kind, request.namespace, request.name, request.body)
        if not gone:
            return 200, self._shown(kind, request, one)
        details = {"name": request.name, "group": kind.group, "kind": kind.plural, "uid": one["metadata"]["uid"]}
        return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    # -- definitions and discovery ----------------------------------------------------

    def _define(self, request: Request) -> tuple[int, Object]:
        if request.method != "POST":
            raise Refused(405, "MethodNotAllowed", "only creation of definitions is served")
        kind = of_definition(request.body)
        if kind.key in self.store.kinds:
            raise Refused(
                409, "AlreadyExists", f'customresourcedefinitions.apiextensions.k8s.io "{kind.full}" already exists'
            )
        self.store.register(kind)
        return 201, request.body

    def _discover(self, request: Request, path: str) -> Object:
        groups: dict[str, list[str]] = {}
        for kind in self.store.kinds.values():
            if kind.group:
                groups.setdefault(kind.group, list(kind.versions))

        def shown(name: str) -> Object:
            listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in groups[name]]
            return {"name": name, "versions": listed, "preferredVersion": listed[0]}

        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [shown(name) for name in groups]}
        parts = path.strip("/").split("/")
        if len(parts) == 2 and parts[0] == "apis" and parts[1] in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **shown(parts[1])}
        resources = []
        for kind in self.store.kinds.values():
            if kind.group != request.group or request.version not in kind.versions:
                continue
            verbs = ["delete", "get", "list", "patch", "create", "update", "watch"]
            resources.append(
                {
                    "name": kind.plural,
                    "singularName": kind.kind.lower(),
                    "namespaced": True,
                    "kind": kind.kind,
                    "verbs": verbs,
                }
            )
            if kind.status:
                resources.append(
                    {
                        "name": f"{kind.plural}/status",
                        "singularName": "",
                        "namespaced": True,
                        "kind": kind.kind,
                        "verbs": ["get", "patch", "update"],
                    }
                )
        if not resources:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        version = f"{request.group}/{request.version}" if request.group else request.version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}

    # -- watches -----------------------------------------------------------------------

    async def _watch(self, http: web.BaseRequest, request: Request, fault: Fault | None) -> web.StreamResponse:
        kind = self._kind(request)
        query = request.query
        by_label, by_field = (
            stores.parse_labels(query.get("labelSelector", "")),
            stores.parse_fields(query.get("fieldSelector", "")),
        )
        if request.name:
            by_name = stores.parse_fields(f"metadata.name={request.name}")
        else:
            by_name = by_label

        def mine(one: Object | None) -> bool:
            if one is None or (request.namespace and one["metadata"].get("namespace") != request.namespace):
                return False
            return by_label(one) and by_field(one) and (by_name(one) if request.name else True)

        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        request.code = 200
        await response.prepare(http)
        sent = 0

        async def send(change: str, one: Object) -> None:
            nonlocal sent
            line = json.dumps({"type": change, "object": one}).encode() + b"\n"
            if fault is not None and fault.action == "drop-watch" and sent >= fault.events:
                await response.write(line[: len(line) // 2])
                raise Cut
            await response.write(line)
            sent += 1

        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.store.watchers[queue] = kind
        loop = asyncio.get_running_loop()
        ends = loop.time() + float(query.get("timeoutSeconds") or 1800)
        try:
            wanted = int(query.get("resourceVersion") or 0)
            if fault is not None and fault.action == "expire":
                raise Refused(410, "Expired", f"too old resource version: {wanted} ({self.store.version})")
            version = self.store.version
            if wanted == 0:
                for one in self.store.all(kind, request.namespace):
                    if mine(one):
                        await send("ADDED", self._shown(kind, request, one))
            else:
                for entry in self.store.since(kind, wanted):
                    await self._send_change(kind, request, entry, mine, send)
            while (left := ends - loop.time()) > 0:
                try:
                    entry = await asyncio.wait_for(queue.get(), min(left, self.bookmark_s))
                except TimeoutError:
                    if query.get("allowWatchBookmarks") in ("true", "1"):
                        mark = {"metadata": {"resourceVersion": str(self.store.version), "creationTimestamp": None}}
                        await send("BOOKMARK", self._shown(kind, request, mark))
                    continue
                if entry is None:
                    raise Cut  # the server goes down
                if entry[0] > version and entry[2] is kind:
                    await self._send_change(kind, request, entry, mine, send)
        except Refused as refused:
            await send("ERROR", refused.status())
        except Cut:
            if http.transport is not None:
                http.transport.abort()
            return response
        except ConnectionError:
            return response
        finally:
            self.store.watchers.pop(queue, None)
        with contextlib.suppress(ConnectionError):  # the client may have gone first
            await response.write_eof()
        return response

    async def _send_change(self, kind: Kind, request: Request, entry: Any, mine: Any, send: Any) -> None:
        """An object that comes to fit a selector is ADDED for it, one that no longer fits is DELETED."""
        _, change, _, new, old = entry
        fits, fitted = mine(new), change != "ADDED" and mine(old)
        if change == "DELETED":
            change = "DELETED" if fitted or fits else ""
        elif fits:
            change = "MODIFIED" if fitted else "ADDED"
        else:
            change = "DELETED" if fitted else ""
        if change:
            await send(change, self._shown(kind, request, new))
