"""The exec helper, with real processes.

Tests assert order and content. Times appear only as watchdogs, as limits that
are reached long before the task would end by itself, or as what a task sleeps
when it is expected to be killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from double import Daemon, Helper, command, data_of, kinds, lives, make_spec, output, sh, until

from leveret.exec.outfile import read_frames
from leveret.exec.procs import environ_marker, find_marked, kill_marked

FOREVER = "sleep 1000"


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    started = Helper(tmp_path / "h")
    yield started
    started.stop()
    log = started.log.read_text()
    assert "Traceback" not in log, log
    incarnation = re.findall("incarnation (.*)", log)[-1]
    assert find_marked(incarnation + "/") == {}


@pytest.fixture
def daemon(helper: Helper) -> Daemon:
    return Daemon(helper.directory)


def file_bytes(helper: Helper, records: list[dict], stream: str = "stdout", rank: int = 0) -> bytes:  # type: ignore[type-arg]
    """What the extents of a unit hold of a stream; checks that extents and offsets follow each other."""
    end, place, pieces = 0, None, []
    for record in records:
        if record["k"] != "extent":
            continue
        assert record["start"] == end
        end = record["end"]
        for frame in read_frames(helper.directory / "output" / record["file"], record["start"], end):
            if (frame.stream, frame.rank) == (stream, rank):
                assert place is None or frame.offset == place
                place = frame.offset + len(frame.data)
                pieces.append(frame.data)
    return b"".join(pieces)


# ---- a unit from start to end


def test_a_trivial_unit(daemon: Daemon) -> None:
    records = daemon.run("1", ["true"])
    assert [r["n"] for r in records] == list(range(1, len(records) + 1))
    assert sorted(kinds(records)) == ["exit", "output", "output", "start", "task-exit"]
    assert (kinds(records)[0], kinds(records)[-1]) == ("start", "exit")
    start, end = daemon.find("1", "start"), daemon.find("1", "task-exit")
    assert start is not None and end is not None
    assert start["pids"] == [end["pid"]]
    eof = [(r["rank"], r["stream"], r["data"], r["eof"]) for r in records if r["k"] == "output"]
    assert sorted(eof) == [(0, "stderr", "", True), (0, "stdout", "", True)]
    assert {k: end[k] for k in ("rank", "local", "wait_status", "signaled", "exitcode")} == {
        "rank": 0,
        "local": 0,
        "wait_status": 0,
        "signaled": 0,
        "exitcode": 0,
    }
    assert records[-1]["status"] == 0
    assert all(abs(r["ts"] - time.time()) < 3600 for r in records)


def test_output_of_both_streams(daemon: Daemon) -> None:
    records = daemon.run("1", sh("echo out; echo err >&2"))
    assert output(records) == b"out\n"
    assert output(records, "stderr") == b"err\n"


@pytest.mark.parametrize(
    "n, script, status",
    [
        (1, "exit 0", 0),
        (1, "exit 3", 768),
        (2, "exit $((FLUX_TASK_RANK*4+1))", 1280),
        (1, "kill -TERM $$", 36608),
        (1, "kill -KILL $$", 35072),
        (1, "kill -SEGV $$", 35584),
        (1, "kill -INT $$", 33280),
        (2, "if test $FLUX_TASK_RANK = 0; then kill -TERM $$; else exit 200; fi", 51200),
        (3, "exit $((3-FLUX_TASK_RANK))", 768),
    ],
)
def test_exit_statuses(daemon: Daemon, n: int, script: str, status: int) -> None:
    records = daemon.run("1", sh(script), n=n)
    assert records[-1]["status"] == status
    assert sorted(r["rank"] for r in records if r["k"] == "task-exit") == list(range(n))


def test_a_killed_task_says_by_what(daemon: Daemon) -> None:
    daemon.run("1", sh("kill -TERM $$"))
    end = daemon.find("1", "task-exit")
    assert end is not None
    assert (end["signaled"], end["exitcode"], end["wait_status"] & 0x7F) == (15, 143, 15)


@pytest.mark.parametrize(
    "argv, message, exitcode",
    [
        (["nosuchcommand"], "nosuchcommand: No such file or directory", 127),
        (["./nosuch"], "./nosuch: No such file or directory", 127),
        (["./f"], "./f: Permission denied", 126),
        (["./d"], "./d: Permission denied", 126),
        (["./text"], "./text: Exec format error", 126),
        (["{tmp}"], "{tmp}: Permission denied", 126),
        (["a\0b"], "a\0b: ValueError: embedded null byte", 126),
    ],
)
def test_what_cannot_be_started(daemon: Daemon, tmp_path: Path, argv: list[str], message: str, exitcode: int) -> None:
    (tmp_path / "f").write_text("#!/bin/sh\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "text").write_text("just text\n")
    (tmp_path / "text").chmod(0o755)
    argv = [word.replace("{tmp}", str(tmp_path)) for word in argv]
    records = daemon.run("1", argv, cwd=str(tmp_path))
    assert kinds(records) == ["start-failed", "exit"]
    text = message.replace("{tmp}", str(tmp_path))
    assert records[0]["message"] == f"task 0 (host nodeA): start failed: {text}"
    assert (records[0]["rank"], records[0]["exitcode"]) == (0, exitcode)
    assert records[1]["status"] == exitcode << 8


def test_the_path_of_the_task_is_searched(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "mine").chmod(0o755)
    assert output(daemon.run("1", ["mine"], env={"PATH": f"/nosuch:{tmp_path}:/bin"})) == b"mine\n"


@pytest.mark.parametrize("spec", [{"argv": []}, {"tasks": [{}]}, {"env": {"A=B": "x"}}, {"cwd": 7}, {"argv": None}])
def test_a_spec_that_cannot_be_is_a_failed_start(daemon: Daemon, spec: dict[str, object]) -> None:
    daemon.send(t="start", unit="1", spec=make_spec("1", ["true"]) | spec)
    assert kinds(daemon.ended("1")) == ["start-failed", "exit"]
    assert daemon.records["1"][-1]["status"] == 126 << 8


def test_a_failed_start_ends_the_other_tasks(daemon: Daemon) -> None:
    spec = make_spec("1", sh(f"echo $$; {FOREVER}"), n=3)
    spec["tasks"][2]["env"] = {"BAD=": "x"}
    daemon.send(t="start", unit="1", spec=spec)
    records = daemon.ended("1")
    assert "start" not in kinds(records)
    ends = [r for r in records if r["k"] == "task-exit"]
    assert sorted(r["rank"] for r in ends) == [0, 1]
    assert {r["signaled"] for r in ends} == {9}
    assert records[-1]["status"] == 126 << 8


def test_a_missing_folder_is_said_once_and_tasks_run_in_tmp(daemon: Daemon) -> None:
    records = daemon.run("1", ["pwd"], cwd="/no/such/dir", n=2)
    logs = [r for r in records if r["k"] == "log"]
    text = "host nodeA: Could not change dir to /no/such/dir: No such file or directory. Going to /tmp instead"
    assert [(r["rank"], r["level"], r["message"]) for r in logs] == [(0, 3, text)]
    assert output(records, rank=0) == output(records, rank=1) == b"/tmp\n"
    assert records[-1]["status"] == 0


def test_the_environment_is_the_spec_and_the_marker(helper: Helper, daemon: Daemon) -> None:
    spec = make_spec("7/a", ["/usr/bin/env"], env={"A": "1", "B": "2"}, n=2)
    spec["tasks"][1]["env"] = {"B": "3"}
    daemon.send(t="start", unit="7/a", spec=spec)
    records = daemon.ended("7/a")
    marker = f"LEVERET_UNIT={daemon.hello['incarnation']}/7/a"
    assert sorted(output(records, rank=0).decode().split()) == ["A=1", "B=2", "FLUX_TASK_RANK=0", marker]
    assert sorted(output(records, rank=1).decode().split()) == ["A=1", "B=3", marker]


def test_tasks_lead_their_session_and_group(daemon: Daemon) -> None:
    script = "ps -o sid=,pgid= -p $$; echo $$"
    sid, pgid, pid = output(daemon.run("1", sh(script))).split()
    assert sid == pgid == pid
    sid, pgid, pid = output(daemon.run("2", sh(script), setpgrp=False)).split()
    assert pgid != pid and sid != pid


def test_tasks_get_the_limits_and_signals_that_helper_was_given(tmp_path: Path) -> None:
    helper = Helper(tmp_path / "h", "sh", "-c", 'ulimit -Sn 256; trap "" HUP USR1 QUIT; exec "$@"', "sh")
    try:
        daemon = Daemon(helper.directory)
        daemon.start("many", sh("read x"), n=150, stdin="pipe")
        daemon.wait_record("many", "start")
        # By now the helper has 450 pipes open: far more than the limit it was started with.
        script = "ulimit -Sn; grep -E '^Sig(Ign|Blk)' /proc/self/status; ls /proc/$$/fd"
        words = output(daemon.run("1", sh(script))).decode().split()
        assert words[:5] == ["256", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
        assert set(words[5:]) <= {"0", "1", "2", "3"}
        daemon.send(t="stdin", unit="many", offset=0, ranks="all", data="", eof=True)
        assert kinds(daemon.ended("many")).count("task-exit") == 150
    finally:
        helper.stop()
    assert "Traceback" not in helper.log.read_text()


def test_umask(daemon: Daemon) -> None:
    assert output(daemon.run("1", sh("umask"))) == b"0022\n"
    assert output(daemon.run("2", sh("umask"), umask=0o077)) == b"0077\n"


def test_the_temporary_folder_lives_as_long_as_the_unit(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "job"
    script = f"stat -c %a {path}; cd {path}; mkdir -p a/b; touch a/b/c; chmod 0 a/b; ln -s / root"
    assert output(daemon.run("1", sh(script), tmpdir=str(path))) == b"700\n"
    until(lambda: not path.exists(), "the folder to go, soon after the exit")
    assert path.parent.exists()
    daemon.run("2", ["true"], tmpdir=str(path))
    until(lambda: not path.exists(), "the empty folder to go, too")
    path.symlink_to(tmp_path)
    records = daemon.run("3", ["true"], tmpdir=str(path))
    assert kinds(records) == ["start-failed", "exit"]
    assert records[0]["message"] == f"task 0 (host nodeA): start failed: {path}: File exists"
    assert path.is_symlink()


# ---- output


def test_lines_are_sent_whole_and_at_once(daemon: Daemon) -> None:
    daemon.start("1", sh("echo one; printf tw; read x; echo o; printf end"), stdin="pipe")
    daemon.wait_output("1", b"one\n")
    daemon.ping()
    assert output(daemon.records["1"]) == b"one\n"
    daemon.send(t="stdin", unit="1", offset=0, ranks="all", data="Cg==", eof=False)
    texts = [r["data"] for r in daemon.ended("1") if r["k"] == "output" and r["stream"] == "stdout"]
    assert "".join(texts) == "one\ntwo\nend"
    assert texts[0] == "one\n" and texts[1].startswith("two\n")


def test_unbuffered_output_does_not_wait_for_a_line(daemon: Daemon) -> None:
    daemon.start("1", sh("printf prompt; read x; printf done"), stdin="pipe", output={"unbuffered": True})
    daemon.wait_output("1", b"prompt")
    daemon.send(t="stdin", unit="1", offset=0, ranks="all", data="Cg==", eof=False)
    assert output(daemon.ended("1")) == b"promptdone"


def test_a_long_line_is_sent_in_parts_of_bounded_size(daemon: Daemon) -> None:
    text = ("€" * 20000).encode()
    program = "import sys; sys.stdout.write('€'*20000)"
    records = daemon.run("1", [sys.executable, "-X", "utf8", "-c", program])
    assert output(records) == text
    sizes = [len(data_of(r)) for r in records if r["k"] == "output"]
    assert max(sizes) <= 32768
    assert not any("encoding" in r for r in records)  # no character was parted


def test_output_that_is_no_text(daemon: Daemon) -> None:
    records = daemon.run("1", ["printf", "\\377\\376x\\n"])
    first = next(r for r in records if r["k"] == "output" and r["stream"] == "stdout")
    assert (first["encoding"], first["data"]) == ("base64", "//54Cg==")


def test_nul_and_invalid_bytes_are_kept(daemon: Daemon) -> None:
    assert output(daemon.run("1", ["printf", "a\\000b\\n\\303\\n\\303"])) == b"a\0b\n\xc3\n\xc3"


def test_a_limit_keeps_the_first_bytes_and_says_so(daemon: Daemon) -> None:
    records = daemon.run("1", sh("echo 0123456789abcdef; echo more; echo err >&2"), output={"limit_bytes": 10})
    assert output(records) == b"0123456789"
    assert output(records, "stderr") == b"err\n"
    assert [(r["rank"], r["level"], r["message"]) for r in records if r["k"] == "log"] == [
        (0, 4, "stdout will be truncated, 10 limit exceeded"),
        (0, 4, "stdout: 12 of 22 bytes truncated"),
    ]


def test_output_of_just_the_limit_is_not_truncated(daemon: Daemon) -> None:
    records = daemon.run("1", sh("echo 123456789"), output={"limit_bytes": 10})
    assert output(records) == b"123456789\n"
    assert "log" not in kinds(records)


def test_more_than_memory_max_goes_to_the_file(helper: Helper, daemon: Daemon) -> None:
    daemon.acks = True
    records = daemon.run("1", sh("seq 100000; echo err >&2"), output={"memory_max": 1000, "limit_bytes": 500000})
    text = b"".join(b"%d\n" % i for i in range(1, 100001))
    in_memory = output(records)
    assert len(in_memory) <= 1000
    assert in_memory + file_bytes(helper, records) == text[:500000]
    frames = list(read_frames(helper.directory / "output" / "aa/1.out"))
    assert [(f.stream, f.rank) for f in frames if f.eof] == [("stderr", 0), ("stdout", 0)] or [
        (f.stream, f.rank) for f in frames if f.eof
    ] == [("stdout", 0), ("stderr", 0)]
    assert not [r for r in records if r["k"] == "output" and r.get("eof")]
    assert [json.loads(f.data)["message"] for f in frames if f.stream == "log"] == [
        "stdout will be truncated, 500000 limit exceeded",
        f"stdout: {len(text) - 500000} of {len(text)} bytes truncated",
    ]
    assert kinds(records)[-1] == "exit"
    last = [r for r in records if r["k"] == "extent"][-1]
    assert last["end"] == (helper.directory / "output/aa/1.out").stat().st_size


def test_several_tasks_share_the_file(helper: Helper, daemon: Daemon) -> None:
    daemon.acks = True
    records = daemon.run("1", sh("seq 20000"), n=4, output={"memory_max": 0})
    for rank in range(4):
        assert file_bytes(helper, records, rank=rank) == b"".join(b"%d\n" % i for i in range(1, 20001))


def test_one_extent_is_out_at_a_time(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", sh("seq 50000; read x; seq 10"), stdin="pipe", output={"memory_max": 0})
    daemon.wait_record("1", "extent")
    until(lambda: b"50000\n" in (helper.directory / "output/aa/1.out").read_bytes(), "output")
    daemon.ping()
    assert kinds(daemon.records["1"]).count("extent") == 1
    daemon.send(t="ack", unit="1", n=daemon.records["1"][-1]["n"])
    daemon.wait(lambda: kinds(daemon.records["1"]).count("extent") == 2)
    daemon.send(t="stdin", unit="1", offset=0, ranks="all", data="Cg==", eof=True)
    records = daemon.ended("1")
    assert kinds(records).count("extent") == 3
    whole = b"".join(b"%d\n" % i for i in [*range(1, 50001), *range(1, 11)])
    assert file_bytes(helper, records) == whole


def test_many_small_records_do_not_pile_up_while_no_daemon_lives(helper: Helper, daemon: Daemon) -> None:
    program = "import os\nfor i in range(20000): os.write(1, b'x')"
    daemon.start("1", [sys.executable, "-c", program], output={"unbuffered": True})
    daemon.wait_record("1", "start")
    daemon.close()
    until(lambda: Daemon(helper.directory).hello["units"]["1"]["ended"], "end")
    again = Daemon(helper.directory, have={"1": 0})
    records = again.ended("1")
    assert len(records) < 1100
    assert output(records) + file_bytes(helper, records) == b"x" * 20000


def test_two_hundred_megabytes_do_not_grow_the_helper(helper: Helper, daemon: Daemon) -> None:
    daemon.acks = True
    records = daemon.run("1", sh("yes 0123456789abcde | head -c 200000000"), output={"file": "aa/big.out"})
    written = output(records)
    end = [r for r in records if r["k"] == "extent"][-1]["end"]
    path = helper.directory / "output/aa/big.out"
    assert path.stat().st_size == end
    size = len(written) + sum(len(f.data) for f in read_frames(path) if f.stream == "stdout")
    assert size == 200000000
    path.unlink()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{helper.process.pid}/status").read_text())
    assert peak is not None and int(peak[1]) < 60000


def test_a_daemon_that_does_not_read_does_not_grow_the_helper(helper: Helper, daemon: Daemon) -> None:
    for i in range(8):
        daemon.start(f"{i}", sh("yes | head -c 20000000"))
    until(lambda: len(list(helper.directory.glob("output/aa/*"))) == 8, "files")
    for i in range(8):
        records = daemon.ended(f"{i}")
        assert len(output(records) + file_bytes(helper, records)) == 20000000
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{helper.process.pid}/status").read_text())
    assert peak is not None and int(peak[1]) < 60000


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
def test_a_full_disk_blocks_tasks_until_there_is_room(helper: Helper, daemon: Daemon) -> None:
    target = helper.directory / "output"
    target.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(target)], capture_output=True).returncode:
        pytest.skip("cannot mount here")
    try:
        daemon.acks = True
        (target / "ballast").write_bytes(b"x" * 900000)
        daemon.start("1", sh("seq 100000"), output={"memory_max": 0})
        log = daemon.wait_record("1", "log")
        assert log["level"] == 3
        assert "No space left on device" in log["message"]
        # Others go on meanwhile.
        assert output(daemon.run("2", sh("echo hi"))) == b"hi\n"
        assert not daemon.find("1", "exit")
        (target / "ballast").unlink()
        records = daemon.ended("1")
        assert kinds(records).count("log") == 1
        assert file_bytes(helper, records) == b"".join(b"%d\n" % i for i in range(1, 100001))
        # And a unit that was killed does not wait for ever.
        (target / "ballast").write_bytes(b"x" * 300000)
        daemon.start("3", ["yes"], output={"memory_max": 0})
        daemon.wait_record("3", "log")
        daemon.send(t="signal", unit="3", signal=15, escalate_s=0.1)
        records = daemon.ended("3")
        assert "bytes of output lost" in [r for r in records if r["k"] == "log"][-1]["message"]
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


# ---- stdin


def feed(daemon: Daemon, unit: str, offset: int, data: bytes, *, eof: bool = False, ranks: object = "all") -> None:
    import base64

    text = base64.b64encode(data).decode()
    daemon.send(t="stdin", unit=unit, offset=offset, ranks=ranks, data=text, eof=eof)


def acked(daemon: Daemon, unit: str) -> int:
    return max((m["offset"] for m in daemon.other if m["t"] == "stdin-ack" and m["unit"] == unit), default=0)


def test_stdin_reaches_all_tasks(daemon: Daemon) -> None:
    daemon.start("1", ["cat"], n=2, stdin="pipe")
    feed(daemon, "1", 0, b"hi\n")
    feed(daemon, "1", 3, b"", eof=True)
    records = daemon.ended("1")
    assert output(records, rank=0) == output(records, rank=1) == b"hi\n"
    assert acked(daemon, "1") == 3


def test_stdin_that_is_sent_again_is_dropped(daemon: Daemon) -> None:
    daemon.start("1", ["cat"], stdin="pipe")
    feed(daemon, "1", 0, b"abc")
    feed(daemon, "1", 0, b"abcdef")
    feed(daemon, "1", 3, b"def")
    feed(daemon, "1", 9, b"gap")
    feed(daemon, "1", 6, b"\n", eof=True)
    feed(daemon, "1", 7, b"after the end\n")
    assert output(daemon.ended("1")) == b"abcdef\n"


def test_stdin_for_some_tasks(daemon: Daemon) -> None:
    daemon.start("1", ["cat"], n=2, stdin="pipe")
    feed(daemon, "1", 0, b"one\n", ranks=[1])
    feed(daemon, "1", 4, b"both\n")
    feed(daemon, "1", 9, b"", eof=True)
    records = daemon.ended("1")
    assert output(records, rank=0) == b"both\n"
    assert output(records, rank=1) == b"one\nboth\n"


def test_without_a_pipe_stdin_is_empty(daemon: Daemon) -> None:
    assert output(daemon.run("1", sh("cat; echo end"))) == b"end\n"


def test_stdin_is_acknowledged_as_it_is_taken(daemon: Daemon) -> None:
    size = 1 << 20
    daemon.start("1", sh("read go; exec cat >/dev/null"), stdin="pipe", output={"memory_max": 0})
    feed(daemon, "1", 0, b"\0" * size)
    daemon.ping()
    assert acked(daemon, "1") < size  # nobody reads: only what the pipe holds is acknowledged
    feed(daemon, "1", size, b"\n", eof=True)
    daemon.ended("1")
    daemon.wait(lambda: acked(daemon, "1") == size + 1)


def test_a_task_that_does_not_read_its_stdin(daemon: Daemon) -> None:
    daemon.start("1", sh(f"exec <&-; echo closed; test $FLUX_TASK_RANK = 1 || {FOREVER}"), n=2, stdin="pipe")
    daemon.wait(lambda: output(daemon.records.get("1", [])).count(b"closed") == 2)
    feed(daemon, "1", 0, b"x" * 300000)
    daemon.wait(lambda: acked(daemon, "1") == 300000)
    daemon.send(t="signal", unit="1", signal=15, escalate_s=None)
    daemon.ended("1")


# ---- signals, limits


def test_a_signal_goes_to_the_group(daemon: Daemon) -> None:
    daemon.start("1", sh('trap "echo got TERM; exit 5" TERM; echo ready; sleep 1000 & wait'))
    daemon.wait_output("1", b"ready")
    daemon.send(t="signal", unit="1", signal=15, escalate_s=None)
    records = daemon.ended("1")
    assert output(records) == b"ready\ngot TERM\n"
    assert records[-1]["status"] == 1280


def test_a_signal_that_is_ignored_escalates(daemon: Daemon) -> None:
    daemon.start("1", sh(f'trap "" TERM; echo ready; {FOREVER}; {FOREVER}'))
    daemon.wait_output("1", b"ready")
    daemon.send(t="signal", unit="1", signal=15, escalate_s=0.2)
    assert daemon.ended("1")[-1]["status"] == 35072


def test_a_signal_follows_a_start_that_has_not_been_carried_out(daemon: Daemon) -> None:
    for i in range(30):
        daemon.start(f"{i}", ["sleep", "1000"])
    for i in range(30):
        daemon.send(t="signal", unit=f"{i}", signal=15, escalate_s=None)
    for i in range(30):
        assert daemon.ended(f"{i}")[-1]["status"] == 36608


def test_signals_without_a_group_of_their_own(daemon: Daemon) -> None:
    script = 'trap "echo got; exit 4" TERM; (trap "echo child; exit" TERM; echo ready; sleep 1000 & wait) & wait'
    daemon.start("1", sh(script), setpgrp=False)
    daemon.wait_output("1", b"ready")
    daemon.send(t="signal", unit="1", signal=15, escalate_s=None)
    records = daemon.ended("1")
    assert b"got\n" in output(records)
    assert records[-1]["status"] == 4 << 8
    daemon.ping()  # the helper, which is in the same group, lives


def test_a_time_limit(daemon: Daemon) -> None:
    records = daemon.run("1", ["sleep", "1000"], duration_s=0.2)
    assert [k for k in kinds(records) if k in ("timeout", "task-exit", "exit")] == ["timeout", "task-exit", "exit"]
    assert records[-1]["status"] == 36352


def test_a_time_limit_that_is_trapped(daemon: Daemon) -> None:
    records = daemon.run("1", sh('trap "echo got ALRM; exit 7" ALRM; sleep 1000'), duration_s=0.2)
    assert b"got ALRM\n" in output(records)
    assert records[-1]["status"] == 1792


def test_a_time_limit_that_is_ignored(daemon: Daemon) -> None:
    script = sh(f'trap "" ALRM TERM; {FOREVER}; {FOREVER}')
    records = daemon.run("1", script, duration_s=0.2, kill_timeout_s=0.2)
    assert kinds(records).count("timeout") == 1
    assert records[-1]["status"] == 35072


def test_a_time_limit_holds_while_no_daemon_lives(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", ["sleep", "1000"], duration_s=0.5)
    daemon.wait_record("1", "start")
    daemon.close()
    until(lambda: Daemon(helper.directory).hello["units"]["1"]["ended"], "end")
    records = Daemon(helper.directory, have={"1": 1}).ended("1")
    assert "timeout" in kinds(records)
    assert records[-1]["status"] == 36352


def test_a_time_limit_can_be_changed(daemon: Daemon) -> None:
    daemon.start("1", ["sleep", "1000"], duration_s=900.0)
    daemon.start("2", sh("read x; exit 3"), duration_s=0.3, stdin="pipe")
    daemon.send(t="limit", unit="2", remaining_s=None)
    daemon.send(t="limit", unit="1", remaining_s=0.5)
    assert daemon.ended("1")[-1]["status"] == 36352
    feed(daemon, "2", 0, b"\n")
    assert daemon.ended("2")[-1]["status"] == 768


# ---- the end of everything that belongs to a unit


def left_over(daemon: Daemon, unit: str) -> list[int]:
    """Process ids that a unit printed, one a line."""
    return [int(word) for word in output(daemon.records[unit]).split()]


def test_a_background_child_ends_with_the_unit(daemon: Daemon) -> None:
    records = daemon.run("1", sh(f"{FOREVER} & echo $!; exit 3"))
    (pid,) = left_over(daemon, "1")
    assert not lives(pid)
    assert records[-1]["status"] == 768
    assert [r["stream"] for r in records if r["k"] == "output" and r.get("eof")].count("stdout") == 1


DAEMONIZE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {extra}
        os.write(1, b"%d\\n" % os.getpid())
        if os.fork() == 0:
            os.setsid()
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(1000)
        time.sleep(1000)
    os._exit(0)
os.wait()
while {wait} and os.path.exists(sys.argv[1]): time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "extra",
    [
        "pass",
        "os.closerange(3, 256)",
        "import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15, 14)]",
    ],
)
def test_daemons_end_with_the_unit(daemon: Daemon, tmp_path: Path, extra: str) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    daemon.start("1", [sys.executable, "-c", DAEMONIZE.format(extra=extra, wait=True), str(gate)])
    daemon.wait(lambda: output(daemon.records.get("1", [])).count(b"\n") == 2)
    pids = left_over(daemon, "1")
    assert all(lives(pid) for pid in pids)
    # Another unit's end does not touch them.
    daemon.run("2", ["true"])
    daemon.run("3", sh(f"{FOREVER} & setsid {FOREVER} & exit 0"))
    assert all(lives(pid) for pid in pids)
    gate.unlink()
    assert daemon.ended("1")[-1]["status"] == 0
    assert not any(lives(pid) for pid in pids)


def test_a_daemon_that_dropped_the_marker_ends_with_the_unit(daemon: Daemon) -> None:
    daemon.start("1", sh(f"env -i setsid sh -c 'echo $$; exec {FOREVER}' & read x"), stdin="pipe")
    daemon.wait_output("1", b"\n")
    (pid,) = left_over(daemon, "1")
    until(lambda: environ_marker(pid) is None, "marker")
    feed(daemon, "1", 0, b"\n")
    daemon.ended("1")
    assert not lives(pid)


def test_children_of_a_task_that_ended_first_live_until_the_last(daemon: Daemon) -> None:
    script = f"if test $FLUX_TASK_RANK = 0; then {FOREVER} & echo $!; else read x; fi"
    daemon.start("1", sh(script), n=2, stdin="pipe")
    daemon.wait_record("1", "task-exit", rank=0)
    daemon.wait_output("1", b"\n")
    (pid,) = left_over(daemon, "1")
    assert lives(pid)
    feed(daemon, "1", 0, b"\n")
    daemon.ended("1")
    assert not lives(pid)


def test_a_child_without_group_of_its_own_ends_with_the_unit(daemon: Daemon) -> None:
    daemon.run("1", sh(f"{FOREVER} & echo $!"), setpgrp=False)
    assert not lives(left_over(daemon, "1")[0])


def test_a_fork_storm_ends(daemon: Daemon, tmp_path: Path) -> None:
    program = """
