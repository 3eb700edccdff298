"""What doors ask: records, listings, keys and event streams. Nothing here changes anything.

Every answer is read after what is pending has reached the disk, so no door is ahead of the log.
"""

from __future__ import annotations

import asyncio
import base64
import pwd
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from leveret.core import jobid as jobids
from leveret.core.job import Job
from leveret.core.transitions import NEW, PENDING, RUNNING, State
from leveret.core.verdict import phase
from leveret.errors import ConflictError, FormatError, InvalidError, NotFoundError
from leveret.manager.manager import Manager
from leveret.manager.units import EXEC, INPUT, OUTPUT, line

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
Record = dict[str, Any]

ALIASES = {"exec": EXEC, "output": OUTPUT, "input": INPUT, "guest.exec.eventlog": EXEC}
KEY = re.compile(r"guest\.[A-Za-z0-9_.\-]+\Z")
BRIEF = ("done", "result", "exit_code", "exception_occurred", "exception_type", "exception_severity", "exception_note")
KEEP_ALIVE_S = 20.0
#: lines of one piece of a stream
PIECE_LINES = 256
PIECE_BYTES = 65536
STATES: dict[str, tuple[State, ...]] = {
    **{state.name.lower(): (state,) for state in State},
    "pending": PENDING,
    "running": RUNNING,
    "active": (NEW, *PENDING, *RUNNING),
}
RESULTS = ("completed", "failed", "canceled", "timeout")


