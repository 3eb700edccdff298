"""Copies a file or a folder tree, with progress.

    python -m leveret.exec.copier SRC DST

Where things land (DST exists as a folder, exists as a file, or is new):

* a file goes into an existing folder, replaces an existing file, takes a new
  name, or goes into a new folder if DST ends with a slash;
* a folder goes *into* DST, which is made if it is new; its contents do if SRC
  ends with a slash. Onto an existing file it is an error.

Missing parents are made. SRC may be a symbolic link, which is followed; links
inside folders stay links. Modes and times are kept, owners, hard links and
extended attributes are not; holes stay holes. Every file is written under a
temporary name beside its place and renamed, so no reader sees half of one. An
item that fails does not keep the others from being tried.

Progress goes to stdout as JSON lines ``{"done":…,"total":…,"unit":"bytes"}``,
at most ten a second and one at the end. Errors go to stderr, one line each.
Exit status: 0, 1 if anything failed, 2 for usage. SIGTERM removes the
temporary file and ends the copier by that signal.

Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

CHUNK_BYTES = 8 << 20
PROGRESS_S = 0.1
#: What a file system, or a pair of them, says that cannot do it this way.
_CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


class Terminated(BaseException):
    """SIGTERM or SIGINT has come; the argument is its number."""


class Item(NamedTuple):
    """One thing to copy. ``info`` is of what is copied: for the top, of what a link points to."""

    source: str
    target: str
    info: os.stat_result


class CopyError(OSError):
    """An error that says itself, rather than through errno, what is wrong."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(errno.EINVAL, text, path)


