"""A user's own instance: started by the first command, found by the next, one of it, and nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import (
    LEVERET,
    WATCHDOG_S,
    Commands,
    Instance,
    UnixHTTP,
    clean_environ,
    end_processes,
    execute,
    processes_of,
    until,
    words,
)

import leveret


class Own(Commands):
    """A user with an empty home: HOME and XDG directories in the test's, no LEVERET_URI."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home, self.runtime = base / "home", base / "run"
        self.home.mkdir(parents=True)
        self.runtime.mkdir(mode=0o700)
        self.config = self.home / "config" / "leveret" / "leveret.toml"
        self.config.parent.mkdir(parents=True)
        self.env = clean_environ(
            HOME=str(self.home), XDG_RUNTIME_DIR=str(self.runtime), XDG_CONFIG_HOME=str(self.home / "config")
        )

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.leveret("status", "--json", check=0).out))

    def daemons(self) -> list[int]:
        return [pid for pid, line in processes_of(str(self.base)).items() if "leveret.daemon" in line]


def connected(pid: int) -> bool:
    """Whether a command has a connection to its daemon."""
    with contextlib.suppress(OSError):
        return any(
            os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:") for number in os.listdir(f"/proc/{pid}/fd")
        )
    return False


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    own = Own(tmp_path / "own")
    yield own
    own.leveret("shutdown", "--quiet", "--timeout=3s")
    try:
        until(lambda: not processes_of(str(own.base)), "the end of every process of this home", 10)
    finally:
        end_processes(str(own.base))


def test_the_first_command_starts_the_users_own_instance(own: Own) -> None:
    assert own.leveret("status").code == 4  # to ask is not to start
    assert own.daemons() == []
    assert own.run("echo", "hello").out == "hello\n"
    status = own.status()
    assert set(status) >= {"pid", "helpers", "uri", "state_dir", "version", "protocol", "started", "jobs"}
    assert status["version"] == leveret.__version__ and status["protocol"] == 1
    assert status["state_dir"] == str(own.home / ".local" / "state" / "leveret" / os.uname().nodename)
    assert status["uri"].startswith(f"local://{own.runtime}/leveret/")
    assert [set(helper) >= {"pid", "node"} for helper in status["helpers"]] == [True]
    assert status["helpers"][0]["node"] == 0
    assert own.daemons() == [status["pid"]]
    assert status["jobs"]["INACTIVE"] == 1
    # the next command finds it, and the job of the one before
    assert own.leveret("jobs", "-a", "--ids", check=0).out.strip() == own.leveret("job", "last", check=0).out.strip()
    assert own.status()["pid"] == status["pid"]


def test_what_it_makes_is_the_users_alone(own: Own) -> None:
    own.run("true", check=0)
    status = own.status()
    path = status["uri"].removeprefix("local://")
    for place, kind, mode in ((path, stat.S_ISSOCK, 0o600), (os.path.dirname(path), stat.S_ISDIR, 0o700)):
        info = os.stat(place)
        assert kind(info.st_mode) and stat.S_IMODE(info.st_mode) == mode and info.st_uid == os.getuid()
    assert stat.S_IMODE(os.stat(status["state_dir"]).st_mode) & 0o077 == 0


def test_two_commands_at_once_start_one_instance(own: Own) -> None:
    processes = [own.popen("run", "echo", str(number)) for number in range(4)]
    outs = [process.communicate(timeout=WATCHDOG_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outs
    assert [out for out, _ in outs] == [b"0\n", b"1\n", b"2\n", b"3\n"]
    # the daemons that came too late say `held` and go
    until(lambda: own.daemons() == [own.status()["pid"]], "one daemon is left")
    assert own.status()["jobs"]["INACTIVE"] == 4


def test_the_next_command_finds_a_daemon_after_kill_9(own: Own) -> None:
    gate = own.base / "gate"
    script = f"i=0; while ! [ -e {gate} ]; do i=$((i+1)); echo line $i; sleep 0.1; done; echo last $i"
    jobid = own.submit("sh", "-c", script)
    attached = own.popen("job", "attach", jobid)
    try:
        assert attached.stdout is not None
        first = attached.stdout.readline()
        before = own.status()
        os.kill(before["pid"], signal.SIGKILL)
        assert own.run("echo", "still here").out == "still here\n"
        after = own.status()
        assert after["pid"] != before["pid"] and after["helpers"] == before["helpers"]
        gate.touch()
        text = (first + attached.stdout.read()).decode()
        assert attached.wait(WATCHDOG_S) == 0
    finally:
        gate.touch()
        attached.kill()
        attached.communicate()
    *lines, end = text.splitlines()
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)] and end == f"last {len(lines)}"
    assert own.attach(jobid).out == text


