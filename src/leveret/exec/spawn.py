"""Starting one process, and the folder it may need.

Standard library only.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from . import pty
from .procs import OpenFiles
from .record import Json, clean

#: Where a task goes whose folder does not exist.
CWD_FALLBACK = "/tmp"


class CannotChdir(Exception):
    """The folder ``cwd`` of a spec cannot be entered; ``cause`` says why."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def encode_env(env: dict[str, str]) -> dict[bytes, bytes]:
    """An environment as the kernel takes it. TypeError for what is no text."""
    encode = os.fsencode
    return {encode(name): encode(value) for name, value in env.items()}


class Settings:
    """What of a unit's spec is not the same as the helper's own: looked up once per unit."""

    __slots__ = ("cpus", "limits")

    def __init__(self, spec: Json, surroundings: Surroundings) -> None:
        rlimit = spec.get("rlimit")
        self.limits = surroundings.different(rlimit) if rlimit else []
        cores = spec.get("cores")
        self.cpus = surroundings.cpus_of(cores) if cores else None


class Surroundings:
    """The limits and CPUs that tasks get when nothing else is said: those of the helper at its start."""

    def __init__(self) -> None:
        self.all_cpus = sorted(os.sched_getaffinity(0))
        self._limits = {
            name[7:].lower(): (number, *resource.getrlimit(number))
            for name, number in vars(resource).items()
            if name.startswith("RLIMIT_")
        }
        self._same: Json = {}

    def different(self, rlimit: Json) -> list[tuple[int, int]]:
        """(resource, soft limit) where a job's differs from ours; never above the hard limit."""
        if rlimit == self._same:
            return []
        found = []
        for name, value in rlimit.items():
            number, soft, hard = self._limits.get(str(name).lower(), (-1, 0, 0))
            wanted = resource.RLIM_INFINITY if int(value) < 0 else int(value)
            if hard != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > hard):
                wanted = hard
            if number >= 0 and wanted != soft:
                found.append((number, wanted))
        if not found:
            self._same = rlimit
        return found

    def cpus_of(self, cores: list[int]) -> frozenset[int] | None:
        """The CPUs that stand for a node's cores (numbered from 0); None for all of them.

        Several nodes of a test share one machine, and a node may be said to have more cores than there are.
        """
        cpus = self.all_cpus
        if len(cores) >= len(cpus):
            return None
        return frozenset(cpus[core % len(cpus)] for core in cores)

    def among(self, cpus: list[int]) -> frozenset[int] | None:
        """Those of some CPUs that there are; None if none is, or all are."""
        found = frozenset(cpus).intersection(self.all_cpus)
        return found if 0 < len(found) < len(self.all_cpus) else None


def popen(
    spec: Json,
    argv: list[str],
    env: dict[bytes, bytes],
    cwd: str,
    files: OpenFiles,
    stdin: int,
    stdout: int,
    stderr: int,
    limits: list[tuple[int, int]],
    terminal: bool,
) -> int:
    """Start ``argv`` with these three descriptors; the process id, for which the caller must wait.

    Plain Popen without preexec_fn, user or group, so that it uses vfork; only
    limits other than ours, and a terminal, cost a fork. All descriptors of the
    helper are close-on-exec. CannotChdir if it is the folder that fails;
    OSError for the command; ValueError or TypeError for arguments that cannot be.
    """
    umask = spec.get("umask")
    files.expect(stderr)
    with files:
        try:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                close_fds=False,
                start_new_session=terminal or bool(spec.get("setpgrp", True)),
                umask=-1 if umask is None else umask,
                preexec_fn=_prepare(limits, terminal) if limits or terminal else None,
            )
        except OSError as error:
            # Popen names the folder if it was that, but the command may have the same name: see which it was.
            if error.filename == cwd and (cause := chdir_problem(cwd)) is not None:
                raise CannotChdir(cause) from None
            raise
    # The helper waits for its children itself; this object must not try, nor complain that nobody did.
    process.returncode = 0
    return process.pid


