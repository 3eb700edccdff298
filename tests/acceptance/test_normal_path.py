"""The normal path: the order and the contexts of RFC 21, tasks on one and on several nodes, their environment and I/O."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from harness import NORMAL, Instance, Ledger, f58, in_order, until, words

PERILOG_PATH = words(
    "submit validate depend priority alloc prolog-start prolog-finish start finish epilog-start release "
    "epilog-finish free clean"
)


def test_an_ordinary_job_logs_the_rfc21_events_in_order_with_their_contexts(shared: Instance) -> None:
    jobid = shared.submit("echo", "hi")
    shared.wait(jobid)
    events = shared.eventlog(jobid)
    assert [event["name"] for event in events] == NORMAL
    contexts = {event["name"]: event.get("context") for event in events}
    assert contexts == {
        "submit": {"userid": os.getuid(), "urgency": 16, "flags": 0, "version": 1},
        "validate": None,
        "depend": None,
        "priority": {"priority": 16},
        "alloc": {"annotations": {"sched": {"resource_summary": "rank0/core0"}}},
        "start": None,
        "finish": {"status": 0},
        "release": {"ranks": "all", "final": True},
        "free": None,
        "clean": None,
    }
    # RFC 18: an event without a context has no such key at all
    assert all(set(event) <= {"timestamp", "name", "context"} for event in events)
    assert [event["name"] for event in events if "context" not in event] == words("validate depend start free clean")
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)


def test_the_exec_and_output_eventlogs_of_an_ordinary_job(shared: Instance) -> None:
    jobid = shared.submit("echo", "hi")
    number = shared.wait(jobid)["id"]
    log = shared.eventlog(jobid, "exec")
    assert [event["name"] for event in log] == words(
        "init starting shell.init shell.start shell.task-exit shell-exit complete done"
    )
    contexts = {event["name"]: event.get("context") for event in log}
    ascii_id = f58(number).replace("ƒ", "f")
    assert contexts["shell.init"] == {"service": f"{os.getuid()}-shell-{ascii_id}", "leader-rank": 0, "size": 1}
    assert contexts["shell.start"] == {"taskmap": {"version": 1, "map": [[0, 1, 1, 1]]}}
    exited = contexts["shell.task-exit"] or {}
    assert isinstance(exited.pop("pid"), int)
    assert exited == {
        "localid": 0,
        "rank": 0,
        "state": "Exited",
        "wait_status": 0,
        "signaled": 0,
        "exitcode": 0,
    }
    assert contexts["shell-exit"] == {"rank": 0, "wait_status": 0}
    assert contexts["complete"] == {"status": 0}
    output = [(event["name"], event["context"]) for event in shared.eventlog(jobid, "output")]
    assert output[0] == (
        "header",
        {
            "version": 1,
            "encoding": {"stdout": "UTF-8", "stderr": "UTF-8"},
            "count": {"stdout": 1, "stderr": 1},
            "options": {},
        },
    )
    # RFC 24 leaves it open whether the end of a stream comes with its last data or after it
    assert {name for name, _ in output[1:]} == {"data"}
    for stream, said in (("stdout", "hi\n"), ("stderr", "")):
        contexts = [context for _, context in output[1:] if context["stream"] == stream]
        assert "".join(context.get("data", "") for context in contexts) == said
        assert [context.get("eof", False) for context in contexts] == [False] * (len(contexts) - 1) + [True]
        assert {context["rank"] for context in contexts} == {"0"}


def test_prolog_and_epilog_stand_where_rfc21_has_them(launch: Callable[..., Instance], ledger: Ledger) -> None:
    instance = launch(config=ledger.perilog("prolog") + ledger.perilog("epilog", "ok 0.2"))
    jobid = instance.submit("sh", "-c", f'echo "$FLUX_JOB_ID - task $$" >> {ledger.path}')
    record = instance.wait(jobid)
    names = instance.names(jobid)
    assert sorted(names) == sorted(PERILOG_PATH)
    # `release` may fall on either side of `epilog-finish`
    assert [n for n in names if n != "release"] == [n for n in PERILOG_PATH if n != "release"]
    in_order(names, "finish", "release", "free")
    for kind in ("prolog", "epilog"):
        (begun,) = instance.contexts(jobid, f"{kind}-start")
        assert begun.pop("deadline", 0) >= 0  # a prolog has one, an epilog has none unless it is configured
        assert begun == {"description": f"job-manager.{kind}"}
        assert instance.contexts(jobid, f"{kind}-finish") == [{"description": f"job-manager.{kind}", "status": 0}]
    assert record["result"] == "COMPLETED"
    assert ledger.phases(jobid) == ["prolog", "prolog-end", "task", "epilog", "epilog-end"]
    assert {row[1] for row in ledger.rows() if row[2] in ("prolog", "epilog")} == {"0"}


def test_a_failed_prolog_ends_the_job_without_a_start(launch: Callable[..., Instance], ledger: Ledger) -> None:
    instance = launch(config=ledger.perilog("prolog", "fail 0 3"))
    done = instance.run("sh", "-c", f"echo x x task >> {ledger.path}")
    assert done.code == 1
    assert re.search(r"job\.exception \S+ type=prolog severity=0 prolog exited with code=3", done.err), done.err
    jobid = instance.leveret("job", "last").out.strip()
    assert instance.names(jobid) == words(
        "submit validate depend priority alloc prolog-start exception prolog-finish free clean"
    )
    assert instance.contexts(jobid, "prolog-finish") == [{"description": "job-manager.prolog", "status": 768}]
    assert instance.record(jobid)["result"] == "FAILED"
    assert "task" not in ledger.phases()


def test_a_prolog_that_a_signal_ends_and_one_that_takes_too_long(
    launch: Callable[..., Instance], tmp_path: Path
) -> None:
    for number, (command, extra, note, status) in enumerate(
        [("kill -9 $$", "", "prolog killed by signal 9", 9), ("sleep 1000", 'timeout = "0.2s"', "prolog timed out", 15)]
    ):
        instance = launch(config=f'[job-manager.prolog]\ncommand = ["sh", "-c", "{command}"]\n{extra}\n')
        done = instance.run("true")
        assert done.code == 1, number
        assert f"type=prolog severity=0 {note}" in done.err
        jobid = instance.leveret("job", "last").out.strip()
        assert instance.contexts(jobid, "prolog-finish")[0]["status"] == status
        assert len(instance.contexts(jobid, "exception")) == 1


def test_a_failed_epilog_is_a_warning_and_the_job_stays_completed(
    launch: Callable[..., Instance], ledger: Ledger
) -> None:
    instance = launch(config=ledger.perilog("epilog", "fail 0 2"))
    done = instance.run("true")
    assert done.code == 0
    assert "type=epilog severity=2 epilog exited with code=2" in done.err
    jobid = instance.leveret("job", "last").out.strip()
    in_order(instance.names(jobid), "finish", "epilog-start", "exception", "epilog-finish", "free", "clean")
    assert instance.contexts(jobid, "epilog-finish") == [{"description": "job-manager.epilog", "status": 512}]
    assert instance.record(jobid)["result"] == "COMPLETED"


def test_a_failed_prolog_with_an_epilog_keeps_clean_back(launch: Callable[..., Instance], ledger: Ledger) -> None:
    """Flux 0.88 posts `clean` while this epilog is open and never its `epilog-finish`."""
    instance = launch(config=ledger.perilog("prolog", "fail 0 1") + ledger.perilog("epilog", "ok 0.2"))
    jobid = instance.submit("true")
    record = instance.wait(jobid)
    names = instance.names(jobid)
    in_order(names, "prolog-start", "exception", "prolog-finish", "epilog-finish", "free", "clean")
    assert names.count("epilog-start") == names.count("epilog-finish") == 1
    assert names[-1] == "clean" and "start" not in names and "finish" not in names
    assert record["result"] == "FAILED"
    assert ledger.phases(jobid) == ["prolog", "prolog-end", "epilog", "epilog-end"]


def test_cancel_in_a_prolog_stops_it_and_runs_the_epilog(launch: Callable[..., Instance], ledger: Ledger) -> None:
    instance = launch(config=ledger.perilog("prolog", "hang") + ledger.perilog("epilog"))
    jobid = instance.submit("true")
    instance.wait_event(jobid, "prolog-start")
    instance.leveret("cancel", jobid, check=0)
    assert instance.wait(jobid)["result"] == "CANCELED"
    names = instance.names(jobid)
    in_order(names, "prolog-start", "exception", "prolog-finish", "epilog-finish", "free", "clean")
    in_order(names, "exception", "epilog-start", "epilog-finish")
    assert "start" not in names
    assert instance.contexts(jobid, "prolog-finish")[0]["status"] == 15
    assert instance.attach(jobid).code == 1


def test_several_tasks_each_write_under_their_rank(shared: Instance) -> None:
    done = shared.run("-n2", "-l", "sh", "-c", "echo out $FLUX_TASK_RANK; echo err >&2", check=0)
    assert sorted(done.out.splitlines()) == ["0: out 0", "1: out 1"]
    assert sorted(done.err.splitlines()) == ["0: err", "1: err"]


def test_more_nodes_run_one_task_each(four: Instance) -> None:
    script = "echo $FLUX_TASK_RANK $FLUX_JOB_NNODES $FLUX_TASK_LOCAL_ID $FLUX_JOB_SIZE"
    done = four.run("-N4", "-l", "sh", "-c", script, check=0)
    assert sorted(done.out.splitlines()) == ["0: 0 4 0 4", "1: 1 4 0 4", "2: 2 4 0 4", "3: 3 4 0 4"]


def test_four_tasks_on_two_nodes_and_the_largest_exit_code(four: Instance) -> None:
    done = four.run("-N2", "-n4", "-l", "sh", "-c", "echo $FLUX_TASK_LOCAL_ID; exit $FLUX_TASK_RANK")
    assert done.code == 3
    assert done.err == "leveret-job: task(s) exited with exit code 3\n"
    assert sorted(done.out.splitlines()) == ["0: 0", "1: 1", "2: 0", "3: 1"]
    jobid = four.leveret("job", "last").out.strip()
    listed = four.leveret("jobs", "-no", "{ntasks} {nnodes} {ranks}", jobid, check=0).out
    assert listed == "4 2 [0-1]\n"
    assert four.contexts(jobid, "finish") == [{"status": 768}]
    started = next(e for e in four.eventlog(jobid, "exec") if e["name"] == "shell.start")
    assert started["context"]["taskmap"]["map"] == [[0, 2, 2, 1]]


def test_short_tasks_on_several_nodes_leave_the_same_logs_as_long_ones(four: Instance) -> None:
    """A node's tasks may be over before another node has said that its own began."""
    ids = four.leveret("submit", "--cc=1-25", "-N4", "-n4", "echo", "hi", check=0).out.split()
    ids += four.leveret("submit", "--cc=1-5", "-N4", "--cwd=/no/such/dir", "true", check=0).out.split()
    for jobid in ids:
        four.wait(jobid)
        assert four.names(jobid) == NORMAL
        log = [event["name"] for event in four.eventlog(jobid, "exec")]
        assert log == (
            words("init starting shell.init shell.start shell.task-exit") + ["shell-exit"] * 4 + ["complete", "done"]
        )
        output = [event["name"] for event in four.eventlog(jobid, "output")]
        assert output[0] == "header" and output.count("header") == 1


