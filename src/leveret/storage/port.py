"""What the rabbit plugin asks of a storage system, as a Protocol, in the words of HPE's Data Workflow Services (DWS).

One workflow per job, found by the job's id. It walks through seven states; the caller says how far it is *desired* to
be, the system reports how far it *is*. Two adapters fit by shape: `local_disk.LocalDisk` (this machine's disks) and
`dws.Dws` (Kubernetes). The plugin knows neither.

The contract, for both:

- **Level, not edge.** Every call may be made twice and after a restart of either side; the second changes nothing.
- **`view` is the truth that is known here**, from the adapter's cache, never a request. `changed(jobid)` is called after
  each change of it (also of movements' progress, and with the view gone), in the event loop, perhaps more often than needed.
- **Calls return when the system has taken them**, not when the state is reached: that shows in `view`. While the system
  cannot be reached a call waits and retries within the adapter (jittered back-off), and `trouble` says why; the caller may
  cancel it. `StorageRefused` is the system's No: asking again will not help, the text is for the user.
- Nothing blocks the loop; nothing is removed before `Teardown` was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from leveret.errors import InvalidError

#: in their order; a workflow moves one on, or from anywhere to the last
STATES = ("Proposal", "Setup", "DataIn", "PreRun", "PostRun", "DataOut", "Teardown")
PROPOSAL, SETUP, DATA_IN, PRE_RUN, POST_RUN, DATA_OUT, TEARDOWN = STATES

#: what `View.status` may say. Only `Error` is a failure: messages come and go while a state is under way.
COMPLETED, DRIVER_WAIT, TRANSIENT, ERROR = "Completed", "DriverWait", "TransientCondition", "Error"


class StorageRefused(InvalidError):
    """The storage system refused a request; the message is what it said, without its own prefix."""


class Request(msgspec.Struct, frozen=True):
    """A workflow to be made. Made again for the same job it is the same workflow."""

    jobid: int
    userid: int
    groupid: int
    directives: tuple[str, ...]  #: complete `#DW …` lines, presets resolved; may be empty
    nnodes: int = 0  #: how many nodes the job asks for, 0 when that is not known before `alloc`


class AllocationSet(msgspec.Struct, frozen=True):
    """One kind of storage that a directive needs (DirectiveBreakdown.status.storage.allocationSets[])."""

    label: str  #: xfs, gfs2, raw, ost, mdt, mgt, mgtmdt
    strategy: str  #: AllocatePerCompute, AllocateAcrossServers, AllocateSingleServer, AllocatePerServer
    minimum_bytes: int  #: per compute node for AllocatePerCompute, else in all
    labels: tuple[str, ...] = ()  #: a server must carry these
    scale: int = 0  #: 1 … 10: how many servers to use, 0 = not said
    count: int = 0  #: exactly so many allocations, 0 = not said
    colocation: tuple[tuple[str, str], ...] = ()  #: (type, key): `exclusive` sets of one key go to different servers


class Location(msgspec.Struct, frozen=True):
    """Where computes must be, seen from one allocation set."""

    set: int  #: index into `Breakdown.sets`
    access: tuple[tuple[str, str], ...]  #: (physical | network, mandatory | bestEffort)


class Breakdown(msgspec.Struct, frozen=True):
    """What one directive needs; empty `sets` for a persistentdw, whose storage is there already."""

    directive: int  #: index into `Request.directives`
    lifetime: str = "job"  #: job | persistent
    sets: tuple[AllocationSet, ...] = ()
    locations: tuple[Location, ...] = ()


class View(msgspec.Struct, frozen=True):
    """A workflow as it is known to be."""

    jobid: int
    name: str  #: fluxjob-<decimal id>
    uid: str = ""  #: another one after the workflow was lost and made afresh
    desired: str = PROPOSAL
    state: str = ""  #: of STATES; empty right after it was made
    ready: bool = False  #: `state` has been reached
    status: str = DRIVER_WAIT  #: COMPLETED, DRIVER_WAIT, TRANSIENT or ERROR
    message: str = ""  #: for people; never a verdict
    hurry: bool = False
    directives: tuple[str, ...] = ()
    env: Mapping[str, str] = {}  #: for the tasks; complete when PreRun is ready
    node_env: Mapping[str, Mapping[str, str]] = {}  #: host → variables that differ there (several nodes on one machine)
    breakdowns: tuple[Breakdown, ...] = ()  #: complete when Proposal is ready
    since: float = 0.0  #: seconds since the epoch at which `desired` last changed (status.desiredStateChange)
    timings: Mapping[str, str] = {}  #: state → time it took, as DWS writes it (`157.403ms`, `2.276088s`)
    computes: tuple[str, ...] = ()  #: the nodes that it was told to serve
    mounts: Mapping[str, bool] = {}  #: compute → True: all mounted, False: not (yet, or any more); empty: not known
    allocated: Mapping[str, int] = {}  #: rabbit → bytes that are allocated now; 0 or absent = given back
    unallocated: tuple[str, ...] = ()  #: while Setup is not ready: rabbits whose allocations are not
    token: str = ""  #: the workflow's token, where a directive `requires` one
    deleting: bool = False  #: it is on its way out

    def reached(self, state: str) -> bool:
        """Whether `state`, or one after it, has been reached."""
        at = STATES.index(self.state) if self.state else -1
        want = STATES.index(state)
        return at > want or (at == want and self.ready)


class Movement(msgspec.Struct, frozen=True):
    """One data movement (NnfDataMovement): a copy directive, or its part on one compute's storage."""

    name: str
    directive: int
    source: str
    destination: str
    state: str = "Starting"  #: Starting, Running, Finished
    status: str = ""  #: Success, Failed, Invalid, Cancelled; empty while it runs
    message: str = ""
    bytes_done: int = 0
    bytes_total: int = 0  #: 0 = not known
    files_done: int = 0
    files_total: int = 0
    t_start: float = 0.0  #: seconds since the epoch, 0 = not yet
    t_end: float = 0.0
    restarts: int = 0
    command: str = ""


