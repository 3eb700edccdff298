"""Forward this process's stdin to a job, within attach's event loop (no threads).

One POST is under way at a time, on a connection of its own. Its answer is held back while the job cannot take
more, which is the flow control; its offset makes a repetition after a lost connection harmless.
"""

from __future__ import annotations

import os
import time

from leveret.cli import output
from leveret.client import Client, stdin_body
from leveret.connection import Connection, LostError, encode_json, make_request
from leveret.errors import BusyError, LeveretError

READ_BYTES = 64 * 1024


class Stdin:
    """`readers()` says what to poll; `ready(fd)` is called for what is readable."""

    def __init__(self, client: Client, jobid: int, ranks: str = "all") -> None:
        self.client = client
        self.jobid = jobid
        self.ranks = ranks
        self.target = f"/v1/jobs/{jobid}/stdin"
        #: bytes of the job's stdin that it has; None before the first answer
        self.offset: int | None = None
        self.done = False
        self._connection: Connection | None = None
        #: what was read and is not known to be taken
        self._data = b""
        self._eof = False
        self._busy = False
        self._is_terminal = output.is_terminal(0)
        if ranks != "all":
            self._close_others()

    def _close_others(self) -> None:
        """Stdin for some ranks is the end of it for the others, as in Flux."""
        from leveret.core import idset

        try:
            wanted = set(idset.parse(self.ranks))
            others = [rank for rank in range(self.client.job(self.jobid).get("ntasks") or 0) if rank not in wanted]
            if others:
                self.client.stdin(self.jobid, b"", 0, idset.encode(others), eof=True)
        except LeveretError as refused:
            if refused.code != "conflict":
                raise

    def readers(self) -> list[int]:
        """File descriptors to poll: our stdin, or the connection whose answer is due."""
        if self.done:
            return []
        if self._busy and self._connection is not None:
            return [self._connection.fileno()]
        if self._is_terminal and not in_foreground():  # reading would stop us with SIGTTIN
            return []
        return [0]

    def ready(self, fd: int) -> None:
        if self._busy:
            self._receive()
        elif fd == 0:
            self._read()

    def close(self) -> None:
        self.done = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self) -> None:
        try:
            self._data = os.read(0, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._data = b""
        self._eof = not self._data
        self._send()

    def _send(self) -> None:
        """Post what is held. The first post of data is empty: it asks for the offset."""
        first = self.offset is None and not self._eof
        body = stdin_body(b"" if first else self._data, self.offset or 0, self.ranks, self._eof)
        request = make_request("POST", self.target, encode_json(body))
        try:
            if self._connection is None or self._connection.is_stale():
                self._connection = self.client.connect()
            self._busy = True
            self._connection.send(request)
        except LostError:
            self._again()
        except LeveretError:
            self.close()

    def _again(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._send()

    def _receive(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.receive()
            if not connection.parser.complete:
                return
            answer = connection.receive_answer()
        except LostError:
            self._again()
            return
        except BusyError:  # the daemon ends; the next one takes it
            time.sleep(0.05)
            self._again()
            return
        except LeveretError as refused:
            self._refused(refused)
            return
        first, taken = self.offset is None and not self._eof, int(answer["offset"])
        self._busy = False
        if self._eof:
            self.close()
        elif first:
            self.offset = taken
            self._send()
        else:
            left = len(self._data) - (taken - (self.offset or 0))
            self.offset = taken
            self._data = self._data[-left:] if left > 0 else b""
            if self._data:
                self._send()

    def _refused(self, refused: LeveretError) -> None:
        """The job does not take stdin: it ended, or somebody closed it. Only lost data is worth a word."""
        if self._data and refused.code != "not-found" and "inactive" not in refused.message:
            output.note("stdin not accepted by job")
        self.close()


def in_foreground() -> bool:
    """Whether we may read from the terminal."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def is_open() -> bool:
    try:
        os.fstat(0)
    except OSError:
        return False
    return True
