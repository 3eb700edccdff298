"""Jobspec version 1 (RFC 25, with RFC 14, 26 and 31)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core import jobspec
from leveret.errors import InvalidError, JobspecError

PROPERTY = settings(deadline=None)

# A jobspec with every key that is looked at. Five tasks on four nodes is use case 2.1 of RFC 25.
FULL: dict[str, Any] = {
    "resources": [
        {
            "type": "node",
            "count": 4,
            "exclusive": True,
            "with": [
                {
                    "type": "slot",
                    "count": 2,
                    "label": "task",
                    "with": [{"type": "core", "count": 3, "unit": "cores"}, {"type": "gpu", "count": 1}],
                }
            ],
        }
    ],
    "tasks": [{"command": ["/bin/app", "-v"], "slot": "task", "count": {"total": 5}}],
    "attributes": {
        "system": {
            "duration": 60.5,
            "preemptible-after": 10,
            "environment": {"PATH": "/bin", "GONE": None},
            "cwd": "/tmp",
            "queue": "batch",
            "bank": "b",
            "project": "p",
            "job": {"name": "sim"},
            "shell": {"options": {"output": {"stdout": {"path": "o"}}}, "other": 1},
            "files": {},
            "dependencies": [{"scheme": "afterok", "value": "f1"}, {"scheme": "string", "value": "x", "type": "in"}],
            "constraints": {
                "and": [
                    {"properties": ["ssd", "^slow"]},
                    {"or": [{"hostlist": ["n[0-1]"]}, {"ranks": ["0-3", "7"]}]},
                    {"not": [{"properties": ["a@gpu"]}]},
                    {"not": []},
                ]
            },
            "unheard-of": [1, 2],
        },
        "user": {"anything": {"goes": None}},
    },
    "version": 1,
}
MINIMAL: dict[str, Any] = {
    "resources": [{"type": "slot", "count": 1, "label": "x", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["app"], "slot": "x", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 0}},
    "version": 1,
}

Path = tuple[str | int, ...]


def name_of(path: Path) -> str:
    """The path as errors write it: `resources[0].with[1].count`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def changed(spec: dict[str, Any], path: Path, value: object) -> dict[str, Any]:
    """A copy of `spec` with `value` at `path`; `...` takes the key away."""
    copied = copy.deepcopy(spec)
    place: Any = copied
    for part in path[:-1]:
        place = place[part]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copied


def refusal(spec: object) -> JobspecError:
    with pytest.raises(JobspecError) as caught:
        jobspec.validate(spec)
    return caught.value


@pytest.mark.parametrize("spec", [FULL, MINIMAL])
def test_takes_a_valid_jobspec_and_leaves_it_alone(spec: dict[str, Any]) -> None:
    before = copy.deepcopy(spec)
    jobspec.validate(spec)
    assert spec == before


# Measured on Flux, but for the last two, which Flux lets pass.
@pytest.mark.parametrize(
    ("spec", "message", "path"),
    [
        ({}, "Missing key (attributes)", "attributes"),
        (changed(MINIMAL, ("version",), 2), "version must be 1", "version"),
        (changed(MINIMAL, ("tasks",), ...), "Missing key (tasks)", "tasks"),
        (
            changed(MINIMAL, ("attributes", "system", "duration"), ...),
            "attributes.system.duration is a required key",
            "attributes.system.duration",
        ),
        (
            changed(MINIMAL, ("attributes", "system", "duration"), "x"),
            "attributes.system.duration must be a number",
            "attributes.system.duration",
        ),
        (changed(MINIMAL, ("foo",), 1), "Extraneous key (foo)", "foo"),
        (
            changed(MINIMAL, ("attributes", "system", "duration"), -1),
            "attributes.system.duration must not be negative",
            "attributes.system.duration",
        ),
        (changed(MINIMAL, ("resources",), []), "jobspec has no resources", "resources"),
    ],
)
def test_says_what_flux_says(spec: object, message: str, path: str) -> None:
    error = refusal(spec)
    assert (error.message, error.path) == (message, path)


