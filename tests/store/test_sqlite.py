"""The durable store: whole transactions, in order, on disk before anybody hears of them."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from leveret.errors import BusyError, ConfigError
from leveret.manager.ports import Batch
from leveret.store import sqlite
from leveret.store.sqlite import ROWS_PER_STATEMENT, Store

WATCHDOG_S = 60


@pytest.fixture(params=["thread", "inline"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Commits in the writer thread, or in the loop's: which of the two never makes a difference."""
    monkeypatch.setattr(sqlite, "INLINE_S", {"thread": -1.0, "inline": 1e9}[request.param])
    return str(request.param)


def run(path: Path, body: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        store = Store(path)
        store.start()
        try:
            await asyncio.wait_for(body(store), WATCHDOG_S)
        finally:
            store.close()

    asyncio.run(main())


def job(jobid: int, env: str | None = None) -> Batch:
    batch = Batch()
    batch.job(jobid, 1000, 5.5, env, b"{}")
    return batch


def event(jobid: int, n: int, line: bytes = b"{}") -> Batch:
    batch = Batch()
    batch.event(jobid, n, line)
    return batch


# ---- opening ----------------------------------------------------------------------------------------


def test_from_empty(tmp_path: Path) -> None:
    path = tmp_path / "db"
    Store(path).close()
    db = sqlite3.connect(path)
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    assert {"meta", "job", "env", "active", "done", "event", "guest", "kv", "plugin"} <= tables
    assert db.execute("PRAGMA user_version").fetchone()[0] == len(
        list(Path(sqlite.__file__).parent.glob("migrations/*.sql"))
    )
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    db.close()


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = Store(path)
    store.set_meta_now("epoch_ms", "17")
    store.set_meta_now("epoch_ms", "18")
    store.close()
    store = Store(path)
    assert store.meta("epoch_ms") == "18"
    assert store.meta("other") is None
    store.close()


def test_a_database_of_an_earlier_schema_is_migrated(tmp_path: Path) -> None:
    files = sorted(Path(sqlite.__file__).parent.glob("migrations/*.sql"))
    for version in range(1, len(files)):
        path = tmp_path / f"{version}.db"
        db = sqlite3.connect(path)
        for file in files[:version]:
            db.executescript(file.read_text())
        db.execute("INSERT INTO meta VALUES('kept', 'yes')")
        db.execute("INSERT INTO job VALUES(7, 0, 1.0, NULL, x'7b7d')")
        db.execute(f"PRAGMA user_version={version}")
        db.commit()
        db.close()

        async def body(store: Store) -> None:
            assert store.meta("kept") == "yes" and store.last_id() == 7
            assert store.purged_count() == 0 and store.leftovers() == []

        run(path, body)
        assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone()[0] == len(files)


def test_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "db"
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.commit()
    db.close()
    with pytest.raises(ConfigError, match="schema 99") as caught:
        Store(path)
    assert "newer Leveret" in caught.value.hint
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone()[0] == 99
    db.close()


def test_it_is_durable_by_pragma(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    for connection in (store._writer, store.read):
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2, "FULL"
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.read.execute("DELETE FROM event")
    store.close()


# ---- committing -------------------------------------------------------------------------------------


def test_callbacks_run_in_order_after_the_data_is_there_for_all(tmp_path: Path, where: str) -> None:
    path = tmp_path / "db"
    seen: list[tuple[int, int]] = []

    async def body(store: Store) -> None:
        other = sqlite3.connect(path)

        def look(number: int) -> None:
            found = other.execute("SELECT count(*) FROM event WHERE n <= ?", (number,)).fetchone()[0]
            seen.append((number, found))

        for number in range(1, 201):
            batch = event(7, number)
            batch.on_commit.append(lambda number=number: look(number))
            store.commit(batch)
            if number % 17 == 0:
                await asyncio.sleep(0)
        await store.barrier()
        assert seen == [(number, number) for number in range(1, 201)]
        other.close()

    run(path, body)


def test_turns_of_one_pass_share_a_transaction(tmp_path: Path, where: str) -> None:
    async def body(store: Store) -> None:
        for number in range(1, 11):
            store.commit(event(1, number))
        assert store.backlog == 10
        await store.barrier()
        assert store.commits == 1
        assert store.backlog == 0

    run(tmp_path / "db", body)


@pytest.mark.parametrize("count", [1, ROWS_PER_STATEMENT, ROWS_PER_STATEMENT + 1, 5 * ROWS_PER_STATEMENT + 3])
def test_a_turn_of_any_size(tmp_path: Path, where: str, count: int) -> None:
    async def body(store: Store) -> None:
        batch = Batch()
        for number in range(1, count + 1):
            batch.event(1, number, b"%d" % number)
        store.commit(batch)
        await store.barrier()
        assert list(store.all_events(1)) == [b"%d" % number for number in range(1, count + 1)]
        assert store.commits == 1

    run(tmp_path / "db", body)


@pytest.mark.parametrize("extra", [0, 2 * ROWS_PER_STATEMENT])
@pytest.mark.parametrize("ops", [False, True])
def test_a_failing_transaction_leaves_nothing_and_is_reported(
    tmp_path: Path, where: str, extra: int, ops: bool
) -> None:
    path = tmp_path / "db"
    failures: list[Exception] = []
    called: list[str] = []

    async def body(store: Store) -> None:
        failed = asyncio.get_running_loop().create_future()
        store.on_failure = lambda error: (failures.append(error), failed.set_result(None))
        store.commit(event(1, 1))
        await store.barrier()
        good = event(1, 2)
        good.on_commit.append(lambda: called.append("good"))
        store.commit(good)
        bad = Batch()
        bad.on_commit.append(lambda: called.append("bad"))
        for number in range(extra):
            bad.event(2, number + 1, b"{}")
        if ops:
            bad.ops.append(("INSERT INTO nowhere VALUES(1)", ()))
        else:
            bad.event(1, 1, b"again")
        store.commit(bad)
        await failed
        assert called == [], "nobody hears of what is not on disk"
        assert store.failed is failures[0]
        with pytest.raises(BusyError):
            store.commit(event(1, 3))
        with pytest.raises(BusyError):
            await store.barrier()

    run(path, body)
    assert len(failures) == 1
    db = sqlite3.connect(path)
    assert db.execute("SELECT job, n FROM event").fetchall() == [(1, 1)]
    db.close()


def test_a_callback_that_raises_stops_no_other(tmp_path: Path, where: str) -> None:
    called: list[int] = []
    troubles: list[dict[str, Any]] = []

    def boom() -> None:
        raise RuntimeError("boom")

    async def body(store: Store) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        for number in (1, 2, 3):
            batch = event(1, number)
            batch.on_commit += [boom, lambda number=number: called.append(number)]
            store.commit(batch)
        await store.barrier()
        store.commit(event(1, 4))
        await store.barrier()
        assert called == [1, 2, 3]
        assert len(list(store.all_events(1))) == 4

    run(tmp_path / "db", body)
    assert [str(context["exception"]) for context in troubles] == ["boom"] * 3


def test_what_a_callback_commits_goes_into_the_next_transaction(tmp_path: Path, where: str) -> None:
    async def body(store: Store) -> None:
        done = asyncio.get_running_loop().create_future()
        last = event(1, 2)
        last.on_commit.append(lambda: done.set_result(None))
        first = event(1, 1)
        first.on_commit.append(lambda: store.commit(last))
        store.commit(first)
        await done
        assert store.commits == 2
        await store.barrier()

    run(tmp_path / "db", body)


def test_close_writes_what_is_queued(tmp_path: Path, where: str) -> None:
    path = tmp_path / "db"

    async def main() -> None:
        store = Store(path)
        store.start()
        store.commit(event(1, 1))
        store.close()

    asyncio.run(main())
    store = Store(path)
    assert list(store.all_events(1)) == [b"{}"]
    store.close()


# ---- reading ----------------------------------------------------------------------------------------


def test_events_are_read_in_pages(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        batch = Batch()
        for number in range(1, 26):
            batch.event(3, number, b"e%d" % number)
        batch.event(4, 1, b"other")
        store.commit(batch)
        await store.barrier()
        got: list[tuple[int, bytes]] = []
        after = 0
        sizes = []
        while page := store.events(3, after, 10):
            sizes.append(len(page))
            got += page
            after = page[-1][0]
        assert sizes == [10, 10, 5]
        assert got == [(number, b"e%d" % number) for number in range(1, 26)]
        assert store.events(3, 25) == []
        assert store.events(99) == []

    run(tmp_path / "db", body)


def test_guest_lines_are_read_from_any_line_on(tmp_path: Path) -> None:
    """Chunks of lines, and extents of output files among them; every place to begin gives the rest, once."""
    chunks = [(1, 3, False), (4, 1, True), (5, 1, True), (6, 10, False), (16, 1, False)]

    async def body(store: Store) -> None:
        batch = Batch()
        for n, count, extent in chunks:
            body_ = b'{"file":"x"}' if extent else b"".join(b"line %d\n" % i for i in range(n, n + count))
            batch.guest(1, "guest.output", n, count, extent, body_)
        batch.guest(1, "guest.other", 1, 2, False, b"a\nb\n")
        store.commit(batch)
        await store.barrier()
        for at in range(1, 18):
            rows = store.guest(1, "guest.output", at)
            assert [(n, count, bool(extent)) for n, count, extent, _ in rows] == [c for c in chunks if c[0] + c[1] > at]
            lines: list[int] = []
            for n, count, extent, text in rows:
                assert extent or len(text.splitlines()) == count
                lines += range(n, n + count)
            assert [line for line in lines if line >= at] == list(range(at, 17))
        assert [n for n, *_ in store.guest(1, "guest.output", 1, 2)] == [1, 4]
        assert [n for n, *_ in store.guest(1, "guest.output", 5, 2)] == [5, 6]
        assert store.guest_next(1) == {"guest.output": 17, "guest.other": 3}
        assert sorted(store.guest_paths(1)) == ["guest.other", "guest.output"]
        assert store.guest(2, "guest.output") == []
        assert store.guest_next(2) == {}

    run(tmp_path / "db", body)


def test_jobs_are_active_until_done_and_then_have_a_record(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        for number in (1, 2, 3):
            store.commit(job(number, env="hash" if number == 2 else None))
        batch = Batch()
        batch.env("hash", b'{"A":"1"}')
        batch.env("hash", b'{"A":"never twice"}')
        batch.put(1, "R", b"R1")
        batch.put(1, "ask/job/1/0", b"ask")
        batch.put(1, "hold/epilog/x", b"plug")
        batch.put(1, "guest.mine", b"old")
        batch.put(1, "guest.mine", b"new")
        batch.put(2, "ask/work/2/x/0", b"ask2")
        batch.put(2, "gone", b"x")
        batch.delete(2, "gone")
        store.commit(batch)
        await store.barrier()
        assert store.active_ids() == [1, 2, 3]
        assert store.job_row(2) == (1000, b"{}", "hash")
        assert store.job_row(9) is None
        assert store.env("hash") == b'{"A":"1"}'
        assert store.env("unknown") == b"{}"
        assert sorted(store.kv_of_active("ask/")) == [(1, "job/1/0", b"ask"), (2, "work/2/x/0", b"ask2")]
        assert store.kv_of_active("hold/") == [(1, "epilog/x", b"plug")]
        assert store.kv(1, "guest.mine") == b"new"
        assert store.kv(2, "gone") is None
        assert store.last_id() == 3

        batch = Batch()
        batch.done(1, 50.0, "COMPLETED", b"record 1")
        batch.done(3, 60.0, "FAILED", b"record 3")
        store.commit(batch)
        await store.barrier()
        assert store.active_ids() == [2]
        assert store.kv_of_active("ask/") == [(2, "work/2/x/0", b"ask2")]
        assert store.kv_of_active("hold/") == []
        assert store.kv_keys(1) == ["R", "guest.mine"], "asks and holds go with the job, the rest stays"
        assert store.done_record(1) == b"record 1"
        assert store.done_record(2) is None
        assert list(store.inactive(10)) == [b"record 3", b"record 1"]
        assert list(store.inactive(1)) == [b"record 3"]
        assert list(store.inactive(10, since=55.0)) == [b"record 3"]
        assert store.inactive_count() == 2
        assert store.last_id() == 3

    run(tmp_path / "db", body)


def test_an_empty_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    assert (store.last_id(), store.active_ids(), store.plugins(), store.inactive_count()) == (0, [], [], 0)
    assert store.kv_of_active("ask/") == []
    store.close()


# ---- a writer that is killed ------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from pathlib import Path
from leveret.manager.ports import Batch
from leveret.store import sqlite
from leveret.store.sqlite import Store

sqlite.INLINE_S = float(sys.argv[2])

async def main():
    store = Store(Path(sys.argv[1]))
    store.start()
    n = 0
    while True:
        for _ in range(5):
            n += 1
            batch = Batch()
            # a turn: an event, and what goes with it
            batch.event(1, n, b"%d" % n)
            batch.put(1, "last", b"%d" % n)
            batch.on_commit.append(lambda n=n: print(n, flush=True))
            store.commit(batch)
        await asyncio.sleep(0)
        if n % 50 == 0:
            await store.barrier()

asyncio.run(main())
"""


@pytest.mark.parametrize("inline_s", ["-1", "1e9"])
def test_after_sigkill_everything_that_was_told_is_there_and_turns_are_whole(tmp_path: Path, inline_s: str) -> None:
    path = tmp_path / "db"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), inline_s], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        told = 0
        for line in process.stdout:
            told = int(line)
            if told >= 200:
                break
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split(b"\n")[:-1]
        told = int(rest[-1]) if rest else told
    finally:
        process.kill()
        process.wait(WATCHDOG_S)
        process.stdout.close()
    store = Store(path)
    lines = list(store.all_events(1))
    assert len(lines) >= told >= 200
    assert lines == [b"%d" % n for n in range(1, len(lines) + 1)]
    assert store.kv(1, "last") == lines[-1], "a turn is stored whole or not at all"
    assert store.read.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    store.close()