def test_command_substitution_is_not_held_by_the_daemon(own: Own) -> None:
    """The daemon that a command starts holds none of its descriptors, nor its directory."""
    done = execute(
        ["sh", "-c", 'id=$("$0" submit echo hi); echo "got $id"; "$0" job attach "$id"', LEVERET], own.env, check=0
    )
    assert re.fullmatch(r"got \S+\nhi\n", done.out)
    status = own.status()
    for pid in (status["pid"], status["helpers"][0]["pid"]):
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert os.getsid(pid) == pid


def test_shutdown_ends_daemon_helpers_and_tasks_and_the_next_command_starts_again(own: Own) -> None:
    jobid = own.submit("sleep", "1000")
    own.leveret("job", "wait-event", jobid, "start", check=0)
    before = own.status()
    done = own.leveret("shutdown")
    assert (done.code, done.out) == (0, "")
    assert processes_of(str(own.base)) == {}
    assert own.leveret("status").code == 4
    listed = own.leveret("jobs", "-ano", "{id.f58} {status}", check=0).out
    assert listed == f"{jobid} CANCELED\n"
    assert own.status()["pid"] != before["pid"]


def test_shutdown_keep_leaves_the_tasks_and_the_next_daemon_finds_them(own: Own) -> None:
    gate = own.base / "gate"
    jobid = own.submit("sh", "-c", f"while ! [ -e {gate} ]; do sleep 0.05; done; echo done")
    own.leveret("job", "wait-event", jobid, "start", check=0)
    own.leveret("shutdown", "--keep", check=0)
    assert own.daemons() == []
    gate.touch()
    assert own.attach(jobid).out == "done\n"


def test_shutdown_where_nothing_runs(own: Own) -> None:
    done = own.leveret("shutdown")
    assert (done.code, done.err) == (0, "leveret-shutdown: no instance runs\n")
    assert own.daemons() == []


def test_r23_exit_codes_of_wait_are_disjoint(own: Own, tmp_path: Path) -> None:
    """1 the job failed, 2 not waitable, 3 nothing to wait for, 4 no manager."""
    failed = own.submit("--flags=waitable", "false")
    assert own.leveret("job", "wait", failed).code == 1
    assert own.leveret("job", "wait", failed).code == 2  # its result has been taken
    assert own.leveret("job", "wait", "1234") == (
        2,
        "",
        "leveret-job: invalid job id, or job may be inactive and not waitable\n",
    )
    nothing = own.leveret("job", "wait")
    assert (nothing.code, nothing.err.splitlines()[0]) == (3, "leveret-job: there are no more waitable jobs")
    own.submit("--flags=waitable", "true")
    assert own.leveret("job", "wait").code == 0
    own.env = {**own.env, "LEVERET_URI": f"local://{tmp_path}/nobody.sock"}
    unreachable = own.leveret("job", "wait", failed)
    del own.env["LEVERET_URI"]
    assert unreachable.code == 4
    assert "no daemon answers" in unreachable.err and "LEVERET_URI" in unreachable.err


@pytest.mark.parametrize("verb", [["run", "true"], ["submit", "true"], ["jobs"], ["cancel", "1"], ["status"]])
def test_an_unreachable_daemon_is_exit_code_4(own: Own, tmp_path: Path, verb: list[str]) -> None:
    env = {**own.env, "LEVERET_URI": f"local://{tmp_path}/nobody.sock"}
    done = execute([LEVERET, *verb], env)
    assert (done.code, done.out) == (4, "")
    assert f"ERROR: no daemon answers at `{tmp_path}/nobody.sock`: No such file or directory" in done.err
    assert own.daemons() == []  # LEVERET_URI names somebody else's: nothing is started


