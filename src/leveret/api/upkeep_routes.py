"""The routes for keeping an instance and its jobs: export, quarantine, dump. Mixed into `app.Api`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from leveret import wire
from leveret.manager.export import export

T = TypeVar("T")

if TYPE_CHECKING:
    from leveret.manager.manager import Manager
    from leveret.manager.queries import Queries

    class Plumbing:
        """What app.Api has."""

        manager: Manager
        queries: Queries
        instance: Any

        def jobid(self, request: Request) -> int: ...
        async def body(self, request: Request, kind: type[T]) -> T: ...
        async def done(self, value: Any = None) -> Response: ...
        def answer(self, value: Any) -> Response: ...

else:
    Plumbing = object


class UpkeepRoutes(Plumbing):
    async def export(self, request: Request) -> Response:
        return StreamingResponse(await export(self.queries, self.jobid(request)), media_type="text/plain")

    async def quarantined(self, request: Request) -> Response:
        return self.answer({"jobs": self.manager.quarantine.listing()})

    async def quarantine_kill(self, request: Request) -> Response:
        return self.answer({"units": self.manager.quarantine.kill(self.jobid(request))})

    async def quarantine_remove(self, request: Request) -> Response:
        self.manager.quarantine.remove(self.jobid(request))
        return await self.done()

    async def dump(self, request: Request) -> Response:
        body = await self.body(request, wire.Dump)
        return self.answer(await self.instance.dump(body.path, body.archive))
