"""`./dev sim`: the simulation of tests/manager/test_simulation.py over many seeds, in processes of its own.

A seed that fails is printed with its steps and kept in failing-seeds.txt beside this file; each later run begins with those.
At the end: what was met by what (state of a job × fault), and how often.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "manager"), str(HERE.parent / "core")]

from rig import simulate  # noqa: E402
from test_simulation import FAULTS, KEPT, one  # noqa: E402

KEPT_FILE = HERE / "failing-seeds.txt"
STATES = ("DEPEND", "PRIORITY", "SCHED", "RUN", "CLEANUP")
ALL_FAULTS = (*FAULTS.values(), "crash before the commit", "answers doubled", "plugin raises")
#: (state, fault) that cannot be, and why
IMPOSSIBLE = {
    ("PRIORITY", "*"): "the state is left in the turn that enters it: priorities are known at once here",
}
PAIRS_WANTED = 50
Outcome = tuple[Counter[tuple[str, str]], Counter[str], int, list[tuple[int, str]]]


def run(seeds: list[int]) -> Outcome:
    """(pairs, steps, jobs, [(failing seed, its story)]) of some seeds."""
    warnings.simplefilter("ignore")
    pairs: Counter[tuple[str, str]] = Counter()
    steps: Counter[str] = Counter()
    jobs, failed = 0, []
    base = Path(tempfile.mkdtemp(prefix="leveret-sim-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        for seed in seeds:
            path = base / str(seed)
            path.mkdir()
            told = io.StringIO()
            found = []

            async def body(seed: int = seed, path: Path = path, found: list = found) -> None:
                found.append(await one(seed, path))

            try:
                with contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
                    simulate(body)
            except BaseException:
                failed.append((seed, told.getvalue() + traceback.format_exc()))
            else:
                pairs.update(found[0].pairs)
                steps.update(found[0].seen)
                jobs += len(found[0].jobs)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return pairs, steps, jobs, failed


def kept() -> list[int]:
    """Seeds that failed once."""
    if not KEPT_FILE.exists():
        return list(KEPT)
    return [*KEPT, *(int(line.split()[0]) for line in KEPT_FILE.read_text().splitlines() if line[:1].isdigit())]


def impossible(state: str, fault: str) -> str:
    return IMPOSSIBLE.get((state, fault)) or IMPOSSIBLE.get((state, "*"), "")


def table(pairs: Counter[tuple[str, str]]) -> list[str]:
    lines = [f"{'fault':<26}" + "".join(f"{state:>10}" for state in STATES)]
    for fault in ALL_FAULTS:
        cells = [str(pairs[(state, fault)]) if not impossible(state, fault) else "-" for state in STATES]
        lines.append(f"{fault:<26}" + "".join(f"{cell:>10}" for cell in cells))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=10_000, metavar="SEED", help="the first (default 10000)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="K", help="processes (default: all cores)"
    )
    args = parser.parse_args()
    seeds = kept() + list(range(args.first, args.first + args.seeds))
    chunks = [seeds[at : at + 20] for at in range(0, len(seeds), 20)]
    pairs: Counter[tuple[str, str]] = Counter()
    steps: Counter[str] = Counter()
    jobs, failed, done = 0, [], 0
    began = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        for future in as_completed([pool.submit(run, chunk) for chunk in chunks]):
            more = future.result()
            pairs.update(more[0])
            steps.update(more[1])
            jobs += more[2]
            for seed, story in more[3]:
                failed.append(seed)
                print(f"\nseed {seed} fails:\n{story}", flush=True)
                with KEPT_FILE.open("a") as file:
                    file.write(f"{seed}\n")
            done += 1
            if sys.stderr.isatty():
                print(f"\r{done * 20}/{len(seeds)} seeds, {len(failed)} failed", end="", file=sys.stderr, flush=True)
    taken = time.monotonic() - began
    print(
        f"{len(seeds)} seeds in {taken:.0f} s: {jobs} jobs, {sum(steps.values())} steps, {steps['crash']} crashes of the"
    )
    print(f"daemon, {steps['lose']} helpers killed, {steps['disconnect']} nodes cut off; {len(failed)} seeds failed")
    print("\nfaults by the states of the jobs that they met:\n" + "\n".join(table(pairs)))
    for (state, fault), why in IMPOSSIBLE.items():
        print(f"  {state} × {'all' if fault == '*' else fault}: {why}")
    rare = [
        f"{state} × {fault}"
        for state in STATES
        for fault in ALL_FAULTS
        if not impossible(state, fault) and pairs[(state, fault)] < PAIRS_WANTED
    ]
    if rare:
        print(f"met less than {PAIRS_WANTED} times: {', '.join(rare)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
