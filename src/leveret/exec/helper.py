"""The exec helper: starts tasks on one node, moves their I/O, and outlives the daemon.

    python -m leveret.exec.helper --dir DIR --node N --host NAME

One process with one loop. It serves one daemon connection at a time on
``DIR/helper.sock``; units, their processes and their unacknowledged records
live on while none is connected. A pass of the loop takes what the kernel has
ready, starts queued units, reaps, runs timers, looks for left-over processes,
lets units settle, and sends everything that arose in one go.

Messages, both ways: 4-byte big-endian length, then a UTF-8 JSON object with
its type in ``t``. What they are is written at the methods ``_on_*`` and, for
records, in ``unit.py``.

Everything is imported before it serves, since an upgrade may replace the
files beneath it. Standard library only; no threads but one for slow file work.
"""

from __future__ import annotations

import argparse
import base64
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import __version__
from . import link, procs, spawn, startup
from .link import Connection
from .loop import SLEEP_S_MAX, Timers, Worker, say
from .record import Json, message
from .stream import Callback
from .unit import Task, Unit

PROTOCOL = 1
#: Units started in one pass, so that exits and output of others are not kept waiting.
STARTS_MAX = 8
#: Reads from a connection that is about to be replaced.
TALKS_MAX = 64
#: How long a `start` record waits for what follows it.
PATIENCE_S = 0.002
#: How long folders that are not wanted any more may wait for others, to be removed together.
DISCARD_S = 0.05
#: Environments kept for a connection.
ENVS_MAX = 64
#: How long a forced shutdown waits for processes to die.
SHUTDOWN_S = 10.0


