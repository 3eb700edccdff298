"""Constraints: what they allow (RFC 31), how they are written (RFC 35), and what is refused where."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core import constraint
from leveret.errors import FormatError

NODES = [(rank, f"n{rank}", props) for rank, props in enumerate([{"ssd"}, {"ssd", "slow"}, {"fast"}, set()])]


def ranks(obj: dict[str, Any] | None) -> list[int]:
    test = constraint.compiled(obj)
    return [rank for rank, host, props in NODES if test(rank, host, props)]


@pytest.mark.parametrize(
    ("obj", "expect"),
    [
        (None, [0, 1, 2, 3]),
        ({}, [0, 1, 2, 3]),
        ({"properties": ["ssd"]}, [0, 1]),
        ({"properties": ["ssd", "slow"]}, [1]),
        ({"properties": ["^ssd"]}, [2, 3]),
        ({"properties": ["ssd", "^slow"]}, [0]),
        ({"hostlist": ["n[1-2]", "n3"]}, [1, 2, 3]),
        ({"ranks": ["0,2-3"]}, [0, 2, 3]),
        ({"not": [{"properties": ["ssd"]}]}, [2, 3]),
        ({"or": [{"properties": ["fast"]}, {"ranks": ["0"]}]}, [0, 2]),
        ({"and": [{"properties": ["ssd"]}, {"hostlist": ["n1"]}]}, [1]),
        ({"properties": ["ssd"], "ranks": ["1"]}, [1]),
        ({"and": []}, [0, 1, 2, 3]),
        ({"or": []}, []),
        ({"properties": ["nosuch"]}, []),
    ],
)
def test_what_a_constraint_allows(obj: dict[str, Any] | None, expect: list[int]) -> None:
    assert ranks(obj) == expect


def p(*names: str) -> dict[str, Any]:
    return {"properties": list(names)}


@pytest.mark.parametrize(
    ("text", "expect"),
    [  # the RFC's examples, with `properties` as the default operator
        ("foo", p("foo")),
        ("foo bar", {"and": [p("foo"), p("bar")]}),
        ("foo bar host:n1", {"and": [p("foo"), p("bar"), {"hostlist": ["n1"]}]}),
        ("a|b|c", {"or": [p("a"), p("b"), p("c")]}),
        ("a|b&c", {"or": [p("a"), {"and": [p("b"), p("c")]}]}),
        ("(a|b)&c", {"and": [{"or": [p("a"), p("b")]}, p("c")]}),
        ("(a|-b)&c", {"and": [{"or": [p("a"), {"not": [p("b")]}]}, p("c")]}),
        # and more
        ("a and b or not c", {"or": [{"and": [p("a"), p("b")]}, {"not": [p("c")]}]}),
        ("not (a || b) && rank:0-3", {"and": [{"not": [{"or": [p("a"), p("b")]}]}, {"ranks": ["0-3"]}]}),
        ("-host:node[1-3]", {"not": [{"hostlist": ["node[1-3]"]}]}),
        ("^slow", p("^slow")),
        ("properties:'with space'", p("with space")),
        ("hosts:a,b", {"hostlist": ["a,b"]}),
        ("nothing android", {"and": [p("nothing"), p("android")]}),
    ],
)
def test_how_it_is_written(text: str, expect: dict[str, Any]) -> None:
    assert constraint.parse(text) == expect


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo(", "Unclosed parenthesis in position 3"),  # as Flux says it
        ("(a", "Unclosed parenthesis in position 0"),
        ("a)", "Invalid token ')' in position 1"),
        ("", "Unexpected end of the constraint in position 0"),
        ("a |", "Unexpected end of the constraint in position 3"),
        ("| a", "Invalid token 'or' in position 0"),
        ("-(a|b)", "Missing operand in position 0"),
        ("color:red", "unknown constraint operator 'color' in position 0"),
        ("a host:n[", "position 2"),
        ("rank:x", "position 0"),
        ("'open", "Unclosed quote in position 0"),
        ("host:", "Missing operand in position 0"),
        ("(" * 60 + "a" + ")" * 60, "more than 50 levels"),
    ],
)
def test_what_is_refused_and_where(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        constraint.parse(text)
    assert message in caught.value.message


def test_join() -> None:
    assert constraint.join(None, {}) is None
    assert constraint.join(p("a"), None) == p("a")
    assert constraint.join(p("a"), p("a")) == p("a")
    assert constraint.join(p("a"), p("b")) == {"and": [p("a"), p("b")]}
    assert constraint.join({"and": [p("a"), p("b")]}, p("c")) == {"and": [p("a"), p("b"), p("c")]}


@pytest.mark.parametrize("text", ["a", "a b", "(a or b) -c", "host:n[1-2] ranks:0", "not (a b)"])
def test_what_is_described_reads_as_the_same(text: str) -> None:
    first = constraint.parse(text)
    again = constraint.parse(constraint.describe(first))
    assert ranks(again) == ranks(first)
    assert constraint.describe(again) == constraint.describe(first)
