"""What the clients ask of the scheduler: why a job waits, and reservations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leveret.connection import quote

JobId = int | str
Record = dict[str, Any]


def _reserve_body(
    name: str, start: float, duration_s: float, nodes: int, requires: str, users: Sequence[int]
) -> Record:
    from leveret.core import constraint

    asked = constraint.parse(requires) if requires else None
    body = {"name": name, "start": start, "duration_s": duration_s, "nodes": nodes, "constraint": asked}
    return {**body, "users": list(users)}


class PlanningMethods:
    """For `Client`."""

    if TYPE_CHECKING:

        @staticmethod
        def job_path(jobid: JobId) -> str: ...
        def request(self, method: str, target: str, body: Any = None, *, repeat: bool = True) -> Any: ...

    def explain(self, jobid: JobId) -> Record:
        """Why a job waits and when it may start: {id, state, reasons: [{kind, text, …}], estimate, note}. `estimate`
        is seconds since the epoch, or None."""
        return dict(self.request("GET", f"{self.job_path(jobid)}/explain"))

    def reservations(self) -> list[Record]:
        return list(self.request("GET", "/v1/reservations")["reservations"])

    def reserve(
        self, name: str, start: float, duration_s: float, nodes: int = 0, requires: str = "", users: Sequence[int] = ()
    ) -> Record:
        """Keep nodes from `start` (seconds since the epoch) on: `nodes` of those that `requires` (RFC 35) allows, 0 all."""
        body = _reserve_body(name, start, duration_s, nodes, requires, users)
        return dict(self.request("POST", "/v1/reservations", body, repeat=False))

    def unreserve(self, name: str) -> None:
        self.request("DELETE", f"/v1/reservations/{quote(name)}", repeat=False)


class AsyncPlanningMethods:
    """For `AsyncClient`; each as in `Client`."""

    if TYPE_CHECKING:

        async def request(self, method: str, target: str, body: Any = None, *, repeat: bool = True) -> Any: ...

    async def explain(self, jobid: JobId) -> Record:
        from leveret.client import Client

        return dict(await self.request("GET", f"{Client.job_path(jobid)}/explain"))

    async def reservations(self) -> list[Record]:
        return list((await self.request("GET", "/v1/reservations"))["reservations"])

    async def reserve(
        self, name: str, start: float, duration_s: float, nodes: int = 0, requires: str = "", users: Sequence[int] = ()
    ) -> Record:
        body = _reserve_body(name, start, duration_s, nodes, requires, users)
        return dict(await self.request("POST", "/v1/reservations", body, repeat=False))

    async def unreserve(self, name: str) -> None:
        await self.request("DELETE", f"/v1/reservations/{quote(name)}", repeat=False)
