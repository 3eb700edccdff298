"""EASY delays no head, conservative delays none, nobody shares a core: over random workloads on a simulated clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.jobspec import Digest, build, digest
from leveret.errors import InvalidError
from leveret.sched.plan import UNLIMITED_S
from leveret.sched.pool import Pool, PoolNode
from leveret.sched.queue import Reservation, Scheduler, policy
from leveret.sched.simulate import Load, Outcome, load, simulate, summary


def pool(nodes: int, cores: int) -> Pool:
    return Pool(PoolNode(rank, f"n{rank}", range(cores)) for rank in range(nodes))


def want(ntasks: int, duration_s: float = 0.0, nnodes: int = 0, exclusive: bool = False) -> Digest:
    return digest(build(["x"], ntasks=ntasks, nnodes=nnodes, duration_s=duration_s, exclusive=exclusive))


def started(scheduler: Scheduler, now: float) -> list[int]:
    return [found[0] for found in scheduler.schedule(now) if found is not None]


def add(scheduler: Scheduler, jobid: int, ntasks: int, duration_s: float, **more: int) -> None:
    scheduler.add(jobid, 16, want(ntasks, duration_s, **more))


# ---- by hand -------------------------------------------------------------------------------------


def test_easy_fills_the_hole_before_the_head_and_no_more() -> None:
    s = Scheduler(pool(1, 4), policy("easy"))
    add(s, 1, 3, 100)
    assert started(s, 0) == [1]
    add(s, 2, 4, 50)  # the head: from 100
    add(s, 3, 1, 101)  # would be in its way
    add(s, 4, 1, 100)  # fits before it
    assert started(s, 0) == [4]
    assert s.plan.bookings[2].start == 100
    add(s, 5, 1, 10)
    assert started(s, 1) == [], "the core is taken"


def test_easy_beside_the_head() -> None:
    s = Scheduler(pool(1, 4), policy("easy"))
    add(s, 1, 2, 100)
    assert started(s, 0) == [1]
    add(s, 2, 3, 50)  # from 100; one core is left beside it
    add(s, 3, 1, 1000)
    add(s, 4, 1, 1000)
    assert started(s, 0) == [3], "one of them: a second one would delay the head"


def test_fifo_lets_nobody_pass_and_conservative_keeps_every_promise() -> None:
    def filled(name: str) -> Scheduler:
        s = Scheduler(pool(1, 4), policy(name))
        add(s, 1, 3, 100)
        assert started(s, 0) == [1]
        add(s, 2, 4, 50)  # 100 to 150
        add(s, 3, 3, 20)  # from 150
        add(s, 4, 1, 100)
        return s

    assert started(filled("fifo"), 0) == []
    s = filled("conservative")
    assert started(s, 0) == [4]
    assert (s.plan.bookings[2].start, s.plan.bookings[3].start) == (100, 150)


def test_an_overrun_frees_nothing() -> None:
    s = Scheduler(pool(1, 2), policy("easy"))
    add(s, 1, 2, 10)
    held = next(found for found in s.schedule(0) if found is not None)[1]
    add(s, 2, 2, 10)
    assert started(s, 5) == []
    assert started(s, 50) == [], "only a release frees"
    assert s.plan.bookings[2].start > 50, "it is taken to end soon"
    s.pool.release(held)
    assert started(s, 51) == [2]


def test_unlimited_jobs_do_not_starve_the_head() -> None:
    s = Scheduler(pool(1, 4), policy("easy"))
    add(s, 1, 3, 0)
    assert started(s, 0) == [1]
    add(s, 2, 4, 0)
    add(s, 3, 1, 0)  # would end after the first one
    add(s, 4, 1, 3600)
    assert started(s, 1) == [4]
    assert s.plan.bookings[2].start == UNLIMITED_S


def test_a_job_of_higher_priority_breaks_promises_of_lower_ones_only() -> None:
    s = Scheduler(pool(1, 4), policy("conservative"))
    add(s, 1, 4, 100)
    assert started(s, 0) == [1]
    add(s, 2, 4, 100)
    add(s, 3, 4, 100)
    assert started(s, 0) == []
    assert s.plan.bookings[3].start == 200
    s.add(4, 31, want(4, 100))
    assert started(s, 0) == []
    assert {name: b.start for name, b in s.plan.bookings.items()} == {4: 100, 2: 200, 3: 300}


def test_stopped_queues_limits_and_other_queues() -> None:
    s = Scheduler(pool(1, 4), policy("fifo"))
    s.add(1, 16, want(4), queue="a")
    s.add(2, 16, want(1), queue="b")
    s.pause("a", "maintenance")
    assert started(s, 0) == [2]
    s.resume("a")
    s.add(3, 16, want(1), queue="b")
    s.add(4, 16, want(1), queue="b")
    s.blocked = lambda jobid: "too many jobs" if jobid == 3 else ""
    assert started(s, 0) == [4], "1 does not fit, and it keeps only its own queue back; 3 may not"
    assert s.order() == [1, 3]


def test_reservations_in_time() -> None:
    for name in ("fifo", "easy", "conservative"):
        s = Scheduler(pool(2, 4), policy(name))
        s.reserve(Reservation("maint", 100, 200, (0,)))
        s.add(1, 16, want(8, 50))  # ends before it
        s.add(2, 16, want(4, 101))
        s.add(3, 16, want(4, 0), queue="other")
        s.add(4, 16, want(2, 60), queue="inside", reservation="maint")
        got = [found for found in s.schedule(0) if found is not None]
        assert [jobid for jobid, _ in got] == [1]
        s.pool.release(got[0][1])
        got = [found for found in s.schedule(50) if found is not None]
        assert [(jobid, list(rset.ranks)) for jobid, rset in got] == [(2, [1])], name
        assert s.wake_at(50) == 100 and s.wake_at(100) == 200 and s.wake_at(200) is None
        got = [found for found in s.schedule(110) if found is not None]
        assert [(jobid, list(rset.ranks)) for jobid, rset in got] == [(4, [0])], "who names it may"
        s.unreserve("maint")
        s.withdraw(3)
        s.add(5, 16, want(2, 0), queue="other")
        assert started(s, 120) == [5]


def test_unknown_policy() -> None:
    with pytest.raises(InvalidError, match="unknown queue policy `best`"):
        policy("best")


def test_a_pass_may_be_paused_while_things_come_and_go() -> None:
    s = Scheduler(pool(4, 4), policy("easy"))
    for jobid in range(1, 9):
        add(s, jobid, 2, 100 + jobid)
    run = s.schedule(0)
    first = next(run)
    assert first is not None and first[0] == 1
    s.withdraw(3)
    s.add(20, 31, want(1, 10))
    s.pool.release(first[1])
    rest = [found[0] for found in run if found is not None]
    assert rest == [20, 2, 4, 5, 6, 7, 8]
    assert len(s) == 0 and s.plan.bookings == {}


# ---- over random workloads -----------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn, cores: int, nodes: int = 1, exact: bool = False) -> list[Load]:
    jobs = []
    clock = 0
    for jobid in range(1, draw(st.integers(2, 25)) + 1):
        clock += draw(st.integers(0, 15))
        limit = draw(st.integers(1, 60))
        runs = limit if exact else draw(st.integers(1, limit))
        count = draw(st.integers(1, cores))
        on = draw(st.integers(0, nodes)) if nodes > 1 else 0
        if on:
            count = on * draw(st.integers(1, cores // nodes))
        jobs.append(load(jobid, clock, runs, limit, count, on))
    return jobs


def overlap(outcomes: list[Outcome], cores: int) -> bool:
    """Whether more cores are in use at some time than there are."""
    changes = sorted([(o.end, 0, -o.cores) for o in outcomes] + [(o.start, 1, o.cores) for o in outcomes])
    used = 0
    for _, _, change in changes:
        used += change
        if used > cores:
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(workloads(6))
def test_easy_never_delays_the_head(jobs: list[Load]) -> None:
    """On one node the time at which the head could start if nobody passed it can be counted without the plan."""
    latest: dict[int, float] = {}

    def observe(now: float, scheduler: Scheduler) -> None:
        order = scheduler.order()
        if order and order[0] not in latest:
            head = scheduler.request(order[0])
            assert head is not None
            (node,) = scheduler.pool.nodes.values()
            free = node.cores_free.bit_count()
            when = now
            for cores, _, _, _, expiration in sorted(node.holders(), key=lambda holder: holder[4]):
                if free >= head.want.nslots:
                    break
                free, when = free + cores, expiration
            latest[order[0]] = when

    outcomes = simulate(jobs, pool(1, 6), policy("easy"), observe)
    assert len(outcomes) == len(jobs) and not overlap(outcomes, 6)
    for outcome in outcomes:
        assert outcome.start <= latest.get(outcome.job.id, outcome.start)


@settings(max_examples=100, deadline=None)
@given(workloads(12, nodes=3), st.sampled_from(["easy", "conservative", "hybrid"]))
def test_no_promise_is_broken(jobs: list[Load], name: str) -> None:
    first: dict[int, float] = {}

    def observe(now: float, scheduler: Scheduler) -> None:
        for jobid, booking in scheduler.plan.bookings.items():
            assert isinstance(jobid, int)
            first.setdefault(jobid, booking.start)
        if name == "conservative":
            assert set(scheduler.order()) == set(scheduler.plan.bookings), "everybody has a promise"
        elif name == "easy":
            assert len(scheduler.plan.bookings) <= 1
        wrong = scheduler.pool.check(
            {id(r): r for n in scheduler.pool.nodes.values() for _, _, r in n.held.values()}.values()
        )
        assert wrong == []

    outcomes = simulate(jobs, pool(3, 4), policy(name), observe)
    assert len(outcomes) == len(jobs) and not overlap(outcomes, 12)
    for outcome in outcomes:
        assert outcome.start <= first.get(outcome.job.id, outcome.start) + 1e-3


@settings(max_examples=100, deadline=None)
@given(workloads(6, exact=True))
def test_conservative_starts_nobody_later_than_fifo_does(jobs: list[Load]) -> None:
    """On one node, with run times as asked for."""
    fifo = {o.job.id: o.start for o in simulate(jobs, pool(1, 6), policy("fifo"))}
    for outcome in simulate(jobs, pool(1, 6), policy("conservative")):
        assert outcome.start <= fifo[outcome.job.id]


@settings(max_examples=60, deadline=None)
@given(workloads(6))
def test_fifo_starts_in_order(jobs: list[Load]) -> None:
    outcomes = simulate(jobs, pool(1, 6), policy("fifo"))
    assert [o.job.id for o in outcomes] == [job.id for job in jobs]
    figures = summary(outcomes, 6, len(jobs))
    assert figures.jobs == len(jobs) and 0 < figures.utilisation <= 1
