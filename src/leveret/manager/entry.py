"""What the daemon keeps of an active job beside its fold: things in flight and things that can be read again."""

from __future__ import annotations

from typing import Any

import msgspec

from leveret.core.job import Job
from leveret.core.jobspec import Digest
from leveret.core.resources import Rset
from leveret.manager.shellopts import Shell
from leveret.plugins.hooks import WorkResult


class NodeAsk:
    """One ask that starts processes: a unit on a node (PROCESS.md, "Never twice")."""

    __slots__ = (
        "applied",
        "incarnation",
        "lost",
        "node",
        "pids",
        "spec",
        "started",
        "status",
        "stdin_acked",
        "stored",
        "tail",
        "timed_out",
        "unit",
    )

    def __init__(self, unit: str, node: int, incarnation: str) -> None:
        self.unit = unit
        self.node = node
        self.incarnation = incarnation
        self.applied = 0  #: highest record number whose effects are stored (or on their way to the store)
        self.stored = 0  #: of these, the highest whose effects are on disk
        self.started = False
        self.status: int | None = None  #: wait status once the unit has ended
        self.lost = False  #: its helper was lost before it ended
        self.timed_out = False  #: a work unit's: it ran into its time limit
        self.tail = ""  #: the end of a work unit's standard error
        self.spec: dict[str, Any] | None = None  #: of a work unit; a job's is made from its jobspec again
        self.stdin_acked = 0
        self.pids: list[int] = []  #: of its tasks, in order of rank, once they have started

    def encode(self) -> bytes:
        """The stored form."""
        said = [self.incarnation, self.applied, self.started, self.status, self.tail, self.spec, self.pids]
        said += [self.lost, self.timed_out]
        return msgspec.json.encode(said)

    @classmethod
    def decode(cls, unit: str, node: int, value: bytes) -> NodeAsk:
        incarnation, applied, started, status, tail, spec, *rest = msgspec.json.decode(value)
        ask = cls(unit, node, incarnation)
        ask.applied, ask.started, ask.status, ask.tail, ask.spec = applied, started, status, tail, spec
        ask.pids = rest[0] if rest else []  # records of earlier versions have none
        ask.lost, ask.timed_out = rest[1:3] if len(rest) > 2 else (False, False)
        ask.stored = applied
        return ask

    def result(self, stopped: bool = False) -> WorkResult:
        """How a work unit has ended."""
        assert self.status is not None
        return WorkResult(self.status, self.tail, timed_out=self.timed_out, lost=self.lost, stopped=stopped)


class Entry:
    """An active job."""

    __slots__ = (
        "annotations",
        "asks",
        "data",
        "digest",
        "dirty",
        "env_hash",
        "exits",
        "in_flight",
        "job",
        "leases",
        "lines",
        "owners",
        "progress",
        "reason",
        "rset",
        "shell",
        "stdin_bytes",
        "stdin_recorded",
        "stopping",
        "task_exit",
        "timed_out",
        "unwanted",
        "winsize",
    )

    def __init__(self, job: Job, digest: Digest) -> None:
        self.job = job
        self.digest = digest
        self.rset: Rset | None = None
        self.env_hash: str | None = None  #: of the stored environment (without FLUX_JOB_CC)
        self.in_flight: set[str] = set()  #: asks made and not answered; a crash empties it
        self.asks: dict[tuple[str, int], NodeAsk] = {}  #: by (unit, node)
        self.dirty: set[tuple[str, int]] = set()  #: asks to write (or delete) at the end of the turn
        self.owners: dict[str, str] = {}  #: hold key → plugin that closes it ("" = the API)
        self.data: dict[str, dict[str, Any]] = {}  #: plugin → what it remembers of the job; replaced, never changed
        self.leases: dict[str, float] = {}  #: hold key → seconds for which a word of its holder is good
        self.reason = ""  #: why a plugin keeps it from getting resources, as of the last pass of the scheduler
        self.progress: dict[str, dict[str, Any]] = {}  #: hold key → last progress; never stored
        self.lines: dict[str, int] = {}  #: guest path → number of its next line
        self.stopping: set[str] = set()  #: hold keys that have been asked to stop
        self.unwanted: set[str] = set()  #: units of plugins' work that were asked to stop
        self.task_exit = False  #: shell.task-exit was logged (the first task only)
        self.timed_out = False
        self.exits = 0  #: tasks that have exited since the daemon started
        self.shell: Shell | None = None  #: its shell options, once they have been looked at
        #: what `memo --volatile` has made of the annotations; None: they are as the eventlog says
        self.annotations: dict[str, Any] | None = None
        self.winsize: list[int] | None = None  #: rows and columns of the client's terminal
        self.stdin_bytes = 0  #: bytes taken from clients
        self.stdin_recorded = 0  #: of these, bytes that guest.input holds

    @property
    def unit(self) -> str:
        return f"job/{self.job.id}"

    def lost(self) -> set[int]:
        """Nodes whose helper was lost with something of the job."""
        return {ask.node for ask in self.asks.values() if ask.lost}

    def job_asks(self) -> list[NodeAsk]:
        unit = self.unit
        return [ask for ask in self.asks.values() if ask.unit == unit]
