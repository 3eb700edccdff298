"""The Workflow webhook of DWS: what is filled in on creation, and what is refused."""

from __future__ import annotations

from typing import Any

from .kinds import DWS, STATES, Kind
from .patch import copy
from .ruleset import Rejected, judge
from .store import Object, Refused, Store


def denied(text: str) -> Refused:
    return Refused(403, "Forbidden", f'admission webhook "vworkflow.kb.io" denied the request: {text}')


class WorkflowWebhook:
    def __init__(self, store: Store, rules_namespace: str = "dws-system") -> None:
        self.store, self.namespace = store, rules_namespace

    def __call__(self, kind: Kind, new: Object, old: Object | None) -> None:
        if kind.key != (DWS, "workflows"):
            return
        if old is None:
            self._create(new)
        else:
            self._update(new, old)

    def _rules(self) -> list[dict[str, Any]]:
        kind = self.store.kinds[DWS, "dwdirectiverules"]
        sets = self.store.all(kind, self.namespace)
        if not sets:
            raise denied(f"unable to find ruleset in namespace: {self.namespace}")
        return [
            {"driverID": rule.get("driverLabel") or one["metadata"]["name"], **rule}
            for one in sets
            for rule in one["spec"]
        ]

    def _create(self, new: Object) -> None:
        spec = new["spec"]
        if spec["desiredState"] != "Proposal":
            raise denied(
                f'Spec.DesiredState: Invalid value: "{spec["desiredState"]}": desired state must start in Proposal'
            )
        if spec.get("hurry"):
            raise denied("Spec.Hurry: Forbidden: the hurry flag may not be set on creation")
        if (new.get("status") or {}).get("state"):
            raise denied("Status.State: Forbidden: the status state may not be set on creation")
        try:
            matched = judge(self._rules(), spec["dwDirectives"])
        except Rejected as rejected:
            raise denied(str(rejected)) from None
        drivers = [
            {
                "driverID": rule["driverID"],
                "taskID": "",
                "dwdIndex": index,
                "watchState": state,
                "lastHB": 0,
                "completed": False,
                "status": "Pending",
            }
            for index, rule in matched
            for state in (rule.get("watchStates") or "").split(",")
            if state
        ]
        metadata = new["metadata"]
        env = {"DW_WORKFLOW_NAME": metadata["name"], "DW_WORKFLOW_NAMESPACE": metadata.get("namespace", "default")}
        new["status"] = {"ready": False, "env": env} | ({"drivers": drivers} if drivers else {})

    def _update(self, new: Object, old: Object) -> None:
        spec, before = new["spec"], old["spec"]
        for key, name in (
            ("wlmID", "WLMID"),
            ("jobID", "JobID"),
            ("userID", "UserID"),
            ("groupID", "GroupID"),
            ("dwDirectives", "DWDirectives"),
        ):
            if spec.get(key) != before.get(key):
                raise denied(f"Spec.{name}: Forbidden: field is immutable")
        want, have = spec["desiredState"], before["desiredState"]
        if spec.get("hurry") and want != "Teardown":
            raise denied("Spec.Hurry: Invalid value: true: the hurry flag may be set only in Teardown")
        status = old.get("status") or {}
        if want != have:
            step = STATES.index(want) - STATES.index(have)
            if step < 0:
                raise denied(f'Spec.DesiredState: Invalid value: "{want}": DesiredState cannot progress backwards')
            if want != "Teardown":
                if step > 1:
                    raise denied(f'Spec.DesiredState: Invalid value: "{want}": states cannot be skipped')
                if not status.get("ready") or status.get("state") != have:
                    raise denied(
                        f'Status.State: Invalid value: "{status.get("state", "")}": current desired state not yet achieved'
                    )
        self._status(new.get("status") or {}, status)

    def _status(self, new: Object, old: Object) -> None:
        if new.get("state") == old.get("state") and old.get("ready") and not new.get("ready"):
            raise denied("Status.Ready: Invalid value: false: ready never falls back within a state")
        done = {
            (one["dwdIndex"], one["watchState"], one["driverID"])
            for one in old.get("drivers") or []
            if one["completed"]
        }
        for one in copy(new.get("drivers") or []):
            if not one["completed"] and (one["dwdIndex"], one["watchState"], one["driverID"]) in done:
                raise denied("Status.Drivers: Forbidden: driver cannot change from completed to incomplete")
