"""Full, read-only, foreign, damaged and shared disks: a clear error, nothing that was acknowledged lost, no healthy job refused.

These run as root (a tmpfs of a few megabytes is mounted for them), as CI does; where that cannot be, they fail and say so.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import (
    WATCHDOG_S,
    Commands,
    Instance,
    clean_environ,
    end_processes,
    execute,
    in_order,
    lines_between,
    processes_of,
    until,
)

from leveret.store import place


@contextlib.contextmanager
def mounted(path: Path, size: str, options: str = "") -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}{options}", "leveret-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "6m") as path:
        yield path


class Own(Commands):
    """A user's own instance whose state is on a disk of the test's."""

    def __init__(self, disk: Path, base: Path) -> None:
        runtime = base / "run"
        runtime.mkdir(mode=0o700)
        self.base, self.disk = base, disk
        self.env = clean_environ(
            HOME=str(base), XDG_RUNTIME_DIR=str(runtime), XDG_STATE_HOME=str(disk), XDG_CONFIG_HOME=str(base / "config")
        )

    @property
    def state(self) -> Path:
        return next((self.disk / "leveret").iterdir())

    def daemons(self) -> list[int]:
        return [pid for pid, line in processes_of(str(self.disk)).items() if "leveret.daemon" in line]


@pytest.fixture
def own(small: Path, tmp_path: Path) -> Iterator[Own]:
    own = Own(small, tmp_path)
    yield own
    (small / "ballast").unlink(missing_ok=True)
    own.leveret("shutdown", "--quiet", "--timeout=3s")
    end_processes(str(small))


def fill(path: Path) -> None:
    """All that there is left."""
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk_loses_nothing_that_was_acknowledged(own: Own, tmp_path: Path) -> None:
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    script = f"echo ran >> {ran}; while ! [ -e {gate} ]; do sleep 0.02; done; echo line 1; echo line 2"
    running = own.submit("sh", "-c", script)
    until(ran.exists, "the job runs")
    (daemon,) = own.daemons()
    fill(own.disk / "ballast")
    acknowledged = []
    # what the log has room for already is taken; then a commit finds no room, and the daemon ends
    for number in range(200):
        done = own.leveret("submit", "--urgency=0", f"--env=FILLER{number}={'x' * 20000}", "true")
        if done.code != 0:
            break
        acknowledged.append(done.out.strip())
    assert done.code == 4, (done, "the disk is not full?")
    until(lambda: daemon not in own.daemons(), "the end of the daemon")
    # the next command says what is wrong, and what to do; the task runs on
    for _ in range(2):
        said = own.leveret("jobs")
        assert (said.code, said.out) == (4, "")
        assert "no space left" in said.err and "make room" in said.err, said.err
    until(lambda: not own.daemons(), "the end of the daemons that could not start")
    assert processes_of(str(gate)), "the task has ended"
    (own.disk / "ballast").unlink()
    listed = own.leveret("jobs", "--ids", check=0).out.split()
    assert set(acknowledged) | {running} <= set(listed)
    assert len(listed) <= len(acknowledged) + 2  # at most the one that got no answer is there too
    gate.touch()
    assert own.attach(running).out == lines_between(1, 2)
    assert own.run("echo", "again").out == "again\n"
    assert ran.read_text() == "ran\n"
    assert own.leveret("fsck", "--statedir", str(own.state)).code == 0


def test_output_waits_for_room(own: Own, tmp_path: Path) -> None:
    """More than the memory limit goes to a file; while that cannot be written the tasks wait, and nothing is lost."""
    gate, far = tmp_path / "gate", tmp_path / "far"
    script = f"while ! [ -e {gate} ]; do sleep 0.02; done; i=1; while [ $i -le 60000 ]; do echo line $i; "
    script += f"case $i in *000) echo $i > {far};; esac; i=$((i+1)); done"
    jobid = own.submit("sh", "-c", script)
    until(lambda: '"start"' in own.leveret("job", "eventlog", "-f", "json", jobid).out, "the job starts")
    fill(own.disk / "ballast")
    gate.touch()
    same: list[str] = []

    def stands_still() -> bool:
        """The task gets no further than what a pipe holds."""
        now = far.read_text() if far.exists() else ""
        same[:] = [*same, now] if now and same[-1:] == [now] else [now]
        return len(same) > 100

    until(stands_still, "the task waits")
    assert int(same[0]) < 60000
    (own.disk / "ballast").unlink()
    out = own.attach(jobid)
    assert out.code == 0
    assert out.out == lines_between(1, 60000)
    said = own.leveret("job", "eventlog", "-p", "output", jobid).out
    assert said.count("No space left on device. Tasks wait") == 1, "it does not say why it took so long"


def daemon_says(state: Path, *prefix: str) -> str:
    """The one line of a daemon that must not start."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "leveret.daemon",
        "--statedir",
        str(state),
        "--socket",
        str(state.parent / "s"),
    ]
    done = execute([*prefix, *command], clean_environ(), timeout_s=WATCHDOG_S)
    assert done.code == 1, done
    assert len(done.err.strip().splitlines()) == 1, done.err
    return done.err.strip()


def test_a_read_only_directory(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "6m") as disk:
        state = disk / "state"
        state.mkdir(mode=0o700)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert "mounted read-only" in daemon_says(state)
        assert list(state.iterdir()) == []


