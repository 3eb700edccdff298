"""The OpenAPI 3.1 description, made from the routes and the wire structs."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from leveret import __version__

#: filled by app.build
ROUTES: list[tuple[str, str, str, type | None]] = []

_ERROR = {
    "type": "object",
    "properties": {key: {"type": "string"} for key in ("code", "message", "hint", "path")},
    "required": ["code", "message"],
}
_QUERY = {
    "jobs": ("ids", "states", "results", "user", "name", "queue", "count", "since"),
    "events": ("path", "follow", "status"),
    "resource_events": ("follow",),
    "get_key": ("original", "base"),
}


def document() -> dict[str, Any]:
    """The whole description."""
    bodies = [body for *_, body in ROUTES if body is not None]
    _, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for method, path, name, body in ROUTES:
        operation: dict[str, Any] = {
            "operationId": name.rstrip("_"),
            "parameters": [
                {"name": part, "in": "path", "required": True, "schema": {"type": "string"}}
                for part in re.findall(r"{(\w+)}", path)
            ]
            + [{"name": part, "in": "query", "schema": {"type": "string"}} for part in _QUERY.get(name, ())],
            "responses": {
                "200": {"description": "done"},
                "default": {
                    "description": "an error; `code` fixes the status",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                },
            },
        }
        if body is not None:
            schema = {"$ref": f"#/components/schemas/{body.__name__}"}
            operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Leveret", "version": __version__, "description": "HTTP over a Unix socket; see docs/api.md"},
        "paths": paths,
        "components": {"schemas": {**components, "Error": _ERROR}},
    }
