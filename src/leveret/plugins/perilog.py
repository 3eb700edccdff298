"""[job-manager.prolog] and [job-manager.epilog]: a command before the tasks and one after them.

`per-rank`: on every node of the job, under that node's helper; else on its first node. Once a prolog has begun on
a node, the epilog runs there exactly once, on every exit path. A node that was lost runs neither any more: it is
drained, and so is one whose command fails or overruns (with `per-rank`, as in Flux); the others go on. That a
user cancels is no fault of a node. Output goes to the instance's log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from leveret.config import Config, Perilog, duration_error
from leveret.core import duration, hostlist, idset, jobid
from leveret.core.event import Event
from leveret.core.job import Hold, Job
from leveret.core.resources import Rset
from leveret.core.verdict import exit_code_of
from leveret.errors import FormatError
from leveret.plugins.hooks import Answers, EpilogHold, Plugin, PrologHold, WorkFailed, WorkResult

PROLOG, EPILOG = "job-manager.prolog", "job-manager.epilog"
#: how long a helper may take to say that its command has ended, once it must have
ANSWER_S = 60.0
SIGKILL = 9


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
        self.alarms_s = {
            "prolog": _seconds(config, "job-manager.prolog.alarm", self.prolog.alarm),
            "epilog": _seconds(config, "job-manager.epilog.alarm", self.epilog.alarm),
        }

    def query(self) -> dict[str, Any]:
        """The settings as they are understood, in Flux's words; times in seconds, 0 is unlimited."""
        conf: dict[str, Any] = {}
        for which, settings in (("prolog", self.prolog), ("epilog", self.epilog)):
            if settings.command:
                conf[which] = {
                    "command": settings.command,
                    "per_rank": settings.per_rank,
                    "cancel_on_exception": settings.cancel_on_exception and which == "prolog",
                    "timeout": self.timeouts_s[which],
                    "kill-timeout": self.kill_timeouts_s[which],
                }
        return {"conf": conf}

    # ---- moments -----------------------------------------------------------------------------------

    def state_run(self, job: Job) -> Answers:
        if not self.prolog.command:
            return None
        work = self._run(job, "prolog", self.prolog)
        return PrologHold(PROLOG, work=work, deadline_s=self._deadline_s("prolog"))

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
        # it waits for a prolog that is still to end
        patience_s = self._deadline_s("prolog") if f"prolog/{PROLOG}" in job.holds else 0.0
        return EpilogHold(EPILOG, work=self._epilog_work(job), deadline_s=self._deadline_s("epilog") + patience_s)

    def _deadline_s(self, which: str) -> float:
        """Of the hold: the helper ends the command at its timeout; this is for one that does not answer."""
        timeout_s = self.timeouts_s[which]
        return timeout_s + self.kill_timeouts_s[which] + ANSWER_S if timeout_s else math.inf

    async def resume(self, job: Job, hold: Hold) -> int | None:
        if hold.name == PROLOG:
            return await self._run(job, "prolog", self.prolog)
        return await self._epilog_work(job)

    def stop(self, job: Job, hold: Hold) -> bool:
        if hold.name == PROLOG and self.prolog.cancel_on_exception:
            self.manager.stop_run(job.id, "prolog", self.kill_timeouts_s["prolog"])
        return hold.name == PROLOG

    def event_prolog_finish(self, job: Job, event: Event) -> Answers:
        self._abandoned(job, event, PROLOG, "prolog")
        return None

    def event_epilog_finish(self, job: Job, event: Event) -> Answers:
        self._abandoned(job, event, EPILOG, "epilog")
        return None

    def _abandoned(self, job: Job, event: Event, name: str, which: str) -> None:
        """The hold is closed (given up, or at its deadline) over a command that has not ended: in the same turn, no
        further job goes there."""
        if event.get("description") == name and (nodes := self.manager.begun(job.id, which, open=True)):
            self.manager.drain(sorted(nodes), f"{which} did not end for job {jobid.encode(job.id)}")

    # ---- work --------------------------------------------------------------------------------------

    async def _epilog_work(self, job: Job) -> int:
        await self.manager.closed(job.id, "prolog", PROLOG)
        return await self._run(job, "epilog", self.epilog)

    def _nodes(self, job: Job, which: str, conf: Perilog, rset: Rset) -> list[int]:
        """Where the command runs. An epilog: where the prolog has begun, or the tasks were started."""
        begun = self.manager.begun(job.id, which)
        if not conf.per_rank:
            if begun:
                return sorted(begun)
            lost = self.manager.lost(job.id)
            return ([rank for rank in rset.ranks if rank not in lost] or list(rset.ranks))[:1]
        if which == "prolog":
            return list(rset.ranks)
        nodes = set(rset.ranks)
        if self.prolog.command and self.prolog.per_rank and not self.manager.start_requested(job.id):
            nodes &= self.manager.begun(job.id, "prolog")
        return [rank for rank in rset.ranks if rank in (nodes - self.manager.lost(job.id)) | begun]

    async def _run(self, job: Job, which: str, conf: Perilog) -> int:
        rset = self.manager.resources(job.id)
        if rset is None:
            return 0
        name = jobid.encode(job.id)
        nodes = self._nodes(job, which, conf, rset)
        gone = self.manager.lost(job.id) - set(nodes)
        if which == "epilog" and conf.per_rank and gone:
            self.manager.drain(sorted(gone), f"epilog could not run for job {name}: helper lost")
        env = {
            "FLUX_JOB_ID": name,
            "FLUX_JOB_USERID": str(job.userid),
            "FLUX_JOB_RANKS": rset.ranks_idset(),
        }
        failed: dict[int, WorkResult] = {}
        left = set(nodes)

        def ended(node: int, result: WorkResult) -> None:
            left.discard(node)
            if result.status:
                failed[node] = result
                if reason := self._fault(job.id, which, conf, result):
                    self.manager.drain([node], f"{reason} for job {name}")

        alarm = self._alarm(job.id, which, conf, rset, left)
        try:
            await self.manager.run_on(
                job.id,
                which,
                nodes,
                conf.command or [],
                env=env,
                timeout_s=self.timeouts_s[which] or None,
                kill_timeout_s=self.kill_timeouts_s[which],
                on_result=ended,
            )
        finally:
            alarm.cancel()
        if not failed:
            return 0
        raise WorkFailed(_note(which, failed, rset), max(result.status for result in failed.values()))

    def _fault(self, job: int, which: str, conf: Perilog, result: WorkResult) -> str:
        """Why the node is to be drained, or "" when it is not to blame."""
        now = self.manager.job(job)
        if which == "prolog" and conf.cancel_on_exception and now is not None and now.fatal is not None:
            if result.lost:
                return "prolog lost its helper"
            return "prolog canceled then timed out" if result.status & 0x7F == SIGKILL else ""
        if not conf.per_rank or not result.begun:
            return ""
        if result.lost:
            return f"{which} lost its helper"
        return f"{which} timed out" if result.timed_out else f"{which} failed"

    def _alarm(self, job: int, which: str, conf: Perilog, rset: Rset, left: Iterable[int]) -> _Alarm:
        every_s = self.alarms_s[which] if not self.timeouts_s[which] else 0.0

        def say(age_s: float) -> None:
            where = hostlist.encode(rset.ranks[rank].host for rank in sorted(left) if rank in rset.ranks)
            self.manager.log(f"{jobid.encode(job)}: {which} has run for {age_s:.0f}s on {where}", alarm=True)

        return _Alarm(self.manager, every_s, say)


