"""What the storage driver makes of directives: its own checks in Proposal, and the breakdown of each."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from .kinds import DWS
from .ruleset import arguments
from .store import Object, Store

IGNORE_UID = f"{DWS}/ignore-uid"
MIB = 2**20


class Unfit(Exception):
    """A driver's error: `kind` is User, WLM or Internal; it is fatal."""

    def __init__(self, text: str, kind: str = "User") -> None:
        super().__init__(text)
        self.kind = kind


@dataclass
class Profile:
    """What the stock NnfStorageProfile says."""

    scaling: float = 1.0
    padding_bytes: int = 300 * MIB
    ost_scale: int = 5
    #: combined (mgtmdt), separate (mdt and mgt), external (mdt only), standalone (mgt only)
    metadata: str = "combined"
    metadata_bytes: int = 5 * 2**30
    colocate_computes: bool = True


@dataclass
class Site:
    """What a site configured beside the DWS objects."""

    profile: Profile = field(default_factory=Profile)
    #: mount roots of the global Lustre file systems
    global_roots: tuple[str, ...] = ("/lus",)
    #: container profile → {name of its storage: optional?}
    containers: dict[str, dict[str, bool]] = field(default_factory=dict)


_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def capacity_bytes(text: str) -> int:
    number = re.match(r"\d+", text)
    assert number is not None
    return int(number[0]) * _UNITS[text[number.end() :]]


def words(directive: str) -> tuple[str, dict[str, str]]:
    command, found = arguments(directive)
    return command, {key: value or "" for key, value in found.items()}


def check(store: Store, site: Site, workflow: Object) -> None:
    """The whole workflow, at the Proposal of its first directive; raises Unfit."""
    spec = workflow["spec"]
    parsed = [words(one) for one in spec["dwDirectives"]]
    commands = [command for command, _ in parsed]
    if len(parsed) > 1 and ("create_persistent" in commands or "destroy_persistent" in commands):
        raise Unfit("only a single create_persistent or destroy_persistent directive is allowed per workflow")
    if commands.count("container") > 1:
        raise Unfit("only a single container directive is supported per workflow")
    for command, args in parsed:
        if "capacity" in args and capacity_bytes(args["capacity"]) == 0:
            raise Unfit("'capacity' must be a non-zero value")
        if command in ("copy_in", "copy_out"):
            for end in ("source", "destination"):
                _check_path(store, site, parsed, args[end])
        elif command == "persistentdw":
            _check_persistent(store, args["name"], spec["userID"])
        elif command == "create_persistent":
            have = _instance(store, args["name"])
            if have is not None and have["spec"]["userID"] != spec["userID"]:
                raise Unfit("User ID does not match existing persistent storage")
        elif command == "container":
            _check_container(store, site, parsed, args)
        if command == "jobdw" and args["type"] == "lustre" and site.profile.metadata == "standalone":
            raise Unfit("standaloneMgtPoolName option can only be used with 'create_persistent' directive")


def _instance(store: Store, name: str) -> Object | None:
    return store.find(store.kinds[DWS, "persistentstorageinstances"], "default", name)


def _check_persistent(store: Store, name: str, userid: int) -> None:
    have = _instance(store, name)
    if have is None:
        raise Unfit(f"PersistentStorageInstance '{name}' not found")
    if have["metadata"].get("deletionTimestamp") or have["spec"]["state"] == "Destroying":
        raise Unfit(f"Persistent storage instance '{name}' is deleting")
    ignore = (have["metadata"].get("annotations") or {}).get(IGNORE_UID) == "true"
    if have["spec"]["userID"] != userid and not ignore:
        raise Unfit("User ID does not match existing persistent storage")


def _check_path(store: Store, site: Site, parsed: list[tuple[str, dict[str, str]]], path: str) -> None:
    found = re.match(r"\$\{?DW_(JOB|PERSISTENT)_([A-Za-z0-9_-]+)\}?", path)
    if found is None:
        if not any(path.startswith(root) for root in site.global_roots):
            raise Unfit(f"global Lustre file system containing '{path}' not found")
        return
    name = found[2].replace("_", "-")
    if found[1] == "JOB":
        mine = next((args for command, args in parsed if command == "jobdw" and args["name"] == name), None)
        if mine is None:
            raise Unfit(f"job storage instance '{name}' not found")
        kind = mine["type"]
    else:
        have = _instance(store, name)
        if have is None:
            raise Unfit(f"persistent storage instance '{name}' not found")
        if not any(command == "persistentdw" and args["name"] == name for command, args in parsed):
            raise Unfit(f"persistentdw directive mentioning '{name}' not found")
        kind = have["spec"]["fsType"]
    if kind == "raw":
        raise Unfit("data movement can not be used with raw allocations")


