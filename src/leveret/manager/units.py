"""Records of the helpers (started, output, exited …) become events, exactly once.

A record's effects and the fact that it has been applied are one transaction; the helper is told to
forget it after the commit. Records that come again are dropped by their number.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from leveret.core import idset, taskmap
from leveret.core import jobid as jobids
from leveret.core.event import Event, encode
from leveret.core.transitions import INACTIVE
from leveret.manager import shellopts
from leveret.manager.entry import Entry, NodeAsk
from leveret.manager.ports import Batch
from leveret.manager.turn import Turn
from leveret.manager.worklog import WorkLog

if TYPE_CHECKING:
    from leveret.manager.manager import Manager

EXEC, OUTPUT, INPUT = "guest.exec.eventlog", "guest.output", "guest.input"
LOST_STATUS = 137 << 8  #: as killed by SIGKILL
FAILED_STATUS = 1 << 8  #: exit code 1
LOG_CRIT, LOG_ERR, LOG_WARNING = 2, 3, 4
#: stdin kept in the record of a job; what is beyond it is passed on, not kept
INPUT_RECORDED_MAX = 1 << 20
#: stdin bytes on their way to the tasks; more is held back at the client
INPUT_WINDOW = 256 << 10
_encode = msgspec.json.Encoder().encode
Record = dict[str, Any]


def line(timestamp: float, name: str, context: dict[str, Any] | None = None) -> bytes:
    return encode(Event(timestamp, name, context))


class Units:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.asked_at: dict[int, float] = {}
        self.work_log = WorkLog(manager)
        #: job → timer of its exit-timeout, from the exit of its first task
        self._exit_timers: dict[int, Any] = {}

    # ---- writing guest eventlogs -----------------------------------------------------------------

    def append(self, turn: Turn, entry: Entry, path: str, lines: list[bytes]) -> None:
        """Append RFC 18 lines to an eventlog of the guest space."""
        if lines:
            n = entry.lines.get(path, 1)
            entry.lines[path] = n + len(lines)
            turn.batch.guest(entry.job.id, path, n, len(lines), False, b"\n".join(lines) + b"\n")

    def append_extent(self, turn: Turn, entry: Entry, node: int, record: Record) -> None:
        n = entry.lines.get(OUTPUT, 1)
        entry.lines[OUTPUT] = n + 1
        body = _encode({"node": node, "file": record["file"], "start": record["start"], "end": record["end"]})
        turn.batch.guest(entry.job.id, OUTPUT, n, 1, True, body)

    def _header(self, entry: Entry, timestamp: float) -> bytes:
        count = entry.digest.ntasks
        return line(
            timestamp,
            "header",
            {
                "version": 1,
                "encoding": {"stdout": "UTF-8", "stderr": "UTF-8"},
                "count": {"stdout": count, "stderr": count},
                "options": {},
            },
        )

    # ---- records ---------------------------------------------------------------------------------

    def on_records(self, node: int, unit: str, records: list[Record]) -> None:
        """Apply the new ones of `records` in one turn."""
        manager = self.manager
        if (ours := manager.housekeeping.ask_of(unit, node)) is not None:
            manager.housekeeping.on_records(node, ours, records)
            return
        entry = manager.entry_of_unit(unit)
        ask = entry.asks.get((unit, node)) if entry is not None else None
        last = int(records[-1]["n"])
        given_up = ask is not None and ask.status is not None and last > ask.applied
        over = any(r["k"] == "exit" for r in records)
        if entry is None and manager.quarantine.on_records(node, unit, records):
            return
        if entry is None or ask is None or given_up or entry.job.state is INACTIVE:
            self.tell(node, unit, last, over)
            return
        records = [r for r in records if r["n"] > ask.applied]
        if not records:
            self.tell(node, unit, last, over)
            return
        ask.applied = last
        with Turn(manager, unit) as turn:
            if unit == entry.unit:
                self._job_records(turn, entry, ask, records)
            else:
                self._work_records(turn, entry, ask, records)
            entry.dirty.add((unit, node))
            turn.touched.setdefault(entry.job.id, entry)
            ended = ask.status is not None

            def told() -> None:
                ask.stored = max(ask.stored, last)
                manager.engine.ack(node, unit, last)
                if ended:
                    manager.engine.forget(node, unit)

            turn.after.append(told)

    def tell(self, node: int, unit: str, last: int, ended: bool) -> None:
        """Acknowledge what came again, once all that is on its way to the disk is there: its effects may be among it,
        and what a helper has forgotten it cannot say again."""
        batch = Batch()

        def told() -> None:
            self.manager.engine.ack(node, unit, last)
            if ended:
                self.manager.engine.forget(node, unit)

        batch.on_commit.append(told)
        self.manager.store.commit(batch)

    def _work_records(self, turn: Turn, entry: Entry, ask: NodeAsk, records: list[Record]) -> None:
        out: list[bytes] = []
        own = ask.spec is not None and ask.spec["kind"] == "tasks"  # its output is the job's
        for record in records:
            kind = record["k"]
            if kind == "output" and own:
                if data := _data({**record, "eof": False}):
                    self._head(entry, turn.now, out)
                    if "data" in data:
                        out.append(line(float(record["ts"]), "data", data))
            elif kind == "output":
                self.work_log.output(ask.unit, ask.node, record)
            elif kind == "start-failed":
                ask.tail = str(record["message"])
                self.work_log.say(ask.unit, ask.node, "stderr", ask.tail)
            elif kind == "log" and own:
                self._head(entry, turn.now, out)
                said = {"rank": ask.node, "level": record["level"], "message": record["message"]}
                out.append(line(float(record["ts"]), "log", said))
            elif kind == "timeout":
                ask.timed_out = True
            elif kind == "exit":
                self.work_log.ended(ask.unit, ask.node)
                self._work_ended(
                    turn, entry, ask, int(record["status"]), str(record.get("stderr_tail", "")) or ask.tail
                )
        self.append(turn, entry, OUTPUT, out)

    def _work_ended(self, turn: Turn, entry: Entry, ask: NodeAsk, status: int, tail: str) -> None:
        ask.status, ask.tail = status, tail
        result = ask.result(ask.unit in entry.unwanted)
        turn.after.append(lambda: self.manager.perform.ended(ask.unit, ask.node, result))

    def _job_records(self, turn: Turn, entry: Entry, ask: NodeAsk, records: list[Record]) -> None:
        exec_lines: list[bytes] = []
        out: list[bytes] = []
        first_exit: Record | None = None
        if not ask.started:
            turn.after.append(lambda: self.manager.perform.send_rest(entry))
        for record in records:
            kind = record["k"]
            ts = float(record["ts"])
            if kind in ("output", "log", "extent"):
                self._head(entry, ts, out)
            if kind == "output":
                out.append(line(ts, "data", _data(record)))
            elif kind == "log":
                context = {"rank": ask.node, "level": record["level"], "message": record["message"]}
                if "component" in record:
                    context["component"] = record["component"]
                out.append(line(ts, "log", context))
            elif kind == "start":
                ask.started = True
                ask.pids = list(record.get("pids") or ())
                if not entry.job.started and all(a.started for a in entry.job_asks()):
                    self._started(turn, entry, ask, ts, exec_lines, out)
            elif kind == "start-failed":
                if not entry.job.started:
                    self._started(turn, entry, ask, ts, exec_lines, out)
                message = str(record["message"])
                out.append(line(ts, "log", {"rank": ask.node, "level": LOG_CRIT, "message": message}))
                if entry.job.fatal is None:
                    turn.post(entry, "exception", self.manager.exception("exec", 0, message))
            elif kind == "refused":
                self._refused(turn, entry, ask, record, exec_lines, out)
            elif kind == "extent":
                self.append(turn, entry, OUTPUT, out)
                out = []
                self.append_extent(turn, entry, ask.node, record)
            elif kind == "task-exit":
                if not entry.job.started:  # a short task is over before another node has said that it began
                    self._started(turn, entry, ask, ts, exec_lines, out)
                entry.exits += 1
                if not entry.task_exit:
                    entry.task_exit = True
                    exec_lines.append(line(ts, "shell.task-exit", _task_exit(record)))
                    first_exit = record
                    if record["wait_status"] and self.manager.perform.shell(entry).exit_on_error:
                        self._end_by_exit(turn, entry, record["rank"], record["wait_status"], None, out)
            elif kind == "timeout":
                if not entry.timed_out:
                    entry.timed_out = True
                    turn.post(entry, "exception", self.manager.exception("timeout", 0, "resource allocation expired"))
            elif kind == "exit":
                self._node_ended(turn, entry, ask, ts, int(record["status"]), exec_lines, out)
        self.append(turn, entry, OUTPUT, out)
        self.append(turn, entry, EXEC, exec_lines)
        self._finish(turn, entry)
        if first_exit is not None and entry.digest.ntasks > 1 and entry.job.status is None:
            self._watch_exit(entry, float(first_exit["ts"]), first_exit["rank"], first_exit["wait_status"])

    def _refused(
        self, turn: Turn, entry: Entry, ask: NodeAsk, record: Record, exec_lines: list[bytes], out: list[bytes]
    ) -> None:
        """A node does not start the tasks: what Flux says when its shell cannot set up."""
        ts = min(float(record["ts"]), turn.now)  # what is said explains the exception, and so comes before it
        if not entry.job.started:
            self._started(turn, entry, ask, ts, exec_lines, out, set_up=False)
        leads = ask.node == min(a.node for a in entry.job_asks())
        for level, component, message in record["logs"] if leads or entry.job.fatal is None else ():
            context = {"rank": ask.node, "level": level, "message": message}
            out.append(line(ts, "log", {**context, "component": component} if component else context))
        if entry.job.fatal is None:
            turn.post(entry, "exception", self.manager.exception("exec", 0, str(record["note"])))

    # ---- the first task has exited -----------------------------------------------------------------

    def _watch_exit(self, entry: Entry, ts: float, rank: int, wait_status: int) -> None:
        timeout_s = self.manager.perform.shell(entry).exit_timeout_s
        if timeout_s is None:
            return
        jobid = entry.job.id
        if (old := self._exit_timers.pop(jobid, None)) is not None:
            old.cancel()
        self._exit_timers[jobid] = self.manager.clock.call_at(
            ts + timeout_s, lambda: self._exit_timeout(jobid, rank, wait_status)
        )

    def watch_exit_again(self, entry: Entry) -> None:
        """After a restart: the log says when the first task exited."""
        if not entry.task_exit or entry.job.status is not None or entry.digest.ntasks < 2:
            return
        for _n, _count, _extent, lines in self.manager.store.guest(entry.job.id, EXEC, limit=1000):
            for event in msgspec.json.decode(b"[" + b",".join(lines.splitlines()) + b"]"):
                if event["name"] == "shell.task-exit":
                    context = event["context"]
                    self._watch_exit(entry, event["timestamp"], context["rank"], context["wait_status"])

    def _exit_timeout(self, jobid: int, rank: int, wait_status: int) -> None:
        self._exit_timers.pop(jobid, None)
        entry = self.manager.entries.get(jobid)
        if entry is None or entry.job.status is not None or entry.job.fatal is not None:
            return
        if entry.exits >= entry.digest.ntasks:
            return  # no task is left; the job waits for its output
        with Turn(self.manager, entry.unit) as turn:
            out: list[bytes] = []
            self._head(entry, turn.now, out)
            timeout_s = self.manager.perform.shell(entry).exit_timeout_s
            self._end_by_exit(turn, entry, rank, wait_status, timeout_s, out)
            self.append(turn, entry, OUTPUT, out)

    def _end_by_exit(
        self, turn: Turn, entry: Entry, rank: int, wait_status: int, timeout_s: float | None, out: list[bytes]
    ) -> None:
        """One task has ended the job: its status is the job's."""
        if entry.job.fatal is not None or entry.rset is None:
            return
        nodes = zip(entry.rset.ranks.values(), self.manager.perform.layout(entry), strict=True)
        host = next((node.host for node, ranks in nodes if rank in ranks), "")
        command = self.manager.jobspec(entry.job.id)["tasks"][0]["command"][0]
        note = shellopts.exit_note(command, rank, host, wait_status, timeout_s)
        leader = min((ask.node for ask in entry.job_asks()), default=0)
        said = {"rank": leader, "level": LOG_CRIT, "component": "task-exit", "message": note}
        self._head(entry, turn.now, out)
        out.append(line(turn.now, "log", said))
        code = 128 + (wait_status & 0x7F) if wait_status & 0x7F else wait_status >> 8
        turn.post(entry, "exception", {**self.manager.exception("exec", 0, note), "wait_status": code << 8})

    def _map(self, entry: Entry) -> list[list[int]]:
        counts = self.manager.perform.task_counts(entry)
        placed = shellopts.place(self.manager.perform.shell(entry), counts)
        if placed is not None:
            return taskmap.encode_ranks([ranks for ranks in placed if ranks])
        return taskmap.encode([c for c in counts if c])

    def _head(self, entry: Entry, ts: float, out: list[bytes]) -> None:
        """The header stands first, whichever record comes first."""
        if OUTPUT not in entry.lines and not out:
            out.append(self._header(entry, ts))

    def _started(
        self,
        turn: Turn,
        entry: Entry,
        ask: NodeAsk,
        ts: float,
        exec_lines: list[bytes],
        out: list[bytes],
        set_up: bool = True,
    ) -> None:
        asks = entry.job_asks()
        if not set_up:
            asked = self.asked_at.pop(entry.job.id, ts)
            exec_lines += [line(asked, "init"), line(asked, "starting")]
            self._head(entry, ts, out)
            turn.post(entry, "start")
            return
        f58 = jobids.encode(entry.job.id, ascii=True)
        leader = min(a.node for a in asks)
        asked = self.asked_at.pop(entry.job.id, ts)
        exec_lines += [
            line(asked, "init"),
            line(asked, "starting"),
            line(
                ts,
                "shell.init",
                {"service": f"{entry.job.userid}-shell-{f58}", "leader-rank": leader, "size": len(asks)},
            ),
        ]
        if ask.started:
            exec_lines.append(line(ts, "shell.start", {"taskmap": {"version": 1, "map": self._map(entry)}}))
        self._head(entry, ts, out)
        if ask.started and (shell := self.manager.perform.shell(entry)) is not shellopts.PLAIN:
            self._redirected(turn, entry, shell, len(asks), ts, out)
        turn.post(entry, "start")

    def _redirected(
        self, turn: Turn, entry: Entry, shell: shellopts.Shell, nnodes: int, ts: float, out: list[bytes]
    ) -> None:
        """RFC 24 and 24's sibling for input: which streams are files, for all tasks together."""
        digest = entry.digest
        value_of = shellopts.job_tag(entry.job.id, digest.name, digest.ntasks, nnodes)
        ranks = "0" if digest.ntasks == 1 else f"[0-{digest.ntasks - 1}]"
        for stream, target in (("stdout", shell.out), ("stderr", shell.err)):
            if target is not None:
                path = shellopts.shown_path(target, value_of)
                out.append(line(ts, "redirect", {"stream": stream, "rank": ranks, "path": path}))
        if shell.input is not None:
            lines = [] if INPUT in entry.lines else [_input_header(ts)]
            lines.append(line(ts, "redirect", {"stream": "stdin", "rank": "all", "path": shell.input}))
            self.append(turn, entry, INPUT, lines)

    def _node_ended(
        self, turn: Turn, entry: Entry, ask: NodeAsk, ts: float, status: int, exec_lines: list[bytes], out: list[bytes]
    ) -> None:
        if not entry.job.started:
            self._started(turn, entry, ask, ts, exec_lines, out)
        if (fatal := entry.job.fatal) is not None and fatal.wait_status is not None:
            status = fatal.wait_status
        ask.status = status
        exec_lines.append(line(ts, "shell-exit", {"rank": ask.node, "wait_status": status}))
        statuses = [a.status for a in entry.job_asks()]
        if None not in statuses:
            exec_lines += [line(ts, "complete", {"status": _worst(entry, statuses)}), line(ts, "done")]

    def _finish(self, turn: Turn, entry: Entry) -> None:
        asks = entry.job_asks()
        statuses = [a.status for a in asks]
        if not asks or None in statuses or entry.job.status is not None:
            return
        turn.post(entry, "finish", {"status": _worst(entry, statuses)})
        if (timer := self._exit_timers.pop(entry.job.id, None)) is not None:
            timer.cancel()
        for ask in asks:
            if not ask.lost:  # what ends the job must still know which nodes are gone
                del entry.asks[(ask.unit, ask.node)]
                entry.dirty.add((ask.unit, ask.node))

    # ---- a helper is gone --------------------------------------------------------------------------

    def on_lost(self, node: int, host: str, incarnation: str) -> None:
        """Everything that this incarnation ran has been ended: say so, and never start it again."""
        self.manager.housekeeping.on_lost(node, incarnation)
        for entry in list(self.manager.entries.values()):
            for ask in list(entry.asks.values()):
                if ask.node == node and ask.incarnation == incarnation and ask.status is None:
                    self.lost(entry, ask, host)

    def lost(self, entry: Entry, ask: NodeAsk, host: str) -> None:
        """What was asked of this node has ended with it. Its streams are closed: nothing more comes of them."""
        with Turn(self.manager, ask.unit) as turn:
            turn.touched.setdefault(entry.job.id, entry)
            if ask.unit != entry.unit:
                ask.lost = True
                self._work_ended(turn, entry, ask, LOST_STATUS, f"helper lost on {host}")
                entry.dirty.add((ask.unit, ask.node))
                return
            note = f"helper lost on {host} (rank {ask.node})"
            ask.lost = True
            entry.dirty.add((ask.unit, ask.node))
            self._gone(turn, entry, ask, note, "node-failure")

    def unkillable(self, entry: Entry, ask: NodeAsk) -> None:
        """The tasks on this node live on whatever they are sent: the job ends without them."""
        if ask.status is not None or entry.job.status is not None:
            return
        host = self.manager.inventory.rset.ranks[ask.node].host
        with Turn(self.manager, ask.unit) as turn:
            turn.touched.setdefault(entry.job.id, entry)
            note = f"processes on {host} (rank {ask.node}) cannot be killed; given up"
            turn.post(entry, "exception", self.manager.exception("unkillable", 1, note))
            self._gone(turn, entry, ask, note, "unkillable")
            entry.dirty.add((ask.unit, ask.node))

    def _gone(self, turn: Turn, entry: Entry, ask: NodeAsk, note: str, cause: str) -> None:
        """Nothing more is heard of the tasks of a node: their streams are closed, and they count as killed."""
        exec_lines: list[bytes] = []
        out: list[bytes] = []
        turn.after.append(lambda: self.manager.perform.send_rest(entry))
        open_streams = self._open_streams(entry, ask)
        self._node_ended(turn, entry, ask, turn.now, LOST_STATUS, exec_lines, out)
        out.append(line(turn.now, "log", {"rank": ask.node, "level": LOG_CRIT, "message": note}))
        out += [line(turn.now, "data", {"stream": name, "rank": rank, "eof": True}) for name, rank in open_streams]
        if entry.job.fatal is None:
            turn.post(entry, "exception", self.manager.exception(cause, 0, note))
        self.append(turn, entry, OUTPUT, out)
        self.append(turn, entry, EXEC, exec_lines)
        self._finish(turn, entry)

    def _open_streams(self, entry: Entry, ask: NodeAsk) -> list[tuple[str, str]]:
        """(stream, rank) of the node's tasks that have not ended in the stored output (RFC 24: one end each)."""
        if not entry.job.started or entry.rset is None or ask.node not in entry.rset.ranks:
            return []
        ranks = self.manager.perform.layout(entry)[list(entry.rset.ranks).index(ask.node)]
        left = {(name, str(rank)): None for rank in ranks for name in ("stdout", "stderr")}
        at = 1
        while rows := self.manager.store.guest(entry.job.id, OUTPUT, at):
            for n, count, extent, lines in rows:
                at = n + count
                if extent:
                    where = msgspec.json.decode(lines)
                    if where["node"] == ask.node:
                        frames = self.manager.engine.read_output(ask.node, where["file"], where["start"], where["end"])
                        for frame in frames:
                            if frame.eof:
                                left.pop((frame.stream, str(frame.rank)), None)
                    continue
                for text in lines.splitlines():
                    context = msgspec.json.decode(text).get("context") or {}
                    if context.get("eof"):
                        left.pop((str(context.get("stream")), str(context.get("rank"))), None)
        return list(left)

    def on_progress(self, unit: str, data: dict[str, Any]) -> None:
        self.manager.perform.progressed(unit, data)

    # ---- standard input ----------------------------------------------------------------------------

    def stdin(self, entry: Entry, ranks: str, data: bytes, eof: bool) -> int:
        """Record stdin of a job and pass it on once it is on disk. Returns its end offset in bytes."""
        offset = entry.stdin_bytes
        entry.stdin_bytes += len(data)
        with Turn(self.manager, entry.unit) as turn:
            turn.touched.setdefault(entry.job.id, entry)
            lines = []
            if INPUT not in entry.lines:
                lines.append(_input_header(turn.now))
            if entry.stdin_recorded + len(data) <= INPUT_RECORDED_MAX or eof:
                context: dict[str, Any] = {"stream": "stdin", "rank": ranks}
                if data and entry.stdin_recorded + len(data) <= INPUT_RECORDED_MAX:
                    entry.stdin_recorded += len(data)
                    context |= _text(data)
                if eof:
                    context["eof"] = True
                lines.append(line(turn.now, "data", context))
            self.append(turn, entry, INPUT, lines)
            turn.after.append(lambda: self._send_stdin(entry, offset, ranks, data, eof))
        return entry.stdin_bytes

    def _send_stdin(self, entry: Entry, offset: int, ranks: str, data: bytes, eof: bool) -> None:
        wanted = _ranks(ranks)
        for ask in entry.job_asks():
            if ask.status is None:
                self.manager.engine.stdin(ask.node, ask.unit, offset, wanted, data, eof)

    def replay_stdin(self, entry: Entry, ask: NodeAsk, received: int) -> None:
        """Send again what a helper has not got: to a unit just started, or after a restart."""
        at, offset = 1, 0
        while rows := self.manager.store.guest(entry.job.id, INPUT, at):
            for n, count, _extent, lines in rows:
                at = n + count
                for event in msgspec.json.decode(b"[" + b",".join(lines.splitlines()) + b"]"):
                    context = event.get("context", {})
                    if event["name"] != "data":
                        continue
                    data = _bytes(context)
                    if offset + len(data) > received or context.get("eof"):
                        ranks = _ranks(context.get("rank", "all"))
                        self.manager.engine.stdin(ask.node, ask.unit, offset, ranks, data, bool(context.get("eof")))
                    offset += len(data)

    def on_stdin_ack(self, node: int, unit: str, offset: int) -> None:
        entry = self.manager.entry_of_unit(unit)
        ask = entry.asks.get((unit, node)) if entry is not None else None
        if entry is not None and ask is not None:
            ask.stdin_acked = max(ask.stdin_acked, offset)
            self.manager.feed.publish((entry.job.id,))

    def stdin_outstanding(self, entry: Entry) -> int:
        """Bytes taken from clients that not every node has handed to its tasks."""
        asks = [ask for ask in entry.job_asks() if ask.status is None]
        if not asks:
            return 0 if entry.job.status is not None else entry.stdin_bytes
        return entry.stdin_bytes - min(ask.stdin_acked for ask in asks)


