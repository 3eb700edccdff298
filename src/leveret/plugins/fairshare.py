"""Fair-share priorities: who has used less than their share goes first. Loaded by name:

    [[job-manager.plugins]]
    load = "fairshare"
    conf = {half-life = "7d", shares = {ada = 3, bob = 1}}

    priority = fairshare-weight · F + age-weight · A + urgency-weight · (urgency − 16), at least 1

F = 2^(−u/s): u is the user's part of all decayed usage, s their part of all shares (of users that have shares, usage or jobs). It
is 1 for who has used nothing, 1/2 for who has used exactly their part. A grows with the time since submission from 0 to 1 at
`max-age`. Usage is core-seconds from `alloc` to `free`, halved every `half-life`; it is stored in the turn of the `free` event, so it is
counted once, ever. What runs counts as it goes. Urgencies 0 and 31 hold and expedite as always.

Keys: half-life "7d", max-age "7d", period "5m" (priorities are looked at again), settle "10s" (and so long after a job has ended, at
most), fairshare-weight 100000, age-weight 10000, urgency-weight 1000, default-share 1, shares {USER: number}.
"""

from __future__ import annotations

import math
import pwd
from typing import Any

from leveret.core import duration
from leveret.core.event import Event
from leveret.core.job import Job
from leveret.errors import InvalidError
from leveret.plugins.hooks import Answers, Keep, Plugin

DEFAULTS: dict[str, Any] = {
    "half-life": "7d",
    "max-age": "7d",
    "period": "5m",
    "settle": "10s",
    "fairshare-weight": 100_000,
    "age-weight": 10_000,
    "urgency-weight": 1_000,
    "default-share": 1,
    "shares": {},
}
#: steps of the age term: a priority that hardly moves is not posted again and again
AGE_STEPS = 1000


