"""What `run` and `submit` share: their options, and the jobspec that these ask for.

Environment rules are in `envrules.py`, what is about tasks in `taskopts.py`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from leveret.cli import taskopts
from leveret.cli.choices import DEPENDENCY, FLAG, URGENCY
from leveret.cli.output import Fail
from leveret.core import duration, jobspec
from leveret.errors import FormatError, InvalidError

URGENCIES = {"hold": 0, "default": 16, "expedite": 31}
FLAGS = ("debug", "waitable", "novalidate")
DEPRECATED_AFTER = "dependency scheme 'after' is deprecated, use 'afterstart'"

PER_RESOURCE = ("cores", "tasks_per_node", "tasks_per_core", "gpus_per_node")

Parameters = dict[str, Any]


#: in front of an item of --stage-out
WHEN = ("always", "on-success", "on-failure")


def options(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The shared options as one decorator, with those of a verb (`more`) in their place."""
    opt = click.option
    every = [
        opt("-n", "--ntasks", type=int, metavar="N", help="Number of tasks (default 1, with -N one a node)."),
        opt("-N", "--nodes", type=int, metavar="N", help="Number of nodes; tasks are spread over them."),
        opt("-c", "--cores-per-task", type=int, metavar="N", help="Cores for each task."),
        opt("-g", "--gpus-per-task", type=int, metavar="N", help="GPUs for each task."),
        opt("--cores", type=int, metavar="N", help="Cores of the whole job; tasks are then counted per resource."),
        opt("--tasks-per-node", type=int, metavar="N", help="Tasks on each node (with -N or --cores)."),
        opt("--tasks-per-core", type=int, metavar="N", help="Tasks on each core (with -N or --cores)."),
        opt("--gpus-per-node", type=int, metavar="N", help="GPUs of each node (with -N)."),
        opt("-x", "--exclusive", is_flag=True, help="Whole nodes (with -N)."),
        opt("--resources-shape", metavar="SHAPE", help="Resources in one word (RFC 46), e.g. slot=4/core=2."),
        opt("--resources-json", metavar="FILE", help="The resources section of the jobspec, from a JSON file."),
        opt(
            "--requires",
            metavar="CONSTRAINT",
            default="",
            help="Nodes it may have (RFC 35), e.g. ssd and -host:n[1-3].",
        ),
        opt("--reservation", metavar="NAME", default="", help="Run on the nodes of a reservation."),
        opt("-t", "--time-limit", metavar="MIN|FSD", help="Time limit of the tasks; a bare number is minutes."),
        opt("-q", "--queue", metavar="NAME", default="", help="Queue the job goes to."),
        opt("-B", "--bank", metavar="BANK", default="", help="Accounting bank recorded in the jobspec."),
        opt("--job-name", metavar="NAME", default="", help="Name of the job (default: the command's)."),
        opt("--urgency", metavar="N", type=URGENCY, help="Urgency 0-31, or hold, expedite or default (16)."),
        opt(
            "--dependency",
            metavar="URI",
            type=DEPENDENCY,
            multiple=True,
            help="What to wait for first, e.g. afterok:JOBID.",
        ),
        opt("--begin-time", metavar="+FSD|TIME", help="Do not start before a time, e.g. +10m or 2031-05-01T09:00."),
        opt("--cwd", metavar="DIRECTORY", help="Working directory of the tasks (default: this one)."),
        opt("--env", metavar="RULE", multiple=True, help="NAME, NAME=VALUE, -PATTERN or ^FILE; in order."),
        opt("--env-remove", metavar="PATTERN", multiple=True, help="Drop variables that match a glob or /regex/."),
        opt("--env-file", metavar="FILE", multiple=True, help="Read environment rules from a file."),
        opt("-S", "--setattr", metavar="KEY[=VAL]", multiple=True, help="Jobspec attribute; ^KEY=FILE reads JSON."),
        opt("-o", "--setopt", metavar="OPT[=VAL]", multiple=True, help="Shell option (default value 1)."),
        opt("--stage-in", metavar="SRC:DST", multiple=True, help="Copy SRC to DST before the tasks start."),
        opt(
            "--stage-out",
            metavar="[WHEN:]SRC:DST",
            multiple=True,
            help="Copy SRC to DST when the tasks have ended; WHEN: always (default), on-success or on-failure.",
        ),
        opt("--stage-retries", metavar="N", type=int, help="Try an item that fails N times more."),
        opt(
            "--on-part-failure",
            metavar="WHAT",
            type=click.Choice(["fail", "hold"]),
            help="Staging that fails: fail the job (default), or hold the part for `job retry-part`.",
        ),
        opt(
            "--post",
            metavar="CMD",
            default="",
            help="Shell command on the first node after the tasks, whatever their end.",
        ),
        opt("--post-timeout", metavar="DURATION", help="Time limit of --post."),
        opt("--input", metavar="FILE|RANKS", default="", help="Stdin of the tasks: a file, or (run) for some ranks."),
        opt("--output", metavar="FILE", default="", help="Stdout to a file; {{id}}, {{taskid}} and such are replaced."),
        opt("--error", metavar="FILE", default="", help="Stderr to a file (default: where --output goes)."),
        opt("-l", "--label-io", is_flag=True, help="Prefix each line of output with the task's rank."),
        opt("-u", "--unbuffered", is_flag=True, help="Do not buffer stdin, stdout and stderr by lines."),
        opt("--rlimit", metavar="RULE", multiple=True, help="Soft limits that go along: NAME[=VALUE], -PATTERN."),
        opt("--signal", metavar="[SIG][@TIME]", help="Signal the tasks before the time limit (default USR1@60s)."),
        opt("--taskmap", metavar="SCHEME", help="Places of the tasks: block, cyclic[:N] or manual:MAP."),
        opt("--add-file", metavar="[NAME=]PATH", multiple=True, help="A file for the tasks, in FLUX_JOB_TMPDIR."),
        opt("--flags", metavar="FLAGS", type=FLAG, default="", help="Submit flags: debug, waitable, novalidate."),
        *more,
        opt("--dry-run", is_flag=True, help="Print the jobspec and submit nothing."),
        opt("--quiet", is_flag=True, help="Do not print the job id."),
        opt("-v", "--verbose", count=True, help="Say more; -vv shows events, -vvv the tasks' too."),
        click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGS...]"),
    ]

    def decorate(function: Any) -> Any:
        for option in reversed(every):
            function = option(function)
        return function

    return decorate


