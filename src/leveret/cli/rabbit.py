"""`leveret rabbit list|status|persistent|mapping|dws2jgf` and `leveret getrabbit`: storage beside the compute nodes."""

from __future__ import annotations

import sys
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group, complete_jobids, parse_jobid
from leveret.errors import InvalidError, NotFoundError, UnreachableError

VERBS = {
    "list": (__name__, "list_", "Show the rabbits: state, capacity, what is allocated, their nodes."),
    "status": (__name__, "status", "Show jobs' storage: in which state it is and what it waits for."),
    "persistent": (__name__, "persistent", "Show storage that outlives its job."),
    "mapping": (__name__, "mapping", "Print which node is behind which rabbit, as JSON."),
    "dws2jgf": (__name__, "dws2jgf", "Add rabbits to a resource set, as a graph for Fluxion."),
}


@click.group("rabbit", cls=Group, verbs=VERBS)
@click.pass_context
def rabbit(ctx: click.Context) -> None:
    """Rabbits (near-node storage): how they are, and whose storage is on them."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


def size_text(size: int) -> str:
    """Bytes for people: `36.0TiB`."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{size}B" if unit == "B" else f"{value:.1f}{unit}"


def _note_trouble(found: dict[str, Any]) -> None:
    if found["trouble"]:
        output.warning(f"storage ({found['adapter']}) cannot be reached: {found['trouble']}")


@click.command("list", cls=Command, prefix="rabbit", usage="[--json]", examples=(("leveret rabbit list", ""),))
@click.option("--json", "as_json", is_flag=True, help="{adapter, synced, trouble, rabbits: [...]}.")
def list_(as_json: bool) -> int:
    """List the rabbits, with the compute nodes behind each.

    FREE is what is left for new storage; nodes whose link to the rabbit is not well are named under LOST.
    """
    from leveret.client import Client
    from leveret.core import hostlist

    with Client() as client:
        found = client.rabbits()
    if as_json:
        output.json_data(found)
        return 0
    _note_trouble(found)
    rows = []
    for one in found["rabbits"]:
        state = one["status"] if one["enabled"] else "Disabled"
        lost = [host for host, how in one["computes"].items() if how != "Ready"]
        free = max(0, one["capacity_bytes"] - one["allocated_bytes"])
        sizes = (size_text(one["capacity_bytes"]), size_text(free))
        rows.append([one["name"], state, *sizes, hostlist.encode(one["computes"]), hostlist.encode(lost) or "-"])
    output.table(rows, ("RABBIT", "STATE", "CAPACITY", "FREE", "NODES", "LOST"))
    return 0


def _movements(one: dict[str, Any]) -> str:
    """`2/3 copied, 41%`: how far a workflow's data is."""
    moves = one["movements"]
    if not moves:
        return "-"
    done, total = sum(each["bytes_done"] for each in moves), sum(each["bytes_total"] for each in moves)
    over = sum(each["state"] == "Finished" for each in moves)
    return f"{over}/{len(moves)}" + (f", {100 * done // total}%" if total else "")


@click.command(
    "status",
    cls=Command,
    prefix="rabbit",
    usage="[--json] [id ...]",
    examples=(("leveret rabbit status", "all jobs that have storage"),),
)
@click.option("--json", "as_json", is_flag=True, help="{workflows: [...]}.")
@click.argument("ids", nargs=-1, metavar="[id ...]", shell_complete=complete_jobids)
def status(as_json: bool, ids: tuple[str, ...]) -> int:
    """Show the storage of jobs: its state, whether that is reached, data that moves, and what the system says."""
    from leveret.client import Client

    wanted = [parse_jobid(one) for one in ids]
    with Client() as client:
        found = client.storage_workflows()
    if wanted:
        known = {one["jobid"] for one in found}
        for number in wanted:
            if number not in known:
                raise NotFoundError(f"job {output.f58(number)} has no storage")
        found = [one for one in found if one["jobid"] in wanted]
    if as_json:
        output.json_data({"workflows": found})
        return 0
    rows = []
    for one in found:
        state = one["state"] or one["desired"]
        how = "reached" if one["ready"] else one["status"]
        rabbits = ",".join(name for name, size in one["allocated"].items() if size) or "-"
        rows.append([output.f58(one["jobid"]), state, how, _movements(one), rabbits, one["message"] or "-"])
    output.table(rows, ("JOBID", "STATE", "STATUS", "DATA", "RABBITS", "MESSAGE"))
    return 0


