"""A copy of an instance while it runs (`dump`), and an instance made of a copy (`restore`).

A dump is a directory, or a tar file of one:

    MANIFEST.json               format, version, versions, and each file with its size and SHA-256
    leveret.db                  one consistent moment of the database, compact (VACUUM INTO)
    nodes/nodeN/output/…        the output files, as far as that database knows them

Everything here blocks, and belongs into a thread: SQLite gives up the GIL, writers are not held up by a reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from leveret import __version__
from leveret.errors import ConfigError, ConflictError, FormatError, InvalidError, NotFoundError
from leveret.store.sqlite import schema_version

FORMAT, VERSION = "leveret-dump", 1
MANIFEST, DATABASE = "MANIFEST.json", "leveret.db"
PIECE_BYTES = 1 << 20


# ---- dump -----------------------------------------------------------------------------------------------


def dump(state_dir: Path, target: Path, archive: bool) -> dict[str, Any]:
    """Copy the instance to `target`, which must not exist. Returns {path, bytes, files}. Nothing is left of a failure.

    No output file may be unlinked meanwhile. Raises ConflictError, NotFoundError, InvalidError.
    """
    if not target.is_absolute():
        raise InvalidError("the path must be absolute", path="path")
    if os.path.lexists(target):
        raise ConflictError(f"`{target}` exists already", "a dump never overwrites", str(target))
    if not target.parent.is_dir():
        raise NotFoundError(f"`{target.parent}` is not a directory", path=str(target))
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    tar_part = part.with_suffix(".tar")
    try:
        part.mkdir(mode=0o700)
        manifest = _fill(state_dir, part)
        if archive:
            _pack(part, manifest, tar_part)
            _publish(tar_part, target)
        else:
            _publish(part, target)
    except OSError as error:
        raise InvalidError(f"cannot dump to `{target}`: {error.strerror or error}", path=str(target)) from error
    except sqlite3.Error as error:
        raise InvalidError(f"cannot dump to `{target}`: {error}", "see `leveret fsck`", str(target)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        tar_part.unlink(missing_ok=True)
    size = sum(int(file["size"]) for file in manifest["files"])
    return {"path": str(target), "bytes": size, "files": len(manifest["files"]), "missing": manifest["missing"]}


def _fill(state_dir: Path, part: Path) -> dict[str, Any]:
    database = part / DATABASE
    with closing(sqlite3.connect(state_dir / DATABASE, timeout=60, isolation_level=None)) as db:
        db.execute("VACUUM INTO ?", (str(database),))
    database.chmod(0o600)
    files = [_entry(database, DATABASE)]
    missing: list[str] = []
    for node, file, end in output_ends(database):
        name = f"nodes/node{node}/output/{file}"
        if not _safe(name):
            continue
        copy = part / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(state_dir / name, "rb") as source, open(copy, "wb") as out:
                _copy(source, out, end)
                _sync(out)
        except FileNotFoundError:
            missing.append(name)
            continue
        files.append(_entry(copy, name))
    with open(database, "rb") as done:
        os.fsync(done.fileno())
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "leveret": __version__,
        "schema": schema_version(),
        "dumped": time.time(),
        "host": os.uname().nodename,
        "state_dir": str(state_dir),
        "missing": missing,
        "files": files,
    }
    with open(part / MANIFEST, "w") as out_text:
        json.dump(manifest, out_text, indent=1)
        out_text.flush()
        os.fsync(out_text.fileno())
    return manifest


def output_ends(database: Path) -> list[tuple[int, str, int]]:
    """(node, file, bytes) of each output file that a database refers to."""
    with closing(sqlite3.connect(database)) as db:
        rows = db.execute(
            "WITH extents AS (SELECT CAST(lines AS TEXT) AS body FROM guest WHERE extent=1 AND json_valid(CAST(lines AS TEXT))) "
            "SELECT json_extract(body, '$.node'), json_extract(body, '$.file'), max(json_extract(body, '$.end')) "
            "FROM extents GROUP BY 1, 2"
        )
        return [(int(node), str(file), int(end)) for node, file, end in rows]


def _pack(part: Path, manifest: dict[str, Any], target: Path) -> None:
    with open(target, "xb") as out, tarfile.open(fileobj=out, mode="w") as tar:
        os.fchmod(out.fileno(), 0o600)
        for name in (MANIFEST, *(file["name"] for file in manifest["files"])):
            tar.add(part / name, name, recursive=False)
        tar.close()
        _sync(out)


def _publish(part: Path, target: Path) -> None:
    # a link or rename that fails when the target has come meanwhile
    if part.is_dir():
        if os.path.lexists(target):
            raise ConflictError(f"`{target}` exists already", path=str(target))
        os.rename(part, target)
    else:
        try:
            os.link(part, target)
        except FileExistsError:
            raise ConflictError(f"`{target}` exists already", path=str(target)) from None
    fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(source: IO[bytes], out: IO[bytes], count: int) -> None:
    while count > 0 and (piece := source.read(min(PIECE_BYTES, count))):
        out.write(piece)
        count -= len(piece)


def _sync(out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())


def _entry(path: Path, name: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": name, "size": path.stat().st_size, "sha256": digest}


def _safe(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts) and "\0" not in name


# ---- restore ---------------------------------------------------------------------------------------------


def restore(source: Path, state_dir: Path) -> dict[str, Any]:
    """Make the state directory of an instance from a dump. Returns {state_dir, files, jobs, running}.

    The directory must be empty or not there. Jobs that ran when the dump was made are over when the instance starts
    (`helper lost`): what they ran is not run again, and belongs to the instance that was dumped. Raises ConflictError,
    NotFoundError, FormatError, ConfigError; nothing is left then.
    """
    if not source.exists():
        raise NotFoundError(f"there is no `{source}`", path=str(source))
    if state_dir.is_dir() and any(state_dir.iterdir()):
        raise ConflictError(f"`{state_dir}` is not empty", "restore into a new directory", str(state_dir))
    if os.path.lexists(state_dir) and not state_dir.is_dir():
        raise ConflictError(f"`{state_dir}` is not a directory", path=str(state_dir))
    part = state_dir.parent / f".{state_dir.name}.{secrets.token_hex(4)}.part"
    try:
        part.mkdir(mode=0o700, parents=True)
        with _opened(source) as (read, names):
            manifest = _manifest(read)
            for file in manifest["files"]:
                _unpack(read, names, file, part)
        counts = _adopt(part / DATABASE)
        os.rename(part, state_dir)  # in place of an empty directory, or of none
    except OSError as error:
        raise ConfigError(f"cannot restore to `{state_dir}`: {error.strerror or error}", path=str(state_dir)) from error
    except (tarfile.TarError, EOFError) as error:
        raise FormatError(f"`{source}` is not a dump: {error}", path=str(source)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {"state_dir": str(state_dir), "files": len(manifest["files"]), **counts}


@contextmanager
def _opened(source: Path) -> Iterator[tuple[Any, set[str]]]:
    """A function name → open file, and the names that there are."""
    if source.is_dir():
        names = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
        yield (lambda name: (source / name).open("rb")), names
        return
    with tarfile.open(source, "r:*") as tar:
        members = {member.name: member for member in tar.getmembers() if member.isreg()}
        yield (lambda name: tar.extractfile(members[name])), set(members)


def _manifest(read: Any) -> dict[str, Any]:
    try:
        with read(MANIFEST) as file:
            manifest: dict[str, Any] = json.load(file)
        if manifest["format"] != FORMAT or not all(_safe(file["name"]) for file in manifest["files"]):
            raise ValueError("it is something else")
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"not a dump of Leveret: {MANIFEST}: {error}") from None
    if manifest["version"] > VERSION or manifest["schema"] > schema_version():
        raise ConfigError(
            f"the dump was made by a newer Leveret ({manifest.get('leveret')})", "restore it with that version"
        )
    return manifest


def _unpack(read: Any, names: set[str], file: dict[str, Any], part: Path) -> None:
    name = file["name"]
    if name not in names:
        raise FormatError(f"the dump is not whole: `{name}` is missing")
    copy = part / name
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with read(name) as source, open(copy, "xb") as out:
        os.fchmod(out.fileno(), 0o600)
        while piece := source.read(PIECE_BYTES):
            digest.update(piece)
            out.write(piece)
        _sync(out)
    if digest.hexdigest() != file["sha256"]:
        raise FormatError(f"the dump is damaged: `{name}` is not what was dumped")


def _adopt(database: Path) -> dict[str, int]:
    """Make the database another instance's: new ids never meet those of the old one, nor do its helpers."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        if (said := db.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
            raise FormatError(f"the dump is damaged: {said}")
        db.execute("BEGIN")
        row = db.execute("SELECT value FROM meta WHERE key='generator'").fetchone()
        if row is not None:
            other = (int(row[0]) + 1 + secrets.randbelow(15)) % 16
            db.execute("UPDATE meta SET value=? WHERE key='generator'", (str(other),))
        running = set()
        for job, key, value in db.execute(
            "SELECT job, key, value FROM kv WHERE key >= 'ask/' AND key < 'ask0'"
        ).fetchall():
            try:
                ask = json.loads(value)
                ask[0] = f"restored:{ask[0]}"
            except (ValueError, TypeError, IndexError):
                continue  # the job is put aside when the instance starts
            running.add(job)
            body = json.dumps(ask, separators=(",", ":")).encode()
            db.execute("UPDATE kv SET value=? WHERE job=? AND key=?", (body, job, key))
        jobs = db.execute("SELECT count(*) FROM job").fetchone()[0]
        db.execute("COMMIT")
    with open(database, "rb") as done:
        os.fsync(done.fileno())
    return {"jobs": int(jobs), "running": len(running)}
