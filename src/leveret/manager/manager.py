"""The manager: the one writer. Every stimulus (a request, a helper's record, a timer, the end of a hold's work)
becomes a turn; nothing leaves the process before the events that explain it are on disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections import OrderedDict
from typing import Any

import msgspec

from leveret.config import Config
from leveret.core import inventory as inventories
from leveret.core import jobid as jobids
from leveret.core import jobspec as jobspecs
from leveret.core.event import decode
from leveret.core.inventory import Inventory
from leveret.core.job import FLAG_WAITABLE, FLAGS, INTENTS, Job, merge, replay
from leveret.core.transitions import CLEANUP, INACTIVE, PRIORITY, RUN, SCHED
from leveret.core.verdict import record
from leveret.errors import BusyError, ConflictError, EventError, ForbiddenError, InvalidError, NotFoundError
from leveret.manager import plugindata
from leveret.manager.entry import Entry
from leveret.manager.feed import Feed
from leveret.manager.holds import Holds
from leveret.manager.housekeeping import Housekeeping
from leveret.manager.lost import Lost
from leveret.manager.notify import Courier, Notifier
from leveret.manager.perform import Perform
from leveret.manager.ports import Clock, Engine, Log, Store
from leveret.manager.purge import Purge
from leveret.manager.quarantine import Quarantine
from leveret.manager.queues import Queues
from leveret.manager.recovery import Recovery
from leveret.manager.resources import Resources
from leveret.manager.scheduling import Scheduling
from leveret.manager.tap import Tap
from leveret.manager.turn import Turn
from leveret.manager.units import INPUT_WINDOW, Units
from leveret.manager.updates import Updates
from leveret.manager.works import Works
from leveret.plugins import registry as registries
from leveret.plugins.hooks import Reject, WorkResult
from leveret.storage.port import Storage

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
#: turns that may wait for the disk before new submissions are held back
BACKLOG_MAX = 20_000
CACHE_MAX = 4096
URGENCY_DEFAULT = 16


class Prepared:
    """A checked submission, and what is stored of it: the environment once, by hash, the rest per job."""

    __slots__ = ("_rest", "before", "digest", "env_body", "env_hash", "flags", "spec", "urgency")

    def __init__(self, spec: dict[str, Any], digest: jobspecs.Digest, urgency: int, flags: int) -> None:
        self.spec = spec
        self.digest = digest
        self.urgency = urgency
        self.flags = flags
        self.before: dict[str, Any] = {}  #: what policy has filled in → what was there before (null: nothing)
        self.env_hash: str | None = None
        self.env_body = b""
        system = spec["attributes"]["system"]
        self._rest = system
        if env := system.get("environment"):
            self.env_body = _encode(env)
            self.env_hash = hashlib.blake2b(self.env_body, digest_size=16).hexdigest()
            self._rest = {k: v for k, v in system.items() if k != "environment"}

    def _with(self, system: dict[str, Any]) -> dict[str, Any]:
        return {**self.spec, "attributes": {**self.spec["attributes"], "system": system}}

    def copy(self, copy: str) -> dict[str, Any]:
        """The jobspec of one copy."""
        system = self.spec["attributes"]["system"]
        return self._with({**system, "environment": {**(system.get("environment") or {}), "FLUX_JOB_CC": copy}})

    def body(self, copy: str | None) -> bytes:
        """The stored jobspec: without its environment, but for what is this copy's own."""
        rest = self._rest if copy is None else {**self._rest, "environment": {"FLUX_JOB_CC": copy}}
        return _encode(self._with(rest))


