"""The daemon: builds the adapters, hands them to the manager, serves the API. One per instance.

    python -m leveret.daemon --statedir DIR --socket PATH [--size N] [--config FILE] [--ready-fd FD]

Writes `ok`, `held` (another daemon has the state directory) or `error TEXT` to FD and closes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import json
import logging
import logging.handlers
import os
import resource
import secrets
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop

from leveret import __version__, config, instance, storagechoice
from leveret.api import app
from leveret.api.identity import PeerProtocol
from leveret.core import duration
from leveret.errors import LeveretError
from leveret.exec import inventory as startup
from leveret.exec.courier import Courier
from leveret.exec.local import LocalEngine
from leveret.exec.simulated import SimulatedEngine
from leveret.manager.manager import Manager
from leveret.manager.queries import Queries
from leveret.plugins.rabbit import Rabbit
from leveret.storage.port import Storage
from leveret.store import backup, place
from leveret.store.sqlite import Store
from leveret.wire import PROTOCOL

WATCH_S = 2.0
LOG_BYTES_MAX = 16 << 20


class Clock:
    """Wall clock and the loop's timers, for the manager."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def time(self) -> float:
        return time.time()

    def call_soon(self, callback: Callable[[], None]) -> Any:
        return self._loop.call_soon(callback)

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        return self._loop.call_later(max(0.0, when - time.time()), callback)


class Server(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """Between the engine and the manager: troubles go to the log."""

    def __init__(self, manager: Manager) -> None:
        self.have = manager.recovery.have
        self.lost_asks = manager.recovery.lost_asks
        self.on_connected = manager.recovery.on_connected
        self.on_records = manager.units.on_records
        self.on_stdin_ack = manager.units.on_stdin_ack
        self.on_progress = manager.units.on_progress
        self.on_gone = manager.lost.on_gone
        self.on_lost = manager.units.on_lost
        self._log = manager.log

    def on_trouble(self, text: str) -> None:
        self._log.error("helper trouble", text=text)


def open_log(path: Path) -> Any:
    """JSON lines, rotated."""
    logging.raiseExceptions = False  # a full disk is no reason to say so on every line
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=3)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root = logging.getLogger("leveret")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=lambda v, **_: json.dumps(v, default=str, ensure_ascii=False)),
        ],
        logger_factory=lambda *args: root,
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger()


def lock(state_dir: Path) -> int | None:
    """Hold the state directory; None when another daemon does."""
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def bind(path: str) -> socket.socket:
    """The listening socket, mode 0600 from its first moment. The caller holds the state directory."""
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        if len(os.fsencode(path)) <= instance.SOCKET_PATH_MAX_BYTES:
            sock.bind(path)
        else:
            fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sock.bind(f"/proc/self/fd/{fd}/{os.path.basename(path)}")
            finally:
                os.close(fd)
    finally:
        os.umask(old)
    sock.listen(1024)
    sock.setblocking(False)
    return sock


