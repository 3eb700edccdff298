"""`leveret start` around commands, with a real daemon: codes, restarts, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

LEVERET = [sys.executable, "-m", "leveret"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything that an instance leaves somewhere is below here."""
    for name in ("LEVERET_URI", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "LEVERET_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


def start(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LEVERET, "start", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def left_behind(home: Path) -> list[str]:
    """Sockets, temporary state, and processes that name this home."""
    found = [str(path) for path in (home / "run").rglob("*.sock")] + [str(path) for path in (home / "tmp").iterdir()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.fsencode(home) in (entry / "cmdline").read_bytes():
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return found


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["sh", "-c", "exit 0"], 0, ""),
        (["sh", "-c", "exit 9"], 9, "exited with rc=9"),
        (["sh", "-c", "kill -9 $$"], 137, "exited with rc=137"),
        (["nosuchcmd"], 127, "nosuchcmd: command not found"),
    ],
)
def test_the_code_is_the_commands_and_nothing_is_left(home: Path, command: list[str], code: int, message: str) -> None:
    done = start(*command)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert (done.stderr == "") == (code == 0)
    assert left_behind(home) == []


def test_the_command_finds_its_instance(home: Path) -> None:
    script = (
        'test "$LEVERET_URI" = "$FLUX_URI" && "$0" -m leveret run -N2 -n2 -l echo hi && "$0" -m leveret status --json'
    )
    done = start("-s2", "sh", "-c", script, sys.executable)
    assert done.returncode == 0, done.stderr
    *lines, status = done.stdout.splitlines()
    assert sorted(lines) == ["0: hi", "1: hi"]
    assert [helper["node"] for helper in json.loads(status)["helpers"]] in ([0, 1], ["node0", "node1"])


def test_a_killed_daemon_is_started_again(home: Path) -> None:
    script = """
        id=$("$0" -m leveret submit sh -c 'echo before; sleep 2; echo after; exit 3')
        "$0" -m leveret job wait-event -p output "$id" data >/dev/null
        kill -9 "$("$0" -m leveret status --json | sed 's/.*"pid": *\\([0-9]*\\),.*"helpers".*/\\1/')"
        "$0" -m leveret job attach "$id"
    """
    done = start("sh", "-c", script, sys.executable)
    assert (done.returncode, done.stdout) == (3, "before\nafter\n"), done.stderr
    assert left_behind(home) == []


def test_state_is_kept_on_request(home: Path) -> None:
    state = home / "state"
    script = '"$0" -m leveret run echo one && "$0" -m leveret job last'
    first = start("--statedir", str(state), "sh", "-c", script, sys.executable)
    jobid = first.stdout.split()[-1]
    again = start("--statedir", str(state), sys.executable, "-m", "leveret", "job", "attach", jobid)
    assert (again.returncode, again.stdout) == (0, "one\n"), again.stderr


def test_in_the_foreground_sigterm_ends_it(home: Path) -> None:
    process = subprocess.Popen(
        [*LEVERET, "start", "--statedir", str(home / "state")],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "instance at local:///" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    deadline = time.monotonic() + 30
    while left_behind(home):
        assert time.monotonic() < deadline, left_behind(home)
        time.sleep(0.05)


def test_a_daemon_that_cannot_start_is_an_error(home: Path) -> None:
    bad = home / "bad.toml"
    bad.write_text("[nosuchsection]\n")
    done = start("--config", str(bad), "true")
    assert done.returncode == 4
    assert done.stderr.startswith("leveret-start: ERROR: the daemon did not start: ")
    assert "bad.toml" in done.stderr
    assert left_behind(home) == []


def test_two_first_commands_share_one_instance(home: Path) -> None:
    """Nobody runs `leveret start`: the first command starts the user's instance, whoever is first."""
    runs = [
        subprocess.Popen([*LEVERET, "run", "echo", str(n)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    try:
        assert [run.communicate(timeout=120)[0] for run in runs] == ["0\n", "1\n", "2\n"]
        listed = subprocess.run([*LEVERET, "jobs", "-ano", "{name}"], capture_output=True, text=True, check=True).stdout
        assert listed == "echo\n" * 3
    finally:
        ended = subprocess.run([*LEVERET, "shutdown"], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert left_behind(home) == []


def test_the_demo_shows_every_part_and_cleans_up(home: Path) -> None:
    done = subprocess.run(
        [*LEVERET, "demo"], cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    order = [
        "stage-in begins",
        "stage-in is over",
        "the tasks start",
        "the tasks are over",
        "stage-out is over",
        "job is clean",
    ]
    places = [done.stdout.index(text) for text in order]
    assert places == sorted(places)
    assert "Verdict: COMPLETED, exit code 0" in done.stdout
    assert "results/half-1.txt" in done.stdout
    assert not list(home.glob("leveret-demo-*"))
    assert left_behind(home) == []


def test_the_demo_as_json_keeps_its_files(home: Path) -> None:
    done = subprocess.run(
        [*LEVERET, "demo", "--json", "--keep"],
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    try:
        answer = json.loads(done.stdout)
        assert answer["job"]["result"] == "COMPLETED"
        assert [event["name"] for event in answer["events"]][-1] == "clean"
        for item in answer["results"]:
            text = (Path(answer["directory"]) / item["path"]).read_text()
            numbers = [int(line) for line in text.split()]
            assert numbers == sorted(numbers)
            assert len(numbers) == item["lines"] == 140_000
    finally:
        subprocess.run([*LEVERET, "shutdown", "-q"], timeout=120, check=False)


def test_the_demo_on_rabbits(home: Path) -> None:
    """Two nodes are started for it; each has storage of its own, and the results are in place when it returns."""
    done = subprocess.run(
        [*LEVERET, "demo", "--rabbit"],
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for state in ("Proposal", "Setup", "DataIn", "PreRun", "PostRun", "DataOut", "Teardown"):
        (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"  {state} ")]
        assert row.endswith("s") and row.split()[1] != "-"
    assert "results/rabbit0-0/half-0.txt" in done.stdout and "results/rabbit0-1/half-1.txt" in done.stdout
    assert not list(home.glob("leveret-demo-*"))
