"""The plugin interface: one method per moment of a job, and the typed answers it may give.

A plugin is a class that derives from `Plugin`, one a file; the file's name is the plugin's.
Methods are called in the order in which plugins were loaded, inside the turn of the event that
caused them: what they answer is stored together with that event. They must not block. A method
that raises is logged with the plugin's and the job's name and stops no other plugin.

    class Tape(Plugin):
        def state_cleanup(self, job):
            return EpilogHold("to-tape", work=self.copy(job))

        async def resume(self, job, hold):
            await self.copy(job)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, Final, Protocol

from leveret.config import Config
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.jobspec import Digest
from leveret.core.resources import Rset
from leveret.core.verdict import Verdict
from leveret.errors import ConflictError
from leveret.sched.storage import Need, Server
from leveret.storage.port import Storage

Work = Coroutine[Any, Any, "int | None"]


class WorkFailed(Exception):
    """Raised by a hold's work: it ends as failed, with this note on the record.

    `status` is a wait status (256 = exit code 1). `type` overrides the exception's type.
    """

    def __init__(self, note: str, status: int = 256, type: str = "") -> None:
        super().__init__(note)
        self.note = note
        self.status = status
        self.type = type


class Answer:
    """Base of everything that a plugin method may return (alone, or several in a list)."""

    __slots__ = ()


class _HoldAnswer(Answer):
    """Open a hold now. With `work` the hold closes when the work ends; without, by `manager.finish` or the API.

    `deadline_s` counts from now; when it passes, the work is canceled and the hold ends as failed. None: a hold with
    work gets the instance's default (`[job-manager] hold-deadline`), one without has none. `math.inf`: none.
    """

    __slots__ = ("deadline_s", "name", "work")
    kind: ClassVar[str] = ""

    def __init__(self, name: str, work: Work | None = None, deadline_s: float | None = None) -> None:
        self.name = name
        self.work = work
        self.deadline_s = deadline_s

    def context(self) -> dict[str, Any]:
        return {"description": self.name}


class DependencyHold(_HoldAnswer):
    """dependency-add: the job stays in DEPEND."""

    kind = "dependency"
    __slots__ = ()


class PrologHold(_HoldAnswer):
    """prolog-start: no `start`, and in CLEANUP no `free` and no `clean`. Its failure is fatal."""

    kind = "prolog"
    __slots__ = ()


class EpilogHold(_HoldAnswer):
    """epilog-start: no `free` and no `clean`, whether or not the job ever got resources. Its failure is a warning."""

    kind = "epilog"
    __slots__ = ()


class PartHold(_HoldAnswer):
    """part-start: no `clean`, and none of what `blocks` names (start, free).

    owner `user`: its failure is the job's failure; `site`: a warning. role `data`: it moves data, and `cancel
    --discard-data` ends it; `auxiliary` (a log shipper): it is asked to end when nothing else is left, and its failure
    is a warning.
    """

    kind = "part"
    __slots__ = ("blocks", "owner", "role", "uses")

    def __init__(
        self,
        name: str,
        work: Work | None = None,
        *,
        owner: str = "user",
        blocks: Iterable[str] = (),
        uses: str = "none",
        role: str = "",
        deadline_s: float | None = None,
    ) -> None:
        super().__init__(name, work, deadline_s)
        self.role = role
        self.owner = owner
        self.blocks = list(blocks)
        self.uses = uses

    def context(self) -> dict[str, Any]:
        said = {"description": self.name, "owner": self.owner, "blocks": self.blocks, "uses": self.uses}
        return {**said, "role": self.role} if self.role else said


class Finish(Answer):
    """Close a hold. `job` names another job than the one at hand; `quiet`: no error when it is not open."""

    __slots__ = ("job", "kind", "name", "quiet", "status")

    def __init__(self, kind: str, name: str, status: int = 0, job: int | None = None, quiet: bool = False) -> None:
        self.kind = kind
        self.name = name
        self.status = status
        self.job = job
        self.quiet = quiet


class Raise(Answer):
    """Post an exception; severity 0 is fatal."""

    __slots__ = ("job", "note", "severity", "type")

    def __init__(self, type: str, severity: int, note: str, job: int | None = None) -> None:
        self.type = type
        self.severity = severity
        self.note = note
        self.job = job


class Post(Answer):
    """Post an event: `memo`, `urgency`, a site's own name. One that is illegal here is logged and changes nothing."""

    __slots__ = ("context", "name")

    def __init__(self, name: str, context: dict[str, Any] | None = None) -> None:
        self.name = name
        self.context = context


class UpdateJobspec(Answer):
    """Post `jobspec-update` (RFC 21): dotted keys that begin with `attributes.` → new values. Possible until CLEANUP."""

    __slots__ = ("updates",)

    def __init__(self, updates: dict[str, Any]) -> None:
        self.updates = updates


class SetEnv(Answer):
    """Environment variables of the job's tasks, in the eventlog as a `jobspec-update`. Too late once the start was
    requested; None unsets a variable."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, str | None] | None = None, **more: str | None) -> None:
        self.values = {**(values or {}), **more}


class SetNodeEnv(Answer):
    """Environment variables of the tasks on single nodes, over those of all: {host: {name: value}}. It replaces what the
    plugin has said before; stored, but not in the eventlog."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, dict[str, str]]) -> None:
        self.values = values


class Annotate(Answer):
    """Merge into the job's annotations, for listings; None removes a key. No event: gone after a restart (RFC 27)."""

    __slots__ = ("annotations",)

    def __init__(self, annotations: dict[str, Any] | None = None, **more: Any) -> None:
        self.annotations = {**(annotations or {}), **more}


class Remember(Answer):
    """Per-job data of this plugin, stored in the turn of the event that caused it; `manager.recall` gives it back,
    after a restart too, until the job is inactive. Values are JSON; None forgets a key."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, Any] | None = None, **more: Any) -> None:
        self.values = {**(values or {}), **more}


class Keep(Answer):
    """A value of this plugin itself, about no single job, stored in the turn of the event that caused it; `manager.kept` gives
    all of them back, after a restart too. JSON; None forgets the key."""

    __slots__ = ("key", "value")

    def __init__(self, key: str, value: Any) -> None:
        self.key = key
        self.value = value


class Reject(Answer):
    """Refuse, with a reason for the user (from `create`, `validate`, `dependency…`, `update_KEY` and `config`)."""

    __slots__ = ("hint", "reason")

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason = reason
        self.hint = hint


Answers = Answer | Iterable[Answer] | None


class _NotYet:
    def __repr__(self) -> str:
        return "NOT_YET"


#: answer of `priority`: the job stays in PRIORITY until `manager.reprioritize` asks again
NOT_YET: Final = _NotYet()


class WorkResult:
    """How a process that a helper ran for a plugin ended."""

    __slots__ = ("begun", "lost", "status", "stopped", "tail", "timed_out")

    def __init__(
        self,
        status: int,
        tail: str,
        *,
        timed_out: bool = False,
        lost: bool = False,
        stopped: bool = False,
        begun: bool = True,
    ) -> None:
        self.status = status  #: its wait status
        self.tail = tail  #: the end of its standard error
        self.timed_out = timed_out  #: it ran into its time limit
        self.lost = lost  #: its helper was lost, and it with it
        self.stopped = stopped  #: it was asked to stop before it ended
        self.begun = begun  #: false: it was stopped before it began


class Manager(Protocol):
    """What a plugin may ask of the manager."""

    def job(self, jobid: int) -> Job | None:
        """An active job."""

    def outcome(self, jobid: int) -> Job | None:
        """A job, active or not (an inactive one in the form that its record keeps)."""

    def verdict(self, jobid: int) -> Verdict | None:
        """The verdict of an inactive job, None while it is active or unknown."""

    def jobspec(self, jobid: int) -> dict[str, Any]:
        """The jobspec as updated, with its environment."""

    def digest(self, jobid: int) -> Digest:
        """What the scheduler needs of an active job."""

    def resources(self, jobid: int) -> Rset | None:
        """R of an active job, None before `alloc`."""

    def lost(self, jobid: int) -> set[int]:
        """Ranks of the job's nodes whose helper was lost with something of the job."""

    def drain(self, ranks: Iterable[int], reason: str) -> None:
        """Give these nodes no new work; the reason of one that is drained already stays."""

    def start_requested(self, jobid: int) -> bool:
        """True from the moment at which the engine was asked to start the tasks."""

    def finish(self, jobid: int, name: str, status: int = 0, note: str = "", kind: str = "") -> None:
        """Close an open hold. Raises EventError when no hold of that name is open, and changes nothing."""

    def progress(self, jobid: int, kind: str, name: str, **progress: Any) -> None:
        """done, total, unit, note: streamed to watchers, only the last value is kept."""

    async def run(
        self,
        jobid: int,
        name: str,
        argv: list[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        kill_timeout_s: float = 5.0,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        node: int | None = None,
        output: bool = False,
    ) -> WorkResult:
        """Run one process on the job's first node (or on `node`), at most once per (job, name, node), ever.

        Called again for the same name (after a restart) it waits for the process that was started then.
        With `output` what it prints is the job's output (the first MiB of each stream), else the instance's log has it.
        """

    async def run_on(
        self,
        jobid: int,
        name: str,
        nodes: Iterable[int],
        argv: list[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        kill_timeout_s: float = 5.0,
        on_result: Callable[[int, WorkResult], None] | None = None,
    ) -> dict[int, WorkResult]:
        """As `run`, on several nodes at a time; `on_result` hears of each one as it ends."""

    def record(self, jobid: int, key: str, value: bytes, run: str = "") -> None:
        """Keep a value with the job, also when it is over. With `run`: it says how that process ended, which need not
        be remembered any more."""

    def records(self, jobid: int, prefix: str) -> dict[str, bytes]:
        """What is kept under keys that begin so."""

    def begun(self, jobid: int, name: str, open: bool = False) -> set[int]:
        """Ranks on which a process of that name was begun; with `open` those where it has not ended."""

    def stop_run(self, jobid: int, name: str, kill_timeout_s: float = 5.0) -> None:
        """SIGTERM to a process begun with `run`, SIGKILL after `kill_timeout_s`."""

    async def closed(self, jobid: int, kind: str, name: str) -> None:
        """Return once that hold is not open (any more)."""

    def recall(self, jobid: int, key: str, default: Any = None) -> Any:
        """What this plugin has answered with `Remember` for an active job."""

    def kept(self) -> dict[str, Any]:
        """What this plugin has answered with `Keep`."""

    def answer(self, jobid: int, *answers: Answer) -> None:
        """Give answers from a hold's work, or for another job than the one at hand. Raises NotFoundError, and
        InvalidError when one of them is refused; nothing has changed then. From within a moment they join its turn."""

    def reprioritize(self, jobid: int | None = None) -> None:
        """Ask `priority` again for a job, or for all that are in PRIORITY or SCHED."""

    def active(self) -> Iterable[Job]:
        """All active jobs, in order of submission."""

    def owner_uid(self) -> int:
        """The uid of the instance's owner."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        """Call back at an absolute time, seconds since the epoch; the answer has `cancel()`. It does not outlive the daemon."""

    @property
    def storage(self) -> Storage | None:
        """The storage system, None where there is none."""

    def hosts(self) -> dict[int, str]:
        """Rank → host of all nodes."""

    def storage_servers(self, servers: Iterable[Server], down: Iterable[str] = ()) -> None:
        """The storage servers that the scheduler is to count with, and which of them get nothing new for now."""

    def storage_need(self, jobid: int, need: Need) -> None:
        """What a job needs of them beside its nodes. Raises InvalidError when that can never be had."""

    def storage_gone(self, jobid: int) -> None:
        """The job's storage has been given back; nothing when it had none."""

    def storage_owed(self, jobid: int, note: str) -> None:
        """Nobody waits for the job's storage to be given back any longer: a debt until `storage_gone`."""

    @property
    def ending(self) -> bool:
        """The daemon ends: work that is canceled now is taken up again by the next one."""

    def log(self, message: str, **details: Any) -> None:
        """To the instance's log."""


class Plugin:
    """Base class. Every method may be left out.

    In order of a job's life: create, validate, (submit) new, dependency_SCHEME, state_*, priority, depend, event_*,
    inactive_add, destroy; after a purge inactive_remove.
    """

    #: dependency schemes (RFC 26) that `dependency` answers for; a method `dependency_SCHEME` needs no entry here
    schemes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, manager: Manager, name: str, conf: dict[str, Any]) -> None:
        self.manager = manager
        self.name = name
        self.conf = conf

    # `update_KEY(job, value)`: `leveret update` wants to set a key of the jobspec: `attributes.system.KEY`, or
    # `attributes.KEY`, dots and dashes as underscores. Reject refuses; None or UpdateJobspec (more keys) accepts.

    def config(self, config: Config) -> Answers:
        """The instance's configuration, before anything else. Reject (or raise) and the plugin is not loaded."""

    def query(self) -> dict[str, Any] | None:
        """More keys for `leveret jobtap query`."""

    def create(self, job: Job, spec: dict[str, Any]) -> Answers:
        """The first moment of a submission. May answer Reject; what else it answers follows `submit`."""

    def validate(self, job: Job, spec: dict[str, Any]) -> Answers:
        """After every plugin's `create`, before anything is stored. May answer Reject."""

    def new(self, job: Job) -> Answers:
        """An active job is shown: after `submit`, and again after a restart or when the plugin is loaded.

        After a restart answers are ignored; the job's holds come through `resume`.
        """

    def dependency(self, job: Job, dependency: dict[str, Any]) -> Answers:
        """One entry of attributes.system.dependencies whose scheme is in `schemes`: DependencyHold (with a Finish
        beside it when it is satisfied already), or Reject. `dependency_SCHEME` is the same for one scheme."""

    def depend(self, job: Job) -> Answers:
        """No dependency is open: the job leaves DEPEND, unless a DependencyHold is answered. Asked again when that closes."""

    def priority(self, job: Job) -> int | _NotYet | None:
        """The job's priority; NOT_YET to keep it in PRIORITY; None to leave it to the next plugin (the default is the
        urgency). Not asked for urgency 0 (held) and 31 (expedited)."""

    def blocked(self, job: Job) -> str:
        """Why the job may not get resources now, or "": asked by each pass of the scheduler for those that it comes to, so it
        must be quick. Others may pass the job. `leveret explain` and the annotation `sched.reason_pending` show the reason."""
        return ""

    def state_depend(self, job: Job) -> Answers:
        """The job entered DEPEND: a hold that is opened here keeps it there."""

    def state_priority(self, job: Job) -> Answers:
        """The job entered PRIORITY."""

    def state_sched(self, job: Job) -> Answers:
        """The job entered SCHED."""

    def state_run(self, job: Job) -> Answers:
        """The job has resources; nothing has been started. A prolog that is opened here keeps `start` back."""

    def state_cleanup(self, job: Job) -> Answers:
        """`finish` or a fatal exception. A hold that is opened here keeps `free` and `clean` back."""

    def state_inactive(self, job: Job) -> Answers:
        """`clean`: the verdict is fixed. Answers may only name other jobs."""

    def event(self, job: Job, event: Event) -> Answers:
        """Any event, after the state methods. Methods named event_NAME (dashes as underscores) get just theirs."""

    def inactive_add(self, job: Job) -> Answers:
        """The job joins the inactive ones, in the turn of its `clean`, after state_inactive. Not repeated after a restart."""

    def inactive_remove(self, jobid: int) -> None:
        """An inactive job was purged; that is on disk."""

    def destroy(self, job: Job) -> None:
        """The job leaves the daemon's memory: it is inactive and on disk, or a plugin refused it after `create`."""

    async def resume(self, job: Job, hold: Hold) -> int | None:
        """Take up the work of an open hold of ours after a restart, reload or late load; it closes when this returns.

        The default leaves the hold open until somebody finishes it.
        """
        raise NotImplementedError

    def stop(self, job: Job, hold: Hold) -> bool:
        """A fatal exception asks the holder of a prolog, or of a part that blocks `start`, to stop.

        Return True when it will end by itself soon; else its work is canceled.
        """
        return False

    def retry(self, job: Job, hold: Hold) -> int:
        """Somebody wants a part that waits in its failure to be tried again (`leveret job retry-part`)."""
        raise ConflictError(f"part `{hold.name}` cannot be tried again")

    def remove(self) -> None:
        """The plugin is being unloaded."""
