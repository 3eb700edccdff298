"""Constraints: which execution targets a job may have (RFC 31), and the text that people write them in (RFC 35).

A constraint is JSON data, `{operator: [values]}`: `properties` (all of them; `^name` is one that must be absent), `hostlist` and
`ranks` (any of them), and `and`, `or`, `not`. Several operators in one object must all hold; `{}` holds everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from leveret.core import hostlist, idset
from leveret.errors import FormatError

Constraint = dict[str, Any]
Predicate = Callable[[int, str, Collection[str]], bool]
"""(rank, host, its properties) → whether it may be used."""

DEPTH_MAX = 50
"""How deep parentheses of a query may be nested."""
#: operators of the text → operators of RFC 31
OPERATORS = {
    "property": "properties",
    "properties": "properties",
    "host": "hostlist",
    "hosts": "hostlist",
    "hostlist": "hostlist",
    "rank": "ranks",
    "ranks": "ranks",
}
PROPERTY_FORBIDDEN = frozenset("!&'\"^`|()")


def join(first: Constraint | None, second: Constraint | None) -> Constraint | None:
    """Both must hold. None and `{}` hold everywhere."""
    if not first or not second or first == second:
        return first or second or None
    parts: list[Constraint] = []
    for constraint in (first, second):
        parts += constraint["and"] if list(constraint) == ["and"] else [constraint]
    return {"and": parts}


def key(constraint: Constraint | None) -> str:
    """The same text for the same constraint; "" for none."""
    return json.dumps(constraint, sort_keys=True) if constraint else ""


def compiled(constraint: Constraint | None) -> Predicate:
    """The predicate of a valid constraint. Raises FormatError for an unknown operator, host list or idset."""
    tests = [_operator(name, values) for name, values in (constraint or {}).items()]
    if len(tests) == 1:
        return tests[0]
    return lambda rank, host, has: all(test(rank, host, has) for test in tests)


def _operator(name: str, values: list[Any]) -> Predicate:
    if name == "properties":
        wanted = frozenset(text for text in values if not text.startswith("^"))
        unwanted = frozenset(text[1:] for text in values if text.startswith("^"))
        return lambda rank, host, has: wanted.issubset(has) and unwanted.isdisjoint(has)
    if name == "hostlist":
        hosts = frozenset(one for text in values for one in hostlist.parse(text))
        return lambda rank, host, has: host in hosts
    if name == "ranks":
        ranks = frozenset(one for text in values for one in idset.parse(text))
        return lambda rank, host, has: rank in ranks
    parts = [compiled(value) for value in values] if name in ("and", "or", "not") else []
    if name == "and":
        return lambda rank, host, has: all(part(rank, host, has) for part in parts)
    if name == "or":
        return lambda rank, host, has: any(part(rank, host, has) for part in parts)
    if name == "not":
        return lambda rank, host, has: not all(part(rank, host, has) for part in parts)
    raise FormatError(f"{name} is not a known constraint operator")


def describe(constraint: Constraint | None) -> str:
    """The constraint as people would write it (RFC 35); "" for none."""
    return _text(constraint, top=True) if constraint else ""


def _text(constraint: Constraint, top: bool) -> str:
    parts: list[str] = []
    for name, values in constraint.items():
        if name == "properties":
            parts += [f"-{text[1:]}" if text.startswith("^") else text for text in values]
        elif name == "hostlist":
            parts.append(f"host:{','.join(values)}")
        elif name == "ranks":
            parts.append(f"ranks:{','.join(values)}")
        elif name == "not":
            parts.append("not (" + " ".join(_text(value, True) for value in values) + ")")
        else:
            parts.append(f" {name} ".join(_text(value, False) for value in values))
            if not top and len(values) > 1:
                parts[-1] = f"({parts[-1]})"
    return " ".join(parts)


# ---- the text (RFC 35) ---------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()]|&{1,2}|\|{1,2})|(?P<term>(?:[^\s()&|'"]|'[^']*'|"[^"]*")+)|(?P<bad>['"]))"""
)


