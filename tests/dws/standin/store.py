"""Objects under one global resourceVersion, with a bounded log of what changed.

The rules are those of an API server: optimistic locking, finalizers, generations, `status` subresources, schemas
(unknown fields pruned), 410 for versions older than the log. Nothing here knows HTTP or DWS.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from . import patch as patches
from . import schema
from .kinds import Kind
from .patch import copy

Object = dict[str, Any]


class Refused(Exception):
    """A request that ends with a `Status` of kind Failure."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_labels(selector: str) -> Callable[[Object], bool]:
    """`a=b,c!=d,e,!f` over an object's labels."""
    terms = [term for term in (part.strip() for part in selector.split(",")) if term]

    def holds(term: str, labels: dict[str, str]) -> bool:
        if "!=" in term:
            key, _, value = term.partition("!=")
            return labels.get(key.strip()) != value.strip()
        if "=" in term:
            key, _, value = term.replace("==", "=").partition("=")
            return labels.get(key.strip()) == value.strip()
        return term[1:].strip() not in labels if term.startswith("!") else term in labels

    return lambda one: all(holds(term, one["metadata"].get("labels") or {}) for term in terms)


def parse_fields(selector: str) -> Callable[[Object], bool]:
    """`metadata.name=` and `metadata.namespace=`, as for every custom resource."""
    tests = []
    for term in filter(None, (part.strip() for part in selector.split(","))):
        key, _, value = term.replace("==", "=").partition("=")
        negate = key.endswith("!")
        key = key.rstrip("!")
        if key not in ("metadata.name", "metadata.namespace"):
            raise Refused(400, "BadRequest", f"field label not supported: {key}")
        tests.append((key.partition(".")[2], value, negate))
    return lambda one: all((one["metadata"].get(key) == value) != negate for key, value, negate in tests)


