"""What the storage driver's parts share, and its work on nodes: data movements and mounts."""

from __future__ import annotations

from collections.abc import Callable

from .kinds import DWS, NNF, Kind
from .semantics import Site, Unfit
from .store import Object, Store, now

FINALIZER = f"{NNF}/nnf_workflow"
#: allocations are made of whole stripes over a rabbit's drives
GRAIN_BYTES = 256 * 1024

Step = tuple[str, str | None, bool]
DONE: Step = ("", None, True)


def waiting(message: str, severity: str | None = None) -> Step:
    return message, severity, False


class Nodes:
    def __init__(self, store: Store, site: Site) -> None:
        self.store, self.site = store, site
        #: (plural, uid of a workflow) → its objects
        self._made: dict[tuple[str, str], dict[tuple[str, str], Object]] = {}
        store.listeners.append(self._index)
        #: nodes on which no mount ever becomes ready, nor goes away
        self.stuck_nodes: set[str] = set()
        #: whether the hardware can make Lustre targets
        self.lustre = True
        #: (workflow, state) → (kind, text): Error, TransientCondition or hold, instead of a step
        self.troubles: dict[tuple[str, str], tuple[str, str]] = {}
        #: paths that no data movement can read
        self.missing_paths: set[str] = set()
        #: the steps that a data movement takes from Running to Finished
        self.movement_steps = 2
        self.pod_log: Callable[[str, str, str], None] = lambda namespace, name, text: None

    def kind(self, plural: str) -> Kind:
        group = NNF if plural == "nnfdatamovements" else "" if plural in ("pods", "secrets") else DWS
        return self.store.kinds[group, plural]

    def _find(self, plural: str, name: str, namespace: str = "default") -> Object | None:
        return self.store.find(self.kind(plural), namespace, name)

    def _status(self, plural: str, one: Object, status: Object) -> None:
        self.store.patch(
            self.kind(plural), one["metadata"]["namespace"], one["metadata"]["name"], {"status": status}, sub="status"
        )

    def labels(self, workflow: Object, index: int | None = None) -> dict[str, str]:
        metadata = workflow["metadata"]
        labels = {f"{DWS}/workflow.{key}": metadata[key] for key in ("name", "namespace", "uid")}
        if index is not None:
            labels |= {f"{NNF}/directive_index": str(index), f"{NNF}/job_id": str(workflow["spec"]["jobID"])}
        return labels

    def _owner(self, kind: str, one: Object) -> dict[str, str]:
        return {f"{DWS}/owner.kind": kind} | {
            f"{DWS}/owner.{key}": one["metadata"][key] for key in ("name", "namespace", "uid")
        }

    def mine(self, plural: str, workflow: Object, index: int | None = None) -> list[Object]:
        """What was made for a workflow, by its label."""
        found = self._made.get((plural, workflow["metadata"]["uid"]), {}).values()
        return [
            one
            for one in found
            if index is None or one["metadata"]["labels"].get(f"{NNF}/directive_index") == str(index)
        ]

    def _index(self, kind: Kind, change: str, one: Object) -> None:
        uid = (one["metadata"].get("labels") or {}).get(f"{DWS}/workflow.uid")
        if uid is None:
            return
        made = self._made.setdefault((kind.plural, uid), {})
        where = (one["metadata"]["namespace"], one["metadata"]["name"])
        if change == "DELETED":
            made.pop(where, None)
        else:
            made[where] = one

    # -- DataIn, DataOut ---------------------------------------------------------------

    def _datain(self, workflow: Object, index: int, command: str, args: dict[str, str], entry: Object) -> Step:
        return self._move(workflow, index, args, "DataIn")

    def _dataout(self, workflow: Object, index: int, command: str, args: dict[str, str], entry: Object) -> Step:
        return self._move(workflow, index, args, "DataOut")

    def _move(self, workflow: Object, index: int, args: dict[str, str], state: str) -> Step:
        movements = self.mine("nnfdatamovements", workflow, index)
        spec = workflow["spec"]
        if not movements:
            env = (workflow.get("status") or {}).get("env") or {}
            paths = {end: _expand(args[end], env) for end in ("source", "destination")}
            body = {
                "metadata": {"name": f"{workflow['metadata']['name']}-{index}", "labels": self.labels(workflow, index)},
                "spec": {
                    "source": {"path": paths["source"]},
                    "destination": {"path": paths["destination"]},
                    "userId": spec["userID"],
                    "groupId": spec["groupID"],
                },
            }
            movements = [self.store.create(self.kind("nnfdatamovements"), "nnf-dm-system", body)]
        states = [self._move_on(one) for one in movements]
        if any(one != "Finished" for one in states):
            return waiting("data movement in progress")
        for one in self.mine("nnfdatamovements", workflow, index):
            if one["status"]["status"] != "Success":
                raise Unfit(
                    f"data movement operation failed during '{state}', message: {one['status'].get('message', '')}",
                    "Internal",
                )
        return DONE

    def _move_on(self, movement: Object) -> str:
        status = dict(movement.get("status") or {})
        state = status.get("state")
        if state == "Finished":
            return "Finished"
        command = dict(status.get("commandStatus") or {})
        if not state:
            status |= {"state": "Starting", "startTime": now()}
        elif movement["spec"].get("cancel"):
            status |= {"state": "Finished", "status": "Cancelled", "endTime": now()}
        elif movement["spec"]["source"]["path"] in self.missing_paths:
            status |= {
                "state": "Finished",
                "status": "Invalid",
                "endTime": now(),
                "message": f"source file path not found: {movement['spec']['source']['path']}",
            }
        else:
            progress = command.get("progress", -1)
            if progress < 0 or progress + 100 // self.movement_steps < 100:
                command |= {
                    "command": "dcp --progress 1",
                    "progress": max(progress, 0) + (100 // self.movement_steps if progress >= 0 else 0),
                }
                status |= {"state": "Running", "commandStatus": command}
            else:
                command |= {"progress": 100, "items": 1, "files": 1, "data": "1.000 KiB"}
                status |= {"state": "Finished", "status": "Success", "endTime": now(), "commandStatus": command}
        self._status("nnfdatamovements", movement, status)
        return str(status["state"])

    # -- PreRun, PostRun ---------------------------------------------------------------

    def _fs(self, command: str, args: dict[str, str]) -> str:
        if command == "persistentdw":
            instance = self._find("persistentstorageinstances", args["name"])
            if instance is None:
                raise Unfit(f"persistent storage instance '{args['name']}' not found")
            return str(instance["spec"]["fsType"])
        return args["type"]

    def _prerun(self, workflow: Object, index: int, command: str, args: dict[str, str], entry: Object) -> Step:
        if command == "container":
            return self._pod(workflow, index)
        if command not in ("jobdw", "persistentdw"):
            return DONE
        path = f"/mnt/nnf/{workflow['metadata']['uid']}-{index}"
        mounts = self.mine("clientmounts", workflow, index)
        if not mounts:
            if command == "persistentdw":
                self._consume(workflow, args["name"], True)
            self._mount(workflow, index, command, args, path)
            self._environment(workflow, command, args, path)
            return waiting("pending mount")
        servers = [one for one in mounts if one["metadata"]["name"].endswith("-servers")]
        computes = [one for one in mounts if one not in servers]
        if any(not one["status"]["allReady"] for one in servers):
            # the rabbit mounts first; the computes' mounts are looked at before they had time
            for one in servers:
                self._settle(one)
            return waiting("Internal error: unable to mount file system on client nodes", "Minor")
        if entry.get("message", "").startswith("Internal"):
            return waiting("pending mount")
        moved = [self._settle(one) for one in computes]
        if any(moved) or any(not one["status"]["allReady"] and not self._gone(one) for one in computes):
            return waiting("pending mount")
        return DONE

    def _mount(self, workflow: Object, index: int, command: str, args: dict[str, str], path: str) -> None:
        kind, spec = self._fs(command, args), workflow["spec"]
        shape = {"type": "none", "targetType": "file"} if kind == "raw" else {"type": kind, "targetType": "directory"}
        computes = self._find("computes", workflow["metadata"]["name"])
        nodes = [one["name"] for one in (computes or {}).get("data") or []]
        if not nodes:
            raise Unfit("no compute nodes", "WLM")
        device = {
            "type": "reference",
            "deviceReference": {"objectReference": {"name": self._servers_name(workflow, index, command, args)}},
        }

        def make(node: str, where: str, paths: list[str]) -> None:
            each = {
                "device": device,
                "options": "",
                "setPermissions": where == "computes",
                "userID": spec["userID"],
                "groupID": spec["groupID"],
                **shape,
            }
            name = f"default-{workflow['metadata']['name']}-{index}-{where}"
            body = {
                "metadata": {
                    "name": name,
                    "labels": self.labels(workflow, index),
                    "finalizers": [f"{NNF}/nnf_clientmount"],
                },
                "spec": {
                    "node": node,
                    "desiredState": "mounted",
                    "mounts": [{"mountPath": one, **each} for one in paths],
                },
            }
            made = self.store.create(self.kind("clientmounts"), node, body)
            self._status(
                "clientmounts",
                made,
                {"allReady": False, "mounts": [{"ready": False, "state": "mounted"} for _ in paths]},
            )

        for node in nodes:
            make(node, "computes", [path])
        if kind in ("gfs2", "raw") and command == "jobdw":
            servers = self._find("servers", self._servers_name(workflow, index, command, args))
            for one in (servers or {"spec": {}})["spec"].get("allocationSets") or []:
                for on in one["storage"]:
                    make(on["name"], "servers", [f"{path}/{on['name']}-{i}" for i in range(on["allocationCount"])])

    def _settle(self, mount: Object) -> bool:
        """The node's daemon brings the mount where it is desired, if it can; True when it did so now."""
        status, want = mount["status"], mount["spec"]["desiredState"]
        if status["allReady"] and all(one["state"] == want for one in status["mounts"]):
            return False
        if mount["spec"]["node"] in self.stuck_nodes:
            return False
        self._status(
            "clientmounts",
            mount,
            {"allReady": True, "mounts": [{"ready": True, "state": want} for _ in status["mounts"]]},
        )
        return True

    def _gone(self, mount: Object) -> bool:
        """A compute that the workload manager said is down is not waited for."""
        nodes = ((self._find("systemstatuses", "default") or {}).get("data") or {}).get("nodes") or {}
        return nodes.get(mount["spec"]["node"]) == "Disabled"

    def _environment(self, workflow: Object, command: str, args: dict[str, str], path: str) -> None:
        workflows = self.kind("workflows")
        env = dict((self.store.get(workflows, "default", workflow["metadata"]["name"])["status"].get("env")) or {})
        word = "PERSISTENT" if command == "persistentdw" else "JOB"
        env[f"DW_{word}_{args['name'].replace('-', '_')}"] = path
        env.setdefault(f"DW_{word}_{args.get('type', '').upper()}", path)
        have = [one for one in env.get(f"DW_{word}S", "").split(",") if one]
        env[f"DW_{word}S"] = ",".join(dict.fromkeys([*have, f"{args['name']}:{path}"]))
        self.store.patch(workflows, "default", workflow["metadata"]["name"], {"status": {"env": env}})

    def _postrun(self, workflow: Object, index: int, command: str, args: dict[str, str], entry: Object) -> Step:
        if command not in ("jobdw", "persistentdw"):
            return DONE
        return waiting("pending unmount") if self._unmount(workflow, index) else DONE

    def _unmount(self, workflow: Object, index: int) -> bool:
        """One step of the unmounts; True while any is left."""
        left = False
        for one in self.mine("clientmounts", workflow, index):
            if one["spec"]["desiredState"] != "unmounted":
                where = one["metadata"]
                self.store.patch(
                    self.kind("clientmounts"),
                    where["namespace"],
                    where["name"],
                    {"spec": {"desiredState": "unmounted"}},
                )
                self._status(
                    "clientmounts",
                    one,
                    {
                        "allReady": False,
                        "mounts": [{"ready": False, "state": "unmounted"} for _ in one["spec"]["mounts"]],
                    },
                )
                left = True
            elif not one["status"]["allReady"] and not self._gone(one):
                self._settle(one)
                left = True
        return left

    def _pod(self, workflow: Object, index: int) -> Step:
        name = f"{workflow['metadata']['name']}-{index}-0"
        if self._find("pods", name) is None:
            self.store.create(
                self.kind("pods"),
                "default",
                {"metadata": {"name": name, "labels": self.labels(workflow, index)}, "spec": {}},
            )
            self.pod_log("default", name, "container started\n")
            return waiting("container not ready")
        return DONE


def _expand(path: str, env: dict[str, str]) -> str:
    for key in sorted(env, key=len, reverse=True):
        path = path.replace(f"${key}", env[key])
    return path
