"""Every error a person can meet.

LeveretError                       code             HTTP  exit  when
├── UsageError                     usage             400    2   the call itself is malformed
│   └── InvalidError               invalid           400    1   a value in it is (Flux prints these as `[Errno 22] …`)
│       ├── FormatError            format            400    1   an id, idset, hostlist, duration cannot be read
│       ├── JobspecError           jobspec           400    1   RFC 25; `path` names the bad key
│       ├── EventError             event             409    1   the event may not be posted in this state
│       └── ConfigError            config            400    1   leveret.toml; message has file and line
├── NotFoundError                  not-found         404    1   no such job, key, plugin
├── ConflictError                  conflict          409    1   the job is in the wrong state for this
├── NotWaitableError               not-waitable      409    2   `job wait` of a job that cannot be waited for
├── NothingToWaitError             nothing           404    3   `job wait` with no waitable job left
├── ForbiddenError                 forbidden         403    1   another user's job
├── UnreachableError               unreachable       503    4   no daemon answers
├── BusyError                      busy              503    4   the daemon is ending, or its store is full
├── VersionError                   version           426    5   client and daemon speak different protocols
└── InternalError                  internal          500    70  a bug; the message brings the job's story

Errors travel as `{code, message, hint, path}`; `code` fixes the HTTP status and the exit code.
Exit code 1 is also "the job failed" (see docs/exit-codes in README).
"""

from __future__ import annotations

from typing import Any


class LeveretError(Exception):
    """Base of all errors. `hint` says what to do next, `path` names the offending key or file."""

    code = "internal"
    status = 500
    exit_code = 70

    def __init__(self, message: str, hint: str = "", path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path

    def to_dict(self) -> dict[str, Any]:
        """The wire form: {code, message, hint, path}."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "path": self.path}


class UsageError(LeveretError):
    code, status, exit_code = "usage", 400, 2


class InvalidError(UsageError):
    code, status, exit_code = "invalid", 400, 1


class FormatError(InvalidError):
    code = "format"


class JobspecError(InvalidError):
    code = "jobspec"


class EventError(InvalidError):
    code, status = "event", 409


class ConfigError(InvalidError):
    code = "config"


class NotFoundError(LeveretError):
    code, status, exit_code = "not-found", 404, 1


class ConflictError(LeveretError):
    code, status, exit_code = "conflict", 409, 1


class NotWaitableError(LeveretError):
    code, status, exit_code = "not-waitable", 409, 2


class NothingToWaitError(LeveretError):
    code, status, exit_code = "nothing", 404, 3


class ForbiddenError(LeveretError):
    code, status, exit_code = "forbidden", 403, 1


class UnreachableError(LeveretError):
    code, status, exit_code = "unreachable", 503, 4


class BusyError(LeveretError):
    code, status, exit_code = "busy", 503, 4


class VersionError(LeveretError):
    code, status, exit_code = "version", 426, 5


class InternalError(LeveretError):
    code, status, exit_code = "internal", 500, 70


BY_CODE: dict[str, type[LeveretError]] = {
    cls.code: cls
    for cls in (
        UsageError, InvalidError, FormatError, JobspecError, EventError, ConfigError, NotFoundError, ConflictError,
        NotWaitableError, NothingToWaitError, ForbiddenError, UnreachableError, BusyError, VersionError, InternalError,
    )
}  # fmt: skip


def from_dict(data: dict[str, Any]) -> LeveretError:
    """The exception for a wire error; an unknown code becomes InternalError."""
    cls = BY_CODE.get(str(data.get("code", "")), InternalError)
    return cls(str(data.get("message", "")), str(data.get("hint", "")), str(data.get("path", "")))
