"""HTTP/1.1 over a Unix socket: the little that Leveret's client needs, without http.client.

`ResponseParser` does no I/O, so the synchronous and the asyncio client share it. `Connection`
is one keep-alive connection; `LineStream` reads a streamed answer line by line and can be polled.

Not supported, since our daemon does not send them: trailers with meaning, compression, upgrades.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from leveret import errors
from leveret.instance import SOCKET_PATH_MAX_BYTES

#: The protocol that this client speaks; a daemon serves N and N-1.
PROTOCOL = 1
HEAD_MAX_BYTES = 64 * 1024
LINE_MAX_BYTES = 64 * 1024 * 1024
RECEIVE_BYTES = 256 * 1024


class LostError(Exception):
    """The connection ended before the answer was complete. `sent`: the daemon may have acted on the request."""

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class ResponseParser:
    """One response, fed as bytes arrive. `status` is 0 until the head is complete."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._buffer = bytearray()
        self._body: list[bytes] = []
        #: Bytes left of the body or chunk; -1: a chunk's size line is next; -2: until the connection closes.
        self._left = 0
        self._chunked = False

    def feed(self, data: bytes) -> None:
        """Take what was received. Raises LostError if it is not HTTP."""
        if self.complete:
            return
        self._buffer += data
        while not self.status:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_MAX_BYTES:
                    raise LostError("the answer's head is too long", True)
                return
            self._head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        if self._chunked:
            self._chunks()
        else:
            self._plain()

    def take(self) -> bytes:
        """The body bytes that arrived since the last call."""
        body = b"".join(self._body)
        self._body.clear()
        return body

    @property
    def pending(self) -> bool:
        return bool(self._body) or self.complete

    def end_of_file(self) -> None:
        """The peer closed. Fine if that is how the body ends, else LostError."""
        if self._left == -2 and self.status:
            self.complete = True
        if not self.complete:
            raise LostError("the connection was closed in the middle of an answer", True)

    @property
    def keeps_alive(self) -> bool:
        return self.complete and self._left != -2 and self.headers.get("connection", "").lower() != "close"

    def _head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        try:
            version, status, *_ = first.split(" ", 2)
            code = int(status)
        except ValueError:
            raise LostError(f"not an HTTP answer: {first[:80]!r}", True)
        if not version.startswith("HTTP/1."):
            raise LostError(f"not an HTTP answer: {first[:80]!r}", True)
        if 100 <= code < 200:  # an interim answer; the real one follows
            return
        self.status = code
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self._chunked:
            self._left = -1
        elif length is not None:
            self._left = int(length) if length.isdigit() else 0
        else:
            self._left = 0 if code in (204, 304) else -2

    def _plain(self) -> None:
        if self._left == -2:
            if self._buffer:
                self._body.append(bytes(self._buffer))
                self._buffer.clear()
            return
        piece = bytes(self._buffer[: self._left])
        if piece:
            del self._buffer[: len(piece)]
            self._left -= len(piece)
            self._body.append(piece)
        self.complete = self._left == 0

    def _chunks(self) -> None:
        buffer, at = self._buffer, 0
        while True:
            if self._left == -1:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    break
                size = bytes(buffer[at:end]).split(b";", 1)[0].strip()
                try:
                    self._left = int(size, 16)
                except ValueError:
                    raise LostError(f"not a chunk: {size[:40]!r}", True)
                at = end + 2
                if self._left == 0:
                    self._left = -3
            elif self._left == -3:  # after the last chunk: trailers up to an empty line
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    break
                self.complete, at, empty = end == at, end + 2, end == at
                if empty:
                    break
            elif self._left == -4:  # the line end after a chunk
                if len(buffer) - at < 2:
                    break
                at += 2
                self._left = -1
            else:
                piece = bytes(buffer[at : at + self._left])
                if not piece:
                    break
                at += len(piece)
                self._left -= len(piece)
                self._body.append(piece)
                if self._left == 0:
                    self._left = -4
        del buffer[:at]


def quote(text: str, safe: bytes = b"") -> str:
    """Percent-encode for a path segment or a query value (UTF-8), as urllib.parse.quote does."""
    keep = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~" + safe
    return "".join(chr(b) if b in keep else f"%{b:02X}" for b in text.encode("utf-8", "surrogateescape"))


