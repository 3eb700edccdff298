"""Routes about queues (RFC 33), `update`, and the schemas of what commands print."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from leveret import schemas, wire
from leveret.errors import ForbiddenError, InvalidError, NotFoundError

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

T = TypeVar("T")


class QueueRoutes:
    """Mixed into the Api, whose plumbing it uses."""

    manager: Manager
    owner_uid: int

    if TYPE_CHECKING:

        async def body(self, request: Request, kind: type[T]) -> T: ...
        async def done(self, value: Any = None) -> Response: ...
        async def while_serving(self, what: Coroutine[Any, Any, T]) -> T: ...
        def uid(self, request: Request) -> int: ...
        def jobid(self, request: Request) -> int: ...

    async def queues(self, request: Request) -> Response:
        names = [name for name in request.query_params.get("queues", "").split(",") if name]
        return await self.done(self.manager.queues.listing(names or None))

    async def change_queues(self, request: Request) -> Response:
        body = await self.body(request, wire.QueueChange)
        if self.uid(request) not in (self.owner_uid, 0):
            raise ForbiddenError("only the instance owner can change queues")
        records = self.manager.queues.change(body.action, body.queues, body.all, body.reason, body.checkpoint)
        return await self.done({"queues": records})

    async def wait_queues(self, request: Request) -> Response:
        body = await self.body(request, wire.QueueWait)
        if body.timeout_s is not None and not body.timeout_s >= 0:
            raise InvalidError("the timeout must not be negative", path="timeout_s")
        await self.done()
        return await self.done(
            await self.while_serving(self.manager.queues.wait(body.what, body.queues, body.timeout_s))
        )

    async def schemas(self, request: Request) -> Response:
        return await self.done({"schemas": list(schemas.SCHEMAS)})

    async def schema(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = schemas.schema(name) or schemas.schema(name.replace("-", " "))
        if found is None:
            raise NotFoundError(f"`{name}` has no schema", "see /v1/schemas")
        return await self.done(found)

    async def update(self, request: Request) -> Response:
        body = await self.body(request, wire.Update)
        updates = self.manager.updates.update(self.jobid(request), body.updates, self.uid(request))
        return await self.done({"updates": updates})


ROUTES: list[tuple[str, str, str, type | None]] = [
    ("GET", "/v1/queues", "queues", None),
    ("POST", "/v1/queues", "change_queues", wire.QueueChange),
    ("POST", "/v1/queues/wait", "wait_queues", wire.QueueWait),
    ("GET", "/v1/schemas", "schemas", None),
    ("GET", "/v1/schemas/{name}", "schema", None),
    ("POST", "/v1/jobs/{id}/update", "update", wire.Update),
]
