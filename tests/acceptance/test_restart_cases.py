"""Real users' faults about restarts, as tests (R40 to R51): parts in flight, plugins that come late, a manager that is away."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Instance, Ledger, load_hold, until


@pytest.mark.parametrize("gone", [False, True], ids=["daemon", "daemon and node"])
@pytest.mark.parametrize("phase", ["prolog", "task", "move", "epilog"])
def test_r40_parts_in_flight_are_found_again_or_given_up_by_name(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path, phase: str, gone: bool
) -> None:
    """The job ends, whatever was in flight and whether its node is still there; no part runs twice."""
    gate = ledger.gate()
    instance = launch(config=ledger.perilog("prolog") + ledger.perilog("epilog") + ledger.mover())
    (tmp_path / "data").write_text("data\n")
    task = f'echo "$FLUX_JOB_ID - task $$" >> {ledger.path}'
    if phase == "task":
        task += f"; while ! [ -e {gate.path} ]; do sleep 0.02; done"
    else:
        ledger.steer({"move": "mover"}.get(phase, phase), f"gate {gate.path}")
    jobid = instance.submit("--stage-out", "data:copy", "sh", "-c", task, cwd=tmp_path)
    until(lambda: phase in ledger.phases(), f"the {phase} runs")
    helper = instance.client.status()["helpers"][0]["pid"]
    instance.kill_daemon()
    if gone:
        os.kill(helper, signal.SIGKILL)  # and with it what the node ran
    instance.restart()
    if not gone:
        gate.open()
    record = instance.wait(jobid)
    names = instance.names(jobid)
    if gone:
        # an epilog is the site's: its loss is on the record, and not the job's failure
        if phase == "epilog":
            assert instance.contexts(jobid, "epilog-finish")[0]["status"] != 0
        else:
            assert record["result"] == "FAILED" and "lost" in record["cause"]["note"], record
    else:
        assert record["result"] == "COMPLETED", record
    for name in set(names) - {"exception"}:
        assert names.count(name) == 1, (name, names)
    for what in ("prolog", "task", "move", "epilog"):
        assert ledger.phases().count(what) <= 1, ledger.rows()
    gate.open()
    if gone:
        instance.leveret(
            "resource", "undrain", "0"
        )  # the site has looked at it; where it was not drained that is refused
    assert instance.run("echo", "again").out == "again\n"


SLOW = '''\
import pathlib, time
from leveret.plugins.hooks import EpilogHold, Plugin

BASE = pathlib.Path(__file__).parent


class Storage(Plugin):
    """Takes long to load, and must not miss the end of a job that it has given storage to."""

    def __init__(self, *args):
        super().__init__(*args)
        if (BASE / "slow").exists():
            time.sleep(2)
        (BASE / "loaded").touch()

    def state_run(self, job):
        (BASE / f"storage-{job.id}").touch()

    def state_cleanup(self, job):
        return EpilogHold("storage", work=self.remove_storage(job))

    def resume(self, job, hold):
        return self.remove_storage(job)

    async def remove_storage(self, job):
        with open(BASE / "removed", "a") as file:
            file.write(f"{job.id}\\n")
        (BASE / f"storage-{job.id}").unlink(missing_ok=True)
        return 0
'''


def test_r41_no_job_goes_on_before_its_plugins_are_there(launch: Callable[..., Instance], tmp_path: Path) -> None:
    """The job is failed by the restart itself (its helper is gone), and the plugin, slow to load, sees that."""
    (tmp_path / "storage.py").write_text(SLOW)
    instance = launch(config=f'[job-manager]\nplugins = ["{tmp_path}/storage.py"]\n')
    jobid = instance.submit("sleep", "1000")
    instance.wait_event(jobid, "start")
    number = instance.record(jobid)["id"]
    assert (tmp_path / f"storage-{number}").exists()
    helper = instance.client.status()["helpers"][0]["pid"]
    (tmp_path / "slow").touch()
    instance.kill_daemon()
    os.kill(helper, signal.SIGKILL)
    instance.restart()
    assert instance.wait(jobid)["result"] == "FAILED"
    names = instance.names(jobid)
    assert names.count("epilog-start") == names.count("epilog-finish") == 1
    assert names.index("epilog-start") > names.index("start") and names.index("epilog-finish") < names.index("clean")
    assert (tmp_path / "removed").read_text() == f"{number}\n"
    assert not (tmp_path / f"storage-{number}").exists(), "storage is left behind"


def test_r42_holds_are_the_managers_and_survive_their_plugins_memory(launch: Callable[..., Instance]) -> None:
    """Twenty jobs, each with a prolog's hold when it runs: the same holds before and after the crash, and all complete."""
    instance = launch(size=2)
    load_hold(instance, run=[("prolog", "mount", {})], depend=[("dependency", "create", {})])
    ids = instance.leveret("submit", "-N1", "--cc=1-20", "true", check=0).out.split()

    def holds() -> dict[str, list[tuple[str, str, str]]]:
        return {
            job: [(hold["kind"], hold["name"], hold["plugin"]) for hold in instance.record(job)["holds"]] for job in ids
        }

    def kept() -> int:
        return sum(plugin["holds"] for plugin in instance.client.jobtap() if plugin["name"] == "hold")

    for job in ids[:10]:
        instance.client.finish_hold(job, "create", kind="dependency")
    until(lambda: sum(instance.record(job)["state"] == "RUN" for job in ids) == 2, "as many run as there are nodes")
    before, count = holds(), kept()
    assert count == sum(len(some) for some in before.values()) == 10 + 2
    instance.crash()
    assert (holds(), kept()) == (before, count)
    instance.crash()
    for job in ids[10:]:
        instance.client.finish_hold(job, "create", kind="dependency")
    left = set(ids)
    while left:
        for job in sorted(left):
            record = instance.record(job)
            if any(hold["name"] == "mount" for hold in record["holds"]):
                instance.client.finish_hold(job, "mount", kind="prolog")
            elif record["done"]:
                left.discard(job)
                assert record["result"] == "COMPLETED"
    for job in ids:
        names = instance.names(job)
        for name in ("dependency-add", "dependency-remove", "prolog-start", "prolog-finish", "start", "clean"):
            assert names.count(name) == 1, names


