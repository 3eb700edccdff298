"""Nodes at the command's door: drained over `kill -9`, lost and back, described in the configuration."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from typing import Any

from harness import Instance, until

DESCRIBED = """\
[exec]
engine = "simulated"

[resource]
exclude = "n9999"

[[resource.config]]
hosts = "n[0-9999]"
cores = "0-63"
memory = "256G"

[[resource.config]]
hosts = "n[0-99]"
gpus = "0-3"
properties = ["gpu"]
"""


def field(instance: Instance, what: str) -> str:
    verb, _, form = what.partition(" ")
    return str(instance.leveret("resource", verb, "-no", form, check=0).out).strip()


def test_a_drain_outlives_kill_9_and_gives_no_new_work(launch: Callable[..., Instance]) -> None:
    instance = launch(4)
    assert instance.leveret("resource", "drain", "node[1-2]", "two", "bad", "nodes", check=0).err == ""
    running = instance.submit("-N2", "-x", "sleep", "1000")
    instance.wait_event(running, "start")
    assert instance.record(running)["ranks"] == "0,3"
    instance.crash()
    me = pwd.getpwuid(os.getuid()).pw_name
    assert field(instance, "drain {state} {ranks} {reason} {username}") == f"drained 1-2 two bad nodes {me}"
    waits = instance.submit("-N3", "true")
    instance.wait_state(waits, "SCHED")
    assert instance.leveret("resource", "drain", "0", "later", check=0).code == 0
    assert field(instance, "drain {state} {ranks}").splitlines() == ["drained 1-2", "draining 0"]
    instance.client.cancel(running)
    assert instance.wait(running)["result"] == "CANCELED"
    assert instance.leveret("resource", "undrain", "0,1", check=0).out == ""
    assert instance.wait(waits)["ranks"] == "0-1,3"
    events = [json.loads(line) for line in instance.leveret("resource", "eventlog", "-f", "json").out.splitlines()]
    names = [event["name"] for event in events]
    assert names.count("restart") == 2 and names.count("drain") == 2 and names[-1] == "undrain"
    assert [e["context"]["userid"] for e in events if e["name"] == "drain"] == [os.getuid()] * 2


def test_a_node_that_is_lost_is_offline_its_job_fails_and_it_comes_back(launch: Callable[..., Instance]) -> None:
    instance = launch(3)
    job = instance.submit("-N3", "-x", "sh", "-c", "while :; do echo x; sleep 0.05; done")
    instance.wait_event(job, "start")
    pid = next(helper["pid"] for helper in instance.client.status()["helpers"] if helper["node"] == 1)
    os.kill(pid, 9)
    record = instance.wait(job)
    assert (record["result"], record["cause"]["type"]) == ("FAILED", "node-failure")
    events = instance.leveret("resource", "eventlog", "-w", "offline", "-m", "idset=1", "-t", "30s", check=0).out
    assert "offline" in events
    until(lambda: instance.client.resources()["online"] == "0-2", "the node is back")
    assert instance.run("-N3", "true").code == 0
    ends: dict[str, int] = {}
    for line in instance.client.events(job, ["output"]):
        event = line.get("event") or {}
        if event.get("name") == "data" and event["context"].get("eof"):
            key = f"{event['context']['stream']}{event['context']['rank']}"
            ends[key] = ends.get(key, 0) + 1
    assert ends == {f"{stream}{rank}": 1 for stream in ("stdout", "stderr") for rank in range(3)}


def test_ten_thousand_described_nodes(launch: Callable[..., Instance]) -> None:
    instance = launch(config=DESCRIBED)
    assert instance.leveret("resource", "info", check=0).out == "9999 Nodes, 639936 Cores, 400 GPUs\n"
    assert field(instance, "list {state} {properties} {nnodes}").splitlines() == [
        "free gpu 100", "free  9899", "allocated  0", "down  0",
    ]  # fmt: skip
    assert field(instance, "status {state} {nodelist}").splitlines() == ["avail n[0-9998]", "exclude n9999"]
    assert instance.leveret("resource", "drain", "n9999").err.startswith("leveret-resource: ERROR: rank 9999 excluded")
    rset: dict[str, Any] = json.loads(instance.leveret("resource", "R", "-i", "n[98-101]", check=0).out)
    assert rset["execution"]["properties"] == {"gpu": "98-99"}
    assert instance.run("-N", "9999", "-x", "true").code == 0
    assert instance.run("-N", "10001", "true").code == 1


def test_what_is_refused_is_said_in_one_line(four: Instance) -> None:
    for args, text in (
        (["drain", "9"], "idset is out of range"),
        (["drain", "nosuch"], "invalid targets: invalid hosts: nosuch"),
        (["undrain", "0"], "rank 0 not drained"),
        (["list", "-s", "odd"], "Invalid resource state odd specified"),
        (["list", "-q", "nosuch"], "nosuch: no such queue"),
        (["status", "-o", "{nosuch}"], "Error in user format: Unknown format field: nosuch"),
    ):
        done = four.leveret("resource", *args)
        assert (done.code, done.err.splitlines()[0]) == (1, f"leveret-resource: ERROR: {text}"), args
    rows = json.loads(four.leveret("resource", "list", "--json", check=0).out)
    assert [(row["state"], row["nnodes"]) for row in rows] == [("free", 4)]
