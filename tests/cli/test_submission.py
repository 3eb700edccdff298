"""Options of run and submit: the jobspec they give, and what they say when they are wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakedaemon import FakeDaemon, record

from leveret.cli import envrules, submission
from leveret.cli.output import Fail

ONE_CORE = [{"type": "core", "count": 1}]


@pytest.fixture(autouse=True)
def few_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of --env=* rules see what they expect."""
    monkeypatch.delenv("LEVERET_URI", raising=False)


def spec_of(outcome: Any) -> Any:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_dry_run_prints_the_jobspec_of_flux(leveret: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "--dry-run",
        "--env=-*",
        "--rlimit=-*",
        "-n2",
        "-c1",
        "-t",
        "5m",
        "--job-name=foo",
        "-o",
        "a.b=1",
        "-S",
        "x.y=2",
    ]
    assert spec_of(leveret("run", *options, "echo", "hi")) == {
        "version": 1,
        "resources": [{"type": "slot", "count": 2, "label": "task", "with": ONE_CORE}],
        "tasks": [{"command": ["echo", "hi"], "count": {"per_slot": 1}, "slot": "task"}],
        "attributes": {
            "system": {
                "cwd": str(tmp_path),
                "duration": 300,
                "environment": {},
                "job": {"name": "foo"},
                "shell": {"options": {"a": {"b": 1}}},
                "x": {"y": 2},
            }
        },
    }


def slot(count: int, cores: int = 1, gpus: int = 0) -> dict[str, Any]:
    within = [{"type": "core", "count": cores}] + ([{"type": "gpu", "count": gpus}] if gpus else [])
    return {"type": "slot", "count": count, "with": within, "label": "task"}


@pytest.mark.parametrize(
    ("options", "resources"),
    [
        ("-N2", {"type": "node", "count": 2, "exclusive": True, "with": [slot(1)]}),
        ("-N2 -n4", {"type": "node", "count": 2, "with": [slot(2)]}),
        ("-N2 -x", {"type": "node", "count": 2, "exclusive": True, "with": [slot(1)]}),
        ("-n4 -c2 -g1", slot(4, 2, 1)),
        ("-n0", slot(1)),
    ],
)
def test_resources_as_flux_asks_for_them(leveret: Any, options: str, resources: Any) -> None:
    assert spec_of(leveret("run", "--dry-run", *options.split(), "true"))["resources"] == [resources]


def test_what_follows_the_command_is_the_commands(leveret: Any) -> None:
    spec = spec_of(leveret("run", "--dry-run", "-n2", "cmd", "-n", "7", "--nosuchopt", "--help"))
    assert spec["tasks"][0]["command"] == ["cmd", "-n", "7", "--nosuchopt", "--help"]
    assert spec["resources"][0]["count"] == 2


def test_staging_is_kept_as_typed(leveret: Any) -> None:
    options = ["--stage-in", "in/:work/in", "--stage-in=a:b/", "--stage-out=work/out/:/abs/res"]
    system = spec_of(leveret("run", "--dry-run", *options, "true"))["attributes"]["system"]
    assert system["staging"] == {
        "in": [{"src": "in/", "dst": "work/in"}, {"src": "a", "dst": "b/"}],
        "out": [{"src": "work/out/", "dst": "/abs/res"}],
    }


def test_dependencies_are_rfc_26_objects(leveret: Any) -> None:
    outcome = leveret("run", "--dry-run", "--dependency=afterok:ƒ2?foo=bar", "--dependency=after:123", "true")
    assert spec_of(outcome)["attributes"]["system"]["dependencies"] == [
        {"scheme": "afterok", "value": "ƒ2", "foo": "bar"},
        {"scheme": "after", "value": "123"},
    ]
    assert outcome.err == "dependency scheme 'after' is deprecated, use 'afterstart'\n"


def test_option_values_are_json_or_text(leveret: Any, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"k": [1]}')
    outcome = leveret(
        "run",
        "--dry-run",
        "--rlimit=-*",
        "-o",
        "a=[",
        "-o",
        "flag",
        "-o",
        "t=true",
        "-S",
        "foo",
        "-S",
        f"^bar={tmp_path}/f.json",
        "true",
    )
    system = spec_of(outcome)["attributes"]["system"]
    assert system["shell"]["options"] == {"a": "[", "flag": 1, "t": True}
    assert (system["foo"], system["bar"]) == (1, {"k": [1]})


