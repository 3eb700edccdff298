"""leveret.toml into typed settings. Unknown keys are errors, with file and line.

Looked for in: `--config`, `$LEVERET_CONFIG`, `$XDG_CONFIG_HOME/leveret/leveret.toml`,
`/etc/leveret/leveret.toml`; the first found wins. Durations are Flux Standard Durations ("5s").
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from leveret.errors import ConfigError


class Section(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    """Base: keys are written with dashes, unknown ones are refused."""


class Perilog(Section):
    """[job-manager.prolog] and [job-manager.epilog]."""

    command: list[str] | None = None
    timeout: str | None = None  #: FSD; prolog 30m, epilog unlimited by default
    kill_timeout: str = "60s"  #: from SIGTERM to SIGKILL
    cancel_on_exception: bool = True  #: of the prolog; an epilog is never canceled
    per_rank: bool = False  #: on every node of the job; else on its first
    alarm: str = "30m"  #: FSD; when one that may take as long as it likes still runs, the log says so, again and again


class PerilogCommon(Section):
    """[job-manager.perilog]."""

    log_ignore: list[str] = []  #: lines of output that match one of these regular expressions are not logged


class Housekeeping(Section):
    """[job-manager.housekeeping]."""

    command: list[str] | None = None
    release_after: str = (
        "0"  #: FSD; from the first node that is done: then all that are done go back, later each at once
    )


class PluginDirective(Section):
    """[[job-manager.plugins]]: `load` a file, entry point or name with `conf`; `remove` those that match a glob first."""

    load: str | None = None
    conf: dict[str, Any] = {}
    remove: str | None = None


class JobManager(Section):
    prolog: Perilog = msgspec.field(default_factory=Perilog)
    epilog: Perilog = msgspec.field(default_factory=Perilog)
    housekeeping: Housekeeping = msgspec.field(default_factory=Housekeeping)
    perilog: PerilogCommon = msgspec.field(default_factory=PerilogCommon)
    plugins: list[str | PluginDirective] = []  #: loaded at start, in this order
    hold_deadline: str = "1d"  #: FSD; of a hold whose plugin works and names no deadline; 0: none
    hold_alarm: str = "30m"  #: FSD; a hold without deadline that lasts longer is named in the log; 0: never
    plugin_grace: str = "1m"  #: FSD; after a restart a user's hold waits so long for a plugin that is gone; 0: for ever
    inactive_age_limit: str | None = None  #: FSD; jobs that ended longer ago are purged
    inactive_num_limit: int | None = None  #: inactive jobs that are kept
    update_allow: list[str] = []  #: globs of jobspec keys below attributes.system that `update` may set beside its own


class Exec(Section):
    kill_timeout: str = "5s"  #: between SIGTERM (or SIGALRM) and SIGKILL
    max_kill_time: str = "30m"  #: from a job's exception on; then its tasks are given up and their nodes drained
    node_lost_timeout: str = "30s"  #: how long a node may be away before what ran there is taken to be over
    engine: Literal["local", "simulated"] = "local"  #: simulated: jobs only take time (exec/simulated.py)
    simulated_cores: int = 64  #: per node of the simulated engine
    cpu_affinity: Literal["on", "off"] = "off"  #: whether tasks are bound to their job's cores unless it says otherwise
    output_limit: int | None = None  #: bytes kept per job and stream; absent = all of it


class Staging(Section):
    """The copier is an argv template: {src}, {dst} and {python} are filled in; no shell is involved."""

    copier: list[str] = msgspec.field(
        default_factory=lambda: ["{python}", "-m", "leveret.exec.copier", "{src}", "{dst}"]
    )
    timeout: str = "1d"  #: FSD; of a part that moves data
    retries: int = 0  #: of an item that fails, unless its job says otherwise
    retry_delay: str = "1s"  #: FSD; before the first retry; twice that before the next, and so on
    post_timeout: str = "1h"  #: FSD; of --post, unless the job says otherwise; 0: none


class ResourceEntry(Section):
    """[[resource.config]]: what the hosts have; an entry adds to what earlier ones say."""

    hosts: str  #: RFC 29
    cores: str | None = None  #: RFC 22
    gpus: str | None = None
    memory: str | None = None  #: of each host: "64G"
    properties: list[str] = []


class Resource(Section):
    """[resource]: nodes that are described rather than discovered, and which of them get no work."""

    path: str | None = None  #: an R document (RFC 20)
    config: list[ResourceEntry] | None = None  #: instead of `path`
    exclude: str | None = None  #: ranks or hosts that get no work
    reserve: str | None = None  #: cores kept for the system: "0-1@0 0"
    noverify: bool = False  #: do not drain nodes that have less than is described
    norestrict: bool = False  #: all cores of the machine, also those that we may not use ourselves


class Sizes(Section):
    """Of one job; -1 is unlimited, which lets a queue lift a general limit."""

    nnodes: int | None = None
    ncores: int | None = None
    ngpus: int | None = None


class JobSize(Section):
    max: Sizes = msgspec.field(default_factory=Sizes)
    min: Sizes = msgspec.field(default_factory=Sizes)


class Limits(Section):
    duration: str | None = None  #: FSD; "0" is unlimited
    job_size: JobSize = msgspec.field(default_factory=JobSize)


class SystemDefaults(Section):
    duration: str | None = None  #: FSD, for jobs that ask for none
    queue: str | None = None


class JobspecDefaults(Section):
    system: SystemDefaults = msgspec.field(default_factory=SystemDefaults)


class JobspecPolicy(Section):
    defaults: JobspecDefaults = msgspec.field(default_factory=JobspecDefaults)


class Access(Section):
    allow_user: list[str] | None = None
    allow_group: list[str] | None = None


class Policy(Section):
    """[policy] and [queues.NAME.policy] (RFC 33); what a queue says wins."""

    jobspec: JobspecPolicy = msgspec.field(default_factory=JobspecPolicy)
    limits: Limits = msgspec.field(default_factory=Limits)
    access: Access = msgspec.field(default_factory=Access)
    scheduler: dict[str, Any] = {}  #: the scheduler reads it


class Queue(Section):
    """[queues.NAME] (RFC 33)."""

    requires: list[str] = []  #: properties (RFC 20) that select the queue's nodes
    policy: Policy = msgspec.field(default_factory=Policy)


class QueueParams(Section):
    queue_depth: Annotated[int, msgspec.Meta(ge=1)] | None = None  #: jobs that cannot start after which a pass ends


class PolicyParams(Section):
    reservation_depth: Annotated[int, msgspec.Meta(ge=1)] | None = None  #: jobs of each queue that get a booking


class Sched(Section):
    """[sched], with the words of Flux's qmanager (sched/queue.py)."""

    queue_policy: Literal["fcfs", "fifo", "easy", "hybrid", "conservative"] = "fcfs"
    queue_params: QueueParams = msgspec.field(default_factory=QueueParams)
    policy_params: PolicyParams = msgspec.field(default_factory=PolicyParams)


