"""Distribution and placement of tasks, and RFC 34 maps."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.taskmap import decode, distribute, encode, encode_ranks, place
from leveret.errors import FormatError


@given(st.integers(0, 60), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_every_task_has_a_place_and_slots_are_filled_first(ntasks: int, slots: list[int]) -> None:
    counts = distribute(ntasks, slots)
    assert len(counts) == len(slots)
    assert sum(counts) == ntasks
    if ntasks <= sum(slots):
        assert all(count <= slot for count, slot in zip(counts, slots, strict=True))
        # as even as slots allow: a node has two fewer than another only when it is full
        assert all(c >= max(counts) - 1 or c == s for c, s in zip(counts, slots, strict=True))
    else:
        assert all(count >= slot for count, slot in zip(counts, slots, strict=True))


@given(st.lists(st.integers(0, 5), max_size=12))
def test_a_map_says_where_every_task_is(counts: list[int]) -> None:
    back = [0] * len(counts)
    for first, nodes, tasks, repeats in encode(counts):
        assert (nodes > 0, tasks > 0, repeats) == (True, True, 1)
        for node in range(first, first + nodes):
            back[node] += tasks
    assert back == counts


@pytest.mark.parametrize(
    ("counts", "want"),
    [([1], [[0, 1, 1, 1]]), ([2, 2], [[0, 2, 2, 1]]), ([2, 1], [[0, 1, 2, 1], [1, 1, 1, 1]]),
     ([1, 0, 1], [[0, 1, 1, 1], [2, 1, 1, 1]]), ([], [])],
)  # fmt: skip
def test_maps(counts: list[int], want: list[list[int]]) -> None:
    assert encode(counts) == want


@pytest.mark.parametrize(
    ("ntasks", "slots", "want"),
    [(3, [2, 2], [2, 1]), (4, [1, 3], [1, 3]), (5, [2, 2], [3, 2]), (1, [4, 4], [1, 0]), (0, [1], [0])],
)
def test_distribution(ntasks: int, slots: list[int], want: list[int]) -> None:
    assert distribute(ntasks, slots) == want


@pytest.mark.parametrize(
    ("scheme", "value", "counts", "want"),
    [("block", "", [2, 2], [[0, 1], [2, 3]]), ("cyclic", "", [2, 2], [[0, 2], [1, 3]]),
     ("cyclic", "2", [4, 2], [[0, 1, 4, 5], [2, 3]]), ("cyclic", "", [3, 1], [[0, 2, 3], [1]]),
     ("manual", "[[1,1,2,1],[0,1,2,1]]", [2, 2], [[2, 3], [0, 1]]),
     ("manual", '{"version":1,"map":[[0,2,1,2]]}', [2, 0, 2], [[0, 2], [], [1, 3]])],
)  # fmt: skip
def test_schemes(scheme: str, value: str, counts: list[int], want: list[list[int]]) -> None:
    assert place(scheme, value, counts) == want


@pytest.mark.parametrize(
    ("scheme", "value"),
    [("foo", ""), ("cyclic", "0"), ("cyclic", "x"), ("manual", ""), ("manual", "[[0,1,4,1]]"), ("manual", "[[2,2,2,1]]"),
     ("manual", "[1]"), ("manual", "[[0,1000000,1000000,1]]"), ("manual", "[[0,-1,2,1]]")],
)  # fmt: skip
def test_schemes_that_cannot_be(scheme: str, value: str) -> None:
    with pytest.raises(FormatError):
        place(scheme, value, [2, 2])


@given(st.lists(st.integers(0, 4), max_size=6), st.sampled_from(["block", "cyclic"]), st.sampled_from(["", "2", "3"]))
def test_every_placement_has_a_map_that_says_it(counts: list[int], scheme: str, value: str) -> None:
    ranks = place(scheme, value, counts)
    assert [len(own) for own in ranks] == counts
    assert sorted(rank for own in ranks for rank in own) == list(range(sum(counts)))
    used = [own for own in ranks if own]
    nodes = decode(json.dumps(encode_ranks(used)))
    assert [[rank for rank, node in enumerate(nodes) if node == at] for at in range(len(used))] == used
    if scheme == "block":
        assert encode_ranks(used) == encode([len(own) for own in used])
