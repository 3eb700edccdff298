"""The progress bar of `submit --progress`, `bulksubmit --progress` and `watch --progress`.

    PD:3   R:2   CD:5   F:0   │█████████████         │ 50.0%  9.7 job/s

Two threads wait for the jobs' starts and ends; the bar is drawn by whoever runs the verb, between its other output.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from leveret.cli import output
from leveret.client import Client
from leveret.errors import LeveretError

BLOCKS = " ▏▎▍▌▋▊▉"
WIDTH_DEFAULT = 80
#: seconds between two drawings while nothing happens
TICK_S = 0.25


class Progress:
    """Counts of jobs that are pending, running, completed and failed. `since`: the clock at 0, seconds since the epoch."""

    def __init__(self, uri: str, ids: Sequence[int], jps: bool, since: float | None = None) -> None:
        self.total = len(ids)
        self.jps = jps
        self.since = time.time() if since is None else since
        self.started: set[int] = set()
        self.done: set[int] = set()
        self.failed = 0
        self.worst = 0
        self.error: LeveretError | None = None
        self._ids = ids
        self._uri = uri
        self._news: queue.SimpleQueue[tuple[int, int | None] | LeveretError] = queue.SimpleQueue()
        self._drawn = False
        for event in ("start", "clean"):
            threading.Thread(target=self._follow, args=(event,), daemon=True).start()

    def _follow(self, event: str) -> None:
        """In a thread of its own, with a client of its own: (job, None) when it started, (job, exit code) when it ended."""
        try:
            with Client(self._uri) as client:
                for line in client.wait_many(self._ids, event, brief=True):
                    if event == "clean":
                        self._news.put((line["id"], int((line.get("job") or {}).get("exit_code") or 0)))
                    elif line.get("event"):
                        self._news.put((line["id"], None))
        except LeveretError as failure:
            self._news.put(failure)

    def take(self, timeout_s: float | None = 0) -> bool:
        """Count what has happened, after waiting for it for `timeout_s`; whether all jobs are done."""
        try:
            while True:
                news = self._news.get(timeout=timeout_s) if timeout_s else self._news.get_nowait()
                timeout_s = 0
                if isinstance(news, LeveretError):
                    self.error = news
                    return True
                jobid, code = news
                if code is None:
                    self.started.add(jobid)
                elif jobid not in self.done:
                    self.done.add(jobid)
                    self.failed += code != 0
                    self.worst = max(self.worst, code)
        except queue.Empty:
            pass
        return len(self.done) >= self.total

    def text(self, columns: int) -> str:
        """The line, `columns` wide."""
        done = len(self.done)
        running = len(self.started - self.done)
        counts = f"PD:{self.total - done - running:<3} R:{running:<3} CD:{done - self.failed:<3} F:{self.failed:<3} "
        share = done / self.total if self.total else 1.0
        elapsed = max(time.time() - self.since, 0.001)
        if self.jps:
            right = f"{100 * share:5.1f}% {done / elapsed:4.1f} job/s"
        else:
            seconds = int(elapsed)
            right = f"{100 * share:5.1f}% {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        width = max(columns - len(counts) - len(right) - 3, 4)
        eighths = int(share * width * 8)
        bar = "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths < width * 8 else "")
        return f"{counts}│{bar:<{width}}│{right}"

    def draw(self) -> None:
        output.write(1, output.encode("\r" + self.text(output.terminal_width(1, WIDTH_DEFAULT)) + "\x1b[K"))
        self._drawn = True

    def clear(self) -> None:
        """Take the line away, before something else is printed."""
        if self._drawn:
            output.write(1, b"\r\x1b[K")
            self._drawn = False

    def end(self) -> None:
        """Leave the last state on the terminal."""
        self.take()
        self.draw()
        output.write(1, b"\n")

    def run(self, wait: bool) -> int:
        """Draw until all jobs are done (not `wait`: until they are submitted, which they are). The worst exit code."""
        self.draw()
        while wait and not self.take(TICK_S):
            self.draw()
        self.end()
        if self.error is not None:
            raise self.error
        return self.worst if wait else 0
