"""The dependency `singleton`: one job of a user and a name at a time.

A job with it waits until every earlier job of the same user with the same name is inactive.
"""

from __future__ import annotations

from typing import Any

from leveret.core.job import Hold, Job
from leveret.plugins.hooks import Answer, Answers, DependencyHold, Finish, Plugin, Reject

HOLD = "singleton"
Key = tuple[int, str]


class Singleton(Plugin):
    schemes = ("singleton",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._named: dict[Key, dict[int, None]] = {}  #: active jobs, in order of submission
        self._keys: dict[int, Key] = {}
        self._waiting: dict[int, set[int]] = {}  #: dependent → earlier jobs that are active

    def new(self, job: Job) -> Answers:
        key = (job.userid, self.manager.digest(job.id).name)
        if f"dependency/{HOLD}" in job.holds:  # after a restart: jobs come in order
            self._waiting[job.id] = set(self._earlier(job, key))
        self._named.setdefault(key, {})[job.id] = None
        self._keys[job.id] = key
        return None

    def _earlier(self, job: Job, key: Key) -> list[int]:
        """Jobs before this one that are active and were given the name, not only a command of that name."""
        return [
            other
            for other in self._named.get(key, ())
            if other != job.id and self.manager.job(other) is not None and self._name(other)
        ]

    def _name(self, jobid: int) -> str:
        system = self.manager.jobspec(jobid)["attributes"]["system"]
        return str((system.get("job") or {}).get("name") or "")

    def dependency(self, job: Job, dependency: dict[str, Any]) -> Answers:
        if not self._name(job.id):
            return Reject("singleton jobs require a job name", "--job-name=NAME")
        earlier = self._earlier(job, self._keys[job.id])
        if not earlier:
            return None
        self._waiting[job.id] = set(earlier)
        return DependencyHold(HOLD)

    def state_inactive(self, job: Job) -> Answers:
        key = self._keys.pop(job.id, None)
        self._waiting.pop(job.id, None)
        if key is None:
            return None
        named = self._named[key]
        named.pop(job.id, None)
        answers: list[Answer] = []
        for dependent, left in list(self._waiting.items()):
            if job.id in left:
                left.discard(job.id)
                if not left:
                    del self._waiting[dependent]
                    answers.append(Finish("dependency", HOLD, job=dependent, quiet=True))
        if not named:
            del self._named[key]
        return answers

    async def resume(self, job: Job, hold: Hold) -> int | None:
        if not self._waiting.get(job.id):
            return 0
        raise NotImplementedError  # closed by the end of the last earlier job
