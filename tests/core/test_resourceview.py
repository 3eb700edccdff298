"""Which nodes are in which state, as every door shows it."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.resources import Node, Rset
from leveret.core.resourceview import View
from leveret.errors import InvalidError


def document(**more: Any) -> dict[str, Any]:
    """Six nodes: 0 free, 1 half taken, 2 drained, 3 drained and busy, 4 excluded, 5 offline."""
    whole = Rset({rank: Node(f"n{rank}", (0, 1), (0,) if rank < 2 else ()) for rank in range(6)})
    whole.properties = {"big": (0, 1), "q1": (0, 2)}
    held = Rset({1: Node("n1", (0,), (0,)), 3: Node("n3", (0, 1))})
    return {
        "R": whole.to_dict(),
        "allocated": held.to_dict(),
        "online": "0-4",
        "torpid": "",
        "exclude": "4",
        "drain": [
            {"ranks": "2", "timestamp": 20.0, "reason": "bad", "userid": 7},
            {"ranks": "3", "timestamp": 10.0, "reason": "worse", "userid": None},
        ],
        "housekeeping": "",
        "queues": {"q": "0,2"},
        **more,
    }


def listed(view: View, *states: str) -> dict[str, str]:
    return {row.state: row.rset.summary() for row in view.rows(states or ("free", "allocated", "down"))}


def test_the_schedulers_view() -> None:
    assert listed(View(document())) == {
        "free": "rank0/core[0-1],gpu0 rank1/core1",
        "allocated": "rank1/core0,gpu0 rank3/core[0-1]",
        "down": "rank[2-3,5]/core[0-1]",  # without the one that is excluded
    }
    assert listed(View(document()), "up", "all") == {
        "up": "rank[0-1]/core[0-1],gpu0",
        "all": "rank[0-1]/core[0-1],gpu0 rank[2-3,5]/core[0-1]",
    }
    with pytest.raises(InvalidError, match="Invalid resource state broken specified"):
        View(document()).rows(["broken"])


def test_the_operators_view() -> None:
    rows = View(document()).status()
    assert [(row.state_text, row.rset.ranks_idset()) for row in rows if row.rset.ranks] == [
        ("avail", "0-1"),
        ("avail*", "5"),
        ("exclude", "4"),
        ("draining", "3"),
        ("drained", "2"),
    ]
    drained = View(document()).drained()
    assert [(r.timestamp, r.reason, r.userid, r.state) for r in drained] == [
        (10.0, "worse", None, "draining"),
        (20.0, "bad", 7, "drained"),
    ]
    offline = [row.rset.ranks_idset() for row in View(document()).status(["offline"]) if row.rset.ranks]
    assert offline == ["5"]
    assert [row.state for row in View(document(drain=[])).status(["drain"])] == [
        "draining",
        "drained",
    ]  # empty, but asked for
    tidy = View(document(housekeeping="1", torpid="0")).status(["housekeeping", "torpid", "allocated"])
    assert [(row.state, row.rset.ranks_idset()) for row in tidy] == [
        ("housekeeping", "1"),
        ("torpid", "0"),
        ("allocated", "1,3"),
    ]


def test_only_some_nodes() -> None:
    for text in ("0,2,17", "n[0,2],other"):
        view = View(document())
        view.only(include=text)
        assert listed(view)["free"] == "rank0/core[0-1],gpu0" and listed(view)["down"] == "rank2/core[0-1]"
    view = View(document())
    view.only(queues=["q"])
    assert listed(view) == {"free": "rank0/core[0-1],gpu0", "allocated": "", "down": "rank2/core[0-1]"}
    with pytest.raises(InvalidError, match="nosuch: no such queue"):
        view.only(queues=["nosuch"])
    with pytest.raises(InvalidError, match="invalid targets"):
        view.only(include="n[")


def test_rows_by_queue_and_properties() -> None:
    view = View(document())
    rows = view.by_node(view.rows(["all", "allocated"]))
    assert [(r.state, r.queues, sorted(r.rset.properties), r.rset.ranks_idset()) for r in rows] == [
        ("all", ("q",), ["big", "q1"], "0"),
        ("all", (), ["big"], "1"),
        ("all", ("q",), ["q1"], "2"),
        ("all", (), [], "3,5"),
        ("allocated", (), ["big"], "1"),
        ("allocated", (), [], "3"),
    ]
