"""The plugins of the guide (docs/plugins.md), each as its reader would use it: from an empty directory, on a real instance."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Instance, in_order, until

import leveret.plugins.ports as ports_module

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "plugins.md"
PLUGINS = ROOT / "docs" / "plugins"
PORTS = Path(ports_module.__file__)


@pytest.fixture
def author(instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """An instance, and nothing but an empty directory."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    yield instance


def load(instance: Instance, name: str, *conf: str) -> None:
    """Copy the guide's file here, as it stands there, and load it as the guide says."""
    Path(f"{name}.py").write_bytes((PLUGINS / f"{name}.py").read_bytes())
    instance.leveret("jobtap", "load", f"./{name}.py", *conf, check=0)
    assert name in instance.leveret("jobtap", "list", check=0).out.split()


def script(name: str, text: str) -> Path:
    path = Path(name).absolute()
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_guide_shows_six_plugins_each_under_forty_lines() -> None:
    files = [*sorted(PLUGINS.glob("*.py")), PORTS]
    assert len(files) == 6
    guide = GUIDE.read_text()
    for file in files:
        assert len(file.read_text().splitlines()) < 40, file
        assert f"plugins/{file.name}" in guide, f"the guide does not show {file.name}"
    first = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    assert first is not None
    assert first[1] == (PLUGINS / "tape.py").read_text(), "the example in the guide is the file that is tested"


def test_require_project(author: Instance) -> None:
    refused = author.leveret("jobtap", "load", str(PLUGINS / "require_project.py"))
    assert (refused.code, "must be a list" in refused.err) == (1, True), refused.err
    load(author, "require_project", 'projects=["ocean","ice"]')
    refused = author.run("true")
    assert refused.code == 1 and "unknown project ``" in refused.err and "projects: ocean, ice" in refused.err
    assert author.client.jobs(count=0) == []
    assert author.run("--setattr=system.project=ocean", "true").code == 0


def test_tape(author: Instance) -> None:
    archive = script(
        "archive.sh", "while ! [ -e gate ]; do sleep 0.02; done; cat result; echo $1 >> ../archived; exit $(cat code)\n"
    )
    load(author, "tape", f"archive={archive}")
    Path("work").mkdir()
    Path("work/code").write_text("0\n")
    jobid = author.submit("sh", "-c", "echo data > result", cwd=Path("work"))
    author.wait_event(jobid, "epilog-start")
    author.crash()
    assert author.holds(jobid) == ["epilog/to-tape"]
    listed = author.leveret("job", "holds", jobid, check=0).out.splitlines()[1].split()
    assert listed[1:5] == ["epilog", "to-tape", "site", "tape"]
    Path("work/gate").touch()
    assert author.wait(jobid)["result"] == "COMPLETED"
    assert Path("archived").read_text() == f"{author.record(jobid)['id']}\n", "once, also across the crash"
    in_order(author.names(jobid), "finish", "epilog-start", "epilog-finish", "free", "clean")
    Path("work/code").write_text("3\n")
    failed = author.submit("true", cwd=Path("work"))
    assert author.wait(failed)["result"] == "COMPLETED", "an epilog is the site's: a warning"
    (exception,) = author.contexts(failed, "exception")
    assert exception["severity"] > 0 and "to-tape" in exception["note"]
    pending = author.submit("--urgency=0", "true")
    author.client.cancel(pending)
    author.wait(pending)
    assert "epilog-start" not in author.names(pending)


def test_licence(author: Instance) -> None:
    load(author, "licence", "matlab=1")
    refused = author.leveret("submit", "--dependency=licence:nosuch", "true")
    assert refused.code == 1 and "no such licence: `nosuch`" in refused.err
    first = author.submit("--dependency=licence:matlab", "sh", "-c", "while ! [ -e gate ]; do sleep 0.02; done")
    second = author.submit("--dependency=licence:matlab", "true")
    third = author.submit("--dependency=licence:matlab", "true")
    assert author.record(second)["dependencies"] == ["licence:matlab"]
    author.crash()
    said = json.loads(author.leveret("jobtap", "query", "licence", check=0).out)
    assert said["used"] == {"matlab": 1}
    author.client.cancel(second)
    author.wait(second)
    assert author.record(third)["state"] == "DEPEND"
    Path("gate").touch()
    assert author.wait(third)["result"] == "COMPLETED"
    assert author.record(first)["t_inactive"] <= author.record(third)["t_priority"]
    in_order(author.names(third), "dependency-add", "validate", "dependency-remove", "depend", "start")
    assert json.loads(author.leveret("jobtap", "query", "licence").out)["used"] == {"matlab": 0}


def test_fair(author: Instance) -> None:
    shares = script("shares.sh", "cd ${0%/*}; while ! [ -e gate ]; do sleep 0.02; done; echo 40\n")
    load(author, "fair", f'command=["{shares}"]')
    jobid = author.submit("true")
    until(lambda: author.record(jobid)["state"] == "PRIORITY", "it waits for accounting")
    assert author.record(jobid)["waiting_for"] == "priority of fair"
    held = author.submit("--urgency=hold", "true")
    assert author.record(held)["priority"] == 0
    Path("gate").touch()
    assert author.wait(jobid)["result"] == "COMPLETED"
    assert author.contexts(jobid, "priority") == [{"priority": 56}]
    author.client.urgency(held, 16)
    author.wait(held)
    assert author.contexts(held, "priority")[-1] == {"priority": 55}


