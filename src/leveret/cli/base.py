"""Commands and groups of the command line: click, with lazily loaded verbs and Flux's usage messages.

A verb is one click command in a module of its family, imported when it is used. Its help has
every option with a text, and examples.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import click

from leveret.cli import output


class Command(click.Command):
    """A verb.

    `usage`: what follows the name in the usage line. `examples`: (command, meaning) pairs for the help.
    `attached`: options whose value is optional and must be attached, with the value they have alone
    (`-L` is `-Lalways`, `--color` is `--color=always`). `prefix`: the verb in messages.
    """

    def __init__(
        self,
        *args: Any,
        usage: str = "[OPTIONS...]",
        examples: tuple[tuple[str, str], ...] = (),
        attached: Mapping[str, str] | None = None,
        prefix: str = "",
        help_names: tuple[str, ...] = ("-h", "--help"),
        wraps: bool = False,
        **kwargs: Any,
    ) -> None:
        settings = kwargs.setdefault("context_settings", {})
        settings.setdefault("help_option_names", list(help_names))
        settings.setdefault("max_content_width", 100)
        if wraps:  # what follows the first word belongs to a command that we start
            settings["allow_interspersed_args"] = False
        super().__init__(*args, **kwargs)
        self.usage = usage
        self.examples = examples
        self.attached = dict(attached or {})
        self.prefix = prefix

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.attached:
            args = self._attach(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as failure:
            failure.ctx = failure.ctx or ctx  # click's parser does not always say which command it was
            raise

    def _attach(self, args: list[str]) -> list[str]:
        """Give options with an optional value the value that they have alone."""
        result: list[str] = []
        for index, word in enumerate(args):
            if word == "--":
                return result + args[index:]
            value = self.attached.get(word)
            if value is not None:
                word = f"{word}={value}" if word.startswith("--") else word + value
            elif re.fullmatch(r"-[A-Za-z]{2,}", word) and f"-{word[-1]}" in self.attached:
                word += self.attached[f"-{word[-1]}"]
            result.append(word)
        return result

    def invoke(self, ctx: click.Context) -> Any:
        output.verb = self.prefix or (self.name or "")
        return super().invoke(ctx)

    def usage_line(self, ctx: click.Context) -> str:
        return f"usage: {ctx.command_path} {self.usage}".rstrip()

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(self.usage_line(ctx) + "\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for command, meaning in self.examples:
                    formatter.write(f"  {command}\n      {meaning}\n")


class Group(click.Group):
    """A group whose verbs are loaded when used. `verbs`: name → (module, attribute, short help)."""

    def __init__(self, *args: Any, verbs: Mapping[str, tuple[str, str, str]], **kwargs: Any) -> None:
        settings = kwargs.setdefault("context_settings", {})
        settings.setdefault("help_option_names", ["-h", "--help"])
        kwargs.setdefault("no_args_is_help", False)
        kwargs.setdefault("invoke_without_command", True)
        super().__init__(*args, **kwargs)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (_, _, text) in self.verbs.items() if text]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.verbs.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        __import__(module)
        command: click.Command = getattr(sys.modules[module], attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            if name.startswith("-"):
                raise click.NoSuchOption(name, ctx=ctx)
            raise NoSuchVerb(name, self, ctx)
        return (name if command else None), command, args[1:]

    def usage_line(self, ctx: click.Context) -> str:
        return f"usage: {ctx.command_path} [OPTIONS...] COMMAND [ARGS...]"

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(self.usage_line(ctx) + "\n")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, _, text) in self.verbs.items() if text]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class NoSuchVerb(click.UsageError):
    def __init__(self, name: str, group: Group, ctx: click.Context) -> None:
        super().__init__(f"`{name}' is not a {ctx.command_path} command.  See '{ctx.command_path} --help'", ctx)
        self.possibilities = near(name, [verb for verb, entry in group.verbs.items() if entry[2]])


def near(word: str, words: list[str]) -> list[str]:
    """The words that `word` may have been meant to be."""
    from difflib import get_close_matches

    return get_close_matches(word, words, n=3, cutoff=0.75)


def usage_error(failure: click.UsageError) -> int:
    """Print a usage error as Flux's Python commands do, with a hint for a near miss.

    Returns 2; with LEVERET_AS_FLUX Flux's 1 for verbs of `job` and for a verb that does not exist.
    """
    ctx = failure.ctx
    hints: list[str] = []
    if isinstance(failure, click.NoSuchOption):
        text = f"unrecognized arguments: {failure.option_name}"
        known = [name for param in ctx.command.get_params(ctx) for name in param.opts] if ctx else []
        hints = near(failure.option_name, [name for name in known if name[:2] == "--"])
    elif isinstance(failure, NoSuchVerb):
        text, hints = failure.message, failure.possibilities
    else:
        text = failure.format_message()
        text = text[:1].lower() + text[1:].rstrip(".") if not text.startswith("JOBID") else text
        extra = re.match(r"got unexpected extra arguments? \((.*)\)$", text)
        if extra:
            text = f"unrecognized arguments: {extra[1]}"
    as_flux = output.NAME == "flux"
    in_job = ctx is not None and f"{ctx.command_path} ".startswith("flux job ")
    if as_flux and in_job and isinstance(failure, click.NoSuchOption) and ctx is not None:
        name = ctx.command_path.replace(" ", "-", 1)
        output.plain(f"{name}: unrecognized option '{failure.option_name}'")
        output.plain(f"Try `{name} --help' for more information.")
        return 1
    if as_flux and in_job and isinstance(failure, NoSuchVerb) and ctx is not None:
        output.plain("Usage: flux-job [OPTIONS] COMMAND ARGS")
        return 1
    if ctx is not None and not isinstance(failure, NoSuchVerb):
        command = ctx.command
        line = command.usage_line(ctx) if isinstance(command, Command | Group) else ctx.get_usage()
        output.plain(line)
    output.plain(
        f"{ctx.command_path if ctx else output.NAME}: {'' if isinstance(failure, NoSuchVerb) else 'error: '}{text}"
    )
    if hints:
        listed = ", ".join(f"`{hint}`" for hint in hints)
        output.plain(f"hint: did you mean {listed}?")
    if as_flux and (in_job or isinstance(failure, NoSuchVerb)):
        return 1  # as Flux's own programs have it
    return failure.exit_code


class JobIdType(click.ParamType):  # type: ignore[type-arg]
    """A job id in any spelling of RFC 19, for verbs that take a usage error for a bad one."""

    name = "JOBID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        from leveret.core import jobid as jobids
        from leveret.errors import FormatError

        if isinstance(value, tuple):
            return value
        try:
            return str(value), jobids.parse(value)
        except FormatError:
            metavar = "JOBID..." if param is not None and param.nargs == -1 else "JOBID"
            raise click.UsageError(f"argument {metavar}: invalid JobID value: '{value}'", ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        return complete_jobids(ctx, param, incomplete)


def complete_jobids(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
    """The ids of recent jobs, for the shell's completion; never starts a daemon."""
    from click.shell_completion import CompletionItem

    from leveret.client import Client
    from leveret.errors import LeveretError

    try:
        with Client(start=False, patience_s=2.0) as client:
            jobs = client.jobs(count=100)
    except (LeveretError, OSError):
        return []
    items = []
    for job in jobs:
        text = output.f58(job["id"])
        if text.startswith(incomplete) or text.replace("ƒ", "f").startswith(incomplete):
            items.append(CompletionItem(text, help=f"{job.get('name', '')} {job.get('state', '')}"))
    return items


def parse_jobid(text: str) -> int:
    """The id for the verbs of `leveret job`, whose message for a bad one is Flux's."""
    from leveret.core import jobid as jobids
    from leveret.errors import FormatError

    try:
        return jobids.parse(text)
    except FormatError as failure:
        raise FormatError(f'error parsing jobid: "{text}"', failure.hint)


JOBID = JobIdType()
