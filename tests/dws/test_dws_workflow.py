"""The pure workflow decides, the adapter asks: jobs of every kind of end on the stand-in, among faults and restarts.

The manager here is a few lines: eventlogs are all that it keeps, and after each piece of news it does what `next_step` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from driving import ORDER, Adapter, cluster, on_standin
from test_dws_faults import Oracle

from leveret.core.event import Event
from leveret.core.job import Job, replay
from leveret.core.transitions import CLEANUP, RUN
from leveret.storage.port import PRE_RUN, SETUP, Request
from leveret.storage.workflow import DISCARD, KEEP, gone, next_step, plan

pytestmark = on_standin

XFS = "#DW jobdw type=xfs capacity=1GiB name=p1"
PENDING = [
    ("submit", {"userid": 1, "urgency": 16, "flags": 0, "version": 1}),
    ("validate", None),
    ("depend", None),
    ("priority", {"priority": 16}),
]
WHOLE, STRAIGHT = list(ORDER), "Teardown"


class Managed:
    """One job: its log, and what happens to it when its workflow desires a state."""

    def __init__(
        self, number: int, directives: list[str], *, at: str = "", event: Any = None, intent: str = KEEP
    ) -> None:
        self.number = number
        self.directives = directives
        self.log: list[tuple[str, Any]] = [*PENDING, ("alloc", None)]
        self.at, self.event, self.intent = at, event, intent
        self.known = True
        self.over = False

    @property
    def job(self) -> Job | None:
        if not self.known:
            return None
        return replay(self.number, [Event(float(n), name, context) for n, (name, context) in enumerate(self.log, 1)])

    async def turn(self, one: Adapter) -> None:
        """What is due, once."""
        dws, job = one.dws, self.job
        view = dws.view(self.number)
        if not dws.synced or self.over:
            return
        if view is not None and view.desired == self.at and self.event is not None:
            if self.event == "forgotten":
                self.known = False
            else:
                self.log.append(self.event)
            self.event, job = None, self.job
        if view is None and job is not None and (job.state is CLEANUP or "made" in self.marks()):
            self.over = True
            return
        if job is None and view is None:
            self.over = True
            return
        if job is not None and job.state is RUN and view is not None:
            if view.status == "Error" and view.state == view.desired and not job.started:
                self.log.append(("exception", {"type": "exception", "severity": 0, "note": view.message, "userid": 1}))
            elif view.reached(PRE_RUN) and view.desired == PRE_RUN and not job.started:
                self.log += [("start", None), ("finish", {"status": 0})]
            job = self.job
        # a job is made while it is pending: its first workflow is asked for then
        due = next_step(plan(job, view, intent=KEEP if self.event else self.intent), view)
        if view is None and "made" not in self.marks():
            await dws.create(Request(self.number, 1000, 1000, tuple(self.directives), 1))
            self.log.append(("memo", {"made": True}))
        elif due is not None and due.what == "advance":
            await dws.advance(
                self.number, due.state, computes=["compute-0"] if due.state == SETUP else None, hurry=due.hurry
            )
        elif due is not None and due.what == "remove":
            assert gone(view)
            await dws.remove(self.number)

    def marks(self) -> set[str]:
        return {key for name, context in self.log if name == "memo" for key in context}


def jobs() -> list[Managed]:
    cancel = ("exception", {"type": "cancel", "severity": 0, "note": "", "userid": 1})
    return [
        Managed(1, [XFS]),
        Managed(2, [XFS], at="Setup", event=cancel),
        Managed(
            3, [XFS], at="PostRun", event=("exception", {"type": "timeout", "severity": 0, "note": "", "userid": 1})
        ),
        Managed(4, [XFS], at="PostRun", event=cancel, intent=DISCARD),
        Managed(5, [XFS], at="DataIn", event="forgotten"),
        Managed(6, [XFS, "#DW copy_in source=/lus/gone destination=$DW_JOB_p1"]),
        Managed(7, ["#DW persistentdw name=nope"]),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_every_end_of_a_job(seed: int) -> None:
    async def check() -> None:
        dice = random.Random(seed)
        async with cluster() as there:
            oracle = Oracle(there.standin)
            there.standin.driver.missing_paths.add("/lus/gone")
            if seed:
                there.standin.faults.seeded(seed, 0.15)
            managed, crashes = jobs(), dice.randrange(4) if seed else 0
            while not all(one.over for one in managed):
                async with there.adapter(seed=seed) as adapter:
                    tasks = [asyncio.create_task(_live(one, adapter)) for one in managed if not one.over]
                    done, left = await asyncio.wait(tasks, timeout=0.1 + dice.random() / 3 if crashes else None)
                    crashes -= crashes > 0
                    for task in left:
                        task.cancel()
                    await asyncio.gather(*left, return_exceptions=True)
                    for task in done:
                        task.result()
            assert there.standin.leftovers() == [] and there.standin.driver.used() == {}
            ends = {number: oracle.desired[f"fluxjob-{number}"] for number in range(1, 8)}
            assert ends[1] == ends[3] == WHOLE
            assert ends[2] == ["Proposal", "Setup", STRAIGHT]
            assert ends[4] == ["Proposal", "Setup", "DataIn", "PreRun", "PostRun", STRAIGHT]
            assert ends[5] == ends[6] == ["Proposal", "Setup", "DataIn", STRAIGHT]
            assert ends[7] == ["Proposal", STRAIGHT]
            assert set(oracle.made.values()) == {1}
            told = [
                context["note"]
                for one in managed
                for name, context in one.log
                if name == "exception" and context["note"]
            ]
            assert len(told) == 2 and "data movement operation failed" in told[0] and "'nope' not found" in told[1]

    asyncio.run(check())


async def _live(one: Managed, adapter: Adapter) -> None:
    while not one.over:
        await one.turn(adapter)
        seen = adapter.dws.view(one.number), adapter.dws.synced
        if one.over:
            return
        with contextlib.suppress(TimeoutError):
            news = adapter.until(lambda seen=seen: (adapter.dws.view(one.number), adapter.dws.synced) != seen)
            await asyncio.wait_for(news, 0.05)
