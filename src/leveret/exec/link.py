"""The helper's end of a daemon connection: framing, and sending without blocking.

Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque

from .record import Json

#: A longer message is refused, with the connection.
MESSAGE_BYTES_MAX = 64 << 20
RECV_BYTES = 1 << 20
#: What goes out in one send, about.
SEND_BYTES = 1 << 20
SOCKET_PATH_BYTES_MAX = 107

_length = struct.Struct(">I").unpack_from


def listen(directory: str, dir_fd: int, name: str) -> socket.socket:
    """A listening socket, mode 0600, in ``directory`` (open as ``dir_fd``), however long its path is.

    Replaces one that exists: the caller knows that nobody serves it. It takes
    its name only when it listens, so nobody who finds it is refused.
    """
    new = name + ".new"
    try:
        os.unlink(new, dir_fd=dir_fd)
    except FileNotFoundError:
        pass
    path = os.path.join(directory, new)
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        path = f"/proc/self/fd/{dir_fd}/{new}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(old)
    listener.listen(16)
    listener.setblocking(False)
    os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    return listener


def peer_uid(sock: socket.socket) -> int:
    """Who is at the other end, as the kernel says."""
    _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


class Connection:
    """One daemon. Only ``hello`` is understood at first; from then on it follows units."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.greeted = False
        #: close when everything has been sent
        self.closing = False
        self.out: deque[bytes] = deque()
        #: environments that the daemon has sent, by key
        self.envs: dict[str, dict[bytes, bytes]] = {}
        #: how many messages at the head of `out` may wait for company, and until when (boottime, seconds)
        self.patient = 0
        self.patient_until_s = 0.0
        #: the socket does not take more now
        self.blocked = False
        #: nothing was there to receive, the last time
        self.idle = False
        self._in = bytearray()

    def receive(self) -> tuple[list[Json], bool]:
        """All messages that are complete, and whether the connection still lives. ValueError for what is no message."""
        try:
            data = self.sock.recv(RECV_BYTES)
        except (BlockingIOError, InterruptedError):
            self.idle = True
            return [], True
        except OSError:
            return [], False
        self.idle = False
        if not data:
            return [], False
        buffer = self._in
        buffer += data
        messages: list[Json] = []
        at, end = 0, len(buffer)
        while end - at >= 4:
            (size,) = _length(buffer, at)
            if size > MESSAGE_BYTES_MAX:
                raise ValueError(f"message of {size} bytes")
            if end - at - 4 < size:
                break
            found = json.loads(buffer[at + 4 : at + 4 + size])
            if not isinstance(found, dict):
                raise ValueError("message is not an object")
            messages.append(found)
            at += 4 + size
        if at:
            del buffer[:at]
        return messages, True

    def send(self) -> bool:
        """Send what there is, as far as the socket takes it; False if the connection is gone."""
        out = self.out
        while out:
            blobs = [out.popleft()]
            size = len(blobs[0])
            while out and size < SEND_BYTES:
                blobs.append(out.popleft())
                size += len(blobs[-1])
            blob = blobs[0] if len(blobs) == 1 else b"".join(blobs)
            try:
                sent = self.sock.send(blob)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return False
            if sent < len(blob):
                out.appendleft(blob[sent:])
                self.blocked = True
                return True
        self.blocked = False
        return True

    def close(self) -> None:
        """Close the socket and drop what was not sent."""
        self.sock.close()
        self.out.clear()
