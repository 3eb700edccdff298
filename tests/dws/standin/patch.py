"""Patches: merge (RFC 7386) and JSON (RFC 6902)."""

from __future__ import annotations

from typing import Any


class BadPatch(Exception):
    """The patch does not fit the object."""


def copy(value: Any) -> Any:
    """A deep copy of JSON."""
    if isinstance(value, dict):
        return {key: copy(one) for key, one in value.items()}
    if isinstance(value, list):
        return [copy(one) for one in value]
    return value


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for key, one in patch.items():
        if one is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), one)
    return out


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    root = {"": copy(target)}
    for operation in operations:
        verb, path = operation.get("op"), operation.get("path", "")
        if verb in ("move", "copy"):
            holder, key = _find(root, operation["from"])
            value = copy(_get(holder, key))
            if verb == "move":
                del holder[key]
            _add(root, path, value)
        elif verb == "add":
            _add(root, path, copy(operation["value"]))
        elif verb in ("remove", "replace", "test"):
            holder, key = _find(root, path)
            have = _get(holder, key)
            if verb == "remove":
                del holder[key]
            elif verb == "replace":
                holder[key] = copy(operation["value"])
            elif have != operation["value"]:
                raise BadPatch(f"testing value {path} failed")
        else:
            raise BadPatch(f"unknown operation {verb!r}")
    return root[""]


def _get(holder: Any, key: Any) -> Any:
    try:
        return holder[key]
    except (KeyError, IndexError, TypeError):
        raise BadPatch(f"the path has no value: {key}") from None


def _find(root: Any, path: str) -> tuple[Any, Any]:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
    holder = root
    for part in parts[:-1]:
        holder = _get(holder, int(part) if isinstance(holder, list) else part)
    last: Any = parts[-1]
    if isinstance(holder, list) and last != "-":
        last = int(last)
    return holder, last


def _add(root: Any, path: str, value: Any) -> None:
    holder, key = _find(root, path)
    if isinstance(holder, list):
        holder.insert(len(holder) if key == "-" else key, value)
    else:
        holder[key] = value
