"""`yes | head -c 500M` through a job (R70): complete by default, cut where a limit is set, and never a burden."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import WATCHDOG_S, Instance

FLOOD_BYTES = 500 << 20
MEMORY_BYTES_MAX = 400 << 20
DATABASE_BYTES_MAX = 50 << 20


@pytest.fixture
def flooded(launch: Callable[..., Instance], tmp_path: Path) -> Instance:
    if shutil.disk_usage(tmp_path).free < 3 * FLOOD_BYTES:
        pytest.skip("not enough disk for half a gigabyte of output")
    return launch()


def database_bytes(instance: Instance) -> int:
    return sum(path.stat().st_size for path in instance.state_dir.glob("leveret.db*"))


def test_r70_five_hundred_megabytes_come_out_complete(flooded: Instance) -> None:
    jobid = flooded.submit("sh", "-c", "yes | head -c 500M")
    attach = flooded.popen("job", "attach", jobid)
    assert attach.stdout is not None
    digest, size = hashlib.sha256(), 0
    try:
        while piece := attach.stdout.read(1 << 20):
            digest.update(piece)
            size += len(piece)
        assert attach.wait(WATCHDOG_S) == 0
    finally:
        attach.kill()
        _, err = attach.communicate()
    assert (size, err) == (FLOOD_BYTES, b"")
    wanted = hashlib.sha256()
    for _ in range(500):
        wanted.update(b"y\n" * (1 << 19))
    assert digest.digest() == wanted.digest()
    assert flooded.wait(jobid)["result"] == "COMPLETED"
    assert flooded.high_water_bytes() < MEMORY_BYTES_MAX
    assert database_bytes(flooded) < DATABASE_BYTES_MAX


def test_r70_a_limit_cuts_output_explicitly_and_once(flooded: Instance) -> None:
    done = flooded.run("-o", "output.limit=1M", "sh", "-c", "yes | head -c 500M", binary=True, timeout_s=120)
    assert done.code == 0
    assert len(done.out) == 1 << 20 and set(done.out) == set(b"y\n")
    warnings = [text.partition(": ")[2] for text in done.err.splitlines()]
    assert warnings == [
        "leveret-shell[0]:  WARN: output.kvs: stdout will be truncated, 1048576 limit exceeded",
        f"leveret-shell[0]:  WARN: output.kvs: stdout: {FLOOD_BYTES - (1 << 20)} of {FLOOD_BYTES} bytes truncated",
    ]
    jobid = flooded.leveret("job", "last").out.strip()
    again = flooded.attach(jobid, binary=True)
    assert again == done
    assert database_bytes(flooded) < DATABASE_BYTES_MAX


def test_r70_cancel_works_while_it_flows(flooded: Instance) -> None:
    # for ever, at a rate that leaves room on the disk
    jobid = flooded.submit("sh", "-c", "while :; do yes | head -c 2M; sleep 0.04; done")
    reader = flooded.popen("job", "attach", jobid, stdout=subprocess.PIPE)
    stuck = flooded.popen("job", "attach", jobid, stdout=subprocess.PIPE)  # nobody reads this one
    try:
        assert reader.stdout is not None
        for _ in range(32):
            assert len(reader.stdout.read(1 << 20)) == 1 << 20
        flooded.leveret("cancel", jobid, check=0)
        assert flooded.wait(jobid)["result"] == "CANCELED"
        tail = b""
        while piece := reader.stdout.read(1 << 20):
            tail = piece
        assert set(tail) <= set(b"y\n")
        assert reader.wait(WATCHDOG_S) == 143
    finally:
        for process in (reader, stuck):
            process.kill()
            process.communicate()
    assert flooded.run("echo", "hi").out == "hi\n"
    assert flooded.high_water_bytes() < MEMORY_BYTES_MAX


def test_a_reader_that_goes_away_does_not_matter(flooded: Instance) -> None:
    jobid = flooded.submit("sh", "-c", "yes | head -c 20M")
    reader = flooded.popen("job", "attach", jobid)
    assert reader.stdout is not None
    reader.stdout.read(1 << 16)
    reader.stdout.close()
    assert reader.wait(WATCHDOG_S) == 141  # as any command whose reader has gone
    assert reader.stderr is not None
    reader.stderr.close()
    assert flooded.wait(jobid)["result"] == "COMPLETED"
    assert len(flooded.attach(jobid, binary=True).out) == 20 << 20
