"""The client's terminal while an interactive job (`-o pty.interactive`) runs.

While the tasks run the terminal is raw: every key, Ctrl-C too, goes to the task's own terminal as input. Before and
after that it is as it was, so that Ctrl-C means what it always means for a job that waits or is being tidied up.
"""

from __future__ import annotations

import os
import signal
import termios
import tty
from typing import Any

from leveret.client import Client
from leveret.errors import LeveretError


def wants(options: object) -> bool:
    """Whether a job's shell options ask for an interactive terminal."""
    pty = options.get("pty") if isinstance(options, dict) else None
    return isinstance(pty, dict) and bool(pty.get("interactive"))


def is_interactive(client: Client, jobid: int) -> bool:
    """Whether a job is. It costs a request."""
    import json

    try:
        system = json.loads(client.key(jobid, "jobspec"))["attributes"]["system"]
    except (LeveretError, KeyError, ValueError):
        return False
    return wants(system.get("shell", {}).get("options"))


def size() -> list[int] | None:
    """Rows and columns of our terminal; None where that is not known."""
    try:
        found = os.get_terminal_size(0)
    except OSError:
        return None
    return [found.lines, found.columns] if found.lines and found.columns else None


class Terminal:
    """Ours (standard input). `update` makes it raw or not; `close` leaves it as it was found."""

    def __init__(self, uri: str, jobid: int) -> None:
        self.uri = uri
        self.jobid = jobid
        self._before: list[Any] | None = None
        self._old_handler: Any = signal.signal(signal.SIGWINCH, lambda *_: self.tell_size())
        self.tell_size()

    def tell_size(self) -> None:
        """Give the tasks' terminal the size of ours."""
        now = size()
        if now is None:
            return
        try:
            with Client(self.uri, patience_s=1.0) as client:
                client.winsize(self.jobid, *now)
        except LeveretError:
            pass  # the job is over; or the next change tells it

    def update(self, raw: bool) -> None:
        """Raw, or as before; nothing if it is so already."""
        if raw and self._before is None:
            try:
                self._before = termios.tcgetattr(0)
                tty.setraw(0, termios.TCSADRAIN)
            except termios.error:
                self._before = None
        elif not raw and self._before is not None:
            before, self._before = self._before, None
            try:
                termios.tcsetattr(0, termios.TCSADRAIN, before)
            except termios.error:
                pass  # it has hung up

    def close(self) -> None:
        self.update(False)
        signal.signal(signal.SIGWINCH, self._old_handler if self._old_handler is not None else signal.SIG_DFL)
