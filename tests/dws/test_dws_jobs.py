"""Jobs of a real instance (daemon, helpers, processes) whose storage is that of the stand-in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driving import on_standin
from harness import Instance, in_order, words
from standin import Standin

pytestmark = on_standin
XFS = "#DW jobdw type=xfs capacity=1GiB name=p1"
NODES = '[resource]\nnoverify = true\n[[resource.config]]\nhosts = "compute-[0-1]"\ncores = "0"\n'


def on_cluster(base: Path, story: Callable[[Instance], None], more: str = "") -> None:
    """The story, told of an instance on a cluster of its own."""

    def tell(kubeconfig: str) -> None:
        instance = Instance(
            base / "i", 2, f'[rabbit]\nadapter = "dws"\nkubeconfig = "{kubeconfig}"\n{more}{NODES}'
        ).start()
        try:
            story(instance)
        finally:
            instance.stop()

    async def run() -> None:
        async with Standin() as standin:
            await asyncio.to_thread(tell, str(standin.kubeconfig(base / "kubeconfig")))

    asyncio.run(run())


def nothing_left(instance: Instance) -> bool:
    return json.loads(instance.leveret("rabbit", "status", "--json", check=0).out) == {"workflows": []}


def tail(instance: Instance, jobid: str) -> list[str]:
    names = instance.names(jobid)
    return names[names.index("finish") :]


def test_a_job_from_submit_to_clean(tmp_path: Path) -> None:
    def story(instance: Instance) -> None:
        jobid = instance.submit("-N2", "-n2", "-S", f"dw={XFS}", "sh", "-c", "echo $DW_JOB_p1")
        assert instance.wait(jobid)["result"] == "COMPLETED"
        names = instance.names(jobid)
        in_order(names, *words("dependency-add dependency-remove alloc prolog-start dws_environment"))
        in_order(names, *words("dws_environment prolog-finish start finish"))
        assert tail(instance, jobid) == words("finish epilog-start release epilog-finish free clean")
        assert instance.contexts(jobid, "epilog-finish") == [{"description": "dws-epilog", "status": 0}]
        assert instance.attach(jobid).out.startswith("/mnt/nnf/")
        assert instance.record(jobid)["annotations"]["user"]["rabbits"] == "rabbit-0"
        assert nothing_left(instance)
        refused = instance.leveret("submit", "-S", "dw=#DW jobdw type=xfs capacity=1GiB", "true")
        assert refused.code != 0 and "missing required argument" in refused.err

    on_cluster(tmp_path, story)


def test_early_free(tmp_path: Path) -> None:
    def story(instance: Instance) -> None:
        jobid = instance.submit("-S", f"dw={XFS}", "true")
        assert instance.wait(jobid)["result"] == "COMPLETED"
        wanted = "finish epilog-start part-start part-start release epilog-finish free part-finish part-finish clean"
        assert tail(instance, jobid) == words(wanted)
        assert nothing_left(instance)

    on_cluster(tmp_path, story, "early-free = true\n")


@pytest.fixture(params=["dependency-add", "prolog-start", "start", "epilog-start"])
def moment(request: pytest.FixtureRequest) -> Iterator[str]:
    yield str(request.param)


def test_killed_on_the_way(tmp_path: Path, moment: str) -> None:
    def story(instance: Instance) -> None:
        script = f"echo ran >> {tmp_path}/ran; sleep 0.3"
        jobid = instance.submit("-S", f"dw={XFS}", "sh", "-c", script)
        instance.wait_event(jobid, moment)
        instance.crash()
        assert instance.wait(jobid)["result"] == "COMPLETED"
        assert (tmp_path / "ran").read_text() == "ran\n"
        names = instance.names(jobid)
        for name in words("dependency-add prolog-start dws_environment epilog-start clean"):
            assert names.count(name) == 1, name
        assert nothing_left(instance)

    on_cluster(tmp_path, story)
