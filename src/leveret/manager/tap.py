"""Plugins coming and going (`leveret jobtap`), and what each of them may call."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.config import PluginDirective
from leveret.core import jobid as jobids
from leveret.core import jobspec as jobspecs
from leveret.core import resources
from leveret.core.job import Job
from leveret.core.transitions import PRIORITY, SCHED
from leveret.core.verdict import Verdict, verdict
from leveret.errors import ConfigError, ConflictError, InvalidError, LeveretError, NotFoundError
from leveret.manager.entry import Entry
from leveret.manager.turn import Turn
from leveret.plugins import registry as registries
from leveret.plugins.hooks import Answer, Plugin, WorkResult
from leveret.sched.storage import Need, Server
from leveret.storage.port import Storage

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
#: jobs whose priority is asked for again in one pass of the loop
SLICE = 200


class Tap:
    """Loads, lists and removes plugins; loads by hand are kept across restarts."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager

    def load_builtin(self) -> None:
        for name, cls in registries.BUILTIN.items():
            self.manager.registry.add(
                cls(PluginPort(self.manager, name), name, {"config": self.manager.config}), name, builtin=True
            )

    def load_configured(self) -> None:
        """`[job-manager] plugins`, in order. Raises ConfigError: an instance does not start without its plugins."""
        config = self.manager.config
        for directive in config.job_manager.plugins:
            if isinstance(directive, str):
                directive = PluginDirective(load=directive)
            try:
                for name in self.matching(directive.remove) if directive.remove else ():
                    self.manager.registry.remove(name)
                if directive.load is not None:
                    source = directive.load
                    if source.endswith(".py") and config.source:  # relative to the configuration
                        source = os.path.join(os.path.dirname(os.path.abspath(config.source)), source)
                    self.load(source, directive.conf, remember=False)
            except LeveretError as error:
                raise ConfigError(f"job-manager.plugins: {error.message}", error.hint, config.source) from error

    def matching(self, pattern: str) -> list[str]:
        """Loaded plugins whose name matches a glob; built-in ones only by their exact name."""
        loaded = self.manager.registry.loaded
        if pattern in loaded:
            return [pattern]
        return [name for name, one in loaded.items() if not one.builtin and fnmatchcase(name, pattern)]

    def load(self, source: str, conf: dict[str, Any], *, remember: bool = True, replace: str = "") -> str:
        """Load a plugin, show it every active job, and keep it loaded across restarts.

        `replace` is a glob of plugins that go first. One of the same name hands its open holds over (a reload); open
        holds of any other are refused as in `remove`. Raises InvalidError, NotFoundError, ConflictError.
        """
        name, again, cls = registries.load_class(source)
        leaving = self.matching(replace) if replace else []
        for other in leaving:
            if other != name:
                self._check_removal(other)
        if name in self.manager.registry.loaded and name not in leaving:
            raise ConflictError(f"a plugin named `{name}` is loaded already", "remove it first")
        try:
            plugin = cls(PluginPort(self.manager, name), name, conf)
            for answer in self.manager.registry.ask_config(plugin, self.manager.config):
                raise InvalidError(f"plugin `{name}`: {answer.reason}", answer.hint)
        except LeveretError:
            raise
        except Exception as error:
            raise InvalidError(f"plugin `{name}`: {type(error).__name__}: {error}") from error
        for other in leaving:
            self._drop(other)
        self.manager.registry.add(plugin, again)
        if remember:
            with Turn(self.manager, "jobtap") as turn:
                turn.op(
                    "INSERT OR REPLACE INTO plugin VALUES(?, (SELECT coalesce(max(position),0)+1 FROM plugin), ?, ?)",
                    name,
                    again,
                    _encode(conf),
                )
        for entry in list(self.manager.entries.values()):
            self.manager.registry.call_one(plugin, "new", str(entry.job.id), entry.job)
        for entry in list(self.manager.entries.values()):
            self._resume(entry, plugin)
        return name

    def _resume(self, entry: Entry, plugin: Plugin) -> None:
        for key, owner in list(entry.owners.items()):
            hold = entry.job.holds.get(key)
            if owner == plugin.name and hold is not None:
                self.manager.works.resume(entry, hold, plugin)

    def remove(self, name: str, userid: int = -1, force: bool = False) -> None:
        """Unload. Refused while the plugin has open holds (their jobs are named); `force` gives those up first."""
        if force and name in self.manager.registry.loaded:
            for jobid, entry in list(self.manager.entries.items()):
                for key in [key for key, owner in entry.owners.items() if owner == name]:
                    self.manager.holds.give_up(jobid, key, userid, f"plugin {name} was removed", 256)
        self._check_removal(name)
        self._drop(name)
        with Turn(self.manager, "jobtap") as turn:
            turn.op("DELETE FROM plugin WHERE name=?", name)
        self.reprioritize(None, waiting=True)

    def _check_removal(self, name: str) -> None:
        loaded = self.manager.registry.loaded.get(name)
        if loaded is not None and loaded.builtin:
            raise ConflictError(f"`{name}` is built in")
        holding = [jobids.encode(i) for i, e in self.manager.entries.items() if name in e.owners.values()]
        if holding:
            more = f" and {len(holding) - 20} more" if len(holding) > 20 else ""
            raise ConflictError(
                f"plugin `{name}` has open holds on {', '.join(holding[:20])}{more}",
                "finish them first, or end them as failed with --force",
            )

    def _drop(self, name: str) -> None:
        """Out of the registry; its work here stops, its holds stay as they are."""
        entry = self.manager.registry.remove(name)
        try:
            entry.plugin.remove()
        except Exception as error:
            self.manager.log.error("plugin failed", plugin=name, trace="".join(traceback.format_exception(error)))
        self.manager.works.drop_plugin(name)

    def reprioritize(self, jobid: int | None, waiting: bool = False) -> None:
        """Ask for the priority of a job again, or of all; with `waiting` only of those that have none yet."""
        entries = [self.manager.entry(jobid)] if jobid is not None else list(self.manager.entries.values())
        for entry in entries:
            state = entry.job.state
            if state is PRIORITY and "priority" in entry.in_flight:
                with Turn(self.manager, "priority") as turn:
                    turn.touch(entry)
                    entry.in_flight.discard("priority")
            elif state is SCHED and not waiting:
                priority = Turn(self.manager).priority_of(entry)
                if priority is not None and priority != entry.job.priority:
                    with Turn(self.manager, "priority") as turn:
                        turn.post(entry, "priority", {"priority": priority})

    def _slice(self, left: list[int]) -> None:
        """Some of the jobs, oldest first; the rest in the next pass of the loop, so that doors stay open."""
        for _ in range(min(SLICE, len(left))):
            jobid = left.pop()
            if jobid in self.manager.entries:
                self.reprioritize_soon(jobid)
        if left:
            self.manager.clock.call_soon(lambda: self._slice(left))

    def reprioritize_soon(self, jobid: int | None) -> None:
        if jobid is None:
            self._slice(sorted(self.manager.entries, reverse=True))
            return
        try:
            self.reprioritize(jobid)
        except LeveretError:
            pass  # the job has ended meanwhile

    def query(self, name: str) -> dict[str, Any]:
        """Everything known of one plugin, and what it says itself. Raises NotFoundError."""
        for known in self.listing():
            if known["name"] == name:
                loaded = self.manager.registry.loaded[name]
                conf = {} if loaded.builtin else loaded.plugin.conf
                return {**known, "conf": conf, **self.manager.registry.ask_query(loaded.plugin)}
        raise NotFoundError(f"{name}: plugin not found")

    def listing(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "path": loaded.source,
                "builtin": loaded.builtin,
                "holds": sum(owner == name for e in self.manager.entries.values() for owner in e.owners.values()),
            }
            for name, loaded in self.manager.registry.loaded.items()
        ]


