"""`check` judges logs of real Flux and of ours; what is damaged is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.core import jobrecord
from leveret.core.logcheck import check
from leveret.errors import FormatError

DATA = Path(__file__).parent.parent / "data" / "flux"
LOGS = sorted(path for path in DATA.glob("*.jsonl") if path.name != "behaviours.jsonl")
ONE_BREAKS_THE_RULES = "perilog-fail-prolog.jsonl"


def problems(text: bytes) -> list[tuple[int, str]]:
    return [(problem.line, problem.message) for problem in check(text).problems]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_logs_of_real_flux(path: Path) -> None:
    report = check(path.read_bytes())
    assert report.kind == ("exec" if path.name.endswith(".exec.jsonl") else "job")
    if path.name == ONE_BREAKS_THE_RULES:
        assert [(problem.line, problem.event) for problem in report.problems] == [(10, "free"), (11, "clean")]
        assert all("held by epilog/job-manager.epilog" in problem.message for problem in report.problems)
    else:
        assert report.problems == []
    assert report.kind == "exec" or report.state == "INACTIVE"


def test_what_is_damaged_is_named_by_its_line() -> None:
    text = (DATA / "ok.jsonl").read_bytes()
    lines = text.splitlines(keepends=True)
    assert problems(text[:-1]) == [(10, "torn: the last line does not end with a newline")]
    torn = problems(text[:-20])
    assert [line for line, _ in torn] == [10, 10]
    assert "torn" in torn[0][1] and "not an RFC 18 event" in torn[1][1]
    assert problems(b"") == problems(b"\n") == [(1, "the log is empty: RFC 18 says that it shall not be created empty")]
    assert [line for line, _ in problems(b"".join([*lines, b"garbage\n"]))] == [11]
    assert problems(b"".join([*lines[:3], b"\n", *lines[3:]])) == [(4, "an empty line")]
    assert [line for line, _ in problems(b"\xff\xfe\n" + text)] == [1]
    assert problems(b"".join(lines[1:]))[0] == (1, "validate: the first event must be submit")
    assert problems(text.replace(b'"timestamp":1', b'"timestamp":-1', 1))[0][0] == 1


def test_unknown_events_are_allowed_and_what_follows_clean_is_not() -> None:
    text = (DATA / "ok.jsonl").read_bytes()
    lines = text.splitlines(keepends=True)
    when = lines[3].split(b",")[0]
    assert problems(b"".join([*lines[:4], when + b',"name":"site.note","context":{"a":1}}\n', *lines[4:]])) == []
    last = lines[-1].split(b",")[0]
    assert problems(text + last + b',"name":"memo"}\n') == [(11, "memo: the job is inactive")]


def test_other_logs() -> None:
    header = b'{"timestamp":1.0,"name":"header","context":{"version":1}}\n'
    data = b'{"timestamp":2.0,"name":"data","context":{"stream":"stdout","rank":"0","data":"x"}}\n'
    assert check(header + data).kind == "output"
    assert problems(header + data) == []
    assert [line for line, _ in problems(header + data + header)] == [3]
    assert [line for line, _ in problems(header + data.replace(b'"stream":"stdout",', b""))] == [2]
    restart = b'{"timestamp":1.0,"name":"restart","context":{"ranks":"0-1","online":"","nodelist":"n[0-1]"}}\n'
    online = b'{"timestamp":2.0,"name":"online","context":{"idset":"0-"}}\n'
    assert check(restart).kind == "resource"
    assert [line for line, _ in problems(restart + online)] == [2]


def test_records_of_exported_jobs() -> None:
    import json

    events = [json.loads(line) for line in (DATA / "ok.jsonl").read_text().splitlines()]
    record = {"format": jobrecord.FORMAT, "version": 1, "eventlog": events, "guest": {"exec.eventlog": []}}
    assert {name: report.problems for name, report in jobrecord.check_record(record).items()} == {"eventlog": []}
    record["quarantined"] = "because"
    assert "because" in jobrecord.check_record(record)["eventlog"].problems[0].message
    record["eventlog"] = [*events[:3], '{"timestamp":15', *events[4:]]
    assert jobrecord.check_record(record)["eventlog"].problems[0].line == 4
    for wrong in ({"version": 2}, {"version": None}, {"eventlog": {}}, {"guest": []}, {"guest": {"output": None}}):
        with pytest.raises(FormatError):
            jobrecord.check_record(record | wrong)
