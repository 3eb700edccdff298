"""`leveret start`: run an instance around a command, or in the foreground.

The daemon is our child. One that is killed is started again as long as the command runs; its helpers and their
tasks do not notice. At the end the instance is shut down, helpers included, and a temporary state directory
is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from types import FrameType
from typing import Any

import click

from leveret import instance
from leveret.cli import output
from leveret.cli.base import Command
from leveret.errors import LeveretError, UnreachableError

#: A daemon that ends this often within RESTARTS_WINDOW_S is not started again.
RESTARTS_MAX = 10
RESTARTS_WINDOW_S = 30.0
SHUTDOWN_TIMEOUT_S = 20.0
POLL_S = 0.05


@click.command(
    "start",
    cls=Command,
    usage="[OPTIONS...] [COMMAND [ARGS...]]",
    wraps=True,
    examples=(
        ("leveret start -s4 leveret run -N4 hostname", "four nodes on this machine, around one command"),
        ("leveret start --statedir=./state", "a shell in an instance that keeps its state"),
    ),
)
@click.option(
    "-s", "--test-size", "--size", "size", type=click.IntRange(1, 4096), default=1, metavar="N", help="Nodes."
)
@click.option("--statedir", metavar="DIR", help="Keep the state here (default: a temporary directory).")
@click.option("-c", "--config-path", "--config", "config", metavar="FILE", help="Configuration (leveret.toml).")
@click.option("-v", "--verbose", is_flag=True, help="Say what happens to the daemon.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [ARGS...]]")
def start(size: int, statedir: str | None, config: str | None, verbose: bool, command: tuple[str, ...]) -> int:
    """Start an instance, run COMMAND in it, and end it.

    COMMAND finds the instance by LEVERET_URI. Without one it is your shell, or nothing where there is no
    terminal: the instance then runs until SIGTERM or Ctrl-C. The exit code is the command's (128+N after signal N).
    """
    state_dir = os.path.abspath(statedir) if statedir else tempfile.mkdtemp(prefix="leveret-start-")
    try:
        return Session(state_dir, size, config, verbose, temporary=not statedir).run(list(command))
    finally:
        if not statedir:
            shutil.rmtree(state_dir, ignore_errors=True)


class Ended(BaseException):
    """SIGTERM or SIGHUP, or Ctrl-C without a command: end the instance."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Session:
    """One instance with its daemon and, maybe, the command around which it runs."""

    def __init__(self, state_dir: str, size: int, config: str | None, verbose: bool, temporary: bool) -> None:
        self.state_dir = state_dir
        self.socket_path = instance.socket_path_for(state_dir)
        self.uri = instance.make_uri(self.socket_path)
        self.size = size
        self.config = config
        self.verbose = verbose
        self.daemon: subprocess.Popen[bytes] | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self._restarts: list[float] = []
        #: the daemon ends when our end of this pipe is closed, however we end; not where the state is to outlive us
        self._owner_fd, self._own_fd = os.pipe() if temporary else (-1, -1)
        #: a daemon did not come up again, and another attempt is due
        self._retry = False

    def run(self, command: list[str]) -> int:
        """Raises UnreachableError when the daemon does not come up."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._signal)
        try:
            self._start_daemon()
            if not command and output.is_terminal(0):
                command = [os.environ.get("SHELL") or "/bin/sh"]
            if command:
                return self._around(command)
            output.note(f"instance at {self.uri}; Ctrl-C ends it")
            while True:
                time.sleep(POLL_S)
                self._watch_daemon()
        except Ended as ended:
            # in the foreground a signal is how it is meant to end
            return 0 if self.child is None else 128 + ended.number
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            self._stop()

    def _signal(self, number: int, frame: FrameType | None) -> None:
        child = self.child
        if child is None:
            raise Ended(number)
        if number != signal.SIGINT:  # Ctrl-C reaches the command by itself
            try:
                child.send_signal(number)
            except ProcessLookupError:
                pass

    def _around(self, command: list[str]) -> int:
        environ = {**os.environ, instance.URI_VARIABLE: self.uri, "FLUX_URI": self.uri}
        try:
            self.child = subprocess.Popen(command, env=environ, restore_signals=True)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            reason = "command not found" if code == 127 else error.strerror
            output.note(f"{command[0]}: {reason}")
            return code
        while True:
            try:
                status = self.child.wait(timeout=POLL_S * 4)
                break
            except subprocess.TimeoutExpired:
                self._watch_daemon()
        code = 128 - status if status < 0 else status
        if code:
            output.note(f"0 (pid {self.child.pid}) exited with rc={code}")
        return code

    # The daemon

    def _start_daemon(self) -> None:
        os.makedirs(self.state_dir, mode=0o700, exist_ok=True)
        read_fd, write_fd = os.pipe()
        errors_path = os.path.join(self.state_dir, "daemon.err")
        try:
            with open(errors_path, "ab") as errors:
                offset = errors.tell()
                environ = {k: v for k, v in os.environ.items() if k not in (instance.URI_VARIABLE, "FLUX_URI")}
                self.daemon = subprocess.Popen(
                    [
                        *instance.daemon_command(self.state_dir, self.socket_path, self.size, self.config),
                        "--ready-fd",
                        str(write_fd),
                        *(("--owner-fd", str(self._owner_fd)) if self._owner_fd >= 0 else ()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    env=environ,
                    start_new_session=True,
                    pass_fds=(write_fd, *((self._owner_fd,) if self._owner_fd >= 0 else ())),
                    umask=0o022,
                )
            os.close(write_fd)
            said = instance.read_ready(read_fd, instance.START_TIMEOUT_S)
        finally:
            os.close(read_fd)
        if said == "ok":
            return
        if self.daemon is not None:  # it has said its last word
            try:
                self.daemon.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
            self.daemon = None
        if said == "held":
            raise UnreachableError(f"another instance runs in {self.state_dir}", "end it first: leveret shutdown")
        raise instance.start_failure(said, errors_path, offset, instance.START_TIMEOUT_S)

    def _watch_daemon(self) -> None:
        """Start a daemon that died again. One that was shut down (exit code 0) stays down."""
        if self.daemon is not None:
            if self.daemon.poll() is None:
                return
            if self.daemon.returncode == 0:
                if self.child is None:
                    raise Ended(signal.SIGTERM)
                return
        elif not self._retry:
            return
        now = time.monotonic()
        self._restarts = [moment for moment in self._restarts if now - moment < RESTARTS_WINDOW_S] + [now]
        self._retry = len(self._restarts) <= RESTARTS_MAX
        if not self._retry:
            self.daemon = None
            output.note(f"ERROR: the daemon ends again and again; see {self.state_dir}/daemon.err")
            return
        if self.verbose and self.daemon is not None:
            ended = f"the daemon (pid {self.daemon.pid}) ended with {self.daemon.returncode}"
            output.note(f"{ended}; starting it again")
        try:
            self._start_daemon()
        except LeveretError as failure:
            output.error(failure)

    def _stop(self) -> None:
        """Shut the instance down: daemon and helpers, by request if it answers, else by signal."""
        if self.daemon is not None and self.daemon.poll() is not None and self.daemon.returncode == 0:
            return
        helpers: list[int] = []
        if self.daemon is not None and self.daemon.poll() is None:
            from leveret.client import Client

            try:
                with Client(self.uri, patience_s=2.0) as client:
                    helpers = [int(helper["pid"]) for helper in client.status().get("helpers", []) if helper.get("pid")]
                    for left in client.shutdown(timeout_s=SHUTDOWN_TIMEOUT_S / 2):
                        output.note(f"left behind: {left}")
            except LeveretError as failure:
                output.note(f"shutdown: {failure.message}")
        self._end_daemon()
        strays = [pid for pid in processes_of(self.state_dir) if pid not in helpers]
        for pid in strays:  # the daemon could not be asked to end them
            signal_process(pid, signal.SIGTERM)
        end_processes(helpers + strays)
        try:
            os.unlink(self.socket_path)
        except OSError:
            pass

    def _end_daemon(self) -> None:
        daemon = self.daemon
        if daemon is None:
            return
        for act, patience_s in ((None, SHUTDOWN_TIMEOUT_S), (daemon.terminate, 5.0), (daemon.kill, 5.0)):
            if act is not None:
                act()
            try:
                daemon.wait(timeout=patience_s)
                return
            except subprocess.TimeoutExpired:
                continue


def end_processes(pids: list[int], patience_s: float = 5.0) -> None:
    """Wait for processes of ours to end; kill what does not. A pid that was reused is left alone."""
    started = {pid: moment for pid in pids if (moment := start_time(pid))}
    deadline = time.monotonic() + patience_s
    while started and time.monotonic() < deadline:
        started = {pid: moment for pid, moment in started.items() if start_time(pid) == moment}
        if started:
            time.sleep(POLL_S)
    for pid, moment in started.items():
        if start_time(pid) == moment:
            signal_process(pid, signal.SIGKILL)


def signal_process(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def processes_of(state_dir: str) -> list[int]:
    """Our daemons and helpers whose command line names this state directory."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as line:
                words = line.read().split(b"\0")
            own = os.stat(f"/proc/{name}").st_uid == os.getuid()
        except OSError:
            continue
        at = os.fsencode(state_dir)
        ours = any(word.startswith(b"leveret.") for word in words[:6])
        if own and ours and any(word == at or word.startswith(at + b"/") for word in words):
            found.append(int(name))
    return found


def start_time(pid: int) -> str:
    """The start time of a process by /proc (field 22 of stat); "" if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as line:
            fields = line.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def describe(status: dict[str, Any]) -> list[tuple[str, str]]:
    """An instance's status as rows."""
    started = status.get("started")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(started))) if started else "-"
    helpers = ", ".join(
        f"{helper.get('node')} (pid {helper.get('pid')}{'' if helper.get('connected', True) else ', not connected'})"
        for helper in status.get("helpers", [])
    )
    jobs = ", ".join(f"{count} {state}" for state, count in (status.get("jobs") or {}).items() if count)
    return [
        ("uri", str(status.get("uri", ""))),
        ("daemon", f"pid {status.get('pid')}, up since {when}"),
        ("helpers", helpers or "-"),
        ("state", str(status.get("state_dir", ""))),
        ("version", f"{status.get('version')} (protocol {status.get('protocol')})"),
        ("jobs", jobs or "none"),
        *([("quarantined", f"{count} (leveret job quarantine list)")] if (count := status.get("quarantined")) else []),
    ]
