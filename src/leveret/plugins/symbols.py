"""Dependencies by what jobs make and use (RFC 26, OpenMP-style): the schemes `string` and `fluid`.

`out` and `inout` offer a value to jobs that are submitted later; `in` and `inout` wait until every earlier job that offers
it is inactive, whatever its result. For `fluid` the value is a job id, which that job itself offers. Two jobs see each
other when they are one user's, or when both say `scope=global`.

An `inout` waits for all earlier offers, so later jobs need to wait for it only: what it stands for is kept, and comes back
when it ends early. A chain of n such jobs costs n, not n².
"""

from __future__ import annotations

from typing import Any

from leveret.core import jobid as jobids
from leveret.core.job import Hold, Job
from leveret.core.transitions import State
from leveret.errors import FormatError
from leveret.plugins.hooks import Answer, Answers, DependencyHold, Finish, Plugin, Reject

TYPES = ("in", "out", "inout")
SCOPES = ("user", "global")
Key = tuple[str, str, int]
"""(scheme, value, user; EVERYBODY)."""
EVERYBODY = -1


class Bad(Exception):
    """A dependency that cannot be: reason and hint."""


class Symbols(Plugin):
    schemes = ("string", "fluid")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._offers: dict[Key, dict[int, None]] = {}  #: the active jobs that a later one waits for
        self._stands_for: dict[int, dict[Key, set[int]]] = {}  #: job → keys that it offers → jobs that it has replaced
        self._waits: dict[int, dict[str, set[int]]] = {}  #: dependent → hold → antecedents that are active
        self._dependents: dict[int, set[int]] = {}  #: antecedent → dependents

    # ---- submission --------------------------------------------------------------------------------

    def dependency(self, job: Job, dependency: dict[str, Any]) -> Answers:
        scheme = str(dependency["scheme"])
        try:
            way, value, scope = self._read(job, dependency)
        except Bad as bad:
            return Reject(f"dependency: {scheme}: {bad.args[0]}", bad.args[1])
        name = hold_name(scheme, value)
        antecedents = self._enter(job, scheme, value, way, scope)
        if way == "out":
            return None
        key = f"dependency/{name}"
        if antecedents:
            self._wait(job.id, name, antecedents)
            return None if key in job.holds else DependencyHold(name)
        if scheme == "fluid" and key not in job.holds and key not in job.closed:
            return [DependencyHold(name), Finish("dependency", name)]
        return None

    def _read(self, job: Job, dependency: dict[str, Any]) -> tuple[str, str, str]:
        """(type, value, scope), checked."""
        way, scope, value = dependency.get("type"), dependency.get("scope"), str(dependency.get("value", ""))
        example = f"for example {dependency['scheme']}:{value or 'NAME'}?type=in&scope=user"
        if way not in TYPES:
            raise Bad("type must be in, out or inout", example)
        if scope not in SCOPES:
            raise Bad("scope must be user or global", example)
        if not value:
            raise Bad("it has no value", example)
        if scope == "global" and way != "in" and job.userid not in (self.manager.owner_uid(), 0):
            raise Bad(f"only the instance owner can offer anything to all users (type {way})", "scope=user")
        if dependency["scheme"] == "fluid":
            try:
                other = jobids.parse(value)
            except FormatError:
                raise Bad(f'"{value}" is not a valid jobid', "") from None
            antecedent = self.manager.outcome(other)
            if antecedent is None:
                raise Bad(f"id {value}: job not found", "")
            if scope == "user" and 0 <= antecedent.userid != job.userid:
                raise Bad(f"job {jobids.encode(other)} is another user's", "scope=global")
            value = str(other)
        return str(way), value, str(scope)

    def _enter(self, job: Job, scheme: str, value: str, way: str, scope: str) -> set[int]:
        """Offer what it offers; returns the active jobs that it has to wait for."""
        mine, everybodys = (scheme, value, job.userid), (scheme, value, EVERYBODY)
        seen = [mine, everybodys] if scope == "global" else [mine]
        found: set[int] = set()
        if way != "out":
            for key in seen:
                found.update(self._offers.get(key, ()))
            if scheme == "fluid" and self._active(int(value)):
                found.add(int(value))
            found.discard(job.id)
        if way != "in":
            for key in seen:
                offers = self._offers.setdefault(key, {})
                replaced = set(offers) - {job.id} if way == "inout" else set()
                for other in replaced:
                    del offers[other]
                offers[job.id] = None
                self._stands_for.setdefault(job.id, {}).setdefault(key, set()).update(replaced)
        return found

    def _wait(self, jobid: int, name: str, antecedents: set[int]) -> None:
        self._waits.setdefault(jobid, {}).setdefault(name, set()).update(antecedents)
        for other in antecedents:
            self._dependents.setdefault(other, set()).add(jobid)

    def new(self, job: Job) -> Answers:
        """After a restart: active jobs come in order of submission, and what has ended plays no part any more."""
        if job.state is State.NEW:
            return None
        for dependency in self.manager.digest(job.id).dependencies:
            scheme = str(dependency.get("scheme"))
            if scheme not in self.schemes:
                continue
            value = str(dependency.get("value", ""))
            if scheme == "fluid":
                value = str(jobids.parse(value))
            way = str(dependency.get("type"))
            antecedents = self._enter(job, scheme, value, way, str(dependency.get("scope")))
            name = hold_name(scheme, value)
            if antecedents and f"dependency/{name}" in job.holds:
                self._wait(job.id, name, antecedents)
        return None

    # ---- the end of a job --------------------------------------------------------------------------

    def state_inactive(self, job: Job) -> Answers:
        return self._ended(job.id)

    def destroy(self, job: Job) -> None:
        """Also of a submission that was refused."""
        self._ended(job.id)

    def _ended(self, jobid: int) -> list[Answer]:
        waits = self._waits.pop(jobid, {})
        for others in waits.values():
            for other in others:
                if dependents := self._dependents.get(other):
                    dependents.discard(jobid)
        for key, replaced in self._stands_for.pop(jobid, {}).items():
            offers = self._offers[key]
            if jobid in offers:
                del offers[jobid]
                for other in sorted(replaced):  # it has ended early: they are not over
                    if self._active(other):
                        offers[other] = None
                if not offers:
                    del self._offers[key]
        answers: list[Answer] = []
        for dependent in sorted(self._dependents.pop(jobid, ())):
            names = self._waits.get(dependent, {})
            for name, others in list(names.items()):
                if jobid not in others:
                    continue
                others.discard(jobid)
                left = {other for other in waits.get(name, ()) if self._active(other)}
                self._wait(dependent, name, left)
                for replaced in self._stands_for.get(dependent, {}).values():
                    if jobid in replaced:
                        replaced.discard(jobid)
                        replaced.update(left)
                if not others:
                    del names[name]
                    answers.append(Finish("dependency", name, job=dependent, quiet=True))
            if not names:
                self._waits.pop(dependent, None)
        return answers

    def _active(self, jobid: int) -> bool:
        job = self.manager.job(jobid)
        return job is not None and not job.done

    async def resume(self, job: Job, hold: Hold) -> int | None:
        if not self._waits.get(job.id, {}).get(hold.name):
            return 0
        raise NotImplementedError  # closed by the end of the last antecedent


def hold_name(scheme: str, value: str) -> str:
    """The description of its dependency events."""
    return f"{scheme}={jobids.encode(int(value)) if scheme == 'fluid' else value}"
