"""Can an instance live in this directory? And what a failure of its disk or database means, in words for people."""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from pathlib import Path

from leveret import instance
from leveret.errors import ConfigError

#: f_type of statfs(2) → file systems that several machines may mount: neither SQLite's WAL nor flock is safe there
SHARED_MAGIC = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x517B: "SMB",
    0x564C: "NCP",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x00C36400: "Ceph",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0xAAD7AAEA: "PanFS",
    0x20030528: "OrangeFS",
}
#: these are how containers and virtual machines see a directory that nobody else mounts, as often as not
LOCAL_ENOUGH = {"9p", "virtiofs"}
#: less room than this and a start would only fail a little later
ROOM_BYTES_MIN = 1 << 20


def magic(path: Path) -> int:
    """f_type of the file system at `path`; 0 where the C library does not tell."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = (ctypes.c_ulong * 64)()  # f_type is the first word of struct statfs on Linux, and this is larger
        if libc.statfs(os.fsencode(path), ctypes.byref(buffer)) != 0:
            return 0
    except (OSError, AttributeError):
        return 0
    return int(buffer[0]) & 0xFFFFFFFF


def shared_file_system(path: Path) -> str:
    """The name of the file system when other machines may mount it too, else ""."""
    if name := SHARED_MAGIC.get(magic(path)):
        return name
    kind = instance.fs_type(str(path))  # what FUSE and others hide behind one magic number
    return kind if kind in instance.SHARED_FILE_SYSTEMS - LOCAL_ENOUGH else ""


def check(state_dir: Path) -> None:
    """Raise ConfigError unless a daemon can keep its state here. The directory is there."""
    path = str(state_dir)
    status = os.stat(state_dir)
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"`{path}` belongs to uid {status.st_uid}, and this is uid {os.geteuid()}",
            "an instance runs as the owner of its state; choose another --statedir",
            path,
        )
    if name := shared_file_system(state_dir):
        raise ConfigError(
            f"`{path}` is on {name}, where a write-ahead log is not safe",
            "choose a --statedir on a file system of this machine",
            path,
        )
    room = os.statvfs(state_dir)
    if room.f_flag & os.ST_RDONLY:
        raise ConfigError(f"`{path}` is on a file system that is mounted read-only", "choose another --statedir", path)
    if not os.access(state_dir, os.W_OK | os.X_OK):
        raise ConfigError(f"`{path}` cannot be written to", "see its mode, or choose another --statedir", path)


def check_room(state_dir: Path) -> None:
    """Raise ConfigError when the disk is too full to begin. The caller holds the directory."""
    room = os.statvfs(state_dir)
    free = room.f_bavail * room.f_frsize
    if free < ROOM_BYTES_MIN:
        raise full(state_dir, f"{free >> 10} KiB are free, {ROOM_BYTES_MIN >> 10} are needed to start")


def full(state_dir: Path, detail: str) -> ConfigError:
    return ConfigError(
        f"no space left for the state in `{state_dir}`: {detail}",
        "make room: nothing that was acknowledged is lost, what runs goes on, and so does the instance then",
        str(state_dir),
    )


def explain(error: Exception, state_dir: Path) -> ConfigError | None:
    """The error for people behind a failure of the store; None when it is none of the disk's."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return full(state_dir, "the disk is full")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return ConfigError(
                f"the database in `{state_dir}` is damaged: {error}",
                f"leveret fsck --repair --statedir {state_dir}",
                str(state_dir),
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return ConfigError(
                f"the database in `{state_dir}` cannot be written: {error}", "see its owner and mode", str(state_dir)
            )
        if code == sqlite3.SQLITE_IOERR:
            free = os.statvfs(state_dir)
            if free.f_bavail * free.f_frsize < ROOM_BYTES_MIN:
                return full(state_dir, str(error))
            return ConfigError(
                f"the disk of `{state_dir}` fails: {error}", "see the kernel's log; then `leveret fsck`", str(state_dir)
            )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full(state_dir, error.strerror or "")
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES):
        return ConfigError(f"`{state_dir}`: {error.filename or ''}: {error.strerror}", "", str(state_dir))
    return None
