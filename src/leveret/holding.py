"""Holds of a process outside Leveret: "I am doing something for this job too", as a context manager.

    with client.hold(jobid, "to-tape", lease="60s", blocks=["free"]) as hold:
        for number, file in enumerate(files, 1):
            archive(file)
            hold.progress(number, len(files), unit="files")

    async with aclient.hold(jobid, "to-tape", lease="60s") as hold:
        await hold.progress(1, 2)

The hold closes when the block ends: as failed, with the exception as its note, when that raises. The lease is
renewed in the background; when this process dies or hangs, the hold ends as failed, by name, once it has expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leveret.connection import quote
from leveret.errors import ConflictError, EventError, LeveretError, NotFoundError

if TYPE_CHECKING:
    import asyncio
    import threading

    from leveret.aclient import AsyncClient
    from leveret.client import Client

JobId = int | str
Record = dict[str, Any]
FAILED_STATUS = 256  #: exit code 1
#: a lease is renewed so often within its period
RENEWALS = 3


def seconds(value: float | str | None) -> float | None:
    """A number of seconds, or a Flux Standard Duration. Raises FormatError."""
    if isinstance(value, str):
        from leveret.core import duration

        return duration.parse(value)
    return value


def open_body(
    name: str,
    kind: str,
    owner: str | None,
    blocks: Sequence[str],
    uses: str,
    note: str,
    lease: float | str | None,
    deadline: float | str | None,
) -> Record:
    body: Record = {"kind": kind, "name": name, "blocks": list(blocks), "note": note}
    more = {"owner": owner, "uses": uses or None, "lease_s": seconds(lease), "deadline_s": seconds(deadline)}
    return body | {key: value for key, value in more.items() if value is not None}


def hold_path(jobid: JobId, verb: str = "") -> str:
    from leveret.client import Client

    return f"{Client.job_path(jobid)}/holds" + (f"/{verb}" if verb else "")


def remove_target(name: str, force: bool) -> str:
    return f"/v1/jobtap/{quote(name)}" + ("?force=1" if force else "")


def failure_note(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


class HoldMethods:
    """Holds and plugins, for `Client`."""

    if TYPE_CHECKING:

        @property
        def uri(self) -> str: ...
        def request(self, method: str, target: str, body: Any = None, *, repeat: bool = True) -> Any: ...

    def hold(
        self,
        jobid: JobId,
        name: str,
        *,
        kind: str = "part",
        owner: str | None = None,
        blocks: Sequence[str] = (),
        uses: str = "",
        note: str = "",
        lease: float | str | None = "60s",
        deadline: float | str | None = None,
    ) -> Hold:
        """A hold as a context manager (see the module `leveret.holding`). `lease`: seconds or a duration; None: the hold
        stays open until somebody finishes it."""
        body = open_body(name, kind, owner, blocks, uses, note, lease, deadline)
        return Hold(self, jobid, body)  # type: ignore[arg-type]

    def open_hold(
        self,
        jobid: JobId,
        name: str,
        *,
        kind: str = "part",
        owner: str | None = None,
        blocks: Sequence[str] = (),
        uses: str = "",
        note: str = "",
        lease: float | str | None = None,
        deadline: float | str | None = None,
    ) -> None:
        """Open a hold: the job is not clean before it is finished. `kind`: part, prolog, epilog or dependency.

        With a `lease` it must be renewed that often, or it fails; `deadline` counts from now.
        """
        body = open_body(name, kind, owner, blocks, uses, note, lease, deadline)
        self.request("POST", hold_path(jobid), body)

    def renew_hold(self, jobid: JobId, name: str, *, kind: str = "part") -> float:
        """Renew the lease of a hold. Returns its seconds. Raises EventError when the hold is not open any more."""
        return float(self.request("POST", hold_path(jobid, "renew"), {"kind": kind, "name": name})["lease_s"])

    def finish_hold(self, jobid: JobId, name: str, status: int = 0, *, kind: str = "part", note: str = "") -> None:
        """Close a hold; a nonzero status of a user's part fails the job."""
        body = {"kind": kind, "name": name, "status": status, "note": note}
        self.request("POST", hold_path(jobid, "finish"), body, repeat=False)

    def progress(
        self,
        jobid: JobId,
        name: str,
        done: float,
        total: float = 0,
        *,
        kind: str = "part",
        unit: str = "",
        note: str = "",
    ) -> None:
        """Say how far a hold's work is; only the last value is kept. Renews the lease too."""
        body = {"kind": kind, "name": name, "done": done, "total": total, "unit": unit, "note": note}
        self.request("POST", hold_path(jobid, "progress"), body)

    def holds(self, jobid: JobId | None = None) -> list[Record]:
        """The open holds of one job, or of all (docs/api.md)."""
        return list(
            self.request("GET", "/v1/holds" + (f"?id={quote(str(jobid))}" if jobid is not None else ""))["holds"]
        )

    def give_up(self, jobid: JobId, name: str, *, kind: str = "", reason: str = "") -> Record:
        """Wait for a hold no longer; an event with your uid. Returns its context: `left` says what is left behind."""
        body = {"name": name, "kind": kind, "reason": reason}
        return dict(self.request("POST", hold_path(jobid, "give-up"), body, repeat=False))

    def jobtap(self) -> list[Record]:
        """The plugins: `{name, path, builtin, holds}`."""
        return list(self.request("GET", "/v1/jobtap")["plugins"])

    def jobtap_query(self, name: str) -> Record:
        """One plugin, with its configuration and what it says of itself."""
        return dict(self.request("GET", f"/v1/jobtap/{quote(name)}"))

    def jobtap_load(self, plugin: str, conf: Record | None = None, remove: str = "") -> str:
        """Load FILE.py or the NAME of an installed plugin. Returns its name. `remove`: a glob of plugins that go first."""
        body = {"load": plugin, "conf": conf or {}, **({"remove": remove} if remove else {})}
        return str(self.request("POST", "/v1/jobtap", body, repeat=False)["name"])

    def jobtap_remove(self, name: str, force: bool = False) -> None:
        """Unload. `force` ends its open holds as failed first."""
        self.request("DELETE", remove_target(name, force), repeat=False)


