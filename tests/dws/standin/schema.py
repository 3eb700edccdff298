"""Small schemas for custom resources: check, default and prune, with a real API server's words.

A schema is the part of openAPI v3 that custom resource definitions use: `type`, `properties`, `items`,
`additionalProperties`, `required`, `enum`, `minimum`, `maximum`, `minItems`, `default`, `x-kubernetes-int-or-string`.
"""

from __future__ import annotations

import json
from typing import Any

Schema = dict[str, Any]


def string(**more: Any) -> Schema:
    return {"type": "string", **more}


def enum(*values: str, **more: Any) -> Schema:
    return {"type": "string", "enum": list(values), **more}


def integer(**more: Any) -> Schema:
    return {"type": "integer", **more}


def boolean(**more: Any) -> Schema:
    return {"type": "boolean", **more}


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def obj(required: str = "", /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


def apply(schema: Schema, value: Any, path: str = "") -> tuple[Any, list[str]]:
    """(`value` with defaults and without unknown fields, what is wrong with it)."""
    wrong: list[str] = []
    return _apply(schema, value, path, wrong), wrong


def _apply(schema: Schema, value: Any, path: str, wrong: list[str]) -> Any:
    if schema.get("x-kubernetes-preserve-unknown-fields") or not schema:
        return value
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            wrong.append(
                f'{path}: Invalid value: "{_type(value)}": {path} in body must be of type integer or string: "{_type(value)}"'
            )
        return value
    want = schema.get("type")
    if want and not _is(want, value):
        wrong.append(
            f'{path}: Invalid value: "{_type(value)}": {path} in body must be of type {want}: "{_type(value)}"'
        )
        return value
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(one) for one in schema["enum"])
        wrong.append(f"{path}: Unsupported value: {json.dumps(value)}: supported values: {supported}")
    if "minimum" in schema and value < schema["minimum"]:
        wrong.append(
            f"{path}: Invalid value: {value}: {path} in body should be greater than or equal to {schema['minimum']}"
        )
    if "maximum" in schema and value > schema["maximum"]:
        wrong.append(
            f"{path}: Invalid value: {value}: {path} in body should be less than or equal to {schema['maximum']}"
        )
    if want == "object":
        return _object(schema, value, path, wrong)
    if want == "array":
        if len(value) < schema.get("minItems", 0):
            wrong.append(
                f"{path}: Invalid value: {len(value)}: {path} in body should have at least {schema['minItems']} items"
            )
        return [_apply(schema.get("items", {}), one, f"{path}[{i}]", wrong) for i, one in enumerate(value)]
    return value


def _object(schema: Schema, value: dict[str, Any], path: str, wrong: list[str]) -> dict[str, Any]:
    properties, rest = schema.get("properties"), schema.get("additionalProperties")
    out: dict[str, Any] = {}
    for key, one in value.items():
        inner = properties.get(key) if properties else None
        if inner is None and isinstance(rest, dict):
            inner = rest
        if inner is None:
            if properties is None and rest is None:
                out[key] = one  # an object that says nothing of its fields
            continue  # pruned
        if one is None and "default" not in inner:
            continue  # a null is as good as absent
        out[key] = _apply(inner, one, f"{path}.{key}" if path else key, wrong)
    for key, inner in (properties or {}).items():
        if "default" in inner and out.get(key) is None:
            out[key] = inner["default"]
    for key in schema.get("required", []):
        if key not in out:
            where = f"{path}.{key}" if path else key
            wrong.append(f"{where}: Required value")
    return out


def _is(want: str, value: Any) -> bool:
    if want == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if want == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "boolean": bool, "array": list, "object": dict}[want])


def _type(value: Any) -> str:
    for name, kind in (
        ("boolean", bool),
        ("integer", int),
        ("number", float),
        ("string", str),
        ("array", list),
        ("object", dict),
    ):
        if isinstance(value, kind):
            return name
    return "null"
