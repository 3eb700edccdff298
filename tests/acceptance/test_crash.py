"""`kill -9` of the daemon: tasks never notice, no line is lost or doubled, what was in flight runs exactly once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import (
    LEVERET,
    NORMAL,
    WATCHDOG_S,
    Instance,
    Ledger,
    clean_environ,
    execute,
    in_order,
    lines_between,
    until,
    words,
)

SEED = int(os.environ.get("LEVERET_TEST_SEED", "20240611"))
#: says in a file that it ran, and prints numbered lines until a gate opens
TALKER = (
    'echo "$FLUX_JOB_ID $$" >> {ran}; i=0; while ! [ -e {gate} ]; do i=$((i+1)); echo line $i; sleep 0.2; done; '
    "echo last $i"
)


def assert_whole(text: str) -> None:
    """What a TALKER printed, every line once and in order."""
    *lines, end = text.splitlines(keepends=True)
    assert (("".join(lines)), end) == (lines_between(1, len(lines)), f"last {len(lines)}\n")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_twenty_talking_jobs_do_not_notice_killed_daemons(launch: Callable[..., Instance], tmp_path: Path) -> None:
    print(f"LEVERET_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    probe = len(os.sched_getaffinity(0))
    instance = launch(size=-(-20 // probe))
    ran, gate = tmp_path / "ran", tmp_path / "gate"
    script = TALKER.format(ran=ran, gate=gate)
    ids = instance.leveret("submit", "--cc=0-19", "sh", "-c", script, check=0).out.split()
    for jobid in ids:
        instance.wait_event(jobid, "start")
    attached = {jobid: instance.popen("job", "attach", jobid) for jobid in ids[:8]}
    outputs: dict[str, bytes] = {}
    readers = [
        threading.Thread(target=lambda i=jobid, p=process: outputs.update({i: p.communicate(timeout=WATCHDOG_S)[0]}))
        for jobid, process in attached.items()
    ]
    for reader in readers:
        reader.start()
    try:
        for _ in range(3):
            time.sleep(rng.random())  # a random moment, not a measure
            instance.kill_daemon()
            time.sleep(rng.random() / 2)
            instance.restart()
            # the next command finds a daemon and the jobs that it never started
            assert len(instance.leveret("jobs", "--ids", "-f", "running", check=0).out.split()) == 20
        gate.touch()
        for reader in readers:
            reader.join()
    finally:
        gate.touch()
        for process in attached.values():
            process.kill()
    for jobid in ids:
        record = instance.wait(jobid)
        assert (record["result"], record["exit_code"]) == ("COMPLETED", 0)
        assert instance.names(jobid) == NORMAL
        again = instance.attach(jobid)
        assert (again.code, again.err) == (0, "")
        assert_whole(again.out)
        assert again.out.encode() == outputs.get(jobid, again.out.encode())  # what was attached all along saw the same
        exec_names = [event["name"] for event in instance.eventlog(jobid, "exec")]
        assert exec_names == words("init starting shell.init shell.start shell.task-exit shell-exit complete done")
    assert set(outputs) == set(attached)
    # each ran once, ever, and in the process that the log names
    rows = [row.split() for row in ran.read_text().splitlines()]
    assert sorted(job for job, _ in rows) == sorted(ids)


def test_jobs_that_end_while_no_daemon_lives(instance: Instance) -> None:
    gate = instance.base / "gate"
    wait = f"while ! [ -e {gate} ]; do sleep 0.02; done"
    jobid = instance.submit("sh", "-c", f"echo before; {wait}; echo after; exit 5")
    limited = instance.submit("-t", "0.5s", "sh", "-c", "exec sleep 1000")
    pid_line = until(lambda: instance.eventlog(jobid, "output")[1:], "the job prints")
    assert pid_line
    instance.wait_event(limited, "start")
    helpers = [helper["pid"] for helper in instance.client.status()["helpers"]]
    instance.kill_daemon()
    gate.touch()
    # the tasks end, and the helper enforces the limit, with nobody there to hear it
    until(lambda: not children(helpers), "no task is left")
    instance.restart()
    record = instance.wait(jobid)
    assert (record["result"], record["exit_code"]) == ("FAILED", 5)
    assert instance.attach(jobid).out == "before\nafter\n"
    assert instance.names(jobid) == NORMAL
    assert instance.wait(limited)["result"] == "TIMEOUT"
    assert [helper["pid"] for helper in instance.client.status()["helpers"]] == helpers


def children(pids: list[int]) -> list[int]:
    """Live descendants of these processes."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) in pids and fields[0] != "Z":
                found.append(int(entry))
    return found


