"""The durable store: SQLite in WAL mode with synchronous=FULL, one writer, group commit.

A commit belongs to a writer thread, so that a slow disk never stops the loop. Where the disk answers within
INLINE_S, handing it to the thread costs more than the commit (two GIL hand-overs, 0.3 ms each while the loop is
busy, against 0.25 ms): then it is made at the end of the loop pass itself. Which of the two is decided by what
recent commits took; see bench/README.md for the figures.

Everything that one turn of the manager brings about is one `Batch`; a batch is stored whole or not
at all. What arrives during one commit goes into the next transaction. `on_commit` runs in the
event loop, in order, after the transaction that holds the batch is on disk.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

from leveret.errors import BusyError, ConfigError

#: rows of one INSERT into `sink`; more rows need a transaction of several statements
ROWS_PER_STATEMENT = 64
#: average duration of a commit in the loop's thread, in seconds, below which the next one is made there too
INLINE_S = 0.002
#: every so many commits of the writer thread one is tried in the loop's thread, to see whether the disk is fast (again);
#: not where that took longer than PROBE_S_MAX the last time
PROBE_EVERY, PROBE_S_MAX = 32, 0.02
#: rows that a commit in the loop's thread may have
INLINE_ROWS = 4 * ROWS_PER_STATEMENT
EVENT, GUEST, JOB, PUT, DELETE, DONE, ENV = range(7)
Op = tuple[str, tuple[Any, ...]]
#: (kind, job, n, key, num, value):
#: EVENT (job, n, -, -, line)  GUEST (job, n, path, 2*count+extent, lines)  JOB (job, userid, env hash, t_submit, jobspec)
#: PUT (job, -, key, -, value)  DELETE (job, -, key, -, -)  DONE (job, -, result, t_inactive, record)  ENV (-, -, hash, -, body)
Row = tuple[int, int, int, "str | None", "float | int", "bytes | None"]


class Batch(Protocol):
    """What one turn writes (the manager's own class fits by shape)."""

    @property
    def rows(self) -> list[Row]: ...
    @property
    def ops(self) -> list[Op]: ...  #: rare statements, after the rows
    @property
    def urgent(self) -> list[Callable[[], None]]: ...  #: as on_commit, but before those of every batch
    @property
    def on_commit(self) -> list[Callable[[], None]]: ...


class _Barrier:
    """A batch that writes nothing."""

    __slots__ = ("on_commit", "ops", "rows", "urgent")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.rows: list[Row] = []
        self.ops: list[Op] = []
        self.urgent: list[Callable[[], None]] = []
        self.on_commit = [callback]


_SQL = [""] + ["INSERT INTO sink VALUES " + ",".join(["(?,?,?,?,?,?)"] * n) for n in range(1, ROWS_PER_STATEMENT + 1)]


def migrations() -> list[Traversable]:
    """The numbered files, in order; a schema's version is how many of them have been applied."""
    files = resources.files("leveret.store").joinpath("migrations").iterdir()
    return sorted((f for f in files if f.name.endswith(".sql")), key=lambda f: f.name)


def schema_version() -> int:
    return len(migrations())


class Store:
    """One database file. `read` is for the loop's thread; writes go through `commit`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: queue.SimpleQueue[list[Batch] | None] = queue.SimpleQueue()
        self._pending: list[Batch] = []
        self._writing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failed: Exception | None = None
        self.on_failure: Callable[[Exception], None] | None = None
        self.commits = 0
        self._average_s = 0.0  #: of commits in the loop's thread
        self._in_thread = 0  #: commits of the writer thread since the last one in the loop's
        self._writer = self._connect()
        self._migrate()
        self.read = self._connect()
        self.read.execute("PRAGMA query_only=ON")
        self._thread: threading.Thread | None = None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=10, cached_statements=256
        )
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise ConfigError(
                f"{self.path}: this file system cannot hold a write-ahead log", "choose a local --statedir"
            )
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA foreign_keys=OFF")
        return db

    def _migrate(self) -> None:
        files = migrations()
        version = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if version > len(files):
            raise ConfigError(
                f"{self.path}: the database has schema {version}, this Leveret knows up to {len(files)}",
                "start the newer Leveret again, or restore a backup",
            )
        for number, file in enumerate(files[version:], version + 1):
            script = file.read_text()
            self._writer.executescript(f"BEGIN;\n{script}\nPRAGMA user_version={number};\nCOMMIT;")

    # ---- writing -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to accept commits; call from the loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def commit(self, batch: Batch) -> None:
        """Queue one turn; its on_commit callbacks run once it is on disk."""
        if self.failed is not None:
            raise BusyError(f"the store has failed: {self.failed}")
        self._pending.append(batch)
        if not self._writing:
            self._writing = True
            # at the end of this loop pass: the turns of one pass share a transaction
            assert self._loop is not None
            self._loop.call_soon(self._hand_over)

    @property
    def backlog(self) -> int:
        """Turns that wait for the writer."""
        return len(self._pending)

    async def barrier(self) -> None:
        """Return once everything committed so far is on disk (at once when nothing is under way).

        Raises BusyError when the store has failed.
        """
        if self.failed is not None:
            raise BusyError(f"the store has failed: {self.failed}")
        if not self._writing:
            return
        assert self._loop is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._pending.append(_Barrier(lambda: None if future.done() else future.set_result(None)))
        await future

    def _hand_over(self) -> None:
        if not self._pending:
            self._writing = False
            return
        batches, self._pending = self._pending, []
        rows = sum(len(batch.rows) for batch in batches)
        probe = self._in_thread >= PROBE_EVERY and self._average_s < PROBE_S_MAX
        if rows <= INLINE_ROWS and (self._average_s < INLINE_S or probe):
            self._in_thread = 0
            began = time.perf_counter()
            error = self._try(batches)
            self._average_s += 0.2 * (time.perf_counter() - began - self._average_s)
            self._committed(batches, error)
        else:
            self._in_thread += 1
            self._queue.put(batches)

    def _work(self) -> None:
        while True:
            batches = self._queue.get()
            if batches is None:
                return
            error = self._try(batches)
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._committed, batches, error)
            except RuntimeError:  # the loop has ended
                return

    def _try(self, batches: list[Batch]) -> Exception | None:
        try:
            self._write(batches)
        except Exception as error:
            return error
        return None

    def _write(self, batches: list[Batch]) -> None:
        rows = [row for batch in batches for row in batch.rows]
        ops = [op for batch in batches for op in batch.ops]
        if not (rows or ops):
            return
        cursor = self._writer.cursor()
        if len(rows) <= ROWS_PER_STATEMENT and not ops:
            # one statement is a transaction of its own
            cursor.execute(_SQL[len(rows)], [value for row in rows for value in row])
            self.commits += 1
            return
        cursor.execute("BEGIN IMMEDIATE")
        try:
            for start in range(0, len(rows), ROWS_PER_STATEMENT):
                part = rows[start : start + ROWS_PER_STATEMENT]
                cursor.execute(_SQL[len(part)], [value for row in part for value in row])
            for sql, args in ops:
                cursor.execute(sql, args)
            cursor.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        self.commits += 1

    def _committed(self, batches: list[Batch], error: Exception | None) -> None:
        if error is not None:
            self.failed = error
            if self.on_failure is not None:
                self.on_failure(error)
            return
        callbacks = [callback for batch in batches for callback in batch.urgent]
        callbacks += [callback for batch in batches for callback in batch.on_commit]
        for callback in callbacks:
            try:
                callback()
            except Exception as caught:
                # what one turn brings about must not keep the others from the disk
                assert self._loop is not None
                self._loop.call_exception_handler({"message": "after a commit", "exception": caught})
        if self._pending:
            assert self._loop is not None
            self._loop.call_soon(self._hand_over)
        else:
            self._writing = False

    def close(self) -> None:
        """Write what is queued and close; safe after the loop has ended."""
        if self._thread is not None:
            if self._pending and self.failed is None:
                self._queue.put(self._pending)
                self._pending = []
            self._queue.put(None)
            self._thread.join(timeout=30)
        self.read.close()
        self._writer.close()

    # ---- reading (bounded; the caller pages) ------------------------------------------------------

    def meta(self, key: str) -> str | None:
        row = self.read.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta_now(self, key: str, value: str) -> None:
        """Before `start` only: write one setting at once."""
        self._writer.execute(
            "INSERT INTO meta VALUES(?,?) ON CONFLICT(key) DO UPDATE SET value=excluded.value", (key, value)
        )

    def events(self, job: int, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        """(n, line) of a job's eventlog with n > after; n counts from 1."""
        return self.read.execute(
            "SELECT n, line FROM event WHERE job=? AND n>? ORDER BY n LIMIT ?", (job, after, limit)
        ).fetchall()

    def all_events(self, job: int) -> Iterator[bytes]:
        after = 0
        while page := self.events(job, after):
            for n, line in page:
                after = n
                yield line

    def guest(self, job: int, path: str, at: int = 1, limit: int = 64) -> list[tuple[int, int, int, bytes]]:
        """(n, count, extent, lines) of the chunks that hold line `at` and those after it; lines count from 1."""
        return self.read.execute(
            "SELECT n, count, extent, lines FROM guest WHERE job=? AND path=? AND n >= "
            "coalesce((SELECT max(n) FROM guest WHERE job=? AND path=? AND n<=?), 0) AND n + count > ? ORDER BY n LIMIT ?",
            (job, path, job, path, at, at, limit),
        ).fetchall()

    def guest_paths(self, job: int) -> list[str]:
        return [r[0] for r in self.read.execute("SELECT DISTINCT path FROM guest WHERE job=?", (job,))]

    def guest_next(self, job: int) -> dict[str, int]:
        """path → number of the next line."""
        rows = self.read.execute("SELECT path, max(n+count) FROM guest WHERE job=? GROUP BY path", (job,))
        return {str(path): int(n) for path, n in rows}

    def kv(self, job: int, key: str) -> bytes | None:
        row = self.read.execute("SELECT value FROM kv WHERE job=? AND key=?", (job, key)).fetchone()
        return None if row is None else bytes(row[0])

    def kv_under(self, job: int, prefix: str) -> dict[str, bytes]:
        """key → value of the keys that begin with `prefix`, in order."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        rows = self.read.execute(
            "SELECT key, value FROM kv WHERE job=? AND key>=? AND key<? ORDER BY key", (job, prefix, end)
        )
        return {str(key): bytes(value) for key, value in rows}

    def kv_keys(self, job: int) -> list[str]:
        return [r[0] for r in self.read.execute("SELECT key FROM kv WHERE job=? ORDER BY key", (job,))]

    def kv_of_active(self, prefix: str) -> list[tuple[int, str, bytes]]:
        """(job, rest of the key, value) of every key of active jobs that begins with `prefix`."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        # CROSS JOIN: SQLite keeps this order of the tables; the other one reads the keys of every inactive job
        rows = self.read.execute(
            "SELECT kv.job, kv.key, kv.value FROM active CROSS JOIN kv ON kv.job = active.id WHERE kv.key >= ? AND kv.key < ?",
            (prefix, end),
        )
        return [(int(job), str(key)[len(prefix) :], bytes(value)) for job, key, value in rows]

    def active_ids(self) -> list[int]:
        return [r[0] for r in self.read.execute("SELECT id FROM active ORDER BY id")]

    def job_row(self, job: int) -> tuple[int, bytes, str | None] | None:
        """(userid, jobspec without its environment, env hash) or None."""
        row: Any = self.read.execute("SELECT userid, jobspec, env FROM job WHERE id=?", (job,)).fetchone()
        return row  # type: ignore[no-any-return]

    def done_record(self, job: int) -> bytes | None:
        """The final record of an inactive job."""
        row = self.read.execute("SELECT record FROM done WHERE id=?", (job,)).fetchone()
        return None if row is None else bytes(row[0])

    def env(self, digest: str) -> bytes:
        row = self.read.execute("SELECT body FROM env WHERE hash=?", (digest,)).fetchone()
        return b"{}" if row is None else bytes(row[0])

    def inactive(self, limit: int, since: float = 0.0) -> Iterable[bytes]:
        """Final records of jobs that ended at `since` or later, the newest job first."""
        return (
            r[0]
            for r in self.read.execute(
                "SELECT record FROM done WHERE t_inactive>=? ORDER BY id DESC LIMIT ?", (since, limit)
            )
        )

    def inactive_count(self) -> int:
        return int(self.read.execute("SELECT count(*) FROM done").fetchone()[0])

    def result_counts(self) -> dict[str, int]:
        """Result → inactive jobs that ended with it."""
        return dict(self.read.execute("SELECT result, count(*) FROM done GROUP BY result").fetchall())

    # ---- purging (manager/purge.py) -----------------------------------------------------------------

    def ended_before(self, when: float) -> int:
        """How many inactive jobs ended at `when` or before."""
        return int(self.read.execute("SELECT count(*) FROM done WHERE t_inactive<=?", (when,)).fetchone()[0])

    def first_ended(self, limit: int) -> list[int]:
        """The inactive jobs that ended first."""
        return [r[0] for r in self.read.execute("SELECT id FROM done ORDER BY t_inactive, id LIMIT ?", (limit,))]

    def output_files(self, jobs: list[int]) -> list[tuple[int, str]]:
        """(node, file) of every output file of these jobs."""
        some = ",".join(map(str, jobs))
        rows = self.read.execute(
            "SELECT DISTINCT json_extract(lines, '$.node'), json_extract(lines, '$.file') "
            f"FROM guest WHERE job IN ({some}) AND extent=1"
        )
        return [(int(node), str(file)) for node, file in rows]

    def envs_of(self, jobs: list[int]) -> list[str]:
        """Hashes of the environments of these jobs."""
        some = ",".join(map(str, jobs))
        return [r[0] for r in self.read.execute(f"SELECT DISTINCT env FROM job WHERE id IN ({some}) AND env NOT NULL")]

    def leftovers(self) -> list[tuple[int, str]]:
        """(node, file) of output files of purged jobs that were not unlinked yet."""
        return self.read.execute("SELECT node, file FROM leftover").fetchall()

    def purged(self, job: int) -> tuple[str, int, int | None, str] | None:
        """(result, started, wait status, type of the fatal exception) of a purged job."""
        row: Any = self.read.execute("SELECT result, started, status, cause FROM purged WHERE id=?", (job,)).fetchone()
        return row  # type: ignore[no-any-return]

    def purged_count(self) -> int:
        return int(self.read.execute("SELECT count(*) FROM purged").fetchone()[0])

    def waitable_ids(self) -> list[int]:
        """Jobs with the flag `waitable` that have ended and that nobody has waited for."""
        return [r[0] for r in self.read.execute("SELECT id FROM waitable ORDER BY id")]

    def resource_events(self, after: int = 0, limit: int = -1) -> list[tuple[int, bytes]]:
        """(n, line) of the resource eventlog with n > after."""
        return self.read.execute(
            "SELECT n, line FROM resource_event WHERE n>? ORDER BY n LIMIT ?", (after, limit)
        ).fetchall()

    def notes(self, kind: str) -> list[tuple[str, bytes]]:
        """(name, value) of what is remembered of a kind."""
        return self.read.execute("SELECT name, value FROM note WHERE kind=? ORDER BY name", (kind,)).fetchall()

    def housekeeping(self) -> list[tuple[int, int, bytes]]:
        """(job, node, body) of every node that is in housekeeping."""
        return self.read.execute("SELECT job, node, body FROM housekeeping ORDER BY job, node").fetchall()

    def note_names(self, kind: str) -> list[str]:
        return [r[0] for r in self.read.execute("SELECT name FROM note WHERE kind=? ORDER BY name", (kind,))]

    def note(self, kind: str, name: str) -> bytes | None:
        row = self.read.execute("SELECT value FROM note WHERE kind=? AND name=?", (kind, name)).fetchone()
        return None if row is None else bytes(row[0])

    def plugins(self) -> list[tuple[str, str, bytes]]:
        return self.read.execute("SELECT name, source, conf FROM plugin ORDER BY position").fetchall()

    def last_id(self) -> int:
        row = self.read.execute("SELECT max(id) FROM (SELECT max(id) AS id FROM job UNION SELECT max(id) FROM purged)")
        return int(row.fetchone()[0] or 0)
