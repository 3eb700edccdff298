"""`leveret job …`, `cancel`, `jobtap`, `status`: messages, exit codes and shapes of output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakedaemon import FakeDaemon, end, event, record

CONFLICT = (409, {"code": "conflict", "message": "job is inactive"})
MISSING = (404, {"code": "not-found", "message": "no such job"})
LOG = [
    event("eventlog", 1, "submit", 100.0, userid=0),
    event("eventlog", 2, "start", 100.25),
    event("eventlog", 3, "finish", 101.0, status=256),
    event("eventlog", 4, "release", 101.0, ranks="all", final=True),
    event("eventlog", 5, "clean", 101.5),
    end(),
]


def first(text: str) -> str:
    return text.splitlines()[0] if text else ""


@pytest.mark.parametrize(
    ("arguments", "code", "usage", "error"),
    [
        (["run", "--nosuchopt", "true"], 2, "run [OPTIONS...] COMMAND [ARGS...]", "run: error: unrecognized arguments: --nosuchopt"),
        (["jobs", "xyz"], 2, "jobs [OPTIONS] [JOBID...]", "jobs: error: argument JOBID...: invalid JobID value: 'xyz'"),
        (["job", "attach"], 2, "job attach [OPTIONS] id", "job attach: error: missing argument 'id'"),
        (["job", "attach", "1", "2"], 2, "job attach [OPTIONS] id", "job attach: error: unrecognized arguments: 2"),
        (["job", "kill", "-s"], 2, "job kill [OPTIONS] ids...", "job kill: error: option '-s' requires an argument"),
        (["job", "eventlog", "-Lfoo", "1"], 2, "job eventlog [OPTIONS] id", "job eventlog: error: -L/--color is always, never, auto, not `foo`"),
        (["job", "last", "foo"], 2, "job last [N|SLICE]", "job last: error: `foo` is no number and no slice"),
    ],
)  # fmt: skip
def test_usage_errors(leveret: Any, arguments: list[str], code: int, usage: str, error: str) -> None:
    outcome = leveret(*arguments)
    assert outcome.code == code
    assert outcome.err.splitlines()[:2] == [f"usage: leveret {usage}", f"leveret {error}"]


def test_near_misses_get_a_hint(leveret: Any) -> None:
    assert leveret("runn", "x").err == (
        "leveret: `runn' is not a leveret command.  See 'leveret --help'\nhint: did you mean `run`?\n"
    )
    assert "hint: did you mean `eventlog`?" in leveret("job", "evnetlog").err
    assert "hint: did you mean `--ntasks`" in leveret("run", "--ntask=3", "true").err
    assert "hint" not in leveret("run", "--nosuchopt", "true").err


def test_no_instance_is_exit_code_4(leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_URI", "local:///nonexistent/x.sock")
    for arguments in (["jobs"], ["run", "true"], ["job", "attach", "1"], ["job", "wait"], ["status"]):
        outcome = leveret(*arguments)
        assert outcome.code == 4
        assert "no daemon answers at `/nonexistent/x.sock`" in first(outcome.err)
        assert "hint: LEVERET_URI names an instance that is not running" in outcome.err


def test_other_protocols_are_exit_code_5(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs", (426, {"code": "version", "message": "speak 2"}))
    assert leveret("jobs").code == 5


def test_eventlog(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs/1/events", LOG)
    outcome = leveret("job", "eventlog", "1")
    assert outcome.out.splitlines()[:3] == [
        "100.000000 submit userid=0",
        "100.250000 start",
        "101.000000 finish status=256",
    ]
    assert daemon.requests[-1].query == "path=eventlog"
    assert first(leveret("job", "eventlog", "-F", "-T", "offset", "-p", "exec", "1").out) == "0.000000 submit userid=0"
    assert daemon.requests[-1].query == "path=exec&follow=1"
    assert json.loads(first(leveret("job", "eventlog", "-fjson", "1").out))["name"] == "submit"
    assert leveret("job", "eventlog", "-L", "1").out.startswith("\x1b[32m100.000000\x1b[0m")
    assert "\x1b" not in leveret("job", "eventlog", "-Lnever", "1").out
    assert "\x1b" not in leveret("job", "eventlog", "1").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eventlog", "-f", "foo", "1"], "invalid format type 'foo'"),
        (["eventlog", "-T", "foo", "1"], "invalid time-format type 'foo'"),
        (["eventlog", "-H", "-T", "foo", "1"], "invalid time-format type 'foo'"),
        (["eventlog", "xyz"], 'error parsing jobid: "xyz"'),
        (["eventlog", "1234"], "job 1234 not found"),
        (["wait-event", "1234", "start"], "job 1234 not found"),
        (["wait-event", "-m", "foo", "1", "finish"], "must specify a context test as key=value"),
        (["wait-event", "-c", "0", "1", "finish"], "count must be > 0"),
        (["wait-event", "-t", "foo", "1", "finish"], "wait-event: Invalid argument for option 'timeout': 'foo'"),
        (["wait-event", "-p", "nosuch", "2", "x"], "eventlog path nosuch not found"),
        (["kill", "-s", "NOSUCH", "1"], "kill: Invalid signal NOSUCH"),
        (["urgency", "1", "foo"], 'error parsing urgency: "foo"'),
        (["id", "--to=foo", "1"], "Unknown to=foo"),
        (["id", "notanid"], "notanid: malformed input"),
        (["id", "--", "-1"], "-1: malformed input"),
        (["submit", "/nosuch.json"], "/nosuch.json: No such file or directory"),
    ],
)
def test_job_messages(daemon: FakeDaemon, leveret: Any, arguments: list[str], message: str) -> None:
    daemon.answer("GET", "/v1/jobs/1234/events", MISSING)
    daemon.answer("GET", "/v1/jobs/2/events", (404, {"code": "not-found", "message": "eventlog path nosuch not found"}))
    outcome = leveret("job", *arguments)
    assert (outcome.code, outcome.out, first(outcome.err)) == (1, "", f"leveret-job: {message}")


def test_wait_event(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs/1/events", LOG)
    assert leveret("job", "wait-event", "1", "finish").out == "101.000000 finish status=256\n"
    assert daemon.requests[-1].query == "path=eventlog&follow=1"
    assert leveret("job", "wait-event", "-T", "offset", "1", "finish").out == "1.000000 finish status=256\n"
    assert leveret("job", "wait-event", "-q", "1", "finish").out == ""
    assert leveret("job", "wait-event", "-v", "1", "start").out == "100.000000 submit userid=0\n100.250000 start\n"
    assert leveret("job", "wait-event", "-m", "final=true", "1", "release").code == 0
    assert leveret("job", "wait-event", "-m", "ranks=all", "1", "release").code == 0
    for options in (["-m", "status=0"], ["-c", "2"]):
        outcome = leveret("job", "wait-event", *options, "1", "finish")
        assert (outcome.code, outcome.err) == (1, "leveret-job: event 'finish' never received\n")


def test_wait_event_times_out(daemon: FakeDaemon, leveret: Any) -> None:
    import threading

    hold = threading.Event()
    daemon.answer("GET", "/v1/jobs/1/events", lambda request: iter([LOG[0], hold.wait]))
    outcome = leveret("job", "wait-event", "-v", "-t", "0.1", "1", "clean")
    hold.set()
    assert (outcome.code, outcome.out) == (1, "100.000000 submit userid=0\n")
    assert outcome.err == "leveret-job: wait-event timeout on event 'clean'\n"


def failed(jobid: int, **fields: Any) -> dict[str, Any]:
    return record(jobid, **{"result": "FAILED", "success": False, "waitstatus": 768, "exit_code": 3, **fields})


CANCELED = {
    "result": "CANCELED", "waitstatus": None, "exit_code": 1, "exception_occurred": True, "exception_type": "cancel",
    "exception_severity": 0, "exception_note": "", "cause": {"type": "cancel", "severity": 0, "note": ""},
}  # fmt: skip


def test_status(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs/1", (200, record(1)))
    daemon.answer("GET", "/v1/jobs/2", (200, record(2, done=False, state="RUN", result=None)))
    daemon.answer("GET", "/v1/jobs/3", (200, failed(3, **CANCELED)))
    daemon.answer("GET", "/v1/jobs/1234", MISSING)
    daemon.answer("POST", "/v1/jobs/wait", [{"id": 2, "event": "clean", "job": failed(2)}])
    assert leveret("job", "status", "1").code == 0
    outcome = leveret("job", "status", "-v", "1", "2")
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.splitlines() == [
        "leveret-job: fetching status for 2 jobs",
        "leveret-job: all done.",
        "leveret-job: ƒ3: exited with exit code 3",
    ]
    outcome = leveret("job", "status", "-v", "3")
    assert (outcome.code, outcome.err) == (1, "leveret-job: ƒ4: exception type=cancel\n")
    assert leveret("job", "status", "-e", "42", "3").code == 42
    assert leveret("job", "status", "-e", "42", "2").code == 3
    assert json.loads(leveret("job", "status", "-j", "2").out) == {
        "id": 2, "exception_occurred": False, "t_submit": 100.0, "t_run": 101.0, "t_cleanup": 103.5, "waitstatus": 768,
        "result": 2,
    }  # fmt: skip
    outcome = leveret("job", "status", "1234")
    assert (outcome.code, outcome.err) == (1, "leveret-job: 1234: No such job\n")


@pytest.mark.parametrize(
    ("job", "code", "error"),
    [
        (record(1), 0, ""),
        (failed(1), 1, "leveret-job: task(s) exited with exit code 3\n"),
        (failed(1, waitstatus=35072), 1, "leveret-job: task(s) Killed\n"),
        (failed(1, **CANCELED), 1, "leveret-job: Fatal exception type=cancel \n"),
        (
            failed(1, waitstatus=0, exit_code=1, cause={"type": "stage-out", "severity": 0, "note": "no space"}),
            1,
            "leveret-job: Fatal exception type=stage-out no space\n",
        ),
    ],
)
def test_wait_for_a_job(daemon: FakeDaemon, leveret: Any, job: Any, code: int, error: str) -> None:
    daemon.answer("POST", "/v1/wait", (200, job))
    outcome = leveret("job", "wait", "1")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", error)
    assert daemon.requests[0].json() == {"id": 1}


def test_wait_without_an_id(daemon: FakeDaemon, leveret: Any) -> None:
    nothing = (404, {"code": "nothing", "message": "there are no more waitable jobs"})
    refused = (409, {"code": "not-waitable", "message": "invalid job id, or job may be inactive and not waitable"})
    daemon.answer("POST", "/v1/wait", (200, record(1)), nothing, refused, (200, record(2)), (200, failed(3)), nothing)
    assert leveret("job", "wait").out == "ƒ2\n"
    outcome = leveret("job", "wait")
    assert (outcome.code, outcome.err) == (3, "leveret-job: there are no more waitable jobs\n")
    assert leveret("job", "wait", "1").code == 2
    outcome = leveret("job", "wait", "--all", "-v")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "ƒ3: job completed successfully\nƒ4: task(s) exited with exit code 3\n"


def test_info(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs/1", (200, record(1)))
    daemon.answer("GET", "/v1/jobs/1234", MISSING)
    daemon.answer("GET", "/v1/jobs/1/keys/R", (200, b'{"version":1}'))
    daemon.answer("GET", "/v1/jobs/1/keys/eventlog", (200, b"a\nb\n"))
    daemon.answer("GET", "/v1/jobs/1/keys/nosuch", (404, {"code": "not-found", "message": "x"}))
    daemon.answer("GET", "/v1/jobs/1234/keys/R", MISSING)
    assert leveret("job", "info", "1", "R").out == '{"version":1}\n'
    assert leveret("job", "info", "--original", "1", "eventlog").out == "a\nb\n"
    assert daemon.requests[-1].query == "original=1"
    outcome = leveret("job", "info", "1", "nosuch")
    assert (outcome.code, outcome.err) == (1, "leveret-job: nosuch: key not found\n")
    assert leveret("job", "info", "1234", "R").err == "leveret-job: invalid job id\n"
    assert "guest.output         - job output log" in leveret("job", "info", "1").err


def test_actions_on_several_jobs(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("POST", "/v1/jobs/1/raise", (200, {}))
    daemon.answer("POST", "/v1/jobs/2/raise", CONFLICT)
    daemon.answer("POST", "/v1/jobs/1234/raise", MISSING)
    outcome = leveret("job", "raise", "-s", "1", "-t", "mine", "1", "ƒ3", "1234", "boo", "boo")
    assert outcome.code == 1
    assert outcome.err == "leveret-job: raise ƒ3: job is inactive\nleveret-job: raise 1234: unknown job id\n"
    assert daemon.requests[0].json() == {"type": "mine", "severity": 1, "note": "boo boo"}
    daemon.answer("POST", "/v1/jobs/1/kill", (200, {}))
    for name, number in (("TERM", 15), ("SIGUSR1", 10), ("9", 9), ("kill", 9)):
        assert leveret("job", "kill", "-s", name, "1").code == 0
        assert daemon.requests[-1].json() == {"signal": number}
    daemon.answer("POST", "/v1/jobs/1/urgency", (200, {"old": 0}))
    assert leveret("job", "urgency", "-v", "1", "expedite").err == "old urgency: job held\n"
    assert daemon.requests[-1].json() == {"urgency": 31}


def test_last_is_by_submission(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": [record(5), record(9), record(7)]}))
    assert leveret("job", "last").out == "ƒA\n"
    assert leveret("job", "last", "2").out == "ƒA\nƒ8\n"
    assert leveret("job", "last", "[1:]").out == "ƒ8\nƒ6\n"
    assert leveret("job", "last", "[::-1]").out == "ƒ6\nƒ8\nƒA\n"
    assert leveret("job", "last", "[-1:]").out == "ƒ6\n"
    assert leveret("job", "last", "0").err == "leveret-job: job history is empty\n"


def test_ids_in_every_form(leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = {
        "dec": "123456789",
        "hex": "0x75bcd15",
        "kvs": "job.0000.0000.075b.cd15",
        "f58": "ƒBukQL",
        "f58plain": "fBukQL",
    }
    for form, text in forms.items():
        assert leveret("job", "id", f"--to={form}", "123456789").out == text + "\n"
        assert leveret("job", "id", text).out == "123456789\n"
    monkeypatch.setenv("LC_ALL", "C")
    assert leveret("job", "id", "--to=f58", "123456789").out == "fBukQL\n"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("FLUX_F58_FORCE_ASCII", "1")
    assert leveret("job", "id", "--to=f58", "123456789").out == "fBukQL\n"


def test_cancel(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("POST", "/v1/jobs/1/cancel", (200, {}))
    daemon.answer("POST", "/v1/jobs/2/cancel", CONFLICT)
    daemon.answer("POST", "/v1/jobs/1234/cancel", MISSING)
    outcome = leveret("cancel", "-m", "why", "1", "2", "1234")
    assert outcome.code == 1
    assert outcome.err == "leveret-cancel: ERROR: ƒ3: job is inactive\nleveret-cancel: ERROR: ƒNH: unknown job id\n"
    assert daemon.requests[0].json() == {"note": "why"}
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": []}))
    assert leveret("cancel", "--all").err == "leveret-cancel: Matched 0 jobs\n"
    assert leveret("cancel", "--all", "--quiet").err == ""
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": [record(1), record(2)]}))
    assert leveret("cancel", "--all", "-n").err == "leveret-cancel: Would cancel 2 jobs\n"
    assert (
        leveret("cancel", "--all", "--states=pending").err.splitlines()[-1]
        == "leveret-cancel: Canceled 1 job (1 error)"
    )
    assert "states=DEPEND,PRIORITY,SCHED&" in daemon.asked("GET", "/v1/jobs")[-1].query
    for arguments, message in (
        ([], "No target jobs were provided"),
        (["--all", "--states=foo"], "Invalid state foo specified"),
        (["--user=nosuchuser"], "Invalid user nosuchuser specified"),
    ):
        outcome = leveret("cancel", *arguments)
        assert (outcome.code, first(outcome.err)) == (1, f"leveret-cancel: ERROR: {message}")
    assert leveret("cancel", "not-a-job").code == 2


def test_jobtap(daemon: FakeDaemon, leveret: Any, tmp_path: Any) -> None:
    plugins = [
        {"name": "staging", "builtin": True},
        {"name": "tape", "builtin": False},
        {"name": "tap", "builtin": False},
    ]
    daemon.answer("GET", "/v1/jobtap", (200, {"plugins": plugins}))
    daemon.answer("POST", "/v1/jobtap", (200, {"name": "tape"}))
    for name in ("tape", "tap", "staging"):
        daemon.answer("DELETE", f"/v1/jobtap/{name}", (200, {}))
    assert leveret("jobtap", "list").out == "tape\ntap\n"
    assert leveret("jobtap", "list", "-a").out == "staging\ntape\ntap\n"
    (tmp_path / "tape.py").write_text("")
    assert leveret("jobtap", "load", f"{tmp_path}/tape.py", "rate=10", "name=x").code == 0
    assert daemon.requests[-1].json() == {"load": f"{tmp_path}/tape.py", "conf": {"rate": 10, "name": "x"}}
    outcome = leveret("jobtap", "load", "./nosuch.py")
    assert (outcome.code, outcome.err) == (1, "leveret-jobtap: ERROR: ./nosuch.py not found\n")
    daemon.requests.clear()
    assert leveret("jobtap", "remove", "all").code == 0
    assert [request.path for request in daemon.requests if request.method == "DELETE"] == [
        "/v1/jobtap/tape",
        "/v1/jobtap/tap",
    ]
    assert leveret("jobtap", "remove", "nosuch").err == "leveret-jobtap: ERROR: nosuch not found\n"


def test_status_of_the_instance(daemon: FakeDaemon, leveret: Any) -> None:
    answer = {
        "pid": 1,
        "helpers": [{"pid": 2, "node": 0}],
        "uri": daemon.uri,
        "state_dir": "/s",
        "version": "9",
        "protocol": 1,
    }
    daemon.answer("GET", "/v1/status", (200, answer))
    assert json.loads(leveret("status", "--json").out) == answer
    shown = leveret("status").out
    assert "pid 1" in shown and "0 (pid 2)" in shown
    assert leveret("status", "-q").out == ""
    assert leveret("version", "--json").out.endswith('"daemon":"9"}\n')


def test_a_bug_is_one_line_and_exit_code_70(leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from leveret.cli import job_ask

    def boom(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(job_ask, "slice_of", boom)
    outcome = leveret("job", "last")
    assert outcome.code == 70
    assert first(outcome.err).startswith("leveret-job: KeyError: 'x' (test_job_verbs.py:")


def test_every_option_and_verb_has_a_help_text(leveret: Any) -> None:
    """And every help can be printed."""
    import click

    from leveret.cli.main import cli

    def walk(command: click.Command, context: click.Context) -> int:
        count = 1
        assert command.help, context.command_path
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"{context.command_path} {param.opts}"
        assert command.get_help(context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                sub = command.get_command(context, name)
                assert sub is not None
                count += walk(sub, click.Context(sub, info_name=name, parent=context))
        return count

    assert walk(cli, click.Context(cli, info_name="leveret")) > 25


def test_completion_knows_verbs_and_job_ids(daemon: FakeDaemon, leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import subprocess
    import sys

    assert "_LEVERET_COMPLETE=bash_complete" in leveret("completion", "bash").out
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": [record(123456789), record(1)]}))

    def complete(words: str) -> list[str]:
        environ = {
            **os.environ,
            "_LEVERET_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        command = [sys.executable, "-m", "leveret"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout.split()

    assert "plain,attach" in complete("leveret job att")
    assert complete("leveret job attach ƒBu") == ["plain,ƒBukQL"]
    assert complete("leveret cancel fBu") == ["plain,ƒBukQL"]


def test_a_plugin_that_is_nowhere(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("POST", "/v1/jobtap", (404, {"code": "not-found", "message": "no plugin named `x`", "hint": "h"}))
    outcome = leveret("jobtap", "load", "nosuch.so")
    assert (outcome.code, outcome.err) == (1, "leveret-jobtap: ERROR: nosuch.so not found\nhint: h\n")
