"""Delivers notifications: an HTTP POST, or a command with the message on its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import urllib.error
import urllib.request

from leveret import __version__


class Courier:
    """`webhook` is a URL, `command` an argv (no shell); what takes longer than `timeout_s` was not delivered."""

    def __init__(self, webhook: str | None, command: list[str], timeout_s: float, uri: str) -> None:
        self._webhook = webhook
        self._command = command
        self._timeout_s = timeout_s
        self._uri = uri

    async def deliver(self, channel: str, body: bytes, jobid: str, attempt: int) -> str:
        """ "" when it was taken (HTTP 2xx, exit code 0), else why not."""
        if channel == "webhook":
            return await asyncio.to_thread(self._post, body, jobid, attempt)
        return await self._run(body, jobid, attempt)

    def _post(self, body: bytes, jobid: str, attempt: int) -> str:
        assert self._webhook is not None
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"leveret/{__version__}",
            "Idempotency-Key": f"leveret-{jobid}",
            "Leveret-Attempt": str(attempt),
        }
        request = urllib.request.Request(self._webhook, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s):
                return ""
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code} {error.reason}"
        except (OSError, ValueError) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__

    async def _run(self, body: bytes, jobid: str, attempt: int) -> str:
        env = {**os.environ, "LEVERET_URI": self._uri, "FLUX_JOB_ID": jobid, "LEVERET_ATTEMPT": str(attempt)}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return f"{self._command[0]}: {error.strerror}"
        try:
            _, text = await asyncio.wait_for(process.communicate(body), self._timeout_s)
        except TimeoutError:
            return f"{self._command[0]}: no end after {self._timeout_s:g} s"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            last = text.decode("utf-8", "replace").strip().rpartition("\n")[2]
            return f"{self._command[0]}: exit code {process.returncode}" + (f": {last[:200]}" if last else "")
        return ""
