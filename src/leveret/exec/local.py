"""The local engine: one exec helper per node of this machine, found or started, spoken to over its socket.

The helpers outlive the daemon. A connection that is lost is made again; a helper that has died is
replaced, what it left running is ended by its marker, and the manager is told what was lost.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import fcntl
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from leveret.errors import InternalError
from leveret.exec import outfile, procs
from leveret.exec.helper import ENVS_MAX, PROTOCOL

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_length = struct.Struct(">I")
CONNECT_TIMEOUT_S = 20.0
Message = dict[str, Any]


class Listener(Protocol):
    """Whom the engine tells (the manager's units)."""

    def have(self, node: int, incarnation: str) -> dict[str, int]: ...

    def lost_asks(self, node: int, incarnation: str) -> set[str]: ...

    def on_connected(self, node: int, incarnation: str, units: dict[str, dict[str, Any]]) -> None: ...

    def on_records(self, node: int, unit: str, records: list[Message]) -> None: ...

    def on_stdin_ack(self, node: int, unit: str, offset: int) -> None: ...

    def on_progress(self, unit: str, data: dict[str, Any]) -> None: ...

    def on_gone(self, node: int) -> None: ...

    def on_lost(self, node: int, host: str, incarnation: str) -> None: ...

    def on_trouble(self, text: str) -> None: ...


class _Link(asyncio.Protocol):
    """One connection to a helper: frames in, frames out; what is written in one loop pass goes out together."""

    def __init__(self, on_messages: Callable[[list[Message]], None], on_lost: Callable[[], None]) -> None:
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        #: keys of the environments that the helper keeps for this connection, as it does: first in, first out
        self.envs: dict[str, None] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=64 << 20)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        at = 0
        size = len(buffer)
        while size - at >= 4:
            (length,) = _length.unpack_from(buffer, at)
            if size - at - 4 < length:
                break
            messages.append(_decode(memoryview(buffer)[at + 4 : at + 4 + length]))
            at += 4 + length
        if at:
            del buffer[:at]
        if messages:
            self._on_messages(messages)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._on_lost()

    def send(self, message: Message) -> None:
        if self.transport is None:
            return  # it is sent again when the helper is back
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        body = _encode(message)
        self._out.append(_length.pack(len(body)))
        self._out.append(body)

    def flush(self) -> None:
        """Write what has been queued."""
        out, self._out = self._out, []
        if out and self.transport is not None:
            self.transport.write(b"".join(out))


class Node:
    """One node: its directory, its helper and the connection to it."""

    def __init__(self, rank: int, host: str, cores: list[int], directory: Path) -> None:
        self.rank = rank
        self.host = host
        self.cores = cores
        self.directory = directory
        self.incarnation = ""
        self.pid = 0
        self.link: _Link | None = None
        self.hello: asyncio.Future[Message] | None = None

    @property
    def socket_path(self) -> Path:
        return self.directory / "helper.sock"


