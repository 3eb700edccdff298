"""Storage as a resource: room is never given twice, leases outlive nodes, debts are repaid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.jobspec import Digest, build, digest
from leveret.errors import ConflictError, NotFoundError
from leveret.sched.pool import Pool, PoolNode
from leveret.sched.queue import Scheduler, policy
from leveret.sched.storage import DEBT, Need, Server, Storage


def two() -> Storage:
    return Storage([Server("r0", 100, (0, 1)), Server("r1", 60, (2, 3))])


def want(nnodes: int, duration_s: float = 0.0) -> Digest:
    return digest(build(["x"], nnodes=nnodes, duration_s=duration_s))


def test_per_node_storage_is_on_a_server_that_reaches_the_node() -> None:
    s = two()
    assert s.place(Need(per_node=50), [0, 1]) == {"r0": 100}
    assert s.place(Need(per_node=50), [0, 2]) == {"r0": 50, "r1": 50}
    assert s.place(Need(per_node=50), [2, 3]) is None
    assert list(s.choices(Need(per_node=50), 0b1111)) == [0b0111], "one node of r1 only"
    assert s.shortage(Need(per_node=50), 4) != "" and s.shortage(Need(per_node=50), 3) == ""


def test_in_all() -> None:
    s = two()
    assert s.place(Need(in_all=70, single=True), [0]) == {"r0": 70}
    assert s.place(Need(in_all=70, single=True), [2]) is None
    assert s.place(Need(in_all=70, single=True, anywhere=True), [2]) == {"r0": 70}
    assert s.place(Need(in_all=120, anywhere=True), [2]) == {"r0": 100, "r1": 20}
    assert s.place(Need(in_all=120), [2]) is None
    assert list(s.choices(Need(in_all=70, single=True), 0b1111)) == [0b0011]
    assert list(s.choices(Need(in_all=50, single=True), 0b1111)) == [0b1100, 0b0011], "the tightest first"
    assert "need 200 bytes of storage in all, there are 160" in s.shortage(Need(in_all=200), 1)
    s.set_state("r0", False)
    assert s.place(Need(in_all=70, anywhere=True), [0]) is None
    assert s.shortage(Need(in_all=150), 1) == "", "it may come back"
    with pytest.raises(NotFoundError):
        s.set_state("r9", True)


def test_a_lease_ends_only_when_the_storage_is_gone_and_a_debt_is_repaid() -> None:
    s = two()
    s.lease(1, {"r0": 80})
    with pytest.raises(ConflictError):
        s.lease(2, {"r0": 30})
    with pytest.raises(ConflictError):
        s.lease(1, {"r1": 1})
    assert s.free("r0") == 20
    debt = s.give_up(1, "deadline", 5.0)
    assert (debt.state, debt.note, s.debts(), s.free("r0")) == (DEBT, "deadline", [debt], 20)
    assert s.give_up(1, "again", 9.0) == debt, "the first reason stands"
    s.gone(1)
    assert s.free("r0") == 100 and s.debts() == []
    for act in (s.gone, lambda jobid: s.give_up(jobid, "", 0.0)):
        with pytest.raises(NotFoundError):
            act(1)


def test_servers_that_shrink_or_go_leave_leases_alone() -> None:
    s = two()
    s.lease(1, {"r0": 80, "r1": 10})
    s.define([Server("r0", 50, (0, 1))])
    assert s.free("r0") == -30 and s.place(Need(in_all=1), [0]) is None
    s.gone(1)
    assert s.free("r0") == 50


def scheduler(name: str = "fcfs") -> Scheduler:
    s = Scheduler(Pool(PoolNode(rank, f"n{rank}", range(4)) for rank in range(4)), policy(name))
    s.storage.define([Server("r0", 100, (0, 1)), Server("r1", 60, (2, 3))])
    return s


def test_the_scheduler_chooses_nodes_that_the_storage_reaches() -> None:
    s = scheduler()
    s.add(1, 16, want(2), storage=Need(per_node=50))
    s.add(2, 16, want(1), storage=Need(in_all=60, single=True))
    s.add(3, 16, want(1), storage=Need(in_all=1))
    s.add(4, 16, want(1))
    got = {found[0]: found[1] for found in s.schedule(0) if found is not None}
    assert {jobid: list(rset.ranks) for jobid, rset in got.items()} == {1: [0, 1], 2: [2]}
    assert s.storage.leases[1].amounts == {"r0": 100} and s.storage.leases[2].amounts == {"r1": 60}
    s.pool.release(got[1])
    assert [f for f in s.schedule(1) if f is not None] == [], "nodes are free, storage is not: 3 waits, and 4 behind it"
    s.storage.gone(1)
    assert [f[0] for f in s.schedule(2) if f is not None] == [3, 4]


def test_waiting_for_storage_keeps_no_nodes_back_under_backfill() -> None:
    s = scheduler("easy")
    s.add(1, 16, want(1), storage=Need(in_all=100, single=True))
    assert [f[0] for f in s.schedule(0) if f is not None] == [1]
    s.add(2, 16, want(1), storage=Need(in_all=100, single=True))
    s.add(3, 16, want(3))
    assert [f[0] for f in s.schedule(0) if f is not None] == [3]


needs = st.one_of(
    st.builds(Need, per_node=st.integers(1, 60), in_all=st.just(0), single=st.just(False), anywhere=st.just(False)),
    st.builds(Need, per_node=st.just(0), in_all=st.integers(1, 160), single=st.booleans(), anywhere=st.booleans()),
    st.builds(
        Need, per_node=st.integers(1, 40), in_all=st.integers(1, 60), single=st.booleans(), anywhere=st.booleans()
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(needs, st.integers(1, 4), st.integers(0, 3)), max_size=25))
def test_no_byte_is_given_twice(steps: list[tuple[Need, int, int]]) -> None:
    s = scheduler("easy")
    held = {}
    for jobid, (need, nnodes, then) in enumerate(steps, 1):
        s.add(jobid, 16, want(nnodes), storage=need)
        for found in s.schedule(float(jobid)):
            if found is not None:
                held[found[0]] = found[1]
                mine = s.storage.leases[found[0]].amounts
                asked = steps[found[0] - 1][0]
                assert sum(mine.values()) == asked.in_all + asked.per_node * found[1].nnodes()
        for name, server in s.storage.servers.items():
            taken = sum(lease.amounts.get(name, 0) for lease in s.storage.leases.values())
            assert 0 <= taken <= server.capacity and s.storage.free(name) == server.capacity - taken
        if held and then:
            first = min(held)
            s.pool.release(held.pop(first))
            if then > 1:
                s.storage.gone(first)