def test_a_uri_that_is_none(own: Own) -> None:
    done = execute([LEVERET, "jobs"], {**own.env, "LEVERET_URI": "tcp://example:1"})
    assert done.code != 0 and "`tcp://example:1` is not the URI of an instance" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[job-manager\n", r"leveret\.toml:1: "),
        (
            "[exec]\nkill-timeout = '5s'\n\n[staging]\ncopierr = ['x']\n",
            r"leveret\.toml:5: unknown key `staging.copierr`",
        ),
        ("[exec]\nkill-timeout = 5\n", r"leveret\.toml:2: exec.kill-timeout: "),
    ],
    ids=["syntax", "unknown-key", "wrong-type"],
)
def test_a_bad_configuration_is_an_error_with_file_and_line(own: Own, text: str, said: str) -> None:
    own.config.write_text(text)
    done = own.run("true")
    assert done.code == 4 and re.search(said, done.err), done.err
    started = own.leveret("start", "--config", str(own.config), "true")
    assert started.code == 4 and re.search(said, started.err), started.err
    assert own.daemons() == []
    own.config.write_text("")
    assert own.run("echo", "mended").out == "mended\n"


def test_a_missing_configuration_file_is_named(own: Own) -> None:
    done = own.leveret("start", "--config", "/no/such.toml", "true")
    assert done.code == 4 and "/no/such.toml: No such file or directory" in done.err


def test_start_around_a_command_gives_its_code_and_leaves_nothing(own: Own) -> None:
    script = "leveret status --json; leveret run -N2 -l hostname >&2; exit 7"
    env = {**own.env, "PATH": f"{os.path.dirname(LEVERET)}:{own.env['PATH']}", "TMPDIR": str(own.base)}
    done = execute([LEVERET, "start", "-s2", "sh", "-c", script], env)
    assert done.code == 7
    status = json.loads(done.out)
    assert [helper["node"] for helper in status["helpers"]] == [0, 1]
    assert [helper["host"] for helper in status["helpers"]] == ["node0", "node1"]
    assert "0: " in done.err and "1: " in done.err
    assert not os.path.exists(status["state_dir"])
    assert processes_of(str(own.base)) == {}
    missing = execute([LEVERET, "start", "nosuchcommand"], env)
    assert (missing.code, missing.err) == (127, "leveret-start: nosuchcommand: command not found\n")


def test_start_keeps_a_state_directory_that_was_named(own: Own) -> None:
    where = own.base / "kept"
    env = {**own.env, "PATH": f"{os.path.dirname(LEVERET)}:{own.env['PATH']}"}
    first = execute([LEVERET, "start", f"--statedir={where}", "leveret", "submit", "--wait", "true"], env, check=0)
    again = execute([LEVERET, "start", f"--statedir={where}", "leveret", "jobs", "-a", "--ids"], env, check=0)
    assert again.out == first.out


def test_a_nested_instance_is_found_by_its_jobs(instance: Instance) -> None:
    done = instance.run("sh", "-c", '"$0" run echo inner', LEVERET)
    assert (done.code, done.out) == (0, "inner\n")
    assert len(instance.client.jobs(count=0)) == 2


def test_a_wrong_protocol_is_426_and_code_version(instance: Instance) -> None:
    status, body = instance.http("GET", "/v1/status", headers={"Leveret-Protocol": "99"})
    assert (status, body["code"]) == (426, "version")
    assert "99" in body["message"] and body["hint"]
    assert instance.http("GET", "/v1/status")[0] == 200