def test_submit_flags_and_urgency_go_to_the_daemon(
    daemon: FakeDaemon, leveret: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVERET_URI", daemon.uri)
    daemon.answer("POST", "/v1/jobs", (200, {"id": 1}))
    outcome = leveret("submit", "--urgency=hold", "--flags=waitable,debug", "true")
    assert (outcome.code, outcome.out) == (0, "ƒ2\n")
    body = daemon.requests[0].json()
    assert (body["urgency"], body["flags"]) == (0, ["waitable", "debug"])
    assert leveret("submit", "--quiet", "true").out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["run"], 1, "leveret-run: ERROR: job command and arguments are missing"),
        (["submit"], 1, "leveret-submit: ERROR: job command and arguments are missing"),
        (["run", "-N2", "-n1", "true"], 1, "leveret-run: ERROR: node count must not be greater than task count"),
        (["run", "-t", "foo", "true"], 1, "leveret-run: ERROR: invalid Flux standard duration"),
        (["submit", "-t", "-1", "true"], 1, "leveret-submit: ERROR: duration must not be negative"),
        (["run", "--begin-time=garbage", "true"], 1, 'leveret-run: ERROR: Invalid datetime: "garbage"'),
        (["submit", "--flags=nosuch", "true"], 1, "leveret-submit: ERROR: --flags: Unknown flag nosuch"),
        (["submit", "--cc=foo", "true"], 1, "leveret-submit: ERROR: IDset(): Invalid argument: foo"),
        (["submit", "--cc=1", "--bcc=1", "x"], 1, "leveret-submit: ERROR: specify only one of --cc or --bcc"),
        (["run", "--stage-in=abc", "true"], 1, "leveret-run: ERROR: --stage-in: `abc` is not SRC:DST"),
        (["run", "--urgency=foo", "true"], 1, 'leveret-run: ERROR: error parsing urgency: "foo"'),
        (
            ["run", "--env-file=/nosuch", "true"],
            1,
            "leveret-run: ERROR: --env: [Errno 2] No such file or directory: '/nosuch'",
        ),
        (
            ["run", "--env=FOO=$NOSUCHVAR", "true"],
            1,
            "leveret-run: ERROR: --env: Variable 'NOSUCHVAR' not found in FOO=$NOSUCHVAR",
        ),
    ],
)
def test_wrong_requests_end_before_a_daemon_is_asked(leveret: Any, arguments: list[str], code: int, error: str) -> None:
    outcome = leveret(*arguments)
    assert (outcome.code, outcome.out, outcome.err.splitlines()[0]) == (code, "", error)


def test_the_daemons_refusal_is_worded_as_in_flux(
    daemon: FakeDaemon, leveret: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVERET_URI", daemon.uri)
    daemon.answer("POST", "/v1/jobs", (400, {"code": "invalid", "message": "urgency range is [0:31]"}))
    assert leveret("submit", "--urgency=99", "true").err == "[Errno 22] urgency range is [0:31]\n"
    outcome = leveret("run", "--urgency=99", "true")
    assert (outcome.code, outcome.err) == (1, "leveret-run: ERROR: urgency range is [0:31]\n")


ENVIRON = {"PATH": "/bin", "HOME": "/h", "FOO1": "1", "FOO2": "2"}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], ENVIRON),
        (["-*", "PATH"], {"PATH": "/bin"}),
        (["-*", "PATH", "FOO=$PATH/x"], {"PATH": "/bin", "FOO": "/bin/x"}),
        (["-*", "A=$HOME", "B=${A}2$$"], {"A": "/h", "B": "/h2$"}),
        (["-FOO*", "-HOME"], {"PATH": "/bin"}),
        (["-/^FOO/", "-/H/"], {}),
        (["-*", "FOO?"], {"FOO1": "1", "FOO2": "2"}),
        (["NOSUCHVAR", "-PATH", "PATH=/x"], {**ENVIRON, "PATH": "/x"}),
        (["FOO1=a=b"], {**ENVIRON, "FOO1": "a=b"}),
    ],
)
def test_environment_rules(rules: list[str], expected: dict[str, str]) -> None:
    assert envrules.apply(rules, ENVIRON) == expected


def test_environment_rules_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("# comment\n-*\n\nFOO=bar\nX=${FOO}2\n")
    assert envrules.apply([f"^{tmp_path}/rules"], ENVIRON) == {"FOO": "bar", "X": "bar2"}
    (tmp_path / "loop").write_text(f"^{tmp_path}/loop\n")
    with pytest.raises(Fail, match="too deeply"):
        envrules.apply([f"^{tmp_path}/loop"], ENVIRON)


