"""What a start costs with history: seconds to `ok` and the daemon's memory, with 1,000 active jobs and more and more inactive ones.

The jobs are made directly in the database: copies of one that has run, and of one that is held. Files that were just
written are in the page cache; what is measured is the daemon, not the disk.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leveret.client import Client
from leveret.core import jobspec

ACTIVE = 1000
INACTIVE = (1_000, 10_000, 100_000)


def start(base: Path) -> tuple[subprocess.Popen[bytes], float]:
    """A daemon that serves, and the seconds until it did."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "leveret.daemon", "--statedir", f"{base}/state", "--socket", f"{base}/sock"]
    began = time.perf_counter()
    daemon = subprocess.Popen([*command, "--ready-fd", str(write)], pass_fds=[write], stdin=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as ready:
        answer = ready.readline().strip()
    if answer != "ok":
        raise SystemExit(f"the daemon did not start: {answer}")
    return daemon, time.perf_counter() - began


def end(base: Path, daemon: subprocess.Popen[bytes]) -> None:
    with Client(f"local://{base}/sock", start=False) as client:
        client.shutdown(timeout_s=5)
    daemon.wait(timeout=120)


def high_water_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def copy_jobs(db: sqlite3.Connection, model: int, first: int, count: int) -> None:
    """Copies of a job's rows with ids of their own, in whatever tables it has some."""
    db.execute("BEGIN")
    ids = [(job, model) for job in range(first, first + count)]
    for table, column in (
        ("job", "id"),
        ("event", "job"),
        ("guest", "job"),
        ("kv", "job"),
        ("active", "id"),
        ("done", "id"),
    ):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] not in (column, "seq")]
        into, values = ",".join([column, *names]), ",".join(["?", *names])
        db.executemany(f"INSERT INTO {table}({into}) SELECT {values} FROM {table} WHERE {column}=?", ids)
    db.execute("COMMIT")


def restart(inactive: tuple[int, ...] = INACTIVE, active: int = ACTIVE, rounds: int = 3) -> dict[str, float]:
    """Start with 1,000 active jobs and 1k, 10k, 100k inactive ones: it must not grow with these."""
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as name:
        base = Path(name)
        daemon, _ = start(base)
        with Client(f"local://{base}/sock", start=False) as client:
            spec = jobspec.build(["true"], cwd="/", environment=dict(os.environ))
            ended, held = client.submit(spec), client.submit(spec, 0)
            client.wait(ended)
        end(base, daemon)
        db = sqlite3.connect(base / "state" / "leveret.db", isolation_level=None)
        copy_jobs(db, held, 1, active - 1)
        there = 0
        for count in inactive:
            copy_jobs(db, ended, 1_000_000 + there, count - there)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            there = count
            taken, memory = [], []
            for _ in range(rounds):
                daemon, seconds = start(base)
                taken.append(seconds)
                memory.append(high_water_mib(daemon.pid))
                end(base, daemon)
            label = f"{count // 1000}k" if count >= 1000 else str(count)
            results[f"start_{label}_s"] = sorted(taken)[rounds // 2]
            results[f"memory_{label}_mib"] = max(memory)
        db.close()
    first, last = (f"start_{c // 1000}k_s" if c >= 1000 else f"start_{c}_s" for c in (inactive[0], inactive[-1]))
    return {**results, "ratio": results[last] / results[first]}
