"""`leveret R`: read, write and combine resource sets (RFC 20). Sets are JSON objects on stdin, one or several."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group
from leveret.core import hostlist, idset, resources
from leveret.core.resources import Node, Rset
from leveret.errors import FormatError, InvalidError

HERE = "leveret.cli.rset"
VERBS = {
    "encode": (HERE, "encode", "Make a set from ranks, hosts, cores and gpus."),
    "decode": (HERE, "decode", "Print what is in a set, or a part of it."),
    "append": (HERE, "append", "Put sets together; their ranks must differ."),
    "diff": (HERE, "diff", "The first set without the others."),
    "intersect": (HERE, "intersect", "What all sets have."),
    "remap": (HERE, "remap", "Number the ranks from 0."),
    "set-property": (HERE, "set_property", "Give ranks a property."),
}


@click.group("R", cls=Group, verbs=VERBS)
@click.pass_context
def R(ctx: click.Context) -> None:
    """Read, write and combine resource sets (RFC 20)."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


def read() -> list[Rset]:
    """The sets on stdin."""
    text = sys.stdin.read()
    decoder = json.JSONDecoder()
    found: list[Rset] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
            found.append(resources.from_dict(value))
        except (ValueError, FormatError) as error:
            raise InvalidError(f"stdin: {error}", "a resource set (RFC 20) as JSON, for example from `job info ID R`")
    if not found:
        raise InvalidError("no resource set on stdin", "for example `leveret job info ID R | leveret R decode --short`")
    return found


def show(rset: Rset) -> int:
    output.json_data(rset.to_dict())
    return 0


def ids(text: str, option: str) -> list[int]:
    try:
        return idset.parse(text)
    except FormatError as error:
        raise InvalidError(f"{option}: {error.message}")


@click.command(
    "encode",
    cls=Command,
    prefix="R",
    examples=(("leveret R encode -r 0-1 -c 0-3 -H node[0-1]", "two nodes of 4 cores"),),
)
@click.option("-r", "--ranks", metavar="IDSET", help="Ranks (default: one for each host, or 0).")
@click.option("-c", "--cores", metavar="IDSET", default="0", help="Cores of each rank (default 0).")
@click.option("-g", "--gpus", metavar="IDSET", default="", help="GPUs of each rank.")
@click.option("-H", "--hosts", metavar="HOSTLIST", help="Hosts, in order of rank.")
@click.option("-p", "--property", "properties", metavar="NAME:RANKS", multiple=True, help="Give ranks a property.")
@click.option("-l", "--local", is_flag=True, help="The cores of this machine that we may use.")
def encode(
    ranks: str | None, cores: str, gpus: str, hosts: str | None, properties: tuple[str, ...], local: bool
) -> int:
    """Make a resource set."""
    core_ids = range(len(os.sched_getaffinity(0))) if local else ids(cores, "--cores")
    names = hostlist.parse(hosts) if hosts else []
    numbers = ids(ranks, "--ranks") if ranks else list(range(len(names) or 1))
    names = names or [os.uname().nodename] * len(numbers)
    if len(names) != len(numbers):
        raise InvalidError(f"{len(names)} hosts for {len(numbers)} ranks")
    gpu_ids = tuple(ids(gpus, "--gpus")) if gpus else ()
    nodes = {rank: Node(host, tuple(core_ids), gpu_ids) for rank, host in zip(numbers, names, strict=True)}
    return show(with_properties(Rset(nodes), properties))


def with_properties(rset: Rset, texts: Iterable[str]) -> Rset:
    for text in texts:
        name, colon, ranks = text.partition(":")
        wanted = ids(ranks, f"property {name}") if colon else list(rset.ranks)
        if not name or not set(wanted) <= set(rset.ranks):
            raise InvalidError(f"property `{text}`: expected NAME:RANKS, of ranks that are in the set")
        rset.properties[name] = tuple(sorted({*rset.properties.get(name, ()), *wanted}))
    return rset


