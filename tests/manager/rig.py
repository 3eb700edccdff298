"""The real manager on a real store, with helpers, a clock and a disk that move only when a test says so.

* `SteppedStore` is the store itself; just the moment of each commit is the test's. `crash` forgets what was not committed.
* `Double` fits manager.ports.Engine. It keeps what it is told in `calls`; tests take what they expect and assert with
  `drained` that nothing else was said. Behind it are `Helper`s, which number and keep their records as the real ones do
  and outlive the manager.
* `Clock` stands still; `advance` lets timers fire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
from automaton import check

from leveret.config import Config
from leveret.core import inventory as inventories
from leveret.core import jobspec as jobspecs
from leveret.core import resourcelog
from leveret.core.event import Event, decode
from leveret.core.job import Job, replay, violations
from leveret.core.transitions import INACTIVE
from leveret.core.verdict import Verdict, verdict
from leveret.manager import invariant
from leveret.manager.manager import Manager
from leveret.manager.tap import PluginPort
from leveret.manager.turn import Turn
from leveret.plugins.hooks import Plugin
from leveret.store.sqlite import Store

UID = 1000
WATCHDOG_S = 120
PASSES = 12  #: loop passes after which whatever can run without the disk has run


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.timers: list[tuple[float, int, Timer]] = []
        self._serial = 0

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass; timers fire in order, each at its own moment."""
        end = self.now + seconds
        while due := sorted(t for t in self.timers if t[0] <= end and t[2].callback):
            when, _, timer = due[0]
            self.timers.remove(due[0])
            self.now = max(self.now, when)
            callback, timer.callback = timer.callback, None
            assert callback is not None
            callback()
        self.now = end

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        self._serial += 1
        timer = Timer(callback)
        self.timers.append((when, self._serial, timer))
        return timer


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ClockPort:
    """One daemon's view of the clock: its timers die with it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.alive = True

    def time(self) -> float:
        return self.clock.now

    def _if_alive(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: callback() if self.alive else None

    def call_soon(self, callback: Callable[[], None]) -> Any:
        return asyncio.get_running_loop().call_soon(self._if_alive(callback))

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        return self.clock.at(when, self._if_alive(callback))


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **details: Any) -> None:
        self.lines.append(("info", event, details))

    def warning(self, event: str, **details: Any) -> None:
        self.lines.append(("warning", event, details))

    def error(self, event: str, **details: Any) -> None:
        self.lines.append(("error", event, details))

    exception = error

    def take_errors(self) -> list[tuple[str, dict[str, Any]]]:
        """Errors since the last look."""
        found = [(event, details) for level, event, details in self.lines if level == "error"]
        self.lines.clear()
        return found


class SteppedStore(Store):
    """Commits wait in `ready` until `step` writes one of them."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        # no power fails here, and waiting for the disk thousands of times would be most of the tests' time
        self._writer.execute("PRAGMA synchronous=OFF")
        self.ready: list[Any] = []
        self.dead = False

    def commit(self, batch: Any) -> None:
        if not self.dead:
            super().commit(batch)

    def _hand_over(self) -> None:
        if self._pending:
            batches, self._pending = self._pending, []
            self.ready.append(batches)
        else:
            self._writing = False

    def step(self) -> bool:
        if not self.ready:
            return False
        batches = self.ready.pop(0)
        self._committed(batches, self._try(batches))
        if self.failed is not None:
            raise self.failed
        return True

    @property
    def idle(self) -> bool:
        return not (self._pending or self.ready)

    def die(self) -> None:
        """As a kill: what is not committed is lost, and nobody is called any more."""
        self.dead = True
        self._pending, self.ready = [], []
        self.read.close()
        self._writer.close()


class HelperUnit:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.records: list[dict[str, Any]] = []  #: all of them
        self.acked = 0
        self.signals: list[int] = []
        self.over = False

    def add(self, kind: str, at: float, **fields: Any) -> None:
        assert not self.over
        self.records.append({"t": "rec", "n": len(self.records) + 1, "ts": at, "k": kind, **fields})
        self.over = kind == "exit"


class Helper:
    def __init__(self, node: int, incarnation: str) -> None:
        self.node = node
        self.incarnation = incarnation
        self.units: dict[str, HelperUnit] = {}


