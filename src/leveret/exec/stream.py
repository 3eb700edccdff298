"""The pipes between the helper and one task: output in lines, input with flow control.

``OutStream`` reads a task's stdout or stderr, holds back a partial line, and
hands complete lines to the unit. ``StdinPipe`` writes to a task's stdin without ever
blocking.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Protocol

READ_BYTES = 65536
#: A partial line longer than this is passed on as it is.
PARTIAL_BYTES_MAX = 16384
_HUP = select.EPOLLHUP | select.EPOLLERR
_READABLE = select.EPOLLIN | _HUP

Callback = Callable[[int], None]


class Watcher(Protocol):
    """The part of the helper's loop that pipes need."""

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        """Call ``callback(events)`` whenever ``fd`` is ready; level-triggered."""

    def unwatch(self, fd: int) -> None:
        """No more calls for ``fd``; it stays open."""

    def closed(self, fd: int) -> None:
        """``fd`` is about to be closed."""


class Sink(Protocol):
    """Who takes the output: the unit."""

    def output(self, stream: OutStream, data: bytes, eof: bool) -> None:
        """``data`` are the next bytes of the stream; empty only with ``eof``."""

    def truncating(self, stream: OutStream) -> None:
        """The limit of the stream was reached; what follows is dropped."""


def utf8_cut(data: bytes, end: int) -> int:
    """The largest place <= ``end`` that does not part a UTF-8 sequence; ``end`` if the bytes are not UTF-8."""
    for back in range(1, min(4, end) + 1):
        byte = data[end - back]
        if byte & 0xC0 == 0x80:
            continue
        size = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return end - back if size > back else end
    return end


def _read(fd: int) -> bytes:
    """What is there; nothing at the end, which a terminal that nobody has open any more tells by EIO."""
    try:
        return os.read(fd, READ_BYTES)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


class OutStream:
    """The reading end of a task's stdout or stderr."""

    __slots__ = (
        "_held",
        "_loop",
        "_paused",
        "_sink",
        "fd",
        "kept",
        "limit",
        "name",
        "offset",
        "rank",
        "total",
        "unbuffered",
    )

    def __init__(
        self, loop: Watcher, sink: Sink, fd: int, rank: int, name: str, limit: int | None, unbuffered: bool
    ) -> None:
        self._loop = loop
        self._sink = sink
        #: -1 once closed
        self.fd = fd
        self.rank = rank
        self.name = name
        #: bytes kept at most, None for no limit
        self.limit = limit
        self.unbuffered = unbuffered
        #: bytes read
        self.total = 0
        #: bytes kept (read and within the limit)
        self.kept = 0
        #: bytes handed to the sink; what lies between it and ``kept`` is held: less than PARTIAL_BYTES_MAX
        self.offset = 0
        self._held = b""
        #: how many want that nothing is read
        self._paused = 0
        loop.watch(fd, select.EPOLLIN, self.ready)

    def ready(self, events: int) -> None:
        """Read once: after EPOLLIN that never blocks, since nobody else reads this pipe."""
        if not events & _READABLE:
            return
        data = _read(self.fd)
        if data and events & _HUP and len(data) < READ_BYTES:
            # All writers are gone, so a second read cannot block: the last data and the end go together.
            more = _read(self.fd)
            if not more:
                self.close(data)
                return
            data += more
        if data:
            self._feed(data, False)
        else:
            self.close()

    def drain(self) -> None:
        """Read what is there now, then close: for a pipe that a process outside the unit holds open."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        for _ in range(64):
            if not poll.poll(0):
                break
            data = _read(self.fd)
            if not data:
                break
            self._feed(data, False)
        self.close()

    def close(self, data: bytes = b"") -> None:
        """Hand over ``data`` and what is held, with the end of file."""
        fd, self.fd = self.fd, -1
        self._loop.closed(fd)
        os.close(fd)
        self._feed(data, True)

    def pause(self) -> None:
        """Stop reading: the task will block on a full pipe."""
        self._paused += 1
        if self.fd >= 0 and self._paused == 1:
            self._loop.unwatch(self.fd)

    def resume(self) -> None:
        """Read again, unless somebody else wants that not."""
        self._paused -= 1
        if self.fd >= 0 and not self._paused:
            self._loop.watch(self.fd, select.EPOLLIN, self.ready)

    def _feed(self, data: bytes, eof: bool) -> None:
        before = self.total
        self.total += len(data)
        if self.limit is not None and self.total > self.limit:
            data = data[: max(0, self.limit - before)]
            if before <= self.limit:
                self.kept += len(data)
                self._pass_on(data, False)
                self._sink.truncating(self)
                data = b""
            if not eof:
                return
        self.kept += len(data)
        self._pass_on(data, eof)

    def _pass_on(self, data: bytes, eof: bool) -> None:
        if self._held:
            data = self._held + data
            self._held = b""
        if not eof:
            cut = len(data) if self.unbuffered else data.rfind(b"\n") + 1
            if len(data) - cut >= PARTIAL_BYTES_MAX:
                cut = len(data)
            if cut == len(data) and cut and data[-1] & 0x80:
                cut = utf8_cut(data, cut)
            if cut < len(data):
                self._held = data[cut:]
                data = data[:cut]
        if data or eof:
            self._sink.output(self, data, eof)
            self.offset += len(data)


class StdinPipe:
    """The writing end of a task's stdin. What is written is numbered by its place in the unit's stdin log."""

    __slots__ = ("_loop", "_queue", "_waiting", "_wrote", "eof", "fd", "rank")

    def __init__(self, loop: Watcher, fd: int, rank: int, wrote: Callable[[], None]) -> None:
        self._loop = loop
        self._wrote = wrote
        #: -1 once closed; then all input is dropped
        self.fd = fd
        self.rank = rank
        #: to be closed when all is written
        self.eof = False
        #: (place in the log behind the piece, what is left of it); bounded by the window that the daemon keeps to
        self._queue: deque[tuple[int, memoryview]] = deque()
        self._waiting = False
        os.set_blocking(fd, False)

    def put(self, end: int, data: bytes, eof: bool) -> None:
        """Queue ``data``, which ends at ``end`` in the log, and write what can be written."""
        if self.fd < 0:
            return
        if data:
            self._queue.append((end, memoryview(data)))
        self.eof = self.eof or eof
        if not self._waiting:
            self._write()

    def unwritten_from(self) -> int | None:
        """The place in the log of the first byte not yet written; None if there is none."""
        if not self._queue:
            return None
        end, rest = self._queue[0]
        return end - len(rest)

    def ready(self, events: int) -> None:
        """The pipe has room, or its reader is gone."""
        self._write()
        self._wrote()

    def _write(self) -> None:
        try:
            while self._queue:
                end, rest = self._queue[0]
                count = os.write(self.fd, rest)
                if count < len(rest):
                    self._queue[0] = (end, rest[count:])
                else:
                    self._queue.popleft()
        except BlockingIOError:
            if not self._waiting:
                self._waiting = True
                self._loop.watch(self.fd, select.EPOLLOUT, self.ready)
            return
        except OSError:  # EPIPE: the task reads no more
            self.close()
            return
        if self._waiting:
            self._waiting = False
            self._loop.unwatch(self.fd)
        if self.eof:
            self.close()

    def close(self) -> None:
        """Close the pipe and drop what is queued."""
        if self.fd >= 0:
            self._loop.closed(self.fd)
            os.close(self.fd)
            self.fd = -1
        self._queue.clear()
