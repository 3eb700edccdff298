"""Breakdowns become Servers that the storage driver takes, by strategy, constraints, scale and colocation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.storage.placing import Server, place
from leveret.storage.port import AllocationSet, Breakdown, Location, StorageRefused

GIB = 2**30
LABEL = "dataworkflowservices.github.io/storage=Rabbit"
RABBIT = {"dataworkflowservices.github.io/storage": "Rabbit"}
NEAR, FAR = ("physical", "mandatory"), ("network", "mandatory")
MGT = (("exclusive", "lustre-mgt"),)


def servers(*computes: int, **more: Any) -> list[Server]:
    """Rabbits r0, r1 … with so many computes each: n0, n1 … in order."""
    found, at = [], 0
    for i, count in enumerate(computes):
        hosts = tuple(f"n{at + k}" for k in range(count))
        at += count
        found.append(Server(f"r{i}", hosts, RABBIT, **more))
    return found


def per_compute(label: str = "xfs", least: int = 10 * GIB) -> Breakdown:
    return Breakdown(0, "job", (AllocationSet(label, "AllocatePerCompute", least, (LABEL,)),), (Location(0, (NEAR,)),))


def lustre(least: int = 100 * GIB, scale: int = 5) -> Breakdown:
    sets = (
        AllocationSet("ost", "AllocateAcrossServers", least, (LABEL,), scale=scale),
        AllocationSet("mgtmdt", "AllocateAcrossServers", 5 * GIB, (LABEL,), count=1, colocation=MGT),
    )
    return Breakdown(0, "job", sets, (Location(0, (FAR, ("physical", "bestEffort"))), Location(1, (FAR,))))


def counts(one: dict[str, Any]) -> dict[str, int]:
    return {on["name"]: on["allocationCount"] for on in one["storage"]}


def nodes(*numbers: int) -> list[str]:
    return [f"n{number}" for number in numbers]


def test_per_compute_puts_the_whole_minimum_behind_each_node() -> None:
    (one,) = place(per_compute(), nodes(0, 1, 4), servers(4, 4))
    assert one == {
        "label": "xfs",
        "allocationSize": 10 * GIB,
        "storage": [{"name": "r0", "allocationCount": 2}, {"name": "r1", "allocationCount": 1}],
    }


def test_a_node_without_a_rabbit_is_named() -> None:
    with pytest.raises(StorageRefused, match=r"xfs storage needs a rabbit behind each node; without one: login7$"):
        place(per_compute(), ["n0", "login7"], servers(4))
    with pytest.raises(StorageRefused, match="without one: n0"):
        place(per_compute(), ["n0"], [Server("r0", ("n0",), {})])  # it lacks the label


def test_across_servers_follows_the_nodes() -> None:
    ost, mgtmdt = place(lustre(90 * GIB), nodes(0, 1, 2, 3, 4, 5), servers(4, 4))
    assert counts(ost) == {"r0": 2, "r1": 1} and ost["allocationSize"] == 30 * GIB
    assert counts(mgtmdt) == {"r0": 1} and mgtmdt["allocationSize"] == 5 * GIB


@pytest.mark.parametrize("scale,used", [(1, 1), (2, 2), (3, 3), (5, 5), (0, 5), (10, 5)])
def test_scale_hints_at_how_many_rabbits(scale: int, used: int) -> None:
    ost, _ = place(lustre(scale=scale), nodes(*range(5)), servers(1, 1, 1, 1, 1))
    assert len(ost["storage"]) == used and sum(counts(ost).values()) * ost["allocationSize"] >= 100 * GIB
    assert sum(counts(ost).values()) == used * (2 if scale == 10 else 1)


def test_a_count_is_kept_round_the_rabbits_with_most_nodes() -> None:
    want = AllocationSet("mdt", "AllocateAcrossServers", 30 * GIB, (LABEL,), count=3)
    (one,) = place(Breakdown(0, "job", (want,), (Location(0, (FAR,)),)), nodes(0, 4, 5), servers(4, 4, 4))
    assert counts(one) == {"r0": 1, "r1": 2} and one["allocationSize"] == 10 * GIB
    want = AllocationSet("mgt", "AllocateSingleServer", 5 * GIB, (LABEL,))
    (one,) = place(Breakdown(0, "job", (want,), (Location(0, (FAR,)),)), nodes(0, 4, 5), servers(4, 4))
    assert counts(one) == {"r1": 1}


def test_targets_have_a_smallest_size() -> None:
    ost, _ = place(lustre(1 * GIB), nodes(0, 1), servers(1, 1))
    assert ost["allocationSize"] == 4 * GIB
    assert place(per_compute(least=GIB), nodes(0), servers(1))[0]["allocationSize"] == GIB
    assert place(lustre(1 * GIB), nodes(0, 1), servers(1, 1), target_min_bytes=0)[0]["allocationSize"] == GIB // 2


def test_exclusive_sets_go_to_different_rabbits() -> None:
    sets = (
        AllocationSet("mgt", "AllocateSingleServer", 5 * GIB, (LABEL,), colocation=MGT),
        AllocationSet("mdt", "AllocateAcrossServers", 5 * GIB, (LABEL,), count=1, colocation=MGT),
    )
    wanted = Breakdown(0, "job", sets, (Location(0, (FAR,)), Location(1, (FAR,))))
    mgt, mdt = place(wanted, nodes(0), servers(2, 2))
    assert counts(mgt) == {"r0": 1} and counts(mdt) == {
        "r1": 1
    }  # another rabbit than the job's: they are met by network
    with pytest.raises(StorageRefused, match=r"no rabbit is left for mdt storage \(exclusive for lustre-mgt\)"):
        place(wanted, nodes(0), servers(2))
    # two directives of one workflow share what is taken
    taken: dict[str, set[str]] = {}
    first = place(lustre(), nodes(0, 1), servers(1, 1), taken)[1]
    second = place(lustre(), nodes(0, 1), servers(1, 1), taken)[1]
    assert counts(first) != counts(second) and taken == {"lustre-mgt": {"r0", "r1"}}


def test_others_exclusive_storage_is_kept_away_from_where_there_is_a_choice() -> None:
    avoid = {"lustre-mgt": {"r0"}}
    assert counts(place(lustre(), nodes(0), servers(1, 1), None, avoid)[1]) == {"r1": 1}
    assert counts(place(lustre(), nodes(0), servers(1), None, avoid)[1]) == {"r0": 1}


def test_rabbits_that_are_down_or_full_are_passed_over_where_they_may_be() -> None:
    up, down = servers(2, 2)[0], Server("r1", ("n2", "n3"), RABBIT, usable=False)
    assert counts(place(lustre(), nodes(0, 2, 3), [up, down])[0]) == {"r0": 1}
    assert counts(place(per_compute(), nodes(0, 2), [up, down])[0]) == {
        "r0": 1,
        "r1": 1,
    }  # no choice: physically behind
    full = Server("r1", ("n2", "n3"), RABBIT, free_bytes=GIB)
    assert counts(place(lustre(), nodes(2, 3), [up, full])[1]) == {"r0": 1}


@given(st.data())
def test_every_placing_is_legal(data: st.DataObject) -> None:
    """Against the driver's own conditions (validateServerAllocations), written anew here."""
    known = servers(*data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6)))
    every = [host for one in known for host in one.computes]
    chosen = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    least = data.draw(st.integers(1, 10**14))
    separate = data.draw(st.booleans())
    sets: tuple[AllocationSet, ...] = lustre(least, data.draw(st.integers(0, 10))).sets
    if separate:
        mdt = AllocationSet("mdt", "AllocateAcrossServers", 5 * GIB, (LABEL,), count=data.draw(st.integers(1, 4)))
        sets = (sets[0], mdt, AllocationSet("mgt", "AllocateSingleServer", 5 * GIB, (LABEL,), colocation=MGT))
    if data.draw(st.booleans()):
        sets = per_compute("gfs2", least).sets
    locations = tuple(
        Location(i, (NEAR,) if one.strategy == "AllocatePerCompute" else (FAR,)) for i, one in enumerate(sets)
    )
    filled = place(Breakdown(0, "job", sets, locations), chosen, known)
    names = {one.name for one in known}
    assert [one["label"] for one in filled] == [one.label for one in sets]
    for want, have in zip(sets, filled, strict=True):
        placed = counts(have)
        assert placed and set(placed) <= names and min(placed.values()) >= 1 and len(placed) == len(have["storage"])
        if want.strategy == "AllocatePerCompute":
            assert have["allocationSize"] >= want.minimum_bytes and sum(placed.values()) == len(chosen)
        elif want.strategy == "AllocateSingleServer":
            assert list(placed.values()) == [1] and have["allocationSize"] >= want.minimum_bytes
        else:
            assert have["allocationSize"] * sum(placed.values()) >= want.minimum_bytes
            assert not want.count or sum(placed.values()) == want.count
