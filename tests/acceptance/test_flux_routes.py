"""The routes behind Flux's verbs, over the socket: events, memos, tasks, counts, purges; also what must be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Instance

from leveret.errors import ConflictError, InvalidError, NotFoundError


def post(instance: Instance, target: str, body: Any) -> tuple[int, Any]:
    status, answer = instance.http("POST", target, body)
    return status, answer


def test_events_of_ones_own(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    client = instance.client
    client.post_event(jobid, "checkpoint", {"step": 7})
    with pytest.raises(InvalidError, match="cannot be posted by hand"):
        client.post_event(jobid, "start")
    with pytest.raises(NotFoundError):
        client.post_event(1234, "x")
    number = client.number(jobid)
    assert post(instance, f"/v1/jobs/{number}/events", {"name": "x", "nosuch": 1})[0] == 400
    assert post(instance, f"/v1/jobs/{number}/events", {"name": "x", "context": "text"})[0] == 400
    assert instance.contexts(jobid, "checkpoint") == [{"step": 7}]
    assert "start" not in instance.names(jobid)
    client.cancel(jobid)
    client.wait(jobid)
    with pytest.raises(ConflictError):
        client.post_event(jobid, "late")


def test_memos(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    instance.client.memo(jobid, {"a": 1, "b": {"c": 2}})
    instance.client.memo(jobid, {"a": None})
    with pytest.raises(InvalidError, match="empty"):
        instance.client.memo(jobid, {})
    assert instance.record(jobid)["annotations"]["user"] == {"b": {"c": 2}}
    assert len(instance.contexts(jobid, "memo")) == 2


def test_tasks_are_named_while_they_run_also_after_a_restart(instance: Instance) -> None:
    jobid = instance.submit("-n2", "sleep", "60")
    instance.client.wait_event(jobid, "shell.start", "exec")
    tasks = instance.client.tasks(jobid)
    assert [task["rank"] for task in tasks] == [0, 1]
    assert all(Path(f"/proc/{task['pid']}").exists() for task in tasks)
    instance.kill_daemon()
    instance.start()
    assert instance.client.tasks(jobid) == tasks
    instance.client.cancel(jobid)
    instance.client.wait(jobid)
    with pytest.raises(ConflictError):
        instance.client.tasks(jobid)


def test_purge(instance: Instance) -> None:
    big = instance.submit("sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x")
    small = instance.submit("false")
    for jobid in (big, small):
        instance.client.wait(jobid)
    files = lambda: [path for path in Path(instance.state_dir).rglob("*.out") if path.is_file()]  # noqa: E731
    assert files()
    client = instance.client
    assert client.purge(num_limit=1, dry_run=True) == {"count": 1, "total": 2}
    with pytest.raises(NotFoundError):
        client.purge([1234])
    with pytest.raises(InvalidError):
        client.purge(num_limit=-1)
    assert client.purge(num_limit=1) == {"count": 1, "total": 1}
    assert files() == []
    with pytest.raises(NotFoundError):
        client.job(big)
    assert client.purge([client.number(small)]) == {"count": 1, "total": 0}
    stats = client.stats()
    assert (stats["inactive_purged"], stats["job_states"]["total"], stats["failed"]) == (2, 0, 0)