def test_environment_options_keep_their_order(leveret: Any, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("A=file\n")

    def environment(*options: str) -> Any:
        return spec_of(leveret("run", "--dry-run", "--env=-*", *options, "true"))["attributes"]["system"]["environment"]

    assert environment("--env=A=1", "--env-remove=A") == {}
    assert environment("--env-remove=A", "--env=A=1") == {"A": "1"}
    assert environment("--env=A=1", f"--env-file={tmp_path}/rules") == {"A": "file"}
    assert environment(f"--env-file={tmp_path}/rules", "--env", "A=1", "--env-remove", "B") == {"A": "1"}


def test_begin_times() -> None:
    now = 1_700_000_000.0
    assert submission.begin_time("+1h", now) == now + 3600
    assert submission.begin_time("@1000.5", now) == 1000.5
    assert submission.begin_time("2031-05-01T09:00:00+00:00", now) == 1935392400.0
    assert now < submission.begin_time("14:30", now) <= now + 86400


def test_copies_have_their_own_text_and_environment(leveret: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITERAL", "{cc}")
    out = leveret(
        "submit", "--dry-run", "--cc=1-2", "--job-name=n{cc}", "--env=E=e{cc}", "-S", "k={cc}", "echo", "x{cc}"
    ).out
    specs = [json.loads(line) for line in out.splitlines()]
    assert [spec["tasks"][0]["command"] for spec in specs] == [["echo", "x1"], ["echo", "x2"]]
    systems = [spec["attributes"]["system"] for spec in specs]
    assert [system["job"]["name"] for system in systems] == ["n1", "n2"]
    assert [system["k"] for system in systems] == ["1", "2"]
    environments = [system["environment"] for system in systems]
    assert [(e["E"], e["FLUX_JOB_CC"], e["LITERAL"]) for e in environments] == [
        ("e1", "1", "{cc}"),
        ("e2", "2", "{cc}"),
    ]
    assert "FLUX_JOB_CC" not in leveret("submit", "--dry-run", "--bcc=1", "true").out


def test_submit_wait_gives_the_worst_code_and_the_exceptions(
    daemon: FakeDaemon, leveret: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVERET_URI", daemon.uri)
    daemon.answer(
        "POST", "/v1/jobs", (200, {"jobs": [{"id": 1}, {"error": {"code": "jobspec", "message": "no"}}, {"id": 3}]})
    )
    failed = record(
        3,
        exit_code=42,
        result="FAILED",
        exception_occurred=True,
        exception_type="x",
        exception_severity=0,
        exception_note="n",
    )
    lines = [{"id": 1, "event": "clean", "job": record(1)}, {"id": 3, "event": "clean", "job": failed}]
    daemon.answer("POST", "/v1/jobs/wait", lines)
    outcome = leveret("submit", "--cc=1-3", "--wait", "true")
    assert (outcome.code, outcome.out) == (42, "ƒ2\nƒ4\n")
    assert outcome.err == "[Errno 22] no\njob.exception: type=x severity=0 n\n"


def test_python_adds_nothing_to_the_jobs_environment(tmp_path: Path) -> None:
    """PEP 538 sets LC_CTYPE in the C locale; tasks must not see it."""
    import subprocess
    import sys

    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "leveret", "run", "--dry-run", "true"]
    spec = json.loads(subprocess.run(command, env=environ, capture_output=True, check=True).stdout)
    assert spec["attributes"]["system"]["environment"] == environ


def test_resources_in_one_word_or_from_a_file(leveret: Any, tmp_path: Path) -> None:
    spec = spec_of(leveret("run", "--dry-run", "--resources-shape=node=2/slot=2{mine}/[core=2;gpu]", "true"))
    inner = [{"type": "core", "count": 2}, {"type": "gpu", "count": 1}]
    slot = {"type": "slot", "count": 2, "label": "mine", "with": inner}
    assert spec["resources"] == [{"type": "node", "count": 2, "with": [slot]}]
    assert spec["tasks"] == [{"command": ["true"], "slot": "mine", "count": {"per_slot": 1}}]
    path = tmp_path / "resources.json"
    path.write_text(json.dumps([slot]))
    assert spec_of(leveret("run", "--dry-run", f"--resources-json={path}", "true"))["resources"] == [slot]
    for options, what in (
        (["--resources-shape=slot/core", "-N2"], "can't be used with other resource options"),
        (["--resources-shape=slot"], "a slot must have something in it"),
        (["--resources-json=/nowhere"], "--resources-json: [Errno 2]"),
    ):
        refused = leveret("run", "--dry-run", *options, "true")
        assert refused.code == 1 and what in refused.err