def test_r46_what_is_in_flight_runs_exactly_once(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path
) -> None:
    """Four jobs: in a prolog, in a stage-in, in a stage-out, in an epilog, when the daemon dies, twice."""
    gate = ledger.gate()
    config = ledger.perilog("prolog") + ledger.perilog("epilog") + ledger.mover()
    instance = launch(size=4, config=config)
    (tmp_path / "data").write_text("data\n")
    task = f'echo "$FLUX_JOB_ID - task $$" >> {ledger.path}'

    def submit(*options: str) -> str:
        return instance.submit("-N1", *options, "sh", "-c", task, cwd=tmp_path)

    waiting = f"gate {gate.path}"
    ledger.steer("mover", waiting, to="in-dst")
    ledger.steer("mover", waiting, to="out-dst")
    stage_in = submit("--stage-in", "data:in-dst")
    stage_out = submit("--stage-out", "data:out-dst")
    until(lambda: len([row for row in ledger.rows() if row[2] == "move"]) == 2, "both movers run")
    ledger.steer("prolog", waiting)
    prolog = submit()
    until(lambda: "prolog" in ledger.phases(prolog), "the prolog runs")
    # the last one goes through its prolog, then waits in its epilog
    ledger.steer("prolog", "ok 0")
    until(lambda: "epilog-end" in ledger.phases(stage_out), "an ordinary epilog is over")
    ledger.steer("epilog", waiting)
    epilog = submit()
    until(lambda: "epilog" in ledger.phases(epilog), "the epilog runs")

    before = ledger.rows()
    instance.crash()
    assert instance.record(prolog)["phase"] == "prolog"
    assert instance.record(epilog)["phase"] == "epilog"
    assert instance.record(stage_in)["phase"] == "stage-in"
    assert instance.record(stage_out)["phase"] == "stage-out"
    instance.crash()
    assert ledger.rows() == before  # nothing began again
    gate.open()
    for jobid in (stage_in, stage_out, prolog, epilog):
        record = instance.wait(jobid)
        assert record["result"] == "COMPLETED", record
        phases = ledger.phases(jobid)
        assert sorted(phases) == sorted(["prolog", "prolog-end", "task", "epilog", "epilog-end"])
        names = instance.names(jobid)
        for name in set(names) - {"part-start", "part-finish"}:
            assert names.count(name) == 1, (name, names)
    assert sorted(row[0] for row in ledger.rows() if row[2] == "moved") == ["data:in-dst", "data:out-dst"]
    assert len([row for row in ledger.rows() if row[2] == "move"]) == 2
    in_order(instance.names(stage_in), "part-start", "part-finish", "start")
    assert (tmp_path / "in-dst").read_text() == (tmp_path / "out-dst").read_text() == "data\n"


def test_work_that_ends_while_no_daemon_lives_is_not_repeated(
    launch: Callable[..., Instance], ledger: Ledger, tmp_path: Path
) -> None:
    gate = ledger.gate()
    instance = launch(config=ledger.mover(f"gate {gate.path} 6"))
    (tmp_path / "data").write_text("data\n")
    jobid = instance.submit("--stage-out", "data:copy", "true", cwd=tmp_path)
    until(lambda: ledger.phases(), "the mover runs")
    instance.kill_daemon()
    gate.open()
    until(lambda: "move-end" in ledger.phases(), "the mover ends, unheard")
    instance.restart()
    assert instance.wait(jobid)["result"] == "FAILED"
    assert instance.contexts(jobid, "part-finish")[0]["status"] == 6 << 8
    assert ledger.phases() == ["move", "move-end"]


