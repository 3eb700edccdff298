"""The Workflow controller of DWS, with the storage driver behind it.

One step of one workflow at a time, `pace_s` apart; each is computed from the objects alone, so that the controllers
may be stopped and started over the same store.
"""

from __future__ import annotations

import asyncio
import datetime

from .driver import FINALIZER as DRIVER_FINALIZER
from .driver import Driver
from .kinds import DWS, Kind
from .patch import copy
from .store import Object, Refused, Store, now

FINALIZER = f"{DWS}/workflow"
_WORST = {"Error": 3, "TransientCondition": 2}


class Controllers:
    def __init__(self, store: Store, driver: Driver, *, pace_s: float = 0.0, idle_s: float = 0.02) -> None:
        self.store, self.driver = store, driver
        #: between two steps of a workflow, and between two looks at one that waits for something
        self.pace_s, self.idle_s = pace_s, idle_s
        self.workflows = store.kinds[DWS, "workflows"]
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        #: what went wrong inside: tests look that it is empty
        self.crashes: list[BaseException] = []
        store.listeners.append(self._changed)

    def start(self) -> None:
        self._running = True
        for one in self.store.all(self.workflows):
            self._wake(one["metadata"]["name"])

    async def stop(self) -> None:
        self._running = False
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    def _changed(self, kind: Kind, change: str, one: Object) -> None:
        if kind is self.workflows and change != "DELETED":
            self._wake(one["metadata"]["name"])

    def _wake(self, name: str) -> None:
        if self._running and name not in self._tasks:
            self._tasks[name] = asyncio.get_running_loop().create_task(self._live(name))

    async def _live(self, name: str) -> None:
        await asyncio.sleep(self.pace_s)
        try:
            while True:
                before = self.store.version
                try:
                    waits = self.step(name)
                except Refused as refused:
                    if refused.code not in (404, 409):
                        raise
                    waits = True
                if self.store.version != before:
                    await asyncio.sleep(self.pace_s)
                elif waits:
                    await asyncio.sleep(self.idle_s)
                else:
                    return  # no await since the step: a later change starts another task
        except Exception as error:
            self.crashes.append(error)
        finally:
            if self._tasks.get(name) is asyncio.current_task():
                del self._tasks[name]

    # -- one step ----------------------------------------------------------------------

    def step(self, name: str) -> bool:
        """Bring one workflow a step on; True when it waits for something that changes without it."""
        workflow = self.store.find(self.workflows, "default", name)
        if workflow is None:
            return False
        if workflow["metadata"].get("deletionTimestamp"):
            return self._finalize(workflow)
        have = workflow["metadata"].get("finalizers") or []
        missing = [one for one in (FINALIZER, DRIVER_FINALIZER) if one not in have]
        if missing:
            self._patch(name, {"metadata": {"finalizers": [*have, *missing]}})
            return True
        status, spec = workflow.get("status") or {"ready": False}, workflow["spec"]
        if status.get("state") != spec["desiredState"]:
            self._enter(workflow)
            return True
        if status["ready"]:
            return False
        if spec.get("forceReady"):
            self._reached(workflow, "Forced Ready")
            return False
        if status["state"] == "Proposal" and not status.get("computes"):
            self._computes(workflow)
            return True
        return self._drive(workflow)

    def _patch(self, name: str, patch: Object) -> Object:
        return self.store.patch(self.workflows, "default", name, patch)

    def _enter(self, workflow: Object) -> None:
        state = workflow["spec"]["desiredState"]
        status = {
            "state": state,
            "ready": False,
            "status": "DriverWait",
            "message": None,
            "desiredStateChange": now(),
            "readyChange": None,
            "elapsedTimeLastState": None,
        }
        self._patch(workflow["metadata"]["name"], {"spec": {"forceReady": False}, "status": status})

    def _computes(self, workflow: Object) -> None:
        name = workflow["metadata"]["name"]
        kind = self.store.kinds[DWS, "computes"]
        if self.store.find(kind, "default", name) is None:
            labels = self.driver.labels(workflow) | self.driver._owner("Workflow", workflow)
            self.store.create(kind, "default", {"metadata": {"name": name, "labels": labels}})
        self._patch(name, {"status": {"computes": {"kind": "Computes", "name": name, "namespace": "default"}}})

    def _drive(self, workflow: Object) -> bool:
        name, state = workflow["metadata"]["name"], workflow["status"]["state"]
        drivers = copy(workflow["status"].get("drivers") or [])
        made: list[Object] = []
        for entry in drivers:
            if entry["watchState"] != state or entry["completed"] or entry["status"] == "Error":
                continue
            message, severity, done = self.driver.advance(workflow, entry)
            entry["message"] = message
            entry["lastHB"] += 1
            if done:
                entry |= {"completed": True, "status": "Completed", "completeTime": now()}
            else:
                entry["status"] = {"Fatal": "Error", "Major": "TransientCondition"}.get(severity or "", "DriverWait")
            if severity == "Fatal" and state == "Proposal":
                break  # the others of a proposal that is refused are not looked at
        present = self.store.get(self.workflows, "default", name)
        mine = [one for one in drivers if one["watchState"] == state]
        for one in self.driver.mine("directivebreakdowns", workflow):
            made.append({"kind": "DirectiveBreakdown", "name": one["metadata"]["name"], "namespace": "default"})
        status: Object = {"drivers": drivers} if drivers else {}
        if made:
            status["directiveBreakdowns"] = made
        if all(one["completed"] for one in mine):
            self._reached(present, None, status)
            return False
        worst = max((one["status"] for one in mine), key=lambda one: _WORST.get(one, 1))
        behind = [one for one in mine if not one["completed"] and one.get("message")]
        told = min(behind, key=lambda one: one["status"] != worst, default=None)
        status["message"] = f"DW Directive {told['dwdIndex']}: {told['message']}" if told else None
        status["status"] = worst if worst in _WORST else "DriverWait"
        if _beats(present["status"]) == _beats(present["status"] | status):
            return True  # a heartbeat is not news
        self._patch(name, {"status": status})
        return True

    def _reached(self, workflow: Object, message: str | None, status: Object | None = None) -> None:
        since = datetime.datetime.fromisoformat(workflow["status"]["desiredStateChange"])
        took_us = max(1, int((datetime.datetime.now(datetime.UTC) - since).total_seconds() * 1e6))
        changed = {
            "ready": True,
            "status": "Completed",
            "message": message,
            "readyChange": now(),
            "elapsedTimeLastState": duration(took_us),
        }
        self._patch(workflow["metadata"]["name"], {"status": {**(status or {}), **changed}})

    def _finalize(self, workflow: Object) -> bool:
        finalizers = workflow["metadata"].get("finalizers") or []
        others = [one for one in finalizers if one not in (FINALIZER, DRIVER_FINALIZER)]
        if others:
            return False  # the workload manager has not let go
        self.driver.finalize(workflow)
        self._patch(workflow["metadata"]["name"], {"metadata": {"finalizers": others}})
        return False


def _beats(status: Object) -> Object:
    drivers = [{key: one[key] for key in one if key != "lastHB"} for one in status.get("drivers") or []]
    return {key: one for key, one in status.items() if one is not None and key != "drivers"} | {"drivers": drivers}


def duration(micros: int) -> str:
    """As Go writes a duration: `157.403ms`, `2.276088s`, `1m2.5s`."""
    if micros < 1000:
        return f"{micros}µs"
    if micros < 1_000_000:
        return _trim(f"{micros / 1000:.3f}") + "ms"
    minutes, rest = divmod(micros, 60_000_000)
    text = _trim(f"{rest / 1_000_000:.6f}") + "s"
    return f"{minutes}m{text}" if minutes else text


def _trim(number: str) -> str:
    return number.rstrip("0").rstrip(".")
