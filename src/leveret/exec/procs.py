"""Processes as the kernel shows them: whose they are, what is left of a unit, how to end it.

Every process that a unit leaves behind, however it daemonized, has a chain of
parents that ends at the helper, because the helper is a child subreaper. So
the question "is anything left of this unit?" is answered by the list of the
helper's own children: a child that is no task is a *stranger*, and only
strangers (and what is below them) are looked at more closely. For a job that
leaves nothing behind this is one ``pread``, whatever else runs on the node.

A stranger's unit is read from the marker ``LEVERET_UNIT=<incarnation>/<unit>``
in its environment, else from its session. A direct child keeps its process id
until the helper reaps it; everything else is identified by process id and
start time, so that a reused id is never killed.

Standard library only. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

MARKER = "LEVERET_UNIT"
PR_SET_CHILD_SUBREAPER = 36


class Proc(NamedTuple):
    """One process: ``state`` is the letter of /proc/PID/stat, ``start`` is in clock ticks since boot."""

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    start: int


def boottime() -> float:
    """Seconds since boot, time asleep included: the clock of limits and escalations."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's id of this boot, or ``noboot`` where /proc does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "noboot"


def new_incarnation() -> str:
    """``<boot id>:<uuid4>``: no two helpers share one, and it tells whether the node was booted since."""
    return f"{boot_id()}:{uuid.uuid4()}"


def set_subreaper() -> None:
    """Make this process the parent of every orphan below it. OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def stat(pid: int) -> Proc | None:
    """The process ``pid``, or None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command in parentheses may hold blanks and parentheses itself: count from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Proc(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def environ_marker(pid: int) -> str | None:
    """The value of the marker in the environment that ``pid`` was started with; None if absent or not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        return None
    for item in text.split(b"\0"):
        if item.startswith(b"LEVERET_UNIT="):
            return item[len(MARKER) + 1 :].decode("utf-8", "replace")
    return None


def _pids(path: str) -> list[int] | None:
    try:
        with open(path, "rb") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return None


def children_of(pid: int) -> list[int]:
    """The children of ``pid``, all its threads counted; empty if it is gone or the kernel does not list them."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        found += _pids(f"/proc/{pid}/task/{thread}/children") or ()
    return found


def all_pids() -> list[int]:
    """Every process id of this pid namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def tree(pid: int) -> list[Proc]:
    """``pid`` and everything below it, parents first; zombies are left out."""
    found: list[Proc] = []
    todo = [pid]
    while todo:
        proc = stat(todo.pop())
        if proc is None:
            continue
        if proc.state not in "ZX":
            found.append(proc)
        todo += children_of(proc.pid)
    return found


def find_marked(prefix: str) -> dict[str, list[Proc]]:
    """Living processes on this node whose marker begins with ``prefix``, by marker.

    A whole scan of /proc: for what a dead helper left behind, and for kernels
    that do not list children. ``prefix`` is ``<incarnation>/`` or ``<incarnation>/<unit>``.
    """
    own = os.getpid()
    found: dict[str, list[Proc]] = {}
    for pid in all_pids():
        if pid == own:
            continue
        marker = environ_marker(pid)
        if marker is None or not marker.startswith(prefix):
            continue
        proc = stat(pid)
        if proc is not None and proc.state not in "ZX":
            found.setdefault(marker, []).append(proc)
    return found


def kill(procs: Iterable[Proc], signum: int = signal.SIGKILL) -> None:
    """Signal each process that is still the one that was seen (same start time)."""
    for proc in procs:
        now = stat(proc.pid)
        if now is not None and now.start == proc.start:
            kill_pid(proc.pid, signum)


def kill_pid(pid: int, signum: int) -> None:
    """Signal one process; a process that is gone, or not ours to signal, is no error."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(pgid: int, signum: int) -> None:
    """Signal a process group; an empty one is no error. The caller knows that ``pgid`` was not reused."""
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def kill_marked(incarnation: str, patience_s: float = 10.0) -> list[Proc]:
    """SIGKILL to all that a dead helper's units left on this node, until none is left; blocks.

    Returns what still lives after ``patience_s`` seconds (processes stuck in the kernel).
    """
    deadline = boottime() + patience_s
    pause_s = 0.01
    # Whoever restarts things from inside a job of the dead helper would kill itself.
    spared = {1}
    pid = os.getpid()
    while pid not in spared and (own := stat(pid)) is not None:
        spared.add(pid)
        pid = own.ppid
    while True:
        marked = find_marked(incarnation + "/").values()
        left = [proc for procs in marked for proc in procs if proc.pid not in spared]
        if not left or boottime() > deadline:
            return left
        kill(left)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 1.0)


