"""Exit codes and messages as the goldens have them, with `leveret` for `flux`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from harness import Instance, f58, words

HOST = os.uname().nodename


def end(instance: Instance) -> tuple[str, list[str]]:
    """The last job's id and its events."""
    jobid = instance.leveret("job", "last", check=0).out.strip()
    return jobid, instance.names(jobid)


@pytest.mark.parametrize(
    ("options", "script", "code", "message", "status"),
    [
        ([], "exit 3", 3, "task(s) exited with exit code 3", 768),
        (["-n2"], "exit $((FLUX_TASK_RANK*4+1))", 5, "task(s) exited with exit code 5", 1280),
        ([], "kill -TERM $$", 143, "task(s) Terminated", 36608),
        ([], "kill -KILL $$", 137, "task(s) Killed", 35072),
        ([], "kill -SEGV $$", 139, "task(s) Segmentation fault", 35584),
        ([], "kill -INT $$", 130, "task(s) Interrupt", 33280),
        (
            ["-n2"],
            "if test $FLUX_TASK_RANK = 0; then kill -TERM $$; else exit 200; fi",
            200,
            "task(s) Unknown signal 72",
            51200,
        ),
    ],
    ids=["exit3", "multi-exit", "sigterm", "sigkill", "sigsegv", "sigint", "one-signal-one-exit"],
)
def test_the_tasks_code_is_the_commands(
    shared: Instance, options: list[str], script: str, code: int, message: str, status: int
) -> None:
    done = shared.run(*options, "sh", "-c", script)
    assert (done.code, done.out, done.err) == (code, "", f"leveret-job: {message}\n")
    jobid, names = end(shared)
    assert shared.contexts(jobid, "finish") == [{"status": status}]
    assert "exception" not in names
    again = shared.attach(jobid)
    assert (again.code, again.err) == (code, done.err)
    assert shared.leveret("job", "status", jobid).code == code
    waited = shared.leveret("job", "wait", jobid)
    assert (waited.code, waited.err) == (1, f"leveret-job: {message}\n")


@pytest.mark.parametrize(
    ("command", "reason", "code"),
    [
        ("nosuchcommand", "No such file or directory", 127),
        ("./nosuch", "No such file or directory", 127),
        ("./f", "Permission denied", 126),
        ("./d", "Permission denied", 126),
    ],
    ids=["notfound", "notfound-path", "notexec", "isdir"],
)
def test_a_command_that_cannot_be_started(
    shared: Instance, tmp_path: Path, command: str, reason: str, code: int
) -> None:
    (tmp_path / "f").write_text("#!/bin/sh\n")
    (tmp_path / "f").chmod(0o644)
    (tmp_path / "d").mkdir()
    done = shared.run(command, cwd=tmp_path)
    jobid, names = end(shared)
    note = f"task 0 (host {HOST}): start failed: {command}: {reason}"
    told = [re.sub(r"^[\d.]+s: ", "N: ", text) for text in done.err.splitlines()]
    assert told == [
        f"N: leveret-shell[0]: FATAL: {note}",
        f"N: job.exception {jobid} type=exec severity=0 {note}",
        f"leveret-job: task(s) exited with exit code {code}",
    ]
    assert (done.code, done.out) == (code, "")
    assert names == words("submit validate depend priority alloc start exception finish release free clean")
    (context,) = shared.contexts(jobid, "exception")
    assert (context["type"], context["severity"], context["note"]) == ("exec", 0, note)
    assert [event["name"] for event in shared.eventlog(jobid, "exec")] == words(
        "init starting shell.init shell-exit complete done"
    )
    assert shared.record(jobid)["result"] == "FAILED"
    assert shared.attach(jobid).err.splitlines()[-1] == told[-1]


