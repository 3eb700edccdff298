"""The frame file: what is written is read, and damage ends where it begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leveret.exec import outfile
from leveret.exec.outfile import DATA_MAX, HEADER, Frame, FrameWriter, frames_of, read_frames


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "aa" / "bb" / "job.out"


def write(path: Path, *pieces: bytes) -> FrameWriter:
    writer = FrameWriter(str(path))
    offset = 0
    for piece in pieces:
        writer.append(7, "stdout", False, offset, 1.5, piece)
        offset += len(piece)
    writer.flush()
    return writer


def test_frames_come_back_as_they_were(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.append(0, "stdout", False, 0, 1.25, b"hello\n")
    writer.append(1, "stderr", True, 17, 2.5, b"")
    writer.append(0, "log", False, 0, 3.0, b'{"level":4}')
    writer.flush()
    assert list(read_frames(path)) == [
        Frame(HEADER.size + 6, 0, "stdout", False, 0, 1.25, b"hello\n"),
        Frame(2 * HEADER.size + 6, 1, "stderr", True, 17, 2.5, b""),
        Frame(3 * HEADER.size + 17, 0, "log", False, 0, 3.0, b'{"level":4}'),
    ]
    assert writer.end == path.stat().st_size


def test_nothing_is_made_before_the_first_flush(path: Path) -> None:
    writer = FrameWriter(str(path))
    writer.append(0, "stdout", False, 0, 0.0, b"x")
    assert not path.parent.exists()
    writer.flush()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_start_and_end_are_the_places_of_frames(path: Path) -> None:
    write(path, *(b"%d\n" % i for i in range(100)))
    frames = list(read_frames(path))
    assert len(frames) == 100
    middle = frames[49].end_offset
    assert [f.data for f in read_frames(path, middle)] == [b"%d\n" % i for i in range(50, 100)]
    assert [f.data for f in read_frames(path, 0, middle)] == [b"%d\n" % i for i in range(50)]
    assert list(read_frames(path, middle, middle)) == []
    assert list(read_frames(path, frames[-1].end_offset)) == []


def test_frames_across_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outfile, "PIECE", 100)
    pieces = [bytes([i]) * (i * 7 % 250) for i in range(200)]
    write(path, *pieces)
    assert [f.data for f in read_frames(path)] == pieces


def test_data_larger_than_a_frame_is_split(path: Path) -> None:
    data = os.urandom(2 * DATA_MAX + 5)
    writer = FrameWriter(str(path))
    writer.append(0, "stdout", True, 100, 0.0, data)
    writer.flush()
    frames = list(read_frames(path))
    assert b"".join(f.data for f in frames) == data
    assert [f.offset for f in frames] == [100, 100 + DATA_MAX, 100 + 2 * DATA_MAX]
    assert [f.eof for f in frames] == [False, False, True]


@pytest.mark.parametrize("cut", [1, HEADER.size, HEADER.size + 1])
def test_a_torn_tail_is_not_read_and_is_cut_on_reopen(path: Path, cut: int) -> None:
    write(path, b"one\n", b"two\n").close()
    whole = next(read_frames(path)).end_offset
    os.truncate(path, path.stat().st_size - cut)
    assert [f.data for f in read_frames(path)] == [b"one\n"]
    writer = FrameWriter(str(path))
    writer.append(0, "stdout", False, 4, 0.0, b"again\n")
    writer.flush()
    assert [f.data for f in read_frames(path)] == [b"one\n", b"again\n"]
    assert next(read_frames(path)).end_offset == whole


@pytest.mark.parametrize("place", range(HEADER.size + 4))
def test_any_flipped_byte_ends_the_reading(path: Path, place: int) -> None:
    write(path, b"one\n", b"two\n", b"three\n")
    at = next(read_frames(path)).end_offset + place
    text = bytearray(path.read_bytes())
    text[at] ^= 0x55
    path.write_bytes(text)
    assert [f.data for f in read_frames(path)] == [b"one\n"]


def test_zeros_behind_the_end_are_no_frames(path: Path) -> None:
    write(path, b"one\n")
    os.truncate(path, path.stat().st_size + 4096)
    assert [f.data for f in read_frames(path)] == [b"one\n"]


def test_a_failed_flush_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = write(path, b"one\n")
    writer.append(0, "stdout", False, 4, 0.0, b"two\n")
    end = writer.end

    def full(fd: int, buffers: list[bytes], offset: int) -> int:
        os.pwrite(fd, buffers[0][:5], offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                writer.flush()
            assert path.stat().st_size == writer.end == end
    writer.flush()
    assert [f.data for f in read_frames(path)] == [b"one\n", b"two\n"]


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = write(path, b"one\n")
    writer.append(0, "stdout", False, 4, 0.0, b"two\n" * 1000)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: os.pwrite(fd, buffers[0][:9], offset))
    writer.flush()
    assert [f.data for f in read_frames(path)] == [b"one\n", b"two\n" * 1000]


def test_reading_does_not_move_the_file_position(path: Path) -> None:
    write(path, b"one\n")
    with path.open("rb") as file:
        list(frames_of(file.fileno()))
        assert file.tell() == 0


def test_a_link_in_the_place_of_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere")
    writer = FrameWriter(str(path))
    writer.append(0, "stdout", False, 0, 0.0, b"x")
    with pytest.raises(OSError):
        writer.flush()
    assert not (tmp_path / "elsewhere").exists()
