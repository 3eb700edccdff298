"""`leveret resource`: what the instance has, in which state it is, and who drained it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from leveret.cli import output
from leveret.cli.base import Command, Group
from leveret.cli.choices import WHEN, Values
from leveret.cli.format import Format
from leveret.errors import ConflictError, InvalidError, LeveretError

VERBS = {
    "list": (__name__, "list_", "Show what is free, allocated and down."),
    "status": (__name__, "status", "Show nodes by state: avail, drained, excluded …"),
    "drain": (__name__, "drain", "Give nodes no new work, or list those that get none."),
    "undrain": (__name__, "undrain", "Give nodes work again."),
    "info": (__name__, "info", "One line: nodes, cores, GPUs."),
    "R": (__name__, "R", "Print the resource set (RFC 20)."),
    "reload": ("leveret.cli.resource_events", "reload", "Use another resource set, for tests."),
    "eventlog": ("leveret.cli.resource_events", "eventlog", "Print the resource eventlog (RFC 44)."),
}

#: verb → name → (format, what it is for)
FORMATS = {
    "list": {
        "default": (
            "{state:>10} ?:{queue:<10.10} ?:{propertiesx:<10.10+} {nnodes:>6} {ncores:>6} {ngpus:>5} {nodelist}",
            "Default format",
        ),
        "rlist": (
            "{state:>10} ?:{queue:<10.10} ?:{propertiesx:<10.10+} {nnodes:>6} {ncores:>6} +{ngpus:>5} {rlist}",
            "With the ids of cores and GPUs",
        ),
    },
    "status": {
        "default": ("{state:>12}{up:>2} {nnodes:>6} {nodelist}", "Default format"),
        "long": ("{state:>12}{up:>2} {nnodes:>6} ?:{reason:<30.30+} {nodelist}", "With the reasons of drains"),
    },
    "drain": {
        "default": ("{timestamp!d:%b%d %R::<12} {state:<8.8} {reason:<30.30+} {nodelist}", "Default format"),
        "long": (
            "{timestamp!d:%b%d %R::<12} {state:<8.8} {ranks:<8.8+} {reason:<30.30+} {nodelist}",
            "With the ranks",
        ),
        "user": (
            "{timestamp!d:%b%d %R::<12} {state:<8.8} {username:<8.8} {reason:<30.30+} {nodelist}",
            "With who drained",
        ),
    },
}
_SETS = {
    "nnodes": "NNODES", "ncores": "NCORES", "ngpus": "NGPUS", "ranks": "RANKS", "nodelist": "NODELIST",
    "rlist": "LIST", "properties": "PROPERTIES", "propertiesx": "PROPERTIES", "queue": "QUEUE", "state": "STATE",
}  # fmt: skip
_STATES = {
    "state": "STATE", "statex": "STATE", "status": "STATUS", "up": "UP", "up.ascii": "UP", "nnodes": "NNODES",
    "ranks": "RANKS", "nodelist": "NODELIST", "timestamp": "TIME", "reason": "REASON", "userid": "UID",
    "username": "USER", "color_up": "", "color_off": "",
}  # fmt: skip
FIELDS = {"list": _SETS, "status": _STATES, "drain": _STATES}
#: counts do not tell rows apart: rows that are the same but for these are one
COUNTS = frozenset({"nnodes", "ncores", "ngpus", "ranks", "nodelist", "rlist", "color_off"})


@click.group("resource", cls=Group, verbs=VERBS)
@click.pass_context
def resource(ctx: click.Context) -> None:
    """The nodes of the instance: what is free, what is down, and who drained it and why."""
    if ctx.invoked_subcommand is None:
        output.write(2, output.encode(ctx.get_help() + "\n"))
        ctx.exit(2)


def _states(verb: str) -> Values:
    def values() -> tuple[str, ...]:
        from leveret.core import resourceview

        return resourceview.STATUS_STATES if verb == "status" else resourceview.LIST_STATES

    return Values(values, many=True)


def options(verb: str, *, states: bool = True, form: bool = True, color: bool = False) -> Callable[[Any], Any]:
    """The options that most verbs have."""

    def decorate(function: Any) -> Any:
        named = [
            click.option("-q", "--queue", metavar="QUEUE,...", help="Only nodes of these queues."),
            click.option("-i", "--include", metavar="TARGETS", help="Only these ranks or hosts."),
        ]
        if states:
            named.append(
                click.option(
                    "-s", "--states", metavar="STATE,...", type=_states(verb), help="Only these states (commas)."
                )
            )
        if form:
            named += [
                click.option("--json", "as_json", is_flag=True, help="The rows as JSON."),
                click.option("-n", "--no-header", is_flag=True, help="No header line."),
                click.option(
                    "-o", "--format", "form", metavar="FORMAT", type=Values(lambda: [*FORMATS[verb], "help"]),
                    help="Format string, or a named format (`help` lists them).",
                ),
            ]  # fmt: skip
        if color:
            named.append(
                click.option(
                    "-L",
                    "--color",
                    metavar="[WHEN]",
                    type=WHEN,
                    default="auto",
                    help="always, never or auto (attached).",
                )
            )
        for option in named:
            function = option(function)
        return function

    return decorate


def view(include: str | None, queue: str | None) -> Any:
    """The daemon's answer, without what was not asked for."""
    from leveret.client import Client
    from leveret.core.resourceview import View

    with Client() as client:
        found = View(client.resources())
    found.only(include=include, queues=[name for name in (queue or "").split(",") if name])
    return found


