"""Attach 200 times at random moments of jobs' lives and after: each prints the same bytes once, none hangs (R68)."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from harness import Instance, Result

SEED = int(os.environ.get("LEVERET_TEST_SEED", "20240611"))
ATTACHES = 200
#: (options, command, stdout, stderr, exit code): both streams, bursts, silence, an early failure, a signal
CASES: list[tuple[list[str], list[str], bytes, bytes, int]] = [
    (
        [],
        ["sh", "-c", "i=1; while [ $i -le 60 ]; do echo line $i; echo err $i >&2; sleep 0.03; i=$((i+1)); done"],
        b"".join(b"line %d\n" % i for i in range(1, 61)),
        b"".join(b"err %d\n" % i for i in range(1, 61)),
        0,
    ),
    (
        [],
        ["sh", "-c", "seq 1 8000; sleep 1; seq 1 8000; exit 7"],  # more than is kept in the database
        2 * b"".join(b"%d\n" % i for i in range(1, 8001)),
        b"leveret-job: task(s) exited with exit code 7\n",
        7,
    ),
    (["-N2"], ["sh", "-c", "sleep 0.$FLUX_TASK_RANK; echo same"], b"same\nsame\n", b"", 0),
    ([], ["sh", "-c", "printf 'no newline'; sleep 0.5"], b"no newline", b"", 0),
    ([], ["true"], b"", b"", 0),
    ([], ["sh", "-c", "echo dying; kill -9 $$"], b"dying\n", b"leveret-job: task(s) Killed\n", 137),
]


def test_r68_attach_200_times_at_random_moments(launch: Callable[..., Instance]) -> None:
    print(f"LEVERET_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    instance = launch(size=2)
    jobs: list[tuple[str, int]] = []
    done_submitting = threading.Event()

    def submit() -> None:
        order = [number for number in range(len(CASES)) for _ in range(3)]
        rng.shuffle(order)
        for case in order:
            jobs.append((instance.submit(*CASES[case][0], *CASES[case][1]), case))
        done_submitting.set()

    def attach(picked: float, delay_s: float) -> tuple[str, int, Result]:
        time.sleep(delay_s)
        jobid, case = jobs[int(picked * len(jobs))]
        return jobid, case, instance.attach(jobid, binary=True)

    plan = [(rng.random() ** 0.5, rng.random() * 0.1) for _ in range(ATTACHES)]
    submitter = threading.Thread(target=submit)
    submitter.start()
    while not jobs:
        time.sleep(0.01)
    try:
        with ThreadPoolExecutor(6) as pool:
            ends = list(pool.map(lambda one: attach(*one), plan))
    finally:
        submitter.join()
    # and after: every job once more
    ends += [(jobid, case, instance.attach(jobid, binary=True)) for jobid, case in jobs]
    assert len(ends) == ATTACHES + len(jobs)
    seen: dict[str, set[tuple[bytes, str, int]]] = {}
    for jobid, case, end in ends:
        _, command, out, err, code = CASES[case]
        assert end.code == code, (command, end.err)
        assert end.out == out, (command, len(end.out), len(out), end.out[-60:])
        assert end.err == err.decode(), command
        seen.setdefault(jobid, set()).add((end.out, end.err, end.code))
    assert {len(ways) for ways in seen.values()} == {1}


def test_r68_attach_in_the_last_moments_of_a_job_never_hangs(instance: Instance) -> None:
    """Waits for `finish`, or even `clean`, and attaches right then."""
    for number in range(12):
        jobid = instance.submit("sh", "-c", f"echo {number}")
        instance.wait_event(jobid, ("finish", "release", "clean")[number % 3])
        assert instance.attach(jobid) == (0, f"{number}\n", "")


def test_attach_tail_and_labels_of_a_finished_job(instance: Instance) -> None:
    jobid = instance.submit("-n2", "sh", "-c", "test $FLUX_TASK_RANK = 1 || seq 1 100")
    instance.wait(jobid)
    assert instance.attach(jobid, "--tail=3").out == "98\n99\n100\n"
    assert instance.attach(jobid, "-l").out == "".join(f"0: {i}\n" for i in range(1, 101))
