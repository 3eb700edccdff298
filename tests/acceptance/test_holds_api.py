"""Holds from outside over HTTP, and plugins that open and close them: by name, on the record, across restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Instance, in_order, load_hold, until


def open_(instance: Instance, jobid: str, kind: str, name: str, **more: Any) -> Any:
    return instance.http("POST", f"/v1/jobs/{jobid.replace('ƒ', 'f')}/holds", {"kind": kind, "name": name, **more})


def finish(instance: Instance, jobid: str, kind: str, name: str, **more: Any) -> Any:
    body = {"kind": kind, "name": name, **more}
    return instance.http("POST", f"/v1/jobs/{jobid.replace('ƒ', 'f')}/holds/finish", body)


# ---- the API -----------------------------------------------------------------------------------


def test_each_kind_of_hold_keeps_the_job_from_its_step(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    assert open_(instance, jobid, "part", "data", blocks=["start", "free"]) == (200, {})
    assert open_(instance, jobid, "part", "notes", owner="site") == (200, {})
    instance.client.urgency(jobid, 16)
    instance.wait_event(jobid, "alloc")
    record = instance.record(jobid)
    assert (record["state"], record["phase"]) == ("RUN", "data")
    assert "data" in record["waiting_for"]
    assert open_(instance, jobid, "prolog", "warm-up") == (200, {})
    assert finish(instance, jobid, "part", "data")[0] == 200
    assert "start" not in instance.names(jobid)  # the prolog holds it still
    assert instance.record(jobid)["waiting_for"] == "warm-up"
    assert finish(instance, jobid, "prolog", "warm-up")[0] == 200
    instance.wait_event(jobid, "free")
    assert instance.holds(jobid) == ["part/notes"]
    assert open_(instance, jobid, "epilog", "late") == (200, {})
    assert finish(instance, jobid, "part", "notes")[0] == 200
    assert instance.record(jobid)["done"] is False
    assert finish(instance, jobid, "epilog", "late")[0] == 200
    assert instance.wait(jobid)["result"] == "COMPLETED"
    in_order(
        instance.names(jobid), "part-start", "alloc", "prolog-start", "part-finish", "prolog-finish", "start",
        "finish", "free", "epilog-start", "part-finish", "epilog-finish", "clean",
    )  # fmt: skip
    part = instance.contexts(jobid, "part-start")[0]
    assert (part["description"], part["owner"], part["blocks"]) == ("data", "user", ["start", "free"])


def test_a_dependency_hold_of_somebody_outside(instance: Instance) -> None:
    first = instance.submit("--urgency=0", "true")
    jobid = instance.submit(f"--dependency=afterany:{first}", "true")
    assert open_(instance, jobid, "dependency", "site-ok") == (200, {})
    instance.client.cancel(first)
    until(lambda: instance.names(jobid).count("dependency-remove") == 1, "the job's own dependency is gone")
    assert instance.record(jobid)["state"] == "DEPEND"
    assert instance.record(jobid)["dependencies"] == ["site-ok"]
    assert finish(instance, jobid, "dependency", "site-ok")[0] == 200
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert instance.contexts(jobid, "dependency-remove")[1] == {"description": "site-ok"}


def test_r11_an_unmatched_or_repeated_finish_is_an_error_and_changes_nothing(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    for name in ("A", "B"):
        assert open_(instance, jobid, "epilog", name) == (200, {})
    assert finish(instance, jobid, "epilog", "A") == (200, {})
    before = instance.eventlog(jobid)
    for name, message in (("A", "closed already"), ("C", "no hold")):
        status, body = finish(instance, jobid, "epilog", name)
        assert (status, body["code"]) == (409, "event")
        assert message in body["message"] and name in body["message"]
    assert finish(instance, jobid, "prolog", "B")[0] == 409  # a name counts with its kind
    assert open_(instance, jobid, "epilog", "A")[0] == 409  # used once a job
    status, body = open_(instance, jobid, "nosuch", "X")
    assert (status, body["code"]) == (400, "invalid")
    assert instance.eventlog(jobid) == before
    assert instance.holds(jobid) == ["epilog/B"]
    instance.client.cancel(jobid)
    assert instance.record(jobid)["done"] is False
    assert finish(instance, jobid, "epilog", "B")[0] == 200
    assert instance.wait(jobid)["done"] is True
    assert finish(instance, jobid, "epilog", "B")[0] == 409
    assert finish(instance, "1234", "epilog", "B")[0] == 404


def test_opening_what_is_open_changes_nothing(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    open_(instance, jobid, "part", "data")
    before = instance.eventlog(jobid)
    assert open_(instance, jobid, "part", "data")[0] in (200, 409)
    assert instance.eventlog(jobid) == before
    instance.client.cancel(jobid)
    finish(instance, jobid, "part", "data")
    instance.wait(jobid)


def test_progress_is_shown_and_is_no_event(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    open_(instance, jobid, "part", "copy")
    before = instance.names(jobid)
    target = f"/v1/jobs/{instance.record(jobid)['id']}/holds/progress"
    for done in (10, 20):
        body = {"kind": "part", "name": "copy", "done": done, "total": 40, "unit": "bytes", "note": "a"}
        assert instance.http("POST", target, body) == (200, {"lease_s": 0})
    (hold,) = instance.record(jobid)["holds"]
    assert hold["progress"] == {"done": 20, "total": 40, "unit": "bytes", "note": "a"}
    assert (hold["kind"], hold["name"], hold["owner"]) == ("part", "copy", "user")
    assert instance.names(jobid) == before
    assert instance.http("POST", target, {"kind": "part", "name": "nosuch", "done": 1})[0] == 409
    instance.client.cancel(jobid)
    finish(instance, jobid, "part", "copy")
    instance.wait(jobid)


def test_a_failed_user_part_says_why(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    open_(instance, jobid, "part", "push")
    instance.client.urgency(jobid, 16)
    instance.wait_event(jobid, "free")
    assert finish(instance, jobid, "part", "push", status=256, note="quota of 5 GB reached")[0] == 200
    record = instance.wait(jobid)
    assert (record["result"], record["exit_code"]) == ("FAILED", 1)
    assert "quota of 5 GB reached" in record["cause"]["note"]
    in_order(instance.names(jobid), "finish", "exception", "part-finish", "clean")


def test_a_prolog_hold_cannot_come_after_the_start(instance: Instance) -> None:
    jobid = instance.submit("sleep", "1000")
    instance.wait_event(jobid, "start")
    status, body = open_(instance, jobid, "prolog", "late")
    assert (status, body["code"]) == (409, "event")
    assert "prolog-start" not in instance.names(jobid)
    instance.client.cancel(jobid)
    instance.wait(jobid)


def test_a_hold_of_the_api_survives_a_killed_daemon(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    open_(instance, jobid, "part", "data")
    instance.client.urgency(jobid, 16)
    instance.wait_event(jobid, "free")
    instance.crash()
    assert instance.holds(jobid) == ["part/data"]
    assert finish(instance, jobid, "part", "data")[0] == 200
    assert instance.wait(jobid)["result"] == "COMPLETED"


# ---- plugins -----------------------------------------------------------------------------------

TAPE = """\
import asyncio
import os

