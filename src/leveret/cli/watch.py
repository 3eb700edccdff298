"""Follow several jobs at once: `submit --watch`, and `submit -vv --wait`."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leveret.cli import output
from leveret.cli.printer import Printer
from leveret.client import Client, EventStream

if TYPE_CHECKING:
    from leveret.cli.progress import Progress

#: Streams that are open at a time; the jobs after them wait for their turn, and lose nothing by it.
STREAMS_MAX = 100


class Watched:
    """One job's stream and how to show it."""

    def __init__(self, client: Client, jobid: int, label: bool, show_output: bool, verbose: int) -> None:
        name = output.f58(jobid)
        self.name = name
        self.verbose = verbose
        self.printer = Printer(jobid, label=label, prefix=f"{name}: ")
        self.stream = EventStream(client, jobid, ["eventlog", "output"] if show_output else ["eventlog"])
        self.code = 0

    def pump(self) -> bool:
        """Read once and show it; true at the job's end."""
        for line in self.stream.pump():
            if line.get("end"):
                self.printer.end_of_output()
                self.code = int(line["job"].get("exit_code") or 0)
                return True
            if "event" in line:
                self._event(line["path"], line["event"])
        self.printer.flush()
        return False

    def _event(self, path: str, event: dict[str, Any]) -> None:
        if path == "output":
            self.printer.output_event(event)
            return
        if self.printer.t_submit is None:
            self.printer.t_submit = event["timestamp"]
        context = event.get("context") or {}
        if self.verbose >= 2:
            text = output.json_text(dict(sorted(context.items()))) if context else ""
            self.printer.line(f"{self.name}: {self.printer.offset(event['timestamp'])}: {event['name']} {text}")
            if event["name"] == "finish":
                done = f"complete: status={context.get('status')}"
                self.printer.line(f"{self.name}: {self.printer.offset(event['timestamp'])}: {done}")
        elif event["name"] == "exception":
            what = f"type={context.get('type')} severity={context.get('severity')}"
            self.printer.line(f"job.exception: {what} {context.get('note', '')}")


def watch(
    client: Client, ids: Sequence[int], label: bool, show_output: bool, verbose: int, bar: Progress | None = None
) -> int:
    """Until all jobs are clean. Returns the worst exit code."""
    waiting = list(reversed(ids))
    active: list[Watched] = []
    worst = 0
    while waiting or active:
        while waiting and len(active) < STREAMS_MAX:
            active.append(Watched(client, waiting.pop(), label, show_output, verbose))
        ready = [job for job in active if job.stream.pending]
        if not ready:
            poll = select.poll()
            by_fd = {job.stream.fileno(): job for job in active}
            for fd in by_fd:
                poll.register(fd, select.POLLIN)
            ready = [by_fd[fd] for fd, _ in poll.poll(250 if bar is not None else None)]
        if bar is not None:
            bar.clear()
        for job in ready:
            if job.pump():
                worst = max(worst, job.code)
                active.remove(job)
        if bar is not None:
            bar.take()
            bar.draw()
    if bar is not None:
        while not bar.take(0.1):
            pass
        bar.end()
    return worst
