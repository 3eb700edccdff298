"""One unit: the processes of one ask, and everything the daemon is told about them.

A unit moves through PHASES, never back::

    queued    known, nothing started
    running   at least one task has not exited
    ending    all tasks have exited; what they left behind is being killed
    draining  no process is left; pipes are read to their end, output is written
    closing   file forced to disk and temporary folder removed, on the worker thread
    ended     the exit record exists; records wait to be acknowledged

A spec is the object that ``start`` carries::

    kind "tasks"|"work"   work has one task, and JSON objects on its stdout are progress
    argv [str]   cwd str|null   env {str: str}   umask int|null   setpgrp bool
    env_key str            of an ``env`` message: ``env`` is added to that
    tasks [{rank int, local int, env {str: str}}]      env is added to the unit's
    duration_s float|null   kill_timeout_s float       the time limit, and from SIGALRM to SIGKILL
    limit_signal int       sent at the time limit in place of SIGALRM
    output {memory_max int, limit_bytes int|null, file str, unbuffered bool}     see output.py
    stdin "pipe"|"null"|"file"     of a file: ``input``, its path
    tmpdir str|null       made before (0700), removed with its contents at the end
    log str|null          a file to which output is appended as well

and, if there is need (``manager/shellopts.py`` makes them)::

    cores [int]           the unit's cores of the node: tasks are bound to the CPUs that stand for them
    rlimit {name: int}    soft limits; -1 is none
    redirect {paths [str], append bool, label [bool, bool]}     output to files; of a task: redirect [stdout, stderr],
                          places in paths or null
    archive {name: {mode, data, encoding}}      files that are made in tmpdir (RFC 37)
    signal {signum, timeleft_s, log bool}       sent once, before the time limit
    pty {ranks [int]|"all", size [rows, columns]}     tasks with a terminal
    logs [[level, component, message]]          said when the tasks have started
    verbose int           say more
    refusal {note, status, logs}                start nothing
    of a task: argv [str], cores [int] or cpus [int] in place of the unit's

What is told is a row of numbered records (``record.py``), each with ``k``::

    log           {rank, level, message}                 anywhere
    start         {pids}                                 all tasks have been spawned, or else
    start-failed  {rank, errno, message, exitcode}       127 not found, 126 not executable and all else
    refused       {rank, note, status, logs}             nothing was started: files or options cannot be
    output        {rank, stream, data, encoding?, eof?}  encoding is "base64" if data is no UTF-8
    extent        {file, start, end}                     a range of the output file, in bytes
    timeout       {}                                     the time limit has expired; SIGALRM (or limit_signal) was sent
    task-exit     {rank, local, pid, wait_status, signaled, exitcode}   128+S when killed by signal S
    exit          {status, stderr_tail?}                 the last: the largest exit code << 8; of work its wait status

Their number and size are bounded by ``output.py``.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any, Protocol

from . import procs, pty, spawn
from .output import Output, OutputHost, Timer, WorkOutput
from .record import Json, Records, clean
from .stream import StdinPipe

PHASES = ("queued", "running", "ending", "draining", "closing", "ended")

#: How long a pipe is read that somebody outside the unit holds open, after the unit's processes are gone.
DRAIN_S = 5.0
#: Between attempts to kill what is left, at first; then doubled up to the maximum.
SWEEP_FIRST_S = 0.05
KILL_REPEAT_S_MAX = 300.0


class Host(OutputHost, Protocol):
    """What a unit needs of the helper."""

    incarnation: str
    devnull: int
    files: procs.OpenFiles
    surroundings: spawn.Surroundings
    #: while it is set, what is emitted may wait a moment for company
    patient: bool

    def emit(self, unit: Unit, blob: bytes) -> None:
        """Send a record now, if a daemon follows the unit."""

    def spawned(self, task: Task) -> None:
        """Tell the unit when ``task.pid`` exits."""

    def settle_later(self, unit: Unit) -> None:
        """Call ``unit.settle()`` at the end of this pass."""

    def sweep_later(self, unit: Unit) -> None:
        """Look, in this pass, for processes that the unit left behind, until ``unit.swept()``."""

    def progressed(self, unit: Unit) -> None:
        """Send ``unit.progress`` at the end of this pass, if no newer one comes."""

    def progress_now(self, unit: Unit) -> None:
        """Send it now, if it was to be sent: nothing follows the exit record."""

    def stdin_moved(self, unit: Unit) -> None:
        """Acknowledge stdin at the end of this pass."""

    def discard(self, path: str) -> None:
        """Remove a folder soon, with all that is in it."""

    def offload(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run ``work`` on the worker thread, then ``then`` in the loop."""

    def ended(self, unit: Unit) -> None:
        """The unit has ended."""


