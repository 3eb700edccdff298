"""Files, limits, signals and terminals of tasks, at the helper."""

from __future__ import annotations

import os
import re
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from double import Daemon, Helper, kinds, output, sh, until

from leveret.exec.spawn import Surroundings


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    started = Helper(tmp_path / "h")
    yield started
    started.stop()
    log = started.log.read_text()
    assert "Traceback" not in log, log


@pytest.fixture
def daemon(helper: Helper) -> Daemon:
    return Daemon(helper.directory)


def logs(records: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    return [(r["level"], r.get("component", ""), r["message"]) for r in records if r["k"] == "log"]


def redirect(*paths: str, append: bool = False, label: bool = False) -> dict[str, Any]:
    return {"paths": list(paths), "append": append, "label": [label, label]}


# ---- output files


def test_output_in_files_is_in_no_record(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "o").write_text("old")
    spec = {"cwd": str(tmp_path), "redirect": redirect("o", "e"), "each": {"redirect": [0, 1]}}
    records = daemon.run("1", sh("echo out; echo err >&2; printf rest"), **spec)
    assert kinds(records) == ["start", "task-exit", "exit"]
    assert ((tmp_path / "o").read_text(), (tmp_path / "e").read_text()) == ("out\nrest", "err\n")


def test_one_stream_may_stay_in_the_record(daemon: Daemon, tmp_path: Path) -> None:
    spec = {"cwd": str(tmp_path), "redirect": redirect("e"), "each": {"redirect": [None, 0]}}
    records = daemon.run("1", sh("echo out; echo err >&2"), **spec)
    assert output(records) == b"out\n"
    assert [r["stream"] for r in records if r.get("eof")] == ["stdout"]
    assert (tmp_path / "e").read_text() == "err\n"


def test_tasks_share_a_file_by_lines(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "o").write_text("old\n")
    spec = {"cwd": str(tmp_path), "redirect": redirect("o", append=True, label=True), "each": {"redirect": [0, 0]}}
    daemon.run("1", sh("for i in $(seq 500); do echo a$i; echo b$i >&2; done; printf end"), n=3, **spec)
    lines = (tmp_path / "o").read_text().replace("end", "end\n").splitlines()
    assert lines[0] == "old"
    for rank in range(3):
        own = [line[3:] for line in lines if line.startswith(f"{rank}: ")]
        assert [word for word in own if word[0] == "a"] == [f"a{i}" for i in range(1, 501)]
        assert [word for word in own if word[0] == "b"] == [f"b{i}" for i in range(1, 501)]
    assert len([line for line in lines if "end" in line]) == 3


def test_labels_are_at_the_beginnings_of_lines_only(daemon: Daemon, tmp_path: Path) -> None:
    spec = {"cwd": str(tmp_path), "redirect": redirect("o", label=True), "each": {"redirect": [0, 0]}}
    daemon.run("1", sh(r"head -c 100000 /dev/zero | tr '\0' x; echo; printf 'a\rb\n\n'"), **spec)
    assert (tmp_path / "o").read_bytes() == b"0: " + b"x" * 100000 + b"\n0: a\rb\n0: \n"


def test_much_output_is_whole(daemon: Daemon, tmp_path: Path) -> None:
    spec = {"cwd": str(tmp_path), "redirect": redirect("o"), "each": {"redirect": [0, 0]}}
    daemon.run("1", sh("seq 300000"), **spec)
    assert (tmp_path / "o").read_text() == "".join(f"{i}\n" for i in range(1, 300001))


def test_files_have_the_jobs_mask(daemon: Daemon, tmp_path: Path) -> None:
    spec = {"cwd": str(tmp_path), "redirect": redirect("o"), "each": {"redirect": [0, 0]}, "umask": 0o077}
    daemon.run("1", sh("umask; touch t"), **spec)
    assert (tmp_path / "o").read_text() == "0077\n"
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ot"} == {0o600}


def test_a_file_that_cannot_be_opened(daemon: Daemon, tmp_path: Path) -> None:
    path = str(tmp_path / "no" / "x")
    records = daemon.run("1", ["true"], redirect=redirect(path), each={"redirect": [0, 0]})
    assert kinds(records) == ["refused", "exit"]
    refused = records[0]
    assert (refused["note"], refused["status"]) == ("shell_init: No such file or directory", 256)
    assert refused["logs"] == [
        [3, "output.task", f"open: {path}: No such file or directory"],
        [3, "", "plugin 'output': shell.init failed"],
        [2, "", "shell_init: No such file or directory"],
    ]
    assert records[-1]["status"] == 256


def test_a_full_disk_holds_the_task_until_it_is_killed(daemon: Daemon) -> None:
    daemon.start("1", sh("yes"), redirect=redirect("/dev/full"), each={"redirect": [0, 0]})
    said = daemon.wait_record("1", "log")
    assert "No space left on device. Tasks wait" in said["message"]
    daemon.send(t="signal", unit="1", signal=9, escalate_s=None)
    records = daemon.ended("1")
    assert records[-1]["status"] == 137 << 8
    assert any("bytes of output lost" in text for _, _, text in logs(records))


def test_without_its_folder_files_are_where_the_task_is(daemon: Daemon, tmp_path: Path) -> None:
    name = f"leveret-test-{os.getpid()}"
    spec = {"cwd": str(tmp_path / "gone"), "redirect": redirect(name), "each": {"redirect": [0, 0]}}
    records = daemon.run("1", ["pwd"], **spec)
    file = Path("/tmp") / name
    text = file.read_text()
    file.unlink()
    assert text == "/tmp\n"
    assert len(logs(records)) == 1


# ---- input


def test_every_task_reads_the_whole_file(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("data\n")
    records = daemon.run("1", ["cat"], n=2, stdin="file", input="in", cwd=str(tmp_path))
    assert [output(records, rank=rank) for rank in range(2)] == [b"data\n"] * 2


def test_a_missing_input_file(daemon: Daemon, tmp_path: Path) -> None:
    records = daemon.run("1", ["cat"], stdin="file", input="in", cwd=str(tmp_path))
    note = "error opening input file 'in': No such file or directory"
    assert (records[0]["note"], records[0]["logs"]) == (note, [[2, "input.file", note]])
    assert records[-1]["status"] == 15


def test_a_refusal_of_the_daemons(daemon: Daemon) -> None:
    records = daemon.run("1", ["true"], refusal={"note": "no", "status": 15, "logs": []})
    assert kinds(records) == ["refused", "exit"]
    assert records[-1]["status"] == 15


# ---- files of the jobspec


def test_files_of_the_jobspec(daemon: Daemon, tmp_path: Path) -> None:
    archive = {
        "run.sh": {"mode": 0o100755, "encoding": "utf-8", "data": "#!/bin/sh\ncat $FLUX_JOB_TMPDIR/d/b\n"},
        "d/b": {"mode": 0o100600, "encoding": "base64", "data": "//4K"},
        "link": {"mode": 0o120777, "data": "run.sh"},
        "obj": {"mode": 0o100600, "data": {"a": 1}},
    }
    tmpdir = str(tmp_path / "job")
    env = {"PATH": os.environ["PATH"], "FLUX_JOB_TMPDIR": tmpdir}
    records = daemon.run("1", sh("cat $FLUX_JOB_TMPDIR/obj; exec $FLUX_JOB_TMPDIR/link"), archive=archive,
                         tmpdir=tmpdir, env=env)  # fmt: skip
    assert output(records) == b'{"a": 1}\xff\xfe\n'
    until(lambda: not Path(tmpdir).exists(), "folder removed")


# ---- limits, CPUs, signals


def test_soft_limits(daemon: Daemon) -> None:
    limits = {"nofile": 77, "core": 0, "stack": -1, "nosuch": 1}
    records = daemon.run("1", sh("ulimit -Sn; ulimit -Ss"), rlimit=limits)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = "unlimited" if hard == resource.RLIM_INFINITY else str(hard // 1024)
    assert output(records).decode().split() == ["77", stack]


def test_limits_like_ours_cost_nothing() -> None:
    surroundings = Surroundings()
    ours = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in ("nofile", "core")}
    assert surroundings.different(ours) == []
    assert surroundings.different(ours | {"nofile": 5}) == [(resource.RLIMIT_NOFILE, 5)]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        assert surroundings.different({"nofile": -1}) in ([], [(resource.RLIMIT_NOFILE, hard)])


ALLOWED = sh("grep Cpus_allowed_list /proc/self/status")


def cpus_of(records: list[dict[str, Any]], rank: int = 0) -> str:
    return output(records, rank=rank).decode().split()[1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU only")
def test_tasks_are_bound_to_their_cores(daemon: Daemon) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    everything = cpus_of(daemon.run("0", ALLOWED))
    assert cpus_of(daemon.run("1", ALLOWED, cores=[1])) == str(second)
    assert cpus_of(daemon.run("2", ALLOWED, cores=[len(os.sched_getaffinity(0))])) == str(first)
    assert cpus_of(daemon.run("3", ALLOWED, cores=list(range(500)))) == everything
    assert cpus_of(daemon.run("4", ALLOWED, cores=[0], each={"cores": [1]})) == str(second)
    assert cpus_of(daemon.run("5", ALLOWED, cores=[0], each={"cpus": [second]})) == str(second)
    assert cpus_of(daemon.run("6", ALLOWED)) == everything, "the helper is where it was"


def test_a_warning_before_the_time_limit(daemon: Daemon) -> None:
    warning = {"signum": 10, "timeleft_s": 999.0, "log": True}
    records = daemon.run("1", sh("trap 'exit 7' USR1; while :; do sleep 0.01; done"), duration_s=1000.0, signal=warning)
    assert logs(records) == [(6, "signal", "job will expire in 999.0s, sending SIGUSR1 to job")]
    assert records[-1]["status"] == 7 << 8


def test_no_warning_without_a_limit(daemon: Daemon) -> None:
    records = daemon.run("1", ["true"], signal={"signum": 9, "timeleft_s": 1.0, "log": True})
    assert records[-1]["status"] == 0


def test_verbose_tasks(daemon: Daemon) -> None:
    records = daemon.run("1", sh("exit 3"), verbose=1, logs=[[7, "", "hello"]])
    assert logs(records) == [(7, "", "hello"), (7, "", "task 0 complete status=3"), (7, "", "exit 3")]


# ---- terminals


def test_a_terminal(daemon: Daemon) -> None:
    script = sh("test -t 0 && test -t 1 && test -t 2 && echo out && echo err >&2; echo tty >/dev/tty; stty size")
    records = daemon.run("1", script, stdin="pipe", pty={"ranks": "all", "size": [30, 100]})
    assert output(records) == b"out\r\nerr\r\ntty\r\n30 100\r\n"
    assert sorted(r["stream"] for r in records if r.get("eof")) == ["stderr", "stdout"]


def test_only_some_ranks_have_one(daemon: Daemon) -> None:
    records = daemon.run("1", sh("test -t 1 && echo yes || echo no"), n=2, pty={"ranks": [1]})
    assert [output(records, rank=rank) for rank in range(2)] == [b"no\n", b"yes\r\n"]


def test_input_and_its_end(daemon: Daemon) -> None:
    daemon.start("1", sh("echo ready; cat; echo over"), stdin="pipe", pty={"ranks": "all"})
    daemon.wait_output("1", b"ready")
    daemon.send(t="stdin", unit="1", offset=0, ranks="all", data="aGkK", eof=True)  # hi, newline
    records = daemon.ended("1")
    assert output(records) == b"ready\r\nhi\r\nhi\r\nover\r\n"


def test_keys_and_sizes(daemon: Daemon) -> None:
    traps = "trap 'echo int; exit 5' INT; trap 'stty size' WINCH"
    daemon.start("1", sh(f"{traps}; echo ready; while :; do sleep 0.01; done"), stdin="pipe", pty={"ranks": [0]})
    daemon.wait_output("1", b"ready")
    daemon.send(t="winsize", unit="1", size=[40, 120])
    daemon.wait_output("1", b"40 120")
    daemon.send(t="stdin", unit="1", offset=0, ranks="all", data="Aw==", eof=False)  # Ctrl-C
    records = daemon.ended("1")
    assert re.search(rb"\^Cint\r\n$", output(records))
    assert records[-1]["status"] == 5 << 8


def test_a_command_that_is_not_there(daemon: Daemon) -> None:
    records = daemon.run("1", ["nosuchcmd"], stdin="pipe", pty={"ranks": "all"})
    assert kinds(records) == ["start-failed", "exit"]


def test_a_terminal_whose_output_goes_to_a_file(daemon: Daemon, tmp_path: Path) -> None:
    spec = {"cwd": str(tmp_path), "redirect": redirect("o"), "each": {"redirect": [0, 0]}}
    records = daemon.run("1", sh("test -t 1 && echo yes"), pty={"ranks": "all"}, **spec)
    assert (tmp_path / "o").read_bytes() == b"yes\r\n"
    assert records[-1]["status"] == 0