import os, time
for i in range(60):
    if os.fork() == 0:
        os.setsid()
        for j in range(3):
            if os.fork() == 0: os.setsid()
        time.sleep(1000)
"""
    daemon.run("1", [sys.executable, "-c", program])
    assert find_marked(daemon.hello["incarnation"] + "/") == {}


def test_a_pipe_held_outside_the_unit_does_not_hold_it_for_ever(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", sh("echo hi; read x; echo end"), stdin="pipe")
    daemon.wait_output("1", b"hi")
    pid = daemon.records["1"][0]["pids"][0]
    holder = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        feed(daemon, "1", 0, b"\n")
        records = daemon.ended("1")
    finally:
        os.close(holder)
    assert output(records) == b"hi\nend\n"
    assert [r["stream"] for r in records if r.get("eof")].count("stdout") == 1


def test_orphans_are_reaped(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", sh("for i in 1 2 3 4 5; do (true &) ; done; echo done; read x"), stdin="pipe")
    daemon.wait_output("1", b"done")
    pid = helper.process.pid

    def children() -> list[str]:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    until(lambda: len(children()) == 1, "zombies")
    feed(daemon, "1", 0, b"\n")
    daemon.ended("1")
    assert children() == []


# ---- units of kind work


def test_progress_and_the_end_of_stderr(daemon: Daemon) -> None:
    script = """echo '{"done":1,"total":2}'; echo text; echo '{no json'; echo '[1]'; read x
    seq 1000 >&2; echo '{"done":2,"total":2}'"""
    daemon.start("1", sh(script), kind="work", stdin="pipe")
    first = daemon.wait(lambda: next((m for m in daemon.other if m["t"] == "progress"), None))
    assert first == {"t": "progress", "unit": "1", "data": {"done": 1, "total": 2}}
    feed(daemon, "1", 0, b"\n")
    records = daemon.ended("1")
    assert output(records) == b"text\n{no json\n[1]\n"
    assert [m for m in daemon.other if m["t"] == "progress"][-1]["data"] == {"done": 2, "total": 2}
    stderr = b"".join(b"%d\n" % i for i in range(1, 1001))
    assert output(records, "stderr") == stderr
    assert records[-1]["stderr_tail"] == stderr[-2048:].decode()


def test_tasks_print_json_like_anything_else(daemon: Daemon) -> None:
    records = daemon.run("1", ["echo", '{"done":1}'])
    assert output(records) == b'{"done":1}\n'
    assert "stderr_tail" not in records[-1]


def test_work_can_be_copied_to_a_log(daemon: Daemon, tmp_path: Path) -> None:
    log = tmp_path / "prolog.log"
    daemon.run("1", sh("echo out; echo err >&2"), kind="work", log=str(log))
    assert sorted(log.read_text().split()) == ["err", "out"]
    records = daemon.run("2", sh("echo out"), kind="work", log=str(tmp_path / "no" / "log"))
    assert "No such file or directory" in next(r for r in records if r["k"] == "log")["message"]
    assert output(records) == b"out\n"


def test_the_copier_as_work(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    argv = [sys.executable, "-m", "leveret.exec.copier", str(tmp_path / "f"), str(tmp_path / "n/")]
    records = daemon.run("1", argv, kind="work")
    assert records[-1]["status"] == 0
    assert [m["data"] for m in daemon.other if m["t"] == "progress"][-1] == {
        "done": 1000,
        "total": 1000,
        "unit": "bytes",
    }


# ---- connections


def test_hello(helper: Helper, daemon: Daemon) -> None:
    hello = daemon.hello
    assert hello["pid"] == helper.process.pid
    assert (hello["protocol"], hello["node"], hello["host"], hello["units"]) == (1, 3, "nodeA", {})
    boot, _, uid = hello["incarnation"].partition(":")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(uid) == 36
    assert Daemon(helper.directory).hello["incarnation"] == hello["incarnation"]


@pytest.mark.parametrize("protocol", [0, 2, 99, None, "1"])
def test_another_protocol_is_refused(helper: Helper, protocol: object) -> None:
    daemon = Daemon(helper.directory, hello=False)
    daemon.send(t="hello", protocol=protocol, have={})
    with pytest.raises(EOFError):
        daemon.wait(lambda: False)
    (error,) = daemon.other
    assert (error["t"], error["code"]) == ("error", "version")


def test_hello_comes_first(helper: Helper) -> None:
    daemon = Daemon(helper.directory, hello=False)
    daemon.start("1", ["true"])
    with pytest.raises(EOFError):
        daemon.wait(lambda: False)
    assert daemon.other[0]["code"] == "protocol"
    assert Daemon(helper.directory).hello["units"] == {}


@pytest.mark.parametrize("junk", [b"\xff\xff\xff\xff", b"\0\0\0\1x", b"\0\0\0\2[]"])
def test_junk_closes_the_connection_and_nothing_else(helper: Helper, daemon: Daemon, junk: bytes) -> None:
    daemon.start("1", sh("read x"), stdin="pipe")
    daemon.wait_record("1", "start")
    daemon.sock.sendall(junk)
    with pytest.raises(EOFError):
        daemon.wait(lambda: False)
    assert Daemon(helper.directory).hello["units"]["1"]["ended"] is False


def test_what_is_not_understood_changes_nothing(daemon: Daemon) -> None:
    daemon.send(t="tomorrow", unit="1")
    daemon.send(t="signal", unit="nosuch", signal=9)
    daemon.send(t="ack", unit="nosuch", n=1)
    daemon.send(t="forget", unit="nosuch")
    daemon.ping()


def test_a_message_may_come_in_pieces(daemon: Daemon) -> None:
    text = json.dumps({"t": "start", "unit": "1", "spec": make_spec("1", ["echo", "€"])}, ensure_ascii=False).encode()
    for byte in len(text).to_bytes(4, "big") + text:
        daemon.sock.sendall(bytes([byte]))
    assert output(daemon.ended("1")) == "€\n".encode()


def test_a_newer_connection_replaces_the_older(helper: Helper, daemon: Daemon) -> None:
    newer = Daemon(helper.directory)
    with pytest.raises(EOFError):
        daemon.wait(lambda: False)
    newer.run("1", ["true"])


def test_what_was_said_before_a_connection_broke_counts(helper: Helper) -> None:
    for i in range(20):
        daemon = Daemon(helper.directory)
        daemon.start(f"{i}", ["true"])
        daemon.close()
    again = Daemon(helper.directory, have={f"{i}": 0 for i in range(20)})
    for i in range(20):
        assert again.ended(f"{i}")[-1]["status"] == 0


def test_a_known_unit_is_not_started_again(helper: Helper, daemon: Daemon, tmp_path: Path) -> None:
    log = tmp_path / "log"
    daemon.run("1", sh(f"echo once >> {log}"))
    daemon.start("1", sh(f"echo twice >> {log}"))
    daemon.run("2", ["true"])
    assert log.read_text() == "once\n"
    n = len(daemon.records["1"])
    # A daemon that crashed between storing the ask and anything else sends it again, and is told what became of it.
    again = Daemon(helper.directory)
    again.start("1", sh(f"echo twice >> {log}"))
    assert len(again.ended("1")) == n
    again.run("3", ["true"])
    assert log.read_text() == "once\n"


def test_forgotten_units_are_gone(helper: Helper, daemon: Daemon) -> None:
    daemon.run("1", ["true"])
    daemon.start("2", sh("read x"), stdin="pipe")
    daemon.wait_record("2", "start")
    daemon.send(t="forget", unit="1")
    daemon.send(t="forget", unit="2")
    daemon.ping()
    again = Daemon(helper.directory, have={"2": 0})
    assert list(again.hello["units"]) == ["2"]
    feed(again, "2", 0, b"\n")
    again.ended("2")
    assert Daemon(helper.directory).hello["units"] == {}


def test_records_are_resent_from_what_the_daemon_has(helper: Helper, daemon: Daemon) -> None:
    first = daemon.run("1", sh("echo a; echo b >&2; exit 2"))
    daemon.run("2", ["true"])
    for have in range(len(first) + 1):
        again = Daemon(helper.directory, have={"1": have, "nosuch": 4})
        assert again.hello["units"]["1"] == {"n": len(first), "ended": True, "stdin": 0}
        again.ping()
        # What is below was acknowledged by earlier hellos; what is not in `have` is only listed.
        assert again.records.get("1", []) == first[have:]
        assert "2" in again.hello["units"] and "2" not in again.records


def test_output_survives_broken_connections_without_loss_or_doubling(helper: Helper) -> None:
    """The connection is cut in mid-output again and again, with records unread in the socket."""
    daemon = Daemon(helper.directory)
    script = "i=0; while test $i -lt 400; do seq $((i*10)) $((i*10+9)); echo e$i >&2; i=$((i+1)); done"
    units = {"mem": {"memory_max": 1 << 20}, "file": {"memory_max": 2000}}
    for unit, out in units.items():
        daemon.start(unit, sh(script), output=out)
    stored: dict[str, list[dict[str, object]]] = {unit: [] for unit in units}
    rounds = 0
    while not all(records and records[-1]["k"] == "exit" for records in stored.values()):
        rounds += 1
        if not daemon.records:  # some may have come with the answer to hello, and be the last
            daemon.read()
        daemon.close()
        for unit, records in daemon.records.items():
            for record in records:
                assert record["n"] == len(stored[unit]) + 1
                stored[unit].append(record)
        daemon = Daemon(helper.directory, have={unit: len(records) for unit, records in stored.items()})
        for unit in units:
            # Only now stored ones are acknowledged, as a daemon does after its commit.
            daemon.send(t="ack", unit=unit, n=len(stored[unit]))
    assert rounds > 1
    for records in stored.values():
        assert [r["n"] for r in records] == list(range(1, len(records) + 1))
        assert kinds(records).count("task-exit") == 1
        out = output(records) + file_bytes(helper, records)
        assert out == b"".join(b"%d\n" % i for i in range(4000))
        err = output(records, "stderr") + file_bytes(helper, records, "stderr")
        assert err == b"".join(b"e%d\n" % i for i in range(400))


def test_stdin_goes_on_after_a_broken_connection(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", ["cat"], stdin="pipe")
    feed(daemon, "1", 0, b"one\n")
    daemon.wait(lambda: acked(daemon, "1") == 4)
    daemon.close()
    again = Daemon(helper.directory, have={"1": 0})
    assert again.hello["units"]["1"]["stdin"] == 4
    again.wait(lambda: acked(again, "1") == 4)
    feed(again, "1", 0, b"one\ntwo\n", eof=True)
    assert output(again.ended("1")) == b"one\ntwo\n"


def test_many_units_at_once(daemon: Daemon) -> None:
    for i in range(300):
        daemon.start(f"{i}", sh(f"echo {i}; exit {i % 5}"))
    for i in range(300):
        records = daemon.ended(f"{i}")
        assert output(records) == b"%d\n" % i
        assert records[-1]["status"] == (i % 5) << 8


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_other_users_are_refused(helper: Helper) -> None:
    # The folder's mode keeps them out; here it is opened to see the second door at work.
    for path in [helper.directory, *list(helper.directory.parents)[:3]]:
        os.chmod(path, 0o755)
    os.chmod(helper.directory / "helper.sock", 0o666)
    program = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(60); print(s.recv(9))"
    )
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "python3", "-c", program, str(helper.directory / "helper.sock")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "b''\n" or "Permission" in done.stderr or "ConnectionReset" in done.stderr, done
    assert "uid 65534 refused" in helper.log.read_text() or "Permission" in done.stderr


# ---- the process itself


def test_files_and_modes(helper: Helper) -> None:
    def mode(name: str) -> int:
        return (helper.directory / name).stat().st_mode & 0o777

    assert mode(".") == 0o700
    assert mode("helper.sock") == 0o600
    assert (helper.directory / "helper.pid").read_text() == f"{helper.process.pid}\n"
    assert os.readlink(f"/proc/{helper.process.pid}/cwd") == "/"


def test_a_second_helper_leaves_the_first_alone(helper: Helper, daemon: Daemon) -> None:
    done = subprocess.run(command(helper.directory), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "another helper" in done.stderr
    daemon.ping()


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    helper = Helper(tmp_path / ("x" * 120) / "h")
    try:
        assert Daemon(helper.directory).run("1", ["true"])[-1]["status"] == 0
    finally:
        helper.stop()


def test_shutdown_waits_for_units_unless_forced(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", sh(f'trap "" TERM; echo $$; {FOREVER}'))
    daemon.wait_output("1", b"\n")
    (pid,) = left_over(daemon, "1")
    daemon.send(t="shutdown", force=False)
    daemon.wait(lambda: [m for m in daemon.other if m["t"] == "refused"])
    assert lives(pid)
    daemon.send(t="shutdown", force=True)
    assert daemon.ended("1")[-1]["status"] == 35072
    assert helper.process.wait(60) == 0
    assert not lives(pid)
    assert not (helper.directory / "helper.sock").exists()


def test_shutdown_of_an_idle_helper(helper: Helper, daemon: Daemon) -> None:
    daemon.run("1", ["true"])
    daemon.send(t="shutdown", force=False)
    assert helper.process.wait(60) == 0


def test_sigterm_is_ignored_while_there_are_units(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", sh("read x"), stdin="pipe")
    daemon.wait_record("1", "start")
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        helper.process.send_signal(signum)
    daemon.ping()
    feed(daemon, "1", 0, b"\n")
    daemon.ended("1")
    daemon.send(t="forget", unit="1")
    daemon.ping()
    helper.process.send_signal(signal.SIGTERM)
    assert helper.process.wait(60) == 0


def test_a_vanished_directory_ends_helper_and_tasks(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", sh(f'trap "" TERM HUP; echo $$; {FOREVER}'))
    daemon.wait_output("1", b"\n")
    (pid,) = left_over(daemon, "1")
    helper.directory.rename(helper.directory.parent / "elsewhere")
    assert helper.process.wait(60) == 0
    assert not lives(pid)


def test_what_a_dead_helper_left_is_ended_by_the_next(tmp_path: Path, helper: Helper, daemon: Daemon) -> None:
    script = f"echo $$; setsid sh -c 'echo $$; exec {FOREVER}' & exec {FOREVER}"
    daemon.start("1", sh(script))
    daemon.wait(lambda: output(daemon.records.get("1", [])).count(b"\n") == 2)
    pids = left_over(daemon, "1")
    helper.process.kill()
    helper.process.wait(60)
    assert all(lives(pid) for pid in pids)
    (helper.directory / "helper.sock").unlink()
    following = Helper(helper.directory)
    try:
        assert not any(lives(pid) for pid in pids)
        hello = Daemon(helper.directory).hello
        assert hello["incarnation"] != daemon.hello["incarnation"]
        assert hello["units"] == {}
    finally:
        following.stop()


def test_the_daemon_can_end_what_a_dead_helper_left(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", sh(f"echo $$; exec {FOREVER}"))
    daemon.wait_output("1", b"\n")
    (pid,) = left_over(daemon, "1")
    helper.process.kill()
    helper.process.wait(60)
    assert kill_marked(daemon.hello["incarnation"]) == []
    assert not lives(pid)


def test_the_lock_is_not_inherited_by_tasks(helper: Helper, daemon: Daemon) -> None:
    daemon.start("1", ["sleep", "1000"])
    daemon.wait_record("1", "start")
    helper.process.kill()
    helper.process.wait(60)
    with (helper.directory / "helper.lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kill_marked(daemon.hello["incarnation"])


def test_descriptors_do_not_leak(helper: Helper, daemon: Daemon) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{helper.process.pid}/fd"))

    daemon.acks = True
    daemon.run("0", ["true"])
    before = count()
    for i in range(1, 40):
        daemon.run(f"{i}", sh("seq 100; cat"), output={"memory_max": i % 3 * 100}, n=2)
        daemon.run(f"p{i}", ["nosuch"], stdin="pipe", n=2)
    assert count() <= before + 1


def test_helper_needs_the_standard_library_only(tmp_path: Path) -> None:
    program = """
import sys
before = set(sys.modules)
import leveret.exec.helper, leveret.exec.copier
foreign = {n.partition(".")[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"leveret"}
ours = sorted(n for n in sys.modules if n.startswith("leveret") and not n.startswith("leveret.exec"))
print(foreign, ours)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set() ['leveret']\n", done


def test_a_client_that_only_connects_does_no_harm(helper: Helper) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(helper.directory / "helper.sock"))
    sock.close()
    assert Daemon(helper.directory).run("1", ["true"])[-1]["status"] == 0
