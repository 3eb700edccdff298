"""Requests as the server saw them: the oracle of the client's tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    number: int
    method: str
    path: str
    query: dict[str, str]
    body: Any
    content_type: str
    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    name: str = ""
    sub: str = ""
    watch: bool = False
    #: the answer's code; 0 while there is none (or it was cut)
    code: int = 0
    #: requests that were being answered when this one came, itself counted, watches apart
    in_flight: int = 0
    answer: Any = field(default=None, repr=False)

    @property
    def verb(self) -> str:
        """As RBAC names it: get, list, watch, create, update, patch, delete."""
        if self.method == "GET":
            return "watch" if self.watch else ("get" if self.name else "list")
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(self.method, self.method)

    @property
    def what(self) -> str:
        """`patch workflows/fluxjob-1`, `list storages`, …"""
        return (
            f"{self.verb} {self.resource}"
            + (f"/{self.name}" if self.name else "")
            + (f"/{self.sub}" if self.sub else "")
        )


class RequestLog:
    def __init__(self) -> None:
        self.entries: list[Request] = []
        self.in_flight = 0

    def add(self, request: Request) -> None:
        self.entries.append(request)

    def of(self, verb: str = "", resource: str = "", name: str = "") -> list[Request]:
        return [
            one
            for one in self.entries
            if (not verb or one.verb == verb)
            and (not resource or one.resource == resource)
            and (not name or one.name == name)
        ]

    def writes(self, resource: str = "", name: str = "") -> list[Request]:
        """What was asked and taken, in order."""
        return [one for one in self.of("", resource, name) if one.method != "GET" and 200 <= one.code < 300]

    @property
    def in_flight_max(self) -> int:
        return max((one.in_flight for one in self.entries), default=0)
