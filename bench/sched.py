"""The scheduler alone, on machines that are only described: how its time grows with nodes, and what a slice of a pass takes at most."""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from leveret.core.jobspec import Digest, build, digest
from leveret.core.resources import Rset
from leveret.sched import swf
from leveret.sched.pool import Pool, PoolNode
from leveret.sched.queue import Scheduler, policy
from leveret.sched.simulate import Load, load, simulate, summary

CORES = 64
QUEUED = 100_000
SLICE_S = 0.01  #: as manager/scheduling.py cuts them


def machine(nodes: int) -> Pool:
    return Pool(PoolNode(rank, f"node{rank}", range(CORES)) for rank in range(nodes))


def mix(rng: random.Random, nodes: int) -> list[Digest]:
    """Requests of 300 kinds: single cores, parts of nodes, whole nodes, up to a tenth of the machine; round time limits."""
    kinds = []
    for _ in range(300):
        limit = rng.choice([300, 1800, 3600, 14400, 86400])
        what = rng.random()
        if what < 0.5:
            spec = build(["x"], ntasks=rng.choice([1, 1, 2, 4, 8, 16]), duration_s=limit)
        elif what < 0.8:
            count = rng.randint(1, max(1, nodes // 100))
            spec = build(["x"], nnodes=count, ntasks=count * 32, duration_s=limit)
        else:
            count = rng.randint(1, max(1, nodes // 10))
            spec = build(["x"], nnodes=count, exclusive=True, ntasks=count, duration_s=limit)
        kinds.append(digest(spec))
    return kinds


class Slices:
    """Runs passes as the daemon does, and keeps the longest slice."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.longest = 0.0
        self.busy = 0.0

    def run(self, now: float) -> Iterator[tuple[int, Rset]]:
        steps = self.scheduler.schedule(now)
        over = False
        while not over:
            began = time.perf_counter()
            found: list[tuple[int, Rset]] = []
            for step in steps:
                if step is not None:
                    found.append(step)
                if time.perf_counter() - began > SLICE_S:
                    break
            else:
                over = True
            took = time.perf_counter() - began
            self.longest = max(self.longest, took)
            self.busy += took
            yield from found


def measure(nodes: int, name: str, events: int = 100) -> dict[str, float]:
    gc.collect()
    gc.freeze()  # what is there by now: the daemon does so too
    gc.set_threshold(50_000, 50, 1000)
    rng = random.Random(1)
    pool = machine(nodes)
    scheduler = Scheduler(pool, policy(name))
    kinds = mix(rng, nodes)
    began = time.perf_counter()
    for jobid in range(QUEUED):
        scheduler.add(jobid, 16, rng.choice(kinds))
    adding = time.perf_counter() - began
    slices = Slices(scheduler)
    running: deque[Rset] = deque(rset for _, rset in slices.run(0.0))
    started = len(running)
    filled = slices.busy
    slices.busy = 0.0
    jobid = QUEUED
    allocated = 0
    for event in range(events):  # a steady stream: one ends, one comes, a pass
        began = time.perf_counter()
        pool.release(running.popleft())
        scheduler.add(jobid, 16, rng.choice(kinds))
        slices.busy += time.perf_counter() - began
        jobid += 1
        new = [rset for _, rset in slices.run(1.0 + event)]
        allocated += len(new)
        running.extend(new)
    return {
        "add_us": adding / QUEUED * 1e6,
        "fill_ms": filled * 1e3,
        "filled_jobs": started,
        "us_per_alloc": filled / max(started, 1) * 1e6,
        "event_ms": slices.busy / events * 1e3,
        "stream_jobs": allocated,
        "slice_ms_max": slices.longest * 1e3,
    }


def sched() -> dict[str, float]:
    """The scheduler alone: 100,000 queued jobs on 100, 1,000 and 10,000 nodes of 64 cores; fcfs, easy, conservative."""
    out = {}
    for name in ("fcfs", "easy", "conservative"):
        for nodes in (100, 1000, 10_000):
            for key, value in measure(nodes, name).items():
                out[f"{name}_{nodes}_{key}"] = value
    pool = machine(10_000)
    scheduler = Scheduler(pool)
    want = digest(build(["x"], duration_s=3600))
    for jobid in range(QUEUED):
        scheduler.add(jobid, 16, want)
    slices = Slices(scheduler)
    count = sum(1 for _ in slices.run(0.0))
    out |= {"single_10000_us_per_alloc": slices.busy / count * 1e6, "single_10000_slice_ms_max": slices.longest * 1e3}
    return out


def trivial() -> dict[str, float]:
    """One job of one core on two: add, a pass and the release, with nothing else; microseconds."""
    pool = Pool([PoolNode(0, "n0", range(2))])
    scheduler = Scheduler(pool)
    want = digest(build(["true"]))
    count = 20_000
    began = time.perf_counter()
    for jobid in range(count):
        scheduler.add(jobid, 16, want)
        for found in scheduler.schedule(0.0):
            if found is not None:
                pool.release(found[1])
    whole = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(count):
        rset = pool.allocate(want)
        assert rset is not None
        pool.release(rset)
    return {"whole_us": whole / count * 1e6, "allocate_release_us": (time.perf_counter() - began) / count * 1e6}


def loads(trace: swf.Trace) -> list[Load]:
    """The jobs of a trace that can be replayed: a core is a processor."""
    return [
        load(job.id, job.submit, max(job.runs_s, 1.0), job.asks_s if job.asks_s > 0 else 0.0, job.size)
        for job in trace.jobs
        if job.size > 0 and job.runs_s >= 0
    ]


def replay(path: str | None = None, jobs: int = 4000, processors: int = 256) -> dict[str, float]:
    """A workload (SWF) under fifo, easy and conservative on a simulated clock: utilisation and waits."""
    if path is None:
        trace = swf.synthetic(jobs, processors, random.Random(42).random)
    else:
        with Path(path).open(encoding="utf-8", errors="replace") as lines:
            trace = swf.read(lines)
    cores = trace.processors
    out: dict[str, float] = {}
    workload = loads(trace)
    for name in ("fifo", "easy", "conservative"):
        pool = Pool(
            [PoolNode(rank, f"n{rank}", range(min(64, cores - at))) for rank, at in enumerate(range(0, cores, 64))]
        )
        began = time.perf_counter()
        figures = summary(simulate(workload, pool, policy(name)), cores, len(workload))
        out |= {
            f"{name}_jobs": figures.jobs,
            f"{name}_utilisation": figures.utilisation,
            f"{name}_mean_wait_s": figures.mean_wait_s,
            f"{name}_mean_bounded_slowdown": figures.mean_bounded_slowdown,
            f"{name}_replay_s": time.perf_counter() - began,
        }
    return out


MEASUREMENTS: dict[str, Callable[[], dict[str, float]]] = {"sched": sched, "sched-trivial": trivial, "swf": replay}
