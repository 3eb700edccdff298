"""The pool: what is taken and what is free are the whole, without overlap; shortages read as Flux's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.core.jobspec import Digest, build, digest
from leveret.core.resources import Node, Rset, from_dict
from leveret.errors import ConflictError
from leveret.sched.pool import Pool, PoolNode


def want(ntasks: int | None = None, nnodes: int = 0, cores: int = 1, gpus: int = 0, exclusive: bool = False) -> Digest:
    return digest(
        build(["true"], ntasks=ntasks, nnodes=nnodes, cores_per_task=cores, gpus_per_task=gpus, exclusive=exclusive)
    )


def pool(*nodes: tuple[int, int]) -> Pool:
    return Pool(PoolNode(rank, f"node{rank}", range(cores), range(gpus)) for rank, (cores, gpus) in enumerate(nodes))


def units(rset: Rset) -> set[tuple[int, str, int]]:
    """Every core and GPU of a set."""
    out = set()
    for rank, node in rset.ranks.items():
        out |= {(rank, "core", i) for i in node.cores} | {(rank, "gpu", i) for i in node.gpus}
    return out


def free_units(pool_: Pool) -> set[tuple[int, str, int]]:
    out = set()
    for node in pool_.nodes.values():
        out |= {(node.rank, "core", i) for i in range(64) if node.cores_free >> i & 1}
        out |= {(node.rank, "gpu", i) for i in range(64) if node.gpus_free >> i & 1}
    return out


requests = st.one_of(
    st.builds(want, ntasks=st.integers(1, 6), cores=st.integers(1, 3), gpus=st.integers(0, 2)),
    st.integers(1, 3).flatmap(
        lambda n: st.builds(
            want, ntasks=st.integers(n, 2 * n), nnodes=st.just(n), cores=st.integers(1, 2), exclusive=st.booleans()
        )
    ),
)


class PoolMachine(RuleBasedStateMachine):
    @initialize(shape=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=4))
    def make(self, shape: list[tuple[int, int]]) -> None:
        self.pool = pool(*shape)
        self.all = free_units(self.pool)
        self.held: list[Rset] = []

    @rule(request=requests)
    def allocate(self, request: Digest) -> None:
        before = free_units(self.pool)
        rset = self.pool.allocate(request)
        if rset is None:
            assert free_units(self.pool) == before, "what cannot be had changes nothing"
            if not self.held and all(node.up for node in self.pool.nodes.values()):
                assert self.pool.shortage(request), "an empty pool gives all that it could ever give"
            return
        assert not self.pool.shortage(request), "what was given was possible"
        got = units(rset)
        assert got and got <= before
        self.held.append(rset)
        if request.nnodes:
            assert len(rset.ranks) == request.nnodes
            for rank, node in rset.ranks.items():
                if request.exclusive:
                    assert len(node.cores) == self.pool.nodes[rank].cores.bit_count()
                else:
                    assert len(node.cores) == request.cores_per_slot * request.slots_per_node
        else:
            assert rset.ncores() == request.nslots * request.cores_per_slot
            assert rset.ngpus() == request.nslots * request.gpus_per_slot

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        rset = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        before = free_units(self.pool)
        self.pool.release(from_dict(rset.to_dict()))
        assert free_units(self.pool) == before | units(rset)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def twice(self, data: st.DataObject) -> None:
        """Nothing is taken twice, and nothing given back twice."""
        rset = data.draw(st.sampled_from(self.held))
        before = free_units(self.pool)
        with pytest.raises(ConflictError):
            self.pool.take(rset)
        self.pool.release(rset)
        middle = free_units(self.pool)
        with pytest.raises(ConflictError):
            self.pool.release(rset)
        assert free_units(self.pool) == middle
        self.pool.take(rset)
        assert free_units(self.pool) == before

    @rule(data=st.data())
    def node_goes_or_comes(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(list(self.pool.nodes.values())))
        self.pool.set_state([node.rank], up=not node.up)

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "pool"):
            return
        taken = [unit for rset in self.held for unit in units(rset)]
        free = free_units(self.pool)
        assert len(taken) == len(set(taken)), "no resource has two holders"
        assert not set(taken) & free
        assert set(taken) | free == self.all
        assert self.pool.free_cores() == sum(kind == "core" for _, kind, _ in free)
        assert self.pool.total_cores() == sum(kind == "core" for _, kind, _ in self.all)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


def test_an_overlap_changes_nothing_at_all() -> None:
    two = pool((2, 0), (2, 0))
    two.take(Rset({0: Node("node0", (0,)), 1: Node("node1", (1,))}))
    before = free_units(two)
    with pytest.raises(ConflictError, match="rank 1"):
        two.take(Rset({0: Node("node0", (1,)), 1: Node("node1", (1,))}))
    assert free_units(two) == before
    with pytest.raises(ConflictError, match="rank 1"):
        two.release(Rset({0: Node("node0", (0,)), 1: Node("node1", (0,))}))
    assert free_units(two) == before


def test_lowest_ranks_and_ids_first() -> None:
    two = pool((2, 1), (2, 1))
    first = two.allocate(want(3))
    assert first is not None
    assert first.summary() == "rank0/core[0-1] rank1/core0"
    assert two.allocate(want(2)) is None
    second = two.allocate(want(1, gpus=1))
    assert second is not None
    assert second.summary() == "rank1/core1,gpu0"


def test_what_this_instance_has_no_more_is_passed_over() -> None:
    one = pool((2, 0))
    gone = Rset({0: Node("node0", (1, 7)), 5: Node("node5", (0,))})
    one.take(gone)
    assert one.free_cores() == 1
    one.release(gone)
    assert one.free_cores() == 2


def test_a_node_that_is_down_gives_nothing_but_may_be_waited_for() -> None:
    two = pool((2, 0), (2, 0))
    two.set_state([0], up=False)
    assert two.shortage(want(nnodes=2)) == ""
    assert two.allocate(want(nnodes=2)) is None
    rset = two.allocate(want(1))
    assert rset is not None and list(rset.ranks) == [1]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        # goldens: run.n-too-many, run.N2-unsat, run.gpu-unsat, run.c-too-many on one node of two cores
        (want(3), "unsatisfiable request: need 3 slot(s) of 1 core(s), only 2 such slot(s) available (total cores: 2)"),
        (want(nnodes=2), "unsatisfiable request: need 2 exclusive node(s), only 1 eligible"),
        (
            want(1, gpus=1),
            "unsatisfiable request: need 1 slot(s) with 1 GPU(s) each, only 0 available (total GPUs: 0)",
        ),
        (
            want(1, cores=3),
            "unsatisfiable request: need 1 slot(s) of 3 core(s), only 0 such slot(s) available (total cores: 2)",
        ),
        (want(2, nnodes=2), "unsatisfiable request: need 2 node(s), only 1 eligible"),
        (want(3, nnodes=1), "unsatisfiable request: need 1 node(s), only 0 eligible"),
        (want(2), ""),
        (want(nnodes=1), ""),
        (want(1, cores=2), ""),
    ],
)
def test_shortages_read_as_in_the_goldens(request_: Digest, text: str) -> None:
    assert pool((2, 0)).shortage(request_) == text


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=4), requests)
def test_a_shortage_is_exactly_what_an_empty_pool_cannot_give(shape: list[tuple[int, int]], request: Digest) -> None:
    fresh = pool(*shape)
    assert bool(fresh.shortage(request)) == (fresh.allocate(request) is None)


def test_states_and_amounts() -> None:
    p = pool((4, 0), (4, 0), (4, 0), (4, 0))
    held = p.allocate(want(ntasks=6))
    assert held is not None
    p.set_state([1], drained=True)
    p.set_state([2], up=False)
    p.set_state([3, 77], excluded=True)
    assert p.amounts() == (16, 0, 6, 2, 4, 4)
    assert p.allocate(want(ntasks=1)) is None, "nothing is given on nodes that are drained, lost or excluded"
    assert "only 3 eligible" in p.shortage(want(nnodes=4, ntasks=4)), (
        "drained and lost nodes come back, excluded ones do not"
    )
    assert p.check([held]) == []
    p.release(held.subset([1]))
    assert p.check([held.subset([0])]) == []
    assert p.amounts() == (16, 0, 4, 4, 4, 4), "what is released on a drained node is not free"
    p.set_state([1], drained=False)
    assert p.amounts().free == 4
    with pytest.raises(ConflictError):
        p.release(held)
    p.release(held.subset([0]))
    p.set_state([2], up=True)
    p.set_state([3], excluded=False)
    assert p.amounts() == (16, 16, 0, 0, 0, 0)
    assert p.check([]) == []
    assert p.check([held]) != []


def test_memory_is_scheduled_and_kept_in_r() -> None:
    p = Pool([PoolNode(rank, f"n{rank}", range(4), (), 1000) for rank in range(2)])
    request = want(ntasks=3)
    request.memory_per_slot_mb = 600
    request.constrain(None)
    assert "need 3 slot(s) of 1 core(s) and 600 MB of memory, only 2" in p.shortage(request)
    request = want(ntasks=2)
    request.memory_per_slot_mb = 600
    request.constrain(None)
    held = p.allocate(request)
    assert held is not None and held.nnodes() == 2, "one core each, since the memory is for one slot only"
    again = from_dict(held.to_dict())
    assert again == held and p.check([again]) == []
    assert p.allocate(request) is None
    assert p.allocate(want(ntasks=6)) is not None, "who asks for no memory takes none"
    p.release(again)


def test_constraints_choose_nodes() -> None:
    p = Pool([PoolNode(rank, f"n{rank}", range(2), (), 0, {"ssd"} if rank % 2 else set()) for rank in range(4)])
    request = want(ntasks=3)
    request.constrain({"properties": ["ssd"]})
    rset = p.allocate(request)
    assert rset is not None and list(rset.ranks) == [1, 3]
    request.constrain({"properties": ["nosuch"]})
    assert p.shortage(request) == (
        "unsatisfiable request: need 3 slot(s) of 1 core(s), only 0 such slot(s) available (total cores: 0)"
    )
