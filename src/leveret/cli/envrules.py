"""Environment rules of `run` and `submit`: `--env`, `--env-remove` and `--env-file`, in the order given.

A rule is `NAME` (or a glob: take these from the environment), `NAME=VALUE` (with `$VAR`s of what has been built
so far, else of the environment), `-PATTERN` (drop), or `^FILE` (rules from a file, one a line). Everything is
exported to begin with, so `--env=-* --env=PATH` keeps PATH only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from leveret.cli.output import Fail

FILE_DEPTH_MAX = 8


def apply(rules: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the tasks. Raises Fail with Flux's message."""
    result = dict(environ)
    for rule in rules:
        _apply(rule, result, environ, 0)
    return result


def _apply(rule: str, result: dict[str, str], environ: Mapping[str, str], depth: int) -> None:
    if rule.startswith("-"):
        matches = matcher(rule[1:])
        for name in [name for name in result if matches(name)]:
            del result[name]
    elif rule.startswith("^"):
        if depth >= FILE_DEPTH_MAX:
            raise Fail(f"--env: {rule[1:]}: files name each other too deeply")
        for line in _lines(os.path.expanduser(rule[1:])):
            _apply(line, result, environ, depth + 1)
    elif "=" in rule:
        name, _, value = rule.partition("=")
        result[name] = _expand(value, rule, result, environ)
    else:
        matches = matcher(rule)
        result.update((name, value) for name, value in environ.items() if matches(name))


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as lines:
            stripped = [line.strip() for line in lines]
    except OSError as error:
        raise Fail(f"--env: {error}")
    return [line for line in stripped if line and not line.startswith("#")]


def _expand(value: str, rule: str, result: Mapping[str, str], environ: Mapping[str, str]) -> str:
    def variable(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1] or match[2]
        for place in (result, environ):
            if name in place:
                return place[name]
        raise Fail(f"--env: Variable '{name}' not found in {rule}")

    if "$" not in value:
        return value
    return re.sub(r"\$\$|\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}", variable, value)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches a glob, or a regular expression between slashes (searched for, as Flux does)."""
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            expression = re.compile(pattern[1:-1])
        except re.error as error:
            raise Fail(f"--env: {pattern}: {error}")
        return lambda name: expression.search(name) is not None
    if not any(char in pattern for char in "*?["):
        return lambda name: name == pattern
    from fnmatch import fnmatchcase

    return lambda name: fnmatchcase(name, pattern)


def inherited() -> dict[str, str]:
    """This process's environment, without what Python itself put there (PEP 538 coerces LC_CTYPE in the C locale)."""
    environ = dict(os.environ)
    if environ.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        try:
            with open("/proc/self/environ", "rb") as block:
                given = block.read()
        except OSError:
            return environ
        if not given.startswith(b"LC_CTYPE=") and b"\0LC_CTYPE=" not in given:
            del environ["LC_CTYPE"]
    return environ