class Helper:
    """The loop, and what units need of it (``unit.Host``)."""

    def __init__(self, directory: str, node: int, host: str) -> None:
        self.directory = directory
        self.node = node
        self.host = host
        self.incarnation = procs.new_incarnation()
        self.files = procs.OpenFiles()
        self.surroundings = spawn.Surroundings()
        self.devnull = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.units: dict[str, Unit] = {}
        #: processes that were started as tasks and are not reaped
        self._tasks: dict[int, Task] = {}
        self._queue: deque[Unit] = deque()
        #: units whose tasks have all exited and whose left-overs may live
        self._ending: dict[str, Unit] = {}
        self._sweep_due = False
        self._unsettled: dict[str, Unit] = {}
        self._with_progress: dict[str, Unit] = {}
        self._with_stdin: dict[str, Unit] = {}
        self._live = 0
        self._discarded: list[str] = []
        #: what is emitted now may wait a moment for company (see _send)
        self.patient = False
        self._callbacks: dict[int, Callback] = {}
        self._epoll = select.epoll()
        self._timers = Timers()
        self.at = self._timers.at
        self._connection: Connection | None = None
        self._shutdown_by_s: float | None = None
        self._done = False
        self._sweeper = procs.Sweeper(self.incarnation)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._worker = Worker(self._wake)
        self.offload = self._worker.offload
        self._dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listener: socket.socket | None = None
        self._listener_fd = -1

    # ---- what units need: see unit.Host

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        self._callbacks[fd] = callback
        self._epoll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def closed(self, fd: int) -> None:
        # Tasks hold no copy of our descriptors, so closing takes this one out of the epoll set.
        self._callbacks.pop(fd, None)

    def emit(self, unit: Unit, blob: bytes) -> None:
        connection = self._connection
        if connection is not None and unit.follower is connection:
            if self.patient and connection.patient == len(connection.out):
                connection.patient += 1
            connection.out.append(blob)

    def spawned(self, task: Task) -> None:
        self._tasks[task.pid] = task

    def discard(self, path: str) -> None:
        # Many at once, and not here: where the disk is busy with commits each removal waits for one.
        if not self._discarded:
            self.at(procs.boottime() + DISCARD_S, self._remove_discarded)
        self._discarded.append(path)

    def _remove_discarded(self) -> None:
        paths, self._discarded = self._discarded, []
        self.offload(lambda: spawn.remove_dirs(paths), lambda: None)

    def settle_later(self, unit: Unit) -> None:
        self._unsettled[unit.name] = unit

    def sweep_later(self, unit: Unit) -> None:
        self._ending[unit.name] = unit
        self._sweep_due = True

    def progressed(self, unit: Unit) -> None:
        self._with_progress[unit.name] = unit

    def progress_now(self, unit: Unit) -> None:
        connection = self._connection
        if self._with_progress.pop(unit.name, None) and connection is not None and unit.follower is connection:
            connection.out.append(message({"t": "progress", "unit": unit.name, "data": unit.progress}))

    def stdin_moved(self, unit: Unit) -> None:
        self._with_stdin[unit.name] = unit

    def ended(self, unit: Unit) -> None:
        self._live -= 1
        if unit.forgotten:
            self.units.pop(unit.name, None)

    # ---- the loop

    def run(self) -> None:
        """Serve until told to shut down, or until the directory vanishes."""
        poll = self._epoll.poll
        while not self._done:
            # Pipes come first, so that a task's last words precede its exit; the daemon comes last, since
            # what it asks may open descriptors, and events that wait in this list would meet the wrong ones.
            talk = accept = woken = 0
            for fd, events in poll(0.0 if self._queue else self._timers.next_s(), 256):
                callback = self._callbacks.get(fd)
                if callback is not None:
                    self._guard(callback, events)
                elif fd == self._wake_read:
                    woken = events
                elif fd == self._listener_fd:
                    accept = events
                else:
                    talk = events
            if woken:
                self._guard(self._woken)
            if talk:
                self._guard(self._talk, talk)
            if accept:
                self._guard(self._accept)
            for _ in range(min(STARTS_MAX, len(self._queue))):
                self._guard(self._queue.popleft().start)
            self._guard(self._timers.run)
            while self._sweep_due or self._unsettled:
                if self._sweep_due:
                    self._sweep_due = False
                    self._guard(self._sweep)
                unsettled, self._unsettled = self._unsettled, {}
                for unit in unsettled.values():
                    self._guard(unit.settle)
            self._send()

    def _guard(self, function: Callable[..., None], *args: Any) -> None:
        """A bug in the handling of one thing must not take the tasks of all others along."""
        try:
            function(*args)
        except Exception:
            say(traceback.format_exc())

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # full: it will wake up anyway

    def _woken(self) -> None:
        text = os.read(self._wake_read, 65536)
        if signal.SIGTERM in text:
            if self.units:
                say(f"SIGTERM ignored: {len(self.units)} units, {self._live} of them live")
            else:
                self._done = True
        self._worker.take()
        self._reap()

    def _reap(self) -> None:
        tasks = self._tasks
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if seen is None:
                break
            pid = seen.si_pid
            task = tasks.pop(pid, None)
            if task is None:
                os.waitpid(pid, 0)
                self._sweeper.forget(pid)
            else:
                task.unit.exiting(task)
                _, status = os.waitpid(pid, 0)
                task.unit.exited(task, status)
        if self._ending:
            self._sweep_due = True

    def _sweep(self) -> None:
        ending = self._ending
        if not ending:
            return
        sessions = {name: unit.sessions for name, unit in ending.items()}
        left = self._sweeper.left(sessions, self._tasks, alone=not self._tasks)
        for name, unit in list(ending.items()):
            found = left.get(name)
            if found:
                procs.kill(found)
                unit.sweep_again()
            else:
                del ending[name]
                unit.swept()

    def _tick(self) -> None:
        """Every few seconds: is the directory still there? Is a shutdown taking too long?"""
        self.at(procs.boottime() + SLEEP_S_MAX, self._tick)
        if self._shutdown_by_s is not None:
            self._check_shutdown()
            return
        try:
            now, then = os.stat(self.directory), os.fstat(self._dir_fd)
            same = (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)
        except FileNotFoundError:
            same = False
        except OSError:
            return  # a file system that does not answer just now
        if not same:
            say(f"{self.directory} has vanished: killing {self._live} units")
            self._shut_down()

    def _shut_down(self) -> None:
        """Kill everything; the loop ends when all units have ended, or some time later."""
        self._shutdown_by_s = procs.boottime() + SHUTDOWN_S
        while self._queue:
            unit = self._queue.popleft()
            if self.units.get(unit.name) is unit and unit.phase == "queued":
                del self.units[unit.name]
                self._live -= 1
        for unit in list(self.units.values()):
            self._guard(unit.kill)
        self._check_shutdown()

    def _check_shutdown(self) -> None:
        if self._shutdown_by_s is None:
            return
        if self._live == 0 or procs.boottime() > self._shutdown_by_s:
            self._done = True
        else:
            self.at(procs.boottime() + 0.05, self._check_shutdown)

    # ---- the connection

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        uid = link.peer_uid(sock)
        if uid not in (os.getuid(), 0):
            say(f"connection of uid {uid} refused")
            sock.close()
            return
        # What the older one has said was said: it counts, also if that daemon is dead.
        old = self._connection
        if old is not None:
            old.idle = False
            for _ in range(TALKS_MAX):
                if old.idle or self._connection is not old:
                    break
                self._talk(select.EPOLLIN)
        self._hang_up()
        sock.setblocking(False)
        self._connection = Connection(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _talk(self, events: int) -> None:
        connection = self._connection
        if connection is None or not events & ~select.EPOLLOUT:
            return  # writable: _send comes at the end of the pass
        try:
            messages, alive = connection.receive()
        except ValueError as error:
            say(f"connection closed: {error}")
            self._hang_up()
            return
        for item in messages:
            if self._connection is not connection or connection.closing:
                return
            self._guard(self._dispatch, connection, item)
        if not alive and self._connection is connection:
            self._hang_up()

    def _dispatch(self, connection: Connection, item: Json) -> None:
        kind = item.get("t")
        if not connection.greeted and kind != "hello":
            self._refuse(connection, "protocol", "the first message must be hello")
            return
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler is not None:  # a newer daemon may know more; what is not understood changes nothing
            handler(self, connection, item)

    def _refuse(self, connection: Connection, code: str, text: str) -> None:
        connection.out.append(message({"t": "error", "code": code, "message": text}))
        connection.closing = True

    def _send(self) -> None:
        connection = self._connection
        if connection is None:
            self._with_stdin.clear()
            return
        if connection.patient:
            if len(connection.out) == connection.patient and not (self._with_stdin or self._with_progress):
                # only `start` records: a trivial task's exit follows at once, and both are one turn of the daemon then
                now = procs.boottime()
                if not connection.patient_until_s:
                    connection.patient_until_s = now + PATIENCE_S
                    self.at(connection.patient_until_s, lambda: None)
                if now < connection.patient_until_s:
                    return
            connection.patient, connection.patient_until_s = 0, 0.0
        if connection.out or self._with_stdin or self._with_progress:
            if not connection.blocked:
                self._add_latest(connection)
            was_blocked = connection.blocked
            if not connection.send():
                self._hang_up()
                return
            if connection.blocked != was_blocked:
                events = select.EPOLLIN | (select.EPOLLOUT if connection.blocked else 0)
                self._epoll.modify(connection.fd, events)
        if connection.closing and not connection.out:
            self._hang_up()

    def _add_latest(self, connection: Connection) -> None:
        """Progress and stdin acknowledgements: only the newest of each, and none while the daemon does not read."""
        if self._with_progress:
            for unit in list(self._with_progress.values()):
                self.progress_now(unit)
        if self._with_stdin:
            for unit in self._with_stdin.values():
                written = unit.stdin_written()
                if unit.follower is connection and written != unit.stdin_told:
                    unit.stdin_told = written
                    connection.out.append(message({"t": "stdin-ack", "unit": unit.name, "offset": written}))
            self._with_stdin = {}

    # ---- messages

    def _on_hello(self, connection: Connection, item: Json) -> None:
        """``{protocol, have: {unit: n}}``: answered with what is here, then with all records after ``n``."""
        theirs = item.get("protocol")
        if not isinstance(theirs, int) or not max(1, PROTOCOL - 1) <= theirs <= PROTOCOL:
            self._refuse(
                connection,
                "version",
                f"helper {__version__} speaks protocol {PROTOCOL}, not {theirs}",
            )
            return
        have = item.get("have") or {}
        connection.greeted = True
        listed = {
            unit.name: {"n": unit.records.n, "ended": unit.phase == "ended", "stdin": unit.stdin_received}
            for unit in self.units.values()
        }
        answer = {
            "t": "hello",
            "protocol": min(theirs, PROTOCOL),
            "pid": os.getpid(),
            "incarnation": self.incarnation,
            "node": self.node,
            "host": self.host,
            "version": __version__,
            "units": listed,
        }
        connection.out.append(message(answer))
        for name, n in have.items():
            unit = self.units.get(name)
            if unit is not None:
                unit.ack(n)
                self._follow(connection, unit)

    def _follow(self, connection: Connection, unit: Unit) -> None:
        """Send the unit's records to the connection: those there are, and those to come."""
        unit.follower = connection
        connection.out.extend(blob for _, blob in unit.records.kept)
        unit.stdin_told = 0
        self._with_stdin[unit.name] = unit
        if unit.progress is not None:
            self._with_progress[unit.name] = unit

    def _on_start(self, connection: Connection, item: Json) -> None:
        """``{unit, spec}``: queue a new unit. A known one is not started again, but its records are sent, once."""
        name = item["unit"]
        unit = self.units.get(name)
        if unit is not None:
            if unit.follower is not connection:
                self._follow(connection, unit)
            return
        if self._shutdown_by_s is not None:
            return
        unit = Unit(self, name, item["spec"])
        if key := item["spec"].get("env_key"):
            unit.base_env = connection.envs[key]
        unit.follower = connection
        self.units[name] = unit
        self._live += 1
        self._queue.append(unit)

    def _on_env(self, connection: Connection, item: Json) -> None:
        """``{key, env}``: an environment that starts on this connection name by its key. The daemon knows how
        many are kept (ENVS_MAX, first in, first out)."""
        envs = connection.envs
        envs[item["key"]] = spawn.encode_env(item["env"])
        while len(envs) > ENVS_MAX:
            del envs[next(iter(envs))]

    def _on_signal(self, connection: Connection, item: Json) -> None:
        """``{unit, signal, escalate_s}``"""
        unit = self.units.get(item["unit"])
        if unit is not None:
            unit.signal(int(item["signal"]), item.get("escalate_s"))

    def _on_stdin(self, connection: Connection, item: Json) -> None:
        """``{unit, offset, ranks, data, eof}``: answered with stdin-ack as the bytes go into the pipes."""
        unit = self.units.get(item["unit"])
        if unit is not None:
            data = base64.b64decode(item.get("data") or "")
            unit.stdin(int(item["offset"]), item.get("ranks", "all"), data, bool(item.get("eof")))

    def _on_ack(self, connection: Connection, item: Json) -> None:
        """``{unit, n}``: records up to n are stored."""
        unit = self.units.get(item["unit"])
        if unit is not None:
            unit.ack(item["n"])

    def _on_forget(self, connection: Connection, item: Json) -> None:
        """``{unit}``: drop it; a live unit is dropped when it ends."""
        unit = self.units.get(item["unit"])
        if unit is not None:
            unit.forgotten = True
            if unit.phase == "ended":
                del self.units[unit.name]

    def _on_limit(self, connection: Connection, item: Json) -> None:
        """``{unit, remaining_s}``: a new time limit, counted from now; null for none."""
        unit = self.units.get(item["unit"])
        if unit is not None:
            unit.start()
            remaining = item.get("remaining_s")
            unit.limit(None if remaining is None else float(remaining))

    def _on_winsize(self, connection: Connection, item: Json) -> None:
        """``{unit, size: [rows, columns]}``: of the terminal of tasks that have one."""
        unit = self.units.get(item["unit"])
        if unit is not None:
            unit.winsize(item["size"])

    def _on_ping(self, connection: Connection, item: Json) -> None:
        connection.out.append(message({"t": "pong"}))

    def _on_shutdown(self, connection: Connection, item: Json) -> None:
        """``{force}``: end. Without force only if no unit lives."""
        if item.get("force"):
            self._shut_down()
        elif self._live:
            connection.out.append(message({"t": "refused", "why": f"{self._live} units are not over"}))
        else:
            self._done = True

    _handlers: dict[str, Callable[[Helper, Connection, Json], None]] = {
        "hello": _on_hello,
        "start": _on_start,
        "signal": _on_signal,
        "stdin": _on_stdin,
        "ack": _on_ack,
        "forget": _on_forget,
        "limit": _on_limit,
        "winsize": _on_winsize,
        "ping": _on_ping,
        "shutdown": _on_shutdown,
        "env": _on_env,
    }

    def serve(self) -> None:
        """From set-up to the end."""
        procs.set_subreaper()
        startup.take_over(self.directory, self.incarnation, SHUTDOWN_S)
        startup.handle_signals(self._wake_write)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        # The lock is held, so a socket that exists is dead.
        self._listener = link.listen(self.directory, self._dir_fd, "helper.sock")
        self._listener_fd = self._listener.fileno()
        self._epoll.register(self._listener_fd, select.EPOLLIN)
        self._tick()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20000, 20, 100)
        say(f"serving {self.directory} as node {self.node} ({self.host}), incarnation {self.incarnation}")
        try:
            self.run()
        finally:
            self._hang_up()
            for name in ("helper.sock", "helper.pid", "helper.incarnation"):
                try:
                    os.unlink(name, dir_fd=self._dir_fd)
                except OSError:
                    pass
        say("ended")


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 at a proper end or if another helper holds the directory, 1 if it cannot serve, 2 for usage."""
    parser = argparse.ArgumentParser(prog="leveret.exec.helper", description="starts tasks on one node")
    parser.add_argument("--dir", required=True, help="state directory of this helper")
    parser.add_argument("--node", required=True, type=int, help="rank of the node")
    parser.add_argument("--host", required=True, help="name of the node")
    args = parser.parse_args(argv)
    directory = os.path.abspath(args.dir)
    try:
        startup.settle_in()
        lock = startup.lock(directory)
        if lock is None:
            say(f"another helper serves {directory}")
            return 0
        Helper(directory, args.node, args.host).serve()
    except OSError as error:
        say(f"cannot serve {directory}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