def username(uid: int, cache: dict[int, str] = {}) -> str:  # noqa: B006 - a process-wide cache on purpose
    if uid not in cache:
        try:
            cache[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            cache[uid] = str(uid)
    return cache[uid]


def _timestamp(body: bytes) -> float:
    """Of an RFC 18 line that we wrote: the timestamp is its first key."""
    return float(body[13 : body.index(b",")])


class Queries:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.store = manager.store

    # ---- records -----------------------------------------------------------------------------------

    async def record(self, jobid: int) -> Record:
        await self.store.barrier()
        record = self._record(jobid)
        if record is None:
            raise NotFoundError("unknown job id")
        return record

    def _record(self, jobid: int) -> Record | None:
        entry = self.manager.entries.get(jobid)
        if entry is not None and not entry.job.done:
            return self._dress(self.manager.record(entry))
        recent = self.manager.finals.get(jobid)
        if recent is not None:
            return self._dress(recent)
        if jobid in self.manager.quarantine:
            raise self.manager.quarantine.refusal(jobid)
        body = self.store.done_record(jobid)
        if body is None:
            return self._dress(self.manager.record(entry)) if entry is not None else None
        record = self._final(body)
        if record is None:
            raise ConflictError("the record of this job is damaged", "see `leveret fsck`")
        return self._dress(record)

    def _final(self, body: bytes) -> Record | None:
        """The record of an inactive job; None when it is damaged: the others are listed all the same."""
        try:
            record: Record = _decode(body)
            return record if record["id"] and record["userid"] is not None else None
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            self.manager.log.error("damaged record of an inactive job", record=repr(body[:200]))
            return None

    def _dress(self, record: Record) -> Record:
        record["username"] = username(record["userid"])
        return record

    async def listing(
        self,
        ids: list[int] | None = None,
        states: list[str] | None = None,
        results: list[str] | None = None,
        user: str = "",
        name: str = "",
        queues: list[str] | None = None,
        count: int = 1000,
        since: float = 0.0,
    ) -> list[Record]:
        """The newest submission first.

        Without `states` and `results` jobs of every state; `results` alone means inactive ones; `since` is about when
        inactive ones ended. `count` 0 means all.
        """
        await self.store.barrier()
        if ids is not None:
            return [r for r in (self._record(i) for i in ids) if r is not None]
        wanted: set[State] = set()
        for word in states or ([] if results else ["active", "inactive"]):
            if word.lower() not in STATES:
                raise InvalidError(f"Invalid state {word} specified", "states: " + ", ".join(STATES))
            wanted.update(STATES[word.lower()])
        for word in results or []:
            if word.lower() not in RESULTS:
                raise InvalidError(f"Invalid result {word} specified", "results: " + ", ".join(RESULTS))
        allowed = {word.upper() for word in results or []}
        uid = self._uid(user)
        limit = count or 1 << 62
        out: list[Record] = []

        def take(record: Record) -> None:
            if (
                (uid is None or record["userid"] == uid)
                and (not name or record["name"] == name)
                and (not queues or record["queue"] in queues)
                and (not allowed or record["result"] in allowed)
            ):
                out.append(self._dress(record))

        active = [] if allowed else sorted(self.manager.entries, reverse=True)
        at = 0

        def take_active(above: int) -> None:
            nonlocal at
            while at < len(active) and active[at] > above and len(out) < limit:
                entry = self.manager.entries.get(active[at])
                at += 1
                if entry is not None and entry.job.state in wanted:
                    take(self.manager.record(entry))

        if State.INACTIVE in wanted or allowed:
            for number, body in enumerate(self.store.inactive(1 << 62, since)):
                record = self._final(body)
                if record is None:
                    continue
                take_active(record["id"])
                if len(out) >= limit:
                    break
                take(record)
                if number % 500 == 499:
                    await asyncio.sleep(0)
        take_active(0)
        return out

    def _uid(self, user: str) -> int | None:
        if not user or user == "all":
            return None
        if user.isdigit():
            return int(user)
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError:
            raise InvalidError(f"Invalid user {user} specified") from None

    async def counts(self) -> dict[str, int]:
        await self.store.barrier()
        out = {state.name: 0 for state in State}
        for entry in self.manager.entries.values():
            out[entry.job.state.name] += 1
        out["INACTIVE"] = self.store.inactive_count()
        return out

    async def stats(self) -> Record:
        """Counts as `job stats` prints them."""
        states = await self.counts()
        results = self.store.result_counts()
        good, bad = (
            results.get("COMPLETED", 0),
            {name: results.get(name, 0) for name in ("FAILED", "CANCELED", "TIMEOUT")},
        )
        shown = [state.name for state in State if state is not NEW]
        return {
            "job_states": {
                **{name.lower(): states[name] for name in shown},
                "total": sum(states.values()),
            },
            "successful": good,
            "failed": sum(bad.values()),  # as in Flux: of whatever cause
            "canceled": bad["CANCELED"],
            "timeout": bad["TIMEOUT"],
            "inactive_purged": self.store.purged_count(),
            "queues": [],
        }

    def tasks(self, jobid: int) -> list[Record]:
        """{rank, host, pid} of a running job's tasks; none before they have started. Raises ConflictError."""
        entry = self.manager.entry(jobid)
        hosts = {rank: host for rank, host, _ in self.manager.engine.hosts()}
        if entry.rset is None or not entry.job.started:
            return []
        ranks = dict(zip(entry.rset.ranks, self.manager.perform.layout(entry), strict=True))
        out = [
            {"rank": rank, "host": hosts.get(ask.node, ""), "pid": pid}
            for ask in entry.job_asks()
            for rank, pid in zip(ranks.get(ask.node, ()), ask.pids, strict=False)
        ]
        return sorted(out, key=lambda task: task["rank"])

    # ---- keys (RFC 16) -------------------------------------------------------------------------------

    async def key(self, jobid: int, key: str, *, original: bool = False, base: bool = False) -> bytes:
        """The value of a key of the job's schema. Raises NotFoundError."""
        await self.store.barrier()
        job = self.manager.outcome(jobid)
        if job is None:
            raise NotFoundError("invalid job id")
        if key == "jobspec":
            if original:
                spec = self.manager.original_jobspec(jobid)
            else:
                spec = self.manager.stored_jobspec(jobid) if base else self.manager.jobspec(jobid)
            if not original:
                spec = _decode(_encode(spec))
                spec["attributes"]["system"].pop("environment", None)
            return bytes(_encode(spec)) + b"\n"
        if key == "R":
            stored = self.store.kv(jobid, "R")
            if stored is not None:
                return self._resources(job, stored, base or original)
        elif key == "J":
            signed = _encode(self.manager.original_jobspec(jobid))
            header = _encode({"version": 1, "userid": job.userid, "mechanism": "none"})
            return b".".join((base64.b64encode(header), base64.b64encode(signed), b"none")) + b"\n"
        elif key == "parts":
            rows = self.store.kv_under(jobid, "part/")
            return bytes(_encode({"items": [_decode(row) for row in rows.values()]})) + b"\n"
        elif key == "eventlog":
            return b"".join(text + b"\n" for text in self.store.all_events(jobid))
        else:
            path = ALIASES.get(key, key)
            if key.startswith("rabbit_") and (kept := self.store.kv(jobid, key)) is not None:
                return kept + b"\n"
            if path.startswith("guest."):
                text = b"".join([body async for _token, body in self._lines(jobid, path, "0", newline=True)])
                if text:
                    return text
                value = self.store.kv(jobid, path)
                if value is not None:
                    return value
                if path == INPUT and job.started:
                    return self._input_header(job) + b"\n"
        raise NotFoundError(f"{key}: key not found")

    def _resources(self, job: Job, stored: bytes, base: bool) -> bytes:
        if job.expiration and not base:
            value = _decode(stored)
            value["execution"]["expiration"] = job.expiration
            return bytes(_encode(value)) + b"\n"
        return bytes(stored) + b"\n"

    def _input_header(self, job: Job) -> bytes:
        return line(
            job.t_start, "header", {"version": 1, "encoding": {"stdin": "UTF-8"}, "count": {"stdin": 1}, "options": {}}
        )

    def check_key(self, key: str) -> None:
        if not KEY.match(key) or key in (EXEC, OUTPUT, INPUT):
            raise InvalidError(
                f"`{key}` cannot be set", "a key is guest.NAME; exec, output and input are the job's own"
            )

    # ---- event streams ---------------------------------------------------------------------------------

    async def events(
        self, jobid: int, paths: list[str], *, follow: bool, status: bool, ending: asyncio.Event
    ) -> AsyncIterator[bytes]:
        """The lines of docs/api.md. `paths` are NAME or NAME@TOKEN; a token is the last one that the reader has."""
        await self.store.barrier()
        job = self.manager.outcome(jobid)
        if job is None:
            raise NotFoundError(f"job {jobids.encode(jobid)} not found")
        tokens: dict[str, str] = {}
        labels: dict[str, str] = {}
        for given in paths or ["eventlog"]:
            label, _, token = given.partition("@")
            path = ALIASES.get(label, label)
            if path != "eventlog" and not path.startswith("guest."):
                raise NotFoundError(f"eventlog path {label} not found")
            if path not in ("eventlog", EXEC, OUTPUT, INPUT) and path not in self.store.guest_paths(jobid):
                raise NotFoundError(f"eventlog path {label} not found")
            if not re.fullmatch(r"\d*(:\d+)?", token):
                raise FormatError(f"`{token}` is not a token of this stream")
            tokens[path] = token or "0"
            labels[path] = label
        return self._stream(jobid, tokens, labels, follow, status, ending)

    async def _stream(
        self,
        jobid: int,
        tokens: dict[str, str],
        labels: dict[str, str],
        follow: bool,
        status: bool,
        ending: asyncio.Event,
    ) -> AsyncIterator[bytes]:
        news = self.manager.feed.watch(jobid)
        last_status = b""
        try:
            while True:
                news.clear()
                job = self.manager.outcome(jobid)
                # `done` is looked at before the logs are read: what is read then is all there will be
                over = jobid not in self.manager.entries
                parts: list[bytes] = []
                size = 0
                async for item in self._news(jobid, tokens, labels):
                    parts.append(item)
                    size += len(item)
                    if size >= PIECE_BYTES:
                        yield b"".join(parts)
                        parts, size = [], 0
                if parts:
                    yield b"".join(parts)
                if over or not follow or job is None:
                    break
                if status:
                    now = self._status(jobid)
                    if now and now != last_status:
                        last_status = now
                        yield now
                if ending.is_set():
                    yield b'{"restart":true}\n'
                    return
                if news.is_set():
                    continue
                try:
                    await asyncio.wait_for(news.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield b"\n"
            record = self._record(jobid)
            if record is None:  # purged meanwhile: asking again says so
                yield b'{"restart":true}\n'
                return
            yield _encode({"end": True, "job": record}) + b"\n"
        finally:
            self.manager.feed.unwatch(jobid, news)

    async def _news(self, jobid: int, tokens: dict[str, str], labels: dict[str, str]) -> AsyncIterator[bytes]:
        """What the paths have after their tokens, merged by time: what a task has printed comes before its `finish`.

        Output and input may be long and are passed through; the other eventlogs are short and wait to be merged in.
        """
        early: list[tuple[float, bytes]] = []
        long = [path for path in tokens if path in (OUTPUT, INPUT)]
        for path in tokens:
            if path not in long:
                prefix = b'{"path":' + _encode(labels[path]) + b',"id":"'
                async for token, body in self._lines(jobid, path, tokens[path]):
                    tokens[path] = token
                    early.append((_timestamp(body), prefix + token.encode() + b'","event":' + body + b"}\n"))
        if len(tokens) - len(long) > 1:
            early.sort(key=lambda pair: pair[0])
        at = 0
        for path in long:
            prefix = b'{"path":' + _encode(labels[path]) + b',"id":"'
            async for token, body in self._lines(jobid, path, tokens[path]):
                if at < len(early):
                    now = _timestamp(body)
                    while at < len(early) and early[at][0] < now:
                        yield early[at][1]
                        at += 1
                tokens[path] = token
                yield prefix + token.encode() + b'","event":' + body + b"}\n"
        for _, item in early[at:]:
            yield item

    def _status(self, jobid: int) -> bytes:
        entry = self.manager.entries.get(jobid)
        if entry is None:
            return b""
        name, waiting = phase(entry.job)
        progress = next((p for p in entry.progress.values()), None)
        body = {"state": entry.job.state.name, "phase": name, "waiting_for": waiting, "progress": progress}
        return bytes(_encode({"status": body})) + b"\n"

    async def lines(self, jobid: int, path: str) -> AsyncIterator[bytes]:
        """Every RFC 18 line of one eventlog; output that lies in a file is among them."""
        async for _token, body in self._lines(jobid, path, "0"):
            yield body

    async def _lines(
        self, jobid: int, path: str, token: str, newline: bool = False
    ) -> AsyncIterator[tuple[str, bytes]]:
        """(token, RFC 18 line) after `token`; tokens are N, or N:OFFSET within an extent of an output file."""
        end = b"\n" if newline else b""
        if path == "eventlog":
            after = int(token.partition(":")[0] or 0)
            while page := self.store.events(jobid, after, PIECE_LINES):
                for n, text in page:
                    after = n
                    yield str(n), text + end
            return
        seen, _, within = token.partition(":")
        done = int(seen or 0)  # lines up to and with this one have been read (of an extent: OFFSET of it)
        offset = int(within) if within else -1
        found = False
        while True:
            at = done if offset >= 0 else done + 1
            rows = self.store.guest(jobid, path, at)
            fresh = [row for row in rows if row[0] + row[1] > at]
            if not fresh:
                break
            for n, count, extent, lines in fresh:
                found = True
                if extent:
                    async for place, body in self._frames(_decode(lines), offset):
                        yield f"{n}:{place}", body + end
                    offset = -1
                    done = n
                    continue
                for number, text in enumerate(lines.splitlines(), n):
                    if number > done:
                        yield str(number), text + end
                done = n + count - 1
                offset = -1
        if path == INPUT and not found and done == 0:
            job = self.manager.outcome(jobid)
            if job is not None and job.done and job.started:
                yield "1", self._input_header(job) + end

    async def _frames(self, extent: dict[str, Any], offset: int) -> AsyncIterator[tuple[int, bytes]]:
        start = max(extent["start"], offset)
        frames = self.manager.engine.read_output(extent["node"], extent["file"], start, extent["end"])
        for number, frame in enumerate(frames):
            if number % 16 == 15:
                await asyncio.sleep(0)  # a long file must not keep other doors waiting
            if frame.stream == "log":
                said = _decode(frame.data)
                body = line(frame.time, "log", {"rank": extent["node"], **said})
            else:
                context: dict[str, Any] = {"stream": frame.stream, "rank": str(frame.rank)}
                if frame.data:
                    try:
                        context["data"] = frame.data.decode("utf-8")
                    except UnicodeDecodeError:
                        context["encoding"] = "base64"
                        context["data"] = base64.b64encode(frame.data).decode("ascii")
                if frame.eof:
                    context["eof"] = True
                body = line(frame.time, "data", context)
            yield frame.end_offset, body

    async def wait_events(self, ids: list[int], event: str, brief: bool, ending: asyncio.Event) -> AsyncIterator[bytes]:
        """One line per job as it reaches `event` (or has ended without it): {"id", "event", "job"}."""
        if event == "clean":
            async for text in self._wait_clean(ids, brief, ending):
                yield text
            return
        queue: asyncio.Queue[bytes] = asyncio.Queue()

        async def one(jobid: int) -> None:
            path, wanted = ("exec", event.removeprefix("exec.")) if event.startswith("exec.") else ("eventlog", event)
            hit: Any = None
            try:
                stream = await self.events(jobid, [path], follow=True, status=False, ending=ending)
                async for piece in stream:
                    items = [_decode(text) for text in piece.splitlines() if text]
                    if any("restart" in item for item in items):
                        await queue.put(b'{"restart":true}\n')
                        return
                    hits = (item["event"] for item in items if "event" in item and item["event"]["name"] == wanted)
                    hit = next(hits, None)
                    if hit is not None:
                        break
                await queue.put(_encode({"id": jobid, "event": hit, "job": self._record(jobid)}) + b"\n")
            except NotFoundError as error:
                await queue.put(_encode({"id": jobid, "event": None, "error": error.to_dict()}) + b"\n")

        tasks = [asyncio.create_task(one(jobid)) for jobid in ids]
        try:
            for _ in tasks:
                yield await queue.get()
        finally:
            for task in tasks:
                task.cancel()

    async def _wait_clean(self, ids: list[int], brief: bool, ending: asyncio.Event) -> AsyncIterator[bytes]:
        """Cheap for thousands of jobs: one wake-up a loop pass, not one watcher a job."""
        await self.store.barrier()
        news = asyncio.Event()
        ended = [jobid for jobid in dict.fromkeys(ids) if jobid not in self.manager.entries]
        waiting = set(ids).difference(ended)
        self.manager.feed.watch_ends(waiting, ended, news)
        try:
            while True:
                news.clear()
                if ended:
                    taken, ended[:] = ended[:], []
                    waiting.difference_update(taken)
                    yield b"".join(self._end_line(jobid, brief) for jobid in taken)
                    # let a few come together: a stream of tiny pieces costs more than the jobs
                    await asyncio.sleep(0.02 if waiting else 0)
                    continue
                if not waiting:
                    return
                if ending.is_set():
                    yield b'{"restart":true}\n'
                    return
                try:
                    await asyncio.wait_for(news.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield b"\n"
        finally:
            self.manager.feed.unwatch_ends(waiting, news)

    def _end_line(self, jobid: int, brief: bool) -> bytes:
        record = self._record(jobid)
        if record is None:
            error = NotFoundError(f"job {jobids.encode(jobid)} not found").to_dict()
            return _encode({"id": jobid, "event": None, "error": error}) + b"\n"
        event = {"timestamp": record.get("t_inactive"), "name": "clean"}
        if brief:
            record = {key: record[key] for key in BRIEF if key in record}
        return _encode({"id": jobid, "event": event, "job": record}) + b"\n"
