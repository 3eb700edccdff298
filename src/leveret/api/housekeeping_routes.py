"""Routes about housekeeping, and parts that are tried again."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from leveret import wire
from leveret.core import jobid as jobids
from leveret.errors import ForbiddenError

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

T = TypeVar("T")


class HousekeepingRoutes:
    """Mixed into the Api, whose plumbing it uses."""

    manager: Manager
    owner_uid: int

    if TYPE_CHECKING:

        async def body(self, request: Request, kind: type[T]) -> T: ...
        async def done(self, value: Any = None) -> Response: ...
        async def while_serving(self, what: Coroutine[Any, Any, T]) -> T: ...
        def uid(self, request: Request) -> int: ...
        def jobid(self, request: Request) -> int: ...

    async def retry_part(self, request: Request) -> Response:
        body = await self.body(request, wire.RetryPart)
        count = self.manager.works.retry(self.jobid(request), body.name)
        return await self.done({"count": count})

    async def housekeeping(self, request: Request) -> Response:
        return await self.done({"jobs": self.manager.housekeeping.listing()})

    async def kill_housekeeping(self, request: Request) -> Response:
        body = await self.body(request, wire.HousekeepingKill)
        if self.uid(request) not in (self.owner_uid, 0):
            raise ForbiddenError("only the instance owner can end housekeeping")
        jobid = None if body.id is None else jobids.parse(str(body.id))
        count = self.manager.housekeeping.kill(jobid, body.targets, body.all, body.signal)
        return await self.done({"count": count})

    async def wait_housekeeping(self, request: Request) -> Response:
        await self.while_serving(self.manager.housekeeping.wait(self.jobid(request)))
        return await self.done()


ROUTES: list[tuple[str, str, str, type | None]] = [
    ("POST", "/v1/jobs/{id}/parts/retry", "retry_part", wire.RetryPart),
    ("GET", "/v1/housekeeping", "housekeeping", None),
    ("POST", "/v1/housekeeping/kill", "kill_housekeeping", wire.HousekeepingKill),
    ("POST", "/v1/jobs/{id}/housekeeping/wait", "wait_housekeeping", None),
]