def parse(text: str) -> Constraint:
    """The constraint of a query such as `ssd and -host:node[1-3]`. A term without an operator is a property.

    `-term` and `not expr` negate; `and`, `&`, `&&` or nothing at all join; `or`, `|`, `||` choose; parentheses group.
    Raises FormatError that names the position (counted from 0).
    """
    parser = _Parser(text)
    result = parser.alternatives(0)
    if parser.token is not None:
        raise parser.unexpected()
    return result


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0  #: where the current token begins
        self.end = 0
        self.token: str | None = None  #: None at the end; else the term as written, or an operator
        self.quoted = False
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            self.at = len(self.text)
            self.token = None
            return
        kind = match.lastgroup
        assert kind is not None
        self.at, self.end = match.start(kind), match.end(kind)
        if kind == "bad":
            raise FormatError(f"Unclosed quote in position {self.at}")
        token = match.group(kind)
        self.quoted = token[0] in "'\""
        self.token = {"&": "and", "&&": "and", "|": "or", "||": "or"}.get(token, token)

    def word(self, *names: str) -> bool:
        return self.token in names and not self.quoted

    def unexpected(self) -> FormatError:
        if self.token is None:
            return FormatError(f"Unexpected end of the constraint in position {self.at}")
        return FormatError(f"Invalid token '{self.token}' in position {self.at}")

    def alternatives(self, depth: int) -> Constraint:
        parts = [self.together(depth)]
        while self.word("or"):
            self.advance()
            parts.append(self.together(depth))
        return parts[0] if len(parts) == 1 else {"or": parts}

    def together(self, depth: int) -> Constraint:
        parts = [self.single(depth)]
        while self.token is not None and not self.word("or", ")"):
            if self.word("and"):
                self.advance()
            parts.append(self.single(depth))
        return parts[0] if len(parts) == 1 else {"and": parts}

    def single(self, depth: int) -> Constraint:
        if depth > DEPTH_MAX:
            raise FormatError(f"more than {DEPTH_MAX} levels in position {self.at}")
        if self.word("not"):
            self.advance()
            return {"not": [self.single(depth + 1)]}
        if self.word("("):
            opened = self.at
            self.advance()
            if self.token is None:
                raise FormatError(f"Unclosed parenthesis in position {opened}")
            inner = self.alternatives(depth + 1)
            if not self.word(")"):
                raise FormatError(f"Unclosed parenthesis in position {opened}")
            self.advance()
            return inner
        if self.token is None or self.word(")", "and", "or"):
            raise self.unexpected()
        return self.term()

    def term(self) -> Constraint:
        token, at = self.token, self.at
        assert token is not None
        negated = token.startswith("-")
        name, colon, operand = token[negated:].partition(":")
        if not colon:
            name, operand = "properties", name
        operand = re.sub(r"""'([^']*)'|"([^"]*)\"""", lambda m: m[1] or m[2] or "", operand)
        operator = OPERATORS.get(name)
        if operator is None:
            raise FormatError(
                f"unknown constraint operator '{name}' in position {at}", "known: properties, host, ranks"
            )
        self.check(operator, operand, at)
        self.advance()
        found: Constraint = {operator: [operand]}
        return {"not": [found]} if negated else found

    def check(self, operator: str, operand: str, at: int) -> None:
        try:
            if operator == "hostlist":
                hostlist.parse(operand)
            elif operator == "ranks":
                idset.parse(operand)
            elif not PROPERTY_FORBIDDEN.isdisjoint(operand.removeprefix("^")):
                raise FormatError(f'"{operand}" is not a valid property')
        except FormatError as error:
            raise FormatError(f"{error.message} in position {at}") from None
        if not operand.removeprefix("^"):
            raise FormatError(f"Missing operand in position {at}")