def test_one_signal_among_four_nodes(four: Instance) -> None:
    done = four.run("-N4", "sh", "-c", "test $FLUX_TASK_RANK = 2 && kill -SEGV $$; true")
    assert (done.code, done.err) == (139, "leveret-job: task(s) Segmentation fault\n")
    jobid = four.leveret("job", "last").out.strip()
    assert four.contexts(jobid, "finish") == [{"status": 35584}]


def test_r_lists_what_a_job_of_two_nodes_was_given(four: Instance) -> None:
    jobid = four.submit("-N2", "true")
    four.wait(jobid)
    r = json.loads(four.leveret("job", "info", jobid, "R", check=0).out)
    assert r["version"] == 1
    execution = r["execution"]
    assert execution["nodelist"] == ["node[0-1]"]
    (lite,) = execution["R_lite"]
    assert lite["rank"] == "0-1"
    assert not execution.get("expiration")  # no limit was asked for


def test_the_task_environment_is_the_goldens(shared: Instance) -> None:
    """run.env-task, without what belongs to PMI, CUDA, MPI and the loader."""
    done = shared.run("--env=-*", "--env=PATH", "-n2", "-l", "env", check=0)
    tasks: dict[str, dict[str, str]] = {"0": {}, "1": {}}
    for text in done.out.splitlines():
        rank, _, pair = text.partition(": ")
        key, _, value = pair.partition("=")
        tasks[rank][key] = value
    jobid = shared.leveret("job", "last").out.strip()
    number = shared.record(jobid)["id"]
    for rank, env in tasks.items():
        assert env.pop("PATH") == os.environ["PATH"]
        assert os.path.basename(env.pop("FLUX_JOB_TMPDIR")) == f"jobtmp-0-{jobid}"
        env.pop("LEVERET_UNIT", "")  # the helper's mark, by which it finds what a task left behind
        assert env == {
            "FLUX_JOB_ID": jobid,
            "FLUX_JOB_ID_PATH": f"/{jobid}",
            "FLUX_JOB_NNODES": "1",
            "FLUX_JOB_SIZE": "2",
            "FLUX_KVS_NAMESPACE": f"job-{number}",
            "FLUX_TASK_LOCAL_ID": rank,
            "FLUX_TASK_RANK": rank,
            "FLUX_URI": shared.uri,
            "LEVERET_URI": shared.uri,
        }