from leveret.plugins.hooks import EpilogHold, Plugin


class Tape(Plugin):
    def note(self, job, what):
        with open(self.conf["ledger"], "a") as ledger:
            ledger.write(f"{job.id} {what}\\n")

    def state_cleanup(self, job):
        return EpilogHold("to-tape", work=self.copy(job, "begin"))

    async def copy(self, job, how):
        self.note(job, how)
        while not os.path.exists(self.conf["gate"]):
            await asyncio.sleep(0.02)
        self.note(job, "end")

    async def resume(self, job, hold):
        await self.copy(job, "resume")
"""


def test_a_plugins_work_closes_its_hold_and_is_resumed_after_kill_9(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "tape.py").write_text(TAPE)
    ledger, gate = tmp_path / "noted", tmp_path / "gate"
    conf = [f"ledger={ledger}", f"gate={gate}"]
    instance.leveret("jobtap", "load", "tape.py", *conf, cwd=tmp_path, check=0)
    assert instance.leveret("jobtap", "list", check=0).out == "tape\n"
    jobid = instance.submit("true")
    number = instance.record(jobid)["id"]
    until(lambda: ledger.exists() and ledger.read_text() == f"{number} begin\n", "the work begins")
    instance.crash()
    # the load has survived with its configuration, and the open hold came back to it
    until(lambda: ledger.read_text() == f"{number} begin\n{number} resume\n", "the work is resumed")
    (plugin,) = json.loads(instance.leveret("jobtap", "list", "--json").out)["plugins"]
    assert (plugin["name"], plugin["holds"], plugin["builtin"]) == ("tape", 1, False)
    assert plugin["path"] == str(tmp_path / "tape.py")
    refused = instance.leveret("jobtap", "remove", "tape")
    assert refused.code == 1 and jobid in refused.err, refused.err  # R15: loud, with the jobs
    gate.touch()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert ledger.read_text() == f"{number} begin\n{number} resume\n{number} end\n"
    names = instance.names(jobid)
    assert names.count("epilog-start") == names.count("epilog-finish") == 1
    instance.leveret("jobtap", "remove", "tape", check=0)
    assert instance.leveret("jobtap", "list", check=0).out == ""
    instance.crash()
    assert instance.leveret("jobtap", "list", check=0).out == ""  # a removal survives as well


def test_r15_remove_is_refused_while_holds_are_open(instance: Instance) -> None:
    load_hold(instance, cleanup=[("epilog", "undo", {})])
    jobid = instance.submit("--urgency=0", "true")
    instance.client.cancel(jobid)
    refused = instance.leveret("jobtap", "remove", "hold")
    assert refused.code == 1
    assert "open holds" in refused.err and jobid in refused.err
    assert instance.holds(jobid) == ["epilog/undo"]
    assert finish(instance, jobid, "epilog", "undo")[0] == 200
    instance.wait(jobid)
    instance.leveret("jobtap", "remove", "hold", check=0)
    other = instance.submit("true")
    instance.wait(other)
    assert "epilog-start" not in instance.names(other)


@pytest.mark.parametrize("kind", ["dependency", "prolog", "epilog", "part"])
def test_a_plugin_can_hold_in_every_way(instance: Instance, kind: str) -> None:
    moment = {"dependency": "depend", "prolog": "run", "epilog": "cleanup", "part": "run"}[kind]
    options = {"blocks": ["start"]} if kind == "part" else {}
    load_hold(instance, **{moment: [(kind, "wait for me", options)]})
    jobid = instance.submit("true")
    held = {"dependency": "DEPEND", "prolog": "RUN", "epilog": "CLEANUP", "part": "RUN"}[kind]
    until(lambda: instance.holds(jobid) == [f"{kind}/wait for me"], "the hold is open")
    record = instance.wait_state(jobid, held)
    assert record["waiting_for"] == "wait for me"
    assert ("start" in instance.names(jobid)) is (kind == "epilog")
    assert finish(instance, jobid, kind, "wait for me")[0] == 200
    assert instance.wait(jobid)["result"] == "COMPLETED"


BROKEN = """\
from leveret.plugins.hooks import Plugin


