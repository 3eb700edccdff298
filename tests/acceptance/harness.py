"""What the acceptance tests share: a real instance (daemon, helpers, processes), its doors, and steerable scripts.

Nothing here measures time. `WATCHDOG_S` ends what hangs; everything else waits for an event or for a file.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from leveret.client import Client
from leveret.core import jobid as jobids
from leveret.core.event import decode
from leveret.core.resourcelog import ResourceState
from leveret.core.resourcelog import apply_event as resource_event


def words(text: str) -> list[str]:
    """Names of events, as they are easiest to read."""
    return text.split()


WATCHDOG_S = 60.0
POLL_S = 0.02
LEVERET = str(Path(sys.executable).with_name("leveret"))
#: what an ordinary job logs
NORMAL = words("submit validate depend priority alloc start finish release free clean")
#: variables that would let a test reach somebody else's instance or configuration
FOREIGN = ("LEVERET_", "FLUX_", "XDG_")


class Result(NamedTuple):
    """One command's end. `out` is bytes when it was asked for as such."""

    code: int
    out: Any
    err: str


def until(what: Callable[[], Any], why: str, patience_s: float = WATCHDOG_S) -> Any:
    """Ask until the answer is true; the answer. An AssertionError with `why` when the watchdog bites."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"never happened: {why}"
        time.sleep(POLL_S)


def clean_environ(**more: str) -> dict[str, str]:
    """Our environment without anything that names an instance; UTF-8, so that ids are `ƒ…`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return {**kept, "LC_ALL": "C.UTF-8", **more}


def execute(
    argv: list[str],
    env: dict[str, str],
    *,
    input: str | bytes | None = None,
    cwd: Path | str | None = None,
    binary: bool = False,
    timeout_s: float = WATCHDOG_S,
    check: int | None = None,
) -> Result:
    """Run a command to its end under the watchdog. `check`: the exit code that it must have."""
    data = input.encode() if isinstance(input, str) else input
    done = subprocess.run(
        argv,
        env=env,
        cwd=cwd,
        timeout=timeout_s,
        capture_output=True,
        **({"stdin": subprocess.DEVNULL} if data is None else {"input": data}),
    )
    out = done.stdout if binary else done.stdout.decode()
    result = Result(done.returncode, out, done.stderr.decode("utf-8", "backslashreplace"))
    if check is not None:
        assert result.code == check, f"{argv[1:]} gave {result.code}, not {check}:\n{result.out!r}\n{result.err}"
    return result


def processes_of(*marks: str) -> dict[int, str]:
    """pid → command line of every living process that has a mark in its command line or environment; not us."""
    found: dict[int, str] = {}
    needles = [os.fsencode(mark) for mark in marks]
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        text = b""
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError), open(f"/proc/{entry}/{name}", "rb") as file:
                text += file.read() + b"\0"
        if any(needle in text for needle in needles):
            found[int(entry)] = text.partition(b"\0\0")[0].replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    return found


def end_processes(*marks: str) -> dict[int, str]:
    """Kill what is left of a test, by pid, until nothing is; what it was."""
    seen: dict[int, str] = {}
    deadline = time.monotonic() + 10
    while (left := processes_of(*marks)) and time.monotonic() < deadline:
        seen |= left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return seen


