"""How a helper gets ready: its surroundings, its lock, what a dead predecessor left, its signals.

Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import signal

from . import procs
from .loop import say


def settle_in() -> None:
    """Hold on to nothing of whoever started us: not the folder, nor the umask, nor closed standard descriptors."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # 0, 1 and 2 must be open, or a pipe would take their place
    os.close(fd)
    os.chdir("/")
    os.umask(0o022)


def lock(directory: str) -> int | None:
    """Make ``directory`` (0700) and lock ``helper.lock`` in it; None if another helper has it. Keep the descriptor."""
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    fd = os.open(os.path.join(directory, "helper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def take_over(directory: str, incarnation: str, patience_s: float) -> None:
    """Kill what a dead helper of this directory left behind, and take its place in ``helper.incarnation`` and ``.pid``.

    The lock is held, so whoever is named there is dead. Blocks for at most ``patience_s`` seconds.
    """
    try:
        with open(os.path.join(directory, "helper.incarnation"), encoding="utf-8") as file:
            old = file.read().strip()
    except OSError:
        old = ""
    if old.partition(":")[0] == incarnation.partition(":")[0]:
        left = procs.kill_marked(old, patience_s)
        if left:
            say(f"processes of helper {old} cannot be killed: {[proc.pid for proc in left]}")
    for name, text in (("helper.incarnation", incarnation), ("helper.pid", str(os.getpid()))):
        path = os.path.join(directory, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.rename(path + ".new", path)


def handle_signals(wake_fd: int) -> None:
    """Write the number of every signal that we care for, as a byte, to ``wake_fd``.

    Handlers, not SIG_IGN: what is ignored is inherited by tasks, and so is the
    mask. What we inherited ourselves is undone for the same reason.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ours = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
    for signum in signal.valid_signals():
        if signum in ours:
            signal.signal(signum, lambda *_: None)
        elif signal.getsignal(signum) is signal.SIG_IGN and signum not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)  # Popen gives the two that Python ignores back itself
    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
