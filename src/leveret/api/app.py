"""The routes: a few lines each. No door computes anything of its own."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from leveret import __version__, wire
from leveret.api import housekeeping_routes, openapi, queue_routes
from leveret.api.hold_routes import HoldRoutes
from leveret.api.rabbit_routes import ROUTES as RABBIT_ROUTES
from leveret.api.rabbit_routes import RabbitRoutes
from leveret.api.resource_routes import ROUTES as RESOURCE_ROUTES
from leveret.api.resource_routes import ResourceRoutes
from leveret.api.sched_routes import SchedRoutes
from leveret.api.upkeep_routes import UpkeepRoutes
from leveret.core import jobid as jobids
from leveret.errors import (
    BusyError,
    ForbiddenError,
    InvalidError,
    LeveretError,
    NotFoundError,
    NothingToWaitError,
    NotWaitableError,
    UsageError,
    VersionError,
)
from leveret.manager import userevents
from leveret.manager.manager import Manager, job_waitable
from leveret.manager.queries import Queries

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
JSON_LINES = "application/jsonl"
BODY_BYTES_MAX = 64 << 20
#: jobs of one purge request: a transaction
PURGE_MAX = 200
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Instance(Protocol):
    """What the daemon itself knows."""

    ending: asyncio.Event

    def describe(self) -> dict[str, Any]: ...

    async def shut_down(self, timeout_s: float, keep: bool) -> list[str]: ...

    async def dump(self, path: str, archive: bool) -> dict[str, Any]: ...


def answer(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


class Api(
    SchedRoutes,
    HoldRoutes,
    housekeeping_routes.HousekeepingRoutes,
    ResourceRoutes,
    RabbitRoutes,
    queue_routes.QueueRoutes,
    UpkeepRoutes,
):
    def __init__(self, manager: Manager, queries: Queries, instance: Instance, owner_uid: int) -> None:
        self.manager = manager
        self.queries = queries
        self.instance = instance
        self.owner_uid = owner_uid

    # ---- plumbing ----------------------------------------------------------------------------------

    def guard(self, handler: Handler) -> Handler:
        """Identity, protocol and errors, for every route."""

        async def guarded(request: Request) -> Response:
            try:
                self._check(request)
                return await handler(request)
            except LeveretError as error:
                return answer(error.to_dict(), error.status)
            except Exception as error:
                self.manager.log.exception("request failed", path=request.url.path)
                body = {
                    "code": "internal",
                    "message": f"{type(error).__name__}: {error}",
                    "hint": "see the daemon's log",
                }
                return answer({**body, "path": ""}, 500)

        return guarded

    def _check(self, request: Request) -> None:
        uid = request.scope.get("peer", (0, -1, -1))[1]
        if uid not in (self.owner_uid, 0):
            raise ForbiddenError("this instance belongs to another user", "start your own: leveret run …")
        protocol = request.headers.get("leveret-protocol", str(wire.PROTOCOL))
        if protocol not in map(str, wire.PROTOCOLS):
            raise VersionError(
                f"the client speaks protocol {protocol}, this daemon (Leveret {__version__}) {wire.PROTOCOLS[-1]}",
                "use the same version for both; `leveret shutdown` lets the next command start a new daemon",
            )

    def answer(self, value: Any) -> Response:
        return answer(value)

    def uid(self, request: Request) -> int:
        return int(request.scope["peer"][1])

    def jobid(self, request: Request) -> int:
        return jobids.parse(request.path_params["id"])

    async def body(self, request: Request, kind: type[T]) -> T:
        raw = await request.body()
        if len(raw) > BODY_BYTES_MAX:
            raise UsageError(f"the request is larger than {BODY_BYTES_MAX} bytes")
        try:
            return msgspec.json.decode(raw or b"{}", type=kind)
        except msgspec.DecodeError as error:
            raise UsageError(f"malformed request: {error}") from None

    # ---- jobs --------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        raw = await request.body()
        if len(raw) > BODY_BYTES_MAX:
            raise UsageError(f"the request is larger than {BODY_BYTES_MAX} bytes")
        try:
            body = _decode(raw)
        except msgspec.DecodeError as error:
            raise UsageError(f"malformed request: {error}") from None
        if isinstance(body, dict) and "copies" in body:
            return await self._submit_copies(request, body)
        if not isinstance(body, dict) or "jobs" not in body:
            jobid, done = self._submit_one(request, body)
            await done
            return answer({"id": jobid})
        jobs = body["jobs"]
        if not isinstance(jobs, list) or len(jobs) > wire.BULK_MAX or len(body) > 1:
            raise UsageError(f"`jobs` must be a list of at most {wire.BULK_MAX}")
        return await self._bulk(lambda item: self._submit_one(request, item), jobs)

    async def _submit_copies(self, request: Request, item: Any) -> Response:
        try:
            body = msgspec.convert(item, wire.SubmitCopies)
        except msgspec.ValidationError as error:
            raise UsageError(f"malformed request: {error}") from None
        if len(body.copies) > wire.BULK_MAX:
            raise UsageError(f"`copies` must be a list of at most {wire.BULK_MAX}")
        prepared = self.manager.prepare(body.jobspec, body.urgency, body.flags)
        uid = self.uid(request)
        return await self._bulk(lambda copy: self.manager.place(prepared, uid, copy), body.copies)

    async def _bulk(self, submit: Callable[[Any], tuple[int, asyncio.Future[None]]], items: list[Any]) -> Response:
        """Each item is accepted or refused alone; the answer comes once all that were accepted are on disk."""
        results: list[dict[str, Any]] = []
        last: asyncio.Future[None] | None = None
        for number, item in enumerate(items):
            try:
                jobid, last = submit(item)
                results.append({"id": jobid})
            except LeveretError as error:
                results.append({"error": error.to_dict()})
            if number % 20 == 19:
                await asyncio.sleep(0)  # other doors, and jobs that could run already
        if last is not None:
            await last
        return answer({"jobs": results})

    def _submit_one(self, request: Request, item: Any) -> tuple[int, asyncio.Future[None]]:
        try:
            body = msgspec.convert(item, wire.Submit)
        except msgspec.ValidationError as error:
            raise UsageError(f"malformed request: {error}") from None
        return self.manager.submit(body.jobspec, body.urgency, body.flags, self.uid(request))

    async def jobs(self, request: Request) -> Response:
        query = request.query_params

        def words(name: str) -> list[str] | None:
            return [w for w in query[name].split(",") if w] if name in query else None

        ids = [jobids.parse(text) for text in words("ids") or []] if "ids" in query else None
        records = await self.queries.listing(
            ids,
            words("states"),
            words("results"),
            query.get("user", ""),
            query.get("name", ""),
            words("queue"),
            _number(query.get("count", "1000"), "count", int),
            _number(query.get("since", "0"), "since", float),
        )
        return answer({"jobs": records})

    async def job(self, request: Request) -> Response:
        return answer(await self.queries.record(self.jobid(request)))

    async def events(self, request: Request) -> Response:
        query = request.query_params
        stream = await self.queries.events(
            self.jobid(request),
            query.getlist("path"),
            follow=_flag(query.get("follow")),
            status=_flag(query.get("status")),
            ending=self.instance.ending,
        )
        return StreamingResponse(stream, media_type=JSON_LINES)

    async def wait_many(self, request: Request) -> Response:
        body = await self.body(request, wire.WaitMany)
        if len(body.ids) > wire.WAIT_MAX:
            raise UsageError(f"at most {wire.WAIT_MAX} ids in a request")
        stream = self.queries.wait_events(body.ids, body.event, body.brief, self.instance.ending)
        return StreamingResponse(stream, media_type=JSON_LINES)

    async def get_key(self, request: Request) -> Response:
        query = request.query_params
        value = await self.queries.key(
            self.jobid(request),
            request.path_params["key"],
            original=_flag(query.get("original")),
            base=_flag(query.get("base")),
        )
        return Response(value, media_type="text/plain; charset=utf-8")

    async def put_key(self, request: Request) -> Response:
        key = request.path_params["key"]
        self.queries.check_key(key)
        value = await request.body()
        if len(value) > 1 << 20:
            raise InvalidError(f"{key}: the value is larger than 1 MiB")
        await self.manager.set_key(self.jobid(request), key, value)
        return answer({})

    async def cancel(self, request: Request) -> Response:
        body = await self.body(request, wire.Cancel)
        self.manager.cancel(self.jobid(request), body.note, self.uid(request), body.intent)
        return await self.done()

    async def raise_(self, request: Request) -> Response:
        body = await self.body(request, wire.RaiseException)
        self.manager.raise_exception(self.jobid(request), body.type, body.severity, body.note, self.uid(request))
        return await self.done()

    async def kill(self, request: Request) -> Response:
        body = await self.body(request, wire.Kill)
        if not 1 <= body.signal <= 64:
            raise InvalidError(f"invalid signal {body.signal}", path="signal")
        self.manager.kill(self.jobid(request), body.signal)
        return await self.done()

    async def post_event(self, request: Request) -> Response:
        body = await self.body(request, wire.PostEvent)
        userevents.post_event(self.manager, self.jobid(request), body.name, body.context, self.uid(request))
        return await self.done()

    async def memo(self, request: Request) -> Response:
        body = await self.body(request, wire.Memo)
        userevents.memo(self.manager, self.jobid(request), body.memo, body.volatile)
        return await self.done()

    async def tasks(self, request: Request) -> Response:
        return answer({"tasks": self.queries.tasks(self.jobid(request))})

    async def purge(self, request: Request) -> Response:
        body = await self.body(request, wire.Purge)
        if body.num_limit is not None and body.num_limit < 0:
            raise InvalidError("num limit must not be negative", path="num_limit")
        await self.manager.store.barrier()
        total, purges = self.queries.store.inactive_count(), self.manager.purges
        if body.ids is not None:
            purges.check(body.ids)
            count = len(set(body.ids))
        else:
            count = purges.matching(body.age_limit_s, body.num_limit)
        if body.dry_run:
            return answer({"count": count, "total": total})
        if body.ids is not None:
            purges.purge(sorted(set(body.ids)))
        else:
            count = purges.purge_oldest(min(count, max(body.count, 1), PURGE_MAX))
        return await self.done({"count": count, "total": total - count})

    async def urgency(self, request: Request) -> Response:
        body = await self.body(request, wire.Urgency)
        old = self.manager.set_urgency(self.jobid(request), body.urgency, self.uid(request))
        return await self.done({"old": old})

    async def stdin(self, request: Request) -> Response:
        body = await self.body(request, wire.Stdin)
        try:
            data = base64.b64decode(body.data, validate=True)
        except binascii.Error:
            raise UsageError("malformed request: `data` is not base64") from None
        taken = self.manager.stdin(self.jobid(request), body.offset, body.ranks, data, body.eof)
        return answer({"offset": await self.while_serving(taken)})

    async def winsize(self, request: Request) -> Response:
        body = await self.body(request, wire.Winsize)
        self.manager.winsize(self.jobid(request), [body.rows, body.columns])
        return answer({})

    async def wait(self, request: Request) -> Response:
        body = await self.body(request, wire.Wait)
        if body.id is None:
            jobid = await self._next_waitable()
        else:
            jobid = jobids.parse(body.id)
            job = self.manager.outcome(jobid)
            if job is None or self.manager.waited(job):
                raise NotWaitableError("invalid job id, or job may be inactive and not waitable")
            await self.while_serving(self.manager.wait_inactive(jobid))
            if job_waitable(job) and not self.manager.take_waitable(jobid):
                raise NotWaitableError("invalid job id, or job may be inactive and not waitable")
        return answer(await self.queries.record(jobid))

    async def _next_waitable(self) -> int:
        """The first waitable job to end that nobody has waited for; it counts as waited for then."""
        while True:
            taken = self.manager.take_waitable()
            if taken:
                return taken
            if not self.manager.has_waitable():
                raise NothingToWaitError("there are no more waitable jobs")
            await self.while_serving(self.manager.wait_inactive(0))

    async def while_serving(self, what: Coroutine[Any, Any, T]) -> T:
        """A long wait that ends with the daemon: `busy`, and the client asks the next one."""
        task = asyncio.ensure_future(what)
        ending = asyncio.ensure_future(self.instance.ending.wait())
        try:
            await asyncio.wait((task, ending), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise BusyError("the daemon is ending")
            return task.result()
        finally:
            task.cancel()
            ending.cancel()

    # ---- the instance ------------------------------------------------------------------------------

    async def status(self, request: Request) -> Response:
        quarantined = len(self.manager.quarantine.jobs)
        return answer({**self.instance.describe(), "jobs": await self.queries.counts(), "quarantined": quarantined})

    async def stats(self, request: Request) -> Response:
        return answer(await self.queries.stats())

    async def shutdown(self, request: Request) -> Response:
        body = await self.body(request, wire.Shutdown)
        return answer({"left": await self.instance.shut_down(body.timeout_s, body.keep)})

    async def openapi(self, request: Request) -> Response:
        return answer(openapi.document())

    async def done(self, value: Any = None) -> Response:
        """An answer to a change: only once it is on disk."""
        await self.manager.store.barrier()
        return answer(value if value is not None else {})

    async def missing(self, request: Request) -> Response:
        raise NotFoundError(f"no such route: {request.method} {request.url.path}", "see /v1/openapi.json")


def _flag(text: str | None) -> bool:
    return text in ("1", "true", "yes")


def _number(text: str, name: str, kind: Callable[[str], T]) -> T:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"`{name}` must be a number", path=name) from None


#: (method, path, handler, request body) – the API, one line a route
ROUTES: list[tuple[str, str, str, type | None]] = [
    ("GET", "/v1/status", "status", None),
    ("POST", "/v1/jobs", "submit", wire.Submit),
    ("GET", "/v1/jobs", "jobs", None),
    ("POST", "/v1/jobs/wait", "wait_many", wire.WaitMany),
    ("GET", "/v1/jobs/{id}", "job", None),
    ("GET", "/v1/jobs/{id}/events", "events", None),
    ("GET", "/v1/jobs/{id}/keys/{key}", "get_key", None),
    ("PUT", "/v1/jobs/{id}/keys/{key}", "put_key", None),
    ("POST", "/v1/jobs/{id}/cancel", "cancel", wire.Cancel),
    ("POST", "/v1/jobs/{id}/raise", "raise_", wire.RaiseException),
    ("POST", "/v1/jobs/{id}/events", "post_event", wire.PostEvent),
    ("POST", "/v1/jobs/{id}/memo", "memo", wire.Memo),
    ("GET", "/v1/jobs/{id}/tasks", "tasks", None),
    ("POST", "/v1/purge", "purge", wire.Purge),
    ("GET", "/v1/stats", "stats", None),
    ("POST", "/v1/jobs/{id}/kill", "kill", wire.Kill),
    ("POST", "/v1/jobs/{id}/urgency", "urgency", wire.Urgency),
    *queue_routes.ROUTES,
    *housekeeping_routes.ROUTES,
    ("POST", "/v1/jobs/{id}/stdin", "stdin", wire.Stdin),
    ("POST", "/v1/jobs/{id}/winsize", "winsize", wire.Winsize),
    ("POST", "/v1/wait", "wait", wire.Wait),
    ("GET", "/v1/jobs/{id}/explain", "explain", None),
    ("GET", "/v1/reservations", "reservations", None),
    ("POST", "/v1/reservations", "reserve", wire.Reserve),
    ("DELETE", "/v1/reservations/{name}", "unreserve", None),
    ("POST", "/v1/jobs/{id}/holds", "open_hold", wire.HoldOpen),
    ("POST", "/v1/jobs/{id}/holds/finish", "finish_hold", wire.HoldFinish),
    ("POST", "/v1/jobs/{id}/holds/progress", "progress_hold", wire.HoldProgress),
    ("POST", "/v1/jobs/{id}/holds/renew", "renew_hold", wire.HoldRenew),
    ("POST", "/v1/jobs/{id}/holds/give-up", "give_up", wire.GiveUp),
    ("GET", "/v1/holds", "holds", None),
    ("GET", "/v1/jobtap", "plugins", None),
    ("POST", "/v1/jobtap", "load", wire.Load),
    ("GET", "/v1/jobtap/{name}", "plugin", None),
    ("DELETE", "/v1/jobtap/{name}", "remove", None),
    ("GET", "/v1/jobs/{id}/export", "export", None),
    ("GET", "/v1/quarantine", "quarantined", None),
    ("POST", "/v1/quarantine/{id}/kill", "quarantine_kill", None),
    ("DELETE", "/v1/quarantine/{id}", "quarantine_remove", None),
    ("POST", "/v1/dump", "dump", wire.Dump),
    ("POST", "/v1/shutdown", "shutdown", wire.Shutdown),
    ("GET", "/v1/openapi.json", "openapi", None),
    *RESOURCE_ROUTES,
    *RABBIT_ROUTES,
]


def build(manager: Manager, queries: Queries, instance: Instance, owner_uid: int) -> Starlette:
    """The ASGI application."""
    api = Api(manager, queries, instance, owner_uid)
    openapi.ROUTES[:] = ROUTES
    routes = [Route(path, api.guard(getattr(api, name)), methods=[method]) for method, path, name, _ in ROUTES]
    # HEAD is answered by GET routes; anything else gets the same kind of error as every route
    routes.append(Route("/{rest:path}", api.guard(api.missing), methods=["GET", "POST", "PUT", "DELETE", "PATCH"]))
    return Starlette(routes=routes)