def test_a_directory_of_another_user(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o777)
    os.chown(state, 12345, 12345)
    said = daemon_says(state)
    assert "belongs to uid 12345" in said and "uid 0" in said
    assert list(state.iterdir()) == [], "nothing is made in it"


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """Root may write everywhere: as another user."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and path != Path("/") and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    state.chmod(0o500)
    said = daemon_says(state, "setpriv", "--reuid=65534", "--clear-groups")
    assert "cannot be written" in said


def test_a_shared_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the magic number of statfs(2), which needs no /proc; what tmpfs says shows that the right field is read."""
    with mounted(tmp_path / "disk", "1m") as disk:
        assert place.magic(disk) == 0x01021994
        assert place.shared_file_system(disk) == ""
        place.check(disk)
        for number, name in ((0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x0BD00BD0, "Lustre")):
            monkeypatch.setattr(place, "magic", lambda path, number=number: number)
            with pytest.raises(place.ConfigError, match=f"is on {name}") as caught:
                place.check(disk)
            assert "--statedir" in caught.value.hint


def test_a_newer_database_and_a_damaged_one(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    instance.client.shutdown(keep=True)
    assert instance.daemon is not None
    instance.daemon.wait(WATCHDOG_S)
    path = instance.state_dir / "leveret.db"
    db = sqlite3.connect(path)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.execute("PRAGMA user_version=99")
    db.close()
    said = daemon_says(instance.state_dir)
    assert "schema 99" in said and "newer Leveret" in said
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version={version}")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    whole = path.read_bytes()
    path.write_bytes(b"no database at all".ljust(4096, b"!") + whole[4096:])
    said = daemon_says(instance.state_dir)
    assert "is damaged" in said and "leveret fsck --repair" in said
    path.write_bytes(whole)
    instance.restart()
    assert instance.leveret("jobs", "--ids", check=0).out.split() == [jobid]
    instance.client.cancel(jobid)


def test_a_torn_write_ahead_log_gives_a_prefix(tmp_path: Path) -> None:
    """Cut anywhere, or with its tail overwritten: whole turns up to some point, in order, and nothing else."""
    script = """
import asyncio, os, sys
from pathlib import Path
from leveret.manager.ports import Batch
from leveret.store.sqlite import Store
async def main():
    store = Store(Path(sys.argv[1])); store.start()
    for n in range(1, 41):
        batch = Batch()
        batch.event(1, n, b'a%d' % n); batch.event(2, n, b'b%d' % n)
        store.commit(batch)
        await store.barrier()
    os._exit(0)  # as a kill: the log is not folded into the database
asyncio.run(main())
"""
    path = tmp_path / "db"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=WATCHDOG_S)
    data, wal = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    from leveret.store.sqlite import Store

    seen = set()
    for number, cut in enumerate(range(len(wal), 0, -(len(wal) // 37))):
        for tail in (b"", os.urandom(2000)):
            copy = tmp_path / f"{number}{'g' if tail else 'c'}"
            copy.write_bytes(data)
            Path(f"{copy}-wal").write_bytes(wal[:cut] + tail)
            try:
                store = Store(copy)
            except sqlite3.DatabaseError as error:  # nothing of the first migration was left
                raise AssertionError(f"cut at {cut}") from error
            rows = [[n for n, _ in store.events(job)] for job in (1, 2)]
            assert rows[0] == rows[1] == list(range(1, len(rows[0]) + 1)), f"cut at {cut}"
            assert store.read.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            seen.add(len(rows[0]))
            store.close()
    assert max(seen) == 40 and len(seen) > 5


def test_r47_damaged_records_are_put_aside_and_the_daemon_starts(launch: Callable[..., Instance]) -> None:
    """One eventlog is cut mid-line, one is gone, one has garbage at its end: the others do not notice."""
    instance = launch()
    gate = instance.base / "gate"
    healthy = instance.submit("--cores=1", "sh", "-c", f"while ! [ -e {gate} ]; do sleep 0.02; done; echo fine")
    instance.wait_event(healthy, "start")
    bad = [instance.submit("--urgency=0", "true") for _ in range(3)]
    waiting = instance.submit("--urgency=0", "echo", "fine")
    numbers = [instance.record(jobid)["id"] for jobid in bad]
    instance.kill_daemon()
    db = sqlite3.connect(instance.state_dir / "leveret.db")
    for sql, number in zip(
        (
            "UPDATE event SET line=CAST(substr(line, 1, 30) AS BLOB) WHERE job=? AND n=3",
            "DELETE FROM event WHERE job=?",
            "INSERT INTO event(job, n, line) SELECT job, max(n) + 1, x'00ff67617262616765' FROM event WHERE job=?",
        ),
        numbers,
        strict=True,
    ):
        assert db.execute(sql, (number,)).rowcount
    db.commit()
    db.close()
    check = instance.leveret("fsck", "--statedir", str(instance.state_dir))
    assert check.code == 1 and len(check.out.splitlines()) == 3
    instance.restart()
    listed = instance.leveret("job", "quarantine", "list", check=0).out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == bad
    assert "3 (leveret job quarantine list)" in instance.leveret("status", check=0).out
    refused = instance.leveret("job", "attach", bad[0])
    assert refused.code == 1 and "quarantined: event 3" in refused.err
    record = instance.leveret("job", "quarantine", "export", bad[2], check=0).out
    assert instance.leveret("eventlog", "check", "-", input=record).code == 1
    gate.touch()
    assert instance.attach(healthy).out == "fine\n"
    instance.leveret("job", "urgency", waiting, "16", check=0)
    assert instance.attach(waiting).out == "fine\n"
    in_order(instance.names(waiting), "priority", "flux-restart", "alloc", "clean")
    instance.leveret("job", "quarantine", "remove", *bad, check=0)
    assert instance.leveret("fsck", "--statedir", str(instance.state_dir), check=0).out == ""
