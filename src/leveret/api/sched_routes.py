"""The routes of scheduling, a few lines each; mixed into `app.Api`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from leveret import wire
from leveret.api.hold_routes import Plumbing


class SchedRoutes(Plumbing):
    async def explain(self, request: Request) -> Response:
        return self.answer(await self.manager.scheduling.explain(self.jobid(request)))

    async def reservations(self, request: Request) -> Response:
        return self.answer({"reservations": self.manager.scheduling.list_reservations()})

    async def reserve(self, request: Request) -> Response:
        body = await self.body(request, wire.Reserve)
        made = self.manager.scheduling.reserve(
            body.name, body.start, body.duration_s, body.nodes, body.constraint, body.users
        )
        return await self.done(made)

    async def unreserve(self, request: Request) -> Response:
        self.manager.scheduling.unreserve(request.path_params["name"])
        return await self.done()
