"""Make docs/options.md: Flux's options × {same, differs, left out}, from the command line's own parser.

python tools/options.py            write docs/options.md
python tools/options.py --check    exit code 1 if it is not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from leveret.cli.main import cli

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "flux" / "options.json"
PAGE = ROOT / "docs" / "options.md"

NESTED = "nested instances do not exist yet"
PLUGINS = "the whole plugin interface: issue 5"
BROKERS = "Leveret has no brokers; an instance is one daemon"

#: command → why all of it is left out
COMMANDS_LEFT_OUT = {
    "flux batch": NESTED,
    "flux alloc": NESTED,
}
_SUBMIT = {
    "--list-plugins": "there are no plugins of the command line; a plugin's options come with issue 5",
}
#: command → option → why it is left out
LEFT_OUT: dict[str, dict[str, str]] = {
    "flux run": _SUBMIT,
    "flux submit": _SUBMIT,
    "flux bulksubmit": _SUBMIT,
    "flux jobs": dict.fromkeys(("--recursive", "--level", "--recurse-all", "--threads"), NESTED),
    "flux job attach": {"--debug": "the debugger's interface (MPIR) is not there"},
    "flux resource reload": {"--xml": "no hwloc"},
    "flux start": {
        "--setattr": BROKERS,
        "--recovery": BROKERS,
        "--sysconfig": "the configuration is found by itself, also the system's",
        "--noexec": BROKERS,
        "--broker-opts": BROKERS,
        "--wrap": BROKERS,
        "--conf": "not yet: a file, by --config-path or LEVERET_CONFIG",
        **dict.fromkeys(
            (
                "--test-hosts", "--test-exit-timeout", "--test-exit-mode", "--test-start-mode", "--test-rundir",
                "--test-rundir-cleanup", "--test-pmi-clique",
            ),
            BROKERS,
        ),
    },
}  # fmt: skip
#: command → option → what is different
DIFFERS: dict[str, dict[str, str]] = {
    **{
        command: {"--help": "has no topics", **more}
        for command, more in {
            "flux run": {"--wait-event": "the default is the job's end and not `finish`"},
            "flux submit": {},
            "flux bulksubmit": {},
        }.items()
    },
    "flux job attach": {
        "--wait-event": "the default is the job's end, when all of its parts are over, and not `finish`",
        "--tail": "also without a number, which is 10",
    },
    "flux job wait": {"--all": "`job wait` with nothing to wait for exits with 3"},
    "flux start": {"--config-path": "a file, not a folder", "--test-size": "nodes of one daemon, and not brokers"},
}


def command_of(name: str) -> click.Command | None:
    """Our command of that name."""
    command: Any = cli
    context = click.Context(cli, info_name="leveret")
    for word in name.split()[1:]:
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
        if command is None:
            return None
    return command if isinstance(command, click.Command) else None


def names_of(row: dict[str, str]) -> list[str]:
    return [name for name in (row["short"], row["long"]) if name]


def verdict(command: str, ours: click.Command | None, row: dict[str, str]) -> tuple[str, str]:
    """(same, differs or left out; why). Raises LookupError for a difference that has no reason here."""
    names = names_of(row)
    if command in COMMANDS_LEFT_OUT:
        if ours is not None:
            raise LookupError(f"{command} is there: take it out of COMMANDS_LEFT_OUT")
        return "left out", COMMANDS_LEFT_OUT[command]
    if ours is None:
        raise LookupError(f"{command} is missing, and has no reason")
    context = click.Context(ours, info_name=command, **ours.context_settings)
    known = {name: param for param in ours.get_params(context) for name in (*param.opts, *param.secondary_opts)}
    key = names[-1]
    if not any(name in known for name in names):
        try:
            return "left out", LEFT_OUT[command][key]
        except KeyError:
            raise LookupError(f"{command} {key} is missing, and has no reason") from None
    if key in LEFT_OUT.get(command, {}):
        raise LookupError(f"{command} {key} is there: take it out of LEFT_OUT")
    lost = [name for name in names if name not in known]
    param = known[next(name for name in names if name in known)]
    assert isinstance(param, click.Option)
    takes = not (param.is_flag or param.count)
    why = [f"without {name}" for name in lost]
    if takes != bool(row["argument"]) and key != "--help":
        why.append("takes a value" if takes else "takes no value")
    if key in DIFFERS.get(command, {}):
        why.append(DIFFERS[command][key])
    return ("differs", "; ".join(why)) if why else ("same", "")


def page() -> str:
    data: dict[str, list[dict[str, str]]] = json.loads(DATA.read_text())
    counts: dict[str, int] = {"same": 0, "differs": 0, "left out": 0}
    parts = []
    for command, rows in data.items():
        ours = command_of(command)
        lines = [f"## {command}", ""]
        if ours is None and command in COMMANDS_LEFT_OUT:
            counts["left out"] += len(rows)
            lines += [f"Left out, with its {len(rows)} options: {COMMANDS_LEFT_OUT[command]}.", ""]
            parts += lines
            continue
        lines += ["| option | | meaning in Flux | |", "| --- | --- | --- | --- |"]
        for row in rows:
            what, why = verdict(command, ours, row)
            counts[what] += 1
            shown = ", ".join(f"`{name}`" for name in names_of(row))
            argument = f" `{row['argument']}`".replace("|", "\\|") if row["argument"] else ""
            lines.append(f"| {shown}{argument} | {what} | {row['meaning'].replace('|', chr(92) + '|')} | {why} |")
        parts += [*lines, ""]
    total = sum(counts.values())
    head = [
        "# Flux's options",
        "",
        "Made by `tools/options.py` from the command line's own parser and the options that flux-core 0.88 lists; a test compares. Do not edit.",
        "",
        (
            f"Of {total} options **{counts['same']} are the same**, {counts['differs']} differ, {counts['left out']} are left out "
            "(each with its reason). Leveret's own options are in `--help`."
        ),
        "",
    ]
    return "\n".join(head + parts).rstrip() + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
