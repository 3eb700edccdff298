"""dump and restore of a store: whole, verified, never over something, and never two instances with one identity."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tarfile
from pathlib import Path

import pytest

from leveret.errors import ConfigError, ConflictError, FormatError, NotFoundError
from leveret.manager.ports import Batch
from leveret.store import backup
from leveret.store.sqlite import Store


def make_instance(path: Path) -> Path:
    """A state directory with a job that has output in a file, and one that runs."""
    path.mkdir()
    store = Store(path / "leveret.db")
    store.set_meta_now("generator", "3")
    output = path / "nodes/node0/output/00/a.out"
    output.parent.mkdir(parents=True)
    output.write_bytes(b"0123456789")

    async def fill() -> None:
        store.start()
        batch = Batch()
        for job in (7, 8):
            batch.job(job, 0, 1.0, None, b"{}")
            batch.event(job, 1, b'{"timestamp":1.0,"name":"submit"}')
        batch.guest(7, "guest.output", 1, 1, True, b'{"node":0,"file":"00/a.out","start":0,"end":8}')
        batch.done(7, 2.0, "COMPLETED", b'{"id":7}')
        batch.put(8, "ask/job/8/0", b'["boot:uuid",0,true,null,"",null,[]]')
        store.commit(batch)
        await store.barrier()

    asyncio.run(fill())
    store.close()
    return path


@pytest.mark.parametrize("archive", [False, True])
def test_there_and_back(tmp_path: Path, archive: bool) -> None:
    state = make_instance(tmp_path / "state")
    target = tmp_path / ("copy.tar" if archive else "copy")
    said = backup.dump(state, target, archive)
    assert (said["files"], said["missing"]) == (2, [])
    assert {path.name for path in tmp_path.iterdir()} == {"state", target.name}, "something is left over"
    assert os.stat(target).st_mode & 0o077 == 0
    back = tmp_path / "back"
    assert backup.restore(target, back) == {"state_dir": str(back), "files": 2, "jobs": 2, "running": 1}
    # as much of the file as the database knows, no more
    assert (back / "nodes/node0/output/00/a.out").read_bytes() == b"01234567"
    store = Store(back / "leveret.db")
    assert store.active_ids() == [8] and store.done_record(7) == b'{"id":7}'
    assert store.meta("generator") not in (None, "3")
    # it is another instance: it must not end what the old one's helper runs
    assert json.loads(store.kv(8, "ask/job/8/0") or b"")[0] == "restored:boot:uuid"
    store.close()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    state = make_instance(tmp_path / "state")
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ConflictError, match="exists"):
        backup.dump(state, tmp_path / "there", True)
    with pytest.raises(NotFoundError, match="not a directory"):
        backup.dump(state, tmp_path / "no" / "where", True)
    backup.dump(state, tmp_path / "copy", False)
    with pytest.raises(ConflictError, match="not empty"):
        backup.restore(tmp_path / "copy", state)
    with pytest.raises(ConflictError, match="not a directory"):
        backup.restore(tmp_path / "copy", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    backup.restore(tmp_path / "copy", tmp_path / "empty")
    with pytest.raises(NotFoundError):
        backup.restore(tmp_path / "nosuch", tmp_path / "other")


def test_a_damaged_dump_restores_nothing(tmp_path: Path) -> None:
    state = make_instance(tmp_path / "state")
    copy = tmp_path / "copy"
    backup.dump(state, copy, False)
    back = tmp_path / "back"
    manifest = json.loads((copy / "MANIFEST.json").read_text())

    def refused(error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            backup.restore(copy, back)
        assert {path.name for path in tmp_path.iterdir()} <= {"state", "copy", "copy.tar", "cut.tar"}

    whole = (copy / "nodes/node0/output/00/a.out").read_bytes()
    (copy / "nodes/node0/output/00/a.out").write_bytes(b"01234568")
    refused(FormatError, "is not what was dumped")
    (copy / "nodes/node0/output/00/a.out").unlink()
    refused(FormatError, "is missing")
    (copy / "nodes/node0/output/00/a.out").write_bytes(whole)
    for change, error, match in (
        ({"version": 2}, ConfigError, "newer"),
        ({"schema": 99}, ConfigError, "newer"),
        ({"format": "x"}, FormatError, "not a dump"),
        ({"files": [{"name": "../../evil", "size": 1, "sha256": ""}]}, FormatError, "not a dump"),
        ({"files": [{"name": "/evil", "size": 1, "sha256": ""}]}, FormatError, "not a dump"),
    ):
        (copy / "MANIFEST.json").write_text(json.dumps(manifest | change))
        refused(error, match)
    (copy / "MANIFEST.json").write_text("{")
    refused(FormatError, "not a dump")
    (copy / "MANIFEST.json").write_text(json.dumps(manifest))
    backup.dump(state, tmp_path / "copy.tar", True)
    data = (tmp_path / "copy.tar").read_bytes()
    copy = tmp_path / "cut.tar"
    copy.write_bytes(data[: len(data) // 2])
    refused(FormatError, "not (a dump|whole)|damaged")
    copy.write_bytes(b"no tar at all")
    refused(FormatError, "not a dump")
    with tarfile.open(tmp_path / "copy.tar") as tar:
        assert tar.getnames()[0] == "MANIFEST.json"


def test_a_dump_while_it_is_written_is_of_one_moment(tmp_path: Path) -> None:
    """Each turn writes two rows; no copy has one without the other."""
    state = tmp_path / "state"
    state.mkdir()
    store = Store(state / "leveret.db")

    async def body() -> None:
        store.start()
        done = asyncio.Event()

        async def write() -> None:
            number = 0
            while not done.is_set():
                number += 1
                batch = Batch()
                batch.event(1, number, b"x" * 500)
                batch.event(2, number, b"y" * 500)
                store.commit(batch)
                await store.barrier()
            assert number > 5, "the dumps held the writer up"

        writer = asyncio.create_task(write())
        for number in range(5):
            await asyncio.to_thread(backup.dump, state, tmp_path / f"copy{number}", False)
        done.set()
        await writer

    asyncio.run(asyncio.wait_for(body(), 120))
    store.close()
    for number in range(5):
        db = sqlite3.connect(tmp_path / f"copy{number}" / "leveret.db")
        counts = [db.execute("SELECT count(*) FROM event WHERE job=?", (job,)).fetchone()[0] for job in (1, 2)]
        assert counts[0] == counts[1]
        db.close()
