"""Output that goes to files of the job's user, and not into the job's record.

Each file is opened once per unit. Several tasks may share it: what they write is appended in whole lines, also
beside the helpers of other nodes (O_APPEND). If a file cannot be written (disk full), the tasks that write to it are
not read until it can: that is said once, and tried again every RETRY_S.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from . import procs
from .stream import OutStream

#: Between attempts to write to a full disk, in seconds.
RETRY_S = 1.0


class OutFile:
    """One file. ``pending`` is what could not be written; while there is some, nothing is read for it."""

    def __init__(self, owner: Redirects, path: str, fd: int) -> None:
        self._owner = owner
        self.path = path
        self.fd = fd
        self.streams: list[OutStream] = []
        self.pending = b""

    def write(self, data: bytes) -> None:
        """Append; what the disk does not take waits."""
        if self.pending:
            self.pending += data  # of streams that were read in this pass already: bounded by their number
            return
        self._write(data)

    def _write(self, data: bytes) -> None:
        at = 0
        try:
            while at < len(data):
                at += os.write(self.fd, data[at:] if at else data)
        except OSError as error:
            self._block(data[at:], error)
        else:
            self._unblock()

    def _block(self, rest: bytes, error: OSError) -> None:
        if not self.pending:
            for stream in self.streams:
                stream.pause()
        self.pending = rest
        self._owner.blocked(self, error)

    def _unblock(self) -> None:
        if self.pending:
            self.pending = b""
            for stream in self.streams:
                stream.resume()

    def flush(self) -> bool:
        """Try again what waits; False if it still does."""
        if self.pending:
            self._write(self.pending)
        return not self.pending

    def discard(self) -> int:
        """Give up what waits, and read on; the number of bytes lost."""
        lost = len(self.pending)
        self._unblock()
        return lost


class FileSink:
    """The ``stream.Sink`` of one stream that goes to a file."""

    def __init__(self, file: OutFile, label: bytes, ended: Callable[[], None]) -> None:
        self._file = file
        self._label = label
        self._ended = ended
        #: the last piece did not end its line
        self._within = False

    def output(self, stream: OutStream, data: bytes, eof: bool) -> None:
        """See ``stream.Sink``."""
        if data:
            self._file.write(self._labelled(data) if self._label else data)
        if eof:
            self._ended()

    def _labelled(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True) if b"\r" not in data else _lines(data)
        first = b"" if self._within else self._label
        self._within = not data.endswith(b"\n")
        return first + self._label.join(lines)

    def truncating(self, stream: OutStream) -> None:
        """Files have no limit."""


def _lines(data: bytes) -> list[bytes]:
    pieces = [line + b"\n" for line in data.split(b"\n")]
    last = pieces.pop()[:-1]
    return [*pieces, last] if last else pieces


class Redirects:
    """The files of one unit, opened. OSError, with its ``filename``, if one cannot be."""

    def __init__(
        self,
        cwd: str,
        paths: list[str],
        append: bool,
        umask: int,
        at: Callable[[float, Callable[[], None]], object],
        changed: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._at = at
        self._changed = changed
        self._say = say
        self._said = False
        self._retrying = False
        self.files: list[OutFile] = []
        # O_NONBLOCK: a FIFO without a reader must not stop the helper
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        old = os.umask(umask)
        try:
            for path in paths:
                fd = os.open(os.path.join(cwd, path), flags | (0 if append else os.O_TRUNC), 0o666)
                self.files.append(OutFile(self, path, fd))
        except OSError as error:
            self.close()
            error.filename = path
            raise
        finally:
            os.umask(old)

    def blocked(self, file: OutFile, error: OSError) -> None:
        """``file`` cannot be written now."""
        if not self._said and not isinstance(error, BlockingIOError):
            self._said = True
            self._say(f"output file {file.path}: {error.strerror}. Tasks wait until it can be written")
        if not self._retrying:
            self._retrying = True
            self._at(procs.boottime() + RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retrying = False
        self._changed()

    def flush(self) -> bool:
        """Try again what waits; False if something still does."""
        waiting = [file for file in self.files if not file.flush()]
        return not waiting

    def discard(self) -> int:
        """Give up what waits; the number of bytes lost."""
        return sum(file.discard() for file in self.files)

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            os.close(file.fd)
        self.files = []
