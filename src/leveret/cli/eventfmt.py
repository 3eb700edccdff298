"""How events are written: text or JSON lines, and the formats of time (RFC 18 events).

Text is `TIMESTAMP name key=value…`, values as JSON. Times are raw seconds, ISO 8601 in UTC, offsets from
the first event, or for people: the minute in which something happens, then offsets from its first event.
"""

from __future__ import annotations

import time
from typing import Any

from leveret.cli import output
from leveret.errors import InvalidError

FORMATS = ("text", "json")
TIME_FORMATS = ("raw", "iso", "offset", "human")

Event = dict[str, Any]


class EventFormat:
    """Formats the events of one log, in order: offsets are from the first one."""

    def __init__(self, form: str = "text", times: str = "raw", colour: bool = False) -> None:
        if form not in FORMATS:
            raise InvalidError(f"invalid format type '{form}'", "text or json")
        if times not in TIME_FORMATS:
            raise InvalidError(f"invalid time-format type '{times}'", "raw, iso or offset")
        self.form = form
        self.times = times
        self.colour = colour
        self._first: float | None = None
        self._minute: tuple[int, ...] = ()
        self._minute_begin = 0.0

    def line(self, event: Event) -> str:
        if self._first is None:
            self._first = event["timestamp"]
        if self.form == "json":
            return output.json_text(event)
        words = [self._paint("32", self._time(event["timestamp"])), self._paint("33", str(event["name"]))]
        for key, value in (event.get("context") or {}).items():
            text = self._paint("35" if isinstance(value, str) else "37", output.json_text(value))
            words.append(f"{self._paint('34', key)}={text}")
        return " ".join(words)

    def skip(self, event: Event) -> None:
        """An event that is not printed still counts as the first one."""
        if self._first is None:
            self._first = event["timestamp"]

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def _time(self, timestamp: float) -> str:
        if self.times == "raw":
            return f"{timestamp:.6f}"
        if self.times == "offset":
            return f"{timestamp - (self._first or 0.0):.6f}"
        if self.times == "iso":
            return iso(timestamp)
        local = time.localtime(timestamp)
        minute = (local.tm_year, local.tm_yday, local.tm_hour, local.tm_min)
        if minute != self._minute:
            self._minute, self._minute_begin = minute, timestamp
            return time.strftime("[%b%d %H:%M]", local)
        return f"[{timestamp - self._minute_begin:+11.6f}]"


def iso(timestamp: float) -> str:
    """`2031-05-01T09:00:00.000000Z`."""
    seconds, micros = divmod(round(timestamp * 1_000_000), 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{micros:06}Z"


def matches(event: Event, name: str, key: str | None, value: Any) -> bool:
    """Whether an event has this name and, with a key, this value in its context."""
    if event["name"] != name:
        return False
    context = event.get("context") or {}
    return key is None or (key in context and same(context[key], value))


def same(left: Any, right: Any) -> bool:
    """JSON equality: true is not 1."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