class Double:
    """The engine: helpers by node. `starts` counts how often each unit was really begun on each node, ever."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.helpers = {node: Helper(node, f"inc-{node}-0") for node in range(len(sizes))}
        self.serial = 0
        self.starts: dict[tuple[int, str], int] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.connected = dict.fromkeys(self.helpers, True)
        self.manager: Manager | None = None

    # ---- the port

    def hosts(self) -> list[tuple[int, str, list[int]]]:
        return [(node, f"node{node}", list(range(size))) for node, size in enumerate(self.sizes)]

    def incarnation(self, node: int) -> str:
        return self.helpers[node].incarnation

    def start(self, node: int, unit: str, spec: dict[str, Any]) -> None:
        if not self.connected[node]:
            return
        helper = self.helpers[node]
        assert self.manager is not None
        entry = self.manager.entry_of_unit(unit)
        ask = entry.asks.get((unit, node)) if entry is not None else None
        if ask is None:
            ask = self.manager.housekeeping.ask_of(unit, node)
        assert ask is not None, f"{unit} is started, and nobody waits for it"
        assert ask.incarnation == helper.incarnation, f"{unit} was asked of another incarnation"
        self.calls.append(("start", node, unit, spec))
        if unit not in helper.units:
            helper.units[unit] = HelperUnit(spec)
            self.starts[(node, unit)] = self.starts.get((node, unit), 0) + 1

    def signal(self, node: int, unit: str, signum: int, escalate_s: float | None) -> None:
        if not self.connected[node]:
            return
        self.calls.append(("signal", node, unit, signum, escalate_s))
        if unit in self.helpers[node].units:
            self.helpers[node].units[unit].signals.append(signum)

    def stdin(self, node: int, unit: str, offset: int, ranks: Any, data: bytes, eof: bool) -> None:
        if self.connected[node]:
            self.calls.append(("stdin", node, unit, offset, ranks, data, eof))

    def limit(self, node: int, unit: str, left_s: float | None) -> None:
        if self.connected[node]:
            self.calls.append(("limit", node, unit, left_s))

    def ack(self, node: int, unit: str, n: int) -> None:
        if not self.connected[node] or unit not in self.helpers[node].units:
            return
        known = self.helpers[node].units[unit]
        assert n <= len(known.records), "what was never said cannot be acknowledged"
        known.acked = max(known.acked, n)

    def forget(self, node: int, unit: str) -> None:
        if self.connected[node] and (known := self.helpers[node].units.get(unit)):
            assert known.over and known.acked == len(known.records), f"{unit} is forgotten too early"
            del self.helpers[node].units[unit]

    def read_output(self, node: int, file: str, start: int, end: int) -> Iterator[Any]:
        return iter(())

    def remove_output(self, node: int, file: str) -> None:
        self.calls.append(("remove_output", node, file))

    # ---- for tests

    def take(self, what: str, unit: str | None = None, node: int | None = None) -> tuple[Any, ...]:
        """The first call of that kind; it must be there."""
        for call in self.calls:
            if call[0] == what and unit in (None, call[2]) and node in (None, call[1]):
                self.calls.remove(call)
                return call
        raise AssertionError(f"no {what} of {unit}; said: {[c[:3] for c in self.calls]}")

    def drained(self) -> None:
        assert self.calls == [], "more was asked of the helpers than was expected"

    def deliver(self, node: int, unit: str, again: int = 0) -> None:
        """Send the records that are not acknowledged, and `again` of those before them."""
        known = self.helpers[node].units.get(unit)
        if known is None or not self.connected[node] or self.manager is None:
            return
        records = known.records[max(0, known.acked - again) :]
        if records:
            self.manager.units.on_records(node, unit, records)

    def lose(self, node: int) -> str:
        """The helper dies with all that it runs; another one comes, which nobody has spoken to yet."""
        self.serial += 1
        self.helpers[node] = Helper(node, f"inc-{node}-{self.serial}")
        self.connected[node] = False
        if self.manager is not None:
            self.manager.lost.on_gone(node)
        return self.helpers[node].incarnation

    def cut(self, node: int) -> None:
        """The node is away; its helper and what it runs live on."""
        self.connected[node] = False
        assert self.manager is not None
        self.manager.lost.on_gone(node)

    def introduce(self, node: int) -> None:
        """What LocalEngine does once it has a connection."""
        manager, helper = self.manager, self.helpers[node]
        assert manager is not None
        self.connected[node] = True
        for old in sorted(manager.recovery.lost_asks(node, helper.incarnation)):
            manager.units.on_lost(node, f"node{node}", old)
        for unit, n in manager.recovery.have(node, helper.incarnation).items():
            if unit in helper.units:
                helper.units[unit].acked = max(helper.units[unit].acked, n)
        manager.recovery.on_connected(
            node,
            helper.incarnation,
            {name: {"stdin": 0, "ended": unit.over, "n": len(unit.records)} for name, unit in helper.units.items()},
        )


def spec(
    ntasks: int = 1,
    nnodes: int = 0,
    *,
    command: list[str] | None = None,
    duration_s: float = 0.0,
    dependencies: list[dict[str, str]] | None = None,
    staging: dict[str, Any] | None = None,
    **user: Any,
) -> dict[str, Any]:
    """A jobspec; keywords that it does not know are the job's `attributes.user`, for plugins of tests."""
    out = jobspecs.build(command or ["true"], ntasks=ntasks, nnodes=nnodes, duration_s=duration_s, cwd="/dir")
    if dependencies:
        out["attributes"]["system"]["dependencies"] = dependencies
    if staging:
        out["attributes"]["system"]["staging"] = staging
    if user:
        out["attributes"]["user"] = user
    return out


