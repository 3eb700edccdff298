"""Parts of a user: items with results, policies, retries, the last step, and what a cancel means for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Instance, Ledger, drained, in_order, until


def items_of(instance: Instance, jobid: str) -> list[dict[str, Any]]:
    return list(json.loads(instance.leveret("job", "parts", "--json", jobid, check=0).out)["items"])


def test_r57_a_failed_stage_out_is_not_delivered(shared: Instance, tmp_path: Path) -> None:
    """The reason and the path at every door; the other item was tried all the same."""
    (tmp_path / "file").write_text("in the way\n")
    ran = shared.run(
        "--cwd", str(tmp_path), "--stage-out", "out:file/x", "--stage-out", "out:there", "sh", "-c", "echo x > out"
    )
    jobid = str(shared.leveret("job", "last", check=0).out).strip()
    assert ran.code != 0 and "file" in ran.err and "Not a directory" in ran.err
    record = shared.record(jobid)
    assert (record["result"], record["cause"]["type"]) == ("FAILED", "stage-out")
    bad, good = items_of(shared, jobid)
    assert (bad["status"], good["status"]) == ("failed", "done")
    assert "Not a directory" in bad["error"] and bad["destination"] == "file/x"
    assert (good["bytes"], good["error"], good["source"]) == (2, "", "out")
    assert (tmp_path / "there").read_text() == "x\n"


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("when", ["always", "on-success", "on-failure"])
def test_r60_policies(shared: Instance, tmp_path: Path, when: str, code: int) -> None:
    shared.run("--cwd", str(tmp_path), "--stage-out", f"{when}:out:kept", "sh", "-c", f"echo x > out; exit {code}")
    jobid = str(shared.leveret("job", "last", check=0).out).strip()
    wanted = when == "always" or (when == "on-success") == (code == 0)
    assert (tmp_path / "kept").exists() == wanted
    (item,) = items_of(shared, jobid)
    assert item["status"] == ("done" if wanted else "skipped")
    assert ("part-start" in shared.names(jobid)) == wanted


def test_r60_no_half_file_is_ever_seen(shared: Instance, tmp_path: Path) -> None:
    size = 256 << 20
    running = shared.popen("run", "--cwd", str(tmp_path), "--stage-out", "big:dst", "truncate", "-s", str(size), "big")
    seen = set()
    while running.poll() is None:
        if (tmp_path / "dst").exists():
            seen.add((tmp_path / "dst").stat().st_size)
    running.communicate()
    assert running.returncode == 0 and seen <= {size} and (tmp_path / "dst").stat().st_size == size


def test_retries(launch: Callable[..., Instance], tmp_path: Path) -> None:
    """It fails twice, then it does not: three attempts, one result."""
    script = tmp_path / "flaky.sh"
    script.write_text(
        f"echo x >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) = 3 || {{ echo no >&2; exit 1; }}\n"
    )
    instance = launch(config=f'[staging]\ncopier = ["sh", "{script}"]\nretry-delay = "10ms"\n')
    ran = instance.run("--stage-retries", "2", "--stage-out", "a:b", "true")
    assert ran.code == 0, ran.err
    jobid = str(instance.leveret("job", "last", check=0).out).strip()
    (item,) = items_of(instance, jobid)
    assert (item["status"], item["attempts"], item["error"]) == ("done", 3, "")
    (tmp_path / "tries").unlink()
    assert instance.run("--stage-retries", "1", "--stage-out", "a:b", "true").code != 0


@pytest.mark.parametrize("crash", [False, True])
def test_a_part_that_is_held_open_waits_for_retry_part(
    launch: Callable[..., Instance], tmp_path: Path, crash: bool
) -> None:
    instance = launch()
    (tmp_path / "dst").write_text("in the way\n")
    jobid = instance.submit(
        "--cwd", str(tmp_path), "--on-part-failure=hold", "--stage-out", "out:dst/x", "sh", "-c", "echo x > out"
    )
    until(lambda: "retry-part" in str(instance.record(jobid)["holds"]), "the part says what it waits for")
    assert instance.leveret("job", "retry-part", jobid, "stage-in").code != 0
    if crash:
        instance.crash()
        until(lambda: "retry-part" in str(instance.record(jobid)["holds"]), "it says so again")
    (tmp_path / "dst").unlink()
    instance.leveret("job", "retry-part", jobid, "stage-out", check=0)
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert (tmp_path / "dst" / "x").read_text() == "x\n"
    (item,) = items_of(instance, jobid)
    assert (item["status"], item["attempts"]) == ("done", 2)
    assert instance.names(jobid).count("part-start") == instance.names(jobid).count("part-finish") == 1


def test_r63_ten_thousand_items_are_bounded(launch: Callable[..., Instance], tmp_path: Path) -> None:
    """One part, one pair of events; the summary is kept with the job, and can be read when it is over."""
    count = 2000  # the bound is 10,000: a process each, so fewer here
    instance = launch(config='[staging]\ncopier = ["true"]\n')
    spec = json.loads(instance.leveret("submit", "--dry-run", "true", check=0).out)
    path = "s/" + "x" * 1500
    staging = {"out": [{"src": path, "dst": f"{path}{number}"} for number in range(10_001)]}
    spec["attributes"]["system"]["staging"] = staging
    status, body = instance.http("POST", "/v1/jobs", {"jobspec": spec})
    assert status == 422 or status == 400, body
    assert "10000" in json.dumps(body)
    staging["out"] = staging["out"][:count]
    jobid = instance.client.submit(spec)
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert instance.names(jobid).count("part-start") == 1
    items = items_of(instance, str(jobid))
    assert len(items) == count and {item["status"] for item in items} == {"done"}
    assert max(len(item["source"]) for item in items) == 1000
    assert json.loads(instance.leveret("job", "info", str(jobid), "parts", check=0).out)["items"] == items


# The last step


def test_post_runs_once_on_the_first_node_and_its_output_is_the_jobs(launch: Callable[..., Instance]) -> None:
    instance = launch(size=2)
    post = "echo post on $LEVERET_NODE_RANK: $LEVERET_JOB_RESULT $LEVERET_JOB_EXIT_CODE; echo oops >&2"
    ran = instance.run("-N2", "--post", post, "sh", "-c", "echo task; exit 3")
    assert ran.code == 3
    assert ran.out == "task\ntask\npost on 0: FAILED 3\n" and "oops" in ran.err
    jobid = str(instance.leveret("job", "last", check=0).out).strip()
    names = instance.names(jobid)
    in_order(names, "finish", "part-start", "part-finish", "free", "clean")
    data = [event["context"] for event in instance.eventlog(jobid, "output") if event["name"] == "data"]
    assert sum(bool(one.get("eof")) for one in data) == 4, "one end per stream and rank (RFC 24)"


def test_a_post_that_fails_fails_the_job(shared: Instance) -> None:
    ran = shared.run("--post", "exit 7", "true")
    jobid = str(shared.leveret("job", "last", check=0).out).strip()
    record = shared.record(jobid)
    assert ran.code == 1 and record["result"] == "FAILED"
    assert (record["cause"]["type"], record["cause"]["note"]) == ("post", "post exited with code=7")


def test_r38_a_post_that_never_ends_is_seen_and_ends_at_its_own_limit(shared: Instance, tmp_path: Path) -> None:
    jobid = shared.submit(
        "-t", "30s", "--post", f"touch {tmp_path}/begun; exec sleep 1000", "--post-timeout=1s", "true"
    )
    until(lambda: (tmp_path / "begun").exists(), "post runs")
    assert "post" in shared.leveret("jobs", "-no", "{holds}", jobid, check=0).out
    record = shared.wait(jobid)
    assert (record["result"], record["cause"]["type"]) == ("FAILED", "post")
    assert record["cause"]["note"].startswith("post timed out after 1s")
    assert shared.run("--post-timeout=1s", "true").code == 1  # without --post


def test_r59_post_then_copy_out_also_over_a_killed_daemon(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path
) -> None:
    """What post adds is delivered; the two never overlap."""
    gate, moved = ledger.gate(), ledger.gate()
    instance = launch(config=ledger.mover(f"gate {moved.path}"))
    post = f"until [ -e {gate.path} ]; do sleep 0.02; done; echo late > out/late"
    jobid = instance.submit(
        "--cwd", str(tmp_path), "--post", post, "--stage-out", "out:dst", "sh", "-c", "mkdir out; echo x > out/f"
    )
    instance.wait_event(jobid, "part-start")
    instance.crash()
    assert ledger.phases() == []
    gate.open()
    until(lambda: ledger.phases() == ["move"], "the copy begins")
    assert instance.contexts(jobid, "part-finish") == [{"description": "post", "status": 0}]
    instance.crash()
    moved.open()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert (tmp_path / "dst" / "late").read_text() == "late\n"
    assert ledger.phases().count("moved") == 1
    names = [
        (event["name"], event["context"]["description"])
        for event in instance.eventlog(jobid)
        if "part" in event["name"]
    ]
    assert names == [
        ("part-start", "post"), ("part-finish", "post"), ("part-start", "stage-out"), ("part-finish", "stage-out"),
    ]  # fmt: skip


# What a cancel means


def test_r29_a_plain_cancel_keeps_the_data(launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path) -> None:
    instance = launch(config=ledger.mover())
    jobid = instance.submit(
        "--cwd", str(tmp_path), "--stage-out", "on-success:out:dst", "sh", "-c", "echo x > out; exec sleep 1000"
    )
    until(lambda: (tmp_path / "out").exists(), "the task runs")
    instance.leveret("cancel", jobid, check=0)
    assert instance.wait(jobid)["result"] == "CANCELED"
    assert (tmp_path / "dst").read_text() == "x\n"
    assert [c["intent"] for c in instance.contexts(jobid, "exception")] == ["keep"]


def test_r29_a_time_limit_keeps_the_data(launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path) -> None:
    instance = launch(config=ledger.mover())
    jobid = instance.submit(
        "-t", "0.5s", "--cwd", str(tmp_path), "--stage-out", "on-success:out:dst",
        "sh", "-c", "echo x > out; exec sleep 1000",
    )  # fmt: skip
    assert instance.wait(jobid)["result"] == "TIMEOUT"
    assert (tmp_path / "dst").read_text() == "x\n"


@pytest.mark.parametrize("option", ["--discard-data", "--force"])
def test_r29_discarding_while_the_tasks_run(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path, option: str
) -> None:
    # force does not wait for the kill timeout
    patience = "1000s" if option == "--force" else "0.5s"
    instance = launch(config=ledger.mover() + ledger.perilog("epilog") + f'[exec]\nkill-timeout = "{patience}"\n')
    jobid = instance.submit(
        "--cwd", str(tmp_path), "--stage-out", "out:dst", "--post", f"touch {tmp_path}/post",
        "sh", "-c", "trap '' TERM; echo x > out; while :; do sleep 1; done",
    )  # fmt: skip
    until(lambda: (tmp_path / "out").exists(), "the task runs")
    instance.leveret("cancel", option, jobid)
    record = instance.wait(jobid)
    assert not (tmp_path / "dst").exists()
    assert ledger.phases(jobid) == ["epilog", "epilog-end"], "a site's cleanup always runs"
    assert record["result"] == "CANCELED"
    assert (tmp_path / "post").exists() == (option == "--discard-data")
    intent = option.removeprefix("--").removesuffix("-data")
    assert [c["intent"] for c in instance.contexts(jobid, "exception")] == [intent]


@pytest.mark.parametrize("crash", [False, True])
def test_r29_r32_after_finish(launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path, crash: bool) -> None:
    """A plain cancel is refused and does nothing to the copy; --discard-data ends it; a second one makes no mess."""
    instance = launch(config=ledger.mover("hang") + ledger.perilog("epilog"))
    jobid = instance.submit("--cwd", str(tmp_path), "--stage-out", "out:dst", "sh", "-c", "echo x > out")
    until(lambda: ledger.phases().count("move") == 1, "the copy is under way")
    before = instance.names(jobid)
    for options in ((), ()):
        refused = instance.leveret("cancel", *options, jobid, check=1)
        assert "stage-out" in refused.err
    assert instance.names(jobid) == before
    if crash:
        instance.crash()
    instance.leveret("cancel", "--discard-data", jobid, check=0)
    again = instance.leveret("cancel", "--discard-data", jobid)
    assert again.code in (0, 1)
    record = instance.wait(jobid)
    assert record["result"] == "CANCELED" and not (tmp_path / "dst").exists()
    assert [c["intent"] for c in instance.contexts(jobid, "exception")] == ["discard"]
    assert ledger.phases().count("move") == 1 and drained(instance) == {}
    assert instance.names(jobid).count("part-finish") == 1


def test_r29_force_after_finish_ends_a_post_and_discard_does_not(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path
) -> None:
    instance = launch(config=ledger.mover())
    jobid = instance.submit(
        "--cwd",
        str(tmp_path),
        "--stage-out",
        "out:dst",
        "--post",
        f"touch {tmp_path}/begun; exec sleep 1000",
        "touch",
        "out",
    )
    until(lambda: (tmp_path / "begun").exists(), "post runs")
    refused = instance.leveret("cancel", "--discard-data", jobid, check=1)
    assert "no data part is open" in refused.err and "post" in refused.err
    instance.leveret("cancel", "--force", jobid, check=0)
    assert instance.wait(jobid)["result"] == "CANCELED"
    assert not (tmp_path / "dst").exists() and ledger.phases() == []


# Parts that only go with the others


def test_auxiliary_parts_end_when_nothing_else_is_left(instance: Instance, tmp_path: Path) -> None:
    plugin = tmp_path / "shipper.py"
    plugin.write_text(
        "import asyncio\n"
        "from leveret.plugins.hooks import PartHold, Plugin\n\n"
        "class Shipper(Plugin):\n"
        "    def event_start(self, job, event):\n"
        '        return PartHold("ship-logs", self.ship(job), role="auxiliary", uses="nodes")\n\n'
        "    async def ship(self, job):\n"
        "        await asyncio.sleep(1000)\n"
    )
    instance.client.jobtap_load(str(plugin))
    gate = tmp_path / "gate"
    jobid = instance.submit("--post", f"until [ -e {gate} ]; do sleep 0.02; done", "true")
    instance.wait_event(jobid, "part-start", count=2)
    assert instance.holds(jobid) == ["part/ship-logs", "part/post"]  # it lives as long as others do
    gate.touch()
    record = instance.wait(jobid)
    assert record["result"] == "COMPLETED" and not record["exception_occurred"]
    done = [context["description"] for context in instance.contexts(jobid, "part-finish")]
    assert done == ["post", "ship-logs"]


# When a job is done


def test_r02_each_end_is_an_event_of_its_own(launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path) -> None:
    """Tasks over, data over and so the job, nodes tidied: three ends, in this order, each of them waited for."""
    copied, tidied = ledger.gate(), ledger.gate()
    instance = launch(
        config=ledger.mover(f"gate {copied.path}") + ledger.perilog("housekeeping", f"gate {tidied.path}")
    )
    jobid = instance.submit("-N1", "--cwd", str(tmp_path), "--stage-out", "out:dst", "sh", "-c", "echo x > out")
    tidy = instance.popen("housekeeping", "wait", jobid)
    instance.leveret("job", "wait-event", jobid, "finish", check=0)
    until(lambda: ledger.phases() == ["move"], "the copy is under way")
    assert not instance.record(jobid)["done"] and tidy.poll() is None
    attached = instance.popen("job", "attach", jobid)
    copied.open()
    assert attached.wait(60) == 0 and (tmp_path / "dst").read_text() == "x\n"  # the prompt does not wait for the third
    until(lambda: "housekeeping" in ledger.phases(), "the nodes are being tidied")
    assert instance.record(jobid)["done"] and tidy.poll() is None
    tidied.open()
    assert tidy.wait(60) == 0
    attached.communicate()
    tidy.communicate()
    assert ledger.phases() == ["move", "move-end", "moved", "housekeeping", "housekeeping-end"]


def test_r04_success_means_that_the_files_are_there(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path
) -> None:
    """Whoever sees a job as done and successful, at whatever moment, finds its output whole."""
    instance = launch(config=ledger.mover())
    ids: dict[int, Path] = {}
    for number in range(16):
        ledger.steer("mover", f"ok 0.{(number * 7) % 10}", to=f"dst{number}")
        jobid = instance.submit(
            "--cwd",
            str(tmp_path),
            "--stage-out",
            f"out{number}:dst{number}",
            "sh",
            "-c",
            f"printf 12345678 > out{number}",
        )
        ids[int(instance.record(jobid)["id"])] = tmp_path / f"dst{number}"
    seen: set[int] = set()

    def watch() -> bool:
        for record in instance.client.jobs(states=["active", "inactive"], count=0):
            if record["id"] in ids and record["done"]:
                assert record["success"] and ids[record["id"]].read_text() == "12345678", record
                seen.add(record["id"])
        return seen == ids.keys()

    until(watch, "all jobs are done")