# ---- printing ---------------------------------------------------------------------------------------


def format_of(verb: str, name: str | None) -> Format:
    """A named format, or the string itself."""
    known = FORMATS[verb]
    name = (
        name
        or os.environ.get(f"LEVERET_RESOURCE_{verb.upper()}_FORMAT_DEFAULT")
        or (os.environ.get(f"FLUX_RESOURCE_{verb.upper()}_FORMAT_DEFAULT") or "default")
    )
    if name not in known and "{" not in name:
        raise InvalidError(f"--format: No such format {name}", f"named formats: {', '.join(known)}")
    return Format(known[name][0] if name in known else name, FIELDS[verb].get)


def formats_help(verb: str) -> str:
    rows = [f"  {name:<12} {text}" for name, (_, text) in FORMATS[verb].items()]
    shown = ["", f"Configured {output.NAME}-resource {verb} output formats:", "", *rows]
    return "\n".join([*shown, "", f"Fields: {', '.join(name for name, text in FIELDS[verb].items() if text)}"])


def user_name(userid: int | None) -> str:
    import pwd

    if userid is None:
        return ""
    try:
        return pwd.getpwuid(userid).pw_name
    except KeyError:
        return str(userid)


class Cells:
    """Values of a row's fields."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, row: Any, name: str) -> Any:
        rset = row.rset
        if name in ("nnodes", "ncores", "ngpus", "nodelist"):
            return getattr(rset, name)()
        if name == "ranks":
            return rset.ranks_idset()
        if name == "rlist":
            return rset.summary()
        if name in ("properties", "propertiesx"):
            return ",".join(p for p in rset.properties if name == "properties" or p not in row.queues)
        if name == "queue":
            return ",".join(row.queues)
        if name == "state":
            return row.state_text
        if name == "statex":
            return row.state
        if name == "status":
            return "online" if row.online else "offline"
        if name == "up":
            return "✔" if row.online else "✗"
        if name == "up.ascii":
            return "y" if row.online else "n"
        if name == "username":
            return user_name(row.userid)
        if name == "userid":
            return "" if row.userid is None else row.userid
        if name == "color_up":
            return ("\x1b[32m" if row.online else "\x1b[31m") if self.colour else ""
        if name == "color_off":
            return "\x1b[0m" if self.colour else ""
        return getattr(row, name)


def merged(rows: list[Any], form: Format, value_of: Any) -> list[Any]:
    """Rows that the format does not tell apart are one."""
    import msgspec

    from leveret.core.resources import Rset

    keys = [field.name for field in form.fields if field.name not in COUNTS]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(value_of(row, key) for key in keys), []).append(row)
    out = []
    for group in groups.values():
        first = group[0]
        if len(group) > 1:
            nodes = {rank: node for row in reversed(group) for rank, node in row.rset.ranks.items()}
            first = msgspec.structs.replace(first, rset=Rset(nodes, properties=first.rset.properties))
        out.append(first)
    return out


def show(verb: str, rows: list[Any], params: dict[str, Any], skip_empty: bool) -> None:
    form = format_of(verb, params["form"])
    value_of = Cells(output.colours(params.get("color") or "auto"))
    if params["as_json"]:
        output.json_data([as_json(row) for row in rows if row.rset.ranks])
        return
    shown = merged(rows, form, value_of)
    if skip_empty:
        shown = [row for row in shown if row.rset.ranks]
    output.data_lines(form.lines(shown, value_of, not params["no_header"]))


def as_json(row: Any) -> dict[str, Any]:
    rset = row.rset
    record = {
        "state": row.state,
        "nnodes": rset.nnodes(),
        "ncores": rset.ncores(),
        "ngpus": rset.ngpus(),
        "ranks": rset.ranks_idset(),
        "nodelist": rset.nodelist(),
        "online": row.online,
        "properties": list(rset.properties),
        "queues": list(row.queues),
    }
    if row.timestamp:
        record |= {"timestamp": row.timestamp, "reason": row.reason, "userid": row.userid}
    return record


def split(states: str | None, default: tuple[str, ...]) -> list[str]:
    return [name for name in states.split(",") if name] if states else list(default)


# ---- verbs ------------------------------------------------------------------------------------------


@click.command(
    "list",
    cls=Command,
    prefix="resource",
    examples=(
        ("leveret resource list", "what is free, allocated and down"),
        ("leveret resource list -s free -no '{ncores}'", "free cores, as a number"),
    ),
)
@options("list")
@click.option("--no-skip-empty", is_flag=True, help="Keep empty lines, also with -i and -q.")
@click.option("--skip-empty", is_flag=True, help="No empty lines.")
def list_(**params: Any) -> int:
    """Show what the scheduler sees: free, allocated and down resources."""
    from leveret.core.resourceview import LIST_DEFAULT

    if params["form"] == "help":
        output.data(formats_help("list"))
        return 0
    format_of("list", params["form"])
    found = view(params["include"], params["queue"])
    rows = found.by_node(found.rows(split(params["states"], LIST_DEFAULT)))
    show("list", rows, params, params["skip_empty"] and not params["no_skip_empty"])
    return 0


@click.command(
    "status",
    cls=Command,
    prefix="resource",
    attached={"-L": "always", "--color": "always"},
    examples=(("leveret resource status -s drained,exclude", "nodes that get no work"),),
)
@options("status", color=True)
@click.option("--skip-empty", is_flag=True, help="No empty lines, also with -s.")
def status(**params: Any) -> int:
    """Show nodes by state, as operators see them. An asterisk: offline."""
    from leveret.core.resourceview import STATUS_DEFAULT

    if params["form"] == "help":
        output.data(formats_help("status"))
        return 0
    format_of("status", params["form"])
    found = view(params["include"], params["queue"])
    rows = found.status(split(params["states"], STATUS_DEFAULT))
    show("status", rows, params, params["skip_empty"] or not params["states"])
    return 0


@click.command("info", cls=Command, prefix="resource", examples=(("leveret resource info -s free", "what is free"),))
@options("list", form=False)
def info(**params: Any) -> int:
    """One line: how many nodes, cores and GPUs there are."""
    rset = one_set(params)
    parts = [(rset.nnodes(), "Node"), (rset.ncores(), "Core"), (rset.ngpus(), "GPU")]
    output.data(", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in parts))
    return 0


@click.command(
    "R", cls=Command, prefix="resource", examples=(("leveret resource R -s free | leveret R decode -s", "free ids"),)
)
@options("list", form=False)
def R(**params: Any) -> int:
    """Print the resource set (RFC 20) of the instance, or of the states that are named."""
    output.json_data(one_set(params).to_dict())
    return 0


def one_set(params: dict[str, Any]) -> Any:
    from leveret.core.resourceview import Row

    found = view(params["include"], params["queue"])
    rows: list[Row] = found.rows(split(params["states"], ("all",)))
    if len(rows) == 1:
        return rows[0].rset
    return union([row.rset for row in rows])


def union(sets: list[Any]) -> Any:
    from leveret.core.resources import Node, Rset

    nodes: dict[int, Any] = {}
    properties: dict[str, set[int]] = {}
    for rset in sets:
        for rank, node in rset.ranks.items():
            old = nodes.get(rank, Node(node.host, ()))
            nodes[rank] = Node(
                node.host,
                tuple(sorted({*old.cores, *node.cores})),
                tuple(sorted({*old.gpus, *node.gpus})),
            )
        for name, ranks in rset.properties.items():
            properties.setdefault(name, set()).update(ranks)
    return Rset(nodes, properties={name: tuple(sorted(ranks)) for name, ranks in properties.items()})


@click.command(
    "drain",
    cls=Command,
    prefix="resource",
    usage="[OPTIONS] [TARGETS [REASON...]]",
    attached={"-L": "always", "--color": "always"},
    examples=(
        ("leveret resource drain 3 bad memory", "rank 3 gets no new work; what runs there goes on"),
        ("leveret resource drain -f 'node[1-2]' worse", "another reason"),
        ("leveret resource drain -o user", "what is drained, since when, why and by whom"),
    ),
)
@click.option("-u", "--update", is_flag=True, help="Nodes that are drained already stay as they are.")
@click.option("-f", "--force", count=True, help="Overwrite the reason; twice: also the time.")
@options("drain", states=False, color=True)
@click.argument("targets", required=False, metavar="[TARGETS]")
@click.argument("reason", nargs=-1, metavar="[REASON...]")
def drain(targets: str | None, reason: tuple[str, ...], update: bool, force: int, **params: Any) -> int:
    """Give nodes (ranks or hosts) no new work. Without TARGETS: list what is drained."""
    from leveret.client import Client

    if params["form"] == "help":
        output.data(formats_help("drain"))
        return 0
    if targets is None:
        format_of("drain", params["form"])
        show("drain", view(params["include"], params["queue"]).drained(), params, True)
        return 0
    if update and force:
        raise click.UsageError("--update and --force may not be combined")
    with Client() as client:
        try:
            client.drain(targets, " ".join(reason), overwrite=min(force, 2), update=update)
        except ConflictError as failure:
            code = output.error(as_flux(failure, 17))
            output.note("INFO: Use --force to overwrite existing drain reason")
            return code
        except InvalidError as failure:
            raise as_flux(failure, 22)
    return 0


def as_flux(failure: LeveretError, number: int) -> LeveretError:
    """Scripts that were written for Flux look for its numbers."""
    hint = "" if isinstance(failure, ConflictError) else failure.hint
    text = f"[Errno {number}] {failure.message}" if output.NAME == "flux" else failure.message
    return type(failure)(text, hint)


@click.command(
    "undrain",
    cls=Command,
    prefix="resource",
    usage="[OPTIONS] TARGETS [REASON...]",
    examples=(("leveret resource undrain 3", "rank 3 gets work again"),),
)
@click.option("-f", "--force", is_flag=True, help="No error for nodes that are not drained.")
@click.option("-u", "--update", is_flag=True, help="No error for nodes that are not drained.")
@click.argument("targets")
@click.argument("reason", nargs=-1, metavar="[REASON...]")
def undrain(targets: str, reason: tuple[str, ...], force: bool, update: bool) -> int:
    """Give nodes (ranks or hosts) work again."""
    from leveret.client import Client

    with Client() as client:
        client.undrain(targets, " ".join(reason), force=force or update)
    return 0