@pytest.mark.parametrize("spec", [None, [], "x", 1])
def test_refuses_what_is_no_mapping(spec: object) -> None:
    assert "must be a mapping" in refusal(spec).message


NODE: Path = ("resources", 0)
SLOT: Path = (*NODE, "with", 0)
TASK: Path = ("tasks", 0)
SYSTEM: Path = ("attributes", "system")

# (path to change, value, path that is named, None when it is the same)
REFUSED: list[tuple[Path, object, str | None]] = [
    (("version",), True, None),
    (("version",), "1", None),
    (("version",), 1.0, None),
    (("resources",), {}, None),
    (("resources",), [FULL["resources"][0], FULL["resources"][0]], "resources[1]"),
    (NODE, "node", None),
    ((*NODE, "type"), ..., None),
    ((*NODE, "type"), "socket", None),
    ((*NODE, "type"), "core", None),
    ((*NODE, "count"), ..., None),
    ((*NODE, "count"), 0, None),
    ((*NODE, "count"), 1.0, None),
    ((*NODE, "count"), "1-4", None),
    ((*NODE, "count"), {"min": 1}, None),
    ((*NODE, "count"), True, None),
    ((*NODE, "count"), 2**31, None),
    ((*NODE, "exclusive"), 1, None),
    ((*NODE, "unit"), 1, None),
    ((*NODE, "label"), 1, None),
    ((*NODE, "id"), "0", None),
    ((*NODE, "with"), ..., None),
    ((*NODE, "with"), [], None),
    ((*NODE, "with"), {}, None),
    ((*NODE, "with"), [FULL["resources"][0]["with"][0]] * 2, "resources[0].with[1]"),
    ((*SLOT, "type"), "node", None),
    ((*SLOT, "type"), "core", None),
    ((*SLOT, "count"), -1, None),
    ((*SLOT, "count"), 2**30, None),
    ((*SLOT, "label"), ..., None),
    ((*SLOT, "label"), "other", "tasks[0].slot"),
    ((*SLOT, "with"), ..., None),
    ((*SLOT, "with"), [{"type": "gpu", "count": 1}], None),
    ((*SLOT, "with", 0, "type"), "gpu", "resources[0].with[0].with[1].type"),
    ((*SLOT, "with", 0, "type"), "slot", None),
    ((*SLOT, "with", 0, "count"), 0, None),
    ((*SLOT, "with", 0, "count"), 2**30, None),
    ((*SLOT, "with", 0, "with"), [], None),
    ((*SLOT, "with", 0, "exclusive"), True, None),
    ((*SLOT, "with", 1, "type"), "core", None),
    (("tasks",), [], None),
    (("tasks",), {}, None),
    (("tasks",), [FULL["tasks"][0]] * 2, "tasks[1]"),
    (TASK, [], None),
    ((*TASK, "command"), ..., None),
    ((*TASK, "command"), [], None),
    ((*TASK, "command"), "app", None),
    ((*TASK, "command", 0), "", None),
    ((*TASK, "command", 1), 1, None),
    ((*TASK, "command", 1), "a\0b", None),
    ((*TASK, "slot"), ..., None),
    ((*TASK, "slot"), "other", None),
    ((*TASK, "count"), ..., None),
    ((*TASK, "count"), {}, None),
    ((*TASK, "count"), {"per_slot": 1, "total": 5}, None),
    ((*TASK, "count"), {"per_slot": 2}, "tasks[0].count.per_slot"),
    ((*TASK, "count"), {"per_slot": True}, "tasks[0].count.per_slot"),
    ((*TASK, "count"), {"per_resource": {"type": "node", "count": 1}}, "tasks[0].count.per_resource"),
    ((*TASK, "count", "total"), 3, None),
    ((*TASK, "count", "total"), 9, None),
    ((*TASK, "distribution"), "cyclic", None),
    (("attributes",), None, None),
    (("attributes", "other"), {}, None),
    (("attributes", "user"), [], None),
    (SYSTEM, ..., None),
    (SYSTEM, [], None),
    ((*SYSTEM, "duration"), True, None),
    ((*SYSTEM, "duration"), None, None),
    ((*SYSTEM, "duration"), float("inf"), None),
    ((*SYSTEM, "duration"), float("nan"), None),
    ((*SYSTEM, "duration"), 10**400, None),
    ((*SYSTEM, "preemptible-after"), -0.5, None),
    ((*SYSTEM, "cwd"), 1, None),
    ((*SYSTEM, "cwd"), "a\0", None),
    ((*SYSTEM, "queue"), None, None),
    ((*SYSTEM, "bank"), [], None),
    ((*SYSTEM, "project"), {}, None),
    ((*SYSTEM, "environment"), ["A=b"], None),
    ((*SYSTEM, "environment", "PATH"), 1, None),
    ((*SYSTEM, "environment", "A=B"), "x", None),
    ((*SYSTEM, "environment"), {"": "x"}, "attributes.system.environment."),
    ((*SYSTEM, "job"), "name", None),
    ((*SYSTEM, "job", "name"), 5, None),
    ((*SYSTEM, "job", "name"), None, None),
    ((*SYSTEM, "shell"), 5, None),
    ((*SYSTEM, "shell", "options"), [], None),
    ((*SYSTEM, "files"), [], None),
    ((*SYSTEM, "dependencies"), {}, None),
    ((*SYSTEM, "dependencies", 1), "afterok:f1", None),
    ((*SYSTEM, "dependencies", 0, "scheme"), ..., None),
    ((*SYSTEM, "dependencies", 0, "scheme"), "", None),
    ((*SYSTEM, "dependencies", 0, "value"), 17, None),
    ((*SYSTEM, "constraints"), [], None),
    ((*SYSTEM, "constraints"), {"nand": []}, "attributes.system.constraints.nand"),
    ((*SYSTEM, "constraints", "and"), {}, None),
    ((*SYSTEM, "constraints", "and", 0, "properties"), "ssd", None),
    ((*SYSTEM, "constraints", "and", 0, "properties", 0), "", None),
    ((*SYSTEM, "constraints", "and", 0, "properties", 1), "^", None),
    ((*SYSTEM, "constraints", "and", 0, "properties", 1), "a|b", None),
    ((*SYSTEM, "constraints", "and", 1, "or", 0, "hostlist", 0), "n[", None),
    ((*SYSTEM, "constraints", "and", 1, "or", 1, "ranks", 1), "3-1", None),
    ((*SYSTEM, "constraints", "and", 2, "not"), [{}, {}], "attributes.system.constraints.and[2].not[1]"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED, ids=lambda part: ascii(part)[:60])
def test_refuses_and_names_the_key(path: Path, value: object, named: str | None) -> None:
    error = refusal(changed(FULL, path, value))
    assert error.path == (name_of(path) if named is None else named)
    assert (error.code, error.exit_code) == ("jobspec", 1)


def test_nesting_of_constraints_is_bounded() -> None:
    constraint: dict[str, Any] = {"properties": ["ssd"]}
    for _ in range(31):
        constraint = {"not": [constraint]}
    jobspec.validate(changed(MINIMAL, (*SYSTEM, "constraints"), constraint))
    for _ in range(5000):
        constraint = {"not": [constraint]}
    spec = copy.copy(MINIMAL)
    spec["attributes"] = {"system": {"duration": 0, "constraints": constraint}}
    assert "nested more than 32 deep" in refusal(spec).message


def places(value: object, path: Path = ()) -> list[Path]:
    """Every path of a document, its root left out."""
    found: list[Path] = [path] if path else []
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += places(child, (*path, key))
    return found


JUNK = st.sampled_from([..., None, True, -1, 1.5, 10**12, "", "x", "]", [], [1], [[]], {}, {"x": 1}, [{}]])
FREE = ("attributes.user", "attributes.system.shell", "attributes.system.files", "attributes.system.unheard-of")


@settings(deadline=None, max_examples=600)
@given(st.sampled_from([(spec, path) for spec in (FULL, MINIMAL) for path in places(spec)]), JUNK)
def test_a_change_anywhere_is_valid_or_named(where: tuple[dict[str, Any], Path], junk: object) -> None:
    spec, path = where
    broken = changed(spec, path, junk)
    before = copy.deepcopy(broken)
    named = name_of(path)
    try:
        jobspec.validate(broken)
    except JobspecError as error:
        # The key itself, what is now in it, or what it is missing from; a label is missed where it is used.
        at = error.path
        related = (
            at == named
            or at.startswith((f"{named}.", f"{named}["))
            or (at and named.startswith((f"{at}.", f"{at}[")))
            or (named.endswith(".label") and at == "tasks[0].slot")
        )
        assert related, f"{named} is bad, {at} is blamed: {error.message}"
        assert not (named.startswith(FREE) and named not in FREE and not named.endswith(".options"))
    else:
        assert jobspec.digest(broken).nslots >= 1
    assert broken == before


NEEDED = [
    path
    for path in places(FULL)
    if path[-1] in ("attributes", "resources", "tasks", "version", "type", "count") and path[:2] != SYSTEM
]


@pytest.mark.parametrize("path", NEEDED, ids=name_of)
def test_a_key_that_is_needed_cannot_be_left_out(path: Path) -> None:
    assert refusal(changed(FULL, path, ...)).path == name_of(path)


# Digest


def test_digest_of_everything() -> None:
    digest = jobspec.digest(FULL)
    assert {key: getattr(digest, key) for key in digest.__slots__} == {
        "nnodes": 4,
        "slots_per_node": 2,
        "nslots": 8,
        "cores_per_slot": 3,
        "gpus_per_slot": 1,
        "exclusive": True,
        "ntasks": 5,
        "tasks_total": 5,
        "duration_s": 60.5,
        "name": "sim",
        "queue": "batch",
        "bank": "b",
        "project": "p",
        "cwd": "/tmp",
        "dependencies": FULL["attributes"]["system"]["dependencies"],
        "constraints": FULL["attributes"]["system"]["constraints"],
        "memory_per_slot_mb": 0,
        "reservation": "",
        "shape": (4, 2, 8, 3, 1, 0, True, json.dumps(FULL["attributes"]["system"]["constraints"], sort_keys=True)),
    }


def test_digest_of_the_least() -> None:
    digest = jobspec.digest(MINIMAL)
    assert {key: getattr(digest, key) for key in digest.__slots__} == {
        "nnodes": 0,
        "slots_per_node": 0,
        "nslots": 1,
        "cores_per_slot": 1,
        "gpus_per_slot": 0,
        "exclusive": False,
        "ntasks": 1,
        "tasks_total": None,
        "duration_s": 0.0,
        "name": "app",
        "queue": "",
        "bank": "",
        "project": "",
        "cwd": "",
        "dependencies": [],
        "constraints": None,
        "memory_per_slot_mb": 0,
        "reservation": "",
        "shape": (0, 0, 1, 1, 0, 0, False, ""),
    }


@pytest.mark.parametrize(("word", "name"), [("/usr/bin/app", "app"), ("./a.out", "a.out"), ("app", "app"), ("/", "/")])
def test_the_name_is_that_of_the_command(word: str, name: str) -> None:
    assert jobspec.digest(changed(MINIMAL, (*TASK, "command", 0), word)).name == name


# Build


def test_builds_the_golden_dry_run() -> None:
    spec = jobspec.build(["echo", "hi"], ntasks=2, duration_s=300.0, name="foo", cwd="/w")
    jobspec.setopt(spec, "a.b", 1)
    jobspec.setattr_path(spec, "x.y", 2)
    assert json.loads(json.dumps(spec)) == {
        "attributes": {
            "system": {
                "cwd": "/w",
                "duration": 300,
                "environment": {},
                "job": {"name": "foo"},
                "shell": {"options": {"a": {"b": 1}}},
                "x": {"y": 2},
            }
        },
        "resources": [{"count": 2, "label": "task", "type": "slot", "with": [{"count": 1, "type": "core"}]}],
        "tasks": [{"command": ["echo", "hi"], "count": {"per_slot": 1}, "slot": "task"}],
        "version": 1,
    }
    assert '"duration": 300,' in json.dumps(spec)
    jobspec.validate(spec)


# Measured on Flux: options, then `jq -c '.resources,.tasks[0].count'`. The last is use case 2.1 of RFC 25.
@pytest.mark.parametrize(
    ("options", "resources", "count"),
    [
        (
            {"nnodes": 2},
            '[{"type":"node","count":2,"exclusive":true,"with":[{"type":"slot","count":1,"with":[{"type":"core","count":1}],"label":"task"}]}]',
            '{"per_slot":1}',
        ),
        (
            {"nnodes": 2, "ntasks": 4},
            '[{"type":"node","count":2,"with":[{"type":"slot","count":2,"with":[{"type":"core","count":1}],"label":"task"}]}]',
            '{"per_slot":1}',
        ),
        (
            {"nnodes": 2, "exclusive": True},
            '[{"type":"node","count":2,"exclusive":true,"with":[{"type":"slot","count":1,"with":[{"type":"core","count":1}],"label":"task"}]}]',
            '{"per_slot":1}',
        ),
        (
            {"ntasks": 4, "cores_per_task": 2, "gpus_per_task": 1},
            '[{"type":"slot","count":4,"with":[{"type":"core","count":2},{"type":"gpu","count":1}],"label":"task"}]',
            '{"per_slot":1}',
        ),
        (
            {"ntasks": 0},
            '[{"type":"slot","count":1,"with":[{"type":"core","count":1}],"label":"task"}]',
            '{"per_slot":1}',
        ),
        (
            {"nnodes": 4, "ntasks": 5},
            '[{"type":"node","count":4,"with":[{"type":"slot","count":2,"with":[{"type":"core","count":1}],"label":"task"}]}]',
            '{"total":5}',
        ),
    ],
)
def test_builds_the_golden_resources(options: dict[str, Any], resources: str, count: str) -> None:
    spec = jobspec.build(["true"], **options)
    assert json.dumps(spec["resources"], separators=(",", ":")) == resources
    assert json.dumps(spec["tasks"][0]["count"], separators=(",", ":")) == count
    jobspec.validate(spec)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nnodes": 2, "ntasks": 1}, "node count must not be greater than task count"),
        ({"ntasks": -1}, "task count must be at least 1"),
        ({"nnodes": -1}, "node count must be at least 0"),
        ({"cores_per_task": 0}, "cores per task must be at least 1"),
        ({"gpus_per_task": -1}, "gpus per task must be at least 0"),
        ({"ntasks": 2**31}, "task count must be at most 2147483647"),
        ({"exclusive": True}, "exclusive can only be set with a node count"),
        ({"duration_s": -1.0}, "duration must not be negative"),
        ({"duration_s": float("nan")}, "duration must not be negative"),
    ],
)
def test_does_not_build_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        jobspec.build(["true"], **options)
    assert caught.value.message == message


