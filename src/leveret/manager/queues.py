"""Job queues (RFC 33): who may submit, what a job is given and may ask for, and whether it is scheduled.

There is one anonymous queue (its name is "") or, when queues are configured, only named ones, which are enabled and
stopped at first. What an operator changes is a row of the table `meta`, written in the turn that changes it.
"""

from __future__ import annotations

import asyncio
import grp
import pwd
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import constraint as constraints
from leveret.core import jobspec as jobspecs
from leveret.core.transitions import CLEANUP, RUN
from leveret.errors import ForbiddenError, InvalidError
from leveret.manager import policy
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.entry import Entry
    from leveret.manager.manager import Manager

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

DISABLED = "disabled by administrator"
ACTIONS = ("enable", "disable", "start", "stop")
#: how often who waits for idle queues looks again, beside being told
LOOK_S = 0.5
#: keys of a jobspec that policy may fill in
FILLED = ("queue", "duration", "constraints")


class Queue:
    """One queue: its policy, and what an operator has said."""

    __slots__ = ("access", "enabled", "name", "policy", "reason", "started", "stop_reason")

    def __init__(self, name: str, effective: policy.Effective, started: bool) -> None:
        self.name = name
        self.policy = effective
        self.enabled = True
        self.reason = ""  #: why it is disabled
        self.started = started
        self.stop_reason = ""
        self.access: tuple[list[str] | None, list[str] | None] = (None, None)  #: users and groups, None: not limited

    def encode(self) -> str:
        return str(_encode([self.enabled, self.reason, self.started, self.stop_reason]), "utf-8")

    def restore(self, text: str) -> None:
        self.enabled, self.reason, self.started, self.stop_reason = _decode(text)


