"""Is an instance's state whole? `check` only reads, also beside a running daemon; `repair` wants the directory for itself.

What is found is a list of problems `{what, severity, id, f58, message}`. `what`: database (pages, schema), job (its records: it
would be quarantined), log (RFC 21), orphan (rows of no job), output (files). An `error` is something lost or damaged; a
`warning` keeps nobody from anything.

A repair never drops silently: a damaged database is kept beside the new one, rows and files of no job go to `lost+found`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from leveret.core import jobid as jobids
from leveret.core import jobspec as jobspecs
from leveret.core import logcheck, resources
from leveret.core.job import replay
from leveret.errors import ConfigError, LeveretError, NotFoundError
from leveret.store import salvage
from leveret.store.backup import output_ends
from leveret.store.sqlite import schema_version

DATABASE = "leveret.db"
LOST_AND_FOUND = "lost+found"
#: lines that PRAGMA integrity_check may say
SAID_MAX = 100
Problem = dict[str, Any]
_decode = msgspec.json.Decoder().decode


class Report:
    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.schema = 0
        self.jobs = 0
        self.problems: list[Problem] = []
        self.repaired: list[str] = []

    def add(self, what: str, message: str, jobid: int | None = None, severity: str = "error") -> None:
        f58 = jobids.encode(jobid) if jobid else ""
        self.problems.append({"what": what, "severity": severity, "id": jobid, "f58": f58, "message": message})

    def to_dict(self) -> dict[str, Any]:
        return {
            "state_dir": str(self.state_dir),
            "schema": self.schema,
            "jobs": self.jobs,
            "problems": self.problems,
            "repaired": self.repaired,
            "left": len(self.problems),
        }


def check(state_dir: Path) -> Report:
    """Raises NotFoundError and ConfigError where there is nothing that could be checked."""
    path = state_dir / DATABASE
    if not path.is_file():
        raise NotFoundError(f"there is no instance in `{state_dir}`: no {DATABASE}", path=str(path))
    report = Report(state_dir)
    try:
        with closing(_open(path)) as db:
            db.execute("BEGIN")  # one moment, whatever a daemon does meanwhile
            _database(db, report)
            if any("integrity" in problem["message"] for problem in report.problems):
                # its rows are read one by one in a repair; a damaged page says little about a single job
                report.jobs = _count(db)
                return report
            _jobs(db, report)
            _orphans(db, report)
        _outputs(state_dir, report)
    except sqlite3.DatabaseError as error:
        report.add("database", f"integrity: {error}")
    return report


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10, isolation_level=None)
    db.execute("PRAGMA query_only=ON")
    return db


def _count(db: sqlite3.Connection) -> int:
    try:
        return int(db.execute("SELECT count(*) FROM job").fetchone()[0])
    except sqlite3.Error:
        return 0


def _database(db: sqlite3.Connection, report: Report) -> None:
    report.schema = db.execute("PRAGMA user_version").fetchone()[0]
    if report.schema > schema_version():
        raise ConfigError(
            f"{report.state_dir / DATABASE}: the database has schema {report.schema}, "
            f"this Leveret knows up to {schema_version()}",
            "use the newer Leveret's fsck",
        )
    if report.schema < schema_version():
        raise ConfigError(
            f"{report.state_dir / DATABASE}: the database has schema {report.schema}, of an earlier Leveret",
            "start this Leveret on it once: it is migrated then",
        )
    said = [row[0] for row in db.execute(f"PRAGMA integrity_check({SAID_MAX})")]
    if said != ["ok"]:
        for text in said:
            report.add("database", f"integrity: {text}")


def _rows(db: sqlite3.Connection, jobid: int) -> Iterator[tuple[int, bytes]]:
    yield from db.execute("SELECT n, line FROM event WHERE job=? ORDER BY n", (jobid,))


def _jobs(db: sqlite3.Connection, report: Report) -> None:
    """Every job's records, as a daemon would read them at its start, and whether its log keeps the rules."""
    environments: dict[str, bool] = {}
    for digest, body in db.execute("SELECT hash, body FROM env"):
        environments[digest] = hashlib.blake2b(body, digest_size=16).hexdigest() == digest
    active = {row[0] for row in db.execute("SELECT id FROM active")}
    done = {row[0] for row in db.execute("SELECT id FROM done")}
    for jobid, env, spec in db.execute("SELECT id, env, jobspec FROM job ORDER BY id"):
        report.jobs += 1
        if jobid not in active and jobid not in done:
            report.add("job", "it is neither active nor done", jobid)
        try:
            events = logcheck.whole(_rows(db, jobid))
            job = replay(jobid, events)
            jobspecs.digest(_decode(spec))
            if env is not None and not environments.get(env):
                report.add("job", "its environment is missing or damaged", jobid)
            if jobid in active and job.done:
                report.add("job", "the eventlog ends with `clean`, and its record is missing", jobid)
            if jobid in done and not job.done:
                report.add("job", "it has a final record, and its eventlog does not end with `clean`", jobid)
            _kept(db, jobid, job.allocated and not job.freed, report)
        except (LeveretError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            report.add("job", getattr(error, "message", f"{type(error).__name__}: {error}"), jobid)
            continue
        text = b"".join(line + b"\n" for _, line in _rows(db, jobid))
        for problem in logcheck.check(text).problems:
            report.add("log", f"event {problem.line}: {problem.message}", jobid, "warning")
        if jobid in done:
            body = db.execute("SELECT record FROM done WHERE id=?", (jobid,)).fetchone()[0]
            try:
                whole = _decode(body)["id"] == jobid
            except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
                whole = False
            if not whole:
                report.add("job", "its final record is damaged", jobid)


def _kept(db: sqlite3.Connection, jobid: int, holds_resources: bool, report: Report) -> None:
    row = db.execute("SELECT value FROM kv WHERE job=? AND key='R'", (jobid,)).fetchone()
    if row is not None:
        resources.from_dict(_decode(row[0]))
    elif holds_resources:
        report.add("job", "its resources (R) are missing", jobid)
    for key, value in db.execute("SELECT key, value FROM kv WHERE job=? AND key >= 'ask/' AND key < 'ask0'", (jobid,)):
        try:
            whole = isinstance(_decode(value), list)
        except (msgspec.DecodeError, UnicodeDecodeError):
            whole = False
        if not whole:
            report.add("job", f"`{key}`: what was asked of a helper cannot be read", jobid)


#: table → its column that names a job
OWNED = {"event": "job", "guest": "job", "kv": "job", "active": "id", "done": "id"}


def _orphans(db: sqlite3.Connection, report: Report) -> None:
    for jobid, tables in orphans(db).items():
        report.add("orphan", f"rows of a job that is not there: {', '.join(tables)}", jobid)


def orphans(db: sqlite3.Connection) -> dict[int, list[str]]:
    """Job → tables that have rows of it, of jobs that have no row of their own."""
    found: dict[int, list[str]] = {}
    for table, column in OWNED.items():
        rows = db.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} NOT IN (SELECT id FROM job)")
        for (jobid,) in rows:
            found.setdefault(jobid, []).append(table)
    return found


