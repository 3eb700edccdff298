"""The routes of holds and plugins, a few lines each; mixed into `app.Api`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from leveret import wire
from leveret.core import jobid as jobids

T = TypeVar("T")

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

    class Plumbing:
        """What app.Api has."""

        manager: Manager

        def uid(self, request: Request) -> int: ...
        def jobid(self, request: Request) -> int: ...
        async def body(self, request: Request, kind: type[T]) -> T: ...
        async def done(self, value: Any = None) -> Response: ...
        def answer(self, value: Any) -> Response: ...

else:
    Plumbing = object


class HoldRoutes(Plumbing):
    async def open_hold(self, request: Request) -> Response:
        body = await self.body(request, wire.HoldOpen)
        context: dict[str, Any] = {}
        if body.kind == "part":
            # all of it is in the log: who reads the log needs no defaults of ours
            context |= {"owner": body.owner or "user", "blocks": body.blocks or [], "uses": body.uses or "none"}
            if body.role:
                context["role"] = body.role
        elif body.owner:
            context["owner"] = body.owner
        if body.note:
            context["note"] = body.note
        holds = self.manager.holds
        holds.open(self.jobid(request), body.kind, body.name, context, body.lease_s, body.deadline_s)
        return await self.done()

    async def finish_hold(self, request: Request) -> Response:
        body = await self.body(request, wire.HoldFinish)
        jobid = self.jobid(request)
        key = self.manager.find_hold(jobid, body.kind, body.name)
        self.manager.works.end(jobid, key, body.status, body.note)
        return await self.done()

    async def renew_hold(self, request: Request) -> Response:
        body = await self.body(request, wire.HoldRenew)
        jobid = self.jobid(request)
        key = self.manager.find_hold(jobid, body.kind, body.name)
        return self.answer({"lease_s": self.manager.holds.renew(jobid, key)})

    async def progress_hold(self, request: Request) -> Response:
        body = await self.body(request, wire.HoldProgress)
        jobid = self.jobid(request)
        key = self.manager.find_hold(jobid, body.kind, body.name)
        progress = {"done": body.done, "total": body.total, "unit": body.unit, "note": body.note}
        self.manager.set_progress(jobid, key, {k: v for k, v in progress.items() if v not in (None, "")})
        return self.answer({"lease_s": self.manager.holds.renew(jobid, key)})

    async def give_up(self, request: Request) -> Response:
        body = await self.body(request, wire.GiveUp)
        jobid = self.jobid(request)
        key = self.manager.find_hold(jobid, body.kind, body.name)
        return await self.done(self.manager.holds.give_up(jobid, key, self.uid(request), body.reason))

    async def holds(self, request: Request) -> Response:
        text = request.query_params.get("id")
        jobid = jobids.parse(text) if text is not None else None
        return self.answer({"holds": self.manager.holds.listing(jobid)})

    async def plugins(self, request: Request) -> Response:
        return self.answer({"plugins": self.manager.tap.listing()})

    async def plugin(self, request: Request) -> Response:
        return self.answer(self.manager.tap.query(request.path_params["name"]))

    async def load(self, request: Request) -> Response:
        body = await self.body(request, wire.Load)
        return await self.done({"name": self.manager.tap.load(body.load, body.conf, replace=body.remove)})

    async def remove(self, request: Request) -> Response:
        force = request.query_params.get("force") in ("1", "true", "yes")
        self.manager.tap.remove(request.path_params["name"], self.uid(request), force)
        return await self.done()