class Queues:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        config = manager.config
        policy.check(config)
        self.named = bool(config.queues)
        self.default = config.policy.jobspec.defaults.system.queue or ""
        self.all: dict[str, Queue] = {}
        for name in sorted(config.queues) or [""]:
            queue = self.all[name] = Queue(name, policy.Effective(config, name), started=not self.named)
            own = config.queues[name].policy.access if name else config.policy.access
            general = config.policy.access
            queue.access = (
                own.allow_user if own.allow_user is not None else general.allow_user,
                own.allow_group if own.allow_group is not None else general.allow_group,
            )
            if (text := manager.store.meta(f"queue/{name}")) is not None:
                try:
                    queue.restore(text)
                except (msgspec.DecodeError, TypeError, ValueError) as error:
                    manager.log.error("what was set for a queue is damaged", queue=name, why=str(error))
            self.apply(queue)
        anonymous = self.all.get("")
        #: nothing is filled in or checked
        self.plain = anonymous is not None and not anonymous.policy.limited and not anonymous.policy.default_duration_s
        self._news = asyncio.Event()
        self._waiting = 0

    # ---- a submission ------------------------------------------------------------------------------

    def admit(
        self, spec: dict[str, Any], digest: jobspecs.Digest
    ) -> tuple[dict[str, Any], jobspecs.Digest, dict[str, Any]]:
        """The jobspec with what policy fills in, its digest, and what these keys were before (absent: null).

        Raises ForbiddenError for a queue that does not exist, InvalidError for a job beyond the limits.
        """
        if self.plain:
            if digest.queue:
                raise InvalidError(
                    f"'{digest.queue}' is not a valid queue", "no queues are configured", "attributes.system.queue"
                )
            return spec, digest, {}
        system = spec["attributes"]["system"]
        filled: dict[str, Any] = {}
        name = digest.queue
        if self.named and not name:
            if not self.default:
                raise InvalidError(
                    "a queue must be named: there is no default queue",
                    "queues: " + ", ".join(self.all),
                    "attributes.system.queue",
                )
            name = filled["queue"] = self.default
        queue = self.all.get(name)
        if queue is None and self.named:
            raise ForbiddenError(
                f"Invalid queue '{name}' specified", "queues: " + ", ".join(self.all), "attributes.system.queue"
            )
        if queue is None:
            raise InvalidError(f"'{name}' is not a valid queue", "no queues are configured", "attributes.system.queue")
        if not digest.duration_s and queue.policy.default_duration_s:
            filled["duration"] = queue.policy.default_duration_s
        if queue.policy.requires:
            filled["constraints"] = constraints.join(system.get("constraints"), {"properties": queue.policy.requires})
        before = {key: system.get(key) for key in filled}
        if filled:
            spec = {**spec, "attributes": {**spec["attributes"], "system": {**system, **filled}}}
            digest = jobspecs.digest(spec)
        queue.policy.check_duration(digest.duration_s)
        queue.policy.check_size(digest)
        return spec, digest, before

    def open(self, name: str, userid: int) -> None:
        """Raise InvalidError when the queue takes no jobs, ForbiddenError when not from this user."""
        queue = self.all[name]
        if not queue.enabled:
            to = f" to {name}" if name else ""
            raise InvalidError(f"job submission{to} is disabled: {queue.reason}", path="attributes.system.queue")
        users, groups = queue.access
        if (users is None and groups is None) or userid == self.manager.owner_uid:
            return
        if not _allowed(userid, users or [], groups or []):
            what = f"queue {name}" if name else "this instance"
            raise ForbiddenError(f"{what} does not take jobs of this user", "its access policy does not name you")

    # ---- scheduling --------------------------------------------------------------------------------

    def stopped(self, entry: Entry) -> str:
        """Why the job's queue is not scheduled, or ""."""
        queue = self.all.get(entry.digest.queue)
        if queue is None:
            return gone(entry.digest.queue)
        return "" if queue.started else self.why(queue)

    def why(self, queue: Queue) -> str:
        what = f"queue {queue.name} is stopped" if queue.name else "scheduling is stopped"
        return f"{what}: {queue.stop_reason}" if queue.stop_reason else what

    # ---- what operators ask for --------------------------------------------------------------------

    def select(self, names: list[str], everything: bool, action: str) -> list[Queue]:
        """The queues that are meant. Raises InvalidError."""
        for name in names:
            if not name or name not in self.all:
                known = ", ".join(self.all) if self.named else "none is configured"
                raise InvalidError(f"'{name}' is not a valid queue", f"queues: {known}", "queues")
        if names:
            return [self.all[name] for name in dict.fromkeys(names)]
        if self.named and not everything:
            if action in ("start", "stop"):
                raise InvalidError("Named queues are defined. Specify queues or use --all.")
            raise InvalidError("Use --all to apply this command to all queues")
        return list(self.all.values())

    def change(
        self, action: str, names: list[str], everything: bool = False, reason: str = "", checkpoint: bool = True
    ) -> list[dict[str, Any]]:
        """enable, disable, start or stop. Returns the records of the queues meant.

        `checkpoint` False: the change is not kept over a restart.
        """
        if action not in ACTIONS:
            raise InvalidError(f"no such action: `{action}`", "actions: " + ", ".join(ACTIONS), "action")
        queues = self.select(names, everything, action)
        with Turn(self.manager, "queue") as turn:
            for queue in queues:
                if action in ("enable", "disable"):
                    queue.enabled = action == "enable"
                    queue.reason = "" if queue.enabled else reason or DISABLED
                else:
                    queue.started = action == "start"
                    queue.stop_reason = "" if queue.started else reason
                if checkpoint:
                    turn.op(
                        "INSERT INTO meta VALUES(?,?) ON CONFLICT(key) DO UPDATE SET value=excluded.value",
                        f"queue/{queue.name}",
                        queue.encode(),
                    )
        if action in ("start", "stop"):
            for queue in queues:
                self.apply(queue)
            self.manager.want_schedule()
            self.look()
        return [self.record(queue) for queue in queues]

    def apply(self, queue: Queue) -> None:
        """Tell the scheduler."""
        if queue.started:
            self.manager.queue.resume(queue.name)
        else:
            self.manager.queue.pause(queue.name, self.why(queue))

    def recovered(self) -> None:
        """All jobs are known: those of queues that are gone wait, visibly, until they are moved to another one."""
        for name in {entry.digest.queue for entry in self.manager.entries.values()} - set(self.all):
            self.manager.queue.pause(name, gone(name))

    # ---- what doors ask ----------------------------------------------------------------------------

    def record(self, queue: Queue) -> dict[str, Any]:
        """One queue as the API shows it; durations in seconds, null is unlimited (docs/api.md)."""
        own = queue.policy
        return {
            "name": queue.name,
            "default": bool(queue.name) and queue.name == self.default,
            "enabled": queue.enabled,
            "disable_reason": queue.reason,
            "started": queue.started,
            "stop_reason": queue.stop_reason,
            "requires": own.requires,
            "defaults": {"timelimit": own.default_duration_s or None},
            "limits": {"timelimit": own.duration_s, "min": own.min, "max": own.max},
            "resources": self.resources(own.requires),
        }

    def resources(self, requires: list[str]) -> dict[str, dict[str, int]]:
        """Counts of what belongs to a queue: {all, free, allocated, up, down} of {nnodes, ncores, ngpus}."""
        counts = {kind: dict.fromkeys(policy.KINDS, 0) for kind in ("all", "free", "allocated", "up", "down")}

        def add(kind: str, cores: int, gpus: int) -> None:
            counts[kind]["nnodes"] += 1
            counts[kind]["ncores"] += cores
            counts[kind]["ngpus"] += gpus

        belongs = constraints.compiled({"properties": requires} if requires else None)
        for node in self.manager.pool.nodes.values():
            if not belongs(node.rank, node.host, node.properties):
                continue
            cores, gpus = node.ncores, node.gpus.bit_count()
            free_cores, free_gpus = node.cores_free.bit_count(), node.gpus_free.bit_count()
            add("all", cores, gpus)
            add("up" if node.allocatable else "down", cores, gpus)
            if node.allocatable and (free_cores or free_gpus):
                add("free", free_cores, free_gpus)
            if cores > free_cores or gpus > free_gpus:
                add("allocated", cores - free_cores, gpus - free_gpus)
        return counts

    def listing(self, names: list[str] | None = None) -> dict[str, Any]:
        """{queues, alloc_queued, alloc_pending, running}: the records, and counts of the whole instance."""
        queues = self.select(names, True, "list") if names else list(self.all.values())
        queued = pending = running = 0
        for entry in self.manager.entries.values():
            if "alloc" in entry.in_flight:
                if self.stopped(entry):
                    queued += 1
                else:
                    pending += 1
            elif entry.job.state in (RUN, CLEANUP):
                running += 1
        return {
            "queues": [self.record(queue) for queue in queues],
            "alloc_queued": queued,
            "alloc_pending": pending,
            "running": running,
        }

    # ---- waiting -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Something has changed that those who wait for quiet queues may want to see."""
        if self._waiting:
            self._news.set()

    def _busy(self, entry: Entry, what: str) -> bool:
        if what == "drain" or entry.job.state in (RUN, CLEANUP):
            return True
        return "alloc" in entry.in_flight and not self.stopped(entry)

    def quiet(self, what: str, names: list[str]) -> bool:
        """`drain`: no active job. `idle`: none in RUN or CLEANUP, and no request waits for the scheduler."""
        return not any(
            self._busy(entry, what)
            for entry in self.manager.entries.values()
            if not names or entry.digest.queue in names
        )

    async def wait(self, what: str, names: list[str], timeout_s: float | None) -> dict[str, Any]:
        """{done, jobs}: whether it came to that in time, and how many active jobs there are."""
        if what not in ("drain", "idle"):
            raise InvalidError(f"no such thing to wait for: `{what}`", "drain or idle", "what")
        if names:
            self.select(names, True, what)
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        self._waiting += 1
        try:
            while not (done := self.quiet(what, names)):
                left = LOOK_S if end is None else min(LOOK_S, end - loop.time())
                if left <= 0:
                    break
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), left)
                except TimeoutError:
                    continue
        finally:
            self._waiting -= 1
        jobs = sum(not names or entry.digest.queue in names for entry in self.manager.entries.values())
        return {"done": done, "jobs": jobs}


def gone(name: str) -> str:
    return (
        f"queue {name} is not configured any more"
        if name
        else "a queue: queues are configured now, and the job has none"
    )


def _allowed(userid: int, users: list[str], groups: list[str]) -> bool:
    try:
        name = pwd.getpwuid(userid).pw_name
        gid = pwd.getpwuid(userid).pw_gid
    except KeyError:
        return str(userid) in users
    if name in users or str(userid) in users:
        return True
    for group in groups:
        try:
            found = grp.getgrnam(group)
        except KeyError:
            continue
        if found.gr_gid == gid or name in found.gr_mem:
            return True
    return False