class FairShare(Plugin):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for key in self.conf:
            if key not in DEFAULTS:
                raise InvalidError(f"fairshare: unknown key `{key}`", "keys: " + ", ".join(DEFAULTS))
        conf = {**DEFAULTS, **self.conf}
        self.half_life_s, self.max_age_s = _seconds(conf, "half-life"), _seconds(conf, "max-age")
        self.period_s, self.settle_s = _seconds(conf, "period"), _seconds(conf, "settle")
        self.weights = {
            name: _number(conf[f"{name}-weight"], f"{name}-weight") for name in ("fairshare", "age", "urgency")
        }
        self.default_share = _number(conf["default-share"], "default-share")
        if not isinstance(conf["shares"], dict):
            raise InvalidError("fairshare: `shares` must be a table: user = number")
        self.shares = {str(name): _number(value, f"shares.{name}") for name, value in conf["shares"].items()}
        self._names: dict[int, str] = {}
        #: user → (core-seconds, as of when); decays from then on
        self._used: dict[str, tuple[float, float]] = {
            name: (float(value[0]), float(value[1])) for name, value in self.manager.kept().items()
        }
        self._running: dict[int, tuple[str, int, float]] = {}  #: job → (user, cores, since)
        self._active: dict[str, int] = {}  #: user → active jobs
        self._owners: dict[int, str] = {}
        self._factors: dict[str, float] = {}
        self._factors_at = -math.inf
        self._due = math.inf  #: when priorities are looked at next
        self._timer: Any = None
        self._look_at(self.manager.now() + self.period_s)

    # ---- usage -------------------------------------------------------------------------------------

    def _user(self, uid: int) -> str:
        if uid not in self._names:
            try:
                self._names[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._names[uid] = str(uid)
        return self._names[uid]

    def _decayed(self, user: str, now: float) -> float:
        value, since = self._used.get(user, (0.0, now))
        return value * math.exp2(-max(0.0, now - since) / self.half_life_s)

    def usage(self, now: float) -> dict[str, float]:
        """User → decayed core-seconds, with what runs now."""
        usage = {user: self._decayed(user, now) for user in self._used}
        for user, cores, since in self._running.values():
            usage[user] = usage.get(user, 0.0) + cores * max(0.0, now - since)
        return usage

    def factors(self, now: float) -> dict[str, float]:
        """User → F, from 0 to 1."""
        usage = self.usage(now)
        everybody = {*self.shares, *usage, *self._active}
        shares = {user: self.shares.get(user, self.default_share) for user in everybody}
        all_shares, all_usage = sum(shares.values()), sum(usage.values())
        found = {}
        for user in everybody:
            if not shares[user]:
                found[user] = 0.0
            elif not all_usage:
                found[user] = 1.0
            else:
                found[user] = 2.0 ** -((usage.get(user, 0.0) / all_usage) / (shares[user] / all_shares))
        return found

    # ---- moments -----------------------------------------------------------------------------------

    def new(self, job: Job) -> Answers:
        if job.id in self._owners:
            return None
        user = self._owners[job.id] = self._user(job.userid)
        self._active[user] = self._active.get(user, 0) + 1
        self._begin(job)
        return None

    def _begin(self, job: Job) -> None:
        rset = self.manager.resources(job.id)
        if job.allocated and not job.freed and rset is not None:
            self._running[job.id] = (self._owners[job.id], rset.ncores(), job.t_run or rset.starttime)

    def event_alloc(self, job: Job, event: Event) -> Answers:
        self._begin(job)
        return None

    def event_free(self, job: Job, event: Event) -> Answers:
        known = self._running.pop(job.id, None)
        if known is None:
            return None
        user, cores, since = known
        now = event.timestamp
        used = self._decayed(user, now) + cores * max(0.0, now - since)
        self._used[user] = (used, now)
        self._look_at(self.manager.now() + self.settle_s)
        return Keep(user, [used, now])

    def state_inactive(self, job: Job) -> Answers:
        self.destroy(job)
        return None

    def destroy(self, job: Job) -> None:
        self._running.pop(job.id, None)
        user = self._owners.pop(job.id, None)
        if user is not None:
            self._active[user] -= 1
            if not self._active[user]:
                del self._active[user]

    def priority(self, job: Job) -> int:
        now = self.manager.now()
        if now > self._factors_at or self._owners.get(job.id, "") not in self._factors:
            self._factors, self._factors_at = self.factors(now), now + min(1.0, self.settle_s)
        factor = self._factors.get(self._owners.get(job.id, ""), 1.0)
        age = min(1.0, max(0.0, now - job.t_submit) / self.max_age_s)
        value = (
            self.weights["fairshare"] * factor
            + self.weights["age"] * math.floor(age * AGE_STEPS) / AGE_STEPS
            + self.weights["urgency"] * (job.urgency - 16)
        )
        return max(1, min(round(value), 4294967294))

    # ---- time --------------------------------------------------------------------------------------

    def _look_at(self, when: float) -> None:
        if when >= self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = when
        self._timer = self.manager.call_at(when, self._look)

    def _look(self) -> None:
        self._due = math.inf
        self._factors_at = -math.inf
        self.manager.reprioritize()
        self._look_at(self.manager.now() + self.period_s)

    def remove(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def query(self) -> dict[str, Any]:
        now = self.manager.now()
        factors = self.factors(now)
        usage = self.usage(now)
        return {
            "users": {
                user: {
                    "share": self.shares.get(user, self.default_share),
                    "core_seconds": round(usage.get(user, 0.0), 3),
                    "fairshare": round(factors[user], 6),
                }
                for user in sorted(factors)
            }
        }


def _seconds(conf: dict[str, Any], key: str) -> float:
    try:
        seconds = duration.parse(conf[key])
    except InvalidError as error:
        raise InvalidError(f"fairshare: {key}: {error.message}", error.hint) from None
    if not 0 < seconds < math.inf:
        raise InvalidError(f"fairshare: {key} must be a time above 0")
    return seconds


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise InvalidError(f"fairshare: {key} must be a number, not negative")
    return float(value)
