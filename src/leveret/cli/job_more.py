"""`leveret job memo|taskmap|hostpids|namespace|stats`, and `leveret post-job-event`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, complete_jobids, parse_jobid
from leveret.cli.choices import TASKMAP_FORM
from leveret.errors import ConflictError, EventError, FormatError, InvalidError, LeveretError, NotFoundError


def values_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`a.b=VALUE` words as nested objects: JSON values, else text; `-` is read from stdin, no `=` is null."""
    result: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not all(key.split(".")):
            raise InvalidError(f"`{pair}` is not key=value", "for example stage=2 or a.b=text")
        if text == "-":
            text = sys.stdin.read()
            value: Any = text
        elif not equals:
            value = None
        else:
            try:
                value = json.loads(text)
            except ValueError:
                value = text
        *path, last = key.split(".")
        place = result
        for part in path:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InvalidError(f"`{pair}`: {part} has a value already")
            place = inner
        place[last] = value
    return result


@click.command(
    "memo",
    cls=Command,
    prefix="job",
    usage="[--volatile] id key=value [key=value, ...]",
    examples=(("leveret job memo ƒ2oY3Gx7 stage=2 input.file=a.nc", "shown by jobs -o '{user.stage}'"),),
)
@click.option("--volatile", is_flag=True, help="An annotation only: no event, and lost at a restart.")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
@click.argument("pairs", nargs=-1, required=True, metavar="key=value...")
def memo(volatile: bool, jobid: str, pairs: tuple[str, ...]) -> int:
    """Note values on a job, shown as annotations. `null` removes one, `-` is read from stdin."""
    from leveret.client import Client

    number, values = parse_jobid(jobid), values_of(pairs)
    with Client() as client:
        try:
            client.memo(number, values, volatile)
        except NotFoundError:
            raise NotFoundError("memo: unknown job id")
        except ConflictError as refused:
            raise ConflictError(f"memo: {refused.message}", refused.hint)
    return 0


@click.command(
    "post-job-event",
    cls=Command,
    prefix="job-post-event",
    usage="[OPTIONS] id name [context...]",
    examples=(("leveret post-job-event ƒ2oY3Gx7 checkpoint step=7", "wait for it: job wait-event ID checkpoint"),),
)
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
@click.argument("name", metavar="name")
@click.argument("pairs", nargs=-1, metavar="[key=value...]")
def post_job_event(jobid: str, name: str, pairs: tuple[str, ...]) -> int:
    """Post an event of your own to a job. The finish or remove of an open hold gives it up, by you and on the record;
    any other event that would drive the job (start, finish, free …) is refused."""
    from leveret.client import Client

    number = parse_jobid(jobid)
    context = values_of(pairs) if pairs else None
    with Client() as client:
        try:
            client.post_event(number, name, context)
        except EventError:
            raise
        except (NotFoundError, ConflictError):
            raise NotFoundError(f"No such job {jobid}", "it is unknown, or it is over")
    return 0


@click.command(
    "namespace",
    cls=Command,
    prefix="job",
    usage="[id ...]",
    examples=(("leveret job namespace ƒ2oY3Gx7", "as in FLUX_KVS_NAMESPACE"),),
)
@click.argument("ids", nargs=-1, metavar="[id ...]", shell_complete=complete_jobids)
def namespace(ids: tuple[str, ...]) -> int:
    """Print the name of jobs' guest spaces. Without ids they are read from stdin."""
    for text in ids or sys.stdin.read().split():
        output.data(f"job-{parse_jobid(text)}")
    return 0


@click.command(
    "stats", cls=Command, prefix="job", examples=(("leveret job stats | jq .job_states.run", "how many run"),)
)
def stats() -> int:
    """Print how many jobs there are, by state and result, as one JSON object."""
    from leveret.client import Client

    with Client() as client:
        output.json_data(client.stats())
    return 0


# Task maps (RFC 34)


