"""One job as a portable record (core/jobrecord.py), made piece by piece: its output may be larger than memory.

Also of jobs that cannot be read whole: what can be read is there, and what is damaged stands as the text that it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from leveret import __version__
from leveret.core import jobid as jobids
from leveret.core.event import decode
from leveret.core.jobrecord import FORMAT, VERSION
from leveret.errors import FormatError, LeveretError, NotFoundError
from leveret.manager.queries import Queries

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
#: keys of the daemon's own, which mean nothing elsewhere
OWN = ("ask/", "hold/", "lost/", "plugin/")
PIECE_BYTES = 65536


async def export(queries: Queries, jobid: int) -> AsyncIterator[bytes]:
    """The pieces of the record. Raises NotFoundError before the first."""
    manager, store = queries.manager, queries.store
    await store.barrier()
    aside = manager.quarantine.jobs.get(jobid)
    if aside is None and manager.outcome(jobid) is None:
        raise NotFoundError(f"job {jobids.encode(jobid)} not found")
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "leveret": __version__,
        "exported": manager.clock.time(),
        "id": jobid,
        "f58": jobids.encode(jobid),
    }
    if aside is not None:
        head["quarantined"] = aside.why
    else:
        head["record"] = await queries.record(jobid)
    return _pieces(queries, jobid, head)


async def _pieces(queries: Queries, jobid: int, head: dict[str, Any]) -> AsyncIterator[bytes]:
    manager, store = queries.manager, queries.store
    try:
        head["jobspec"] = manager.stored_jobspec(jobid)
    except (LeveretError, msgspec.DecodeError, sqlite3.Error):
        row = _or_none(lambda: store.job_row(jobid))
        head["jobspec"] = None if row is None else bytes(row[1]).decode("utf-8", "backslashreplace")
    keys: list[str] = _or_none(lambda: store.kv_keys(jobid)) or []
    head["R"] = _value(_or_none(lambda: store.kv(jobid, "R"))) if "R" in keys else None
    head["keys"] = {
        key: (_or_none(lambda key=key: store.kv(jobid, key)) or b"").decode("utf-8", "backslashreplace")
        for key in keys
        if key != "R" and not key.startswith(OWN)
    }
    yield b",\n".join(_encode({name: value})[1:-1] for name, value in head.items()).join((b"{", b",\n"))
    yield b'"eventlog":['
    async for piece in _log(queries, jobid, "eventlog"):
        yield piece
    yield b'],\n"guest":{'
    paths: list[str] = _or_none(lambda: store.guest_paths(jobid)) or []
    for number, path in enumerate(sorted(paths)):
        yield (b"," if number else b"") + b"\n" + _encode(path.removeprefix("guest.")) + b":["
        async for piece in _log(queries, jobid, path):
            yield piece
        yield b"]"
    yield b"}}\n"


async def _log(queries: Queries, jobid: int, path: str) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    size, first = 0, True
    try:
        async for line in queries.lines(jobid, path):
            parts.append((b"\n" if first else b",\n") + _event(line))
            first = False
            size += len(line)
            if size >= PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    except (sqlite3.Error, msgspec.DecodeError) as error:
        text = f"the rest cannot be read: {error}"
        parts.append((b"\n" if first else b",\n") + bytes(_encode(text)))
    yield b"".join(parts)


def _event(line: bytes) -> bytes:
    """As it is, or, when it is no event, as a string."""
    try:
        decode(line)
    except FormatError:
        return bytes(_encode(bytes(line).decode("utf-8", "backslashreplace")))
    return line


def _value(body: bytes | None) -> Any:
    if body is None:
        return None
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "backslashreplace")


def _or_none(read: Any) -> Any:
    try:
        return read()
    except sqlite3.Error:
        return None
