"""[job-manager.prolog] and [job-manager.epilog]: a command before the tasks and one after them.

Once a prolog has begun, the epilog runs exactly once, on every exit path. The command is run by the
helper of the job's first node; its output goes to the instance's log.
"""

from __future__ import annotations

import math
import signal
from typing import Any

from leveret.config import Config, Perilog, duration_error
from leveret.core import duration, jobid
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.verdict import exit_code_of
from leveret.errors import FormatError
from leveret.plugins.hooks import Answers, EpilogHold, Plugin, PrologHold, WorkFailed

PROLOG, EPILOG = "job-manager.prolog", "job-manager.epilog"


class PerilogPlugin(Plugin):
    def __init__(self, manager: Any, name: str, conf: dict[str, Any]) -> None:
        super().__init__(manager, name, conf)
        config: Config = conf["config"]
        self.prolog = config.job_manager.prolog
        self.epilog = config.job_manager.epilog
        self.timeouts_s = {
            "prolog": _seconds(config, "job-manager.prolog.timeout", self.prolog.timeout or "30m"),
            "epilog": _seconds(config, "job-manager.epilog.timeout", self.epilog.timeout or "0"),
        }
        self.kill_timeouts_s = {
            "prolog": _seconds(config, "job-manager.prolog.kill-timeout", self.prolog.kill_timeout),
            "epilog": _seconds(config, "job-manager.epilog.kill-timeout", self.epilog.kill_timeout),
        }

    def state_run(self, job: Job) -> Answers:
        if not self.prolog.command:
            return None
        timeout = self.timeouts_s["prolog"]
        # the helper ends the command at its timeout; the hold's deadline is for a helper that does not answer
        deadline = timeout + self.kill_timeouts_s["prolog"] + 60 if timeout else math.inf
        return PrologHold(PROLOG, work=self._run(job, "prolog", self.prolog), deadline_s=deadline)

    def event_finish(self, job: Job, event: Event) -> Answers:
        return self._epilog(job)

    def state_cleanup(self, job: Job) -> Answers:
        # an epilog that a `finish` brings is opened by event_finish; here the job will never start
        begun = f"prolog/{PROLOG}" in job.holds or f"prolog/{PROLOG}" in job.closed
        if job.status is None and begun and not job.started and not self.manager.start_requested(job.id):
            return self._epilog(job)
        return None

    def _epilog(self, job: Job) -> Answers:
        if not self.epilog.command:
            return None
        return EpilogHold(EPILOG, work=self._epilog_work(job), deadline_s=math.inf)

    async def _epilog_work(self, job: Job) -> int:
        await self.manager.closed(job.id, "prolog", PROLOG)
        return await self._run(job, "epilog", self.epilog)

    async def _run(self, job: Job, which: str, conf: Perilog) -> int:
        timeout_s = self.timeouts_s[which]
        rset = self.manager.resources(job.id)
        env = {
            "FLUX_JOB_ID": jobid.encode(job.id),
            "FLUX_JOB_USERID": str(job.userid),
            "FLUX_JOB_RANKS": rset.ranks_idset() if rset else "",
        }
        result = await self.manager.run(
            job.id,
            which,
            conf.command or [],
            env=env,
            timeout_s=timeout_s or None,
            kill_timeout_s=self.kill_timeouts_s[which],
        )
        for line in result.tail.splitlines()[-20:]:
            self.manager.log(f"{which}: {line}", job=jobid.encode(job.id))
        if result.status == 0:
            return 0
        ended = "timed out" if timeout_s and result.status == signal.SIGALRM else _ended(result.status)
        raise WorkFailed(f"{which} {ended}{_host(rset)}", result.status)

    async def resume(self, job: Job, hold: Hold) -> int | None:
        if hold.name == PROLOG:
            return await self._run(job, "prolog", self.prolog)
        return await self._epilog_work(job)

    def stop(self, job: Job, hold: Hold) -> bool:
        if self.prolog.cancel_on_exception:
            self.manager.stop_run(job.id, "prolog", self.kill_timeouts_s["prolog"])
        return True


def _seconds(config: Config, key: str, text: str) -> float:
    """A duration of the configuration; 0 is unlimited, as infinity is. Raises ConfigError with its place."""
    try:
        seconds = duration.parse(text)
    except FormatError as error:
        raise duration_error(config, key, error.message) from None
    return 0.0 if math.isinf(seconds) else seconds


def _ended(status: int) -> str:
    code = exit_code_of(status)
    return f"killed by signal {code - 128}" if status & 0x7F else f"exited with code={code}"


def _host(rset: Any) -> str:
    if rset is None or not rset.ranks:
        return ""
    rank, node = next(iter(rset.ranks.items()))
    return f" on {node.host} (rank {rank})"