class Manager:
    def __init__(
        self,
        store: Store,
        engine: Engine,
        config: Config,
        clock: Clock,
        log: Log,
        *,
        uri: str,
        owner_uid: int,
        epoch_ms: int,
        generator: int,
        tmp_dir: str,
        inventory: Inventory | None = None,
        courier: Courier | None = None,
    ) -> None:
        self.store = store
        self.engine = engine
        self.config = config
        self.clock = clock
        self.log_port = log
        self.uri = uri
        self.owner_uid = owner_uid
        self.tmp_dir = tmp_dir
        self.entries: dict[int, Entry] = {}  #: active jobs
        self.inventory = inventory or inventories.alike(engine.hosts())
        self.scheduling = Scheduling(self)
        self.pool = self.scheduling.pool
        self.queue = self.scheduling.queue
        self.turn: Turn | None = None  #: the one under way
        self.feed = Feed()
        self.works = Works(self)
        self.holds = Holds(self)
        self.perform = Perform(self)
        self.units = Units(self)
        self.tap = Tap(self)
        self.recovery = Recovery(self)
        self.resources = Resources(self)
        self.lost = Lost(self)
        self.housekeeping = Housekeeping(self)
        self.purges = Purge(self)
        self.notifier = Notifier(self, courier)
        self.queues = Queues(self)
        self.updates = Updates(self)
        self.quarantine = Quarantine(self)
        self.registry = registries.Registry(self._plugin_error)
        self.storage: Storage | None = None  #: set by the daemon before `recover`
        self.stopping = ""  #: why no new work is taken
        self._epoch_ms = epoch_ms
        self._generator = generator
        self._last_id = store.last_id()
        self._envs: OrderedDict[str, None] = OrderedDict()  #: hashes that are stored
        self._fresh: dict[int, dict[str, Any]] = {}  #: jobspecs that are not on disk yet
        self._specs: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._outcomes: OrderedDict[int, Job] = OrderedDict()
        self.finals: OrderedDict[int, dict[str, Any]] = OrderedDict()  #: records of jobs that ended lately
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        #: waitable jobs that have ended and that nobody has waited for, oldest end first
        self.ended_waitable: dict[int, None] = dict.fromkeys(store.waitable_ids())

    @property
    def log(self) -> Log:
        return self.log_port

    # ---- lookups -----------------------------------------------------------------------------------

    def entry(self, jobid: int) -> Entry:
        """An active job. Raises NotFoundError, or ConflictError when it is inactive."""
        entry = self.entries.get(jobid)
        if entry is None or entry.job.state is INACTIVE:
            if self.outcome(jobid) is None:
                raise NotFoundError("unknown job id")
            raise ConflictError("job is inactive")
        return entry

    def entry_of_unit(self, unit: str) -> Entry | None:
        parts = unit.split("/")
        return self.entries.get(int(parts[1])) if len(parts) > 1 and parts[1].isdigit() else None

    def outcome(self, jobid: int) -> Job | None:
        """A job, active or not; replayed from its log when it is inactive."""
        entry = self.entries.get(jobid)
        if entry is not None:
            return entry.job
        job = self._outcomes.get(jobid)
        if jobid in self.quarantine:
            raise self.quarantine.refusal(jobid)
        if job is None:
            events = [decode(line) for line in self.store.all_events(jobid)]
            if not events:
                return None
            job = replay(jobid, events)
            self._outcomes[jobid] = job
            if len(self._outcomes) > CACHE_MAX:
                self._outcomes.popitem(last=False)
        return job

    def jobspec(self, jobid: int) -> dict[str, Any]:
        """The jobspec with its environment and the updates of the eventlog."""
        spec = self.base_jobspec(jobid)
        job = self.outcome(jobid)
        return jobspecs.updated(spec, job.updates) if job is not None and job.updates else spec

    def base_jobspec(self, jobid: int) -> dict[str, Any]:
        """As submitted, with its environment; from memory where it is there. Not to be changed."""
        spec = self._fresh.get(jobid) or self._specs.get(jobid)
        if spec is None:
            spec = self.stored_jobspec(jobid)
            self._specs[jobid] = spec
            if len(self._specs) > CACHE_MAX:
                self._specs.popitem(last=False)
        return spec

    def original_jobspec(self, jobid: int) -> dict[str, Any]:
        """As submitted, before policy filled anything in. Raises NotFoundError."""
        spec = self.stored_jobspec(jobid)
        if (before := self.store.kv(jobid, "ingest")) is not None:
            system = spec["attributes"]["system"]
            for key, value in _decode(before).items():
                if value is None:
                    system.pop(key, None)
                else:
                    system[key] = value
        return spec

    def stored_jobspec(self, jobid: int) -> dict[str, Any]:
        """As taken: with what policy has filled in, without updates. Raises NotFoundError."""
        row = self.store.job_row(jobid)
        if row is None:
            raise NotFoundError("unknown job id")
        spec: dict[str, Any] = _decode(row[1])
        if row[2]:
            system = spec["attributes"]["system"]
            system["environment"] = {**_decode(self.store.env(row[2])), **system.get("environment", {})}
        return spec

    def exception(self, type_: str, severity: int, note: str, userid: int | None = None) -> dict[str, Any]:
        """An exception event's context."""
        return {
            "type": type_,
            "severity": severity,
            "note": note,
            "userid": self.owner_uid if userid is None else userid,
        }

    # ---- submitting --------------------------------------------------------------------------------

    def submit(
        self, spec: dict[str, Any], urgency: int, flags: list[str], userid: int
    ) -> tuple[int, asyncio.Future[None]]:
        """One job in one turn. Returns its id and a future that is done once it is on disk.

        Raises JobspecError, InvalidError, BusyError; nothing is stored then.
        """
        return self.place(self.prepare(spec, urgency, flags), userid)

    def prepare(self, spec: dict[str, Any], urgency: int, flags: list[str]) -> Prepared:
        """Check a submission. Raises JobspecError and InvalidError; nothing has changed then."""
        if isinstance(urgency, bool) or not isinstance(urgency, int) or not 0 <= urgency <= 31:
            raise InvalidError("urgency range is [0:31]", path="urgency")
        mask = 0
        for name in flags:
            if name not in FLAGS:
                raise InvalidError(f"unknown flag `{name}`", "flags: " + ", ".join(FLAGS), path="flags")
            mask |= FLAGS[name]
        jobspecs.validate(spec)
        spec, digest, before = self.queues.admit(spec, jobspecs.digest(spec))
        self.scheduling.check(digest)
        prepared = Prepared(spec, digest, urgency, mask)
        prepared.before = before
        return prepared

    def place(self, prepared: Prepared, userid: int, copy: str | None = None) -> tuple[int, asyncio.Future[None]]:
        """Make a job of a checked submission, in one turn. `copy` becomes FLUX_JOB_CC in its environment."""
        if self.stopping:
            raise BusyError(f"job submission is disabled: {self.stopping}")
        self.queues.open(prepared.digest.queue, userid)
        if prepared.urgency > URGENCY_DEFAULT and userid not in (self.owner_uid, 0):
            raise ForbiddenError(f"only the instance owner can submit with urgency >{URGENCY_DEFAULT}")
        if self.store.backlog > BACKLOG_MAX:
            raise BusyError("too many requests wait for the disk", "try again in a moment")
        self.scheduling.admit(prepared.digest, userid)
        spec = prepared.spec if copy is None else prepared.copy(copy)
        now = self.clock.time()
        jobid = jobids.next_fluid(self._last_id, max(0, int(now * 1000) - self._epoch_ms), self._generator)
        self._last_id = jobid  # also of a refused submission: an id is never given to another job
        entry = Entry(Job(jobid), prepared.digest)
        entry.env_hash = prepared.env_hash
        self._fresh[jobid] = spec
        self.entries[jobid] = entry
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            with Turn(self, "submit") as turn:
                self._store_job(turn, entry, prepared, userid, copy)
                for moment in ("create", "validate"):
                    for plugin, answer in self.registry.call(moment, str(jobid), entry.job, spec):
                        if moment == "create" or isinstance(answer, Reject):
                            turn.answer(entry, plugin, answer)
                submit = {"userid": userid, "urgency": prepared.urgency, "flags": prepared.flags, "version": 1}
                turn.post(entry, "submit", submit)
                for plugin, answer in self.registry.call("new", str(jobid), entry.job):
                    turn.answer(entry, plugin, answer)
                if prepared.digest.dependencies:
                    self._dependencies(turn, entry)
                turn._drain()
                turn.post(entry, "validate")
                turn.after.append(lambda: self._submitted(jobid, done))
        except BaseException:
            self.entries.pop(jobid, None)
            self._fresh.pop(jobid, None)
            self.registry.call("destroy", str(jobid), entry.job)
            raise
        return jobid, done

    def _submitted(self, jobid: int, done: asyncio.Future[None]) -> None:
        spec = self._fresh.pop(jobid, None)
        if spec is not None and jobid in self.entries:
            self._specs[jobid] = spec
            if len(self._specs) > CACHE_MAX:
                self._specs.popitem(last=False)
        if not done.done():
            done.set_result(None)

    def _store_job(self, turn: Turn, entry: Entry, prepared: Prepared, userid: int, copy: str | None) -> None:
        digest = prepared.env_hash
        if digest is not None:
            if digest in self._envs:
                self._envs.move_to_end(digest)
            else:
                turn.batch.env(digest, prepared.env_body)
                turn.after.append(lambda: self._env_stored(digest))
        turn.batch.job(entry.job.id, userid, turn.now, digest, prepared.body(copy))
        if prepared.before:
            turn.batch.put(entry.job.id, "ingest", _encode(prepared.before))

    def _env_stored(self, digest: str) -> None:
        self._envs[digest] = None
        if len(self._envs) > CACHE_MAX:
            self._envs.popitem(last=False)

    def _dependencies(self, turn: Turn, entry: Entry) -> None:
        for number, dependency in enumerate(entry.digest.dependencies):
            scheme = str(dependency.get("scheme", ""))
            plugin = self.registry.for_scheme(scheme)
            if plugin is None:
                raise InvalidError(
                    f'dependency scheme "{scheme}" not supported',
                    f"schemes: {', '.join(self.registry.schemes())}",
                    path=f"attributes.system.dependencies[{number}].scheme",
                )
            hook = registries.dependency_hook(plugin, scheme)
            for answer in self.registry.call_one(plugin, hook, str(entry.job.id), entry.job, dependency):
                turn.answer(entry, plugin, answer)
            turn._drain()  # so that the next one sees it

    def want_schedule(self) -> None:
        """Something has changed that may let a job start."""
        self.scheduling.want_schedule()

    # ---- what users ask for ------------------------------------------------------------------------

    def raise_exception(self, jobid: int, type_: str, severity: int, note: str, userid: int) -> None:
        if not type_ or any(c.isspace() for c in type_):
            raise InvalidError("invalid exception type")
        if isinstance(severity, bool) or not isinstance(severity, int) or not 0 <= severity <= 7:
            raise InvalidError("invalid exception severity")
        entry = self.entry(jobid)
        if type_ == "cancel" and severity == 0:
            self.cancel(jobid, note, userid)
            return
        with Turn(self, "raise") as turn:
            turn.post(entry, "exception", self.exception(type_, severity, note, userid))

    def cancel(self, jobid: int, note: str, userid: int, intent: str = "keep") -> None:
        """Post the exception. After `finish` only for what is still open and the intent ends: ConflictError else."""
        if intent not in INTENTS:
            raise InvalidError(f"no such intent: `{intent}`", "intents: " + ", ".join(INTENTS), "intent")
        entry = self.entry(jobid)
        job = entry.job
        if job.status is not None:
            # after `finish` a plain cancel cannot turn a finished job into a canceled one
            if not job.ended_by(intent):
                holders = ", ".join(h.name for h in job.holds.values()) or "cleanup"
                why = {"discard": "no data part is open", "force": "no part of the user is open"}.get(intent, "")
                text = "the tasks have finished" + (f" and {why}" if why else "")
                raise ConflictError(f"{text}; the job still waits for: {holders}")
            if job.intent and INTENTS.index(intent) <= INTENTS.index(job.intent):
                return  # that was asked for already, and is under way
        with Turn(self, "raise") as turn:
            context = self.exception("cancel", 0, note, userid)
            if intent != "keep" and job.intent != intent:
                entry.in_flight.discard("end-parts")
            turn.post(entry, "exception", {**context, "intent": intent})

    def kill(self, jobid: int, signum: int) -> None:
        entry = self.entry(jobid)
        if entry.job.state not in (RUN, CLEANUP) or not entry.job_asks() or not entry.job.started:
            raise ConflictError("job is not running")
        self.perform.signal(entry, signum)

    def set_urgency(self, jobid: int, urgency: int, userid: int) -> int:
        if isinstance(urgency, bool) or not isinstance(urgency, int) or not 0 <= urgency <= 31:
            raise InvalidError("urgency value is out of range", path="urgency")
        entry = self.entry(jobid)
        if userid not in (self.owner_uid, 0):
            if userid != entry.job.userid:
                raise ForbiddenError("this is another user's job")
            if urgency > max(URGENCY_DEFAULT, entry.job.urgency):
                raise ForbiddenError(f"only the instance owner can raise the urgency above {URGENCY_DEFAULT}")
        old = entry.job.urgency
        with Turn(self, "urgency") as turn:
            turn.post(entry, "urgency", {"userid": userid, "urgency": urgency})
        return old

    async def stdin(self, jobid: int, offset: int, ranks: str, data: bytes, eof: bool) -> int:
        """Take stdin for a job; returns how many bytes have been taken in all. Held back while much is on its way."""
        entry = self.entry(jobid)
        if entry.job.status is not None or entry.job.fatal is not None:
            raise ConflictError("stdin not accepted by job")
        if self.perform.shell(entry).input is not None:
            raise ConflictError("stdin not accepted by job", "its tasks read a file")
        if offset < entry.stdin_bytes:
            data = data[entry.stdin_bytes - offset :]
        elif offset > entry.stdin_bytes:
            raise InvalidError(f"stdin offset {offset} is beyond what was sent ({entry.stdin_bytes})", path="offset")
        if "eof" in entry.in_flight:
            if data:
                raise ConflictError("stdin not accepted by job")
            return entry.stdin_bytes
        if eof and ranks == "all":
            entry.in_flight.add("eof")
        taken = self.units.stdin(entry, ranks, data, eof)
        await self.store.barrier()
        news = self.feed.watch(jobid)
        try:
            while (
                jobid in self.entries
                and entry.job.status is None
                and self.units.stdin_outstanding(entry)
                > (INPUT_WINDOW if entry.stdin_recorded == entry.stdin_bytes else 0)
            ):
                news.clear()
                await news.wait()
        finally:
            self.feed.unwatch(jobid, news)
        return taken

    def winsize(self, jobid: int, size: list[int]) -> None:
        """The client's terminal has this size: rows and columns. Kept for a job that has not started."""
        entry = self.entry(jobid)
        if self.perform.shell(entry).pty is None:
            raise ConflictError("the job's tasks have no terminal")
        entry.winsize = size
        for ask in entry.job_asks():
            if ask.status is None:
                self.engine.winsize(ask.node, ask.unit, size)

    async def set_key(self, jobid: int, key: str, value: bytes) -> None:
        """Keep a value in the job's guest space (RFC 16)."""
        self.entry(jobid)
        with Turn(self, "kv") as turn:
            turn.batch.put(jobid, key, value)
        await self.store.barrier()

    def has_waitable(self) -> bool:
        """Whether any active job may be waited for by `job wait` without an id."""
        return any(job_waitable(entry.job) for entry in self.entries.values())

    def waited(self, job: Job) -> bool:
        """Whether somebody has taken the result of a waitable job."""
        return job_waitable(job) and job.done and job.id not in self.entries and job.id not in self.ended_waitable

    def take_waitable(self, jobid: int = 0) -> int:
        """An ended waitable job (that one, or the first) that nobody has waited for, or 0; it counts as waited for then."""
        jobid = jobid or next(iter(self.ended_waitable), 0)
        if jobid not in self.ended_waitable:
            return 0
        del self.ended_waitable[jobid]
        with Turn(self, "wait") as turn:
            turn.op("DELETE FROM waitable WHERE id=?", jobid)
        return jobid

    # ---- the end of a job --------------------------------------------------------------------------

    def retire(self, turn: Turn, entry: Entry) -> None:
        """`clean` is in the turn: the final record goes into the same transaction."""
        job = entry.job
        final = self.record(entry)
        turn.batch.done(job.id, job.t_inactive, final["result"], _encode(final))
        for key in plugindata.keys(entry):
            turn.batch.delete(job.id, key)
        if job_waitable(job):
            turn.op("INSERT INTO waitable VALUES(?)", job.id)
        self.housekeeping.begin(turn, job.id)
        self.notifier.tell(turn, final)
        turn.after.append(lambda: self._retired(entry, final))

    def _retired(self, entry: Entry, final: dict[str, Any]) -> None:
        jobid = entry.job.id
        self.finals[jobid] = final
        if len(self.finals) > CACHE_MAX:
            self.finals.popitem(last=False)
        self.entries.pop(jobid, None)
        if self.registry.has("destroy"):
            self.registry.call("destroy", str(jobid), entry.job)
        self._specs.pop(jobid, None)
        self._outcomes[jobid] = entry.job
        if len(self._outcomes) > CACHE_MAX:
            self._outcomes.popitem(last=False)
        self.units.asked_at.pop(jobid, None)
        self.queues.look()
        if job_waitable(entry.job):
            self.ended_waitable[jobid] = None
        self.feed.ended(jobid)
        for ask in entry.asks.values():
            if ask.unit != entry.unit and ask.status is None:
                self.perform.ended(ask.unit, ask.node, WorkResult(15, "the job is over"))  # nobody will hear of it
        for future in self._waiters.pop(jobid, ()):
            if not future.done():
                future.set_result(None)
        for future in self._waiters.pop(0, ()) if job_waitable(entry.job) else ():
            if not future.done():
                future.set_result(None)

    async def wait_inactive(self, jobid: int) -> None:
        """Return once the job is inactive (and that is on disk). 0 waits for any waitable job."""
        if jobid and jobid not in self.entries:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(jobid, []).append(future)
        await future

    def record(self, entry: Entry) -> dict[str, Any]:
        """The API's record of an active job (docs/api.md)."""
        job, digest, rset = entry.job, entry.digest, entry.rset
        out = record(job)
        out |= {
            "f58": jobids.encode(job.id),
            "name": digest.name,
            "cwd": digest.cwd,
            "queue": digest.queue,
            "bank": digest.bank,
            "project": digest.project,
            "ntasks": digest.ntasks,
            "duration": job.updates.get("attributes.system.duration", digest.duration_s),
        }
        if entry.annotations is not None:
            out["annotations"] = entry.annotations
        if rset is not None:
            out |= {
                "nnodes": rset.nnodes(),
                "ncores": rset.ncores(),
                "ngpus": rset.ngpus(),
                "ranks": rset.ranks_idset(),
                "nodelist": rset.nodelist(),
            }
            if rset.expiration and not out["expiration"]:
                out["expiration"] = rset.expiration
        else:
            out |= {"nnodes": digest.nnodes or None, "ncores": digest.nslots * digest.cores_per_slot}
        if job.state is SCHED and job.priority and (why := self.queues.stopped(entry)):
            out["waiting_for"] = why
        elif job.state is SCHED and entry.reason:
            out["waiting_for"] = entry.reason
            out["annotations"] = merge(out["annotations"], {"sched": {"reason_pending": entry.reason}})
        out["holds"] = self.holds.describe(entry)
        if job.state is PRIORITY and "priority" in entry.in_flight:
            out["waiting_for"] = "priority of " + ", ".join(self.registry.names("priority"))
        return out

    # What plugins call (hooks.Manager) stands in PluginPort below.

    def _plugin_error(self, plugin: str, job: str, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.log.error("plugin failed", plugin=plugin, job=job, trace=trace)

    def start_requested(self, jobid: int) -> bool:
        entry = self.entries.get(jobid)
        return entry is not None and (entry.job.started or "start" in entry.in_flight)

    def find_hold(self, jobid: int, kind: str, name: str) -> str:
        """The key of the open hold of that name. Raises EventError."""
        entry = self.entry(jobid)
        keys = [key for key, hold in entry.job.holds.items() if hold.name == name and kind in ("", hold.kind)]
        if len(keys) > 1:
            raise EventError(f"`{name}` names several open holds: {', '.join(keys)}", "say which kind")
        if keys:
            return keys[0]
        if kind and f"{kind}/{name}" in entry.job.closed:
            raise EventError(f"{kind} `{name}` was closed already")
        raise EventError(f"no hold `{name}` is open", "open: " + (", ".join(entry.job.holds) or "none"))

    def set_progress(self, jobid: int, key: str, progress: dict[str, Any]) -> None:
        entry = self.entries.get(jobid)
        if entry is None or key not in entry.job.holds:
            return
        entry.progress[key] = progress
        self.feed.publish((jobid,))


def job_waitable(job: Job) -> bool:
    return bool(job.flags & FLAG_WAITABLE)
