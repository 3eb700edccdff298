"""A cache that is filled from lists, watches and our own writes ends as the server has it, and tells each deletion."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leveret.storage.kube_cache import Cache, Means, key_of


def thing(name: str, version: int, uid: str = "", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid or name, "resourceVersion": str(version)},
        **more,
    }


def event(kind: str, one: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": one}


def test_a_list_after_410_tells_what_went() -> None:
    cache = Cache()
    cache.replace([thing("a", 1), thing("b", 2)], "2")
    cache.expired()
    assert cache.version == ""
    changes = cache.replace([thing("b", 2), thing("c", 7)], "9")
    assert [(means, key_of(one)[1]) for means, one in changes] == [(Means.GONE, "a"), (Means.CHANGED, "c")]
    assert cache.version == "9"


def test_a_list_does_not_take_away_what_was_written_after_it() -> None:
    cache = Cache()
    cache.replace([], "5")
    assert cache.put(thing("mine", 8)) is Means.CHANGED
    assert cache.replace([], "7") == []
    assert cache.get("mine") is not None


def test_old_news_are_no_news() -> None:
    cache = Cache()
    cache.replace([thing("a", 3)], "3")
    assert cache.put(thing("a", 6, x=1)) is Means.CHANGED  # the answer to our own write …
    assert cache.event(event("MODIFIED", thing("a", 5)))[0] is Means.NOTHING  # … overtook the watch
    assert cache.event(event("MODIFIED", thing("a", 6, x=1)))[0] is Means.NOTHING
    assert cache.event(event("DELETED", thing("a", 9)))[0] is Means.GONE
    assert cache.put(thing("a", 8)) is Means.NOTHING  # an answer that comes after the end
    assert cache.get("a") is None and cache.version == "9"


def test_another_one_of_the_same_name() -> None:
    cache = Cache()
    cache.replace([thing("a", 3, "first")], "3")
    assert cache.put(thing("a", 7, "second")) is Means.CHANGED  # made by us after the first had gone
    assert cache.event(event("DELETED", thing("a", 6, "first")))[0] is Means.NOTHING
    assert cache.get("a")["metadata"]["uid"] == "second"
    changes = cache.replace([thing("a", 9, "third")], "9")
    assert [(means, one["metadata"]["uid"]) for means, one in changes] == [
        (Means.GONE, "second"),
        (Means.CHANGED, "third"),
    ]


def test_bookmarks_move_the_version_only() -> None:
    cache = Cache()
    cache.replace([thing("a", 3)], "3")
    assert cache.event(event("BOOKMARK", {"metadata": {"resourceVersion": "40"}}))[0] is Means.NOTHING
    assert cache.version == "40" and len(cache.objects) == 1


@given(st.data())
def test_it_ends_as_the_server_has_it(data: st.DataObject) -> None:
    """Random changes of a server; the watch lags, breaks and expires, answers overtake it, lists are late."""
    server: dict[str, dict[str, Any]] = {}
    log: list[dict[str, Any]] = []
    version, at = 0, 0
    cache = Cache()
    shown: dict[str, str] = {}  # what a reader of the changes believes

    def tell(means: Means, one: dict[str, Any]) -> None:
        name, uid = one["metadata"]["name"], one["metadata"]["uid"]
        if means is Means.CHANGED:
            shown[name] = uid
        elif means is Means.GONE:
            shown.pop(name, None)

    def relist() -> None:
        nonlocal at
        for means, one in cache.replace(list(server.values()), str(version)):
            tell(means, one)
        at = version

    relist()
    for _ in range(data.draw(st.integers(1, 30))):
        what = data.draw(st.sampled_from(["write", "write", "delete", "watch", "answer", "expire"]))
        name = data.draw(st.sampled_from("abc"))
        if what in ("write", "answer"):
            version += 1
            uid = server[name]["metadata"]["uid"] if name in server else f"{name}{version}"
            server[name] = thing(name, version, uid)
            log.append(event("MODIFIED", server[name]))
            if what == "answer":
                tell(cache.put(server[name]), server[name])
        elif what == "delete" and name in server:
            version += 1
            gone = server.pop(name)
            log.append(event("DELETED", thing(name, version, gone["metadata"]["uid"])))
        elif what == "watch":
            steps = data.draw(st.integers(0, version - at))
            for line in log[at : at + steps]:
                tell(*cache.event(line))
            at += steps
        elif what == "expire":
            cache.expired()
            relist()
    for line in log[at:]:
        tell(*cache.event(line))
    assert {key[1]: one["metadata"]["resourceVersion"] for key, one in cache.objects.items()} == {
        name: one["metadata"]["resourceVersion"] for name, one in server.items()
    }
    assert shown == {name: one["metadata"]["uid"] for name, one in server.items()}
