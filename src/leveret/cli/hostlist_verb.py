"""`leveret hostlist`: fetch, combine and print lists of hosts (RFC 29)."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command
from leveret.errors import FormatError, InvalidError, NotFoundError


@click.command(
    "hostlist",
    cls=Command,
    usage="[OPTIONS] [SOURCES]",
    examples=(
        ("leveret hostlist -e 'node[1-3]'", "node1 node2 node3"),
        ("leveret hostlist --count instance", "how many nodes there are"),
        ("leveret hostlist -x 0 ƒ2oY3Gx7", "a job's hosts without its first"),
        ("leveret hostlist -qi ƒ2oY3Gx7 node5 && echo yes", "whether a job has a host"),
    ),
)
@click.option("-e", "--expand", is_flag=True, help="One by one, and not as ranges.")
@click.option("-d", "--delimiter", metavar="S", default=" ", help="Between hosts of --expand (default a blank).")
@click.option("-c", "--count", is_flag=True, help="How many hosts only.")
@click.option("-n", "--nth", metavar="[-]IDS", help="Only the hosts at these places (from 0; -IDS from the end).")
@click.option("-F", "--find", metavar="HOSTS", help="The places of these hosts.")
@click.option("-L", "--limit", type=int, metavar="N", help="The first N hosts (-N: the last).")
@click.option("-S", "--sort", "ordered", is_flag=True, help="Sorted.")
@click.option("-u", "--union", "--unique", "union", is_flag=True, help="Each host once, sorted.")
@click.option("-x", "--exclude", metavar="HOSTS|IDS", help="Without these hosts, or those at these places.")
@click.option("-i", "--intersect", is_flag=True, help="Hosts that are in all sources.")
@click.option("-m", "--minus", is_flag=True, help="The first source without the others.")
@click.option("-X", "--xor", is_flag=True, help="Hosts that are in an odd number of sources.")
@click.option("-f", "--fallback", is_flag=True, help="What looks like a job id and is none is a host.")
@click.option("-l", "--local", is_flag=True, help="The default source is `local`.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; exit code 1 if the list is empty.")
@click.argument("sources", nargs=-1, metavar="[SOURCES]")
def hostlist(sources: tuple[str, ...], **params: Any) -> int:
    """Combine lists of hosts: one after the other, or as sets.

    A source is a list such as node[1-3], a job's id, `instance`, `avail`, `local` (this job, else the instance), or
    `stdin` (or `-`, the default).
    """
    from leveret.core import hostlist as hosts

    given = sources or (("local",) if params["local"] else ("stdin",))
    lists = [hosts_of(source, params["fallback"]) for source in given]
    found = combine(lists, params)
    if params["exclude"] is not None:
        found = excluded(found, params["exclude"])
    if params["union"]:
        found = sorted(set(found), key=natural)
    elif params["ordered"]:
        found = sorted(found, key=natural)
    if params["limit"] is not None:
        found = found[: params["limit"]] if params["limit"] >= 0 else found[params["limit"] :]
    if params["nth"] is not None:
        found = nth(found, params["nth"])
    if params["quiet"]:
        return int(not found)
    if params["find"] is not None:
        output.data(" ".join(str(place) for place in places(found, params["find"])))
    elif params["count"]:
        output.data(str(len(found)))
    elif params["expand"]:
        if found:
            delimiter = params["delimiter"].encode().decode("unicode_escape")
            output.data(delimiter.join(found))
    elif found:
        output.data(hosts.encode(found))
    return 0


def natural(host: str) -> tuple[Any, ...]:
    """node2 before node10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", host))


def hosts_of(source: str, fallback: bool) -> list[str]:
    """The hosts of one source."""
    from leveret.core import hostlist as hosts
    from leveret.core import jobid as jobids

    if source in ("stdin", "-"):
        return [host for word in sys.stdin.read().split() for host in hosts.parse(word)]
    if source == "local":
        source = os.environ.get("FLUX_JOB_ID") or "instance"
    if source in ("instance", "avail", "available"):
        from leveret.client import Client

        with Client() as client:
            helpers = client.status()["helpers"]
        return [
            helper["host"]
            for helper in sorted(helpers, key=lambda one: one["node"])
            if source == "instance" or helper.get("connected", True)
        ]
    try:
        number = jobids.parse(source) if not any(char in source for char in "[],") else None
    except FormatError:
        number = None
    if number is None:
        return hosts.parse(source)
    from leveret.client import Client

    with Client() as client:
        try:
            return hosts.parse(client.job(number).get("nodelist") or "")
        except NotFoundError:
            if fallback:
                return hosts.parse(source)
            raise NotFoundError(f"job {source} not found", "--fallback takes it for a host")


def combine(lists: list[list[str]], params: dict[str, Any]) -> list[str]:
    if sum(params[name] for name in ("intersect", "minus", "xor")) > 1:
        raise click.UsageError("only one of --intersect, --minus and --xor", click.get_current_context())
    if params["intersect"]:
        common = set(lists[0]).intersection(*lists[1:])
        return sorted(common, key=natural)
    if params["minus"]:
        others = {host for one in lists[1:] for host in one}
        return [host for host in lists[0] if host not in others]
    if params["xor"]:
        odd: set[str] = set()
        for one in lists:
            odd ^= set(one)
        return sorted(odd, key=natural)
    return [host for one in lists for host in one]


def excluded(found: list[str], text: str) -> list[str]:
    from leveret.core import hostlist as hosts
    from leveret.core import idset

    try:
        places = set(idset.parse(text))
    except FormatError:
        names = set(hosts.parse(text))
        return [host for host in found if host not in names]
    return [host for at, host in enumerate(found) if at not in places]


def nth(found: list[str], text: str) -> list[str]:
    from leveret.core import idset

    back = text.startswith("-")
    result = []
    for at in idset.parse(text.removeprefix("-")):
        place = len(found) - at if back else at
        if not 0 <= place < len(found):
            raise InvalidError(f"Invalid hostlist index {'-' if back else ''}{at}", f"there are {len(found)} hosts")
        result.append(found[place])
    return result[::-1] if back else result


def places(found: list[str], text: str) -> list[int]:
    from leveret.core import hostlist as hosts

    result = []
    for host in hosts.parse(text):
        if host not in found:
            raise NotFoundError(f"{host} was not found in hostlist")
        result.append(found.index(host))
    return result