class Rabbit(msgspec.Struct, frozen=True):
    """A storage server (Storage) and the compute nodes behind it (SystemConfiguration)."""

    name: str
    status: str = "Ready"  #: Ready, or why not: Starting, Disabled, NotPresent, Offline, Failed, Degraded, Drained, …
    enabled: bool = True
    capacity_bytes: int = 0
    allocated_bytes: int = 0
    computes: Mapping[str, str] = {}  #: host → Ready, or why not
    message: str = ""


class Persistent(msgspec.Struct, frozen=True):
    """Storage that outlives its job (PersistentStorageInstance)."""

    name: str
    type: str
    userid: int
    state: str = "Active"  #: Creating, Active, Destroying, Degraded
    capacity_bytes: int = 0
    consumers: tuple[str, ...] = ()  #: workflows that use it
    directive: str = ""


class Storage(Protocol):
    """See the module. Job ids are those of RFC 19, as integers."""

    name: str  #: `local` or `dws`, for messages

    async def start(self, changed: Callable[[int], None], health: Callable[[], None]) -> None:
        """List what exists, then keep `view` up to date until `close`. `health` is called after a change of `rabbits`.

        Returns once `jobs` is complete, or at once when the system cannot be reached (`trouble` says so, and
        `jobs` is empty until `synced`).
        """

    async def close(self) -> None:
        """Let go, ending nothing: movements and workflows go on, or are taken up at the next `start`."""

    @property
    def synced(self) -> bool:
        """Whether what is not in `view` does not exist. False until the first complete list, and while it is lost."""

    @property
    def trouble(self) -> str:
        """Why the system cannot be reached, empty when it can."""

    def check(self, directives: Sequence[str], userid: int) -> str:
        """What the system would say against these directives, as far as it is known here; empty when nothing.

        Called at submit, so it makes no request: the rules are those of the last DWDirectiveRule that was seen.
        """

    # ---- a job's workflow --------------------------------------------------------------------------

    def jobs(self) -> Sequence[int]:
        """Jobs whose workflow exists, for reconciliation."""

    def view(self, jobid: int) -> View | None:
        """None when there is no workflow (any more)."""

    async def create(self, request: Request) -> None:
        """Make the job's workflow, desired Proposal. Raises StorageRefused."""

    async def advance(
        self,
        jobid: int,
        state: str,
        *,
        computes: Sequence[str] | None = None,
        hurry: bool = False,
        failed: bool = False,
    ) -> None:
        """Desire `state`: the next one after a ready one, or Teardown from anywhere. Behind it already: nothing.

        `computes` (hosts, in rank order) is needed for Setup, where storage is placed for them, and may be given again
        for PreRun with those left out that failed. `hurry`, with Teardown: movements are killed, not waited for, and
        the user does not want the data. `failed`, with DataOut: the tasks failed (for policies of a copy's profile).
        Raises StorageRefused.
        """

    async def force_ready(self, jobid: int) -> None:
        """Make the present state ready although not all of it is (failures are tolerated)."""

    async def remove(self, jobid: int) -> None:
        """Forget a workflow whose Teardown is ready (or that never got further than Proposal). Gone: nothing."""

    async def abort(self, jobid: int) -> None:
        """Teardown with hurry, and take what does not give back its storage out of service (DWS.md row 20)."""

    async def movements(self, jobid: int) -> Sequence[Movement]:
        """The workflow's data movements with their progress, failed ones first; until it is removed."""

    async def container_log(self, jobid: int) -> str:
        """The last output of the workflow's user container, empty when it has none."""

    # ---- the system --------------------------------------------------------------------------------

    def rabbits(self) -> Sequence[Rabbit]:
        """The storage servers as they are known to be."""

    async def persistent(self) -> Sequence[Persistent]:
        """What was made with create_persistent and not destroyed."""

    async def set_nodes(self, enabled: Mapping[str, bool]) -> None:
        """Tell which compute nodes are up: storage stops waiting for one that is not (SystemStatus)."""
