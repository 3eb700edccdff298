"""The attributes of a jobspec: environment, dependencies, constraints and the rest (RFC 14, 26, 31).

Keys that no RFC names are kept and not looked at (RFC 14: unrecognised attributes are no error).
"""

from __future__ import annotations

from typing import Any, TypeGuard

from leveret.errors import FormatError, JobspecError

CONSTRAINT_DEPTH_MAX = 32
"""How deep operators of a constraint may be nested."""

PROPERTY_FORBIDDEN = frozenset("!&'\"^`|()")
"""Characters that no property name may hold (RFC 20)."""

_SYSTEM = "attributes.system"


def is_int(value: object) -> TypeGuard[int]:
    """An integer of JSON: true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_mapping(value: object) -> TypeGuard[dict[str, Any]]:
    """An object of JSON."""
    return isinstance(value, dict)


def check_attributes(attributes: object) -> None:
    """Check the value of the key `attributes`. Raises JobspecError whose `path` names the bad key."""
    attributes = _mapping(attributes, "attributes")
    for key in attributes:
        if key not in ("system", "user"):
            raise JobspecError(f"Extraneous key (attributes.{key})", path=f"attributes.{key}")
    if "user" in attributes:
        _mapping(attributes["user"], "attributes.user")
    if "system" not in attributes:
        raise JobspecError(f"{_SYSTEM} is a required key", path=_SYSTEM)
    system = _mapping(attributes["system"], _SYSTEM)
    if "duration" not in system:
        raise JobspecError(f"{_SYSTEM}.duration is a required key", path=f"{_SYSTEM}.duration")
    for key in ("duration", "preemptible-after"):
        if key in system:
            _seconds(system[key], f"{_SYSTEM}.{key}")
    for key in ("cwd", "queue", "bank", "project"):
        if key in system:
            _text(system[key], f"{_SYSTEM}.{key}")
    for key in ("environment", "job"):
        if key == "environment" and _plain_environment(system.get(key)):
            continue
        for name, value in _mapping(system.get(key, {}), f"{_SYSTEM}.{key}").items():
            # RFC 14: null unsets a variable.
            if key == "job" or value is not None:
                _text(value, f"{_SYSTEM}.{key}.{name}")
            if key == "environment" and (not isinstance(name, str) or not name or "=" in name or "\0" in name):
                at = f"{_SYSTEM}.{key}.{name}"
                raise JobspecError(f"{at} is not the name of a variable", path=at)
    shell = _mapping(system.get("shell", {}), f"{_SYSTEM}.shell")
    _mapping(shell.get("options", {}), f"{_SYSTEM}.shell.options")
    _mapping(system.get("files", {}), f"{_SYSTEM}.files")
    if "dependencies" in system:
        _dependencies(system["dependencies"], f"{_SYSTEM}.dependencies")
    if "reservation" in system:
        _text(system["reservation"], f"{_SYSTEM}.reservation")
    if "constraints" in system:
        _constraint(system["constraints"], f"{_SYSTEM}.constraints", 1)


def _plain_environment(environment: object) -> bool:
    """Whether it is an ordinary one: told at once, since every submission brings dozens of variables."""
    if not is_mapping(environment):
        return False
    try:
        names = "\0".join(environment)
        everything = "\0".join((names, *environment.values()))
    except TypeError:  # null, or something that is no string
        return False
    plain = "=" not in names and "" not in environment
    return plain and everything.count("\0") == max(0, len(environment) - 1) + len(environment)


def _mapping(value: object, path: str) -> dict[str, Any]:
    if not is_mapping(value):
        raise JobspecError(f"{path} must be a mapping", path=path)
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise JobspecError(f"{path} must be a string", path=path)
    if "\0" in value:
        raise JobspecError(f"{path} must not hold a NUL", path=path)
    return value


def _seconds(value: object, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise JobspecError(f"{path} must be a number", path=path)
    if value < 0:
        raise JobspecError(f"{path} must not be negative", path=path)
    if not value < 1e15:
        raise JobspecError(f"{path} must be a number below 1e15 seconds", path=path, hint="0 is unlimited")


def _dependencies(value: object, path: str) -> None:
    """RFC 26: a list of {scheme, value, …}."""
    if not isinstance(value, list):
        raise JobspecError(f"{path} must be a list", path=path)
    for index, item in enumerate(value):
        at = f"{path}[{index}]"
        dependency = _mapping(item, at)
        for key in ("scheme", "value"):
            if key not in dependency:
                raise JobspecError(f"{at}.{key} is a required key", path=f"{at}.{key}")
            _text(dependency[key], f"{at}.{key}")
        if not dependency["scheme"]:
            raise JobspecError(f"{at}.scheme must not be empty", path=f"{at}.scheme")


def _constraint(value: object, path: str, depth: int) -> None:
    """RFC 31: {operator: [values]}; several operators in one object must all hold."""
    constraint = _mapping(value, path)
    if depth > CONSTRAINT_DEPTH_MAX:
        raise JobspecError(f"{path} is nested more than {CONSTRAINT_DEPTH_MAX} deep", path=path)
    for operator, values in constraint.items():
        at = f"{path}.{operator}"
        if operator not in ("properties", "hostlist", "ranks", "and", "or", "not"):
            raise JobspecError(f"{at} is not a known constraint operator", path=at)
        if not isinstance(values, list):
            raise JobspecError(f"{at} must be a list", path=at)
        if operator == "not" and len(values) > 1:
            raise JobspecError(f"{at} takes a single value", path=f"{at}[1]")
        for index, item in enumerate(values):
            where = f"{at}[{index}]"
            if operator in ("and", "or", "not"):
                _constraint(item, where, depth + 1)
            else:
                _constraint_value(operator, _text(item, where), where)


def _constraint_value(operator: str, text: str, path: str) -> None:
    if operator == "properties":
        name = text.removeprefix("^")
        if not name or not PROPERTY_FORBIDDEN.isdisjoint(name):
            raise JobspecError(f'{path}: "{text}" is not a valid property', path=path)
        return
    try:
        if operator == "hostlist":
            from leveret.core import hostlist

            hostlist.parse(text)
        else:
            from leveret.core import idset

            idset.parse(text)
    except FormatError as error:
        raise JobspecError(f"{path}: {error.message}", path=path)
