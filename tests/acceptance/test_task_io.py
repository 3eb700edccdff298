"""Task I/O and task control through the command, as the goldens say (`run.output-*`, `run.input-*`, `run.exit-*` …)."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import LEVERET, WATCHDOG_S, Instance


def last(instance: Instance) -> int:
    return int(instance.client.jobs(count=1)[0]["id"])


def log_of(instance: Instance, path: str, jobid: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    events = instance.eventlog(jobid or last(instance), path)
    return [(event["name"], event.get("context", {})) for event in events]


def notes(err: str) -> list[str]:
    """Lines of stderr without their times."""
    return [line.partition("s: ")[2] if line[:1].isdigit() and "s: " in line else line for line in err.splitlines()]


# ---- output


def test_output_to_a_file(shared: Instance, tmp_path: Path) -> None:
    done = shared.run("--output=out", "sh", "-c", "echo a; echo b >&2", cwd=tmp_path, check=0)
    assert (done.out, done.err) == ("", "0: stdout redirected to out\n0: stderr redirected to out\n")
    assert sorted((tmp_path / "out").read_text().split()) == ["a", "b"]
    events = log_of(shared, "output")
    assert [name for name, _ in events] == ["header", "redirect", "redirect"]
    assert [event for _, event in events[1:]] == [
        {"stream": stream, "rank": "0", "path": "out"} for stream in ("stdout", "stderr")
    ]


def test_error_to_a_file(shared: Instance, tmp_path: Path) -> None:
    done = shared.run("--error=err", "sh", "-c", "echo a; echo b >&2", cwd=tmp_path, check=0)
    assert (done.out, done.err) == ("a\n", "0: stderr redirected to err\n")
    assert (tmp_path / "err").read_text() == "b\n"


def test_files_of_tasks(shared: Instance, tmp_path: Path) -> None:
    done = shared.run("-n2", "--output=t-{{taskid}}.txt", "sh", "-c", "echo $FLUX_TASK_RANK", cwd=tmp_path, check=0)
    assert done.err.splitlines()[0] == "[0-1]: stdout redirected to t-{{taskid}}.txt"
    assert [(tmp_path / f"t-{rank}.txt").read_text() for rank in range(2)] == ["0\n", "1\n"]


def test_names_of_files(shared: Instance, tmp_path: Path) -> None:
    done = shared.run("--job-name=foo", "--output={{name}}-{{id.dec}}-{{size}}-{{x}}", "true", cwd=tmp_path, check=0)
    name = f"foo-{last(shared)}-1-{{{{x}}}}"
    assert done.err.splitlines()[0] == f"0: stdout redirected to {name}"
    assert os.listdir(tmp_path) == [name]


def test_files_of_nodes(four: Instance, tmp_path: Path) -> None:
    four.run("-N2", "--output=o-{{node.id}}", "-l", "echo", "hi", cwd=tmp_path, check=0)
    assert [(tmp_path / f"o-{node}").read_text() for node in range(2)] == ["0: hi\n", "1: hi\n"]


def test_one_file_of_several_nodes(four: Instance, tmp_path: Path) -> None:
    for _ in range(3):  # it is emptied once, and by no node after another has begun
        four.run("-N4", "-l", "--output=o", "echo", "hi", cwd=tmp_path, check=0)
        assert sorted((tmp_path / "o").read_text().splitlines()) == [f"{rank}: hi" for rank in range(4)]
    four.run("-N4", "-o", "output.mode=append", "--output=o", "echo", "hi", cwd=tmp_path, check=0)
    assert len((tmp_path / "o").read_text().splitlines()) == 8


def test_a_job_of_several_nodes_that_ends_before_all_have_begun(four: Instance, tmp_path: Path) -> None:
    done = four.run("-N4", "--output=no/such/dir", "true", cwd=tmp_path, check=1)
    assert "job.exception" in done.err
    assert log_of(four, "eventlog")[-1][0] == "clean"


def test_modes(shared: Instance, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old\n")
    shared.run("-o", "output.mode=append", "--output=a", "echo", "new", cwd=tmp_path, check=0)
    assert file.read_text() == "old\nnew\n"
    done = shared.run("-o", "output.mode=bad", "--output=a", "echo", "x", cwd=tmp_path, check=0)
    assert notes(done.err)[2:] == ["leveret-shell[0]:  WARN: output.task: ignoring invalid output.mode=bad"] * 2
    assert file.read_text() == "x\n"


def test_a_file_that_cannot_be_written(shared: Instance) -> None:
    done = shared.run("--output=/no/such/dir/x", "echo", "hi", check=1)
    note = "shell_init: No such file or directory"
    assert notes(done.err) == [
        "leveret-shell[0]: ERROR: output.task: open: /no/such/dir/x: No such file or directory",
        "leveret-shell[0]: ERROR: plugin 'output': shell.init failed",
        f"leveret-shell[0]: FATAL: {note}",
        f"job.exception {shared.record(last(shared))['f58']} type=exec severity=0 {note}",
        "leveret-job: task(s) exited with exit code 1",
    ]
    assert [name for name, _ in log_of(shared, "exec")] == ["init", "starting", "shell-exit", "complete", "done"]


# ---- input


def test_input_from_a_file(shared: Instance, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("data\n")
    done = shared.run("--input=in", "-n2", "-l", "cat", cwd=tmp_path, input="not this", check=0)
    assert sorted(done.out.splitlines()) == ["0: data", "1: data"]
    events = log_of(shared, "input")
    assert [name for name, _ in events] == ["header", "redirect"]
    assert events[1][1] == {"stream": "stdin", "rank": "all", "path": "in"}


def test_a_missing_input_file(shared: Instance) -> None:
    done = shared.run("--input=nosuch", "cat", check=143)
    note = "error opening input file 'nosuch': No such file or directory"
    assert notes(done.err)[0] == f"leveret-shell[0]: FATAL: input.file: {note}"
    assert notes(done.err)[2] == "leveret-job: job shell Terminated"
    assert ("finish", {"status": 15}) in log_of(shared, "eventlog")
    assert log_of(shared, "exec")[2:4] == [("shell-exit", {"rank": 0, "wait_status": 15}), ("complete", {"status": 15})]


def test_input_of_some_ranks(shared: Instance) -> None:
    assert shared.run("--input=1", "-n2", "-l", "sh", "-c", "cat; true", input="hi\n", check=0).out == "1: hi\n"


# ---- the jobspec


def test_the_jobspec_is_that_of_flux(shared: Instance) -> None:
    options = ["--dry-run", "--env=-*", "--output=o", "--error=e", "--input=i", "-l", "-u"]
    spec = json.loads(shared.run(*options, "echo", "hi", check=0).out)
    made = spec["attributes"]["system"]["shell"]["options"]
    limits = made.pop("rlimit")
    assert list(limits) == ["cpu", "fsize", "data", "stack", "core", "nofile", "as", "rss", "nproc"]
    made.pop("umask", None)

    def stream(path: str) -> dict[str, Any]:
        return {"buffer": {"type": "none"}, "label": True, "path": path, "type": "file"}

    assert made == {
        "input": {"batch-timeout": 0, "stdin": {"path": "i", "type": "file"}},
        "output": {"batch-timeout": 0.05, "stderr": stream("e"), "stdout": stream("o")},
    }


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--rlimit=nosuch", 'No corresponding rlimit matching "nosuch"'),
        ("--add-file=nosuch", "--add-file=nosuch: [Errno 2] No such file or directory: 'nosuch'"),
        ("--signal=FOO@1s", "--signal=FOO@1s: FOO is not a signal"),
    ],
)
def test_bad_values(shared: Instance, option: str, said: str) -> None:
    assert shared.run(option, "true", check=1).err.splitlines()[0] == f"leveret-run: ERROR: {said}"


def test_words_with_tags(shared: Instance) -> None:
    done = shared.run("-n2", "-l", "echo", "{{taskid}}", "{{ntasks}}", "{{nnodes}}", "{{name}}", "{{nope}}", check=0)
    assert sorted(done.out.splitlines()) == [f"{rank}: {rank} 2 1 echo {{{{nope}}}}" for rank in range(2)]


def test_files_of_the_jobspec(shared: Instance, tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("data\n")
    assert shared.run("--add-file=b=afile", "cat", "{{tmpdir}}/b", cwd=tmp_path, check=0).out == "data\n"
    script = "--add-file=run:755=#!/bin/sh\necho inline\n"
    assert shared.run(script, "{{tmpdir}}/run", cwd=tmp_path, check=0).out == "inline\n"


def test_limits_and_mask(shared: Instance) -> None:
    def run(shell: str, *options: str) -> str:
        argv = ["sh", "-c", f'{shell}; exec "$@"', "sh", LEVERET, "run", *options, "sh", "-c", "umask; ulimit -Sn"]
        done = subprocess.run(argv, env=shared.env, capture_output=True, timeout=WATCHDOG_S, stdin=subprocess.DEVNULL)
        return done.stdout.decode()

    assert run("umask 027; ulimit -Sn 99") == "0027\n99\n"
    assert run("umask 022", "--rlimit=nofile=77") == "0022\n77\n"
    assert run("ulimit -Sn 99", "--rlimit=-*") != run("ulimit -Sn 99"), "the node's own limit"


# ---- placement and the ends of tasks


def test_placement(four: Instance) -> None:
    done = four.run("-N2", "-n4", "--taskmap=cyclic", "-l", "sh", "-c", "echo $FLUX_TASK_LOCAL_ID", check=0)
    assert sorted(done.out.splitlines()) == ["0: 0", "1: 0", "2: 1", "3: 1"]
    assert dict(log_of(four, "exec"))["shell.start"]["taskmap"]["map"] == [[0, 2, 1, 2]]
    four.run("-N2", "-n4", "--taskmap=manual:[[1,1,2,1],[0,1,2,1]]", "true", check=0)
    assert dict(log_of(four, "exec"))["shell.start"]["taskmap"]["map"] == [[1, 1, 2, 1], [0, 1, 2, 1]]


def test_a_placement_that_is_not_known(shared: Instance) -> None:
    done = shared.run("--taskmap=foo", "true", check=143)
    assert notes(done.err)[0] == "leveret-shell[0]: FATAL: failed to map tasks with scheme=foo"
    assert [name for name, _ in log_of(shared, "exec")] == ["init", "starting", "shell-exit", "complete", "done"]


def test_a_signal_before_the_time_limit(shared: Instance) -> None:
    # it may come before the trap is set, where a machine is slow: then the task is killed by it
    script = 'trap "exit 7" USR1; while :; do sleep 0.01; done'
    done = shared.run("-t", "1h", "--signal=USR1@3599s", "sh", "-c", script)
    assert done.code in (7, 138)
    assert notes(done.err)[0] == "leveret-shell[0]: signal: job will expire in 3599.0s, sending SIGUSR1 to job"


@pytest.mark.parametrize(
    ("option", "note"),
    [
        ("exit-timeout=0.1s", "exited (Exit 3) and exit-timeout=0.1s has expired"),
        ("exit-on-error", "failed (Exit 3) and exit-on-error is set"),
    ],
)
def test_one_task_ends_the_job(four: Instance, option: str, note: str) -> None:
    script = "test $FLUX_TASK_RANK = 2 && exit 3; sleep 1000"
    done = four.run("-N3", "-o", option, "sh", "-c", script, check=3)
    note = f"sh: task rank 2 on host node2 {note}"
    assert notes(done.err)[0] == f"leveret-shell[0]: FATAL: task-exit: {note}"
    found = dict(log_of(four, "eventlog"))
    assert {key: found["exception"][key] for key in ("type", "severity", "note", "wait_status")} == {
        "type": "exec",
        "severity": 0,
        "note": note,
        "wait_status": 768,
    }
    assert found["finish"] == {"status": 768}


def test_the_wait_for_other_tasks_outlives_the_daemon(launch: Callable[..., Instance]) -> None:
    instance = launch(2)
    script = "test $FLUX_TASK_RANK = 1 && exit 1; sleep 1000"
    jobid = instance.submit("-N2", "-o", "exit-timeout=3s", "sh", "-c", script)
    instance.wait_event(jobid, "shell.task-exit", "exec")
    instance.crash()
    record = instance.wait(jobid)
    assert (record["result"], record["exit_code"]) == ("FAILED", 1)
    assert "exit-timeout=3s has expired" in instance.contexts(jobid, "exception")[0]["note"]


def test_output_files_outlive_the_daemon(launch: Callable[..., Instance], tmp_path: Path) -> None:
    instance = launch()
    script = "for i in 1 2 3; do echo $i; done; until test -e go; do sleep 0.01; done; echo 4"
    jobid = instance.submit("--output=o", "sh", "-c", script, cwd=tmp_path)
    instance.wait_event(jobid, "start")
    instance.crash()
    (tmp_path / "go").touch()
    assert instance.wait(jobid)["exit_code"] == 0
    assert (tmp_path / "o").read_text() == "1\n2\n3\n4\n"


# ---- terminals


class Session:
    """A `leveret` command in a terminal."""

    def __init__(self, instance: Instance, *args: str) -> None:
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(LEVERET, ["leveret", *args], instance.env)

    def until(self, text: bytes) -> None:
        """Read until `text` was shown."""
        deadline = time.monotonic() + WATCHDOG_S
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            assert self._read(), self.seen

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data
        return bool(data)

    def keys(self, data: bytes) -> None:
        os.write(self.fd, data)

    def end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + WATCHDOG_S
        while self._read():
            assert time.monotonic() < deadline, self.seen
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_terminal_without_a_client(shared: Instance) -> None:
    script = "test -t 0 && echo stdin-tty; test -t 1 && echo stdout-tty"
    assert shared.run("-o", "pty", "sh", "-c", script, binary=True, check=0).out == b"stdin-tty\r\nstdout-tty\r\n"
    assert shared.run("sh", "-c", "test -t 1 || echo notty", check=0).out == "notty\n"


def test_keys_go_to_the_task(shared: Instance) -> None:
    script = "trap 'echo int' INT; echo ready; read x; read x; echo got $x; exit 3"
    session = Session(shared, "run", "-o", "pty.interactive", "sh", "-c", script)
    session.until(b"ready\r\n")
    session.keys(b"\x03")
    session.until(b"int\r\n")
    session.keys(b"a\rhello\r")
    session.until(b"got")
    assert session.end() == 3
    assert not shared.contexts(last(shared), "exception")


def test_an_interactive_job_that_fails_at_once_ends(shared: Instance) -> None:
    """Case R68."""
    session = Session(shared, "run", "-o", "pty.interactive", "nosuchcmd")
    assert session.end() == 127
    assert b"start failed: nosuchcmd: No such file or directory" in session.seen


def test_ctrl_c_while_an_interactive_job_waits(shared: Instance) -> None:
    session = Session(shared, "run", "--urgency=hold", "-o", "pty.interactive", "cat")
    session.until(b"SCHED")
    session.keys(b"\x03")
    session.until(b"one more ctrl-C")
    session.keys(b"\x03")
    session.until(b"interrupted by ctrl-C")
    session.end()


def test_attach_to_an_interactive_job(shared: Instance) -> None:
    jobid = shared.submit("-o", "pty.interactive", "sh", "-c", "echo ready; read x; echo got $x")
    session = Session(shared, "job", "attach", jobid)
    session.until(b"ready\r\n")
    session.keys(b"hello\r")
    session.until(b"got hello")
    assert session.end() == 0
