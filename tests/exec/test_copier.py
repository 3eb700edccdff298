"""The copier: where things land, what is kept, what is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from double import until

from leveret.exec.copier import Copier

COPIER = [sys.executable, "-m", "leveret.exec.copier"]


def copy(source: str | Path, target: str | Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COPIER, str(source), str(target)], capture_output=True, text=True, timeout=120, **kwargs)


def tree(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir() or p.is_symlink())


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file ``f``, a folder ``s`` and a destination ``d`` that holds a file ``x``."""
    (tmp_path / "f").write_text("data")
    (tmp_path / "s" / "sub").mkdir(parents=True)
    (tmp_path / "s" / "a").write_text("a")
    (tmp_path / "s" / "sub" / "b").write_text("b")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("old")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize(
    "source, target, landed",
    [
        ("f", "d", ["f", "x"]),
        ("f", "d/", ["f", "x"]),
        ("f", "d/x", ["x"]),
        ("f", "d/n", ["n", "x"]),
        ("f", "d/n/", ["n/f", "x"]),
        ("f", "d/a/b", ["a/b", "x"]),
        ("s", "d", ["s/a", "s/sub/b", "x"]),
        ("s", "d/", ["s/a", "s/sub/b", "x"]),
        ("s", "d/n", ["n/s/a", "n/s/sub/b", "x"]),
        ("s", "d/n/", ["n/s/a", "n/s/sub/b", "x"]),
        ("s", "d/m/n", ["m/n/s/a", "m/n/s/sub/b", "x"]),
        ("s/", "d", ["a", "sub/b", "x"]),
        ("s/", "d/", ["a", "sub/b", "x"]),
        ("s/", "d/n", ["n/a", "n/sub/b", "x"]),
        ("s/", "d/n/", ["n/a", "n/sub/b", "x"]),
        ("s/.", "d", ["a", "sub/b", "x"]),
        ("s/sub", "d", ["sub/b", "x"]),
    ],
)
def test_where_things_land(box: Path, source: str, target: str, landed: list[str], absolute: bool) -> None:
    if absolute:
        source, target = f"{box}/{source}", f"{box}/{target}"
    done = copy(source, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(box / "d") == landed


@pytest.mark.parametrize(
    "source, target, message",
    [
        ("s", "d/x", "copier: d/x: Not a directory"),
        ("s/", "d/x", "copier: d/x: Not a directory"),
        ("f", "d/x/", "copier: d/x/: Not a directory"),
        ("f", "d/x/y", "copier: d/x/y: Not a directory"),
        ("nosuch", "d", "copier: nosuch: No such file or directory"),
        ("f/", "d", "copier: f/: Not a directory"),
        ("s", "s", "copier: s: Cannot copy 's' into itself"),
        ("s", "s/new", "copier: s/new: Cannot copy 's' into itself"),
        ("s/", "s/sub", "copier: s/sub: Cannot copy 's/' into itself"),
        ("s", ".", "copier: .: Cannot copy 's' into itself"),
        ("f", ".", "copier: ./f: The same file as 'f'"),
        ("f", "f", "copier: f: The same file as 'f'"),
    ],
)
def test_what_is_refused_changes_nothing(box: Path, source: str, target: str, message: str) -> None:
    before = tree(box)
    done = copy(source, target)
    assert (done.returncode, done.stderr.splitlines()) == (1, [message])
    assert tree(box) == before
    assert (box / "f").read_text() == "data"


@pytest.mark.parametrize("arguments", [[], ["f"], ["f", "d", "e"], ["", "d"], ["--help", "d"]])
def test_usage(arguments: list[str]) -> None:
    done = subprocess.run([*COPIER, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_a_file_is_replaced_by_renaming(box: Path) -> None:
    inode = (box / "d/x").stat().st_ino
    assert copy("f", "d/x").returncode == 0
    assert (box / "d/x").read_text() == "data"
    assert (box / "d/x").stat().st_ino != inode


def test_links_inside_stay_links_and_the_source_is_followed(box: Path) -> None:
    (box / "s/link").symlink_to("a")
    (box / "s/dangling").symlink_to("/no/such")
    (box / "s/folder").symlink_to("sub")
    (box / "ls").symlink_to("s")
    (box / "lf").symlink_to("f")
    assert copy("ls", "d").returncode == 0
    assert os.readlink(box / "d/ls/link") == "a"
    assert os.readlink(box / "d/ls/dangling") == "/no/such"
    assert os.readlink(box / "d/ls/folder") == "sub"
    assert not (box / "d/ls").is_symlink()
    assert copy("lf", "d").returncode == 0
    assert not (box / "d/lf").is_symlink()
    assert (box / "d/lf").read_text() == "data"


def test_modes_and_times_are_kept_also_of_folders_without_write_permission(box: Path) -> None:
    os.chmod(box / "s/a", 0o640)
    os.utime(box / "s/a", ns=(10**18, 10**18 + 5))
    os.chmod(box / "s/sub", 0o555)
    os.utime(box / "s/sub", ns=(10**18, 10**18 + 7))
    assert copy("s", "d/n").returncode == 0
    assert (box / "d/n/s/a").stat().st_mode & 0o7777 == 0o640
    assert (box / "d/n/s/a").stat().st_mtime_ns == 10**18 + 5
    assert (box / "d/n/s/sub").stat().st_mode & 0o7777 == 0o555
    assert (box / "d/n/s/sub").stat().st_mtime_ns == 10**18 + 7


def test_a_folder_that_was_there_keeps_its_mode(box: Path) -> None:
    os.chmod(box / "d", 0o711)
    os.chmod(box / "s", 0o700)
    assert copy("s/", "d").returncode == 0
    assert (box / "d").stat().st_mode & 0o7777 == 0o711


def test_all_items_are_tried(box: Path) -> None:
    os.mkfifo(box / "s/pipe")
    (box / "d/s").mkdir()
    (box / "d/s/sub").write_text("in the way")
    (box / "s/z").write_text("z")
    done = copy("s", "d")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "copier: s/pipe: Not a file, folder or symbolic link",
        "copier: d/s/sub: Not a directory",
    ]
    assert (box / "d/s/a").read_text() == "a"
    assert (box / "d/s/z").read_text() == "z"


@pytest.mark.skipif(os.getuid() != 0, reason="drops root's rights to see mode bits at work")
def test_what_cannot_be_read_is_named(box: Path) -> None:
    for path in [box, *box.rglob("*")]:
        os.chown(path, 65534, 65534)
    os.chmod(box / "s/a", 0)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", *COPIER, "s", "d"], capture_output=True, text=True, timeout=120
    )
    if "Permission denied" in done.stderr and "leveret" in done.stderr:
        pytest.skip("the interpreter or the sources are not readable for others")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["copier: s/a: Permission denied"]
    assert (box / "d/s/sub/b").exists()


def test_holes_stay_holes(box: Path) -> None:
    with (box / "f").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"middle")
    done = copy("f", "d/n")
    assert done.returncode == 0
    assert (box / "d/n").stat().st_size == 64 << 20
    assert (box / "d/n").stat().st_blocks < 10000
    assert (box / "d/n").read_bytes() == (box / "f").read_bytes()
    assert json.loads(done.stdout.splitlines()[-1]) == {"done": 64 << 20, "total": 64 << 20, "unit": "bytes"}