class Daemon:
    def __init__(self, state_dir: Path, lock_fd: int, socket_path: str, size: int, settings: config.Config) -> None:
        self.lock_fd = lock_fd
        self.state_dir = state_dir
        self.socket_path = socket_path
        self.size = size
        self.settings = settings
        self.uri = instance.make_uri(socket_path)
        self.started = time.time()
        self.log = open_log(state_dir / "daemon.log")
        self.ending = asyncio.Event()
        self.stopped = asyncio.Event()
        self.store: Store
        self.engine: LocalEngine | SimulatedEngine
        self.manager: Manager
        self.server: Server
        self.nofile: int | None = None  #: the soft limit of open files before we raised ours
        self.say: Callable[[str], None] = lambda text: None  #: to who waits for the start, until it is over
        self._shutting = False

    async def start(self) -> None:
        """Everything up to and with the listening socket."""
        loop = asyncio.get_running_loop()
        self.store = Store(self.state_dir / "leveret.db")
        self.store.on_failure = self._store_failed
        epoch_ms = int(self.store.meta("epoch_ms") or 0)
        generator = int(self.store.meta("generator") or 0)
        if not epoch_ms:
            epoch_ms, generator = int(self.started * 1000), secrets.randbelow(16)
            self.store.set_meta_now("epoch_ms", str(epoch_ms))
            self.store.set_meta_now("generator", str(generator))
        inventory = startup.inventory(self.settings, self.size)
        hosts = [(rank, node.host, list(node.cores)) for rank, node in inventory.rset.ranks.items()]
        if self.settings.exec.engine == "simulated":
            self.engine = SimulatedEngine(hosts)
        else:
            self.engine = LocalEngine(self.state_dir / "nodes", hosts, nofile=self.nofile)
        # beside the socket, which is on a tmpfs where there is one: making and removing a directory per job
        # on the state's file system would slow its commits down
        tmp_dir = Path(self.socket_path).with_suffix(".jobs")
        tmp_dir.mkdir(mode=0o700, exist_ok=True)
        await self.engine.connect()
        self.store.start()
        self.manager = Manager(
            self.store,
            self.engine,
            self.settings,
            Clock(loop),
            self.log,
            uri=self.uri,
            owner_uid=os.getuid(),
            epoch_ms=epoch_ms,
            generator=generator,
            tmp_dir=str(tmp_dir),
            courier=self._courier(),
            inventory=inventory,
        )
        hostnames = [node.host for node in inventory.rset.ranks.values()]
        self.manager.storage = storagechoice.storage(
            self.settings, self.state_dir, hostnames, f"{epoch_ms}-{generator}"
        )
        self.manager.recovery.recover()
        await self._start_storage(self.manager.storage)
        # what is there now stays; the many small objects of a turn are freed by their counts, not by the collector
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await self.engine.serve(Listener(self.manager))
        self.manager.notifier.resume()
        self.manager.recovery.go_on()
        api = app.build(self.manager, Queries(self.manager), self, os.getuid())
        self.server = Server(
            uvicorn.Config(
                api,
                http=PeerProtocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=2,
                timeout_keep_alive=60,
                backlog=1024,
            )
        )
        self.sock = bind(self.socket_path)
        self._inode = os.stat(self.socket_path).st_ino

    async def _start_storage(self, storage: Storage) -> None:
        """Before any hold of a job with storage is taken up."""
        plugin = self.manager.registry.get("rabbit")
        if not isinstance(plugin, Rabbit):
            return

        async def begin() -> None:
            await storage.start(plugin.changed, plugin.health)
            plugin.health()
            plugin.serve()

        async def begin_logged() -> None:
            try:
                await begin()
            except Exception as error:
                self.log.error("storage cannot be used", adapter=storage.name, why=f"{type(error).__name__}: {error}")

        if storage.name == "local":
            await begin()
        else:  # it may not answer for long
            self._storage_task = asyncio.get_running_loop().create_task(begin_logged())

    def _courier(self) -> Courier:
        conf = self.settings.notify
        try:
            timeout_s = duration.parse(conf.timeout)
        except LeveretError as error:
            raise config.duration_error(self.settings, "notify.timeout", error.message) from None
        if conf.webhook is not None and not conf.webhook.startswith(("http://", "https://")):
            raise config.at_key(self.settings, "notify.webhook", "notify.webhook: not an http or https URL")
        return Courier(conf.webhook, conf.command, timeout_s, self.uri)

    def describe(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "helpers": self.engine.status(),
            "uri": self.uri,
            "state_dir": str(self.state_dir),
            "version": __version__,
            "protocol": PROTOCOL,
            "started": self.started,
        }

    def _store_failed(self, error: Exception) -> None:
        # what is in memory is ahead of the disk and must not be shown: end, and replay at the next start
        try:
            self.log.error("the store has failed; ending", why=repr(error))
            known = place.explain(error, self.state_dir)
            text = known.message if known is not None else f"the store has failed: {error}"
            self.say(f"error {text}")  # to who waits for the start; else into daemon.err
            print(f"leveret-daemon: ERROR: {text}", file=sys.stderr, flush=True)
        finally:
            os._exit(3)  # also when these cannot be written either

    # ---- ending ------------------------------------------------------------------------------------

    async def shut_down(self, timeout_s: float, keep: bool) -> list[str]:
        """Take no new work, cancel what runs (unless `keep`), wait for it within the time, say what is left."""
        if self._shutting:
            return []
        self._shutting = True
        manager = self.manager
        manager.stopping = "the instance is shutting down"
        left: list[str] = []
        if not keep:
            for jobid, entry in list(manager.entries.items()):
                if entry.job.state.name in ("RUN", "CLEANUP"):
                    with contextlib.suppress(LeveretError):
                        manager.cancel(jobid, "instance is shutting down", os.getuid())
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline and self._busy():
                await asyncio.sleep(0.02)
        for entry in manager.entries.values():
            if entry.job.state.name in ("RUN", "CLEANUP"):
                record = manager.record(entry)
                left.append(
                    f"{record['f58']} {record['state']} {record['phase']}: {record['waiting_for']}".rstrip(": ")
                )
        await self.store.barrier()
        asyncio.get_running_loop().call_later(0.05, lambda: self.end(helpers=not keep))
        return left

    async def dump(self, path: str, archive: bool) -> dict[str, Any]:
        """Copy the instance while it runs (store/backup.py)."""
        await self.store.barrier()
        with self.manager.purges.keep_files():
            return await asyncio.to_thread(backup.dump, self.state_dir, Path(path), archive)

    def owner_gone(self, fd: int) -> None:
        """The `leveret start` that runs us is no more."""
        asyncio.get_running_loop().remove_reader(fd)
        self.log.warning("the owner is gone; ending")
        self.end(helpers=True)

    def _busy(self) -> bool:
        return any(e.job.state.name in ("RUN", "CLEANUP") for e in self.manager.entries.values())

    def end(self, helpers: bool) -> None:
        """Streams end with a `restart` record, then the process."""
        if not self.ending.is_set():
            self.ending.set()
            # first of all: who loses us looks for the socket, and starts a daemon in place of one that was killed
            with contextlib.suppress(OSError):
                os.unlink(self.socket_path)
            self.manager.feed.wake_all()
            self._tail = asyncio.get_running_loop().create_task(self._end(helpers))

    async def _end(self, helpers: bool) -> None:
        await self.manager.works.shut_down()
        if self.manager.storage is not None:
            await self.manager.storage.close()
        await self.manager.notifier.shut_down()
        await self.store.barrier()
        self.server.should_exit = True
        await self.engine.shut_down(helpers)
        self.stopped.set()

    def _holds_state(self) -> bool:
        """Whether the state directory is still there, and still the one that we have locked."""
        try:
            there = os.stat(self.state_dir / "lock")
        except OSError:
            return False
        ours = os.fstat(self.lock_fd)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    async def watch(self) -> None:
        """Make the socket again when it vanishes, end when the state directory does."""
        while not self.ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), WATCH_S)
            if self.ending.is_set():
                return
            if not self._holds_state():
                self.log.error("the state directory has vanished; ending")
                self.end(helpers=True)
                return
            try:
                same = os.stat(self.socket_path).st_ino == self._inode
            except OSError:
                same = False
            if not same:
                try:
                    sock = bind(self.socket_path)
                except OSError as error:
                    self.log.error("the socket cannot be made again", why=str(error))
                    continue
                self._inode = os.stat(self.socket_path).st_ino
                loop = asyncio.get_running_loop()
                self.server.servers.append(
                    await loop.create_server(
                        lambda: PeerProtocol(self.server.config, self.server.server_state, self.server.lifespan.state),
                        sock=sock,
                    )
                )
                self.log.warning("the socket had vanished and was made again")

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, lambda: self.end(helpers=False))
        watcher = loop.create_task(self.watch())
        await self.server.serve(sockets=[self.sock])
        self.end(helpers=False)
        await self.stopped.wait()
        watcher.cancel()
        with contextlib.suppress(OSError):
            os.unlink(self.socket_path)


