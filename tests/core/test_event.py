"""Events: the RFC 18 line, and the contexts that RFC 21 requires of known names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.event import Event, check_context, decode, decode_log, encode
from leveret.errors import EventError, FormatError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.floats(0, 1e12), st.text(min_size=1), st.none() | st.dictionaries(st.text(), json_values, max_size=4))
def test_a_line_reads_back_as_the_same_event(timestamp: float, name: str, context: dict[str, Any] | None) -> None:
    event = Event(timestamp, name, context)
    line = encode(event)
    assert b"\n" not in line
    assert decode(line) == event


def test_an_absent_context_stays_absent() -> None:
    assert encode(Event(1.5, "validate")) == b'{"timestamp":1.5,"name":"validate"}'
    assert decode(b'{"timestamp":1,"name":"x"}').context is None
    assert encode(Event(1.5, "x", {})) == b'{"timestamp":1.5,"name":"x","context":{}}'


def test_a_log_is_lines() -> None:
    log = b'{"timestamp":1,"name":"a"}\n{"timestamp":2.5,"name":"b","context":{"k":[1]}}\n'
    assert decode_log(log) == [Event(1.0, "a"), Event(2.5, "b", {"k": [1]})]
    assert decode_log(b"") == []


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"name":"x"}', b'{"timestamp":1}', b'{"timestamp":"1","name":"x"}', b'{"timestamp":1,"name":2}',
     b'{"timestamp":1,"name":"x","context":[]}', b"\xff\xfe", b'{"timestamp":1,"name":"\xff"}'],
)  # fmt: skip
def test_what_is_no_event_is_a_format_error(line: bytes) -> None:
    with pytest.raises(FormatError, match="RFC 18"):
        decode(line)


#: name → a context that is right
RIGHT: dict[str, dict[str, Any] | None] = {
    "submit": {"userid": 1000, "urgency": 16, "flags": 0, "version": 1},
    "set-flags": {"flags": ["debug"]},
    "dependency-add": {"description": "d"},
    "dependency-remove": {"description": "d"},
    "priority": {"priority": 16},
    "urgency": {"urgency": 31, "userid": 0},
    "alloc": {"annotations": {"sched": {"resource_summary": "rank0/core0"}}},
    "resource-update": {"expiration": 17.5},
    "prolog-start": {"description": "p"},
    "prolog-finish": {"description": "p", "status": 0},
    "epilog-start": {"description": "e"},
    "epilog-finish": {"description": "e", "status": 256},
    "release": {"ranks": "all", "final": True},
    "finish": {"status": 0},
    "exception": {"type": "cancel", "severity": 0, "note": ""},
    "part-start": {"description": "p", "owner": "user", "blocks": ["start", "free"], "uses": "nodes", "deadline": 1.5},
    "part-finish": {"description": "p", "status": 0, "note": "n"},
    "jobspec-update": {"attributes.system.duration": 10},
}
REQUIRED = {
    "submit": ["urgency", "userid", "flags", "version"],
    "set-flags": ["flags"],
    "dependency-add": ["description"],
    "dependency-remove": ["description"],
    "priority": ["priority"],
    "urgency": ["urgency", "userid"],
    "prolog-start": ["description"],
    "prolog-finish": ["description", "status"],
    "epilog-start": ["description"],
    "epilog-finish": ["description", "status"],
    "release": ["ranks", "final"],
    "finish": ["status"],
    "exception": ["type", "severity", "note"],
    "part-start": ["description"],
    "part-finish": ["description", "status"],
}
BARE = ["validate", "invalidate", "depend", "start", "free", "clean", "flux-restart"]
#: (name, key, values that are wrong)
WRONG = [
    ("submit", "urgency", [-1, 32, 1.5, "16", True, None]),
    ("submit", "userid", ["root", None, 2**63]),
    ("submit", "flags", [[], "waitable"]),
    ("submit", "version", ["1", None]),
    ("set-flags", "flags", ["debug", [1], None]),
    ("dependency-add", "description", ["", 3, None]),
    ("dependency-remove", "description", ["", 3, None]),
    ("priority", "priority", [-1, 2**32, "16", True, None]),
    ("urgency", "urgency", [-1, 32, "0", None]),
    ("urgency", "userid", ["0", None]),
    ("prolog-start", "description", ["", 3]),
    ("prolog-start", "deadline", ["soon", None]),
    ("prolog-finish", "status", ["0", None, 2**31, True]),
    ("epilog-start", "description", ["", 3]),
    ("epilog-finish", "description", ["", None]),
    ("epilog-finish", "status", [0.5, None]),
    ("release", "ranks", [0, [0], None]),
    ("release", "final", [1, "true", None]),
    ("finish", "status", ["0", 1.0, None, False]),
    ("alloc", "annotations", [None, [], 5]),
    ("resource-update", "expiration", [None, "soon", True]),
    ("exception", "type", ["", 1, None]),
    ("exception", "severity", [-1, 8, "0", None]),
    ("exception", "note", [None, 1]),
    ("exception", "userid", ["root"]),
    ("part-start", "description", ["", 1]),
    ("part-start", "owner", ["root", None]),
    ("part-start", "blocks", ["free", ["depend"], [1], None]),
    ("part-start", "uses", ["gpu", ["nodes"], None]),
    ("part-start", "deadline", ["1d", True, float("inf"), float("nan")]),
    ("part-finish", "status", [None, "1"]),
    ("part-finish", "note", [None, 1]),
]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_context_is_taken_and_more_keys_too(name: str) -> None:
    check_context(name, RIGHT[name])
    if name != "jobspec-update":
        check_context(name, {**(RIGHT[name] or {}), "some-sites-own": [1]})


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, keys in REQUIRED.items() for k in keys])
def test_a_missing_key_is_named_by_path(name: str, key: str) -> None:
    context = {k: v for k, v in (RIGHT[name] or {}).items() if k != key}
    with pytest.raises(EventError) as caught:
        check_context(name, context)
    assert caught.value.path == f"context.{key}"
    assert f"`{key}`" in caught.value.message


@pytest.mark.parametrize("name", REQUIRED)
def test_no_context_at_all_is_a_missing_key(name: str) -> None:
    with pytest.raises(EventError) as caught:
        check_context(name, None)
    assert caught.value.path == f"context.{REQUIRED[name][0]}"


@pytest.mark.parametrize(("name", "key", "value"), [(n, k, v) for n, k, values in WRONG for v in values])
def test_a_wrong_value_is_named_by_path(name: str, key: str, value: Any) -> None:
    with pytest.raises(EventError) as caught:
        check_context(name, {**(RIGHT[name] or {}), key: value})
    assert caught.value.path == f"context.{key}"


@pytest.mark.parametrize("name", BARE)
def test_names_without_a_context(name: str) -> None:
    check_context(name, None)
    check_context(name, {})
    with pytest.raises(EventError) as caught:
        check_context(name, {"k": 1})
    assert caught.value.path == "context"


@pytest.mark.parametrize("context", [None, {}, {"duration": 1}, {"attributes.system.duration": 1, "other": 2}])
def test_a_jobspec_update_is_of_attributes(context: dict[str, Any] | None) -> None:
    with pytest.raises(EventError) as caught:
        check_context("jobspec-update", context)
    assert caught.value.path == "context"


@pytest.mark.parametrize("context", [None, {}, {"anything": {"at": ["all"]}}])
def test_unknown_names_may_carry_anything(context: dict[str, Any] | None) -> None:
    check_context("debug.whatever", context)
