"""`leveret eventlog check`: messages with file and line, and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from leveret.core import jobrecord

DATA = Path(__file__).parent.parent / "data" / "flux"
LEVERET = str(Path(sys.executable).with_name("leveret"))


def check(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = subprocess.run([LEVERET, "eventlog", "check", *args], input=stdin, capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_files(tmp_path: Path) -> None:
    good, bad = str(DATA / "ok.jsonl"), str(DATA / "perilog-fail-prolog.jsonl")
    assert check(good) == (0, "", "")
    code, out, err = check(good, bad)
    assert (code, err) == (1, "")
    assert [line.split(": ", 1)[0] for line in out.splitlines()] == [f"{bad}:10", f"{bad}:11"]
    assert check("-q", bad) == (1, "", "")
    code, out, err = check(bad, str(tmp_path / "nosuch"))
    assert code == 2 and len(out.splitlines()) == 2 and "No such file" in err  # the others are judged all the same
    assert check(str(tmp_path))[0] == 2
    assert check()[0] == 2


def test_stdin_and_json() -> None:
    code, out, _ = check("--json", "-", stdin=(DATA / "ok.jsonl").read_bytes()[:-1])
    (log,) = json.loads(out)
    assert code == 1
    assert (log["file"], log["kind"], log["events"], log["state"], log["result"]) == (
        "stdin", "job", 10, "INACTIVE", "COMPLETED",
    )  # fmt: skip
    assert log["problems"] == [
        {"line": 10, "message": "torn: the last line does not end with a newline", "event": None}
    ]
    assert check("-") == (1, "stdin:1: the log is empty: RFC 18 says that it shall not be created empty\n", "")


def test_a_record(tmp_path: Path) -> None:
    events = [json.loads(line) for line in (DATA / "ok.jsonl").read_text().splitlines()]
    record = {"format": jobrecord.FORMAT, "version": 1, "eventlog": events[:-2] + events[-1:]}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(record))
    assert check(str(path)) == (1, f"{path}:eventlog:9: clean: the resources are not free\n", "")
    path.write_text(json.dumps(record)[:-9])
    code, _, err = check(str(path))
    assert code == 2 and "damaged job record" in err
    path.write_text(json.dumps(record | {"version": 9}))
    code, _, err = check(str(path))
    assert code == 2 and "version 9" in err
