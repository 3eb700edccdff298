"""One message per job at its real end, with the verdict of every other door (R80)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from harness import Instance, until


class Hook:
    """A receiver of web hooks. `closed`: it answers 503."""

    def __init__(self) -> None:
        self.closed = False
        self.refused = 0
        self.taken: list[tuple[str, dict[str, Any]]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.closed:
                    hook.refused += 1
                    self.send_error(503)
                    return
                hook.taken.append((self.headers["Idempotency-Key"], json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/done"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def of(self, jobid: int) -> list[dict[str, Any]]:
        return [message["job"] for _, message in self.taken if message["job"]["id"] == jobid]


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


def ended(instance: Instance) -> dict[int, str]:
    """Jobs of every kind of end, with the result that the listing shows."""
    jobs = [instance.submit("true"), instance.submit("false"), instance.submit("-t", "0.2s", "sleep", "100")]
    held = instance.submit("--urgency=hold", "true")
    instance.leveret("cancel", held, check=0)
    return {instance.wait(job)["id"]: instance.wait(job)["result"] for job in [*jobs, held]}


def test_r80_one_message_per_job_with_the_verdict_of_every_door(launch: Callable[..., Instance], hook: Hook) -> None:
    instance = launch(config=f'[notify]\nwebhook = "{hook.url}"\n')
    results = ended(instance)
    assert sorted(results.values()) == ["CANCELED", "COMPLETED", "FAILED", "TIMEOUT"]
    until(lambda: len(hook.taken) >= len(results), "every job is told of")
    for jobid, result in results.items():
        (told,) = hook.of(jobid)
        assert told["result"] == result
        assert told["done"] is True
        record = instance.client.job(jobid)
        assert {key: record[key] for key in told} == told
        status = instance.leveret("job", "status", str(jobid)).code
        assert (status == 0) == (result == "COMPLETED")
    assert len({key for key, _ in hook.taken}) == len(hook.taken) == len(results)


def test_r80_what_a_killed_daemon_has_not_delivered_the_next_one_does(
    launch: Callable[..., Instance], hook: Hook
) -> None:
    instance = launch(config=f'[notify]\nwebhook = "{hook.url}"\n')
    hook.closed = True
    results = ended(instance)
    until(lambda: hook.refused >= len(results), "each was tried")
    assert hook.taken == []
    instance.crash()
    hook.closed = False
    instance.leveret("status")
    instance.leveret("run", "true", check=0)
    until(lambda: len(hook.taken) >= len(results) + 1, "the next daemon delivers")
    assert {jobid: [job["result"] for job in hook.of(jobid)] for jobid in results} == {
        jobid: [result] for jobid, result in results.items()
    }


def test_r80_no_message_before_the_last_part_has_ended(
    launch: Callable[..., Instance], hook: Hook, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    epilog = tmp_path / "epilog"
    epilog.write_text(f"#!/bin/sh\nuntil [ -e {gate} ]; do sleep 0.05; done\n")
    epilog.chmod(0o755)
    instance = launch(config=f'[notify]\nwebhook = "{hook.url}"\n[job-manager.epilog]\ncommand = ["{epilog}"]\n')
    job = instance.submit("true")
    instance.wait_event(job, "epilog-start")
    other = instance.submit("--urgency=hold", "true")
    instance.leveret("cancel", other, check=0)
    until(lambda: len(hook.taken) == 1, "a job that is over is told of")
    assert hook.of(instance.client.job(job)["id"]) == []
    gate.touch()
    instance.wait(job)
    until(lambda: len(hook.taken) == 2, "and the other, when it is over")


def test_r80_a_command_gets_the_message_on_its_standard_input(launch: Callable[..., Instance], tmp_path: Path) -> None:
    ledger, script = tmp_path / "told", tmp_path / "tell"
    script.write_text(f'#!/bin/sh\necho "$FLUX_JOB_ID $LEVERET_ATTEMPT $(cat)" >> {ledger}\n')
    script.chmod(0o755)
    instance = launch(config=f'[notify]\ncommand = ["{script}"]\nresults = ["FAILED"]\n')
    instance.wait(instance.submit("true"))
    failed = instance.wait(instance.submit("sh", "-c", "exit 3"))
    until(ledger.exists, "the command was run")
    line = until(lambda: ledger.read_text().endswith("\n") and ledger.read_text(), "it has written")
    number, attempt, body = line.split(" ", 2)
    assert (int(number), attempt) == (failed["id"], "1")
    assert json.loads(body)["job"]["exit_code"] == 3
    assert json.loads(body)["event"] == "clean"
