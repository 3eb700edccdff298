"""No sequence of legal stimuli yields an eventlog that breaks RFC 21, and every job comes to its end.

The checker (automaton.py) shares no code with the core. `test_a_broken_core_is_caught` breaks the core once for each
rule, and sees that the checker notices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from automaton import Broken
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from world import World

from leveret.core import actions, job
from leveret.core.actions import Post
from leveret.core.job import Job
from leveret.core.transitions import LEGAL, State

PARTS = [
    {},
    {"blocks": ["start"], "uses": "nodes", "owner": "user"},
    {"blocks": ["free"], "owner": "site"},
    {"blocks": ["clean"], "uses": "storage"},
    {"uses": "nodes"},
]
#: names that anybody may try to post; what frees or ends a job is posted by nobody but next_actions
POKES = [
    ("validate", None), ("depend", None), ("priority", {"priority": 3}), ("alloc", None), ("start", None),
    ("finish", {"status": 0}), ("release", {"ranks": "0", "final": False}), ("resource-update", {"expiration": 1.0}),
    ("jobspec-update", {"attributes.system.duration": 1}), ("flux-restart", None), ("set-flags", {"flags": ["debug"]}),
    ("memo", {"uri": "x"}), ("debug.own", {"k": [1]}), ("submit", {"userid": 1, "urgency": 1, "flags": 0, "version": 1}),
    ("epilog-finish", {"description": "nobody", "status": 0}), ("part-finish", {"description": "h1", "status": 0}),
    ("prolog-start", {"description": "h1"}), ("epilog-start", {"description": "h1"}),
]  # fmt: skip


class Machine(RuleBasedStateMachine):
    world: World

    @initialize(urgency=st.sampled_from([16, 0, 31]))
    def submit(self, urgency: int) -> None:
        self.world = World(urgency)

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @precondition(lambda self: self.world.job.state is State.NEW)
    @rule(ok=st.sampled_from([True, True, True, False]))
    def validate(self, ok: bool) -> None:
        self.world.validate(ok)

    @rule(kind=st.sampled_from(["dependency", "prolog", "epilog"]))
    def open(self, kind: str) -> None:
        self.world.open(kind)

    @rule(context=st.sampled_from(PARTS))
    def open_part(self, context: dict[str, Any]) -> None:
        self.world.open("part", context)

    @precondition(lambda self: self.world.job.holds)
    @rule(data=st.data())
    def open_again(self, data: st.DataObject) -> None:
        self.world.open_again(data.draw(st.sampled_from(sorted(self.world.job.holds))))

    @precondition(lambda self: self.world.job.holds)
    @rule(data=st.data(), status=st.sampled_from([0, 0, 256]))
    def close(self, data: st.DataObject, status: int) -> None:
        self.world.close(data.draw(st.sampled_from(sorted(self.world.job.holds))), status)

    @precondition(lambda self: "priority" in self.world.in_flight and self.world.job.state is State.PRIORITY)
    @rule(priority=st.sampled_from([16, 16, 0, 4294967295]))
    def answer_priority(self, priority: int) -> None:
        self.world.answer_priority(priority)

    @precondition(lambda self: self.world.can_alloc())
    @rule()
    def alloc(self) -> None:
        self.world.alloc()

    @precondition(lambda self: self.world.can_start())
    @rule()
    def start(self) -> None:
        self.world.try_post("start", None)

    @precondition(lambda self: self.world.can_finish())
    @rule(status=st.sampled_from([0, 256, 36608]))
    def finish(self, status: int) -> None:
        self.world.finish(status)

    @rule(type_=st.sampled_from(["cancel", "timeout", "x"]), severity=st.sampled_from([0, 1, 7]))
    def exception(self, type_: str, severity: int) -> None:
        self.world.raise_exception(type_, severity)

    @rule(urgency=st.sampled_from([0, 5, 31]))
    def urgency(self, urgency: int) -> None:
        self.world.urgency(urgency)

    @rule(poke=st.sampled_from(POKES))
    def poke(self, poke: tuple[str, dict[str, Any] | None]) -> None:
        self.world.try_post(*poke)

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @invariant()
    def check(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()
            self.world.check()
            assert self.world.automaton.at == "gone"


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)


# ---- the same walks without hypothesis, for broken cores --------------------------------------------


def walk(seed: int, steps: int = 45) -> World:
    """A random life of a job, most of it spent where there is something to break."""
    rng = random.Random(seed)
    world = World(16)
    for _ in range(steps):
        if world.job.state is State.INACTIVE:
            world.try_post("memo", {"late": 1})
            break
        choices: list[Callable[[], object]] = [
            lambda: world.open(rng.choice(["dependency", "prolog", "epilog", "part"]), None),
            lambda: world.open("part", rng.choice(PARTS)),
            lambda: world.try_post(*rng.choice(POKES)),
            world.tick,
        ]
        if world.job.state is State.NEW:
            choices += [world.validate] * 3
        if world.job.holds:
            choices += [lambda: world.close(rng.choice(sorted(world.job.holds)), 0)] * 4
        if "priority" in world.in_flight and world.job.state is State.PRIORITY:
            choices += [lambda: world.answer_priority(16)] * 4
        if world.can_alloc():
            choices += [world.alloc] * 3
        if world.can_start():
            choices += [lambda: world.try_post("start", None)] * 3
        if world.can_finish():
            choices += [lambda: world.finish(0)]
        if rng.random() < 0.1:
            choices += [lambda: world.raise_exception("cancel", 0)] * 3
        if rng.random() < 0.1:
            choices += [world.crash]
        rng.choice(choices)()
    return world


SEEDS = range(400)


def test_walks_on_the_real_core_end_well() -> None:
    ends = set()
    for seed in SEEDS:
        world = walk(seed)
        world.check()
        world.drain()
        world.check()
        ends.add((world.job.started, world.job.allocated, world.job.fatal is None))
    assert len(ends) >= 4, "the walks go to different places"


def unchecked(change: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    return lambda job, event: dict(change)


def no_hold_of(step: str) -> Callable[[Job, str], list[Any]]:
    real = Job.blocked
    return lambda self, asked: [] if asked == step else real(self, asked)


def eager(name: str, when: Callable[[Job], bool]) -> Callable[..., Any]:
    """A next_actions that posts `name` too early."""
    real = actions.next_actions
    return lambda job, in_flight: [Post(name)] if when(job) else real(job, in_flight)


def _close_anything(real: Callable[..., Any]) -> Callable[..., Any]:
    def close(found: Job, event: Any) -> Any:
        try:
            return real(found, event)
        except Exception:
            return {}

    return close


def _open_anything(found: Job, event: Any) -> dict[str, Any]:
    kind = job.OPENERS[event.name]
    key = f"{kind}/{event.get('description')}"
    return {"holds": {**found.holds, key: job.Hold(kind, str(event.get("description")), 0.0, "site", job.BLOCKS[kind])}}


in_cleanup = lambda j: j.state is State.CLEANUP  # noqa: E731

#: rule that must be caught → how the core is broken: (object or dict, name, what to put there)
MUTANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "start under prolog": [(job.BLOCKS, "prolog", ("free", "clean"))],
    "free under prolog": [(job.BLOCKS, "prolog", ("start", "clean"))],
    "clean under prolog": [(job.BLOCKS, "prolog", ("start", "free"))],
    "free under epilog": [(job.BLOCKS, "epilog", ("clean",))],
    "clean under epilog": [(job.BLOCKS, "epilog", ("free",))],
    "depend under dependency": [(job.BLOCKS, "dependency", ())],
    "start under part": [(Job, "blocked", no_hold_of("start"))],
    "free under part": [(Job, "blocked", no_hold_of("free"))],
    "clean under part": [(Job, "blocked", no_hold_of("clean"))],
    "no free before the finish of a start": [
        (job._EFFECTS, "free", unchecked({"freed": True})),
        (actions, "next_actions", eager("free", lambda j: in_cleanup(j) and j.allocated and not j.freed and not j.holds)),
    ],
    "clean after free": [
        (job._EFFECTS, "clean", unchecked({})),
        (actions, "next_actions", eager("clean", lambda j: in_cleanup(j) and not j.holds)),
    ],
    "free once, after alloc": [
        (job._EFFECTS, "free", unchecked({"freed": True})),
        (actions, "next_actions", eager("free", lambda j: in_cleanup(j) and not j.freed and not j.holds)),
    ],
    "start once": [(job._EFFECTS, "start", unchecked({"started": True}))],
    "start with resources": [
        (job._EFFECTS, "start", unchecked({"started": True})),
        (LEGAL, "start", tuple(State)),
    ],
    "finish once, after start": [(job._EFFECTS, "finish", unchecked({"status": 0}))],
    "alloc once": [(job._EFFECTS, "alloc", unchecked({"allocated": True})), (LEGAL, "alloc", tuple(State))],
    "alloc in SCHED, or late": [(LEGAL, "alloc", tuple(State))],
    "priority after depend, before alloc": [(LEGAL, "priority", tuple(State))],
    "validate once, in NEW": [(LEGAL, "validate", tuple(State))],
    "depend once, after validate": [(LEGAL, "depend", tuple(State))],
    "dependency-add before depend": [(LEGAL, "dependency-add", tuple(State))],
    "prolog-start before start": [(LEGAL, "prolog-start", tuple(State))],
    "only what is open is finished": [(job._EFFECTS, "epilog-finish", _close_anything(job._close))],
    "the name of a hold is used once": [(job._EFFECTS, "epilog-start", _open_anything)],
    "release of an allocation": [
        (job._EFFECTS, "release", unchecked({"released": True})),
        (LEGAL, "release", tuple(State)),
    ],
    "resource-update of an allocation": [
        (job._EFFECTS, "resource-update", unchecked({})),
        (LEGAL, "resource-update", tuple(State)),
    ],
    "urgency before CLEANUP": [(LEGAL, "jobspec-update", tuple(State))],
    "nothing after clean": [(job, "INACTIVE", None)],
    "submit is the first event, once": [(job._EFFECTS, "submit", unchecked({}))],
}  # fmt: skip


@pytest.mark.parametrize("broken", MUTANTS)
def test_a_broken_core_is_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name, what in MUTANTS[broken]:
        if isinstance(where, dict):
            monkeypatch.setitem(where, name, what)
        else:
            monkeypatch.setattr(where, name, what)
    caught = set()
    for seed in SEEDS:
        try:
            world = walk(seed)
            world.drain()
            world.try_post("memo", None)
        except Broken as error:
            caught.add(error.rule)
        except Exception:
            continue  # a broken core may also trip over itself
        if broken in caught:
            break
    assert broken in caught
