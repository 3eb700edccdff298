"""Plugins coming and going (`leveret jobtap`), and what each of them may call."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import jobid as jobids
from leveret.core import jobspec as jobspecs
from leveret.core import resources
from leveret.core.job import Job
from leveret.core.verdict import Verdict, verdict
from leveret.errors import ConflictError, InvalidError
from leveret.manager.entry import Entry
from leveret.manager.turn import Turn
from leveret.plugins import registry as registries
from leveret.plugins.hooks import Plugin, WorkResult

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

_encode = msgspec.json.Encoder().encode


class Tap:
    """Loads, lists and removes plugins; loads by hand are kept across restarts."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager

    def load_builtin(self) -> None:
        for name, cls in registries.BUILTIN.items():
            self.manager.registry.add(
                cls(PluginPort(self.manager, name), name, {"config": self.manager.config}), name, builtin=True
            )

    def load(self, source: str, conf: dict[str, Any], *, remember: bool = True) -> str:
        """Load a plugin, show it every active job, and keep it loaded across restarts."""
        name, again, cls = registries.load_class(source)
        try:
            plugin = cls(PluginPort(self.manager, name), name, conf)
        except Exception as error:
            raise InvalidError(f"plugin `{name}`: {type(error).__name__}: {error}") from error
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
            self._resume(entry, plugin)
        return name

    def _resume(self, entry: Entry, plugin: Plugin) -> None:
        for key, owner in list(entry.owners.items()):
            hold = entry.job.holds.get(key)
            if owner == plugin.name and hold is not None:
                self.manager.works.resume(entry, hold, plugin)

    def remove(self, name: str) -> None:
        """Unload. Refused while the plugin has open holds (their jobs are named)."""
        loaded = self.manager.registry.loaded.get(name)
        if loaded is not None and loaded.builtin:
            raise ConflictError(f"`{name}` is built in")
        holding = [jobids.encode(i) for i, e in self.manager.entries.items() if name in e.owners.values()]
        if holding:
            raise ConflictError(f"plugin `{name}` has open holds on {', '.join(holding[:20])}", "finish them first")
        entry = self.manager.registry.remove(name)
        try:
            entry.plugin.remove()
        except Exception as error:
            self.manager.log.error("plugin failed", plugin=name, trace="".join(traceback.format_exception(error)))
        self.manager.works.drop_plugin(name)
        with Turn(self.manager, "jobtap") as turn:
            turn.op("DELETE FROM plugin WHERE name=?", name)

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
    ) -> WorkResult:
        return await self._manager.perform.run(jobid, name, argv, cwd, env, timeout_s, kill_timeout_s, on_progress)

    def stop_run(self, jobid: int, name: str, kill_timeout_s: float = 5.0) -> None:
        self._manager.perform.stop_run(jobid, name, kill_timeout_s)

    async def closed(self, jobid: int, kind: str, name: str) -> None:
        await self._manager.works.wait_closed(jobid, f"{kind}/{name}")

    def now(self) -> float:
        return self._manager.clock.time()

    def log(self, message: str, **details: Any) -> None:
        self._manager.log.info(message, plugin=self._plugin, **details)
