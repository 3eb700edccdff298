"""Run the measurements: `./dev bench` for all of them, `./dev bench jobs startup` for some.

Rounds of Leveret and of its peer alternate, and medians are compared, so that a busy moment of the
machine hits both. `--json` prints one JSON object; the figures of record stand in bench/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import sched
from bench.restart import restart
from leveret.client import Client
from leveret.core import jobspec

LEVERET = str(Path(sys.executable).with_name("leveret"))


@contextlib.contextmanager
def instance(config: str = "", size: int = 1) -> Iterator[dict[str, str]]:
    """An instance with state of its own; yields the environment that addresses it."""
    # the socket, and with it the jobs' folders, is on a tmpfs, as $XDG_RUNTIME_DIR is; the state is on a disk
    runtime = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-") as base,
        tempfile.TemporaryDirectory(prefix="leveret-bench-", dir=runtime) as run,
    ):
        socket = f"{run}/sock"
        read, write = os.pipe()
        Path(f"{base}/leveret.toml").write_text(config)
        command = [sys.executable, "-m", "leveret.daemon", "--statedir", f"{base}/state", "--socket", socket]
        command += ["--size", str(size), "--config", f"{base}/leveret.toml", "--ready-fd", str(write)]
        daemon = subprocess.Popen(command, pass_fds=[write], stdin=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(read) as ready:
            answer = ready.readline().strip()
        if answer != "ok":
            raise SystemExit(f"the daemon did not start: {answer}")
        env = {**os.environ, "LEVERET_URI": f"local://{socket}"}
        try:
            yield env
        finally:
            subprocess.run([LEVERET, "shutdown"], env=env, stdout=subprocess.DEVNULL, timeout=60, check=False)
            daemon.wait(timeout=60)


def timed(command: list[str], env: dict[str, str] | None = None, text: str | None = None) -> float:
    """Wall seconds of a command that must succeed."""
    began = time.perf_counter()
    done = subprocess.run(
        command,
        env=env,
        input=text,
        text=True,
        stdout=subprocess.DEVNULL,
        stdin=None if text else subprocess.DEVNULL,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}")
    return time.perf_counter() - began


def submit_to_clean(client: Client, count: int) -> float:
    """Seconds from the submission of `count` jobs until all of them are clean."""
    spec = jobspec.build(["true"], cwd="/", environment=dict(os.environ))
    began = time.perf_counter()
    ids = [job for job in client.submit_copies(spec, [str(i) for i in range(count)]) if isinstance(job, int)]
    ended = list(client.wait_many(ids, brief=True))
    taken = time.perf_counter() - began
    if len(ended) != count or any(line["job"]["exit_code"] for line in ended):
        raise SystemExit(f"{len(ended)} of {count} jobs ended well")
    return taken


def jobs(rounds: int = 9, count: int = 1000, config: str = "", nodes: int = 1) -> dict[str, float]:
    """`true` as jobs, from submit to clean with durable eventlogs, beside `xargs -P2 -n1 true`."""
    numbers = "\n".join(map(str, range(1000)))
    ours: list[float] = []
    peers: list[float] = []
    with instance(config, nodes) as env, Client(env["LEVERET_URI"]) as client:
        submit_to_clean(client, 200)
        for _ in range(rounds):
            ours.append(count / submit_to_clean(client, count))
            peers.append(1000 / timed(["xargs", "-P2", "-n1", "true"], text=numbers))
    ours_s, peer_s = statistics.median(ours), statistics.median(peers)
    return {"jobs_per_s": ours_s, "xargs_per_s": peer_s, "ratio": ours_s / peer_s}


def jobs_on_four_nodes() -> dict[str, float]:
    """The same on an instance of four nodes (`leveret start -s4`): eight jobs at a time, so that commits are shared."""
    return jobs(nodes=4)


def simulated() -> dict[str, float]:
    """Jobs of the simulated engine (64 cores), from submit to clean, beside `xargs -P2 -n1 true`."""
    return jobs(rounds=5, count=4000, config='[exec]\nengine = "simulated"\n')


def startup(rounds: int = 25) -> dict[str, float]:
    """`leveret run true`, whole, beside `python3 -c pass` of the same interpreter."""
    ours: list[float] = []
    peers: list[float] = []
    with instance() as env:
        timed([LEVERET, "run", "true"], env)
        for _ in range(rounds):
            ours.append(timed([LEVERET, "run", "true"], env))
            peers.append(timed([sys.executable, "-c", "pass"]))
    ours_s, peer_s = statistics.median(ours), statistics.median(peers)
    return {"run_ms": ours_s * 1e3, "python_ms": peer_s * 1e3, "ratio": ours_s / peer_s}


def commits(seconds: float = 3.0) -> dict[str, float]:
    """Rows per second through the store while the loop is saturated, beside the same with an idle loop."""
    from leveret.manager.ports import Batch
    from leveret.store.sqlite import Store

    line = b'{"timestamp":1796074701.757131,"name":"prolog-start","context":{"description":"job-manager.prolog"}}'

    async def measure(busy: bool, path: Path) -> float:
        store = Store(path)
        store.start()
        written, job = 0, 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(200):
                job += 1
                batch = Batch()
                for n in range(1, 11):
                    batch.event(job, n, line)
                store.commit(batch)
                written += 10
            if busy:
                stop = time.perf_counter() + 0.002
                while time.perf_counter() < stop:
                    json.dumps({"a": [1, 2, 3]})
            await store.barrier()
        store.close()
        return written / seconds

    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as base:
        busy = asyncio.run(measure(True, Path(base) / "busy.db"))
        idle = asyncio.run(measure(False, Path(base) / "idle.db"))
    return {"busy_rows_per_s": busy, "idle_rows_per_s": idle, "ratio": busy / idle}


MEASUREMENTS: dict[str, Callable[[], dict[str, float]]] = {
    "jobs": jobs,
    "jobs4": jobs_on_four_nodes,
    "simulated": simulated,
    "startup": startup,
    "commits": commits,
    "restart": restart,
    **sched.MEASUREMENTS,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MEASUREMENTS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--swf", metavar="FILE", help="the trace that `swf` replays (default: a synthetic one)")
    args = parser.parse_args()
    if args.swf:
        MEASUREMENTS["swf"] = lambda: sched.replay(args.swf)
    if unknown := [name for name in args.names if name not in MEASUREMENTS]:
        parser.error(f"no measurement {unknown[0]!r}; there are: {', '.join(MEASUREMENTS)}")
    results = {}
    for name in args.names or MEASUREMENTS:
        if not args.json:
            print(f"{name}: {(MEASUREMENTS[name].__doc__ or '').strip()}", flush=True)
        results[name] = MEASUREMENTS[name]()
        if not args.json:
            for key, value in results[name].items():
                print(f"  {key:18} {value:10.3f}", flush=True)
    if args.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
