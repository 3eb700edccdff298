"""The part of the Python client that keeps an instance and its jobs: export, quarantine, dump."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leveret.connection import LineStream, LostError, make_request
from leveret.core import jobid as jobids
from leveret.errors import UnreachableError

if TYPE_CHECKING:
    from leveret.connection import Connection

Record = dict[str, Any]


def _number(jobid: int | str) -> int:
    return jobids.parse(jobid) if isinstance(jobid, str) else jobid


class UpkeepCalls:
    """Mixed into `client.Client`."""

    if TYPE_CHECKING:

        def connect(self) -> Connection: ...

        def request(
            self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
        ) -> Any: ...

    def export(self, jobid: int | str, write: Callable[[bytes], Any]) -> None:
        """Write a job's portable record (core/jobrecord.py) piece by piece. Raises UnreachableError when it breaks off."""
        stream = LineStream(self.connect())
        try:
            stream.start(make_request("GET", f"/v1/jobs/{_number(jobid)}/export"))
            parser = stream.connection.parser
            while True:
                if piece := parser.take():
                    write(piece)
                elif parser.complete:
                    return
                else:
                    stream.connection.receive()
        except LostError as lost:
            raise UnreachableError(f"the record is not whole: the connection was lost: {lost}", "export it again")
        finally:
            stream.close()

    def quarantined(self) -> list[Record]:
        """`{id, f58, why, events, userid, t_submit, resources, tasks}` of each quarantined job."""
        return list(self.request("GET", "/v1/quarantine")["jobs"])

    def quarantine_kill(self, jobid: int | str) -> int:
        """End what still runs of a quarantined job. Returns how many units (the tasks of a node, a plugin's work)."""
        return int(self.request("POST", f"/v1/quarantine/{_number(jobid)}/kill")["units"])

    def quarantine_remove(self, jobid: int | str) -> None:
        """Delete a quarantined job. Raises ConflictError while its tasks run."""
        self.request("DELETE", f"/v1/quarantine/{_number(jobid)}", repeat=False)

    def dump(self, path: str, archive: bool = False) -> Record:
        """Copy the instance to an absolute path that does not exist, a directory or a tar file. `{path, bytes, files, missing}`."""
        return dict(self.request("POST", "/v1/dump", {"path": path, "archive": archive}, repeat=False))
