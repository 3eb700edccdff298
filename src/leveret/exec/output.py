"""The output of a unit: records while it is little, a file of frames when it is more.

Up to ``memory_max`` bytes go into ``output`` records. From the first piece
that would exceed that, or that finds RECORDS_MAX records unacknowledged, all
output, ends of streams and log messages included, goes to the unit's file
(``outfile.py``), and the daemon hears of ranges in it: one ``extent`` record
at a time, the next when that is acknowledged.

If the file cannot be written (disk full), nothing more is read: tasks block on
full pipes. That is said once, and tried again every RETRY_S.

Standard library only.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from typing import Protocol

from . import procs
from .outfile import FrameWriter
from .record import Json, Records, clean, encode
from .redirect import FileSink, Redirects
from .stream import OutStream, Sink, Watcher, utf8_cut

#: An output record holds no more than this.
RECORD_BYTES_MAX = 32768
#: Unacknowledged records beyond which output goes to the file.
RECORDS_MAX = 1024
#: Queued frames beyond which the file is written at once, not at the end of the pass.
FLUSH_BYTES = 1 << 20
#: Between attempts to write to a full disk, in seconds.
RETRY_S = 1.0
STDERR_TAIL_BYTES = 2048


class Timer(Protocol):
    """An appointment that can be called off."""

    def cancel(self) -> None:
        """Harmless when it is over."""


class OutputHost(Watcher, Protocol):
    """What output needs of the helper."""

    host: str
    directory: str

    def at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, at ``when_s`` on ``procs.boottime()``."""


