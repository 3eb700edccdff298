"""Signals of attach: Ctrl-C twice cancels, Ctrl-C then Ctrl-Z detaches, others are forwarded.

Handlers act by themselves on a connection of their own, so that they work also while attach waits in a
write to a pager.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from leveret.cli import output
from leveret.client import Client
from leveret.errors import ConflictError, LeveretError, NotFoundError

#: Two Ctrl-C within this time cancel.
TWICE_S = 2.0
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Detached(BaseException):
    """Ctrl-Z after Ctrl-C: leave the job alone."""


class Signals:
    """Installs handlers for one job; `restore` puts back what was there."""

    def __init__(self, uri: str, jobid: int, before_message: Callable[[], None]) -> None:
        self.uri = uri
        self.jobid = jobid
        self.before_message = before_message
        self._last_int = -TWICE_S
        self._old: dict[int, Any] = {}

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTSTP, *FORWARDED):
            if number == signal.SIGTSTP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            handler = self._forward
            if number == signal.SIGINT:
                handler = self._interrupt
            elif number == signal.SIGTSTP:
                handler = self._stop
            self._old[number] = signal.signal(number, handler)

    def restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._old.clear()

    def _say(self, text: str) -> None:
        self.before_message()
        output.note(text)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last_int < TWICE_S:
            self._last_int = -TWICE_S
            self._act(lambda client: client.cancel(self.jobid, "interrupted by ctrl-C"), "cancel")
            return
        self._last_int = now
        self._say("one more ctrl-C within 2s to cancel or ctrl-Z to detach")
        phase = self._ending()
        if phase:
            self._say(f"job is finishing: {phase}")

    def _ending(self) -> str:
        """What still runs when the tasks are over; "" before that."""
        try:
            with Client(self.uri, patience_s=1.0) as client:
                job = client.job(self.jobid)
        except LeveretError:
            return ""
        if job.get("state") != "CLEANUP":
            return ""
        return str(job.get("waiting_for") or job.get("phase") or "")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._last_int < TWICE_S:
            self._say("detaching...")
            raise Detached
        self.before_message()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here until SIGCONT
        signal.signal(signal.SIGTSTP, self._stop)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        def act(client: Client) -> None:
            try:
                client.kill(self.jobid, number)
            except ConflictError:
                # no tasks to signal yet: what asks us to end ends the job
                if number != signal.SIGTERM or client.job(self.jobid).get("state") in ("CLEANUP", "INACTIVE"):
                    raise
                client.cancel(self.jobid, "attach received SIGTERM")

        self._act(act, "kill")

    def _act(self, action: Callable[[Client], None], what: str) -> None:
        try:
            with Client(self.uri, patience_s=10.0) as client:
                action(client)
        except NotFoundError:
            pass
        except LeveretError as refused:
            self._say(f"{what}: {refused.message}")
            if refused.hint:
                output.plain(f"hint: {refused.hint}")
