"""The asyncio client keeps the same promises as the synchronous one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakedaemon import BREAK, FakeDaemon, end, event, record

from leveret.aclient import AsyncClient
from leveret.client import Client
from leveret.errors import NotFoundError, UnreachableError


def test_it_has_every_method_of_the_synchronous_client() -> None:
    names = {name for name in vars(Client) if not name.startswith("_")}
    own_to_sync = {
        "close", "connect", "take_connection", "wait_clean", "uri", "number", "job_path", "jobs_target", "events_target",
    }  # fmt: skip
    assert names - own_to_sync <= set(vars(AsyncClient))


def test_calls_run_at_once(daemon: FakeDaemon) -> None:
    import threading

    both = threading.Barrier(2, timeout=20)

    def answer(request: Any) -> Any:
        both.wait()
        return 200, record(int(request.path.rpartition("/")[2]))

    daemon.answer("GET", "/v1/jobs/1", answer)
    daemon.answer("GET", "/v1/jobs/2", answer)

    async def main() -> list[Any]:
        async with AsyncClient() as client:
            return await asyncio.gather(client.job(1), client.job(2))

    assert [job["id"] for job in asyncio.run(main())] == [1, 2]


def test_questions_are_repeated_and_submissions_are_not(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/jobs/1", BREAK, (200, record(1)))
    daemon.answer("POST", "/v1/jobs", BREAK, (200, {"id": 5}))

    async def main() -> None:
        async with AsyncClient() as client:
            assert (await client.job(1))["id"] == 1
            with pytest.raises(UnreachableError, match="lost before it answered"):
                await client.submit({"version": 1})

    asyncio.run(main())
    assert len(daemon.asked("POST", "/v1/jobs")) == 1


def test_events_resume(daemon: FakeDaemon) -> None:
    first = [event("eventlog", 1, "submit"), b'{"path"', BREAK]
    second = [event("eventlog", 2, "start"), {"restart": True}]
    third = [event("eventlog", 3, "clean"), end()]
    daemon.answer("GET", "/v1/jobs/1/events", first, second, third)

    async def main() -> list[str]:
        async with AsyncClient() as client:
            return [line["event"]["name"] async for line in client.events(1, follow=True) if "event" in line]

    assert asyncio.run(main()) == ["submit", "start", "clean"]
    assert [request.query.partition("&")[0] for request in daemon.requests] == [
        "path=eventlog",
        "path=eventlog%401",
        "path=eventlog%402",
    ]


def test_errors_and_waits(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/jobs/9/events", (404, {"code": "not-found", "message": "no"}))
    daemon.answer("GET", "/v1/jobs/1/events", [event("eventlog", 1, "submit"), end()])
    lines = [{"id": n, "event": "clean", "job": record(n)} for n in (2, 1)]
    daemon.answer("POST", "/v1/jobs/wait", [lines[0], BREAK], lines[1:])

    async def main() -> list[int]:
        async with AsyncClient(patience_s=5) as client:
            with pytest.raises(NotFoundError):
                await client.eventlog(9)
            with pytest.raises(NotFoundError, match="never received"):
                await client.wait_event(1, "start")
            assert (await client.wait_event(1, "submit"))["name"] == "submit"
            return [line["id"] async for line in client.wait_many([1, 2])]

    assert asyncio.run(main()) == [2, 1]


def test_no_daemon_is_unreachable() -> None:
    async def main() -> None:
        async with AsyncClient("local:///nonexistent/x.sock") as client:
            await client.status()

    with pytest.raises(UnreachableError):
        asyncio.run(main())