@pytest.mark.parametrize("away", ["stopped", "killed"])
def test_r50_what_ends_while_the_manager_is_away_is_heard_of(
    launch: Callable[..., Instance], ledger: Ledger, away: str
) -> None:
    """A hundred tasks and their epilogs, in two halves: tasks end, or epilogs do, while nobody listens."""
    tasks, epilogs = ledger.gate(), ledger.gate()
    config = ledger.perilog("epilog", f"gate {epilogs.path}")
    config += '[resource]\nnoverify = true\n[[resource.config]]\nhosts = "node[0-1]"\ncores = "0-49"\n'
    instance = launch(size=2, config=config)
    wait = f"echo $FLUX_JOB_ID - task $$ >> {ledger.path}; while ! [ -e {tasks.path} ]; do sleep 0.1; done"
    wait += f"; echo $FLUX_JOB_ID - task-end $$ >> {ledger.path}"
    first = instance.leveret("submit", "--cc=1-50", "true", check=0).out.split()
    until(lambda: ledger.phases().count("epilog") == 50, "fifty epilogs run")
    second = instance.leveret("submit", "--cc=1-50", "sh", "-c", wait, check=0).out.split()
    until(lambda: ledger.phases().count("task") == 50, "fifty tasks run")
    assert instance.daemon is not None
    if away == "killed":
        instance.kill_daemon()
    else:
        instance.daemon.send_signal(signal.SIGSTOP)
    tasks.open()
    epilogs.open()
    until(lambda: ledger.phases().count("task-end") == 50, "the tasks end, unheard")
    until(lambda: ledger.phases().count("epilog-end") >= 50, "the epilogs end, unheard")
    if away == "killed":
        instance.restart()
    else:
        instance.daemon.send_signal(signal.SIGCONT)
    for job in first + second:
        assert instance.wait(job)["result"] == "COMPLETED"
        assert ledger.phases(job).count("epilog") == 1
        names = instance.names(job)
        assert len(names) == len(set(names))


def test_r51_a_shutdown_is_bounded_and_says_what_it_leaves(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path
) -> None:
    """A hung epilog and a hung mover: the instance ends in time and names both; the next start resumes them."""
    gate = ledger.gate()
    instance = launch(size=2, config=ledger.perilog("epilog") + ledger.mover())
    (tmp_path / "data").write_text("data\n")
    ledger.steer("mover", f"deaf {gate.path}")
    moving = instance.submit("-N1", "--stage-out", "data:copy", "true", cwd=tmp_path)
    until(lambda: "move" in ledger.phases(), "the mover runs")
    ledger.steer("epilog", f"deaf {gate.path}")
    tidying = instance.submit("-N1", "true")
    until(lambda: "epilog" in ledger.phases(tidying), "the epilog runs")
    rows = ledger.rows()
    done = instance.leveret("shutdown", "--keep", "--timeout=1s", check=0)
    left = [line for line in done.err.splitlines() if "left behind" in line]
    assert len(left) == 2, done.err
    assert any(moving in line and "stage-out" in line for line in left), done.err
    assert any(tidying in line and "epilog" in line for line in left), done.err
    instance.restart()
    assert ledger.rows() == rows, "something was begun again"
    assert instance.record(moving)["phase"] == "stage-out" and instance.record(tidying)["phase"] == "epilog"
    # also one that ends everything does not wait for ever; what it ended is not run again
    done = instance.leveret("shutdown", "--timeout=1s", check=0)
    assert len([line for line in done.err.splitlines() if "left behind" in line]) == 2, done.err
    ledger.steer("epilog", "ok 0")
    instance.restart()
    assert instance.wait(moving)["result"] == "FAILED"
    assert instance.wait(tidying)["done"]
    assert ledger.phases().count("move") == 1 and ledger.phases(tidying).count("epilog") == 1