async def run(args: argparse.Namespace, lock_fd: int, settings: config.Config, ready: Callable[[str], None]) -> None:
    daemon = Daemon(Path(args.statedir), lock_fd, args.socket, args.size, settings)
    daemon.nofile = args.nofile
    daemon.say = ready
    try:
        try:
            await daemon.start()
        except (sqlite3.Error, OSError) as failure:
            known = place.explain(failure, daemon.state_dir)
            if known is None:
                raise
            raise known from failure
    except LeveretError as error:
        hint = f" ({error.hint})" if error.hint else ""
        ready(f"error {error.message}{hint}")
        daemon.log.error("start failed", why=error.message)
        raise SystemExit(1) from None
    except Exception as error:
        ready(f"error {type(error).__name__}: {error}")
        daemon.log.exception("start failed")
        raise
    if args.owner_fd is not None:
        os.set_inheritable(args.owner_fd, False)
        asyncio.get_running_loop().add_reader(args.owner_fd, lambda: daemon.owner_gone(args.owner_fd))
    ready("ok")
    daemon.say = lambda text: None
    daemon.log.info("serving", pid=os.getpid(), uri=daemon.uri, version=__version__)
    await daemon.serve()
    daemon.store.close()
    daemon.log.info("ended", pid=os.getpid())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="leveret-daemon", description="The Leveret daemon; started by the commands.")
    parser.add_argument("--statedir", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--config")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--owner-fd", type=int, help="end, helpers too, when the other end of this pipe is closed")
    args = parser.parse_args(argv)
    args.statedir = os.path.abspath(args.statedir)
    args.socket = os.path.abspath(args.socket)

    def ready(text: str) -> None:
        if args.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(args.ready_fd, (text.replace("\n", " ") + "\n").encode())
                os.close(args.ready_fd)
            args.ready_fd = None
        elif text.startswith("error "):
            print(f"leveret-daemon: ERROR: {text[6:]}", file=sys.stderr)

    try:
        os.makedirs(args.statedir, mode=0o700, exist_ok=True)
        place.check(Path(args.statedir))
        held = lock(Path(args.statedir))
        if held is None:
            ready("held")
            return 0
        place.check_room(Path(args.statedir))
    except OSError as error:
        ready(f"error {place.explain(error, Path(args.statedir)) or f'{args.statedir}: {error.strerror}'}")
        return 1
    except LeveretError as error:
        ready(f"error {error.message} ({error.hint})")
        return 1
    try:
        settings = config.load(config.find(args.config))
    except LeveretError as error:
        ready(f"error {error.message}")
        return 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    args.nofile = soft
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(args, held, settings, ready))
    return 0


if __name__ == "__main__":
    sys.exit(main())
