"""Rounds of real `kill -9` at random moments under load: of the daemon, of a helper, of both.

20 rounds, or as many as LEVERET_TEST_KILL_ROUNDS says; LEVERET_TEST_SEED makes a run again, as far as a real machine can.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import WATCHDOG_S, Instance, in_order, lines_between, until

from leveret.core import jobspec as jobspecs
from leveret.core.event import Event
from leveret.core.job import violations
from leveret.errors import BusyError, LeveretError, UnreachableError

SEED = int(os.environ.get("LEVERET_TEST_SEED", "20240611"))
ROUNDS = int(os.environ.get("LEVERET_TEST_KILL_ROUNDS", "20"))
#: what a job does: a line in the ledger, so many lines of output with pauses, and its end
JOB = 'echo "$FLUX_JOB_ID" >> {ledger}; i=1; while [ $i -le {lines} ]; do echo line $i; {pause} i=$((i+1)); done; exit {code}'


class Load(threading.Thread):
    """Submits all the time, through daemons that come and go; knows what was acknowledged."""

    def __init__(self, instance: Instance, ledger: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self.instance, self.ledger = instance, ledger
        self.rng = random.Random(seed)
        self.acknowledged: dict[int, tuple[int, int]] = {}  #: id → (lines, exit code)
        self.doubtful = 0  #: submissions whose answer was lost
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self.instance.new_client() as client:
                while not self.over.is_set():
                    self._one(client)
                    if len(client.jobs(states=["active"], count=0)) > 60:
                        time.sleep(0.05)
        except BaseException as error:
            self.error = error

    def _one(self, client: Any) -> None:
        many = self.rng.random() < 0.05
        lines = 8000 if many else self.rng.choice([0, 1, 3, 10])  # 8000 lines are more than is kept in the database
        pause = "sleep 0.0$((i % 5));" if lines <= 10 else ""
        code = self.rng.choice([0, 0, 0, 3])
        script = JOB.format(ledger=self.ledger, lines=lines, pause=pause, code=code)
        spec = jobspecs.build(["sh", "-c", script], cwd="/", environment={"PATH": os.environ["PATH"]})
        try:
            if self.rng.random() < 0.3:
                for jobid in client.submit_copies(spec, [None] * 5):
                    if isinstance(jobid, int):
                        self.acknowledged[jobid] = (lines, code)
            else:
                self.acknowledged[client.submit(spec)] = (lines, code)
        except (UnreachableError, BusyError):
            self.doubtful += 5
        except LeveretError:
            if not self.over.is_set():
                raise


def assert_clean_log(instance: Instance, jobid: int) -> list[str]:
    events = instance.eventlog(jobid)
    assert violations([Event(e["timestamp"], e["name"], e.get("context")) for e in events]) == []
    return [event["name"] for event in events]


@pytest.fixture
def loaded(launch: Callable[..., Instance], tmp_path: Path) -> Any:
    def load(size: int = 4) -> tuple[Instance, Load]:
        instance = launch(size=size)
        ledger = tmp_path / "ledger"
        ledger.touch()
        thread = Load(instance, ledger, SEED)
        thread.start()
        until(lambda: len(thread.acknowledged) >= 5 or thread.error, "the load begins")
        return instance, thread

    return load


def settle(instance: Instance, load: Load, more: int = 0) -> dict[int, dict[str, Any]]:
    """The load ends; every acknowledged job comes to rest. Their records."""
    load.over.set()
    load.join(WATCHDOG_S)
    assert load.error is None and not load.is_alive(), load.error
    until(lambda: not instance.client.jobs(states=["active"], count=0), "everything comes to rest", 240)
    records = {record["id"]: record for record in instance.client.jobs(count=0)}
    lost = set(load.acknowledged) - set(records)
    assert not lost, f"{len(lost)} acknowledged jobs are gone: {sorted(lost)[:5]}"
    assert len(records) <= len(load.acknowledged) + load.doubtful + more
    return records


def test_no_round_of_kills_loses_or_doubles_anything(loaded: Any) -> None:
    print(f"LEVERET_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    instance, load = loaded()
    for _ in range(ROUNDS):
        time.sleep(rng.choice([0.0, 0.05, 0.3]) * rng.random() * 2)  # a random moment, not a measure
        instance.kill_daemon()
        time.sleep(rng.random() * 0.1)
        instance.restart()
        if rng.random() < 0.2:
            instance.kill_daemon()  # as soon as it says that it serves
            instance.restart()
    records = settle(instance, load)
    ran = Counter(load.ledger.read_text().split())
    assert set(ran.values()) <= {1}, f"ran more than once: {[job for job, n in ran.items() if n > 1]}"
    for jobid, (lines, code) in load.acknowledged.items():
        record = records[jobid]
        story = (jobid, record, assert_clean_log(instance, jobid))
        assert record["exit_code"] == code and record["result"] == ("FAILED" if code else "COMPLETED"), story
        assert ran[record["f58"]] == 1, story
        assert instance.client.output(jobid) == lines_between(1, lines).encode(), story
        for name, count in Counter(assert_clean_log(instance, jobid)).items():
            assert count == 1 or name in ("flux-restart", "priority"), (name, story)
    resources = instance.client.status()
    assert resources["quarantined"] == 0
    assert instance.leveret("fsck", "--statedir", str(instance.state_dir), check=0).out == ""


@pytest.mark.parametrize("together", [False, True], ids=["helper", "helper and daemon"])
def test_kills_of_helpers_end_their_jobs_by_name_and_the_node_recovers(loaded: Any, together: bool) -> None:
    rng = random.Random(SEED + together)
    instance, load = loaded(2)
    sleepers: dict[int, int] = {}  # pid → job: tasks that do not end by themselves
    for _ in range(max(3, ROUNDS // 5)):
        time.sleep(rng.random() * 0.4)
        sleeper = instance.client.run(["sleep", "1000"])
        instance.wait_event(sleeper, "start")
        sleepers |= {task["pid"]: sleeper for task in instance.client.tasks(sleeper)}
        pids = [helper["pid"] for helper in instance.client.status()["helpers"]]
        victim = rng.choice(pids)
        if together:
            instance.kill_daemon()
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        if together:
            instance.restart()
        until(
            lambda victim=victim: all(
                helper["connected"] and helper["pid"] != victim for helper in instance.client.status()["helpers"]
            ),
            "another helper",
        )
    for pid, sleeper in sleepers.items():
        if instance.record(sleeper)["done"]:
            assert not alive(pid), "a task outlives its helper and its job"
        else:
            instance.client.cancel(sleeper)
    records = settle(instance, load, len(sleepers))
    ran = Counter(load.ledger.read_text().split())
    assert set(ran.values()) <= {1}, "a job of a lost helper was run again"
    lost = 0
    for jobid, (lines, code) in load.acknowledged.items():
        record = records[jobid]
        names = assert_clean_log(instance, jobid)
        if record["cause"]:
            assert record["result"] == "FAILED" and record["cause"]["type"] == "node-failure", record
            assert "helper lost" in record["cause"]["note"], record
            lost += 1
            # what it has printed is a beginning of what it would have printed
            out = instance.client.output(jobid)
            assert lines_between(1, lines).encode().startswith(out)
        else:
            assert record["exit_code"] == code
            assert instance.client.output(jobid) == lines_between(1, lines).encode()
            in_order(names, "start", "finish", "free", "clean")
    assert lost > 0, "no kill hit a job: the test shows nothing"
    # nothing of them is left, and both nodes take work
    instance.leveret("run", "-N2", "true", check=0)
    assert not leftovers(load.ledger), "tasks outlive their helper"


def alive(pid: int) -> bool:
    """Not one that nobody has reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def leftovers(ledger: Path) -> list[str]:
    from harness import processes_of

    return [line for line in processes_of(str(ledger)).values() if "sh -c" in line or "sh\x00-c" in line]
