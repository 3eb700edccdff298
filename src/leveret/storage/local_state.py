"""What the local storage adapter keeps: one small file per workflow, replaced by rename, so that none is ever half there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from leveret.storage.port import PROPOSAL, Movement


class Place(msgspec.Struct, frozen=True):
    """One allocation: a directory on a rabbit."""

    directive: int
    rabbit: str
    bytes: int
    path: str  #: below the root
    host: str = ""  #: the compute that has it; empty: all of them share it
    index: str = ""  #: `<rabbit>-<i>`, for data that is copied out; empty: none

    @property
    def shared(self) -> bool:
        return not self.host


class Flow(msgspec.Struct):
    """A workflow as it is stored."""

    jobid: int
    uid: str
    userid: int
    groupid: int
    directives: tuple[str, ...]
    nnodes: int = 0
    desired: str = PROPOSAL
    ready: bool = False
    error: bool = False
    message: str = ""
    hurry: bool = False
    since: float = 0.0
    computes: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    mounted: bool = False
    timings: dict[str, str] = {}
    movements: dict[str, Movement] = {}  #: by name
    movers: dict[str, tuple[int, str]] = {}  #: of movements under way: (process, when it began as /proc says)

    @property
    def name(self) -> str:
        return f"fluxjob-{self.jobid}"


class Instance(msgspec.Struct):
    """Persistent storage."""

    name: str
    type: str
    userid: int
    directive: str
    places: tuple[Place, ...]
    consumers: tuple[str, ...] = ()


_flow = msgspec.json.Decoder(Flow).decode
_instance = msgspec.json.Decoder(Instance).decode
_NAME = re.compile(r"^\d+\.json$")


class Files:
    """`flows/JOBID.json` and `instances/NAME.json` below the root."""

    def __init__(self, root: Path) -> None:
        self.flows_dir = root / "flows"
        self.instances_dir = root / "instances"

    def load(self) -> tuple[dict[int, Flow], dict[str, Instance], list[str]]:
        """(workflows, persistent instances, what cannot be read); half-written files are removed."""
        flows: dict[int, Flow] = {}
        instances: dict[str, Instance] = {}
        bad: list[str] = []
        for directory in (self.flows_dir, self.instances_dir):
            for path in _listed(directory):
                if not path.name.endswith(".json"):
                    path.unlink(missing_ok=True)
                    continue
                try:
                    if directory == self.flows_dir:
                        one = _flow(path.read_bytes())
                        flows[one.jobid] = one
                    else:
                        kept = _instance(path.read_bytes())
                        instances[kept.name] = kept
                except (OSError, msgspec.DecodeError) as error:
                    bad.append(f"{path}: {error}")
        return flows, instances, bad

    def save(self, flow: Flow) -> None:
        _replace(self.flows_dir / f"{flow.jobid}.json", msgspec.json.encode(flow))

    def drop(self, jobid: int) -> None:
        (self.flows_dir / f"{jobid}.json").unlink(missing_ok=True)

    def save_instance(self, one: Instance) -> None:
        _replace(self.instances_dir / f"{one.name}.json", msgspec.json.encode(one))

    def drop_instance(self, name: str) -> None:
        (self.instances_dir / f"{name}.json").unlink(missing_ok=True)


def _listed(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from sorted(directory.iterdir())


def _replace(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def began(pid: int) -> str:
    """When a process began, as the kernel counts: with its number it names the process for ever. Empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            rest = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if rest[0] == "Z" else rest[19]