class Output:
    """The output of all tasks of one unit; the ``stream.Sink`` of their streams.

    ``spec`` is the ``output`` of the start message. ``changed`` is called when
    there is something for ``flush`` or ``tell`` to do, or a stream has ended.
    """

    def __init__(self, host: OutputHost, records: Records, unit: str, spec: Json, changed: Callable[[], None]) -> None:
        self._host = host
        self._records = records
        self._changed = changed
        limit = spec.get("memory_max")
        self._memory_max = 65536 if limit is None else int(limit)
        self._memory_used = 0
        self._limit: int | None = spec.get("limit_bytes")
        self._unbuffered = bool(spec.get("unbuffered"))
        self._file_name = str(spec.get("file") or f"misc/{unit.replace('/', '_')}.out")
        #: None until output goes to the file; then all output does
        self._file: FrameWriter | None = None
        #: end of the range told to the daemon
        self._told = 0
        #: number of the extent record that is not acknowledged, or 0
        self._extent_n = 0
        self._streams: list[OutStream] = []
        #: streams that have not ended
        self.open_count = 0
        #: the file cannot be written; nothing is read
        self.blocked = False
        self._blocked_told = False
        self._retry: Timer | None = None
        self._copy_fd = -1
        self._sync_error: OSError | None = None
        #: files of the user's that take output of tasks
        self._redirects: Redirects | None = None
        self._labels = [False, False]

    def open(self, rank: int, stdout: int, stderr: int, redirect: list[int | None] | None = None) -> None:
        """Read a task's output from these pipes, and own them; stderr is -1 for one that has ended.

        ``redirect`` says which of the opened files each stream goes to, if any.
        """
        if redirect is not None:
            self._open_redirected(rank, stdout, stderr, redirect)
            return
        host, limit, unbuffered = self._host, self._limit, self._unbuffered
        self._streams.append(OutStream(host, self, stdout, rank, "stdout", limit, unbuffered))
        self.open_count += 1
        if stderr >= 0:
            self._streams.append(OutStream(host, self, stderr, rank, "stderr", limit, unbuffered))
            self.open_count += 1
        else:
            self._keep_eof(rank)

    def _open_redirected(self, rank: int, stdout: int, stderr: int, redirect: list[int | None]) -> None:
        for number, (name, fd) in enumerate((("stdout", stdout), ("stderr", stderr))):
            index = redirect[number]
            if fd < 0:
                if index is None:
                    self._keep_eof(rank)
                continue
            sink: Sink = self
            if index is not None:
                assert self._redirects is not None
                file = self._redirects.files[index]
                sink = FileSink(file, b"%d: " % rank if self._labels[number] else b"", self._ended)
            limit = self._limit if index is None else None
            stream = OutStream(self._host, sink, fd, rank, name, limit, self._unbuffered)
            if index is not None:
                file.streams.append(stream)
                if file.pending:
                    stream.pause()
            self._streams.append(stream)
            self.open_count += 1

    def stdout_fd(self, rank: int) -> int:
        """The descriptor that the stdout of a task is read from; -1 at its end."""
        return next((s.fd for s in self._streams if s.rank == rank and s.name == "stdout"), -1)

    def _keep_eof(self, rank: int) -> None:
        """The stderr of a task whose stderr is its terminal."""
        if self._file is None:
            self._records.add("output", {"rank": rank, "stream": "stderr", "data": "", "eof": True})
        else:
            self._file.append(rank, "stderr", True, 0, time.time(), b"")

    def _ended(self) -> None:
        self.open_count -= 1
        self._changed()

    def redirect(self, spec: Json, cwd: str, umask: int) -> None:
        """Open the files that ``spec`` (the start message's ``redirect``) names. OSError, with the path."""
        self._labels = [bool(label) for label in spec.get("label") or self._labels]
        self._redirects = Redirects(
            cwd,
            spec["paths"],
            bool(spec.get("append")),
            umask,
            self._host.at,
            self._changed,
            lambda text: self.log(0, 3, f"host {self._host.host}: {text}"),
        )

    def copy_to(self, path: str) -> None:
        """Append what is written to a log file as well, as it comes. OSError if it cannot be opened."""
        self._copy_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)

    def log(self, rank: int, level: int, text: str, in_memory: bool = False, component: str = "") -> None:
        """A message for the job's output; levels as in syslog. It follows the output: to the file if that is in use."""
        said: Json = {"level": level, "message": clean(text)}
        if component:
            said["component"] = component
        if self._file is not None and not in_memory:
            self._file.append(rank, "log", False, 0, time.time(), encode(said))
            self._changed()
        else:
            self._records.add("log", {"rank": rank, **said})

    # ---- from the streams

    def output(self, stream: OutStream, data: bytes, eof: bool) -> None:
        """See ``stream.Sink``."""
        if eof:
            self.open_count -= 1
            self._changed()
        if data and self._copy_fd >= 0:
            try:
                os.write(self._copy_fd, data)
            except OSError:
                pass  # a copy for people to look at; the output itself is not in danger
        if data:
            data = self.passed(stream, data)
        if data or eof:
            self._keep(stream, data, eof)
        if eof and stream.total > stream.kept:
            dropped = stream.total - stream.kept
            text = f"{stream.name}: {dropped} of {stream.total} bytes truncated"
            self.log(stream.rank, 4, text, component="output.kvs")

    def truncating(self, stream: OutStream) -> None:
        """See ``stream.Sink``."""
        text = f"{stream.name} will be truncated, {stream.limit} limit exceeded"
        self.log(stream.rank, 4, text, component="output.kvs")

    def passed(self, stream: OutStream, data: bytes) -> bytes:
        """What of ``data`` is output: all of it, for tasks."""
        return data

    def _keep(self, stream: OutStream, data: bytes, eof: bool) -> None:
        if self._file is None:
            if self._memory_used + len(data) <= self._memory_max and len(self._records.kept) < RECORDS_MAX:
                self._memory_used += len(data)
                while len(data) > RECORD_BYTES_MAX:
                    cut = data.rfind(b"\n", 0, RECORD_BYTES_MAX) + 1 or utf8_cut(data, RECORD_BYTES_MAX)
                    self._record(stream, data[:cut], False)
                    data = data[cut:]
                self._record(stream, data, eof)
                return
            self._file = FrameWriter(os.path.join(self._host.directory, "output", self._file_name))
        self._file.append(stream.rank, stream.name, eof, stream.offset, time.time(), data)
        if self._file.pending_bytes > FLUSH_BYTES and not self.blocked:
            self.flush()
        self._changed()

    def _record(self, stream: OutStream, data: bytes, eof: bool) -> None:
        fields: Json = {"rank": stream.rank, "stream": stream.name}
        try:
            fields["data"] = data.decode()
        except UnicodeDecodeError:
            fields["data"] = base64.b64encode(data).decode()
            fields["encoding"] = "base64"
        if eof:
            fields["eof"] = True
        self._records.add("output", fields)

    # ---- the file

    def flush(self) -> bool:
        """Write queued frames; False if the disk does not take them. Then nothing is read until it does."""
        file = self._file
        if file is None or not file.pending_bytes:
            return True
        try:
            file.flush()
        except OSError as error:
            self._block(file, error)
            return False
        if self.blocked:
            self.blocked = False
            for stream in self._streams:
                stream.resume()
        return True

    def flush_redirects(self) -> bool:
        """Write what waits for files of the user's; False if a disk does not take it."""
        return self._redirects is None or self._redirects.flush()

    def _block(self, file: FrameWriter, error: OSError) -> None:
        if not self.blocked:
            self.blocked = True
            for stream in self._streams:
                stream.pause()
        if not self._blocked_told:
            self._blocked_told = True
            why = f"host {self._host.host}: output file {file.path}: {error.strerror}"
            self.log(self._streams[0].rank, 3, f"{why}. Tasks wait until it can be written", in_memory=True)
        if self._retry is None:
            self._retry = self._host.at(procs.boottime() + RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._changed()

    def acked(self, n: int) -> None:
        """Records up to ``n`` are acknowledged: the next extent may be told."""
        if 0 < self._extent_n <= n:
            self._extent_n = 0
            self.tell()

    def tell(self, last: bool = False) -> None:
        """Tell the daemon what the file has gained, if no extent is unacknowledged, or if it is the ``last``."""
        file = self._file
        if file is None or file.end <= self._told or (self._extent_n and not last):
            return
        start, self._told = self._told, file.end
        self._extent_n = self._records.add("extent", {"file": self._file_name, "start": start, "end": file.end})

    # ---- the end

    def drain(self, give_up: bool) -> bool:
        """The processes are gone, and still a pipe is not at its end: take what it holds, and end it.

        While the disk is full that is only done if output may be lost
        (``give_up``); False if it was not done.
        """
        if not give_up and (self.blocked or not self.flush_redirects()):
            return False
        for stream in self._streams:
            if stream.fd >= 0:
                stream.drain()
        if give_up and self._redirects is not None and (lost := self._redirects.discard()):
            self.log(0, 3, f"host {self._host.host}: output files cannot be written: {lost} bytes of output lost")
        if not self.flush() and self._file is not None:
            lost = self._file.discard()
            self.blocked = False
            text = f"host {self._host.host}: output file cannot be written: {lost} bytes of output lost"
            self.log(self._streams[0].rank, 3, text, in_memory=True)
        return True

    @property
    def needs_sync(self) -> bool:
        """Whether ``sync`` has something to do."""
        return self._file is not None

    def sync(self) -> None:
        """Force the file to disk; may take long. For another thread, when nothing is written any more."""
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                self._sync_error = error

    def close(self) -> None:
        """Tell the last extent and close the files."""
        if self._sync_error is not None:
            text = f"host {self._host.host}: output file: {self._sync_error.strerror}. Output may be incomplete"
            self.log(self._streams[0].rank, 3, text, in_memory=True)
        self.tell(last=True)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._copy_fd >= 0:
            os.close(self._copy_fd)
            self._copy_fd = -1
        if self._redirects is not None:
            self._redirects.close()
        self._streams = []


class WorkOutput(Output):
    """The output of a prolog, epilog or copier: JSON objects on stdout are progress; the end of stderr is kept."""

    def __init__(
        self,
        host: OutputHost,
        records: Records,
        unit: str,
        spec: Json,
        changed: Callable[[], None],
        progress: Callable[[Json], None],
    ) -> None:
        super().__init__(host, records, unit, {**spec, "unbuffered": False}, changed)
        self._progress = progress
        self._tail = b""

    def passed(self, stream: OutStream, data: bytes) -> bytes:
        """Without the lines that are progress."""
        if stream.name == "stderr":
            self._tail = (self._tail + data[-STDERR_TAIL_BYTES:])[-STDERR_TAIL_BYTES:]
            return data
        if b"{" not in data:
            return data
        rest = []
        for line in data.split(b"\n"):
            if line.startswith(b"{"):
                try:
                    found = json.loads(line)
                except ValueError:
                    found = None
                if isinstance(found, dict):
                    self._progress(found)
                    continue
            rest.append(line)
        return b"\n".join(rest)

    def stderr_tail(self) -> str:
        """The last STDERR_TAIL_BYTES of stderr."""
        return self._tail.decode("utf-8", "replace")
