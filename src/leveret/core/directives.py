"""The `#DW` directive language: lines into directives, and the verdict on them. Pure.

The rules are data, in the shape of a DWDirectiveRule of HPE's Data Workflow Services, so that a system's own rule set
can take the place of `RULES`. Verdict and wording are those of the DWS admission webhook (`check`) and of its driver's
semantic rules (`check_meaning`); errors also say which directive, key and line.

There is no quoting: tokens are separated by blanks, and only the first `=` of a token splits it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from leveret.errors import InvalidError

PREFIX = "#DW"
#: a directive begins where #DW stands as a word of its own
_BEGIN = re.compile(r"(?:^|(?<=\s))#DW(?=\s|$)")
_CAPACITY = re.compile(r"^(\d+)(KiB|KB|MiB|MB|GiB|GB|TiB|TB)$")
_VARIABLE = re.compile(r"^\$DW_(JOB|PERSISTENT)_([A-Za-z0-9_-]+)(/.*)?$", re.DOTALL)
_UNITS: dict[str, int] = {
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip


class DirectiveError(InvalidError):
    """A directive that is refused. `text` is the wording of DWS; `number` counts from 1."""

    def __init__(self, text: str, number: int = 0, key: str = "", line: int = 0, hint: str = "") -> None:
        where = f"directive {number}" if number else "directives"
        if line:
            where += f" (line {line})"
        if key:
            where += f", key `{key}`"
        super().__init__(f"{where}: {text}", hint, "attributes.system.dw")
        self.text = text
        self.number = number
        self.key = key
        self.line = line


# ---- rules ---------------------------------------------------------------------------------------------


class Argument(msgspec.Struct, frozen=True):
    """One ruleDef: an argument whose key matches `key` (a regular expression)."""

    key: str
    type: str = "string"  #: string, integer, bool or list-of-string
    required: bool = False
    value_required: bool = True
    pattern: str = ""
    patterns: tuple[str, ...] = ()
    min: int | None = None
    max: int | None = None
    unique_within: str = ""


class Rule(msgspec.Struct, frozen=True):
    """One element of a DWDirectiveRule's spec."""

    command: str
    arguments: tuple[Argument, ...]
    watch_states: tuple[str, ...] = ()


_NAME = r"^[a-z][a-z0-9-]+$"
_TYPE = r"^(raw|xfs|gfs2|lustre)$"
_SIZE = r"^\d+(KiB|KB|MiB|MB|GiB|GB|TiB|TB)$"
_REQUIRES = Argument("^requires$", "list-of-string", patterns=("^copy-offload$", "^user-container-auth$"))
_PROFILE = Argument("^profile$", pattern=_NAME)
_WHOLE = ("Proposal", "Setup", "PreRun", "PostRun", "Teardown")


def _name(unique: str = "") -> Argument:
    return Argument("^name$", required=True, pattern=_NAME, unique_within=unique)


_COPY = (Argument("^source$", required=True), Argument("^destination$", required=True), _PROFILE)

#: the rule set `nnf`, as HPE's Rabbit storage ships it
RULES: tuple[Rule, ...] = (
    Rule(
        "jobdw",
        (
            Argument("^type$", required=True, pattern=_TYPE),
            Argument("^capacity$", required=True, pattern=_SIZE),
            _name("jobdw_name"),
            _PROFILE,
            _REQUIRES,
        ),
        _WHOLE,
    ),
    Rule(
        "create_persistent",
        (
            Argument("^type$", required=True, pattern=_TYPE),
            Argument("^capacity$", pattern=_SIZE),
            _name("create_persistent_name"),
            _PROFILE,
        ),
        ("Proposal", "Setup", "Teardown"),
    ),
    Rule("destroy_persistent", (_name("destroy_persistent_name"),), ("Proposal", "Teardown")),
    Rule("persistentdw", (_name(), _REQUIRES), _WHOLE),
    Rule("copy_in", _COPY, ("Proposal", "DataIn", "Teardown")),
    Rule("copy_out", _COPY, ("Proposal", "DataOut", "Teardown")),
    Rule(
        "container",
        (
            _name(),
            Argument("^profile$", required=True, pattern=_NAME),
            Argument(r"^(DW_JOB_|DW_PERSISTENT_|DW_GLOBAL_)[a-z][a-z0-9_]+$"),
        ),
        _WHOLE,
    ),
)