def _outputs(state_dir: Path, report: Report) -> None:
    known: set[Path] = set()
    for node, file, end in output_ends(state_dir / DATABASE):
        path = state_dir / f"nodes/node{node}/output/{file}"
        known.add(path)
        try:
            size = path.stat().st_size
        except OSError:
            report.add("output", f"`{path.relative_to(state_dir)}` is missing: {end} bytes of output")
            continue
        if size < end:
            report.add("output", f"`{path.relative_to(state_dir)}` has {size} bytes, {end} are known")
    for path in stray_outputs(state_dir, known):
        report.add("output", f"`{path.relative_to(state_dir)}` belongs to no job", severity="warning")


def stray_outputs(state_dir: Path, known: set[Path]) -> list[Path]:
    """Output files of no job. Those of active jobs may be written before the database has heard of them."""
    with closing(_open(state_dir / DATABASE)) as db:
        active = {name for row in db.execute("SELECT id FROM active") for name in (str(row[0]), f"{row[0]:016x}")}
        leftover = {f"node{node}/output/{file}" for node, file in db.execute("SELECT node, file FROM leftover")}
    found = []
    for path in sorted((state_dir / "nodes").glob("node*/output/**/*")):
        name = str(path.relative_to(state_dir / "nodes"))
        owners = set(re.split(r"[^0-9a-f]+", name.partition("/")[2]))
        if path.is_file() and path not in known and name not in leftover and not owners & active:
            found.append(path)
    return found