class Broken(Plugin):
    def new(self, job):
        raise RuntimeError("broken new")

    def state_run(self, job):
        return "not an answer"

    def state_cleanup(self, job):
        raise ValueError("broken cleanup")

    def event_finish(self, job, event):
        return 1 / 0
"""


def test_a_plugin_that_raises_stops_no_other(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    instance.client.jobtap_load(str(tmp_path / "broken.py"))
    load_hold(instance, cleanup=[("epilog", "undo", {})])  # comes after the broken one
    jobid = instance.submit("echo", "hi")
    instance.wait_event(jobid, "epilog-start")
    assert finish(instance, jobid, "epilog", "undo")[0] == 200
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert instance.attach(jobid).out == "hi\n"
    log = (instance.state_dir / "daemon.log").read_text()
    for text in ("broken new", "broken cleanup", "division by zero", "which is not an Answer"):
        assert text in log
    assert '"plugin": "broken"' in log
    instance.crash()
    assert instance.leveret("jobtap", "list").out == "broken\nhold\n"
    other = instance.submit("true")
    instance.wait_event(other, "epilog-start")
    finish(instance, other, "epilog", "undo")
    instance.wait(other)


def test_loads_that_cannot_work_are_refused_with_file_and_line(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("class X(:\n")
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "raises.py").write_text("1/0\n")
    for name, text in (("syntax.py", "syntax.py:1"), ("none.py", "found 0 classes"), ("raises.py", "division by zero")):
        done = instance.leveret("jobtap", "load", name, cwd=tmp_path)
        assert done.code == 1 and text in done.err, done.err
    assert instance.leveret("jobtap", "load", "nosuch.py", cwd=tmp_path).code == 1
    assert instance.leveret("jobtap", "load", "nosuch").code == 1
    assert instance.leveret("jobtap", "remove", "nosuch").code == 1
    assert instance.leveret("jobtap", "remove", "staging").code == 1  # built in
    assert instance.leveret("jobtap", "list", check=0).out == ""
    load_hold(instance)
    again = instance.leveret("jobtap", "load", str(instance.base / "hold.py"))
    assert again.code == 1 and "loaded already" in again.err
    listed = instance.leveret("jobtap", "list", "-a", check=0).out.split()
    assert listed[-1] == "hold" and {"dependencies", "perilog", "staging"} < set(listed)


def test_a_deadline_ends_a_hold_as_failed_by_name(instance: Instance) -> None:
    """R27, R33: work that never ends is given up at its deadline, in every state."""
    load_hold(instance, cleanup=[("part", "forever", {"deadline_s": 0.3})])
    jobid = instance.submit("true")
    record = instance.wait(jobid)
    assert (record["result"], record["exit_code"]) == ("FAILED", 1)
    assert "forever" in record["cause"]["note"] and "deadline" in record["cause"]["note"]
    assert instance.contexts(jobid, "part-start")[0]["deadline"] > 0
    assert instance.contexts(jobid, "part-finish")[0]["status"] != 0


def test_r17_a_prolog_that_never_ends_is_abandoned_at_its_deadline(instance: Instance) -> None:
    load_hold(instance, run=[("prolog", "never", {"deadline_s": 0.5})])
    jobid = instance.submit("true")
    instance.wait_event(jobid, "prolog-start")
    instance.client.cancel(jobid)
    assert instance.wait(jobid)["result"] == "CANCELED"
    names = instance.names(jobid)
    in_order(names, "prolog-start", "exception", "prolog-finish", "free", "clean")
    said = [context["note"] for context in instance.contexts(jobid, "exception")]
    assert any("never" in note for note in said), said


def test_plugins_of_the_configuration_are_there_from_the_start(launch: Callable[..., Instance], tmp_path: Path) -> None:
    (tmp_path / "tape.py").write_text(TAPE.replace('self.conf["ledger"]', repr(str(tmp_path / "noted"))))
    text = (tmp_path / "tape.py").read_text().replace('self.conf["gate"]', repr(str(tmp_path)))
    (tmp_path / "tape.py").write_text(text)
    instance = launch(config=f'[job-manager]\nplugins = ["{tmp_path}/tape.py"]\n')
    jobid = instance.submit("true")
    instance.wait(jobid)
    assert instance.contexts(jobid, "epilog-finish") == [{"description": "to-tape", "status": 0}]
