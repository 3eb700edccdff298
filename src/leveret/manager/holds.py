"""Holds that nobody may be stuck behind: opened from outside under a lease, watched, listed, and given up.

The work of plugins is in `works`; here is what bounds a hold from the outside: the lease of a process beyond our
reach, the plugin that did not come back, the operator who will not wait any longer, and the alarm that says so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from leveret.config import duration_error
from leveret.core import duration
from leveret.core import jobid as jobids
from leveret.core.job import CLOSE_EVENT, OPEN_EVENT, Hold
from leveret.errors import EventError, FormatError, InvalidError, LeveretError
from leveret.manager.entry import Entry
from leveret.manager.turn import Turn

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

#: of a hold whose lease has expired, or whose plugin is gone: as a task that ran into its time limit (SIGALRM)
EXPIRED_STATUS = 142 << 8
GIVEN_UP_STATUS = 15  #: as a process that was told to end
LEASE_S_MIN, LEASE_S_MAX = 1.0, 7 * 86400.0
NOTE_MAX = 500
Key = tuple[int, str]


class Holds:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.deadline_s = self._seconds("hold-deadline", manager.config.job_manager.hold_deadline)
        self.alarm_s = self._seconds("hold-alarm", manager.config.job_manager.hold_alarm)
        self.grace_s = self._seconds("plugin-grace", manager.config.job_manager.plugin_grace)
        self._until: dict[Key, float] = {}  #: when a lease expires
        self._timers: dict[Key, Any] = {}
        self._alarms: dict[Key, Any] = {}

    def _seconds(self, key: str, text: str) -> float:
        """A duration of the configuration; 0 is unlimited."""
        try:
            return duration.parse(text) or math.inf
        except FormatError as error:
            raise duration_error(self.manager.config, f"job-manager.{key}", error.message) from None

    # ---- from outside ------------------------------------------------------------------------------

    def open(
        self,
        jobid: int,
        kind: str,
        name: str,
        context: dict[str, Any],
        lease_s: float | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """A hold for somebody outside; closed by `finish`, by its deadline, or when its lease is not renewed.

        Raises InvalidError, EventError, NotFoundError; nothing has changed then. Opening what is open renews its lease.
        """
        manager = self.manager
        if kind not in OPEN_EVENT:
            raise InvalidError(f"no such kind of hold: `{kind}`", "kinds: " + ", ".join(OPEN_EVENT))
        if lease_s is not None and not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            raise InvalidError(f"a lease is {LEASE_S_MIN:.0f} to {LEASE_S_MAX:.0f} seconds", path="lease_s")
        if deadline_s is not None and not 0 < deadline_s < math.inf:
            raise InvalidError("a deadline is a number of seconds from now", path="deadline_s")
        entry = manager.entry(jobid)
        key = f"{kind}/{name}"
        if kind == "prolog" and manager.start_requested(jobid):
            raise EventError("prolog-start: the start of the job was requested already")
        if key in entry.job.holds and key in entry.leases:
            self.renew(jobid, key)  # the answer to the first request was lost
            return
        if deadline_s is not None:
            context = {**context, "deadline": round(manager.clock.time() + deadline_s, 3)}
        if lease_s is not None:
            context = {**context, "lease": lease_s}
        with Turn(manager, "hold") as turn:
            turn.post(entry, OPEN_EVENT[kind], {"description": name, **context})
            turn.own(entry, key, "", lease_s)
            turn.after.append(lambda: self._opened(entry, key))

    def _opened(self, entry: Entry, key: str) -> None:
        hold = entry.job.holds.get(key)
        if hold is not None:
            self.manager.works.arm(entry.job.id, hold)
            self.lease(entry, key)

    def renew(self, jobid: int, key: str) -> float:
        """A word of the holder: its lease runs anew. Returns the seconds that it is good for (0: it has no lease)."""
        lease_s = self.manager.entry(jobid).leases.get(key, 0.0)
        if lease_s:
            self._until[(jobid, key)] = self.manager.clock.time() + lease_s
        return lease_s

    def lease(self, entry: Entry, key: str) -> None:
        """Begin, or after a restart begin anew, with a full period."""
        at = (entry.job.id, key)
        if self.renew(*at) and at not in self._timers:
            self._timers[at] = self.manager.clock.call_at(self._until[at], lambda: self._look(at))

    def _look(self, at: Key) -> None:
        self._timers.pop(at, None)
        until = self._until.get(at)
        if until is None or self.manager.works.ending:
            return
        if until > self.manager.clock.time():
            self._timers[at] = self.manager.clock.call_at(until, lambda: self._look(at))
            return
        jobid, key = at
        entry = self.manager.entries.get(jobid)
        if entry is not None and key in entry.job.holds:
            name = key.partition("/")[2]
            said = f"{name}: the lease of {duration_text(entry.leases.get(key, 0))} has expired"
            self._end(jobid, key, EXPIRED_STATUS, said)

    def _end(self, jobid: int, key: str, status: int, note: str) -> None:
        try:
            self.manager.works.end(jobid, key, status, note)
        except LeveretError as error:
            self.manager.log.error("hold not closed", job=jobids.encode(jobid), hold=key, why=error.message)

    # ---- watched -----------------------------------------------------------------------------------

    def watch(self, jobid: int, hold: Hold) -> None:
        """A hold that may last for ever: say so in the log when it has lasted long."""
        at = (jobid, hold.key)
        if hold.deadline is None and math.isfinite(self.alarm_s) and at not in self._alarms:
            self._alarm(at, max(hold.since, self.manager.clock.time() - self.alarm_s) + self.alarm_s)

    def _alarm(self, at: Key, when: float) -> None:
        self._alarms[at] = self.manager.clock.call_at(when, lambda: self._ring(at))

    def _ring(self, at: Key) -> None:
        self._alarms.pop(at, None)
        entry = self.manager.entries.get(at[0])
        hold = entry.job.holds.get(at[1]) if entry is not None else None
        if entry is None or hold is None or self.manager.works.ending:
            return
        now = self.manager.clock.time()
        self.manager.log.warning(
            "hold lasts long",
            job=jobids.encode(at[0]),
            hold=hold.key,
            plugin=entry.owners.get(hold.key, ""),
            age_s=round(now - hold.since),
        )
        self._alarm(at, now + max(self.alarm_s, now - hold.since))  # ever more seldom

    def overdue(self, hold: Hold) -> bool:
        return hold.deadline is None and self.manager.clock.time() - hold.since >= self.alarm_s

    def closed(self, jobid: int, key: str) -> None:
        self._until.pop((jobid, key), None)
        for timers in (self._timers, self._alarms):
            if (timer := timers.pop((jobid, key), None)) is not None:
                timer.cancel()

    # ---- without its plugin ------------------------------------------------------------------------

    def orphan(self, entry: Entry, hold: Hold) -> None:
        """After a restart the plugin that owns the hold is not there. The user's job does not wait for it for long;
        the site's hold stays, visibly, until the plugin comes back, its deadline, or a give-up."""
        jobid, key, plugin = entry.job.id, hold.key, entry.owners.get(hold.key, "")
        self.manager.log.warning("plugin of an open hold is gone", job=jobids.encode(jobid), hold=key, plugin=plugin)
        if hold.owner != "user" or not math.isfinite(self.grace_s):
            return

        def over() -> None:
            now = self.manager.entries.get(jobid)
            gone = self.manager.registry.get(plugin) is None
            if now is not None and key in now.job.holds and gone and not self.manager.works.ending:
                self._end(jobid, key, EXPIRED_STATUS, f"{hold.name}: its plugin `{plugin}` is gone")

        self.manager.clock.call_at(self.manager.clock.time() + self.grace_s, over)

    # ---- given up ----------------------------------------------------------------------------------

    def give_up(
        self, jobid: int, key: str, userid: int, reason: str = "", status: int = GIVEN_UP_STATUS
    ) -> dict[str, Any]:
        """Nobody waits for this hold any longer. Returns the event's context, with what is left behind.

        A hold of the user, and a prolog, fails the job; one of the site is a warning. A dependency is waived: the job
        goes on. Raises NotFoundError, EventError; nothing has changed then.
        """
        manager = self.manager
        entry = manager.entry(jobid)
        hold = entry.job.holds.get(key)
        kind, _, name = key.partition("/")
        if hold is None:
            raise EventError(f"no hold `{name}` is open", "open: " + (", ".join(entry.job.holds) or "none"))
        context = {
            "description": name,
            "kind": kind,
            "userid": userid,
            "reason": reason[:NOTE_MAX],
            "left": self._left(entry, hold),
        }
        note = f"{name}: given up by uid {userid}" + (f": {reason}" if reason else "")
        fatal = kind == "prolog" or (kind != "dependency" and hold.owner == "user")
        finish: dict[str, Any] = {"description": name}
        if kind != "dependency":
            finish["status"] = status
        if kind == "part":
            finish["note"] = note[:NOTE_MAX]
        with Turn(manager, "give-up") as turn:
            turn.post(entry, "give-up", context)
            if status or kind == "dependency":
                cause = manager.exception(kind, 0 if fatal else 1, note[:NOTE_MAX], userid)
                turn.post(entry, "exception", cause)
            if key in entry.job.holds:
                turn.post(entry, CLOSE_EVENT[kind], finish)
        manager.log.warning("hold given up", job=jobids.encode(jobid), hold=key, userid=userid, reason=reason)
        return context

    def _left(self, entry: Entry, hold: Hold) -> str:
        """What may be left behind, for the operator and the record."""
        left = []
        progress = entry.progress.get(hold.key) or {}
        if progress.get("done") is not None:
            of = f" of {progress['total']:g}" if progress.get("total") else ""
            left.append(f"{progress['done']:g}{of} {progress.get('unit', '')}".strip() + " done")
        if plugin := entry.owners.get(hold.key):
            running = self.manager.works.runs(entry.job.id, hold.key)
            left.append(f"the work of plugin {plugin}" + (" is stopped" if running else " is not known to have ended"))
        elif hold.key in entry.leases or hold.kind == "part":
            left.append("a process outside may go on")
        if hold.kind in ("prolog", "epilog") or hold.uses == "nodes":
            if entry.rset is not None:
                left.append(f"{entry.rset.nodelist()} may not be tidy")
        elif hold.uses == "storage":
            left.append("storage may not be free")
        return "; ".join(left)

    # ---- listed ------------------------------------------------------------------------------------

    def describe(self, entry: Entry) -> list[dict[str, Any]]:
        """The open holds of a job, as every door shows them."""
        registry = self.manager.registry
        out = []
        for key, hold in entry.job.holds.items():
            plugin = entry.owners.get(key, "")
            out.append(
                {
                    "kind": hold.kind,
                    "name": hold.name,
                    "owner": hold.owner,
                    "plugin": plugin,
                    "loaded": not plugin or registry.get(plugin) is not None,
                    "since": hold.since,
                    "blocks": list(hold.blocks),
                    "uses": hold.uses,
                    "deadline": hold.deadline,
                    "lease_s": entry.leases.get(key),
                    "lease_until": self._until.get((entry.job.id, key)),
                    "overdue": self.overdue(hold),
                    "progress": entry.progress.get(key),
                }
            )
        return out

    def listing(self, jobid: int | None = None) -> list[dict[str, Any]]:
        """Every open hold, or those of one job, oldest job first. Raises NotFoundError and ConflictError."""
        entries = [self.manager.entry(jobid)] if jobid is not None else list(self.manager.entries.values())
        return [
            {"id": entry.job.id, "f58": jobids.encode(entry.job.id), "state": entry.job.state.name, **hold}
            for entry in entries
            for hold in self.describe(entry)
        ]


def duration_text(seconds: float) -> str:
    return f"{seconds:g}s"
