"""Who is asking: the kernel's word (SO_PEERCRED) for every connection on the Unix socket."""

from __future__ import annotations

import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ucred = struct.Struct("3i")


class PeerProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with the peer's (pid, uid, gid) in every request's scope as `peer`."""

    peer: tuple[int, int, int] = (0, -1, -1)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self.peer = _ucred.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _ucred.size))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["peer"] = self.peer  # type: ignore[typeddict-unknown-key]
