"""What attach prints and returns, from scripted event streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from typing import Any

import pytest
from fakedaemon import BREAK, FakeDaemon, end, event, record

from leveret.cli.attach import progress_text
from leveret.cli.output import StatusLine

HEADER = event("output", 1, "header", 100.0, version=1)


def data(n: int, text: str | bytes, stream: str = "stdout", rank: str = "0", **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"stream": stream, "rank": rank}
    if isinstance(text, bytes):
        body |= {"data": b64encode(text).decode(), "encoding": "base64"}
    elif text:
        body["data"] = text
    return event("output", n, "data", 100.5, **body, **more)


def job_lines(status: int = 0) -> list[dict[str, Any]]:
    """An ordinary eventlog."""
    return [
        event("eventlog", 1, "submit", 100.0, userid=0, urgency=16, flags=0, version=1),
        event("eventlog", 2, "validate", 100.0),
        event("eventlog", 3, "start", 100.25),
        event("eventlog", 4, "finish", 101.0, status=status),
        event("eventlog", 5, "clean", 101.5),
    ]


def attach(daemon: FakeDaemon, leveret: Any, lines: list[Any], *options: str) -> Any:
    daemon.answer("GET", "/v1/jobs/1/events", lines)
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    return leveret("job", "attach", *options, "1")


def test_output_goes_where_it_came_from_and_the_code_is_returned(daemon: FakeDaemon, leveret: Any) -> None:
    lines = [*job_lines(512), HEADER, data(2, "err\n", "stderr"), data(3, "out\n"), end(waitstatus=512, exit_code=2)]
    outcome = attach(daemon, leveret, lines)
    assert (outcome.code, outcome.out) == (2, "out\n")
    assert outcome.err == "err\nleveret-job: task(s) exited with exit code 2\n"


def test_bytes_are_exact(daemon: FakeDaemon, capfdbinary: Any) -> None:
    from leveret.cli.main import run_cli

    everything = bytes(range(256))
    lines = [HEADER, data(2, everything), data(3, "no newline ƒ"), data(4, "", eof=True), *job_lines(), end()]
    daemon.answer("GET", "/v1/jobs/1/events", lines)
    assert run_cli(["job", "attach", "-r", "1"]) == 0
    assert capfdbinary.readouterr().out == everything + "no newline ƒ".encode()


def test_labels_are_per_line_also_when_ranks_write_parts_of_lines(daemon: FakeDaemon, leveret: Any) -> None:
    lines = [
        HEADER,
        data(2, "ab"),
        data(3, "x\ny", rank="1"),
        data(4, "c\nd\n"),
        data(5, "both\n", rank="0-1"),
        data(6, "", rank="1", eof=True),
        data(7, "end"),
        data(8, "", eof=True),
        *job_lines(),
        end(),
    ]
    outcome = attach(daemon, leveret, lines, "-l")
    assert outcome.out == "1: x\n0: abc\n0: d\n0: both\n1: yboth\n0: end"


def test_a_partial_line_that_never_ended_is_shown_at_the_end(daemon: FakeDaemon, leveret: Any) -> None:
    assert attach(daemon, leveret, [data(2, "half"), *job_lines(), end()], "-l").out == "0: half"
    assert (
        attach(daemon, leveret, [data(2, "half", eof=True), data(3, "x\n", rank="1"), end()], "-l").out
        == "0: half\n1: x\n"
    )


def test_logs_exceptions_and_redirects(daemon: FakeDaemon, leveret: Any) -> None:
    lines = [
        *job_lines()[:3],
        event("eventlog", 4, "exception", 100.6, type="exec", severity=0, note="start failed", userid=0),
        HEADER,
        event("output", 2, "redirect", 100.1, stream="stdout", rank="0", path="out"),
        event("output", 3, "redirect", 100.1, stream="stderr", rank="0-1", path="err"),
        event("output", 4, "log", 100.5, rank=0, level=2, message="start failed"),
        event("output", 5, "log", 100.7, rank=1, level=4, component="output.kvs", message="truncated\n"),
        event("output", 6, "log", 100.8, rank=0, level=5, message="signal: soon"),
        end(waitstatus=None, exit_code=1),
    ]
    outcome = attach(daemon, leveret, lines)
    assert outcome.code == 1
    assert sorted(outcome.err.splitlines()) == sorted(
        [
            "0: stdout redirected to out",
            "[0-1]: stderr redirected to err",
            "0.500s: leveret-shell[0]: FATAL: start failed",
            "0.600s: job.exception ƒ2 type=exec severity=0 start failed",
            "0.700s: leveret-shell[1]:  WARN: output.kvs: truncated",
            "0.800s: leveret-shell[0]: signal: soon",
        ]
    )
    assert "redirected" not in attach(daemon, leveret, lines, "-q").err


def test_events_are_shown_on_request(daemon: FakeDaemon, leveret: Any) -> None:
    lines = [*job_lines()[:2], event("exec", 1, "shell.init", 100.1, service="s"), *job_lines()[2:], end()]
    outcome = attach(daemon, leveret, lines, "-EX")
    assert outcome.err.splitlines() == [
        '0.000s: job.submit {"userid":0,"urgency":16,"flags":0,"version":1}',
        "0.000s: job.validate",
        '0.100s: exec.shell.init {"service":"s"}',
        "0.250s: job.start",
        '1.000s: job.finish {"status":0}',
        "1.500s: job.clean",
    ]
    assert "path=exec" in daemon.asked("GET", "/v1/jobs/1/events")[-1].query
    assert attach(daemon, leveret, lines).err == ""
    assert "path=exec" not in daemon.asked("GET", "/v1/jobs/1/events")[-1].query


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("start", 768, 1), ("finish", 768, 3), ("finish", 0, 0), ("clean", 768, 3), ("nosuch", 768, 3)],
)
def test_wait_event_codes(daemon: FakeDaemon, leveret: Any, name: str, status: int, code: int) -> None:
    lines = [*job_lines(status), end(waitstatus=status, exit_code=status >> 8)]
    assert attach(daemon, leveret, lines, "-w", name).code == code


def test_finish_after_a_fatal_exception_is_a_failure(daemon: FakeDaemon, leveret: Any) -> None:
    lines = [*job_lines()[:3], event("eventlog", 4, "exception", type="x", severity=0, note=""), job_lines()[3], end()]
    assert attach(daemon, leveret, lines, "-w", "finish").code == 1


def test_wait_event_finish_has_all_of_the_output(daemon: FakeDaemon, leveret: Any) -> None:
    """The finish event may come before the output that was stored before it."""
    rest = [data(3, "two\n"), end()]
    daemon.answer("GET", "/v1/jobs/1/events", [HEADER, data(2, "one\n"), *job_lines()[:4]], rest)
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    assert leveret("job", "attach", "-w", "finish", "1").out == "one\ntwo\n"
    first, second = daemon.asked("GET", "/v1/jobs/1/events")
    assert "follow=1" in first.query
    assert second.query == "path=output%402"


def test_a_killed_daemon_is_not_noticed(daemon: FakeDaemon, leveret: Any) -> None:
    first = [*job_lines()[:3], HEADER, data(2, "one\n"), b'{"path": "out', BREAK]
    daemon.answer("GET", "/v1/jobs/1/events", first, [data(3, "two\n"), *job_lines()[3:], end()])
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    outcome = leveret("job", "attach", "1")
    assert (outcome.code, outcome.out, outcome.err) == (0, "one\ntwo\n", "")


def test_tail_shows_the_last_lines_and_goes_on(daemon: FakeDaemon, leveret: Any) -> None:
    numbers = "".join(f"{n}\n" for n in range(1, 21))
    daemon.answer(
        "GET", "/v1/jobs/1/events", [HEADER, data(2, numbers), end()], [*job_lines(), data(3, "live\n"), end()]
    )
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    assert leveret("job", "attach", "--tail=2", "1").out == "19\n20\nlive\n"
    assert "path=output%402" in daemon.requests[-1].query or "path=output%402" in daemon.requests[-2].query
    daemon.answer("GET", "/v1/jobs/1/events", [data(2, numbers), end()], [end()])
    assert leveret("job", "attach", "--tail", "1").out.splitlines()[0] == "11"


def test_unknown_jobs(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs/1234/events", (404, {"code": "not-found", "message": "no"}))
    outcome = leveret("job", "attach", "1234")
    assert (outcome.code, outcome.err) == (1, "leveret-job: Failed to attach to 1234: No such job\n")
    outcome = leveret("job", "attach", "xyzzy")
    assert (outcome.code, outcome.err.splitlines()[0]) == (1, 'leveret-job: error parsing jobid: "xyzzy"')


def test_run_submits_and_attaches(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("POST", "/v1/jobs", (200, {"id": 1}))
    daemon.answer(
        "GET", "/v1/jobs/1/events", [*job_lines(36608), data(2, "hi\n"), end(waitstatus=36608, exit_code=143)]
    )
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    outcome = leveret("run", "-v", "echo", "hi")
    assert (outcome.code, outcome.out) == (143, "hi\n")
    assert outcome.err == "jobid: ƒ2\nleveret-job: task(s) Terminated\n"


class Process:
    """`leveret job attach 1` as a process, on a stream that stays open until `finish`."""

    def __init__(self, daemon: FakeDaemon, *options: str, stdin: Any = subprocess.DEVNULL) -> None:
        self.release = threading.Event()
        self.attached = threading.Event()

        def stream(request: Any) -> Any:
            yield from job_lines()[:3]
            yield self.attached.set
            yield self.release.wait
            yield from job_lines()[3:]
            yield end()

        daemon.answer("GET", "/v1/jobs/1/events", stream)
        command = [sys.executable, "-m", "leveret", "job", "attach", *options, "1"]
        self.process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_attached(self, daemon: FakeDaemon) -> None:
        assert self.attached.wait(20)
        until(lambda: daemon.asked("POST", "/v1/jobs/1/stdin"))  # handlers are installed before stdin is read

    def end(self) -> tuple[int, str]:
        self.release.set()
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err.decode()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_twice_cancels(daemon: FakeDaemon) -> None:
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    daemon.answer("GET", "/v1/jobs/1", (200, record(1, state="RUN")))
    daemon.answer("POST", "/v1/jobs/1/cancel", (200, {}))
    attached = Process(daemon)
    attached.wait_attached(daemon)
    attached.process.send_signal(signal.SIGINT)
    until(lambda: daemon.asked("GET", "/v1/jobs/1"))
    assert not daemon.asked("POST", "/v1/jobs/1/cancel")
    attached.process.send_signal(signal.SIGINT)
    until(lambda: daemon.asked("POST", "/v1/jobs/1/cancel"))
    assert daemon.asked("POST", "/v1/jobs/1/cancel")[0].json() == {"note": "interrupted by ctrl-C"}
    code, err = attached.end()
    assert code == 0
    assert err == "leveret-job: one more ctrl-C within 2s to cancel or ctrl-Z to detach\n"


def test_ctrl_c_says_what_still_runs_and_ctrl_z_detaches(daemon: FakeDaemon) -> None:
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    daemon.answer("GET", "/v1/jobs/1", (200, record(1, state="CLEANUP", waiting_for="stage-out")))
    attached = Process(daemon)
    attached.wait_attached(daemon)
    attached.process.send_signal(signal.SIGINT)
    until(lambda: daemon.asked("GET", "/v1/jobs/1"))
    attached.process.send_signal(signal.SIGTSTP)
    _, err = attached.process.communicate(timeout=20)
    assert attached.process.returncode == 1
    assert err.decode().splitlines() == [
        "leveret-job: one more ctrl-C within 2s to cancel or ctrl-Z to detach",
        "leveret-job: job is finishing: stage-out",
        "leveret-job: detaching...",
    ]
    assert not daemon.asked("POST", "/v1/jobs/1/cancel")
    attached.release.set()


def test_signals_are_forwarded(daemon: FakeDaemon) -> None:
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    daemon.answer("POST", "/v1/jobs/1/kill", (200, {}))
    attached = Process(daemon)
    attached.wait_attached(daemon)
    for count, number in enumerate((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2), start=1):
        attached.process.send_signal(number)
        until(lambda: len(daemon.asked("POST", "/v1/jobs/1/kill")) == count)  # noqa: B023
    assert [request.json()["signal"] for request in daemon.asked("POST", "/v1/jobs/1/kill")] == [15, 10, 12]
    assert attached.end()[0] == 0


def test_sigterm_cancels_a_job_that_has_no_tasks_yet(daemon: FakeDaemon) -> None:
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    daemon.answer("POST", "/v1/jobs/1/kill", (409, {"code": "conflict", "message": "job is not running"}))
    daemon.answer("GET", "/v1/jobs/1", (200, record(1, state="SCHED")))
    daemon.answer("POST", "/v1/jobs/1/cancel", (200, {}))
    attached = Process(daemon)
    attached.wait_attached(daemon)
    attached.process.send_signal(signal.SIGTERM)
    until(lambda: daemon.asked("POST", "/v1/jobs/1/cancel"))
    assert attached.end()[0] == 0


class Stdin:
    """The daemon's side of stdin: takes what is beyond its offset, `lose` breaks off the nth answer."""

    def __init__(self, daemon: FakeDaemon, taken: bytes = b"", lose: int = 0) -> None:
        self.taken = taken
        self.eof = threading.Event()
        self.calls = 0
        self.lose = lose
        daemon.answer("POST", "/v1/jobs/1/stdin", self.take)

    def take(self, request: Any) -> Any:
        self.calls += 1
        body = request.json()
        self.taken += b64decode(body["data"])[max(len(self.taken) - body["offset"], 0) :]
        if body["eof"]:
            self.eof.set()
        if self.calls == self.lose:
            return BREAK
        return 200, {"offset": len(self.taken)}