@click.command(
    "taskmap",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] id|taskmap",
    examples=(
        ("leveret job taskmap --to=hosts ƒ2oY3Gx7", "which tasks ran where"),
        ("leveret job taskmap --nodeid=5 '[[0,4,2,1]]'", "a map in RFC 34 form"),
    ),
)
@click.option("--taskids", type=int, metavar="NODEID", help="Tasks on a node.")
@click.option("--ntasks", type=int, metavar="NODEID", help="How many tasks a node has.")
@click.option("--nodeid", type=int, metavar="TASKID", help="The node of a task.")
@click.option("--hostname", type=int, metavar="TASKID", help="The host of a task.")
@click.option("--to", metavar="FORMAT", type=TASKMAP_FORM, help="raw, pmi, hosts or multiline.")
@click.argument("source", metavar="id|taskmap", shell_complete=complete_jobids)
def taskmap(
    taskids: int | None, ntasks: int | None, nodeid: int | None, hostname: int | None, to: str | None, source: str
) -> int:
    """Print a job's task map, or what it says about a task or a node."""
    from leveret.core import idset
    from leveret.core import taskmap as maps

    text, hosts = map_of(source)
    nodes = maps.decode(text)
    per_node: list[list[int]] = [[] for _ in range(max(nodes, default=-1) + 1)]
    for task, node in enumerate(nodes):
        per_node[node].append(task)
    if taskids is not None or ntasks is not None:
        wanted = taskids if taskids is not None else ntasks
        if wanted is None or not 0 <= wanted < len(per_node):
            raise InvalidError(f"No taskids for node {wanted}")
        output.data(idset.encode(per_node[wanted]) if taskids is not None else str(len(per_node[wanted])))
    elif nodeid is not None or hostname is not None:
        asked = nodeid if nodeid is not None else hostname
        if asked is None or not 0 <= asked < len(nodes):
            raise InvalidError(f"failed to get nodeid for task {asked}")
        output.data(str(nodes[asked]) if nodeid is not None else host_of(hosts, nodes[asked]))
    elif to is None:
        output.data(text)
    elif to == "raw":
        output.data(";".join(idset.encode(tasks) for tasks in per_node))
    elif to == "pmi":
        blocks = json.loads(text)
        blocks = blocks.get("map", []) if isinstance(blocks, dict) else blocks
        parts = [",".join(map(str, block[:3])) for block in blocks for _ in range(block[3])]
        output.data(f"(vector,{','.join(f'({part})' for part in parts)})")
    elif to == "multiline":
        output.data_lines(f"{task}: {node}" for task, node in enumerate(nodes))
    elif to == "hosts":
        output.data_lines(f"{host_of(hosts, node)}: {idset.encode(tasks)}" for node, tasks in enumerate(per_node))
    else:
        raise InvalidError(f'invalid value --to="{to}"', "raw, pmi, hosts or multiline")
    return 0


def map_of(source: str) -> tuple[str, list[str]]:
    """(RFC 34 map in JSON, the hosts of the nodes) of a job, or of a map as text."""
    from leveret.core import hostlist

    if source.lstrip()[:1] in ("[", "{"):
        return source, []
    from leveret.client import Client

    number = parse_jobid(source)
    with Client() as client:
        try:
            # an event that is there already is found at once, and one that never comes ends with the job
            event = client.wait_event(number, "shell.start", "exec")
            job = client.job(number)
        except NotFoundError as failure:
            if "never received" in failure.message:
                raise NotFoundError(f"{source}: the job has no task map: it never started")
            raise NotFoundError(f"{source}: No such job")
    found = (event.get("context") or {}).get("taskmap") or {}
    return json.dumps(found.get("map", []), separators=(",", ":")), hostlist.parse(job.get("nodelist") or "")


def host_of(hosts: list[str], node: int) -> str:
    if node >= len(hosts):
        raise InvalidError("host names need a job id and not a map")
    return hosts[node]


@click.command(
    "hostpids",
    cls=Command,
    prefix="job",
    usage="[OPTIONS] id",
    examples=(("leveret job hostpids ƒ2oY3Gx7", "HOST:PID of every task, for a debugger"),),
)
@click.option("-d", "--delimiter", metavar="STRING", default=",", help="Between the pairs (`,`).")
@click.option("-r", "--ranks", metavar="IDSET", default="all", help="Of these tasks only.")
@click.option("-t", "--timeout", metavar="DURATION", help="Give up after this time.")
@click.argument("jobid", metavar="id", shell_complete=complete_jobids)
def hostpids(delimiter: str, ranks: str, timeout: str | None, jobid: str) -> int:
    """Print HOST:PID of a job's tasks; waits until they have started."""
    from leveret.client import Client, EventStream
    from leveret.core import duration, idset

    number = parse_jobid(jobid)
    try:
        deadline = None if timeout is None else time.monotonic() + duration.parse(timeout)
    except FormatError:
        raise InvalidError(f"hostpids: invalid timeout '{timeout}'", "for example 10s")
    wanted = None if ranks == "all" else set(idset.parse(ranks))
    with Client() as client:
        try:
            wait_for_start(EventStream(client, number, ["exec"]), deadline)
            tasks = client.tasks(number)
        except NotFoundError as failure:
            raise NotFoundError(f"hostpids: {failure.message}")
        except ConflictError as failure:
            raise ConflictError(f"hostpids: {failure.message}")
    pairs = [f"{task['host']}:{task['pid']}" for task in tasks if wanted is None or task["rank"] in wanted]
    output.data(delimiter.join(pairs))
    return 0


def wait_for_start(stream: Any, deadline: float | None) -> None:
    from leveret.cli.job_events import readable

    with stream:
        while not stream.ended:
            if not stream.pending and not readable(stream.fileno(), deadline):
                raise LateError("hostpids: timeout waiting for shell.start event")
            for line in stream.pump():
                if "event" in line and line["event"]["name"] == "shell.start":
                    return


class LateError(LeveretError):
    """What was waited for has not come in time."""

    exit_code = 1
