"""Idsets (RFC 22)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core import idset
from leveret.errors import FormatError

PROPERTY = settings(deadline=None)

GOOD = [
    ("", []),
    ("[]", []),
    ("0", [0]),
    ("[0]", [0]),
    ("42", [42]),
    ("1,2,3,5,6,42", [1, 2, 3, 5, 6, 42]),
    ("1-3,5-6,42", [1, 2, 3, 5, 6, 42]),
    ("[1-3,5-6,42]", [1, 2, 3, 5, 6, 42]),
    ("3,1,1-2", [1, 2, 3]),
    ("7-7", [7]),
    ("4294967295", [4294967295]),
]

BAD = [
    "01", "00", "1-03", "00-3", "3-1", "1,", ",1", "1,,2", "-", "-1", "1-", "1-2-3", "a", "1a", "1 ,2", " 1", "1\n",
    "+1",
    "[1", "1]", "[1]]", "[[1]]", "[", "]", "1.5", "0x1", "1_0", "²", "١", "4294967296", "99999999999999999999", "{1}",
]  # fmt: skip


@pytest.mark.parametrize(("text", "ids"), GOOD)
def test_reads(text: str, ids: list[int]) -> None:
    assert idset.parse(text) == ids


@pytest.mark.parametrize("text", BAD)
def test_refuses(text: str) -> None:
    with pytest.raises(FormatError, match="is not a valid idset"):
        idset.parse(text)


@pytest.mark.parametrize("text", ["0-4294967295", "0-4194304", "0-2097152,0-2097152", "0-4000000,5000000-9000000"])
def test_refuses_more_ids_than_it_will_hold(text: str) -> None:
    with pytest.raises(FormatError, match="more than 4194304 ids"):
        idset.parse(text)


def test_a_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(FormatError) as caught:
        idset.parse("x" * 10_000)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("ids", "plain", "bracketed"),
    [
        ([], "", ""),
        ([0], "0", "0"),
        ([1, 0], "0-1", "[0-1]"),
        ([7, 0, 1, 2, 3, 3], "0-3,7", "[0-3,7]"),
        ([1, 3, 5], "1,3,5", "[1,3,5]"),
    ],
)
def test_writes(ids: list[int], plain: str, bracketed: str) -> None:
    assert idset.encode(ids) == plain
    assert idset.encode(iter(ids), brackets=True) == bracketed


@pytest.mark.parametrize("ids", [[-1], [0, -5], [2**32]])
def test_does_not_write_what_it_would_not_read(ids: list[int]) -> None:
    with pytest.raises(FormatError):
        idset.encode(ids)


@PROPERTY
@given(st.sets(st.integers(0, 60) | st.integers(0, 2**32 - 1)), st.booleans())
def test_round_trip(ids: set[int], brackets: bool) -> None:
    assert idset.parse(idset.encode(ids, brackets)) == sorted(ids)


@PROPERTY
@given(st.text(alphabet="0123456789,-[]", max_size=12))
def test_any_text_is_an_idset_or_a_format_error(text: str) -> None:
    try:
        ids = idset.parse(text)
    except FormatError:
        return
    assert ids == sorted(set(ids))
    assert idset.parse(idset.encode(ids)) == ids


@PROPERTY
@given(st.lists(st.integers(0, 20)))
def test_ranges_cover_the_list_in_order(ids: list[int]) -> None:
    runs = idset.ranges(ids)
    assert [one for low, high in runs for one in range(low, high + 1)] == ids
    # A run is as long as it can be.
    assert all(after[0] != before[1] + 1 for before, after in itertools.pairwise(runs))
