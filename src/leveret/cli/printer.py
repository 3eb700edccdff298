"""What attach prints of a job's events: task output byte for byte, log lines, exceptions, events.

Task output is RFC 24: `data` events with text or base64, `redirect` and `log` events.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from leveret.cli import output
from leveret.client import decode_data

#: RFC 24 log levels as attach shows them; others (notice, info) have no word.
LEVELS = {0: "FATAL", 1: "FATAL", 2: "FATAL", 3: "ERROR", 4: " WARN", 7: "DEBUG", 8: "TRACE"}
#: A labelled line that grows beyond this is shown in pieces.
PARTIAL_MAX_BYTES = 1024 * 1024

FD_OF = {"stdout": 1, "stderr": 2}


class Printer:
    """Writes to fd 1 and 2. Times are seconds since the job's first event."""

    def __init__(self, jobid: int, *, label: bool = False, quiet: bool = False, prefix: str = "") -> None:
        self.jobid = jobid
        self.label = label
        self.quiet = quiet
        #: what a label begins with (`submit --watch` names the job)
        self.prefix = prefix
        self.status = output.StatusLine(False)
        self.t_submit: float | None = None
        self._pieces: list[bytes] = []
        self._fd = 1
        #: per (rank, stream): the beginning of a line whose end has not come, when labelling
        self._partial: dict[tuple[str, str], bytes] = {}
        #: per fd: whether a labelled line was left without its newline
        self._open_line = {1: False, 2: False}

    def flush(self) -> None:
        """Write what has been gathered."""
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.status.clear()
            output.write(self._fd, data)
            self.status.printed(data)

    def _put(self, fd: int, data: bytes) -> None:
        if fd != self._fd:
            self.flush()
            self._fd = fd
        self._pieces.append(data)

    def line(self, text: str) -> None:
        """One of our own lines, to stderr, in order with the output."""
        self.flush()
        self.status.clear()
        output.plain(text)

    def offset(self, timestamp: float) -> str:
        return f"{max(timestamp - (self.t_submit if self.t_submit is not None else timestamp), 0):.3f}s"

    # The output eventlog

    def output_event(self, event: dict[str, Any]) -> None:
        name, context = event["name"], event.get("context") or {}
        if name == "data":
            self._data(context)
        elif name == "log":
            self._log(event["timestamp"], context)
        elif name == "redirect" and not self.quiet:
            self.line(
                f"{ranks_text(context.get('rank', '0'))}: {context.get('stream')} redirected to {context.get('path')}"
            )

    def _data(self, context: dict[str, Any]) -> None:
        stream, rank = str(context.get("stream")), str(context.get("rank", "0"))
        fd, data = FD_OF.get(stream, 1), decode_data(context)
        if not self.label:
            if data:
                self._put(fd, data)
            return
        if rank.isdigit():
            self._labelled(fd, stream, rank, data, bool(context.get("eof")))
        else:
            from leveret.core import idset

            for one in idset.parse(rank):
                self._labelled(fd, stream, str(one), data, bool(context.get("eof")))

    def _labelled(self, fd: int, stream: str, rank: str, data: bytes, eof: bool) -> None:
        """Whole lines with their label; a partial line waits for its end, so that ranks do not mix."""
        key = (rank, stream)
        *lines, rest = (self._partial.pop(key, b"") + data).split(b"\n")
        label = f"{self.prefix}{rank}: ".encode()
        whole = b"".join(label + line + b"\n" for line in lines)
        if rest and (eof or len(rest) > PARTIAL_MAX_BYTES):
            whole += label + rest
        elif rest:
            self._partial[key] = rest
        if whole:
            self._put(fd, (b"\n" if self._open_line[fd] else b"") + whole)
            self._open_line[fd] = not whole.endswith(b"\n")

    def _log(self, timestamp: float, context: dict[str, Any]) -> None:
        word = LEVELS.get(context.get("level", 6), "")
        words = [f"{self.offset(timestamp)}: {output.NAME}-shell[{context.get('rank', 0)}]:"]
        words += [f"{word}:"] if word else []
        words += [f"{context['component']}:"] if context.get("component") else []
        self.line(" ".join([*words, str(context.get("message", "")).rstrip("\n")]))

    def end_of_output(self) -> None:
        """Show partial lines whose end never came."""
        for (rank, stream), data in list(self._partial.items()):
            self._labelled(FD_OF.get(stream, 1), stream, rank, b"", True) if data else None
        self.flush()

    # The job's eventlog, and that of its execution

    def exception(self, event: dict[str, Any]) -> None:
        context = event.get("context") or {}
        self.line(
            f"{self.offset(event['timestamp'])}: job.exception {output.f58(self.jobid)} type={context.get('type')} "
            f"severity={context.get('severity')} {context.get('note', '')}"
        )

    def event(self, event: dict[str, Any], kind: str) -> None:
        """`T.TTTs: job.NAME {context}`; `kind` is job or exec."""
        context = event.get("context")
        text = f"{self.offset(event['timestamp'])}: {kind}.{event['name']}"
        self.line(text + (" " + output.json_text(context) if context else ""))


def ranks_text(rank: object) -> str:
    """`0`, or `[0-1]` for several."""
    text = str(rank)
    return text if text.isdigit() or text.startswith("[") else f"[{text}]"


def signal_name(number: int) -> str:
    """What strsignal(3) says, also for numbers that are no signals."""
    try:
        return signal.strsignal(number) or f"Unknown signal {number}"
    except ValueError:
        return f"Unknown signal {number}"


def exit_code_of(waitstatus: int) -> int:
    """The shell's exit code for a wait status: 128+signal when it was killed by one."""
    return 128 + (waitstatus & 0x7F) if waitstatus & 0x7F else (waitstatus >> 8) & 0xFF


def exit_message(waitstatus: int | None) -> str:
    """Flux's words for how the tasks ended; "" for success and for no tasks at all."""
    if not waitstatus:
        return ""
    if os.WIFSIGNALED(waitstatus):
        return f"job shell {signal_name(os.WTERMSIG(waitstatus))}"
    code = exit_code_of(waitstatus)
    if code > 128:
        return f"task(s) {signal_name(code - 128)}"
    return f"task(s) exited with exit code {code}"
