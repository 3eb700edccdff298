"""Request bodies of the API, typed; the OpenAPI description is made from these."""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL = 1
PROTOCOLS = (PROTOCOL,)
#: jobs in one bulk submission, and ids in one wait
BULK_MAX = 1000
WAIT_MAX = 2000


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Base: an unknown key is an error."""


class Submit(Body):
    jobspec: dict[str, Any]
    urgency: int = 16
    flags: list[str] = []
    instance_path: str = ""


class SubmitCopies(Submit):
    """One jobspec, many jobs: each gets its own FLUX_JOB_CC (null: none)."""

    copies: list[str | None] = []


class Cancel(Body):
    note: str = ""
    intent: str = "keep"  #: data; discard: end what moves data; force: kill, and end every part of the user


class RaiseException(Body):
    type: str = "cancel"
    severity: int = 0
    note: str = ""


class PostEvent(Body):
    name: str
    context: dict[str, Any] | None = None


class Memo(Body):
    memo: dict[str, Any]
    volatile: bool = False


class Purge(Body):
    """Inactive jobs to delete: these, or those beyond the limits."""

    ids: list[int] | None = None
    age_limit_s: float | None = None
    num_limit: int | None = None
    count: int = 50  #: at most so many in this request
    dry_run: bool = False


class Kill(Body):
    signal: int = 15


class Urgency(Body):
    urgency: int


class Update(Body):
    """Dotted keys of the jobspec → new values; `duration`, `queue` and `name` for short."""

    updates: dict[str, Any]


class QueueChange(Body):
    action: str  #: enable, disable, start or stop
    queues: list[str] = []
    all: bool = False
    reason: str = ""
    checkpoint: bool = True  #: keep it over a restart


class RetryPart(Body):
    name: str


class HousekeepingKill(Body):
    id: int | str | None = None  #: of this job
    targets: str | None = None  #: on these nodes: an idset of ranks or a hostlist
    all: bool = False
    signal: int = 15


class QueueWait(Body):
    what: str = "idle"  #: or drain
    queues: list[str] = []
    timeout_s: float | None = None


class Stdin(Body):
    offset: int = 0
    ranks: str = "all"
    data: str = ""  #: base64
    eof: bool = False


class Winsize(Body):
    rows: int
    columns: int


class Wait(Body):
    id: int | str | None = None


class WaitMany(Body):
    ids: list[int]
    event: str = "clean"
    brief: bool = False  #: records of just done, result, exit_code and the exception


class HoldOpen(Body):
    kind: str
    name: str
    owner: str | None = None
    blocks: list[str] | None = None
    uses: str | None = None
    role: str | None = None  #: data or auxiliary
    note: str = ""
    lease_s: float | None = None  #: the hold fails when nobody renews it for so long
    deadline_s: float | None = None  #: from now


class HoldFinish(Body):
    name: str
    kind: str = ""
    status: int = 0
    note: str = ""


class Reserve(Body):
    name: str
    start: float
    duration_s: float
    nodes: int = 0
    constraint: dict[str, Any] | None = None
    users: list[int] = []


class HoldRenew(Body):
    name: str
    kind: str = ""


class GiveUp(Body):
    name: str
    kind: str = ""
    reason: str = ""


class HoldProgress(Body):
    name: str
    kind: str = ""
    done: float | None = None
    total: float | None = None
    unit: str = ""
    note: str = ""


class Drain(Body):
    """`overwrite`, of nodes that are drained already: 1 the reason, 2 its time too. `update`: they stay as they are."""

    targets: str  #: an idset of ranks, or a hostlist
    reason: str = ""
    overwrite: int = 0
    update: bool = False


class Reload(Body):
    R: dict[str, Any]  #: RFC 20
    force: bool = False  #: ranks that the instance has not are left out


class Undrain(Body):
    targets: str
    reason: str = ""
    force: bool = False  #: also where one is not drained


class Load(Body):
    load: str
    conf: dict[str, Any] = {}
    remove: str = ""  #: a glob of plugins that go first


class Shutdown(Body):
    timeout_s: float = 10.0
    keep: bool = False


class Dump(Body):
    """Where the copy goes, on the daemon's machine."""

    path: str
    archive: bool = False  #: one tar file instead of a directory