def _input_header(timestamp: float) -> bytes:
    header = {"version": 1, "encoding": {"stdin": "UTF-8"}, "count": {"stdin": 1}, "options": {}}
    return line(timestamp, "header", header)


def _worst(entry: Entry, statuses: list[int | None]) -> int:
    """The job's wait status: the largest of its nodes'; tasks that a fatal exception ended have not succeeded (Flux)."""
    if (fatal := entry.job.fatal) is not None and fatal.wait_status is not None:
        return fatal.wait_status
    worst = max(s for s in statuses if s is not None)
    return FAILED_STATUS if worst == 0 and entry.job.fatal is not None else worst


def _ranks(text: str) -> str | list[int]:
    """As the helper takes them: "all", or the ranks of an idset."""
    return text if text == "all" else idset.parse(text)


def _text(data: bytes) -> dict[str, Any]:
    try:
        return {"data": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(data).decode("ascii")}


def _bytes(context: dict[str, Any]) -> bytes:
    data = context.get("data", "")
    return base64.b64decode(data) if context.get("encoding") == "base64" else str(data).encode("utf-8")


def _data(record: Record) -> dict[str, Any]:
    context: dict[str, Any] = {"stream": record["stream"], "rank": str(record["rank"])}
    if record.get("data"):
        if "encoding" in record:
            context["encoding"] = record["encoding"]
        context["data"] = record["data"]
    if record.get("eof"):
        context["eof"] = True
    return context


def _task_exit(record: Record) -> dict[str, Any]:
    signaled = int(record["signaled"])
    return {
        "localid": record["local"],
        "rank": record["rank"],
        "state": "Exited",
        "pid": record["pid"],
        "wait_status": record["wait_status"],
        "signaled": signaled,
        "exitcode": record["exitcode"],
    }
