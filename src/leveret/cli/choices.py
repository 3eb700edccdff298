"""Values that the shell can complete: states, results, signals, formats, users, flags.

These types check nothing (the verbs have Flux's messages for that); they only know what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click


class Values(click.ParamType):  # type: ignore[type-arg]
    """Text, with a list of values for the completion. `many`: a comma list of them."""

    name = "text"

    def __init__(self, values: Callable[[], Iterable[str]], many: bool = False) -> None:
        self.values = values
        self.many = many

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from click.shell_completion import CompletionItem

        done, comma, word = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        found = [value for value in self.values() if value.lower().startswith(word.lower())]
        return [CompletionItem(done + comma + value) for value in found]


def _states() -> Iterable[str]:
    from leveret.cli.jobs import STATES

    return STATES


def _filters() -> Iterable[str]:
    from leveret.cli.jobs import RESULTS, STATES

    return [*STATES, *RESULTS]


def _signals() -> Iterable[str]:
    import signal

    return [one.name.removeprefix("SIG") for one in signal.Signals]


def _formats() -> Iterable[str]:
    from leveret.cli.fields import FORMATS

    return [*FORMATS, "help"]


def _users() -> Iterable[str]:
    import pwd

    return ["all", *(entry.pw_name for entry in pwd.getpwall())]


def _flags() -> Iterable[str]:
    from leveret.cli.submission import FLAGS

    return FLAGS


def _urgencies() -> Iterable[str]:
    from leveret.cli.submission import URGENCIES

    return URGENCIES


def _dependencies() -> Iterable[str]:
    return [
        f"{name}:"
        for name in (
            "afterok",
            "afterany",
            "afternotok",
            "afterexcept",
            "afterstart",
            "afterfinish",
            "begin-time",
            "string",
            "fluid",
        )
    ]


def _job_forms() -> Iterable[str]:
    from leveret.core import jobid

    return jobid.FORMS


STATE = Values(_states, many=True)
FILTER = Values(_filters, many=True)
SIGNAL = Values(_signals)
FORMAT = Values(_formats)
USER = Values(_users)
FLAG = Values(_flags, many=True)
URGENCY = Values(_urgencies)
DEPENDENCY = Values(_dependencies)
JOB_FORM = Values(_job_forms)
WHEN = Values(lambda: ("always", "never", "auto"))
EVENT_FORMAT = Values(lambda: ("text", "json"))
TIME_FORMAT = Values(lambda: ("raw", "iso", "offset", "human"))
PATH = Values(lambda: ("eventlog", "exec", "output", "input"))
EVENT = Values(
    lambda: (
        "submit", "validate", "depend", "priority", "alloc", "prolog-start", "prolog-finish", "start", "finish",
        "epilog-start", "epilog-finish", "release", "free", "clean", "exception", "memo", "urgency",
        "exec.shell.init", "exec.shell.start", "exec.complete", "exec.done",
    )
)  # fmt: skip
TASKMAP_FORM = Values(lambda: ("raw", "pmi", "hosts", "multiline"))
