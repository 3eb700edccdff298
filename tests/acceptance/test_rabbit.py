"""Jobs with storage by `#DW` directives, on this machine's disks."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Instance, in_order, until, words

XFS = "#DW jobdw type=xfs capacity=1GiB name=proj"
LUSTRE = "#DW jobdw type=lustre capacity=1GiB name=proj"
#: a copier that says where it is, and waits while there is a file `gate`
GATED = """\
import os, subprocess, sys, time
base, source, target = sys.argv[1:]
with open(base + "/begun", "a") as file:
    file.write(source + "\\n")
while os.path.exists(base + "/gate"):
    time.sleep(0.01)
code = subprocess.call([sys.executable, "-m", "leveret.exec.copier", source, target])
with open(base + "/ended", "a") as file:
    file.write(f"{code}\\n")
sys.exit(code)
"""


def gated(base: Path) -> str:
    """Configuration of a copier that can be held up."""
    (base / "copier.py").write_text(GATED)
    argv = [sys.executable, str(base / "copier.py"), str(base), "{src}", "{dst}"]
    return f"[rabbit]\ncopier = {json.dumps(argv)}\n"


def left_over(instance: Instance) -> list[str]:
    """Files and directories of jobs' storage."""
    root = instance.state_dir / "rabbit"
    return [
        str(p.relative_to(root))
        for p in root.rglob("*")
        if len(p.relative_to(root).parts) > 1 and p.parent.name != "mnt"
    ]


def from_finish(instance: Instance, jobid: str) -> list[str]:
    """What follows from `finish` on (else from the exception), with the names of holds and what they ended with."""
    found = []
    for event in instance.eventlog(jobid):
        context = event.get("context") or {}
        text = str(event["name"])
        if "description" in context:
            text += f"({context['description']})"
        found.append(text + (f"={context['status']}" if text.startswith(("epilog-finish", "part-finish")) else ""))
    start = next(i for i, text in enumerate(found) if text.startswith(("finish", "exception")))
    return found[start:]


# ---- the eventlogs that started it all ----------------------------------------------------------------


def test_a_normal_job_with_dws_epilog(launch: Callable[..., Instance]) -> None:
    instance = launch(config="[rabbit]\nearly-free = false\n")
    jobid = instance.submit("-S", f"dw={XFS}", "true")
    instance.wait(jobid)
    wanted = "finish epilog-start(dws-epilog) release epilog-finish(dws-epilog)=0 free clean"
    assert from_finish(instance, jobid) == words(wanted)
    in_order(instance.names(jobid), *words("dependency-add dependency-remove alloc prolog-start dws_environment"))
    in_order(instance.names(jobid), *words("dws_environment prolog-finish start finish"))
    assert left_over(instance) == []


def test_early_free(instance: Instance) -> None:
    jobid = instance.submit("-S", f"dw={XFS}", "true")
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert from_finish(instance, jobid) == words(
        "finish epilog-start(dws-unmount) part-start(dws-data-out) part-start(dws-teardown) release"
        " epilog-finish(dws-unmount)=0 free part-finish(dws-data-out)=0 part-finish(dws-teardown)=0 clean"
    )
    starts = {c["description"]: c for c in instance.contexts(jobid, "part-start")}
    assert (starts["dws-data-out"]["owner"], starts["dws-teardown"]["owner"]) == ("user", "site")
    assert all(one["blocks"] == [] for one in starts.values())
    assert left_over(instance) == []


def test_a_job_that_dies_before_it_has_resources(instance: Instance) -> None:
    running = instance.submit("-c", str(instance.cores), "sleep", "1000")
    instance.wait_event(running, "start")
    jobid = instance.submit("-c", str(instance.cores), "-S", f"dw={XFS}", "true")
    instance.wait_event(jobid, "priority")
    instance.leveret("cancel", jobid, check=0)
    instance.wait(jobid)
    assert from_finish(instance, jobid) == words("exception epilog-start(dws-epilog) epilog-finish(dws-epilog)=0 clean")
    instance.leveret("cancel", running, check=0)
    assert left_over(instance) == []


