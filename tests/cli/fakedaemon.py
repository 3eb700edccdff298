"""A daemon made of a script: an HTTP server on a real Unix socket, in a thread."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

#: An answer: (status, JSON) at once, or a list of steps of a stream: a dict is a line, bytes go out as they are,
#: BREAK closes the connection without an end.
BREAK = object()
Handler = Callable[["Request"], Any]


class Request:
    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class FakeDaemon:
    """`answer(method, path, handler)`; every request is kept in `requests`. Unexpected ones get status 500."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uri = f"local://{path}"
        self.requests: list[Request] = []
        self.connections = 0
        self._handlers: dict[tuple[str, str], list[Handler]] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path) if len(path) < 108 else self._bind_long(path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _bind_long(self, path: str) -> None:
        fd = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        self._listener.bind(f"/proc/self/fd/{fd}/{os.path.basename(path)}")
        os.close(fd)

    def answer(self, method: str, path: str, *handlers: Any) -> None:
        """Handlers are used in turn, the last one for ever. One that is no function is the answer itself."""
        self._handlers[method, path] = [h if callable(h) else (lambda request, h=h: h) for h in handlers]

    def asked(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while True:
                first = stream.readline().decode()
                if not first:
                    return
                method, target, _ = first.split(" ", 2)
                headers = {}
                while (line := stream.readline().strip()) != b"":
                    name, _, value = line.decode().partition(":")
                    headers[name.strip().lower()] = value.strip()
                body = stream.read(int(headers.get("content-length", 0)))
                request = Request(method, target, headers, body)
                self.requests.append(request)
                if not self._reply(connection, request):
                    return
        except OSError:
            return
        finally:
            stream.close()
            connection.close()

    def _reply(self, connection: socket.socket, request: Request) -> bool:
        handlers = self._handlers.get((request.method, request.path))
        if not handlers:
            answer: Any = (500, {"code": "internal", "message": f"unexpected {request.method} {request.path}"})
        else:
            answer = (handlers.pop(0) if len(handlers) > 1 else handlers[0])(request)
        if answer is BREAK:
            return False
        if isinstance(answer, tuple):
            status, value = answer
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            kind = "text/plain" if isinstance(value, bytes) else "application/json"
            head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            return True
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/jsonl\r\nTransfer-Encoding: chunked\r\n\r\n")
        for step in answer:
            if step is BREAK:
                return False
            if callable(step):
                step()
                continue
            data = step if isinstance(step, bytes) else json.dumps(step).encode() + b"\n"
            connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        return True


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def event(path: str, n: int, name: str, t: float = 100.0, /, **context: Any) -> dict[str, Any]:
    """One line of an event stream; keys of the context use _ for -."""
    body: dict[str, Any] = {"timestamp": t, "name": name}
    if context:
        body["context"] = context
    return {"path": path, "id": str(n), "event": body}


def record(jobid: int = 1, **fields: Any) -> dict[str, Any]:
    """A job's record as docs/api.md has it: completed, unless said otherwise."""
    base: dict[str, Any] = {
        "id": jobid, "userid": os.getuid(), "username": "u", "urgency": 16, "priority": 16, "flags": 0,
        "state": "INACTIVE", "result": "COMPLETED", "done": True, "phase": "done", "waiting_for": "", "holds": [],
        "dependencies": [], "t_submit": 100.0, "t_depend": 100.0, "t_run": 101.0, "t_cleanup": 103.5, "t_inactive": 104.0,
        "name": "sh", "cwd": "/w", "queue": "", "bank": "", "ntasks": 1, "ncores": 1, "nnodes": 1, "ngpus": 0,
        "duration": 0.0, "expiration": 0.0, "ranks": "0", "nodelist": "host", "waitstatus": 0, "returncode": 0,
        "exit_code": 0, "success": True, "exception_occurred": False, "cause": None, "annotations": {},
    }  # fmt: skip
    return base | fields


def end(**fields: Any) -> dict[str, Any]:
    return {"end": True, "job": record(**fields)}