class Hold:
    """An open hold; made by `Client.hold`."""

    def __init__(self, client: Client, jobid: JobId, body: Record) -> None:
        self.client = client
        self.jobid = jobid
        self.name: str = body["name"]
        self.kind: str = body["kind"]
        self.lost = False  #: somebody else has ended the hold: its lease, its deadline, an operator
        self._body = body
        self._closed = False
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Hold:
        self.client.request("POST", hold_path(self.jobid), self._body)
        if lease_s := self._body.get("lease_s"):
            import threading

            self._over = threading.Event()
            self._thread = threading.Thread(target=self._renew, args=(lease_s / RENEWALS,), daemon=True)
            self._thread.start()
        return self

    def _renew(self, every_s: float) -> None:
        from leveret.client import Client

        assert self._over is not None
        with Client(self.client.uri, start=False, patience_s=every_s) as client:  # a client is for one thread
            while not self._over.wait(every_s):
                try:
                    client.renew_hold(self.jobid, self.name, kind=self.kind)
                except (EventError, ConflictError, NotFoundError):
                    self.lost = not self._closed
                    return
                except LeveretError:
                    continue  # the daemon is away; when it is back, the lease has a full period again

    def progress(self, done: float, total: float = 0, unit: str = "", note: str = "") -> None:
        """How far the work is, for everybody who watches the job."""
        self.client.progress(self.jobid, self.name, done, total, kind=self.kind, unit=unit, note=note)

    def finish(self, status: int = 0, note: str = "") -> None:
        """Close the hold now. Raises EventError when it is not open any more."""
        self._closed = True
        if self._over is not None and self._thread is not None:
            self._over.set()
            self._thread.join()
        self.client.finish_hold(self.jobid, self.name, status, kind=self.kind, note=note)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._closed:
            return
        if error is None:
            self.finish()
            return
        try:
            self.finish(FAILED_STATUS, failure_note(error))
        except LeveretError:
            pass  # the block's own exception tells more