def make_request(method: str, target: str, body: bytes | None = None, content_type: str = "application/json") -> bytes:
    """The bytes of one request."""
    head = f"{method} {target} HTTP/1.1\r\nHost: leveret\r\nLeveret-Protocol: {PROTOCOL}\r\n"
    if body is None and method in ("POST", "PUT"):
        body = b""
    if body is not None:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return (head + "\r\n").encode("ascii") + (body or b"")


def encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def answer_of(status: int, headers: dict[str, str], body: bytes) -> Any:
    """The decoded body of a success: JSON, else text. Raises the error that a failure carries."""
    if status < 400:
        if headers.get("content-type", "application/json").partition(";")[0].strip() == "application/json":
            return json.loads(body) if body.strip() else {}
        return body.decode("utf-8", "replace")
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if isinstance(data, dict) and "code" in data:
        raise errors.from_dict(data)
    text = body.decode("utf-8", "replace").strip()[:500]
    kind = {404: errors.NotFoundError, 403: errors.ForbiddenError, 426: errors.VersionError, 503: errors.BusyError}
    raise kind.get(status, errors.InternalError)(text or f"the daemon answered with HTTP status {status}")


def connect(path: str, timeout_s: float | None = None) -> socket.socket:
    """A connected socket. Paths that do not fit into sockaddr_un go through /proc/self/fd. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
            sock.connect(path)
        else:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{fd}")
            finally:
                os.close(fd)
    except BaseException:
        sock.close()
        raise
    return sock


class Connection:
    """One keep-alive connection. Every method raises LostError when the connection ends."""

    def __init__(self, path: str, timeout_s: float | None = None) -> None:
        self.sock = connect(path)
        self.timeout_s = timeout_s
        self.parser = ResponseParser()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    def is_stale(self) -> bool:
        """Whether the daemon has closed this idle connection (an idle one has nothing to read)."""
        self.sock.settimeout(0)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
            return True
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        finally:
            self.sock.settimeout(self.timeout_s)

    def send(self, request: bytes) -> None:
        self.parser = ResponseParser()
        try:
            self.sock.settimeout(self.timeout_s)
            self.sock.sendall(request)
        except OSError as error:
            # a daemon that answers early (413, 426) closes while we send: its answer may still be there
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                raise LostError(str(error), True)

    def receive(self) -> None:
        """Read once and feed the parser."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise LostError(f"no answer after {self.timeout_s:g} s", True)
        except OSError as error:
            raise LostError(str(error), True)
        if data:
            self.parser.feed(data)
        else:
            self.parser.end_of_file()

    def receive_head(self) -> int:
        """Read until the status is known."""
        while not self.parser.status:
            self.receive()
        return self.parser.status

    def receive_answer(self) -> Any:
        """Read the whole answer; see answer_of."""
        while not self.parser.complete:
            self.receive()
        return answer_of(self.parser.status, self.parser.headers, self.parser.take())


class LineStream:
    """The lines of a streamed answer, as JSON objects. Empty lines (keep-alives) are skipped."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._rest = b""

    def start(self, request: bytes) -> None:
        """Send the request and wait for the head. Raises the error that the daemon answers with."""
        self.connection.send(request)
        if self.connection.receive_head() >= 400:
            self.connection.receive_answer()

    @property
    def pending(self) -> bool:
        """Whether `pump` has something to give without reading."""
        return self.connection.parser.pending

    def pump(self) -> list[dict[str, Any]]:
        """What one read brings; blocks until something is there. Raises LostError at an end without an `end`."""
        parser = self.connection.parser
        body = parser.take()
        if not body:
            if parser.complete:
                raise LostError("the stream ended", True)
            self.connection.receive()
            body = parser.take()
        if not body:
            return []
        *lines, self._rest = (self._rest + body).split(b"\n") if self._rest else body.split(b"\n")
        if len(self._rest) > LINE_MAX_BYTES:
            raise LostError("a line of the stream is too long", True)
        return [json.loads(line) for line in lines if line.strip()]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            try:
                lines = self.pump()
            except LostError:
                if self.connection.parser.complete:
                    return
                raise
            yield from lines

    def close(self) -> None:
        self.connection.close()


class Backoff:
    """Waits between attempts: 20 ms doubling to 500 ms, until `patience_s` have passed."""

    def __init__(self, patience_s: float) -> None:
        self.deadline = time.monotonic() + patience_s
        self._delay_s = 0.02

    def wait(self) -> bool:
        """Sleep; False when patience is at its end."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._delay_s, left))
        self._delay_s = min(self._delay_s * 2, 0.5)
        return True
