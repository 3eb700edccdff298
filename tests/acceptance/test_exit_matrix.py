"""The exit-path matrix: whatever ends a job, and whatever becomes of the daemon meanwhile, each part of it runs exactly
as often as the table says. Rows of the ledger: prolog, epilog and housekeeping per node, post and stage-out per job."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import Instance, Ledger, drained, processes_of, until

PHASES = ("prolog", "task", "post", "stage-out", "epilog", "housekeeping")
#: notes itself, then waits until its gate is there
SCRIPT = """\
echo "${{FLUX_JOB_ID:-$JOB}} $1 ${{LEVERET_NODE_RANK:-0}}" >> {base}/ledger
if [ -e {base}/fail.$1 ]; then exit 1; fi
until [ -e {base}/open.$1 ]; do sleep 0.02; done
"""
TASK = 'echo "$FLUX_JOB_ID task $FLUX_TASK_RANK" >> {base}/ledger; until [ -e {base}/open.task ]; do sleep 0.02; done; {end}'


class Rows(NamedTuple):
    """How often each part runs, on two nodes."""

    prolog: int = 2
    post: int = 1
    stage_out: int = 1
    epilog: int = 2
    housekeeping: int = 2


WHOLE = Rows()
NEVER = Rows(0, 0, 0, 0, 0)
NOT_STARTED = Rows(post=0, stage_out=0)
ONE_LOST = Rows(epilog=1, housekeeping=1)

EXITS = {
    "exit 0": ("exit 0", "COMPLETED", WHOLE),
    "exit 1": ("exit 1", "FAILED", WHOLE),
    "task killed": ("kill -KILL $$", "FAILED", WHOLE),
    "time limit": ("exec sleep 1000", "TIMEOUT", WHOLE),
    "cancel while running": ("exec sleep 1000", "CANCELED", WHOLE),
    "cancel pending": ("exit 0", "CANCELED", NEVER),
    "cancel in prolog": ("exit 0", "CANCELED", NOT_STARTED),
    "failing prolog": ("exit 0", "FAILED", NOT_STARTED),
    "cancel in epilog": ("exit 0", "COMPLETED", WHOLE),
    "one of two nodes lost": ("exec sleep 1000", "FAILED", ONE_LOST),
}


class Matrix:
    """One instance of two nodes, all of whose parts write into the ledger."""

    def __init__(self, launch: Callable[..., Instance], base: Path) -> None:
        self.base = base
        (base / "ledger").touch()
        script = base / "part.sh"
        script.write_text(SCRIPT.format(base=base))
        config = "".join(
            f'[job-manager.{phase}]\ncommand = ["sh", "{script}", "{phase}"]\n'
            + ("" if phase == "housekeeping" else "per-rank = true\n")
            for phase in ("prolog", "epilog", "housekeeping")
        )
        config += f'[staging]\ncopier = ["sh", "-c", "JOB=$(basename $1) sh {script} stage-out", "-", "{{dst}}"]\n'
        self.instance = launch(size=2, config=config + '[exec]\nkill-timeout = "1s"\n')

    def open(self, *phases: str) -> None:
        for phase in phases:
            (self.base / f"open.{phase}").touch()

    def submit(self, end: str, *options: str) -> str:
        task = TASK.format(base=self.base, end=end)
        post = f"sh {self.base}/part.sh post"
        return self.instance.submit("-N2", "--post", post, "--stage-out", "a:moved", *options, "sh", "-c", task)

    def count(self, phase: str) -> int:
        return self.phases()[phase]

    def phases(self) -> Counter[str]:
        return Counter(row.split()[1] for row in (self.base / "ledger").read_text().splitlines())

    def reached(self, phase: str) -> None:
        wanted = 1 if phase in ("post", "stage-out") else 2
        until(lambda: self.count(phase) == wanted, f"{phase} runs")

    def finish(self, jobid: str, result: str, rows: Rows) -> None:
        record = self.instance.wait(jobid)
        assert record["result"] == result
        self.instance.leveret("housekeeping", "wait", jobid, check=0)
        self.check(rows)
        assert self.instance.client.housekeeping() == []

    def check(self, rows: Rows) -> None:
        seen = self.phases()
        del seen["task"]
        assert seen == +Counter(
            {
                "prolog": rows.prolog, "post": rows.post, "stage-out": rows.stage_out, "epilog": rows.epilog,
                "housekeeping": rows.housekeeping,
            }
        )  # fmt: skip
        per_node = [row.split()[1:] for row in (self.base / "ledger").read_text().splitlines()]
        for phase in ("prolog", "epilog", "housekeeping"):
            nodes = [rank for name, rank in per_node if name == phase]
            assert len(nodes) == len(set(nodes)), f"{phase} ran twice on a node"


@pytest.fixture
def matrix(launch: Callable[..., Instance], tmp_path: Path) -> Matrix:
    base = tmp_path / "parts"
    base.mkdir()
    return Matrix(launch, base)


def lose(instance: Instance, node: int) -> None:
    """LOSE: the node's helper and what it runs are gone."""
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{instance.state_dir}/nodes/node{node}".encode() in words and b"leveret.exec.helper" in words:
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError(f"no helper of node {node}")


