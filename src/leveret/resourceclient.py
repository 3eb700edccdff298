"""What the Python client says about resources. Mixed into `client.Client`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

Record = dict[str, Any]


class ResourceClient:
    if TYPE_CHECKING:

        def request(
            self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
        ) -> Any: ...
        def _lines(self, method: str, target: str, body: Any = None) -> Iterator[Record]: ...

    def resources(self) -> Record:
        """`{R, method, allocated, online, torpid, exclude, drain, housekeeping, queues, memory_mb}` (docs/api.md).

        `leveret.core.resourceview.View` makes rows of it, as `leveret resource` shows them.
        """
        return dict(self.request("GET", "/v1/resources"))

    def drain(self, targets: str, reason: str = "", *, overwrite: int = 0, update: bool = False) -> None:
        """Give nodes (an idset of ranks, or a hostlist) no new work; what runs there goes on.

        Of nodes that are drained already: `update` leaves them as they are, `overwrite` 1 replaces the reason, 2 the
        time too; else ConflictError, and nothing has changed.
        """
        body = {"targets": targets, "reason": reason, "overwrite": overwrite, "update": update}
        self.request("POST", "/v1/resources/drain", body, repeat=False)

    def undrain(self, targets: str, reason: str = "", *, force: bool = False) -> None:
        """Give nodes work again. Raises ConflictError when one is not drained, unless `force`."""
        self.request(
            "POST", "/v1/resources/undrain", {"targets": targets, "reason": reason, "force": force}, repeat=False
        )

    def reload_resources(self, rset: Record, *, force: bool = False) -> None:
        """Other cores, GPUs and properties (an R document) for the same ranks, until the daemon restarts."""
        self.request("POST", "/v1/resources/reload", {"R": rset, "force": force}, repeat=False)

    def resource_events(self, follow: bool = False) -> Iterator[Record]:
        """The events of the resource eventlog (RFC 44); with `follow`, those to come too, across restarts of the daemon."""
        from leveret.connection import LostError

        seen = 0
        while True:
            try:
                for number, line in enumerate(self._lines("GET", f"/v1/resources/events?follow={int(follow)}")):
                    if number >= seen:
                        seen += 1
                        yield line["event"]
            except LostError:
                pass  # ask the next daemon
            if not follow:
                return


class AsyncResourceClient:
    """The same for `aclient.AsyncClient`."""

    if TYPE_CHECKING:

        async def request(
            self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
        ) -> Any: ...
        def _lines(self, method: str, target: str, body: Any = None) -> AsyncIterator[Record]: ...

    async def resources(self) -> Record:
        """As ResourceClient.resources."""
        return dict(await self.request("GET", "/v1/resources"))

    async def drain(self, targets: str, reason: str = "", *, overwrite: int = 0, update: bool = False) -> None:
        """As ResourceClient.drain."""
        body = {"targets": targets, "reason": reason, "overwrite": overwrite, "update": update}
        await self.request("POST", "/v1/resources/drain", body, repeat=False)

    async def undrain(self, targets: str, reason: str = "", *, force: bool = False) -> None:
        """As ResourceClient.undrain."""
        body = {"targets": targets, "reason": reason, "force": force}
        await self.request("POST", "/v1/resources/undrain", body, repeat=False)

    async def reload_resources(self, rset: Record, *, force: bool = False) -> None:
        """As ResourceClient.reload_resources."""
        await self.request("POST", "/v1/resources/reload", {"R": rset, "force": force}, repeat=False)

    async def resource_events(self, follow: bool = False) -> AsyncIterator[Record]:
        """As ResourceClient.resource_events."""
        from leveret.connection import LostError

        seen = 0
        while True:
            number = 0
            try:
                async for line in self._lines("GET", f"/v1/resources/events?follow={int(follow)}"):
                    number += 1
                    if number > seen:
                        seen = number
                        yield line["event"]
            except LostError:
                pass  # ask the next daemon
            if not follow:
                return
