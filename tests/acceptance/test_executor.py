"""`leveret.Executor`: futures resolve at `clean` with the verdict (case R72)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import WATCHDOG_S, Instance, Ledger

from leveret import Executor
from leveret.core import jobspec
from leveret.errors import JobspecError
from leveret.executor import JobFailed


def staged(command: list[str], *out: tuple[str, str], cwd: str) -> dict[str, Any]:
    spec = jobspec.build(command, cwd=cwd, environment={"PATH": "/usr/bin:/bin"})
    spec["attributes"]["system"]["staging"] = {"out": [{"src": src, "dst": dst} for src, dst in out]}
    return spec


def test_r72_a_future_resolves_after_the_data_has_moved(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path
) -> None:
    instance = launch(config=ledger.mover("ok 1"))
    (tmp_path / "f").write_text("x")
    with Executor(instance.uri) as executor:
        future = executor.submit(staged(["true"], ("f", "there"), cwd=str(tmp_path)))
        early = executor.attach(future.jobid(WATCHDOG_S), wait_event="finish")
        assert early.result(WATCHDOG_S) == 0
        assert future.result(WATCHDOG_S) == 0
    assert (tmp_path / "there").exists()
    assert future.job is not None and future.job["state"] == "INACTIVE"


def test_r72_data_failure_raises(launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path) -> None:
    instance = launch(config=ledger.mover("fail 0 3"))
    with Executor(instance.uri) as executor:
        future = executor.submit(staged(["true"], ("f", "there"), cwd=str(tmp_path)))
        with pytest.raises(JobFailed) as failed:
            future.result(WATCHDOG_S)
    assert failed.value.type == "stage-out"
    assert failed.value.job["waitstatus"] == 0
    assert failed.value.job["result"] == "FAILED"


def test_r72_one_bad_submission_leaves_the_rest(shared: Instance) -> None:
    good = jobspec.build(["true"], cwd="/", environment={"PATH": "/usr/bin:/bin"})
    with Executor(shared.uri) as executor:
        futures = [executor.submit({"version": 1} if i == 37 else good) for i in range(100)]
        with pytest.raises(JobspecError):
            futures[37].result(WATCHDOG_S)
        with pytest.raises(JobspecError):
            futures[37].jobid(WATCHDOG_S)
        assert [f.result(WATCHDOG_S) for i, f in enumerate(futures) if i != 37] == [0] * 99
        ids = {f.jobid(0) for i, f in enumerate(futures) if i != 37}
    assert len(ids) == 99


def test_exit_codes_callbacks_and_cancel(shared: Instance) -> None:
    seen: list[str] = []
    known = threading.Event()
    with Executor(shared.uri) as executor:
        future = executor.submit(["sh", "-c", "exit 7"])
        future.add_event_callback("finish", lambda f, event: seen.append(f"finish {event['context']['status']}"))
        future.add_event_callback("clean", lambda f, event: seen.append("clean"))
        future.add_jobid_callback(lambda f: known.set())
        assert future.result(WATCHDOG_S) == 7
        assert known.wait(WATCHDOG_S)

        endless = executor.submit(["sleep", "1000"], wait_event="clean")
        started = threading.Event()
        raised: list[int] = []
        endless.add_event_callback("start", lambda f, event: started.set())
        endless.add_exception_callback(lambda f, event: raised.append(event["context"]["severity"]))
        assert started.wait(WATCHDOG_S)
        endless.cancel()
        with pytest.raises(JobFailed) as canceled:
            endless.result(WATCHDOG_S)
        assert canceled.value.type == "cancel"
        assert canceled.value.job["result"] == "CANCELED"
    assert seen == ["finish 1792", "clean"]
    assert raised == [0]


def test_after_shutdown_nothing_is_taken(shared: Instance) -> None:
    executor = Executor(shared.uri)
    executor.shutdown()
    with pytest.raises(RuntimeError):
        executor.submit(["true"])