def urgency_of(text: str | None) -> int:
    """An urgency: a number, `hold`, `default` or `expedite`. The daemon checks the range."""
    if text is None:
        return URGENCIES["default"]
    if text in URGENCIES:
        return URGENCIES[text]
    try:
        return int(text)
    except ValueError:
        raise InvalidError(f'error parsing urgency: "{text}"', "0 to 31, hold, default or expedite")


def flags_of(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in FLAGS:
            raise InvalidError(f"--flags: Unknown flag {name}", f"one of {', '.join(FLAGS)}")
    return names


def build(params: Parameters, environment: dict[str, str]) -> dict[str, Any]:
    """The jobspec that the options ask for. Raises InvalidError with Flux's message."""
    command = list(params["command"])
    if not command:
        raise Fail("job command and arguments are missing")
    per_resource = {key: params[key] for key in PER_RESOURCE if params[key] is not None}
    spec = jobspec.build(
        command,
        **({} if per_resource else per_task_of(params)),
        duration_s=duration.parse_time_limit(params["time_limit"]) if params["time_limit"] is not None else 0.0,
        name=params["job_name"],
        queue=params["queue"],
        cwd=os.path.abspath(params["cwd"]) if params["cwd"] else working_directory(),
        environment=environment,
    )
    if per_resource:
        add_per_resource(spec, params, per_resource)
    set_resources(spec, params)
    system = spec["attributes"]["system"]
    if params["requires"]:
        system["constraints"] = constraint_of(params["requires"])
    if params["reservation"]:
        system["reservation"] = params["reservation"]
    if params["bank"]:
        system["bank"] = params["bank"]
    dependencies = [dependency_of(uri) for uri in params["dependency"]]
    if params["begin_time"]:
        dependencies.append({"scheme": "begin-time", "value": f"{begin_time(params['begin_time'], time.time()):.3f}"})
    if dependencies:
        system["dependencies"] = dependencies
    staging: dict[str, Any] = {
        way: [stage_of(text, f"--stage-{way}") for text in params[f"stage_{way}"]]
        for way in ("in", "out")
        if params[f"stage_{way}"]
    }
    if params["stage_retries"] is not None:
        staging["retries"] = params["stage_retries"]
    if params["on_part_failure"] is not None:
        staging["on-failure"] = params["on_part_failure"]
    if staging:
        system["staging"] = staging
    if params["post"]:
        system["post"] = {"command": ["sh", "-c", params["post"]]}
        if params["post_timeout"] is not None:
            system["post"]["timeout"] = seconds_of(params["post_timeout"], "--post-timeout")
    elif params["post_timeout"] is not None:
        raise InvalidError("--post-timeout: there is no --post", "say what is to run: --post='CMD'")
    if rlimits := taskopts.rlimits(params["rlimit"]):
        jobspec.setopt(spec, "rlimit", rlimits)
    if mask := taskopts.umask():
        jobspec.setopt(spec, "umask", mask)
    if params["signal"] is not None:
        jobspec.setopt(spec, "signal", taskopts.signal_of(params["signal"]))
    if params["taskmap"] is not None:
        jobspec.setopt(spec, "taskmap", taskopts.taskmap_of(params["taskmap"]))
    if params["add_file"]:
        system["files"] = taskopts.files_of(params["add_file"])
    taskopts.set_streams(
        spec, params["output"], params["error"], params["input"], params["label_io"], params["unbuffered"]
    )
    for text in params["setopt"]:
        jobspec.setopt(spec, *key_value(text))
    for text in params["setattr"]:
        jobspec.setattr_path(spec, *(file_value(text) if text.startswith("^") else key_value(text)))
    return spec


def per_task_of(params: Parameters) -> dict[str, Any]:
    """The options that count tasks."""
    return {
        "ntasks": params["ntasks"],
        "nnodes": params["nodes"] or 0,
        "cores_per_task": 1 if params["cores_per_task"] is None else params["cores_per_task"],
        "gpus_per_task": params["gpus_per_task"] or 0,
        "exclusive": params["exclusive"],
    }


def add_per_resource(spec: dict[str, Any], params: Parameters, given: dict[str, int]) -> None:
    """Resources for --cores, --tasks-per-node, --tasks-per-core and --gpus-per-node."""
    from leveret.core import perresource

    if any(params[key] is not None for key in ("ntasks", "cores_per_task", "gpus_per_task")):
        raise InvalidError("Per-resource options can't be used with per-task options. (See --help for details)")
    spec["resources"], option = perresource.resources(
        nnodes=params["nodes"] or 0, exclusive=params["exclusive"], **given
    )
    if option is not None:
        jobspec.setopt(spec, "per-resource", option)


def set_resources(spec: dict[str, Any], params: Parameters) -> None:
    """--resources-shape (RFC 46) and --resources-json: the whole section, in place of what other options make."""
    text, path = params["resources_shape"], params["resources_json"]
    if text is None and path is None:
        return
    from leveret.core import shape

    option = "--resources-shape" if text is not None else "--resources-json"
    others = (*PER_RESOURCE, "nodes", "ntasks", "cores_per_task", "gpus_per_task")
    if (text is not None and path is not None) or params["exclusive"] or any(params[key] is not None for key in others):
        raise InvalidError(f"{option} can't be used with other resource options")
    if text is not None:
        try:
            spec["resources"] = shape.parse(text)
        except FormatError as error:
            raise InvalidError(f"--resources-shape: {error.message}", "for example slot=4/core=2")
    else:
        spec["resources"] = file_value(f"^resources={path}", "--resources-json")[1]
    if isinstance(spec["resources"], list) and (label := shape.slot_label(spec["resources"])) is not None:
        spec["tasks"][0]["slot"] = label


def constraint_of(text: str) -> dict[str, Any]:
    """--requires as an RFC 31 object."""
    from leveret.core import constraint

    try:
        return constraint.parse(text)
    except FormatError as error:
        raise Fail(f"--requires='{text}': {error.message}", hint=error.hint)


def working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise Fail(f"the working directory is gone: {error.strerror}", hint="cd to another one, or say --cwd")


def key_value(text: str) -> tuple[str, Any]:
    """`KEY=VAL` with a JSON value, or a string where it is no JSON; `KEY` alone is 1."""
    key, equals, value = text.partition("=")
    if not equals:
        return key, 1
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def file_value(text: str, option: str = "") -> tuple[str, Any]:
    """`^KEY=FILE`: the JSON in a file."""
    option = option or f"--setattr={text}"
    key, equals, path = text[1:].partition("=")
    if not equals or not key:
        raise InvalidError(f"--setattr={text}: expected ^KEY=FILE")
    try:
        with open(path, encoding="utf-8") as lines:
            return key, json.load(lines)
    except OSError as error:
        raise InvalidError(f"{option}: {error}")
    except ValueError as error:
        raise InvalidError(f"{option}: {path} is not JSON: {error}")


def dependency_of(uri: str) -> dict[str, str]:
    """RFC 26: `SCHEME[:VALUE][?KEY=VAL[&KEY=VAL…]]` as an object."""
    rest, _, query = uri.partition("?")
    scheme, _, value = rest.partition(":")
    if not scheme:
        raise InvalidError(f'--dependency: "{uri}" has no scheme', "for example afterok:JOBID")
    result = {"scheme": scheme, "value": value}
    for pair in re.split("[&;]", query) if query else ():
        key, _, text = pair.partition("=")
        result[key] = text
    return result


def deprecations(dependencies: Sequence[str]) -> list[str]:
    """Notices for stderr about the dependencies."""
    return [DEPRECATED_AFTER for uri in dependencies if uri.partition(":")[0] == "after"]


def begin_time(text: str, now: float) -> float:
    """Seconds since the epoch of `+FSD`, `now`, `@EPOCH`, `HH:MM` (the next one) or an ISO 8601 time (local)."""
    wrong = Fail(f'Invalid datetime: "{text}"', hint="for example +10m, 14:30 or 2031-05-01T09:00")
    try:
        if text.startswith("+"):
            return now + duration.parse(text[1:])
        if text == "now":
            return now
        if text.startswith("@"):
            return float(text[1:])
        from datetime import datetime, timedelta

        if text[:1].isdigit() and len(text) <= 8 and ":" in text:
            clock = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M").time()
            moment = datetime.combine(datetime.fromtimestamp(now).date(), clock)
            return (moment if moment.timestamp() > now else moment + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, FormatError):
        raise wrong


def seconds_of(text: str, option: str) -> float:
    from leveret.core import duration

    try:
        seconds = duration.parse(text)
    except FormatError as error:
        raise InvalidError(f"{option}: {error.message}", error.hint) from None
    return 0.0 if seconds == float("inf") else seconds


def stage_of(text: str, option: str) -> dict[str, str]:
    """`SRC:DST`, both kept as typed: a trailing slash has a meaning (the contents, or a directory)."""
    when, colon, rest = text.partition(":")
    if option == "--stage-out" and when in WHEN and ":" in rest:
        return {**stage_of(rest, option), "when": when}
    source, colon, destination = text.partition(":")
    if not colon or not source or not destination:
        raise InvalidError(f"{option}: `{text}` is not SRC:DST", f"for example {option} data/:work/data")
    return {"src": source, "dst": destination}
