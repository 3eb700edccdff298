"""`leveret update`: attributes of an active job are set anew (RFC 21 `jobspec-update`), all that were asked for or none.

Allowed are `duration`, also of a running job (then R's expiration follows, by `resource-update`, and the helpers' limit
with it), `queue` of a job that has no resources, what `[job-manager] update-allow` names, and what plugins allow.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from leveret.core import constraint as constraints
from leveret.core import jobspec as jobspecs
from leveret.core.transitions import CLEANUP, RUN
from leveret.errors import ConflictError, ForbiddenError, InvalidError
from leveret.manager import plugindata
from leveret.manager.entry import Entry
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

SYSTEM = "attributes.system."
DURATION, QUEUE, CONSTRAINTS = SYSTEM + "duration", SYSTEM + "queue", SYSTEM + "constraints"
#: of a job that has resources, only these can change
RUNNING = (DURATION,)
#: keys that no update may touch: they name what was submitted, or are followed by other means
NEVER = (SYSTEM + "dependencies", SYSTEM + "environment", SYSTEM + "cwd")


def full_key(key: str) -> str:
    """`duration` is `attributes.system.duration`, `name` is the job's name."""
    if key == "name":
        return SYSTEM + "job.name"
    return key if key.startswith(("attributes.", "tasks.", "resources.")) else SYSTEM + key


class Updates:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.allow = [full_key(pattern) for pattern in manager.config.job_manager.update_allow]

    def update(self, jobid: int, updates: dict[str, Any], userid: int) -> dict[str, Any]:
        """Check and post the updates, in one turn. Returns them as they stand in the eventlog.

        Raises NotFoundError, ConflictError (inactive, ending), ForbiddenError, InvalidError; nothing has changed then.
        """
        manager = self.manager
        entry = manager.entry(jobid)
        asked = {full_key(key): value for key, value in updates.items()}
        if not asked:
            raise InvalidError("nothing to update", "for example duration=1h")
        if entry.job.state is CLEANUP:
            raise ConflictError("job is ending")
        owner = userid in (manager.owner_uid, 0)
        if not owner:
            if userid != entry.job.userid:
                raise ForbiddenError("this is another user's job")
            if entry.job.immutable:
                raise ForbiddenError("job is immutable due to previous instance owner update")
        wanted, taken = plugindata.ask_update(manager, entry.job, asked)
        exceeds = False
        for key, value in list(wanted.items()):
            if entry.job.state is RUN and key not in RUNNING:
                raise InvalidError(f"update of {key.removeprefix(SYSTEM)} for running job not supported", path=key)
            if key == DURATION:
                exceeds = self._duration(entry, value, owner) or exceeds
                wanted[key] = float(value)
            elif key != QUEUE and key not in taken and key in asked and not self.allowed(key):
                raise InvalidError(
                    f"update of {key} not supported", "can be updated: duration, queue" + self._more(), path=key
                )
        if QUEUE in wanted:
            wanted |= self._queue(entry, wanted)
        return self._post(entry, wanted, immutable=exceeds and entry.job.userid != userid)

    def allowed(self, key: str) -> bool:
        """Whether the site lets users update this key."""
        return key not in NEVER and any(fnmatchcase(key, pattern) for pattern in self.allow)

    def _more(self) -> str:
        return "".join(f", {pattern.removeprefix(SYSTEM)}" for pattern in self.allow)

    def _duration(self, entry: Entry, value: Any, owner: bool) -> bool:
        """Whether the new duration is beyond the queue's limit; only the instance owner may ask for that."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            raise InvalidError("duration must be a number of seconds, not negative", path=DURATION)
        if entry.job.state is RUN:
            expiration = self._expiration(entry, float(value))
            if expiration and expiration <= self.manager.clock.time():
                raise InvalidError("requested duration places job expiration in the past", path=DURATION)
        queue = self.manager.queues.all.get(entry.digest.queue)
        try:
            if queue is not None:
                queue.policy.check_duration(float(value))
        except InvalidError:
            if not owner:
                raise
            return True
        return False

    def _queue(self, entry: Entry, wanted: dict[str, Any]) -> dict[str, Any]:
        """The constraints that go with the new queue."""
        manager, name = self.manager, wanted[QUEUE]
        queue = manager.queues.all.get(name) if isinstance(name, str) and name else None
        if queue is None:
            raise InvalidError(f"'{name}' is not a valid queue", path=QUEUE)
        manager.queues.open(name, entry.job.userid)
        own = manager.original_jobspec(entry.job.id)["attributes"]["system"].get("constraints")
        requires = {"properties": queue.policy.requires} if queue.policy.requires else None
        joined = constraints.join(own, requires) or {}
        spec = jobspecs.updated(manager.jobspec(entry.job.id), {**wanted, CONSTRAINTS: joined})
        digest = jobspecs.digest(spec)
        queue.policy.check_duration(digest.duration_s)
        queue.policy.check_size(digest)
        return {CONSTRAINTS: joined}

    def _post(self, entry: Entry, wanted: dict[str, Any], immutable: bool) -> dict[str, Any]:
        manager, job = self.manager, entry.job
        spec = jobspecs.updated(manager.jobspec(job.id), wanted)
        jobspecs.validate(spec)
        digest = jobspecs.digest(spec)
        running = job.state is RUN
        if not running and (shortage := manager.pool.shortage(digest)):
            raise InvalidError(shortage)
        with Turn(manager, "update") as turn:
            turn.post(entry, "jobspec-update", wanted)
            if immutable:
                turn.post(entry, "set-flags", {"flags": ["immutable"]})
            if running and DURATION in wanted:
                turn.post(entry, "resource-update", {"expiration": self._expiration(entry, wanted[DURATION])})
                turn.after.append(lambda: self._moved(entry))
        return wanted

    def _moved(self, entry: Entry) -> None:
        if entry.rset is not None:
            entry.rset.expiration = entry.job.expiration
        self.manager.perform.limit(entry)

    def _expiration(self, entry: Entry, duration_s: float) -> float:
        """When the tasks' time is over; 0 is never. The limit clocks tasks: before `start` it is a forecast."""
        if not duration_s or not math.isfinite(duration_s) or entry.rset is None:
            return 0.0
        return (entry.job.t_start or entry.rset.starttime) + duration_s
