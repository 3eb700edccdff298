"""Storage by HPE's Data Workflow Services, over Kubernetes (extra `leveret[dws]`). Fits `port.Storage` by shape.

Everything that is asked of the port is answered from caches that reflectors keep in step (`reflector`, `kube_cache`);
what a change means is decided in pure modules (`dws_objects`, `placing`). Here are only requests, and their patience:
a call that gets no answer is made again after a pause with jitter, which is harmless since each says what shall be.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from leveret.storage import dws_objects as objects
from leveret.storage.dws_objects import GROUP, NNF_GROUP, NNF_VERSIONS, VERSIONS, metadata, name_of
from leveret.storage.dws_state import State
from leveret.storage.kube import Backoff, Kind, Kube, KubeError, KubeUnreachable, Object
from leveret.storage.kube_cache import Means
from leveret.storage.placing import TARGET_MIN_BYTES, place
from leveret.storage.port import (
    DATA_IN,
    DATA_OUT,
    ERROR,
    PRE_RUN,
    SETUP,
    STATES,
    TEARDOWN,
    Movement,
    Persistent,
    Rabbit,
    Request,
    Storage,
    StorageRefused,
    View,
)
from leveret.storage.reflector import Reflector

log = logging.getLogger(__name__)

T = TypeVar("T")

#: what must be known before anything is decided; without the others a feature is off
_NEEDED = ("workflows", "directivebreakdowns", "servers", "storages")
#: kind → whether it is in the namespace of workflows, else all over the cluster
_WATCHED = {
    "workflows": True,
    "directivebreakdowns": True,
    "servers": True,
    "computes": True,
    "storages": True,
    "systemconfigurations": True,
    "clientmounts": False,
    "nnfdatamovements": False,
    "dwdirectiverules": False,
}
_LOG_CHARS_MAX = 50_000


class Dws:
    """One Leveret's view of a cluster.

    `instance` marks this Leveret's Workflows: those of others are neither listed nor touched. `api_version` and
    `nnf_api_version` are tried before what discovery says. `in_flight_max` bounds requests, `backoff_s` is the first pause.
    """

    name = "dws"

    def __init__(
        self,
        *,
        instance: str = "",
        kubeconfig: str = "",
        context: str = "",
        namespace: str = "default",
        api_version: str = "",
        nnf_api_version: str = "",
        target_min_bytes: int = TARGET_MIN_BYTES,
        in_flight_max: int = 16,
        timeout_s: float = 30,
        backoff_s: float = 0.5,
        backoff_max_s: float = 60,
        seed: int | None = None,
    ) -> None:
        self._namespace = namespace
        self._first = {GROUP: api_version, NNF_GROUP: nnf_api_version}
        self._target_min_bytes = target_min_bytes
        self._backoff_s = backoff_s, backoff_max_s
        self._dice = random.Random(seed)
        self._make = partial(Kube, kubeconfig, context, in_flight_max=in_flight_max, timeout_s=timeout_s)
        self._kube: Kube | None = None
        self._versions: dict[str, str] = {}
        self._asked: dict[str, asyncio.Lock] = {GROUP: asyncio.Lock(), NNF_GROUP: asyncio.Lock()}
        self._reflectors: dict[str, Reflector] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._troubles: dict[str, str] = {}
        self._warned: set[str] = set()
        self._was_synced = False
        self._failing = 0  #: calls that had no answer yet
        self._dirty: set[int] = set()
        self._ill = False
        self._flushing = False
        self._on_changed: Callable[[int], None] = lambda jobid: None
        self._on_health: Callable[[], None] = lambda: None
        self._fetching: set[str] = set()
        self._going: set[str] = set()  #: uids of workflows that are being let go
        self._state = State(instance, self._mark, self._mark_health)

    # ---- starting and ending -----------------------------------------------------------------------

    async def start(self, changed: Callable[[int], None], health: Callable[[], None]) -> None:
        self._on_changed, self._on_health = changed, health
        self._kube = await asyncio.to_thread(self._make)  # it reads files and imports much
        for plural in _WATCHED:
            self._reflect(plural)
        waiting = [self._reflectors[plural].first.wait() for plural in _WATCHED]
        await asyncio.gather(*waiting)
        self._flush()

    def _reflect(self, plural: str) -> None:
        assert self._kube is not None

        def took(means: Means, one: Mapping[str, Any]) -> None:
            self._state.took(plural, means, one)
            if plural == "workflows" and means is Means.CHANGED and metadata(one).get("deletionTimestamp"):
                self._deleted(one)

        reflector = Reflector(
            plural,
            self._kube,
            lambda: self._kind(plural, fresh=True),
            took,
            namespace=self._namespace if _WATCHED[plural] else "",
            backoff=self._backoff(),
            dice=self._dice,
            told=self._tell,
        )
        self._reflectors[plural] = reflector
        self._state.caches[plural] = reflector.cache
        self._spawn(reflector.run())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._kube is not None:
            await self._kube.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("storage on Kubernetes: %s", error, exc_info=error)
            self._tell("internal", f"{type(error).__name__}: {error}")

    # ---- how it is ---------------------------------------------------------------------------------

    @property
    def synced(self) -> bool:
        return bool(self._reflectors) and all(self._reflectors[plural].synced for plural in _NEEDED)

    @property
    def trouble(self) -> str:
        return next(iter(self._troubles.values()), "")

    def _tell(self, who: str, what: str) -> None:
        """`what` is wrong for `who`, or nothing (any more). A feature that is off is logged once and is no trouble."""
        if self.synced is not self._was_synced:
            self._was_synced = self.synced
            self._mark_health()  # those who wait for a complete picture look again
        if not what:
            if self._troubles.pop(who, ""):
                log.info("storage on Kubernetes: %s is well again", who)
            self._warned.discard(who)
            return
        if who not in self._warned:
            self._warned.add(who)
            log.warning("storage on Kubernetes: %s", what)
        if who not in _WATCHED or who in _NEEDED:
            self._troubles[who] = what

    def _mark(self, jobid: int) -> None:
        self._dirty.add(jobid)
        self._soon()
        workflow = self._state.workflow(jobid)
        if workflow is not None and (workflow.get("status") or {}).get("workflowToken"):
            self._want_token(workflow)

    def _mark_health(self) -> None:
        self._ill = True
        self._soon()

    def _soon(self) -> None:
        """Many changes of one moment are told once."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        jobs, self._dirty = self._dirty, set()
        ill, self._ill = self._ill, False
        for jobid in jobs:
            self._on_changed(jobid)
        if ill:
            self._on_health()

    # ---- requests ----------------------------------------------------------------------------------

    def _backoff(self) -> Backoff:
        return Backoff(*self._backoff_s, self._dice)

    async def _kind(self, plural: str, *, fresh: bool = False) -> Kind:
        """A kind in the version that is served; asked once, and again when a list of it was refused."""
        if plural in ("secrets", "pods"):
            return Kind("", "v1", plural)
        group = NNF_GROUP if plural == "nnfdatamovements" else GROUP
        assert self._kube is not None
        async with self._asked[group]:
            off = fresh and plural in self._reflectors and self._reflectors[plural].off
            if group not in self._versions or off:
                known = NNF_VERSIONS if group == NNF_GROUP else VERSIONS
                self._versions[group] = await self._kube.served(group, known, self._first[group])
        return Kind(group, self._versions[group], plural)

    async def _insist(self, what: str, ask: Callable[[Kube], Awaitable[T]]) -> T:
        """Ask until there is an answer. Raises KubeError."""
        assert self._kube is not None
        backoff, failed = self._backoff(), False
        try:
            while True:
                try:
                    return await ask(self._kube)
                except KubeUnreachable as error:
                    self._failing += not failed
                    failed = True
                    self._tell("requests", f"{what}: {error}")
                    await backoff.pause()
        finally:
            self._failing -= failed
            if not self._failing:
                self._tell("requests", "")

    async def _patch(self, plural: str, name: str, body: Object) -> Object | None:
        """A merge patch in the namespace of workflows; the object, or None when there is none."""

        async def ask(kube: Kube) -> Object:
            try:
                return await kube.patch(await self._kind(plural), name, self._namespace, body)
            except KubeError as error:
                if error.code == 409:  # somebody else wrote at the same moment
                    raise KubeUnreachable(error.message) from error
                raise

        try:
            one = await self._insist(f"patch of {plural}/{name}", ask)
        except KubeError as error:
            if error.code == 404:
                return None
            raise
        if plural in self._state.caches:
            self._state.wrote(plural, one)
        return one

    # ---- a job's workflow --------------------------------------------------------------------------

    def jobs(self) -> Sequence[int]:
        return self._state.jobs()

    def view(self, jobid: int) -> View | None:
        return self._state.view(jobid)

    def check(self, directives: Sequence[str], userid: int) -> str:
        return self._state.check(directives)

    async def create(self, request: Request) -> None:
        name = name_of(request.jobid)
        body = objects.workflow(request, self._state.instance)

        async def ask(kube: Kube) -> Object:
            kind = await self._kind("workflows")
            try:
                return await kube.create(kind, {"apiVersion": f"{kind.group}/{kind.version}", **body}, self._namespace)
            except KubeError as error:
                if error.code != 409:
                    raise
            have = await kube.get(kind, name, self._namespace)
            if metadata(have).get("deletionTimestamp"):
                # an earlier one is on its way out: it is let go, and the name waited for
                await self._let_go(have)
                raise KubeUnreachable(f"{name} is still being deleted")
            if not objects.same(have, request, self._state.instance):
                raise StorageRefused(f"there is a Workflow {name} already, which somebody else made")
            return have

        try:
            self._state.wrote("workflows", await self._insist(f"creation of {name}", ask))
        except KubeError as error:
            raise _refused(error) from error

    async def advance(
        self,
        jobid: int,
        state: str,
        *,
        computes: Sequence[str] | None = None,
        hurry: bool = False,
        failed: bool = False,  # DWS knows no policies of copies
    ) -> None:
        have = self._state.workflow(jobid)
        if have is None:
            return
        spec = have.get("spec") or {}
        at = str(spec.get("desiredState") or STATES[0])
        if STATES.index(at) > STATES.index(state) or (at == state and (not hurry or spec.get("hurry"))):
            return
        try:
            if state == SETUP and computes is not None:
                await self._fill_servers(jobid, computes)
            if computes is not None and state in (SETUP, PRE_RUN):
                await self._list_computes(jobid, computes)
            await self._patch("workflows", name_of(jobid), objects.desire(state, hurry and state == TEARDOWN))
        except KubeError as error:
            raise _refused(error) from error

    async def _fill_servers(self, jobid: int, hosts: Sequence[str]) -> None:
        for plural in (*_NEEDED, "systemconfigurations"):
            await self._reflectors[plural].answered.wait()
        taken: dict[str, set[str]] = {}
        avoid = self._state.exclusive_elsewhere(jobid)
        for one in self._state.breakdowns(jobid) or ():
            servers, parsed = objects.servers_name(one), objects.breakdown(one)
            if not servers or not parsed.sets:
                continue
            sets = place(parsed, hosts, self._state.placeable(), taken, avoid, target_min_bytes=self._target_min_bytes)
            have = self._state.caches["servers"].get(servers)
            if have is not None and (have.get("spec") or {}).get("allocationSets") == sets:
                continue
            await self._patch("servers", servers, {"spec": {"allocationSets": sets}})

    async def _list_computes(self, jobid: int, hosts: Sequence[str]) -> None:
        have = self._state.caches["computes"].get(name_of(jobid))
        if have is None or [one.get("name") for one in have.get("data") or ()] != list(hosts):
            await self._patch("computes", name_of(jobid), objects.computes(hosts))

    async def force_ready(self, jobid: int) -> None:
        if self._state.workflow(jobid) is None:
            return
        try:
            await self._patch("workflows", name_of(jobid), {"spec": {"forceReady": True}})
        except KubeError as error:
            raise _refused(error) from error

    async def remove(self, jobid: int) -> None:
        have = self._state.workflow(jobid)
        if have is None:
            return
        uid = str(metadata(have).get("uid") or "")

        async def ask(kube: Kube) -> Object:
            return await kube.delete(await self._kind("workflows"), name_of(jobid), self._namespace, uid)

        self._going.add(uid)
        try:
            said = await self._insist(f"deletion of {name_of(jobid)}", ask)
            if metadata(said).get("uid") == uid:
                await self._let_go(said)
        except KubeError as error:
            if error.code not in (404, 409):  # it is gone, or another one has its name
                raise _refused(error) from error
        finally:
            self._going.discard(uid)

    def _deleted(self, one: Mapping[str, Any]) -> None:
        """A Workflow of ours is deleted, by hand or by a removal that a crash cut short: that cannot be undone, and ends once
        we let go of it."""
        uid = str(metadata(one).get("uid") or "")
        if uid in self._going or not self._state.ours(one):
            return
        self._going.add(uid)

        async def let_go() -> None:
            try:
                await self._let_go(dict(one))
            except KubeError as error:
                self._once(f"releasing {metadata(one).get('name')}", error)
            finally:
                self._going.discard(uid)

        self._spawn(let_go())

    async def _let_go(self, one: Object) -> None:
        """Take our finalizer off; the object is read again whenever it has changed meanwhile."""
        name, uid = str(metadata(one).get("name")), metadata(one).get("uid")
        present: Object = one

        async def ask(kube: Kube) -> None:
            nonlocal present
            kind = await self._kind("workflows")
            while metadata(present).get("uid") == uid:
                patch = objects.without_finalizer(present)
                if patch is None:
                    return
                try:
                    await kube.patch(kind, name, self._namespace, patch)
                    return
                except KubeError as error:
                    if error.code == 404:
                        return
                    if error.code not in (409, 422):
                        raise
                try:
                    present = await kube.get(kind, name, self._namespace)
                except KubeError as error:
                    if error.code == 404:
                        return
                    raise

        await self._insist(f"release of {name}", ask)

    async def abort(self, jobid: int) -> None:
        await self.advance(jobid, TEARDOWN, hurry=True)
        view = self.view(jobid)
        if view is None:
            return
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for rabbit, size in view.allocated.items():
            if size > 0:
                reason = f"leveret: storage of {view.name} was not given back"
                await self._allowed("storages", rabbit, objects.disable(reason, date), "taking rabbits out of service")

    async def movements(self, jobid: int) -> Sequence[Movement]:
        found, view = self._state.movements(jobid), self.view(jobid)
        late = (
            view is not None
            and view.state in (DATA_IN, DATA_OUT)
            and (view.ready or view.status == ERROR)
            and (not found or any(one.state != "Finished" for one in found))
        )
        if late and self._reflectors["nnfdatamovements"].synced:
            # the workflow's watch was faster than theirs
            label = f"{objects.WORKFLOW_LABEL}={name_of(jobid)}"

            async def ask(kube: Kube) -> list[Object]:
                return (await kube.list(await self._kind("nnfdatamovements"), labels=label))[0]

            try:
                for one in await self._insist(f"list of {name_of(jobid)}'s movements", ask):
                    self._state.wrote("nnfdatamovements", one)
            except KubeError as error:
                self._once("data movements", error)
            found = self._state.movements(jobid)
        return found

    async def container_log(self, jobid: int) -> str:
        async def ask(kube: Kube) -> str:
            kind = await self._kind("pods")
            pods, _ = await kube.list(kind, self._namespace, f"{objects.WORKFLOW_LABEL}={name_of(jobid)}")
            if not pods:
                return ""
            name = min(str(metadata(one).get("name")) for one in pods)
            return str(await kube.request("GET", kind.path(self._namespace, name, "log")) or "")

        try:
            return (await self._insist(f"log of {name_of(jobid)}'s container", ask))[-_LOG_CHARS_MAX:]
        except KubeError as error:
            self._once("container logs", error)
            return ""

    # ---- the token ---------------------------------------------------------------------------------

    def _want_token(self, workflow: Mapping[str, Any]) -> None:
        uid = str(metadata(workflow).get("uid") or "")
        if uid not in self._state.tokens and uid not in self._fetching:
            self._fetching.add(uid)
            self._spawn(self._fetch_token(uid, workflow))

    async def _fetch_token(self, uid: str, workflow: Mapping[str, Any]) -> None:
        where = workflow["status"]["workflowToken"]

        async def ask(kube: Kube) -> Object:
            kind = await self._kind("secrets")
            return await kube.get(kind, str(where["secretName"]), str(where["secretNamespace"]))

        try:
            secret = await self._insist(f"token of {metadata(workflow).get('name')}", ask)
            self._state.tokens[uid] = _decoded((secret.get("data") or {}).get("token"))
        except KubeError as error:
            self._state.tokens[uid] = ""  # a job without its token rather than none
            self._once("workflow tokens", error)
        finally:
            self._fetching.discard(uid)
        jobid = objects.owner_jobid(workflow)
        if jobid is not None:
            self._mark(jobid)

    # ---- the system --------------------------------------------------------------------------------

    def rabbits(self) -> Sequence[Rabbit]:
        return self._state.rabbits() if self._reflectors else ()

    async def persistent(self) -> Sequence[Persistent]:
        async def ask(kube: Kube) -> list[Object]:
            found, _ = await kube.list(await self._kind("persistentstorageinstances"), self._namespace)
            return found

        try:
            found = await self._insist("list of persistent storage", ask)
        except KubeError as error:
            raise _refused(error) from error
        servers = self._state.caches["servers"]
        return [objects.persistent(one, servers.get(str(metadata(one).get("name")))) for one in found]

    async def set_nodes(self, enabled: Mapping[str, bool]) -> None:
        if not enabled:
            return
        nodes = {host: "Enabled" if up else "Disabled" for host, up in enabled.items()}
        await self._allowed("systemstatuses", "default", {"data": {"nodes": nodes}}, "telling which nodes are up")

    async def _allowed(self, plural: str, name: str, body: Object, feature: str) -> None:
        """A patch that a site may not allow; then the feature is off, which is said once."""
        try:
            await self._patch(plural, name, body)
        except KubeError as error:
            self._once(feature, error)

    def _once(self, feature: str, error: KubeError) -> None:
        if feature not in self._warned:
            self._warned.add(feature)
            log.warning("storage on Kubernetes: without %s: %s", feature, error.message)


def _refused(error: KubeError) -> StorageRefused:
    return StorageRefused(objects.denial(error.message))


def _decoded(text: object) -> str:
    try:
        return base64.b64decode(str(text or "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


#: mypy looks whether it fits
_FITS: Callable[..., Storage] = Dws
