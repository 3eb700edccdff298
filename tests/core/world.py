"""One job and everybody whom it asks: a model of the manager's surroundings for the pure core.

`World.post` is the only way in: the product's `apply_event` decides, the Automaton is told, and after every event what
`next_actions` says is due is done, as the manager does it. Stimuli are methods; `can_*` say when one is possible.
"""

from __future__ import annotations

from typing import Any

import msgspec
from automaton import Automaton

from leveret.core import actions
from leveret.core.actions import Post
from leveret.core.event import Event
from leveret.core.job import AlreadyOpen, Job, apply_event, replay, violations
from leveret.core.transitions import State
from leveret.errors import EventError

STEPS_MAX = 500


class World:
    def __init__(self, urgency: int = 16) -> None:
        self.now = 1000.0
        self.job = Job(1)
        self.log: list[Event] = []
        self.in_flight: set[str] = set()
        self.late_alloc = False  #: an alloc request was withdrawn; its answer may still come
        self.kills = 0
        self.serial = 0
        self.automaton = Automaton()
        self.post("submit", {"userid": 1, "urgency": urgency, "flags": 0, "version": 1})

    # ---- the one way in --------------------------------------------------------------------------

    def post(self, name: str, context: dict[str, Any] | None = None) -> None:
        """Post, and settle as one turn does."""
        self._apply(name, context)
        self._settle()

    def _apply(self, name: str, context: dict[str, Any] | None) -> None:
        event = Event(self.now, name, context)
        self.job = apply_event(self.job, event)
        self.log.append(event)
        self.automaton.see(name, context)
        if name in ("alloc", "priority"):
            self.in_flight.discard(name)
        elif name == "finish":
            self.in_flight -= {"start", "kill"}

    def _settle(self) -> None:
        for _ in range(STEPS_MAX):
            seen = self.job.n
            for action in actions.next_actions(self.job, self.in_flight):
                if isinstance(action, Post):
                    self._apply(action.name, action.context)
                elif action.what == "withdraw":
                    self.in_flight.discard("alloc")
                    self.late_alloc = True
                else:
                    assert action.what not in self.in_flight, "asked twice"
                    self.in_flight.add(action.what)
                    self.kills += action.what == "kill"
            if self.job.n == seen:
                break
        else:
            raise AssertionError("next_actions never comes to rest")
        assert not actions.next_actions(self.job, self.in_flight), "asking again is harmless"

    def try_post(self, name: str, context: dict[str, Any] | None) -> bool:
        """Anybody may post anything at any time: taken, or refused with nothing changed."""
        before = msgspec.json.encode(self.job)
        try:
            apply_event(self.job, Event(self.now, name, context))
        except EventError:
            assert msgspec.json.encode(self.job) == before
            return False
        self.post(name, context)
        return True

    def check(self) -> None:
        assert replay(1, self.log) == self.job
        assert violations(self.log) == []
        assert {
            "nowhere": None, "new": State.NEW, "depend": State.DEPEND, "priority": State.PRIORITY, "sched": State.SCHED,
            "run": State.RUN, "cleanup": State.CLEANUP, "gone": State.INACTIVE,
        }[self.automaton.at] is self.job.state  # fmt: skip
        still = set() if self.job.done else {key.replace(" ", "/") for key in self.automaton.open}
        assert set(self.job.holds) == still, "the job and its log agree on what is open"

    # ---- stimuli ---------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now += 1

    def validate(self, ok: bool = True) -> None:
        self.post("validate" if ok else "invalidate")

    def open(self, kind: str, context: dict[str, Any] | None = None) -> bool:
        """A holder comes: refused where the kind is not possible."""
        self.serial += 1
        name = "dependency-add" if kind == "dependency" else f"{kind}-start"
        return self.try_post(name, {"description": f"h{self.serial}", **(context or {})})

    def open_again(self, key: str) -> None:
        """Starting what is open changes nothing."""
        kind, _, name = key.partition("/")
        before = self.job
        try:
            apply_event(before, Event(self.now, "dependency-add" if kind == "dependency" else f"{kind}-start",
                                      {"description": name}))  # fmt: skip
        except AlreadyOpen:
            pass
        except EventError:
            assert kind == "dependency" or (kind == "prolog" and before.state is State.CLEANUP)
        else:
            raise AssertionError("a hold was opened twice")

    def close(self, key: str, status: int) -> bool:
        kind, _, name = key.partition("/")
        context: dict[str, Any] = {"description": name}
        if kind == "dependency":
            return self.try_post("dependency-remove", context)
        return self.try_post(f"{kind}-finish", {**context, "status": status})

    def answer_priority(self, priority: int) -> None:
        self.post("priority", {"priority": priority})

    def can_alloc(self) -> bool:
        waits = "alloc" in self.in_flight and self.job.state is State.SCHED
        late = self.late_alloc and self.job.state is State.CLEANUP and not self.job.allocated
        return waits or late

    def alloc(self) -> None:
        self.late_alloc = False
        self.post("alloc", {"annotations": {"sched": {}}})

    def can_start(self) -> bool:
        return "start" in self.in_flight and not self.job.started

    def start(self) -> None:
        """The engine's answer; a part may have closed `start` since, then it comes when that is over."""
        self.post("start")

    def can_finish(self) -> bool:
        return self.job.started and self.job.status is None

    def finish(self, status: int) -> None:
        self.post("finish", {"status": status})

    def raise_exception(self, type_: str, severity: int) -> bool:
        return self.try_post("exception", {"type": type_, "severity": severity, "note": ""})

    def urgency(self, urgency: int) -> bool:
        return self.try_post("urgency", {"urgency": urgency, "userid": 1})

    def crash(self) -> None:
        """What is in flight is forgotten, but for asks that start processes; the job is its log."""
        self.job = replay(1, self.log)
        self.in_flight &= {"start"}
        self.late_alloc = False
        if self.job.state is State.SCHED:
            self.post("flux-restart")
        else:
            self._settle()

    # ---- the end ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Everybody answers. The job must come to its end."""
        for _ in range(STEPS_MAX):
            job = self.job
            if job.state is State.INACTIVE:
                return
            self.tick()
            if job.state is State.NEW:
                self.validate()
            elif "priority" in self.in_flight and job.state is State.PRIORITY:
                self.answer_priority(16)
            elif self.can_alloc() and job.state is State.SCHED:
                self.alloc()
            elif job.state is State.SCHED and job.priority == 0:
                self.urgency(16)
            elif job.holds:
                assert self.close(next(iter(job.holds)), 0)
            elif self.can_start():
                self.start()
            elif self.can_finish():
                self.finish(0)
            else:
                raise AssertionError(f"nobody is asked, and the job stays in {job.state.name}: {self.automaton.story}")
        raise AssertionError("the job does not come to its end")
