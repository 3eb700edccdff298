"""Processes that work for a job (prologs, epilogs, copiers …): at most one per (job, name, node), ever."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from leveret.errors import NotFoundError
from leveret.manager.entry import Entry, NodeAsk
from leveret.manager.ports import Batch
from leveret.manager.turn import Turn
from leveret.plugins.hooks import WorkResult

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

#: how long after SIGKILL a stopped process is waited for
STOP_GRACE_S = 10.0
Place = tuple[str, int]  #: unit and node


def work_spec(
    jobid: int,
    unit: str,
    argv: list[str],
    cwd: str | None,
    env: dict[str, str],
    timeout_s: float | None,
    kill_timeout_s: float,
) -> dict[str, Any]:
    """The helper's spec of one process that works for a job. Its time limit says SIGTERM first, as Flux does."""
    return {
        "kind": "work",
        "jobid": jobid,
        "argv": argv,
        "cwd": cwd or "/",
        "env": {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **env},
        "tasks": [{"rank": 0, "local": 0, "env": {}}],
        "duration_s": timeout_s,
        "limit_signal": int(signal.SIGTERM),
        "kill_timeout_s": kill_timeout_s,
        "output": {
            "memory_max": 65536,
            "limit_bytes": 1 << 20,
            "file": f"work/{unit.replace('/', '-')}.out",
            "unbuffered": False,
        },
        "stdin": "null",
        "tmpdir": None,
        "umask": None,
        "setpgrp": True,
        "log": None,
    }


