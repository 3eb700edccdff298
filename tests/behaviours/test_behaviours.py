"""Every scenario that was measured on real Flux and needs only verbs that exist: the same, but for a table of differences.

A scenario is in exactly one place: `LATER` (with the issue that brings what it needs), `DELIBERATE` (with the reason, and with
every difference: a new one fails, and so does one that is gone), or it must be the same.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import replay

SCENARIOS = {scenario["id"]: scenario for scenario in replay.scenarios()}
#: scenarios that run at a time: each has an instance and helpers of its own
PARALLEL = 2
WATCHDOG_S = 300
DELIBERATE_SHARE_MAX = 0.05

#: group → what brings it
LATER_GROUPS = {
    "batch": "nested instances",
    "outer": "issues 4 and 6: instances, limits, restarts",
}
#: scenario → what brings what it needs
LATER: dict[str, str] = {
    "perilog.bad-config": "flux config load (messages of a bad configuration: tests/test_config.py)"
}
#: scenario → why it will never be the same, nor is it a difference of a feature that both have
LEFT_OUT = {
    "jobtap.perilog-test-count": "two prologs of one name: a hold is a name, used once (tests/manager/test_plugins.py, R11)",
    "jobtap.list": "it lists the names of Flux's built-in plugins; ours have names of their own (messages: tests/cli/test_job_verbs.py)",
    "jobtap.zz-remove-all": "built-in plugins of ours are what the job model is made of, and cannot be removed",
    "jobtap.alloc-bypass": "resources are what the scheduler gives: two sources of truth for what is allocated are a fault (R67)",
}
#: of a later group, and there already
NOW = {"start.inactive-purge"}

#: as DELIBERATE, where what was measured is a fault of Flux that breaks RFC 21 or tells its doors different things; not counted there
FAULTS: dict[str, tuple[str, list[str]]] = {
    "perilog.prolog-fail-epilog": (
        "RFC 21: no `clean` under an open epilog",
        [r"events of ID1\n.*prolog-finish free clean\n.*epilog-start prolog-finish epilog-finish free clean"],
    ),
    "perilog.cancel-prolog-ignores-term": (
        "Flux says `prolog-finish` with status 0 of a prolog that still runs; ours ends it, and drains the node as Flux does",
        [
            r"step 1 .*: stderr\n.*canceled then timed out",
            r"events of ID1\n.*exception exception.*\n.*ours: .*start exception p",
        ],
    ),
    "perilog.cancel-in-epilog": (
        "a finished job cannot become a canceled one",
        [
            r"step 1 .*: exit code\n.*1\n.*0",
            r"step 1 .*: stderr\n.*\[\]\n.*the job still waits for: job-manager.epilog",
            r"events of ID1\n.*release exception epilog-finish.*\n.*release epilog-finish",
        ],
    ),
    "perilog.cancel-in-epilog-coe": (
        "a finished job cannot become a canceled one, and an epilog is never canceled",
        [
            r"step 1 .*: exit code\n.*1\n.*0",
            r"step 1 .*: stderr\n.*\[\]\n.*the job still waits for: job-manager.epilog",
            r"events of ID1\n.*release exception epilog-finish.*\n.*release epilog-finish",
        ],
    ),
}

#: scenario → (reason, a pattern for each difference)
DELIBERATE: dict[str, tuple[str, list[str]]] = {
    "housekeeping.fail": (
        "a node whose housekeeping fails is drained; in Flux only its systemd unit does that",
        [r"step 2 .*: stdout\n.*flux: \n.*ours: 0 housekeeping failed for job <ID1>"],
    ),
    "run.env-task": (
        "no CUDA, OMPI and PMI variables yet; LEVERET_URI and LEVERET_UNIT are ours",
        [r"step 1 .*: stdout\n(.|\n)*CUDA_VISIBLE_DEVICES(.|\n)*ours: (?!(.|\n)*(CUDA|PMI|OMPI))(.|\n)*LEVERET_UNIT"],
    ),
    "run.verbosity-opt": (
        "there is no Flux shell that could say these lines; what ours has to say is said in the same words",
        [r"step 1 .*: stderr", r"step 2 .*: stderr"],
    ),
    "run.output-limit": (
        "output is cut at the limit, to the byte; Flux drops the whole piece that would exceed it",
        [r"step 1 .*: stdout\n.*\n.*ours: 0123456789$", r"output of ID1"],
    ),
    "run.umask-cwd": (
        "the umask is carried over",
        [r"step 1 .*: stdout\n.*flux: 0022\n(.|\n)*ours: 0027"],
    ),
    "submit.jobspec-duration": (
        "RFC 25: a negative duration and empty resources are refused, with the path of the key",
        [
            r"step 1 .*: exit code\n.*0\n.*1",
            r"step 1 .*: stdout",
            r"step 1 .*: stderr\n.*\[\]\n.*duration must not be negative",
            r"step 3 .*: exit code\n.*0\n.*1",
            r"step 3 .*: stdout",
            r"step 3 .*: stderr\n.*\[\]\n.*jobspec has no resources",
            r"job ID2\n.*exists\n.*does not",
            r"job ID3\n.*exists\n.*does not",
        ],
    ),
    "wait.basic": (
        "any job can be waited for; `no more waitable jobs` has a code of its own",
        [
            r"step 7 .*: exit code\n.*2\n.*0",
            r"step 7 .*: stderr\n.*not waitable.*\n.*\[\]",
            r"step 8 .*: exit code\n.*2\n.*3",
        ],
    ),
    "post-job-event": (
        "an event that would drive the job is refused",
        [
            r"step 4 `flux post-job-event \$id start`: exit code\n.*0\n.*1",
            r"step 4 .*: stderr\n.*\[\]\n.*`start` cannot be posted by hand",
            r"events of ID1\n.*other start bad name.*\n.*other bad name",
        ],
    ),
    "dep.string": (
        "the schemes `string` and `fluid` are there (RFC 26)",
        [r"step 1 .*: stderr\n.*not supported.*\n.*type must be in, out or inout"],
    ),
    "attach.stdin-ranks": (
        "attach shows a job that is over, whatever is on its own standard input",
        [r"step 1 .*: stdout\n(.|\n)*1: hi\n\s*1: hi", r"step 1 .*: stderr\n.*stdin not accepted by job.*\n.*\[\]"],
    ),
}


def mine() -> list[str]:
    return [
        name
        for name, one in SCENARIOS.items()
        if name in NOW or (name not in LATER and name not in LEFT_OUT and one["group"] not in LATER_GROUPS)
    ]


def run(name: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="leveret-replay-") as base:
        return replay.replay(SCENARIOS[name], Path(base)).differences


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[list[str]]]]:
    """The differences of each scenario that was selected; two run at a time."""
    names = [item.callspec.params["name"] for item in request.session.items if _is_ours(item)]
    with ThreadPoolExecutor(PARALLEL) as pool:
        yield {name: pool.submit(run, name) for name in names}
        pool.shutdown(cancel_futures=True)


def _is_ours(item: Any) -> bool:
    return getattr(item, "originalname", "") == "test_as_in_flux" and "name" in item.callspec.params


@pytest.mark.parametrize("name", mine())
def test_as_in_flux(name: str, reports: dict[str, Future[list[str]]]) -> None:
    differences = reports[name].result(timeout=WATCHDOG_S)
    expected = list((FAULTS | DELIBERATE).get(name, ("", []))[1])
    unexpected = []
    for difference in differences:
        hit = next((pattern for pattern in expected if re.match(pattern, difference)), None)
        if hit is None:
            unexpected.append(difference)
        else:
            expected.remove(hit)
    assert not unexpected, f"{name} differs from Flux:\n" + "\n".join(unexpected)
    assert not expected, f"{name}: these differences are gone, take them out of the table: {expected}"


def test_every_scenario_has_one_place() -> None:
    assert set(LATER) | set(LEFT_OUT) <= set(SCENARIOS)
    assert set(DELIBERATE) | set(FAULTS) <= set(mine()) and not set(DELIBERATE) & set(FAULTS)
    assert {one["group"] for one in SCENARIOS.values()} >= set(LATER_GROUPS)
    assert set(replay.HISTORY) | set(replay.TIMING) <= set(mine())
    assert len(mine()) > 150


def test_few_differences_are_deliberate() -> None:
    assert len(DELIBERATE) <= DELIBERATE_SHARE_MAX * len(mine())
    assert all(reason for reason, _ in DELIBERATE.values())


def test_the_comparison_sees_differences() -> None:
    same = replay.same_text
    assert same('{"a":1,"b":TS}', '{"a":1,"b":2.5,"c":3}')
    assert not same('{"a":1}', '{"a":2}')
    assert same('["a","b"]', '["a","b","c"]')
    assert not same('["a","b"]', '["a"]')
    assert not same("a\nb", "a\nb\nb")
    assert replay.cores("rank0/core[0-1]") == replay.cores("rank0/core[2-3]") != replay.cores("rank0/core0")
    assert replay.common("12.5s") == replay.common("3.001s") != replay.common("done")
