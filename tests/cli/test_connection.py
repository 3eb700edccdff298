"""The HTTP reader and the client's promises about lost connections."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakedaemon import BREAK, FakeDaemon, end, event, record

from leveret.client import Client, EventStream
from leveret.connection import LostError, ResponseParser, quote
from leveret.errors import BusyError, ConflictError, NotFoundError, UnreachableError, VersionError

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"
    b"5;ext=1\r\nhello\r\n1\r\n\n\r\n0\r\nTrailer: x\r\n\r\n"
)
PLAIN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 11\r\n\r\nhello world"


@pytest.mark.parametrize(("message", "status", "body"), [(CHUNKED, 200, b"hello\n"), (PLAIN, 404, b"hello world")])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_response_is_read_whatever_the_pieces(message: bytes, status: int, body: bytes, size: int) -> None:
    parser = ResponseParser()
    taken = b""
    for at in range(0, len(message), size):
        assert not parser.complete
        parser.feed(message[at : at + size])
        taken += parser.take()
    assert (parser.status, taken, parser.complete, parser.keeps_alive) == (status, body, True, True)


def test_a_body_without_length_ends_with_the_connection() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not parser.complete
    parser.end_of_file()
    assert (parser.take(), parser.complete, parser.keeps_alive) == (b"abc", True, False)


@pytest.mark.parametrize("message", [b"", b"HTTP/1.1 200 OK\r\n", PLAIN[:-1], CHUNKED[:-1]])
def test_a_response_cut_off_is_lost(message: bytes) -> None:
    parser = ResponseParser()
    parser.feed(message)
    with pytest.raises(LostError):
        parser.end_of_file()


@pytest.mark.parametrize(
    "message", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
def test_what_is_not_http_is_refused(message: bytes) -> None:
    with pytest.raises(LostError):
        ResponseParser().feed(message)


def test_quote_is_utf8_percent_encoding() -> None:
    assert quote("ƒ2 a/b&c=1") == "%C6%922%20a%2Fb%26c%3D1"


def test_every_request_names_the_protocol_and_reuses_the_connection(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/status", (200, {"pid": 1}))
    with Client() as client:
        assert [client.status()["pid"] for _ in range(3)] == [1, 1, 1]
    assert {request.headers["leveret-protocol"] for request in daemon.requests} == {"1"}
    assert daemon.connections == 1


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"code": "not-found", "message": "m", "hint": "h"}, NotFoundError),
        (409, {"code": "conflict", "message": "m", "hint": "h"}, ConflictError),
        (426, {"code": "version", "message": "m", "hint": "h"}, VersionError),
        (503, b"overloaded", BusyError),
    ],
)
def test_errors_become_exceptions_and_keep_the_connection(
    daemon: FakeDaemon, status: int, body: Any, kind: type[Exception]
) -> None:
    daemon.answer("GET", "/v1/jobs/1", (status, body))
    with Client() as client:
        for _ in range(2):
            with pytest.raises(kind) as caught:
                client.job(1)
            assert getattr(caught.value, "hint", "") == (body["hint"] if isinstance(body, dict) else "")
    assert daemon.connections == 1


def test_a_path_longer_than_sockaddr_un_works(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 90)
    folder.mkdir()
    fake = FakeDaemon(str(folder / "leveret.sock"))
    assert len(fake.path) > 107
    fake.answer("GET", "/v1/status", (200, {"pid": 7}))
    with Client(fake.uri) as client:
        assert client.status()["pid"] == 7
    fake.close()


def test_no_daemon_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught, Client(f"local://{tmp_path}/none.sock") as client:
        client.status()
    assert "LEVERET_URI" in caught.value.hint
    assert caught.value.exit_code == 4


def test_a_lost_question_is_asked_again(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/jobs/1", BREAK, (200, record(1)))
    with Client() as client:
        assert client.job(1)["id"] == 1
    assert len(daemon.requests) == 2


def test_a_lost_submission_is_not_repeated(daemon: FakeDaemon) -> None:
    daemon.answer("POST", "/v1/jobs", BREAK, (200, {"id": 5}))
    with Client() as client, pytest.raises(UnreachableError) as caught:
        client.submit({"version": 1})
    assert "may or may not" in caught.value.hint
    assert len(daemon.requests) == 1


def test_a_connection_that_was_closed_while_idle_is_no_lost_submission(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/status", (200, {}))
    daemon.answer("POST", "/v1/jobs", (200, {"id": 5}))
    with Client() as client:
        client.status()
        assert client._idle is not None
        # the daemon closes idle connections: what is left here is one whose peer is gone
        client._idle.sock.shutdown(2)
        assert client.submit({"version": 1}) == 5
    assert len(daemon.asked("POST", "/v1/jobs")) == 1


def test_submit_many_keeps_the_order_of_ids_and_errors(daemon: FakeDaemon) -> None:
    def take(request: Any) -> Any:
        jobs = request.json()["jobs"]
        bad = {"error": {"code": "jobspec", "message": "bad"}}
        return 200, {"jobs": [{"id": job["urgency"]} if job["urgency"] % 2 else bad for job in jobs]}

    daemon.answer("POST", "/v1/jobs", take)
    with Client() as client:
        results = client.submit_many([{"jobspec": {}, "urgency": n, "flags": []} for n in range(1001)])
    assert [len(request.json()["jobs"]) for request in daemon.requests] == [500, 500, 1]
    assert all((result == n) if n % 2 else str(result) == "bad" for n, result in enumerate(results))


def test_events_resume_after_a_break_and_after_a_restart(daemon: FakeDaemon) -> None:
    def first(request: Any) -> Any:
        torn = json.dumps(event("eventlog", 3, "torn")).encode()[:20]
        return [
            event("eventlog", 1, "submit"),
            event("output", 1, "header"),
            event("eventlog", 2, "start"),
            torn,
            BREAK,
        ]

    def second(request: Any) -> Any:
        assert request.query == "path=eventlog%402&path=output%401&follow=1"
        return [b"\n", event("eventlog", 3, "finish"), {"restart": True}, BREAK]

    def third(request: Any) -> Any:
        assert request.query == "path=eventlog%403&path=output%401&follow=1"
        return [event("output", 2, "data"), event("eventlog", 4, "clean"), end()]

    daemon.answer("GET", "/v1/jobs/1/events", first, second, third)
    lost: list[str] = []
    with Client() as client, EventStream(client, 1, ["eventlog", "output"], on_lost=lost.append) as stream:
        lines = []
        while not stream.ended:
            lines += stream.pump()
    names = [line["event"]["name"] for line in lines if "event" in line]
    assert names == ["submit", "header", "start", "finish", "data", "clean"]
    assert lines[-1]["job"]["result"] == "COMPLETED"
    assert len(lost) == 2


def test_events_of_an_unknown_job_are_an_error_at_once(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/jobs/9/events", (404, {"code": "not-found", "message": "no such job"}))
    with Client() as client, pytest.raises(NotFoundError):
        list(client.events(9))


def test_patience_has_an_end(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/jobs/1", BREAK)
    with Client(patience_s=0.1) as client, pytest.raises(UnreachableError):
        client.job(1)
    assert len(daemon.requests) > 1


def test_a_stream_that_always_breaks_off_is_given_up(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/jobs/1/events", [b"\n", BREAK])
    with Client(patience_s=0.2) as client, pytest.raises(UnreachableError):
        list(client.events(1, follow=True))
    assert len(daemon.requests) > 2


def test_wait_many_asks_again_for_those_that_are_left(daemon: FakeDaemon) -> None:
    def line(jobid: int) -> dict[str, Any]:
        return {"id": jobid, "event": "clean", "job": record(jobid)}

    def second(request: Any) -> Any:
        assert (request.json()["ids"], request.json()["event"]) == ([1, 3], "clean")
        return [line(3), line(1)]

    daemon.answer("POST", "/v1/jobs/wait", [line(2), BREAK], second)
    with Client() as client:
        assert [item["id"] for item in client.wait_many([1, 2, 3])] == [2, 3, 1]


def test_output_joins_text_and_base64(daemon: FakeDaemon) -> None:
    lines = [
        event("output", 1, "header", version=1),
        event("output", 2, "data", stream="stdout", rank="0", data="a\n"),
        event("output", 3, "data", stream="stderr", rank="0", data="no"),
        event("output", 4, "data", stream="stdout", rank="1-2", data="//4=", encoding="base64"),
        event("output", 5, "data", stream="stdout", rank="0", eof=True),
        end(),
    ]
    daemon.answer("GET", "/v1/jobs/1/events", lines)
    with Client() as client:
        assert client.output(1) == b"a\n\xff\xfe"
        assert client.output(1, rank=2) == b"\xff\xfe"


def test_filters_of_a_listing(daemon: FakeDaemon) -> None:
    daemon.answer("GET", "/v1/jobs", (200, {"jobs": []}))
    with Client() as client:
        client.jobs(states=["RUN", "SCHED"], name="a b&c", queue=None, count=0)
    assert daemon.requests[0].query == "states=RUN,SCHED&name=a%20b%26c&count=0"


def test_a_client_of_another_instance_never_starts_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_URI", f"local://{tmp_path}/x.sock")
    with Client() as client:
        assert not client.instance.may_start
    monkeypatch.delenv("LEVERET_URI")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Client() as client:
        assert client.instance.may_start
        assert client.instance.state_dir.startswith(os.path.realpath(tmp_path))
