"""Options of `run` and `submit` that are about the tasks: their files, limits, signals and places.

Each function gives what stands in the jobspec, as Flux's does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from leveret.cli.output import Fail
from leveret.core import duration, idset, jobspec
from leveret.errors import FormatError

#: soft limits that go with a job unless rules say otherwise, as in Flux
RLIMITS = ("cpu", "fsize", "data", "stack", "core", "nofile", "as", "rss", "nproc")
#: the mask that tasks have when nothing is said (Flux: the broker's, always)
UMASK = 0o022
SIGNAL, TIMELEFT_S = "USR1", "60s"
FILE_BYTES_MAX = 16 << 20


def set_streams(spec: dict[str, Any], output: str, error: str, input: str, label: bool, unbuffered: bool) -> None:
    """`--output`, `--error`, `--input`, `-l` and `-u`."""
    for stream, path in (("stdout", output), ("stderr", error)):
        if path:
            jobspec.setopt(spec, f"output.{stream}.type", "file")
            jobspec.setopt(spec, f"output.{stream}.path", path)
            if label:
                jobspec.setopt(spec, f"output.{stream}.label", True)
    if input:
        jobspec.setopt(spec, "input.stdin.type", "file")
        jobspec.setopt(spec, "input.stdin.path", input)
    if unbuffered:
        for stream in ("stdout", "stderr"):
            jobspec.setopt(spec, f"output.{stream}.buffer.type", "none")
        jobspec.setopt(spec, "output.batch-timeout", 0.05)
        jobspec.setopt(spec, "input.batch-timeout", 0)


def ranks_of(text: str) -> str:
    """`--input=RANKS` of `run`: the set of ranks, or "" for what is a file's name."""
    if not text[:1].isdigit() and not text.startswith("[") and text != "all":
        return ""
    try:
        return text if text == "all" else idset.encode(idset.parse(text))
    except FormatError:
        return ""


def umask() -> str:
    """Ours, in octal; "" where it is the one that tasks have anyway."""
    mask = os.umask(UMASK)
    os.umask(mask)
    return "" if mask == UMASK else f"{mask:04o}"


def rlimits(rules: Iterable[str]) -> dict[str, int]:
    """`--rlimit`: `NAME` or a glob (take ours), `NAME=VALUE`, or `-PATTERN` (leave to the node), in order."""
    import resource

    known = {name[7:].lower(): getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}

    def ours(name: str) -> int:
        soft = resource.getrlimit(known[name])[0]
        return -1 if soft == resource.RLIM_INFINITY else soft

    result = {name: ours(name) for name in RLIMITS if name in known}
    for rule in rules:
        name, equals, value = rule.lower().partition("=")
        pattern = name.removeprefix("-")
        names = _matching(pattern, known)
        if not names or (equals and len(names) > 1):
            raise Fail(f'No corresponding rlimit matching "{pattern}"', hint=f"one of {', '.join(sorted(known))}")
        for name in names:
            if rule.startswith("-"):
                result.pop(name, None)
            else:
                result[name] = _limit(rule, value) if equals else ours(name)
    return result


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    from fnmatch import fnmatchcase

    return [name for name in names if fnmatchcase(name, pattern)]


def _limit(rule: str, value: str) -> int:
    if value in ("unlimited", "infinity", "inf"):
        return -1
    if value.isascii() and value.isdigit() and int(value) < 1 << 63:
        return int(value)
    raise Fail(f'Invalid value in rlimit "{rule}"', hint="a number, or unlimited")


def signal_of(text: str) -> dict[str, Any]:
    """`--signal=[SIG][@TIME]`."""
    from signal import Signals

    name, _, before = text.partition("@")
    name = (name or SIGNAL).upper()
    if name.isdigit():
        number = int(name)
    else:
        found = Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
        number = int(found) if found is not None else 0
    if not 1 <= number <= 64:
        raise Fail(f"--signal={text}: {text.partition('@')[0]} is not a signal", hint="for example USR1@10m")
    try:
        seconds = duration.parse(before or TIMELEFT_S)
    except FormatError:
        raise Fail(f"--signal={text}: invalid Flux standard duration", hint="for example USR1@10m")
    return {"timeleft": int(seconds) if seconds == int(seconds) else seconds, "signum": number}


def taskmap_of(text: str) -> dict[str, str]:
    """`--taskmap=SCHEME[:VALUE]`."""
    scheme, _, value = text.partition(":")
    return {"scheme": scheme, "value": value}


def files_of(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`--add-file=[NAME[:PERMS]=]PATH`, or with what the file holds in place of PATH if that has a newline (RFC 37)."""
    files: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or "\n" in name:
            name, path = os.path.basename(text), text
        name, _, permissions = name.partition(":")
        mode = 0o100600
        if "\n" in path:
            data = path.encode("utf-8", "surrogateescape")
        else:
            data, mode = _content(text, path)
        if permissions:
            try:
                mode = 0o100000 | (int(permissions, 8) & 0o777)
            except ValueError:
                raise Fail(f"--add-file={text}: `{permissions}` is no mode in octal")
        if not name:
            raise Fail(f"--add-file={text}: no name", hint="--add-file=NAME=PATH")
        files[name] = {"mode": mode, "size": len(data), **_encoded(data)}
    return files


def _content(text: str, path: str) -> tuple[bytes, int]:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise Fail(f"--add-file={text}: {error}")
    if len(data) > FILE_BYTES_MAX:
        raise Fail(f"--add-file={text}: larger than {FILE_BYTES_MAX >> 20} MiB", hint="see --stage-in")
    return data, mode


def _encoded(data: bytes) -> dict[str, str]:
    try:
        return {"encoding": "utf-8", "data": data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"encoding": "base64", "data": b64encode(data).decode()}
