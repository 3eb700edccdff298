"""The routes of resources (RFC 44), a few lines each; mixed into `app.Api`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from leveret import wire
from leveret.core import resources
from leveret.errors import ForbiddenError
from leveret.manager.resources import FEED_KEY

T = TypeVar("T")
#: events of one read of a stream
PAGE = 1000

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

    class Plumbing:
        """What app.Api has."""

        manager: Manager
        owner_uid: int
        instance: Any

        def uid(self, request: Request) -> int: ...
        async def body(self, request: Request, kind: type[T]) -> T: ...
        async def done(self, value: Any = None) -> Response: ...
        def answer(self, value: Any) -> Response: ...

else:
    Plumbing = object


class ResourceRoutes(Plumbing):
    async def resources(self, request: Request) -> Response:
        return await self.done(self.manager.resources.document())

    async def drain(self, request: Request) -> Response:
        body = await self.body(request, wire.Drain)
        uid = self._owner(request)
        ranks = self.manager.resources.targets(body.targets)
        self.manager.resources.drain(ranks, body.reason, userid=uid, overwrite=body.overwrite, update=body.update)
        return await self.done()

    async def undrain(self, request: Request) -> Response:
        body = await self.body(request, wire.Undrain)
        uid = self._owner(request)
        ranks = self.manager.resources.targets(body.targets)
        self.manager.resources.undrain(ranks, reason=body.reason, userid=uid, force=body.force)
        return await self.done()

    async def reload(self, request: Request) -> Response:
        body = await self.body(request, wire.Reload)
        self._owner(request)
        self.manager.resources.reload(resources.from_dict(body.R), force=body.force)
        return await self.done()

    async def resource_events(self, request: Request) -> Response:
        """The resource eventlog as JSON lines; `follow` waits for more, until the daemon ends."""
        await self.manager.store.barrier()
        follow = request.query_params.get("follow") in ("1", "true", "yes")
        return StreamingResponse(self._events(follow), media_type="application/jsonl")

    async def _events(self, follow: bool) -> AsyncIterator[bytes]:
        manager = self.manager
        after = 0
        news = manager.feed.watch(FEED_KEY)
        try:
            while True:
                news.clear()
                while rows := manager.store.resource_events(after, PAGE):
                    after = rows[-1][0]
                    yield b"".join(b'{"event":' + line + b"}\n" for _, line in rows)
                if not follow or self.instance.ending.is_set():
                    return
                await news.wait()
        finally:
            manager.feed.unwatch(FEED_KEY, news)

    def _owner(self, request: Request) -> int:
        uid = self.uid(request)
        if uid not in (self.owner_uid, 0):
            raise ForbiddenError("only the instance owner can change resources")
        return uid


ROUTES: list[tuple[str, str, str, type | None]] = [
    ("GET", "/v1/resources", "resources", None),
    ("POST", "/v1/resources/drain", "drain", wire.Drain),
    ("POST", "/v1/resources/undrain", "undrain", wire.Undrain),
    ("POST", "/v1/resources/reload", "reload", wire.Reload),
    ("GET", "/v1/resources/events", "resource_events", None),
]
