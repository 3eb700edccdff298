"""The output file of a unit: frames, appended by the helper, read by the daemon.

A file is a row of frames and nothing else. A frame is a 32-byte header and its
data::

    u32 length of data | u32 crc32 | u32 rank | u8 stream | u8 flags | u16 zero
    u64 offset of the first byte within (rank, stream) | f64 unix time

all little-endian; the crc covers the header without the crc field, and the
data. Stream 1 is stdout, 2 stderr, 3 a log message: its data is a JSON object
``{"level": int, "message": str}``, maybe with a ``component``. Flag 1 is end of file. The place where a
frame ends in the file is the id from which a reader resumes.

Only one process writes a file. Whatever follows the last frame with a good
crc is a torn tail, from a crash: a reader stops there, a writer cuts it.

Standard library only.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct("<IIIBBHQd")
_TAIL = struct.Struct("<IBBHQd")
_LENGTH = struct.Struct("<I")
EOF = 1
STREAMS = {"stdout": 1, "stderr": 2, "log": 3}
STREAM_NAMES = {number: name for name, number in STREAMS.items()}
#: A frame never holds more; a header that says so is damage.
DATA_MAX = 1 << 20
#: How much a reader takes from the file at once.
PIECE = 1 << 20


class Frame(NamedTuple):
    """One piece of output. ``end_offset`` is the place in the file behind the frame, ``offset`` the one in the stream,
    both in bytes; ``time`` is unix time in seconds."""

    end_offset: int
    rank: int
    stream: str
    eof: bool
    offset: int
    time: float
    data: bytes


def pack(rank: int, stream: str, eof: bool, offset: int, time: float, data: bytes) -> tuple[bytes, bytes]:
    """The header and the data of a frame. ``data`` is at most DATA_MAX bytes."""
    tail = _TAIL.pack(rank, STREAMS[stream], EOF if eof else 0, 0, offset, time)
    length = _LENGTH.pack(len(data))
    crc = zlib.crc32(data, zlib.crc32(tail, zlib.crc32(length)))
    return length + _LENGTH.pack(crc) + tail, data


def _frame(buffer: bytes, at: int, file_offset: int) -> Frame | None:
    """The frame at ``at`` in ``buffer``, or None if it is not whole and good."""
    if len(buffer) - at < HEADER.size:
        return None
    length, crc, rank, stream, flags, _, offset, time = HEADER.unpack_from(buffer, at)
    begin = at + HEADER.size
    if length > DATA_MAX or stream not in STREAM_NAMES or len(buffer) - begin < length:
        return None
    data = buffer[begin : begin + length]
    if zlib.crc32(data, zlib.crc32(buffer[at + 8 : begin], zlib.crc32(buffer[at : at + 4]))) != crc:
        return None
    end = file_offset + begin + length
    return Frame(end, rank, STREAM_NAMES[stream], bool(flags & EOF), offset, time, data)


def frames_of(fd: int, start: int = 0, end: int | None = None) -> Iterator[Frame]:
    """The frames of an open file from ``start``, which is 0 or an ``end_offset``, up to ``end`` or the end of the file.

    Reads with ``pread`` in bounded pieces and does not touch the file position.
    The first frame that is not whole, or whose crc is wrong, ends it.
    """
    at = start
    buffer = b""
    while end is None or at < end:
        need = PIECE if end is None else min(PIECE, end - at)
        buffer = os.pread(fd, need, at)
        used = 0
        while frame := _frame(buffer, used, at):
            used = frame.end_offset - at
            yield frame
        if used == 0:
            # Either damage, the end, or one frame larger than a piece.
            if len(buffer) < HEADER.size:
                return
            whole = HEADER.size + HEADER.unpack_from(buffer)[0]
            if whole <= len(buffer) or whole > HEADER.size + DATA_MAX or (end is not None and at + whole > end):
                return
            one = _frame(os.pread(fd, whole, at), 0, at)
            if one is None:
                return
            used = whole
            yield one
        at += used


def read_frames(path: str | os.PathLike[str], start: int = 0, end: int | None = None) -> Iterator[Frame]:
    """As ``frames_of``, for a file by name. OSError if it cannot be opened."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from frames_of(fd, start, end)
    finally:
        os.close(fd)


class FrameWriter:
    """Appends frames to a file, which the first ``flush`` makes (mode 0600, its folders 0700).

    ``append`` only queues; ``flush`` writes. If ``flush`` fails, the file is
    cut back to its last whole frame, nothing that was queued is lost, and
    ``flush`` may be called again.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        #: -1 while not open
        self.fd = -1
        #: end of the last whole frame in the file, in bytes
        self.end = 0
        #: bytes queued and not written
        self.pending_bytes = 0
        self._pending: list[bytes] = []

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            end = 0
            size = os.fstat(fd).st_size
            if size:
                for frame in frames_of(fd):
                    end = frame.end_offset
                if end != size:
                    os.ftruncate(fd, end)
        except OSError:
            os.close(fd)
            raise
        self.fd = fd
        self.end = end

    def append(self, rank: int, stream: str, eof: bool, offset: int, time: float, data: bytes) -> None:
        """Queue a frame (or several, for more than DATA_MAX bytes)."""
        while len(data) > DATA_MAX:
            self._pending += pack(rank, stream, False, offset, time, data[:DATA_MAX])
            self.pending_bytes += HEADER.size + DATA_MAX
            offset += DATA_MAX
            data = data[DATA_MAX:]
        self._pending += pack(rank, stream, eof, offset, time, data)
        self.pending_bytes += HEADER.size + len(data)

    def flush(self) -> None:
        """Write what is queued. OSError (ENOSPC ...) leaves the file as it was before, and the queue too."""
        if not self._pending:
            return
        if self.fd < 0:
            self._open()
        if len(self._pending) > 2:
            self._pending = [b"".join(self._pending)]
        at = self.end
        try:
            at += os.pwritev(self.fd, self._pending, at)
            if at - self.end < self.pending_bytes:
                rest = memoryview(b"".join(self._pending))[at - self.end :]
                while rest:
                    done = os.pwrite(self.fd, rest, at)
                    at += done
                    rest = rest[done:]
        except OSError:
            try:
                os.ftruncate(self.fd, self.end)
            except OSError:
                pass  # a torn tail: the next flush writes over it, a reader stops before it
            raise
        self.end = at
        self._pending = []
        self.pending_bytes = 0

    def discard(self) -> int:
        """Give up what is queued; the number of bytes lost."""
        lost = self.pending_bytes
        self._pending = []
        self.pending_bytes = 0
        return lost

    def sync(self) -> None:
        """Force the file to disk. OSError as of fdatasync."""
        if self.fd >= 0:
            os.fdatasync(self.fd)

    def close(self) -> None:
        """Close the file; queued frames are not written."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
