"""Policy of queues (RFC 33): defaults for jobspecs and limits of one job, general ones and a queue's.

A queue's value wins over the general one, key by key; "0" (duration) and -1 (sizes) are unlimited.
"""

from __future__ import annotations

from leveret.config import Config, Policy, duration_error
from leveret.core import duration
from leveret.core.jobspec import Digest
from leveret.errors import ConfigError, FormatError, InvalidError

KINDS = ("nnodes", "ncores", "ngpus")
UNLIMITED = -1


class Effective:
    """What holds for the jobs of one queue; `queue` is "" for the anonymous one."""

    __slots__ = ("default_duration_s", "duration_s", "max", "min", "queue", "requires")

    def __init__(self, config: Config, queue: str = "") -> None:
        self.queue = queue
        own = config.queues[queue].policy if queue else Policy()
        self.requires = list(config.queues[queue].requires) if queue else []
        #: seconds given to a job that asks for none; None: it stays unlimited
        self.default_duration_s = _first(
            config, queue, "jobspec.defaults.system.duration", own.jobspec.defaults.system.duration,
            config.policy.jobspec.defaults.system.duration,
        )  # fmt: skip
        #: seconds that a job may ask for; None: any, and none at all
        self.duration_s = (
            _first(config, queue, "limits.duration", own.limits.duration, config.policy.limits.duration) or None
        )
        self.max = _sizes(own, config.policy, "max")  #: kind → the most; kinds without a limit are absent
        self.min = _sizes(own, config.policy, "min")

    @property
    def limited(self) -> bool:
        return self.duration_s is not None or bool(self.max or self.min)

    def check_duration(self, seconds: float) -> None:
        """Raise InvalidError when a job may not ask for this time limit (0: for none)."""
        if self.duration_s is None or 0 < seconds <= self.duration_s:
            return
        asked = duration.encode(seconds) if seconds else "unlimited"
        raise InvalidError(
            f"requested duration ({asked}) exceeds policy limit of {duration.encode(self.duration_s)}{self._of()}",
            "" if seconds else "ask for a time limit with -t",
            "attributes.system.duration",
        )

    def check_size(self, want: Digest) -> None:
        """Raise InvalidError when a job is too large or too small. Nodes count only where they are asked for."""
        sizes = {
            "nnodes": want.nnodes,
            "ncores": want.nslots * want.cores_per_slot,
            "ngpus": want.nslots * want.gpus_per_slot,
        }
        for kind, limit in self.max.items():
            if sizes[kind] > limit:
                raise InvalidError(f"requested {kind} ({sizes[kind]}) exceeds policy limit of {limit}{self._of()}")
        for kind, limit in self.min.items():
            if sizes[kind] < limit:
                hint = "ask for nodes with -N" if kind == "nnodes" and not want.nnodes else ""
                raise InvalidError(
                    f"requested {kind} ({sizes[kind]}) is under policy limit of {limit}{self._of()}", hint
                )

    def _of(self) -> str:
        return f" for queue {self.queue}" if self.queue else ""


def _first(config: Config, queue: str, key: str, own: str | None, general: str | None) -> float | None:
    text, where = (own, f"queues.{queue}.policy.{key}") if own is not None else (general, f"policy.{key}")
    if text is None:
        return None
    try:
        seconds = duration.parse(text)
    except FormatError as error:
        raise duration_error(config, where, error.message) from None
    return 0.0 if seconds == float("inf") else seconds


def _sizes(own: Policy, general: Policy, which: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind in KINDS:
        mine = getattr(getattr(own.limits.job_size, which), kind)
        limit = mine if mine is not None else getattr(getattr(general.limits.job_size, which), kind)
        if limit is not None and limit != UNLIMITED:
            found[kind] = limit
    return found


def check(config: Config) -> None:
    """Raise ConfigError for a policy that cannot be: unknown default queue, sizes below -1, a queue's default queue."""
    default = config.policy.jobspec.defaults.system.queue
    if default is not None and default not in config.queues:
        known = ", ".join(sorted(config.queues)) or "none"
        raise ConfigError(
            f"{config.source}: policy.jobspec.defaults.system.queue: `{default}` is not a configured queue",
            f"configured queues: {known}",
            config.source,
        )
    policies = {"policy": config.policy, **{f"queues.{name}.policy": q.policy for name, q in config.queues.items()}}
    for name in config.queues:
        if not name or not name.isprintable() or any(c.isspace() or c in ",*/" for c in name):
            raise ConfigError(f"{config.source}: queues: {name!r} is not a name for a queue", "", config.source)
    for where, policy in policies.items():
        if where != "policy" and policy.jobspec.defaults.system.queue is not None:
            raise ConfigError(f"{config.source}: {where}: a queue cannot have a default queue", "", config.source)
        for which in ("max", "min"):
            for kind in KINDS:
                value = getattr(getattr(policy.limits.job_size, which), kind)
                if value is not None and value < UNLIMITED:
                    at = f"{where}.limits.job-size.{which}.{kind}"
                    raise ConfigError(f"{config.source}: {at}: must be -1 (unlimited) or more", "", config.source)
