"""What a policy would make of a workload: the scheduler on a clock that only the workload moves. Pure; times are seconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from leveret.core.jobspec import Digest, build, digest
from leveret.core.resources import Rset
from leveret.sched.pool import Pool
from leveret.sched.queue import Policy, Scheduler


class Load(NamedTuple):
    """One job of a workload."""

    id: int
    submit: float
    runs_s: float
    limit_s: float  #: what it asks for; 0 is unlimited. It is ended there, as a time limit does
    want: Digest


class Outcome(NamedTuple):
    job: Load
    start: float
    end: float
    cores: int

    @property
    def wait_s(self) -> float:
        return self.start - self.job.submit


class Summary(NamedTuple):
    jobs: int
    utilisation: float  #: of the cores, from the first submission to the last one
    mean_wait_s: float
    max_wait_s: float
    mean_bounded_slowdown: float  #: (wait + max(run, 10)) / max(run, 10)
    makespan_s: float
    unsatisfiable: int


def load(jobid: int, submit: float, runs_s: float, limit_s: float, cores: int, nodes: int = 0) -> Load:
    """A job of so many tasks of one core, on so many nodes (0: wherever there are cores)."""
    want = digest(build(["job"], ntasks=max(cores, nodes, 1), nnodes=nodes, duration_s=limit_s))
    return Load(jobid, submit, min(runs_s, limit_s) if limit_s else runs_s, limit_s, want)


def simulate(
    jobs: Iterable[Load],
    pool: Pool,
    rules: Policy,
    observe: Callable[[float, Scheduler], None] | None = None,
) -> list[Outcome]:
    """Run the workload to its end. `observe(now, scheduler)` is called after each pass. What can never run is left out."""
    scheduler = Scheduler(pool, rules)
    by_id: dict[int, Load] = {}
    arrivals = sorted(jobs, key=lambda job: (job.submit, job.id))
    running: list[tuple[float, int, Rset]] = []
    outcomes: list[Outcome] = []
    at = 0
    while at < len(arrivals) or running:
        now = min(
            arrivals[at].submit if at < len(arrivals) else float("inf"),
            running[0][0] if running else float("inf"),
        )
        while running and running[0][0] <= now:
            _, _, rset = heapq.heappop(running)
            pool.release(rset)
        while at < len(arrivals) and arrivals[at].submit <= now:
            job = arrivals[at]
            at += 1
            if not pool.shortage(job.want):
                by_id[job.id] = job
                scheduler.add(job.id, 16, job.want)
        for found in scheduler.schedule(now):
            if found is not None:
                job, rset = by_id.pop(found[0]), found[1]
                heapq.heappush(running, (now + job.runs_s, job.id, rset))
                outcomes.append(Outcome(job, now, now + job.runs_s, rset.ncores()))
        if observe is not None:
            observe(now, scheduler)
    return outcomes


def summary(outcomes: list[Outcome], cores: int, submitted: int) -> Summary:
    """Figures of a run on a pool of so many cores."""
    if not outcomes:
        return Summary(0, 0.0, 0.0, 0.0, 0.0, 0.0, submitted)
    begin = min(o.job.submit for o in outcomes)
    makespan = max(o.end for o in outcomes) - begin
    last = max(o.job.submit for o in outcomes)
    if last <= begin:
        last = begin + makespan
    used = sum(max(0.0, min(o.end, last) - o.start) * o.cores for o in outcomes)
    slowdown = sum((o.wait_s + max(o.end - o.start, 10.0)) / max(o.end - o.start, 10.0) for o in outcomes)
    return Summary(
        len(outcomes),
        used / ((last - begin) * cores) if last > begin else 0.0,
        sum(o.wait_s for o in outcomes) / len(outcomes),
        max(o.wait_s for o in outcomes),
        slowdown / len(outcomes),
        makespan,
        submitted - len(outcomes),
    )
