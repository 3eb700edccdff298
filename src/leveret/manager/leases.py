"""Leases of storage in the manager: rows written in the turn that allocates, gone only when somebody confirms it.

Who drives the storage (a plugin) says what there is (`define`) and what a job needs (`need`, before it asks for resources).
The lease is made with `alloc`; `gone` ends it, `give_up` makes it a debt that `gone` repays later.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.errors import InvalidError
from leveret.manager.turn import Turn
from leveret.sched.storage import Lease, Need, Server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.manager.manager import Manager

_encode = msgspec.json.Encoder().encode
_need = msgspec.json.Decoder(Need).decode
_lease = msgspec.json.Decoder(Lease).decode
#: key of a job's need among its values
KEY = "storage.need"
KIND = "lease"


class Leases:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.needs: dict[int, Need] = {}  #: of jobs that have no lease yet

    def recover(self) -> None:
        for _, value in self.manager.store.notes(KIND):
            self.manager.queue.storage.restore(_lease(value))
        for jobid, _, value in self.manager.store.kv_of_active(KEY):
            if jobid not in self.manager.queue.storage.leases:
                self.needs[jobid] = _need(value)

    def define(self, servers: Iterable[Server]) -> None:
        """The servers that there are now."""
        self.manager.queue.storage.define(servers)
        self.manager.want_schedule()

    def set_state(self, name: str, up: bool) -> None:
        self.manager.queue.storage.set_state(name, up)
        self.manager.want_schedule()

    def need(self, jobid: int, need: Need) -> None:
        """What a job needs beside its nodes. Raises InvalidError when these servers can never give it.

        Within an open turn it is stored with that turn.
        """
        entry = self.manager.entry(jobid)
        if shortage := self.manager.queue.storage.shortage(need, entry.digest.nnodes):
            raise InvalidError(shortage)
        for gone in [other for other in self.needs if other not in self.manager.entries]:
            del self.needs[gone]
        turn = self.manager.turn
        if turn is not None:
            self._put(turn, jobid, need)
            return
        with Turn(self.manager, "storage") as turn:
            self._put(turn, jobid, need)
        if jobid in self.manager.queue:
            self.manager.scheduling.request(entry)

    def _put(self, turn: Turn, jobid: int, need: Need) -> None:
        turn.batch.put(jobid, KEY, _encode(need))
        before = self.needs.get(jobid)
        self.needs[jobid] = need

        def undo() -> None:
            if before is None:
                self.needs.pop(jobid, None)
            else:
                self.needs[jobid] = before

        turn.undo.append(undo)

    def allocated(self, turn: Turn, jobid: int) -> None:
        """The lease that the scheduler made goes into the turn of `alloc`."""
        lease = self.manager.queue.storage.leases.get(jobid)
        if lease is not None and jobid in self.needs:
            self._write(turn, lease)
            turn.after.append(partial(self._leased, jobid))

    def _leased(self, jobid: int) -> None:
        self.needs.pop(jobid, None)

    @staticmethod
    def _write(turn: Turn, lease: Lease) -> None:
        turn.op("INSERT OR REPLACE INTO note VALUES(?, ?, ?)", KIND, str(lease.jobid), _encode(lease))

    def undone(self, jobid: int) -> None:
        """`alloc` did not happen."""
        if jobid in self.manager.queue.storage.leases:
            self.manager.queue.storage.gone(jobid)

    def gone(self, jobid: int) -> None:
        """The storage is confirmed to be gone. Raises NotFoundError. Its bytes are given to others only once that is on disk."""
        storage = self.manager.queue.storage
        lease = storage.gone(jobid)
        storage.restore(lease)
        turn = self.manager.turn
        if turn is not None:
            self._gone(turn, jobid)
            return
        with Turn(self.manager, "storage") as turn:
            self._gone(turn, jobid)

    def _gone(self, turn: Turn, jobid: int) -> None:
        turn.op("DELETE FROM note WHERE kind=? AND name=?", KIND, str(jobid))
        turn.after.append(lambda: self._free(jobid))

    def _free(self, jobid: int) -> None:
        if jobid in self.manager.queue.storage.leases:
            self.manager.queue.storage.gone(jobid)
            self.manager.want_schedule()

    def give_up(self, jobid: int, note: str) -> None:
        """Nobody waits for it any longer: a debt. Raises NotFoundError."""
        storage = self.manager.queue.storage
        before = storage.leases.get(jobid)
        lease = storage.give_up(jobid, note, self.manager.clock.time())
        turn = self.manager.turn
        if turn is not None:
            self._write(turn, lease)
            if before is not None:
                turn.undo.append(partial(storage.restore, before))
            return
        with Turn(self.manager, "storage") as turn:
            self._write(turn, lease)

    def describe(self) -> dict[str, Any]:
        """{servers: [{name, capacity, free, up, ranks}], leases: [{jobid, state, since, amounts, note}]}."""
        storage = self.manager.queue.storage
        servers = [
            {"name": n, "capacity": s.capacity, "free": storage.free(n), "up": storage.up[n], "ranks": list(s.ranks)}
            for n, s in storage.servers.items()
        ]
        return {"servers": servers, "leases": [lease._asdict() for lease in storage.leases.values()]}
