"""`leveret bulksubmit`: one job per combination of inputs, as GNU parallel and xargs do it.

The words of the command and of its options are templates of Python's `str.format`, filled in with the inputs.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from leveret.cli import output, submission
from leveret.cli.base import Command
from leveret.cli.manyopts import MANY_OPTIONS, Logs
from leveret.cli.output import Fail
from leveret.errors import InvalidError

SEPARATORS = (":::", ":::+", "::::", "::::+")
#: options that are about the whole and not about a job
OWN = frozenset(
    {"wait", "wait_event", "watch", "progress", "jps", "shuffle", "sep", "define", "dry_run", "quiet", "verbose"}
)  # fmt: skip
#: what may stand for an input after a dot
PARTS: dict[str, Callable[[str], str]] = {
    "%": lambda text: _without_extension(text),
    "/": lambda text: text.rpartition("/")[2],
    "/%": lambda text: _without_extension(text.rpartition("/")[2]),
    "//": lambda text: text.rpartition("/")[0] or ("/" if text.startswith("/") else "."),
}


def _without_extension(text: str) -> str:
    import os.path

    return os.path.splitext(text)[0]


class Input(str):
    """One input in a template: `{}`, `{.%}`, `{0./}`, or `{.NAME}` of `--define`."""

    defined: dict[str, Any]

    def __getattribute__(self, name: str) -> Any:
        if name in PARTS:
            return PARTS[name](str(self))
        defined = str.__getattribute__(self, "__dict__").get("defined")
        if defined and name in defined:
            try:
                return eval(defined[name], {"x": str(self)})  # the user's own expression, on the user's own machine
            except Exception as error:
                raise Fail(f"--define={name}: {type(error).__name__}: {error}")
        return super().__getattribute__(name)


class BulkCommand(Command):
    """Cuts the words into our own options, the template of the jobs' options and command, and the inputs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = next((at for at, word in enumerate(args) if word in SEPARATORS), len(args))
        words, inputs = args[:cut], args[cut:]
        own, template, command = self._sort(ctx, words)
        rest = super().parse_args(ctx, own)
        if not ctx.resilient_parsing:
            ctx.params["template"], ctx.params["command"], ctx.params["inputs"] = template, command, inputs
        return rest

    def _sort(self, ctx: click.Context, words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        known = {name: param for param in self.get_params(ctx) for name in param.opts}
        own: list[str] = []
        template: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            if word == "--":
                at += 1
                break
            if not word.startswith("-") or word == "-":
                break
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            param = known.get(name)
            takes = isinstance(param, click.Option) and not param.is_flag and not param.count
            if takes and word == name:
                at += 1
                if at == len(words):
                    raise click.BadOptionUsage(name, f"argument {name}: expected one argument", ctx)
                word = f"{name}={words[at]}" if name.startswith("--") else name + words[at]
            (own if param is None or param.name in OWN or param.name in ("help",) else template).append(word)
            at += 1
        return own, template, list(words[at:])


@click.command(
    "bulksubmit",
    cls=BulkCommand,
    usage="[OPTIONS...] COMMAND [ARGS...] [::: INPUTS...]",
    help_names=("--help",),
    wraps=True,
    examples=(
        ("leveret bulksubmit --wait ./part {} ::: a b c", "three jobs"),
        ("leveret bulksubmit --job-name={0.%} ./x {0} {1} ::: *.nc ::: 1 2", "every file with every number"),
        ("find . -name '*.nc' | leveret bulksubmit --watch ./convert {} {.%}.zarr", "inputs from a pipe"),
        ("leveret bulksubmit --dry-run --define=p2='2**int(x)' -n {.p2} ./x ::: 0 1 2", "a computed value"),
    ),
)
@submission.options(
    *MANY_OPTIONS,
    click.option("--shuffle", is_flag=True, help="Submit in a random order."),
    click.option(
        "--sep", metavar="STRING", default="\n", help="Between inputs of stdin and files; none is any blanks."
    ),
    click.option("--define", metavar="NAME=CODE", multiple=True, help="{.NAME} is a Python expression of the input x."),
)
def bulksubmit(**params: Any) -> int:
    """Submit a job for each input: `{}` in the command or in an option's value is replaced by it.

    Inputs follow `:::` (combined with those of further `:::`; `:::+` goes along with the one before it), are lines of
    files after `::::`, or lines of stdin. Also: {0} {1} the inputs by number; {.%} without extension, {./} the last
    part of a path, {.//} its folder, {./%} both; {seq} and {seq1} the number of the job; {cc} of --cc.
    """
    from leveret.cli.submit import requests, send, stay

    if not params["command"]:
        raise Fail("job command and arguments are missing")
    rows = list(combinations(params["inputs"], params["sep"], definitions(params["define"])))
    if not rows:
        raise Fail("no jobs provided for bulk submission")
    has_copies = any(word.startswith(("--cc", "--bcc")) for word in params["template"])
    lines = [fill(params["template"], params["command"], row, seq, has_copies) for seq, row in enumerate(rows)]
    if params["shuffle"]:
        random.shuffle(lines)
    if params["dry_run"]:
        output.data_lines(f"bulksubmit: submit {' '.join([*options, *command])}" for options, command in lines)
        return 0
    from leveret.client import Client

    logs: dict[str, Any] = {"log": None, "log_stderr": None}
    jobs = []
    for options, command in lines:
        own = parsed(options, command)
        for name in logs:
            if own[name] and "{" not in own[name]:
                logs[name] = own[name]
        jobs += list(requests({**own, "verbose": params["verbose"]}))
    if any("logs" in job for job in jobs):  # each has its own
        logs = dict.fromkeys(logs)
    with Logs(logs), Client() as client:
        ids, code = send(client, jobs, params["quiet"])
        return stay(client, ids, code, {**params, "label_io": bool({"-l", "--label-io"} & {*params["template"]})})


def parsed(options: list[str], command: list[str]) -> dict[str, Any]:
    """The parameters of `submit` for one job."""
    from leveret.cli.submit import submit

    with submit.make_context(
        "bulksubmit", [*options, "--", *command], parent=click.get_current_context().parent
    ) as ctx:
        return dict(ctx.params)


def definitions(texts: Sequence[str]) -> dict[str, Any]:
    """`NAME=CODE` compiled, so that an error is seen before anything is submitted."""
    result = {}
    for text in texts:
        name, equals, code = text.partition("=")
        if not equals or not name:
            raise InvalidError(f"--define: `{text}` is not NAME=CODE", "for example --define=p2='2**int(x)'")
        try:
            result[name] = compile(code.strip(), f"--define={name}", "eval")
        except (SyntaxError, ValueError) as error:
            raise InvalidError(f"--define={name}: {error}")
    return result


def combinations(words: Sequence[str], separator: str, defined: dict[str, Any]) -> Iterator[list[Input]]:
    """One list of inputs per job. Without any `:::` the inputs are those of stdin."""
    sources: list[tuple[str, list[str]]] = []
    for word in words:
        if word in SEPARATORS:
            sources.append((word, []))
        else:
            sources[-1][1].append(word)
    if not sources:
        sources = [("::::", ["-"])]
    groups: list[list[list[str]]] = []
    for kind, given in sources:
        values = [line for name in given for line in lines_of(name, separator)] if kind.startswith("::::") else given
        if kind.endswith("+"):
            if groups and values:
                groups[-1] = [[*row, value] for row, value in zip(groups[-1], itertools.cycle(values))]
        else:
            groups.append([[value] for value in values])
    if not groups:
        return
    for parts in itertools.product(*groups):
        row = [Input(value) for part in parts for value in part]
        for one in row:
            one.defined = defined
        yield row


def lines_of(name: str, separator: str) -> list[str]:
    """The inputs of a file; `-` is stdin."""
    try:
        if name == "-":
            text = sys.stdin.read()
        else:
            with open(name, encoding="utf-8", errors="surrogateescape") as lines:
                text = lines.read()
    except OSError as error:
        raise InvalidError(f"{name}: {error.strerror}")
    if separator.lower() == "none":
        return text.split()
    if separator == "\n":
        return text.splitlines()
    return [part for part in text.rstrip("\n").split(separator.encode().decode("unicode_escape")) if part]


def fill(
    template: Sequence[str], command: Sequence[str], row: list[Input], seq: int, has_copies: bool
) -> tuple[list[str], list[str]]:
    """The options and the command of one job. `{cc}` stays where copies are made: it is replaced for each of them."""
    named = {"seq": seq, "seq1": seq + 1, "cc": "{cc}" if has_copies else ""}

    def filled(word: str) -> str:
        try:
            return word.format(*row, **named)
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            why = error.args[0] if error.args else ""
            raise Fail(f"Invalid replacement string in `{word}`: {why}", hint="{{ and }} stand for braces themselves")

    return [filled(word) for word in template], [filled(word) for word in command]
