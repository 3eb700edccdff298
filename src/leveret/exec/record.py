"""Messages between helper and daemon, and the numbered records of a unit.

Standard library only.
"""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_length = struct.Struct(">I").pack


def encode(obj: Json) -> bytes:
    """Compact UTF-8 JSON. The strings in ``obj`` are valid Unicode: see ``clean``."""
    return _encode(obj).encode()


def message(obj: Json) -> bytes:
    """A message as it goes over the socket: 4-byte big-endian length, then JSON."""
    text = _encode(obj).encode()
    return _length(len(text)) + text


def clean(text: str) -> str:
    """``text`` with bytes that were no UTF-8 (and so cannot go into JSON) shown as ``?``."""
    return text.encode("utf-8", "replace").decode()


class Records:
    """What the daemon is told of one unit: numbered from 1, kept until acknowledged, in order."""

    def __init__(self, unit: str, emit: Callable[[bytes], None]) -> None:
        self._unit = unit
        self._emit = emit
        #: number of the last record
        self.n = 0
        #: (number, message) of every record not yet acknowledged
        self.kept: deque[tuple[int, bytes]] = deque()

    def add(self, kind: str, fields: Json) -> int:
        """Number, keep and send a record; its number."""
        n = self.n = self.n + 1
        blob = message({"t": "rec", "unit": self._unit, "n": n, "ts": time.time(), "k": kind, **fields})
        self.kept.append((n, blob))
        self._emit(blob)
        return n

    def ack(self, n: int) -> None:
        """The daemon has stored all records up to ``n``."""
        kept = self.kept
        while kept and kept[0][0] <= n:
            kept.popleft()
