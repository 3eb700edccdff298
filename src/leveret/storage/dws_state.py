"""What is known of the cluster: one cache a kind, and what belongs to which job. No requests are made here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from leveret.core.directives import RULES, DirectiveError, Rule, check, rules_of
from leveret.storage import dws_objects as objects
from leveret.storage.dws_objects import Object, metadata, name_of
from leveret.storage.kube_cache import Cache, Key, Means, key_of
from leveret.storage.placing import Server
from leveret.storage.port import COMPLETED, DRIVER_WAIT, PROPOSAL, SETUP, Breakdown, Movement, Rabbit, View

log = logging.getLogger(__name__)

#: kinds whose objects belong to one job each
_OF_JOBS = ("workflows", "computes", "directivebreakdowns", "servers", "clientmounts", "nnfdatamovements")
#: kinds that say how the rabbits are
_OF_RABBITS = ("storages", "systemconfigurations", "servers")


class State:
    """`changed(jobid)` and `health()` are called after each change that concerns them."""

    def __init__(self, instance: str, changed: Callable[[int], None], health: Callable[[], None]) -> None:
        self.instance = instance
        self.caches: dict[str, Cache] = {}
        #: plural → jobid → the job's objects
        self._mine: dict[str, dict[int, dict[Key, Object]]] = {plural: {} for plural in _OF_JOBS}
        self._changed = changed
        self._health = health
        #: uid of a workflow → state → time it took; and its token
        self._timings: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, str] = {}

    # ---- news --------------------------------------------------------------------------------------

    def took(self, plural: str, means: Means, one: Object) -> None:
        """An object of this kind has changed in its cache."""
        if plural in _OF_JOBS and (jobid := objects.owner_jobid(one)) is not None:
            of_job = self._mine[plural].setdefault(jobid, {})
            if means is Means.GONE:
                of_job.pop(key_of(one), None)
                if not of_job:
                    del self._mine[plural][jobid]
            else:
                of_job[key_of(one)] = one
            if plural == "workflows":
                self._time(means, one)
            self._changed(jobid)
        if plural in _OF_RABBITS:
            self._health()

    def _time(self, means: Means, one: Object) -> None:
        uid, status = str(metadata(one).get("uid") or ""), one.get("status") or {}
        if means is Means.GONE:
            self._timings.pop(uid, None)
            self.tokens.pop(uid, None)
        elif status.get("ready") and status.get("elapsedTimeLastState"):
            self._timings.setdefault(uid, {})[str(status.get("state"))] = str(status["elapsedTimeLastState"])

    def wrote(self, plural: str, one: Object) -> None:
        """The answer to a write of ours: news that need not wait for the watch."""
        if (metadata(one).get("name")) and self.caches[plural].put(one) is Means.CHANGED:
            self.took(plural, Means.CHANGED, one)

    # ---- jobs --------------------------------------------------------------------------------------

    def jobs(self) -> list[int]:
        return [jobid for jobid in self._mine["workflows"] if self.workflow(jobid) is not None]

    def workflow(self, jobid: int) -> Object | None:
        """The job's Workflow, if it is one of this instance."""
        one = self.caches["workflows"].get(name_of(jobid)) if "workflows" in self.caches else None
        return one if one is not None and self.ours(one) else None

    def ours(self, one: Object) -> bool:
        """Whether this instance made it."""
        return objects.labels(one).get(objects.INSTANCE_LABEL, "") == self.instance

    def mine(self, plural: str, jobid: int) -> list[Object]:
        return list(self._mine[plural].get(jobid, {}).values())

    def breakdowns(self, jobid: int) -> list[Object] | None:
        """The job's DirectiveBreakdowns in order, or None while one that its Workflow names is not there and ready."""
        workflow = self.workflow(jobid)
        names = [
            str(one.get("name")) for one in ((workflow or {}).get("status") or {}).get("directiveBreakdowns") or []
        ]
        found = [self.caches["directivebreakdowns"].get(name) for name in names]
        ready = [one for one in found if one is not None and (one.get("status") or {}).get("ready")]
        return sorted(ready, key=objects.directive_index) if len(ready) == len(names) else None

    def servers(self, jobid: int) -> list[Object]:
        """The Servers that the job's breakdowns name; those of persistent storage carry no label of the job."""
        names = [objects.servers_name(one) for one in self.mine("directivebreakdowns", jobid)]
        found = [self.caches["servers"].get(name) for name in names if name]
        return [one for one in found if one is not None]

    def view(self, jobid: int) -> View | None:
        one = self.workflow(jobid)
        if one is None:
            return None
        spec, status = one.get("spec") or {}, one.get("status") or {}
        state, word = objects.state_of(status)
        desired = str(spec.get("desiredState") or PROPOSAL)
        uid = str(metadata(one).get("uid") or "")
        found = self.breakdowns(jobid)
        listed = self.caches["computes"].get(name_of(jobid))
        hosts = tuple(str(each.get("name")) for each in (listed or {}).get("data") or ())
        own = [each for each in self.servers(jobid) if objects.owner_jobid(each) == jobid]
        allocated, _ = objects.allocated(own)
        _, late = objects.allocated(self.servers(jobid))
        return View(
            jobid=jobid,
            name=name_of(jobid),
            uid=uid,
            desired=desired,
            state=state,
            # the breakdowns come by a watch of their own, perhaps later: a proposal is not ready without them
            ready=bool(status.get("ready"))
            and (found is not None or state != PROPOSAL)
            and self._has_token(uid, status),
            # what is said of a state that was left already is no news of the one that is desired
            status=word if state == desired or word == COMPLETED else DRIVER_WAIT,
            message=str(status.get("message") or ""),
            hurry=bool(spec.get("hurry")),
            directives=tuple(spec.get("dwDirectives") or ()),
            env=objects.environment(status),
            breakdowns=tuple(objects.breakdown(each) for each in found or ()),
            since=objects.when(str(status.get("desiredStateChange") or "")) if state == desired else 0.0,
            timings=dict(self._timings.get(uid, {})),
            computes=hosts,
            mounts=objects.mounts(self.mine("clientmounts", jobid), hosts),
            allocated=allocated,
            unallocated=tuple(late) if state == SETUP and not status.get("ready") else (),
            token=self.tokens.get(uid, ""),
            deleting=bool(metadata(one).get("deletionTimestamp")),
        )

    def _has_token(self, uid: str, status: Mapping[str, object]) -> bool:
        return not status.get("workflowToken") or uid in self.tokens

    def movements(self, jobid: int) -> list[Movement]:
        rank = {"Failed": 0, "Invalid": 0, "Cancelled": 1, "": 2}
        found = [objects.movement(one) for one in self.mine("nnfdatamovements", jobid)]
        return sorted(found, key=lambda one: (rank.get(one.status, 3), one.directive, one.name))

    # ---- the system --------------------------------------------------------------------------------

    def rabbits(self) -> list[Rabbit]:
        configured = objects.configured_computes(self.caches["systemconfigurations"].get("default"))
        used, _ = objects.allocated(self.caches["servers"])
        found = []
        for one in self.caches["storages"]:
            name = str(metadata(one).get("name") or "")
            found.append(objects.rabbit(one, configured.get(name, ()), used.get(name, 0)))
        return sorted(found, key=lambda one: one.name)

    def placeable(self) -> list[Server]:
        """The rabbits as `placing` wants them."""
        marks = {str(metadata(one).get("name")): objects.labels(one) for one in self.caches["storages"]}
        return [
            Server(
                one.name,
                tuple(one.computes),
                marks.get(one.name, {}),
                one.enabled and one.status == "Ready",
                one.capacity_bytes - one.allocated_bytes if one.capacity_bytes else None,
            )
            for one in self.rabbits()
        ]

    def exclusive_elsewhere(self, jobid: int) -> dict[str, set[str]]:
        """Colocation key → rabbits on which storage of other jobs, or persistent storage, holds it."""
        held: dict[str, set[str]] = {}
        for one in self.caches["directivebreakdowns"]:
            if objects.owner_jobid(one) == jobid:
                continue
            parsed: Breakdown = objects.breakdown(one)
            keys = {part.label: [key for _, key in part.colocation] for part in parsed.sets if part.colocation}
            servers = self.caches["servers"].get(objects.servers_name(one))
            for each in ((servers or {}).get("spec") or {}).get("allocationSets") or []:
                for key in keys.get(str(each.get("label")), ()):
                    held.setdefault(key, set()).update(str(on.get("name")) for on in each.get("storage") or ())
        return held

    def rules(self) -> tuple[Rule, ...]:
        """Of the DWDirectiveRules that were seen, or the ones that are shipped."""
        live = [rule for one in self.caches.get("dwdirectiverules", ()) for rule in rules_of(one.get("spec") or ())]
        return tuple(live) or RULES

    def check(self, directives: Sequence[str]) -> str:
        try:
            check(directives, self.rules())
        except DirectiveError as error:
            return str(error)
        return ""
