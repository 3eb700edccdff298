"""What an instance has, as the configuration describes it."""

from __future__ import annotations

import pytest

from leveret.config import ResourceEntry as Entry
from leveret.core import inventory
from leveret.core.inventory import Found
from leveret.core.resources import Node, Rset
from leveret.errors import FormatError, InvalidError


def test_entries_add_to_the_hosts_that_they_name() -> None:
    """The example of flux-config-resource(5), with memory."""
    found = inventory.described(
        [
            Entry("test[1-100]", cores="0-7", memory="64G"),
            Entry("test[1,2]", gpus="0-1"),
            Entry("test[1-89]", properties=["batch"]),
            Entry("test[90-100]", properties=["debug"], memory="1T"),
        ]
    )
    assert found.method == "configuration"
    assert found.rset.nnodes() == 100 and found.rset.ncores() == 800 and found.rset.ngpus() == 4
    assert found.rset.ranks[1] == Node("test2", tuple(range(8)), (0, 1))
    assert found.properties(88) == ["batch"] and found.properties(89) == ["debug"]
    assert found.memory_mb[0] == 65536 and found.memory_mb[99] == 1 << 20


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([], "describes no node"),
        ([Entry("a[", cores="0")], r"config\[0\].hosts"),
        ([Entry("", cores="0")], "names no host"),
        ([Entry("a", cores="0"), Entry("b", cores="x")], r"config\[1\].cores"),
        ([Entry("a")], "a has no cores"),
        ([Entry("a", cores="0", memory="much")], "memory"),
        ([Entry("a", cores="0", properties=["a&b"])], "property name"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(entries: list[Entry], what: str) -> None:
    with pytest.raises(InvalidError, match=what):
        inventory.described(entries)


def test_exclude_and_reserve() -> None:
    found = inventory.discovered([f"n{i}" for i in range(4)], Found(4))
    assert inventory.exclude(found, "1-2") == inventory.exclude(found, "n[1-2]") == {1, 2}
    for bad in ("7", "m1", "["):
        with pytest.raises(InvalidError, match=r"resource\.exclude"):
            inventory.exclude(found, bad)
    inventory.reserve(found, "0-1@0 3")
    assert [node.cores for node in found.rset.ranks.values()] == [(2,), (0, 1, 2), (0, 1, 2), (0, 1, 2)]
    with pytest.raises(InvalidError, match="no core left"):
        inventory.reserve(found, "0-3")


def test_an_r_document_counts_from_0() -> None:
    good = inventory.of_r(Rset({0: Node("", (0,)), 1: Node("b", (0,))}))
    assert good.rset.nodelist() == "node0,b"
    for ranks in ({1: Node("a", (0,))}, {}):
        with pytest.raises(InvalidError, match="ranks must be 0 to N"):
            inventory.of_r(Rset(ranks))


def test_what_is_described_and_not_there() -> None:
    found = inventory.described([Entry("a", cores="0-1"), Entry("b", cores="0-3", gpus="0")])
    assert inventory.verify(found, Found(2)) == {1: "missing resources: rank1/core[2-3],gpu0"}
    assert inventory.verify(found, Found(4, 0, 1)) == {}


def test_differences_in_words() -> None:
    old = Rset({0: Node("a", (0,)), 1: Node("b", (0,)), 2: Node("c", (0,))})
    new = Rset({0: Node("a", (0,)), 1: Node("c", (0, 1)), 2: Node("d", (0,))})
    assert inventory.difference(old, new) == ["gone: b", "new: d", "changed: c"]
    assert inventory.difference(new, new) == []


@pytest.mark.parametrize(("text", "mb"), [("64G", 65536), ("512M", 512), ("1.5T", 1572864), ("7", 7), ("2GiB", 2048)])
def test_sizes(text: str, mb: int) -> None:
    assert inventory.megabytes(text) == mb


@pytest.mark.parametrize("text", ["", "G", "1X", "-1G", "1 2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(FormatError):
        inventory.megabytes(text)
