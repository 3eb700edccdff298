"""What a hot verb may import: its start-up is most of the time of a short job."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fakedaemon import FakeDaemon, end, event, record

COSTLY = {
    "asyncio", "msgspec", "http.client", "urllib.request", "urllib.parse", "subprocess", "tempfile", "logging",
    "importlib.metadata", "dataclasses", "email", "ssl", "sqlite3", "leveret.wire", "leveret.config", "rich",
}  # fmt: skip

#: `datetime` and `uuid` are not here: click imports them itself.


def imported(*arguments: str, code: int = 0) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "leveret", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    report = done.stderr.decode("utf-8", "replace")
    return {line.rpartition("|")[2].strip() for line in report.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "true"],
        ["run", "-n2", "--env=-FOO*", "--env=X=1", "--env-remove=Y", "-t5m", "true"],
        ["submit", "true"],
        ["submit", "--wait", "true"],
        ["jobs"],
        ["jobs", "-a", "-o", "long"],
        ["job", "attach", "1"],
    ],
)
def test_hot_verbs_import_nothing_costly(daemon: FakeDaemon, arguments: list[str]) -> None:
    daemon.answer("POST", "/v1/jobs", (200, {"id": 1}))
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": [record(1)]}))
    daemon.answer("POST", "/v1/jobs/wait", [{"id": 1, "event": "clean", "job": record(1)}])
    output = event("output", 1, "data", stream="stdout", rank="0", data="//4=", encoding="base64")
    daemon.answer("GET", "/v1/jobs/1/events", [event("eventlog", 1, "submit"), output, end()])
    daemon.answer("POST", "/v1/jobs/1/stdin", (200, {"offset": 0}))
    modules = imported(*arguments)
    assert "leveret.client" in modules
    assert not modules & COSTLY


def test_a_verb_loads_only_its_own_family() -> None:
    modules = imported("run", "--help")
    assert "leveret.cli.run" in modules
    assert not modules & (COSTLY | {"leveret.client", "leveret.cli.jobs", "leveret.cli.start", "leveret.cli.job"})


def test_the_client_side_loads_nothing_of_the_daemon() -> None:
    code = (
        "import pkgutil, sys, leveret.cli, leveret.client, leveret.aclient\n"
        "for m in pkgutil.iter_modules(leveret.cli.__path__): __import__('leveret.cli.' + m.name)\n"
        "parts = ('daemon', 'api', 'manager', 'store', 'exec', 'plugins', 'sched')\n"
        "print([m for m in sys.modules if m.startswith(tuple('leveret.' + p for p in parts))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
