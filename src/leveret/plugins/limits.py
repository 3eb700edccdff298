"""Limits on how much users and queues may have at a time, as an accounting system sets them. Loaded by name:

    [[job-manager.plugins]]
    load = "limits"
    conf = {max-running-jobs = 10, max-active-jobs = 1000, users = {ada = {max-running-jobs = 50}},
            queues = {debug = {max-running-jobs = 4, per-user = {max-running-jobs = 1}}}}

Four limits: `max-running-jobs`, `max-active-jobs`, `max-nodes`, `max-cores` (of running jobs together); -1 is unlimited. At
the top they hold for each user in all queues, `users.NAME` for one; `queues.NAME` for all jobs of a queue, its `per-user` for
each user there. A job over `max-active-jobs`, or larger than it could ever be let in, is refused; one over the others waits,
and its annotation `sched.reason_pending` and `leveret explain` say why. A job runs from `alloc` to `free`.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from typing import Any

from leveret.core.event import Event
from leveret.core.job import Job
from leveret.core.jobspec import Digest
from leveret.errors import InvalidError
from leveret.plugins.hooks import Answers, Plugin, Reject

ACTIVE = "max-active-jobs"
#: limit → what it counts
RUNNING = {"max-running-jobs": "running jobs", "max-nodes": "nodes", "max-cores": "cores"}
Limits = dict[str, int]
Scope = tuple[str, str]
"""(user or "", queue or ""): the jobs of a user, of a queue, or of a user in a queue. `*` in place of a queue: all of them."""


class Limit(Plugin):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        conf = dict(self.conf)
        users, queues = _table(conf, "users"), _table(conf, "queues")
        self._default = _limits(conf, "conf")
        self._users = {name: _limits(dict(table), f"users.{name}") for name, table in users.items()}
        self._queues: dict[str, Limits] = {}
        self._per_user: dict[str, Limits] = {}
        for name, table in queues.items():
            table = dict(table)
            per_user = _table(table, "per-user")
            self._per_user[name] = _limits(per_user, f"queues.{name}.per-user")
            self._queues[name] = _limits(table, f"queues.{name}")
        self._names: dict[int, str] = {}
        self._jobs: dict[int, tuple[str, str, dict[str, int]]] = {}  #: job → (user, queue, what it counts for)
        self._counts: dict[Scope, dict[str, int]] = {}

    # ---- counting ----------------------------------------------------------------------------------

    def _user(self, uid: int) -> str:
        if uid not in self._names:
            try:
                self._names[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._names[uid] = str(uid)
        return self._names[uid]

    def _forget(self, jobid: int) -> None:
        if (known := self._jobs.pop(jobid, None)) is not None:
            self._add(known, -1)

    def _count(self, job: Job) -> None:
        """What the job is now counted for."""
        self._forget(job.id)
        if job.done:
            return
        counts = {ACTIVE: 1}
        rset = self.manager.resources(job.id) if job.allocated and not job.freed else None
        if rset is not None:
            counts |= {"max-running-jobs": 1, "max-nodes": rset.nnodes(), "max-cores": rset.ncores()}
        known = self._jobs[job.id] = (self._user(job.userid), self.manager.digest(job.id).queue, counts)
        self._add(known, 1)

    def _add(self, known: tuple[str, str, dict[str, int]], sign: int) -> None:
        user, queue, counts = known
        for scope in ((user, "*"), ("", queue), (user, queue)):
            total = self._counts.setdefault(scope, {})
            for name, count in counts.items():
                total[name] = total.get(name, 0) + sign * count
            if not any(total.values()):
                del self._counts[scope]

    def _applying(self, user: str, queue: str) -> Iterator[tuple[Scope, Limits, str]]:
        """(scope, its limits, how people call it) of all that hold for a job."""
        yield (user, "*"), {**self._default, **self._users.get(user, {})}, f"user {user}"
        yield ("", queue), self._queues.get(queue, {}), f"queue {queue}"
        yield (user, queue), self._per_user.get(queue, {}), f"user {user} in queue {queue}"

    # ---- moments -----------------------------------------------------------------------------------

    def new(self, job: Job) -> Answers:
        self._count(job)
        user, queue, _ = self._jobs[job.id]
        want = _want(self.manager.digest(job.id))
        for scope, limits, whose in self._applying(user, queue):
            most = limits.get(ACTIVE, -1)
            if 0 <= most < self._counts[scope][ACTIVE]:
                return Reject(
                    f"{whose} has {self._counts[scope][ACTIVE] - 1} active jobs: the limit {ACTIVE} is {most}"
                )
            for name in RUNNING:
                most = limits.get(name, -1)
                if 0 <= most < want[name]:
                    return Reject(f"the job needs {want[name]} {RUNNING[name]}: the limit {name} of {whose} is {most}")
        return None

    def blocked(self, job: Job) -> str:
        known = self._jobs.get(job.id)
        if known is None:
            return ""
        want = _want(self.manager.digest(job.id))
        for scope, limits, whose in self._applying(known[0], known[1]):
            for name, what in RUNNING.items():
                most = limits.get(name, -1)
                has = self._counts.get(scope, {}).get(name, 0)
                if 0 <= most < has + want[name]:
                    return f"{name}: {whose} has {has} of {most} {what}"
        return ""

    def event_alloc(self, job: Job, event: Event) -> Answers:
        self._count(job)
        return None

    def event_free(self, job: Job, event: Event) -> Answers:
        self._count(job)
        return None

    def event_jobspec_update(self, job: Job, event: Event) -> Answers:
        self._count(job)
        return None

    def state_inactive(self, job: Job) -> Answers:
        self._forget(job.id)
        return None

    def destroy(self, job: Job) -> None:
        self._forget(job.id)

    def query(self) -> dict[str, Any]:
        return {"counts": {f"{user or '*'}/{queue or '-'}": counts for (user, queue), counts in self._counts.items()}}


def _want(digest: Digest) -> dict[str, int]:
    return {
        "max-running-jobs": 1,
        "max-nodes": max(digest.nnodes, 1),
        "max-cores": digest.nslots * digest.cores_per_slot,
    }


def _table(conf: dict[str, Any], key: str) -> dict[str, Any]:
    table = conf.pop(key, {})
    if not isinstance(table, dict):
        raise InvalidError(f"limits: `{key}` must be a table")
    return dict(table)


def _limits(conf: Any, where: str) -> Limits:
    if not isinstance(conf, dict):
        raise InvalidError(f"limits: `{where}` must be a table")
    for name, value in conf.items():
        if name not in (ACTIVE, *RUNNING):
            raise InvalidError(f"limits: {where}: unknown key `{name}`", "limits: " + ", ".join((ACTIVE, *RUNNING)))
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            raise InvalidError(f"limits: {where}: {name} must be a whole number, -1 for unlimited")
    return dict(conf)
