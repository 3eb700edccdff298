"""What a job waits for, at every door that says it (case R07), and who may look (case R74)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import WATCHDOG_S, Instance, Ledger, load_hold, until


def phases(instance: Instance, jobid: str) -> tuple[str, str]:
    record = instance.record(jobid)
    return record["phase"], record["waiting_for"]


def status_of(instance: Instance, jobid: str) -> dict[str, Any]:
    """The first status record of the stream that `attach` reads."""
    for line in instance.new_client().events(jobid, ["eventlog"], follow=True, status=True):
        if "status" in line:
            return dict(line["status"])
    raise AssertionError("no status")


def test_r07_all_holders_are_named_and_warnings_change_nothing(instance: Instance) -> None:
    load_hold(instance, run=[("prolog", "one", {}), ("prolog", "two", {})])
    jobid = instance.submit("true")
    until(lambda: len(instance.holds(jobid)) == 2, "two prologs")
    assert phases(instance, jobid) == ("prolog", "one, two")
    assert status_of(instance, jobid)["waiting_for"] == "one, two"
    instance.client.finish_hold(jobid, "one", kind="prolog")
    assert phases(instance, jobid) == ("prolog", "two")
    instance.leveret("job", "raise", "--severity=5", "--type=note", jobid, "just a note", check=0)
    assert phases(instance, jobid) == ("prolog", "two")
    assert status_of(instance, jobid) | {"progress": None} == {
        "state": "RUN", "phase": "prolog", "waiting_for": "two", "progress": None,
    }  # fmt: skip
    assert "two" in instance.leveret("jobs", "-n", jobid, check=0).out
    instance.client.finish_hold(jobid, "two", kind="prolog")
    assert instance.attach(jobid).code == 0


def test_r07_data_that_leaves_is_the_phase(launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path) -> None:
    gate = ledger.gate()
    instance = launch(config=ledger.mover(f"gate {gate.path}"))
    (tmp_path / "f").write_text("x")
    jobid = instance.submit("--stage-out", "f:there", "true", cwd=tmp_path)
    instance.wait_event(jobid, "part-start")
    record = instance.record(jobid)
    assert (record["state"], record["phase"], record["waiting_for"]) == ("CLEANUP", "stage-out", "stage-out")
    assert record["done"] is False
    assert "stage-out" in instance.leveret("jobs", "-n", jobid, check=0).out
    gate.open()
    assert instance.attach(jobid).code == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_r74_another_user_is_refused_at_every_door(launch: Callable[..., Instance], tmp_path: Path) -> None:
    instance = launch()
    jobid = instance.submit("--urgency=hold", "true")
    number = instance.record(jobid)["id"]
    # the socket's folder keeps others out; let this one through, to see that the daemon itself refuses
    for path in (instance.base, *instance.base.parents):
        if str(path).startswith("/tmp/") or path == instance.base:
            path.chmod(path.stat().st_mode | 0o011)
    Path(instance.socket).chmod(0o666)
    doors = [
        ("GET", "/v1/status", None), ("GET", "/v1/jobs", None), ("GET", f"/v1/jobs/{number}", None),
        ("GET", f"/v1/jobs/{number}/events", None), ("GET", f"/v1/jobs/{number}/keys/jobspec", None),
        ("GET", f"/v1/jobs/{number}/keys/guest.output", None), ("POST", f"/v1/jobs/{number}/cancel", {}),
        ("POST", f"/v1/jobs/{number}/raise", {}), ("POST", f"/v1/jobs/{number}/kill", {}),
        ("POST", f"/v1/jobs/{number}/urgency", {"urgency": 16}), ("POST", f"/v1/jobs/{number}/stdin", {}),
        ("POST", f"/v1/jobs/{number}/holds", {"kind": "part", "name": "x"}), ("POST", "/v1/wait", {"id": number}),
        ("POST", "/v1/jobs/wait", {"ids": [number]}), ("POST", "/v1/jobs", {"jobspec": {}}),
        ("GET", "/v1/jobtap", None), ("POST", "/v1/shutdown", {}), ("GET", "/v1/openapi.json", None),
    ]  # fmt: skip
    script = tmp_path / "knock.py"
    script.write_text(
        "import http.client, json, os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "for method, target, body in json.loads(sys.argv[2]):\n"
        "    c = http.client.HTTPConnection('x', timeout=30)\n"
        "    c.sock = socket.socket(socket.AF_UNIX); c.sock.connect(sys.argv[1])\n"
        "    c.request(method, target, None if body is None else json.dumps(body))\n"
        "    a = c.getresponse(); print(a.status, json.loads(a.read()).get('code'), method, target)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), instance.socket, json.dumps(doors)],
        capture_output=True, text=True, timeout=WATCHDOG_S, check=True,
    )  # fmt: skip
    answers = done.stdout.splitlines()
    assert len(answers) == len(doors)
    assert [line for line in answers if not line.startswith("403 forbidden ")] == []
    assert instance.record(jobid)["state"] == "SCHED"
