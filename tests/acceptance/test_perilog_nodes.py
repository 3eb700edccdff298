"""Prologs and epilogs on real nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Instance, Ledger, drained, until

PER_RANK = "per-rank = true\n"


def rows(ledger: Ledger, job: str, phase: str) -> int:
    return ledger.phases(job).count(phase)


def test_every_node_of_the_job_and_its_output_in_the_log(launch: Callable[..., Instance], ledger: Ledger) -> None:
    config = ledger.perilog("prolog", extra=PER_RANK) + ledger.perilog("epilog", extra=PER_RANK)
    instance = launch(size=3, config=config + '[job-manager.perilog]\nlog-ignore = ["secret"]\n')
    script = ledger.base / "prolog.sh"
    script.write_text(script.read_text() + "echo out of $LEVERET_NODE_RANK; echo secret; echo err >&2\n")
    jobid = instance.submit("-N2", "true")
    instance.wait(jobid)
    assert rows(ledger, jobid, "prolog") == rows(ledger, jobid, "epilog") == 2
    said = [text.partition("]: ")[2] for text in instance.leveret("dmesg", check=0).out.splitlines()]
    for rank in (0, 1):
        assert f"{jobid}: prolog: node{rank} (rank {rank}): stdout: out of {rank}" in said
        assert f"{jobid}: prolog: node{rank} (rank {rank}): stderr: err" in said
    assert not any("secret" in text or ("node2" in text and "prolog" in text) for text in said)


def test_r65_one_node_whose_prolog_fails(launch: Callable[..., Instance], ledger: Ledger) -> None:
    """It alone is drained; the epilog runs on both, for on both the prolog began; the other takes the next job."""
    config = ledger.perilog("prolog", extra=PER_RANK) + ledger.perilog("epilog", extra=PER_RANK)
    instance = launch(size=2, config=config)
    script = ledger.base / "prolog.sh"
    script.write_text(script.read_text() + "test $LEVERET_NODE_RANK = 0\n")
    jobid = instance.submit("-N2", "true")
    record = instance.wait(jobid)
    assert (record["result"], record["cause"]["type"]) == ("FAILED", "prolog")
    assert record["cause"]["note"] == "prolog exited with code=1 on node1 (rank 1)"
    assert rows(ledger, jobid, "prolog") == rows(ledger, jobid, "epilog") == 2
    assert "start" not in instance.names(jobid)
    assert drained(instance) == {1: f"prolog failed for job {jobid}"}
    assert instance.run("-N1", "true").code == 0


@pytest.mark.parametrize("exit_path", ["cancel", "timeout"])
def test_r12_once_a_prolog_has_begun_its_epilog_runs(
    launch: Callable[..., Instance], ledger: Ledger, exit_path: str
) -> None:
    limit = 'timeout = "0.5s"\n' if exit_path == "timeout" else ""
    config = ledger.perilog("prolog", "hang", PER_RANK + limit) + ledger.perilog("epilog", extra=PER_RANK)
    instance = launch(size=2, config=config)
    jobid = instance.submit("-N2", "true")
    if exit_path == "cancel":
        until(lambda: rows(ledger, jobid, "prolog") == 2, "both prologs run")
        instance.client.cancel(jobid)
    record = instance.wait(jobid)
    assert record["result"] == ("CANCELED" if exit_path == "cancel" else "FAILED")
    assert rows(ledger, jobid, "prolog") == rows(ledger, jobid, "epilog") == 2
    assert "start" not in instance.names(jobid)
    # a cancel is no fault of a node; an overrun is
    reason = f"prolog timed out for job {jobid}"
    assert drained(instance) == ({} if exit_path == "cancel" else {0: reason, 1: reason})


def test_r30_an_epilog_is_not_canceled(launch: Callable[..., Instance], ledger: Ledger) -> None:
    gate = ledger.gate()
    config = ledger.perilog("epilog", f"gate {gate.path}", PER_RANK)
    instance = launch(size=2, config=config)
    jobid = instance.submit("-N2", "true")
    until(lambda: rows(ledger, jobid, "epilog") == 2, "both epilogs run")
    for _ in range(3):
        refused = instance.leveret("cancel", jobid, check=1)
        assert "job-manager.epilog" in refused.err
    gate.open()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert rows(ledger, jobid, "epilog") == rows(ledger, jobid, "epilog-end") == 2
    assert drained(instance) == {}
