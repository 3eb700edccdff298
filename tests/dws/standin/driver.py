"""What the storage driver does in each state, one small step at a time.

A step looks at the objects only, so a server that was stopped in between goes on from them. `advance` gives what to
write into the driver's entry: (message, severity or None, done). Messages come and go in the order in which the real
controllers show them; they follow from what is there (allocations, mounts), not from a script.
"""

from __future__ import annotations

from typing import Any

from . import semantics
from .kinds import DWS
from .nodes import DONE, FINALIZER, GRAIN_BYTES, Nodes, Step, waiting
from .semantics import Unfit
from .store import Object, Refused, now

__all__ = ["FINALIZER", "Driver"]


class Driver(Nodes):
    # -- dispatch ----------------------------------------------------------------------

    def advance(self, workflow: Object, entry: Object) -> Step:
        name, state, index = workflow["metadata"]["name"], entry["watchState"], entry["dwdIndex"]
        trouble = self.troubles.get((name, state)) or self.troubles.get(("*", state))
        if trouble is not None:
            kind, text = trouble
            return waiting(text, {"Error": "Fatal", "TransientCondition": "Major"}.get(kind))
        command, args = semantics.words(workflow["spec"]["dwDirectives"][index])
        try:
            if state == "Proposal":
                return self._proposal(workflow, index, command, args)
            return getattr(self, f"_{state.lower()}")(workflow, index, command, args, entry)  # type: ignore[no-any-return]
        except Unfit as unfit:
            return waiting(f"{unfit.kind} error: {unfit}", "Fatal")

    # -- Proposal ----------------------------------------------------------------------

    def _proposal(self, workflow: Object, index: int, command: str, args: dict[str, str]) -> Step:
        if index == 0:
            semantics.check(self.store, self.site, workflow)
        if args.get("requires"):
            self._require(workflow, args["requires"].split(","))
        if command not in ("jobdw", "create_persistent", "persistentdw"):
            return DONE
        name, spec = f"{workflow['metadata']['name']}-{index}", workflow["spec"]
        if self._find("directivebreakdowns", name) is None:
            body = {
                "metadata": {"name": name, "labels": self.labels(workflow, index) | self._owner("Workflow", workflow)},
                "spec": {"directive": spec["dwDirectives"][index], "userID": spec["userID"]},
            }
            made = self.store.create(self.kind("directivebreakdowns"), "default", body)
            self._status("directivebreakdowns", made, self._breakdown(workflow, index, command, args, made))
        return DONE

    def _breakdown(self, workflow: Object, index: int, command: str, args: dict[str, str], made: Object) -> Object:
        if command == "persistentdw":
            access = [{"priority": "mandatory", "type": "physical"}]  # whatever the file system: the rule names no type
            reference = {
                "fieldPath": "servers.spec.allocationSets[0]",
                "kind": "Servers",
                "name": args["name"],
                "namespace": "default",
            }
            return {
                "ready": True,
                "compute": {"constraints": {"location": [{"access": access, "reference": reference}]}},
            }
        sets = semantics.allocation_sets(self.site, args["type"], args.get("capacity", "0KiB"))
        if command == "create_persistent":
            servers, labels, lifetime = args["name"], self._instance(workflow, args), "persistent"
        else:
            servers, labels, lifetime = (
                made["metadata"]["name"],
                self.labels(workflow, index) | self._owner("DirectiveBreakdown", made),
                "job",
            )
        if self._find("servers", servers) is None:
            one = self.store.create(
                self.kind("servers"), "default", {"metadata": {"name": servers, "labels": labels}, "spec": {}}
            )
            self._status("servers", one, {"ready": False, "lastUpdate": now()})
        storage = {
            "lifetime": lifetime,
            "reference": {"kind": "Servers", "name": servers, "namespace": "default"},
            "allocationSets": sets,
        }
        if lifetime == "persistent":
            return {"ready": True, "storage": storage}
        located = semantics.locations(self.site, args["type"], [one["label"] for one in sets], servers)
        return {"ready": True, "storage": storage, "compute": {"constraints": {"location": located}}}

    def _instance(self, workflow: Object, args: dict[str, str]) -> dict[str, str]:
        """The persistent instance of a create_persistent is made; the labels of its Servers."""
        have = self._find("persistentstorageinstances", args["name"])
        if have is None:
            spec = workflow["spec"]
            body = {
                "metadata": {"name": args["name"], "labels": self._owner("Workflow", workflow)},
                "spec": {
                    "name": args["name"],
                    "fsType": args["type"],
                    "dwDirective": spec["dwDirectives"][0],
                    "userID": spec["userID"],
                    "state": "Active",
                },
            }
            have = self.store.create(self.kind("persistentstorageinstances"), "default", body)
            servers = {"kind": "Servers", "name": args["name"], "namespace": "default"}
            self._status("persistentstorageinstances", have, {"state": "Creating", "servers": servers})
        names = {f"{DWS}/persistentstorage.name": args["name"], f"{DWS}/persistentstorage.namespace": "default"}
        return self._owner("PersistentStorageInstance", have) | names

    def _require(self, workflow: Object, wanted: list[str]) -> None:
        name = f"{workflow['metadata']['name']}-token"
        if self._find("secrets", name) is None:
            body = {
                "metadata": {"name": name, "labels": self.labels(workflow)},
                "type": "Opaque",
                "data": {"token": "dG9rZW4tb2YtdGhlLWpvYg=="},
            }
            self.store.create(self.kind("secrets"), "default", body)
        have = (workflow.get("status") or {}).get("requires") or []
        status = {
            "requires": sorted({*have, *wanted}),
            "workflowToken": {"secretName": name, "secretNamespace": "default"},
        }
        self.store.patch(self.kind("workflows"), "default", workflow["metadata"]["name"], {"status": status})

    # -- Setup -------------------------------------------------------------------------

    def _servers_name(self, workflow: Object, index: int, command: str, args: dict[str, str]) -> str:
        return (
            args["name"]
            if command in ("create_persistent", "persistentdw")
            else f"{workflow['metadata']['name']}-{index}"
        )

    def _setup(self, workflow: Object, index: int, command: str, args: dict[str, str], entry: Object) -> Step:
        if command not in ("jobdw", "create_persistent"):
            return DONE
        servers = self._find("servers", self._servers_name(workflow, index, command, args))
        breakdown = self._find("directivebreakdowns", f"{workflow['metadata']['name']}-{index}")
        if servers is None or breakdown is None:
            raise Unfit("storage is gone", "Internal")
        status = servers["status"]
        if not status.get("allocationSets"):
            semantics.check_servers(self.store, breakdown["status"]["storage"]["allocationSets"], servers)
            self._allocate(servers)
            return waiting("allocation")
        if status["ready"]:
            if command == "create_persistent":
                instance = self._find("persistentstorageinstances", args["name"])
                assert instance is not None
                self._status("persistentstorageinstances", instance, {"state": "Active"})
            return DONE
        if entry.get("message") == "allocation":
            return waiting("allocation set not ready")
        sets = [
            {
                "label": one["label"],
                "storage": {
                    name: {**size, "ready": size["ready"] or self._up(name, args)}
                    for name, size in one["storage"].items()
                },
            }
            for one in status["allocationSets"]
        ]
        ready = all(size["ready"] for one in sets for size in one["storage"].values())
        if sets != status["allocationSets"]:
            self._status("servers", servers, {"allocationSets": sets, "ready": ready, "lastUpdate": now()})
        if args["type"] == "lustre" and not self.lustre:
            return waiting("Internal error: could not allocate storage", "Minor")
        return waiting("allocation set not ready")

    def _up(self, rabbit: str, args: dict[str, str]) -> bool:
        one = self._find("storages", rabbit)
        if one is None or (args["type"] == "lustre" and not self.lustre):
            return False
        return one["spec"]["state"] == "Enabled" and (one.get("status") or {}).get("status") == "Ready"

    def _allocate(self, servers: Object) -> None:
        sets = []
        for one in servers["spec"]["allocationSets"]:
            size = -(-one["allocationSize"] // GRAIN_BYTES) * GRAIN_BYTES
            sets.append(
                {
                    "label": one["label"],
                    "storage": {
                        on["name"]: {"allocationSize": size * on["allocationCount"], "ready": False}
                        for on in one["storage"]
                    },
                }
            )
        used = self.used()
        for allocated in sets:
            for rabbit, size in allocated["storage"].items():
                used[rabbit] = used.get(rabbit, 0) + size["allocationSize"]
                storage = self._find("storages", rabbit)
                if storage is None or used[rabbit] > (storage.get("status") or {}).get("capacity", 0):
                    raise Unfit("insufficient capacity available", "Internal")
        self._status("servers", servers, {"allocationSets": sets, "ready": False, "lastUpdate": now()})

    def used(self) -> dict[str, int]:
        """Rabbit → bytes allocated."""
        used: dict[str, int] = {}
        for servers in self.store.objects[DWS, "servers"].values():
            for one in (servers.get("status") or {}).get("allocationSets") or []:
                for rabbit, size in one["storage"].items():
                    used[rabbit] = used.get(rabbit, 0) + size["allocationSize"]
        return used

    # -- Teardown and deletion ---------------------------------------------------------

    def _teardown(self, workflow: Object, index: int, command: str, args: dict[str, str], entry: Object) -> Step:
        if command in ("copy_in", "copy_out"):
            return self._end_movements(workflow, index)
        if command == "destroy_persistent":
            return self._destroy(workflow, args["name"])
        if command == "create_persistent":
            instance = self._find("persistentstorageinstances", args["name"])
            if instance is not None and instance["status"]["state"] == "Creating":
                self._drop_instance(instance)
            return DONE
        if command == "persistentdw":
            if self._unmount(workflow, index):
                return waiting("pending unmount")
            self._consume(workflow, args["name"], False)
            self._drop("clientmounts", workflow, index)
            return DONE
        if self.mine("clientmounts", workflow, index):
            if not self._unmount(workflow, index):
                self._drop("clientmounts", workflow, index)
            return waiting("delete")
        if command == "jobdw":
            servers = self._find("servers", f"{workflow['metadata']['name']}-{index}")
            if servers is not None and servers["status"].get("allocationSets"):
                self._free(servers)
                return waiting("delete")
        return DONE

    def _end_movements(self, workflow: Object, index: int) -> Step:
        left = [
            one
            for one in self.mine("nnfdatamovements", workflow, index)
            if (one.get("status") or {}).get("state") != "Finished"
        ]
        for one in left:
            where = one["metadata"]
            if not one["spec"].get("cancel"):
                self.store.patch(
                    self.kind("nnfdatamovements"), where["namespace"], where["name"], {"spec": {"cancel": True}}
                )
            else:
                self._move_on(one)
        return waiting("delete") if left else DONE

    def _destroy(self, workflow: Object, name: str) -> Step:
        instance = self._find("persistentstorageinstances", name)
        if instance is None:
            return DONE
        if instance["spec"]["userID"] != workflow["spec"]["userID"]:
            raise Unfit("user ID does not match existing persistent storage")
        if instance["spec"].get("consumerReferences"):
            raise Unfit("persistent storage cannot be deleted while in use")
        self._drop_instance(instance)
        return DONE

    def _drop_instance(self, instance: Object) -> None:
        name = instance["metadata"]["name"]
        if self._find("servers", name) is not None:
            self.store.delete(self.kind("servers"), "default", name)
        self.store.delete(self.kind("persistentstorageinstances"), "default", name)

    def _consume(self, workflow: Object, name: str, uses: bool) -> None:
        instance = self._find("persistentstorageinstances", name)
        if instance is None:
            return
        me = {"kind": "Workflow", "name": workflow["metadata"]["name"], "namespace": "default"}
        others = [one for one in instance["spec"].get("consumerReferences") or [] if one["name"] != me["name"]]
        references = [*others, me] if uses else others
        self.store.patch(
            self.kind("persistentstorageinstances"), "default", name, {"spec": {"consumerReferences": references}}
        )

    def _free(self, servers: Object) -> None:
        sets: list[Any] = [
            {"label": one["label"], "storage": {name: {"allocationSize": 0, "ready": False} for name in one["storage"]}}
            for one in servers["status"]["allocationSets"]
        ]
        if sets == servers["status"]["allocationSets"]:
            self._status("servers", servers, {"allocationSets": None, "ready": False, "lastUpdate": now()})
        elif all(self._reachable(name) for one in sets for name in one["storage"]):
            self._status("servers", servers, {"allocationSets": sets, "ready": False, "lastUpdate": now()})

    def _reachable(self, rabbit: str) -> bool:
        one = self._find("storages", rabbit)
        return one is None or (one.get("status") or {}).get("status") not in ("Offline", "Fenced")

    def _drop(self, plural: str, workflow: Object, index: int | None = None) -> None:
        kind = self.kind(plural)
        for one in self.mine(plural, workflow, index):
            where = one["metadata"]
            try:
                self.store.delete(kind, where["namespace"], where["name"])
                if where.get("finalizers"):
                    self.store.patch(kind, where["namespace"], where["name"], {"metadata": {"finalizers": None}})
            except Refused:
                pass

    def finalize(self, workflow: Object) -> None:
        """The workflow is deleted: so is all that was made for it."""
        for plural in (
            "clientmounts",
            "nnfdatamovements",
            "pods",
            "secrets",
            "servers",
            "directivebreakdowns",
            "computes",
        ):
            self._drop(plural, workflow)
