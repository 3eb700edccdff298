"""The routes of rabbits: storage servers, persistent storage and jobs' storage. Mixed into `app.Api`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from leveret.errors import NotFoundError
from leveret.storage.port import Storage

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

    class Plumbing:
        """What app.Api has."""

        manager: Manager

        def answer(self, value: Any) -> Response: ...

else:
    Plumbing = object


class RabbitRoutes(Plumbing):
    def _storage(self) -> Storage:
        storage: Storage | None = getattr(self.manager, "storage", None)
        if storage is None:
            raise NotFoundError("this instance has no rabbits", "`[rabbit]` in leveret.toml describes them")
        return storage

    async def rabbits(self, request: Request) -> Response:
        storage = self._storage()
        ours: dict[str, int] = {}
        for jobid in storage.jobs():
            view = storage.view(jobid)
            for rabbit, size in (view.allocated if view else {}).items():
                ours[rabbit] = ours.get(rabbit, 0) + size
        listed = []
        for one in storage.rabbits():
            external = max(0, one.allocated_bytes - ours.get(one.name, 0))
            listed.append(msgspec.to_builtins(one) | {"external_bytes": external})
        state = {"adapter": storage.name, "synced": storage.synced, "trouble": storage.trouble}
        return self.answer({**state, "rabbits": listed})

    async def persistent_storage(self, request: Request) -> Response:
        return self.answer({"persistent": msgspec.to_builtins(await self._storage().persistent())})

    async def workflows(self, request: Request) -> Response:
        storage = self._storage()
        views = [view for jobid in sorted(storage.jobs()) if (view := storage.view(jobid)) is not None]
        # the token and the environment are the job's own
        hidden = ("token", "env", "node_env", "breakdowns")
        shown = [
            {key: value for key, value in msgspec.to_builtins(view).items() if key not in hidden}
            | {"movements": msgspec.to_builtins(await storage.movements(view.jobid))}
            for view in views
        ]
        return self.answer({"workflows": shown})


#: (method, path, handler, request body)
ROUTES: list[tuple[str, str, str, type | None]] = [
    ("GET", "/v1/rabbits", "rabbits", None),
    ("GET", "/v1/rabbits/persistent", "persistent_storage", None),
    ("GET", "/v1/rabbits/workflows", "workflows", None),
]
