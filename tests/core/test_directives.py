"""The #DW language, against what the real admission webhook and driver answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leveret.core import directives
from leveret.core.directives import DirectiveError, check, check_meaning, lines_of, script_lines, split

TRANSCRIPT = (Path(__file__).parent.parent / "data/dws/directives-and-breakdowns.txt").read_text()
DENIED = 'admission webhook "vworkflow.kb.io" denied the request: '
REFUSED = [
    (found.group(1), found.group(2))
    for found in re.finditer(rf"^403 '(.*)' -> {re.escape(DENIED)}(.*)$", TRANSCRIPT, re.MULTILINE)
]
GOOD = "#DW jobdw type=xfs capacity=1GiB name=p1"


@pytest.mark.parametrize(("directive", "text"), REFUSED)
def test_refused_as_the_webhook_did(directive: str, text: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        check(split(directive))
    assert refused.value.text == text
    assert refused.value.number == 1
    with pytest.raises(DirectiveError) as again:
        check([GOOD.replace("p1", "p9"), directive])
    assert again.value.number == 2 and again.value.message.startswith("directive 2")


def test_the_transcript_was_read() -> None:
    assert len(REFUSED) == 13


def test_a_name_is_unique_among_directives_of_its_kind() -> None:
    with pytest.raises(DirectiveError) as refused:
        check([GOOD, GOOD])
    assert refused.value.text == "value 'p1' must be unique within 'jobdw_name'"
    assert (refused.value.number, refused.value.key) == (2, "name")
    check([GOOD, "#DW persistentdw name=p1"])


@pytest.mark.parametrize(
    "directive",
    [
        GOOD,
        "#DW jobdw type=lustre capacity=10TB name=my-fs profile=best requires=copy-offload,user-container-auth",
        "#DW jobdw name=p1 capacity=1GB type=raw",
        "#DW create_persistent type=gfs2 name=keep",
        "#DW create_persistent type=gfs2 name=keep capacity=1KiB",
        "#DW destroy_persistent name=keep",
        "#DW persistentdw name=keep requires=copy-offload",
        "#DW copy_in source=/a=b destination=$DW_JOB_p1/x profile=fast",
        "#DW copy_out source=$DW_JOB_p1 destination=/x",
        "#DW container name=side profile=red DW_JOB_one=p1 DW_GLOBAL_lus=/lus",
    ],
)
def test_accepted(directive: str) -> None:
    (one,) = check(split(directive))
    assert one.text == directive


def test_only_the_first_equals_sign_splits() -> None:
    assert check(["#DW copy_in source=/a=b destination=/c"])[0].args["source"] == "/a=b"


@pytest.mark.parametrize(
    ("directive", "text"),
    [
        ("#DW", "invalid directive '#DW'"),
        ("#DWjobdw type=xfs", "missing '#DW' prefix in directive '#DWjobdw type=xfs'"),
        ("#DW stage_in source=/a destination=/b", "invalid directive '#DW stage_in source=/a destination=/b'"),
        ("#DW copy_in source=/a", "missing required argument '^destination$'"),
        ("#DW jobdw type=xfs capacity=1.5GiB name=p1", "argument 'capacity' invalid string '1.5GiB'"),
        ("#DW jobdw type=xfs capacity=1GiB name=p_1", "argument 'name' invalid string 'p_1'"),
        ("#DW container name=side", "missing required argument '^profile$'"),
        ("#DW jobdw type=xfs capacity=1GiB name=p1 xname=a", "unsupported argument 'xname'"),
    ],
)
def test_refused_by_the_same_rules(directive: str, text: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        check([directive])
    assert refused.value.text == text


def test_live_rules_take_the_place_of_the_table() -> None:
    live = directives.rules_of(
        [
            {
                "command": "jobdw",
                "watchStates": "Proposal,Setup",
                "ruleDefs": [
                    {
                        "key": "^stripes$",
                        "type": "integer",
                        "isRequired": True,
                        "isValueRequired": True,
                        "min": 1,
                        "max": 8,
                    },
                    {"key": "^sync$", "type": "bool"},
                ],
            }
        ]
    )
    assert live[0].watch_states == ("Proposal", "Setup")
    check(["#DW jobdw stripes=8 sync", "#DW jobdw stripes=+1 sync=TRUE"], live)
    for directive, text in (
        ("#DW jobdw stripes=9", "argument 'stripes' specified integer value 9 is greather than maximum value 8"),
        ("#DW jobdw stripes=0", "argument 'stripes' specified integer value 0 is less than minimum value 1"),
        ("#DW jobdw stripes=x", "argument 'stripes' invalid integer 'x'"),
        ("#DW jobdw stripes", "argument 'stripes' requires value"),
        ("#DW jobdw stripes=1 sync=maybe", "argument 'sync' invalid boolean 'maybe'"),
        (GOOD, "unsupported argument 'type'"),
        ("#DW copy_in source=/a destination=/b", "invalid directive '#DW copy_in source=/a destination=/b'"),
    ):
        with pytest.raises(DirectiveError) as refused:
            check([directive], live)
        assert refused.value.text == text


# ---- one parser for every way in (R79) -----------------------------------------------------------------

THREE = [
    "#DW jobdw type=xfs capacity=10GiB name=proj",
    "#DW copy_in source=/lus/in destination=$DW_JOB_proj/in",
    "#DW copy_out source=$DW_JOB_proj/out destination=/lus/out",
]
PRESETS = {"standard": THREE, "one-line": " ".join(THREE)}


@pytest.mark.parametrize(
    "value",
    [
        "\n".join(THREE),
        " ".join(THREE),
        "\n\n".join(THREE) + "\n",
        THREE,
        [THREE[0], " ".join(THREE[1:])],
        "standard",
        " standard ",
        ["one-line"],
        "   ".join(line.replace(" ", "   ") for line in THREE),
    ],
)
def test_r79_the_same_directives_from_every_way_in(value: object) -> None:
    assert [line.text for line in lines_of(value, PRESETS)] == THREE
    script = "#!/bin/sh\n# a job\n" + "\n".join(THREE) + "\n  echo '#DW not one'\nrun\n"
    assert [line.text for line in script_lines(script)] == THREE
    assert [line.line for line in script_lines(script)] == [3, 4, 5]


@pytest.mark.parametrize("value", [None, 5, {"a": 1}, [1], [["#DW"]]])
def test_what_is_no_list_or_string(value: object) -> None:
    with pytest.raises(DirectiveError) as refused:
        lines_of(value)
    assert refused.value.text.startswith("Malformed #DW directives, not list or string: ")


def test_r79_errors_name_number_line_and_key() -> None:
    text = f"{THREE[0]}\n\n{THREE[1]} colour=red\n"
    with pytest.raises(DirectiveError) as refused:
        check(lines_of(text))
    assert (refused.value.number, refused.value.line, refused.value.key) == (2, 3, "colour")
    assert refused.value.message == "directive 2 (line 3), key `colour`: unsupported argument 'colour'"
    with pytest.raises(DirectiveError) as refused:
        check(lines_of(["no directive", THREE[0]]))
    assert refused.value.text == "missing '#DW' prefix in directive 'no directive'"


MEANT = [
    ([THREE[1], THREE[0]], 1, "destination", "`$DW_JOB_proj/in` is named before the jobdw that makes it"),
    ([THREE[1]], 1, "destination", "job storage instance 'proj' not found"),
    (
        ["#DW jobdw type=raw capacity=1GiB name=p-1", "#DW copy_out source=$DW_JOB_p_1/x destination=/lus/x"],
        2, "source", "data movement can not be used with raw allocations",
    ),
    (
        [THREE[0], "#DW copy_in source=/no/such destination=$DW_JOB_proj/"],
        2, "source", "global Lustre file system containing '/no/such' not found",
    ),
    (
        ["#DW create_persistent type=xfs capacity=1GiB name=aa", "#DW destroy_persistent name=bb"],
        1, "", "only a single create_persistent or destroy_persistent directive is allowed per workflow",
    ),
    (["#DW persistentdw name=nope"], 1, "name", "PersistentStorageInstance 'nope' not found"),
    (
        [THREE[0], "#DW copy_in source=$DW_PERSISTENT_kept/a destination=$DW_JOB_proj/"],
        2, "source", "persistentdw directive mentioning 'kept' not found",
    ),
    (
        [THREE[0], "#DW copy_in source=$DW_PERSISTENT_gone/a destination=$DW_JOB_proj/"],
        2, "source", "persistent storage instance 'gone' not found",
    ),
    (
        ["#DW container name=aa profile=bb", "#DW container name=cc profile=bb"],
        2, "", "only a single container directive is supported per workflow",
    ),
    (["#DW jobdw type=xfs capacity=0GiB name=proj"], 1, "capacity", "'capacity' must be a non-zero value"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "number", "key", "text"), MEANT)
def test_meaning(lines: list[str], number: int, key: str, text: str) -> None:
    with pytest.raises(DirectiveError) as refused:
        check_meaning(check(lines), roots=["/lus"], instances={"kept": "xfs"})
    assert (refused.value.text, refused.value.number, refused.value.key) == (text, number, key)


def test_the_driver_said_the_same() -> None:
    said = set(re.findall(r"""DW Directive \d+: User error: (.*?)["'], 'env'""", TRANSCRIPT))
    ours = {text for _, _, _, text in MEANT}
    assert said and said <= ours


def test_good_ones_have_a_meaning() -> None:
    check_meaning(check(THREE), roots=["/lus"], instances={})
    check_meaning(
        check(["#DW persistentdw name=my-fs", "#DW copy_out source=$DW_PERSISTENT_my_fs/a destination=/b"]),
        instances={"my-fs": "lustre"},
    )
    check_meaning(
        check(["#DW jobdw type=xfs capacity=1GiB name=my-fs", "#DW copy_in source=/a destination=$DW_JOB_my_fs"])
    )


@pytest.mark.parametrize(
    ("text", "size"), [("1KiB", 1024), ("2KB", 2000), ("10GiB", 10 << 30), ("10GB", 10**10), ("3TiB", 3 << 40)]
)
def test_capacity(text: str, size: int) -> None:
    assert directives.capacity(text) == size