def _check_container(store: Store, site: Site, parsed: list[tuple[str, dict[str, str]]], args: dict[str, str]) -> None:
    profile = site.containers.get(args["profile"])
    if profile is None:
        raise Unfit("no valid container profile found")
    for key, value in args.items():
        if not key.startswith("DW_"):
            continue
        if key not in profile:
            raise Unfit(f"storage '{key}' not found in container profile '{args['profile']}'")
        if key.startswith("DW_JOB_"):
            mine = next((one for command, one in parsed if command == "jobdw" and one["name"] == value), None)
            if mine is None:
                raise Unfit(f"job storage instance '{value}' not found")
            if mine["type"] == "xfs":
                raise Unfit("unsupported container filesystem: xfs")
    for key, optional in profile.items():
        if not optional and key not in args:
            raise Unfit(
                f"storage '{key}' in container profile '{args['profile']}' is not optional: storage not supplied"
            )


def allocation_sets(site: Site, kind: str, capacity: str) -> list[Object]:
    """`status.storage.allocationSets` of one directive of this type."""
    profile, labels = site.profile, [f"{DWS}/storage=Rabbit"]
    if kind != "lustre":
        least = math.ceil(capacity_bytes(capacity) * profile.scaling) + profile.padding_bytes
        return [
            {
                "allocationStrategy": "AllocatePerCompute",
                "constraints": {"labels": labels},
                "label": kind,
                "minimumCapacity": least,
            }
        ]
    alone: dict[str, Any] = {"colocation": [{"key": "lustre-mgt", "type": "exclusive"}], "count": 1, "labels": labels}

    def across(label: str, least: int, constraints: dict[str, Any]) -> Object:
        return {
            "allocationStrategy": "AllocateAcrossServers",
            "constraints": constraints,
            "label": label,
            "minimumCapacity": least,
        }

    mgt = {
        "allocationStrategy": "AllocateSingleServer",
        "constraints": {k: v for k, v in alone.items() if k != "count"},
        "label": "mgt",
        "minimumCapacity": profile.metadata_bytes,
    }
    if profile.metadata == "standalone":
        return [mgt]
    sets = [
        across(
            "ost", math.ceil(capacity_bytes(capacity) * profile.scaling), {"labels": labels, "scale": profile.ost_scale}
        )
    ]
    if profile.metadata == "combined":
        sets.append(across("mgtmdt", profile.metadata_bytes, alone))
    else:
        sets.append(across("mdt", profile.metadata_bytes, {"count": 1, "labels": labels}))
        if profile.metadata == "separate":
            sets.append(mgt)
    return sets


def locations(site: Site, kind: str, labels: list[str], servers: str) -> list[Object]:
    """`status.compute.constraints.location`: how computes must reach each set."""

    def reference(index: int) -> Object:
        return {
            "fieldPath": f"servers.spec.allocationSets[{index}]",
            "kind": "Servers",
            "name": servers,
            "namespace": "default",
        }

    physical, network = {"priority": "mandatory", "type": "physical"}, {"priority": "mandatory", "type": "network"}
    if kind == "lustre":
        near = [{"priority": "bestEffort", "type": "physical"}] if site.profile.colocate_computes else []
        return [
            {"access": [network, *(near if label == "ost" else [])], "reference": reference(i)}
            for i, label in enumerate(labels)
        ]
    return [
        {"access": [network, physical] if kind == "gfs2" else [physical], "reference": reference(i)}
        for i, _ in enumerate(labels)
    ]


def check_servers(store: Store, sets: list[Object], servers: Object) -> None:
    """What the workload manager wrote against what was asked for; raises Unfit."""
    no = Unfit("storage directive requirements were not satisfied", "WLM")
    written = {one["label"]: one for one in (servers.get("spec") or {}).get("allocationSets") or []}
    if len(written) != len((servers.get("spec") or {}).get("allocationSets") or []) or set(written) != {
        one["label"] for one in sets
    }:
        raise no
    storages = store.kinds[DWS, "storages"]
    for want in sets:
        have, strategy, least = written[want["label"]], want["allocationStrategy"], want["minimumCapacity"]
        names = [one["name"] for one in have["storage"]]
        counts = [one["allocationCount"] for one in have["storage"]]
        if (
            not names
            or len(set(names)) != len(names)
            or any(store.find(storages, "default", name) is None for name in names)
        ):
            raise no
        if strategy == "AllocateAcrossServers":
            if sum(counts) * have["allocationSize"] < least:
                raise no
            count = (want.get("constraints") or {}).get("count")
            if count and sum(counts) != count:
                raise no
        elif have["allocationSize"] < least:
            raise no
        if strategy == "AllocateSingleServer" and counts != [1]:
            raise no
        for label in (want.get("constraints") or {}).get("labels") or []:
            key, _, value = label.partition("=")
            if any(
                (store.get(storages, "default", name)["metadata"].get("labels") or {}).get(key) != value
                for name in names
            ):
                raise no
    keys: dict[tuple[str, str], str] = {}
    for want in sets:
        for rule in (want.get("constraints") or {}).get("colocation") or []:
            for one in written[want["label"]]["storage"]:
                if keys.setdefault((rule["key"], one["name"]), want["label"]) != want["label"]:
                    raise no
