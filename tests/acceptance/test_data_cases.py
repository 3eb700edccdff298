"""Nodes, dependents and cancels while data still moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Instance, Ledger, in_order, until

SIZE = 3_000_000


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def moving(instance: Instance, ledger: Ledger, work: Path, *args: str) -> tuple[str, Path]:
    """A job whose tasks are over and whose result is on its way, held at a gate; and the gate."""
    gate = ledger.gate()
    ledger.steer("mover", f"gate {gate.path}")
    jobid = instance.submit(
        *args, "--stage-out", "result:copy", "sh", "-c", f"head -c {SIZE} /dev/zero > result", cwd=work
    )
    instance.wait_event(jobid, "part-start")
    until(lambda: "move" in ledger.phases(), "the mover has begun")
    return jobid, gate.path


def test_r64_nodes_work_on_while_data_moves(launch: Callable[..., Instance], ledger: Ledger, work: Path) -> None:
    instance = launch(4, config=ledger.mover())
    jobid, gate = moving(instance, ledger, work, "-N4", "-n4")
    other = instance.wait(instance.submit("-N4", "--exclusive", "true"))
    assert other["result"] == "COMPLETED"
    record = instance.record(jobid)
    assert (record["done"], record["phase"]) == (False, "stage-out")
    assert "free" in instance.names(jobid)
    gate.touch()
    done = instance.wait(jobid)
    assert done["t_inactive"] > other["t_inactive"]
    in_order(instance.names(jobid), "finish", "part-start", "free", "part-finish", "clean")


def test_r55_afterok_includes_the_data_of_its_antecedent(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    instance = launch(config=ledger.mover())
    jobid, gate = moving(instance, ledger, work)
    reader = instance.submit(f"--dependency=afterok:{jobid}", "test", "-f", "copy", cwd=work)
    early = instance.wait(instance.submit(f"--dependency=afterfinish:{jobid}", "test", "!", "-e", "copy", cwd=work))
    assert early["result"] == "COMPLETED"
    assert instance.record(reader)["state"] == "DEPEND"
    gate.touch()
    assert instance.wait(reader)["result"] == "COMPLETED"


def test_r32_a_cancel_does_not_cut_an_upload_short(launch: Callable[..., Instance], ledger: Ledger, work: Path) -> None:
    instance = launch(config=ledger.mover())
    jobid, gate = moving(instance, ledger, work)
    refused = instance.leveret("cancel", jobid)
    assert refused.code == 1
    assert "stage-out" in refused.err
    gate.touch()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert (work / "copy").stat().st_size == SIZE


def test_r32_what_was_written_before_a_cancel_is_delivered(
    launch: Callable[..., Instance], ledger: Ledger, work: Path
) -> None:
    instance = launch(config=ledger.mover())
    script = f"head -c {SIZE} /dev/zero > result; touch written; sleep 1000"
    jobid = instance.submit("--stage-out", "result:copy", "sh", "-c", script, cwd=work)
    until((work / "written").exists, "the task has written")
    instance.leveret("cancel", jobid, check=0)
    assert instance.wait(jobid)["result"] == "CANCELED"
    assert (work / "copy").stat().st_size == SIZE