@click.command(
    "persistent", cls=Command, prefix="rabbit", usage="[--json]", examples=(("leveret rabbit persistent", ""),)
)
@click.option("--json", "as_json", is_flag=True, help="{persistent: [...]}.")
def persistent(as_json: bool) -> int:
    """List persistent storage: made by `create_persistent`, kept until `destroy_persistent`."""
    from leveret.cli.resource import user_name
    from leveret.client import Client

    with Client() as client:
        found = client.persistent_storage()
    if as_json:
        output.json_data({"persistent": found})
        return 0
    rows = []
    for one in found:
        users = ",".join(one["consumers"]) or "-"
        size = size_text(one["capacity_bytes"])
        rows.append([one["name"], one["type"], user_name(one["userid"]), one["state"], size, users])
    output.table(rows, ("NAME", "TYPE", "OWNER", "STATE", "SIZE", "USED BY"))
    return 0


# ---- tables ------------------------------------------------------------------------------------------


def rabbits_known(kubeconfig: str | None = None) -> list[dict[str, Any]]:
    """The rabbits as the instance lists them, or those of a cluster, asked directly."""
    if kubeconfig is None:
        from leveret.client import Client

        with Client() as client:
            return list(client.rabbits()["rabbits"])
    import asyncio

    return asyncio.run(_of_cluster(kubeconfig))


async def _of_cluster(kubeconfig: str) -> list[dict[str, Any]]:
    import msgspec

    from leveret.storage.dws import Dws

    storage = Dws(kubeconfig="" if kubeconfig == "-" else kubeconfig)
    await storage.start(lambda jobid: None, lambda: None)
    try:
        if not storage.synced:
            raise UnreachableError(f"the cluster cannot be read: {storage.trouble}", "check --kubeconfig")
        held = dict.fromkeys((one.name for one in storage.rabbits()), 0)
        for jobid in storage.jobs():
            view = storage.view(jobid)
            for name, size in (view.allocated if view else {}).items():
                held[name] = held.get(name, 0) + size
        return [
            msgspec.to_builtins(one) | {"external_bytes": max(0, one.allocated_bytes - held[one.name])}
            for one in storage.rabbits()
        ]
    finally:
        await storage.close()


KUBECONFIG = click.option(
    "-k", "--kubeconfig", metavar="FILE", help="Ask this cluster (`-`: that of $KUBECONFIG), not the instance."
)


@click.command(
    "mapping",
    cls=Command,
    prefix="rabbit",
    usage="[OPTIONS]",
    examples=(("leveret rabbit mapping -i 2 > /etc/leveret/rabbitmapping.json", ""),),
)
@KUBECONFIG
@click.option("-i", "--indent", type=int, metavar="N", help="Indent the JSON by N blanks.")
@click.option("--nosort", is_flag=True, help="In the order of the source.")
@click.option("--ignore-external-allocations", is_flag=True, help="Whole capacities, whoever else holds some of them.")
def mapping(kubeconfig: str | None, indent: int | None, nosort: bool, ignore_external_allocations: bool) -> int:
    """Print {computes: {node: rabbit}, rabbits: {rabbit: {hostlist, capacity}}}.

    Capacities are bytes, less what others than this instance's jobs hold.
    """
    import json

    from leveret.storage import rabbitmap

    table = rabbitmap.mapping(rabbits_known(kubeconfig), order=not nosort, external=not ignore_external_allocations)
    output.data(json.dumps(table, indent=indent))
    return 0


