"""A new database of every row of a damaged one that can still be read.

A damaged page makes every read that touches it fail, and a scan end there. So tables are read from both ends, and what
lies between job by job, and event by event, by the ids that are known from any table or index.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from leveret.store.sqlite import migrations

#: table → (columns that are its key, the first of them is the job's id or None)
TABLES: dict[str, tuple[tuple[str, ...], bool]] = {
    "meta": (("key",), False),
    "env": (("hash",), False),
    "plugin": (("name",), False),
    "leftover": (("node", "file"), False),
    "resource_event": (("n",), False),
    "job": (("id",), True),
    "active": (("id",), True),
    "done": (("id",), True),
    "purged": (("id",), True),
    "waitable": (("id",), True),
    "event": (("job", "n"), True),
    "guest": (("job", "path", "n"), True),
    "kv": (("job", "key"), True),
}
#: indexes that know ids when the table itself cannot be read
ID_QUERIES = (
    "SELECT id FROM job", "SELECT id FROM active", "SELECT id FROM done", "SELECT job FROM event",
    "SELECT DISTINCT job FROM event INDEXED BY sqlite_autoindex_event_1", "SELECT job FROM kv", "SELECT job FROM guest",
    "SELECT id FROM done INDEXED BY done_time",
)  # fmt: skip


def rebuild(damaged: Path, fresh: Path) -> dict[str, int]:
    """Write `fresh`. Returns table → rows. Raises sqlite3.DatabaseError when nothing at all can be read."""
    for end in ("", "-wal", "-shm", "-journal"):
        Path(f"{fresh}{end}").unlink(missing_ok=True)
    counts: dict[str, int] = {}
    with closing(_open(damaged)) as old, closing(sqlite3.connect(fresh, isolation_level=None)) as new:
        new.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for number, file in enumerate(migrations(), 1):
            new.executescript(f"BEGIN;\n{file.read_text()}\nPRAGMA user_version={number};\nCOMMIT;")
        tables = {row[0] for row in old.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        ids = _ids(old)
        new.execute("BEGIN")
        for table in _all_tables(new):
            if table not in tables:
                continue
            names = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
            sql = f"INSERT OR IGNORE INTO {table}({','.join(names)}) VALUES({','.join('?' * len(names))})"
            for row in _rows(old, table, names, ids):
                with contextlib.suppress(sqlite3.IntegrityError, sqlite3.InterfaceError):
                    new.execute(sql, row)
            counts[table] = int(new.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        new.execute("COMMIT")
    fresh.chmod(0o600)
    fd = os.open(fresh, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return counts


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=10)
    db.execute("PRAGMA query_only=ON")
    return db


def _all_tables(db: sqlite3.Connection) -> list[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'")
    return [row[0] for row in rows]


def _ids(db: sqlite3.Connection) -> list[int]:
    found: set[int] = set()
    for sql in ID_QUERIES:
        with contextlib.suppress(sqlite3.Error):
            for (jobid,) in db.execute(sql):
                if isinstance(jobid, int):
                    found.add(jobid)
    return sorted(found)


def _rows(db: sqlite3.Connection, table: str, names: list[str], ids: list[int]) -> Iterator[tuple[Any, ...]]:
    """Every row that can be read; some may come twice."""
    columns = ",".join(names)
    key, has_job = TABLES.get(table, ((names[0],), False))
    order = ",".join(key)
    whole = yield from _scan(db, f"SELECT {columns} FROM {table} ORDER BY {order}")
    if whole:
        return
    backwards = ",".join(f"{column} DESC" for column in key)
    yield from _scan(db, f"SELECT {columns} FROM {table} ORDER BY {backwards}")
    yield from _scan(db, f"SELECT {columns} FROM {table} NOT INDEXED")
    if not has_job:
        return
    for jobid in ids:
        whole = yield from _scan(db, f"SELECT {columns} FROM {table} WHERE {key[0]}=? ORDER BY {order}", (jobid,))
        if not whole and table == "event":
            yield from _one_by_one(db, columns, jobid)


def _scan(db: sqlite3.Connection, sql: str, args: Iterable[Any] = ()) -> Generator[tuple[Any, ...], None, bool]:
    """Rows up to the first that cannot be read; returns whether that was the end."""
    try:
        yield from db.execute(sql, tuple(args))
    except sqlite3.Error:
        return False
    return True


def _one_by_one(db: sqlite3.Connection, columns: str, jobid: int) -> Iterator[tuple[Any, ...]]:
    try:
        numbers = [row[0] for row in db.execute("SELECT n FROM event WHERE job=?", (jobid,))]
    except sqlite3.Error:
        return
    for n in numbers:
        yield from _scan(db, f"SELECT {columns} FROM event WHERE job=? AND n=?", (jobid, n))
