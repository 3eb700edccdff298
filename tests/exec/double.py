"""A small synchronous daemon for tests of the exec helper: starts a helper, speaks to it, keeps what it says.

Every wait has a watchdog that is far longer than anything takes; no test depends on how long something took.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WATCHDOG_S = 60.0

Json = dict[str, Any]


class Daemon:
    """One connection. ``records[unit]`` holds every record received, in order; ``other`` all other messages."""

    def __init__(self, directory: Path, *, hello: bool = True, have: dict[str, int] | None = None) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sock.connect(f"/proc/self/fd/{fd}/helper.sock")
        finally:
            os.close(fd)
        self.sock.settimeout(WATCHDOG_S)
        self.buffer = b""
        self.records: dict[str, list[Json]] = {}
        self.other: list[Json] = []
        self.acks = False
        self.hello: Json = {}
        if hello:
            self.send(t="hello", protocol=1, have=have or {})
            self.hello = self.wait(lambda: next((m for m in self.other if m["t"] == "hello"), None))

    def send(self, **message: Any) -> None:
        text = json.dumps(message).encode()
        self.sock.sendall(struct.pack(">I", len(text)) + text)

    def read(self) -> list[Json]:
        """Receive once and file what came. EOFError at the end of the connection."""
        data = self.sock.recv(1 << 20)
        if not data:
            raise EOFError
        self.buffer += data
        at = 0
        messages = []
        while len(self.buffer) - at >= 4:
            size = int.from_bytes(self.buffer[at : at + 4], "big")
            if len(self.buffer) - at - 4 < size:
                break
            messages.append(json.loads(self.buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        self.buffer = self.buffer[at:]
        for message in messages:
            if message["t"] == "rec":
                self.records.setdefault(message["unit"], []).append(message)
                if self.acks:
                    self.send(t="ack", unit=message["unit"], n=message["n"])
            else:
                self.other.append(message)
        return messages

    def wait(self, found: Callable[[], Any]) -> Any:
        """Read until ``found()`` is true, and give that."""
        deadline = time.monotonic() + WATCHDOG_S
        while not (value := found()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.records} {self.other}")
            self.read()
        return value

    def ping(self) -> None:
        """Everything sent before was handled, and everything said before was read."""
        before = sum(m["t"] == "pong" for m in self.other)
        self.send(t="ping")
        self.wait(lambda: sum(m["t"] == "pong" for m in self.other) > before)

    def start(self, unit: str, argv: list[str], **spec: Any) -> None:
        self.send(t="start", unit=unit, spec=make_spec(unit, argv, **spec))

    def run(self, unit: str, argv: list[str], **spec: Any) -> list[Json]:
        """Start a unit and give all its records."""
        self.start(unit, argv, **spec)
        return self.ended(unit)

    def ended(self, unit: str) -> list[Json]:
        self.wait(lambda: self.find(unit, "exit"))
        return self.records[unit]

    def find(self, unit: str, kind: str, **fields: Any) -> Json | None:
        for record in self.records.get(unit, ()):
            if record["k"] == kind and all(record.get(key) == value for key, value in fields.items()):
                return record
        return None

    def wait_record(self, unit: str, kind: str, **fields: Any) -> Json:
        found: Json = self.wait(lambda: self.find(unit, kind, **fields))
        return found

    def wait_output(self, unit: str, text: bytes, stream: str = "stdout") -> None:
        self.wait(lambda: text in output(self.records.get(unit, []), stream))

    def close(self) -> None:
        self.sock.close()


class Helper:
    """A helper process in a directory of its own."""

    def __init__(self, directory: Path, *wrapper: str, node: int = 3, host: str = "nodeA") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory.parent / (directory.name + ".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*wrapper, *command(directory, node, host)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until((directory / "helper.sock").is_socket, "no socket")

    def stop(self) -> None:
        """End it with all its tasks, whatever state it is in."""
        if self.process.poll() is None:
            try:
                daemon = Daemon(self.directory)
                daemon.send(t="shutdown", force=True)
                self.process.wait(WATCHDOG_S)
            except (OSError, EOFError, subprocess.TimeoutExpired):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait(WATCHDOG_S)


def command(directory: Path, node: int = 3, host: str = "nodeA") -> list[str]:
    return [sys.executable, "-m", "leveret.exec.helper", "--dir", str(directory), "--node", str(node), "--host", host]


OPTIONAL = {"input", "cores", "rlimit", "redirect", "archive", "signal", "pty", "logs", "verbose", "refusal"}


def make_spec(unit: str, argv: list[str], **spec: Any) -> Json:
    """A complete spec; ``n`` is the number of tasks, ``output`` is merged over the defaults."""
    n = spec.pop("n", 1)
    output = {"memory_max": 65536, "limit_bytes": None, "file": f"aa/{unit}.out", "unbuffered": False}
    output |= spec.pop("output", {})
    each = spec.pop("each", {})  #: what every task has besides
    tasks = [{"rank": rank, "local": rank, "env": {"FLUX_TASK_RANK": str(rank)}, **each} for rank in range(n)]
    full: Json = {
        "kind": "tasks",
        "jobid": 1,
        "argv": argv,
        "cwd": "/",
        "env": {"PATH": os.environ["PATH"]},
        "tasks": tasks,
        "duration_s": None,
        "kill_timeout_s": 5.0,
        "output": output,
        "stdin": "null",
        "tmpdir": None,
        "umask": None,
        "setpgrp": True,
        "log": None,
    }
    assert spec.keys() <= full.keys() | OPTIONAL, spec
    return full | spec


def data_of(record: Json) -> bytes:
    text = record.get("data", "")
    return base64.b64decode(text) if record.get("encoding") == "base64" else text.encode()


def output(records: list[Json], stream: str = "stdout", rank: int | None = None) -> bytes:
    """All bytes of a stream in the output records."""
    return b"".join(
        data_of(r)
        for r in records
        if r["k"] == "output" and r["stream"] == stream and (rank is None or r["rank"] == rank)
    )


def kinds(records: list[Json]) -> list[str]:
    return [record["k"] for record in records]


def sh(text: str) -> list[str]:
    return ["sh", "-c", text]


def until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WATCHDOG_S
    while not (value := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)
    return value


def lives(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
