"""What processes of prologs, epilogs, housekeeping and copiers print goes to the instance's log, a line at a time:
`ƒID: prolog: HOST (rank N): stderr: text`."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from leveret.core import jobid as jobids
from leveret.errors import ConfigError

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

LINE_MAX = 4096
Key = tuple[str, int, str]  #: unit, node, stream


class WorkLog:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self._partial: dict[Key, str] = {}  #: the beginning of a line whose end has not come
        self._hosts = {rank: host for rank, host, _cores in manager.engine.hosts()}
        self._ignore: list[re.Pattern[str]] = []  #: [job-manager.perilog] log-ignore
        config = manager.config
        for pattern in config.job_manager.perilog.log_ignore:
            try:
                self._ignore.append(re.compile(pattern))
            except re.error as error:
                why = f"job-manager.perilog.log-ignore: `{pattern}`: {error}"
                raise ConfigError(f"{config.source}: {why}", path=config.source) from None

    def output(self, unit: str, node: int, record: dict[str, Any]) -> None:
        """An output record of a work unit."""
        text = str(record.get("data", ""))
        if record.get("encoding") == "base64":
            text = base64.b64decode(text).decode("utf-8", "backslashreplace")
        key = (unit, node, str(record["stream"]))
        *lines, rest = (self._partial.pop(key, "") + text).split("\n")
        for line in lines:
            self.say(unit, node, key[2], line)
        if rest and (record.get("eof") or len(rest) > LINE_MAX):
            self.say(unit, node, key[2], rest)
        elif rest:
            self._partial[key] = rest

    def ended(self, unit: str, node: int) -> None:
        """Nothing follows."""
        for stream in ("stdout", "stderr"):
            if rest := self._partial.pop((unit, node, stream), ""):
                self.say(unit, node, stream, rest)

    def say(self, unit: str, node: int, stream: str, text: str) -> None:
        _kind, jobid, name = unit.split("/", 2)
        if name in ("prolog", "epilog") and any(pattern.search(text) for pattern in self._ignore):
            return
        where = f"{self._hosts.get(node, '?')} (rank {node})"
        said = f"{jobids.encode(int(jobid))}: {name}: {where}: {stream}: {text[:LINE_MAX]}"
        log = self.manager.log.error if stream == "stderr" else self.manager.log.info
        log(said, component="job-manager")
