"""Attach to a job: follow one event stream, show output and exceptions, end with the job.

By default it ends when the job is clean, which is when all of its parts are over, and returns the record's exit
code. `wait_event` is the early way out, with Flux's codes: 1 at an event before `finish`, the tasks' code from
then on; an event that never comes lets it run to the end.
"""

from __future__ import annotations

import select
import time
from signal import SIGPIPE
from typing import TYPE_CHECKING, Any

from leveret.cli import output
from leveret.cli.attach_signals import Detached, Signals
from leveret.cli.printer import Printer, exit_code_of, exit_message
from leveret.cli.stdin import Stdin, is_open
from leveret.client import Client, EventStream
from leveret.errors import LeveretError, NotFoundError

if TYPE_CHECKING:
    from leveret.cli.terminal import Terminal

#: event → what `--show-status` says from then on
STATUS_TEXTS = {
    "submit": "submitted",
    "validate": "resolving dependencies",
    "depend": "waiting for priority assignment",
    "priority": "waiting for resources",
    "alloc": "starting",
    "prolog-start": "waiting for prolog",
    "start": "started",
}
STATUS_COLUMNS = 80


class Options:
    """How to attach; the names are those of `leveret job attach`."""

    def __init__(
        self,
        *,
        show_events: bool = False,
        show_exec: bool = False,
        show_status: bool = False,
        wait_event: str = "",
        label: bool = False,
        quiet: bool = False,
        verbose: int = 0,
        read_only: bool = False,
        unbuffered: bool = False,
        stdin_ranks: str = "all",
        tail: int | None = None,
        owns: bool = False,
        no_stdin: bool = False,
        interactive: bool | None = None,
    ) -> None:
        self.show_events = show_events
        self.show_exec = show_exec
        self.show_status = show_status
        self.wait_event = wait_event
        self.label = label
        self.quiet = quiet
        self.verbose = verbose
        self.read_only = read_only
        self.unbuffered = unbuffered
        self.stdin_ranks = stdin_ranks
        #: the tasks read something else
        self.no_stdin = no_stdin
        #: the tasks have a terminal that is ours to use; None: to be found out
        self.interactive = interactive
        self.tail = tail
        #: the job is ours (`run`): it ends by SIGPIPE when nobody reads its output, as a command in a pipe does
        self.owns = owns