def test_no_command_and_an_unknown_option_are_usage_errors(shared: Instance) -> None:
    done = shared.run()
    assert (done.code, done.err.splitlines()[-1]) == (1, "leveret-run: ERROR: job command and arguments are missing")
    done = shared.run("--nosuchopt", "true")
    assert done.code == 2
    assert "leveret run: error: unrecognized arguments: --nosuchopt" in done.err


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (["-N2"], "unsatisfiable request: need 2 exclusive node(s), only 1 eligible"),
        (["-g1"], "unsatisfiable request: need 1 slot(s) with 1 GPU(s) each, only 0 available (total GPUs: 0)"),
        (
            ["-c1000000"],
            (
                "unsatisfiable request: need 1 slot(s) of 1000000 core(s), only 0 such slot(s) available "
                "(total cores: {cores})"
            ),
        ),
    ],
    ids=["nodes", "gpus", "cores"],
)
def test_what_can_never_run_is_accepted_and_fails(shared: Instance, options: list[str], note: str) -> None:
    done = shared.run(*options, "true")
    jobid, names = end(shared)
    wanted = note.format(cores=shared.cores)
    assert done.code == 1
    assert re.fullmatch(rf"[\d.]+s: job\.exception {jobid} type=alloc severity=0 {re.escape(wanted)}\n", done.err), (
        done.err
    )
    assert names == words("submit validate depend priority exception clean")


def test_cancel_of_a_pending_job(shared: Instance) -> None:
    running = shared.submit("-N1", "sleep", "1000")
    shared.wait_event(running, "start")
    pending = shared.submit("-N1", "true")
    shared.wait_event(pending, "priority")
    done = shared.leveret("cancel", pending)
    assert (done.code, done.out, done.err) == (0, "", "")
    shared.wait(pending)
    attached = shared.attach(pending)
    assert attached.code == 1
    assert re.fullmatch(rf"[\d.]+s: job\.exception {pending} type=cancel severity=0 ?\n", attached.err)
    assert shared.leveret("job", "status", pending).code == 1
    form = "{id.dec} {status} {result} {returncode} {success} {exception.type}"
    listed = shared.leveret("jobs", "-ano", form, pending).out
    assert listed.split()[1:] == ["CANCELED", "CANCELED", "-128", "False", "cancel"]
    assert shared.names(pending) == words("submit validate depend priority exception clean")
    assert shared.record(running)["state"] == "RUN"


def test_cancel_of_a_held_job_with_a_note(shared: Instance) -> None:
    jobid = shared.submit("--urgency=0", "true")
    shared.leveret("cancel", "-m", "no longer needed", jobid, check=0)
    attached = shared.attach(jobid)
    assert attached.code == 1
    assert re.fullmatch(rf"[\d.]+s: job\.exception {jobid} type=cancel severity=0 no longer needed\n", attached.err)


def test_cancel_of_a_running_job(shared: Instance) -> None:
    jobid = shared.submit("sleep", "1000")
    shared.wait_event(jobid, "start")
    shared.leveret("cancel", "-m", "mynote here", jobid, check=0)
    attached = shared.attach(jobid)
    assert attached.code == 143
    assert re.fullmatch(
        rf"[\d.]+s: job\.exception {jobid} type=cancel severity=0 mynote here\nleveret-job: task\(s\) Terminated\n",
        attached.err,
    )
    assert shared.names(jobid) == words(
        "submit validate depend priority alloc start exception finish release free clean"
    )
    assert shared.contexts(jobid, "finish") == [{"status": 36608}]
    form = "{status} {result} {returncode} {waitstatus} {exception.type} {exception.severity}"
    assert shared.leveret("jobs", "-ano", form, jobid).out == "CANCELED CANCELED 143 36608 cancel 0\n"
    verbose = shared.leveret("job", "status", "-v", jobid)
    assert (verbose.code, verbose.err) == (143, f"leveret-job: {jobid}: exception type=cancel\n")
    again = shared.leveret("cancel", jobid)
    assert (again.code, again.err) == (1, f"leveret-cancel: ERROR: {jobid}: job is inactive\n")


@pytest.mark.parametrize(
    ("script", "code", "message", "said"),
    [
        (
            'trap "echo got TERM; exit 5" TERM; echo ready; sleep 1000 & wait',
            5,
            "task(s) exited with exit code 5",
            "ready\ngot TERM\n",
        ),
        ('trap "" TERM; echo ready; sleep 1000; sleep 1000', 137, "task(s) Killed", "ready\n"),
    ],
    ids=["trap-term", "ignore-term"],
)
def test_cancel_of_a_job_that_minds_sigterm(shared: Instance, script: str, code: int, message: str, said: str) -> None:
    jobid = shared.submit("sh", "-c", script)
    shared.wait_event(jobid, "data", "output")
    shared.leveret("cancel", jobid, check=0)
    attached = shared.attach(jobid)
    assert (attached.code, attached.out) == (code, said)
    assert attached.err.splitlines()[-1] == f"leveret-job: {message}"
    assert shared.record(jobid)["result"] == "CANCELED"


