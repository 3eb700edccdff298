"""Cases of users about parts and their holders, with plugins and processes outside as the holders."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from harness import Instance, Ledger, in_order, until

MOVER = """\
from leveret.plugins.hooks import EpilogHold, PartHold, Plugin, WorkFailed


class Mover(Plugin):
    def event_finish(self, job, event):
        return PartHold("copy-out", work=self.copy(job), uses="storage", deadline_s=self.conf.get("deadline", 60))

    async def copy(self, job):
        argv = ["sh", "-c", self.conf["script"]]
        result = await self.manager.run(job.id, "copy-out", argv)
        if result.status:
            self.manager.log("copy-out: " + result.tail)
            raise WorkFailed(self.conf.get("says", "copy-out failed"), result.status)

    async def resume(self, job, hold):
        await self.copy(job)
"""


def load_mover(instance: Instance, **conf: object) -> None:
    path = instance.base / "mover.py"
    path.write_text(MOVER)
    instance.client.jobtap_load(str(path), conf)


def test_r24_work_that_is_destroyed_without_a_record_is_never_success(instance: Instance, tmp_path: Path) -> None:
    """The task and the helper that watches it are killed in the same moment."""
    pidfile = tmp_path / "pid"
    jobid = instance.submit("sh", "-c", f"echo $$ > {pidfile}.new; mv {pidfile}.new {pidfile}; exec sleep 1000")
    until(pidfile.exists, "the task runs")
    helper = instance.client.status()["helpers"][0]["pid"]
    os.kill(helper, signal.SIGSTOP)  # it can see nothing any more
    os.kill(int(pidfile.read_text()), signal.SIGKILL)
    os.kill(helper, signal.SIGKILL)
    record = instance.wait(jobid)
    assert record["result"] == "FAILED" and record["exit_code"] != 0
    assert instance.leveret("job", "status", jobid).code != 0
    assert instance.attach(jobid).code != 0


def test_r24_the_same_for_a_part(instance: Instance, tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    load_mover(instance, script=f"echo $$ > {pidfile}.new; mv {pidfile}.new {pidfile}; exec sleep 1000")
    jobid = instance.submit("true")
    until(pidfile.exists, "the copy runs")
    helper = instance.client.status()["helpers"][0]["pid"]
    os.kill(helper, signal.SIGSTOP)
    os.kill(int(pidfile.read_text()), signal.SIGKILL)
    os.kill(helper, signal.SIGKILL)
    record = instance.wait(jobid)
    assert record["result"] == "FAILED" and instance.contexts(jobid, "part-finish")[0]["status"] != 0


def test_r28_the_user_sees_a_reason_and_the_administrator_the_details(instance: Instance) -> None:
    load_mover(instance, script="echo secret-host.site refused >&2; exit 3", says="quota of 5 GB reached")
    done = instance.run("true")
    assert done.code == 1
    assert "quota of 5 GB reached" in done.err and "secret-host" not in done.err
    (record,) = instance.client.jobs(count=0)
    (exception,) = instance.contexts(record["id"], "exception")
    assert (exception["severity"], exception["note"]) == (0, "quota of 5 GB reached")
    assert "secret-host.site refused" in (instance.state_dir / "daemon.log").read_text()


def test_r28_one_exception_per_cause_and_not_one_per_node(launch: Callable[..., Instance]) -> None:
    instance = launch(4)
    load_mover(instance, script="exit 3", says="the service is not running")
    jobid = instance.submit("-N4", "true")
    assert instance.wait(jobid)["result"] == "FAILED"
    assert [c["note"] for c in instance.contexts(jobid, "exception")] == ["the service is not running"]


def test_r33_storage_that_hangs_pins_no_node_and_ends_at_its_deadline(launch: Callable[..., Instance]) -> None:
    instance = launch(4)
    load_mover(instance, script="sleep 1000", deadline=3)
    jobid = instance.submit("-N4", "true")
    instance.wait_event(jobid, "free")
    assert instance.holds(jobid) == ["part/copy-out"], "the copy is still under way"
    instance.leveret("jobtap", "load", "-r", "mover", str(instance.base / "mover.py"), "script=true", check=0)
    other = instance.submit("-N4", "true")
    instance.wait_event(other, "start")
    record = instance.wait(jobid)
    assert record["result"] == "FAILED" and record["cause"]["note"] == "copy-out: the deadline has passed"
    start = instance.contexts(jobid, "part-start")[0]
    assert start["deadline"] > record["t_finish"]
    in_order(instance.names(jobid), "part-start", "free", "exception", "part-finish", "clean")


def test_r38_a_part_that_sleeps_for_ever_is_seen_and_killed_at_its_own_limit(
    instance: Instance, tmp_path: Path
) -> None:
    pidfile = tmp_path / "pid"
    load_mover(instance, script=f"echo $$ > {pidfile}.new; mv {pidfile}.new {pidfile}; exec sleep 1000", deadline=3)
    jobid = instance.submit("true")
    until(pidfile.exists, "the part runs")
    pid = int(pidfile.read_text())
    assert "finishing:copy-out" in instance.leveret("jobs", jobid, check=0).out
    (hold,) = json.loads(instance.leveret("job", "holds", "--json", check=0).out)["holds"]
    assert (hold["name"], hold["plugin"], hold["owner"]) == ("copy-out", "mover", "user")
    assert instance.wait(jobid)["result"] == "FAILED"

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    until(gone, "its process is killed")
    instance.crash()
    (finish,) = instance.contexts(jobid, "part-finish")
    assert finish["status"] != 0 and "deadline" in finish["note"], "the outcome is kept"


def test_r40_an_epilog_part_with_its_node_gone_ends_and_runs_once(
    launch: Callable[..., Instance], ledger: Ledger
) -> None:
    instance = launch()
    script = f"echo $$ - copy $$ >> {ledger.path}; sleep 1000"
    load_mover(instance, script=script)
    jobid = instance.submit("true")
    until(lambda: ledger.phases() == ["copy"], "the copy runs")
    helper = instance.client.status()["helpers"][0]["pid"]
    instance.kill_daemon()
    os.kill(helper, signal.SIGKILL)
    instance.restart()
    record = instance.wait(jobid)
    assert record["result"] == "FAILED"
    assert ledger.phases() == ["copy"], "what may have run is not run again"
