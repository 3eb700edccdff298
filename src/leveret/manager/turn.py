"""One writer, one turn, one transaction.

A turn is one stimulus with every event that it and the plugins' hooks bring about. It is stored whole
or not at all, so that no crash can fall between a transition and the hold that guards it. What the turn
causes outside (started tasks, answers, watchers) happens in `after`, once it is on disk.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import jobid as jobids
from leveret.core import jobspec as jobspecs
from leveret.core.actions import Ask, next_actions
from leveret.core.actions import Post as PostAction
from leveret.core.event import Event, encode
from leveret.core.job import CLOSE_EVENT, CLOSERS, FLAG_DEBUG, OPEN_EVENT, OPENERS, AlreadyOpen, apply_event, merge
from leveret.core.transitions import DEPEND, INACTIVE, NEW
from leveret.errors import EventError, InvalidError
from leveret.manager import plugindata
from leveret.manager.entry import Entry
from leveret.manager.ports import Batch
from leveret.plugins import hooks
from leveret.plugins.hooks import Answer, Plugin

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

#: seconds from the allocation to the start that are worth an event
PREPARED_S_MIN = 0.5
PRIORITY_MAX = 4294967295
#: job, event, context, quiet, and what follows when the event was taken
Queued = tuple[Entry, str, "dict[str, Any] | None", bool, "Callable[[], None] | None"]


class Turn:
    """Use as a context manager: leaving it commits, an exception undoes everything in memory."""

    def __init__(self, manager: Manager, label: str = "") -> None:
        self.manager = manager
        self.now = manager.clock.time()
        self.batch = Batch()
        self.after: list[Callable[[], None]] = self.batch.on_commit
        self.touched: dict[int, Entry] = {}
        self._due: dict[int, Entry] = {}  #: jobs for which something may have become due
        self.label = label
        self._undo: dict[int, tuple[Any, ...]] = {}
        self.undo: list[Callable[[], None]] = []  #: run, last first, when the turn does not come about
        self._freed: list[Any] = []  #: resources that went back to the pool in this turn
        self._queue: deque[Queued] = deque()
        self._works: dict[hooks.Work, bool] = {}  #: work behind holds → whether the hold was opened

    def __enter__(self) -> Turn:
        assert self.manager.turn is None, "a turn within a turn"
        self.manager.turn = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._leave(error)
        finally:
            self.manager.turn = None

    def _leave(self, error: BaseException | None) -> None:
        if error is not None:
            self._roll_back()
            return
        try:
            self._settle()
        except BaseException:
            self._roll_back()
            raise
        for work, opened in self._works.items():
            if not opened:
                work.close()
        if self.batch:
            self.manager.store.commit(self.batch)

    def _roll_back(self) -> None:
        while self.undo:
            self.undo.pop()()
        for rset in self._freed:
            self.manager.pool.take(rset)
        for jobid, (job, in_flight, owners, digest, data, shown, leases) in self._undo.items():
            entry = self.touched[jobid]
            entry.job, entry.in_flight, entry.owners, entry.digest = job, in_flight, owners, digest
            entry.data, entry.annotations, entry.leases = data, shown, leases
            if "alloc" in in_flight:
                self.manager.scheduling.request(entry)
            else:
                self.manager.queue.withdraw(jobid)
        for work in self._works:
            work.close()

    # ---- events ----------------------------------------------------------------------------------

    def post(self, entry: Entry, name: str, context: dict[str, Any] | None = None) -> None:
        """Post one event and all that plugins ask for because of it. Raises EventError; nothing has changed then."""
        self._apply(entry, name, context)
        self._drain()

    def later(self, entry: Entry, name: str, context: dict[str, Any] | None = None) -> None:
        """Post after the hooks that are being called: what they ask for must not overtake those of other plugins."""
        self._queue.append((entry, name, context, False, None))

    def op(self, sql: str, *args: Any) -> None:
        self.batch.ops.append((sql, args))

    def _drain(self) -> None:
        while self._queue:
            entry, name, context, quiet, then = self._queue.popleft()
            try:
                self._apply(entry, name, context)
                if then is not None:
                    then()
            except AlreadyOpen:
                pass
            except EventError as error:
                if not quiet:
                    self.manager.log.error(
                        "event refused", job=jobids.encode(entry.job.id), event_name=name, why=error.message
                    )

    def _apply(self, entry: Entry, name: str, context: dict[str, Any] | None) -> None:
        old = entry.job
        event = Event(max(self.now, old.t_last), name, context)
        new = apply_event(old, event)
        if (
            name in OPENERS
            and "start" in entry.in_flight
            and not old.started
            and len(new.blocked("start")) > len(old.blocked("start"))
        ):
            raise EventError(f"{name}: the start of the job was requested already")
        digest = plugindata.new_digest(self.manager, new, context) if name == "jobspec-update" else None
        if name == "jobspec-update" and "start" in entry.in_flight and digest is None:
            raise EventError("jobspec-update: the start of the job was requested already")
        jobid = new.id
        self.touch(entry)
        self._due[jobid] = entry
        entry.job = new
        if digest is not None:
            entry.digest = digest
        self.batch.event(jobid, new.n, encode(event))
        self._bookkeep(entry, event)
        if name == "clean" and old.holds:  # dependencies do not keep a job that has failed: their work is over too
            self.after += [partial(self.manager.works.closed, jobid, key) for key in old.holds]
        manager = self.manager
        registry = manager.registry
        label = str(jobid)
        if new.state is not old.state:
            hook = f"state_{new.state.name.lower()}"
            if registry.has(hook):
                for plugin, answer in registry.call(hook, label, new):
                    self.answer(entry, plugin, answer)
            if new.state is INACTIVE and registry.has("inactive_add"):
                for plugin, answer in registry.call("inactive_add", label, new):
                    self.answer(entry, plugin, answer)
        hook = "event_" + name.replace("-", "_").replace(".", "_")
        if registry.has(hook):
            for plugin, answer in registry.call(hook, label, entry.job, event):
                self.answer(entry, plugin, answer)
        if registry.has("event"):
            for plugin, answer in registry.call("event", label, entry.job, event):
                self.answer(entry, plugin, answer)

    def touch(self, entry: Entry) -> None:
        """What the turn does to this job can be undone from here on."""
        jobid = entry.job.id
        if jobid not in self._undo:
            self._undo[jobid] = (
                entry.job,
                set(entry.in_flight),
                dict(entry.owners),
                entry.digest,
                dict(entry.data),
                entry.annotations,
                dict(entry.leases),
            )
            self.touched[jobid] = entry

    def _bookkeep(self, entry: Entry, event: Event) -> None:
        """What beside the fold follows from an event."""
        name = event.name
        if name == "alloc":
            entry.in_flight.discard("alloc")
        elif name == "priority":
            entry.in_flight.discard("priority")
            if "alloc" in entry.in_flight and entry.job.priority:
                self.manager.scheduling.request(entry)
        elif name == "start":
            self._clock_tasks(entry)
        elif name == "finish":
            entry.in_flight.discard("start")
            entry.in_flight.discard("kill")
            self.after.append(lambda: self.manager.lost.finished(entry.job))
        elif name == "free":
            rset = entry.rset
            if rset is not None and not self.manager.housekeeping.take(self, entry):
                self.manager.scheduling.release(rset)
                self._freed.append(rset)
        elif name in CLOSERS:
            key = f"{CLOSERS[name]}/{event.get('description')}"
            if key in entry.owners:
                del entry.owners[key]
                entry.leases.pop(key, None)
                self.batch.delete(entry.job.id, f"hold/{key}")
            entry.progress.pop(key, None)
            entry.stopping.discard(key)
            self.after.append(lambda: self.manager.works.closed(entry.job.id, key))

    def _clock_tasks(self, entry: Entry) -> None:
        """The time limit clocks tasks only: what prologs and staging took is added to R's expiration."""
        rset = entry.rset
        duration_s = entry.job.updates.get("attributes.system.duration", entry.digest.duration_s)
        if rset is None or not duration_s or self.now + duration_s < rset.expiration + PREPARED_S_MIN:
            return
        expiration = self.now + duration_s
        self.later(entry, "resource-update", {"expiration": expiration})

        def moved() -> None:
            rset.expiration = expiration

        self.after.append(moved)

    # ---- plugins' answers ------------------------------------------------------------------------

    def answer(self, entry: Entry, plugin: Plugin, answer: Answer) -> None:
        """Queue what a plugin answered; work is begun once the turn is on disk. An answer that cannot be is logged,
        with the plugin's name, and leaves nothing. Raises InvalidError for a Reject of a submission."""
        try:
            if isinstance(answer, hooks.Reject):
                if self.label != "submit" or entry.job.state is not NEW:
                    raise TypeError(f"a submission that is accepted cannot be rejected ({answer.reason})")
                raise InvalidError(answer.reason, answer.hint)
            self._answer(entry, plugin, answer)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            self.manager._plugin_error(plugin.name, jobids.encode(entry.job.id), error)

    def _answer(self, entry: Entry, plugin: Plugin, answer: Answer) -> None:
        if isinstance(answer, hooks._HoldAnswer):
            self._open(entry, plugin, answer)
        elif isinstance(answer, hooks.Finish):
            target = self._target(entry, answer.job)
            if target is not None:
                context: dict[str, Any] = {"description": answer.name}
                if answer.kind != "dependency":
                    context["status"] = answer.status
                self._queue.append((target, CLOSE_EVENT[answer.kind], context, answer.quiet, None))
        elif isinstance(answer, hooks.Raise):
            target = self._target(entry, answer.job)
            if target is not None:
                cause = self.manager.exception(answer.type, answer.severity, answer.note)
                self._queue.append((target, "exception", cause, False, None))
        elif isinstance(answer, hooks.Post):
            self._ask_to_post(entry, answer.name, answer.context)
        elif isinstance(answer, hooks.UpdateJobspec):
            self._ask_to_post(entry, "jobspec-update", answer.updates)
        elif isinstance(answer, hooks.SetEnv):
            updates = {jobspecs.ENVIRONMENT + name: value for name, value in answer.values.items()}
            self._ask_to_post(entry, "jobspec-update", updates)
        elif isinstance(answer, hooks.SetNodeEnv):
            plugindata.remember(self, entry, plugin.name, {plugindata.NODE_ENV: answer.values})
        elif isinstance(answer, hooks.Keep):
            kind = f"plugin/{plugin.name}"
            if answer.value is None:
                self.op("DELETE FROM note WHERE kind=? AND name=?", kind, answer.key)
            else:
                self.op(
                    "INSERT OR REPLACE INTO note VALUES(?,?,?)", kind, answer.key, msgspec.json.encode(answer.value)
                )
        elif isinstance(answer, hooks.Remember):
            plugindata.remember(self, entry, plugin.name, answer.values)
        elif isinstance(answer, hooks.Annotate):
            encode(Event(self.now, "memo", answer.annotations))
            self.touch(entry)
            shown = entry.annotations if entry.annotations is not None else entry.job.annotations
            entry.annotations = merge(shown, answer.annotations)
        else:
            raise TypeError(f"{answer!r} is no answer")

    def _ask_to_post(self, entry: Entry, name: str, context: dict[str, Any] | None) -> None:
        encode(Event(self.now, name, context))  # TypeError for what is not JSON: here, not amid the turn
        self._queue.append((entry, name, context, False, None))

    def _target(self, entry: Entry, jobid: int | None) -> Entry | None:
        if jobid is None:
            return entry
        return self.manager.entries.get(jobid)

    def _open(self, entry: Entry, plugin: Plugin, answer: hooks._HoldAnswer) -> None:
        key = f"{answer.kind}/{answer.name}"
        if answer.work is not None:
            self._works[answer.work] = False
        if key in entry.job.holds:
            if answer.work is not None:
                answer.work.close()
            return
        context = answer.context()
        deadline_s = answer.deadline_s
        if deadline_s is None and answer.work is not None and answer.kind != "dependency":
            deadline_s = self.manager.holds.deadline_s  # nothing that works for a job may do so for ever
        if deadline_s is not None and math.isfinite(deadline_s):
            context["deadline"] = round(self.now + deadline_s, 3)
        work = answer.work

        def opened() -> None:
            if work is not None:
                self._works[work] = True
            self.own(entry, key, plugin.name)
            self.after.append(lambda: self.manager.works.begin(entry, key, plugin, work))

        self._queue.append((entry, OPEN_EVENT[answer.kind], context, False, opened))

    def own(self, entry: Entry, key: str, plugin: str, lease_s: float | None = None) -> None:
        """Record who closes a hold: a plugin, or somebody outside (""), with a lease or without."""
        entry.owners[key] = plugin
        if lease_s is not None:
            entry.leases[key] = lease_s
        self.batch.put(entry.job.id, f"hold/{key}", plugindata.encode_owner(plugin, lease_s))

    # ---- what is due -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Ask by level what is due for every job of the turn, until nothing is."""
        due = self._due
        for jobid, entry in self.touched.items():
            due.setdefault(jobid, entry)
        while due:
            entry = due.pop(next(iter(due)))
            for action in next_actions(entry.job, entry.in_flight):
                if isinstance(action, PostAction):
                    if action.name == "depend" and self._kept_in_depend(entry):
                        break
                    self.post(entry, action.name, action.context)
                else:
                    self._ask(entry, action)
        for entry in self.touched.values():
            if entry.job.state is INACTIVE:
                entry.dirty.clear()
                if entry.job.id in self._undo:  # else it ended in an earlier turn, which is on its way to the disk
                    self.manager.retire(self, entry)
            elif entry.dirty:
                for unit, node in entry.dirty:
                    ask = entry.asks.get((unit, node))
                    key = f"ask/{unit}/{node}"
                    if ask is None:
                        self.batch.delete(entry.job.id, key)
                    else:
                        self.batch.put(entry.job.id, key, ask.encode())
                entry.dirty.clear()
        jobs = list(self.touched)
        if jobs:
            self.after.append(lambda: self.manager.feed.publish(jobs))

    def _kept_in_depend(self, entry: Entry) -> bool:
        """The moment `depend`: whether a plugin opened a dependency, or ended the job."""
        registry = self.manager.registry
        if not registry.has("depend"):
            return False
        before = entry.job.n
        for plugin, answer in registry.call("depend", str(entry.job.id), entry.job):
            if isinstance(answer, hooks.DependencyHold) and f"dependency/{answer.name}" in entry.job.closed:
                if answer.work is not None:
                    answer.work.close()
                continue  # it has kept the job, and let it go
            self.answer(entry, plugin, answer)
        self._drain()
        return entry.job.n != before and (entry.job.state is not DEPEND or bool(entry.job.blocked("depend")))

    def priority_of(self, entry: Entry) -> int | None:
        """What plugins say, else the urgency; None: not yet. Urgencies 0 and 31 are nobody else's to decide (RFC 30)."""
        manager, job = self.manager, entry.job
        if job.urgency in (0, 31):
            return 0 if job.urgency == 0 else PRIORITY_MAX
        priority = manager.registry.first("priority", str(job.id), job)
        if priority is hooks.NOT_YET:
            return None
        if priority is not None and (type(priority) is not int or not 0 <= priority <= PRIORITY_MAX):
            manager.log.error("plugin failed", job=str(job.id), trace=f"{priority!r} is not a priority")
            priority = None
        return job.urgency if priority is None else int(priority)

    def _ask(self, entry: Entry, ask: Ask) -> None:
        manager, job = self.manager, entry.job
        what = ask.what
        if what == "priority":
            priority = self.priority_of(entry)
            if priority is None:
                entry.in_flight.add("priority")  # until `manager.reprioritize`
                return
            self.post(entry, "priority", {"priority": priority})
        elif what == "alloc":
            if shortage := manager.pool.shortage(entry.digest):
                self.post(entry, "exception", manager.exception("alloc", 0, shortage))
                return
            entry.in_flight.add("alloc")
            if job.flags & FLAG_DEBUG:
                self.post(entry, "debug.alloc-request")
            manager.scheduling.request(entry)
        elif what == "withdraw":
            entry.in_flight.discard("alloc")
            manager.scheduling.withdraw(job.id)
        elif what == "start":
            entry.in_flight.add("start")
            if job.flags & FLAG_DEBUG:
                self.post(entry, "debug.start-request")
            manager.perform.start(self, entry)
        elif what == "kill":
            entry.in_flight.add("kill")
            self.after.append(lambda: manager.lost.watch_kill(entry))
            if job.fatal is None or job.fatal.type != "timeout":  # the helper ends what overran its limit
                self.after.append(lambda: manager.perform.kill(entry))
        elif what == "kill-now":
            entry.in_flight.add("kill-now")
            self.after.append(lambda: manager.perform.kill(entry, signal.SIGKILL))
        elif what == "end-parts":
            entry.in_flight.add("end-parts")
            self.after.append(lambda: manager.works.stop(entry, entry.job.ended_by(entry.job.intent)))
        elif what == "end-auxiliary":
            entry.in_flight.add("end-auxiliary")
            self.after.append(lambda: manager.works.stop(entry, list(entry.job.holds.values())))
        elif what == "stop":
            entry.in_flight.add("stop")
            self.after.append(lambda: manager.works.stop(entry, entry.job.blocked("start")))
        else:
            raise AssertionError(what)