class WorkRuns:
    """The half of Perform that is about such processes."""

    manager: Manager

    def __init__(self) -> None:
        self._results: dict[Place, list[asyncio.Future[WorkResult]]] = {}
        self._progress: dict[str, Callable[[dict[str, Any]], None]] = {}

    def send(self, ask: NodeAsk, spec: dict[str, Any]) -> None:
        raise NotImplementedError

    async def run(
        self,
        jobid: int,
        name: str,
        argv: list[str],
        cwd: str | None,
        env: dict[str, str] | None,
        timeout_s: float | None,
        kill_timeout_s: float,
        on_progress: Callable[[dict[str, Any]], None] | None,
        node: int | None = None,
        output: bool = False,
    ) -> WorkResult:
        """One process, on the job's first node unless `node` says another."""
        if node is None:
            entry = self.manager.entry(jobid)
            begun = next((a.node for a in entry.asks.values() if a.unit == f"work/{jobid}/{name}"), None)
            if begun is None and (entry.rset is None or not entry.rset.ranks):
                raise NotFoundError(f"{name}: the job has no resources to run it on")
            node = begun if begun is not None else self.first_node(entry)
        if on_progress is not None:
            self._progress[f"work/{jobid}/{name}"] = on_progress
        results = await self.run_on(jobid, name, [node], argv, cwd, env, timeout_s, kill_timeout_s, output=output)
        return results[node]

    def first_node(self, entry: Entry) -> int:
        """The first node of the job that has not been lost; the first when all have."""
        assert entry.rset is not None
        lost = entry.lost()
        return next((rank for rank in entry.rset.ranks if rank not in lost), next(iter(entry.rset.ranks)))

    async def run_on(
        self,
        jobid: int,
        name: str,
        nodes: Iterable[int],
        argv: list[str],
        cwd: str | None,
        env: dict[str, str] | None,
        timeout_s: float | None,
        kill_timeout_s: float,
        *,
        on_result: Callable[[int, WorkResult], None] | None = None,
        output: bool = False,
    ) -> dict[int, WorkResult]:
        """One process on each of these nodes. A second call waits for what the first one began.

        `on_result` hears of each node as it ends. A node that nothing was begun on when the work was
        stopped has a result with `begun` false.
        """
        entry = self.manager.entry(jobid)
        unit = f"work/{jobid}/{name}"
        results: dict[int, WorkResult] = {}
        waiting: dict[int, asyncio.Future[WorkResult]] = {}
        loop = asyncio.get_running_loop()

        def over(node: int, result: WorkResult) -> None:
            results[node] = result
            if on_result is not None:
                on_result(node, result)

        for node in nodes:
            ask = entry.asks.get((unit, node))
            if ask is None and unit in entry.unwanted:
                over(node, WorkResult(signal.SIGTERM, "", begun=False))
                continue
            if ask is None:
                ask = self._begin(entry, unit, node, argv, cwd, env, timeout_s, kill_timeout_s, output)
            if ask.status is not None:
                over(node, ask.result(unit in entry.unwanted))
                continue
            future: asyncio.Future[WorkResult] = loop.create_future()
            self._results.setdefault((unit, node), []).append(future)
            waiting[node] = future
        try:
            left = {future: node for node, future in waiting.items()}
            while left:
                done, _ = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    over(left.pop(future), future.result())
            return results
        except asyncio.CancelledError:
            if not self.manager.works.lets_go() and any(not future.done() for future in waiting.values()):
                # what waited is not wanted any more, and so is the process; nothing goes on while it ends
                self.stop_run(jobid, name, kill_timeout_s)
                if self.manager.works.minds_current_task():
                    await self._ended_soon(unit, waiting, kill_timeout_s + STOP_GRACE_S)
            raise
        finally:
            self._progress.pop(unit, None)
            for node, future in waiting.items():
                self._forget(unit, node, future)

    async def _ended_soon(self, unit: str, nodes: Iterable[int], patience_s: float) -> None:
        futures: dict[int, asyncio.Future[WorkResult]] = {}
        for node in nodes:
            if any(not future.done() for future in self._results.get((unit, node), ())):
                futures[node] = asyncio.get_running_loop().create_future()
                self._results[(unit, node)].append(futures[node])
        try:
            if futures:
                await asyncio.wait(futures.values(), timeout=patience_s)
        finally:
            for node, future in futures.items():
                self._forget(unit, node, future)

    def _forget(self, unit: str, node: int, future: asyncio.Future[WorkResult]) -> None:
        waiting = self._results.get((unit, node))
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._results[(unit, node)]

    def _begin(
        self,
        entry: Entry,
        unit: str,
        node: int,
        argv: list[str],
        cwd: str | None,
        env: dict[str, str] | None,
        timeout_s: float | None,
        kill_timeout_s: float,
        output: bool,
    ) -> NodeAsk:
        uris = {"LEVERET_URI": self.manager.uri, "FLUX_URI": self.manager.uri, "LEVERET_NODE_RANK": str(node)}
        spec = work_spec(entry.job.id, unit, argv, cwd, {**(env or {}), **uris}, timeout_s, kill_timeout_s)
        if output:
            # its output is the job's: all of it comes as records, and is cut where they are full
            spec["kind"] = "tasks"
            spec["output"]["memory_max"] = spec["output"]["limit_bytes"] = OUTPUT_BYTES_MAX
        ask = NodeAsk(unit, node, self.manager.engine.incarnation(node))
        ask.spec = spec
        with Turn(self.manager) as turn:
            entry.asks[(unit, node)] = ask
            entry.dirty.add((unit, node))
            turn.touched.setdefault(entry.job.id, entry)
            turn.after.append(lambda: self.send(ask, spec))
        return ask

    def record(self, jobid: int, key: str, value: bytes, run: str = "") -> None:
        """Keep a value with the job; what is known of the run goes in the same transaction."""
        entry = self.manager.entry(jobid)

        def put(turn: Turn) -> None:
            turn.batch.put(jobid, key, value)
            for place in [place for place in entry.asks if place[0] == f"work/{jobid}/{run}"] if run else ():
                ask = entry.asks[place]
                if not ask.lost:
                    del entry.asks[place]
                    entry.dirty.add(place)
                    turn.touched.setdefault(jobid, entry)

        if self.manager.turn is not None:
            put(self.manager.turn)
            return
        with Turn(self.manager) as turn:
            put(turn)

    def begun(self, jobid: int, name: str, still: bool = False) -> set[int]:
        """The nodes on which a process of that name was begun (and, with `still`, has not ended)."""
        entry = self.manager.entries.get(jobid)
        unit = f"work/{jobid}/{name}"
        asks = [ask for ask in entry.asks.values() if ask.unit == unit] if entry is not None else []
        return {ask.node for ask in asks if not still or ask.status is None}

    def stop_run(self, jobid: int, name: str, kill_timeout_s: float) -> None:
        """SIGTERM to the processes of that name, SIGKILL to what is left after `kill_timeout_s`; no further one begins."""
        entry = self.manager.entries.get(jobid)
        if entry is None:
            return
        unit = f"work/{jobid}/{name}"
        asks = [ask for ask in entry.asks.values() if ask.unit == unit]
        entry.unwanted.add(unit)

        def send() -> None:
            for ask in asks:
                if ask.status is None:
                    self.manager.engine.signal(ask.node, unit, signal.SIGTERM, kill_timeout_s)

        # after the start, which may be on its way to the disk still
        batch = Batch()
        batch.on_commit.append(send)
        self.manager.store.commit(batch)

    def ended(self, unit: str, node: int, result: WorkResult) -> None:
        for future in self._results.pop((unit, node), ()):
            if not future.done():
                future.set_result(result)

    def progressed(self, unit: str, data: dict[str, Any]) -> None:
        callback = self._progress.get(unit)
        if callback is not None:
            callback(data)


#: output of a process whose output is the job's
OUTPUT_BYTES_MAX = 1 << 20