class PluginPort:
    """What one plugin may call (hooks.Manager)."""

    def __init__(self, manager: Manager, plugin: str) -> None:
        self._manager = manager
        self._plugin = plugin

    def job(self, jobid: int) -> Job | None:
        entry = self._manager.entries.get(jobid)
        return None if entry is None else entry.job

    def outcome(self, jobid: int) -> Job | None:
        if jobid in self._manager.quarantine:
            return self._manager.quarantine.get(jobid).job
        return self._manager.outcome(jobid) or self._manager.purges.outcome(jobid)

    def verdict(self, jobid: int) -> Verdict | None:
        job = self.outcome(jobid)
        return verdict(job) if job is not None and job.done else None

    def jobspec(self, jobid: int) -> dict[str, Any]:
        return self._manager.jobspec(jobid)

    def digest(self, jobid: int) -> jobspecs.Digest:
        return self._manager.entry(jobid).digest

    def resources(self, jobid: int) -> resources.Rset | None:
        entry = self._manager.entries.get(jobid)
        return None if entry is None else entry.rset

    def start_requested(self, jobid: int) -> bool:
        return self._manager.start_requested(jobid)

    def finish(self, jobid: int, name: str, status: int = 0, note: str = "", kind: str = "") -> None:
        manager = self._manager
        manager.works.end(jobid, manager.find_hold(jobid, kind, name), status, note)

    def progress(self, jobid: int, kind: str, name: str, **progress: Any) -> None:
        self._manager.set_progress(jobid, f"{kind}/{name}", progress)

    async def run(
        self,
        jobid: int,
        name: str,
        argv: list[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        kill_timeout_s: float = 5.0,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        node: int | None = None,
        output: bool = False,
    ) -> WorkResult:
        return await self._manager.perform.run(
            jobid, name, argv, cwd, env, timeout_s, kill_timeout_s, on_progress, node, output
        )

    async def run_on(
        self,
        jobid: int,
        name: str,
        nodes: Iterable[int],
        argv: list[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        kill_timeout_s: float = 5.0,
        on_result: Callable[[int, WorkResult], None] | None = None,
    ) -> dict[int, WorkResult]:
        return await self._manager.perform.run_on(
            jobid, name, nodes, argv, cwd, env, timeout_s, kill_timeout_s, on_result=on_result
        )

    def record(self, jobid: int, key: str, value: bytes, run: str = "") -> None:
        self._manager.perform.record(jobid, key, value, run)

    def records(self, jobid: int, prefix: str) -> dict[str, bytes]:
        return self._manager.store.kv_under(jobid, prefix)

    def begun(self, jobid: int, name: str, open: bool = False) -> set[int]:
        return self._manager.perform.begun(jobid, name, open)

    def lost(self, jobid: int) -> set[int]:
        entry = self._manager.entries.get(jobid)
        return entry.lost() if entry is not None else set()

    def drain(self, ranks: Iterable[int], reason: str) -> None:
        resources = self._manager.resources
        if some := [rank for rank in ranks if rank in resources.state.hosts and rank not in resources.excluded]:
            resources.drain(some, reason, update=True)

    def stop_run(self, jobid: int, name: str, kill_timeout_s: float = 5.0) -> None:
        self._manager.perform.stop_run(jobid, name, kill_timeout_s)

    def recall(self, jobid: int, key: str, default: Any = None) -> Any:
        entry = self._manager.entries.get(jobid)
        return default if entry is None else entry.data.get(self._plugin, {}).get(key, default)

    def kept(self) -> dict[str, Any]:
        return {name: _decode(value) for name, value in self._manager.store.notes(f"plugin/{self._plugin}")}

    def answer(self, jobid: int, *answers: Answer) -> None:
        manager = self._manager
        entry = manager.entry(jobid)
        plugin = manager.registry.get(self._plugin)
        if plugin is None:
            raise ConflictError(f"plugin `{self._plugin}` is not loaded")
        if manager.turn is not None:  # called from a moment: it joins the turn
            for answer in answers:
                manager.turn.answer(entry, plugin, answer)
            return
        with Turn(manager, "plugin") as turn:
            for answer in answers:
                turn.answer(entry, plugin, answer)
            turn._drain()
            if entry.annotations is not None:
                turn.after.append(lambda: manager.feed.publish((jobid,)))

    def reprioritize(self, jobid: int | None = None) -> None:
        tap = self._manager.tap
        self._manager.clock.call_soon(lambda: tap.reprioritize_soon(jobid))  # never a turn within a turn

    def active(self) -> Iterable[Job]:
        return [entry.job for entry in self._manager.entries.values()]

    async def closed(self, jobid: int, kind: str, name: str) -> None:
        await self._manager.works.wait_closed(jobid, f"{kind}/{name}")

    def owner_uid(self) -> int:
        return self._manager.owner_uid

    def now(self) -> float:
        return self._manager.clock.time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        return self._manager.clock.call_at(when, callback)

    @property
    def storage(self) -> Storage | None:
        return self._manager.storage

    def hosts(self) -> dict[int, str]:
        return {rank: node.host for rank, node in self._manager.inventory.rset.ranks.items()}

    def storage_servers(self, servers: Iterable[Server], down: Iterable[str] = ()) -> None:
        leases, gone = self._manager.scheduling.leases, set(down)
        leases.define(servers)
        for name in self._manager.queue.storage.servers:
            leases.set_state(name, name not in gone)

    def storage_need(self, jobid: int, need: Need) -> None:
        self._manager.scheduling.leases.need(jobid, need)

    def storage_gone(self, jobid: int) -> None:
        leases = self._manager.scheduling.leases
        leases.needs.pop(jobid, None)
        if jobid in self._manager.queue.storage.leases:
            leases.gone(jobid)

    def storage_owed(self, jobid: int, note: str) -> None:
        if jobid in self._manager.queue.storage.leases:
            self._manager.scheduling.leases.give_up(jobid, note)

    @property
    def ending(self) -> bool:
        return self._manager.works.lets_go()

    def log(self, message: str, **details: Any) -> None:
        self._manager.log.info(message, plugin=self._plugin, **details)
