"""What shell options make of a helper's spec."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.manager import shellopts
from leveret.manager.shellopts import PLAIN, Place, Shell, Target

JOBID = 12345


def jobspec(options: Any, *command: str, files: Any = None) -> dict[str, Any]:
    system: dict[str, Any] = {"duration": 0, "shell": {"options": options}}
    if files is not None:
        system["files"] = files
    return {"attributes": {"system": system}, "tasks": [{"command": list(command) or ["true"]}]}


def read(options: Any, *command: str, files: Any = None) -> Shell:
    return shellopts.read(jobspec(options, *command, files=files))


def completed(shell: Shell, *command: str, ranks: tuple[int, ...] = (0,), node: int = 0, nnodes: int = 1) -> Any:
    """The spec of one node."""
    spec: dict[str, Any] = {
        "argv": list(command) or ["true"],
        "env": {"FLUX_JOB_TMPDIR": "/jobs/tmp"},
        "tasks": [{"rank": rank, "local": local} for local, rank in enumerate(ranks)],
        "cores": [0, 1, 2, 3],
        "output": {"unbuffered": False},
        "stdin": "pipe",
        "umask": None,
    }
    place = Place(JOBID, "name", len(ranks) * nnodes, nnodes, node, f"host{node}", (0, 1, 2, 3), ())
    shellopts.complete(spec, shell, place, shellopts.refusal_of(shell, [len(ranks)] * nnodes))
    return spec


@pytest.mark.parametrize("options", [{}, {"rlimit": {"cpu": -1}}, {"nosuch": 1, "mpi": "none", "nosetpgrp": 1}])
def test_an_ordinary_job_is_not_looked_at_twice(options: Any) -> None:
    assert read(options) is PLAIN


def test_what_is_of_another_kind_is_ignored() -> None:
    shell = read({"output": 7, "input": "x", "exit-on-error": 0, "signal": 0, "pty": False})
    assert (shell.out, shell.err, shell.input, shell.exit_on_error, shell.signal, shell.pty) == (None,) * 3 + (
        False,
        None,
        None,
    )
    assert shell.refusal is None


def test_stderr_goes_where_stdout_goes() -> None:
    shell = read({"output": {"stdout": {"type": "file", "path": "o", "label": True}}})
    assert (shell.out, shell.err) == (Target("o", True), Target("o", True))
    shell = read({"output": {"stdout": {"type": "file", "path": "o"}, "stderr": {"type": "kvs"}}})
    assert (shell.out, shell.err) == (Target("o", False), None)
    shell = read({"output": {"stderr": {"type": "file", "path": "e"}}})
    assert (shell.out, shell.err) == (None, Target("e", False))


def test_tasks_share_files_of_one_name() -> None:
    shell = read({"output": {"stdout": {"type": "file", "path": "o-{{node.id}}"},
                             "stderr": {"type": "file", "path": "e.{{taskid}}"}}})  # fmt: skip
    spec = completed(shell, ranks=(4, 5), node=2, nnodes=3)
    assert spec["redirect"] == {"paths": ["o-2", "e.4", "e.5"], "append": False, "label": [False, False]}
    assert [task["redirect"] for task in spec["tasks"]] == [[0, 1], [0, 2]]


def test_only_the_first_node_empties_a_file_of_several_nodes() -> None:
    shell = read({"output": {"stdout": {"type": "file", "path": "{{id}}.out"}}})
    appends = [completed(shell, node=node, nnodes=2)["redirect"]["append"] for node in range(2)]
    assert appends == [False, True]
    assert shell.common_file(2)
    assert not shell.common_file(1)
    assert not read({"output": {"mode": "append", "stdout": {"type": "file", "path": "o"}}}).common_file(2)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{{id.dec}}", str(JOBID)), ("{{jobid.dec}}", str(JOBID)), ("{{id.hex}}", hex(JOBID)), ("{{id.nosuch}}",) * 2,
        ("{{name}}-{{size}}-{{ntasks}}-{{nnodes}}", "name-2-2-1"), ("{{tmpdir}}/x", "/jobs/tmp/x"),
        ("{{taskid}}{{task.id}}{{task.rank}}{{task.index}}", "1111"), ("{{node.id}}/{{node.name}}", "0/host0"),
        ("{{node.cores}} {{node.ncores}}", "0-3 4"), ("{{nope}} {{}} {{ id }} {id} }}{{",) * 2,
    ],
)  # fmt: skip
def test_tags(text: str, want: str) -> None:
    shell = read({}, "echo", text)
    spec = completed(shell, "echo", text, ranks=(0, 1))
    assert (spec["tasks"][1].get("argv") or spec["argv"])[1] == want


def test_words_are_kept_per_task_only_where_they_differ() -> None:
    spec = completed(read({}, "echo", "{{name}}"), "echo", "{{name}}", ranks=(0, 1))
    assert spec["argv"] == ["echo", "name"]
    assert not any("argv" in task for task in spec["tasks"])


@pytest.mark.parametrize(
    ("path", "want"),
    [("o-{{name}}", "o-name"), ("o-{{nosuch}}",) * 2, ("{{name}}-{{taskid}}",) * 2, ("{{node.name}}",) * 2],
)
def test_the_path_that_is_shown(path: str, want: str) -> None:
    assert shellopts.shown_path(Target(path, False), shellopts.job_tag(JOBID, "name", 1, 1)) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [("none", None), ("2m", 120.0), (5, 5.0), (0, 0.0), ("1.5s", 1.5), ("infinity", None)],
)
def test_exit_timeouts(value: Any, want: float | None) -> None:
    shell = read({"exit-timeout": value})
    assert (shell.exit_timeout_s, shell.refusal) == (want, None)


@pytest.mark.parametrize(
    "options",
    [
        {"exit-timeout": "x"}, {"exit-timeout": True}, {"exit-timeout": -1}, {"umask": "9"}, {"umask": "1000"},
        {"cpu-affinity": "x"}, {"cpu-affinity": "map:z"}, {"signal": {"signum": 99}}, {"signal": {"timeleft": -1}},
        {"pty": {"ranks": "x"}}, {"pty": {"ranks": {}}}, {"verbose": "x"}, {"output": {"stdout": {"type": "file"}}},
        {"output": {"stdout": {"path": 7}}}, {"input": {"stdin": {"type": "file"}}}, {"signal": {"signum": []}},
    ],
)  # fmt: skip
def test_what_cannot_be_ends_the_job(options: Any) -> None:
    spec = completed(read(options))
    assert spec["refusal"]["status"] == 256
    assert spec["refusal"]["logs"][0][0] == shellopts.FATAL


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_no_file_outside_the_jobs_folder(name: str) -> None:
    shell = read({}, files={name: {"mode": 0o100600, "data": "x", "encoding": "utf-8"}})
    assert shell.refusal is not None


@pytest.mark.parametrize("files", [[1], {"a": 7}, {"a": {"mode": "x"}}, {"a": {"mode": 1, "encoding": "blobvec"}}])
def test_bad_files(files: Any) -> None:
    assert read({}, files=files).refusal is not None


def test_an_unknown_placement_ends_the_job_as_in_flux() -> None:
    shell = read({"taskmap": {"scheme": "foo", "value": ""}})
    first, second = (completed(shell, node=node, nnodes=2)["refusal"] for node in range(2))
    note = "failed to map tasks with scheme=foo"
    assert first == {"note": note, "status": 15, "logs": [(2, "", note)]}
    assert second["logs"] == []
    assert shellopts.place(shell, [1]) is None


def test_a_bad_output_mode_is_only_said() -> None:
    shell = read({"output": {"mode": "bad", "stdout": {"type": "file", "path": "a"}}})
    said = (4, "output.task", "ignoring invalid output.mode=bad")
    assert completed(shell)["logs"] == [said, said]
    assert "logs" not in completed(shell, node=1, nnodes=2)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("per-task", [[0, 1], [2, 3]]), ("verbose,per-task", [[0, 1], [2, 3]]),
        ("map:0;1-2", [[0], [1, 2]]), ("map:0x3", [[0, 1], [0, 1]]),
    ],
)  # fmt: skip
def test_affinity(value: str, want: list[list[int]]) -> None:
    spec = completed(read({"cpu-affinity": value}), ranks=(0, 1))
    assert [task.get("cores") or task.get("cpus") for task in spec["tasks"]] == want


def test_affinity_off() -> None:
    assert "cores" not in completed(read({"cpu-affinity": "off"}))
    assert completed(read({"cpu-affinity": "on"}))["cores"] == [0, 1, 2, 3]


def test_more_tasks_than_cores() -> None:
    spec = completed(read({"cpu-affinity": "per-task"}), ranks=tuple(range(6)))
    assert [task["cores"] for task in spec["tasks"]] == [[0], [0], [1], [2], [2], [3]]


@pytest.mark.parametrize(
    ("value", "ranks", "unbuffered"),
    [(True, "all", False), (1, "all", False), ({"interactive": 1}, [0], True), ({"ranks": "1-2"}, [1, 2], False),
     ({"ranks": 1, "size": [10, 20]}, [1], False)],
)  # fmt: skip
def test_terminals(value: Any, ranks: Any, unbuffered: bool) -> None:
    spec = completed(read({"pty": value}))
    assert spec["pty"]["ranks"] == ranks
    assert spec["output"]["unbuffered"] == unbuffered
    assert spec["pty"]["size"] == (value.get("size") if isinstance(value, dict) else None)


def test_other_settings() -> None:
    files = {"a": {"mode": 0o100700, "data": "x", "encoding": "utf-8"}}
    shell = read({"umask": "0027", "signal": {"signum": 12, "timeleft": 1.5}, "input": {"stdin": {"type": "file",
                  "path": "{{id}}"}}}, files=files)  # fmt: skip
    spec = completed(shell)
    assert spec["umask"] == 0o27
    assert spec["signal"] == {"signum": 12, "timeleft_s": 1.5, "log": True}
    assert (spec["stdin"], spec["input"]) == ("file", "{{id}}"), "Flux does not expand names of input files"
    assert spec["archive"] == files
    assert read({"signal": 1}).signal == (10, 60.0)


def test_notes_of_a_task_that_ends_the_job() -> None:
    note = shellopts.exit_note
    assert (
        note("/bin/sh", 0, "h", 256, 1.0) == "sh: task rank 0 on host h exited (Exit 1) and exit-timeout=1s has expired"
    )
    assert note("sh", 3, "h", 512, None) == "sh: task rank 3 on host h failed (Exit 2) and exit-on-error is set"
    assert note("sh", 3, "h", 9, None) == "sh: task rank 3 on host h failed (Killed) and exit-on-error is set"
