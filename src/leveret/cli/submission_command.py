"""The click command class of `run` and `submit`: keeps the order of the environment options."""

from __future__ import annotations

import click

from leveret.cli.base import Command

#: option → what makes an --env rule of its value
RULE_OF = {"env": "", "env_remove": "-", "env_file": "^"}


class SubmissionCommand(Command):
    """A verb that submits. Afterwards `params["env"]` has every environment rule in the order given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rules = self._rules(ctx, args) if any(word.startswith("--env") for word in args) else []
        rest = super().parse_args(ctx, args)
        ctx.params["env"] = rules
        return rest

    def _rules(self, ctx: click.Context, args: list[str]) -> list[str]:
        values, _, order = self.make_parser(ctx).parse_args(list(args))
        queues = {name: iter(values.get(name) or ()) for name in RULE_OF}
        rules = []
        for param in order:
            if param.name in queues:
                rules.append(RULE_OF[param.name] + next(queues[param.name]))
        return rules
