"""Resource sets (RFC 20)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.resources import Node, Rset, from_dict
from leveret.errors import FormatError

PROPERTY = settings(deadline=None)

# Measured on Flux: `flux run -n3 true` on four brokers of two cores.
MULTI_R: dict[str, Any] = {
    "version": 1,
    "execution": {
        "R_lite": [
            {"rank": "0", "children": {"core": "0-1"}},
            {"rank": "1", "children": {"core": "0"}},
        ],
        "starttime": 1796070530.5,
        "expiration": 1796070590.5,
        "nslots": 3,
        "nodelist": ["HOST,HOST"],
    },
}


def test_reads_and_writes_the_golden() -> None:
    rset = from_dict(MULTI_R)
    assert rset.ranks == {0: Node("HOST", (0, 1)), 1: Node("HOST", (0,))}
    assert (rset.nslots, rset.starttime, rset.expiration) == (3, 1796070530.5, 1796070590.5)
    assert json.dumps(rset.to_dict()) == json.dumps(MULTI_R)
    assert Rset.from_dict(MULTI_R) == rset
    assert (rset.ncores(), rset.ngpus(), rset.nnodes()) == (3, 0, 2)
    assert (rset.ranks_idset(), rset.nodelist()) == ("0-1", "HOST,HOST")
    assert rset.summary() == "rank0/core[0-1] rank1/core0"


@pytest.mark.parametrize(
    ("ranks", "summary"),
    [
        ({}, ""),
        ({0: Node("a", (0,))}, "rank0/core0"),
        ({0: Node("a", (0,)), 1: Node("b", (0,))}, "rank[0-1]/core0"),
        ({0: Node("a", (0, 1))}, "rank0/core[0-1]"),
        ({0: Node("a", (0,)), 1: Node("b", (1,)), 2: Node("c", (0,))}, "rank[0,2]/core0 rank1/core1"),
        ({3: Node("a", (0, 1), (0,))}, "rank3/core[0-1],gpu0"),
        ({3: Node("a", (), (0, 1))}, "rank3/gpu[0-1]"),
    ],
)
def test_summary(ranks: dict[int, Node], summary: str) -> None:
    assert Rset(ranks).summary() == summary


def test_same_children_share_an_entry_and_hosts_stay_in_order_of_rank() -> None:
    rset = Rset({9: Node("n2", (0,)), 0: Node("n7", (0,)), 4: Node("n8", (0, 1), (0,))})
    assert list(rset.ranks) == [0, 4, 9]
    assert rset.to_dict() == {
        "version": 1,
        "execution": {
            "R_lite": [
                {"rank": "0,9", "children": {"core": "0"}},
                {"rank": "4", "children": {"core": "0-1", "gpu": "0"}},
            ],
            "nodelist": ["n[7-8,2]"],
        },
    }
    assert from_dict(rset.to_dict()) == rset


def test_entries_out_of_order_and_several_hostlists() -> None:
    rset = from_dict(
        {
            "version": 1,
            "execution": {
                "R_lite": [{"rank": "2", "children": {"core": "5"}}, {"rank": "0-1", "children": {"core": "0"}}],
                "nodelist": ["a[0-1]", "b"],
                "properties": {"ssd": "0,2"},
            },
            "scheduling": {"graph": {}},
        }
    )
    assert rset.ranks == {0: Node("a0", (0,)), 1: Node("a1", (0,)), 2: Node("b", (5,))}
    assert rset.properties == {"ssd": (0, 2)}
    assert from_dict(rset.to_dict()) == rset


def test_a_host_may_stand_in_its_entry() -> None:
    entry = {"rank": "0", "node": "n5", "children": {"core": "0"}}
    assert from_dict({"version": 1, "execution": {"R_lite": [entry]}}).ranks[0].host == "n5"
    del entry["node"]
    rset = from_dict({"version": 1, "execution": {"R_lite": [entry]}})
    assert rset.nodelist() == rset.ranks[0].host == ""


def _set(path: list[str | int], value: object) -> dict[str, Any]:
    document = copy.deepcopy(MULTI_R)
    place: Any = document
    for part in path[:-1]:
        place = place[part]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


R_LITE: list[str | int] = ["execution", "R_lite"]
BAD = [
    (["version"], ..., "version"),
    (["version"], 2, "version"),
    (["version"], True, "version"),
    (["execution"], ..., "execution"),
    (["execution"], [], "execution"),
    (R_LITE, ..., "execution.R_lite"),
    (R_LITE, {}, "execution.R_lite"),
    ([*R_LITE, 1], 5, "execution.R_lite[1]"),
    ([*R_LITE, 1, "rank"], ..., "execution.R_lite[1].rank"),
    ([*R_LITE, 1, "rank"], 1, "execution.R_lite[1].rank"),
    ([*R_LITE, 1, "rank"], "x", "execution.R_lite[1].rank"),
    ([*R_LITE, 1, "rank"], "0", "execution.R_lite[1].rank"),
    ([*R_LITE, 0, "children"], ..., "execution.R_lite[0].children"),
    ([*R_LITE, 0, "children", "core"], ..., "execution.R_lite[0].children.core"),
    ([*R_LITE, 0, "children", "core"], "1-0", "execution.R_lite[0].children.core"),
    ([*R_LITE, 0, "children", "gpu"], None, "execution.R_lite[0].children.gpu"),
    ([*R_LITE, 0, "node"], 1, "execution.R_lite[0].node"),
    (["execution", "nodelist"], "HOST,HOST", "execution.nodelist"),
    (["execution", "nodelist"], ["HOST"], "execution.nodelist"),
    (["execution", "nodelist"], ["HOST", 1], "execution.nodelist[1]"),
    (["execution", "nodelist"], ["HOST", "n["], "execution.nodelist[1]"),
    (["execution", "nslots"], -1, "execution.nslots"),
    (["execution", "nslots"], 1.5, "execution.nslots"),
    (["execution", "starttime"], "x", "execution.starttime"),
    (["execution", "starttime"], float("nan"), "execution.starttime"),
    (["execution", "expiration"], -1, "execution.expiration"),
    (["execution", "expiration"], 1796070530.5, "execution.expiration"),
    (["execution", "properties"], [], "execution.properties"),
    (["execution", "properties"], {"a|b": "0"}, "execution.properties.a|b"),
    (["execution", "properties"], {"ssd": "7"}, "execution.properties.ssd"),
]


@pytest.mark.parametrize(("path", "value", "named"), BAD)
def test_refuses_and_names_the_key(path: list[str | int], value: object, named: str) -> None:
    with pytest.raises(FormatError) as caught:
        from_dict(_set(path, value))
    assert caught.value.path == named
    assert named in caught.value.message


@pytest.mark.parametrize("document", [None, [], "R", 1])
def test_refuses_what_is_no_document(document: object) -> None:
    with pytest.raises(FormatError):
        from_dict(document)


IDS = st.frozensets(st.integers(0, 9), max_size=6).map(lambda ids: tuple(sorted(ids)))
NODES = st.builds(Node, st.sampled_from(["n0", "n1", "n2", "login", "n07"]), IDS, IDS)


@PROPERTY
@given(st.dictionaries(st.integers(0, 40), NODES, max_size=12), st.integers(0, 5), st.sampled_from([0.0, 5.5]))
def test_round_trip(ranks: dict[int, Node], nslots: int, starttime: float) -> None:
    rset = Rset(ranks, starttime, starttime + 1 if starttime else 0.0, nslots)
    document = json.loads(json.dumps(rset.to_dict()))
    again = from_dict(document)
    assert again == rset
    assert list(again.ranks) == sorted(ranks)
    assert again.ncores() == sum(len(node.cores) for node in ranks.values())
    assert len(document["execution"]["R_lite"]) == len({(node.cores, node.gpus) for node in ranks.values()})