@click.command(
    "decode",
    cls=Command,
    prefix="R",
    examples=(("leveret job info ƒ2oY3Gx7 R | leveret R decode --nodelist", "the hosts"),),
)
@click.option("-s", "--short", is_flag=True, help="In short: rank[0-1]/core[0-3].")
@click.option("-l", "--nodelist", is_flag=True, help="The hosts.")
@click.option("-r", "--ranks", is_flag=True, help="The ranks.")
@click.option("-c", "--count", metavar="TYPE", type=click.Choice(["node", "core", "gpu"]), help="How many there are.")
@click.option("-i", "--include", metavar="RANKS|HOSTS", help="Only these.")
@click.option("-x", "--exclude", metavar="RANKS|HOSTS", help="Without these.")
@click.option("-p", "--properties", metavar="NAME,...", help="Only ranks with all of these properties.")
def decode(
    short: bool,
    nodelist: bool,
    ranks: bool,
    count: str | None,
    include: str | None,
    exclude: str | None,
    properties: str | None,
) -> int:
    """Print a resource set as it is, in short, or what is asked for."""
    rset = append_all(read())
    if include is not None:
        rset = part(rset, lambda rank: rank in chosen(rset, include))
    if exclude is not None:
        rset = part(rset, lambda rank: rank not in chosen(rset, exclude))
    for name in properties.split(",") if properties else ():
        rset = part(rset, set(rset.properties.get(name, ())).__contains__)
    if short:
        output.data(rset.summary())
    elif nodelist:
        output.data(rset.nodelist())
    elif ranks:
        output.data(rset.ranks_idset())
    elif count:
        output.data(str({"node": rset.nnodes, "core": rset.ncores, "gpu": rset.ngpus}[count]()))
    else:
        show(rset)
    return 0


def chosen(rset: Rset, text: str) -> set[int]:
    try:
        return set(idset.parse(text))
    except FormatError:
        hosts = set(hostlist.parse(text))
        return {rank for rank, node in rset.ranks.items() if node.host in hosts}


def part(rset: Rset, wanted: Callable[[int], bool]) -> Rset:
    return like(rset, {rank: node for rank, node in rset.ranks.items() if wanted(rank)})


def like(rset: Rset, nodes: dict[int, Node]) -> Rset:
    """Other nodes with the rest of a set."""
    kept = {name: tuple(rank for rank in ranks if rank in nodes) for name, ranks in rset.properties.items()}
    properties = {name: ranks for name, ranks in kept.items() if ranks}
    return Rset(nodes, rset.starttime, rset.expiration, rset.nslots, properties)


def append_all(sets: list[Rset]) -> Rset:
    result = sets[0]
    for other in sets[1:]:
        both = set(result.ranks) & set(other.ranks)
        if both:
            raise InvalidError(f"append: duplicate ranks {idset.encode(both)}", "remap them first")
        merged = like(result, {**result.ranks, **other.ranks})
        for name, ranks in other.properties.items():
            merged.properties[name] = tuple(sorted({*merged.properties.get(name, ()), *ranks}))
        result = merged
    return result


@click.command("append", cls=Command, prefix="R", examples=(("cat a.json b.json | leveret R append", "both sets"),))
def append() -> int:
    """Put the sets on stdin together. A rank that two of them have is an error."""
    return show(append_all(read()))


@click.command("diff", cls=Command, prefix="R", examples=(("cat all.json used.json | leveret R diff", "what is left"),))
def diff() -> int:
    """The first set on stdin without what is in the others."""
    first, *others = read()
    return show(combine(first, others, lambda mine, theirs: mine - theirs))


@click.command("intersect", cls=Command, prefix="R", examples=(("cat a.json b.json | leveret R intersect", "common"),))
def intersect() -> int:
    """What all sets on stdin have."""
    first, *others = read()
    return show(combine(first, others, lambda mine, theirs: mine & theirs))


def combine(first: Rset, others: list[Rset], operation: Callable[[set[int], set[int]], set[int]]) -> Rset:
    """Cores and gpus, rank by rank; a rank with nothing left goes."""
    for other in others:
        nodes = {}
        for rank, node in first.ranks.items():
            theirs = other.ranks.get(rank) or Node(node.host, ())
            cores = operation(set(node.cores), set(theirs.cores))
            gpus = operation(set(node.gpus), set(theirs.gpus))
            if cores or gpus:
                nodes[rank] = Node(node.host, tuple(sorted(cores)), tuple(sorted(gpus)))
        first = like(first, nodes)
    return first


@click.command("remap", cls=Command, prefix="R", examples=(("leveret R remap <r.json", "ranks from 0"),))
def remap() -> int:
    """Number the ranks of a set from 0, in order."""
    rset: Any = append_all(read())
    new = {rank: at for at, rank in enumerate(rset.ranks)}
    result = Rset({new[rank]: node for rank, node in rset.ranks.items()}, rset.starttime, rset.expiration, rset.nslots)
    result.properties = {name: tuple(new[rank] for rank in ranks) for name, ranks in rset.properties.items()}
    return show(result)


@click.command(
    "set-property",
    cls=Command,
    prefix="R",
    usage="NAME:RANKS...",
    examples=(("leveret R set-property big:0-3 <r.json", "ranks 0 to 3 are big"),),
)
@click.argument("properties", nargs=-1, required=True, metavar="NAME:RANKS...")
def set_property(properties: tuple[str, ...]) -> int:
    """Give ranks of a set a property; without ranks all of them."""
    return show(with_properties(append_all(read()), properties))
