"""Storage by this machine's own disks, in directories: the default adapter. Fits `port.Storage` by shape.

    ROOT/flows/JOBID.json                 a workflow, replaced by rename at each step
    ROOT/storage/<uid>-<i>/<rabbit>-<k>   the storage of directive i for one compute; without the last part: shared
    ROOT/mnt/<host>/<uid>-<i>             a link to it: the node's mount, from PreRun to PostRun
    ROOT/storage/<name>                   persistent storage (`instances/<name>.json`)

Capacity is accounted against what the rabbits are said to have, and not enforced. What a state does may be done again:
after a kill it is, from the file; copies that had ended are not.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from leveret.core import directives as dw
from leveret.core.directives import Directive, DirectiveError
from leveret.storage import local_move
from leveret.storage.breakdowns import breakdowns
from leveret.storage.local_state import Files, Flow, Instance, Place
from leveret.storage.placing import Server, place
from leveret.storage.port import (
    COMPLETED,
    DATA_IN,
    DATA_OUT,
    DRIVER_WAIT,
    ERROR,
    POST_RUN,
    PRE_RUN,
    PROPOSAL,
    SETUP,
    STATES,
    TEARDOWN,
    Breakdown,
    Movement,
    Persistent,
    Rabbit,
    Request,
    StorageRefused,
    View,
)
from leveret.storage.workflow import written

NOT_ENFORCED = "capacity not enforced (directory backend)"
#: how often progress of a movement is told
PROGRESS_S = 0.2


class Served(msgspec.Struct, frozen=True):
    """A rabbit as the configuration describes it."""

    name: str
    hosts: tuple[str, ...]
    capacity_bytes: int


class Failed(Exception):
    """A state cannot be reached; the text is the workflow's message."""


