"""The Python client: a job manager's API as methods, synchronous, over its Unix socket.

    from leveret.client import Client

    with Client() as client:                      # finds or starts the user's instance
        jobid = client.run(["hostname"])          # or client.submit(jobspec)
        job = client.wait(jobid)                  # returns when the job is clean: all of its parts are over
        print(job["result"], client.output(jobid))

Every method raises an exception of `leveret.errors`. A question that is lost with its connection is
asked again; a submission is not, since it may have been taken (UnreachableError says so).
`docs/api.md` has the routes, the records and the event streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from leveret import instance as instances
from leveret.client_upkeep import UpkeepCalls
from leveret.connection import Backoff, Connection, LineStream, LostError, encode_json, make_request, quote
from leveret.errors import BusyError, LeveretError, NotFoundError, UnreachableError
from leveret.holding import HoldMethods
from leveret.partsclient import PartsClient
from leveret.planning import PlanningMethods
from leveret.queueclient import QueueClient
from leveret.rabbitclient import RabbitClient
from leveret.resourceclient import ResourceClient

#: How long a lost daemon is waited for before a call gives up.
PATIENCE_S = 60.0
#: How long the first call waits for a daemon whose socket is there but does not answer (it may be restarting).
FIRST_PATIENCE_S = 10.0
#: Jobs in one request of submit_many, ids in one of wait_many.
SUBMIT_MAX = 500
WAIT_MAX = 2000

JobId = int | str
Record = dict[str, Any]


class Client(PlanningMethods, HoldMethods, PartsClient, QueueClient, RabbitClient, ResourceClient, UpkeepCalls):
    """A client of one instance. Not for several threads at once; use one client a thread."""

    def __init__(self, uri: str | None = None, start: bool = True, patience_s: float = PATIENCE_S) -> None:
        """`uri`: the instance (default `LEVERET_URI`, else the user's own). `start`: may start the user's own."""
        self.instance = instances.find(uri)
        self.instance.may_start = self.instance.may_start and start
        self.patience_s = patience_s
        self._idle: Connection | None = None
        self._met = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    @property
    def uri(self) -> str:
        return self.instance.uri

    # Connections

    def connect(self) -> Connection:
        """A new connection; starts the daemon if this instance is ours to start. Raises UnreachableError."""
        path = self.instance.socket_path
        backoff = Backoff(self.patience_s if self._met else min(FIRST_PATIENCE_S, self.patience_s))
        absent_until = time.monotonic() + 0.3
        while True:
            try:
                connection = Connection(path)
                self._met = True
                return connection
            except FileNotFoundError as error:
                reason: OSError = error
                # a daemon that restarts replaces its socket; one that was shut down has removed it
                hopeless = not self._met and time.monotonic() > absent_until
            except ConnectionRefusedError as error:
                reason, hopeless = error, False
            except OSError as error:
                reason, hopeless = error, True
            # a daemon that ended in order has taken its socket along: that was meant, and is not for us to undo
            ended = self._met and isinstance(reason, FileNotFoundError)
            if self.instance.may_start and not ended and not isinstance(reason, PermissionError):
                instances.start_daemon(self.instance.state_dir, path)
                hopeless = False
            if hopeless or not backoff.wait():
                raise unreachable(self.instance, reason)

    def take_connection(self) -> Connection:
        """The idle connection, or a new one; the caller closes it."""
        idle, self._idle = self._idle, None
        if idle is not None:
            if not idle.is_stale():
                return idle
            idle.close()
        return self.connect()

    def request(
        self, method: str, target: str, body: Any = None, *, repeat: bool = True, raw: bytes | None = None
    ) -> Any:
        """One request and its answer. `repeat`: asking twice is harmless, so a lost question is asked again."""
        payload = raw if raw is not None else None if body is None else encode_json(body)
        message = make_request(method, target, payload, "application/json" if raw is None else "text/plain")
        backoff = Backoff(self.patience_s)
        while True:
            connection = self.take_connection()
            try:
                connection.send(message)
                answer = connection.receive_answer()
            except LostError as lost:
                connection.close()
                if not repeat:
                    raise UnreachableError(
                        f"the connection to the daemon was lost before it answered: {lost}",
                        "it may or may not have done what was asked; see `leveret jobs`",
                    )
                if not backoff.wait():
                    raise UnreachableError(f"the daemon does not answer: {lost}")
                continue
            except LeveretError:
                self._keep(connection)
                raise
            except BaseException:
                connection.close()
                raise
            self._keep(connection)
            return answer

    def _keep(self, connection: Connection) -> None:
        if connection.parser.keeps_alive and self._idle is None:
            self._idle = connection
        else:
            connection.close()

    def _lines(self, method: str, target: str, body: Any = None) -> Iterator[Record]:
        """The lines of one streamed answer; LostError if it breaks off."""
        stream = LineStream(self.connect())
        try:
            stream.start(make_request(method, target, None if body is None else encode_json(body)))
            yield from stream
        finally:
            stream.close()

    # Instance

    def status(self) -> Record:
        """`{pid, helpers, uri, state_dir, version, protocol, started, jobs}` of the daemon."""
        return dict(self.request("GET", "/v1/status"))

    def shutdown(self, timeout_s: float = 10.0, keep: bool = False) -> list[str]:
        """End the instance; running jobs are canceled first unless `keep`. Returns what is left behind, as text."""
        answer = self.request("POST", "/v1/shutdown", {"timeout_s": timeout_s, "keep": keep}, repeat=False)
        return list(answer.get("left", []))

    def stats(self) -> Record:
        """`{job_states: {STATE: count, total}, successful, failed, canceled, timeout, inactive_purged, queues}`."""
        return dict(self.request("GET", "/v1/stats"))

    def purge(
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
        return dict(self.request("POST", "/v1/purge", body, repeat=False))

    # Jobs: submission

    def submit(self, jobspec: Record, urgency: int = 16, flags: Sequence[str] = (), **extra: Any) -> int:
        """Submit a jobspec (RFC 25 as dict). Returns the job's id, which is on disk then."""
        body = {"jobspec": jobspec, "urgency": urgency, "flags": list(flags), **extra}
        return int(self.request("POST", "/v1/jobs", body, repeat=False)["id"])

    def submit_many(self, jobs: Sequence[Record]) -> list[int | LeveretError]:
        """Submit dicts `{jobspec, urgency, flags}`. Per job its id, or the error that refused it."""
        from leveret.errors import from_dict

        results: list[int | LeveretError] = []
        for first in range(0, len(jobs), SUBMIT_MAX):
            batch = list(jobs[first : first + SUBMIT_MAX])
            answer = self.request("POST", "/v1/jobs", {"jobs": batch}, repeat=False)
            results += [from_dict(item["error"]) if item.get("error") else int(item["id"]) for item in answer["jobs"]]
        return results

    def submit_copies(
        self, jobspec: Record, copies: Sequence[str | None], urgency: int = 16, flags: Sequence[str] = ()
    ) -> list[int | LeveretError]:
        """Submit one jobspec many times; each copy's text becomes its FLUX_JOB_CC (None: no such variable)."""
        from leveret.errors import from_dict

        results: list[int | LeveretError] = []
        for first in range(0, len(copies), SUBMIT_MAX):
            body = {"jobspec": jobspec, "urgency": urgency, "flags": list(flags)}
            body["copies"] = list(copies[first : first + SUBMIT_MAX])
            answer = self.request("POST", "/v1/jobs", body, repeat=False)
            results += [from_dict(item["error"]) if item.get("error") else int(item["id"]) for item in answer["jobs"]]
        return results

    def run(self, command: Sequence[str], **options: Any) -> int:
        """Submit a command with our directory and environment. `options` are those of `core.jobspec.build`."""
        import os

        from leveret.core import jobspec

        options.setdefault("cwd", os.getcwd())
        options.setdefault("environment", dict(os.environ))
        return self.submit(jobspec.build(list(command), **options))

    # Jobs: questions

    def jobs(self, **filters: Any) -> list[Record]:
        """Records, newest first. Filters: ids, states, results (lists), user, name, queue, count, since."""
        return list(self.request("GET", self.jobs_target(filters))["jobs"])

    def job(self, jobid: JobId) -> Record:
        """One job's record. Raises NotFoundError."""
        return dict(self.request("GET", self.job_path(jobid)))

    def key(self, jobid: JobId, key: str, *, original: bool = False, base: bool = False) -> str:
        """The text of `jobspec`, `R`, `J`, `eventlog` or a `guest.*` key."""
        query = "&".join(name for name, wanted in (("original=1", original), ("base=1", base)) if wanted)
        answer = self.request("GET", f"{self.job_path(jobid)}/keys/{quote(key)}" + ("?" + query if query else ""))
        return answer if isinstance(answer, str) else encode_json(answer).decode()

    def put_key(self, jobid: JobId, name: str, value: str) -> None:
        """Set `guest.NAME` of a job."""
        self.request("PUT", f"{self.job_path(jobid)}/keys/{quote('guest.' + name)}", raw=value.encode())

    def events(
        self, jobid: JobId, paths: Sequence[str] = ("eventlog",), *, follow: bool = False, status: bool = False
    ) -> Iterator[Record]:
        """The lines of a job's event stream, `{"end": true, "job": record}` last.

        With `follow` it goes on until the job is done. A daemon that dies or restarts meanwhile
        is not seen: the stream resumes, and no event is lost or doubled.
        """
        with EventStream(self, jobid, paths, follow=follow, status=status) as stream:
            while not stream.ended:
                yield from stream.pump()

    def eventlog(self, jobid: JobId, path: str = "eventlog") -> list[Record]:
        """The events of an eventlog as it is now (RFC 18 dicts)."""
        return [line["event"] for line in self.events(jobid, [path]) if "event" in line]

    def output(self, jobid: JobId, stream: str = "stdout", rank: int | None = None) -> bytes:
        """What the tasks wrote so far, in the order it arrived; `rank`: of that task only."""
        from leveret.core import idset

        pieces = []
        for event in self.eventlog(jobid, "output"):
            context = event.get("context", {})
            if event["name"] == "data" and context.get("stream") == stream:
                ranks = str(context.get("rank", ""))
                if rank is None or ranks == "all" or rank in idset.parse(ranks):
                    pieces.append(decode_data(context))
        return b"".join(pieces)

    def tasks(self, jobid: JobId) -> list[Record]:
        """`{rank, host, pid}` of a running job's tasks; none before they have started."""
        return list(self.request("GET", f"{self.job_path(jobid)}/tasks")["tasks"])

    # Jobs: waiting

    def wait(self, jobid: JobId) -> Record:
        """The record of a job once it is clean: tasks, prologs, epilogs and every other part are over."""
        backoff = Backoff(self.patience_s)
        while True:
            try:
                return dict(self.request("POST", "/v1/wait", {"id": self.number(jobid)}))
            except BusyError:  # the daemon ends; the next one knows the job
                if not backoff.wait():
                    raise

    wait_clean = wait

    def wait_next(self) -> Record:
        """The record of the next job submitted with the flag `waitable` that is done; each is given once."""
        return dict(self.request("POST", "/v1/wait", {}, repeat=False))

    def wait_many(self, jobids: Iterable[JobId], event: str = "clean", brief: bool = False) -> Iterator[Record]:
        """`{"id", "event", "job"}` per job as each reaches `event`; event None: it ended without it.

        `brief` records have just done, result, exit_code and, if there was one, the exception.
        """
        left = [self.number(jobid) for jobid in jobids]
        while left:
            backoff = Backoff(self.patience_s)
            waiting = dict.fromkeys(left[:WAIT_MAX])
            left = left[WAIT_MAX:]
            while waiting:
                try:
                    for line in self._lines(
                        "POST", "/v1/jobs/wait", {"ids": list(waiting), "event": event, "brief": brief}
                    ):
                        if line.get("restart"):
                            break
                        if line.get("error"):
                            from leveret.errors import from_dict

                            raise from_dict(line["error"])
                        if line.get("id") in waiting:
                            del waiting[line["id"]]
                            backoff = Backoff(self.patience_s)
                            yield line
                except (LostError, BusyError) as lost:
                    if not backoff.wait():
                        raise UnreachableError(f"the daemon does not answer: {lost}")
                else:
                    if waiting and not backoff.wait():
                        raise UnreachableError("the daemon does not answer: its stream ends early")

    def wait_event(self, jobid: JobId, name: str, path: str = "eventlog") -> Record:
        """The first event of that name. Raises NotFoundError if the job ends without it."""
        for line in self.events(jobid, [path], follow=True):
            if "event" in line and line["event"]["name"] == name:
                return dict(line["event"])
        raise NotFoundError(f"event '{name}' never received")

    # Jobs: actions

    def cancel(self, jobid: JobId, note: str = "", intent: str = "keep") -> None:
        """Post the exception `cancel`; does not wait for the job's end.

        `intent`: `keep` (data that is to be staged out is), `discard` (end what moves data too), `force` (kill the
        tasks at once, and end every part of the user). ConflictError when the tasks are over and the intent ends nothing.
        """
        body = {"note": note, "intent": intent} if intent != "keep" else {"note": note}
        self.request("POST", f"{self.job_path(jobid)}/cancel", body, repeat=False)

    def raise_(self, jobid: JobId, type: str = "cancel", severity: int = 0, note: str = "") -> None:
        """Post an exception (RFC 21); severity 0 is fatal."""
        body = {"type": type, "severity": severity, "note": note}
        self.request("POST", f"{self.job_path(jobid)}/raise", body, repeat=False)

    def kill(self, jobid: JobId, signal: int = 15) -> None:
        """Send a signal to the job's tasks."""
        self.request("POST", f"{self.job_path(jobid)}/kill", {"signal": int(signal)}, repeat=False)

    def post_event(self, jobid: JobId, name: str, context: Record | None = None) -> None:
        """Post an event of one's own; a name that would drive the job is refused."""
        self.request("POST", f"{self.job_path(jobid)}/events", {"name": name, "context": context}, repeat=False)

    def memo(self, jobid: JobId, memo: Record, volatile: bool = False) -> None:
        """Add to the job's `user` annotations; null removes a key. `volatile`: without an event, lost at a restart."""
        self.request("POST", f"{self.job_path(jobid)}/memo", {"memo": memo, "volatile": volatile}, repeat=False)

    def urgency(self, jobid: JobId, urgency: int) -> int:
        """Set the urgency (0 holds, 31 expedites). Returns the old one."""
        return int(self.request("POST", f"{self.job_path(jobid)}/urgency", {"urgency": urgency})["old"])

    def stdin(self, jobid: JobId, data: bytes, offset: int = 0, ranks: str = "all", eof: bool = False) -> int:
        """Send stdin from `offset` on. Returns the bytes taken so far; held back while the job is full."""
        body = stdin_body(data, offset, ranks, eof)
        return int(self.request("POST", f"{self.job_path(jobid)}/stdin", body)["offset"])

    def winsize(self, jobid: JobId, rows: int, columns: int) -> None:
        """Tell the terminal of a job's tasks its size. Raises ConflictError where they have none."""
        self.request("POST", f"{self.job_path(jobid)}/winsize", {"rows": rows, "columns": columns})

    # The forms of targets and ids, which AsyncClient shares

    @staticmethod
    def jobs_target(filters: Record) -> str:
        """The target of a listing; None and empty filters are left out."""
        pairs = []
        for name, value in filters.items():
            if isinstance(value, list | tuple | set | frozenset):
                value = ",".join(str(item) for item in value)
            if value is not None and value != "":
                pairs.append(f"{name}={quote(str(value), b',')}")
        return "/v1/jobs" + ("?" + "&".join(pairs) if pairs else "")

    @staticmethod
    def events_target(jobid: JobId, tokens: dict[str, str], follow: bool, status: bool) -> str:
        """The target of an event stream; `tokens` are path → last token seen, or ""."""
        query = [f"path={quote(path + ('@' + token if token else ''))}" for path, token in tokens.items()]
        query += [name for name, wanted in (("follow=1", follow), ("status=1", status)) if wanted]
        return f"{Client.job_path(jobid)}/events?{'&'.join(query)}"

    @staticmethod
    def number(jobid: JobId) -> int:
        if isinstance(jobid, int):
            return jobid
        from leveret.core import jobid as jobids

        return jobids.parse(jobid)

    @staticmethod
    def job_path(jobid: JobId) -> str:
        return f"/v1/jobs/{quote(str(jobid))}"


def unreachable(instance: instances.Instance, reason: OSError) -> UnreachableError:
    """No daemon answers: what to do about it depends on whose instance it is."""
    if instance.state_dir:
        hint = f"see {instance.state_dir}/daemon.err, or start an instance: leveret start"
    else:
        hint = f"{instances.URI_VARIABLE} names an instance that is not running; unset it to use your own"
    path = instance.socket_path
    return UnreachableError(f"no daemon answers at `{path}`: {reason.strerror or reason}", hint, path)


def stdin_body(data: bytes, offset: int, ranks: str, eof: bool) -> Record:
    from binascii import b2a_base64

    return {"offset": offset, "ranks": ranks, "data": b2a_base64(data, newline=False).decode(), "eof": eof}


def decode_data(context: Record) -> bytes:
    """The bytes of an RFC 24 data event: text, or base64 if `encoding` says so; `repeat` repeats them."""
    data = context.get("data")
    if data is None:
        return b""
    if context.get("encoding") == "base64":
        from binascii import a2b_base64

        raw = a2b_base64(data)
    else:
        raw = str(data).encode("utf-8", "surrogateescape")
    return raw * int(context.get("repeat", 1))


class EventStream:
    """A job's event stream that can be polled and that resumes by itself.

    `paths` are names, or `NAME@TOKEN` to begin after an event. `pump()` reads once and returns whole lines; `ended` is true after the `end` line. `fileno()` changes when
    the stream resumes. `on_lost` is called once per loss with its reason, before the first new attempt.
    """

    def __init__(
        self,
        client: Client,
        jobid: JobId,
        paths: Sequence[str],
        *,
        follow: bool = True,
        status: bool = False,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self.client = client
        self.jobid = jobid
        #: path → token of the last event seen ("" before the first)
        self.tokens: dict[str, str] = {}
        for path in paths:
            name, _, token = path.partition("@")
            self.tokens[name] = token
        self.follow = follow
        self.status = status
        self.on_lost = on_lost
        self.ended = False
        self._stream: LineStream | None = None
        #: patience with a stream that breaks off again and again; renewed by every event
        self._backoff = Backoff(client.patience_s)
        self._open()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def fileno(self) -> int:
        return self._stream.connection.fileno() if self._stream else -1

    @property
    def pending(self) -> bool:
        """Whether `pump` has lines without reading."""
        return self._stream is not None and self._stream.pending

    def pump(self) -> list[Record]:
        """The lines that one read brings, maybe none. After a loss it reconnects, which may take `patience_s`."""
        if self._stream is None:
            return []
        try:
            lines = self._stream.pump()
        except LostError as lost:
            self._resume(str(lost))
            return []
        fresh = []
        renewed = False
        for line in lines:
            if line.get("restart"):
                self._resume("the daemon restarts")
                break
            if "path" in line:
                self.tokens[line["path"]] = str(line["id"])
                renewed = True
            fresh.append(line)
            if line.get("end"):
                self.ended = True
                self.close()
                break
        if renewed:
            self._backoff = Backoff(self.client.patience_s)
        return fresh

    def _open(self) -> None:
        target = Client.events_target(self.jobid, self.tokens, self.follow, self.status)
        request = make_request("GET", target)
        while True:
            stream = LineStream(self.client.take_connection())
            try:
                stream.start(request)
            except (LostError, BusyError) as lost:
                stream.close()
                if not self._backoff.wait():
                    raise UnreachableError(f"the daemon does not answer: {lost}")
            except BaseException:
                stream.close()
                raise
            else:
                self._stream = stream
                return

    def _resume(self, reason: str) -> None:
        self.close()
        if self.on_lost is not None:
            self.on_lost(reason)
        if not self._backoff.wait():
            raise UnreachableError(f"the daemon does not answer: {reason}")
        self._open()