@pytest.mark.parametrize("path", EXITS)
def test_r12_r31_every_way_to_end(matrix: Matrix, path: str) -> None:
    end, result, rows = EXITS[path]
    instance = matrix.instance
    if path == "failing prolog":
        (matrix.base / "fail.prolog").touch()
    held = {"cancel in prolog": "prolog", "cancel in epilog": "epilog"}.get(path, "")
    matrix.open(*(phase for phase in PHASES if phase != held))
    options = ["-t", "1s"] if path == "time limit" else ["--urgency=0"] if path == "cancel pending" else []
    jobid = matrix.submit(end, *options)
    if path == "cancel pending":
        instance.client.cancel(jobid)
    elif path == "cancel in prolog":
        matrix.reached("prolog")
        instance.client.cancel(jobid)
    elif path == "cancel in epilog":
        matrix.reached("epilog")
        assert instance.leveret("cancel", jobid).code == 1
        matrix.open("epilog")
    elif path in ("cancel while running", "one of two nodes lost"):
        matrix.reached("task")
        if path == "cancel while running":
            instance.client.cancel(jobid)
        else:
            lose(instance, 1)
            instance.wait_event(jobid, "exception")
    matrix.finish(jobid, result, rows)
    if path == "one of two nodes lost":
        assert list(drained(instance)) == [1]
    elif path == "failing prolog":
        assert list(drained(instance)) == [0, 1]
    else:
        assert drained(instance) == {}, "nobody's end is the fault of a node"


@pytest.mark.parametrize("how", ["kill -9", "orderly"])
@pytest.mark.parametrize("phase", PHASES)
def test_r31_the_daemon_ends_in_each_phase(matrix: Matrix, phase: str, how: str) -> None:
    """The same rows as without: nothing is forgotten, nothing is done twice."""
    matrix.open(*(name for name in PHASES if name != phase))
    jobid = matrix.submit("exit 0")
    matrix.reached(phase)
    again(matrix.instance, how)
    assert matrix.count(phase) == (1 if phase in ("post", "stage-out") else 2)
    matrix.open(phase)
    matrix.finish(jobid, "COMPLETED", WHOLE)
    assert drained(matrix.instance) == {}


@pytest.mark.parametrize("how", ["kill -9", "orderly"])
@pytest.mark.parametrize("phase", ["post", "stage-out", "epilog", "housekeeping"])
def test_r31_the_daemon_ends_while_a_canceled_job_does(matrix: Matrix, phase: str, how: str) -> None:
    matrix.open(*(name for name in PHASES if name != phase))
    jobid = matrix.submit("exec sleep 1000")
    matrix.reached("task")
    matrix.instance.client.cancel(jobid)
    matrix.reached(phase)
    again(matrix.instance, how)
    matrix.open(phase)
    matrix.finish(jobid, "CANCELED", WHOLE)
    assert drained(matrix.instance) == {}


@pytest.mark.parametrize("how", ["kill -9", "orderly"])
def test_r12_the_daemon_ends_in_a_canceled_prolog(matrix: Matrix, how: str) -> None:
    """CRASH between the cancel and the epilog that it brings."""
    matrix.open(*(name for name in PHASES if name not in ("prolog", "epilog")))
    jobid = matrix.submit("exit 0")
    matrix.reached("prolog")
    matrix.instance.client.cancel(jobid)
    matrix.reached("epilog")
    again(matrix.instance, how)
    matrix.open("epilog")
    matrix.finish(jobid, "CANCELED", NOT_STARTED)
    assert drained(matrix.instance) == {}


def again(instance: Instance, how: str) -> None:
    if how == "kill -9":
        instance.crash()
        return
    assert instance.daemon is not None
    instance.client.shutdown(keep=True)
    instance.daemon.wait(60)
    instance.restart()


def test_r33_an_epilog_that_never_ends_on_one_of_eight_nodes(launch: Callable[..., Instance], ledger: Ledger) -> None:
    """After its time limit seven of eight nodes are idle, and the eighth is drained with the reason."""
    script = ledger.base / "epilog.sh"
    script.write_text("trap '' TERM; if [ $LEVERET_NODE_RANK = 5 ]; then while :; do sleep 1; done; fi\n")
    limits = 'per-rank = true\ntimeout = "1s"\nkill-timeout = "1s"\n'
    instance = launch(size=8, config=f'[job-manager.epilog]\ncommand = ["sh", "{script}"]\n{limits}')
    jobid = instance.submit("-N8", "true")
    record = instance.wait(jobid)
    assert record["result"] == "COMPLETED" and record["exception_type"] == "epilog"
    assert record["exception_note"] == "epilog timed out on node5 (rank 5)"
    assert drained(instance) == {5: f"epilog timed out for job {jobid}"}
    assert instance.wait(instance.submit("-N7", "hostname"))["ranks"] == "0-4,6-7"


def test_r33_an_epilog_that_is_given_up(launch: Callable[..., Instance], ledger: Ledger) -> None:
    script = ledger.base / "epilog.sh"
    script.write_text("if [ $LEVERET_NODE_RANK = 5 ]; then exec sleep 1000; fi\n")
    instance = launch(size=8, config=f'[job-manager.epilog]\ncommand = ["sh", "{script}"]\nper-rank = true\n')
    jobid = instance.submit("-N8", "true")
    instance.wait_event(jobid, "epilog-start")
    assert "job-manager.epilog" in instance.leveret("job", "holds", check=0).out
    until(lambda: len(sleepers(instance)) == 1, "seven epilogs are over")
    instance.leveret("job", "give-up", jobid, "--part", "job-manager.epilog", check=0)
    instance.wait(jobid)
    assert list(drained(instance)) == [5]
    assert instance.wait(instance.submit("-N7", "true"))["ranks"] == "0-4,6-7"


def sleepers(instance: Instance) -> list[int]:
    return [pid for pid, text in processes_of(f"{instance.socket}").items() if text.startswith("sleep 1000")]