class _Alarm:
    """Says again and again that something takes long, until it is called off."""

    def __init__(self, manager: Any, every_s: float, say: Any) -> None:
        self._manager = manager
        self._every_s = every_s
        self._say = say
        self._since = manager.now()
        self._timer: Any = None
        self._arm()

    def _arm(self) -> None:
        if self._every_s:
            self._timer = self._manager.call_at(self._manager.now() + self._every_s, self._ring)

    def _ring(self) -> None:
        self._say(self._manager.now() - self._since)
        self._arm()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _seconds(config: Config, key: str, text: str) -> float:
    """A duration of the configuration; 0 is unlimited, as infinity is. Raises ConfigError with its place."""
    try:
        seconds = duration.parse(text)
    except FormatError as error:
        raise duration_error(config, key, error.message) from None
    return 0.0 if math.isinf(seconds) else seconds


def _note(which: str, failed: dict[int, WorkResult], rset: Rset) -> str:
    """One line for all nodes that failed, in Flux's words."""
    ranks = sorted(failed)
    said = {_ended(result) for result in failed.values()}
    how = said.pop() if len(said) == 1 else "failed"
    hosts = hostlist.encode(rset.ranks[rank].host for rank in ranks if rank in rset.ranks)
    return f"{which} {how} on {hosts} (rank{'s' if len(ranks) > 1 else ''} {idset.encode(ranks)})"


def _ended(result: WorkResult) -> str:
    if result.timed_out:
        return "timed out"
    if result.lost:
        return "lost its helper"
    code = exit_code_of(result.status)
    return f"killed by signal {code - 128}" if result.status & 0x7F else f"exited with code={code}"