def destination(source: str, target: str) -> tuple[str, str]:
    """Where ``source`` itself lands, and the folder that must exist before, by the rules above.

    Changes nothing. OSError for what cannot be copied that way.
    """
    info = os.stat(source)
    contents = source.endswith("/") or os.path.basename(source) in (".", "..")
    name = os.path.basename(source)
    try:
        there: os.stat_result | None = os.stat(target)
    except FileNotFoundError:
        there = None
    if stat.S_ISDIR(info.st_mode):
        if there is not None and not stat.S_ISDIR(there.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
        place = target if contents else os.path.join(target, name)
        inside, outside = os.path.realpath(place), os.path.realpath(source)
        if inside == outside or inside.startswith(outside.rstrip("/") + "/"):
            raise CopyError(target, f"Cannot copy '{source}' into itself")
        return place, os.path.dirname(place.rstrip("/")) or ("/" if place.startswith("/") else ".")
    if there is not None and stat.S_ISDIR(there.st_mode):
        return os.path.join(target, name), target
    if there is None and target.endswith("/"):
        return os.path.join(target, name), target
    return target, os.path.dirname(target) or "."


class Copier:
    """One run. ``progress`` is told (done, total) in bytes, as often as something moves."""

    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress
        self.done = 0
        self.total = 0
        self.failed = False
        #: the temporary file that exists, or may
        self._temporary: str | None = None
        self._count = 0

    def fail(self, error: OSError, path: str) -> None:
        """Say what failed, and go on."""
        self.failed = True
        name = error.filename if isinstance(error.filename, str) else path
        print(f"copier: {name}: {error.strerror or error}", file=sys.stderr, flush=True)

    def run(self, source: str, target: str) -> None:
        """Copy; errors are said and remembered in ``failed``."""
        try:
            place, parent = destination(source, target)
            os.makedirs(parent, exist_ok=True)
            top = Item(source, place, os.stat(source))
        except OSError as error:
            self.fail(error, source)
            return
        self.total = self._size(top)
        self._progress(self.done, self.total)
        # A folder is met twice: before and after what is in it. Its mode and time are
        # set the second time: filling it changes the time, and may need a mode it must not keep.
        todo = [(top, False)]
        while todo:
            item, filled = todo.pop()
            try:
                if filled:
                    self._finish_folder(item)
                elif stat.S_ISDIR(item.info.st_mode):
                    if self._make_folder(item):
                        todo.append((item, True))
                    todo += [(inner, False) for inner in reversed(self._inside(item))]
                else:
                    self._copy(item)
            except OSError as error:
                self.fail(error, item.target)

    def _size(self, top: Item) -> int:
        """Bytes of all files. What cannot be read will be said when it is copied."""
        size = 0
        todo = [top]
        while todo:
            item = todo.pop()
            if stat.S_ISREG(item.info.st_mode):
                size += item.info.st_size
            elif stat.S_ISDIR(item.info.st_mode):
                try:
                    todo += self._inside(item, quiet=True)
                except OSError:
                    pass
        return size

    def _inside(self, folder: Item, quiet: bool = False) -> list[Item]:
        """What a folder holds, by name."""
        with os.scandir(folder.source) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        items = []
        for entry in found:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError as error:
                if not quiet:
                    self.fail(error, entry.path)
                continue
            items.append(Item(entry.path, os.path.join(folder.target, entry.name), info))
        return items

    def _copy(self, item: Item) -> None:
        mode = item.info.st_mode
        if stat.S_ISLNK(mode):
            self._copy_link(item)
        elif stat.S_ISREG(mode):
            self._copy_file(item)
        else:
            raise CopyError(item.source, "Not a file, folder or symbolic link")

    def _make_folder(self, item: Item) -> bool:
        """Whether it was made: one that was there keeps its mode and time."""
        try:
            os.mkdir(item.target, 0o700)
        except FileExistsError:
            if not os.path.isdir(item.target):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), item.target) from None
            return False
        return True

    def _finish_folder(self, item: Item) -> None:
        os.chmod(item.target, stat.S_IMODE(item.info.st_mode))
        os.utime(item.target, ns=(item.info.st_atime_ns, item.info.st_mtime_ns))

    def _temporary_name(self, target: str) -> str:
        self._count += 1
        self._temporary = os.path.join(os.path.dirname(target), f".copier-{os.getpid()}-{self._count}")
        return self._temporary

    def _copy_link(self, item: Item) -> None:
        text = os.readlink(item.source)
        name = self._temporary_name(item.target)
        try:
            os.symlink(text, name)
            os.utime(name, ns=(item.info.st_atime_ns, item.info.st_mtime_ns), follow_symlinks=False)
            os.rename(name, item.target)
            self._temporary = None
        finally:
            self.remove_temporary()

    def _copy_file(self, item: Item) -> None:
        try:
            if os.path.samestat(os.stat(item.target), item.info):
                raise CopyError(item.target, f"The same file as '{item.source}'")
        except (FileNotFoundError, NotADirectoryError):
            pass
        source = os.open(item.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            name = self._temporary_name(item.target)
            try:
                target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    self._copy_data(source, target)
                    os.fchmod(target, stat.S_IMODE(item.info.st_mode))
                    os.utime(target, ns=(item.info.st_atime_ns, item.info.st_mtime_ns))
                finally:
                    os.close(target)
                os.rename(name, item.target)
                self._temporary = None
            except OSError as error:
                if error.filename in (None, name):
                    # Nobody knows the temporary name; what failed is the file.
                    raise OSError(error.errno, error.strerror, item.target) from None
                raise
            finally:
                self.remove_temporary()
        finally:
            os.close(source)

    def remove_temporary(self) -> None:
        """No half file stays behind."""
        if self._temporary is not None:
            try:
                os.unlink(self._temporary)
            except OSError:
                pass
            self._temporary = None

    def _copy_data(self, source: int, target: int) -> None:
        info = os.fstat(source)
        if info.st_blocks * 512 >= info.st_size:
            self._copy_range(source, target, 0, None)
            return
        # It has holes: copy what lies between, and count them as done.
        at = 0
        while at < info.st_size:
            try:
                begin = os.lseek(source, at, os.SEEK_DATA)
                end = os.lseek(source, begin, os.SEEK_HOLE)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that does not tell
                    self._copy_range(source, target, at, None)
                    break
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    self._moved(info.st_size - at)
                    break
                raise
            self._moved(begin - at)
            self._copy_range(source, target, begin, end)
            at = end
        os.ftruncate(target, info.st_size)

    def _copy_range(self, source: int, target: int, at: int, end: int | None) -> None:
        """Copy from ``at`` to ``end``, or to the end of the file: by the fastest way that works here."""
        os.lseek(target, at, os.SEEK_SET)
        ways = [self._by_copy_file_range, self._by_sendfile, self._by_read]
        while end is None or at < end:
            want = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - at)
            try:
                count = ways[0](source, target, at, want)
            except OSError as error:
                if len(ways) == 1 or error.errno not in _CANNOT:
                    raise
                del ways[0]
                continue
            if count == 0:
                # Some file systems have nothing for the first two ways, and still something to read.
                if at == 0 and len(ways) > 1:
                    del ways[:-1]
                    continue
                break
            at += count
            self._moved(count)

    @staticmethod
    def _by_copy_file_range(source: int, target: int, at: int, want: int) -> int:
        return os.copy_file_range(source, target, want, offset_src=at)

    @staticmethod
    def _by_sendfile(source: int, target: int, at: int, want: int) -> int:
        return os.sendfile(target, source, at, want)

    @staticmethod
    def _by_read(source: int, target: int, at: int, want: int) -> int:
        data = os.pread(source, min(want, 1 << 20), at)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(target, rest) :]
        return len(data)

    def _moved(self, count: int) -> None:
        self.done += count
        self.total = max(self.total, self.done)  # a file may have grown since
        self._progress(self.done, self.total)


class Progress:
    """Progress lines on stdout; nobody reading them is no reason to stop."""

    def __init__(self) -> None:
        self._last_s = time.monotonic() - PROGRESS_S

    def __call__(self, done: int, total: int, last: bool = False) -> None:
        now = time.monotonic()
        if last or now - self._last_s >= PROGRESS_S:
            self._last_s = now
            line = json.dumps({"done": done, "total": total, "unit": "bytes"}, separators=(",", ":")) + "\n"
            try:
                os.write(1, line.encode())
            except OSError:
                pass


def _terminate(signum: int, _: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Terminated(signum)


def main(argv: list[str]) -> int:
    """Exit status as in the module's docstring."""
    if len(argv) != 2 or not all(argv) or argv[0] in ("-h", "--help"):
        print("usage: python -m leveret.exec.copier SRC DST", file=sys.stderr)
        return 2
    progress = Progress()
    copier = Copier(progress)
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)
    try:
        copier.run(*argv)
    except Terminated as stop:
        copier.remove_temporary()
        # End as one expects of the signal.
        signum = stop.args[0]
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
    progress(copier.done, copier.total, last=True)
    return 1 if copier.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
