"""dump, restore and export by their commands, on instances that run."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Instance, lines_between, processes_of, until

MANY = "i=1; while [ $i -le 30000 ]; do echo line $i; i=$((i+1)); done"


@pytest.mark.parametrize("form", ["copy.tar", "copy"])
def test_an_instance_is_copied_while_it_runs_and_restored_beside_it(
    launch: Callable[..., Instance], tmp_path: Path, form: str
) -> None:
    instance = launch(size=2)
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    ended = instance.submit("sh", "-c", MANY)  # more than is kept in the database
    failed = instance.submit("sh", "-c", "echo no; exit 3")
    instance.wait(ended)
    instance.wait(failed)
    running = instance.submit(
        "sh", "-c", f"echo begun; echo $$ >> {ran}; while ! [ -e {gate} ]; do sleep 0.02; done; echo end"
    )
    until(ran.exists, "the job runs")
    held = instance.submit("--urgency=0", "echo", "held")
    target = tmp_path / form
    said = json.loads(instance.leveret("dump", "--json", str(target), check=0).out)
    assert (said["path"], said["files"], said["missing"]) == (str(target), 2, [])
    assert tarfile.is_tarfile(target) if form.endswith(".tar") else target.is_dir()
    again = instance.leveret("dump", str(target))
    assert again.code == 1 and "exists already" in again.err
    later = instance.submit("--urgency=0", "true")
    # beside the one that runs: a second instance of the same past
    other = Instance(tmp_path / "other", 2)
    refused = instance.leveret("restore", str(target), "--statedir", str(instance.state_dir))
    assert refused.code == 1 and "not empty" in refused.err
    instance.leveret("restore", str(target), "--statedir", str(other.state_dir), check=0)
    other.start()
    try:
        listed = other.leveret("jobs", "-a", "--ids", check=0).out.split()
        assert set(listed) == {ended, failed, running, held} and later not in listed
        assert other.attach(ended).out == lines_between(1, 30000)
        assert other.attach(failed).code == 3
        assert other.client.key(ended, "eventlog") == instance.client.key(ended, "eventlog")
        # what ran belongs to the instance that was copied: here it is over, there it goes on
        record = other.wait(running)
        assert record["result"] == "FAILED" and "helper lost" in record["cause"]["note"]
        assert instance.record(running)["state"] == "RUN" and processes_of(str(gate)), (
            "the copy has ended the original's task"
        )
        new = other.submit("true")
        assert new not in (later, *listed)
        other.leveret("job", "urgency", held, "16", check=0)
        assert other.attach(held).out == "held\n"
        assert other.leveret("fsck", "--statedir", str(other.state_dir), check=0).out == ""
    finally:
        other.stop()
    gate.touch()
    assert instance.attach(running).out == "begun\nend\n"
    assert len(ran.read_text().split()) == 1


def test_a_job_as_one_record(instance: Instance, tmp_path: Path) -> None:
    jobid = instance.submit("sh", "-c", MANY + "; printf '\\377'")
    record = instance.wait(jobid)
    path = tmp_path / "job.json"
    path.write_text(instance.leveret("job", "export", jobid, check=0).out)
    said = json.loads(path.read_text())
    assert (said["format"], said["version"], said["id"], said["f58"]) == ("leveret-job-record", 1, record["id"], jobid)
    assert said["record"]["result"] == "COMPLETED" and said["jobspec"]["tasks"][0]["command"][0] == "sh"
    assert said["jobspec"]["attributes"]["system"]["environment"]["PATH"], "the environment is stored apart"
    assert said["R"]["execution"]["R_lite"]
    assert said["eventlog"] == instance.eventlog(jobid)
    assert said["guest"]["exec.eventlog"] == instance.eventlog(jobid, "exec")
    assert said["guest"]["output"] == instance.eventlog(jobid, "output")
    assert len(path.read_bytes()) > 300_000, "the part of the output that lies in a file is missing"
    assert not [key for key in said["keys"] if key.startswith(("ask/", "hold/"))]
    assert instance.leveret("eventlog", "check", str(path), "--job", jobid, check=0).out == ""
    broken = path.read_text().replace('"name":"start"', '"name":"star"', 1)
    path.write_text(broken)
    check = instance.leveret("eventlog", "check", str(path))
    assert check.code == 1 and f"{path}:eventlog:7: finish: the job was not started" in check.out, check
    missing = instance.leveret("job", "export", "f1")
    assert missing.code == 1 and missing.out == ""


def test_export_of_a_job_that_is_active(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    said = json.loads(instance.leveret("job", "export", jobid, check=0).out)
    assert said["record"]["state"] == "SCHED" and said["R"] is None and said["guest"] == {}
    instance.client.cancel(jobid)