class Notify(Section):
    """[notify]: one message per job when it is over, with its verdict."""

    webhook: str | None = None  #: a URL that gets a POST
    command: list[str] = []  #: an argv, no shell, that gets the message on its standard input
    results: list[Literal["COMPLETED", "FAILED", "CANCELED", "TIMEOUT"]] = []  #: of these jobs only
    timeout: str = "30s"  #: FSD; of one attempt
    give_up: str = "1d"  #: FSD; after this time without success it is dropped, with a line in the log


class RabbitServer(Section):
    """[[rabbit.servers]]: a rabbit of the local adapter and the nodes behind it."""

    name: str
    hosts: str | None = None  #: RFC 29; absent: all nodes that no other rabbit names
    capacity: str | None = None  #: "100GiB"; absent: an equal share of half of what is free at the root


class RabbitMaximums(Section):
    """Bytes for each node of a job, by type, as "10GiB"."""

    xfs: str | None = None
    gfs2: str | None = None
    raw: str | None = None
    lustre: str | None = None


class RabbitPolicy(Section):
    maximums: RabbitMaximums = msgspec.field(default_factory=RabbitMaximums)


class Rabbit(Section):
    """[rabbit]: storage by `#DW` directives, on this machine's disks or by DWS. Times are FSD, "0" is no limit."""

    adapter: Literal["local", "dws"] = "local"
    early_free: bool | None = None  #: nodes go back once unmounted; default: yes with local, no with dws
    root: str | None = None  #: local: where storage is; default: `rabbit` in the state directory
    servers: list[RabbitServer] = []  #: local; none: one `rabbit0` for all nodes
    roots: list[str] = msgspec.field(default_factory=lambda: ["/"])  #: local: where data may come from and go to
    copier: list[str] | None = None  #: local: argv template; {src}, {dst} and {python} are filled in
    presets: dict[str, str | list[str]] = {}  #: name → the directives that it stands for
    policy: RabbitPolicy = msgspec.field(default_factory=RabbitPolicy)
    restrict_persistent_creation: bool = True  #: only the instance's owner may create persistent storage
    setup_timeout: str = "0"  #: of making file systems
    prerun_timeout: str = "0"  #: of mounting
    postrun_timeout: str = "0"  #: of unmounting; then the data is not copied out
    teardown_after: str = "0"  #: of unmounting and copying out together; then the data is not copied out
    epilog_timeout: str = "0"  #: of giving the storage back; then it is left behind, and listed
    tc_timeout: str = "10s"  #: how long a workflow may be in TransientCondition
    kubeconfig: str = ""  #: dws
    context: str = ""  #: dws
    namespace: str = "default"  #: dws
    dws_api_version: str = ""  #: dws; tried first
    nnf_api_version: str = ""  #: dws; tried first


