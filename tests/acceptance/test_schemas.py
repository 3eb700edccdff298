"""R80: what `--json` prints validates against a published schema, and has no key that the schema does not name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
from harness import Instance, execute

from leveret import schemas
from leveret.cli.main import cli

ROOT = Path(__file__).parents[2]


def commands(command: click.Command, ctx: click.Context, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command that has --json."""
    if any("--json" in getattr(param, "opts", ()) for param in command.params):
        yield " ".join(path)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from commands(found, click.Context(found, info_name=name, parent=ctx), (*path, name))


def unnamed(value: Any, schema: dict[str, Any], where: str = "$") -> list[str]:
    """Keys that the schema does not name."""
    if "anyOf" in schema:
        fits = [one for one in schema["anyOf"] if jsonschema.Draft202012Validator(one).is_valid(value)]
        return min((unnamed(value, one, where) for one in fits), key=len, default=[])
    if isinstance(value, list):
        return [key for n, one in enumerate(value) for key in unnamed(one, schema.get("items", {}), f"{where}[{n}]")]
    if not isinstance(value, dict) or "properties" not in schema or schema.get("additionalProperties"):
        return []
    known = schema["properties"]
    return [f"{where}.{key}" for key in value if key not in known] + [
        found for key, one in value.items() if key in known for found in unnamed(one, known[key], f"{where}.{key}")
    ]


def test_every_command_with_json_has_a_schema() -> None:
    assert set(commands(cli, click.Context(cli))) == set(schemas.SCHEMAS)
    for name in schemas.SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(schemas.schema(name))


def test_the_published_files_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "schemas.py", "--check"], timeout=60, check=False)
    assert done.returncode == 0, "run tools/schemas.py"


def test_what_is_printed_fits(launch: Callable[..., Instance], tmp_path: Path) -> None:
    tidy = tmp_path / "tidy"
    tidy.write_text(f"#!/bin/sh\ntest ! -e {tmp_path}/slow || exec sleep 1000\n")
    tidy.chmod(0o755)
    config = f"""\
[job-manager.housekeeping]
command = ["{tidy}"]
[queues.a.policy.limits]
duration = "1h"
job-size.max.nnodes = 2
[queues.b]
[policy.jobspec.defaults.system]
queue = "a"
duration = "10m"
"""
    instance = launch(2, config)
    instance.leveret("queue", "start", "--all", check=0)
    instance.leveret("queue", "disable", "-m", "closed", "b", check=0)
    good, bad = instance.submit("true"), instance.submit("false")
    for jobid in (good, bad):
        instance.wait(jobid)
    (tmp_path / "in").write_text("data\n")
    moved = instance.submit("--stage-in", f"{tmp_path}/in:{tmp_path}/out", "true")
    instance.wait(moved)
    runs, held = instance.submit("sleep", "1000"), instance.submit("--urgency=0", "true")
    waits = instance.submit(f"--dependency=afterok:{runs}", "true")
    canceled = instance.submit("--urgency=0", "true")
    instance.leveret("cancel", "-m", "enough", canceled, check=0)
    instance.wait_event(runs, "start")
    instance.leveret("resource", "drain", "1", "broken", check=0)
    instance.leveret("reservation", "add", "--help", check=0)
    log = tmp_path / "log"
    log.write_text(instance.leveret("job", "eventlog", "-f", "json", good, check=0).out)
    (tmp_path / "slow").touch()
    instance.wait(instance.submit("true"))  # its node is tidied until the command is killed
    assert instance.leveret("housekeeping", "list", "-n", check=0).out
    calls: list[tuple[str, list[str]]] = [
        ("jobs", ["jobs", "-a"]),
        ("jobs", ["jobs", good]),
        ("job status", ["job", "status", good]),
        ("job holds", ["job", "holds"]),
        ("job parts", ["job", "parts", moved]),
        ("housekeeping list", ["housekeeping", "list"]),
        ("job quarantine list", ["job", "quarantine", "list"]),
        ("explain", ["explain", held, waits, runs, good]),
        ("reservation list", ["reservation", "list"]),
        ("eventlog check", ["eventlog", "check", str(log)]),
        ("queue list", ["queue", "list"]),
        ("queue status", ["queue", "status"]),
        ("status", ["status"]),
        ("jobtap list", ["jobtap", "list"]),
        ("resource list", ["resource", "list"]),
        ("resource status", ["resource", "status"]),
        ("resource drain", ["resource", "drain"]),
        ("version", ["version"]),
        ("dump", ["dump", str(tmp_path / "dump")]),
        ("restore", ["restore", "--statedir", str(tmp_path / "restored"), str(tmp_path / "dump")]),
        ("fsck", ["fsck", "--statedir", str(tmp_path / "restored")]),
        ("demo", ["demo"]),
    ]
    # those of rabbits: tests/dws/test_dws_doors.py, tests/cli/test_rabbit_verbs.py
    rabbits = {name for name in schemas.SCHEMAS if "rabbit" in name}
    assert {name for name, _ in calls} == set(schemas.SCHEMAS) - rabbits
    for name, args in calls:
        if name == "demo":  # it needs two cores
            instance.leveret("resource", "undrain", "1", check=0)
            (tmp_path / "slow").unlink()
            instance.leveret("housekeeping", "kill", "--all", check=0)
        done = instance.leveret(*args, "--json")
        assert done.out, (args, done)
        value = json.loads(done.out)
        schema = schemas.schema(name)
        assert schema is not None
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
        assert unnamed(value, schema) == [], name
    served = instance.http("GET", "/v1/schemas/queue-list")
    assert json.loads(instance.leveret("schema", "queue", "list", check=0).out) == schemas.schema("queue list")
    assert "queue list" in str(served)
    assert instance.leveret("schema", "nothing").code == 1


def test_r80_ids_are_plain_ascii_under_lang_c(shared: Instance) -> None:
    jobid = shared.submit("true")
    shared.wait(jobid)
    env = {**shared.env, "LANG": "C", "LC_ALL": "C"}
    done = execute([str(Path(sys.executable).with_name("leveret")), "jobs", "-ano", "{id.f58}"], env, check=0)
    assert done.out.isascii()
    plain = done.out.split()[0]
    assert shared.record(plain)["id"] == shared.record(jobid)["id"]
