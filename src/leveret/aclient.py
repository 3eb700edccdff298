"""The asyncio client: `AsyncClient`, of the same shape as `leveret.client.Client`.

    async with AsyncClient() as client:
        jobid = await client.submit(jobspec)
        async for line in client.events(jobid, ["eventlog", "output"], follow=True):
            ...
        job = await client.wait(jobid)

A call opens a connection of its own, so any number may run at once. Starting a daemon happens in a thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from leveret import instance as instances
from leveret.client import (
    FIRST_PATIENCE_S,
    PATIENCE_S,
    SUBMIT_MAX,
    WAIT_MAX,
    Client,
    JobId,
    Record,
    decode_data,
    stdin_body,
    unreachable,
)
from leveret.connection import (
    LINE_MAX_BYTES,
    RECEIVE_BYTES,
    LostError,
    ResponseParser,
    answer_of,
    encode_json,
    make_request,
    quote,
)
from leveret.connection import connect as connect_socket
from leveret.errors import BusyError, LeveretError, NotFoundError, UnreachableError, from_dict
from leveret.holding import AsyncHoldMethods
from leveret.planning import AsyncPlanningMethods
from leveret.queueclient import AsyncQueueClient
from leveret.resourceclient import AsyncResourceClient

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pause:
    """Waits between attempts, 20 ms doubling to 500 ms, until `patience_s` have passed."""

    def __init__(self, patience_s: float) -> None:
        self.deadline = time.monotonic() + patience_s
        self._delay_s = 0.02

    async def wait(self) -> bool:
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(self._delay_s, left))
        self._delay_s = min(self._delay_s * 2, 0.5)
        return True


class AsyncClient(AsyncPlanningMethods, AsyncHoldMethods, AsyncQueueClient, AsyncResourceClient):
    """A client of one instance for asyncio programs. Safe for many tasks at once."""

    def __init__(self, uri: str | None = None, start: bool = True, patience_s: float = PATIENCE_S) -> None:
        self.instance = instances.find(uri)
        self.instance.may_start = self.instance.may_start and start
        self.patience_s = patience_s
        self._met = False
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    @property
    def uri(self) -> str:
        return self.instance.uri

    # Connections

    async def connect(self) -> Streams:
        """A new connection; starts the daemon if this instance is ours to start. Raises UnreachableError."""
        path = self.instance.socket_path
        pause = Pause(self.patience_s if self._met else min(FIRST_PATIENCE_S, self.patience_s))
        absent_until = time.monotonic() + 0.3
        while True:
            try:
                streams = await asyncio.open_unix_connection(sock=connect_socket(path))
                self._met = True
                return streams
            except OSError as error:
                reason = error
            absent = isinstance(reason, FileNotFoundError)
            hopeless = not absent and not isinstance(reason, ConnectionRefusedError | BlockingIOError)
            hopeless = hopeless or (absent and not self._met and time.monotonic() > absent_until)
            # a daemon that ended in order has taken its socket along: that was meant, and is not for us to undo
            ended = self._met and absent
            if self.instance.may_start and not ended and not isinstance(reason, PermissionError):
                async with self._starting:
                    await asyncio.to_thread(instances.start_daemon, self.instance.state_dir, path)
                hopeless = False
            if hopeless or not await pause.wait():
                raise unreachable(self.instance, reason)

    async def request(
        self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
    ) -> Any:
        """One request and its answer. `repeat`: asking twice is harmless, so a lost question is asked again."""
        payload = raw if raw is not None else None if body is None else encode_json(body)
        message = make_request(method, target, payload, "application/json" if raw is None else "text/plain")
        pause = Pause(self.patience_s)
        while True:
            reader, writer = await self.connect()
            parser = ResponseParser()
            try:
                await send(writer, message)
                while not parser.complete:
                    await receive(reader, parser)
                return answer_of(parser.status, parser.headers, parser.take())
            except LostError as lost:
                if not repeat:
                    raise UnreachableError(
                        f"the connection to the daemon was lost before it answered: {lost}",
                        "it may or may not have done what was asked; see `leveret jobs`",
                    )
                if not await pause.wait():
                    raise UnreachableError(f"the daemon does not answer: {lost}")
            finally:
                writer.close()

    async def _lines(self, method: str, target: str, body: Any = None) -> AsyncIterator[Record]:
        """The lines of one streamed answer. Raises LostError if it breaks off."""
        reader, writer = await self.connect()
        parser = ResponseParser()
        try:
            await send(writer, make_request(method, target, None if body is None else encode_json(body)))
            while not parser.status:
                await receive(reader, parser)
            if parser.status >= 400:
                while not parser.complete:
                    await receive(reader, parser)
                answer_of(parser.status, parser.headers, parser.take())
            rest = b""
            while True:
                *lines, rest = (rest + parser.take()).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
                if parser.complete:
                    return
                if len(rest) > LINE_MAX_BYTES:
                    raise LostError("a line of the stream is too long", True)
                await receive(reader, parser)
        finally:
            writer.close()

    # Instance

    async def status(self) -> Record:
        return dict(await self.request("GET", "/v1/status"))

    async def stats(self) -> Record:
        """Counts by state and result."""
        return dict(await self.request("GET", "/v1/stats"))

    async def purge(
        self,
        ids: Sequence[int] | None = None,
        *,
        age_limit_s: float | None = None,
        num_limit: int | None = None,
        count: int = 50,
        dry_run: bool = False,
    ) -> Record:
        """Delete inactive jobs: these, or those beyond the limits, `count` at most. `{count, total}`: of how many."""
        body = {"ids": ids, "age_limit_s": age_limit_s, "num_limit": num_limit, "count": count, "dry_run": dry_run}
        return dict(await self.request("POST", "/v1/purge", body, repeat=False))

    async def tasks(self, jobid: JobId) -> list[Record]:
        """`{rank, host, pid}` of a running job's tasks; none before they have started."""
        return list((await self.request("GET", f"{Client.job_path(jobid)}/tasks"))["tasks"])

    async def shutdown(self, timeout_s: float = 10.0, keep: bool = False) -> list[str]:
        body = {"timeout_s": timeout_s, "keep": keep}
        return list((await self.request("POST", "/v1/shutdown", body, repeat=False)).get("left", []))

    # Jobs: submission

    async def submit(self, jobspec: Record, urgency: int = 16, flags: Sequence[str] = ()) -> int:
        """Submit a jobspec (RFC 25 as dict). Returns the job's id, which is on disk then."""
        body = {"jobspec": jobspec, "urgency": urgency, "flags": list(flags)}
        return int((await self.request("POST", "/v1/jobs", body, repeat=False))["id"])

    async def submit_many(self, jobs: Sequence[Record]) -> list[int | LeveretError]:
        """Submit dicts `{jobspec, urgency, flags}`. Per job its id, or the error that refused it."""
        results: list[int | LeveretError] = []
        for first in range(0, len(jobs), SUBMIT_MAX):
            batch = {"jobs": list(jobs[first : first + SUBMIT_MAX])}
            answer = await self.request("POST", "/v1/jobs", batch, repeat=False)
            results += [from_dict(item["error"]) if item.get("error") else int(item["id"]) for item in answer["jobs"]]
        return results

    async def submit_copies(
        self, jobspec: Record, copies: Sequence[str | None], urgency: int = 16, flags: Sequence[str] = ()
    ) -> list[int | LeveretError]:
        """Submit one jobspec many times; each copy's text becomes its FLUX_JOB_CC (None: no such variable)."""
        results: list[int | LeveretError] = []
        for first in range(0, len(copies), SUBMIT_MAX):
            body = {"jobspec": jobspec, "urgency": urgency, "flags": list(flags)}
            body["copies"] = list(copies[first : first + SUBMIT_MAX])
            answer = await self.request("POST", "/v1/jobs", body, repeat=False)
            results += [from_dict(item["error"]) if item.get("error") else int(item["id"]) for item in answer["jobs"]]
        return results

    async def run(self, command: Sequence[str], **options: Any) -> int:
        """Submit a command with our directory and environment. `options` are those of `core.jobspec.build`."""
        from leveret.core import jobspec

        options.setdefault("cwd", os.getcwd())
        options.setdefault("environment", dict(os.environ))
        return await self.submit(jobspec.build(list(command), **options))

    # Jobs: questions

    async def jobs(self, **filters: Any) -> list[Record]:
        """Records, newest first. Filters: ids, states, results (lists), user, name, queue, count, since."""
        return list((await self.request("GET", Client.jobs_target(filters)))["jobs"])

    async def job(self, jobid: JobId) -> Record:
        return dict(await self.request("GET", Client.job_path(jobid)))

    async def key(self, jobid: JobId, key: str, *, original: bool = False, base: bool = False) -> str:
        """The text of `jobspec`, `R`, `J`, `eventlog` or a `guest.*` key."""
        query = "&".join(name for name, wanted in (("original=1", original), ("base=1", base)) if wanted)
        target = f"{Client.job_path(jobid)}/keys/{quote(key)}" + ("?" + query if query else "")
        answer = await self.request("GET", target)
        return answer if isinstance(answer, str) else encode_json(answer).decode()

    async def put_key(self, jobid: JobId, name: str, value: str) -> None:
        await self.request("PUT", f"{Client.job_path(jobid)}/keys/{quote('guest.' + name)}", raw=value.encode())

    async def events(
        self, jobid: JobId, paths: Sequence[str] = ("eventlog",), *, follow: bool = False, status: bool = False
    ) -> AsyncIterator[Record]:
        """The lines of a job's event stream, `{"end": true, "job": record}` last. It resumes by itself."""
        tokens = {name: token for name, _, token in (path.partition("@") for path in paths)}
        pause = Pause(self.patience_s)
        while True:
            target = Client.events_target(jobid, tokens, follow, status)
            try:
                async for line in self._lines("GET", target):
                    if line.get("restart"):
                        break
                    pause = Pause(self.patience_s)
                    if "path" in line:
                        tokens[line["path"]] = str(line["id"])
                    yield line
                    if line.get("end"):
                        return
            except (LostError, BusyError):
                pass
            if not await pause.wait():
                raise UnreachableError("the daemon does not answer: the stream of events ends early")

    async def eventlog(self, jobid: JobId, path: str = "eventlog") -> list[Record]:
        """The events of an eventlog as it is now (RFC 18 dicts)."""
        return [line["event"] async for line in self.events(jobid, [path]) if "event" in line]

    async def output(self, jobid: JobId, stream: str = "stdout") -> bytes:
        """What the tasks wrote so far, in the order it arrived."""
        events = await self.eventlog(jobid, "output")
        data = [event.get("context") or {} for event in events if event["name"] == "data"]
        return b"".join(decode_data(context) for context in data if context.get("stream") == stream)

    # Jobs: waiting

    async def wait(self, jobid: JobId) -> Record:
        """The record of a job once it is clean: tasks, prologs, epilogs and every other part are over."""
        pause = Pause(self.patience_s)
        while True:
            try:
                return dict(await self.request("POST", "/v1/wait", {"id": Client.number(jobid)}))
            except BusyError:  # the daemon ends; the next one knows the job
                if not await pause.wait():
                    raise

    async def wait_next(self) -> Record:
        """The record of the next `waitable` job that is done; each is given once."""
        return dict(await self.request("POST", "/v1/wait", {}, repeat=False))

    async def wait_many(
        self, jobids: Iterable[JobId], event: str = "clean", brief: bool = False
    ) -> AsyncIterator[Record]:
        """`{"id", "event", "job"}` per job as each reaches `event`; event None: it ended without it.

        `brief` records have just done, result, exit_code and, if there was one, the exception.
        """
        left = [Client.number(jobid) for jobid in jobids]
        while left:
            pause = Pause(self.patience_s)
            waiting = dict.fromkeys(left[:WAIT_MAX])
            left = left[WAIT_MAX:]
            while waiting:
                try:
                    body = {"ids": list(waiting), "event": event, "brief": brief}
                    async for line in self._lines("POST", "/v1/jobs/wait", body):
                        if line.get("restart"):
                            break
                        if line.get("error"):
                            raise from_dict(line["error"])
                        if line.get("id") in waiting:
                            del waiting[line["id"]]
                            pause = Pause(self.patience_s)
                            yield line
                except (LostError, BusyError):
                    pass
                if waiting and not await pause.wait():
                    raise UnreachableError("the daemon does not answer: its stream ends early")

    async def wait_event(self, jobid: JobId, name: str, path: str = "eventlog") -> Record:
        """The first event of that name. Raises NotFoundError if the job ends without it."""
        async for line in self.events(jobid, [path], follow=True):
            if "event" in line and line["event"]["name"] == name:
                return dict(line["event"])
        raise NotFoundError(f"event '{name}' never received")

    # Jobs: actions

    async def cancel(self, jobid: JobId, note: str = "", intent: str = "keep") -> None:
        body = {"note": note, "intent": intent} if intent != "keep" else {"note": note}
        await self.request("POST", f"{Client.job_path(jobid)}/cancel", body, repeat=False)

    async def raise_(self, jobid: JobId, type: str = "cancel", severity: int = 0, note: str = "") -> None:
        body = {"type": type, "severity": severity, "note": note}
        await self.request("POST", f"{Client.job_path(jobid)}/raise", body, repeat=False)

    async def kill(self, jobid: JobId, signal: int = 15) -> None:
        await self.request("POST", f"{Client.job_path(jobid)}/kill", {"signal": int(signal)}, repeat=False)

    async def post_event(self, jobid: JobId, name: str, context: Record | None = None) -> None:
        """Post an event of one's own; a name that would drive the job is refused."""
        await self.request("POST", f"{Client.job_path(jobid)}/events", {"name": name, "context": context}, repeat=False)

    async def memo(self, jobid: JobId, memo: Record, volatile: bool = False) -> None:
        """Add to the job's `user` annotations; null removes a key."""
        body = {"memo": memo, "volatile": volatile}
        await self.request("POST", f"{Client.job_path(jobid)}/memo", body, repeat=False)

    async def urgency(self, jobid: JobId, urgency: int) -> int:
        """Set the urgency (0 holds, 31 expedites). Returns the old one."""
        answer = await self.request("POST", f"{Client.job_path(jobid)}/urgency", {"urgency": urgency})
        return int(answer["old"])

    async def stdin(self, jobid: JobId, data: bytes, offset: int = 0, ranks: str = "all", eof: bool = False) -> int:
        """Send stdin from `offset` on. Returns the bytes taken so far; held back while the job is full."""
        body = stdin_body(data, offset, ranks, eof)
        return int((await self.request("POST", f"{Client.job_path(jobid)}/stdin", body))["offset"])

    async def winsize(self, jobid: JobId, rows: int, columns: int) -> None:
        """Tell the terminal of a job's tasks its size. Raises ConflictError where they have none."""
        await self.request("POST", f"{Client.job_path(jobid)}/winsize", {"rows": rows, "columns": columns})


async def send(writer: asyncio.StreamWriter, message: bytes) -> None:
    try:
        writer.write(message)
        await writer.drain()
    except OSError:
        pass  # what the daemon answered before it closed may still be there to read


async def receive(reader: asyncio.StreamReader, parser: ResponseParser) -> None:
    """Read once and feed the parser. Raises LostError."""
    try:
        data = await reader.read(RECEIVE_BYTES)
    except OSError as error:
        raise LostError(str(error), True)
    if data:
        parser.feed(data)
    else:
        parser.end_of_file()
