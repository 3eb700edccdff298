"""The first request: a job is done when all of its parts are done, and every door says the same about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import WATCHDOG_S, Instance, Ledger, Result, in_order, until


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A job's directory with a result to be moved."""
    path = tmp_path / "work"
    path.mkdir()
    (path / "result").write_text("data\n")
    return path


def last(instance: Instance) -> str:
    return str(instance.leveret("job", "last", check=0).out).strip()


# ---- when do commands return -------------------------------------------------------------------


def test_r01_run_returns_after_the_epilog(launch: Callable[..., Instance], ledger: Ledger) -> None:
    instance = launch(config=ledger.perilog("epilog", "ok 1.5"))
    done = instance.run("true", check=0)
    # asked at its return: had it left at `finish`, the epilog would still sleep
    assert ledger.phases() == ["epilog", "epilog-end"]
    jobid = last(instance)
    assert instance.names(jobid)[-1] == "clean"
    assert done.err == ""


def test_r01_run_returns_after_the_stage_out(launch: Callable[..., Instance], ledger: Ledger, work: Path) -> None:
    instance = launch(config=ledger.mover("ok 1.5"))
    instance.run("--stage-out", "result:out/copy", "true", cwd=work, check=0)
    assert ledger.phases() == ["move", "move-end", "moved"]
    assert (work / "out" / "copy").read_text() == "data\n"
    names = instance.names(last(instance))
    in_order(names, "finish", "part-start", "free", "part-finish", "clean")
    assert names[-1] == "clean"