@pytest.mark.parametrize("lose", [0, 1, 2, 3])
def test_stdin_is_forwarded_once_also_over_a_lost_connection(daemon: FakeDaemon, lose: int) -> None:
    """What another attach sent before stays; `offset` goes on from there."""
    stdin = Stdin(daemon, b"before ", lose)
    sent = os.urandom(200_000)
    attached = Process(daemon, stdin=subprocess.PIPE)
    pipe = attached.process.stdin
    assert pipe is not None
    pipe.write(sent)
    pipe.close()
    attached.process.stdin = None
    assert stdin.eof.wait(20)
    assert attached.end()[0] == 0
    assert stdin.taken == b"before " + sent


def test_refused_stdin_is_said_once(daemon: FakeDaemon) -> None:
    daemon.answer("POST", "/v1/jobs/1/stdin", (409, {"code": "conflict", "message": "stdin not accepted by job"}))
    attached = Process(daemon, stdin=subprocess.PIPE)
    pipe = attached.process.stdin
    assert pipe is not None
    pipe.write(b"x")
    pipe.flush()
    until(lambda: daemon.asked("POST", "/v1/jobs/1/stdin"))
    assert attached.end() == (0, "leveret-job: stdin not accepted by job\n")


def test_stdin_for_some_ranks_is_the_end_of_it_for_the_others(daemon: FakeDaemon) -> None:
    Stdin(daemon)
    daemon.answer("GET", "/v1/jobs/1", (200, record(1, ntasks=4)))
    attached = Process(daemon, "-i", "1-2")
    until(lambda: len(daemon.asked("POST", "/v1/jobs/1/stdin")) == 2)
    bodies = [request.json() for request in daemon.asked("POST", "/v1/jobs/1/stdin")]
    assert [(body["ranks"], body["eof"]) for body in bodies] == [("0,3", True), ("1-2", True)]
    assert attached.end()[0] == 0


