"""Each checker of the simulation is seen to catch its rule broken: production code with one fault put into it must fail.

A mutant that no seed catches would mean that its rule is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig import simulate
from test_simulation import one

from leveret.core import job as jobs
from leveret.core import verdict as verdicts
from leveret.manager import manager, recovery, turn, units
from leveret.manager.ports import Batch
from leveret.sched.pool import Pool

SEEDS_MAX = 60
pytestmark = pytest.mark.filterwarnings("ignore")
Patch = pytest.MonkeyPatch


def blocks(kind: str) -> Callable[[Patch], None]:
    """A kind of hold that keeps a job from nothing."""
    return lambda patch: patch.setitem(jobs.BLOCKS, kind, ())


def free_too_early(patch: Patch) -> None:
    """`free` and `clean` do not wait for a start that was asked for."""
    real = turn.next_actions
    patch.setattr(turn, "next_actions", lambda job, asked: real(job, set(asked) - {"start"}))


def started_again(patch: Patch) -> None:
    """An ask is made again to another incarnation of the helper."""
    real = recovery.Recovery.on_connected

    def on_connected(self: Any, node: int, incarnation: str, known: Any) -> None:
        for entry in self.manager.entries.values():
            for ask in entry.asks.values():
                if ask.node == node and ask.status is None:
                    ask.incarnation = incarnation
        real(self, node, incarnation, known)

    patch.setattr(recovery.Recovery, "on_connected", on_connected)
    patch.setattr(recovery.Recovery, "lost_asks", lambda self, node, incarnation: set())


def asks_forgotten(patch: Patch) -> None:
    """What was asked of helpers is not stored."""
    real = Batch.put
    patch.setattr(
        Batch, "put", lambda self, job, key, value: None if key.startswith("ask/") else real(self, job, key, value)
    )


def answers_twice(patch: Patch) -> None:
    """Records that were applied are applied again."""
    real = units.Units.on_records

    def on_records(self: Any, node: int, unit: str, records: list[Any]) -> None:
        entry = self.manager.entry_of_unit(unit)
        ask = entry.asks.get((unit, node)) if entry is not None else None
        if ask is not None and ask.status is None:
            ask.applied = min(ask.applied, int(records[0]["n"]) - 1)
        real(self, node, unit, records)

    patch.setattr(units.Units, "on_records", on_records)


def given_twice(patch: Patch) -> None:
    """Resources are given without being taken."""
    real = Pool.allocate

    def allocate(self: Any, *args: Any, **more: Any) -> Any:
        rset = real(self, *args, **more)
        if rset is not None:
            self.release(rset)
        return rset

    patch.setattr(Pool, "allocate", allocate)


def kept_for_ever(patch: Patch) -> None:
    """What a job had does not go back."""
    patch.setattr(Pool, "release", lambda self, rset: None)


def doors_apart(patch: Patch) -> None:
    """The record of a job says otherwise than its eventlog."""
    real = verdicts.record

    def record(job: Any) -> dict[str, Any]:
        out = real(job)
        return out | {"result": "COMPLETED"} if out["result"] == "FAILED" else out

    patch.setattr(manager, "record", record)


def not_undone(patch: Patch) -> None:
    """A hold's owner is not stored with it."""
    real = Batch.put
    patch.setattr(
        Batch, "put", lambda self, job, key, value: None if key.startswith("hold/") else real(self, job, key, value)
    )


def crash_loses_a_commit(patch: Patch) -> None:
    """Something is shown before it is on the disk: the last event of a turn is not written."""
    real = Batch.event

    def event(self: Any, job: int, n: int, line: bytes) -> None:
        if b'"finish"' not in line or job % 3:
            real(self, job, n, line)

    patch.setattr(Batch, "event", event)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "a prolog does not hold `start`": blocks("prolog"),
    "an epilog does not hold `free` and `clean`": blocks("epilog"),
    "a dependency does not hold": blocks("dependency"),
    "`free` before the finish of a requested start": free_too_early,
    "a unit is started at two helpers": started_again,
    "asks are not stored": asks_forgotten,
    "answers count twice": answers_twice,
    "resources are given twice": given_twice,
    "resources do not come back": kept_for_ever,
    "the doors say different things": doors_apart,
    "owners of holds are not stored": not_undone,
    "events are lost": crash_loses_a_commit,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS_MAX):
        path = tmp_path / str(seed)
        path.mkdir()

        async def body(seed: int = seed, path: Path = path) -> None:
            await one(seed, path)

        try:
            simulate(body)
        except BaseException as caught:
            if isinstance(caught, KeyboardInterrupt):
                raise
            print(f"caught by seed {seed}: {type(caught).__name__}: {str(caught)[:100]}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds, and nobody noticed: {name}")
