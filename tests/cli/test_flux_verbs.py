"""Verbs of Flux beside those for single jobs: bulksubmit, hostlist, R, pgrep, pstree, multi-prog, alias, progress."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakedaemon import FakeDaemon

from leveret.cli import output
from leveret.cli.progress import Progress
from leveret.core import jobid, perresource
from leveret.errors import InvalidError


def text_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def record(jobid: int, **more: Any) -> dict[str, Any]:
    return {"id": jobid, "name": "true", "state": "RUN", "userid": 0, "username": "root", **more}


# bulksubmit


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("echo {} ::: a b", ["echo a", "echo b"]),
        ("echo {1} {0} ::: 1 2 ::: 3 4", ["echo 3 1", "echo 4 1", "echo 3 2", "echo 4 2"]),
        ("echo {0} {1} ::: 1 2 3 :::+ a b", ["echo 1 a", "echo 2 b", "echo 3 a"]),
        ("echo {.%} {./} {.//} {./%} ::: /x/y.c", ["echo /x/y y.c /x y"]),
        ("--job-name={seq} echo {seq1} ::: a b", ["--job-name=0 echo 1", "--job-name=1 echo 2"]),
        ("-n {} --cwd /tmp -l true ::: 2", ["-n2 --cwd=/tmp -l true"]),
        ("--define=p2=2**int(x) -n {.p2} true ::: 0 3", ["-n1 true", "-n8 true"]),
        ("--cc={} echo {cc} ::: 0-1", ["--cc=0-1 echo {cc}"]),
        ("echo {{}} {} ::: a", ["echo {} a"]),
    ],
)
def test_bulksubmit_templates(leveret: Any, words: str, lines: list[str]) -> None:
    outcome = leveret("bulksubmit", "--dry-run", *words.split())
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [f"bulksubmit: submit {line}" for line in lines]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("echo {} :::+ a", "no jobs provided for bulk submission"),
        ("::: a", "job command and arguments are missing"),
        ("echo {nosuch} ::: a", "Invalid replacement string in `{nosuch}`: nosuch"),
        ("--define=x echo {} ::: a", "--define: `x` is not NAME=CODE"),
        ("--define=x=1+ echo {} ::: a", "--define=x: invalid syntax"),
        ("--define=x=nope echo {.x} ::: a", "--define=x: NameError: name 'nope' is not defined"),
    ],
)
def test_bulksubmit_refuses(leveret: Any, words: str, message: str) -> None:
    outcome = leveret("bulksubmit", "--dry-run", *words.split())
    assert outcome.code == 1
    assert outcome.err.startswith(f"leveret-bulksubmit: ERROR: {message}")


def test_bulksubmit_reads_stdin_and_files(leveret: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text_in(monkeypatch, "a b\nc\n")
    assert leveret("bulksubmit", "--dry-run", "x", "{}").out.splitlines() == [
        "bulksubmit: submit x a b", "bulksubmit: submit x c",
    ]  # fmt: skip
    text_in(monkeypatch, "a b\nc\n")
    assert len(leveret("bulksubmit", "--dry-run", "--sep=none", "x", "{}").out.splitlines()) == 3
    (tmp_path / "in").write_text("1\n2\n")
    assert len(leveret("bulksubmit", "--dry-run", "x", "{}", "::::", str(tmp_path / "in")).out.splitlines()) == 2
    assert leveret("bulksubmit", "--dry-run", "x", "{}", "::::", "/nosuch").err.startswith("leveret-bulksubmit: ERROR")


def test_bulksubmit_sends_one_job_each(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("POST", "/v1/jobs", (200, {"jobs": [{"id": 1}, {"error": {"code": "invalid", "message": "no"}}]}))
    outcome = leveret("bulksubmit", "-n", "{}", "echo", "x{}", ":::", "1", "2")
    assert (outcome.code, outcome.out, outcome.err) == (1, "ƒ2\n", "[Errno 22] no\n")
    jobs = daemon.requests[-1].json()["jobs"]
    assert [job["jobspec"]["tasks"][0]["command"] for job in jobs] == [["echo", "x1"], ["echo", "x2"]]
    assert [job["jobspec"]["resources"][0]["count"] for job in jobs] == [1, 2]


def test_logs(daemon: FakeDaemon, leveret: Any, tmp_path: Path) -> None:
    daemon.answer("POST", "/v1/jobs", (200, {"jobs": [{"id": 1}, {"error": {"code": "invalid", "message": "no"}}]}))
    outcome = leveret("submit", "--cc=1-2", f"--log={tmp_path}/o", f"--log-stderr={tmp_path}/e", "true")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "")
    assert ((tmp_path / "o").read_text(), (tmp_path / "e").read_text()) == ("ƒ2\n", "[Errno 22] no\n")
    outcome = leveret("submit", "--cc=1-2", f"--log={tmp_path}/job{{cc}}", "true")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "")
    assert (tmp_path / "job1").read_text() == "ƒ2\n"
    assert (tmp_path / "job2").read_text() == "[Errno 22] no\n"
    assert output.targets == {}


def test_progress_wants_a_terminal(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("POST", "/v1/jobs", (200, {"id": 1}))
    outcome = leveret("submit", "--progress", "true")
    assert outcome.err == "leveret: WARNING: stdout is not a tty. Ignoring --progress option\n"
    assert outcome.out == "ƒ2\n"


def test_the_progress_bar(daemon: FakeDaemon) -> None:
    ends = [{"id": 1, "job": {"exit_code": 0}}, {"id": 2, "job": {"exit_code": 3}}]
    daemon.answer(
        "POST",
        "/v1/jobs/wait",
        lambda request: (
            ends
            if request.json()["event"] == "clean"
            else [{"id": 1, "event": {"name": "start"}}, {"id": 2, "event": {"name": "start"}}]
        ),
    )
    bar = Progress(daemon.uri, [1, 2], jps=False)
    while not (bar.take(0.05) and bar.started == {1, 2}):
        pass
    assert (bar.worst, bar.failed, bar.error) == (3, 1, None)
    shown = bar.text(70)
    assert shown.startswith("PD:0   R:0   CD:1   F:1   │█") and "│100.0% 0:00:0" in shown
    bar.done.discard(2)
    assert bar.text(70).startswith("PD:0   R:1 ") and "█" in bar.text(70) and " 50.0%" in bar.text(70)


# hostlist and R


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        ("n[1-3] n7", "n[1-3,7]", 0),
        ("-e n[1-3]", "n1 n2 n3", 0),
        ("-ed, n[1-2]", "n1,n2", 0),
        ("-c n[1-3] n1", "4", 0),
        ("-u n3 n1 n10 n3", "n[1,3,10]", 0),
        ("-i n[1-5] n[3-9]", "n[3-5]", 0),
        ("-m n[1-9] n3 n4", "n[1-2,5-9]", 0),
        ("-X a,b b,c", "a,c", 0),
        ("-x n2 n[1-3]", "n[1,3]", 0),
        ("-x 0 n[1-3]", "n[2-3]", 0),
        ("-n 0-1 n[5-9]", "n[5-6]", 0),
        ("-n -1 n[5-9]", "n9", 0),
        ("-F n6,n7 n[5-9]", "1 2", 0),
        ("-L 2 n[5-9]", "n[5-6]", 0),
        ("-L -2 n[5-9]", "n[8-9]", 0),
        ("-S n9 n1", "n[1,9]", 0),
        ("-q n1", "", 0),
        ("-qi n1 n2", "", 1),
    ],
)
def test_hostlist(leveret: Any, words: str, text: str, code: int) -> None:
    outcome = leveret("hostlist", *words.split())
    assert (outcome.code, outcome.out.rstrip("\n"), outcome.err) == (code, text, "")


def test_hostlist_sources(daemon: FakeDaemon, leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text_in(monkeypatch, "a1\na2\n")
    assert leveret("hostlist").out == "a[1-2]\n"
    helpers = [{"node": 1, "host": "n1", "connected": False}, {"node": 0, "host": "n0", "connected": True}]
    daemon.answer("GET", "/v1/status", (200, {"helpers": helpers}))
    assert leveret("hostlist", "instance").out == "n[0-1]\n"
    assert leveret("hostlist", "avail").out == "n0\n"
    daemon.answer("GET", "/v1/jobs/81", (200, record(81, nodelist="n[4-5]")))
    assert leveret("hostlist", "81").out == "n[4-5]\n"
    monkeypatch.setenv("FLUX_JOB_ID", "81")
    assert leveret("hostlist", "-l").out == "n[4-5]\n"
    missing = (404, {"code": "not-found", "message": "unknown job id"})
    daemon.answer("GET", f"/v1/jobs/{jobid.parse('foo1')}", missing)
    assert leveret("hostlist", "foo1").code == 1
    assert leveret("hostlist", "--fallback", "foo1").out == "foo1\n"
    assert leveret("hostlist", "-n", "9", "n1").code == 1
    assert leveret("hostlist", "-F", "n9", "n1").code == 1
    assert leveret("hostlist", "-i", "-m", "n1", "n1").code == 2


def test_resource_sets(leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    two = leveret("R", "encode", "-r0-1", "-c0-3", "-g0", "-Hn[0-1]", "-pbig:1").out
    one = leveret("R", "encode", "-r1", "-c0-1", "-Hn1").out

    def R(*words: str, stdin: str) -> str:
        text_in(monkeypatch, stdin)
        outcome = leveret("R", *words)
        assert outcome.code == 0, outcome.err
        return str(outcome.out).rstrip("\n")

    assert R("decode", "--short", stdin=two) == "rank[0-1]/core[0-3],gpu0"
    assert R("decode", "--nodelist", stdin=two) == "n[0-1]"
    assert R("decode", "--count=core", stdin=two) == "8"
    assert R("decode", "-s", "--exclude=n0", stdin=two) == "rank1/core[0-3],gpu0"
    assert R("decode", "-r", "--properties=big", stdin=two) == "1"
    assert R("decode", "--short", stdin=R("diff", stdin=two + one)) == "rank0/core[0-3],gpu0 rank1/core[2-3],gpu0"
    assert R("decode", "--short", stdin=R("intersect", stdin=two + one)) == "rank1/core[0-1]"
    assert R("decode", "--short", stdin=R("remap", stdin=one)) == "rank0/core[0-1]"
    assert json.loads(R("set-property", "fast", stdin=one))["execution"]["properties"] == {"fast": "1"}
    text_in(monkeypatch, two + one)
    assert "duplicate ranks 1" in leveret("R", "append").err
    for bad in ("", "{", "{}"):
        text_in(monkeypatch, bad)
        assert leveret("R", "decode").code == 1


def test_per_resource_options_that_cannot_be() -> None:
    for bad in (
        {"tasks_per_node": 1},
        {"gpus_per_node": 1, "cores": 2},
        {"nnodes": 2, "cores": 3},
        {"nnodes": 1, "tasks_per_node": 1, "tasks_per_core": 1},
        {"cores": 2, "exclusive": True},
        {"cores": -1},
    ):
        with pytest.raises(InvalidError):
            perresource.resources(**bad)  # type: ignore[arg-type]
    assert perresource.ntasks({"type": "node", "count": 3}, 2, 0) == 6
    assert perresource.ntasks({"type": "core", "count": 2}, 0, 4) == 8
    assert perresource.ntasks({"type": "core", "count": 2}, 2, 0) is None
    assert perresource.ntasks("x", 1, 1) is None


# jobs by name, and as a tree


def test_pgrep_and_pkill(daemon: FakeDaemon, leveret: Any) -> None:
    jobs = [record(3, name="sim-b"), record(2, name="other"), record(1, name="sim-a")]
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": jobs}))
    assert leveret("pgrep", "^sim").out == "ƒ4\nƒ2\n"
    assert leveret("pgrep", "1..2").out == "ƒ3\nƒ2\n"
    assert leveret("pgrep", "1..2", "sim").out == "ƒ2\n"
    assert leveret("pgrep", "-c1", "sim").out == "ƒ4\n"
    assert leveret("pgrep", "-no", "{name}", "sim").out == "sim-b\nsim-a\n"
    assert leveret("pgrep", "nosuch").code == 1
    assert leveret("pgrep", "(").code == 1
    assert leveret("pgrep").code == 2
    daemon.answer("POST", "/v1/jobs/1/cancel", (200, {}))
    daemon.answer("POST", "/v1/jobs/3/cancel", (409, {"code": "conflict", "message": "job is inactive"}))
    outcome = leveret("pkill", "sim")
    assert outcome.code == 1
    assert outcome.err == "leveret-pkill: ERROR: ƒ4: job is inactive\nleveret-pkill: INFO: Canceled 1 job\n"
    assert leveret("pkill", "nosuch").code == 1


def test_pstree(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": [record(3, name="x"), record(2), record(1)]}))
    assert leveret("pstree").out == ".\n├── x\n└── 2*[true]\n"
    assert leveret("pstree", "-X", "--ascii", "--skip-root=no").out == ".\n|-- x\n|-- true\n`-- true\n"
    assert leveret("pstree", "--skip-root=yes", "-C").out == "x\n2*[true]\n"
    lines = leveret("pstree", "-x").out.splitlines()
    assert lines[0].split()[:2] == ["JOBID", "USER"] and lines[1].endswith(" x") and len(lines) == 4


# watch, purge, memo, taskmap


def test_watch(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": []}))
    outcome = leveret("watch", "--active")
    assert (outcome.code, outcome.err) == (0, "leveret-watch: INFO: No matching jobs\n")
    assert leveret("watch").code == 2
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": [record(1)]}))
    event = {"timestamp": 1.0, "name": "data", "context": {"stream": "stdout", "rank": "0", "data": "hi\n"}}
    daemon.answer(
        "GET",
        "/v1/jobs/1/events",
        [{"path": "output", "id": "1", "event": event}, {"end": True, "job": {"exit_code": 3}}],
    )
    outcome = leveret("watch", "-l", "1")
    assert (outcome.code, outcome.out) == (3, "ƒ2: 0: hi\n")


def test_purge_asks_until_nothing_is_left(daemon: FakeDaemon, leveret: Any) -> None:
    daemon.answer("POST", "/v1/purge", (200, {"count": 7, "total": 9}))
    assert leveret("job", "purge", "--num-limit=2").out == "use --force to purge 7 of 9 inactive jobs\n"
    assert daemon.requests[-1].json()["dry_run"] is True
    daemon.answer("POST", "/v1/purge", *((200, {"count": n, "total": total}) for n, total in ((5, 4), (2, 2), (0, 2))))
    outcome = leveret("job", "purge", "--age-limit=1h", "--batch=5", "--force")
    assert outcome.out == "purged 7 inactive jobs, 2 remaining\n"
    body = daemon.requests[-1].json()
    assert (body["age_limit_s"], body["count"], body["dry_run"]) == (3600.0, 5, False)
    assert leveret("job", "purge", "--age-limit=x").code == 1
    assert leveret("job", "purge", "--num-limit=1", "7").code == 1


def test_memo_values(daemon: FakeDaemon, leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.answer("POST", "/v1/jobs/1/memo", (200, {}))
    text_in(monkeypatch, "from stdin")
    assert leveret("job", "memo", "1", "a.b=1", "a.c=x", 'd={"e":2}', "f", "g=-", "h=null").code == 0
    assert daemon.requests[-1].json() == {
        "memo": {"a": {"b": 1, "c": "x"}, "d": {"e": 2}, "f": None, "g": "from stdin", "h": None}, "volatile": False,
    }  # fmt: skip
    assert leveret("job", "memo", "1", "a=1", "a.b=2").code == 1
    assert leveret("job", "memo", "1", "=1").code == 1
    assert leveret("job", "memo", "1").code == 2


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        ("--to=raw", "0-1;2-3", 0),
        ("--to=multiline", "0: 0\n1: 0\n2: 1\n3: 1", 0),
        ("--taskids=1", "2-3", 0),
        ("--ntasks=1", "2", 0),
        ("--nodeid=3", "1", 0),
        ("--hostname=3", "", 1),
        ("--taskids=2", "", 1),
        ("--nodeid=4", "", 1),
        ("--to=nosuch", "", 1),
    ],
)
def test_taskmap(leveret: Any, words: str, text: str, code: int) -> None:
    outcome = leveret("job", "taskmap", *words.split(), "[[0,2,2,1]]")
    assert (outcome.code, outcome.out.rstrip("\n")) == (code, text)


# the instance


def test_dmesg_uptime_getattr_env(daemon: FakeDaemon, leveret: Any, tmp_path: Path) -> None:
    status = {"started": 1.0, "state_dir": str(tmp_path), "uri": daemon.uri, "version": "9"}
    helpers = [{"node": 0, "host": "n0", "connected": True}, {"node": 1, "host": "n1", "connected": False}]
    daemon.answer("GET", "/v1/status", (200, {**status, "helpers": helpers}))
    said = {"event": "plugin failed", "plugin": "x", "level": "error", "timestamp": "2031-05-01T09:00:00.5Z"}
    (tmp_path / "daemon.log").write_text(json.dumps(said) + "\nnot json\n")
    assert leveret("dmesg").out.splitlines() == [
        "2031-05-01T09:00:00.5Z leveret.err[0]: plugin failed plugin=x", "not json",
    ]  # fmt: skip
    assert leveret("dmesg", "-H").out.startswith("[May01 ")
    assert leveret("dmesg", "-L").out.startswith("\x1b[31m")
    assert leveret("uptime").out.rstrip().endswith("depth 0,  size 2,  1 offline")
    assert leveret("getattr", "size").out == "2\n"
    assert leveret("getattr", "hostlist").out == "n[0-1]\n"
    assert leveret("getattr", "nosuch").code == 1
    assert f"FLUX_URI={daemon.uri}" in leveret("env").out.splitlines()


# multi-prog, alias, help


def test_multi_prog(leveret: Any, tmp_path: Path) -> None:
    config = tmp_path / "c"
    config.write_text("# comment\n0-1 echo 'a b' %t\n2,4 echo %t %o # inline\n* rest %t %o\n")
    outcome = leveret("multi-prog", "--dry-run=0-4", str(config))
    assert outcome.out.splitlines() == [
        "0: echo 'a b' 0", "1: echo 'a b' 1", "2: echo 2 0", "3: rest 3 3", "4: echo 4 1",
    ]  # fmt: skip
    for text in ("0 a\n0-1 b\n", "0\n", "x y\n", "0 'a\n"):
        config.write_text(text)
        assert leveret("multi-prog", "--dry-run=0", str(config)).code == 1
    assert leveret("multi-prog", str(tmp_path / "nosuch")).code == 1


def test_alias(leveret: Any, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    flux = folder / "flux"
    assert leveret("alias", str(folder)).out == f"{flux}\n"
    assert leveret("alias", str(folder)).code == 0  # ours may be written again
    done = subprocess.run([flux, "run", "--nosuch"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: flux run ")
    done = subprocess.run([flux, "nosuch"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "flux: `nosuch' is not a flux command.  See 'flux --help'\n")
    flux.write_text("#!/bin/sh\n")
    outcome = leveret("alias", str(folder))
    assert outcome.code == 1 and "is not ours" in outcome.err
    assert flux.read_text() == "#!/bin/sh\n"
    flux.unlink()
    flux.symlink_to("/nosuch/flux")
    assert leveret("alias", str(folder)).code == 1
    assert os.readlink(flux) == "/nosuch/flux"


def test_help(leveret: Any) -> None:
    assert leveret("help", "job", "attach").out.startswith("usage: leveret job attach ")
    assert leveret("help").out.startswith("usage: leveret ")
    assert leveret("help", "nosuch").code == 2
    assert leveret("help", "run", "x").code == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("leveret jobs -f comp", "completed"),
        ("leveret jobs -f failed,tim", "failed,timeout"),
        ("leveret jobs -o end", "endreason"),
        ("leveret job kill -s US", "USR1"),
        ("leveret job raiseall -S pend", "pending"),
        ("leveret job id --to do", "dothex"),
        ("leveret submit --flags wait", "waitable"),
        ("leveret submit --urgency ho", "hold"),
        ("leveret submit --dependency aftero", "afterok:"),
        ("leveret job wait-event -p ex", "exec"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_values_are_completed(words: str, found: str, shell: str) -> None:
    environ = {**os.environ, "_LEVERET_COMPLETE": f"{shell}_complete"}
    if shell == "fish":
        environ |= {"COMP_WORDS": words, "COMP_CWORD": words.split()[-1]}
    else:
        environ |= {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "leveret"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert found in done.stdout.replace("plain,", "").split("\n"), done.stdout + done.stderr
