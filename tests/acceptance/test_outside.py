"""Subsystems outside Leveret, and nobody stuck behind them: leases, progress, give-up, `job holds`, the examples of the docs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Instance, execute, in_order, load_hold, until

from leveret.aclient import AsyncClient
from leveret.errors import EventError

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "plugins.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def held(instance: Instance) -> str:
    """A job that waits in its queue."""
    return instance.submit("--urgency=0", "true")


# ---- the examples of the guide --------------------------------------------------------------------------


def test_the_curl_example(instance: Instance) -> None:
    jobid = held(instance)
    (example,) = [text for text in blocks("console") if "curl" in text]
    lines = [line.removeprefix("$ ") for line in example.splitlines()]
    assert len(lines) == 5
    for count in range(2, 6):
        number = str(instance.record(jobid)["id"])
        done = execute(["sh", "-ec", "\n".join([lines[0], lines[count - 1]])], {**instance.env, "ID": number}, check=0)
        if count < 5:
            (hold,) = instance.record(jobid)["holds"]
            assert (hold["name"], hold["lease_s"], hold["owner"]) == ("to-tape", 60, "user")
        if count == 3:
            assert hold["progress"] == {"done": 1, "total": 3, "unit": "files"}
        if count == 4:
            assert json.loads(done.out) == {"lease_s": 60}
    assert instance.record(jobid)["holds"] == []
    assert instance.contexts(jobid, "part-finish") == [{"description": "to-tape", "status": 0}]


def test_the_python_example(instance: Instance, tmp_path: Path) -> None:
    jobid = held(instance)
    (example,) = [text for text in blocks("python") if "client.hold" in text]
    (tmp_path / "example.py").write_text(example)
    done = execute([sys.executable, str(tmp_path / "example.py"), jobid, "a", "b"], instance.env, cwd=tmp_path, check=0)
    assert done.out == "archiving a\narchiving b\n"
    assert instance.names(jobid)[-2:] == ["part-start", "part-finish"]
    assert instance.contexts(jobid, "part-start")[0]["lease"] == 60


# ---- the context manager --------------------------------------------------------------------------------


def test_an_exception_in_the_block_fails_the_part_with_its_text(instance: Instance) -> None:
    jobid = held(instance)
    with pytest.raises(OSError, match="quota"), instance.client.hold(jobid, "push", lease="60s"):
        raise OSError("quota reached")
    record = instance.wait(jobid)
    assert record["result"] == "FAILED" and record["cause"]["note"] == "OSError: quota reached"


def test_the_lease_is_renewed_while_the_block_runs_and_expires_when_its_process_dies(
    instance: Instance, tmp_path: Path
) -> None:
    jobid = held(instance)
    code = (
        "import sys, time\nfrom leveret.client import Client\n"
        "with Client() as c, c.hold(sys.argv[1], 'tape', lease=1):\n    print('open', flush=True)\n    time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, jobid], env=instance.env, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"open\n"
        renewed: set[float] = set()

        def renewals() -> bool:
            (hold,) = instance.record(jobid)["holds"]
            renewed.add(hold["lease_until"])
            return len(renewed) > 6  # more than two periods of it

        until(renewals, "the lease is renewed again and again")
        process.kill()
        assert instance.wait(jobid)["result"] == "FAILED"
    finally:
        process.kill()
        process.wait()
    (finish,) = instance.contexts(jobid, "part-finish")
    assert finish["note"] == "tape: the lease of 1s has expired"


def test_a_hold_that_somebody_else_has_ended_is_known_to_be_lost(instance: Instance) -> None:
    jobid = held(instance)
    with pytest.raises(EventError), instance.client.hold(jobid, "tape", lease=1.5, owner="site") as hold:
        instance.leveret("job", "give-up", "--part=tape", jobid, check=0)
        until(lambda: hold.lost, "the holder hears of it")
    assert instance.record(jobid)["state"] == "SCHED"


def test_the_same_for_asyncio(instance: Instance) -> None:
    jobid = held(instance)

    async def body() -> None:
        client = AsyncClient(instance.uri, start=False)
        async with client.hold(jobid, "tape", lease="60s", blocks=["free"]) as hold:
            await hold.progress(2, 4, "files")
            (there,) = await client.holds(jobid)
            assert (there["progress"]["done"], there["blocks"]) == (2, ["free", "clean"])
        assert await client.holds(jobid) == []
        with pytest.raises(KeyError):
            async with client.hold(jobid, "other", lease="60s", owner="site"):
                raise KeyError("x")

    asyncio.run(body())
    assert instance.contexts(jobid, "part-finish")[1]["note"] == "KeyError: 'x'"
    (exception,) = instance.contexts(jobid, "exception")
    assert exception["severity"] > 0


def test_after_a_killed_daemon_every_lease_has_a_full_period_again(instance: Instance) -> None:
    jobid = held(instance)
    instance.client.open_hold(jobid, "tape", lease="10m", deadline="20m")
    (before,) = instance.client.holds(jobid)
    instance.crash()
    (after,) = instance.client.holds(jobid)
    assert after["lease_s"] == 600 and after["lease_until"] > before["lease_until"]
    assert after["deadline"] == before["deadline"], "a deadline is absolute"
    instance.client.finish_hold(jobid, "tape")


@pytest.mark.parametrize(
    ("more", "message"),
    [({"lease_s": 0}, "a lease is"), ({"lease_s": 1e9}, "a lease is"), ({"deadline_s": -1}, "a deadline is")],
)
def test_a_lease_must_be_one(instance: Instance, more: dict[str, float], message: str) -> None:
    jobid = held(instance)
    body = {"kind": "part", "name": "x", **more}
    status, answer = instance.http("POST", f"/v1/jobs/{instance.record(jobid)['id']}/holds", body)
    assert status == 400 and message in answer["message"]
    assert instance.record(jobid)["holds"] == []


# ---- never stuck ----------------------------------------------------------------------------------------


def test_r35_an_epilog_that_never_ends_is_named_and_given_up_and_the_log_says_by_whom(
    launch: Callable[..., Instance], ledger: object
) -> None:
    from harness import Ledger

    assert isinstance(ledger, Ledger)
    instance = launch(config=ledger.perilog("epilog", "hang"))
    jobid = instance.submit("true")
    until(lambda: "epilog" in ledger.phases(jobid), "the epilog runs")
    listed = instance.leveret("job", "holds", check=0).out.splitlines()
    assert listed[0].split() == ["JOBID", "KIND", "NAME", "OWNER", "HOLDER", "AGE", "DEADLINE", "PROGRESS"]
    assert listed[1].split()[:5] == [jobid, "epilog", "job-manager.epilog", "site", "perilog"]
    (hold,) = json.loads(instance.leveret("job", "holds", "--json", jobid, check=0).out)["holds"]
    assert (hold["name"], hold["deadline"], hold["loaded"]) == ("job-manager.epilog", None, True)
    given = instance.leveret("job", "give-up", "--part=job-manager.epilog", "--reason=hung mount", jobid, check=0)
    assert "gave up on epilog job-manager.epilog" in given.err and "left behind" in given.err
    assert instance.wait(jobid)["result"] == "COMPLETED"
    (event,) = instance.contexts(jobid, "give-up")
    assert (event["userid"], event["reason"], event["kind"]) == (os.getuid(), "hung mount", "epilog")
    (exception,) = instance.contexts(jobid, "exception")
    assert exception["userid"] == os.getuid() and exception["severity"] > 0
    in_order(instance.names(jobid), "give-up", "exception", "epilog-finish", "free", "clean")
    other = instance.leveret("job", "give-up", "--part=job-manager.epilog", jobid)
    assert other.code == 1 and "inactive" in other.err


def test_give_up_and_holds_tell_what_is_wrong(instance: Instance) -> None:
    jobid = held(instance)
    for arguments, code, message in (
        (["give-up", jobid], 2, "--part"),
        (["give-up", "--part=x", jobid], 1, "no hold `x` is open"),
        (["give-up", "--part=x", "1234"], 1, "job 1234 not found"),
        (["holds", "1234"], 1, "job 1234 not found"),
        (["holds", "x!"], 1, "error parsing jobid"),
    ):
        done = instance.leveret("job", *arguments)
        assert (done.code, message in done.err) == (code, True), done.err
    assert instance.leveret("job", "holds", check=0).out == ""
    for kind in ("part", "epilog"):
        instance.client.open_hold(jobid, "same", kind=kind)
    done = instance.leveret("job", "give-up", "--part=same", jobid)
    assert done.code == 1 and "several open holds" in done.err
    instance.leveret("job", "give-up", "--part=epilog/same", jobid, check=0)
    assert instance.holds(jobid) == ["part/same"]


def test_post_job_event_of_a_finish_is_a_give_up(instance: Instance) -> None:
    load_hold(instance, cleanup=[("epilog", "never", {})])
    jobid = instance.submit("true")
    instance.wait_event(jobid, "epilog-start")
    refused = instance.leveret("post-job-event", jobid, "epilog-finish", "description=other", "status=0")
    assert refused.code == 1 and "no hold `other` is open" in refused.err
    refused = instance.leveret("post-job-event", jobid, "free")
    assert refused.code == 1 and "would drive the job" in refused.err
    instance.leveret("post-job-event", jobid, "epilog-finish", "description=never", "status=0", check=0)
    assert instance.wait(jobid)["result"] == "COMPLETED"
    (event,) = instance.contexts(jobid, "give-up")
    assert event["userid"] == os.getuid()


def test_jobs_shows_phase_holder_progress_and_age(instance: Instance) -> None:
    jobid = instance.submit("--urgency=0", "true")
    instance.client.open_hold(jobid, "to-tape", lease="60s")
    instance.client.urgency(jobid, 16)
    instance.wait_event(jobid, "free")
    instance.client.progress(jobid, "to-tape", 1, 4)
    form = "{phase} {holder} {progress} {waiting_for} {hold_age!F}"
    shown = instance.leveret("jobs", "-no", form, jobid, check=0).out.split()
    assert shown[:4] == ["to-tape", "outside", "25%", "to-tape"]
    assert shown[4] not in ("", "0s", "-")
    assert "finishing:to-tape 25%" in instance.leveret("jobs", jobid, check=0).out
    assert "to-tape" in instance.leveret("jobs", "-o", "held", jobid, check=0).out
    instance.client.finish_hold(jobid, "to-tape")


def test_a_thousand_jobs_with_a_held_epilog_each(instance: Instance) -> None:
    load_hold(instance, cleanup=[("epilog", "to-tape", {})])
    instance.leveret("submit", "--urgency=0", "--quiet", "--cc=1-1000", "true", check=0)
    instance.leveret("cancel", "--all", check=0)
    assert len(instance.client.holds()) == 1000
    shown = instance.leveret("jobs", "-n", "--filter=cleanup", "--count=0", "-o", "{status} {waiting_for}", check=0)
    assert shown.out.splitlines() == ["CLEANUP to-tape"] * 1000
    assert len(instance.leveret("job", "holds", check=0).out.splitlines()) == 1001
    refused = instance.leveret("jobtap", "remove", "hold")
    assert refused.code == 1 and "and 980 more" in refused.err
    instance.leveret("jobtap", "remove", "--force", "hold", check=0)
    assert instance.client.holds() == []
    until(lambda: not instance.client.jobs(states=["active"], count=0), "all are clean")
    assert len(instance.client.jobs(states=["inactive"], count=0)) == 1000


def test_r15_force_ends_holds_as_failed_and_the_queue_is_idle(instance: Instance) -> None:
    load_hold(instance, cleanup=[("part", "undo", {"owner": "user"})])
    jobid = instance.submit("true")
    instance.wait_event(jobid, "part-start")
    refused = instance.leveret("jobtap", "remove", "hold")
    assert refused.code == 1 and jobid in refused.err and "--force" in refused.err
    instance.leveret("jobtap", "remove", "--force", "hold", check=0)
    record = instance.wait(jobid)
    assert record["result"] == "FAILED" and "plugin hold was removed" in record["cause"]["note"]
    assert instance.contexts(jobid, "give-up")[0]["userid"] == os.getuid()
    assert instance.leveret("jobtap", "list", check=0).out == ""


def test_r41_a_configured_plugin_that_loads_slowly_sees_every_job_first(
    launch: Callable[..., Instance], tmp_path: Path
) -> None:
    gate, seen = tmp_path / "gate", tmp_path / "seen"
    gate.touch()
    (tmp_path / "slow.py").write_text(
        "import os\nimport time\n\nfrom leveret.plugins.hooks import EpilogHold, Plugin\n\n"
        f"while not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)\n\n\nclass Slow(Plugin):\n"
        "    def new(self, job):\n"
        f"        with open({str(seen)!r}, 'a') as file:\n            file.write(f'{{job.id}} {{job.n}}\\n')\n\n"
        "    def state_cleanup(self, job):\n        return EpilogHold('slow', work=self.nothing())\n\n"
        "    async def nothing(self):\n        return 0\n"
    )
    instance = launch(config=f'[[job-manager.plugins]]\nload = "{tmp_path}/slow.py"\n')
    jobid = instance.submit("--urgency=0", "true")
    number, n = instance.record(jobid)["id"], len(instance.names(jobid))
    instance.kill_daemon()
    gate.unlink()
    seen.unlink()
    asyncio.run(asyncio.wait_for(_restart_with_gate(instance, gate), 60))
    assert seen.read_text() == f"{number} {n}\n", "shown before any event of this start"
    assert instance.names(jobid)[n:] == ["flux-restart", "priority"]
    instance.client.cancel(jobid)
    instance.wait(jobid)
    assert instance.names(jobid).count("epilog-finish") == 1


async def _restart_with_gate(instance: Instance, gate: Path) -> None:
    starting = asyncio.create_task(asyncio.to_thread(instance.restart))
    await asyncio.sleep(1)
    assert not starting.done(), "the daemon serves before its plugin is loaded"
    gate.touch()
    await starting
