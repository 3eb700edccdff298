"""Data movement of the local storage adapter: which copies a directive means, and one copier process for each.

Paths go into an argument vector and never through a shell. Where things land are NNF's rules:

- copy_in to storage that each compute has its own of is made once per compute
- copy_out of such storage lands in `<rabbit>-<i>/` of the destination, one for each compute
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from leveret.core.directives import Directive, variable
from leveret.storage.local_state import Place, began
from leveret.storage.port import Movement

#: {src}, {dst} and {python} are filled in
COPIER = ("{python}", "-m", "leveret.exec.copier", "{src}", "{dst}")
KILL_S = 5.0
TAIL_BYTES = 4096


class Copy(msgspec.Struct, frozen=True):
    """One process to run."""

    name: str
    directive: int
    source: str
    destination: str
    index: str = ""  #: the directory of this compute at the destination


def copies(
    flow_name: str, number: int, directive: Directive, places: Callable[[bool, str], Sequence[tuple[Place, str]]]
) -> list[Copy]:
    """What a copy directive means. `places(persistent, name)`: the (allocation, directory) pairs of some storage."""
    source, destination = directive.get("source"), directive.get("destination")
    from_var, to_var = variable(source), variable(destination)
    name = f"{flow_name}-{number}"
    if from_var is None and to_var is None:
        return [Copy(name, number, source, destination)]
    sources = places(from_var.persistent, from_var.name) if from_var else ()
    targets = places(to_var.persistent, to_var.name) if to_var else ()
    found = []
    pairs = max(len(sources), len(targets))
    for at in range(pairs):
        src, dst, index = source, destination, ""
        if from_var:
            place, directory = sources[min(at, len(sources) - 1)]
            src = directory + from_var.rest
            # the directory of an allocation is called after it already
            index = place.index if not to_var and from_var.rest else ""
        if to_var:
            dst = targets[min(at, len(targets) - 1)][1] + to_var.rest
        found.append(Copy(name if pairs == 1 else f"{name}-{at}", number, src, dst, index))
    return found


def landing(copy: Copy) -> str:
    """The destination with the compute's own directory put in (NNF: a destination that is neither there nor ends with a
    slash is the name of a file, for a file)."""
    if not copy.index:
        return copy.destination
    destination = copy.destination
    as_file = not os.path.isdir(copy.source) and not destination.endswith("/") and not os.path.isdir(destination)
    if as_file:
        return os.path.join(os.path.dirname(destination), copy.index, os.path.basename(destination))
    return os.path.join(destination, copy.index) + "/"


class Mover:
    """Runs copiers. `user`: (uid, gid) that they run as, None for our own."""

    def __init__(self, argv: Sequence[str] = COPIER) -> None:
        self._argv = argv

    async def run(
        self,
        copy: Copy,
        user: tuple[int, int] | None,
        started: Callable[[int, str], None],
        progress: Callable[[Movement], None],
        now: Callable[[], float],
    ) -> Movement:
        """One copy to its end. Canceled, it kills the copier and what that has started."""
        target = landing(copy)
        paths = {"src": copy.source, "dst": target, "python": sys.executable}
        argv = [paths[word[1:-1]] if word in ("{src}", "{dst}", "{python}") else word for word in self._argv]
        one = Movement(copy.name, copy.directive, copy.source, target, "Running", t_start=now(), command=" ".join(argv))
        progress(one)
        own: dict[str, Any] = {"user": user[0], "group": user[1], "extra_groups": []} if user else {}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                start_new_session=True,
                **own,
            )
        except OSError as error:
            text = f"{argv[0]}: {error.strerror}"
            return msgspec.structs.replace(one, state="Finished", status="Failed", message=text, t_end=now())
        assert process.stdout is not None and process.stderr is not None
        started(process.pid, began(process.pid))
        tail = bytearray()

        async def read_errors(stream: asyncio.StreamReader) -> None:
            while data := await stream.read(TAIL_BYTES):
                tail.extend(data)
                del tail[:-TAIL_BYTES]

        errors = asyncio.create_task(read_errors(process.stderr))
        try:
            async for line in process.stdout:
                with contextlib.suppress(ValueError, TypeError, AttributeError):
                    said = json.loads(line)
                    done, total = int(said.get("done", 0)), int(said.get("total", 0))
                    one = msgspec.structs.replace(one, bytes_done=done, bytes_total=total)
                    progress(one)
            await errors
            code = await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), KILL_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            errors.cancel()
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        text = "" if code == 0 else lines[-1] if lines else f"the copier ended with {code}"
        status = "Success" if code == 0 else "Failed"
        return msgspec.structs.replace(one, state="Finished", status=status, message=text, t_end=now())


def kill(pid: int, since: str) -> None:
    """End a copier of an earlier daemon, if it is still that process: it is begun again."""
    if pid > 1 and since and began(pid) == since:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
