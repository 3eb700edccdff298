"""Standard Workload Format (version 2.2): the traces of the Parallel Workloads Archive. Pure; times are seconds.

A line is 18 numbers: job, submit, wait, run, processors, average CPU time, memory, requested processors, requested time, requested
memory, status, user, group, executable, queue, partition, preceding job, think time; −1 is unknown. Lines that begin with `;`
are comments, some of them a header `; Key: value`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from leveret.errors import FormatError

FIELDS = 18


class Job(NamedTuple):
    """A line, as far as a scheduler needs it. −1 is unknown."""

    id: int
    submit: float
    wait: float
    runs_s: float
    processors: int
    asks_processors: int
    asks_s: float
    status: int
    user: int
    queue: int

    @property
    def size(self) -> int:
        """Processors that it needs: those requested, else those that it had; 0 when neither is known."""
        return max(self.asks_processors if self.asks_processors > 0 else self.processors, 0)

    def line(self) -> str:
        """The job as a line of the format."""
        said = [self.id, _number(self.submit), _number(self.wait), _number(self.runs_s), self.processors, -1, -1]
        said += [self.asks_processors, _number(self.asks_s), -1, self.status, self.user, -1, -1, self.queue, -1, -1, -1]
        return " ".join(str(value) for value in said)


class Trace(NamedTuple):
    header: dict[str, str]
    jobs: list[Job]

    @property
    def processors(self) -> int:
        """MaxProcs of the header, else the largest job."""
        text = self.header.get("MaxProcs", "").split()
        if text and text[0].isdigit():
            return int(text[0])
        return max((job.size for job in self.jobs), default=0)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.2f}"


def read(lines: Iterable[str]) -> Trace:
    """A trace. Raises FormatError with the number of the line."""
    header: dict[str, str] = {}
    jobs: list[Job] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(";"):
            key, colon, value = text.lstrip("; ").partition(":")
            if colon and key and " " not in key.strip():
                header.setdefault(key.strip(), value.strip())
            continue
        if not text:
            continue
        words = text.split()
        if len(words) < FIELDS:
            raise FormatError(f"line {number}: {len(words)} fields, {FIELDS} are needed")
        try:
            values = [float(word) for word in words[:FIELDS]]
        except ValueError:
            raise FormatError(f"line {number}: a field is not a number") from None
        if not all(math.isfinite(value) for value in values):
            raise FormatError(f"line {number}: a field is not a finite number")
        jobs.append(
            Job(
                int(values[0]),
                values[1],
                values[2],
                values[3],
                int(values[4]),
                int(values[7]),
                values[8],
                int(values[10]),
                int(values[11]),
                int(values[14]),
            )
        )
    return Trace(header, jobs)


def write(trace: Trace) -> Iterable[str]:
    """The lines of a trace, without line ends."""
    for key, value in trace.header.items():
        yield f"; {key}: {value}"
    for job in trace.jobs:
        yield job.line()


def synthetic(count: int, processors: int, uniform: Callable[[], float], load: float = 0.9, users: int = 50) -> Trace:
    """A trace with the shape of public ones: `uniform` gives numbers in [0, 1), and the same ones give the same trace.

    Sizes are powers of two in three of four jobs, small ones most often; run times are log-normal (median 8 minutes, some
    of a day); people ask for round times, often far more than they need; arrivals follow the hours of the day. `load` is the
    part of the processors that the jobs would use if none had to wait.
    """

    def normal() -> float:
        return math.sqrt(-2 * math.log(1 - uniform())) * math.cos(2 * math.pi * uniform())

    limits = [300, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800]
    top = int(math.log2(processors))
    bodies = []
    for _ in range(count):
        exponent = min(top, int(abs(normal()) * top / 2.8))
        size = 2**exponent
        if uniform() < 0.25:
            size = max(1, min(processors, int(size * (0.5 + uniform()))))
        runs = min(86400.0 * 2, max(1.0, math.exp(math.log(480) + 1.7 * normal())))
        need = runs if uniform() < 0.15 else runs * (1 + 9 * uniform() ** 3)
        asks = next((limit for limit in limits if limit >= need), 172800)
        status = 1
        if uniform() < 0.05:  # ended by its limit
            runs, status = float(asks), 0
        bodies.append((size, round(min(runs, asks)), asks, status, 1 + int(users * uniform() ** 2)))
    work = sum(size * runs for size, runs, *_ in bodies)
    span = work / (processors * load)
    times: list[float] = []
    clock = 0.0
    for _ in bodies:
        hour = clock / 3600 % 24
        rate = 1 + 0.7 * math.sin((hour - 8) / 24 * 2 * math.pi)  # most at two in the afternoon
        clock += -math.log(1 - uniform()) * span / count / rate
        times.append(clock)
    stretch = span / clock if clock else 1.0
    jobs = [
        Job(number, round(at * stretch), -1, runs, size, size, asks, status, user, 1)
        for number, (at, (size, runs, asks, status, user)) in enumerate(zip(times, bodies, strict=True), 1)
    ]
    header = {
        "Version": "2.2",
        "Computer": "synthetic",
        "MaxJobs": str(count),
        "MaxProcs": str(processors),
        "Note": "made by leveret.sched.swf.synthetic; describes no real machine",
    }
    return Trace(header, jobs)
