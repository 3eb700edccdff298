"""What the Python client says about rabbits. Mixed into `client.Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

Record = dict[str, Any]


class RabbitClient:
    if TYPE_CHECKING:

        def request(
            self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
        ) -> Any: ...

    def rabbits(self) -> Record:
        """`{adapter, synced, trouble, rabbits: [{name, status, enabled, capacity_bytes, allocated_bytes, external_bytes,
        computes: {host: status}, message}]}`. Raises NotFoundError where an instance has none."""
        return dict(self.request("GET", "/v1/rabbits"))

    def persistent_storage(self) -> list[Record]:
        """`[{name, type, userid, state, capacity_bytes, consumers, directive}]`: what outlives its job."""
        return list(self.request("GET", "/v1/rabbits/persistent")["persistent"])

    def storage_workflows(self) -> list[Record]:
        """`[{jobid, name, state, ready, status, message, timings, mounts, allocated, movements, …}]` of jobs that have storage."""
        return list(self.request("GET", "/v1/rabbits/workflows")["workflows"])
