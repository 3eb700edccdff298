"""A pseudo terminal as the stdin, stdout and stderr of a task.

The helper holds the master side: it is read like a pipe (``stream.OutStream``), and input goes into it.

Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Callable

from .stream import StdinPipe, Watcher

_END_OF_FILE = b"\x04"


def open_pty(size: list[int] | None) -> tuple[int, int]:
    """(master, slave), both close-on-exec; ``size`` is rows and columns."""
    master, slave = os.openpty()
    if size is not None:
        set_size(master, size)
    return master, slave


def set_size(fd: int, size: list[int]) -> None:
    """Rows and columns; whoever runs in the terminal gets SIGWINCH when they change."""
    rows, columns = (min(max(int(number), 0), 0xFFFF) for number in size)
    try:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    except OSError:
        pass  # the task is gone


def become_controlling() -> None:
    """In the task, which leads a session and has the terminal as its stdout: make it the controlling one."""
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


class PtyInput(StdinPipe):
    """Input into the terminal. A terminal has no end of input: what stands for it is the character that says so."""

    def __init__(self, loop: Watcher, master: int, rank: int, wrote: Callable[[], None]) -> None:
        super().__init__(loop, os.dup(master), rank, wrote)

    def put(self, end: int, data: bytes, eof: bool) -> None:
        """See ``StdinPipe``."""
        super().put(end, data + _END_OF_FILE if eof else data, eof)