class Rig:
    """One instance: its disk, its helpers, and the daemon that lives now."""

    def __init__(
        self,
        path: Path,
        plugins: list[type[Plugin]] | None = None,
        config: Config | None = None,
        sizes: list[int] | None = None,
        context: Any = None,
        properties: dict[str, list[int]] | None = None,
    ) -> None:
        self.path = path
        self.plugins = plugins or []
        self.config = config or Config()
        self.properties = properties or {}
        self.engine = Double(sizes or [2])
        self.clock = Clock()
        self.log = Log()
        self.context = context  #: plugins of tests find it in their conf
        self.store: SteppedStore
        self.manager: Manager
        self.port: ClockPort
        self.boot()

    # ---- living and dying

    def boot(self, broken: Callable[[Manager], None] | None = None) -> None:
        self.store = SteppedStore(self.path / "leveret.db")
        self.store.start()
        self.port = ClockPort(self.clock)
        inventory = inventories.alike(self.engine.hosts())
        inventory.rset.properties.update(self.properties)
        self.manager = self.engine.manager = Manager(
            self.store,
            self.engine,
            self.config,
            self.port,
            self.log,
            uri="local:///x",
            owner_uid=UID,
            epoch_ms=int((self.clock.now - 100) * 1000) if not self.store.meta("e") else int(self.store.meta("e") or 0),
            generator=0,
            tmp_dir=str(self.path),
            inventory=inventory,
        )
        if not self.store.meta("e"):
            self.store.set_meta_now("e", str(self.manager._epoch_ms))
        for cls in self.plugins:
            name = cls.__name__.lower()
            self.manager.registry.add(cls(PluginPort(self.manager, name), name, {"context": self.context}), name)
        self.manager.recovery.recover()
        for node in self.engine.helpers:
            self.engine.introduce(node)
        self.manager.recovery.go_on()

    async def crash(self) -> None:
        """The daemon is gone, as by kill -9. Only what was committed is left, and the helpers."""
        self.port.alive = False
        self.store.die()
        self.engine.manager = None
        works = self.manager.works
        works.ending = True
        for task in list(works._tasks.values()):
            task.cancel()
        for node in self.engine.connected:
            self.engine.connected[node] = False
        await self.passes()

    async def restart(self) -> None:
        await self.crash()
        self.boot()
        await self.quiet()

    def close(self) -> None:
        self.manager.works.ending = True  # tasks that the end of the loop cancels wait for nobody
        self.store.die()

    async def passes(self, count: int = PASSES) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def quiet(self) -> None:
        """Until nothing more happens by itself."""
        idle = 0
        for _ in range(100_000):
            await self.passes()
            if self.store.step():
                idle = 0
                continue
            idle += self.store.idle
            if idle >= 2:
                return
        raise AssertionError("it never comes to rest")

    def store_turn(self) -> Turn:
        """A turn of the test's own, to put something on the disk."""
        return Turn(self.manager, "test")

    # ---- jobs

    async def submit(self, *args: Any, urgency: int = 16, flags: list[str] | None = None, **kwargs: Any) -> int:
        jobid, done = self.manager.submit(spec(*args, **kwargs), urgency, flags or [], UID)
        await self.quiet()
        assert done.done()
        return jobid

    def say(self, jobid: int, kind: str, node: int = 0, work: str = "", deliver: bool = True, **fields: Any) -> None:
        """A helper's record of a job's tasks, or of the work of that name."""
        unit = f"work/{jobid}/{work}" if work else f"job/{jobid}"
        self.engine.helpers[node].units[unit].add(kind, self.clock.now, **fields)
        if deliver:
            self.engine.deliver(node, unit)

    async def run(self, jobid: int, status: int = 0, node: int = 0) -> None:
        """The tasks of a one-node job, from start to exit."""
        self.engine.take("start", f"job/{jobid}", node)
        self.say(jobid, "start", node)
        self.say(jobid, "exit", node, status=status)
        await self.quiet()

    async def work(self, jobid: int, name: str, status: int = 0, node: int = 0, tail: str = "") -> None:
        """A process of a plugin, from start to exit."""
        self.engine.take("start", f"work/{jobid}/{name}", node)
        self.say(jobid, "exit", node, name, status=status, stderr_tail=tail)
        await self.quiet()

    async def cancel(self, jobid: int) -> None:
        self.manager.cancel(jobid, "", UID)
        await self.quiet()

    # ---- what is there

    def job(self, jobid: int) -> Job:
        found = self.manager.outcome(jobid)
        assert found is not None
        return found

    def verdict(self, jobid: int) -> Verdict:
        assert self.job(jobid).done
        return verdict(self.job(jobid))

    def stored(self, jobid: int) -> list[Event]:
        return [decode(line) for line in self.store.all_events(jobid)]

    def story(self, jobid: int) -> list[str]:
        """The stored log: names, with the hold in parentheses and the type of an exception."""
        out = []
        for event in self.stored(jobid):
            detail = event.get("description") or event.get("type")
            out.append(f"{event.name}({detail})" if detail else event.name)
        return out

    def check(self) -> None:
        """What must hold whenever the disk is idle: every log, and everything that is kept beside the logs."""
        assert self.store.idle
        ids = [row[0] for row in self.store.read.execute("SELECT id FROM job")]
        for jobid in ids:
            events = self.stored(jobid)
            check([(event.name, event.context) for event in events])
            assert violations(events) == []
            replayed = replay(jobid, events)
            entry = self.manager.entries.get(jobid)
            live = entry.job if entry is not None else self.manager._outcomes.get(jobid)
            if live is not None:
                assert msgspec.json.encode(replayed) == msgspec.json.encode(live)
            assert (jobid in self.store.active_ids()) == (not replayed.done) == (entry is not None)
            assert (self.store.done_record(jobid) is not None) == replayed.done
            if replayed.allocated and not replayed.freed:
                assert entry is not None and entry.rset is not None
            if entry is not None:
                assert set(entry.owners) <= set(replayed.holds)
        assert invariant.wrong(self.manager) == []
        lines = self.store.resource_events()
        assert [n for n, _ in lines] == list(range(lines[0][0], lines[0][0] + len(lines)))
        log = resourcelog.replay(decode(line) for _, line in lines)
        assert msgspec.structs.replace(log, n=0) == msgspec.structs.replace(self.manager.resources.state, n=0)
        assert all(count == 1 for count in self.engine.starts.values()), "a unit was started twice"
        waiting = {i for i, e in self.manager.entries.items() if "alloc" in e.in_flight}
        assert set(self.manager.queue._want) == waiting

    def over(self) -> None:
        """Every job has ended, and nothing of it is left."""
        self.check()
        assert self.manager.entries == {}
        assert all(e.done for e in self.manager._outcomes.values())
        assert len(self.manager.queue) == 0
        assert not self.manager.works._tasks and not self.manager.works._waiters
        assert not self.manager.perform._results
        assert self.store.kv_of_active("ask/") == self.store.kv_of_active("hold/") == []
        assert self.manager.pool.free_cores() == self.manager.pool.total_cores()


def simulate(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine under the watchdog."""

    troubles: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        await asyncio.wait_for(body(), WATCHDOG_S)

    asyncio.run(main())
    for context in troubles:
        raise AssertionError(context["message"]) from context.get("exception")


__all__ = ["INACTIVE", "UID", "Config", "Double", "Rig", "simulate", "spec"]
