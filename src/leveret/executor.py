"""`leveret.Executor`: jobs as `concurrent.futures` futures.

    from leveret import Executor
    from leveret.core import jobspec

    with Executor() as executor:
        future = executor.submit(jobspec.build(["./step"], cwd="."))
        print(future.jobid(), future.result())      # 0 once the job is clean: its data is where it belongs

A future resolves at `clean` with the verdict: its result is the exit code; a job that a fatal exception ended
(cancel, time limit, failed data movement …) raises JobFailed. `wait_event=` resolves it earlier. One bad submission
fails its own future and no other. The shape is that of Flux's FluxExecutor.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from leveret.aclient import AsyncClient
from leveret.core import jobid as jobids
from leveret.core import jobspec as jobspecs
from leveret.errors import LeveretError

Record = dict[str, Any]
#: submissions that go out in one request
BATCH_MAX = 500
#: how long submissions wait for company
GATHER_S = 0.005


class JobFailed(LeveretError):
    """A fatal exception ended the job: `type`, `severity` and `note` are the exception's, `job` is the record."""

    code, status, exit_code = "job-failed", 409, 1

    def __init__(self, job: Record) -> None:
        cause = job.get("cause") or {}
        self.job = job
        self.type = str(cause.get("type", ""))
        self.severity = int(cause.get("severity", 0))
        self.note = str(cause.get("note", ""))
        super().__init__(f"job {job.get('f58')} {job.get('result')}: {self.type}: {self.note}".rstrip(": "))


