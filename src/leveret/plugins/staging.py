"""`--stage-in SRC:DST` and `--stage-out SRC:DST`: user-owned parts that move data before and after the tasks.

Once per job, on its first node: in after `alloc` and before `start`, out after `finish` on every outcome
once `start` was logged. Paths are relative to the job's directory. The copier is a command template of the
configuration. The jobspec says `attributes.system.staging = {"in": [{"src", "dst"}], "out": [...]}`.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

from leveret.config import Config, duration_error
from leveret.core import duration
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.verdict import exit_code_of
from leveret.errors import FormatError
from leveret.plugins.hooks import Answers, PartHold, Plugin, Reject, WorkFailed


def names(which: str, count: int) -> list[str]:
    """stage-in, or stage-in-1, stage-in-2 … when there are several."""
    return [f"stage-{which}"] if count == 1 else [f"stage-{which}-{i}" for i in range(1, count + 1)]


class Staging(Plugin):
    def __init__(self, manager: Any, name: str, conf: dict[str, Any]) -> None:
        super().__init__(manager, name, conf)
        config: Config = conf["config"]
        self.copier = config.staging.copier
        try:
            timeout_s = duration.parse(config.staging.timeout)
        except FormatError as error:
            raise duration_error(config, "staging.timeout", error.message) from None
        self.timeout_s = timeout_s or math.inf

    def validate(self, job: Job, spec: dict[str, Any]) -> Answers:
        staging = spec["attributes"]["system"].get("staging")
        if staging is None:
            return None
        path = "attributes.system.staging"
        if not isinstance(staging, dict) or set(staging) - {"in", "out"}:
            return Reject(f"{path}: must be an object with the keys `in` and `out`")
        for which, items in staging.items():
            if not isinstance(items, list):
                return Reject(f"{path}.{which}: must be a list")
            for number, item in enumerate(items):
                ok = isinstance(item, dict) and set(item) == {"src", "dst"}
                if not ok or not all(isinstance(v, str) and v and "\0" not in v for v in item.values()):
                    return Reject(f"{path}.{which}[{number}]: must be {{src, dst}}, two non-empty paths")
        return None

    def _items(self, job: Job, which: str) -> dict[str, dict[str, str]]:
        staging = self.manager.jobspec(job.id)["attributes"]["system"].get("staging")
        if not staging:
            return {}
        items = staging.get(which) or []
        return dict(zip(names(which, len(items)), items, strict=True))

    def state_run(self, job: Job) -> Answers:
        return [
            PartHold(
                name,
                self._move(job, name, item),
                owner="user",
                blocks=["start"],
                uses="nodes",
                deadline_s=self.timeout_s,
            )
            for name, item in self._items(job, "in").items()
        ]

    def event_finish(self, job: Job, event: Event) -> Answers:
        return [
            PartHold(name, self._move(job, name, item), owner="user", deadline_s=self.timeout_s)
            for name, item in self._items(job, "out").items()
        ]

    async def _move(self, job: Job, name: str, item: dict[str, str]) -> int:
        system = self.manager.jobspec(job.id)["attributes"]["system"]
        cwd = system.get("cwd") or "/"
        paths = {"src": _join(cwd, item["src"]), "dst": _join(cwd, item["dst"]), "python": sys.executable}
        argv = [paths[word[1:-1]] if word in ("{src}", "{dst}", "{python}") else word for word in self.copier]
        env = {str(k): str(v) for k, v in (system.get("environment") or {}).items()}
        result = await self.manager.run(
            job.id,
            name,
            argv,
            cwd=cwd,
            env=env,
            on_progress=lambda data: self.manager.progress(job.id, "part", name, **data),
        )
        if result.status:
            tail = result.tail.strip().splitlines()
            why = tail[-1] if tail else f"the copier ended with exit code {exit_code_of(result.status)}"
            raise WorkFailed(
                f"{name}: {item['src']} to {item['dst']}: {why}", result.status, type=name.rstrip("-0123456789")
            )
        return 0

    async def resume(self, job: Job, hold: Hold) -> int | None:
        for which in ("in", "out"):
            item = self._items(job, which).get(hold.name)
            if item is not None:
                return await self._move(job, hold.name, item)
        raise WorkFailed(f"{hold.name}: the jobspec has no such item")

    def stop(self, job: Job, hold: Hold) -> bool:
        self.manager.stop_run(job.id, hold.name)
        return True


def _join(cwd: str, path: str) -> str:
    """`path` relative to the job's directory; a trailing slash keeps its meaning."""
    return os.path.join(cwd, path)
