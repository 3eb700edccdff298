"""What a start costs does not grow with history (R77): counted in steps of SQLite's own machine, not in seconds."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from rig import Rig, simulate

STEP = 50


class Steps:
    """Counts the steps of every connection that a store opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = sqlite3.connect

        def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            db = real(*args, **kwargs)
            db.set_progress_handler(self._step, STEP)
            return db

        monkeypatch.setattr(sqlite3, "connect", connect)

    def _step(self) -> int:
        self.count += STEP
        return 0


def add_history(path: Path, first: int, count: int) -> None:
    """Inactive jobs, as if they had run: copies of one that has, older than it."""
    db = sqlite3.connect(path / "leveret.db")
    (model,) = db.execute("SELECT max(id) FROM done").fetchone()
    db.execute("BEGIN")
    for job in range(first, first + count):
        db.execute("INSERT INTO job SELECT ?, userid, t_submit, env, jobspec FROM job WHERE id=?", (job, model))
        db.execute("INSERT INTO event(job, n, line) SELECT ?, n, line FROM event WHERE job=?", (job, model))
        db.execute("INSERT INTO guest SELECT ?, path, n, count, extent, lines FROM guest WHERE job=?", (job, model))
        db.execute("INSERT INTO kv SELECT ?, key, value FROM kv WHERE job=?", (job, model))
        db.execute("INSERT INTO done SELECT ?, t_inactive, result, record FROM done WHERE id=?", (job, model))
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def test_r77_a_start_reads_no_inactive_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[2])
        await rig.run(await rig.submit(1))
        active = [await rig.submit(1, urgency=0) for _ in range(10)]
        steps = Steps(monkeypatch)
        costs = []
        for number, more in enumerate((100, 1900, 8000)):
            await rig.crash()
            add_history(tmp_path, 1 + number * 100_000, more)
            steps.count = 0
            rig.boot()
            await rig.quiet()
            costs.append(steps.count)
            assert sorted(rig.manager.entries) == active
            assert len(rig.manager._outcomes) + len(rig.manager.finals) + len(rig.manager._specs) <= 3 * len(active)
        # the depth of a B-tree may grow, a scan may not be there
        assert costs[2] < 2 * costs[0], costs
        rig.close()

    simulate(body)