class Ingest(Section):
    feasibility: bool = False  #: refuse at submit what this instance can never give


class Config(Section):
    job_manager: JobManager = msgspec.field(default_factory=JobManager)
    exec: Exec = msgspec.field(default_factory=Exec)
    staging: Staging = msgspec.field(default_factory=Staging)
    resource: Resource = msgspec.field(default_factory=Resource)
    policy: Policy = msgspec.field(default_factory=Policy)
    queues: dict[str, Queue] = {}
    sched: Sched = msgspec.field(default_factory=Sched)
    ingest: Ingest = msgspec.field(default_factory=Ingest)
    notify: Notify = msgspec.field(default_factory=Notify)
    rabbit: Rabbit = msgspec.field(default_factory=Rabbit)
    source: str = ""  #: the file it came from; not a key of the file


def find(explicit: str | None = None) -> Path | None:
    """The configuration file to use, or None for the defaults."""
    if explicit:
        return Path(explicit)
    if env := os.environ.get("LEVERET_CONFIG"):
        return Path(env)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    for candidate in (Path(home) / "leveret" / "leveret.toml", Path("/etc/leveret/leveret.toml")):
        if candidate.is_file():
            return candidate
    return None


def load(path: Path | None) -> Config:
    """Read and check a configuration file. Raises ConfigError with file and line."""
    if path is None:
        return Config()
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", path=str(path)) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", path=str(path)) from None
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at.group(1)) if at else max(1, len(text.splitlines()))
        raise ConfigError(f"{path}:{line}: {error}", path=str(path)) from None
    if "source" in data:
        raise ConfigError(f"{path}:{_line(text, ['source'])}: unknown key `source`", path=str(path))
    try:
        config = msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        keys = [k for k in re.split(r"[.\[\]]", where.rstrip("`")) if k and not k.isdigit() and k != "..."]
        if keys[:1] == ["queues"] and isinstance(data["queues"], dict):
            keys.insert(1, _bad_queue(data["queues"]))  # msgspec does not say which
        unknown = re.search(r"unknown field `(.+?)`", message)
        if unknown:
            keys.append(unknown.group(1))
            message = f"unknown key `{'.'.join(keys)}`"
        else:
            message = f"{'.'.join(keys)}: {message}"
        raise ConfigError(f"{path}:{_line(text, keys)}: {message}", path=str(path)) from None
    config.source = str(path)
    return config


def _bad_queue(queues: dict[str, Any]) -> str:
    """The name of the first queue that cannot be read."""
    for name, table in queues.items():
        try:
            msgspec.convert(table, Queue)
        except msgspec.ValidationError:
            return name
    return ""


def duration_error(config: Config, key: str, why: str) -> ConfigError:
    """The error for a duration that cannot be read: whoever uses a setting reads it (layers: this module cannot)."""
    return at_key(config, key, f"{key}: {why}", "a duration is a number and ms, s, m, h or d")


def at_key(config: Config, key: str, message: str, hint: str = "") -> ConfigError:
    """An error about the setting `key` (dotted), with the file and line that set it."""
    where = config.source
    try:
        where += f":{_line(Path(config.source).read_text(), key.split('.'))}"
    except (OSError, UnicodeDecodeError):
        pass
    return ConfigError(f"{where}: {message}" if where else message, hint, path=config.source)


def _line(text: str, keys: list[str]) -> int:
    """The line that sets the last key, or the one that sets the longest part of its path; 1 when it cannot be told."""
    best, longest = 1, 0
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        if header:
            table = found = _keys(header.group(1))
        elif assigned := re.match(
            r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line
        ):
            found = table + _keys(assigned.group(1))
        else:
            continue
        if len(found) > longest and found == keys[: len(found)]:
            best, longest = number, len(found)
    return best


def _keys(dotted: str) -> list[str]:
    """The parts of a TOML key."""
    return [part.strip("\"'") for part in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", dotted)]
