"""What the Python client says about queues, and `update`. Mixed into `client.Client`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

Record = dict[str, Any]


class QueueClient:
    if TYPE_CHECKING:

        def request(
            self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
        ) -> Any: ...
        def job_path(self, jobid: int | str) -> str: ...

    def queues(self, names: Sequence[str] = ()) -> Record:
        """`{queues: [record], alloc_queued, alloc_pending, running}`; the anonymous queue's name is ""."""
        from leveret.connection import quote

        query = f"?queues={quote(','.join(names))}" if names else ""
        return dict(self.request("GET", f"/v1/queues{query}"))

    def change_queues(
        self,
        action: str,
        names: Sequence[str] = (),
        *,
        everything: bool = False,
        reason: str = "",
        checkpoint: bool = True,
    ) -> list[Record]:
        """enable, disable, start or stop; their records afterwards. `checkpoint` False: not kept over a restart."""
        body = {
            "action": action, "queues": list(names), "all": everything, "reason": reason, "checkpoint": checkpoint,
        }  # fmt: skip
        return list(self.request("POST", "/v1/queues", body)["queues"])

    def wait_queues(self, what: str = "idle", names: Sequence[str] = (), timeout_s: float | None = None) -> Record:
        """Wait until queues are `idle` (nothing runs or asks for resources) or `drain`ed (no active job).

        `{done, jobs}`: done is False when the time was over first; jobs: how many are active.
        """
        import time

        from leveret.connection import Backoff
        from leveret.errors import BusyError

        end = None if timeout_s is None else time.monotonic() + timeout_s
        backoff = Backoff(60.0)
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                return dict(
                    self.request("POST", "/v1/queues/wait", {"what": what, "queues": list(names), "timeout_s": left})
                )
            except BusyError:  # the daemon ends; the next one knows
                if not backoff.wait():
                    raise

    def update(self, jobid: int | str, updates: Record) -> Record:
        """Set attributes of an active job: `duration` (seconds), `queue`, or a dotted key. All of them, or none.

        Returns the full keys and their values, as they stand in the eventlog.
        """
        answer = self.request("POST", f"{self.job_path(jobid)}/update", {"updates": updates}, repeat=False)
        return dict(answer["updates"])


class AsyncQueueClient:
    """The same for `aclient.AsyncClient`."""

    if TYPE_CHECKING:

        async def request(
            self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
        ) -> Any: ...

    async def queues(self, names: Sequence[str] = ()) -> Record:
        """As QueueClient.queues."""
        from leveret.connection import quote

        query = f"?queues={quote(','.join(names))}" if names else ""
        return dict(await self.request("GET", f"/v1/queues{query}"))

    async def change_queues(
        self,
        action: str,
        names: Sequence[str] = (),
        *,
        everything: bool = False,
        reason: str = "",
        checkpoint: bool = True,
    ) -> list[Record]:
        """As QueueClient.change_queues."""
        body = {"action": action, "queues": list(names), "all": everything, "reason": reason, "checkpoint": checkpoint}
        return list((await self.request("POST", "/v1/queues", body))["queues"])

    async def wait_queues(
        self, what: str = "idle", names: Sequence[str] = (), timeout_s: float | None = None
    ) -> Record:
        """As QueueClient.wait_queues, but raises BusyError when the daemon ends meanwhile."""
        body = {"what": what, "queues": list(names), "timeout_s": timeout_s}
        return dict(await self.request("POST", "/v1/queues/wait", body))

    async def update(self, jobid: int | str, updates: Record) -> Record:
        """As QueueClient.update."""
        from leveret.connection import quote

        return dict(
            (await self.request("POST", f"/v1/jobs/{quote(str(jobid))}/update", {"updates": updates}))["updates"]
        )
