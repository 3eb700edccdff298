"""Standard Workload Format: reading, writing, and traces made up for tests and measurements."""

from __future__ import annotations

import random

import pytest

from leveret.errors import FormatError
from leveret.sched import swf

TEXT = """\
; Version: 2.2
; Computer: iPSC/860
; MaxProcs: 128
;  a remark: not a header
  1   0  4  1451 128 -1 -1  -1 -1 -1 1 1 1 1 -1 -1 -1 -1

  2 1460 0 3726 128 -1 -1 64 3600.5 -1 0 2 1 2 3 -1 -1 -1
"""


def test_read() -> None:
    trace = swf.read(TEXT.splitlines())
    assert trace.header == {"Version": "2.2", "Computer": "iPSC/860", "MaxProcs": "128"}
    assert trace.processors == 128
    first, second = trace.jobs
    assert first == swf.Job(1, 0, 4, 1451, 128, -1, -1, 1, 1, -1)
    assert (first.size, second.size) == (128, 64), "what was asked for, else what it had"
    assert (second.asks_s, second.status, second.queue) == (3600.5, 0, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3", "line 2: 3 fields, 18 are needed"),
        ("1 2 x " + "-1 " * 15, "line 2: a field is not a number"),
        ("1 2 nan " + "-1 " * 15, "line 2: a field is not a finite number"),
    ],
)
def test_what_is_no_trace(line: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        swf.read(["; x", line])


def test_synthetic_traces_are_reproducible_readable_and_shaped() -> None:
    trace = swf.synthetic(2000, 128, random.Random(7).random)
    assert trace == swf.synthetic(2000, 128, random.Random(7).random)
    again = swf.read(swf.write(trace))
    assert again.jobs == trace.jobs and again.header == trace.header
    sizes = [job.size for job in trace.jobs]
    assert min(sizes) >= 1 and max(sizes) <= 128
    powers = sum(size & (size - 1) == 0 for size in sizes)
    assert 0.7 < powers / len(sizes) < 0.95
    assert all(job.runs_s <= job.asks_s for job in trace.jobs)
    assert all(a.submit <= b.submit for a, b in zip(trace.jobs, trace.jobs[1:], strict=False))
    assert len({job.asks_s for job in trace.jobs}) <= 10, "people ask for round times"
    work = sum(job.size * job.runs_s for job in trace.jobs)
    assert 0.6 < work / (128 * trace.jobs[-1].submit) < 1.3
