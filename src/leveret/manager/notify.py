"""One notification per job, at its real end, with the final verdict: to a web hook, to a command, or both.

What is to be told is written in the turn of `clean` (the table `note`, kind `notify`), so that no crash can lose it, and
removed once it was delivered. A delivery carries the job's id as its key and the number of the attempt: where the daemon
was killed between the delivery and its removal, the receiver hears of it a second time, and can tell.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from leveret.config import duration_error
from leveret.core import duration
from leveret.errors import FormatError
from leveret.manager.ports import Batch

if TYPE_CHECKING:
    from leveret.manager.turn import Turn

_encode = msgspec.json.Encoder().encode
KIND = "notify"
#: deliveries that may be under way at a time
AT_A_TIME = 8
#: before the second attempt, doubled from one to the next
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 300.0


class Delivery:
    """One message that is to be delivered: its name is JOBID/CHANNEL; `since`: seconds since the epoch."""

    __slots__ = ("attempt", "name", "since")

    def __init__(self, name: str, since: float, attempt: int = 1) -> None:
        self.name = name
        self.since = since
        self.attempt = attempt


class Courier(Protocol):
    """Who delivers (exec/courier.py)."""

    async def deliver(self, channel: str, body: bytes, jobid: str, attempt: int) -> str:
        """ "" when the receiver took it, else why not. `channel`: webhook or command."""


class Notifier:
    """The outbox. `tell` joins the turn of `clean`; delivery begins once that is on disk."""

    def __init__(self, manager: Any, courier: Courier | None) -> None:
        self.manager = manager
        self.courier = courier
        conf = manager.config.notify
        try:
            self.give_up_s = duration.parse(conf.give_up)
        except FormatError as error:
            raise duration_error(manager.config, "notify.give-up", error.message) from None
        self.channels = [name for name in ("webhook", "command") if getattr(conf, name)]
        self.results = frozenset(conf.results)
        self._waiting: deque[Delivery] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, turn: Turn, final: dict[str, Any]) -> None:
        """A job is over: `final` is the record that every door shows of it."""
        if not self.channels or self.courier is None or (self.results and final["result"] not in self.results):
            return
        body = _encode({"event": "clean", "job": final})
        names = [f"{final['id']}/{channel}" for channel in self.channels]
        for name in names:
            turn.op("INSERT OR REPLACE INTO note VALUES(?,?,?)", KIND, name, body)
        turn.after.append(lambda: self._queue([Delivery(name, self.manager.clock.time()) for name in names]))

    def resume(self) -> None:
        """What an earlier daemon has not delivered, or not known to be. Call before any job goes on."""
        now = self.manager.clock.time()
        for name in self.manager.store.note_names(KIND):
            if name.partition("/")[2] in self.channels and self.courier is not None:
                self._queue([Delivery(name, now, attempt=2)])  # the first may have been under way
            else:  # the configuration has changed: nobody is to be told any more
                self._drop(name)

    def _queue(self, deliveries: list[Delivery]) -> None:
        self._waiting.extend(deliveries)
        while self._waiting and len(self._tasks) < AT_A_TIME:
            task = asyncio.get_running_loop().create_task(self._deliver(self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._queue([])

    async def _deliver(self, item: Delivery) -> None:
        assert self.courier is not None
        log = self.manager.log
        jobid, _, channel = item.name.partition("/")
        body = self.manager.store.note(KIND, item.name)
        if body is None:
            return
        why = await self.courier.deliver(channel, body, jobid, item.attempt)
        if not why:
            self._drop(item.name)
            return
        delay_s = min(RETRY_FIRST_S * 2 ** (item.attempt - 1), RETRY_MAX_S)
        if self.manager.clock.time() - item.since + delay_s > self.give_up_s:
            log.error("notification given up", job=jobid, channel=channel, attempt=item.attempt, why=why)
            self._drop(item.name)
            return
        log.warning("notification not delivered yet", job=jobid, channel=channel, attempt=item.attempt, why=why)
        item.attempt += 1
        self.manager.clock.call_at(self.manager.clock.time() + delay_s, lambda: self._queue([item]))

    def _drop(self, name: str) -> None:
        batch = Batch()
        batch.ops.append(("DELETE FROM note WHERE kind=? AND name=?", (KIND, name)))
        self.manager.store.commit(batch)

    async def shut_down(self, patience_s: float = 2.0) -> None:
        """Let what is under way end, for a moment; the rest is taken up by the next daemon."""
        self._waiting.clear()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=patience_s)
            for task in left:
                task.cancel()