# ---- what a job gets ------------------------------------------------------------------------------------


def test_each_node_has_its_own_and_results_come_from_each(launch: Callable[..., Instance], tmp_path: Path) -> None:
    instance = launch(2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f").write_text("input\n")
    directives = (
        f"{XFS} #DW copy_in source={tmp_path}/in/ destination=$DW_JOB_proj/"
        f" #DW copy_out source=$DW_JOB_proj/ destination={tmp_path}/out/"
    )
    script = "cat $DW_JOB_proj/f; echo $FLUX_TASK_RANK > $DW_JOB_proj/rank; ls $DW_JOB_proj"
    done = instance.run("-N2", "-n2", "-S", f"dw={directives}", "sh", "-c", script, check=0)
    assert sorted(done.out.split()) == ["f", "f", "input", "input", "rank", "rank"], "each sees its own rank only"
    assert [(tmp_path / "out" / f"rabbit0-{i}" / "rank").read_text() for i in (0, 1)] == ["0\n", "1\n"]
    (record,) = instance.client.jobs(count=0)
    assert record["annotations"]["user"]["rabbits"] == "rabbit0"
    (told,) = instance.contexts(record["id"], "dws_environment")
    assert told["variables"]["DW_WORKFLOW_NAME"] == f"fluxjob-{record['id']}"
    for state in words("proposal setup datain prerun postrun dataout teardown"):
        time = instance.leveret("job", "info", str(record["id"]), f"rabbit_{state}_timing", check=0).out
        assert json.loads(time).endswith("s"), state
    moves = json.loads(instance.leveret("job", "info", str(record["id"]), "rabbit_datamovements", check=0).out)
    assert [one["status"] for one in moves] == ["Success"] * 4
    assert left_over(instance) == []


def test_two_jobs_that_together_exceed_the_capacity_run_one_after_the_other(
    launch: Callable[..., Instance], tmp_path: Path
) -> None:
    config = '[rabbit]\nservers = [{ name = "r1", capacity = "1500MiB" }]\n'
    instance = launch(1, config + "[resource]\nnorestrict = true\n")
    go = tmp_path / "go"
    script = f"while ! test -e {go}; do sleep 0.05; done"
    first = instance.submit("-S", f"dw={XFS}", "sh", "-c", script)
    instance.wait_event(first, "start")
    second = instance.submit("-S", f"dw={XFS}", "true")
    instance.wait_state(second, "SCHED")
    until(lambda: "storage" in instance.leveret("explain", second).out, "explain says why")
    go.touch()
    assert instance.wait(first)["result"] == instance.wait(second)["result"] == "COMPLETED"
    gone = instance.contexts(first, "part-finish")
    assert gone[-1]["description"] == "dws-teardown"
    ended = [e["timestamp"] for e in instance.eventlog(first) if e["name"] == "part-finish"][-1]
    (began,) = [e["timestamp"] for e in instance.eventlog(second) if e["name"] == "alloc"]
    assert ended <= began
    refused = instance.leveret("submit", "-S", "dw=#DW jobdw type=xfs capacity=2GiB name=proj", "true")
    assert refused.code != 0 and "insufficient capacity" in refused.err


# ---- cases of users ------------------------------------------------------------------------------------


def test_r01_the_prompt_comes_back_when_the_results_are_there(launch: Callable[..., Instance], tmp_path: Path) -> None:
    instance = launch(config=gated(tmp_path))
    (tmp_path / "gate").touch()
    directives = f"{LUSTRE} #DW copy_out source=$DW_JOB_proj/f destination={tmp_path}/dest/"
    run = instance.popen("run", "-S", f"dw={directives}", "sh", "-c", "echo x > $DW_JOB_proj/f")
    until((tmp_path / "begun").exists, "the copy begins")
    assert run.poll() is None and not (tmp_path / "dest").exists()
    (tmp_path / "gate").unlink()
    assert run.wait(60) == 0
    assert (tmp_path / "dest" / "f").read_text() == "x\n"
    run.communicate()


@pytest.mark.parametrize("early", ["true", "false"])
def test_r18_r27_a_copy_that_fails_is_the_jobs_failure_at_every_door(
    launch: Callable[..., Instance], early: str
) -> None:
    instance = launch(config=f"[rabbit]\nearly-free = {early}\n")
    directives = f"{LUSTRE} #DW copy_out source=$DW_JOB_proj/missing destination=/dev/null/no/"
    jobid = instance.submit("--urgency=hold", "--flags=waitable", "-S", f"dw={directives}", "true")
    ok = instance.submit(f"--dependency=afterok:{jobid}", "true")
    failed = instance.submit(f"--dependency=afternotok:{jobid}", "true")
    instance.leveret("job", "urgency", jobid, "default", check=0)  # once both wait for it
    record = instance.wait(jobid)
    assert record["result"] == "FAILED" and record["holds"] == []
    assert "missing" in record["cause"]["note"]
    assert instance.contexts(jobid, "finish") == [{"status": 0}]
    assert instance.leveret("job", "status", jobid).code != 0
    assert instance.leveret("job", "wait", jobid).code != 0
    assert instance.attach(jobid).code != 0
    assert instance.wait(failed)["result"] == "COMPLETED"
    assert "start" not in instance.names(ok) and instance.wait(ok)["result"] != "COMPLETED"
    assert left_over(instance) == []


def test_a_copy_in_that_fails_is_told_before_the_start(instance: Instance) -> None:
    directives = f"{XFS} #DW copy_in source=/nowhere/at/all destination=$DW_JOB_proj/"
    done = instance.run("-S", f"dw={directives}", "true")
    assert done.code == 1 and "/nowhere/at/all" in done.err and "'DataIn'" in done.err
    (record,) = instance.client.jobs(count=0)
    assert "start" not in instance.names(record["id"])
    in_order(instance.names(record["id"]), *words("exception epilog-start epilog-finish free clean"))
    assert left_over(instance) == []


@pytest.mark.parametrize(
    ("when", "options", "result"),
    [("tasks", (), "CANCELED"), ("copy", (), "COMPLETED"), ("copy", ("--discard-data",), "CANCELED")],
)
def test_r32_a_cancel_keeps_the_data_unless_it_is_discarded(
    launch: Callable[..., Instance], tmp_path: Path, when: str, options: tuple[str, ...], result: str
) -> None:
    instance = launch(config=gated(tmp_path))
    directives = f"{LUSTRE} #DW copy_out source=$DW_JOB_proj/f destination={tmp_path}/dest/"
    (tmp_path / "gate").touch()
    script = f"head -c 3000000 /dev/zero > $DW_JOB_proj/f; touch {tmp_path}/written"
    script += "; exec sleep 1000" if when == "tasks" else ""
    jobid = instance.submit("-S", f"dw={directives}", "sh", "-c", script)
    until((tmp_path / "written" if when == "tasks" else tmp_path / "begun").exists, f"cancel amid the {when}")
    # a plain one that comes when only the data is left does nothing, and says so
    instance.leveret("cancel", *options, jobid, check=int(result == "COMPLETED"))
    if not options:
        until((tmp_path / "begun").exists, "the copy begins")
        (tmp_path / "gate").unlink()
    assert instance.wait(jobid)["result"] == result
    if options:
        assert not (tmp_path / "dest" / "f").exists()
    else:
        assert (tmp_path / "dest" / "f").stat().st_size == 3000000
    assert left_over(instance) == []


def test_r59_the_order_is_kept_and_nothing_goes_before_it_is_delivered(
    launch: Callable[..., Instance], tmp_path: Path
) -> None:
    instance = launch(config=gated(tmp_path))
    (tmp_path / "gate").touch()
    directives = f"{LUSTRE} #DW copy_out source=$DW_JOB_proj/ destination={tmp_path}/dest/"
    post = "sleep 0.3; echo late > $DW_JOB_proj/late"
    jobid = instance.submit(
        "-S", f"dw={directives}", "--post", f"sh -c '{post}'", "sh", "-c", "echo x > $DW_JOB_proj/f"
    )
    until((tmp_path / "begun").exists, "the copy begins")
    assert from_finish(instance, jobid).index("part-finish(post)=0") < from_finish(instance, jobid).index(
        "epilog-finish(dws-unmount)=0"
    )
    storage = instance.state_dir / "rabbit" / "storage"
    assert sorted(p.name for p in storage.rglob("*") if p.is_file()) == ["f", "late"]
    instance.crash()
    assert sorted(p.name for p in storage.rglob("*") if p.is_file()) == ["f", "late"]
    (tmp_path / "gate").unlink()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert sorted(p.name for p in (tmp_path / "dest").iterdir()) == ["f", "late"]
    assert left_over(instance) == []


MOMENTS = ["submit", "prolog-start", "DataIn", "dws_environment", "start", "epilog-start", "DataOut", "part-finish"]


@pytest.mark.parametrize("early", ["true", "false"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_r41_r42_killed_in_each_state_nothing_is_lost_or_done_twice(
    launch: Callable[..., Instance], tmp_path: Path, moment: str, early: str
) -> None:
    if moment == "part-finish" and early == "false":
        moment = "release"
    instance = launch(config=gated(tmp_path) + f"early-free = {early}\n")
    (tmp_path / "input").write_text("data\n")
    if moment.startswith("Data"):
        (tmp_path / "gate").touch()
    directives = (
        f"{LUSTRE} #DW copy_in source={tmp_path}/input destination=$DW_JOB_proj/"
        f" #DW copy_out source=$DW_JOB_proj/ destination={tmp_path}/dest/"
    )
    script = f"echo ran >> {tmp_path}/ran; sleep 0.2; cp $DW_JOB_proj/input $DW_JOB_proj/output"
    jobid = instance.submit("-S", f"dw={directives}", "sh", "-c", script)
    if moment == "DataIn":
        until((tmp_path / "begun").exists, "copying in begins")
    elif moment == "DataOut":
        until((tmp_path / "begun").exists, "copying in begins")
        (tmp_path / "gate").unlink()
        instance.wait_event(jobid, "start")
        (tmp_path / "gate").touch()
        until(lambda: len((tmp_path / "begun").read_text().split()) == 2, "copying out begins")
    else:
        instance.wait_event(jobid, moment)
    instance.kill_daemon()
    (tmp_path / "gate").unlink(missing_ok=True)
    instance.restart()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert sorted(p.name for p in (tmp_path / "dest").iterdir()) == ["input", "output"]
    names = from_finish(instance, jobid)
    assert len(names) == len(set(names)), "each once"
    assert instance.names(jobid).count("dws_environment") == 1
    assert instance.names(jobid).count("prolog-start") == 1
    assert left_over(instance) == []
    assert instance.client.request("GET", "/v1/rabbits")["rabbits"][0]["allocated_bytes"] == 0


def test_r42_twenty_queued_jobs_and_a_crash(launch: Callable[..., Instance]) -> None:
    instance = launch()
    blocker = instance.submit("-c", str(instance.cores), "sleep", "1000")
    jobs = [instance.submit("-S", f"dw={XFS}", "true") for _ in range(20)]
    for one in jobs:
        instance.wait_event(one, "priority")
    instance.crash()
    instance.leveret("cancel", blocker, check=0)
    assert {instance.wait(one)["result"] for one in jobs} == {"COMPLETED"}
    assert left_over(instance) == []


def test_storage_of_nobody_is_removed_at_start(instance: Instance) -> None:
    instance.run("-S", f"dw={XFS}", "true", check=0)
    root = instance.state_dir / "rabbit"
    (root / "storage" / "feed-0" / "rabbit0-0").mkdir(parents=True)
    (root / "flows" / "7.json.new").write_text("{")
    instance.crash()
    instance.run("-S", f"dw={XFS}", "true", check=0)
    assert left_over(instance) == []


def test_r79_directives_in_each_form_are_the_same_and_errors_say_where(
    launch: Callable[..., Instance], tmp_path: Path
) -> None:
    three = [
        XFS,
        f"#DW copy_in source={tmp_path}/a destination=$DW_JOB_proj/",
        "#DW jobdw type=raw capacity=1MiB name=raw1",
    ]
    (tmp_path / "a").write_text("")
    instance = launch(config=f"[rabbit.presets]\nall-three = {json.dumps(three)}\n")
    forms = [
        "\n".join(three),
        " ".join(three),
        json.dumps(three),
        "all-three",
        json.dumps([three[0], " ".join(three[1:])]),
    ]
    seen = []
    for form in forms:
        jobid = instance.submit("-S", f"dw={form}", "true")
        assert instance.wait(jobid)["result"] == "COMPLETED"
        seen.append(json.loads(instance.leveret("job", "info", jobid, "rabbit_workflow", check=0).out)["directives"])
    assert seen == [three] * len(forms)
    for text, says in (
        (f"{XFS}\n#DW jobdw type=xfs capacity=1GiB name=other colour=red", "directive 2 (line 2), key `colour`"),
        (f"{XFS}\n{XFS}", "must be unique"),
        ("#DW copy_in source=/a destination=$DW_JOB_proj/\n" + XFS, "before the jobdw"),
        (f"{XFS} #DW copy_in source=/a destination=$DW_JOB_wrong/", "there is $DW_JOB_proj"),
        ("jobdw type=xfs", "missing '#DW' prefix"),
    ):
        refused = instance.leveret("submit", "-S", f"dw={text}", "true")
        assert refused.code != 0 and says in refused.err, (text, refused.err)


def test_an_orderly_end_of_the_daemon_lets_copies_be_taken_up_again(
    launch: Callable[..., Instance], tmp_path: Path
) -> None:
    instance = launch(config=gated(tmp_path))
    (tmp_path / "gate").touch()
    directives = f"{LUSTRE} #DW copy_out source=$DW_JOB_proj/f destination={tmp_path}/dest/"
    jobid = instance.submit("-S", f"dw={directives}", "sh", "-c", "echo x > $DW_JOB_proj/f")
    until((tmp_path / "begun").exists, "the copy begins")
    assert instance.daemon is not None
    instance.daemon.send_signal(signal.SIGTERM)
    instance.daemon.wait(60)
    (tmp_path / "gate").unlink()
    instance.restart()
    assert instance.wait(jobid)["result"] == "COMPLETED"
    assert (tmp_path / "dest" / "f").read_text() == "x\n"
    assert left_over(instance) == []


def test_persistent_storage_outlives_its_job_until_it_is_destroyed(instance: Instance) -> None:
    def run(directives: str, script: str = "true") -> str:
        return str(instance.run("-S", f"dw={directives}", "sh", "-c", script, check=0).out)

    run("#DW create_persistent type=xfs capacity=1GiB name=kept")
    run("#DW persistentdw name=kept", "echo hello > $DW_PERSISTENT_kept/f")
    instance.crash()
    assert run("#DW persistentdw name=kept", "cat $DW_PERSISTENT_kept/f") == "hello\n"
    (one,) = instance.client.persistent_storage()
    assert (one["name"], one["type"], one["consumers"]) == ("kept", "xfs", [])
    refused = instance.leveret("submit", "-S", "dw=#DW persistentdw name=other", "true")
    assert refused.code != 0 and "'other' not found" in refused.err
    run("#DW destroy_persistent name=kept")
    assert instance.client.persistent_storage() == [] and left_over(instance) == []
