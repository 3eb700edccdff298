"""A whole cluster in one object: API server, webhook, controllers, rabbits and their computes.

In the loop of a test (`async with Standin() as standin`), or in a thread of its own beside real processes
(`with Standin.thread() as standin`): the store is then only touched through `call`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from .controllers import Controllers
from .driver import Driver
from .faults import Fault, Faults
from .http import Server
from .kinds import DWS, KINDS
from .requests import RequestLog
from .ruleset import NNF_RULES
from .semantics import Site
from .store import Object, Store
from .webhook import WorkflowWebhook

#: the capacity of the rabbit in the transcripts
CAPACITY_BYTES = 39_582_418_599_936


class Standin:
    """`rabbits` maps each rabbit to its computes, in the order of their index."""

    def __init__(
        self,
        rabbits: Mapping[str, Sequence[str]] | None = None,
        *,
        capacity_bytes: int = CAPACITY_BYTES,
        pace_s: float = 0.0,
        site: Site | None = None,
        token: str = "",
        webhook: bool = True,
        controllers: bool = True,
        kinds: bool = True,
        history_max: int = 50_000,
    ) -> None:
        self.rabbits = dict(rabbits) if rabbits is not None else {"rabbit-0": ("compute-0", "compute-1")}
        self.site = site or Site()
        self.store = Store(KINDS if kinds else (), history_max=history_max)
        self.server = Server(self.store, token=token)
        self._token = token
        self._loop: asyncio.AbstractEventLoop | None = None
        self.driver: Driver
        self.controllers: Controllers | None = None
        if not kinds:
            return
        self.driver = Driver(self.store, self.site)
        self.driver.pod_log = lambda namespace, name, text: self.server.pod_logs.__setitem__((namespace, name), text)
        self._furnish(capacity_bytes)
        if webhook:
            self.store.admission.append(WorkflowWebhook(self.store))
        if controllers:
            self.controllers = Controllers(self.store, self.driver, pace_s=pace_s)

    def _furnish(self, capacity_bytes: int) -> None:
        create, kinds = self.store.create, self.store.kinds
        create(kinds[DWS, "dwdirectiverules"], "dws-system", {"metadata": {"name": "nnf"}, "spec": NNF_RULES})
        create(kinds[DWS, "systemstatuses"], "default", {"metadata": {"name": "default"}, "data": {"nodes": {}}})
        nodes = [
            {
                "name": rabbit,
                "type": "Rabbit",
                "computesAccess": [{"name": name, "index": i} for i, name in enumerate(computes)],
            }
            for rabbit, computes in self.rabbits.items()
        ]
        one = create(
            kinds[DWS, "systemconfigurations"],
            "default",
            {"metadata": {"name": "default"}, "spec": {"storageNodes": nodes, "portsCooldownInSeconds": 60}},
        )
        assert one["metadata"]["name"] == "default"
        self.store.patch(
            kinds[DWS, "systemconfigurations"], "default", "default", {"status": {"ready": True}}, sub="status"
        )
        for rabbit, computes in self.rabbits.items():
            labels = {f"{DWS}/storage": "Rabbit"}
            create(
                kinds[DWS, "storages"],
                "default",
                {"metadata": {"name": rabbit, "labels": labels}, "spec": {"mode": "Testing"}},
            )
            status = {
                "type": "NVMe",
                "capacity": capacity_bytes,
                "status": "Ready",
                "access": {
                    "protocol": "PCIe",
                    "servers": [{"name": rabbit, "status": "Ready"}],
                    "computes": [{"name": name, "status": "Ready"} for name in computes],
                },
            }
            self.store.patch(kinds[DWS, "storages"], "default", rabbit, {"status": status}, sub="status")

    # -- running -----------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.server.start()
        if self.controllers is not None:
            self.controllers.start()

    async def stop(self) -> None:
        if self.controllers is not None:
            await self.controllers.stop()
        await self.server.stop()

    async def restart(self, down_s: float = 0.0) -> None:
        """Everything goes down and comes back on the same port, its state kept."""
        await self.stop()
        await asyncio.sleep(down_s)
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self.check()

    def check(self) -> None:
        """The stand-in's own controllers must not have crashed."""
        if self.controllers is not None and self.controllers.crashes:
            raise self.controllers.crashes[0]

    @classmethod
    @contextmanager
    def thread(cls, *args: Any, **kwargs: Any) -> Iterator[Self]:
        """One that runs in a thread of its own."""
        standin, ready, loop = cls(*args, **kwargs), threading.Event(), asyncio.new_event_loop()

        def run() -> None:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(standin.start())
            ready.set()
            loop.run_forever()
            loop.run_until_complete(standin.stop())
            loop.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(20)
        try:
            yield standin
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(20)
        standin.check()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` (or a coroutine function) in the stand-in's loop, from another thread."""
        assert self._loop is not None

        async def run() -> Any:
            done = function()
            return await done if asyncio.iscoroutine(done) else done

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def kubeconfig(self, path: Path) -> Path:
        """Write a KUBECONFIG file for this server (JSON is YAML)."""
        user: Object = {"token": self._token} if self._token else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "standin",
            "contexts": [
                {"name": "standin", "context": {"cluster": "standin", "user": "flux", "namespace": "default"}}
            ],
            "clusters": [{"name": "standin", "cluster": {"server": self.server.url}}],
            "users": [{"name": "flux", "user": user}],
        }
        path.write_text(json.dumps(config))
        return path

    # -- what tests ask and do ---------------------------------------------------------

    @property
    def log(self) -> RequestLog:
        return self.server.log

    @property
    def faults(self) -> Faults:
        return self.server.faults

    def fault(self, action: str, **more: Any) -> Fault:
        return self.faults.add(Fault(action, **more))

    def objects(self, plural: str, namespace: str = "") -> dict[str, Object]:
        """Name → object, of one kind."""
        return {one["metadata"]["name"]: one for one in self.store.all(self.driver.kind(plural), namespace)}

    def rabbit(self, name: str, **status: Any) -> None:
        """Change a Storage's status: `rabbit("rabbit-0", status="Offline")`."""
        self.store.patch(self.driver.kind("storages"), "default", name, {"status": status}, sub="status")

    def compute(self, rabbit: str, compute: str, status: str) -> None:
        """Change how a compute node is seen by its rabbit."""
        have = self.store.get(self.driver.kind("storages"), "default", rabbit)["status"]["access"]["computes"]
        self.rabbit(
            rabbit, access={"computes": [{**one, "status": status} if one["name"] == compute else one for one in have]}
        )

    def trouble(self, state: str, kind: str, text: str = "something went wrong", workflow: str = "*") -> None:
        """From now on that state goes to `kind`: Error, TransientCondition, or hold (it is never reached)."""
        self.driver.troubles[workflow, state] = (kind, text)

    def calm(self) -> None:
        self.driver.troubles.clear()
        self.driver.stuck_nodes.clear()

    def leftovers(self) -> list[str]:
        """What is there that no workflow should leave behind."""
        kinds = ("workflows", "directivebreakdowns", "computes", "clientmounts", "nnfdatamovements")
        left = [f"{plural}/{name}" for plural in kinds for name in self.objects(plural)]
        return left + [f"servers/{name}" for name, one in self.objects("servers").items() if not _persistent(one)]


def _persistent(servers: Object) -> bool:
    return f"{DWS}/persistentstorage.name" in (servers["metadata"].get("labels") or {})