class Task:
    """One process of a unit."""

    __slots__ = ("local", "pid", "rank", "stdin", "unit")

    def __init__(self, unit: Unit, rank: int, local: int, pid: int, stdin: StdinPipe | None) -> None:
        self.unit = unit
        self.rank = rank
        self.local = local
        #: 0 once reaped: never a process id that may have been reused
        self.pid = pid
        self.stdin = stdin


class Unit:
    """See the module. ``spec`` is the one of the ``start`` message."""

    def __init__(self, host: Host, name: str, spec: Json) -> None:
        self._host = host
        self.name = name
        self.phase = "queued"
        self.records = Records(name, lambda blob: host.emit(self, blob))
        #: whom records are sent to: the helper's business
        self.follower: object | None = None
        #: to be dropped when it ends
        self.forgotten = False
        #: last progress object of a unit of kind ``work``
        self.progress: Json | None = None
        #: bytes of the stdin log received, and told as written
        self.stdin_received = 0
        self.stdin_told = 0
        self._stdin_eof = False
        #: sessions that tasks lead or led, for the sweep
        self.sessions: set[int] = set()
        self._spec: Json | None = spec
        self._group = bool(spec.get("setpgrp", True))
        self._kill_timeout_s = float(spec.get("kill_timeout_s") or 5.0)
        self._limit_signal = int(spec.get("limit_signal") or signal.SIGALRM)
        output = spec.get("output") or {}
        self._output: Output
        if spec.get("kind") == "work":
            self._output = WorkOutput(host, self.records, name, output, self._changed, self._progressed)
        else:
            self._output = Output(host, self.records, name, output, self._changed)
        self._tasks: list[Task] = []
        #: tasks that have not exited
        self._live = 0
        self._status = 0
        self._start_failed = False
        self._timed_out = False
        #: SIGKILL was asked for, or its time has come: output may be lost if the disk is full
        self._killed = False
        self._tmpdir: str | None = None
        #: what the spec's ``env`` is added to
        self.base_env: dict[bytes, bytes] = {}
        self._limit_timer: Timer | None = None
        self._kill_timer: Timer | None = None
        self._kill_at_s = 0.0
        self._kill_interval_s = 0.0
        self._sweep_timer: Timer | None = None
        self._sweep_interval_s = SWEEP_FIRST_S
        self._drain_timer: Timer | None = None
        #: {signum, timeleft_s, log} of the warning before the time limit, until it was sent
        self._warning: Json | None = spec.get("signal")
        self._warning_timer: Timer | None = None
        #: ranks with a terminal: "all", or a list
        self._terminals: Any = (spec.get("pty") or {}).get("ranks", ())
        self._verbose = bool(spec.get("verbose"))

    def ack(self, n: int) -> None:
        """The daemon has stored all records up to ``n``."""
        self.records.ack(n)
        self._output.acked(n)

    def _changed(self) -> None:
        self._host.settle_later(self)

    def _progressed(self, progress: Json) -> None:
        self.progress = progress
        self._host.progressed(self)

    # ---- start

    def start(self) -> None:
        """Spawn all tasks. Never raises: what goes wrong becomes a start-failed record."""
        if self.phase != "queued":
            return
        self.phase = "running"
        spec, self._spec = self._spec, None
        assert spec is not None
        command, rank = "", 0
        try:
            tasks = spec.get("tasks") or [{"rank": 0, "local": 0}]
            rank = int(tasks[0]["rank"])
            self._prepare(spec, rank)
            command = str(spec["argv"][0])
            settings = spawn.Settings(spec, self._host.surroundings)
            self._bind(settings.cpus)
            try:
                for item in tasks:
                    rank = int(item["rank"])
                    self._spawn(spec, item, rank, settings)
            finally:
                self._unbind(settings.cpus)
        except spawn.Refused as refused:
            self._start_failed = True
            self._status = refused.status
            self.records.add("refused", {"rank": rank, **refused.fields})
        except OSError as error:
            number = error.errno or errno.EINVAL
            exitcode = 127 if number == errno.ENOENT and command else 126
            self._fail(rank, number, exitcode, command or str(error.filename), os.strerror(number))
        except Exception as error:  # a spec that cannot be: a NUL in an argument, a missing key
            self._fail(rank, errno.EINVAL, 126, command or "invalid spec", f"{type(error).__name__}: {error}")
        else:
            self._host.patient = True
            self.records.add("start", {"pids": [task.pid for task in self._tasks]})
            self._host.patient = False
            self._say(spec.get("logs"))
            duration = spec.get("duration_s")
            if duration is not None:
                self.limit(float(duration))
        if not self._live:
            self._all_exited()

    def _say(self, logs: list[Any] | None) -> None:
        for level, component, text in logs or ():
            self._output.log(0, level, text, component=component)

    def _prepare(self, spec: Json, rank: int) -> None:
        refusal = spec.get("refusal")
        if refusal:
            raise spawn.Refused(refusal["note"], refusal["status"], refusal["logs"])
        tmpdir = spec.get("tmpdir")
        if tmpdir:
            spawn.make_private_dir(tmpdir)
            self._tmpdir = tmpdir
        log = spec.get("log")
        if log:
            try:
                self._output.copy_to(log)
            except OSError as error:
                self._output.log(rank, 3, f"host {self._host.host}: {log}: {error.strerror}")
        redirect, path = spec.get("redirect"), spec.get("input")
        if redirect or path:
            self._prepare_files(spec, rank, redirect, path)
        archive = spec.get("archive")
        if archive and tmpdir:
            spawn.unpack(tmpdir, archive)

    def _prepare_files(self, spec: Json, rank: int, redirect: Json | None, path: str | None) -> None:
        """Paths are relative to the tasks' folder, so it is settled first which that is."""
        cwd = spec.get("cwd") or "/"
        if cwd != spawn.CWD_FALLBACK and (cause := spawn.chdir_problem(cwd)) is not None:
            self._fall_back(spec, rank, cwd, cause)
        cwd = spec.get("cwd") or "/"
        if path:
            os.close(spawn.open_input(cwd, path))
        if redirect:
            umask = spec.get("umask")
            try:
                self._output.redirect(redirect, cwd, 0o022 if umask is None else int(umask))
            except OSError as error:
                raise spawn.cannot_redirect(error) from None

    def _bind(self, cpus: frozenset[int] | None) -> None:
        """Our own CPUs, which tasks inherit."""
        if cpus is not None:
            try:
                os.sched_setaffinity(0, cpus)
            except OSError:
                pass  # the CPUs have been taken from us meanwhile

    def _unbind(self, cpus: frozenset[int] | None) -> None:
        if cpus is not None:
            self._bind(frozenset(self._host.surroundings.all_cpus))

    def _spawn(self, spec: Json, item: Json, rank: int, settings: spawn.Settings) -> None:
        host = self._host
        own: dict[str, str] = {**(spec.get("env") or {}), **(item.get("env") or {})}
        own[procs.MARKER] = f"{host.incarnation}/{self.name}"
        env = {**self.base_env, **spawn.encode_env(own)}
        ours: list[int] = []
        theirs: list[int] = []
        terminal = bool(self._terminals) and (self._terminals == "all" or rank in self._terminals)
        argv = item.get("argv") or spec["argv"]
        try:
            if terminal:
                stdout, stdout_write = pty.open_pty((spec.get("pty") or {}).get("size"))
                ours.append(stdout)
                theirs.append(stdout_write)
                stderr, stderr_write = -1, stdout_write
            if spec.get("stdin") == "file":
                stdin, write = spawn.open_input(spec.get("cwd") or "/", spec["input"]), -1
                theirs.append(stdin)
            elif terminal:
                stdin, write = stdout_write, -1
            elif spec.get("stdin") == "pipe":
                stdin, write = os.pipe2(os.O_CLOEXEC)
                ours.append(write)
                theirs.append(stdin)
            else:
                stdin, write = host.devnull, -1
            if not terminal:
                stdout, stdout_write = os.pipe2(os.O_CLOEXEC)
                ours.append(stdout)
                theirs.append(stdout_write)
                stderr, stderr_write = os.pipe2(os.O_CLOEXEC)
                ours.append(stderr)
                theirs.append(stderr_write)
            cpus = self._own_cpus(item)
            self._bind(cpus)
            try:
                fds = (stdin, stdout_write, stderr_write)
                pid = self._popen(spec, argv, env, rank, fds, settings.limits, terminal)
            finally:
                if cpus is not None:
                    self._bind(settings.cpus or frozenset(host.surroundings.all_cpus))
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        pipe: StdinPipe | None = None
        if write >= 0:
            pipe = StdinPipe(host, write, rank, lambda: host.stdin_moved(self))
        elif terminal and spec.get("stdin") == "pipe":
            pipe = pty.PtyInput(host, stdout, rank, lambda: host.stdin_moved(self))
        task = Task(self, rank, int(item.get("local", 0)), pid, pipe)
        self._tasks.append(task)
        self._live += 1
        if self._group or terminal:
            self.sessions.add(pid)
        host.spawned(task)
        self._output.open(rank, stdout, stderr, item.get("redirect"))

    def _own_cpus(self, item: Json) -> frozenset[int] | None:
        if "cores" in item:
            return self._host.surroundings.cpus_of(item["cores"])
        return self._host.surroundings.among(item["cpus"]) if "cpus" in item else None

    def _popen(
        self,
        spec: Json,
        argv: list[str],
        env: dict[bytes, bytes],
        rank: int,
        fds: tuple[int, int, int],
        limits: list[tuple[int, int]],
        terminal: bool,
    ) -> int:
        cwd = spec.get("cwd") or "/"
        try:
            return spawn.popen(spec, argv, env, cwd, self._host.files, *fds, limits, terminal)
        except spawn.CannotChdir as error:
            if cwd == spawn.CWD_FALLBACK:
                raise error.cause from None
            self._fall_back(spec, rank, cwd, error.cause)
        return self._popen(spec, argv, env, rank, fds, limits, terminal)

    def _fall_back(self, spec: Json, rank: int, cwd: str, cause: OSError) -> None:
        text = f"host {self._host.host}: Could not change dir to {cwd}: {cause.strerror}"
        self._output.log(rank, 3, f"{text}. Going to {spawn.CWD_FALLBACK} instead")
        spec["cwd"] = spawn.CWD_FALLBACK  # for the other tasks too, and said once

    def _fail(self, rank: int, number: int, exitcode: int, command: str, reason: str) -> None:
        self._start_failed = True
        self._status = exitcode << 8
        text = clean(f"task {rank} (host {self._host.host}): start failed: {command}: {reason}")
        self.records.add("start-failed", {"rank": rank, "errno": number, "message": text, "exitcode": exitcode})
        self.kill()

    # ---- signals and limits

    def signal(self, signum: int, escalate_s: float | None) -> None:
        """Signal every live task's process group; SIGKILL to everything after ``escalate_s`` seconds, if given."""
        self.start()
        if signum == signal.SIGKILL:
            self._killed = True
        if self.phase != "running":
            return
        self._signal(signum)
        if escalate_s is not None:
            self._kill_after(float(escalate_s))

    def _signal(self, signum: int) -> None:
        for task in self._tasks:
            if not task.pid:
                continue
            if self._group:
                procs.kill_group(task.pid, signum)
            else:
                below = procs.tree(task.pid)[1:]
                procs.kill_pid(task.pid, signum)
                procs.kill(below, signum)

    def limit(self, remaining_s: float | None) -> None:
        """The time limit ends ``remaining_s`` seconds from now; None takes it away. No effect once it has expired."""
        if self._limit_timer is not None:
            self._limit_timer.cancel()
            self._limit_timer = None
        if self._warning_timer is not None:
            self._warning_timer.cancel()
            self._warning_timer = None
        if remaining_s is not None and self.phase == "running" and not self._timed_out:
            self._limit_timer = self._host.at(procs.boottime() + remaining_s, self._expired)
            if self._warning is not None:
                left_s = min(float(self._warning["timeleft_s"]), remaining_s)
                self._warning_timer = self._host.at(procs.boottime() + remaining_s - left_s, lambda: self._warn(left_s))

    def _warn(self, left_s: float) -> None:
        """The time limit comes near: the signal that was asked for, once."""
        self._warning_timer = None
        warning, self._warning = self._warning, None
        if warning is None or self.phase != "running":
            return
        signum = int(warning["signum"])
        if warning.get("log"):
            name = signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
            text = f"job will expire in {left_s:.1f}s, sending {name} to job"
            self._output.log(0, 6, text, component="signal")
        self._signal(signum)

    def winsize(self, size: list[int]) -> None:
        """The client's terminal has another size: rows and columns."""
        self.start()
        for task in self._tasks:
            if self._terminals and (self._terminals == "all" or task.rank in self._terminals):
                fd = self._output.stdout_fd(task.rank)
                if fd >= 0:
                    pty.set_size(fd, size)

    def _expired(self) -> None:
        self._limit_timer = None
        if self.phase != "running":
            return
        self._timed_out = True
        self.records.add("timeout", {})
        self._signal(self._limit_signal)
        self._kill_after(self._kill_timeout_s)

    def _kill_after(self, delay_s: float) -> None:
        when = procs.boottime() + delay_s
        if self._kill_timer is not None:
            if self._kill_at_s <= when:
                return
            self._kill_timer.cancel()
        self._kill_at_s = when
        self._kill_interval_s = max(delay_s, 0.5)
        self._kill_timer = self._host.at(when, self.kill)

    def kill(self) -> None:
        """SIGKILL to everything that belongs to the unit, again at doubling intervals while a task lives.

        Daemons that are no longer below a task are found and killed when the last task has exited.
        """
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None
        self._killed = True
        if self.phase != "running":
            return
        below = [proc for task in self._tasks if task.pid for proc in procs.tree(task.pid)[1:]]
        self._signal(signal.SIGKILL)
        procs.kill(below)
        interval = self._kill_interval_s or max(self._kill_timeout_s, 0.5)
        self._kill_at_s = procs.boottime() + interval
        self._kill_interval_s = min(interval * 2, KILL_REPEAT_S_MAX)
        self._kill_timer = self._host.at(self._kill_at_s, self.kill)

    # ---- stdin

    def stdin(self, offset: int, ranks: object, data: bytes, eof: bool) -> None:
        """Bytes of the stdin log from ``offset``, for all tasks or some; what was received before is dropped."""
        self.start()
        end = offset + len(data)
        if offset > self.stdin_received or self._stdin_eof or self.phase == "ended":
            return  # a gap: the daemon has to send what lies between
        data = data[self.stdin_received - offset :] if end > self.stdin_received else b""
        if data or (eof and end == self.stdin_received):
            self.stdin_received = end
            for task in self._tasks:
                if task.stdin is not None and (ranks == "all" or (isinstance(ranks, list) and task.rank in ranks)):
                    task.stdin.put(end, data, eof)
            self._stdin_eof = eof and ranks == "all"
        self._host.stdin_moved(self)

    def stdin_written(self) -> int:
        """The place in the stdin log up to which all that still read have been given everything."""
        places = [task.stdin.unwritten_from() for task in self._tasks if task.stdin is not None]
        return min((place for place in places if place is not None), default=self.stdin_received)

    # ---- the end

    def exiting(self, task: Task) -> None:
        """``task`` has exited and is not reaped yet: its process group cannot have been reused."""
        if self._group and self._live == 1:
            procs.kill_group(task.pid, signal.SIGKILL)

    def exited(self, task: Task, wait_status: int) -> None:
        """``task`` was reaped."""
        pid, task.pid = task.pid, 0
        signum = wait_status & 0x7F
        code = 128 + signum if signum else wait_status >> 8
        if not self._start_failed:
            # A task that was killed because another could not start says nothing about the unit.
            # Work has no shell around it: its status is the process's own.
            self._status = max(self._status, wait_status if isinstance(self._output, WorkOutput) else code << 8)
        self.records.add(
            "task-exit",
            {
                "rank": task.rank,
                "local": task.local,
                "pid": pid,
                "wait_status": wait_status,
                "signaled": signum,
                "exitcode": code,
            },
        )
        if self._verbose:
            self._output.log(task.rank, 7, f"task {task.rank} complete status={code}")
        self._live -= 1
        if not self._live:
            self._all_exited()

    def _all_exited(self) -> None:
        self.phase = "ending"
        self.limit(None)
        self._host.sweep_later(self)

    def sweep_again(self) -> None:
        """Processes are left, and were sent SIGKILL: look again when a child exits, or after a while."""
        if self._sweep_timer is None:
            self._sweep_timer = self._host.at(procs.boottime() + self._sweep_interval_s, self._sweep)
            self._sweep_interval_s = min(self._sweep_interval_s * 2, KILL_REPEAT_S_MAX)

    def _sweep(self) -> None:
        self._sweep_timer = None
        self._host.sweep_later(self)

    def swept(self) -> None:
        """No process is left."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        self.phase = "draining"
        for task in self._tasks:
            if task.stdin is not None:
                task.stdin.close()
        if self._output.open_count:
            self._drain_later()
        self._host.settle_later(self)

    def _drain_later(self) -> None:
        self._drain_timer = self._host.at(procs.boottime() + DRAIN_S, self._drain)

    def _drain(self) -> None:
        self._drain_timer = None
        if self.phase != "draining":
            return
        if self._output.drain(give_up=self._killed):
            self._host.settle_later(self)
        else:
            self._drain_later()

    def settle(self) -> None:
        """The end of a pass in which something happened: write, tell, and end if nothing is left to do."""
        if not (self._output.flush() and self._output.flush_redirects()):
            if self.phase == "draining" and self._drain_timer is None:
                self._drain_later()
            return
        self._output.tell()
        if self.phase != "draining" or self._output.open_count:
            return
        self.phase = "closing"
        for timer in (self._drain_timer, self._kill_timer):
            if timer is not None:
                timer.cancel()
        self._drain_timer = self._kill_timer = None
        if self._output.needs_sync:
            self._host.offload(self._output.sync, self._end)
        else:
            self._end()
        if self._tmpdir is not None:
            # nobody waits for this: the exit goes out first
            self._host.discard(self._tmpdir)
            self._tmpdir = None

    def _end(self) -> None:
        if self._verbose:
            self._output.log(0, 7, f"exit {self._status >> 8}")
        self._output.close()
        fields: Json = {"status": self._status}
        if isinstance(self._output, WorkOutput):
            fields["stderr_tail"] = self._output.stderr_tail()
            self._host.progress_now(self)
        self.records.add("exit", fields)
        self.phase = "ended"
        self._tasks = []
        self.sessions = set()
        self._host.ended(self)
