"""Resource shapes: a jobspec's resources as one word, `slot=10/core=2` (RFC 46). Pure.

Counts are integers, RFC 22 idsets or RFC 45 ranges: `4`, `4,9,16`, `3-30:2:*`, `2+`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from leveret.core import idset
from leveret.errors import FormatError

_RANGE = re.compile(r"([1-9]\d*)(?:-([1-9]\d*)|\+)(?::([1-9]\d*)(?::([+*^]))?)?")
_WORD = re.compile(r"[^;/\[\]{}=,:\"\s]+")
DEPTH_MAX = 32


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.slots: list[dict[str, Any]] = []
        self.unlabelled: list[dict[str, Any]] = []

    def fail(self, why: str) -> FormatError:
        return FormatError(f'"{self.text[:60]}" is not a resource shape: {why}, at character {self.at + 1}')

    @property
    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, char: str) -> bool:
        if self.next != char:
            return False
        self.at += 1
        return True

    def expect(self, char: str) -> None:
        if not self.take(char):
            raise self.fail(f"`{char}` is missing")

    def word(self, what: str) -> str:
        """A string, quoted where it has special characters."""
        if self.next == '"':
            value = self.json()
            if isinstance(value, str) and value:
                return value
            raise self.fail(f"{what} must be a string")
        match = _WORD.match(self.text, self.at)
        if match is None:
            raise self.fail(f"{what} is missing")
        self.at = match.end()
        return match[0]

    def json(self) -> Any:
        try:
            value, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        except ValueError:
            raise self.fail("a value cannot be read") from None
        return value

    # ---- the grammar ---------------------------------------------------------------------------------

    def list(self, depth: int = 0) -> list[dict[str, Any]]:
        if depth > DEPTH_MAX:
            raise self.fail(f"more than {DEPTH_MAX} levels")
        if not self.take("["):
            return [self.vertex(depth)]
        found = [self.vertex(depth)]
        while self.take(";"):
            found.append(self.vertex(depth))
        self.expect("]")
        return found

    def vertex(self, depth: int) -> dict[str, Any]:
        kind = self.word("a type")
        vertex: dict[str, Any] = {"type": kind, "count": self.count() if self.take("=") else 1}
        if kind == "slot":
            self.slots.append(vertex)
        if self.next == "{":
            self.braces(vertex, slot=kind == "slot")
        if kind == "slot" and "label" not in vertex:
            vertex["label"] = "default"
            self.unlabelled.append(vertex)
        if self.take("/"):
            vertex["with"] = self.list(depth + 1)
        elif kind == "slot":
            raise self.fail("a slot must have something in it")
        return vertex

    def count(self) -> int | str | dict[str, Any]:
        end = re.compile(r"[{/;\]]|$")
        if self.take("["):
            close = self.text.find("]", self.at)
            if close < 0:
                raise self.fail("a bracket is not closed")
            text, self.at = self.text[self.at : close], close + 1
        else:
            match = end.search(self.text, self.at)
            assert match is not None
            text, self.at = self.text[self.at : match.start()], match.start()
        if re.fullmatch(r"[1-9]\d*", text):
            return int(text)
        if match := _RANGE.fullmatch(text):
            low, high, operand, operator = match.groups()
            if high is not None and int(high) < int(low):
                raise self.fail(f"the range {text} descends")
            found: dict[str, Any] = {"min": int(low)}
            if high is not None:
                found["max"] = int(high)
            if high is not None or operand is not None:
                found |= {"operator": operator or "+", "operand": int(operand or 1)}
            return found
        try:
            if not text.isdigit() and idset.parse(text):
                return text
        except FormatError:
            pass
        raise self.fail(f"`{text}` is not a count")

    def braces(self, vertex: dict[str, Any], slot: bool) -> None:
        self.expect("{")
        if slot:
            vertex["label"] = self.word("a label")
        elif self.next != "}":
            self.item(vertex)
        while self.take(","):
            self.item(vertex)
        self.expect("}")

    def item(self, out: dict[str, Any]) -> None:
        sign = self.next if self.next in ("+", "-") else ""
        self.at += len(sign)
        key = self.word("a key")
        key = "exclusive" if key == "x" else key
        if key in out:
            raise self.fail(f"`{key}` is said twice")
        if not sign and self.take(":"):
            out[key] = self.value()
        else:
            out[key] = sign != "-"

    def value(self) -> Any:
        if self.next == "{":
            inner: dict[str, Any] = {}
            self.expect("{")
            if self.next != "}":
                self.item(inner)
                while self.take(","):
                    self.item(inner)
            self.expect("}")
            return inner
        if self.next in ("[", '"'):
            return self.json()
        text = self.word("a value")
        try:
            return json.loads(text)
        except ValueError:
            return text


def parse(text: str) -> list[dict[str, Any]]:
    """The `resources` of a jobspec (RFC 14). Raises FormatError, with the place, for what is no shape."""
    reader = _Reader(text)
    found = reader.list()
    if reader.at != len(text):
        raise reader.fail("something is left over")
    if len(reader.slots) > 1 and reader.unlabelled:
        raise reader.fail("with several slots, each needs a label")
    return found


def slot_label(resources: list[Any]) -> str | None:
    """The label of the first slot, for `tasks`; None without a slot."""
    for vertex in resources:
        if not isinstance(vertex, dict):
            continue
        if vertex.get("type") == "slot":
            label = vertex.get("label")
            return label if isinstance(label, str) else None
        inner = vertex.get("with")
        if isinstance(inner, list) and (found := slot_label(inner)) is not None:
            return found
    return None
