"""Events: one line of an eventlog (RFC 18).

An event is a timestamp (seconds since the epoch, float), a name, and an optional context object.
Unknown names and unknown context keys are kept as they came. The contexts of the names that
RFC 21 defines are checked on posting (`check_context`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from leveret.errors import EventError, FormatError

Context = Mapping[str, Any]

_encoder = msgspec.json.Encoder()


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """{timestamp, name, context}; a context that is absent stays absent (RFC 18: OPTIONAL)."""

    timestamp: float
    name: str
    context: dict[str, Any] | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """One key of the context, or `default`."""
        return default if self.context is None else self.context.get(key, default)


_decoder = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """The RFC 18 line, without its newline."""
    return _encoder.encode(event)


def decode(line: bytes | str) -> Event:
    """One RFC 18 line. Raises FormatError when it is not an event object."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"not an RFC 18 event: {error}") from None


def decode_log(text: bytes) -> list[Event]:
    """Every event of an eventlog: newline-terminated lines."""
    return [decode(line) for line in text.splitlines() if line.strip()]


def _is_int(low: int, high: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if ok else f"must be an integer from {low} to {high}"

    return check


def _is_str(value: Any) -> str:
    return "" if isinstance(value, str) else "must be a string"


def _is_name(value: Any) -> str:
    return "" if isinstance(value, str) and value else "must be a non-empty string"


def _is_bool(value: Any) -> str:
    return "" if isinstance(value, bool) else "must be true or false"


def _is_names(value: Any) -> str:
    return "" if isinstance(value, list) and all(isinstance(v, str) for v in value) else "must be an array of strings"


def _is_number(value: Any) -> str:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    return "" if ok else "must be a number"


def _is_object(value: Any) -> str:
    return "" if isinstance(value, dict) else "must be an object"


def _one_of(*allowed: str) -> Callable[[Any], str]:
    return lambda value: "" if value in allowed else "must be one of " + ", ".join(allowed)


def _some_of(*allowed: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        ok = isinstance(value, list) and all(v in allowed for v in value)
        return "" if ok else "must be an array of " + ", ".join(allowed)

    return check


_INT = _is_int(-(2**63), 2**63 - 1)
_STATUS = _is_int(-(2**31), 2**31 - 1)

#: name → (required keys, optional keys), each with its check (RFC 21; `part-*` and `give-up` are Leveret's own)
CONTEXTS: dict[str, tuple[dict[str, Callable[[Any], str]], dict[str, Callable[[Any], str]]]] = {
    "submit": ({"urgency": _is_int(0, 31), "userid": _INT, "flags": _INT, "version": _INT}, {}),
    "set-flags": ({"flags": _is_names}, {}),
    "dependency-add": ({"description": _is_name}, {}),
    "dependency-remove": ({"description": _is_name}, {}),
    "priority": ({"priority": _is_int(0, 4294967295)}, {}),
    "urgency": ({"urgency": _is_int(0, 31), "userid": _INT}, {}),
    "prolog-start": ({"description": _is_name}, {"deadline": _is_number}),
    "prolog-finish": ({"description": _is_name, "status": _STATUS}, {}),
    "epilog-start": ({"description": _is_name}, {"deadline": _is_number}),
    "epilog-finish": ({"description": _is_name, "status": _STATUS}, {}),
    "alloc": ({}, {"annotations": _is_object}),
    "resource-update": ({}, {"expiration": _is_number}),
    "release": ({"ranks": _is_str, "final": _is_bool}, {}),
    "finish": ({"status": _STATUS}, {}),
    "exception": ({"type": _is_name, "severity": _is_int(0, 7), "note": _is_str}, {"userid": _INT}),
    "part-start": (
        {"description": _is_name},
        {
            "owner": _one_of("user", "site"),
            "blocks": _some_of("start", "free", "clean"),
            "uses": _one_of("nodes", "storage", "none"),
            "deadline": _is_number,
            "role": _one_of("", "data", "auxiliary"),
            "lease": _is_number,
        },
    ),
    "give-up": (
        {"description": _is_name, "kind": _one_of("dependency", "prolog", "epilog", "part"), "userid": _INT},
        {"reason": _is_str, "left": _is_str},
    ),
    "part-finish": ({"description": _is_name, "status": _STATUS}, {"note": _is_str}),
}

#: names whose context SHALL be empty
NO_CONTEXT = frozenset({"validate", "invalidate", "depend", "start", "free", "clean", "flux-restart"})


def check_context(name: str, context: Context | None) -> None:
    """Raise EventError, with the bad key as `path`, when a known event's context breaks RFC 21."""
    if name in NO_CONTEXT:
        if context:
            raise EventError(f"{name}: the context must be empty", path="context")
        return
    rule = CONTEXTS.get(name)
    if rule is None:
        if name == "jobspec-update" and not (context and all(k.startswith("attributes.") for k in context)):
            raise EventError("jobspec-update: every key must begin with `attributes.`", path="context")
        return
    given = context or {}
    required, optional = rule
    for key, check in required.items():
        if key not in given:
            raise EventError(f"{name}: missing key `{key}`", path=f"context.{key}")
        if problem := check(given[key]):
            raise EventError(f"{name}: `{key}` {problem}", path=f"context.{key}")
    for key, check in optional.items():
        if key in given and (problem := check(given[key])):
            raise EventError(f"{name}: `{key}` {problem}", path=f"context.{key}")