def test_r01_with_the_built_in_copier_the_results_are_there(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("one\n")
    script = "cat data/in/a > out/b; echo two >> out/b"
    (tmp_path / "out").mkdir()
    done = instance.run(
        "--stage-in", "in:data/", "--stage-out", "out/:results", "sh", "-c", script, cwd=tmp_path, check=0
    )
    assert (tmp_path / "results" / "b").read_text() == "one\ntwo\n"
    assert done.err == ""
    names = instance.names(last(instance))
    in_order(names, "alloc", "part-start", "part-finish", "start", "finish", "part-start", "part-finish", "clean")


@pytest.mark.parametrize("kind", ["epilog", "stage-out"])
def test_every_command_that_waits_returns_after_the_last_part(
    launch: Callable[..., Instance], ledger: Ledger, work: Path, kind: str
) -> None:
    """attach, status, wait, submit --wait, wait-event clean, the client and the API's stream."""
    gate = ledger.gate()
    config = ledger.perilog("epilog", f"gate {gate.path}") if kind == "epilog" else ledger.mover(f"gate {gate.path}")
    instance = launch(config=config)
    options = [] if kind == "epilog" else ["--stage-out", "result:copy"]
    waiting = instance.popen("submit", "--wait", *options, "true", cwd=work)
    assert waiting.stdout is not None
    jobid = waiting.stdout.readline().decode().strip()
    processes = {
        "submit --wait": waiting,
        "attach": instance.popen("job", "attach", jobid),
        "status": instance.popen("job", "status", jobid),
        "wait": instance.popen("job", "wait", jobid),
        "wait-event": instance.popen("job", "wait-event", jobid, "clean"),
    }
    try:
        instance.wait_event(jobid, "epilog-start" if kind == "epilog" else "part-start")
        # each early way out returns while the hold is open
        early = instance.attach(jobid, "--wait-event=finish")
        assert (early.code, early.err) == (0, "")
        instance.leveret("job", "wait-event", jobid, "finish", check=0)
        assert len(instance.holds(jobid)) == 1
        assert [name for name, process in processes.items() if process.poll() is not None] == []
        gate.open()
        for name, process in processes.items():
            assert process.wait(WATCHDOG_S) == 0, name
            assert instance.names(jobid)[-1] == "clean", name
    finally:
        gate.open()
        for process in processes.values():
            process.kill()
            process.communicate()


@pytest.mark.parametrize("kind", ["epilog", "stage-out"])
def test_r03_wait_event_finish_returns_before_the_part_ends(
    launch: Callable[..., Instance], ledger: Ledger, work: Path, kind: str
) -> None:
    gate = ledger.gate()
    config = ledger.perilog("epilog", f"gate {gate.path}") if kind == "epilog" else ledger.mover(f"gate {gate.path}")
    instance = launch(config=config)
    options = [] if kind == "epilog" else ["--stage-out", "result:copy"]
    done = instance.run("--wait-event=finish", *options, "sh", "-c", "echo out; exit 3", cwd=work)
    assert (done.code, done.out) == (3, "out\n")
    jobid = last(instance)
    record = instance.record(jobid)
    assert record["done"] is False and len(record["holds"]) == 1  # it was back before the gate was opened
    submitted = instance.leveret("submit", "--wait-event=finish", *options, "true", cwd=work, check=0).out.strip()
    assert len(instance.holds(submitted)) == 1
    gate.open()
    assert instance.wait(jobid)["exit_code"] == 3
    instance.wait(submitted)


def test_r08_done_flips_once_and_only_when_the_results_are_there(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    gate = ledger.gate()
    instance = launch(config=ledger.mover(f"gate {gate.path}"))
    jobid = instance.submit("--stage-out", "result:copy", "true", cwd=work)
    instance.wait_event(jobid, "part-start")
    instance.wait_event(jobid, "free")  # the nodes are back while data still moves
    record = instance.record(jobid)
    assert (record["done"], record["result"], record["phase"]) == (False, None, "stage-out")
    assert record["waiting_for"] == "stage-out"
    listed = instance.leveret("jobs", "-no", "{state} {status} {result} {phase}", jobid).out
    assert listed.split() == ["CLEANUP", "CLEANUP", "stage-out"]
    assert not (work / "copy").exists()
    gate.open()
    record = instance.wait(jobid)
    assert (record["done"], record["result"]) == (True, "COMPLETED")
    assert (work / "copy").exists()


# ---- every door says the same ------------------------------------------------------------------


def doors(instance: Instance, jobid: str) -> dict[str, Any]:
    """What each door says of an inactive job."""
    listed = instance.leveret("jobs", "-no", "{status}|{result}|{returncode}|{success}", jobid, check=0).out.strip()
    status, body = instance.http("GET", f"/v1/jobs/{jobid.replace('ƒ', 'f')}")
    assert status == 200
    by_listing = instance.http("GET", f"/v1/jobs?ids={body['id']}")[1]["jobs"]
    waited = instance.http("POST", "/v1/wait", {"id": jobid})
    end = [line for line in instance.client.events(jobid) if line.get("end")]

    async def ask() -> dict[str, Any]:
        from leveret.aclient import AsyncClient

        async with AsyncClient(instance.uri) as client:
            return await asyncio.wait_for(client.wait(jobid), WATCHDOG_S)

    def dependent(scheme: str) -> str:
        done = instance.leveret("submit", "--wait", f"--dependency={scheme}:{jobid}", "true")
        return "runs" if done.code == 0 else "never"

    records = [
        body,
        *by_listing,
        waited[1],
        end[-1]["job"],
        instance.client.job(jobid),
        instance.client.wait(jobid),
        asyncio.run(ask()),
    ]
    return {
        "attach": instance.attach(jobid).code,
        "job status": instance.leveret("job", "status", jobid).code,
        "job wait": instance.leveret("job", "wait", jobid).code,
        "jobs": listed,
        "records": {(r["result"], r["exit_code"], r["success"], r["done"], r["state"]) for r in records},
        "completed filter": jobid in instance.leveret("jobs", "-f", "completed", "--ids").out.split(),
        "afterok": dependent("afterok"),
        "afternotok": dependent("afternotok"),
        "afterany": dependent("afterany"),
    }


def agreed(result: str, code: int, returncode: int | None = None) -> dict[str, Any]:
    """What all of them must say."""
    good = result == "COMPLETED"
    shown = code if returncode is None else returncode
    return {
        "attach": code,
        "job status": code,
        "job wait": 0 if good else 1,
        "jobs": f"{result}|{result}|{shown}|{good}",
        "records": {(result, code, good, True, "INACTIVE")},
        "completed filter": good,
        "afterok": "runs" if good else "never",
        "afternotok": "never" if good else "runs",
        "afterany": "runs",
    }


def test_r18_late_data_failure_fails_every_door(launch: Callable[..., Instance], ledger: Ledger, work: Path) -> None:
    instance = launch(config=ledger.mover("fail 0.2 7"))
    done = instance.run("--stage-out", "result:copy", "true", cwd=work)
    jobid = last(instance)
    assert done.code == 1
    assert re.search(rf"job\.exception {jobid} type=stage-out severity=0 .*failed on purpose", done.err), done.err
    assert instance.contexts(jobid, "finish") == [{"status": 0}]
    names = instance.names(jobid)
    in_order(names, "finish", "part-start", "exception", "part-finish", "clean")
    assert instance.record(jobid)["cause"]["type"] == "stage-out"
    assert doors(instance, jobid) == agreed("FAILED", 1)
    assert instance.leveret("submit", "--wait", "--stage-out", "result:copy", "true", cwd=work).code == 1


def test_r18_dependents_that_wait_already_hear_the_late_failure(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    gate = ledger.gate()
    instance = launch(config=ledger.mover(f"gate {gate.path} 7"))
    jobid = instance.submit("--stage-out", "result:copy", "true", cwd=work)
    waiting = {
        scheme: instance.submit(f"--dependency={scheme}:{jobid}", "true")
        for scheme in ("afterok", "afternotok", "afterany", "afterexcept")
    }
    started = instance.submit(f"--dependency=afterstart:{jobid}", "true")
    instance.wait_event(jobid, "free")
    instance.wait(started)  # afterstart does not wait for the end
    for dependent in waiting.values():  # the tasks are over; the data is not
        assert instance.record(dependent)["state"] == "DEPEND"
    gate.open()
    instance.wait(jobid)
    results = {scheme: instance.wait(dependent)["result"] for scheme, dependent in waiting.items()}
    assert results == {
        "afterok": "FAILED",
        "afternotok": "COMPLETED",
        "afterany": "COMPLETED",
        "afterexcept": "COMPLETED",
    }
    assert "start" not in instance.names(waiting["afterok"])
    assert instance.contexts(waiting["afterok"], "exception")[0]["type"] == "dependency"
    # nobody started before the antecedent was clean
    t_clean = instance.record(jobid)["t_inactive"]
    assert instance.record(waiting["afternotok"])["t_run"] >= t_clean


def test_r27_a_failure_in_cleanup_is_an_end_and_not_a_pause(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    instance = launch(config=ledger.mover("fail 0 1"))
    jobid = instance.submit("--stage-out", "result:a", "--stage-out", "result:b", "true", cwd=work)
    record = instance.wait(jobid)
    assert record["result"] == "FAILED" and record["holds"] == []
    assert sorted(c["description"] for c in instance.contexts(jobid, "part-finish")) == ["stage-out-1", "stage-out-2"]
    assert all(context["status"] for context in instance.contexts(jobid, "part-finish"))


def test_r20_who_owns_the_part_decides(instance: Instance) -> None:
    for owner, severity, result in (("user", 0, "FAILED"), ("site", 2, "COMPLETED")):
        jobid = instance.submit("--urgency=0", "true")
        instance.client.open_hold(jobid, "flush", owner=owner)
        instance.client.urgency(jobid, 16)
        instance.wait_event(jobid, "free")
        instance.client.finish_hold(jobid, "flush", 3 << 8, note="disk is gone")
        assert instance.wait(jobid)["result"] == result
        (context,) = instance.contexts(jobid, "exception")
        assert context["severity"] == severity and "disk is gone" in context["note"]


def test_a_warning_after_a_fatal_exception_improves_nothing(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    instance.client.open_hold(jobid, "later")
    instance.client.raise_(jobid, "site", 0, "the disk")
    instance.client.raise_(jobid, "note", 5, "never mind")
    instance.client.finish_hold(jobid, "later")
    instance.wait(jobid)
    assert [c["severity"] for c in instance.contexts(jobid, "exception")] == [0, 5]
    assert doors(instance, jobid) == agreed("FAILED", 1)
    assert instance.record(jobid)["cause"] == {"type": "site", "severity": 0, "note": "the disk"}


def test_a_warning_alone_changes_nothing(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    instance.client.raise_(jobid, "note", 1, "slow disk")
    instance.client.urgency(jobid, 16)
    instance.wait(jobid)
    assert doors(instance, jobid) == agreed("COMPLETED", 0)


def test_an_ordinary_success_at_every_door(instance: Instance) -> None:
    jobid = instance.submit("true")
    instance.wait(jobid)
    assert doors(instance, jobid) == agreed("COMPLETED", 0)


def test_r21_a_job_that_can_never_run_is_no_success(instance: Instance) -> None:
    jobid = instance.submit("-N", "99", "true")
    instance.wait(jobid)
    assert "start" not in instance.names(jobid)
    assert doors(instance, jobid) == agreed("FAILED", 1)
    assert "unsatisfiable request" in instance.leveret("job", "wait", jobid).err
    assert "unsatisfiable request" in instance.attach(jobid).err


def test_r21_a_job_canceled_while_pending_is_no_success(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    instance.client.cancel(jobid, "no need")
    instance.wait(jobid)
    assert doors(instance, jobid) == agreed("CANCELED", 1, returncode=-128)
    assert instance.leveret("job", "wait", jobid).err == "leveret-job: Fatal exception type=cancel no need\n"


def test_exit_code_three_at_every_door(instance: Instance) -> None:
    jobid = instance.submit("sh", "-c", "exit 3")
    instance.wait(jobid)
    assert doors(instance, jobid) == agreed("FAILED", 3)


def test_a_time_out_at_every_door(instance: Instance) -> None:
    jobid = instance.submit("-t", "0.3s", "sleep", "1000")
    instance.wait(jobid)
    assert doors(instance, jobid) == agreed("TIMEOUT", 142)


def test_cancel_of_a_running_job_at_every_door(instance: Instance) -> None:
    jobid = instance.submit("sleep", "1000")
    instance.wait_event(jobid, "start")
    instance.client.cancel(jobid)
    instance.wait(jobid)
    assert doors(instance, jobid) == agreed("CANCELED", 143)


def test_a_failed_prolog_at_every_door(launch: Callable[..., Instance], ledger: Ledger) -> None:
    instance = launch(config=ledger.perilog("prolog", "fail 0 3"))
    jobid = instance.submit("true")
    instance.wait(jobid)
    assert instance.record(jobid)["cause"]["type"] == "prolog"
    said = doors(instance, jobid)
    # dependents have the same prolog, so none of them can succeed here
    wanted = agreed("FAILED", 1) | {"afternotok": "never", "afterany": "never"}
    assert said == wanted


def test_a_failed_stage_in_means_no_tasks(launch: Callable[..., Instance], ledger: Ledger, work: Path) -> None:
    instance = launch(config=ledger.mover("fail 0 4"))
    done = instance.run("--stage-in", "result:in", "--stage-out", "result:out", "echo", "never", cwd=work)
    assert (done.code, done.out) == (1, "")
    assert "type=stage-in severity=0" in done.err
    names = instance.names(last(instance))
    assert "start" not in names
    in_order(names, "alloc", "part-start", "exception", "part-finish", "free", "clean")
    assert [row[0] for row in ledger.rows()] == ["result:in"] * 2  # nothing was moved out of a job that never started


def test_a_cancel_after_finish_is_refused_with_the_name_of_what_still_runs(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    gate = ledger.gate()
    instance = launch(config=ledger.mover(f"gate {gate.path}"))
    jobid = instance.submit("--stage-out", "result:copy", "true", cwd=work)
    until(lambda: ledger.phases(), "the move begins")
    refused = instance.leveret("cancel", jobid)
    assert refused.code == 1
    assert "stage-out" in refused.err, refused.err
    gate.open()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert (work / "copy").exists()


def test_r29_cancel_of_running_tasks_keeps_the_data(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    instance = launch(config=ledger.mover())
    for number, act in enumerate(("cancel", "timeout", "exit")):
        options = ["-t", "0.3s"] if act == "timeout" else []
        script = "exit 1" if act == "exit" else "exec sleep 1000"
        jobid = instance.submit(*options, "--stage-out", f"result:copy{number}", "sh", "-c", script, cwd=work)
        if act == "cancel":
            instance.wait_event(jobid, "start")
            instance.client.cancel(jobid)
        assert instance.wait(jobid)["result"] == {"cancel": "CANCELED", "timeout": "TIMEOUT", "exit": "FAILED"}[act]
        assert (work / f"copy{number}").read_text() == "data\n"
    assert sorted(ledger.phases()) == sorted(["move", "move-end", "moved"] * 3)


def test_stage_out_failure_is_told_by_run_and_submit_alike(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    instance = launch(config=ledger.mover("fail 0 1"))

    def code(done: Result) -> int:
        assert "type=stage-out severity=0" in done.err
        return done.code

    options = ("--stage-out", "result:copy", "sh", "-c", "exit 5")
    # the tasks' own code wins over the 1 of a failed part
    assert code(instance.run(*options, cwd=work)) == 5
    assert code(instance.leveret("submit", "--wait", *options, cwd=work)) == 5