def test_a_job_has_a_directory_of_its_own_while_it_runs(shared: Instance) -> None:
    done = shared.run("sh", "-c", 'test -d "$FLUX_JOB_TMPDIR" && test -w "$FLUX_JOB_TMPDIR" && echo $FLUX_JOB_TMPDIR')
    assert done.code == 0
    until(lambda: not Path(done.out.strip()).exists(), "the directory to go, soon after the job")


def test_cwd_is_the_submitters_or_as_asked(shared: Instance, tmp_path: Path) -> None:
    assert shared.run("pwd", cwd=tmp_path).out == f"{tmp_path}\n"
    assert shared.run("--cwd=/", "pwd", cwd=tmp_path).out == "/\n"


def test_a_missing_cwd_is_not_fatal(shared: Instance) -> None:
    done = shared.run("--cwd=/no/such/dir", "pwd")
    assert (done.code, done.out) == (0, "/tmp\n")
    host = os.uname().nodename
    said = f"ERROR: host {host}: Could not change dir to /no/such/dir: No such file or directory. Going to /tmp instead"
    assert re.fullmatch(rf"[\d.]+s: leveret-shell\[0\]: {re.escape(said)}\n", done.err), done.err
    jobid = shared.leveret("job", "last").out.strip()
    logged = [event["context"] for event in shared.eventlog(jobid, "output") if event["name"] == "log"]
    assert [(entry["rank"], entry["level"]) for entry in logged] == [(0, 3)]


