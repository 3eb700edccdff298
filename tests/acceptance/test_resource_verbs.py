"""Nodes at the command's door: drained over `kill -9`, lost and back, described in the configuration."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from harness import Instance, until

from leveret.aclient import AsyncClient

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
    assert instance.run("-N", "10000", "true").code == 1  # one of them is excluded


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


def test_r36_a_node_whose_tasks_cannot_be_killed_is_drained_and_the_job_ends(launch: Callable[..., Instance]) -> None:
    """The helper of one of two nodes does not answer (it is stopped): the other's tasks end, this one's are given up."""
    instance = launch(2, '[exec]\nkill-timeout = "1s"\nmax-kill-time = "3s"\n')
    job = instance.submit("-N2", "-x", "sleep", "1000")
    instance.wait_event(job, "start")
    pid = next(helper["pid"] for helper in instance.client.status()["helpers"] if helper["node"] == 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        instance.client.cancel(job)
        record = instance.wait(job)
        assert record["result"] == "CANCELED"
        notes = {c["type"]: c["note"] for c in instance.contexts(job, "exception")}
        assert "node1" in notes["unkillable"]
        assert field(instance, "drain {state} {ranks}") == "drained 1"
        assert "unkillable processes for job" in field(instance, "drain {reason}")
        assert instance.run("-N1", "true").code == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert instance.leveret("resource", "undrain", "1", check=0).code == 0
    assert instance.run("-N2", "true").code == 0  # the helper is well, and has forgotten the job


def test_a_node_fewer_and_a_node_more(launch: Callable[..., Instance]) -> None:
    """The inventory is another one at the next start: jobs of the node that is gone end by name, drains stay with hosts."""
    two = '[resource]\nnoverify = true\n[[resource.config]]\nhosts = "a,b"\ncores = "0"\n'
    instance = launch(config=two)
    kept, gone = instance.submit("sleep", "1000"), instance.submit("sleep", "1000")
    for job in (kept, gone):
        instance.wait_event(job, "start")
    task = int(instance.leveret("job", "hostpids", gone, check=0).out.partition(":")[2].split(",")[0])
    instance.leveret("resource", "drain", "b", "old", check=0)
    instance.kill_daemon()
    config = instance.base / "leveret.toml"
    config.write_text(two.replace("a,b", "a"))
    instance.start()
    record = instance.wait(gone)
    assert (record["result"], record["cause"]["type"]) == ("FAILED", "node-failure")
    assert "b: not a node of this instance any more" in record["cause"]["note"]
    until(lambda: not os.path.exists(f"/proc/{task}"), "the helper of the node that is gone has ended its task")
    assert instance.record(kept)["state"] == "RUN" and field(instance, "drain {nodelist}") == ""
    instance.kill_daemon()
    config.write_text(two.replace("a,b", "a,c,b"))
    instance.start()
    assert field(instance, "drain {ranks} {nodelist} {reason}") == "2 b old"
    assert instance.record(kept)["state"] == "RUN" and instance.run("true").code == 0
    instance.client.cancel(kept)
    instance.wait(kept)


def test_the_eventlog_is_followed_over_a_restart(launch: Callable[..., Instance]) -> None:
    """Each event once, and in order, by both clients; who follows meets the next daemon."""
    instance = launch(2)
    following = instance.popen("resource", "eventlog", "-F", "-f", "json", stdout=subprocess.PIPE)
    assert following.stdout is not None
    try:
        first = [json.loads(following.stdout.readline())["name"] for _ in range(4)]
        assert first == ["restart", "online", "resource-define", "online"]
        instance.leveret("resource", "drain", "1", "watched", check=0)
        assert json.loads(following.stdout.readline())["context"]["reason"] == "watched"
        instance.crash()
        assert [json.loads(following.stdout.readline())["name"] for _ in range(4)] == first
    finally:
        following.kill()
        following.wait()

    async def ask() -> tuple[list[str], str]:
        async with AsyncClient(instance.uri) as client:
            await client.undrain("node1", "mended")
            events = [event["name"] async for event in client.resource_events()]
            return events, (await client.resources())["drain"]

    assert asyncio.run(ask()) == ([*first, "drain", *first, "undrain"], [])