@click.command(
    "dws2jgf",
    cls=Command,
    prefix="rabbit",
    usage="[OPTIONS] [MAPPING]",
    examples=(("leveret R encode -r 0-3 -H 'n[0-3]' -c 0-7 | leveret rabbit dws2jgf", "R with a graph"),),
)
@KUBECONFIG
@click.option(
    "--chunks-per-nnf", type=int, default=36, metavar="N", help="Ssds that a rabbit is cut into (default 36)."
)
@click.option("--cluster-name", default="cluster", metavar="NAME", help="Name of the root of the graph.")
@click.option("--from-config", metavar="FILE", help="The nodes of `[[resource.config]]` in FILE, and not R of stdin.")
@click.option("--only-sched", is_flag=True, help="The graph only, and not R around it.")
@click.option("--no-validate", is_flag=True, help="Take nodes that no rabbit is known for.")
@click.argument("source", required=False, metavar="[MAPPING]")
def dws2jgf(
    kubeconfig: str | None,
    chunks_per_nnf: int,
    cluster_name: str,
    from_config: str | None,
    only_sched: bool,
    no_validate: bool,
    source: str | None,
) -> int:
    """Read a resource set (R) from stdin, and print it with the rabbits in it as a graph (JGF) under `scheduling`.

    MAPPING is a file that `leveret rabbit mapping` wrote; without it the instance (or -k) is asked.
    """
    import json

    from leveret.core import resources
    from leveret.storage import rabbitmap

    if chunks_per_nnf < 1:
        raise InvalidError("--chunks-per-nnf must be at least 1")
    table = read_mapping(source) if source else rabbitmap.mapping(rabbits_known(kubeconfig))
    exclude: list[int] = []
    if from_config:
        rset, exclude = _of_config(from_config)
    else:
        try:
            rset = resources.from_dict(json.loads(sys.stdin.buffer.read()))
        except ValueError as error:
            raise InvalidError(f"stdin is not JSON: {error}", "give it a resource set (R)") from error
    graph = rabbitmap.jgf(
        rset, table, chunks=chunks_per_nnf, cluster=cluster_name, exclude=exclude, validate=not no_validate
    )
    output.json_data(graph if only_sched else rset.to_dict() | {"scheduling": graph})
    return 0


def read_mapping(path: str) -> dict[str, Any]:
    """A file that `mapping` wrote. Raises InvalidError."""
    import json

    try:
        with open(path, "rb") as file:
            table = json.load(file)
        return {"computes": dict(table["computes"]), "rabbits": dict(table["rabbits"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidError(
            f"{path} is no mapping of rabbits: {error}", "`leveret rabbit mapping` writes one"
        ) from error


def _of_config(path: str) -> tuple[Any, list[int]]:
    """(the resource set that a configuration file describes, the ranks that it excludes)."""
    from pathlib import Path

    from leveret import config
    from leveret.core import inventory

    found = config.load(Path(path)).resource
    if not found.config:
        raise InvalidError(f"{path} describes no nodes", "`[[resource.config]]` does")
    told = inventory.described(found.config)
    return told.rset, sorted(inventory.exclude(told, found.exclude)) if found.exclude else []


@click.command(
    "getrabbit",
    cls=Command,
    usage="[-j JOBID,...] [-c HOSTS] [RABBIT ...]",
    examples=(
        ("leveret getrabbit", "all rabbits"),
        ("leveret getrabbit -c node7", "the rabbit that node7 is behind"),
        ("leveret getrabbit rabbit-1", "the nodes behind rabbit-1"),
        ("leveret getrabbit -j ƒ2oY3Gx7", "the rabbits that hold a job's storage"),
    ),
)
@click.option("-j", "--jobids", metavar="JOBID,...", help="Rabbits of these jobs (their memo `rabbits`).")
@click.option("-c", "--computes", metavar="HOSTS", help="Rabbits of these nodes.")
@click.option("--json", "as_json", is_flag=True, help="A list of names.")
@click.argument("rabbits", nargs=-1, metavar="[RABBIT ...]")
def getrabbit(jobids: str | None, computes: str | None, as_json: bool, rabbits: tuple[str, ...]) -> int:
    """Say which rabbits belong to jobs or nodes, and which nodes to rabbits. One hostlist is printed (RFC 29)."""
    from leveret.client import Client
    from leveret.core import hostlist
    from leveret.storage import rabbitmap

    if sum(map(bool, (jobids, computes, rabbits))) > 1:
        raise InvalidError("give jobs, nodes or rabbits, and not several of them")
    with Client() as client:
        if jobids:
            found: list[str] = []
            for text in jobids.split(","):
                record = client.job(parse_jobid(text))
                names = ((record.get("annotations") or {}).get("user") or {}).get("rabbits")
                if not names:
                    raise NotFoundError(f"job {text} uses no rabbit")
                found += [name for name in hostlist.parse(str(names)) if name not in found]
        else:
            table = rabbitmap.mapping(client.rabbits()["rabbits"])
            if computes:
                found = rabbitmap.rabbits_of(table, hostlist.parse(computes))
            elif rabbits:
                names = [name for text in rabbits for name in hostlist.parse(text)]
                found = rabbitmap.computes_of(table, names)
            else:
                found = list(table["rabbits"])
    if as_json:
        output.json_data(found)
    else:
        output.data(hostlist.encode(found))
    return 0