class UnixHTTP(http.client.HTTPConnection):
    """The standard library's HTTP over a Unix socket: a door that shares no code with ours."""

    def __init__(self, path: str) -> None:
        super().__init__("leveret", timeout=WATCHDOG_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(WATCHDOG_S)
        self.sock.connect(self._path)


class Commands:
    """The installed `leveret` command in one environment, and what tests read through it."""

    env: dict[str, str]

    def leveret(self, *args: str, **options: Any) -> Result:
        return execute([LEVERET, *args], self.env, **options)

    def popen(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen([LEVERET, *args], env=self.env, **options)

    def run(self, *args: str, **options: Any) -> Result:
        return self.leveret("run", *args, **options)

    def submit(self, *args: str, **options: Any) -> str:
        """Submit one job that must be accepted; its id as printed."""
        return str(self.leveret("submit", *args, check=0, **options).out).strip()

    def attach(self, jobid: str, *options: str, **more: Any) -> Result:
        return self.leveret("job", "attach", *options, jobid, **more)


class Instance(Commands):
    """An instance of a test's own: `python -m leveret.daemon` on a state directory and a socket in `base`."""

    def __init__(self, base: Path, size: int = 1, config: str = "") -> None:
        base.mkdir(parents=True, exist_ok=True)
        self.base = base
        self.size = size
        self.state_dir = base / "state"
        self.socket = str(base / "s")
        self.uri = "local://" + self.socket
        self.config = base / "leveret.toml"
        self.config.write_text(config)
        self.env = clean_environ(LEVERET_URI=self.uri)
        self.cores = len(os.sched_getaffinity(0))
        self.daemon: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []
        self._client: Client | None = None

    # the daemon

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "leveret.daemon", "--statedir", str(self.state_dir), "--socket", self.socket,
            "--size", str(self.size), "--config", str(self.config),
        ]  # fmt: skip

    def start(self) -> Instance:
        read_fd, write_fd = os.pipe()
        with open(self.base / "daemon.err", "ab") as errors:
            self.daemon = subprocess.Popen(
                [*self.command(), "--ready-fd", str(write_fd)],
                env=clean_environ(),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
        os.close(write_fd)
        with open(read_fd, "rb") as ready:
            said = ready.readline().decode().strip()
        assert said == "ok", f"the daemon says `{said}`; {(self.base / 'daemon.err').read_text()}"
        return self

    def kill_daemon(self) -> None:
        """CRASH, first half: kill -9."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait(WATCHDOG_S)

    def restart(self) -> None:
        """CRASH, second half (or after an orderly end): the daemon again, on the same state."""
        self.start()

    def crash(self) -> None:
        self.kill_daemon()
        self.restart()

    def stop(self) -> None:
        """End daemon and helpers; fails when a process with this state directory is left over."""
        for client in self._clients:
            client.close()
        daemon = self.daemon
        if daemon is not None and daemon.poll() is None:
            with contextlib.suppress(Exception), Client(self.uri, start=False, patience_s=5) as client:
                for job in client.jobs(states=["active"], count=0):
                    for hold in job["holds"]:
                        if not hold["plugin"] or hold["plugin"] == "hold":
                            with contextlib.suppress(Exception):
                                client.finish_hold(job["id"], hold["name"], kind=hold["kind"])
                client.shutdown(timeout_s=3)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
        deadline = time.monotonic() + 5
        while (left := processes_of(str(self.base))) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        end_processes(str(self.base))
        assert not left, f"processes outlive the shut down instance: {left}"

    def high_water_bytes(self) -> int:
        """The most memory that the daemon ever held (VmHWM)."""
        assert self.daemon is not None
        for text in Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines():
            if text.startswith("VmHWM:"):
                return int(text.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    # doors

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self) -> Client:
        client = Client(self.uri, start=False)
        self._clients.append(client)
        return client

    def http(self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """(status, decoded JSON, else text) of one request, by the standard library."""
        connection = UnixHTTP(self.socket)
        try:
            raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, target, raw, {"Leveret-Protocol": "1", **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
            kind = answer.getheader("content-type", "")
            return answer.status, (json.loads(text) if kind.partition(";")[0] == "application/json" else text.decode())
        finally:
            connection.close()

    # questions that tests ask all the time

    def record(self, jobid: str | int) -> dict[str, Any]:
        return self.client.job(jobid)

    def eventlog(self, jobid: str | int, path: str = "eventlog") -> list[dict[str, Any]]:
        return self.client.eventlog(jobid, path)

    def names(self, jobid: str | int) -> list[str]:
        return [event["name"] for event in self.eventlog(jobid)]

    def contexts(self, jobid: str | int, name: str) -> list[dict[str, Any]]:
        return [event.get("context", {}) for event in self.eventlog(jobid) if event["name"] == name]

    def wait(self, jobid: str | int) -> dict[str, Any]:
        """The record once the job is clean. Under the watchdog: in the end a failure with the job's story."""
        deadline = time.monotonic() + WATCHDOG_S
        for line in self.guarded_events(jobid, deadline):
            if line.get("end"):
                return dict(line["job"])
        raise AssertionError(f"{jobid} does not end: {self.record(jobid)}\n{self.names(jobid)}")

    def wait_event(self, jobid: str | int, name: str, path: str = "eventlog", count: int = 1) -> dict[str, Any]:
        """The count-th event of that name; a failure when the job ends without it."""
        deadline = time.monotonic() + WATCHDOG_S
        for line in self.guarded_events(jobid, deadline, path):
            if line.get("end"):
                break
            if "event" in line and line["event"]["name"] == name:
                count -= 1
                if not count:
                    return dict(line["event"])
        raise AssertionError(f"{jobid} has no `{name}` in {path}: {self.eventlog(jobid, path)}")

    def guarded_events(self, jobid: str | int, deadline: float, path: str = "eventlog") -> Iterator[dict[str, Any]]:
        from select import select

        from leveret.client import EventStream

        with EventStream(self.new_client(), jobid, [path]) as stream:
            while not stream.ended:
                left = deadline - time.monotonic()
                if left <= 0 or (not stream.pending and not select([stream.fileno()], [], [], left)[0]):
                    return
                yield from stream.pump()

    def wait_state(self, jobid: str | int, state: str) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            record = self.record(jobid)
            return record if record["state"] == state else None

        return dict(until(there, f"{jobid} in {state}"))

    def holds(self, jobid: str | int) -> list[str]:
        """`kind/name` of the open holds."""
        return [f"{hold['kind']}/{hold['name']}" for hold in self.record(jobid)["holds"]]

    def idle(self) -> None:
        """Cancel what is active and wait until nothing is: a shared instance is clean for the next test."""
        for job in self.client.jobs(states=["active"], count=0):
            with contextlib.suppress(Exception):
                self.client.cancel(job["id"], "end of test")
        until(lambda: not self.client.jobs(states=["active"], count=0), "an idle instance")


def drained(instance: Instance) -> dict[int, str]:
    """rank → reason of the drained nodes, as the resource eventlog on the disk has them."""
    with contextlib.closing(sqlite3.connect(f"file:{instance.state_dir}/leveret.db?mode=ro", uri=True)) as database:
        lines = [row[0] for row in database.execute("SELECT line FROM resource_event ORDER BY n")]
    state = ResourceState()
    for text in lines:
        state = resource_event(state, decode(text), strict=False)
    return {rank: drain.reason for rank, drain in sorted(state.drains.items())}


def f58(jobid: str | int) -> str:
    """The spelling that the command prints under a UTF-8 locale."""
    return jobids.encode(jobids.parse(jobid) if isinstance(jobid, str) else jobid)


def in_order(names: list[str], *wanted: str) -> None:
    """Every wanted name is in the log, in this order (others may stand between)."""
    at = -1
    for name in wanted:
        assert name in names[at + 1 :], f"`{name}` is missing after {names[: at + 1]}: {names}"
        at = names.index(name, at + 1)


# Scripts that a test steers


class Gate:
    """A script waits at it until the test opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        self.path.touch()


#: begins with a line in the ledger, then does what its control file says:
#: ok T | fail T CODE | hang | gate FILE [CODE] | deaf FILE (as gate, ignores SIGTERM)
OBEY = """\
note() {{ echo "${{FLUX_JOB_ID:-$JOB}} ${{FLUX_JOB_RANKS:--}} $1 $$" >> {ledger}; }}
obey() {{
    note $phase
    read how first second < "$1"
    case $how in
        ok) sleep $first; note $phase-end;;
        fail) sleep $first; note $phase-end; echo "$phase failed on purpose" >&2; exit $second;;
        hang) sleep 1000;;
        gate|deaf)
            if [ $how = deaf ]; then trap "" TERM; fi
            while ! [ -e "$first" ]; do sleep 0.02; done
            note $phase-end
            if [ ${{second:-0}} != 0 ]; then echo "$phase failed on purpose" >&2; fi
            if [ ${{second:-0}} != 0 ]; then exit $second; fi;;
        *) echo "no such control: $how" >&2; exit 99;;
    esac
}}
"""
PERILOG = "#!/bin/sh\n" + OBEY + "phase={phase}\nobey {control}\n"
MOVER = (
    "#!/bin/sh\n# the ledger's first word is what is moved to where\n"
    + OBEY
    + """\
