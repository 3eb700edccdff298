"""Dependencies on other jobs (RFC 26): afterok, afterany, afternotok, afterexcept, afterstart (and its old name after),
and our afterfinish; and on time: begin-time.

`after*` wait for the antecedent's `clean`: its data is where it belongs by then. `afterstart` does not, nor does
`afterfinish`, for those who need only the tasks to be over. docs/dependencies.md has the table of outcomes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from leveret.core import jobid as jobids
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.verdict import COMPLETED
from leveret.errors import FormatError
from leveret.plugins.hooks import Answer, Answers, DependencyHold, Finish, Plugin, Raise, Reject

#: scheme → Flux's name in the description
NAMES = {
    "afterok": "after-success",
    "afternotok": "after-failure",
    "afterany": "after-finish",
    "afterexcept": "after-except",
    "afterstart": "after-start",
    "afterfinish": "after-tasks",  # ours; Flux's afterany is called after-finish
    "after": "after-start",
}
_KINDS = frozenset(NAMES.values())


def satisfied(kind: str, antecedent: Job, result: str) -> bool:
    """The truth table for an antecedent that is inactive."""
    if kind in ("after-finish", "after-tasks"):
        return True
    if kind == "after-start":
        return antecedent.started
    if kind == "after-success":
        return result == COMPLETED
    if kind == "after-failure":
        return result != COMPLETED  # RFC 26: an unsuccessful result, also of a job that never started
    return antecedent.fatal is not None


class Dependencies(Plugin):
    """Waits by antecedent, so that one end looks only at its own dependents."""

    schemes = (*NAMES, "begin-time")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: dict[int, dict[int, set[str]]] = {}  #: antecedent → dependent → descriptions

    def dependency(self, job: Job, dependency: dict[str, Any]) -> Answers:
        scheme, value = str(dependency["scheme"]), str(dependency.get("value", ""))
        if scheme == "begin-time":
            return self._begin_time(value)
        try:
            other = jobids.parse(value)
        except FormatError:
            return Reject(f'dependency: {scheme}: "{value}" is not a valid jobid')
        antecedent = self.manager.outcome(other)
        if antecedent is None:
            return Reject(f"dependency: {scheme}: id {value}: job not found")
        kind = NAMES[scheme]
        name = f"{kind}={jobids.encode(other)}"
        if f"dependency/{name}" in job.holds or f"dependency/{name}" in job.closed:
            return None  # it was said twice
        answers: list[Answer] = []
        if scheme == "after":
            answers.append(Raise("dependency", 3, "dependency scheme 'after' is deprecated, use 'afterstart'"))
        answers.append(DependencyHold(name))
        if antecedent.done:
            verdict = self.manager.verdict(other)
            if not satisfied(kind, antecedent, verdict.result if verdict else ""):
                return Reject(f"dependency: {scheme}: job {jobids.encode(other)} {_why(kind, antecedent)}")
            answers.append(Finish("dependency", name))
        elif (kind == "after-start" and antecedent.started) or (
            kind == "after-tasks" and antecedent.status is not None
        ):
            answers.append(Finish("dependency", name))
        else:
            self._wait(other, job.id, name)
        return answers

    def _begin_time(self, value: str) -> Answers:
        """Seconds since the epoch. A dependency on time has no deadline: it is one."""
        try:
            when = float(value)
            if not 0 <= when < 1e11:
                raise ValueError
        except ValueError:
            return Reject(f"Invalid begin-time={value}")
        name = f"begin-time={when:.3f}"
        return DependencyHold(name, work=self._until(when))

    async def _until(self, when: float) -> int:
        while (left_s := when - self.manager.now()) > 0:
            await asyncio.sleep(min(left_s, 3600))  # the clock may be set
        return 0

    async def resume(self, job: Job, hold: Hold) -> int | None:
        kind, _, value = hold.name.partition("=")
        if kind == "begin-time":
            return await self._until(float(value))
        raise NotImplementedError  # closed by the antecedent's end

    def _wait(self, antecedent: int, dependent: int, name: str) -> None:
        self._waiting.setdefault(antecedent, {}).setdefault(dependent, set()).add(name)

    def new(self, job: Job) -> Answers:
        for hold in job.blocked("depend"):
            kind, _, value = hold.name.partition("=")
            if kind in _KINDS:
                self._wait(jobids.parse(value), job.id, hold.name)
        return None

    def restored(self) -> list[Answer]:
        """After a restart: answer for antecedents that ended while nobody looked."""
        answers: list[Answer] = []
        for antecedent in list(self._waiting):
            job = self.manager.outcome(antecedent)
            if job is None or job.done:
                answers += self._resolve(antecedent, job)
            else:
                if job.started:
                    answers += self._reached(job, "after-start=")
                if job.status is not None:
                    answers += self._reached(job, "after-tasks=")
        return answers

    def event_start(self, job: Job, event: Event) -> Answers:
        return self._reached(job, "after-start=") if job.id in self._waiting else None

    def event_finish(self, job: Job, event: Event) -> Answers:
        return self._reached(job, "after-tasks=") if job.id in self._waiting else None

    def _reached(self, job: Job, prefix: str) -> list[Answer]:
        answers: list[Answer] = []
        for dependent, names in self._waiting.get(job.id, {}).items():
            for name in sorted(names):
                if name.startswith(prefix):
                    names.discard(name)
                    answers.append(Finish("dependency", name, job=dependent, quiet=True))
        return answers

    def state_inactive(self, job: Job) -> Answers:
        return self._resolve(job.id, job) if job.id in self._waiting else None

    def _resolve(self, antecedent: int, job: Job | None) -> list[Answer]:
        verdict = self.manager.verdict(antecedent)
        answers: list[Answer] = []
        for dependent, names in self._waiting.pop(antecedent, {}).items():
            for name in sorted(names):
                kind = name.partition("=")[0]
                if job is not None and verdict is not None and satisfied(kind, job, verdict.result):
                    answers.append(Finish("dependency", name, job=dependent, quiet=True))
                else:
                    why = "job never started" if job is not None and not job.started else "can never be satisfied"
                    answers.append(Raise("dependency", 0, f"dependency {name} {why}", job=dependent))
        return answers


def _why(kind: str, antecedent: Job) -> str:
    if kind == "after-start":
        return "never started"
    return {"after-success": "failed or was canceled", "after-failure": "was successful"}.get(kind, "had no exception")