def test_does_not_build_without_a_command() -> None:
    with pytest.raises(JobspecError):
        jobspec.build([])


def test_an_infinite_duration_is_unlimited() -> None:
    assert jobspec.build(["true"], duration_s=float("inf"))["attributes"]["system"]["duration"] == 0


@PROPERTY
@given(
    ntasks=st.integers(1, 200),
    nnodes=st.integers(0, 40),
    cores=st.integers(1, 64),
    gpus=st.integers(0, 8),
    exclusive=st.booleans(),
    duration_s=st.floats(0, 1e9),
    words=st.tuples(st.text(alphabet="ab/-", max_size=6), st.text(alphabet="ab/-", max_size=6)),
    command=st.lists(st.text(alphabet="ab/- ", min_size=1, max_size=6), min_size=1, max_size=3),
)
def test_what_is_built_is_valid_and_its_digest_says_the_same(
    ntasks: int,
    nnodes: int,
    cores: int,
    gpus: int,
    exclusive: bool,
    duration_s: float,
    words: tuple[str, str],
    command: list[str],
) -> None:
    nnodes = min(nnodes, ntasks)
    exclusive = exclusive and nnodes > 0
    spec = jobspec.build(
        command,
        ntasks=ntasks,
        nnodes=nnodes,
        cores_per_task=cores,
        gpus_per_task=gpus,
        exclusive=exclusive,
        duration_s=duration_s,
        name=words[0],
        queue=words[1],
        environment={"A": "b"},
    )
    jobspec.validate(json.loads(json.dumps(spec)))
    digest = jobspec.digest(spec)
    assert (digest.ntasks, digest.nnodes, digest.exclusive) == (ntasks, nnodes, exclusive)
    assert (digest.cores_per_slot, digest.gpus_per_slot) == (cores, gpus)
    assert digest.duration_s == duration_s
    assert digest.queue == words[1]
    assert digest.name == words[0] or (not words[0] and digest.name)
    # Every task has a slot, and no node has one too many.
    assert ntasks <= digest.nslots < ntasks + max(nnodes, 1)
    assert digest.nslots == digest.slots_per_node * nnodes or not nnodes


