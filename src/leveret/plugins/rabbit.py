"""Jobs with storage of their own: `#DW` directives in `attributes.system.dw` (docs/rabbit.md).

    DEPEND    dependency `dws-create`: the workflow is made, what it needs is known to the scheduler
    RUN       prolog `dws-setup`: Setup, DataIn, PreRun; event `dws_environment` and variables of the tasks
    finish    epilog `dws-epilog`: PostRun, DataOut, Teardown. With early-free: epilog `dws-unmount` (PostRun), and the
              parts `dws-data-out` (user) and `dws-teardown` (site), which hold `clean` only
    no start  epilog `dws-epilog`: Teardown

What is due next says `storage.workflow`, from the job and the storage's own state: a restart of either side needs no memory.
"""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Callable
from typing import Any

import msgspec

from leveret.config import Config, at_key, duration_error
from leveret.core import directives as dw
from leveret.core import duration, hostlist, jobid
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.transitions import CLEANUP, RUN
from leveret.errors import FormatError, InvalidError, LeveretError, NotFoundError
from leveret.plugins.hooks import (
    Answer,
    Answers,
    DependencyHold,
    EpilogHold,
    PartHold,
    Plugin,
    Post,
    PrologHold,
    Raise,
    Reject,
    Remember,
    SetEnv,
    SetNodeEnv,
    WorkFailed,
)
from leveret.sched.storage import Need, Server
from leveret.storage.breakdowns import breakdowns, per_node_bytes
from leveret.storage.port import (
    DATA_IN,
    DATA_OUT,
    ERROR,
    POST_RUN,
    PRE_RUN,
    PROPOSAL,
    SETUP,
    TEARDOWN,
    TRANSIENT,
    Breakdown,
    Request,
    Storage,
    StorageRefused,
    View,
)
from leveret.storage.workflow import (
    Limits,
    Overdue,
    Plan,
    Step,
    deadline,
    delivered,
    gone,
    next_step,
    plan,
    unmounted,
)

CREATE, SETTING_UP, EPILOG = "dws-create", "dws-setup", "dws-epilog"
UNMOUNT, OUT, END = "dws-unmount", "dws-data-out", "dws-teardown"
GIB = 1 << 30
#: how often it is looked whether the storage system can be reached (again)
UNSYNCED_S = 1.0


