"""What the API and the verbs say of a cluster: through the routes, and asked directly with `-k`."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from driving import cluster, on_standin
from standin import Standin

from leveret import schemas
from leveret.api.rabbit_routes import RabbitRoutes
from leveret.cli import main as cli_main

GIB = 2**30
XFS = "#DW jobdw type=xfs capacity=1GiB name=p1"


def valid(name: str, value: Any) -> None:
    """It is what the published schema says (R80)."""
    jsonschema.validate(value, schemas.schema(name) or {}, jsonschema.Draft202012Validator)


class Routes(RabbitRoutes):
    """The routes without a socket."""

    def __init__(self, storage: Any) -> None:
        self.manager: Any = SimpleNamespace(storage=storage)

    def answer(self, value: Any) -> Any:
        return json.loads(json.dumps(value))


@on_standin
def test_the_routes() -> None:
    async def check() -> None:
        async with cluster() as there, there.adapter() as one, there.adapter(instance="other") as other:
            routes, request = Routes(one.dws), SimpleNamespace()
            await one.live(1, [XFS], ["compute-0"], "PreRun")
            await other.live(2, [XFS], ["compute-1"], "Setup")
            need = GIB + (300 << 20)
            await one.until(lambda: one.dws.rabbits()[0].allocated_bytes == 2 * need)
            found: Any = await routes.rabbits(request)  # type: ignore[arg-type]
            assert (found["adapter"], found["synced"], found["trouble"]) == ("dws", True, "")
            (rabbit,) = found["rabbits"]
            assert (rabbit["name"], rabbit["allocated_bytes"], rabbit["external_bytes"]) == ("rabbit-0", 2 * need, need)
            (workflow,) = (await routes.workflows(request))["workflows"]  # type: ignore[arg-type,index]
            assert (workflow["jobid"], workflow["state"], workflow["allocated"]) == (1, "PreRun", {"rabbit-0": need})
            assert "token" not in workflow and "env" not in workflow
            valid("rabbit list", found)
            valid("rabbit status", {"workflows": [workflow]})
            assert (await routes.persistent_storage(request)) == {"persistent": []}  # type: ignore[arg-type,comparison-overlap]

    asyncio.run(check())


@on_standin
def test_a_mapping_asked_of_the_cluster(capfd: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    with Standin.thread({"rabbit-0": ("n0", "n1"), "rabbit-1": ("n2",)}, capacity_bytes=10**12) as standin:
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        assert cli_main.run_cli(["rabbit", "mapping", "-k", str(path)]) == 0
        table = json.loads(capfd.readouterr().out)
        assert table["computes"] == {"n0": "rabbit-0", "n1": "rabbit-0", "n2": "rabbit-1"}
        assert table["rabbits"]["rabbit-1"] == {"hostlist": "n2", "capacity": 10**12}
        standin.call(standin.stop)
        assert cli_main.run_cli(["rabbit", "mapping", "-k", str(path)]) != 0
        assert "the cluster cannot be read" in capfd.readouterr().err
        standin.call(standin.start)
    assert cli_main.run_cli(["rabbit", "mapping", "-k", str(tmp_path / "nowhere")]) == 1
    assert "kubeconfig" in capfd.readouterr().err