def test_progress_ends_with_everything_done(box: Path) -> None:
    (box / "s/big").write_bytes(os.urandom(20 << 20))
    done = copy("s", "d")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    total = (20 << 20) + 2
    assert lines[-1] == {"done": total, "total": total, "unit": "bytes"}
    assert [line["done"] for line in lines] == sorted(line["done"] for line in lines)
    assert (box / "d/s/big").read_bytes() == (box / "s/big").read_bytes()


def test_a_file_without_a_size_is_read_to_its_end(box: Path) -> None:
    assert copy("/proc/version", "d").returncode == 0
    assert (box / "d/version").read_text() == Path("/proc/version").read_text()


def test_a_deep_tree(box: Path) -> None:
    here = os.open("s", os.O_RDONLY)
    for _ in range(600):
        os.mkdir("x", dir_fd=here)
        inner = os.open("x", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    assert copy("s", "d").returncode == 0
    assert os.path.exists(box / "d/s" / "/".join(["x"] * 600) / "end")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_the_temporary_file(box: Path, signum: int) -> None:
    with (box / "big").open("wb") as file:
        for _ in range(64):
            file.write(b"x" * (16 << 20))
    # Stopped as soon as it has made its temporary file, so that it cannot be done before the signal.
    process = subprocess.Popen([*COPIER, "big", "d"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or any(n.startswith(".copier-") for n in os.listdir("d")), "no file")
        process.send_signal(signum)
        if process.wait(60) == 0:
            pytest.skip("the disk was faster than the signal")
        assert process.returncode == -signum
        assert tree(box / "d") == ["x"]
    finally:
        process.kill()


@pytest.mark.parametrize("broken", [["copy_file_range"], ["copy_file_range", "sendfile"]])
def test_slower_ways_give_the_same(box: Path, monkeypatch: pytest.MonkeyPatch, broken: list[str]) -> None:
    def cannot(*args: object, **kwargs: object) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    for name in broken:
        monkeypatch.setattr(os, name, cannot)
    data = os.urandom(9 << 20)
    (box / "f").write_bytes(data)
    seen: list[tuple[int, int]] = []
    copier = Copier(lambda done, total: seen.append((done, total)))
    copier.run("f", "d/n")
    assert not copier.failed
    assert (box / "d/n").read_bytes() == data
    assert seen[-1] == (9 << 20, 9 << 20)
