"""The schemes `string` and `fluid` (RFC 26): offers, uses, scopes, over early ends and over a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig import UID, Rig, simulate, spec

from leveret.core import jobid as jobids
from leveret.errors import InvalidError

OTHER = UID + 1


def dep(way: str, value: str = "x", scope: str = "user", scheme: str = "string") -> dict[str, str]:
    return {"scheme": scheme, "value": value, "type": way, "scope": scope}


async def submit(rig: Rig, *dependencies: dict[str, str], userid: int = UID, urgency: int = 16) -> int:
    jobid, _ = rig.manager.submit(spec(dependencies=list(dependencies)), urgency, [], userid)
    await rig.quiet()
    return jobid


def waiting(rig: Rig, *ids: int) -> list[bool]:
    return [rig.job(i).state.name == "DEPEND" for i in ids]


async def wipe(rig: Rig) -> None:
    """Everything runs to its end, and nothing is kept of it."""
    while rig.engine.calls:
        await rig.run(int(rig.engine.calls[0][2].split("/")[1]))
    rig.over()
    plugin = rig.manager.registry.get("symbols")
    for kept in ("_offers", "_stands_for", "_waits", "_dependents"):
        assert getattr(plugin, kept) == {}, kept
    assert rig.log.take_errors() == []
    rig.close()


@pytest.mark.parametrize("crash", [False, True])
def test_a_fan_out_as_in_the_rfc(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[8])
        a = await submit(rig, dep("out", "a"))
        bs = [await submit(rig, dep("in", "a"), dep("out", "b")) for _ in range(3)]
        c = await submit(rig, dep("in", "b"))
        assert waiting(rig, a, *bs, c) == [False, True, True, True, True]
        if crash:
            await rig.restart()
        await rig.run(a, 256)  # whatever the result
        assert waiting(rig, *bs, c) == [False, False, False, True]
        for b in bs:
            assert rig.story(b)[1:4] == ["dependency-add(string=a)", "validate", "dependency-remove(string=a)"]
            assert waiting(rig, c) == [True]
            if crash:
                await rig.restart()
            await rig.run(b)
        assert waiting(rig, c) == [False]
        late = await submit(rig, dep("in", "b"))  # nobody offers it any more
        assert rig.story(late)[1] == "validate"
        await wipe(rig)

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_a_chain_of_inout_keeps_its_order_when_a_link_is_canceled(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[8])
        first, second, third, fourth = [await submit(rig, dep("inout")) for _ in range(4)]
        assert waiting(rig, first, second, third, fourth) == [False, True, True, True]
        await rig.cancel(fourth)
        await rig.cancel(second)
        late = await submit(rig, dep("in"))
        if crash:
            await rig.restart()
        assert waiting(rig, third, late) == [True, True]  # the first still runs
        await rig.run(first)
        assert waiting(rig, third, late) == [False, True]
        await rig.run(third)
        assert waiting(rig, late) == [False]
        await wipe(rig)

    simulate(body)


def test_what_an_inout_stands_for_comes_back(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[8])
        first = await submit(rig, dep("out"))
        second = await submit(rig, dep("inout"))
        await rig.cancel(second)
        third = await submit(rig, dep("in"))
        assert waiting(rig, third) == [True]
        await rig.run(first)
        assert waiting(rig, third) == [False]
        await wipe(rig)

    simulate(body)


def test_scopes(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[16])
        await submit(rig, dep("out", "mine"))
        await submit(rig, dep("out", "ours", "global"))
        table = [
            (UID, "mine", "user", True),
            (UID, "ours", "user", True),
            (OTHER, "mine", "user", False),
            (OTHER, "mine", "global", False),
            (OTHER, "ours", "user", False),
            (OTHER, "ours", "global", True),
        ]
        for userid, value, scope, expected in table:
            jobid = await submit(rig, dep("in", value, scope), userid=userid)
            assert waiting(rig, jobid) == [expected], (userid, value, scope)
        for way in ("out", "inout"):
            with pytest.raises(InvalidError, match="only the instance owner"):
                await submit(rig, dep(way, "z", "global"), userid=OTHER)
        await wipe(rig)

    simulate(body)


@pytest.mark.parametrize("crash", [False, True])
def test_fluid(tmp_path: Path, crash: bool) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[8])
        first = await submit(rig)
        f58 = jobids.encode(first)
        plain = await submit(rig, dep("in", f58, scheme="fluid"))
        both = await submit(rig, dep("inout", str(first), scheme="fluid"))
        after = await submit(rig, dep("in", jobids.encode(first, "hex"), scheme="fluid"))
        foreign = await submit(rig, dep("in", f58, "global", "fluid"), userid=OTHER)
        with pytest.raises(InvalidError, match="another user's"):
            await submit(rig, dep("in", f58, scheme="fluid"), userid=OTHER)
        if crash:
            await rig.restart()
        assert waiting(rig, plain, both, after, foreign) == [True] * 4
        await rig.run(first)
        assert waiting(rig, plain, both, after, foreign) == [False, False, True, False]
        await rig.run(both)
        assert waiting(rig, after) == [False]
        late = await submit(rig, dep("in", f58, scheme="fluid"))
        assert rig.story(late)[1:4] == [f"dependency-add(fluid={f58})", f"dependency-remove(fluid={f58})", "validate"]
        await wipe(rig)

    simulate(body)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"scheme": "string", "value": "foo"}, "dependency: string: type must be in, out or inout"),
        (dep("inoutset"), "type must be in, out or inout"),
        ({"scheme": "string", "value": "foo", "type": "in"}, "scope must be user or global"),
        (dep("in", ""), "it has no value"),
        (dep("in", "xxx", scheme="fluid"), '"xxx" is not a valid jobid'),
        (dep("in", "1234", scheme="fluid"), "id 1234: job not found"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(tmp_path: Path, bad: dict[str, str], why: str) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[8])
        first = await submit(rig, dep("out"))
        with pytest.raises(InvalidError, match=why):
            await submit(rig, dep("inout"), bad)
        second = await submit(rig, dep("in"))
        assert waiting(rig, second) == [True]
        await rig.run(first)
        assert waiting(rig, second) == [False]
        await wipe(rig)

    simulate(body)


def test_said_twice_and_its_own_offer(tmp_path: Path) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, sizes=[8])
        first = await submit(rig, dep("out"), dep("out"))
        second = await submit(rig, dep("in"), dep("out"), dep("in", scope="global"), dep("inout"))
        assert rig.story(second).count("dependency-add(string=x)") == 1
        await rig.run(first)
        assert waiting(rig, second) == [False]
        await wipe(rig)

    simulate(body)
