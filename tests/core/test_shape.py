"""Resource shapes (RFC 46): every example of the RFC, and what is no shape."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core import shape
from leveret.errors import FormatError


def v(kind: str, count: Any = 1, *inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, "count": count, **more, **({"with": list(inner)} if inner else {})}


GB = {"unit": "GB"}
EXAMPLES = [
    ("slot=4/node", [v("slot", 4, v("node"), label="default")]),
    (
        "slot=3-30/node",
        [v("slot", {"min": 3, "max": 30, "operator": "+", "operand": 1}, v("node"), label="default")],
    ),
    (
        "slot=4{nodelevel}/node{-x}/socket=2+/core=4+",
        [
            v(
                "slot", 4,
                v("node", 1, v("socket", {"min": 2}, v("core", {"min": 4})), exclusive=False),
                label="nodelevel",
            )
        ],
    ),
    (
        "slot=4{nodelevel}/node/socket=2/core=4",
        [v("slot", 4, v("node", 1, v("socket", 2, v("core", 4))), label="nodelevel")],
    ),
    (
        "[cluster/slot=2{ib}/node/[memory=4{unit:GB};ib10g];switch/slot=2{bicore}/node/core=2]",
        [
            v("cluster", 1, v("slot", 2, v("node", 1, v("memory", 4, **GB), v("ib10g")), label="ib")),
            v("switch", 1, v("slot", 2, v("node", 1, v("core", 2)), label="bicore")),
        ],
    ),
    (
        "cluster=2/slot/node=1+{-x}/core=30",
        [v("cluster", 2, v("slot", 1, v("node", {"min": 1}, v("core", 30), exclusive=False), label="default"))],
    ),
    ("slot=4,9,16,25/node", [v("slot", "4,9,16,25", v("node"), label="default")]),
    ("slot=10/core=2", [v("slot", 10, v("core", 2), label="default")]),
    (
        "node/[slot=10{read-db}/[core;memory=4{unit:GB}];slot{db}/[core=6;memory=24{unit:GB}]]",
        [
            v(
                "node", 1,
                v("slot", 10, v("core"), v("memory", 4, **GB), label="read-db"),
                v("slot", 1, v("core", 6), v("memory", 24, **GB), label="db"),
            )
        ],
    ),
    ("slot=10/[memory=2+{unit:GB};core]", [v("slot", 10, v("memory", {"min": 2}, **GB), v("core"), label="default")]),
    ("slot=2{4GB-node}/node/memory=4+{unit:GB}", [v("slot", 2, v("node", 1, v("memory", {"min": 4}, **GB)), label="4GB-node")]),
    ("node=[2-8:2:*]{x,y:{+a,b:[1,2],c:\"d e\"}}", [v("node", {"min": 2, "max": 8, "operator": "*", "operand": 2}, exclusive=True, y={"a": True, "b": [1, 2], "c": "d e"})]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "resources"), EXAMPLES)
def test_examples(text: str, resources: list[Any]) -> None:
    assert shape.parse(text) == resources


@pytest.mark.parametrize(
    "text",
    ["", "slot", "slot=0/core", "slot=x/core", "slot=4/", "[node;core", "node]", "node{", "node{a,a}", "slot=5-2/core",
     "[slot/core;slot/node]", "node=01", "node;core", "node{:1}", "/core", "node{a:}", "node/" * 40 + "core"],
)  # fmt: skip
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(FormatError, match="is not a resource shape"):
        shape.parse(text)


def test_the_tasks_slot() -> None:
    assert shape.slot_label(shape.parse("node/slot{mine}/core")) == "mine"
    assert shape.slot_label([{"type": "node"}, 7]) is None
