"""Hostlists (RFC 29)."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core import hostlist
from leveret.errors import FormatError

PROPERTY = settings(deadline=None)

# The test vectors of RFC 29, then our own.
GOOD = [
    ("", []),
    ("foox,fooy,fooz", ["foox", "fooy", "fooz"]),
    ("[1-3,5-6]", ["1", "2", "3", "5", "6"]),
    ("foo[1-5]", ["foo1", "foo2", "foo3", "foo4", "foo5"]),
    ("foo[0-4]-eth2", ["foo0-eth2", "foo1-eth2", "foo2-eth2", "foo3-eth2", "foo4-eth2"]),
    ("foo1,foo1,foo1", ["foo1", "foo1", "foo1"]),
    ("[00-02]", ["00", "01", "02"]),
    ("[00-2]", ["00", "01", "02"]),
    ("foo[1,1,2,1]", ["foo1", "foo1", "foo2", "foo1"]),
    ("[005,4,11-13]", ["005", "004", "011", "012", "013"]),
    ("n[08-11]", ["n08", "n09", "n10", "n11"]),
    ("n[8-11]", ["n8", "n9", "n10", "n11"]),
    ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ("n[5,004]", ["n5", "n004"]),
    ("b,a,n[2,1]", ["b", "a", "n2", "n1"]),
    ("a,,b,", ["a", "b"]),
    (",", []),
    ("n[0-1],login,n[0-1]", ["n0", "n1", "login", "n0", "n1"]),
    ("n1.example.com", ["n1.example.com"]),
]

BAD = [
    "n[", "n]", "n[1", "n1]", "n[]", "n[1,]", "n[,1]", "n[1-]", "n[-1]", "n[3-1]", "n[1-2-3]", "n[a]", "n[1 ,2]", "a b",
    " a", "a\n", "a\t", "é", "n[1][2]", "n[1]x[2]", "n[[1]]", "]n[", "a]b[1]", "n[1-03]", "n[0-02]", "n[+1]",
    "n[1234567890123456]", "x" * 256, "[0-9]" + "x" * 255,
]  # fmt: skip


@pytest.mark.parametrize(("text", "hosts"), GOOD)
def test_reads(text: str, hosts: list[str]) -> None:
    assert hostlist.parse(text) == hosts
    assert hostlist.parse(hostlist.encode(hosts)) == hosts


@pytest.mark.parametrize("text", BAD)
def test_refuses(text: str) -> None:
    with pytest.raises(FormatError, match="is not a valid hostlist"):
        hostlist.parse(text)


@pytest.mark.parametrize(
    "text", ["n[0-262144]", "n[0-999999999999999]", "n[0-200000],n[0-200000]", ",".join(["n[0-99999]"] * 9)]
)
def test_refuses_more_hosts_than_it_will_hold(text: str) -> None:
    with pytest.raises(FormatError, match="more than 262144 hosts"):
        hostlist.parse(text)


def test_holds_as_many_hosts_as_it_says() -> None:
    assert len(hostlist.parse("n[0-262143]")) == hostlist.HOSTS_MAX


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["node0", "node1", "node2", "node3", "x"], "node[0-3],x"),
        (["HOST", "HOST"], "HOST,HOST"),
        (["n1"], "n1"),
        (["n007"], "n007"),
        (["n1", "n1"], "n[1,1]"),
        (["n3", "n2", "n1"], "n[3,2,1]"),
        (["n09", "n10"], "n[09-10]"),
        (["n9", "n10"], "n[9-10]"),
        (["n10", "n09"], "n10,n09"),
        (["n1", "n01", "n001"], "n1,n01,n001"),
        (["n1", "m2", "n3"], "n1,m2,n3"),
        (["n0.example.com", "n1.example.com"], "n[0-1].example.com"),
        (["0", "1"], "[0-1]"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
    ],
)
def test_writes(hosts: list[str], text: str) -> None:
    assert hostlist.encode(iter(hosts)) == text


@pytest.mark.parametrize("host", ["", "a b", "a,b", "a[", "]", "é", "a\n", "x" * 256])
def test_does_not_write_what_it_would_not_read(host: str) -> None:
    with pytest.raises(FormatError, match="is not a valid host name"):
        hostlist.encode(["ok", host])


# Few prefixes and many numbers, so that neighbours often share a bracket.
NUMBER = st.builds(lambda number, width: f"{number:0{width}d}", st.integers(0, 120), st.integers(0, 4))
HOST = st.one_of(
    st.builds("{}{}{}".format, st.sampled_from(["", "n", "r1-"]), NUMBER, st.sampled_from(["", "x", "-eth2"])),
    st.text(alphabet="an-.0129", min_size=1, max_size=20),
)


@PROPERTY
@given(st.lists(HOST, max_size=30))
def test_round_trip_keeps_order_and_repeats(hosts: list[str]) -> None:
    text = hostlist.encode(hosts)
    assert hostlist.parse(text) == hosts
    assert len(text) <= len(",".join(hosts)) + len("[]") * len(hosts)


@PROPERTY
@given(st.integers(0, 10_000), st.integers(2, 500), st.integers(0, 6))
def test_consecutive_hosts_are_one_range(first: int, count: int, width: int) -> None:
    last = first + count - 1
    hosts = [f"n{number:0{width}d}" for number in range(first, last + 1)]
    assert hostlist.encode(hosts) == f"n[{first:0{width}d}-{last:0{width}d}]"


@PROPERTY
@given(st.text(alphabet="n019,-[]", max_size=14))
def test_any_text_is_a_hostlist_or_a_format_error(text: str) -> None:
    try:
        hosts = hostlist.parse(text)
    except FormatError:
        return
    assert hostlist.parse(hostlist.encode(hosts)) == hosts


@st.composite
def bracketed(draw: st.DrawFn) -> str:
    """One bracket with numbers that are padded to one width, which every reader takes to mean the same."""
    width = draw(st.integers(0, 4))
    items = []
    for low, length in draw(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 40)), min_size=1, max_size=6)):
        high = low + length
        items.append(f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}")
    if width > 1 and len(items[0].partition("-")[0].lstrip("0")) >= width:
        items.insert(0, f"{1:0{width}d}")
    return f"node[{','.join(items)}]{draw(st.sampled_from(['', '-ib']))}"


@PROPERTY
@given(bracketed())
def test_expands_to_the_same_hosts_as_clustershell(text: str) -> None:
    assert set(hostlist.parse(text)) == set(NodeSet(text))