# ---- repair ----------------------------------------------------------------------------------------------


def repair(state_dir: Path) -> Report:
    """Mend what can be, and check again. The caller holds the directory's lock."""
    first = check(state_dir)
    repaired: list[str] = []
    if any(problem["what"] == "database" for problem in first.problems):
        repaired += _rebuild(state_dir)
    elif not first.problems:
        return first
    with closing(sqlite3.connect(state_dir / DATABASE, isolation_level=None, timeout=10)) as db:
        db.execute("PRAGMA synchronous=FULL")
        repaired += _put_away(db, state_dir)
        repaired += _readmit(db)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    repaired += _put_away_files(state_dir)
    report = check(state_dir)
    report.repaired = repaired
    return report


def _rebuild(state_dir: Path) -> list[str]:
    """A new database of every row that can still be read; the old one is kept."""
    path = state_dir / DATABASE
    fresh = state_dir / f"{DATABASE}.rebuilt"
    counts = salvage.rebuild(path, fresh)
    kept = f"{DATABASE}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    for end in ("-wal", "-shm"):
        if (beside := Path(f"{path}{end}")).exists():
            os.rename(beside, state_dir / f"{kept}{end}")
    os.rename(path, state_dir / kept)
    os.rename(fresh, path)
    _sync_directory(state_dir)
    rows = ", ".join(f"{count} {table}" for table, count in counts.items() if count)
    return [f"database: rebuilt of what could be read ({rows}); the damaged one is `{kept}`"]


def _put_away(db: sqlite3.Connection, state_dir: Path) -> list[str]:
    """Rows of no job become a file each, and go."""
    done: list[str] = []
    for jobid, tables in orphans(db).items():
        record: dict[str, Any] = {"id": jobid}
        for table in tables:
            cursor = db.execute(f"SELECT * FROM {table} WHERE {OWNED[table]}=?", (jobid,))
            names = [column[0] for column in cursor.description]
            record[table] = [dict(zip(names, map(_plain, row), strict=True)) for row in cursor]
        name = _keep(state_dir, f"{jobid}.json", record)
        db.execute("BEGIN")
        for table in tables:
            db.execute(f"DELETE FROM {table} WHERE {OWNED[table]}=?", (jobid,))
        db.execute("COMMIT")
        done.append(f"{jobids.encode(jobid)}: rows of no job are in `{name}`")
    return done


def _readmit(db: sqlite3.Connection) -> list[str]:
    """A job that is neither active nor done is looked at by the daemon again: it goes on, or is quarantined."""
    rows = db.execute(
        "SELECT id FROM job WHERE id NOT IN (SELECT id FROM active) AND id NOT IN (SELECT id FROM done)"
    ).fetchall()
    db.executemany("INSERT INTO active VALUES(?)", rows)
    return [f"{jobids.encode(row[0])}: it is active again" for row in rows]


def _put_away_files(state_dir: Path) -> list[str]:
    known = {state_dir / f"nodes/node{node}/output/{file}" for node, file, _ in output_ends(state_dir / DATABASE)}
    done = []
    for path in stray_outputs(state_dir, known):
        text = str(path.relative_to(state_dir))
        name = _keep(state_dir, text.replace("/", "-"), path)
        done.append(f"`{text}` is now `{name}`")
    return done


def _keep(state_dir: Path, name: str, what: dict[str, Any] | Path) -> str:
    """Put a record, or a file, into lost+found. Returns where it is."""
    folder = state_dir / LOST_AND_FOUND
    folder.mkdir(mode=0o700, exist_ok=True)
    path, number = folder / name, 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{name}.{number}"
    if isinstance(what, Path):
        shutil.move(what, path)
    else:
        path.write_text(json.dumps(what))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    _sync_directory(folder)
    return str(path.relative_to(state_dir))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    return value


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