def rules_of(spec: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The `spec` of a live DWDirectiveRule as rules."""
    return tuple(
        Rule(
            str(rule.get("command", "")),
            tuple(
                Argument(
                    str(item.get("key", "")),
                    str(item.get("type", "string")),
                    bool(item.get("isRequired", False)),
                    bool(item.get("isValueRequired", False)),
                    str(item.get("pattern") or ""),
                    tuple(item.get("patterns") or ()),
                    item.get("min"),
                    item.get("max"),
                    str(item.get("uniqueWithin") or ""),
                )
                for item in rule.get("ruleDefs") or ()
            ),
            tuple(word.strip() for word in str(rule.get("watchStates") or "").split(",") if word.strip()),
        )
        for rule in spec
    )


# ---- reading -------------------------------------------------------------------------------------------


class Directive(msgspec.Struct, frozen=True):
    """One directive that can be taken apart; whether it is legal says `check`."""

    text: str  #: with single blanks
    command: str
    args: dict[str, str | None]  #: None: a key without `=`
    line: int = 0  #: in what it came from, 0 = not known

    def get(self, key: str, default: str = "") -> str:
        return self.args.get(key) or default

    @property
    def capacity_bytes(self) -> int:
        """0 when it names none."""
        return capacity(self.get("capacity")) if self.args.get("capacity") else 0


class Line(msgspec.Struct, frozen=True):
    """The text of one directive and the line it began on, before it is judged."""

    text: str
    line: int = 0


def capacity(text: str) -> int:
    """Bytes of `10GiB` (powers of 2) or `10GB` (powers of 10)."""
    found = _CAPACITY.match(text)
    if not found:
        raise DirectiveError(f"argument 'capacity' invalid string '{text}'", key="capacity")
    return int(found.group(1)) * _UNITS[found.group(2)]


def split(text: str, line: int = 1) -> list[Line]:
    """A string with any number of directives, on one line or several, as one Line each."""
    found: list[Line] = []
    begins = [match.start() for match in _BEGIN.finditer(text)]
    if not begins or text[: begins[0]].strip():
        begins.insert(0, 0)
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        words = text[begin:end].split()
        if words:
            lead = text[begin:end]
            first = begin + len(lead) - len(lead.lstrip())
            found.append(Line(" ".join(words), line + text.count("\n", 0, first)))
    return found


def lines_of(value: object, presets: Mapping[str, str | Sequence[str]] | None = None) -> list[Line]:
    """`attributes.system.dw` (a string, or a list of strings), presets put in their places.

    Raises DirectiveError for anything else. Line numbers count through the entries of a list.
    """
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, str) for entry in entries):
        raise DirectiveError(f"Malformed #DW directives, not list or string: {value!r}"[:300])
    found: list[Line] = []
    line = 1
    for entry in entries:
        preset = (presets or {}).get(entry.strip())
        if preset is None:
            found += split(entry, line)
        else:
            for text in [preset] if isinstance(preset, str) else preset:
                found += [Line(part.text, line) for part in split(text)]
        line += entry.rstrip("\n").count("\n") + 1
    return found


def script_lines(text: str) -> list[Line]:
    """The `#DW` lines of a script, or of a file that holds nothing else: those that begin with #DW."""
    return [
        part
        for number, line in enumerate(text.splitlines(), 1)
        if _BEGIN.match(line.lstrip())
        for part in split(line, number)
    ]


def parse(line: Line | str, number: int = 0) -> Directive:
    """Raises DirectiveError when a line cannot be a directive at all."""
    if isinstance(line, str):
        line = Line(line)
    words = line.text.split()
    if not words or words[0] != PREFIX:
        raise DirectiveError(f"missing '#DW' prefix in directive '{line.text}'", number, line=line.line)
    if len(words) == 1:
        raise DirectiveError(f"invalid directive '{line.text}'", number, line=line.line, hint=_commands())
    args: dict[str, str | None] = {}
    for word in words[2:]:
        key, equals, value = word.partition("=")
        if key in args:
            raise DirectiveError(f"repeated argument '{key}' in directive '{line.text}'", number, key, line.line)
        args[key] = value if equals else None
    return Directive(" ".join(words), words[1], args, line.line)


# ---- judging -------------------------------------------------------------------------------------------


def check(lines: Iterable[Line | str], rules: Sequence[Rule] = RULES) -> list[Directive]:
    """The directives of a job, each of which satisfies the rules. Raises DirectiveError for the first that does not."""
    seen: dict[str, set[str]] = {}
    found: list[Directive] = []
    for number, line in enumerate(lines, 1):
        directive = parse(line, number)
        matching = [rule for rule in rules if rule.command == directive.command]
        if not matching:
            raise DirectiveError(
                f"invalid directive '{directive.text}'", number, line=directive.line, hint=_commands(rules)
            )
        for rule in matching:
            _check_one(directive, number, rule, seen)
        found.append(directive)
    return found


def _commands(rules: Sequence[Rule] = RULES) -> str:
    return "one of " + ", ".join(dict.fromkeys(rule.command for rule in rules))


def _check_one(directive: Directive, number: int, rule: Rule, seen: dict[str, set[str]]) -> None:
    met: set[str] = set()
    for key, value in directive.args.items():
        for argument in rule.arguments:
            if re.search(argument.key, key):
                break
        else:
            keys = ", ".join(re.sub(r"[\^$]", "", a.key) for a in rule.arguments)
            raise DirectiveError(
                f"unsupported argument '{key}'", number, key, directive.line, f"{directive.command} takes {keys}"
            )
        met.add(argument.key)
        if value is None and argument.value_required:
            raise DirectiveError(f"argument '{key}' requires value", number, key, directive.line, f"{key}=…")
        if text := _wrong(argument, key, value or ""):
            raise DirectiveError(text, number, key, directive.line, _hint(argument))
        if argument.unique_within:
            values = seen.setdefault(argument.unique_within, set())
            if value in values:
                raise DirectiveError(
                    f"value '{value}' must be unique within '{argument.unique_within}'", number, key, directive.line
                )
            values.add(value or "")
    for argument in rule.arguments:
        if argument.required and argument.key not in met:
            key = re.sub(r"[\^$]", "", argument.key)
            raise DirectiveError(f"missing required argument '{argument.key}'", number, key, directive.line)


def _hint(argument: Argument) -> str:
    if argument.pattern == _SIZE:
        return "a whole number and KiB, MiB, GiB, TiB, KB, MB, GB or TB"
    if argument.pattern == _NAME:
        return "at least two of a-z, 0-9 and -, a letter first"
    if argument.pattern == _TYPE:
        return "xfs, gfs2, raw or lustre"
    return f"must match {argument.pattern}" if argument.pattern else ""


def _wrong(argument: Argument, key: str, value: str) -> str:
    """What is wrong with a value, in the webhook's words; empty when nothing."""
    if argument.type == "integer":
        if not re.fullmatch(r"[+-]?\d+", value):
            return f"argument '{key}' invalid integer '{value}'"
        if argument.max is not None and int(value) > argument.max:
            return f"argument '{key}' specified integer value {value} is greather than maximum value {argument.max}"
        if argument.min is not None and int(value) < argument.min:
            return f"argument '{key}' specified integer value {value} is less than minimum value {argument.min}"
    elif argument.type == "bool":
        if value.lower() not in ("", "true", "false"):
            return f"argument '{key}' invalid boolean '{value}'"
    elif argument.type == "list-of-string":
        words = value.split(",")
        for at, word in enumerate(words):
            if argument.patterns and not any(re.search(pattern, word) for pattern in argument.patterns):
                return f"argument '{key}' invalid string '{word}' in list '{value}'"
            if word in words[:at]:
                return f"argument '{key}' word '{word}' repeated in list '{value}'"
    elif argument.pattern and not re.search(argument.pattern, value):
        return f"argument '{key}' invalid string '{value}'"
    return ""


class Variable(msgspec.Struct, frozen=True):
    """`$DW_JOB_name/path` or `$DW_PERSISTENT_name/path` of a copy directive."""

    persistent: bool
    name: str  #: as the storage is called: `_` of the variable is `-` there
    rest: str  #: from the slash on, empty without one


def variable(path: str) -> Variable | None:
    """None for a path that names no storage of a job."""
    found = _VARIABLE.match(path)
    if not found:
        return None
    return Variable(found.group(1) == "PERSISTENT", found.group(2).replace("_", "-"), found.group(3) or "")


def check_meaning(
    directives: Sequence[Directive],
    *,
    roots: Sequence[str] = (),
    instances: Mapping[str, str] | None = None,
    rules_order: bool = True,
) -> None:
    """What is wrong about directives that are well formed. Raises DirectiveError for the first.

    `roots`: the directories that data may be copied from and to (a plain prefix, as a global Lustre's mount root);
    empty: not checked. `instances`: name → type of the persistent storage that exists; None: not known here.
    `rules_order`: a copy may not stand before the jobdw whose storage it names.
    """
    alone = [d for d in directives if d.command in ("create_persistent", "destroy_persistent")]
    if alone and len(directives) > 1:
        raise _meant(
            directives,
            alone[0],
            "only a single create_persistent or destroy_persistent directive is allowed per workflow",
        )
    containers = [d for d in directives if d.command == "container"]
    if len(containers) > 1:
        raise _meant(directives, containers[1], "only a single container directive is supported per workflow")
    for directive in directives:
        command = directive.command
        if command in ("jobdw", "create_persistent") and directive.args.get("capacity"):
            if directive.capacity_bytes == 0:
                raise _meant(directives, directive, "'capacity' must be a non-zero value", "capacity")
        elif command in ("persistentdw", "destroy_persistent") and instances is not None:
            if directive.get("name") not in instances:
                text = f"PersistentStorageInstance '{directive.get('name')}' not found"
                raise _meant(directives, directive, text, "name")
        elif command in ("copy_in", "copy_out"):
            for key in ("source", "destination"):
                _check_path(directives, directive, key, roots, instances, rules_order)


def _check_path(
    directives: Sequence[Directive],
    directive: Directive,
    key: str,
    roots: Sequence[str],
    instances: Mapping[str, str] | None,
    rules_order: bool,
) -> None:
    path = directive.get(key)
    var = variable(path)
    if var is None:
        if roots and not any(path.startswith(root) for root in roots):
            text = f"global Lustre file system containing '{path}' not found"
            raise _meant(directives, directive, text, key, "copies go between $DW_JOB_name and " + ", ".join(roots))
        return
    if var.persistent:
        if instances is not None and var.name not in instances:
            raise _meant(directives, directive, f"persistent storage instance '{var.name}' not found", key)
        if not any(d.command == "persistentdw" and d.get("name") == var.name for d in directives):
            raise _meant(directives, directive, f"persistentdw directive mentioning '{var.name}' not found", key)
        kind = (instances or {}).get(var.name, "")
    else:
        source = next((d for d in directives if d.command == "jobdw" and d.get("name") == var.name), None)
        if source is None:
            names = [d.get("name").replace("-", "_") for d in directives if d.command == "jobdw"]
            hint = "there is " + ", ".join(f"$DW_JOB_{name}" for name in names) if names else "it needs a #DW jobdw"
            raise _meant(directives, directive, f"job storage instance '{var.name}' not found", key, hint)
        if rules_order and directives.index(source) > directives.index(directive):
            text = f"`{path}` is named before the jobdw that makes it"
            raise _meant(directives, directive, text, key, "put the jobdw first")
        kind = source.get("type")
    if kind == "raw":
        raise _meant(directives, directive, "data movement can not be used with raw allocations", key)


def _meant(
    directives: Sequence[Directive], directive: Directive, text: str, key: str = "", hint: str = ""
) -> DirectiveError:
    return DirectiveError(text, list(directives).index(directive) + 1, key, directive.line, hint)