def _prepare(limits: list[tuple[int, int]], terminal: bool) -> Callable[[], None]:
    """What the child does before it becomes the task: nothing that takes a lock."""

    def prepare() -> None:
        if terminal:
            pty.become_controlling()
        for number, soft in limits:
            resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))

    return prepare


def chdir_problem(path: str) -> OSError | None:
    """Why a folder cannot be entered, or None."""
    try:
        os.chdir(path)
    except OSError as error:
        return error
    os.chdir("/")
    return None


class Refused(Exception):
    """The unit is not to be started, as Flux's shell ends when it cannot set up: the fields of a `refused` record."""

    def __init__(self, note: str, status: int, logs: list[list[Any]]) -> None:
        super().__init__(note)
        self.fields = {"note": clean(note), "status": status, "logs": logs}
        self.status = status


#: wait status of Flux's shell where it is ended while it sets up, and where it ends itself
TERMINATED, FAILED = 15, 1 << 8
#: log levels, as in syslog
FATAL, ERR = 2, 3


def cannot_redirect(error: OSError) -> Refused:
    """An output file cannot be opened."""
    why = clean(error.strerror or str(error))
    logs = [
        [ERR, "output.task", clean(f"open: {error.filename}: {why}")],
        [ERR, "", "plugin 'output': shell.init failed"],
        [FATAL, "", f"shell_init: {why}"],
    ]
    return Refused(f"shell_init: {why}", FAILED, logs)


def open_input(cwd: str, path: str) -> int:
    """Open a file as a task's stdin; its descriptor. Refused if that cannot be."""
    try:
        # O_NONBLOCK: a FIFO without a writer must not stop the helper
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        fd = os.open(os.path.join(cwd, path), flags)
    except OSError as error:
        note = clean(f"error opening input file '{path}': {error.strerror}")
        raise Refused(note, TERMINATED, [[FATAL, "input.file", note]]) from None
    os.set_blocking(fd, True)
    return fd


def unpack(directory: str, archive: Json) -> None:
    """Make the files of a jobspec (RFC 37) in ``directory``. Refused if that cannot be."""
    for name, entry in archive.items():
        path = os.path.join(directory, name)
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            _unpack(path, int(entry.get("mode", 0o100600)), _content(entry))
        except (OSError, ValueError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            note = clean(f"files: {name}: {why}")
            raise Refused(note, FAILED, [[FATAL, "", note]]) from None


def _content(entry: Json) -> bytes:
    data = entry.get("data", "")
    if entry.get("encoding") == "base64":
        return base64.b64decode(data)
    return data.encode() if isinstance(data, str) else json.dumps(data).encode()


def _unpack(path: str, mode: int, data: bytes) -> None:
    if stat.S_ISDIR(mode):
        os.makedirs(path, exist_ok=True)
    elif stat.S_ISLNK(mode):
        os.symlink(data, path)
        return
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
    os.chmod(path, mode & 0o777)


def make_private_dir(path: str) -> None:
    """Make ``path`` (0700, parents too). One that exists must be ours and no link, else FileExistsError."""
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        os.makedirs(path, 0o700)
    except FileExistsError:
        # Ours from an earlier unit, or somebody's trap in a shared folder.
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise


def remove_dirs(paths: list[str]) -> None:
    """Remove folders, most of them empty."""
    for path in paths:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass  # the job has removed it itself
        except OSError:
            remove_tree(path)


def remove_tree(path: str) -> None:
    """Remove a folder with all that is in it, also folders without write permission; as far as that is possible."""

    def retry(function: Callable[..., Any], name: str, _: object) -> None:
        try:
            if name != path:
                os.chmod(os.path.dirname(name), 0o700)
            if stat.S_ISDIR(os.lstat(name).st_mode):
                os.chmod(name, 0o700)
            function(name)
        except (OSError, TypeError):
            pass  # the second round, or what stays, tells

    for _ in range(2):
        if sys.version_info >= (3, 12):
            shutil.rmtree(path, onexc=retry)
        else:
            shutil.rmtree(path, onerror=retry)
        if not os.path.lexists(path):
            return
