"""What the Python client says about housekeeping and about parts of a job. Mixed into `client.Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

Record = dict[str, Any]


class PartsClient:
    if TYPE_CHECKING:

        def request(
            self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
        ) -> Any: ...
        def job_path(self, jobid: int | str) -> str: ...
        def key(self, jobid: int | str, key: str) -> str: ...

    def parts(self, jobid: int | str) -> list[Record]:
        """Results of the items that were staged in and out.

        `{part, source, destination, status, attempts, bytes, duration_s, error, wait_status}` of each; status: done,
        failed or skipped; bytes is None when the copier does not say.
        """
        import json

        return list(json.loads(self.key(jobid, "parts"))["items"])

    def retry_part(self, jobid: int | str, name: str) -> int:
        """Try what failed of a part that is held open again. Returns how many items. ConflictError if it does not wait."""
        return int(self.request("POST", f"{self.job_path(jobid)}/parts/retry", {"name": name}, repeat=False)["count"])

    def housekeeping(self) -> list[Record]:
        """Jobs whose nodes are being tidied: `{id, t_start, allocated: {nnodes, ranks, nodelist}, pending: {…}}`."""
        return list(self.request("GET", "/v1/housekeeping")["jobs"])

    def kill_housekeeping(
        self, jobid: int | str | None = None, *, targets: str | None = None, all: bool = False, signum: int = 15
    ) -> int:
        """Signal its commands: of a job, on nodes (idset or hostlist), or all. Returns how many."""
        body = {"id": jobid, "targets": targets, "all": all, "signal": signum}
        return int(self.request("POST", "/v1/housekeeping/kill", body, repeat=False)["count"])

    def wait_housekeeping(self, jobid: int | str) -> None:
        """Return once the job is over and all its nodes have gone back to the scheduler (or are drained)."""
        from leveret.connection import Backoff
        from leveret.errors import BusyError

        backoff = Backoff(60.0)
        while True:
            try:
                self.request("POST", f"{self.job_path(jobid)}/housekeeping/wait")
                return
            except BusyError:  # the daemon ends; the next one knows
                if not backoff.wait():
                    raise
