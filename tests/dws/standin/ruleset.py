"""The `nnf` DWDirectiveRule, and the judge that applies rules to #DW directives (the webhook's part)."""

from __future__ import annotations

import re
from typing import Any

_TYPE = r"^(raw|xfs|gfs2|lustre)$"
_CAPACITY = r"^\d+(KiB|KB|MiB|MB|GiB|GB|TiB|TB)$"
_NAME = r"^[a-z][a-z0-9-]+$"
_ALL = "Proposal,Setup,PreRun,PostRun,Teardown"


def _string(key: str, required: bool = False, pattern: str = "", unique: str = "") -> dict[str, Any]:
    rule: dict[str, Any] = {"key": key, "type": "string", "isRequired": required, "isValueRequired": True}
    return rule | ({"pattern": pattern} if pattern else {}) | ({"uniqueWithin": unique} if unique else {})


_requires = {
    "key": "^requires$",
    "type": "list-of-string",
    "isRequired": False,
    "isValueRequired": True,
    "patterns": ["^copy-offload$", "^user-container-auth$"],
}


def _copy() -> list[dict[str, Any]]:
    return [_string("^source$", True), _string("^destination$", True), _string("^profile$", pattern=_NAME)]


NNF_RULES: list[dict[str, Any]] = [
    {
        "command": "jobdw",
        "watchStates": _ALL,
        "ruleDefs": [
            _string("^type$", True, _TYPE),
            _string("^capacity$", True, _CAPACITY),
            _string("^name$", True, _NAME, "jobdw_name"),
            _string("^profile$", pattern=_NAME),
            _requires,
        ],
    },
    {
        "command": "create_persistent",
        "watchStates": "Proposal,Setup,Teardown",
        "ruleDefs": [
            _string("^type$", True, _TYPE),
            _string("^capacity$", False, _CAPACITY),
            _string("^name$", True, _NAME, "create_persistent_name"),
            _string("^profile$", pattern=_NAME),
        ],
    },
    {
        "command": "destroy_persistent",
        "watchStates": "Proposal,Teardown",
        "ruleDefs": [_string("^name$", True, _NAME, "destroy_persistent_name")],
    },
    {"command": "persistentdw", "watchStates": _ALL, "ruleDefs": [_string("^name$", True, _NAME), _requires]},
    {"command": "copy_in", "watchStates": "Proposal,DataIn,Teardown", "ruleDefs": _copy()},
    {"command": "copy_out", "watchStates": "Proposal,DataOut,Teardown", "ruleDefs": _copy()},
    {
        "command": "container",
        "watchStates": _ALL,
        "ruleDefs": [
            _string("^name$", True, _NAME),
            _string("^profile$", True, _NAME),
            _string("^(DW_JOB_|DW_PERSISTENT_|DW_GLOBAL_)[a-z][a-z0-9_]+$"),
        ],
    },
]


class Rejected(Exception):
    """The webhook's text for a directive that it does not take."""


def arguments(directive: str) -> tuple[str, dict[str, str | None]]:
    """(command, arguments): a key without `=` has the value None."""
    words = directive.split()
    if not words or words[0] != "#DW":
        raise Rejected(f"missing '#DW' prefix in directive '{directive}'")
    if len(words) < 2:
        raise Rejected(f"invalid directive '{directive}'")
    found: dict[str, str | None] = {}
    for word in words[2:]:
        key, equals, value = word.partition("=")
        if key in found:
            raise Rejected(f"repeated argument '{key}' in directive '{directive}'")
        found[key] = value if equals else None
    return words[1], found


def judge(rules: list[dict[str, Any]], directives: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """The (directive index, rule) pairs that match; raises Rejected."""
    used: dict[str, set[str]] = {}
    matched = []
    for index, directive in enumerate(directives):
        command, found = arguments(directive)
        mine = [rule for rule in rules if rule["command"] == command]
        if not mine:
            raise Rejected(f"invalid directive '{directive}'")
        for rule in mine:
            _check(rule["ruleDefs"], found, used)
            matched.append((index, rule))
    return matched


def _check(definitions: list[dict[str, Any]], found: dict[str, str | None], used: dict[str, set[str]]) -> None:
    for key, value in found.items():
        definition = next((one for one in definitions if re.search(one["key"], key)), None)
        if definition is None:
            raise Rejected(f"unsupported argument '{key}'")
        if value is None and definition.get("isValueRequired"):
            raise Rejected(f"argument '{key}' requires value")
        _check_value(definition, key, value or "", bare=value is None)
        tag = definition.get("uniqueWithin")
        if tag:
            if (value or "") in used.setdefault(tag, set()):
                raise Rejected(f"value '{value}' must be unique within '{tag}'")
            used[tag].add(value or "")
    for definition in definitions:
        if definition.get("isRequired") and not any(re.search(definition["key"], key) for key in found):
            raise Rejected(f"missing required argument '{definition['key']}'")


def _check_value(definition: dict[str, Any], key: str, value: str, *, bare: bool) -> None:
    kind = definition["type"]
    if kind == "string":
        if definition.get("pattern") and not re.search(definition["pattern"], value):
            raise Rejected(f"argument '{key}' invalid string '{value}'")
    elif kind == "list-of-string":
        words = value.split(",")
        for number, word in enumerate(words):
            patterns = definition.get("patterns") or []
            if patterns and not any(re.search(pattern, word) for pattern in patterns):
                raise Rejected(f"argument '{key}' invalid string '{word}' in list '{value}'")
            if word in words[:number]:
                raise Rejected(f"argument '{key}' word '{word}' repeated in list '{value}'")
    elif kind == "integer":
        if not re.fullmatch(r"[+-]?\d+", value):
            raise Rejected(f"argument '{key}' invalid integer '{value}'")
        if "max" in definition and int(value) > definition["max"]:
            raise Rejected(
                f"argument '{key}' specified integer value {value} greather than maximum value {definition['max']}"
            )
        if "min" in definition and int(value) < definition["min"]:
            raise Rejected(
                f"argument '{key}' specified integer value {value} less than minimum value {definition['min']}"
            )
    elif kind == "bool" and not bare and value.lower() not in ("true", "false"):
        raise Rejected(f"argument '{key}' invalid boolean '{value}'")
