"""`leveret rabbit …` and `leveret getrabbit`: tables, JSON, exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from fakedaemon import FakeDaemon, record

from leveret import schemas
from leveret.storage.port import Persistent

TIB = 2**40


def rabbit(name: str, *computes: str, **more: Any) -> dict[str, Any]:
    one = {"name": name, "status": "Ready", "enabled": True, "capacity_bytes": 4 * TIB, "allocated_bytes": TIB}
    one |= {"external_bytes": 0, "computes": dict.fromkeys(computes, "Ready"), "message": ""}
    return one | more


@pytest.fixture
def two(daemon: FakeDaemon) -> FakeDaemon:
    lost = rabbit("rabbit-1", "n10", "n9", status="Degraded", external_bytes=TIB)
    lost["computes"]["n9"] = "Offline"
    found = {"adapter": "dws", "synced": True, "trouble": "", "rabbits": [lost, rabbit("rabbit-0", "n0", "n1")]}
    daemon.answer("GET", "/v1/rabbits", (200, found))
    return daemon


def test_list(leveret: Any, two: FakeDaemon) -> None:
    outcome = leveret("rabbit", "list")
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines()]
    assert rows[0] == ["RABBIT", "STATE", "CAPACITY", "FREE", "NODES", "LOST"]
    assert rows[1:] == [
        ["rabbit-1", "Degraded", "4.0TiB", "3.0TiB", "n[10,9]", "n9"],
        ["rabbit-0", "Ready", "4.0TiB", "3.0TiB", "n[0-1]", "-"],
    ]
    assert json.loads(leveret("rabbit", "list", "--json").out)["rabbits"][0]["name"] == "rabbit-1"


def test_without_rabbits_it_says_what_to_do(leveret: Any, daemon: FakeDaemon) -> None:
    answer = {
        "code": "not-found",
        "message": "this instance has no rabbits",
        "hint": "`[rabbit]` in leveret.toml describes them",
    }
    daemon.answer("GET", "/v1/rabbits", (404, answer))
    outcome = leveret("rabbit", "list")
    assert outcome.code != 0 and "this instance has no rabbits" in outcome.err and "hint: `[rabbit]`" in outcome.err


def test_mapping(leveret: Any, two: FakeDaemon) -> None:
    table = json.loads(leveret("rabbit", "mapping").out)
    assert list(table["computes"].items()) == [
        ("n0", "rabbit-0"),
        ("n1", "rabbit-0"),
        ("n9", "rabbit-1"),
        ("n10", "rabbit-1"),
    ]
    assert table["rabbits"] == {
        "rabbit-0": {"hostlist": "n[0-1]", "capacity": 4 * TIB},
        "rabbit-1": {"hostlist": "n[10,9]", "capacity": 3 * TIB},
    }
    whole = json.loads(leveret("rabbit", "mapping", "--ignore-external-allocations", "--nosort").out)
    assert list(whole["rabbits"]) == ["rabbit-1", "rabbit-0"] and whole["rabbits"]["rabbit-1"]["capacity"] == 4 * TIB
    assert leveret("rabbit", "mapping", "-i", "2").out.startswith('{\n  "computes"')


@pytest.mark.parametrize(
    "args,printed",
    [([], "rabbit-[0-1]"), (["-c", "n[0,9]"], "rabbit-[0-1]"), (["-c", "n1"], "rabbit-0"), (["rabbit-0"], "n[0-1]")],
)
def test_getrabbit(leveret: Any, two: FakeDaemon, args: list[str], printed: str) -> None:
    outcome = leveret("getrabbit", *args)
    assert (outcome.code, outcome.out) == (0, f"{printed}\n")


def test_getrabbit_of_jobs_and_what_is_not_there(leveret: Any, two: FakeDaemon) -> None:
    two.answer("GET", "/v1/jobs/5", (200, record(5, annotations={"user": {"rabbits": "rabbit-[0-1]"}})))
    two.answer("GET", "/v1/jobs/6", (200, record(6)))
    assert leveret("getrabbit", "-j", "5").out == "rabbit-[0-1]\n"
    names = json.loads(leveret("getrabbit", "-j", "5", "--json").out)
    assert names == ["rabbit-0", "rabbit-1"]
    jsonschema.validate(names, schemas.schema("getrabbit") or {}, jsonschema.Draft202012Validator)
    for args, text in (
        (["-j", "6"], "job 6 uses no rabbit"),
        (["-c", "x1"], "no rabbit is known for the node x1"),
        (["rabbit-7"], "there is no rabbit rabbit-7"),
        (["-c", "n1", "rabbit-0"], "give jobs, nodes or rabbits"),
    ):
        outcome = leveret("getrabbit", *args)
        assert outcome.code != 0 and text in outcome.err and outcome.out == ""


def test_status_and_persistent(leveret: Any, daemon: FakeDaemon) -> None:
    move = {"state": "Running", "bytes_done": 41, "bytes_total": 100}
    workflow = {
        "jobid": 7,
        "state": "DataIn",
        "desired": "DataIn",
        "ready": False,
        "status": "DriverWait",
        "message": "moving",
    }
    workflow |= {"allocated": {"rabbit-0": 9}, "movements": [move]}
    daemon.answer("GET", "/v1/rabbits/workflows", (200, {"workflows": [workflow]}))
    row = leveret("rabbit", "status").out.splitlines()[1].split()
    assert row[1:] == ["DataIn", "DriverWait", "0/1,", "41%", "rabbit-0", "moving"]
    assert json.loads(leveret("rabbit", "status", "--json", "7").out)["workflows"][0]["jobid"] == 7
    outcome = leveret("rabbit", "status", "8")
    assert outcome.code != 0 and "has no storage" in outcome.err
    kept = msgspec.to_builtins(Persistent("keep", "xfs", 0, capacity_bytes=2**30, consumers=("fluxjob-1",)))
    listed = json.loads(json.dumps({"persistent": [kept]}))
    jsonschema.validate(listed, schemas.schema("rabbit persistent") or {}, jsonschema.Draft202012Validator)
    daemon.answer("GET", "/v1/rabbits/persistent", (200, {"persistent": [kept]}))
    assert leveret("rabbit", "persistent").out.splitlines()[1].split() == [
        "keep",
        "xfs",
        "root",
        "Active",
        "1.0GiB",
        "fluxjob-1",
    ]


R = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-1", "children": {"core": "0-1", "gpu": "0"}}, {"rank": "2", "children": {"core": "0"}}],
        "nodelist": ["n[0-1],rabbit-0"],
        "starttime": 0.0,
        "expiration": 0.0,
        "properties": {"fast": "1"},
    },
}


def graph_of(leveret: Any, monkeypatch: pytest.MonkeyPatch, *args: str, rset: Any = R) -> Any:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(rset).encode())))
    return leveret("rabbit", "dws2jgf", *args)


def test_dws2jgf(leveret: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "computes": {"n0": "rabbit-0", "n1": "rabbit-0"},
        "rabbits": {"rabbit-0": {"hostlist": "n[0-1]", "capacity": 40 * 2**30}},
    }
    file = tmp_path / "mapping.json"
    file.write_text(json.dumps(table))
    found = json.loads(graph_of(leveret, monkeypatch, "--chunks-per-nnf", "4", "--cluster-name", "tuo", str(file)).out)
    assert found["execution"]["R_lite"] == R["execution"]["R_lite"]
    graph = found["scheduling"]["graph"]
    nodes = {one["id"]: one["metadata"] for one in graph["nodes"]}
    paths = [(one["type"], one["paths"]["containment"]) for one in nodes.values()]
    assert paths == [
        ("cluster", "/tuo"), ("chassis", "/tuo/chassis0"),
        *[("ssd", f"/tuo/chassis0/ssd{i}") for i in range(4)],
        ("node", "/tuo/chassis0/n0"), ("core", "/tuo/chassis0/n0/core0"), ("core", "/tuo/chassis0/n0/core1"), ("gpu", "/tuo/chassis0/n0/gpu0"),
        ("node", "/tuo/chassis0/n1"), ("core", "/tuo/chassis0/n1/core0"), ("core", "/tuo/chassis0/n1/core1"), ("gpu", "/tuo/chassis0/n1/gpu0"),
        ("storage_node", "/tuo/chassis0/rabbit-0"), ("core", "/tuo/chassis0/rabbit-0/core0"),
    ]  # fmt: skip
    assert nodes["1"]["properties"] == {"rabbit": "rabbit-0", "ssdcount": "4"}
    ssds = [one for one in nodes.values() if one["type"] == "ssd"]
    assert all(one["size"] == 10 and one["unit"] == "GiB" and one["status"] == 1 for one in ssds)
    assert [one["rank"] for one in nodes.values() if "node" in one["type"]] == [0, 1, 2]
    assert next(one for one in nodes.values() if one["name"] == "n1")["properties"] == {"fast": ""}
    # a tree: each vertex but the root has one parent, whose path is the beginning of its own
    parents = {one["target"]: one["source"] for one in graph["edges"]}
    assert set(parents) == set(nodes) - {"0"} and len(graph["edges"]) == len(parents)
    for child, parent in parents.items():
        assert nodes[child]["paths"]["containment"].rpartition("/")[0] == nodes[parent]["paths"]["containment"]
    assert set(json.loads(graph_of(leveret, monkeypatch, "--only-sched", str(file)).out)) == {"graph"}


def test_dws2jgf_says_which_node_is_not_known(leveret: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mapping.json"
    file.write_text(json.dumps({"computes": {"n0": "r"}, "rabbits": {"r": {"hostlist": "n0", "capacity": 0}}}))
    outcome = graph_of(leveret, monkeypatch, str(file))
    assert outcome.code == 1 and "no rabbit is known for the node n1 (rank 1)" in outcome.err and outcome.out == ""
    assert graph_of(leveret, monkeypatch, "--no-validate", str(file)).code == 0
    file.write_text("[]")
    outcome = graph_of(leveret, monkeypatch, str(file))
    assert outcome.code == 1 and "is no mapping of rabbits" in outcome.err


def test_dws2jgf_of_a_configuration(leveret: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, file = tmp_path / "leveret.toml", tmp_path / "mapping.json"
    config.write_text('[resource]\nexclude = "1"\n[[resource.config]]\nhosts = "n[0-1]"\ncores = "0-3"\n')
    file.write_text(
        json.dumps({"computes": {"n0": "r", "n1": "r"}, "rabbits": {"r": {"hostlist": "n[0-1]", "capacity": 0}}})
    )
    found = json.loads(leveret("rabbit", "dws2jgf", "--only-sched", "--from-config", str(config), str(file)).out)
    assert [one["metadata"]["name"] for one in found["graph"]["nodes"] if one["metadata"]["type"] == "node"] == ["n0"]