def test_environment_rules(shared: Instance) -> None:
    env = {**shared.env, "FOO": "old"}
    shared.env, before = env, shared.env
    try:
        assert shared.run("--env=FOO=new", "sh", "-c", "echo $FOO").out == "new\n"
        assert shared.run("sh", "-c", "echo $FOO").out == "old\n"
        assert shared.run("--env-remove=FOO", "sh", "-c", 'echo "FOO=$FOO"').out == "FOO=\n"
        assert shared.run("--env=-*", "--env=BAR=1", "sh", "-c", 'echo "$BAR:$HOME"').out == "1:\n"
    finally:
        shared.env = before


def test_stdin_reaches_every_task(shared: Instance) -> None:
    done = shared.run("-n2", "-l", "cat", input="hi\nthere\n", check=0)
    assert sorted(done.out.splitlines()) == ["0: hi", "0: there", "1: hi", "1: there"]
    jobid = shared.leveret("job", "last").out.strip()
    log = [(event["name"], event["context"]) for event in shared.eventlog(jobid, "input")]
    assert log[0][0] == "header"
    assert "".join(context.get("data", "") for _, context in log[1:]) == "hi\nthere\n"
    assert {context["rank"] for _, context in log[1:]} == {"all"}
    assert log[-1][1].get("eof") is True


def test_stdin_of_a_megabyte_arrives_whole_and_in_order(shared: Instance) -> None:
    data = b"".join(b"%07d\n" % number for number in range(1 << 17))
    assert shared.run("cat", input=data, binary=True, check=0).out == data


def test_stdin_at_its_end_is_an_end(shared: Instance) -> None:
    assert shared.run("cat", input="").code == 0


def test_binary_output_comes_back_byte_for_byte(shared: Instance, tmp_path: Path) -> None:
    data = bytes(range(256)) * 33 + b"\xff\xfe no newline"
    (tmp_path / "data").write_bytes(data)
    done = shared.run("cat", "data", cwd=tmp_path, binary=True, check=0)
    assert done.out == data
    jobid = shared.leveret("job", "last").out.strip()
    assert shared.attach(jobid, binary=True).out == data
    assert shared.client.output(jobid) == data


def test_a_last_line_without_newline_is_kept_and_labelled(shared: Instance) -> None:
    assert shared.run("printf", "nonl").out == "nonl"
    assert shared.run("-l", "printf", "nonl").out == "0: nonl"


def test_descendants_of_the_tasks_end_with_the_job(shared: Instance, tmp_path: Path) -> None:
    done = shared.run("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!", check=0)
    pid = int(done.out)
    assert not Path(f"/proc/{pid}").exists()
