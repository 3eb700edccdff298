"""Purging inactive jobs: by hand (`job purge`) and by the limits of `[job-manager]`.

A purge deletes a job's rows and unlinks its output files. What stays is its verdict (table `purged`), so that a
dependency on it is decided as before, and so that its id is never given again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import duration
from leveret.core.job import Cause, Job
from leveret.core.transitions import INACTIVE
from leveret.errors import ConflictError, FormatError, NotFoundError
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

_decode = msgspec.json.Decoder().decode
#: how often the limits are looked at, in seconds
PERIOD_S = 2.0
#: jobs of one transaction
BATCH = 50


class Purge:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        limits = manager.config.job_manager
        self.kept = 0  #: who copies the files now; what is purged meanwhile is unlinked afterwards
        self.num_limit = limits.inactive_num_limit
        self.age_limit_s: float | None = None
        if limits.inactive_age_limit is not None:
            try:
                self.age_limit_s = duration.parse(limits.inactive_age_limit)
            except FormatError as error:
                from leveret.config import duration_error

                raise duration_error(manager.config, "job-manager.inactive-age-limit", error.message) from None

    # ---- by hand -----------------------------------------------------------------------------------

    def check(self, jobids: list[int]) -> None:
        """Raise ConflictError or NotFoundError unless all of these jobs may be purged."""
        for jobid in jobids:
            if jobid in self.manager.entries:
                raise ConflictError("cannot purge active job")
            if self.manager.store.done_record(jobid) is None:
                raise NotFoundError("id not found")

    def matching(self, age_limit_s: float | None, num_limit: int | None) -> int:
        """How many inactive jobs a purge with these limits takes: so many of those that ended first."""
        store = self.manager.store
        surplus = store.inactive_count() - num_limit if num_limit is not None else 0
        old = store.ended_before(self.manager.clock.time() - age_limit_s) if age_limit_s is not None else 0
        return max(surplus, old, 0)

    def purge_oldest(self, count: int) -> int:
        """Purge the `count` jobs that ended first. Returns how many there were."""
        jobids = self.manager.store.first_ended(count)
        if jobids:
            self.purge(jobids)
        return len(jobids)

    def purge(self, jobids: list[int]) -> None:
        """Delete inactive jobs, in one turn. Files go once that is on disk."""
        manager = self.manager
        files = manager.store.output_files(jobids)
        envs = manager.store.envs_of(jobids)
        with Turn(manager, "purge") as turn:
            for jobid in jobids:
                body = manager.store.done_record(jobid)
                if body is not None:
                    record = _decode(body)
                    cause = (record.get("cause") or {}).get("type", "")
                    started = bool(record.get("t_start"))
                    turn.op(
                        "INSERT OR REPLACE INTO purged VALUES(?,?,?,?,?)",
                        jobid,
                        record["result"],
                        started,
                        record.get("waitstatus"),
                        cause,
                    )
            some = ",".join(map(str, jobids))
            for table, column in (("event", "job"), ("guest", "job"), ("kv", "job"), ("done", "id"), ("job", "id")):
                turn.op(f"DELETE FROM {table} WHERE {column} IN ({some})")
            for jobid in jobids:
                turn.op("DELETE FROM waitable WHERE id=?", jobid)
            for digest in envs:
                turn.op("DELETE FROM env WHERE hash=? AND NOT EXISTS (SELECT 1 FROM job WHERE env=hash)", digest)
                manager._envs.pop(digest, None)  # later jobs bring it again
            for node, file in files:
                turn.op("INSERT OR IGNORE INTO leftover VALUES(?,?)", node, file)
            turn.after.append(lambda: self._purged(jobids, files))
        for jobid in jobids:
            self._forget(jobid)

    def _forget(self, jobid: int) -> None:
        manager = self.manager
        for cache in (manager.finals, manager._outcomes, manager._specs):
            cache.pop(jobid, None)
        manager.ended_waitable.pop(jobid, None)

    def _purged(self, jobids: list[int], files: list[tuple[int, str]]) -> None:
        for jobid in jobids:
            self._forget(jobid)  # a question may have read it meanwhile
            self.manager.registry.call("inactive_remove", str(jobid), jobid)
        self.unlink(files)
        self.manager.feed.publish(jobids)

    def unlink(self, files: list[tuple[int, str]]) -> None:
        """Remove output files whose jobs are gone, and the notes that say so."""
        if not files or self.kept:
            return
        for node, file in files:
            self.manager.engine.remove_output(node, file)
        with Turn(self.manager, "unlink") as turn:
            for node, file in files:
                turn.op("DELETE FROM leftover WHERE node=? AND file=?", node, file)

    @contextlib.contextmanager
    def keep_files(self) -> Iterator[None]:
        """While files are copied none goes."""
        self.kept += 1
        try:
            yield
        finally:
            self.kept -= 1
            self.unlink(self.manager.store.leftovers())

    # ---- by the limits -----------------------------------------------------------------------------

    def start(self) -> None:
        """What an earlier daemon did not get to; and the limits from now on."""
        self.unlink(self.manager.store.leftovers())
        if self.num_limit is not None or self.age_limit_s is not None:
            self._again()

    def _again(self) -> None:
        self.manager.clock.call_at(self.manager.clock.time() + PERIOD_S, self._look)

    def _look(self) -> None:
        if self.manager.stopping:
            return
        try:
            over = self.matching(self.age_limit_s, self.num_limit)
            self.purge_oldest(min(over, BATCH))
            if over > BATCH:
                self.manager.clock.call_soon(self._look)
                return
        except Exception:
            self.manager.log.exception("purge failed")
        self._again()

    # ---- what stays --------------------------------------------------------------------------------

    def outcome(self, jobid: int) -> Job | None:
        """As much of a purged job as a dependency on it needs."""
        row: Any = self.manager.store.purged(jobid)
        if row is None:
            return None
        _result, started, status, cause = row
        fatal = Cause(cause, 0, "") if cause else None
        return Job(jobid, state=INACTIVE, started=bool(started), status=status, fatal=fatal)
