"""Housekeeping on real nodes: it never holds the prompt, and the nodes go back one by one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from harness import Instance, Ledger, drained, until


def listed(instance: Instance) -> list[str]:
    form = "{id} {allocated.ranks} {pending.ranks}"
    return list(instance.leveret("housekeeping", "list", "-no", form, check=0).out.splitlines())


@pytest.mark.parametrize("crash", [False, True])
def test_r03_housekeeping_never_holds_the_prompt(launch: Callable[..., Instance], ledger: Ledger, crash: bool) -> None:
    gate = ledger.gate()
    instance = launch(config=ledger.perilog("housekeeping", f"gate {gate.path}"))
    assert instance.run("-N1", "true").code == 0  # back, and its node is not
    first = str(instance.leveret("job", "last", check=0).out).strip()
    until(lambda: ledger.phases(first) == ["housekeeping"], "housekeeping runs")
    assert instance.record(first)["done"] and instance.names(first)[-2:] == ["free", "clean"]
    assert listed(instance) == [f"{first} 0 0"]
    following = instance.submit("-N1", "true")
    if crash:
        instance.crash()
    assert instance.wait_state(following, "SCHED")
    assert ledger.phases() == ["housekeeping"]
    gate.open()
    instance.leveret("housekeeping", "wait", first, check=0)
    instance.wait(following)
    instance.leveret("housekeeping", "wait", following, check=0)
    assert ledger.phases(first) == ledger.phases(following) == ["housekeeping", "housekeeping-end"]
    assert listed(instance) == [] and drained(instance) == {}


def test_r34_a_node_that_hangs_or_fails_holds_no_other(launch: Callable[..., Instance], ledger: Ledger) -> None:
    script = ledger.base / "tidy.sh"
    script.write_text("case $LEVERET_NODE_RANK in 1) exit 3;; 2) exec sleep 1000;; esac\n")
    instance = launch(size=4, config=f'[job-manager.housekeeping]\ncommand = ["sh", "{script}"]\n')
    jobid = instance.submit("-N4", "true")
    instance.wait(jobid)
    until(lambda: listed(instance) == [f"{jobid} 2 2"], "three nodes are done")
    assert drained(instance) == {1: f"housekeeping failed for job {jobid}"}
    second = instance.submit("-N2", "true")
    assert instance.wait(second)["ranks"] == "0,3"
    rows = json.loads(instance.leveret("housekeeping", "list", "--json", check=0).out)["jobs"]
    assert [row["pending"]["nodelist"] for row in rows if row["id"] == instance.record(jobid)["id"]] == ["node2"]
    refused = instance.leveret("housekeeping", "kill", check=1)
    assert "specify at least one of --targets, --jobid, or --all" in refused.err
    assert instance.leveret("housekeeping", "kill", "-t", "node9", "-j", jobid).code != 0
    instance.leveret("housekeeping", "kill", "-t", "node2", check=0)
    instance.leveret("housekeeping", "wait", jobid, check=0)
    assert list(drained(instance)) == [1], "what an operator ends is no fault of the node"
    assert instance.leveret("housekeeping", "wait", "ƒ11111").code != 0
    assert instance.leveret("housekeeping", "list", "-i", "0", "-n", check=0).out == ""
