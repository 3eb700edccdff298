"""What a user's job does beside its tasks: `--stage-in` and `--stage-out` move data, `--post` is its own last step.

Stage-in: after `alloc`, before `start`. After `finish`, on every outcome once `start` was logged: post, then stage-out.
Paths are relative to the job's directory; the copier is a command template of the configuration. Every item is tried,
up to `retries` times more when it fails, and its result is kept with the job (`leveret job parts`). The jobspec says

    attributes.system.staging = {"in": [{src, dst}], "out": [{src, dst, when?}], "retries"?: N, "on-failure"?: "hold"}
    attributes.system.post = {"command": [argv], "timeout"?: seconds}
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from typing import Any

from leveret.config import Config, duration_error
from leveret.core import duration, jobid
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.verdict import exit_code_of, verdict
from leveret.errors import ConflictError, FormatError
from leveret.plugins import items
from leveret.plugins.hooks import Answers, PartHold, Plugin, WorkFailed
from leveret.plugins.items import Row

POST = "post"
#: how long a helper may take to say that a command has ended, once it must have
ANSWER_S = 60.0
KILL_TIMEOUT_S = 5.0
#: items of one part that are copied at a time
AT_A_TIME = 4
RETRY_DELAY_S_MAX = 60.0
Key = tuple[int, str]  #: job and part


class Staging(Plugin):
    def __init__(self, manager: Any, name: str, conf: dict[str, Any]) -> None:
        super().__init__(manager, name, conf)
        config: Config = conf["config"]
        self.copier = config.staging.copier
        self.retries = config.staging.retries
        self.retry_delay_s = _seconds(config, "staging.retry-delay", config.staging.retry_delay) or 0.0
        self.timeout_s = _seconds(config, "staging.timeout", config.staging.timeout)
        self.post_timeout_s = _seconds(config, "staging.post-timeout", config.staging.post_timeout)
        self._rows: dict[int, dict[str, Row]] = {}  #: job → results of its items, as they are stored
        self._running: dict[Key, set[str]] = {}  #: names of runs under way
        self._stopped: set[Key] = set()
        self._waiting: dict[Key, asyncio.Event] = {}  #: parts that wait for `retry`

    def validate(self, job: Job, spec: dict[str, Any]) -> Answers:
        return items.check(spec["attributes"]["system"])

    # ---- moments -----------------------------------------------------------------------------------

    def _system(self, job: int) -> dict[str, Any]:
        return dict(self.manager.jobspec(job)["attributes"]["system"])

    def state_run(self, job: Job) -> Answers:
        return [
            PartHold(
                name, self._part(job, name), blocks=["start"], uses="nodes", role="data", deadline_s=self._limit_s()
            )
            for name in items.parts(self._system(job.id), "in")
        ]

    def event_finish(self, job: Job, event: Event) -> Answers:
        post = self._system(job.id).get("post")
        if post and job.intent != "force":
            timeout_s = self._post_timeout_s(post)
            deadline_s = timeout_s + KILL_TIMEOUT_S + ANSWER_S if timeout_s else math.inf
            return PartHold(POST, self._post(job), uses="nodes", deadline_s=deadline_s)
        return self._stage_out(job)

    def event_part_finish(self, job: Job, event: Event) -> Answers:
        # in the same turn as the end of the step before it, so that `clean` cannot slip in between
        if event.get("description") == POST and job.status is not None and self._system(job.id).get("post"):
            return self._stage_out(job)
        return None

    def _stage_out(self, job: Job) -> Answers:
        system = self._system(job.id)
        wanted = []
        for name in items.parts(system, "out"):
            mine = items.of_part(system, name)
            left = [item for item in mine if items.due(job, item.when)]
            if left:
                wanted.append(name)
            for item in mine:
                if item not in left:
                    why = "discarded" if job.intent in ("discard", "force") else f"only {item.when}"
                    self._record(job.id, item, Row.new(name, item, "skipped", note=why))
        return [PartHold(name, self._part(job, name), role="data", deadline_s=self._limit_s()) for name in wanted]

    def state_inactive(self, job: Job) -> Answers:
        self._rows.pop(job.id, None)
        for kept in (self._running, self._waiting):
            for key in [key for key in kept if key[0] == job.id]:
                del kept[key]
        self._stopped = {key for key in self._stopped if key[0] != job.id}
        return None

    def _limit_s(self) -> float:
        return self.timeout_s or math.inf

    async def resume(self, job: Job, hold: Hold) -> int | None:
        return await (self._post(job) if hold.name == POST else self._part(job, hold.name))

    def stop(self, job: Job, hold: Hold) -> bool:
        key = (job.id, hold.name)
        self._stopped.add(key)
        for name in self._running.get(key, ()):
            self.manager.stop_run(job.id, name, KILL_TIMEOUT_S)
        if (waiting := self._waiting.get(key)) is not None:
            waiting.set()
        return True

    # ---- the last step -----------------------------------------------------------------------------

    def _post_timeout_s(self, post: dict[str, Any]) -> float:
        own = post.get("timeout")
        return float(own) if own is not None else self.post_timeout_s or 0.0

    def _environment(self, system: dict[str, Any]) -> dict[str, str]:
        return {str(k): str(v) for k, v in (system.get("environment") or {}).items() if v is not None}

    async def _post(self, job: Job) -> int:
        now = self.manager.job(job.id) or job
        system = self._system(job.id)
        rset = self.manager.resources(job.id)
        end = verdict(now)
        timeout_s = self._post_timeout_s(system["post"])
        self._running.setdefault((job.id, POST), set()).add(POST)
        result = await self.manager.run(
            job.id,
            POST,
            list(system["post"]["command"]),
            cwd=system.get("cwd") or "/",
            env={
                **self._environment(system),
                "FLUX_JOB_ID": jobid.encode(job.id),
                "FLUX_JOB_USERID": str(job.userid),
                "FLUX_JOB_RANKS": rset.ranks_idset() if rset else "",
                "FLUX_JOB_NNODES": str(len(rset.ranks)) if rset else "",
                "LEVERET_JOB_RESULT": end.result,
                "LEVERET_JOB_EXIT_CODE": str(end.exit_code),
            },
            timeout_s=timeout_s or None,
            kill_timeout_s=KILL_TIMEOUT_S,
            output=True,
        )
        if result.status == 0:
            return 0
        if result.timed_out:
            why = f"timed out after {duration.encode(timeout_s)}"
        elif result.lost:
            why = result.tail
        else:
            code = exit_code_of(result.status)
            why = f"killed by signal {code - 128}" if code > 128 else f"exited with code={code}"
        raise WorkFailed(f"{POST} {why}", result.status, type=POST)

    # ---- data --------------------------------------------------------------------------------------

    async def _part(self, job: Job, name: str) -> int:
        key = (job.id, name)
        system = self._system(job.id)
        mine = items.of_part(system, name)
        if not mine:
            raise WorkFailed(f"{name}: the jobspec has no such item")
        slots = asyncio.Semaphore(AT_A_TIME)
        while True:
            mine = [item for item in mine if self._row(job.id, item).status != "skipped"]
            if len(mine) == 1:
                await self._item(job, name, mine[0], system)
            else:
                await asyncio.gather(*(self._in_turn(slots, job, name, item, system) for item in mine))
            failed = [item for item in mine if self._row(job.id, item).status != "done"]
            if not failed:
                return 0
            note, status = self._failure(job.id, name, failed, len(mine))
            hold = (system.get("staging") or {}).get("on-failure") == "hold"
            if not hold or key in self._stopped:
                raise WorkFailed(note, status, type=name.rstrip("-0123456789"))
            self._waiting[key] = again = asyncio.Event()
            self.manager.progress(job.id, "part", name, note=f"{note}; waits for `leveret job retry-part`")
            await again.wait()
            self._waiting.pop(key, None)
            if key in self._stopped:
                raise WorkFailed(note, status, type=name.rstrip("-0123456789"))

    def _failure(self, job: int, name: str, failed: list[items.Item], count: int) -> tuple[str, int]:
        item = failed[0]
        row = self._row(job, item)
        note = f"{name}: {item.src} to {item.dst}: {row.error}"
        if count > 1:
            note += f" ({len(failed)} of {count} items failed)"
        return note, row.wait_status or 256

    async def _in_turn(
        self, slots: asyncio.Semaphore, job: Job, name: str, item: items.Item, system: dict[str, Any]
    ) -> None:
        async with slots:
            await self._item(job, name, item, system)

    async def _item(self, job: Job, part: str, item: items.Item, system: dict[str, Any]) -> None:
        """Copy it, again if it fails; how it went is its row."""
        key = (job.id, part)
        retries = (system.get("staging") or {}).get("retries", self.retries)
        while True:
            row = self._row(job.id, item)
            if row.status in ("done", "skipped") or (row.status == "failed" and row.attempts >= row.allowed):
                return
            if key in self._stopped and row.attempts:
                return
            run = item.run if not row.attempts else f"{item.run}.{row.attempts + 1}"
            began = self.manager.now()
            row = await self._attempt(job, part, item, system, run, row)
            row.duration_s = round(row.duration_s + self.manager.now() - began, 3)
            row.allowed = row.allowed or 1 + retries
            self._record(job.id, item, row, run)
            if row.status == "failed" and row.attempts < row.allowed and key not in self._stopped:
                await asyncio.sleep(min(self.retry_delay_s * 2 ** (row.attempts - 1), RETRY_DELAY_S_MAX))

    async def _attempt(self, job: Job, part: str, item: items.Item, system: dict[str, Any], run: str, row: Row) -> Row:
        cwd = system.get("cwd") or "/"
        paths = {"src": _join(cwd, item.src), "dst": _join(cwd, item.dst), "python": sys.executable}
        argv = [paths[word[1:-1]] if word in ("{src}", "{dst}", "{python}") else word for word in self.copier]
        moved: int | None = None

        def progress(data: dict[str, Any]) -> None:
            nonlocal moved
            if type(data.get("done")) is int and data.get("unit") in (None, "bytes"):
                moved = data["done"]
            self.manager.progress(job.id, "part", part, **data)

        running = self._running.setdefault((job.id, part), set())
        running.add(run)
        try:
            result = await self.manager.run(
                job.id, run, argv, cwd=cwd, env=self._environment(system), on_progress=progress
            )
        finally:
            running.discard(run)
        error = ""
        if result.status:
            tail = result.tail.strip().splitlines()
            error = tail[-1] if tail else f"the copier ended with exit code {exit_code_of(result.status)}"
        return Row(
            part=part,
            source=row.source or item.src[: items.TEXT_MAX],
            destination=row.destination or item.dst[: items.TEXT_MAX],
            status="failed" if result.status else "done",
            attempts=row.attempts + 1,
            allowed=row.allowed,
            bytes=moved,
            duration_s=row.duration_s,
            error=error[: items.TEXT_MAX],
            wait_status=result.status,
        )

    def _row(self, job: int, item: items.Item) -> Row:
        rows = self._rows.get(job)
        if rows is None:
            stored = self.manager.records(job, items.PREFIX)
            rows = self._rows[job] = {key: items.decode(value) for key, value in stored.items()}
        return rows.get(item.key) or Row()

    def _record(self, job: int, item: items.Item, row: Row, run: str = "") -> None:
        self._row(job, item)
        self._rows[job][item.key] = row
        self.manager.record(job, item.key, items.encode(row), run)

    def retry(self, job: Job, hold: Hold) -> int:
        """Try the failed items of a part that is held open again. Returns how many. Raises ConflictError."""
        waiting = self._waiting.get((job.id, hold.name))
        if waiting is None:
            raise ConflictError(f"part `{hold.name}` does not wait for a retry")
        count = 0
        for item in items.of_part(self._system(job.id), hold.name):
            row = self._row(job.id, item)
            if row.status == "failed":
                row.allowed = row.attempts + 1
                self._record(job.id, item, row)
                count += 1
        waiting.set()
        return count


def _join(cwd: str, path: str) -> str:
    """`path` relative to the job's directory; a trailing slash keeps its meaning."""
    return os.path.join(cwd, path)


def _seconds(config: Config, key: str, text: str) -> float | None:
    """A duration of the configuration; None is unlimited. Raises ConfigError with its place."""
    try:
        seconds = duration.parse(text)
    except FormatError as error:
        raise duration_error(config, key, error.message) from None
    return seconds if 0 < seconds < math.inf else None