class AsyncHoldMethods:
    """Holds and plugins, for `AsyncClient`; each as in `Client`."""

    if TYPE_CHECKING:

        async def request(self, method: str, target: str, body: Any = None, *, repeat: bool = True) -> Any: ...

    def hold(
        self,
        jobid: JobId,
        name: str,
        *,
        kind: str = "part",
        owner: str | None = None,
        blocks: Sequence[str] = (),
        uses: str = "",
        note: str = "",
        lease: float | str | None = "60s",
        deadline: float | str | None = None,
    ) -> AsyncHold:
        body = open_body(name, kind, owner, blocks, uses, note, lease, deadline)
        return AsyncHold(self, jobid, body)  # type: ignore[arg-type]

    async def open_hold(
        self,
        jobid: JobId,
        name: str,
        *,
        kind: str = "part",
        owner: str | None = None,
        blocks: Sequence[str] = (),
        uses: str = "",
        note: str = "",
        lease: float | str | None = None,
        deadline: float | str | None = None,
    ) -> None:
        body = open_body(name, kind, owner, blocks, uses, note, lease, deadline)
        await self.request("POST", hold_path(jobid), body)

    async def renew_hold(self, jobid: JobId, name: str, *, kind: str = "part") -> float:
        answer = await self.request("POST", hold_path(jobid, "renew"), {"kind": kind, "name": name})
        return float(answer["lease_s"])

    async def finish_hold(
        self, jobid: JobId, name: str, status: int = 0, *, kind: str = "part", note: str = ""
    ) -> None:
        body = {"kind": kind, "name": name, "status": status, "note": note}
        await self.request("POST", hold_path(jobid, "finish"), body, repeat=False)

    async def progress(
        self,
        jobid: JobId,
        name: str,
        done: float,
        total: float = 0,
        *,
        kind: str = "part",
        unit: str = "",
        note: str = "",
    ) -> None:
        body = {"kind": kind, "name": name, "done": done, "total": total, "unit": unit, "note": note}
        await self.request("POST", hold_path(jobid, "progress"), body)

    async def holds(self, jobid: JobId | None = None) -> list[Record]:
        target = "/v1/holds" + (f"?id={quote(str(jobid))}" if jobid is not None else "")
        return list((await self.request("GET", target))["holds"])

    async def give_up(self, jobid: JobId, name: str, *, kind: str = "", reason: str = "") -> Record:
        body = {"name": name, "kind": kind, "reason": reason}
        return dict(await self.request("POST", hold_path(jobid, "give-up"), body, repeat=False))

    async def jobtap(self) -> list[Record]:
        return list((await self.request("GET", "/v1/jobtap"))["plugins"])

    async def jobtap_query(self, name: str) -> Record:
        return dict(await self.request("GET", f"/v1/jobtap/{quote(name)}"))

    async def jobtap_load(self, plugin: str, conf: Record | None = None, remove: str = "") -> str:
        body = {"load": plugin, "conf": conf or {}, **({"remove": remove} if remove else {})}
        return str((await self.request("POST", "/v1/jobtap", body, repeat=False))["name"])

    async def jobtap_remove(self, name: str, force: bool = False) -> None:
        await self.request("DELETE", remove_target(name, force), repeat=False)


class AsyncHold:
    """An open hold; made by `AsyncClient.hold`."""

    def __init__(self, client: AsyncClient, jobid: JobId, body: Record) -> None:
        self.client = client
        self.jobid = jobid
        self.name: str = body["name"]
        self.kind: str = body["kind"]
        self.lost = False  #: somebody else has ended the hold
        self._body = body
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncHold:
        await self.client.request("POST", hold_path(self.jobid), self._body)
        if lease_s := self._body.get("lease_s"):
            import asyncio

            self._task = asyncio.create_task(self._renew(lease_s / RENEWALS))
        return self

    async def _renew(self, every_s: float) -> None:
        import asyncio

        while True:
            await asyncio.sleep(every_s)
            try:
                await self.client.renew_hold(self.jobid, self.name, kind=self.kind)
            except (EventError, ConflictError, NotFoundError):
                self.lost = not self._closed
                return
            except LeveretError:
                continue  # as in Hold

    async def progress(self, done: float, total: float = 0, unit: str = "", note: str = "") -> None:
        await self.client.progress(self.jobid, self.name, done, total, kind=self.kind, unit=unit, note=note)

    async def finish(self, status: int = 0, note: str = "") -> None:
        """Close the hold now. Raises EventError when it is not open any more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        await self.client.finish_hold(self.jobid, self.name, status, kind=self.kind, note=note)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._closed:
            return
        if error is None:
            await self.finish()
            return
        try:
            await self.finish(FAILED_STATUS, failure_note(error))
        except LeveretError:
            pass  # the block's own exception tells more
