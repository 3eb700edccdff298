"""The work behind holds: begun once the hold is on disk, taken up again after a restart, stopped on request.

A hold with work closes when the work ends, whatever way: result, failure, cancellation or deadline.
An exception that a failure causes and the finish of the hold share a turn.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leveret.core.job import CLOSE_EVENT, Hold
from leveret.errors import ConflictError, EventError, NotFoundError
from leveret.manager.entry import Entry
from leveret.manager.turn import Turn
from leveret.plugins.hooks import Plugin, Work, WorkFailed

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

SIGTERM_STATUS = 15
DEADLINE_STATUS = 142 << 8  #: as a task that ran into its time limit (SIGALRM)
Key = tuple[int, str]


class Works:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._timers: dict[Key, Any] = {}
        self._waiters: dict[Key, list[asyncio.Future[None]]] = {}
        self._let_go: set[asyncio.Task[None]] = set()  #: canceled because their plugin goes, not their work
        self.ending = False

    # ---- beginning -------------------------------------------------------------------------------

    def begin(self, entry: Entry, key: str, plugin: Plugin, work: Work | None) -> None:
        """The hold is on disk: arm its deadline and run its work."""
        jobid = entry.job.id
        hold = entry.job.holds.get(key)
        if hold is None or self.ending:
            if work is not None:
                work.close()
            return
        self.arm(jobid, hold)
        if work is not None:
            self.manager.holds.watch(jobid, hold)
            self._spawn(jobid, key, plugin, work)
            late = "end-parts" in entry.in_flight and hold in entry.job.ended_by(entry.job.intent)
            if late or ("stop" in entry.in_flight and "start" in hold.blocks):
                self._stop_one(entry, hold)

    def resume(self, entry: Entry, hold: Hold, plugin: Plugin) -> None:
        """After a restart or a reload: give an open hold back to its plugin."""
        jobid = entry.job.id
        self.arm(jobid, hold)
        if (jobid, hold.key) in self._tasks or type(plugin).resume is Plugin.resume:
            return
        self.manager.holds.watch(jobid, hold)
        self._spawn(jobid, hold.key, plugin, plugin.resume(entry.job, hold))

    def runs(self, jobid: int, key: str) -> bool:
        """Whether the hold's work is under way here."""
        return (jobid, key) in self._tasks

    def arm(self, jobid: int, hold: Hold) -> None:
        """Its deadline, once."""
        if hold.deadline is not None and (jobid, hold.key) not in self._timers:
            timer = self.manager.clock.call_at(hold.deadline, lambda: self._overrun(jobid, hold))
            self._timers[(jobid, hold.key)] = timer

    def _spawn(self, jobid: int, key: str, plugin: Plugin, work: Work) -> None:
        task = asyncio.get_running_loop().create_task(self._run(jobid, key, plugin, work))
        self._tasks[(jobid, key)] = task
        task.add_done_callback(lambda done: self._unbegun(jobid, key, work, done) if done.cancelled() else None)

    def _unbegun(self, jobid: int, key: str, work: Work, task: asyncio.Task[None]) -> None:
        """The task was canceled before it ever ran, so it could not say so."""
        work.close()
        if self._tasks.get((jobid, key)) is task:
            del self._tasks[(jobid, key)]
            self._over(jobid, key, SIGTERM_STATUS, f"{key.partition('/')[2]} was canceled")

    async def _run(self, jobid: int, key: str, plugin: Plugin, work: Work) -> None:
        status, note, type_ = 0, "", ""
        try:
            status = int(await work or 0)
            if status:
                note = f"{key.partition('/')[2]} ended with status {status}"
        except WorkFailed as failure:
            status, note, type_ = failure.status, failure.note, failure.type
        except asyncio.CancelledError:
            if self.ending or self._tasks.get((jobid, key)) is not asyncio.current_task():
                return
            status, note = SIGTERM_STATUS, f"{key.partition('/')[2]} was canceled"
        except NotImplementedError:
            self._tasks.pop((jobid, key), None)
            return
        except Exception as error:
            status, note = 256, f"plugin {plugin.name}: {type(error).__name__}: {error}"
            self.manager.log.error("plugin failed", plugin=plugin.name, job=jobid, trace=traceback.format_exc())
        self._tasks.pop((jobid, key), None)
        self._over(jobid, key, status, note, type_)

    def _over(self, jobid: int, key: str, status: int, note: str = "", type_: str = "") -> None:
        entry = self.manager.entries.get(jobid)
        if self.ending or entry is None or key not in entry.job.holds:
            return  # somebody else closed the hold in the meantime
        try:
            self.end(jobid, key, status, note, type_)
        except (EventError, NotFoundError) as error:
            self.manager.log.error("hold not closed", job=jobid, hold=key, why=error.message)

    # ---- ending ----------------------------------------------------------------------------------

    def end(self, jobid: int, key: str, status: int, note: str = "", type_: str = "") -> None:
        """Close a hold in one turn with the exception that its failure means.

        Raises NotFoundError for an unknown job, EventError when the hold is not open; nothing has changed then.
        """
        entry = self.manager.entry(jobid)
        kind, _, name = key.partition("/")
        hold = entry.job.holds.get(key)
        context: dict[str, Any] = {"description": name}
        if kind != "dependency":
            context["status"] = status
        if kind == "part" and note:
            context["note"] = note[:500]
        wanted = entry.job.fatal is not None or (hold is not None and hold.role == "auxiliary")
        failed = hold is not None and status and not (key in entry.stopping and wanted)
        if self.manager.turn is not None:  # called from a hook: it joins the turn
            if hold is not None and failed:
                self._exception(self.manager.turn.later, entry, hold, note or f"{name} failed", type_)
            self.manager.turn.later(entry, CLOSE_EVENT[kind], context)
            return
        with Turn(self.manager) as turn:
            if hold is not None and failed:
                self._exception(turn.post, entry, hold, note or f"{name} failed", type_)
            turn.post(entry, CLOSE_EVENT[kind], context)

    def _exception(self, post: Callable[..., None], entry: Entry, hold: Hold, note: str, type_: str) -> None:
        """A prolog's failure is fatal, that of a dependency (it is not satisfied) and of anything the user owns;
        the site's are warnings."""
        job = entry.job
        user = hold.owner == "user" and hold.role != "auxiliary"
        fatal = hold.kind in ("prolog", "dependency") or user
        if hold.kind == "part" and user and job.started and job.status is None and job.fatal is None:
            return  # it takes effect at `finish` (DESIGN section 3)
        severity = 0 if fatal else 2
        post(entry, "exception", self.manager.exception(type_ or hold.kind, severity, note[:500]))

    def _overrun(self, jobid: int, hold: Hold) -> None:
        entry = self.manager.entries.get(jobid)
        if entry is None or hold.key not in entry.job.holds:
            return
        task = self._tasks.pop((jobid, hold.key), None)
        if task is not None:
            task.cancel()
        plugin = self.manager.registry.get(entry.owners.get(hold.key, ""))
        if plugin is not None:
            self._ask_to_stop(plugin, entry, hold)
        entry.stopping.discard(hold.key)
        self.end(jobid, hold.key, DEADLINE_STATUS, f"{hold.name}: the deadline has passed")

    def stop(self, entry: Entry, holds: list[Hold]) -> None:
        """Ask the holders to end: of prologs and what blocks `start` at a fatal exception, of parts as the intent of a
        cancel says, of auxiliary parts when nothing else is left."""
        for hold in holds:
            self._stop_one(entry, hold)

    def _stop_one(self, entry: Entry, hold: Hold) -> None:
        entry.stopping.add(hold.key)
        jobid = entry.job.id
        patience_s = self.manager.holds.deadline_s
        if hold.deadline is None and (jobid, hold.key) not in self._timers and math.isfinite(patience_s):
            # whoever was asked to stop may never answer: then it is abandoned, by name
            when = self.manager.clock.time() + patience_s
            self._timers[(jobid, hold.key)] = self.manager.clock.call_at(when, lambda: self._overrun(jobid, hold))
        plugin = self.manager.registry.get(entry.owners.get(hold.key, ""))
        task = self._tasks.get((entry.job.id, hold.key))
        if plugin is not None and self._ask_to_stop(plugin, entry, hold):
            return
        if task is not None:
            task.cancel()

    def _ask_to_stop(self, plugin: Plugin, entry: Entry, hold: Hold) -> bool:
        try:
            return plugin.stop(entry.job, hold)
        except Exception:
            self.manager.log.error("plugin failed", plugin=plugin.name, job=entry.job.id, trace=traceback.format_exc())
            return False

    def retry(self, jobid: int, name: str) -> int:
        """Try a part that waits in its failure again. Returns how many things. Raises EventError, ConflictError."""
        key = self.manager.find_hold(jobid, "part", name)
        entry = self.manager.entry(jobid)
        plugin = self.manager.registry.get(entry.owners.get(key, ""))
        if plugin is None:
            raise ConflictError(f"part `{name}` cannot be tried again", "nobody here holds it")
        return plugin.retry(entry.job, entry.job.holds[key])

    def minds_current_task(self) -> bool:
        """Whether a hold is still to be closed by the task that asks."""
        return asyncio.current_task() in self._tasks.values()

    def lets_go(self) -> bool:
        """Whether the task that asks is canceled though its work goes on: the daemon ends, or its plugin goes."""
        return self.ending or asyncio.current_task() in self._let_go

    def closed(self, jobid: int, key: str) -> None:
        """The hold's finish is on disk."""
        self.manager.holds.closed(jobid, key)
        timer = self._timers.pop((jobid, key), None)
        if timer is not None:
            timer.cancel()
        for future in self._waiters.pop((jobid, key), ()):
            if not future.done():
                future.set_result(None)
        task = self._tasks.pop((jobid, key), None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()  # somebody else closed the hold: its work is not wanted any more

    async def wait_closed(self, jobid: int, key: str) -> None:
        entry = self.manager.entries.get(jobid)
        if entry is None or key not in entry.job.holds:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault((jobid, key), []).append(future)
        await future

    def drop_plugin(self, name: str) -> None:
        """A plugin goes: what waits here stops, its processes and its holds stay for who takes them up."""
        for jobid, entry in self.manager.entries.items():
            for key, owner in entry.owners.items():
                if owner == name and (task := self._tasks.pop((jobid, key), None)):
                    self._let_go.add(task)
                    task.add_done_callback(self._let_go.discard)
                    task.cancel()

    async def shut_down(self) -> None:
        """Let go of all work without ending any hold: the next start resumes it."""
        self.ending = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2)
