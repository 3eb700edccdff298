"""Starting one process, and the folder it may need.

Standard library only.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .procs import OpenFiles
from .record import Json

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


def popen(spec: Json, env: dict[bytes, bytes], cwd: str, files: OpenFiles, stdin: int, stdout: int, stderr: int) -> int:
    """Start ``spec["argv"]`` with these three descriptors; the process id, for which the caller must wait.

    Plain Popen without preexec_fn, user or group, so that it uses vfork. All
    descriptors of the helper are close-on-exec. CannotChdir if it is the
    folder that fails; OSError for the command; ValueError or TypeError for
    arguments that cannot be.
    """
    umask = spec.get("umask")
    files.expect(stderr)
    with files:
        try:
            process = subprocess.Popen(
                spec["argv"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                close_fds=False,
                start_new_session=bool(spec.get("setpgrp", True)),
                umask=-1 if umask is None else umask,
            )
        except OSError as error:
            # Popen names the folder if it was that, but the command may have the same name: see which it was.
            if error.filename == cwd and (cause := _chdir_problem(cwd)) is not None:
                raise CannotChdir(cause) from None
            raise
    # The helper waits for its children itself; this object must not try, nor complain that nobody did.
    process.returncode = 0
    return process.pid


def _chdir_problem(path: str) -> OSError | None:
    try:
        os.chdir(path)
    except OSError as error:
        return error
    os.chdir("/")
    return None


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
