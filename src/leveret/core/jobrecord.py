"""The portable record of one job: everything that is known about it in one JSON object, for other tools and other places.

    {"format": "leveret-job-record", "version": 1, "leveret": VERSION, "exported": SECONDS, "id": N, "f58": "ƒ…",
     "record": {…}, "jobspec": {…}, "R": {…} or null, "keys": {NAME: TEXT, …}, "quarantined": REASON,
     "eventlog": [EVENT, …], "guest": {"exec.eventlog": [EVENT, …], "output": [EVENT, …], "input": [EVENT, …]}}

`jobspec` is as submitted (RFC 25), `R` RFC 20, the logs RFC 18, 21 and 24. `output` has all of the output, also what lay in
files of its own. An EVENT that could not be read stands there as the text that it was. `quarantined` is there when the job was.
Readers pass over keys that they do not know; a change that they could not pass over is a new version.
"""

from __future__ import annotations

from typing import Any

import msgspec

from leveret.core.logcheck import Problem, Report, check
from leveret.errors import FormatError

FORMAT = "leveret-job-record"
VERSION = 1
_encode = msgspec.json.Encoder().encode


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and value.get("format") == FORMAT


def logs(record: dict[str, Any]) -> dict[str, bytes]:
    """name → text of each eventlog of a record. Raises FormatError."""
    version = record.get("version")
    if type(version) is not int or version > VERSION:
        raise FormatError(f"the record has version {version!r}, this Leveret knows up to {VERSION}")
    guest = record.get("guest", {})
    if not isinstance(guest, dict):
        raise FormatError("`guest` must be an object")
    found = {"eventlog": record.get("eventlog"), **{f"guest.{name}": log for name, log in guest.items()}}
    out: dict[str, bytes] = {}
    for name, log in found.items():
        if not isinstance(log, list):
            raise FormatError(f"`{name}` must be an array of events")
        out[name] = b"".join((one.encode() if isinstance(one, str) else _encode(one)) + b"\n" for one in log)
    return out


def check_record(record: dict[str, Any]) -> dict[str, Report]:
    """name → what is wrong with each eventlog of a record. Raises FormatError when it is no record that we can read."""
    reports = {name: check(text) for name, text in logs(record).items() if text or name == "eventlog"}
    if (why := record.get("quarantined")) and (report := reports["eventlog"]) and not report.problems:
        reports["eventlog"] = msgspec.structs.replace(report, problems=[Problem(1, f"quarantined: {why}")])
    return reports