class LocalEngine:
    def __init__(self, base: Path, hosts: list[tuple[int, str, list[int]]], nofile: int | None = None) -> None:
        """`hosts`: (rank, host, cores) of each node; cores are numbered from 0 as the node's own."""
        self.nodes = {rank: Node(rank, host, cores, base / f"node{rank}") for rank, host, cores in hosts}
        self._base = base
        self._nofile = nofile  #: the soft limit of open files that helpers get, where ours was raised
        self._listener: Listener | None = None
        self._ending = False
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- the port --------------------------------------------------------------------------------

    def hosts(self) -> list[tuple[int, str, list[int]]]:
        return [(node.rank, node.host, node.cores) for node in self.nodes.values()]

    def incarnation(self, node: int) -> str:
        return self.nodes[node].incarnation

    def _send(self, node: int, message: Message) -> None:
        link = self.nodes[node].link
        if link is not None:
            link.send(message)

    def start(self, node: int, unit: str, spec: dict[str, Any]) -> None:
        link = self.nodes[node].link
        if link is None:
            return  # it is asked again when the helper is back
        key = spec.get("env_key")
        if key is not None:
            spec = spec.copy()
            env = spec.pop("base_env")
            if key not in link.envs:
                link.envs[key] = None
                while len(link.envs) > ENVS_MAX:
                    del link.envs[next(iter(link.envs))]
                link.send({"t": "env", "key": key, "env": env})
        link.send({"t": "start", "unit": unit, "spec": spec})
        link.flush()  # the helper can begin while we go on

    def signal(self, node: int, unit: str, signum: int, escalate_s: float | None) -> None:
        self._send(node, {"t": "signal", "unit": unit, "signal": signum, "escalate_s": escalate_s})

    def stdin(self, node: int, unit: str, offset: int, ranks: str | list[int], data: bytes, eof: bool) -> None:
        text = base64.b64encode(data).decode("ascii")
        self._send(node, {"t": "stdin", "unit": unit, "offset": offset, "ranks": ranks, "data": text, "eof": eof})

    def limit(self, node: int, unit: str, left_s: float | None) -> None:
        self._send(node, {"t": "limit", "unit": unit, "remaining_s": left_s})

    def winsize(self, node: int, unit: str, size: list[int]) -> None:
        self._send(node, {"t": "winsize", "unit": unit, "size": size})

    def ack(self, node: int, unit: str, n: int) -> None:
        self._send(node, {"t": "ack", "unit": unit, "n": n})

    def forget(self, node: int, unit: str) -> None:
        self._send(node, {"t": "forget", "unit": unit})

    def read_output(self, node: int, file: str, start: int, end: int) -> Iterator[outfile.Frame]:
        path = self.nodes[node].directory / "output" / file
        return outfile.read_frames(path, start, end) if path.exists() else iter(())

    def remove_output(self, node: int, file: str) -> None:
        if node in self.nodes:
            with contextlib.suppress(OSError):
                (self.nodes[node].directory / "output" / file).unlink()

    # ---- helpers ---------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Find or start every node's helper and say hello; nothing is asked of the listener yet."""
        await self._end_others()
        await asyncio.gather(*(self._connect(node) for node in self.nodes.values()))

    async def _end_others(self) -> None:
        """Helpers of nodes that the instance had and has no more: they end, and with them what they run."""
        if not self._base.is_dir():
            return
        for directory in self._base.iterdir():
            number = directory.name.removeprefix("node")
            if not number.isdigit() or int(number) in self.nodes:
                continue
            node = Node(int(number), directory.name, [], directory)
            if self._held(node):
                with contextlib.suppress(InternalError, OSError, TimeoutError):
                    await self._connect(node)
                    assert node.link is not None
                    node.link.send({"t": "shutdown", "force": True})
                    node.link.flush()

    async def serve(self, listener: Listener) -> None:
        """From now on records go to the listener. Call once the manager has recovered."""
        self._listener = listener
        for node in self.nodes.values():
            await self._introduce(node)

    async def _introduce(self, node: Node) -> None:
        """Tell the helper what is stored, and the manager what was lost."""
        listener = self._listener
        if listener is None or node.link is None:
            return
        for old in listener.lost_asks(node.rank, node.incarnation):
            await self._clear(node, old)
            listener.on_lost(node.rank, node.host, old)
        answer = await self._hello(node, listener.have(node.rank, node.incarnation))
        listener.on_connected(node.rank, node.incarnation, answer["units"])

    async def _hello(self, node: Node, have: dict[str, int]) -> Message:
        assert node.link is not None
        node.hello = asyncio.get_running_loop().create_future()
        node.link.send({"t": "hello", "protocol": PROTOCOL, "have": have})
        answer = await asyncio.wait_for(node.hello, CONNECT_TIMEOUT_S)
        if answer["t"] == "error":
            raise InternalError(f"the exec helper of {node.host} refuses: {answer['message']}")
        node.incarnation, node.pid = answer["incarnation"], answer["pid"]
        return answer

    async def _connect(self, node: Node) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_TIMEOUT_S
        process: subprocess.Popen[bytes] | None = None
        while True:
            try:
                sock = _connect_unix(node.socket_path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
                    raise
                if loop.time() > deadline:
                    raise InternalError(
                        f"the exec helper of {node.host} does not answer", f"see {node.directory}/helper.log"
                    ) from None
                if (process is None or process.poll() is not None) and not self._held(node):
                    process = self._spawn(node)
                await asyncio.sleep(0.01)
                continue
            break
        link = _Link(lambda messages: self._on_messages(node, messages), lambda: self._on_lost(node, link))
        await loop.create_connection(lambda: link, sock=sock)
        node.link = link
        try:
            await self._hello(node, {})
        except BaseException:
            node.link = None
            if link.transport is not None:
                link.transport.close()
            raise

    def _held(self, node: Node) -> bool:
        """A helper lives (it holds the lock), its socket is just not there yet."""
        try:
            fd = os.open(node.directory / "helper.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _given_limits(self) -> Iterator[None]:
        """A process that is started here gets the limit of open files that was given to us."""
        ours = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._nofile is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._nofile, ours[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, ours)

    def _spawn(self, node: Node) -> subprocess.Popen[bytes]:
        node.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(node.directory / "helper.log", "ab") as log, self._given_limits():
            return subprocess.Popen(
                [
                    sys.executable, "-m", "leveret.exec.helper",
                    "--dir", str(node.directory), "--node", str(node.rank), "--host", node.host,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )  # fmt: skip

    async def _clear(self, node: Node, incarnation: str) -> None:
        """End what a dead helper left running, by its marker, before anybody hears that it is over."""
        await asyncio.get_running_loop().run_in_executor(None, procs.kill_marked, incarnation)

    def _on_messages(self, node: Node, messages: list[Message]) -> None:
        listener = self._listener
        grouped: dict[str, list[Message]] = {}
        for message in messages:
            kind = message["t"]
            if kind == "rec":
                grouped.setdefault(message["unit"], []).append(message)
            elif kind in ("hello", "error") and node.hello is not None and not node.hello.done():
                node.hello.set_result(message)
            elif listener is None:
                continue
            elif kind == "stdin-ack":
                listener.on_stdin_ack(node.rank, message["unit"], message["offset"])
            elif kind == "progress":
                listener.on_progress(message["unit"], message["data"])
            elif kind in ("refused", "error"):
                listener.on_trouble(f"{node.host}: {message}")
        if listener is not None:
            for unit, records in grouped.items():
                try:
                    listener.on_records(node.rank, unit, records)
                except Exception as error:
                    listener.on_trouble(f"{node.host}: {unit}: {error!r}")

    def _on_lost(self, node: Node, link: _Link) -> None:
        if node.hello is not None and not node.hello.done():
            node.hello.set_exception(ConnectionError("the connection was closed"))
        if self._ending or node.link is not link:
            return
        node.link = None
        if self._listener is not None:
            self._listener.on_gone(node.rank)
        task = asyncio.get_running_loop().create_task(self._again(node))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again(self, node: Node) -> None:
        delay_s = 0.0
        while not self._ending:
            await asyncio.sleep(delay_s)
            delay_s = min(5.0, delay_s * 2 or 0.1)
            try:
                await self._connect(node)
                await self._introduce(node)
                return
            except Exception as error:
                if self._listener is not None:
                    self._listener.on_trouble(f"{node.host}: {error}")

    def status(self) -> list[dict[str, Any]]:
        return [
            {"pid": node.pid, "node": node.rank, "host": node.host, "connected": node.link is not None}
            for node in self.nodes.values()
        ]

    async def shut_down(self, helpers: bool) -> None:
        """Let go of the helpers; with `helpers` they end too, and with them what they run."""
        self._ending = True
        for node in self.nodes.values():
            link = node.link
            if link is None:
                continue
            if helpers:
                link.send({"t": "shutdown", "force": True})
                link.flush()
        waits: list[Awaitable[Any]] = []
        for node in self.nodes.values():
            if helpers and node.pid:
                waits.append(_gone(node.pid))
            elif node.link is not None and node.link.transport is not None:
                node.link.flush()
                node.link.transport.close()
        if waits:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*waits), 12)
        for task in list(self._tasks):
            task.cancel()


async def _gone(pid: int) -> None:
    """Wait until a process is no more (a zombie of ours is reaped)."""
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.02)


def _connect_unix(path: Path) -> socket.socket:
    """Connect, also where the path is longer than sockaddr_un; the peer must be ours (or root's)."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if len(os.fsencode(path)) <= 107:
            sock.connect(str(path))
        else:
            fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{fd}/{path.name}")
            finally:
                os.close(fd)
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (os.geteuid(), 0):
            raise PermissionError(f"{path}: the exec helper belongs to uid {uid}")
        sock.setblocking(False)
        return sock
    except BaseException:
        sock.close()
        raise
