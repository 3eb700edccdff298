"""Flux's format strings: `{field!conversion:spec}`, as `jobs -o` takes them.

- `?:` before a field leaves it out, with the text before it, when it is empty for every row; `+:` widens it to
  its longest value; `?+:` does both.
- A spec may end in `h` (an empty value is `-`) and `+` (a value that was cut ends in `+`).
- Conversions: `d` a time by strftime (`!d:%b%d %R::>12`), `D` a time in ISO 8601, `F` a duration (RFC 23),
  `H` a duration as h:mm:ss, `P` a share as percent, `h` as the suffix.
- `sort:KEY,-KEY ` at the beginning sorts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leveret.errors import InvalidError

#: What `h` takes for empty.
EMPTY = frozenset({"", "0s", "0.0", "0:00:00", "1970-01-01T00:00:00", "1970-01-01T00:00:00Z", "None"})

_TOKEN = re.compile(r"\{\{|\}\}|(\?\+:|\?:|\+:)?\{([^{}]*)\}")
_SPEC = re.compile(
    r"(?:(?P<fill>.)?(?P<align>[<>^=]))?(?P<rest>[-+ ]?#?0?)"
    r"(?P<width>\d+)?(?:\.(?P<precision>\d+))?(?P<type>[a-zA-Z%]?)"
)


class Field:
    """One field of a format: how it is found, converted and laid out."""

    def __init__(self, text: str, prefix: str, before: str) -> None:
        name, _, spec = text.partition(":") if "!" not in text.partition(":")[0] else _split(text)
        self.name, _, self.conversion = name.partition("!")
        self.collapses = prefix.startswith("?")
        self.widens = "+" in prefix
        #: the literal text before the field, which goes away with it
        self.before = before
        self.strftime = ""
        if self.conversion == "d":
            self.strftime, _, spec = spec.partition("::")
        flags = re.search(r"[h+]*$", spec)
        self.flags = flags[0] if flags else ""
        self.spec = spec[: len(spec) - len(self.flags)]
        match = _SPEC.fullmatch(self.spec)
        if match is None or self.conversion not in ("", "d", "D", "F", "H", "P", "h", "s", "r"):
            raise InvalidError(f"Error in user format: Invalid format specifier: {text}")
        self.fill = match["fill"] or " "
        self.align = match["align"] or ""
        self.width = int(match["width"] or 0)
        self.precision = int(match["precision"]) if match["precision"] else None
        self.type = match["type"]
        self.rest = match["rest"]

    def render(self, value: Any) -> str:
        """A value as text, laid out."""
        if self.conversion:
            value = convert(self.conversion, self.strftime, value)
        if value is None:
            value = ""
        if ("h" in self.flags or self.conversion == "h") and str(value) in EMPTY:
            value = "-"
        if isinstance(value, int | float) and not isinstance(value, bool) and self.type not in ("", "s"):
            return format(value, self.spec)
        text = str(value)
        if "+" in self.flags:
            limit = self.precision if self.precision is not None else self.width
            if limit and len(text) > limit:
                text = text[: limit - 1] + "+"
        elif self.precision is not None:
            text = text[: self.precision]
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return self.pad(text, ">" if numeric else "<")

    def pad(self, text: str, default: str = "<") -> str:
        align = self.align or default
        if align == "^":
            return format(text, f"{self.fill}^{self.width}") if self.width else text
        return text.rjust(self.width, self.fill) if align in (">", "=") else text.ljust(self.width, self.fill)


def _split(text: str) -> tuple[str, str, str]:
    """`name!c` and the spec after its colon."""
    name, _, rest = text.partition("!")
    conversion, colon, spec = rest.partition(":")
    return f"{name}!{conversion}", colon, spec


def convert(conversion: str, strftime: str, value: Any) -> Any:
    """Apply `!conversion`; what is empty stays so."""
    if conversion in ("h", "s"):
        return value
    if conversion == "r":
        return repr(value)
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        return value
    if conversion in ("d", "D"):
        if not number:
            return ""
        moment = time.localtime(number)
        return time.strftime(strftime or "%FT%T", moment) if conversion == "d" else time.strftime("%FT%T", moment)
    if conversion == "F":
        if number == float("inf"):
            return "inf"
        from leveret.core import duration

        return duration.encode(max(number, 0.0))
    if conversion == "P":
        return f"{number * 100:.3g}%"
    seconds = int(number + 0.5)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class Format:
    """A parsed format. `known` checks a field's name and gives its heading; None: there is no such field."""

    def __init__(self, text: str, known: Callable[[str], str | None]) -> None:
        self.sort_keys: list[str] = []
        match = re.match(r"sort:(\S+)\s+", text)
        if match:
            self.sort_keys = match[1].split(",")
            text = text[match.end() :]
        self.fields: list[Field] = []
        self.tail = ""
        self.headings: dict[str, str] = {}
        at, before = 0, ""
        for token in _TOKEN.finditer(text):
            before += text[at : token.start()]
            at = token.end()
            if token[0] in ("{{", "}}"):
                before += token[0][0]
                continue
            field = Field(token[2], token[1] or "", before)
            heading = known(field.name)
            if heading is None:
                raise InvalidError(f"Error in user format: Unknown format field: {field.name}")
            self.headings[field.name] = heading
            self.fields.append(field)
            before = ""
        self.tail = before + text[at:]

    def lines(
        self, rows: Sequence[Mapping[str, Any] | Any], value_of: Callable[[Any, str], Any], header: bool
    ) -> list[str]:
        """The header, if wanted, and a line per row."""
        values = [[value_of(row, field.name) for field in self.fields] for row in rows]
        shown = []
        for index, field in enumerate(self.fields):
            column = [row[index] for row in values]
            if field.collapses and rows and all(is_empty(field, value) for value in column):
                continue
            if field.collapses and not rows:
                continue
            if field.widens:
                field.precision = None
                longest = max((len(field.render(value).rstrip()) for value in column), default=0)
                field.width = max(field.width, longest, len(self.headings[field.name]))
            shown.append(index)
        lines = []
        if header:
            parts = [self.fields[i].before + self.fields[i].pad(self.headings[self.fields[i].name]) for i in shown]
            lines.append("".join(parts) + self.tail)
        for row in values:
            lines.append("".join(self.fields[i].before + self.fields[i].render(row[i]) for i in shown) + self.tail)
        return lines


def is_empty(field: Field, value: Any) -> bool:
    if field.conversion:
        value = convert(field.conversion, field.strftime, value)
    return value is None or str(value) in EMPTY
