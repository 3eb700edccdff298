"""The simulated engine: jobs that only take time, for planning, tests and benchmarks.

A job runs for `attributes.system.exec.test.run_duration` (FSD; absent: no time at all) and ends with
`attributes.system.exec.test.status` (wait status, default 0). No process is started; signals and time limits end it
as they would end a real one. Prologs, epilogs and copiers succeed at once. Nodes are as many as asked for, with as many cores,
or as `[resource]` describes them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from leveret.core import duration
from leveret.exec.local import Listener
from leveret.exec.outfile import Frame

INCARNATION = "simulated"
SIGALRM = 14


class _Unit:
    __slots__ = ("begun", "n", "seconds", "spec", "status", "timer")

    def __init__(self, spec: dict[str, Any], n: int = 0) -> None:
        self.spec = spec
        self.n = n  #: number of the last record
        self.timer: asyncio.TimerHandle | None = None
        self.begun = 0.0  #: by the loop's clock
        self.seconds = 0.0  #: that it takes
        self.status = 0  #: that it ends with


class SimulatedEngine:
    """Fits manager/ports.Engine by shape. Records that arise in one loop pass are handed over together."""

    def __init__(self, hosts: list[tuple[int, str, list[int]]]) -> None:
        self._hosts = hosts
        self._units: dict[tuple[int, str], _Unit] = {}
        self._out: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self._listener: Listener | None = None

    def hosts(self) -> list[tuple[int, str, list[int]]]:
        return self._hosts

    def incarnation(self, node: int) -> str:
        return INCARNATION

    async def connect(self) -> None:
        """Nothing to find."""

    async def serve(self, listener: Listener) -> None:
        """What ran when the daemon ended is over: time went on."""
        self._listener = listener
        for node, _, _ in self._hosts:
            have = listener.have(node, INCARNATION)
            for unit, n in have.items():
                if n:
                    self._units[(node, unit)] = _Unit({"tasks": []}, n)
                    self._end(node, unit, 0)
            listener.on_connected(node, INCARNATION, {unit: {"stdin": 0} for unit, n in have.items() if n})

    def start(self, node: int, unit: str, spec: dict[str, Any]) -> None:
        if (node, unit) in self._units:
            return
        entry = self._units[(node, unit)] = _Unit(spec)
        self._say(node, unit, "start", pids=[0] * len(spec["tasks"]))
        test = spec.get("test") or {}
        seconds = duration.parse(str(test.get("run_duration", "0"))) if spec["kind"] == "tasks" else 0.0
        entry.begun, entry.seconds = asyncio.get_running_loop().time(), seconds
        entry.status = int(test.get("status", 0))
        self._arm(node, unit, spec.get("duration_s"), seconds)

    def _arm(self, node: int, unit: str, limit: float | None, left: float) -> None:
        entry = self._units[(node, unit)]
        if entry.timer is not None:
            entry.timer.cancel()
        if limit is not None and limit < left:
            self._later(entry, limit, lambda: self._overrun(node, unit))
        else:
            self._later(entry, left, lambda: self._end(node, unit, entry.status))

    def limit(self, node: int, unit: str, left_s: float | None) -> None:
        entry = self._units.get((node, unit))
        if entry is not None:
            self._arm(node, unit, left_s, entry.begun + entry.seconds - asyncio.get_running_loop().time())

    def _later(self, entry: _Unit, seconds: float, callback: Any) -> None:
        if seconds <= 0:
            callback()
        else:
            entry.timer = asyncio.get_running_loop().call_later(seconds, callback)

    def _overrun(self, node: int, unit: str) -> None:
        self._say(node, unit, "timeout")
        self._end(node, unit, (128 + SIGALRM) << 8)

    def _end(self, node: int, unit: str, status: int) -> None:
        entry = self._units.get((node, unit))
        if entry is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        code = status >> 8
        for task in entry.spec["tasks"]:
            self._say(
                node, unit, "task-exit", rank=task["rank"], local=task["local"], pid=0, wait_status=status,
                signaled=code - 128 if code > 128 else 0, exitcode=code,
            )  # fmt: skip
        self._say(node, unit, "exit", status=status)
        del self._units[(node, unit)]

    def _say(self, node: int, unit: str, kind: str, **fields: Any) -> None:
        entry = self._units[(node, unit)]
        entry.n += 1
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        record = {"n": entry.n, "ts": time.time(), "k": kind, **fields}
        self._out.setdefault((node, unit), []).append(record)

    def _flush(self) -> None:
        out, self._out = self._out, {}
        assert self._listener is not None
        for (node, unit), records in out.items():
            try:
                self._listener.on_records(node, unit, records)
            except Exception as error:
                self._listener.on_trouble(f"simulated: {unit}: {error!r}")

    def signal(self, node: int, unit: str, signum: int, escalate_s: float | None) -> None:
        self._end(node, unit, (128 + signum) << 8)

    def stdin(self, node: int, unit: str, offset: int, ranks: str | list[int], data: bytes, eof: bool) -> None:
        if self._listener is not None:
            self._listener.on_stdin_ack(node, unit, offset + len(data))

    def winsize(self, node: int, unit: str, size: list[int]) -> None:
        """No terminal."""

    def ack(self, node: int, unit: str, n: int) -> None:
        """Nothing is kept."""

    def forget(self, node: int, unit: str) -> None:
        """Nothing is kept."""

    def read_output(self, node: int, file: str, start: int, end: int) -> Iterator[Frame]:
        return iter(())

    def remove_output(self, node: int, file: str) -> None:
        """There are no files."""

    def status(self) -> list[dict[str, Any]]:
        return [{"pid": 0, "node": rank, "host": host, "connected": True} for rank, host, _ in self._hosts]

    async def shut_down(self, helpers: bool) -> None:
        for entry in self._units.values():
            if entry.timer is not None:
                entry.timer.cancel()
