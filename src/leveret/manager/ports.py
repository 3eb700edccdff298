"""What the manager needs of the outside, as Protocols; adapters fit them by shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

Record = dict[str, Any]


class Batch:
    """What one turn writes, whole or not at all: rows as store/sqlite.py describes them."""

    __slots__ = ("on_commit", "ops", "rows", "urgent")

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, str | None, float | int, bytes | None]] = []
        self.ops: list[tuple[str, tuple[Any, ...]]] = []  #: rare statements, after the rows
        self.urgent: list[Callable[[], None]] = []  #: as on_commit, but before those of every batch (starting tasks)
        self.on_commit: list[Callable[[], None]] = []  #: run in the loop, in order, once the batch is on disk

    def event(self, job: int, n: int, line: bytes) -> None:
        self.rows.append((0, job, n, None, 0, line))

    def guest(self, job: int, path: str, n: int, count: int, extent: bool, lines: bytes) -> None:
        self.rows.append((1, job, n, path, 2 * count + extent, lines))

    def job(self, job: int, userid: int, t_submit: float, env: str | None, jobspec: bytes) -> None:
        self.rows.append((2, job, userid, env, t_submit, jobspec))

    def put(self, job: int, key: str, value: bytes) -> None:
        self.rows.append((3, job, 0, key, 0, value))

    def delete(self, job: int, key: str) -> None:
        self.rows.append((4, job, 0, key, 0, None))

    def done(self, job: int, t_inactive: float, result: str, record: bytes) -> None:
        """The job is inactive; its asks and holds go."""
        self.rows.append((5, job, 0, result, t_inactive, record))

    def env(self, digest: str, body: bytes) -> None:
        self.rows.append((6, 0, 0, digest, 0, body))

    def __bool__(self) -> bool:
        return bool(self.rows or self.ops or self.urgent or self.on_commit)


class Frame(Protocol):
    """A piece of output in a file (exec/outfile.py)."""

    @property
    def end_offset(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def stream(self) -> str: ...
    @property
    def eof(self) -> bool: ...
    @property
    def time(self) -> float: ...
    @property
    def data(self) -> bytes: ...


class Store(Protocol):
    """Durable storage; see store/sqlite.py for what each answers."""

    failed: Exception | None

    @property
    def backlog(self) -> int: ...
    def commit(self, batch: Batch) -> None: ...
    async def barrier(self) -> None: ...
    def events(self, job: int, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]: ...
    def all_events(self, job: int) -> Iterator[bytes]: ...
    def guest(self, job: int, path: str, at: int = 1, limit: int = 64) -> list[tuple[int, int, int, bytes]]: ...
    def guest_paths(self, job: int) -> list[str]: ...
    def guest_next(self, job: int) -> dict[str, int]: ...
    def kv(self, job: int, key: str) -> bytes | None: ...
    def kv_keys(self, job: int) -> list[str]: ...
    def active_ids(self) -> list[int]: ...
    def kv_of_active(self, prefix: str) -> list[tuple[int, str, bytes]]: ...
    def job_row(self, job: int) -> tuple[int, bytes, str | None] | None: ...
    def done_record(self, job: int) -> bytes | None: ...
    def env(self, digest: str) -> bytes: ...
    def inactive(self, limit: int, since: float = 0.0) -> Iterable[bytes]: ...
    def inactive_count(self) -> int: ...
    def result_counts(self) -> dict[str, int]: ...
    def ended_before(self, when: float) -> int: ...
    def first_ended(self, limit: int) -> list[int]: ...
    def output_files(self, jobs: list[int]) -> list[tuple[int, str]]: ...
    def envs_of(self, jobs: list[int]) -> list[str]: ...
    def leftovers(self) -> list[tuple[int, str]]: ...
    def purged(self, job: int) -> tuple[str, int, int | None, str] | None: ...
    def purged_count(self) -> int: ...
    def waitable_ids(self) -> list[int]: ...
    def meta(self, key: str) -> str | None: ...
    def resource_events(self, after: int = 0, limit: int = -1) -> list[tuple[int, bytes]]: ...
    def notes(self, kind: str) -> list[tuple[str, bytes]]: ...
    def plugins(self) -> list[tuple[str, str, bytes]]: ...
    def last_id(self) -> int: ...


class Engine(Protocol):
    """Runs units on nodes. Every call may be made twice; answers come to `manager.on_records`."""

    def hosts(self) -> list[tuple[int, str, list[int]]]:
        """(rank, host, core ids) of every node."""

    def incarnation(self, node: int) -> str:
        """Of the helper that serves the node now."""

    def start(self, node: int, unit: str, spec: dict[str, Any]) -> None:
        """The helper's spec (exec/unit.py). With `env_key`, `base_env` is the environment of that key, which need
        not be sent again, and `env` is added to it."""

    def signal(self, node: int, unit: str, signum: int, escalate_s: float | None) -> None: ...

    def stdin(self, node: int, unit: str, offset: int, ranks: str | list[int], data: bytes, eof: bool) -> None: ...

    def limit(self, node: int, unit: str, left_s: float | None) -> None:
        """The time limit of a unit is over so many seconds from now; None: it has none."""

    def winsize(self, node: int, unit: str, size: list[int]) -> None:
        """Rows and columns of the terminal of the tasks that have one."""

    def ack(self, node: int, unit: str, n: int) -> None: ...

    def forget(self, node: int, unit: str) -> None: ...

    def read_output(self, node: int, file: str, start: int, end: int) -> Iterator[Frame]:
        """Frames between two places of an output file that the node's helper writes; none when it is gone."""

    def remove_output(self, node: int, file: str) -> None:
        """Unlink an output file whose job has been purged; one that is gone is no error."""


class Log(Protocol):
    def info(self, event: str, **details: Any) -> Any: ...

    def warning(self, event: str, **details: Any) -> Any: ...

    def error(self, event: str, **details: Any) -> Any: ...

    def exception(self, event: str, **details: Any) -> Any: ...


class Clock(Protocol):
    def time(self) -> float:
        """Seconds since the epoch."""

    def call_soon(self, callback: Callable[[], None]) -> Any: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        """At an absolute time, seconds since the epoch."""
