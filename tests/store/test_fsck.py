"""fsck finds each kind of damage, says whose it is, and its repair drops nothing silently."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from pathlib import Path

import pytest

from leveret.core import jobspec as jobspecs
from leveret.errors import ConfigError, NotFoundError
from leveret.manager.ports import Batch
from leveret.store import fsck, offline
from leveret.store.sqlite import Store

SPEC = json.dumps(jobspecs.build(["true"], cwd="/")).encode()
ENV = b'{"A":"1"}'
ENV_HASH = hashlib.blake2b(ENV, digest_size=16).hexdigest()
LOG = [
    ("submit", {"userid": 0, "urgency": 16, "flags": 0, "version": 1}), ("validate", None), ("depend", None),
    ("priority", {"priority": 16}), ("alloc", None), ("start", None), ("finish", {"status": 0}),
    ("release", {"ranks": "all", "final": True}), ("free", None), ("clean", None),
]  # fmt: skip
R = b'{"version":1,"execution":{"R_lite":[{"rank":"0","children":{"core":"0"}}],"nodelist":["a"]}}'


def job(batch: Batch, jobid: int, events: int = 10) -> None:
    batch.job(jobid, 0, 1.0, ENV_HASH, SPEC)
    for n, (name, context) in enumerate(LOG[:events], 1):
        event = {"timestamp": 1.0 + n, "name": name} | ({"context": context} if context else {})
        batch.event(jobid, n, json.dumps(event, separators=(",", ":")).encode())
    if events >= 5:
        batch.put(jobid, "R", R)
    if events == 10:
        batch.done(jobid, 11.0, "COMPLETED", json.dumps({"id": jobid, "userid": 0}).encode())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """An instance with 300 inactive jobs (1000…), an active one that runs (5) and a pending one (6)."""
    path = tmp_path / "state"
    path.mkdir()
    store = Store(path / "leveret.db")
    for name in ("00/used.out", "00/0000000000000005.out"):
        output = path / "nodes/node0/output" / name
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(b"0123456789")

    async def fill() -> None:
        store.start()
        batch = Batch()
        batch.env(ENV_HASH, ENV)
        for number in range(300):
            job(batch, 1000 + number)
        job(batch, 5, 6)
        batch.put(5, "ask/job/5/0", b'["boot:uuid",0,true,null,"",null,[]]')
        job(batch, 6, 4)
        batch.guest(1000, "guest.output", 1, 1, True, b'{"node":0,"file":"00/used.out","start":0,"end":10}')
        store.commit(batch)
        await store.barrier()

    asyncio.run(fill())
    store.close()
    return path


def damage(state: Path, *statements: str) -> None:
    db = sqlite3.connect(state / "leveret.db")
    for sql in statements:
        assert db.execute(sql).rowcount > 0, sql
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def found(state: Path) -> list[tuple[str, int | None, str]]:
    return [(one["what"], one["id"], one["severity"]) for one in fsck.check(state).problems]


def test_a_whole_instance_has_no_problems(state: Path) -> None:
    report = fsck.check(state)
    assert (report.problems, report.jobs) == ([], 302)
    assert fsck.repair(state).to_dict()["repaired"] == []


@pytest.mark.parametrize(
    ("sql", "problem", "said"),
    [
        ("UPDATE event SET line=x'78' WHERE job=1007 AND n=4", ("job", 1007, "error"), "event 4"),
        ("DELETE FROM event WHERE job=1007 AND n=4", ("job", 1007, "error"), "event 4 is missing"),
        ("DELETE FROM event WHERE job=6", ("job", 6, "error"), "submit"),
        ("UPDATE job SET jobspec=x'78' WHERE id=6", ("job", 6, "error"), "JSON"),
        ("UPDATE kv SET value=x'78' WHERE job=5 AND key='R'", ("job", 5, "error"), "JSON"),
        ("DELETE FROM kv WHERE job=5 AND key='R'", ("job", 5, "error"), "(R) are missing"),
        ("UPDATE kv SET value=x'78' WHERE job=5 AND key LIKE 'ask/%'", ("job", 5, "error"), "asked of a helper"),
        ("UPDATE done SET record=x'78' WHERE id=1007", ("job", 1007, "error"), "final record"),
        ("DELETE FROM done WHERE id=1007", ("job", 1007, "error"), "neither active nor done"),
        ("INSERT INTO active VALUES(1007)", ("job", 1007, "error"), "its record is missing"),
        ("INSERT INTO done VALUES(6, 1.0, 'FAILED', x'7b226964223a367d')", ("job", 6, "error"), "does not end"),
        ("DELETE FROM job WHERE id=1007", ("orphan", 1007, "error"), "event, kv, done"),
        (
            "UPDATE event SET line=CAST(replace(line, 'alloc', 'nalloc') AS BLOB) WHERE job=1007 AND n=5",
            ("log", 1007, "warning"),
            "event 6: start",
        ),
    ],
)
def test_each_damage_is_found(state: Path, sql: str, problem: tuple[str, int, str], said: str) -> None:
    damage(state, sql)
    problems = [one for one in fsck.check(state).problems if (one["what"], one["id"], one["severity"]) == problem]
    assert problems and any(said in one["message"] for one in problems), fsck.check(state).problems
    assert {one["id"] for one in fsck.check(state).problems} == {problem[1]}, "another job is accused"


def test_a_damaged_environment_is_of_every_job_that_has_it(state: Path) -> None:
    damage(state, "UPDATE env SET body=x'7b7d'")
    assert len(found(state)) == 302


def test_output_files(state: Path) -> None:
    output = state / "nodes/node0/output/00"
    (output / "00000000000003f0.out").write_bytes(b"of nobody")
    (output / "used.out").write_bytes(b"short")
    messages = [one["message"] for one in fsck.check(state).problems]
    assert any("5 bytes, 10 are known" in text for text in messages)
    assert any("00000000000003f0.out` belongs to no job" in text for text in messages)
    assert len(messages) == 2
    report = fsck.repair(state)
    assert [one["message"] for one in report.problems] == [messages[0]]  # what is lost stays a problem
    (kept,) = (state / "lost+found").iterdir()
    assert kept.read_bytes() == b"of nobody"
    (output / "used.out").unlink()
    assert "is missing" in fsck.check(state).problems[0]["message"]


def test_repair_keeps_rows_of_no_job_and_readmits_what_is_nowhere(state: Path) -> None:
    damage(state, "DELETE FROM job WHERE id=1007", "DELETE FROM done WHERE id=1008", "DELETE FROM active WHERE id=6")
    report = fsck.repair(state)
    assert len(report.repaired) == 3
    record = json.loads((state / "lost+found/1007.json").read_text())
    assert len(record["event"]) == 10 and json.loads(record["event"][0]["line"])["name"] == "submit"
    # 1008 has ended and its record is lost: the next daemon puts it aside
    assert [(one["id"], one["what"]) for one in report.problems] == [(1008, "job")]
    store = Store(state / "leveret.db")
    assert store.active_ids() == [5, 6, 1008]
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_damaged_pages_cost_no_more_than_what_was_on_them(state: Path, seed: int) -> None:
    import random

    path = state / "leveret.db"
    damage(state, "UPDATE active SET id=id")  # all of it into the one file
    data = bytearray(path.read_bytes())
    size = 4096
    rng = random.Random(seed)
    pages = rng.sample(range(8, len(data) // size), 3)
    for page in pages:
        data[page * size : (page + 1) * size] = rng.randbytes(size)
    path.write_bytes(data)
    problems = found(state)
    assert ("database", None, "error") in problems
    report = fsck.repair(state)
    assert "rebuilt" in report.repaired[0]
    assert not [one for one in report.problems if one["what"] == "database"]
    kept = [entry for entry in state.iterdir() if entry.name.startswith("leveret.db.damaged-")]
    assert kept and kept[0].read_bytes() == bytes(data), "the damaged one is kept as it was"
    hurt = {one["id"] for one in report.problems}
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    whole = {row[0] for row in db.execute("SELECT job FROM event GROUP BY job HAVING count(*) >= 4")} - hurt
    db.close()
    # three pages of 4 KiB hold some dozens of rows
    assert len(whole) > 150, f"seed {seed}, pages {pages}: {len(whole)} jobs are left of 302"
    Store(path).close()


def test_no_database_at_all(state: Path, tmp_path: Path) -> None:
    (state / "leveret.db").write_bytes(b"this is not a database" * 1000)
    assert found(state) == [("database", None, "error")]
    assert offline.main(["fsck", "--statedir", str(state), "--repair"]) == 1
    assert (state / "leveret.db").read_bytes().startswith(b"this is not")
    with pytest.raises(NotFoundError, match="no instance"):
        fsck.check(tmp_path)


def test_another_schema(state: Path) -> None:
    damage(state, "UPDATE active SET id=id")
    for version, match in ((99, "schema 99"), (1, "earlier")):
        db = sqlite3.connect(state / "leveret.db")
        db.execute(f"PRAGMA user_version={version}")
        db.close()
        with pytest.raises(ConfigError, match=match):
            fsck.check(state)


def test_a_repair_is_refused_while_a_daemon_runs(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = offline.lock(state)
    assert held is not None
    assert offline.main(["fsck", "--statedir", str(state)]) == 0
    assert offline.main(["fsck", "--statedir", str(state), "--repair"]) == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers[0]["problems"] == [] and answers[1]["error"]["code"] == "conflict"