class Store:
    def __init__(self, kinds: Iterable[Kind] = (), *, history_max: int = 50_000, first_version: int = 240) -> None:
        self.kinds: dict[tuple[str, str], Kind] = {}
        self.objects: dict[tuple[str, str], dict[tuple[str, str], Object]] = {}
        #: (version, type, kind, object, object before): the last `history_max` changes
        self.log: deque[tuple[int, str, Kind, Object, Object | None]] = deque(maxlen=history_max)
        self.version = first_version
        #: versions below this one are gone: 410
        self.floor = first_version
        self.watchers: dict[asyncio.Queue[Any], Kind] = {}
        #: called with (kind, type, object) after each change, in order
        self.listeners: list[Callable[[Kind, str, Object], None]] = []
        #: admission: may change `new`, or raise Refused; (kind, new, old or None)
        self.admission: list[Callable[[Kind, Object, Object | None], None]] = []
        for one in kinds:
            self.register(one)

    def register(self, kind: Kind) -> None:
        self.kinds[kind.key] = kind
        self.objects.setdefault(kind.key, {})

    # -- reading -----------------------------------------------------------------------

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.objects[kind.key].get((namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        have = self.find(kind, namespace, name)
        if have is None:
            raise Refused(404, "NotFound", f'{kind.full} "{name}" not found')
        return have

    def all(self, kind: Kind, namespace: str = "", labels: str = "", fields: str = "") -> list[Object]:
        by_label, by_field = parse_labels(labels), parse_fields(fields)
        return [
            one
            for (where, _), one in sorted(self.objects[kind.key].items())
            if (not namespace or where == namespace) and by_label(one) and by_field(one)
        ]

    def page(
        self, kind: Kind, namespace: str, labels: str, fields: str, limit: int, token: str
    ) -> tuple[list[Object], Object]:
        """(items, list metadata); `continue` tokens die with the versions they were made at."""
        items, version = self.all(kind, namespace, labels, fields), self.version
        if token:
            version, after = json.loads(base64.urlsafe_b64decode(token))
            if version < self.floor:
                raise Refused(
                    410, "Expired", "The provided continue parameter is too old to display a consistent list result."
                )
            items = [one for one in items if [one["metadata"].get("namespace", ""), one["metadata"]["name"]] > after]
        metadata: Object = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            last = items[limit - 1]["metadata"]
            raw = json.dumps([version, [last.get("namespace", ""), last["name"]]])
            metadata |= {
                "continue": base64.urlsafe_b64encode(raw.encode()).decode(),
                "remainingItemCount": len(items) - limit,
            }
            items = items[:limit]
        return items, metadata

    def since(self, kind: Kind, version: int) -> list[tuple[int, str, Kind, Object, Object | None]]:
        """What changed after `version`; 410 when the log no longer holds it."""
        oldest = max(self.floor, self.log[0][0] - 1 if len(self.log) == self.log.maxlen else 0)
        if version < oldest:
            raise Refused(410, "Expired", f"too old resource version: {version} ({oldest})")
        return [entry for entry in self.log if entry[0] > version and entry[2] is kind]

    def compact(self) -> None:
        """Forget the log: every version but the newest is answered with 410."""
        self.floor = self.version
        self.log.clear()

    # -- writing -----------------------------------------------------------------------

    def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        new = copy(body)
        metadata = new.setdefault("metadata", {})
        name = metadata.get("name") or ""
        if not name and metadata.get("generateName"):
            name = metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if not name:
            raise Refused(
                422,
                "Invalid",
                f'{kind.kind}.{kind.group} "" is invalid: metadata.name: Required value: name or generateName is required',
            )
        if namespace and metadata.setdefault("namespace", namespace) != namespace:
            raise Refused(
                400,
                "BadRequest",
                "the namespace of the provided object does not match the namespace sent on the request",
            )
        if self.find(kind, namespace, name) is not None:
            raise Refused(409, "AlreadyExists", f'{kind.full} "{name}" already exists')
        if kind.status and not kind.core:
            new.pop("status", None)
        for key in ("resourceVersion", "deletionTimestamp", "uid", "generation", "creationTimestamp"):
            metadata.pop(key, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()[:19] + "Z", "generation": 1}
        new = self._checked(kind, new)
        self._admit(kind, new, None)
        return self._commit(kind, "ADDED", new, None)

    def update(self, kind: Kind, namespace: str, name: str, body: Object, *, sub: str = "") -> Object:
        """PUT: the version in the body, if any, must be the present one."""
        old = self.get(kind, namespace, name)
        want = (body.get("metadata") or {}).get("resourceVersion")
        if want and want != old["metadata"]["resourceVersion"]:
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {kind.full} "{name}": the object has been modified; please apply your changes to the latest version and try again',
            )
        return self._replace(kind, old, copy(body), sub)

    def patch(self, kind: Kind, namespace: str, name: str, body: Any, *, how: str = "merge", sub: str = "") -> Object:
        """`how`: merge or json."""
        old = self.get(kind, namespace, name)
        try:
            new = patches.json_patch(old, body) if how == "json" else patches.merge(copy(old), body)
        except patches.BadPatch as error:
            raise Refused(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
            ) from None
        if how != "json" and "resourceVersion" not in ((body or {}).get("metadata") or {}):
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {kind.full} "{name}": the object has been modified; please apply your changes to the latest version and try again',
            )
        return self._replace(kind, old, new, sub)

    def delete(self, kind: Kind, namespace: str, name: str, options: Object | None = None) -> tuple[Object, bool]:
        """(the object, whether it is gone): with finalizers it is only marked."""
        old = self.get(kind, namespace, name)
        wanted = (options or {}).get("preconditions") or {}
        for key in ("uid", "resourceVersion"):
            if wanted.get(key) and wanted[key] != old["metadata"][key]:
                raise Refused(
                    409,
                    "Conflict",
                    f"Precondition failed: {key} in precondition: {wanted[key]}, {key} in object meta: {old['metadata'][key]}",
                )
        if not old["metadata"].get("finalizers"):
            return self._remove(kind, old), True
        if old["metadata"].get("deletionTimestamp"):
            return old, False
        new = copy(old)
        new["metadata"]["deletionTimestamp"] = now()[:19] + "Z"
        new["metadata"]["deletionGracePeriodSeconds"] = 0
        new["metadata"]["generation"] += 1
        return self._commit(kind, "MODIFIED", new, old), False

    def _replace(self, kind: Kind, old: Object, new: Object, sub: str) -> Object:
        name = old["metadata"]["name"]
        if sub == "status":
            new = {**old, "status": new.get("status")}
        else:
            keep = {
                key: old["metadata"][key]
                for key in ("name", "namespace", "uid", "creationTimestamp", "generation")
                if key in old["metadata"]
            }
            new["metadata"] = {**(new.get("metadata") or {}), **keep}
            for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
                new["metadata"].pop(key, None)
                if key in old["metadata"]:
                    new["metadata"][key] = old["metadata"][key]
            if kind.status:
                new.pop("status", None)
                if "status" in old:
                    new["status"] = old["status"]
        if new.get("status") is None:
            new.pop("status", None)
        new = self._checked(kind, new)
        added = [
            one
            for one in new["metadata"].get("finalizers") or []
            if one not in (old["metadata"].get("finalizers") or [])
        ]
        if added and old["metadata"].get("deletionTimestamp"):
            quoted = ", ".join(f'"{one}"' for one in added)
            raise Refused(
                422,
                "Invalid",
                f'{kind.kind}.{kind.group} "{name}" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added '
                f"if the object is being deleted, found new finalizers []string{{{quoted}}}",
            )
        self._admit(kind, new, old)
        if _bare(new, False) == _bare(old, False) and new["metadata"] == old["metadata"]:
            return old  # nothing changed: no new version, as etcd has it
        if _bare(new, kind.status) != _bare(old, kind.status):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            return self._remove(kind, new)
        return self._commit(kind, "MODIFIED", new, old)

    def _checked(self, kind: Kind, new: Object) -> Object:
        head = {"metadata": copy(new["metadata"])}  # committed objects are never changed in place
        body = {key: one for key, one in new.items() if key not in ("apiVersion", "kind", "metadata")}
        body, wrong = schema.apply(kind.schema, body)
        if wrong:
            text = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
            raise Refused(422, "Invalid", f'{kind.kind}.{kind.group} "{new["metadata"]["name"]}" is invalid: {text}')
        if not new["metadata"].get("finalizers"):
            new["metadata"].pop("finalizers", None)
        return {**head, **body}

    def _admit(self, kind: Kind, new: Object, old: Object | None) -> None:
        for one in self.admission:
            one(kind, new, old)

    def _remove(self, kind: Kind, old: Object) -> Object:
        where = (old["metadata"].get("namespace", ""), old["metadata"]["name"])
        last = self._commit(kind, "DELETED", copy(old), old)
        del self.objects[kind.key][where]
        return last

    def _commit(self, kind: Kind, change: str, new: Object, old: Object | None) -> Object:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind.key][new["metadata"].get("namespace", ""), new["metadata"]["name"]] = new
        entry = (self.version, change, kind, new, old)
        self.log.append(entry)
        for queue, wanted in self.watchers.items():
            if wanted is kind:
                queue.put_nowait(entry)
        for listener in self.listeners:
            listener(kind, change, new)
        return new


def _bare(one: Object, without_status: bool) -> Object:
    hidden = ("metadata", "status") if without_status else ("metadata",)
    return {key: value for key, value in one.items() if key not in hidden}
