"""All output of the command goes through here.

Data goes to stdout, everything else to stderr. Colours only on a terminal. A broken pipe is
silent. An error is one line `leveret-VERB: ERROR: message` (`leveret-job: message` for the verbs of
`leveret job`, as Flux has it), and a `hint:` line when there is something to do about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from leveret.errors import LeveretError

#: What a shell reports for a program that SIGPIPE ended.
EXIT_BROKEN_PIPE = 141
EXIT_INTERRUPTED = 130

#: How messages begin: as scripts for Flux expect them where `LEVERET_AS_FLUX=1` says so.
NAME = "flux" if os.environ.get("LEVERET_AS_FLUX") == "1" else "leveret"

#: The verb that runs, for the prefix of messages: "run", "submit", "job", …
verb = ""


class Fail(LeveretError):
    """A verb ends with a message and an exit code of its own."""

    def __init__(self, message: str, exit_code: int = 1, hint: str = "") -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


#: where stdout (1) and stderr (2) go when not there: `--log` and `--log-stderr`
targets: dict[int, int] = {}


def write(fd: int, data: bytes) -> None:
    """Write all of `data`, whatever the descriptor's mode. Raises BrokenPipeError."""
    fd = targets.get(fd, fd)
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            import select

            select.select([], [fd], [])


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def data(text: str) -> None:
    """One line (or several) of the command's result, to stdout."""
    write(1, encode(text + "\n"))


def data_lines(lines: Iterable[str]) -> None:
    """Lines of the result; nothing at all if there are none."""
    text = "".join(line + "\n" for line in lines)
    if text:
        write(1, encode(text))


def json_data(value: Any, pretty: bool = False) -> None:
    data(json_text(value, pretty))


def json_text(value: Any, pretty: bool = False) -> str:
    """JSON as Flux prints it: no blanks, not escaped beyond need."""
    import json

    if pretty:
        return json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def plain(text: str) -> None:
    """A line on stderr without a prefix."""
    write(2, encode(text + "\n"))


def note(text: str) -> None:
    """`leveret-VERB: text` on stderr."""
    plain(f"{NAME}-{verb or 'main'}: {text}")


def warning(text: str) -> None:
    note(f"WARNING: {text}")


def failure_line(error: LeveretError) -> str:
    """How the running verb words an error."""
    if verb.partition(" ")[0] == "job":
        return f"{NAME}-{verb}: {error.message}"
    return f"{NAME}-{verb or 'main'}: ERROR: {error.message}"


def error(failure: LeveretError) -> int:
    """Print an error and its hint. Returns the exit code."""
    plain(failure_line(failure))
    if failure.hint:
        plain(f"hint: {failure.hint}")
    return failure.exit_code


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def colours(when: str | None, fd: int = 1) -> bool:
    """Whether to colour: `always`, `never`, or `auto` (a terminal, NO_COLOR not set, TERM not dumb)."""
    if when == "always":
        return True
    if when == "never":
        return False
    return is_terminal(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(fd: int = 2, default: int = 80) -> int:
    try:
        return os.get_terminal_size(fd).columns or default
    except OSError:
        return default


def ascii_ids() -> bool:
    """Whether job ids are written `f…` and not `ƒ…`: forced, or the locale is not UTF-8."""
    environ = os.environ
    if environ.get("FLUX_F58_FORCE_ASCII") or environ.get("LEVERET_F58_FORCE_ASCII"):
        return True
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    return "utf-8" not in locale.lower() and "utf8" not in locale.lower()


def f58(jobid: int) -> str:
    """A job id as people read it."""
    from leveret.core import jobid as jobids

    return jobids.encode(jobid, "f58", ascii_ids())


def table(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> None:
    """Left-aligned columns, two blanks between them, no trailing blanks."""
    every = [*([list(header)] if header else []), *rows]
    if not every:
        return
    widths = [max(len(row[column]) for row in every) for column in range(len(every[0]))]
    data_lines("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every)


class StatusLine:
    """One line on a terminal that is rewritten in place; nothing at all where stderr is no terminal.

    `clear` before anything else is printed. It is not drawn in the middle of a line of output.
    """

    def __init__(self, enabled: bool | None = None) -> None:
        self.enabled = is_terminal(2) if enabled is None else enabled
        self.text = ""
        self._drawn = False
        self._output_is_terminal = is_terminal(1)
        self._in_line = False

    def show(self, text: str) -> None:
        """Draw `text`; "" takes the line away."""
        if self._drawn and text == self.text:
            return
        self.text = text
        if not text:
            self.clear()
        elif self.enabled and not self._in_line:
            write(2, encode("\r\x1b[K" + text[: max(terminal_width() - 1, 1)]))
            self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            write(2, b"\r\x1b[K")
            self._drawn = False

    def printed(self, piece: bytes) -> None:
        """Told what went to a terminal, to know whether the cursor is at the beginning of a line."""
        if self.enabled and self._output_is_terminal and piece:
            self._in_line = not piece.endswith(b"\n")