class Rabbit(Plugin):
    def __init__(self, manager: Any, name: str, conf: dict[str, Any]) -> None:
        super().__init__(manager, name, conf)
        config: Config = conf["config"]
        said = self.said = config.rabbit
        self.early_free = said.early_free if said.early_free is not None else said.adapter == "local"
        times = [
            _seconds(config, key.replace("_", "-"), getattr(said, key))
            for key in (
                "setup_timeout",
                "prerun_timeout",
                "postrun_timeout",
                "teardown_after",
                "epilog_timeout",
                "tc_timeout",
            )
        ]
        self.limits = Limits(*times)
        self.maximums: dict[str, int] = {}
        for kind in ("xfs", "gfs2", "raw", "lustre"):
            if (text := getattr(said.policy.maximums, kind)) is not None:
                key = f"rabbit.policy.maximums.{kind}"
                try:
                    self.maximums[kind] = dw.capacity(text)
                except InvalidError as error:
                    raise at_key(config, key, f"{key}: {error.message}") from None
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._noted: dict[int, set[str]] = {}  #: timings that are stored
        self._transient: dict[int, float] = {}  #: since when a workflow is in TransientCondition
        self._orphans: dict[int, asyncio.Task[None]] = {}
        self._serving = False

    # ---- the storage's side ------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        if self.manager.storage is None:
            raise WorkFailed("this instance has no rabbits", type="dws-create")
        return self.manager.storage

    def serve(self) -> None:
        """Jobs are known: from now on a workflow without one is an orphan."""
        self._serving = True
        for number in {*self.storage.jobs(), *self._waiting}:
            self.changed(number)

    def changed(self, number: int) -> None:
        """News of a workflow."""
        for future in self._waiting.pop(number, ()):
            if not future.done():
                future.set_result(None)
        if not self._serving or self.manager.ending:
            return
        view = self.storage.view(number)
        job = self.manager.job(number)
        if view is not None and job is None and number not in self._orphans:
            task = asyncio.get_running_loop().create_task(self._orphan(number))
            self._orphans[number] = task
            task.add_done_callback(lambda _: self._orphans.pop(number, None))
        elif view is not None and job is not None and job.state is RUN and job.started and view.status == ERROR:
            asyncio.get_running_loop().call_soon(self._look, number)

    def _look(self, number: int) -> None:
        if (view := self.storage.view(number)) is not None:
            self._note(number, view)

    def health(self) -> None:
        """News of the rabbits: the scheduler counts with what others than jobs leave of them."""
        ranks: dict[str, list[int]] = {}
        for rank, host in self.manager.hosts().items():
            ranks.setdefault(host, []).append(rank)
        ours: dict[str, int] = {}
        for number in self.storage.jobs():
            view = self.storage.view(number)
            for name, size in (view.allocated if view else {}).items():
                ours[name] = ours.get(name, 0) + size
        rabbits = self.storage.rabbits()
        servers = [
            Server(
                one.name,
                max(0, one.capacity_bytes - max(0, one.allocated_bytes - ours.get(one.name, 0))),
                tuple(rank for host in one.computes for rank in ranks.get(host, ())),
            )
            for one in rabbits
        ]
        self.manager.storage_servers(servers, [one.name for one in rabbits if one.status != "Ready" or not one.enabled])

    async def _orphan(self, number: int) -> None:
        """Nobody knows the job (any more)."""
        try:
            await self._drive(number, gone)
            await self.storage.remove(number)
            self.manager.storage_gone(number)
        except (LeveretError, WorkFailed) as error:
            self.manager.log(f"storage of {jobid.encode(number)}, which is over: {error}")

    # ---- moments -----------------------------------------------------------------------------------

    def create(self, job: Job, spec: dict[str, Any]) -> Answers:
        system = spec["attributes"]["system"]
        value = system.get("dw")
        if value is None:
            return None
        storage = self.manager.storage
        if storage is None:
            return Reject("this instance has no rabbits", "`[rabbit]` in leveret.toml describes them")
        lines = dw.lines_of(value, self.said.presets)
        if not lines:
            return None
        tolerance = system.get("dw_failure_tolerance", 0)
        if type(tolerance) is not int or tolerance < 0:
            return Reject("dw_failure_tolerance must be a whole number that is not negative")
        texts = [line.text for line in lines]
        found = dw.check(lines) if storage.name == "local" else [dw.parse(line, n) for n, line in enumerate(lines, 1)]
        if why := "" if storage.name == "local" else storage.check(texts, self.manager.owner_uid()):
            return Reject(why)
        dw.check_meaning(found)
        if why := storage.check(texts, self.manager.owner_uid()):
            return Reject(why)
        nnodes = max(1, self.manager.digest(job.id).nnodes)
        for kind, size in per_node_bytes(breakdowns(found), nnodes).items():
            most = self.maximums.get(kind)
            if most is not None and size > most:
                text = f"Requested a total of {size / GIB:g} GiB of {kind} storage per node"
                return Reject(f"{text} but max is {most / GIB:g} GiB per node")
        return Remember(lines=texts, nnodes=nnodes, tolerance=tolerance)

    def _lines(self, job: Job) -> list[str]:
        return list(self.manager.recall(job.id, "lines", ()))

    def state_depend(self, job: Job) -> Answers:
        return DependencyHold(CREATE, self._create(job.id)) if self._lines(job) else None

    def state_run(self, job: Job) -> Answers:
        return PrologHold(SETTING_UP, self._set_up(job.id)) if self._lines(job) else None

    def event_finish(self, job: Job, event: Event) -> Answers:
        if not self._lines(job):
            return None
        self._wake(job.id)
        if not self.early_free:
            return EpilogHold(EPILOG, self._end(job.id))
        holds: list[Answer] = [EpilogHold(UNMOUNT, self._unmount(job.id))]
        if job.intent not in ("discard", "force"):
            holds.append(PartHold(OUT, self._out(job.id), uses="storage", role="data"))
        holds.append(PartHold(END, self._end(job.id), owner="site", uses="storage"))
        return holds

    def state_cleanup(self, job: Job) -> Answers:
        # what a `finish` brings is opened by event_finish; here the job will never start
        never = job.status is None and not job.started and not self.manager.start_requested(job.id)
        return EpilogHold(EPILOG, self._end(job.id)) if never and self._lines(job) else None

    def event_exception(self, job: Job, event: Event) -> Answers:
        self._wake(job.id)
        return None

    def event_part_finish(self, job: Job, event: Event) -> Answers:
        self._wake(job.id)
        return None

    def inactive_add(self, job: Job) -> Answers:
        for kept in (self._locks, self._noted, self._transient):
            kept.pop(job.id, None)
        if self.manager.storage is not None and not gone(self.storage.view(job.id)):
            # its holds were given up; it goes on as an orphan
            self.manager.storage_owed(job.id, "the job is over, its storage is not given back")
            asyncio.get_running_loop().call_soon(self.changed, job.id)
        return None

    def _wake(self, number: int) -> None:
        if number in self._waiting:
            asyncio.get_running_loop().call_soon(self.changed, number)

    async def resume(self, job: Job, hold: Hold) -> int | None:
        works = {CREATE: self._create, SETTING_UP: self._set_up, UNMOUNT: self._unmount, OUT: self._out}
        return await works.get(hold.name, self._end)(job.id)

    # ---- works -------------------------------------------------------------------------------------

    async def _create(self, number: int) -> int:
        job = self._job(number)
        lines = self._lines(job)
        persistent = [line for line in lines if line.split()[1] in ("create_persistent", "destroy_persistent")]
        if persistent and self.said.restrict_persistent_creation and job.userid != self.manager.owner_uid():
            raise WorkFailed("only the instance owner can create persistent file systems", type=CREATE)
        view = await self._drive(number, lambda v: v is not None and (v.reached(PROPOSAL) or v.status == ERROR))
        assert view is not None
        self._fail_on_error(view)
        need = need_of(view.breakdowns)
        if need is not None:
            try:
                self.manager.storage_need(number, need)
            except InvalidError as error:
                raise WorkFailed(error.message, type=CREATE) from error
        if not self.manager.recall(number, "workflow"):
            self.manager.answer(number, Post("memo", {"rabbit_workflow": view.name}), Remember(workflow=view.name))
        self._store(number, "rabbit_workflow", view)
        return 0

    async def _set_up(self, number: int) -> int:
        view = await self._drive(
            number,
            lambda v: v is not None and (v.reached(PRE_RUN) or v.status == ERROR),
            ("prolog", SETTING_UP),
        )
        assert view is not None
        self._fail_on_error(view)
        if not self.manager.recall(number, "environment"):
            variables = dict(view.env)
            if view.token:
                variables["DW_WORKFLOW_TOKEN"] = view.token
            self.manager.answer(
                number,
                Post("dws_environment", {"variables": variables}),
                SetEnv(dict(variables)),
                SetNodeEnv({host: dict(own) for host, own in view.node_env.items()}),
                Remember(environment=True),
            )
        return 0

    def _fail_on_error(self, view: View) -> None:
        if view.status == ERROR:
            raise WorkFailed(_said(view), type="exception")

    async def _unmount(self, number: int) -> int:
        await self._drive(number, unmounted)
        return 0

    async def _out(self, number: int) -> int:
        await self._drive(number, delivered, ("part", OUT))
        note = self.manager.recall(number, "error") or self.manager.recall(number, "skip") or ""
        if not note:
            outs = [at for at, line in enumerate(self._lines(self._job(number))) if line.split()[1] == "copy_out"]
            for one in await self.storage.movements(number):
                if one.directive in outs and one.status in ("Failed", "Invalid"):
                    note = f"{one.source} to {one.destination}: {one.message or one.status}"
        if note:
            raise WorkFailed(note, type="exception")
        return 0

    async def _end(self, number: int) -> int:
        """Until the storage has been given back."""
        view = await self._drive(
            number, lambda v: gone(v) or (v is not None and v.state == TEARDOWN and v.status == ERROR)
        )
        moves = await self.storage.movements(number)
        self._store(number, "rabbit_datamovements", sorted(moves, key=lambda one: one.status != "Failed"))
        if view is not None:
            self._store(number, "rabbit_workflow", view)
            if view.status == ERROR and not gone(view):
                self.manager.storage_owed(number, view.message)
                raise WorkFailed(_said(view), type="exception")
            await self.storage.remove(number)
        self.manager.storage_gone(number)
        return 0

    # ---- driving a workflow ------------------------------------------------------------------------

    def _job(self, number: int) -> Job:
        job = self.manager.job(number)
        if job is None:
            raise WorkFailed("the job is over")
        return job

    async def _drive(
        self, number: int, done: Callable[[View | None], bool], hold: tuple[str, str] | None = None
    ) -> View | None:
        """Ask for what is due, step by step, until `done` says so of the view. Any number of holds may do so at a time."""
        lock = self._locks.setdefault(number, asyncio.Lock())
        while True:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(number, set()).add(news)
            try:
                async with lock:
                    view = self.storage.view(number)
                    if view is not None:
                        self._note(number, view)
                    if (view is not None or self.storage.synced) and done(view):
                        return view
                    step = self._step(number, view)
                    if step is not None:
                        await self._ask(number, step)
                        continue
                    late = self._deadline(number, view) if view is not None else None
                    if view is not None and late is not None and late[0] <= self.manager.now():
                        await self._overdue(number, view, late[1])
                        continue
                if hold is not None and view is not None and view.desired in (DATA_IN, DATA_OUT):
                    await self._progress(number, hold)
                wait_s = None if late is None else max(0.0, late[0] - self.manager.now())
                if not self.storage.synced:  # of which nobody tells when it ends
                    wait_s = UNSYNCED_S
                await asyncio.wait([news], timeout=wait_s)
            finally:
                waiting = self._waiting.get(number)
                if waiting is not None:
                    waiting.discard(news)
                    if not waiting:
                        del self._waiting[number]

    def _plan(self, number: int, view: View | None) -> Plan:
        job = self.manager.job(number)
        if job is None:
            return plan(None, view)
        if job.state is CLEANUP and self.manager.recall(number, "skip"):
            return Plan(TEARDOWN, direct=True, hurry=True, why="it took too long")
        requested = self.manager.start_requested(number)
        return plan(job, view, start_requested=requested, intent=job.intent or "keep")

    def _step(self, number: int, view: View | None) -> Step | None:
        if view is None and not self.storage.synced:
            return None
        wanted = self._plan(number, view)
        if view is None and wanted.goal == PRE_RUN and not self._job(number).started:
            return Step("create")  # it was lost with all that it knew, which is nothing yet
        return next_step(wanted, view)

    async def _ask(self, number: int, step: Step) -> None:
        job = self.manager.job(number)
        if step.what == "create":
            await self._make(self._job(number))
        elif step.what == "remove":
            await self.storage.remove(number)
        else:
            computes = None
            if step.state in (SETUP, PRE_RUN):
                rset = self.manager.resources(number)
                lost = set(self.manager.recall(number, "lost-hosts", ()))
                computes = [node.host for node in rset.ranks.values() if node.host not in lost] if rset else []
            if step.state == POST_RUN and not self.manager.recall(number, "t-post-run"):
                self.manager.answer(number, Remember({"t-post-run": self.manager.now()}))
            failed = step.state == DATA_OUT and job is not None and bool(job.status)
            try:
                await self.storage.advance(number, step.state, computes=computes, hurry=step.hurry, failed=failed)
            except StorageRefused as error:
                raise WorkFailed(f"DWS workflow interactions failed: {error.message}", type="dws-setup") from error

    async def _make(self, job: Job) -> None:
        try:
            gid = pwd.getpwuid(job.userid).pw_gid
        except KeyError:
            gid = job.userid
        nnodes = int(self.manager.recall(job.id, "nnodes", 1))
        try:
            await self.storage.create(Request(job.id, job.userid, gid, tuple(self._lines(job)), nnodes))
        except StorageRefused as error:
            raise WorkFailed(f"DWS workflow interactions failed: {error.message}", type=CREATE) from error

    def _note(self, number: int, view: View) -> None:
        """What a view tells that is to be kept with the job."""
        job = self.manager.job(number)
        if job is None:
            return
        stored = self._noted.setdefault(number, set())
        for state, time in view.timings.items():
            if state not in stored:
                stored.add(state)
                self._store(number, f"rabbit_{state.lower()}_timing", time)
        if view.status == TRANSIENT:
            self._transient.setdefault(number, self.manager.now())
        else:
            self._transient.pop(number, None)
        names = hostlist.encode(sorted(name for name, size in view.allocated.items() if size))
        if names and view.reached(SETUP) and self.manager.recall(number, "rabbits") is None:
            self.manager.answer(number, Post("memo", {"rabbits": names}), Remember(rabbits=names))
        if view.status == ERROR and view.state != TEARDOWN and self.manager.recall(number, "error") is None:
            answers: list[Answer] = [Remember(error=_said(view))]
            if job.started and (f"epilog/{EPILOG}" in job.holds or job.state is RUN):
                answers.append(Raise("exception", 0, _said(view)))
            self.manager.answer(number, *answers)

    def _store(self, number: int, key: str, value: Any) -> None:
        try:
            self.manager.record(number, key, msgspec.json.encode(value))
        except (NotFoundError, LeveretError):
            self.manager.log(f"{key} of {jobid.encode(number)} is not kept: the job is over")

    async def _progress(self, number: int, hold: tuple[str, str]) -> None:
        moves = await self.storage.movements(number)
        done, total = sum(one.bytes_done for one in moves), sum(one.bytes_total for one in moves)
        over = sum(one.state == "Finished" for one in moves)
        job = self.manager.job(number)
        if moves and job is not None and "/".join(hold) in job.holds:
            note = f"{over} of {len(moves)} copies"
            self.manager.progress(number, *hold, done=done, total=total, unit="bytes", note=note)

    # ---- time --------------------------------------------------------------------------------------

    def _deadline(self, number: int, view: View) -> tuple[float, Overdue] | None:
        if self.manager.job(number) is None:
            return None
        return deadline(
            view,
            self.limits,
            t_post_run=float(self.manager.recall(number, "t-post-run", 0.0)),
            t_transient=self._transient.get(number, 0.0),
        )

    async def _overdue(self, number: int, view: View, late: Overdue) -> None:
        """A limit has passed: fail, go without some nodes, or go on without the data. Raises WorkFailed."""
        job = self._job(number)
        if late.what in ("setup", "pre-run", "transient") and job.state is not CLEANUP:
            if not await self._tolerated(number, view):
                raise WorkFailed(late.note, type=late.type)
            return
        if late.what == "teardown" or self.manager.recall(number, "skip"):
            await self.storage.abort(number)
            self.manager.storage_owed(number, late.note)
            raise WorkFailed(late.note, type="dws-epilog-timeout")
        if late.what == "post-run":
            self._drain_mounted(number, view)
        self.manager.answer(number, Raise(late.type, late.severity, late.note), Remember(skip=late.note))

    async def _tolerated(self, number: int, view: View) -> bool:
        """Whether the job goes on without the nodes whose storage does not come (`dw_failure_tolerance`)."""
        hosts = {host for host, there in view.mounts.items() if not there} if view.desired == PRE_RUN else set()
        if view.desired == SETUP:
            bad = set(view.unallocated)
            hosts = {host for one in self.storage.rabbits() if one.name in bad for host in one.computes}
            hosts &= set(view.computes)
        if not hosts or len(hosts) > int(self.manager.recall(number, "tolerance", 0)):
            return False
        names = hostlist.encode(sorted(hosts))
        lost = sorted({*self.manager.recall(number, "lost-hosts", ()), *hosts})
        self.manager.answer(number, Raise("dws-node-failure", 1, names), Remember({"lost-hosts": lost}))
        await self.storage.force_ready(number)
        return True

    def _drain_mounted(self, number: int, view: View) -> None:
        still = {host for host, there in view.mounts.items() if there}
        rset = self.manager.resources(number)
        if rset is not None:
            self.manager.drain(
                [rank for rank, node in rset.ranks.items() if node.host in still], "failed to unmount rabbit"
            )

    def query(self) -> dict[str, Any]:
        storage = self.manager.storage
        if storage is None:
            return {}
        return {"adapter": storage.name, "early-free": self.early_free, "workflows": len(storage.jobs())}


def need_of(found: tuple[Breakdown, ...]) -> Need | None:
    """What the scheduler has to find for these breakdowns, None for nothing."""
    per_node = in_all = 0
    anywhere = True
    for one in found:
        for at, part in enumerate(one.sets):
            if part.strategy == "AllocatePerCompute":
                per_node += part.minimum_bytes
            else:
                in_all += part.minimum_bytes
                access = [pair for place in one.locations if place.set == at for pair in place.access]
                anywhere = anywhere and ("physical", "mandatory") not in access
    return Need(per_node, in_all, anywhere=anywhere) if per_node or in_all else None


def _said(view: View) -> str:
    return f"DWS/Rabbit interactions failed: workflow hit an error: {view.message}"


def _seconds(config: Config, key: str, text: str) -> float:
    try:
        seconds = duration.parse(text)
    except FormatError as error:
        raise duration_error(config, f"rabbit.{key}", error.message) from None
    return seconds if seconds != float("inf") else 0.0
