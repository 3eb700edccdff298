"""First in, first out, by priority: the head of the queue is never overtaken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.jobspec import Digest, build, digest
from leveret.sched.pool import Pool, PoolNode
from leveret.sched.queue import Scheduler


def want(ntasks: int) -> Digest:
    return digest(build(["true"], ntasks=ntasks))


def fifo(cores: int = 2) -> Scheduler:
    return Scheduler(Pool([PoolNode(0, "node0", range(cores))]))


def test_priority_then_age() -> None:
    queue = fifo(4)
    for jobid, priority in [(10, 16), (11, 31), (12, 16), (9, 0)]:
        queue.add(jobid, priority, want(1))
    assert [jobid for jobid, _ in queue.schedule()] == [11, 10, 12, 9]
    assert len(queue) == 0


def test_the_head_is_never_overtaken() -> None:
    queue = fifo(2)
    queue.add(1, 16, want(1))
    queue.add(2, 16, want(2))
    queue.add(3, 16, want(1))
    first = list(queue.schedule())
    assert [jobid for jobid, _ in first] == [1], "3 would fit, but 2 is first"
    assert list(queue.schedule()) == []
    queue.pool.release(first[0][1])
    second = list(queue.schedule())
    assert [jobid for jobid, _ in second] == [2]
    queue.pool.release(second[0][1])
    assert [jobid for jobid, _ in queue.schedule()] == [3]


def test_asking_again_replaces() -> None:
    queue = fifo(1)
    queue.add(1, 16, want(2))
    queue.add(2, 16, want(1))
    queue.add(1, 3, want(1))
    assert len(queue) == 2
    assert [jobid for jobid, _ in queue.schedule()] == [2]


def test_withdraw_is_harmless_when_there_is_nothing() -> None:
    queue = fifo(1)
    queue.withdraw(5)
    queue.add(5, 1, want(1))
    queue.withdraw(5)
    queue.withdraw(5)
    assert len(queue) == 0
    assert list(queue.schedule()) == []


def test_a_scheduling_that_is_broken_off_keeps_what_it_has_given() -> None:
    queue = fifo(3)
    for jobid in (1, 2, 3):
        queue.add(jobid, 16, want(1))
    giving = queue.schedule()
    assert next(giving)[0] == 1
    giving.close()
    assert len(queue) == 2
    assert queue.pool.free_cores() == 2
    assert [jobid for jobid, _ in queue.schedule()] == [2, 3]


ops = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 8), st.integers(0, 4), st.integers(1, 3)),
        st.tuples(st.just("withdraw"), st.integers(1, 8)),
        st.tuples(st.just("schedule")),
        st.tuples(st.just("release")),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(ops)
def test_against_a_list_that_is_sorted_each_time(steps: list[tuple]) -> None:
    queue = fifo(4)
    model: dict[int, tuple[int, int]] = {}
    held = []
    free = 4
    for step in steps:
        if step[0] == "add":
            _, jobid, priority, count = step
            queue.add(jobid, priority, want(count))
            model[jobid] = (priority, count)
        elif step[0] == "withdraw":
            queue.withdraw(step[1])
            model.pop(step[1], None)
        elif step[0] == "schedule":
            expect = []
            for jobid in sorted(model, key=lambda j: (-model[j][0], j)):
                if model[jobid][1] > free:
                    break
                free -= model.pop(jobid)[1]
                expect.append(jobid)
            got = list(queue.schedule())
            assert [jobid for jobid, _ in got] == expect
            held += [rset for _, rset in got]
        elif held:
            rset = held.pop(0)
            queue.pool.release(rset)
            free += rset.ncores()
        assert len(queue) == len(model)
        assert queue.pool.free_cores() == free
