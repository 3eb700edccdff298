"""Format strings, fields and the formats of time."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from fakedaemon import FakeDaemon, record

from leveret.cli import fields
from leveret.cli.eventfmt import EventFormat, matches
from leveret.cli.format import Format
from leveret.cli.printer import exit_message
from leveret.errors import InvalidError


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def lines(text: str, *jobs: dict[str, Any], header: bool = False) -> list[str]:
    return Format(text, fields.heading).lines(jobs, fields.value_of, header)


J = record(123456789, name="j", duration=60.0, expiration=1.7e9, t_submit=1.7e9, t_run=1.7e9, t_cleanup=1.7e9 + 0.05)
UNBORN = record(
    5, state="SCHED", result=None, done=False, t_run=None, t_cleanup=None, ranks=None, nodelist=None, nnodes=None
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{duration} {duration!F} {duration!H}", "60.0 1m 0:01:00"),
        ("{expiration!d:%Y} {t_submit!d:%b%d %R::>14}|", "2023    Nov14 22:13|"),
        ("{t_submit!D}", "2023-11-14T22:13:20"),
        ("{runtime!F:.1}", "0"),
        ("{name:>5} {name:<5}| {name:^5}| {name:h} {queue:h} {status:.3}", "    j j    |   j  | j - COM"),
        ("?:{queue:>5} ?:{name:>3}", "   j"),
        ("{id:>12} {name:<5+}|", "   123456789 j    |"),
        ("{cwd:<2+}|{cwd:.1}|{cwd!h}", "/w|/|/w"),
        ("{{{id}}}", "{123456789}"),
        ("{id.hex} {id.kvs} {id.dec} {id.f58}", "0x75bcd15 job.0000.0000.075b.cd15 123456789 ƒBukQL"),
        ("{runtime:.2f}{runtime:>8.1f}", "0.05     0.0"),
        ("{success} {exception.occurred} {exception.type}|", "True False |"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert lines(text, J) == [expected]


def test_what_a_job_does_not_have_is_empty_as_in_flux() -> None:
    text = "{t_run}|{t_run!d}|{runtime}|{ranks}|{t_cleanup!D:>5h}|"
    assert lines(text, UNBORN) == ["0.0||0.0||    -|"]
    assert lines("{annotations} {sched.t_estimate} {contextual_time} {contextual_info} {inactive_reason}", UNBORN) == [
        "  0.0  "
    ]


def test_long_values_are_cut_and_say_so() -> None:
    job = record(1, name="a-very-long-name")
    assert lines("{name:<10.10+}|{name:<10.10}|{name:.4}", job) == ["a-very-lo+|a-very-lon|a-ve"]


def test_the_default_format_has_its_columns() -> None:
    text = fields.FORMATS["default"][0]
    head, line = lines(text, record(1, username="someone-long"), header=True)
    assert head == "       JOBID USER     NAME       ST NTASKS NNODES     TIME INFO"
    assert line == "          ƒ2 someone- sh         CD      1      1     2.5s host"
    head, line = lines(text, record(1, queue="batch"), header=True)
    assert head == "       JOBID QUEUE    USER     NAME       ST NTASKS NNODES     TIME INFO"


def test_headers_of_the_named_formats() -> None:
    wanted = {
        "long": "       JOBID USER     NAME          STATUS NTASKS NNODES     T_SUBMIT  T_REMAINING     TIME INFO",
        "deps": "       JOBID NAME       URG PRI          STATE    DEPENDENCIES",
        "cute": "       JOBID USER     NAME       STATUS NTASKS NNODES     TIME INFO",
        "endreason": "       JOBID USER     NAME       ST   T_INACTIVE INACTIVE-REASON",
    }
    for name, head in wanted.items():
        assert lines(fields.FORMATS[name][0], J, header=True)[0] == head


def test_a_field_collapses_only_if_it_is_empty_for_every_row() -> None:
    a, b = record(1, queue=""), record(2, queue="batch")
    assert lines("{id} ?:{queue:<6}|", a) == ["1|"]
    assert lines("{id} ?:{queue:<6}|", a, b) == ["1       |", "2 batch |"]


def test_a_field_widens_to_its_longest_value() -> None:
    a, b = record(1, name="x"), record(2, name="longest")
    assert lines("+:{name:<2.2}|", a, b, header=True) == ["NAME   |", "x      |", "longest|"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{id} {nosuch}", "Error in user format: Unknown format field: nosuch"),
        ("{t_depend>0} x", "Error in user format: Unknown format field: t_depend>0"),
        ("{id!Z}", "Error in user format: Invalid format specifier: id!Z"),
        ("{id:<<<}", "Error in user format: Invalid format specifier: id:<<<"),
    ],
)
def test_wrong_formats(text: str, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        Format(text, fields.heading)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (record(), "Exit 0"),
        (record(waitstatus=1280, result="FAILED"), "Exit 5"),
        (record(waitstatus=35072, result="FAILED"), "Killed"),
        (record(waitstatus=36352, result="TIMEOUT", cause={"type": "timeout", "severity": 0, "note": ""}), "Timeout"),
        (record(waitstatus=None, result="CANCELED", cause={"type": "cancel", "severity": 0, "note": ""}), "Canceled"),
        (record(result="CANCELED", cause={"type": "cancel", "severity": 0, "note": "why"}), "Canceled: why"),
        (
            record(waitstatus=None, result="FAILED", cause={"type": "alloc", "severity": 0, "note": "too big"}),
            "Exception: type=alloc note=too big",
        ),
        (
            record(waitstatus=0, result="FAILED", cause={"type": "stage-out", "severity": 0, "note": "no space"}),
            "Exception: type=stage-out note=no space",
        ),
        (UNBORN, ""),
    ],
)
def test_why_a_job_ended(job: dict[str, Any], reason: str) -> None:
    assert fields.inactive_reason(job) == reason


@pytest.mark.parametrize(
    ("job", "info"),
    [
        (record(state="DEPEND", dependencies=["after-success=ƒ2"]), "depends:after-success=ƒ2"),
        (record(state="SCHED", urgency=0), "held"),
        (record(state="SCHED", nodelist=None), ""),
        (record(state="RUN"), "host"),
        (record(state="CLEANUP", waiting_for="stage-out"), "finishing:stage-out"),
    ],
)
def test_contextual_info(job: dict[str, Any], info: str) -> None:
    assert fields.contextual_info(job) == info


def test_begin_times_are_for_people() -> None:
    soon = time.time() + 60
    assert fields.dependency_text(f"begin-time={soon}") == "begin@" + time.strftime("%H:%M:%S", time.localtime(soon))
    assert fields.dependency_text("begin-time=1000.000") == "begin@Jan01-00:16"
    assert fields.dependency_text("singleton") == "singleton"


EVENT = {"timestamp": 1700000000.25, "name": "submit", "context": {"userid": 0, "note": 'a "b"', "deep": {"x": [1]}}}


@pytest.mark.parametrize(
    ("form", "times", "expected"),
    [
        ("text", "raw", '1700000000.250000 submit userid=0 note="a \\"b\\"" deep={"x":[1]}'),
        ("text", "offset", '0.000000 submit userid=0 note="a \\"b\\"" deep={"x":[1]}'),
        ("text", "iso", '2023-11-14T22:13:20.250000Z submit userid=0 note="a \\"b\\"" deep={"x":[1]}'),
        ("text", "human", '[Nov14 22:13] submit userid=0 note="a \\"b\\"" deep={"x":[1]}'),
        (
            "json",
            "raw",
            '{"timestamp":1700000000.25,"name":"submit","context":{"userid":0,"note":"a \\"b\\"","deep":{"x":[1]}}}',
        ),
    ],
)
def test_events_as_text_and_json(form: str, times: str, expected: str) -> None:
    assert EventFormat(form, times).line(EVENT) == expected


def test_human_times_are_offsets_within_a_minute() -> None:
    events = EventFormat("text", "human")
    stamps = [1700000000.25, 1700000001.5, 1700000039.0, 1700000040.0, 1700000041.0]
    times = [events.line({"timestamp": t, "name": "x"})[:-2] for t in stamps]
    assert times == ["[Nov14 22:13]", "[  +1.250000]", "[ +38.750000]", "[Nov14 22:14]", "[  +1.000000]"]


def test_iso_times_round_into_the_next_second() -> None:
    assert (
        EventFormat("text", "iso").line({"timestamp": 1699999999.9999999, "name": "x"})
        == "2023-11-14T22:13:20.000000Z x"
    )


def test_colours_are_per_part() -> None:
    line = EventFormat("text", "offset", colour=True).line(
        {"timestamp": 1.0, "name": "n", "context": {"k": 1, "s": "t"}}
    )
    assert line == (
        '\x1b[32m0.000000\x1b[0m \x1b[33mn\x1b[0m \x1b[34mk\x1b[0m=\x1b[37m1\x1b[0m \x1b[34ms\x1b[0m=\x1b[35m"t"\x1b[0m'
    )


def test_context_matches_compare_json_values() -> None:
    event = {"timestamp": 1, "name": "release", "context": {"ranks": "all", "final": True, "n": 1}}
    assert matches(event, "release", None, None)
    assert matches(event, "release", "ranks", "all")
    assert matches(event, "release", "final", True)
    assert not matches(event, "release", "final", 1)
    assert not matches(event, "release", "none", None)
    assert not matches(event, "free", None, None)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (0, ""),
        (None, ""),
        (768, "task(s) exited with exit code 3"),
        (36608, "task(s) Terminated"),
        (35584, "task(s) Segmentation fault"),
        (51200, "task(s) Unknown signal 72"),
        (15, "job shell Terminated"),
    ],
)
def test_exit_messages(status: int | None, message: str) -> None:
    assert exit_message(status) == message


def test_jobs_in_every_shape(daemon: FakeDaemon, leveret: Any) -> None:
    records = [record(2, name="b"), record(1, name="a", result="FAILED", waitstatus=256, exit_code=1)]
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": records}))
    assert leveret("jobs", "-ano", "{id} {name} {status}").out == "2 b COMPLETED\n1 a FAILED\n"
    assert f"user={os.getuid()}" in daemon.requests[-1].query
    assert leveret("jobs", "--ids").out == "ƒ3\nƒ2\n"
    assert '"states=' not in daemon.requests[-1].query
    assert "states=DEPEND,PRIORITY,SCHED,RUN,CLEANUP" in daemon.requests[-1].query
    assert leveret("jobs", "-A", "-f", "failed").out.count("\n") == 3
    assert daemon.requests[-1].query == "count=1001&results=FAILED"
    assert leveret("jobs", "-n", "--sort=name", "-o", "{name}").out == "a\nb\n"
    assert leveret("jobs", "-n", "--sort=-id", "-o", "{id}").out == "2\n1\n"
    cut = leveret("jobs", "-c1", "-no", "{name}")
    assert (cut.out, cut.err.splitlines()[0]) == ("b\n", "warning: output truncated at 1 jobs.")
    assert leveret("jobs", "-i", "1-3", "-no", "{id}").out == ""
    assert leveret("jobs", "-i", "host", "-no", "{id}").out == "2\n1\n"
    stats = leveret("jobs", "--stats-only")
    assert (stats.code, stats.out) == (1, "0 running, 1 completed, 1 failed, 0 pending, 0 inactive purged\n")
    assert leveret("jobs", "-w9").out.splitlines()[0] == "       JO"


def test_jobs_by_id(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": [record(7)]}))
    both = leveret("jobs", "-no", "{id}", "7", "1234")
    assert (both.code, both.out, both.err) == (0, "7\n", "JobID 1234 unknown\n")
    none = leveret("jobs", "1234")
    assert (none.code, none.out, none.err) == (1, "", "JobID 1234 unknown\n")
    warned = leveret("jobs", "-a", "-no", "{id}", "7")
    assert warned.err == "leveret-jobs: WARNING: Filtering options ignored with jobid list\n"
    import json

    shown = json.loads(leveret("jobs", "--json", "7").out)
    assert shown["id"] == 7
    assert shown["exception"] == {"occurred": False}
    assert shown["runtime"] == 2.5
    assert "cause" not in shown