class Sweeper:
    """Finds what is left of units whose tasks have all exited.

    One per helper. ``forget`` must be called for every reaped process id,
    since what was learned about a stranger holds until it is reaped.
    """

    def __init__(self, incarnation: str) -> None:
        self._prefix = incarnation + "/"
        #: children that are no tasks -> (unit by marker or None, session); valid while they are not reaped
        self._strangers: dict[int, tuple[str | None, int]] = {}
        pid = os.getpid()
        try:
            self._children = os.open(f"/proc/self/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._children = -1  # a kernel without CONFIG_PROC_CHILDREN: whole scans instead

    def forget(self, pid: int) -> None:
        """``pid`` was reaped."""
        self._strangers.pop(pid, None)

    def left(self, ending: Mapping[str, Collection[int]], tasks: Collection[int], alone: bool) -> dict[str, list[Proc]]:
        """Living processes of the units in ``ending``, by unit; units without any are absent.

        ``ending``: unit -> the sessions of its tasks. ``tasks``: process ids of
        tasks that are not reaped yet, of any unit. ``alone``: no other unit
        lives, so a stranger that cannot be told apart belongs to those ending.
        """
        if self._children < 0:
            return self._scan(ending)
        text = os.pread(self._children, 65536, 0)
        if not text:
            return {}
        if len(text) > 2048:  # the kernel hands out about a page at a time
            while chunk := os.pread(self._children, 65536, len(text)):
                text += chunk
        found: dict[str, list[Proc]] = {}
        for word in text.split():
            pid = int(word)
            if pid in tasks:
                continue
            unit = self._unit_of(pid, ending, alone)
            if unit in ending:
                procs = tree(pid)
                if procs:
                    found.setdefault(unit, []).extend(procs)
        return found

    def _unit_of(self, pid: int, ending: Mapping[str, Collection[int]], alone: bool) -> str:
        known = self._strangers.get(pid)
        if known is None:
            marker = environ_marker(pid)
            proc = stat(pid)
            unit = marker[len(self._prefix) :] if marker is not None and marker.startswith(self._prefix) else None
            known = self._strangers[pid] = (unit, proc.session if proc is not None else 0)
        unit, session = known
        if unit is not None:
            return unit
        for name, sessions in ending.items():
            if session in sessions:
                return name
        return next(iter(ending), "") if alone else ""

    def _scan(self, ending: Mapping[str, Collection[int]]) -> dict[str, list[Proc]]:
        marked = find_marked(self._prefix)
        cut = len(self._prefix)
        return {marker[cut:]: procs for marker, procs in marked.items() if marker[cut:] in ending}


class OpenFiles:
    """RLIMIT_NOFILE: as much as may be for the helper, the original soft limit for tasks.

    The limit is left alone until half of it is used up. From then on the helper
    runs with soft = hard and lowers it around each spawn (``with files:``); the
    child takes the limit of the moment of its vfork. ``Popen`` opens one pipe
    of its own meanwhile, and a lowered limit refuses descriptor numbers beyond
    it, so two low numbers are kept in reserve and set free for just that long.
    The helper opens nothing else there and spawns from one thread, so there is
    no race.
    """

    def __init__(self) -> None:
        self.soft, self.hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.raised = False
        self._reserve: list[int] = []

    def expect(self, fd: int) -> None:
        """Raise the limit if ``fd``, a descriptor just opened, comes near it: the kernel gives out the lowest free.

        Half is left for what is opened without a spawn: a file or two for each unit, besides its two pipes.
        """
        if self.raised or fd < self.soft // 2 or self.soft == self.hard:
            return
        try:
            self._fill()
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.hard, self.hard))
        except (OSError, ValueError):
            return
        self.raised = True

    def _fill(self) -> None:
        while len(self._reserve) < 2:
            self._reserve.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    def __enter__(self) -> None:
        if self.raised:
            for fd in self._reserve:
                os.close(fd)
            self._reserve.clear()
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.soft, self.hard))

    def __exit__(self, *exc: object) -> None:
        if self.raised:
            self._fill()
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.hard, self.hard))
