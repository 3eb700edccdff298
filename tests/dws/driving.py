"""A small workload manager over `leveret.storage.dws.Dws`, and the cluster it works on.

With KUBECONFIG set the cluster is that one (its rabbits must be idle), else a stand-in. Tests that ask the stand-in's
request log, or break it, are left out on a real cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from standin import Standin

from leveret.storage.dws import Dws
from leveret.storage.port import DATA_IN, DATA_OUT, ERROR, POST_RUN, PRE_RUN, PROPOSAL, SETUP, TEARDOWN, Request, View

REAL = os.environ.get("KUBECONFIG", "")
on_standin = pytest.mark.skipif(bool(REAL), reason="asks the stand-in's request log, or breaks it")

ORDER = (PROPOSAL, SETUP, DATA_IN, PRE_RUN, POST_RUN, DATA_OUT, TEARDOWN)


@dataclass
class Cluster:
    kubeconfig: str
    standin: Any  #: a Standin, or None on a real cluster
    made: list[Adapter] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def adapter(self, **more: Any) -> AsyncIterator[Adapter]:
        one = Adapter(self.kubeconfig, **more)
        await one.start()
        try:
            yield one
        finally:
            await one.dws.close()


@contextlib.asynccontextmanager
async def cluster(seconds: float = 60, **more: Any) -> AsyncIterator[Cluster]:
    if REAL:
        async with asyncio.timeout(seconds * 10):
            yield Cluster(REAL, None)
        return
    with tempfile.TemporaryDirectory() as directory:
        async with Standin(**more) as standin, asyncio.timeout(seconds):
            yield Cluster(str(standin.kubeconfig(Path(directory) / "kubeconfig")), standin)


class Adapter:
    """`seen[jobid]` is every (state, ready, status) of the job's view, in order, without repetitions."""

    def __init__(self, kubeconfig: str, **more: Any) -> None:
        more = {"instance": "test", "backoff_s": 0.01, "backoff_max_s": 0.1} | more
        self.dws = Dws(kubeconfig=kubeconfig, **more)
        self.seen: dict[int, list[tuple[str, bool, str]]] = {}
        self.health = 0
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}  #: job (0: any) → who waits for news of it

    async def start(self) -> None:
        await self.dws.start(self._changed, self._health)

    def _changed(self, jobid: int) -> None:
        view = self.dws.view(jobid)
        if view is not None:
            one = (view.state, view.ready, view.status)
            if not self.seen.setdefault(jobid, []) or self.seen[jobid][-1] != one:
                self.seen[jobid].append(one)
        self._wake(jobid)

    def _health(self) -> None:
        self.health += 1
        self._wake(0)

    def _wake(self, jobid: int) -> None:
        for who in {jobid, 0}:
            for future in self._waiting.pop(who, ()):
                if not future.done():
                    future.set_result(None)

    async def until(self, holds: Callable[[], Any], jobid: int = 0) -> Any:
        """Wait until it holds, looking after each piece of news (of one job)."""
        while not (found := holds()):
            future = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(jobid, set()).add(future)
            # trouble that passes is told to nobody
            await asyncio.wait([future], timeout=5 if jobid else 0.05)
        return found

    async def reach(self, jobid: int, state: str) -> View:
        """Wait until `state` is reached; raises on a Workflow error."""

        def there() -> View | None:
            view = self.dws.view(jobid)
            if view is None or not (view.reached(state) or view.status == ERROR):
                return None
            return view

        view: View = await self.until(there, jobid)
        if view.status == ERROR and not view.reached(state):
            raise WorkflowError(view.message)
        return view

    async def live(self, jobid: int, directives: Sequence[str], hosts: Sequence[str], upto: str = TEARDOWN) -> View:
        """From the beginning to `upto`; the view that reached it."""
        await self.dws.create(Request(jobid, 1000, 1000, tuple(directives), len(hosts)))
        await self.until(lambda: self.dws.view(jobid), jobid)
        return await self.go_on(jobid, hosts, upto)

    async def go_on(self, jobid: int, hosts: Sequence[str], upto: str = TEARDOWN) -> View:
        view = self.dws.view(jobid)
        assert view is not None
        for state in ORDER[ORDER.index(view.desired) : ORDER.index(upto) + 1]:
            if state != PROPOSAL:
                await self.dws.advance(jobid, state, computes=hosts if state == SETUP else None)
            view = await self.reach(jobid, state)
        return view

    async def end(self, jobid: int) -> None:
        """Teardown from wherever it is, and gone."""
        await self.dws.advance(jobid, TEARDOWN)
        await self.reach(jobid, TEARDOWN)
        await self.remove(jobid)

    async def remove(self, jobid: int) -> None:
        await self.dws.remove(jobid)
        await self.until(lambda: self.dws.view(jobid) is None, jobid)

    def hosts(self) -> list[str]:
        """Computes of the first rabbit that has some."""
        return next(list(one.computes) for one in self.dws.rabbits() if one.computes)


class WorkflowError(Exception):
    """The storage system gave up on the workflow; the text is its message."""


def jobid() -> int:
    return random.SystemRandom().randrange(10**6, 2**40)