JOB=$(basename "$1"):$(basename "$2")
phase=move
control={control}.$(basename "$2")
if ! [ -e "$control" ]; then control={control}; fi
obey "$control"
mkdir -p "$(dirname "$2")" && cp -R "$1" "$2"
note moved
"""
)


class Ledger:
    """A file to which PRO, EPI and MOVER append `jobid ranks phase pid`: the oracle for exactly-once."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.path = base / "ledger"
        self.path.touch()
        self._gates = 0

    def rows(self) -> list[list[str]]:
        return [text.split() for text in self.path.read_text().splitlines()]

    def phases(self, job: str = "") -> list[str]:
        """Phases in the order in which they were noted, of one job if named."""
        return [row[2] for row in self.rows() if not job or row[0] == job]

    def _script(self, name: str, template: str, control: str) -> tuple[Path, Path]:
        script, steer = self.base / f"{name}.sh", self.base / f"{name}.control"
        script.write_text(template.format(ledger=self.path, phase=name, control=steer))
        script.chmod(0o755)
        steer.write_text(control + "\n")
        return script, steer

    def perilog(self, phase: str, control: str = "ok 0", extra: str = "") -> str:
        """Configuration for a prolog, epilog or housekeeping; `steer` changes what it does."""
        script, _ = self._script(phase, PERILOG, control)
        return f'[job-manager.{phase}]\ncommand = ["{script}"]\n{extra}\n'

    def mover(self, control: str = "ok 0") -> str:
        """Configuration for a copier that is steered; `steer("mover", …, to=NAME)` steers one destination."""
        script, _ = self._script("mover", MOVER, control)
        return f'[staging]\ncopier = ["{script}", "{{src}}", "{{dst}}"]\n'

    def steer(self, name: str, control: str, to: str = "") -> None:
        path = self.base / f"{name}.control{'.' + to if to else ''}"
        part = path.with_suffix(".part")
        part.write_text(control + "\n")
        part.rename(path)

    def gate(self) -> Gate:
        self._gates += 1
        return Gate(self.base / f"gate{self._gates}")


HOLD = '''\
from leveret.plugins.hooks import DependencyHold, EpilogHold, PartHold, Plugin, PrologHold

KINDS = {"dependency": DependencyHold, "prolog": PrologHold, "epilog": EpilogHold, "part": PartHold}


class Hold(Plugin):
    """Takes the holds of its configuration {moment: [[kind, name, options]]}; the API lets go."""

    def take(self, job, moment):
        return [KINDS[kind](name, **options) for kind, name, options in self.conf.get(moment, [])]

    def state_depend(self, job):
        return self.take(job, "depend")

    def state_run(self, job):
        return self.take(job, "run")

    def state_cleanup(self, job):
        return self.take(job, "cleanup")

    def stop(self, job, hold):
        return True  # it ends when it is told to, not before
'''


def load_hold(instance: Instance, **moments: list[tuple[str, str, dict[str, Any]]]) -> None:
    """HOLD: a plugin that takes named holds at moments (depend, run, cleanup) of every job from now on."""
    path = instance.base / "hold.py"
    path.write_text(HOLD)
    instance.client.jobtap_load(str(path), {moment: [list(one) for one in holds] for moment, holds in moments.items()})


def lines_between(first: int, last: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, last + 1))
