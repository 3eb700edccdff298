"""Breakdowns, against those of the real driver."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from leveret.core.directives import check, split
from leveret.storage.breakdowns import breakdowns, per_node_bytes
from leveret.storage.port import Breakdown

TRANSCRIPT = (Path(__file__).parent.parent / "data/dws/directives-and-breakdowns.txt").read_text()
CASES = {
    "xfs": "#DW jobdw type=xfs capacity=10GiB name=pp",
    "gfs2": "#DW jobdw type=gfs2 capacity=10GB name=pp",
    "raw": "#DW jobdw type=raw capacity=1TiB name=pp",
    "lustre": "#DW jobdw type=lustre capacity=100GiB name=pp",
    "two": "#DW jobdw type=xfs capacity=10GiB name=pp #DW jobdw type=lustre capacity=1TB name=qq",
    "empty": "",
    "create": "#DW create_persistent type=lustre capacity=10GiB name=shared",
    "destroy": "#DW destroy_persistent name=shared",
}


def shown(name: str) -> list[dict[str, Any]]:
    section = re.search(rf"^== {name} .*?(?=^== |^### )", TRANSCRIPT, re.MULTILINE | re.DOTALL)
    assert section
    return [json.loads(text) for text in re.findall(r"^   breakdown (.*)$", section.group(0), re.MULTILINE)]


def as_dws(one: Breakdown) -> dict[str, Any]:
    """The parts of a DirectiveBreakdown that say something."""
    sets = []
    for part in one.sets:
        constraints: dict[str, Any] = {"labels": list(part.labels)}
        if part.scale:
            constraints["scale"] = part.scale
        if part.count:
            constraints["count"] = part.count
        if part.colocation:
            constraints["colocation"] = [{"type": kind, "key": key} for kind, key in part.colocation]
        sets.append(
            {
                "allocationStrategy": part.strategy,
                "constraints": constraints,
                "label": part.label,
                "minimumCapacity": part.minimum_bytes,
            }
        )
    locations = [
        {"access": [{"type": t, "priority": p} for t, p in where.access], "set": where.set} for where in one.locations
    ]
    return {"lifetime": one.lifetime, "sets": sets, "locations": locations}


def as_seen(seen: dict[str, Any]) -> dict[str, Any]:
    location = (seen.get("compute") or {}).get("constraints", {}).get("location", [])
    return {
        "lifetime": seen["storage"]["lifetime"],
        "sets": seen["storage"]["allocationSets"],
        "locations": [
            {"access": item["access"], "set": int(item["reference"]["fieldPath"].partition("[")[2][:-1])}
            for item in location
        ],
    }


@pytest.mark.parametrize("name", CASES)
def test_as_the_driver_did(name: str) -> None:
    found = breakdowns(check(split(CASES[name])))
    assert [as_dws(one) for one in found] == [as_seen(one) for one in shown(name)]
    assert bool(found) == (name not in ("empty", "destroy"))


def test_a_persistentdw_asks_for_no_storage() -> None:
    (one,) = breakdowns(check(["#DW persistentdw name=shared"]))
    assert one.sets == () and one.locations[0].access == (("physical", "mandatory"),)


def test_per_node() -> None:
    found = breakdowns(check(split(CASES["two"])))
    assert per_node_bytes(found, 4) == {"xfs": 11051991040, "lustre": 250_000_000_000}