class Future(concurrent.futures.Future[int]):
    """The future of one job. Callbacks are called in the executor's thread."""

    def __init__(self) -> None:
        super().__init__()
        self._jobid: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._callbacks: dict[str, list[Callable[[Future, Record], Any]]] = {}
        self._events: list[Record] = []
        self._watched = False
        self._lock = threading.Lock()
        self._executor: Executor | None = None
        self.job: Record | None = None  #: the record, once the job is clean

    def jobid(self, timeout: float | None = None) -> int:
        """The job's id; waits for the submission. Raises what refused it."""
        return self._jobid.result(timeout)

    def add_jobid_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call `callback(future)` once the id is known (at once if it is)."""
        self._jobid.add_done_callback(lambda _: callback(self))

    def add_event_callback(self, event: str, callback: Callable[[Future, Record], Any]) -> None:
        """Call `callback(future, event)` for each event of that name, earlier ones included: {timestamp, name, context}."""
        with self._lock:
            self._callbacks.setdefault(event, []).append(callback)
            earlier = [e for e in self._events if e["name"] == event]
            watched, self._watched = self._watched, True
        for seen in earlier:
            _call(callback, self, seen)
        if not watched and self._executor is not None and self._jobid.done():
            self._executor._watch(self)

    def add_exception_callback(self, callback: Callable[[Future, Record], Any]) -> None:
        """Call `callback(future, event)` for each exception event, of any severity."""
        self.add_event_callback("exception", callback)

    def cancel(self) -> bool:
        """Cancel the submission, or the job if it was submitted; the future resolves when the job is clean."""
        if super().cancel():
            return True
        executor = self._executor
        if self.done() or executor is None or not self._jobid.done() or self._jobid.exception() is not None:
            return False
        executor._cancel_job(self._jobid.result())
        return False

    def _event(self, event: Record) -> None:
        with self._lock:
            self._events.append(event)
            callbacks = list(self._callbacks.get(event["name"], ()))
        for callback in callbacks:
            _call(callback, self, event)


def _call(callback: Callable[..., Any], *args: Any) -> None:
    """As concurrent.futures does: a callback that raises is reported, and disturbs nobody."""
    try:
        callback(*args)
    except Exception:
        import logging

        logging.getLogger("leveret.executor").exception("a callback raised")


class _Request:
    __slots__ = ("flags", "future", "jobid", "spec", "urgency", "wait_event")

    def __init__(
        self, future: Future, spec: Record | None, jobid: int, urgency: int, flags: Sequence[str], wait_event: str
    ) -> None:
        self.future = future
        self.spec = spec
        self.jobid = jobid
        self.urgency = urgency
        self.flags = list(flags)
        self.wait_event = wait_event


class Executor(concurrent.futures.Executor):
    """Submits jobs to an instance and watches them, in one background thread."""

    def __init__(
        self, uri: str | None = None, *, wait_event: str = "clean", thread_name_prefix: str = "leveret"
    ) -> None:
        """`uri`: the instance (default: `LEVERET_URI`, else the user's own). `wait_event`: when futures resolve."""
        self._uri = uri
        self._wait_event = wait_event
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._shutdown = False
        self._open: set[Future] = set()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=thread_name_prefix, daemon=True)
        self._thread.start()
        self._ready.wait()

    # ---- what callers use ------------------------------------------------------------------------

    def submit(  # type: ignore[override]
        self,
        jobspec: Record | str | Sequence[str],
        /,
        *,
        urgency: int = 16,
        flags: Sequence[str] = (),
        wait_event: str | None = None,
        waitable: bool = False,
    ) -> Future:
        """Submit a jobspec (RFC 25, a dict), or a command as a list of strings (run here, with this environment)."""
        if not isinstance(jobspec, dict):
            command = [jobspec] if isinstance(jobspec, str) else list(jobspec)
            jobspec = jobspecs.build(command, cwd=os.getcwd(), environment=dict(os.environ))
        flags = [*flags, "waitable"] if waitable else flags
        return self._add(_Request(Future(), jobspec, 0, urgency, flags, wait_event or self._wait_event))

    def attach(self, jobid: int | str, *, wait_event: str | None = None) -> Future:
        """The future of a job that exists already."""
        return self._add(_Request(Future(), None, jobids.parse(jobid), 16, (), wait_event or self._wait_event))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; with `wait` return once all futures are done. Jobs that were submitted go on."""
        with self._lock:
            self._shutdown = True
            futures = list(self._open)
        if cancel_futures:
            for future in futures:
                future.cancel()
        self._loop.call_soon_threadsafe(self._news.set)
        if wait:
            self._thread.join()

    def _add(self, request: _Request) -> Future:
        future = request.future
        future._executor = self
        with self._lock:
            if self._shutdown:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._open.add(future)
        future.add_done_callback(self._closed)
        self._requests.put(request)
        self._loop.call_soon_threadsafe(self._news.set)
        return future

    def _closed(self, future: concurrent.futures.Future[int]) -> None:
        with self._lock:
            self._open.discard(future)
        self._loop.call_soon_threadsafe(self._news.set)

    def _watch(self, future: Future) -> None:
        self._loop.call_soon_threadsafe(lambda: self._spawn(self._events(future)))

    def _cancel_job(self, jobid: int) -> None:
        async def cancel() -> None:
            try:
                await self._client.cancel(jobid)
            except LeveretError:
                pass  # it is over, or as good as over

        self._loop.call_soon_threadsafe(lambda: self._spawn(cancel()))

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = AsyncClient(self._uri)
        self._ready.set()
        while True:
            self._news.clear()
            if self._requests.empty():
                with self._lock:
                    if self._shutdown and not self._open:
                        break
                await self._news.wait()
                continue
            await asyncio.sleep(GATHER_S)
            batch: list[_Request] = []
            while len(batch) < BATCH_MAX and not self._requests.empty():
                batch.append(self._requests.get())
            self._spawn(self._begin(batch))
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, batch: list[_Request]) -> None:
        """Submit what is new, then wait for all of the batch."""
        batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
        new = [request for request in batch if request.spec is not None]
        for request in batch:
            if request.spec is None:
                request.future._jobid.set_result(request.jobid)
        if new:
            jobs = [{"jobspec": r.spec, "urgency": r.urgency, "flags": r.flags} for r in new]
            try:
                answers: Sequence[int | LeveretError] = await self._client.submit_many(jobs)
            except LeveretError as error:
                answers = [error] * len(new)
            except Exception as error:
                answers = [LeveretError(f"{type(error).__name__}: {error}")] * len(new)
            for request, answer in zip(new, answers, strict=True):
                if isinstance(answer, LeveretError):
                    request.future._jobid.set_exception(answer)
                    request.future.set_exception(answer)
                else:
                    request.jobid = answer
                    request.future._jobid.set_result(answer)
        events: dict[str, dict[int, list[Future]]] = {}
        for request in batch:
            if request.jobid and not request.future.done():
                events.setdefault(request.wait_event, {}).setdefault(request.jobid, []).append(request.future)
                if request.future._watched:
                    self._spawn(self._events(request.future))
        for event, futures in events.items():
            self._spawn(self._wait(event, futures))

    async def _wait(self, event: str, futures: dict[int, list[Future]]) -> None:
        try:
            async for line in self._client.wait_many(list(futures), event):
                for future in futures.pop(line["id"], ()):
                    _resolve(future, line["job"])
        except LeveretError as error:
            for left in futures.values():
                for future in left:
                    if not future.done():
                        future.set_exception(error)

    async def _events(self, future: Future) -> None:
        try:
            async for line in self._client.events(future.jobid(0), ["eventlog"], follow=True):
                if "event" in line:
                    future._event(line["event"])
        except LeveretError:
            pass  # the future itself says what is wrong


def _resolve(future: Future, job: Record) -> None:
    if future.done():
        return
    if not job["done"]:  # an earlier event than clean was asked for
        future.set_result(int(job.get("exit_code") or 0))
        return
    future.job = job
    if job.get("cause"):
        future.set_exception(JobFailed(job))
    else:
        future.set_result(int(job["exit_code"]))
