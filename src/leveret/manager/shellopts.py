"""Shell options and files of a jobspec, and what they make of the helpers' specs. Pure.

`read` looks at `attributes.system.shell.options` and `attributes.system.files`, once per job; what it gives depends
on the jobspec alone, so that it is the same after a restart. `complete` writes it into the spec of one node
(`exec/unit.py` has the keys). A job with no option that matters here has `PLAIN`, which is not completed at all.

Options that are not known are ignored, as in Flux. What cannot be done ends the job before a task starts, with the
messages of Flux where they are known (`Refusal`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from leveret.core import duration, idset, taskmap
from leveret.core import jobid as jobids
from leveret.errors import FormatError

FATAL, ERR, WARNING, INFO, DEBUG = 2, 3, 4, 6, 7
EXIT_TIMEOUT_S = 30.0
#: what the configuration says ([exec] cpu-affinity): off by default, where Flux's is on. Binding costs trivial jobs a
#: quarter of their throughput (bench/README.md), and one user's machine gains nothing from it.
AFFINITY = "default"
#: Flux's default: SIGUSR1, a minute before the end
SIGNAL = (int(signal.SIGUSR1), 60.0)
SHELL_TERMINATED = int(signal.SIGTERM)  #: wait status of a shell that is ended while it sets up
SHELL_FAILED = 1 << 8

#: options that are looked at here; `rlimit` is passed on as it is
_KNOWN = frozenset(
    ("output", "input", "umask", "cpu-affinity", "exit-timeout", "exit-on-error", "signal", "taskmap", "pty", "verbose")
)
_TAG = re.compile(r"\{\{([^{}]*)\}\}")
#: tags that are not the same for the whole job
_LOCAL = ("task", "node", "tmpdir")
#: (level, component, message) of a `log` record
Said = tuple[int, str, str]


class Target(NamedTuple):
    """Where a stream of the tasks goes: a file."""

    path: str  #: as given, with its tags
    label: bool


class Refusal(NamedTuple):
    """Why no task of the job is started."""

    note: str  #: of the exception
    status: int  #: wait status of the tasks' shell
    logs: list[Said]


class Shell:
    """What a job's shell options say; the defaults are those of a job without any."""

    __slots__ = (
        "affinity",
        "append",
        "err",
        "exit_on_error",
        "exit_timeout_s",
        "files",
        "input",
        "logs",
        "out",
        "pty",
        "pty_interactive",
        "pty_size",
        "refusal",
        "signal",
        "tags",
        "taskmap",
        "umask",
        "verbose",
    )

    def __init__(self) -> None:
        self.out: Target | None = None  #: None: the job's output eventlog
        self.err: Target | None = None
        self.append = False
        self.input: str | None = None  #: the file that is every task's stdin
        self.umask: int | None = None
        self.affinity: str | list[list[int]] = AFFINITY  #: default, off, on, per-task, or the CPUs of each local task
        self.exit_timeout_s: float | None = EXIT_TIMEOUT_S
        self.exit_on_error = False
        self.signal: tuple[int, float] | None = None  #: (number, seconds before the time limit)
        self.taskmap: tuple[str, str] | None = None  #: (scheme, value); None: block
        self.pty: str | list[int] | None = None  #: ranks with a terminal, or "all"
        self.pty_interactive = False
        self.pty_size: list[int] | None = None  #: rows and columns at first
        self.files: dict[str, Any] | None = None  #: RFC 37
        self.tags = False  #: the command has tags
        self.verbose = 0
        self.logs: list[Said] = []
        self.refusal: Refusal | None = None

    def common_file(self, nnodes: int) -> bool:
        """Whether a file is written by several nodes, and emptied by one of them: that one has to come first."""
        targets = [target for target in (self.out, self.err) if target is not None]
        return nnodes > 1 and not self.append and any(not _is_local(target.path) for target in targets)


PLAIN = Shell()


class Place(NamedTuple):
    """One node's part of a job."""

    jobid: int
    name: str  #: of the job
    ntasks: int  #: of the whole job
    nnodes: int  #: that have tasks
    shell: int  #: of this one among them: the rank of Flux's shell
    host: str
    cores: Sequence[int]
    gpus: Sequence[int]


# ---- reading


