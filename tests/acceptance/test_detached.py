"""Clients that were attached when the daemon died: 500 readers in one process, by the async client."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

from harness import WATCHDOG_S, Instance, lines_between

from leveret.aclient import AsyncClient, decode_data

READERS = 500
SEED = int(os.environ.get("LEVERET_TEST_SEED", "20240611"))


async def attached(uri: str, jobid: int) -> tuple[bytes, int]:
    """What a reader that follows a job sees of it: its output, and its exit code."""
    out: list[bytes] = []
    client = AsyncClient(uri)
    async for line in client.events(jobid, ["output"], follow=True):
        if line.get("end"):
            return b"".join(out), int(line["job"]["exit_code"])
        event = line.get("event")
        if event and event["name"] == "data" and event["context"].get("stream") == "stdout":
            out.append(decode_data(event["context"]))
    raise AssertionError("the stream has no end")


def test_500_attached_readers_see_every_byte_once(launch: Callable[..., Instance]) -> None:
    """Ten jobs, fifty readers each; the daemon is killed and started again while they print, and once as they end."""
    print(f"LEVERET_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    instance = launch(size=8)
    gates = [instance.base / f"gate{number}" for number in range(3)]

    def stage(gate: int, first: int) -> str:
        count = f"i={first}; while [ $i -lt {first + 100} ]; do echo line $i; i=$((i+1)); done; "
        return f"{count} while ! [ -e {gates[gate]} ]; do sleep 0.02; done; "

    script = stage(0, 1) + stage(1, 101) + stage(2, 201) + "exit $FLUX_JOB_CC"
    ids = instance.leveret("submit", "--cc=0-9", "sh", "-c", script, check=0).out.split()
    numbers = [instance.record(jobid)["id"] for jobid in ids]

    async def body() -> list[tuple[bytes, int]]:
        readers = [asyncio.create_task(attached(instance.uri, numbers[n % 10])) for n in range(READERS)]
        for gate in gates:
            await asyncio.sleep(rng.random())  # a random moment, not a measure
            instance.kill_daemon()
            if rng.random() < 0.5:
                gate.touch()  # what is printed meanwhile is heard of later
                await asyncio.sleep(rng.random() / 4)
            await asyncio.to_thread(instance.restart)
            gate.touch()
        return await asyncio.wait_for(asyncio.gather(*readers), WATCHDOG_S)

    seen = asyncio.run(body())
    assert len(seen) == READERS
    for n, (out, code) in enumerate(seen):
        assert (out, code) == (lines_between(1, 300).encode(), n % 10), f"reader {n}"