def test_a_printed_id_is_a_job_also_after_a_crash(instance: Instance) -> None:
    """Submits as fast as it can until the daemon dies under it; what was acknowledged is there."""
    loop = 'i=0; while id=$("$0" submit --urgency=0 true 2>/dev/null); do echo $id; done'
    process = subprocess.Popen(["sh", "-c", loop, LEVERET], env=instance.env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = [process.stdout.readline().decode().strip() for _ in range(8)]
    instance.kill_daemon()
    process.kill()  # while its last submission waits for a daemon
    rest, _ = process.communicate()
    printed += [text for text in rest.decode().split() if text]
    instance.restart()
    listed = instance.leveret("jobs", "--ids", check=0).out.split()
    assert set(printed) <= set(listed)
    assert len(listed) <= len(printed) + 2  # at most the one whose answer was lost, and one after it
    for jobid in listed:
        in_order(instance.names(jobid), "submit", "validate", "depend", "priority")


def test_jobs_in_sched_get_a_flux_restart_and_others_do_not(instance: Instance) -> None:
    running = instance.submit("-N1", "sleep", "1000")
    instance.wait_event(running, "start")
    pending = instance.submit("-N1", "true")
    dependent = instance.submit(f"--dependency=afterany:{pending}", "true")
    instance.wait_state(pending, "SCHED")
    instance.crash()
    assert instance.names(pending) == words("submit validate depend priority flux-restart priority")
    assert "flux-restart" not in instance.names(running) + instance.names(dependent)
    assert instance.names(dependent) == ["submit", "dependency-add", "validate"]
    instance.client.cancel(running)
    assert instance.wait(pending)["result"] == "COMPLETED"
    assert instance.wait(dependent)["result"] == "COMPLETED"


def test_a_lost_helper_fails_the_job_and_never_starts_it_again(launch: Callable[..., Instance], ledger: Ledger) -> None:
    instance = launch(config=ledger.perilog("epilog"))
    jobid = instance.submit("sh", "-c", f"echo $FLUX_JOB_ID - task $$ >> {ledger.path}; exec sleep 1000")
    until(lambda: "task" in ledger.phases(jobid), "the task runs")
    task_pid = int(next(row[3] for row in ledger.rows() if row[2] == "task"))
    helper = instance.client.status()["helpers"][0]["pid"]
    os.kill(helper, 9)
    record = instance.wait(jobid)
    assert record["result"] == "FAILED"
    assert record["cause"]["type"] == "node-failure" and "helper lost" in record["cause"]["note"]
    assert not alive(task_pid)  # ended by its mark before `finish` was posted
    assert ledger.phases(jobid).count("task") == 1
    assert ledger.phases(jobid).count("epilog") == 1
    assert instance.run("echo", "again").out == "again\n"


def test_start_restarts_a_daemon_that_was_killed(tmp_path: Path) -> None:
    """`leveret start CMD` does so by itself; the command inside does not notice."""
    program = tmp_path / "inside.py"
    program.write_text(
        "import json, os, signal, subprocess, sys\n"
        "def say(*args):\n"
        f"    return subprocess.run([{LEVERET!r}, *args], capture_output=True, text=True, check=True).stdout\n"
        "job = say('submit', 'sh', '-c', 'i=1; while [ $i -le 20 ]; do echo line $i; i=$((i+1)); sleep 0.05; done')\n"
        "job = job.strip()\n"
        "say('job', 'wait-event', job, 'start')\n"
        "before = json.loads(say('status', '--json'))\n"
        "os.kill(before['pid'], signal.SIGKILL)\n"
        "attached = say('job', 'attach', job)\n"
        "after = json.loads(say('status', '--json'))\n"
        "print(json.dumps({'before': before, 'after': after, 'attached': attached, 'uri': os.environ['LEVERET_URI']}))\n"
    )
    done = execute([LEVERET, "start", sys.executable, str(program)], clean_environ(), cwd=tmp_path, check=0)
    said = json.loads(done.out)
    assert said["attached"] == lines_between(1, 20)
    before, after = said["before"], said["after"]
    assert before["pid"] != after["pid"]
    assert before["helpers"] == after["helpers"]
    assert before["uri"] == after["uri"] == said["uri"]
    assert not Path(before["state_dir"]).exists()  # temporary, and gone with the command
    for pid in (after["pid"], after["helpers"][0]["pid"]):
        assert not alive(pid)


@pytest.mark.parametrize("signal_name", ["TERM", "INT"])
def test_an_orderly_end_of_the_daemon_leaves_tasks_alone_too(instance: Instance, signal_name: str) -> None:
    gate = instance.base / "gate"
    jobid = instance.submit("sh", "-c", TALKER.format(ran="/dev/null", gate=gate))
    attached = instance.popen("job", "attach", jobid)
    try:
        assert attached.stdout is not None and instance.daemon is not None
        first = attached.stdout.readline()
        instance.daemon.send_signal({"TERM": 15, "INT": 2}[signal_name])
        assert instance.daemon.wait(WATCHDOG_S) == 0
        instance.restart()
        assert instance.wait_state(jobid, "RUN")
        gate.touch()
        out = attached.stdout.read()  # not communicate(), which would pass over what is in the buffer
        assert attached.wait(WATCHDOG_S) == 0
    finally:
        gate.touch()
        attached.kill()
        _, err = attached.communicate()
    assert err == b""
    assert_whole((first + out).decode())


@pytest.mark.parametrize("signal_name", ["TERM", "KILL"])
def test_stdin_goes_on_with_the_next_daemon(instance: Instance, signal_name: str) -> None:
    process = instance.popen("run", "cat", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None and instance.daemon is not None
    try:
        process.stdin.write(b"before\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"before\n"
        instance.daemon.send_signal({"TERM": 15, "KILL": 9}[signal_name])
        instance.daemon.wait(WATCHDOG_S)
        process.stdin.write(b"while nobody is there\n")
        process.stdin.flush()
        instance.restart()
        assert process.stdout.readline() == b"while nobody is there\n"
        process.stdin.write(b"after\n")
        process.stdin.close()
        assert process.stdout.read() == b"after\n"
        assert process.wait(WATCHDOG_S) == 0
    finally:
        process.kill()
        process.wait()
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stderr.read() == b""


def test_waitable_jobs_are_not_forgotten(instance: Instance) -> None:
    """What `job wait` has not been told yet survives, and what it has been told is not told again."""
    first = instance.submit("--flags=waitable", "--wait", "true")
    second = instance.submit("--flags=waitable", "--wait", "true")
    instance.leveret("job", "wait", first, check=0)
    instance.crash()
    assert instance.leveret("job", "wait", first).code == 2
    assert instance.leveret("job", "wait", check=0).out.strip() == second
    assert instance.leveret("job", "wait").code == 3