def test_read_only_sends_nothing(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs/1/events", [*job_lines(), end()])
    assert leveret("job", "attach", "-r", "1").code == 0
    assert {request.method for request in daemon.requests} == {"GET"}


def test_a_broken_pipe_is_silent_and_ends_the_job_of_run(daemon: FakeDaemon) -> None:
    daemon.answer("POST", "/v1/jobs", (200, {"id": 1}))
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    daemon.answer("POST", "/v1/jobs/1/kill", (200, {}))

    def stream(request: Any) -> Any:
        yield from job_lines()[:3]
        for n in range(10_000):
            yield data(n + 2, "y\n" * 4000)

    daemon.answer("GET", "/v1/jobs/1/events", stream)
    command = [sys.executable, "-m", "leveret", "run", "yes"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(20) == 141
    assert [request.json() for request in daemon.asked("POST", "/v1/jobs/1/kill")] == [{"signal": 13}]


def test_the_status_line_never_mixes_with_output(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line = StatusLine(True)
    line._output_is_terminal = True
    line.show("waiting")
    line.show("waiting")
    line.clear()
    line.printed(b"part of a line")
    line.show("waiting")
    line.printed(b"\n")
    line.show("still waiting")
    line.show("")
    drawn = "\r\x1b[K"
    assert capfd.readouterr().err == f"{drawn}waiting{drawn}{drawn}still waiting{drawn}"


def test_there_is_no_status_line_without_a_terminal(daemon: FakeDaemon, leveret: Any) -> None:
    status = {"status": {"state": "SCHED", "phase": "sched", "waiting_for": "resources", "progress": None}}
    assert attach(daemon, leveret, [status, *job_lines(), end()]).err == ""
    assert "status=1" not in daemon.asked("GET", "/v1/jobs/1/events")[0].query


def test_show_status_rewrites_one_line(daemon: FakeDaemon, leveret: Any) -> None:
    err = attach(daemon, leveret, [*job_lines(), end()], "--show-status").err
    pieces = err.replace("\n", "").strip("\r").split("\r\r")
    assert [piece.split("ƒ2 ")[1].split("  ")[0] for piece in pieces] == [
        "submitted",
        "resolving dependencies",
        "started",
    ]
    assert {len(piece) for piece in pieces} == {79}
    assert all(piece.endswith(" 00:00:00") for piece in pieces)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, ""),
        ({"done": 1572864, "total": 3145728, "unit": "bytes"}, "1.5 of 3.0 MiB (50%)"),
        ({"done": 3, "total": 0, "unit": "files"}, "3 files"),
        ({"done": 1, "total": 4}, "1 of 4 (25%)"),
    ],
)
def test_progress(progress: Any, text: str) -> None:
    assert progress_text(progress) == text