def read(spec: dict[str, Any]) -> Shell:
    """The options of a valid jobspec. Never raises: what is wrong becomes a log message or a refusal."""
    system = spec["attributes"]["system"]
    options = (system.get("shell") or {}).get("options") or {}
    tags = any("{{" in word for word in spec["tasks"][0]["command"])
    if not tags and not system.get("files") and _KNOWN.isdisjoint(options):
        return PLAIN
    shell = Shell()
    shell.tags = tags
    _read_output(shell, options.get("output"))
    _read_input(shell, options.get("input"))
    for name, reader in _READERS.items():
        if name in options:
            try:
                reader(shell, options[name])
            except (FormatError, TypeError, ValueError):
                _refuse(shell, f"{name}: invalid option: {options[name]}")
    try:
        shell.files = _read_files(system.get("files"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _refuse(shell, f"files: {error}")
    return shell


def _refuse(shell: Shell, note: str) -> None:
    if shell.refusal is None:
        shell.refusal = Refusal(note, SHELL_FAILED, [(FATAL, "", note)])


def _read_output(shell: Shell, output: object) -> None:
    if not isinstance(output, dict):
        return
    shell.out = _target(shell, output, "stdout")
    shell.err = _target(shell, output, "stderr")
    stderr = output.get("stderr")
    if shell.out is not None and shell.err is None and not (isinstance(stderr, dict) and "type" in stderr):
        label = stderr.get("label") if isinstance(stderr, dict) else None
        shell.err = Target(shell.out.path, shell.out.label if label is None else bool(label))
    mode = output.get("mode", "truncate")
    shell.append = mode == "append"
    if mode not in ("append", "truncate"):
        for target in (shell.out, shell.err):
            if target is not None:
                shell.logs.append((WARNING, "output.task", f"ignoring invalid output.mode={mode}"))


def _target(shell: Shell, output: dict[str, Any], stream: str) -> Target | None:
    said = output.get(stream)
    if not isinstance(said, dict) or said.get("type", "file") != "file" or ("type" not in said and "path" not in said):
        return None
    path = said.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        _refuse(shell, f"output.{stream}.path must name a file")
        return None
    return Target(path, bool(said.get("label")))


def _read_input(shell: Shell, said: object) -> None:
    stdin = said.get("stdin") if isinstance(said, dict) else None
    if not isinstance(stdin, dict) or stdin.get("type") != "file":
        return
    path = stdin.get("path")
    if isinstance(path, str) and path and "\0" not in path:
        shell.input = path
    else:
        _refuse(shell, "input.stdin.path must name a file")


def _read_umask(shell: Shell, value: object) -> None:
    mask = int(str(value), 8)
    if not 0 <= mask <= 0o777:
        raise ValueError
    shell.umask = mask


def _read_affinity(shell: Shell, value: object) -> None:
    text = str(value)
    while text:
        if text.startswith("map:"):
            shell.affinity = [_cpus(part) for part in text[4:].split(";")]
            return
        word, _, text = text.partition(",")
        if word in ("off", "on", "per-task"):
            shell.affinity = word
        elif word not in ("1", "verbose"):
            raise ValueError


def _cpus(text: str) -> list[int]:
    if text.startswith("0x"):
        mask = int(text, 16)
        return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    return list(idset.parse(text))


def _read_exit_timeout(shell: Shell, value: object) -> None:
    if value == "none":
        shell.exit_timeout_s = None
    elif isinstance(value, bool):
        raise ValueError
    else:
        seconds = duration.parse(value if isinstance(value, (int, float)) else str(value))
        if seconds < 0:
            raise ValueError
        shell.exit_timeout_s = seconds if seconds < 1e15 else None


def _read_exit_on_error(shell: Shell, value: object) -> None:
    shell.exit_on_error = bool(value)


def _read_signal(shell: Shell, value: object) -> None:
    if isinstance(value, dict):
        number, left_s = int(value.get("signum", SIGNAL[0])), float(value.get("timeleft", SIGNAL[1]))
        if not 1 <= number <= 64 or not 0 <= left_s < 1e15:
            raise ValueError
        shell.signal = number, left_s
    elif value:
        shell.signal = SIGNAL


def _read_taskmap(shell: Shell, value: object) -> None:
    if isinstance(value, dict):
        scheme, rest = str(value.get("scheme", "")), value.get("value", "")
        shell.taskmap = scheme, rest if isinstance(rest, str) else repr(rest)
    else:
        scheme, _, rest = str(value).partition(":")
        shell.taskmap = scheme, rest


def _read_pty(shell: Shell, value: object) -> None:
    if not value:
        return
    said = value if isinstance(value, dict) else {}
    shell.pty_interactive = bool(said.get("interactive"))
    ranks = said.get("ranks", [0] if shell.pty_interactive else "all")
    if isinstance(ranks, str) and ranks != "all":
        ranks = list(idset.parse(ranks))
    elif isinstance(ranks, int):
        ranks = [int(ranks)]
    elif ranks != "all" and not isinstance(ranks, list):
        raise ValueError
    size = said.get("size")
    if isinstance(size, list) and len(size) == 2 and all(type(number) is int for number in size):
        shell.pty_size = size
    shell.pty = ranks


def _read_verbose(shell: Shell, value: object) -> None:
    shell.verbose = int(str(value)) if not isinstance(value, bool) else int(value)


_READERS: dict[str, Callable[[Shell, object], None]] = {
    "umask": _read_umask,
    "cpu-affinity": _read_affinity,
    "exit-timeout": _read_exit_timeout,
    "exit-on-error": _read_exit_on_error,
    "signal": _read_signal,
    "taskmap": _read_taskmap,
    "pty": _read_pty,
    "verbose": _read_verbose,
}


def _read_files(files: object) -> dict[str, Any] | None:
    """RFC 37: name → {mode, data, encoding}. ValueError for a name that would leave the folder."""
    if not files:
        return None
    if not isinstance(files, dict):
        raise ValueError("must be a mapping")
    for name, entry in files.items():
        if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"`{name}` is no name within the job's folder")
        if not isinstance(entry, dict) or type(entry.get("mode", 0)) is not int:
            raise ValueError(f"`{name}` has no mode")
        if entry.get("encoding") not in (None, "utf-8", "base64"):
            raise ValueError(f"`{name}`: unknown encoding {entry['encoding']}")
    return files


# ---- placement


def place(shell: Shell, counts: Sequence[int]) -> list[list[int]] | None:
    """The ranks of each node's tasks; None for blocks, which is the ordinary case, and where the scheme cannot be."""
    if shell.taskmap is None or shell.taskmap[0] == "block":
        return None
    try:
        return taskmap.place(*shell.taskmap, counts)
    except FormatError:
        return None


def refusal_of(shell: Shell, counts: Sequence[int]) -> Refusal | None:
    """Why the job's tasks are not started, or None."""
    if shell.taskmap is not None:
        try:
            taskmap.place(*shell.taskmap, counts)
        except FormatError:
            note = f"failed to map tasks with scheme={shell.taskmap[0]}"
            return Refusal(note, SHELL_TERMINATED, [(FATAL, "", note)])
    return shell.refusal


# ---- templates


def _is_local(text: str) -> bool:
    return any(tag.startswith(_LOCAL) for tag in _TAG.findall(text))


def expand(text: str, value_of: Callable[[str], str | None]) -> str:
    """`text` with its `{{tag}}`s replaced; those that `value_of` does not know stay as they are."""

    def replaced(match: re.Match[str]) -> str:
        value = value_of(match[1])
        return match[0] if value is None else value

    return _TAG.sub(replaced, text)


def job_tag(jobid: int, name: str, ntasks: int, nnodes: int) -> Callable[[str], str | None]:
    """Values of the tags that are the same for the whole job."""

    def value_of(tag: str) -> str | None:
        kind, dot, form = tag.partition(".")
        if kind in ("id", "jobid"):
            try:
                return jobids.encode(jobid, form) if dot else jobids.encode(jobid)
            except FormatError:
                return None
        if tag == "name":
            return name
        if tag in ("size", "ntasks"):
            return str(ntasks)
        return str(nnodes) if tag == "nnodes" else None

    return value_of


def shown_path(target: Target, value_of: Callable[[str], str | None]) -> str:
    """The path of a `redirect` event: not expanded when tasks or nodes have files of their own (Flux)."""
    return target.path if _is_local(target.path) else expand(target.path, value_of)


def _node_tags(place: Place, tmpdir: str) -> dict[str, str]:
    cores, gpus = idset.encode(place.cores), idset.encode(place.gpus)
    resources = f"rank{place.shell}/core[{cores}]" + (f",gpu[{gpus}]" if gpus else "")
    return {
        "node.id": str(place.shell),
        "node.name": place.host,
        "node.cores": cores,
        "node.gpus": gpus,
        "node.ncores": str(len(place.cores)),
        "node.ngpus": str(len(place.gpus)),
        "node.resources": resources,
        "tmpdir": tmpdir,
    }


# ---- writing


def complete(spec: dict[str, Any], shell: Shell, place: Place, refusal: Refusal | None) -> None:
    """Write what the options say into the helper's spec of one node."""
    leads = place.shell == 0
    if refusal is not None:
        logs = refusal.logs if leads else []
        spec["refusal"] = {"note": refusal.note, "status": refusal.status, "logs": logs}
        return
    _templates(spec, shell, place)
    if shell.input is not None:
        spec["stdin"], spec["input"] = "file", shell.input
    if shell.umask is not None:
        spec["umask"] = shell.umask
    _affinity(spec, shell)
    if shell.signal is not None:
        spec["signal"] = {"signum": shell.signal[0], "timeleft_s": shell.signal[1], "log": leads}
    if shell.pty is not None:
        spec["pty"] = {"ranks": shell.pty, "size": shell.pty_size}
        if shell.pty_interactive:
            spec["output"]["unbuffered"] = True
    if shell.files:
        spec["archive"] = shell.files
    logs = list(shell.logs) if leads else []
    if shell.verbose:
        spec["verbose"] = shell.verbose
        ranks = idset.encode([task["rank"] for task in spec["tasks"]])
        word = "task" if len(spec["tasks"]) == 1 else "tasks"
        logs.append((DEBUG, "", f"{place.shell}: task_count={len(spec['tasks'])}"))
        logs.append((DEBUG, "", f"{place.shell}: {word} {ranks} on cores {idset.encode(place.cores)}"))
    if logs:
        spec["logs"] = logs


def _affinity(spec: dict[str, Any], shell: Shell) -> None:
    tasks = spec["tasks"]
    if shell.affinity == "off":
        spec.pop("cores", None)
    elif shell.affinity == "per-task":
        cores, count = spec["cores"], len(tasks)
        for number, task in enumerate(tasks):
            first = number * len(cores) // count
            task["cores"] = cores[first : max(first + 1, (number + 1) * len(cores) // count)]
    elif isinstance(shell.affinity, list):
        for number, task in enumerate(tasks):
            task["cpus"] = shell.affinity[number % len(shell.affinity)]


def _templates(spec: dict[str, Any], shell: Shell, place: Place) -> None:
    """Argument vectors and output files; tasks share what is the same."""
    if not shell.tags and shell.out is None and shell.err is None:
        return
    of_job = job_tag(place.jobid, place.name, place.ntasks, place.nnodes)
    node = _node_tags(place, spec["env"]["FLUX_JOB_TMPDIR"])

    def of_node(tag: str) -> str | None:
        value = of_job(tag)
        return node.get(tag) if value is None else value

    words = [expand(word, of_node) for word in spec["argv"]] if shell.tags else spec["argv"]
    spec["argv"] = words
    own_words = any(_is_local(word) for word in words)
    targets = [target and expand(target.path, of_node) for target in (shell.out, shell.err)]
    paths: dict[str, int] = {}
    for task in spec["tasks"]:
        rank, local = str(task["rank"]), str(task["local"])
        tags = {"taskid": rank, "task.id": rank, "task.rank": rank, "task.index": local}
        if own_words:
            task["argv"] = [expand(word, tags.get) for word in words]
        if paths or targets != [None, None]:
            names = [path if path is None else expand(path, tags.get) for path in targets]
            task["redirect"] = [None if name is None else paths.setdefault(name, len(paths)) for name in names]
    if paths:
        common = shell.common_file(place.nnodes)
        spec["redirect"] = {
            "paths": list(paths),
            "append": shell.append or (common and place.shell > 0),
            "label": [target is not None and target.label for target in (shell.out, shell.err)],
        }


def exit_note(command: str, rank: int, host: str, wait_status: int, timeout_s: float | None) -> str:
    """Why the job ends because one task has; `timeout_s` None for exit-on-error."""
    signum = wait_status & 0x7F
    how = (signal.strsignal(signum) or f"Signal {signum}") if signum else f"Exit {wait_status >> 8}"
    who = f"{command.rpartition('/')[2] or command}: task rank {rank} on host {host}"
    if timeout_s is None:
        return f"{who} failed ({how}) and exit-on-error is set"
    return f"{who} exited ({how}) and exit-timeout={duration.encode(timeout_s)} has expired"