class LocalDisk:
    """`roots`: directories that data may come from and go to. `copier`: argv template of a copy."""

    name = "local"

    def __init__(
        self,
        root: Path,
        rabbits: Sequence[Served],
        *,
        roots: Sequence[str] = ("/",),
        copier: Sequence[str] = local_move.COPIER,
    ) -> None:
        self.root = root
        self._served = {one.name: one for one in rabbits}
        self._roots = roots
        self._files = Files(root)
        self._mover = local_move.Mover(copier)
        self._flows: dict[int, Flow] = {}
        self._instances: dict[str, Instance] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._views: dict[int, View] = {}
        self._told: dict[int, float] = {}
        self._room = asyncio.Event()  #: set when capacity was given back
        self._changed: Callable[[int], None] = lambda jobid: None
        self._health: Callable[[], None] = lambda: None
        self.synced = False
        self.trouble = ""

    # ---- starting and ending -----------------------------------------------------------------------

    async def start(self, changed: Callable[[int], None], health: Callable[[], None]) -> None:
        self._changed, self._health = changed, health
        self._flows, self._instances, bad = await asyncio.to_thread(self._files.load)
        if bad:
            self.trouble = "; ".join(bad)
        for flow in self._flows.values():
            for pid, since in flow.movers.values():
                local_move.kill(pid, since)
        if not bad:  # a file that cannot be read may own any of it
            await asyncio.to_thread(self._sweep)
        self.synced = True
        for jobid, flow in self._flows.items():
            if not flow.ready and (not flow.error or flow.desired == TEARDOWN):
                self._work(flow)
            self._changed(jobid)

    def _sweep(self) -> None:
        """Remove what belongs to nobody: left by a daemon that was killed between two steps."""
        owned = {place.path.split("/")[0] for flow in self._flows.values() for place in flow.places}
        owned |= {place.path.split("/")[0] for one in self._instances.values() for place in one.places}
        owned |= {f"{flow.uid}-{at}" for flow in self._flows.values() for at in range(len(flow.directives))}
        storage, mounts = self.root / "storage", self.root / "mnt"
        for path in storage.iterdir() if storage.is_dir() else ():
            if path.name not in owned:
                shutil.rmtree(path, ignore_errors=True)
        for host in mounts.iterdir() if mounts.is_dir() else ():
            for link in host.iterdir():
                if link.name not in owned:
                    link.unlink(missing_ok=True)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self, directives: Sequence[str], userid: int) -> str:
        try:
            found = dw.check(directives)
            self._check_meaning(found, userid)
        except DirectiveError as error:
            return error.text
        return self._shortage(breakdowns(found))

    def _check_meaning(self, found: Sequence[Directive], userid: int) -> None:
        kinds = {one.name: one.type for one in self._instances.values()}
        dw.check_meaning(found, roots=self._roots, instances=kinds)
        for number, directive in enumerate(found, 1):
            if directive.command == "container":
                raise DirectiveError("containers need a system with DWS", number)
            one = self._instances.get(directive.get("name"))
            if one is not None and directive.command.endswith(("persistent", "persistentdw")) and one.userid != userid:
                raise DirectiveError("User ID does not match existing persistent storage", number, "name")

    def _shortage(self, needs: Sequence[Breakdown]) -> str:
        one = max((s.minimum_bytes for b in needs for s in b.sets if s.strategy == "AllocatePerCompute"), default=0)
        per_node = sum(s.minimum_bytes for b in needs for s in b.sets if s.strategy == "AllocatePerCompute")
        in_all = sum(s.minimum_bytes for b in needs for s in b.sets if s.strategy != "AllocatePerCompute")
        largest = max((r.capacity_bytes for r in self._served.values()), default=0)
        total = sum(r.capacity_bytes for r in self._served.values())
        if max(one, per_node) > largest or in_all > total:
            return f"insufficient capacity available: {max(per_node, in_all)} bytes of {largest if per_node else total}"
        return ""

    # ---- a job's workflow --------------------------------------------------------------------------

    def jobs(self) -> Sequence[int]:
        return list(self._flows)

    def view(self, jobid: int) -> View | None:
        flow = self._flows.get(jobid)
        if flow is None:
            return None
        view = self._views.get(jobid)
        if view is None:
            view = self._views[jobid] = self._view(flow)
        return view

    def _view(self, flow: Flow) -> View:
        env, node_env = self._environment(flow) if flow.mounted else ({}, {})
        allocated: dict[str, int] = {}
        for one in flow.places:
            allocated[one.rabbit] = allocated.get(one.rabbit, 0) + one.bytes
        at = STATES.index(flow.desired)
        told = PRE_RUN in flow.timings or at >= STATES.index(PRE_RUN)
        return View(
            jobid=flow.jobid,
            name=flow.name,
            uid=flow.uid,
            desired=flow.desired,
            state=flow.desired,
            ready=flow.ready,
            status=ERROR if flow.error else COMPLETED if flow.ready else DRIVER_WAIT,
            message=flow.message,
            hurry=flow.hurry,
            directives=flow.directives,
            env=env,
            node_env=node_env,
            breakdowns=breakdowns(self._parsed(flow)),
            since=flow.since,
            timings=dict(flow.timings),
            computes=flow.computes,
            mounts=dict.fromkeys(flow.computes, flow.mounted) if told else {},
            allocated=allocated,
        )

    @staticmethod
    def _parsed(flow: Flow) -> list[Directive]:
        return [dw.parse(text, number) for number, text in enumerate(flow.directives, 1)]

    async def create(self, request: Request) -> None:
        if request.jobid in self._flows:
            return
        if why := self.check(request.directives, request.userid):
            raise StorageRefused(why)
        flow = Flow(
            request.jobid,
            secrets.token_hex(8),
            request.userid,
            request.groupid,
            request.directives,
            request.nnodes,
            since=time.time(),
        )
        self._flows[flow.jobid] = flow
        self._save(flow)
        self._work(flow)

    async def advance(
        self,
        jobid: int,
        state: str,
        *,
        computes: Sequence[str] | None = None,
        hurry: bool = False,
        failed: bool = False,
    ) -> None:
        flow = self._flows.get(jobid)
        if flow is None:
            return
        at, want = STATES.index(flow.desired), STATES.index(state)
        if want < at or (want == at and (not hurry or flow.hurry or flow.ready)):
            return
        if state != TEARDOWN and (want != at + 1 or not flow.ready):
            raise StorageRefused(f"{state} after {flow.desired}: the current desired state is not yet achieved")
        if computes is not None:
            flow.computes = tuple(computes)
        flow.hurry = flow.hurry or hurry
        if want > at:
            flow.desired, flow.ready, flow.error, flow.message, flow.since = state, False, False, "", time.time()
        self._save(flow)
        self._work(flow)

    async def force_ready(self, jobid: int) -> None:
        flow = self._flows.get(jobid)
        if flow is not None and not flow.ready:
            await self._stop(jobid)
            flow.ready, flow.error, flow.message = True, False, "Forced Ready"
            self._save(flow)

    async def remove(self, jobid: int) -> None:
        flow = self._flows.get(jobid)
        if flow is None:
            return
        await self._stop(jobid)
        self._files.drop(jobid)
        self._flows.pop(jobid, None)
        self._views.pop(jobid, None)
        self._told.pop(jobid, None)
        self._changed(jobid)

    async def abort(self, jobid: int) -> None:
        await self.advance(jobid, TEARDOWN, hurry=True)

    async def movements(self, jobid: int) -> Sequence[Movement]:
        flow = self._flows.get(jobid)
        found = list(flow.movements.values()) if flow is not None else []
        return sorted(found, key=lambda one: (one.status != "Failed", one.directive, one.name))

    async def container_log(self, jobid: int) -> str:
        return ""

    # ---- the system --------------------------------------------------------------------------------

    def _taken(self) -> dict[str, int]:
        taken: dict[str, int] = {}
        places = [one for flow in self._flows.values() for one in flow.places]
        places += [one for kept in self._instances.values() for one in kept.places]
        for one in places:
            taken[one.rabbit] = taken.get(one.rabbit, 0) + one.bytes
        return taken

    def rabbits(self) -> Sequence[Rabbit]:
        taken = self._taken()
        return [
            Rabbit(
                one.name,
                capacity_bytes=one.capacity_bytes,
                allocated_bytes=taken.get(one.name, 0),
                computes=dict.fromkeys(one.hosts, "Ready"),
                message=NOT_ENFORCED,
            )
            for one in self._served.values()
        ]

    async def persistent(self) -> Sequence[Persistent]:
        return [
            Persistent(
                one.name,
                one.type,
                one.userid,
                capacity_bytes=sum(place.bytes for place in one.places),
                consumers=tuple(f.name for f in self._flows.values() if one.name in self._uses(f)),
                directive=one.directive,
            )
            for one in self._instances.values()
        ]

    def _uses(self, flow: Flow) -> set[str]:
        return {d.get("name") for d in self._parsed(flow) if d.command == "persistentdw"}

    async def set_nodes(self, enabled: Mapping[str, bool]) -> None:
        """Nodes of this machine are up with it."""

    # ---- the work of a state -----------------------------------------------------------------------

    def _save(self, flow: Flow) -> None:
        self._files.save(flow)
        self._views.pop(flow.jobid, None)
        self._changed(flow.jobid)

    async def _stop(self, jobid: int) -> None:
        task = self._tasks.pop(jobid, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _work(self, flow: Flow) -> None:
        before = self._tasks.pop(flow.jobid, None)
        if before is not None:
            before.cancel()
        self._tasks[flow.jobid] = asyncio.get_running_loop().create_task(self._reach(flow, before))

    async def _reach(self, flow: Flow, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        state = flow.desired
        try:
            flow.message = await self._do(flow, state) or ""
            flow.ready = True
        except Failed as failure:
            flow.error, flow.message = True, str(failure)
        except OSError as error:
            flow.error, flow.message = True, f"{state}: {error.filename or self.root}: {error.strerror}"
        flow.timings = {**flow.timings, state: written(round(max(0.0, time.time() - flow.since), 6))}
        if self._tasks.get(flow.jobid) is asyncio.current_task():
            del self._tasks[flow.jobid]
        self._save(flow)

    async def _do(self, flow: Flow, state: str) -> str | None:
        if state == PROPOSAL:
            try:
                self._check_meaning(self._parsed(flow), flow.userid)
            except DirectiveError as error:
                raise Failed(f"DW Directive {max(0, error.number - 1)}: User error: {error.text}") from error
        elif state == SETUP:
            return await self._setup(flow)
        elif state in (DATA_IN, DATA_OUT):
            await self._move(flow, "copy_in" if state == DATA_IN else "copy_out")
        elif state == PRE_RUN:
            await asyncio.to_thread(self._mount, flow)
            flow.mounted = True
            return NOT_ENFORCED if flow.places else None
        elif state == POST_RUN:
            await asyncio.to_thread(self._unmount, flow)
            flow.mounted = False
        elif state == TEARDOWN:
            await self._teardown(flow)
        return None

    async def _setup(self, flow: Flow) -> str | None:
        while not flow.places:
            servers = self._servers()
            try:
                wanted = self._places(flow, servers)
            except StorageRefused as error:
                raise Failed(f"WLM error: {error.message}") from error
            sizes: dict[str, int] = {}
            for one in wanted:
                sizes[one.rabbit] = sizes.get(one.rabbit, 0) + one.bytes
            free = {one.name: one.free_bytes or 0 for one in servers}
            if all(size <= free[name] for name, size in sizes.items()):
                flow.places = tuple(wanted)
                break
            flow.message = "insufficient capacity available; waiting until some is given back"
            self._save(flow)
            self._room.clear()
            await self._room.wait()
        self._save(flow)
        await asyncio.to_thread(self._make, flow)
        self._keep(flow)
        return None

    def _servers(self) -> list[Server]:
        taken = self._taken()
        labels = {"dataworkflowservices.github.io/storage": "Rabbit"}
        return [
            Server(one.name, one.hosts, labels, free_bytes=one.capacity_bytes - taken.get(one.name, 0))
            for one in self._served.values()
        ]

    def _places(self, flow: Flow, servers: list[Server]) -> list[Place]:
        parsed = self._parsed(flow)
        behind = {host: one.name for one in servers for host in one.computes}
        found: list[Place] = []
        for one in breakdowns(parsed):
            if not one.sets:
                continue
            top = f"{flow.uid}-{one.directive}"
            if one.lifetime == "persistent":
                top = parsed[one.directive].get("name")
            for filled, wanted in zip(place(one, flow.computes, servers, target_min_bytes=1), one.sets, strict=True):
                if wanted.strategy == "AllocatePerCompute":
                    counts: dict[str, int] = {}
                    for host in flow.computes:
                        rabbit = behind[host]
                        index = f"{rabbit}-{counts.get(rabbit, 0)}"
                        counts[rabbit] = counts.get(rabbit, 0) + 1
                        path = f"{top}/{index}"
                        found.append(Place(one.directive, rabbit, filled["allocationSize"], path, host, index))
                else:
                    for on in filled["storage"]:
                        size = filled["allocationSize"] * on["allocationCount"]
                        found.append(Place(one.directive, on["name"], size, top))
        return found

    def _user(self, flow: Flow) -> tuple[int, int] | None:
        return (flow.userid, flow.groupid) if os.geteuid() == 0 and flow.userid not in (0, -1) else None

    def _make(self, flow: Flow) -> None:
        for one in flow.places:
            path = self.root / "storage" / one.path
            path.mkdir(parents=True, exist_ok=True)
            if user := self._user(flow):
                os.chown(path, *user)

    def _keep(self, flow: Flow) -> None:
        """What create_persistent made is not the workflow's any more."""
        for at, directive in enumerate(self._parsed(flow)):
            if directive.command != "create_persistent":
                continue
            places = tuple(one for one in flow.places if one.directive == at)
            one = Instance(directive.get("name"), directive.get("type"), flow.userid, directive.text, places)
            self._files.save_instance(one)
            self._instances[one.name] = one
            flow.places = tuple(p for p in flow.places if p.directive != at)
            self._health()

    def _storage_of(self, flow: Flow, persistent: bool, name: str) -> list[tuple[Place, str]]:
        """(allocation, its directory) of the storage that a variable names; shared storage once."""
        if persistent:
            places = self._instances[name].places if name in self._instances else ()
        else:
            at = next(i for i, d in enumerate(self._parsed(flow)) if d.command == "jobdw" and d.get("name") == name)
            places = tuple(one for one in flow.places if one.directive == at)
        found = {one.path: (one, str(self.root / "storage" / one.path)) for one in places}
        return list(found.values())

    def _mounts(self, flow: Flow) -> list[tuple[str, str, str, str]]:
        """(variable, host, link's name, directory) of each mount."""
        found = []
        for at, directive in enumerate(self._parsed(flow)):
            persistent = directive.command == "persistentdw"
            if directive.command != "jobdw" and not persistent:
                continue
            name = directive.get("name")
            places = self._storage_of(flow, persistent, name)
            variable = ("DW_PERSISTENT_" if persistent else "DW_JOB_") + name.replace("-", "_")
            for number, host in enumerate(flow.computes):
                own = [path for one, path in places if one.host == host]
                rest = [path for one, path in places if one.shared or persistent]
                if path := (own or rest[number % len(rest) : number % len(rest) + 1] if rest else own):
                    found.append((variable, host, f"{flow.uid}-{at}", path[0]))
        return found

    def _mount(self, flow: Flow) -> None:
        for _, host, name, target in self._mounts(flow):
            link = self.root / "mnt" / host / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def _unmount(self, flow: Flow) -> None:
        for _, host, name, _ in self._mounts(flow):
            (self.root / "mnt" / host / name).unlink(missing_ok=True)

    def _environment(self, flow: Flow) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        node_env: dict[str, dict[str, str]] = {}
        for variable, host, name, _ in self._mounts(flow):
            node_env.setdefault(host, {})[variable] = str(self.root / "mnt" / host / name)
        env = {"DW_WORKFLOW_NAME": flow.name, "DW_WORKFLOW_NAMESPACE": "local"}
        for host in flow.computes:
            for variable, path in node_env.get(host, {}).items():
                env.setdefault(variable, path)
        return env, node_env

    async def _move(self, flow: Flow, command: str) -> None:
        wanted: list[local_move.Copy] = []
        for at, directive in enumerate(self._parsed(flow)):
            if directive.command == command:
                wanted += local_move.copies(
                    flow.name, at, directive, lambda persistent, name: self._storage_of(flow, persistent, name)
                )
        # what had ended well before a restart is not done again
        left = [one for one in wanted if flow.movements.get(one.name, Movement("", 0, "", "")).status != "Success"]
        if left:
            async with asyncio.TaskGroup() as group:
                for one in left:
                    group.create_task(self._one(flow, one))
        failed = [flow.movements[one.name] for one in wanted if flow.movements[one.name].status != "Success"]
        if failed:
            state = DATA_IN if command == "copy_in" else DATA_OUT
            raise Failed(f"data movement operation failed during '{state}', message: {failed[0].message}")

    async def _one(self, flow: Flow, copy: local_move.Copy) -> None:
        def started(pid: int, since: str) -> None:
            flow.movers = {**flow.movers, copy.name: (pid, since)}
            self._save(flow)

        def progress(one: Movement) -> None:
            flow.movements = {**flow.movements, copy.name: one}
            if (now := time.monotonic()) - self._told.get(flow.jobid, 0.0) > PROGRESS_S:
                self._told[flow.jobid] = now
                self._changed(flow.jobid)

        ended = await self._mover.run(copy, self._user(flow), started, progress, time.time)
        flow.movements = {**flow.movements, copy.name: ended}
        flow.movers = {name: at for name, at in flow.movers.items() if name != copy.name}
        self._save(flow)

    async def _teardown(self, flow: Flow) -> None:
        for pid, since in flow.movers.values():
            local_move.kill(pid, since)
        flow.movers = {}
        flow.movements = {
            name: one
            if one.state == "Finished"
            else msgspec.structs.replace(one, state="Finished", status="Cancelled", t_end=time.time())
            for name, one in flow.movements.items()
        }
        await asyncio.to_thread(self._unmount, flow)
        flow.mounted = False
        for directive in self._parsed(flow):
            if directive.command == "destroy_persistent":
                await self._destroy(directive.get("name"))
        for top in {one.path.split("/")[0] for one in flow.places}:
            await asyncio.to_thread(_remove, self.root / "storage" / top)
        flow.places = ()
        self._room.set()
        self._health()

    async def _destroy(self, name: str) -> None:
        one = self._instances.get(name)
        if one is None:
            return
        if any(name in self._uses(flow) for flow in self._flows.values()):
            raise Failed("persistent storage cannot be deleted while in use")
        await asyncio.to_thread(_remove, self.root / "storage" / name)
        self._files.drop_instance(name)
        del self._instances[name]


def _remove(path: Path) -> None:
    """All of a directory. Raises OSError when something of it stays."""
    if not path.exists():
        return
    shutil.rmtree(path)