def test_cancel_of_unknown_ids(shared: Instance) -> None:
    done = shared.leveret("cancel", "1234")
    assert (done.code, done.err) == (1, f"leveret-cancel: ERROR: {f58(1234)}: unknown job id\n")
    done = shared.leveret("cancel", "not-a-job")
    assert done.code == 2
    assert "argument JOBID...: invalid JobID value: 'not-a-job'" in done.err
    done = shared.leveret("cancel")
    assert (done.code, done.err.splitlines()[0]) == (1, "leveret-cancel: ERROR: No target jobs were provided")


@pytest.mark.parametrize(
    ("script", "code", "message", "said"),
    [
        ("exec sleep 1000", 142, "task(s) Alarm clock", ""),
        (
            'trap "echo got ALRM" ALRM; sleep 2; echo survived',
            1,
            "task(s) exited with exit code 1",
            "got ALRM\nsurvived\n",
        ),
        ('trap "" ALRM TERM; sleep 1000; sleep 1000', 137, "task(s) Killed", ""),
    ],
    ids=["sleep", "trap", "ignore"],
)
def test_time_limit(shared: Instance, script: str, code: int, message: str, said: str) -> None:
    done = shared.run("-t", "0.5s", "sh", "-c", script)
    jobid, names = end(shared)
    assert (done.code, done.out) == (code, said)
    told = [text for text in done.err.splitlines() if text != "Alarm clock"]  # dash says so itself
    assert re.fullmatch(
        rf"[\d.]+s: job\.exception {jobid} type=timeout severity=0 resource allocation expired", told[0]
    )
    assert told[1:] == [f"leveret-job: {message}"]
    assert names == words("submit validate depend priority alloc start exception finish release free clean")
    record = shared.record(jobid)
    assert (record["result"], record["exit_code"]) == ("TIMEOUT", code)


def test_submit_wait_returns_the_worst_code(shared: Instance) -> None:
    assert shared.leveret("submit", "--wait", "true").code == 0
    assert shared.leveret("submit", "--wait", "sh", "-c", "exit 3").code == 3
    assert shared.leveret("submit", "--wait", "sh", "-c", "kill -9 $$").code == 137
    many = shared.leveret("submit", "--wait", "--cc=0-3", "sh", "-c", "exit $FLUX_JOB_CC")
    assert (many.code, len(many.out.split())) == (3, 4)


def test_attach_and_others_of_unknown_ids(shared: Instance) -> None:
    assert shared.attach("1234") == (1, "", "leveret-job: Failed to attach to 1234: No such job\n")
    done = shared.attach("xyzzy")
    assert (done.code, done.err.splitlines()[0]) == (1, 'leveret-job: error parsing jobid: "xyzzy"')
    assert shared.leveret("job", "status", "1234") == (1, "", "leveret-job: 1234: No such job\n")
    assert shared.leveret("job", "wait-event", "1234", "start") == (1, "", "leveret-job: job 1234 not found\n")
    assert shared.leveret("job", "eventlog", "1234") == (1, "", "leveret-job: job 1234 not found\n")
    assert shared.leveret("job", "info", "1234", "jobspec") == (1, "", "leveret-job: invalid job id\n")
    assert shared.leveret("job", "kill", "1234") == (1, "", "leveret-job: kill 1234: unknown job id\n")
    status, body = shared.http("GET", "/v1/jobs/1234")
    assert (status, body["code"]) == (404, "not-found")


def test_two_sigints_cancel_and_sigterm_is_forwarded(shared: Instance) -> None:
    import signal

    for signals, code, result in (([signal.SIGINT] * 2, 143, "CANCELED"), ([signal.SIGTERM], 143, "FAILED")):
        jobid = shared.submit("sh", "-c", "echo ready; exec sleep 1000")
        process = shared.popen("job", "attach", jobid)
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signals[0])
            if len(signals) > 1:
                assert b"one more ctrl-C within 2s to cancel" in process.stderr.readline()
                process.send_signal(signals[1])
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == code, said
        assert shared.wait(jobid)["result"] == result