def test_malformed_requests_are_errors_of_the_caller(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    number = instance.record(jobid)["id"]
    for method, target, body, status, code in [
        ("GET", "/v1/nosuch", None, 404, "not-found"),
        ("POST", "/v1/jobs", b"{not json", 400, "usage"),
        ("POST", "/v1/jobs", {"jobspec": {}}, 400, "jobspec"),
        ("POST", f"/v1/jobs/{number}/urgency", {"urgency": 99}, 400, "invalid"),
        ("POST", f"/v1/jobs/{number}/urgency", {"nosuch": 1}, 400, "usage"),
        ("POST", f"/v1/jobs/{number}/kill", {"signal": 15}, 409, "conflict"),
        ("GET", "/v1/jobs/notanid", None, 400, "format"),
        ("GET", f"/v1/jobs/{number}/keys/nosuch", None, 404, "not-found"),
        ("GET", f"/v1/jobs/{number}/events?path=nosuch", None, 404, "not-found"),
    ]:
        answer = instance.http(method, target, body)
        assert (answer[0], answer[1]["code"]) == (status, code), (method, target, answer)
        assert set(answer[1]) == {"code", "message", "hint", "path"}
    assert instance.names(jobid) == words("submit validate depend priority")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_another_uid_is_refused(launch: Callable[..., Instance]) -> None:
    instance = launch()
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        link = os.path.join(place, "s")
        instance.kill_daemon()
        instance.socket, instance.uri = link, f"local://{link}"
        instance.env["LEVERET_URI"] = instance.uri
        instance.start()
        instance._client = None
        jobid = instance.submit("--urgency=0", "true")

        def as_nobody(method: str, target: str, body: bytes | None = None) -> tuple[int, str]:
            """One request from a process of uid 65534, by fork: the interpreter may be out of its reach."""
            read_fd, write_fd = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                    connection = UnixHTTP(link)
                    connection.request(method, target, body, {"Leveret-Protocol": "1"})
                    answer = connection.getresponse()
                    said = json.dumps([answer.status, answer.read().decode()])
                except OSError as error:
                    said = json.dumps([-(error.errno or 0), str(error)])
                os.write(write_fd, said.encode())
                os._exit(0)
            os.close(write_fd)
            with open(read_fd) as pipe:
                status, text = json.loads(pipe.read())
            os.waitpid(pid, 0)
            return int(status), str(text)

        # the socket's mode keeps others out …
        assert as_nobody("GET", "/v1/status")[0] == -13
        os.chmod(link, 0o666)
        # … and where it does not, the daemon does: on every route
        for method, target, body in [
            ("GET", "/v1/status", None),
            ("GET", "/v1/jobs", None),
            ("GET", f"/v1/jobs/{jobid.replace('ƒ', 'f')}", None),
            ("GET", f"/v1/jobs/{jobid.replace('ƒ', 'f')}/events", None),
            ("POST", "/v1/jobs", b"{}"),
            ("POST", f"/v1/jobs/{jobid.replace('ƒ', 'f')}/cancel", b"{}"),
            ("POST", "/v1/jobtap", b'{"load": "/tmp/x.py"}'),
            ("POST", "/v1/shutdown", b"{}"),
            ("GET", "/v1/openapi.json", None),
        ]:
            status, text = as_nobody(method, target, body)
            assert (status, json.loads(text)["code"]) == (403, "forbidden"), target
        assert instance.record(jobid)["state"] == "SCHED"
        instance.stop()
        instance.daemon = None


def test_a_second_daemon_on_the_same_state_is_refused(instance: Instance) -> None:
    done = execute([*instance.command(), "--ready-fd", "1"], clean_environ())
    assert done.out == "held\n"
    assert instance.run("echo", "one").out == "one\n"  # the first was not disturbed


def test_a_socket_that_vanishes_is_made_again(instance: Instance) -> None:
    os.unlink(instance.socket)

    def there() -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(instance.socket)
            return True
        return False

    until(there, "the socket is back")
    assert instance.run("echo", "back").out == "back\n"


def test_shutdown_is_not_undone_by_who_still_waits(own: Own) -> None:
    """A waiter outlives an orderly end, starts nothing, and goes on with the next daemon that a command starts."""
    jobid = own.submit("--urgency=0", "echo", "at last")
    processes = [own.popen("job", verb, jobid) for verb in ("wait", "attach", "status")]
    waiting = own.popen("job", "wait-event", jobid, "clean")
    try:
        for process in (*processes, waiting):
            until(partial(connected, process.pid), "every one is connected")
        own.leveret("shutdown", check=0)
        assert own.daemons() == []
        assert own.leveret("status").code == 4
        assert [process.poll() for process in processes] == [None] * 3
        own.leveret("job", "urgency", jobid, "16", check=0)  # the next command
        assert own.leveret("job", "wait", jobid).code == 0
        outs = [process.communicate(timeout=WATCHDOG_S) for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], outs
        assert outs[1] == (b"at last\n", b"")
        assert waiting.wait(WATCHDOG_S) == 0
    finally:
        for process in (*processes, waiting):
            process.kill()
            process.communicate()


def test_r23_the_manager_stops_during_a_wait(instance: Instance) -> None:
    """Never 0 and never an internal error: code 4 for a wait that no daemon answers any more."""
    held = instance.submit("--urgency=0", "--flags=waitable", "true")
    waiting = instance.popen("job", "wait")
    try:
        until(partial(connected, waiting.pid), "it waits")
        instance.leveret("shutdown", check=0)
        _, err = waiting.communicate(timeout=WATCHDOG_S)
    finally:
        waiting.kill()
    assert waiting.returncode == 4 and err.startswith(b"leveret-job: the daemon is ending"), err
    assert instance.leveret("job", "wait", held).code == 4
