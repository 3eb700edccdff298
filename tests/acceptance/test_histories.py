"""What every version has written is read by this one: eventlogs line by line, and whole databases with jobs that go on.

`tools/record_history.py` records a version once, before it is released; see tests/histories.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Instance, in_order

from leveret.core.event import decode_log
from leveret.core.job import replay
from leveret.core.logcheck import check
from leveret.core.verdict import verdict

HISTORIES = sorted(path.parent for path in (Path(__file__).parent.parent / "histories").glob("*/state.sql"))
assert HISTORIES, "no history of any version"


def expected(history: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads((history / "expected.json").read_text()))


@pytest.mark.parametrize("history", HISTORIES, ids=lambda path: path.name)
def test_r48_logs_of_every_version_lead_to_the_same_end(history: Path) -> None:
    """Also those with events that nobody knows."""
    logs = sorted(history.glob("*.jsonl"))
    assert {path.name.partition(".")[0] for path in logs} == set(expected(history))
    assert b"site.note" in (history / "held-released.jsonl").read_bytes()
    for path in logs:
        report = check(path.read_bytes())
        assert report.problems == [], path
        if path.name.endswith(".exec.jsonl"):
            continue
        known = expected(history)[path.stem]
        job = replay(known["id"], decode_log(path.read_bytes()))
        assert (job.state.name, job.urgency, job.priority) == (known["state"], known["urgency"], known["priority"])
        assert [hold.name for hold in job.holds.values()] == known["holds"]
        if job.done:
            said = verdict(job)
            assert (said.result, said.exit_code, said.waitstatus) == (
                known["result"], known["exit_code"], known["waitstatus"],
            )  # fmt: skip
            assert (said.cause.type if said.cause else None) == known["cause"]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda path: path.name)
def test_r48_databases_of_every_version_are_taken_over(
    launch: Callable[..., Instance], history: Path, tmp_path: Path
) -> None:
    instance = launch(size=2)  # makes the directories; its own state goes
    instance.client.shutdown()
    assert instance.daemon is not None
    instance.daemon.wait(60)
    for end in ("", "-wal", "-shm"):
        Path(f"{instance.state_dir}/leveret.db{end}").unlink(missing_ok=True)
    db = sqlite3.connect(instance.state_dir / "leveret.db")
    db.executescript((history / "state.sql").read_text())
    db.close()
    instance.restart()
    assert instance.client.status()["quarantined"] == 0
    known = expected(history)
    records = {record["id"]: record for record in instance.client.jobs(count=0)}
    assert set(records) == {job["id"] for job in known.values()}
    for name, job in known.items():
        if job["state"] == "INACTIVE":
            record = records[job["id"]]
            kept = {key: record.get(key) for key in job if key not in ("cause", "holds")}
            assert kept == {key: job[key] for key in kept}, name
            assert instance.client.key(job["id"], "eventlog") == (history / f"{name}.jsonl").read_text()
    assert instance.client.output(known["ok"]["id"]) == b"hello\n"
    # what ran has lost its helper: it ends by name, and is not run again; what waited goes on
    lost = instance.wait(known["active-running"]["id"])
    assert (lost["result"], lost["cause"]["severity"]) == ("FAILED", 0) and "helper lost" in lost["cause"]["note"]
    assert lost["annotations"]["user"] == {"kept": True}
    instance.client.urgency(known["active-held"]["id"], 16)
    assert instance.wait(known["active-held"]["id"])["result"] == "COMPLETED"
    assert instance.client.output(known["active-held"]["id"]) == b"after all\n"
    assert instance.wait(known["active-dependent"]["id"])["result"] == "COMPLETED"
    in_order(instance.names(known["active-dependent"]["id"]), "dependency-add", "dependency-remove", "depend", "clean")
    assert instance.leveret("fsck", "--statedir", str(instance.state_dir), check=0).out == ""
    # a job of today gets an id of its own
    assert instance.client.run(["true"]) not in records