class Attach:
    """One attachment. `run` returns the exit code."""

    def __init__(self, client: Client, jobid: int, options: Options) -> None:
        self.client = client
        self.jobid = jobid
        self.options = options
        self.printer = Printer(jobid, label=options.label, quiet=options.quiet)
        self.status = output.StatusLine(None if not options.quiet else False)
        self.printer.status = self.status
        self.show_status = options.show_status
        self._waitstatus: int | None = None
        self._fatal = False
        self._terminal: Terminal | None = None
        #: tasks run that take keys
        self._keys = False
        self._reached = False
        self._status: dict[str, Any] = {}
        self._t_status = time.monotonic()
        # an event of the execution is named exec.NAME, as `submit --wait-event` has it
        self._wait_path = "exec" if options.wait_event.startswith("exec.") else "eventlog"
        self._wait_name = options.wait_event.removeprefix("exec.") if self._wait_path == "exec" else options.wait_event

    def run(self) -> int:
        """Follow the job. Raises NotFoundError, UnreachableError."""
        paths = ["eventlog", "output"]
        if self.options.show_exec or self._wait_path == "exec":
            paths.append("exec")
        try:
            if self.options.tail is not None:
                token = self._tail(self.options.tail)
                paths = ["eventlog", f"output@{token}" if token else "output", *paths[2:]]
            stream = EventStream(self.client, self.jobid, paths, status=self.status.enabled, on_lost=self._on_lost)
        except NotFoundError:
            raise NotFoundError(f"Failed to attach to {output.f58(self.jobid)}: No such job")
        signals = Signals(self.client.uri, self.jobid, self.status.clear)
        stdin = None
        if not self.options.read_only:
            signals.install()
            stdin = Stdin(self.client, self.jobid, self.options.stdin_ranks) if self._has_stdin() else None
            if stdin is not None and output.is_terminal(0) and self.options.interactive is not False:
                self._use_terminal()
        try:
            with stream:
                record = self._follow(stream, stdin)
        except Detached:
            return 1
        except BrokenPipeError:
            if self.options.owns:
                self._end_by_pipe()
            raise
        finally:
            if self._terminal is not None:
                self._terminal.close()
            self.status.clear()
            signals.restore()
            if stdin is not None:
                stdin.close()
        return self._end(record)

    def _has_stdin(self) -> bool:
        return not self.options.no_stdin and is_open()

    def _use_terminal(self) -> None:
        from leveret.cli.terminal import Terminal, is_interactive

        if self.options.interactive or is_interactive(self.client, self.jobid):
            self._terminal = Terminal(self.client.uri, self.jobid)

    def _follow(self, stream: EventStream, stdin: Stdin | None) -> dict[str, Any] | None:
        """Until the end of the stream (its record) or the awaited event (None)."""
        while not stream.ended:
            if not stream.pending and not self._wait(stream, stdin):
                continue
            for line in stream.pump():
                if "path" in line:
                    self._event(line["path"], line["event"])
                elif "status" in line:
                    self._status, self._t_status = line["status"], time.monotonic()
                    self._draw()
                elif line.get("end"):
                    self._finish_output()
                    return dict(line["job"])
                if self._reached:
                    if self._waitstatus is not None:
                        self._rest_of_output(stream)
                    self._finish_output()
                    return None
            self.printer.flush()
            self._draw()
        return None

    def _wait(self, stream: EventStream, stdin: Stdin | None) -> bool:
        """Poll; true if the stream can be read. Serves stdin meanwhile, and redraws the status line each second."""
        if self._terminal is not None:
            self._terminal.update(self._keys and stdin is not None and not stdin.done)
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLIN)
        for fd in stdin.readers() if stdin is not None else ():
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(1000 if self.status.text or stdin is not None else None)]
        if not ready:
            self._draw()
        for fd in ready:
            if fd != stream.fileno() and stdin is not None:
                stdin.ready(fd)
        return stream.fileno() in ready

    def _event(self, path: str, event: dict[str, Any]) -> None:
        if path.startswith("output"):
            self.printer.output_event(event)
        elif path == "exec":
            if self.options.show_exec:
                self.printer.event(event, "exec")
        else:
            self._job_event(event)
        if self._wait_name and path == self._wait_path and event["name"] == self._wait_name:
            self._reached = event["name"] != "clean" or path != "eventlog"

    def _job_event(self, event: dict[str, Any]) -> None:
        name, context = event["name"], event.get("context") or {}
        if self._terminal is not None:
            self._take_keys(name, context)
        if self.printer.t_submit is None:
            self.printer.t_submit = event["timestamp"]
        if name == "exception":
            self._fatal = self._fatal or context.get("severity") == 0
            self.printer.exception(event)
        elif self.options.show_events:
            self.printer.event(event, "job")
        if name == "finish":
            self._waitstatus = int(context.get("status", 0))
        if self.show_status and name in STATUS_TEXTS:
            self._status_text(STATUS_TEXTS[name], event["timestamp"])
            self.show_status = name != "start"
            if name == "start":
                output.write(2, b"\n")

    def _take_keys(self, name: str, context: dict[str, Any]) -> None:
        """Keys are the tasks' from `start` on, and ours again once the job is about to end: Ctrl-C must work then."""
        if name == "start":
            self._keys = True
            if self._terminal is not None:
                self.status.clear()
                self._terminal.update(True)  # before any output of theirs is shown
        elif name == "finish" or (name == "exception" and context.get("severity") == 0):
            self._keys = False
            if self._terminal is not None:
                self.printer.flush()
                self._terminal.update(False)

    def _status_text(self, text: str, timestamp: float) -> None:
        """One step of `--show-status`: rewritten in place, with the time since submission at the right."""
        seconds = int(timestamp - (self.printer.t_submit or timestamp))
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        left = f"{output.NAME}-job: {output.f58(self.jobid)} {text}"
        output.write(2, output.encode(f"\r{left:<{STATUS_COLUMNS - 9}}{clock}\r"))

    def _draw(self) -> None:
        """The status line: state, what the job waits for, how far it is. Nothing while tasks run."""
        status = self._status
        state, waiting = status.get("state"), status.get("waiting_for") or ""
        if (
            not status
            or self.show_status
            or self._keys
            or (state == "RUN" and status.get("phase") == "running")
            or state == "INACTIVE"
        ):
            self.status.show("")
            return
        text = f"{output.NAME}-job: {output.f58(self.jobid)} {state}"
        if waiting:
            text += f": waiting for {waiting}"
        progress = progress_text(status.get("progress"))
        elapsed = int(time.monotonic() - self._t_status)
        text += f" {progress}" if progress else ""
        text += f" {elapsed // 60}:{elapsed % 60:02}" if elapsed else ""
        self.status.show(text)

    def _on_lost(self, reason: str) -> None:
        if self._terminal is not None:
            self._terminal.update(False)
        if self.options.verbose or self.status.enabled:
            self.printer.flush()
            self.status.show("leveret-job: lost the daemon, connecting again")

    def _rest_of_output(self, stream: EventStream) -> None:
        """The tasks are over: what is left of their output is in the log already."""
        token = stream.tokens.get("output", "")
        for line in self.client.events(self.jobid, ["output" + (f"@{token}" if token else "")]):
            if "event" in line:
                self.printer.output_event(line["event"])

    def _tail(self, count: int) -> str:
        """Show the last lines of the output so far. Returns the token to go on from."""
        from collections import deque

        class Tail(Printer):
            def _put(self, fd: int, data: bytes) -> None:
                for line in data.splitlines(keepends=True):
                    lines.append((fd, line))

        lines: deque[tuple[int, bytes]] = deque(maxlen=max(count, 0))
        tail = Tail(self.jobid, label=self.options.label, quiet=True)
        token = ""
        for line in self.client.events(self.jobid, ["output"]):
            if "event" in line:
                token = str(line["id"])
                if line["event"]["name"] == "data":
                    tail.output_event(line["event"])
        for fd, piece in lines:
            self.printer._put(fd, piece)
        self.printer.flush()
        return token

    def _end_by_pipe(self) -> None:
        try:
            with Client(self.client.uri, patience_s=1.0) as client:
                client.kill(self.jobid, SIGPIPE)
        except LeveretError:
            pass

    def _finish_output(self) -> None:
        self.printer.end_of_output()
        self.status.show("")

    def _end(self, record: dict[str, Any] | None) -> int:
        if record is not None:
            message = exit_message(record.get("waitstatus"))
            if message:
                output.note(message)
            code = record.get("exit_code")
            return int(code) if code is not None else 1
        if self._waitstatus is None:  # Flux: an event before finish has no exit code to give
            return 1
        message = exit_message(self._waitstatus)
        if message:
            output.note(message)
        return exit_code_of(self._waitstatus) or int(self._fatal)


def progress_text(progress: dict[str, Any] | None) -> str:
    """`1.5 of 3.0 MiB (50%)` of a hold's progress; "" without one."""
    if not progress:
        return ""
    done, total, unit = progress.get("done") or 0, progress.get("total") or 0, progress.get("unit") or ""
    if unit in ("bytes", "B"):
        scale, unit = (2**30, "GiB") if max(done, total) >= 2**30 else (2**20, "MiB")
        text = f"{done / scale:.1f}" + (f" of {total / scale:.1f}" if total else "")
    else:
        text = f"{done:g}" + (f" of {total:g}" if total else "")
    text = f"{text} {unit}".rstrip()
    return text + (f" ({100 * done // total:.0f}%)" if total else "")