def test_scratch(author: Instance) -> None:
    root = Path("scratch").absolute()
    load(author, "scratch", f"root={root}")
    jobid = author.submit("sh", "-c", "test -d $SCRATCH && echo $SCRATCH && touch $SCRATCH/x")
    assert author.attach(jobid).out.strip() == f"{root}/{author.record(jobid)['id']}"
    author.wait(jobid)
    assert os.listdir(root) == []
    in_order(
        author.names(jobid),
        "jobspec-update",
        "prolog-finish",
        "start",
        "finish",
        "epilog-start",
        "epilog-finish",
        "clean",
    )
    canceled = author.submit("sleep", "1000")
    author.wait_event(canceled, "start")
    assert os.listdir(root) == [str(author.record(canceled)["id"])]
    author.client.cancel(canceled)
    author.wait(canceled)
    assert os.listdir(root) == []


# ---- the port distributor, which ships ----------------------------------------------------------------


def free_range(count: int) -> int:
    """The first of `count` ports in a row that are free here."""
    for first in range(21000, 30000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


SHOW = 'echo $LEVERET_PORTS; while ! [ -e "$0" ]; do sleep 0.02; done'


def ports_of(instance: Instance, jobid: str) -> set[int]:
    updates = [
        c for c in instance.contexts(jobid, "jobspec-update") if "attributes.system.environment.LEVERET_PORTS" in c
    ]
    return {int(port) for port in updates[-1]["attributes.system.environment.LEVERET_PORTS"].split(",")}


def test_r42_ports_are_never_given_twice_also_across_a_killed_daemon(
    launch: Callable[..., Instance], tmp_path: Path
) -> None:
    first = free_range(8)
    config = f'[[job-manager.plugins]]\nload = "ports"\nconf = {{ range = "{first}-{first + 7}", count = 2 }}\n'
    instance = launch(config=config)
    cores = instance.cores
    gates = [tmp_path / f"gate{i}" for i in range(4)]
    jobs = [instance.submit("sh", "-c", SHOW, str(gate)) for gate in gates[: min(cores, 4)]]
    for jobid in jobs:
        instance.wait_event(jobid, "start")
    before = [ports_of(instance, jobid) for jobid in jobs]
    assert all(len(ports) == 2 and min(ports) >= first and max(ports) <= first + 7 for ports in before)
    assert len(set.union(*before)) == 2 * len(jobs), "no two jobs on a node share a port"
    instance.crash()
    gates[0].touch()
    assert instance.wait(jobs[0])["result"] == "COMPLETED"
    assert instance.attach(jobs[0]).out.strip() == ",".join(map(str, sorted(before[0]))), "in the tasks' environment"
    again = instance.submit("sh", "-c", SHOW, str(gates[0]))
    assert instance.wait(again)["result"] == "COMPLETED"
    assert not ports_of(instance, again) & set().union(*before[1:]), "those of the jobs that run are taken still"
    assert ports_of(instance, again) == before[0], "what was given back is given again"
    in_order(instance.names(again), "prolog-start", "jobspec-update", "prolog-finish", "start")
    for gate in gates:
        gate.touch()
    for jobid in jobs:
        instance.wait(jobid)


def test_ports_that_somebody_else_listens_on_are_passed_over(instance: Instance) -> None:
    first = free_range(4)
    with socket.socket() as other:
        other.bind(("", first + 1))
        other.listen()
        instance.leveret("jobtap", "load", "ports", f"range={first}-{first + 3}", "env=PMI_CONTROL_PORT", check=0)
        jobid = instance.submit("sh", "-c", "echo $PMI_CONTROL_PORT")
        assert instance.attach(jobid).out == f"{first + 2},{first + 3}\n"
    with socket.socket() as other:
        other.bind(("", first + 2))
        other.listen()
        instance.leveret("jobtap", "load", "-r", "ports", "ports", f"range={first + 2}-{first + 3}", check=0)
        record = instance.wait(instance.submit("true"))
    assert record["result"] == "FAILED"
    assert f"no 2 ports from {first + 2} to {first + 3} are free" in record["cause"]["note"]


def test_a_new_author_is_told_what_is_wrong(author: Instance) -> None:
    def refusal(text: str) -> str:
        Path("mine.py").write_text(text)
        done = author.leveret("jobtap", "load", "./mine.py")
        assert done.code == 1
        return str(done.err)

    assert "mine.py:1: " in refusal("def broken(:\n")
    assert "found 0 classes derived from Plugin" in refusal("x = 1\n")
    assert "ModuleNotFoundError" in refusal("import nosuchmodule\n")
    assert "ValueError: no conf" in refusal(
        "from leveret.plugins.hooks import Plugin\n\n\nclass Mine(Plugin):\n"
        "    def __init__(self, *args):\n        raise ValueError('no conf')\n"
    )
    assert author.leveret("jobtap", "list", check=0).out == ""
