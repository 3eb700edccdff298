"""What lists and watch events mean for a cache of objects. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

Object = Mapping[str, Any]
Key = tuple[str, str]  #: (namespace, name)


class Means(Enum):
    """What a change is to those who look at the cache."""

    NOTHING = "nothing"  #: known already, or older than what is known
    CHANGED = "changed"  #: new or changed
    GONE = "gone"


def key_of(one: Object) -> Key:
    metadata = one.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def uid_of(one: Object) -> str:
    return str((one.get("metadata") or {}).get("uid") or "")


def version_of(one: Object) -> str:
    return str((one.get("metadata") or {}).get("resourceVersion") or "")


def newer(one: str, than: str) -> bool:
    """Whether a version follows another. Versions are numbers (KEP-5504); what is not one counts as news."""
    if one.isdigit() and than.isdigit():
        return int(one) > int(than)
    return one != than


class Cache:
    """The objects of one kind, as far as they are known.

    It is filled from three sides that may overtake each other: lists, watches, and the answers to our own writes. An
    older version never takes the place of a newer one, and what was seen to go stays gone for older news.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        #: the version to watch from; empty = list first
        self.version = ""
        #: (key, uid) → the version at which it went, until the next list
        self._gone: dict[tuple[Key, str], str] = {}

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects.values())

    def get(self, name: str, namespace: str = "default") -> Object | None:
        return self.objects.get((namespace, name))

    def replace(self, objects: list[Object], version: str) -> list[tuple[Means, Object]]:
        """A complete list of `version`: what it changes, with the deletions that no watch told of."""
        changes: list[tuple[Means, Object]] = []
        listed = {key_of(one): one for one in objects}
        for key, have in list(self.objects.items()):
            there = listed.get(key)
            if there is not None and uid_of(there) == uid_of(have):
                continue
            if newer(version_of(have), version):
                continue  # written by us after the list was made
            del self.objects[key]
            changes.append((Means.GONE, have))
        for one in objects:
            if self.put(one) is Means.CHANGED:
                changes.append((Means.CHANGED, one))
        self._gone.clear()
        self.version = version
        return changes

    def put(self, one: Object) -> Means:
        """An object as a write, a watch or a list showed it."""
        key = key_of(one)
        gone = self._gone.get((key, uid_of(one)))
        if gone is not None and not newer(version_of(one), gone):
            return Means.NOTHING
        have = self.objects.get(key)
        if have is not None and not newer(version_of(one), version_of(have)):
            return Means.NOTHING
        self.objects[key] = one
        return Means.CHANGED

    def drop(self, one: Object) -> Means:
        """An object that is gone; a later one of the same name stays."""
        key = key_of(one)
        self._gone[key, uid_of(one)] = version_of(one)
        have = self.objects.get(key)
        if have is None or (uid_of(have) != uid_of(one) and newer(version_of(have), version_of(one))):
            return Means.NOTHING
        del self.objects[key]
        return Means.GONE

    def event(self, event: Mapping[str, Any]) -> tuple[Means, Object]:
        """One line of a watch (not ERROR)."""
        one = event.get("object") or {}
        kind = event.get("type")
        version = version_of(one)
        if version and (not self.version or newer(version, self.version)):
            self.version = version
        if kind == "BOOKMARK":
            return Means.NOTHING, one
        if kind == "DELETED":
            return self.drop(one), one
        return self.put(one), one

    def expired(self) -> None:
        """The version is too old to watch from: the next step is a list."""
        self.version = ""
