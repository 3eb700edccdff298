"""`leveret explain`, `--requires`, reservations and backfill on described machines (jobs only take time there)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Instance

CONFIG = """
[exec]
engine = "simulated"

[[resource.config]]
hosts = "n[0-3]"
cores = "0-3"
memory = "8G"

[[resource.config]]
hosts = "n[2-3]"
properties = ["ssd"]

[sched]
queue-policy = "easy"

[ingest]
feasibility = true
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance(tmp_path_factory.mktemp("machine"), size=4, config=CONFIG).start()
    yield instance
    instance.stop()


def job(machine: Instance, seconds: float, *options: str) -> str:
    """A job that takes so long."""
    return machine.submit(f"--setattr=exec.test.run_duration={seconds}s", *options, "sim")


def kinds(machine: Instance, jobid: str) -> list[str]:
    return [reason["kind"] for reason in machine.client.explain(jobid)["reasons"]]


def test_requires_chooses_nodes_and_what_cannot_be_is_refused(machine: Instance) -> None:
    jobid = job(machine, 0.1, "-N1", "--requires=ssd -host:n2")
    assert machine.wait(jobid)["nodelist"] == "n3"
    refused = machine.leveret("submit", "-N3", "--requires=ssd", "true")
    assert (refused.code, refused.out) == (1, "")
    assert "unsatisfiable request: need 3 exclusive node(s), only 2 eligible" in refused.err
    bad = machine.leveret("submit", "--requires=ssd and", "true")
    assert bad.code == 1 and "Unexpected end of the constraint in position 7" in bad.err


def test_why_a_job_waits_and_when_it_may_start(machine: Instance) -> None:
    big = job(machine, 1000, "-N4", "-t60m")
    machine.wait_event(big, "start")
    head = job(machine, 1, "-N2", "-t10m", "--requires=ssd")
    last = job(machine, 1, "-n1", "-t10m")
    held = job(machine, 1, "--urgency=hold", "-n1")
    after = job(machine, 1, "-n1", f"--dependency=afterok:{big}")
    machine.wait_state(last, "SCHED")
    assert kinds(machine, head) == ["resources"]
    assert kinds(machine, last) == ["resources", "behind"]
    assert kinds(machine, held) == ["held"]
    assert kinds(machine, after) == ["dependency"]
    about = machine.client.explain(head)
    assert about["reasons"][0]["text"] == "needs 2 idle node(s): 0 of 2 eligible nodes (ssd)"
    assert 3500 < about["estimate"] - time.time() < 3610
    text = machine.leveret("explain", head, check=0).out
    assert (
        f"{head} SCHED: needs 2 idle node(s)" in text
        and "may start: in " in text
        and "place in the queue: 1 of 2" in text
    )
    assert [j["id"] for j in json.loads(machine.leveret("explain", "--json", head, last, check=0).out)["jobs"]] == [
        about["id"],
        machine.client.explain(last)["id"],
    ]
    machine.leveret("cancel", after, head, last, held, big, check=0)
    for jobid in (big, head, last, held, after):
        machine.wait(jobid)
    assert machine.client.explain(big)["note"] == "the job is over"
    unknown = machine.leveret("explain", "ƒ2")
    assert unknown.code == 1 and "No such job" in unknown.err


def test_easy_backfill(machine: Instance) -> None:
    three = job(machine, 1000, "-N3", "-t60m")
    machine.wait_event(three, "start")
    head = job(machine, 1, "-N4", "-t10m")
    long = job(machine, 1, "-N1", "-t2h")
    short = job(machine, 1, "-N1", "-t30m")
    assert machine.wait(short)["result"] == "COMPLETED", "it is over before the head could start"
    assert machine.record(long)["state"] == machine.record(head)["state"] == "SCHED"
    assert kinds(machine, long) == ["promised", "behind"]
    machine.client.cancel(three)
    records = [machine.wait(jobid) for jobid in (head, long)]
    assert records[0]["t_run"] < records[1]["t_run"]


def test_a_reservation_is_kept_across_a_crash_and_used_by_name(machine: Instance) -> None:
    machine.leveret("reservation", "add", "class", "-N1", "--requires=host:n1", "--duration=1h", check=0)
    again = machine.leveret("reservation", "add", "class", "--duration=1h")
    assert again.code == 1 and "there already" in again.err
    machine.crash()
    listed = json.loads(machine.leveret("reservation", "list", "--json", check=0).out)["reservations"]
    assert [(r["name"], r["ranks"], r["state"]) for r in listed] == [("class", "1", "active")]
    everywhere = job(machine, 0.1, "-N4", "-t1m")
    machine.wait_state(everywhere, "SCHED")
    assert kinds(machine, everywhere) == ["promised"]
    assert "reservation class" in machine.leveret("explain", everywhere, check=0).out
    inside = job(machine, 0.1, "-N1", "-t1m", "--reservation=class")
    assert machine.wait(inside)["nodelist"] == "n1"
    wrong = machine.leveret("submit", "--reservation=nosuch", "true")
    assert wrong.code == 1 and "reservation `nosuch` is not there" in wrong.err
    machine.leveret("reservation", "remove", "class", check=0)
    assert machine.wait(everywhere)["result"] == "COMPLETED"
    assert machine.leveret("reservation", "remove", "class").code == 1


def test_a_reservation_begins_and_ends_by_itself(machine: Instance) -> None:
    machine.client.reserve("soon", time.time() + 1, 2)
    waits = job(machine, 0.1, "-N1", "-t1h")  # would run into it
    assert machine.record(waits)["state"] == "SCHED"
    assert machine.wait(waits)["result"] == "COMPLETED"
    assert machine.client.reservations() == []


def test_an_instance_with_a_wrong_policy_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "leveret.toml"
    path.write_text('[sched]\nqueue-policy = "best"\n')
    from harness import LEVERET, clean_environ, execute

    done = execute([LEVERET, "start", "--config-path", str(path), "true"], env=clean_environ(LEVERET_CONFIG=str(path)))
    assert done.code != 0 and "queue-policy" in done.err