# Setting attributes and options


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("foo", ("system", "foo")),
        ("x.y", ("system", "x", "y")),
        ("system.x.y", ("system", "x", "y")),
        ("user.x", ("user", "x")),
        (".user.x", ("user", "x")),
        (".system.x", ("system", "x")),
        ("attributes.system.x", ("system", "x")),
        (".attributes.user.x", ("user", "x")),
        ("duration", ("system", "duration")),
        ("systemd.x", ("system", "systemd", "x")),
    ],
)
def test_setattr_puts_the_key_where_flux_does(key: str, path: tuple[str, ...]) -> None:
    spec = copy.deepcopy(MINIMAL)
    jobspec.setattr_path(spec, key, 7)
    assert spec == deep_set(copy.deepcopy(MINIMAL), ("attributes", *path), 7)


def deep_set(spec: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    place = spec
    for part in path[:-1]:
        place = place.setdefault(part, {})
    place[path[-1]] = value
    return spec


def test_setopt_puts_the_key_among_the_options() -> None:
    spec = copy.deepcopy(MINIMAL)
    jobspec.setopt(spec, "output.stdout.path", "o")
    jobspec.setopt(spec, "output.stdout.label", True)
    assert spec["attributes"]["system"]["shell"] == {"options": {"output": {"stdout": {"path": "o", "label": True}}}}


@pytest.mark.parametrize("key", ["", ".", "a.", ".a..b", "a..b", "user.", "system."])
def test_an_empty_part_of_a_key_is_refused(key: str) -> None:
    spec = copy.deepcopy(MINIMAL)
    with pytest.raises(JobspecError):
        jobspec.setattr_path(spec, key, 1)
    assert spec == MINIMAL


def test_a_value_is_not_turned_into_a_mapping() -> None:
    spec = copy.deepcopy(MINIMAL)
    with pytest.raises(JobspecError) as caught:
        jobspec.setattr_path(spec, "duration.x.y", 1)
    assert caught.value.path == "attributes.system.duration"
    assert spec == MINIMAL


def test_memory_in_a_slot_is_ours() -> None:
    spec = jobspec.build(["x"], ntasks=2)
    within = spec["resources"][0]["with"]
    within.append({"type": "memory", "count": 3, "unit": "GB"})
    jobspec.validate(spec)
    assert jobspec.digest(spec).memory_per_slot_mb == 3072
    within[1] = {"type": "memory", "count": 1500, "unit": "KB"}
    assert jobspec.digest(spec).memory_per_slot_mb == 2, "rounded up"
    within[1] = {"type": "memory", "count": 1, "unit": "XB"}
    with pytest.raises(JobspecError, match=r"with\[1\].unit must be one of KB, MB"):
        jobspec.validate(spec)
