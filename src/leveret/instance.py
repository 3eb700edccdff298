"""Where a user's instance lives, how it is addressed, and how it is started.

The daemon and every command import this, so it is standard library only and imports what is
costly inside the function that needs it.

- **State** is in `$XDG_STATE_HOME/leveret/<hostname>` if that file system is local (an NFS home would
  give two login nodes one database), else in `/var/tmp/leveret-<uid>`.
- **The socket** is `$XDG_RUNTIME_DIR/leveret/<key>.sock`, else `/tmp/leveret-<uid>/<key>.sock`. The key is
  a checksum of the state directory: two state directories never share a socket.
- **A URI** is `local:///absolute/path/to.sock`. `LEVERET_URI` addresses an instance that somebody else
  runs: commands then never start one.

Nothing here takes a lock: the daemon holds `flock` on its state directory and says `held` when
another daemon has it.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from binascii import crc32
from collections.abc import Mapping, Sequence

from leveret.errors import InvalidError, UnreachableError

#: The environment variable that addresses an instance.
URI_VARIABLE = "LEVERET_URI"
SCHEME = "local://"
#: The longest path that fits into sockaddr_un, without the final NUL.
SOCKET_PATH_MAX_BYTES = 107
#: How long a command waits for a daemon that it started itself.
START_TIMEOUT_S = 30.0

#: File systems that several machines may mount at once. SQLite's WAL and `flock` need one machine.
SHARED_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs"}
    | {"orangefs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2", "9p", "virtiofs"}
    | {"fuse.sshfs", "fuse.ceph", "fuse.glusterfs", "fuse.beegfs", "fuse.nfs"}
)

#: What the daemon keeps of the environment of the command that started it. Jobs bring their own.
KEPT_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}
    | {"LEVERET_CONFIG", "VIRTUAL_ENV", "DBUS_SESSION_BUS_ADDRESS"}
)
KEPT_PREFIXES = ("LC_", "XDG_", "PYTHON", "LEVERET_TEST_")


class Instance:
    """One instance as a client sees it. `state_dir` is empty when it was addressed by a URI."""

    __slots__ = ("may_start", "socket_path", "state_dir")

    def __init__(self, socket_path: str, state_dir: str = "", may_start: bool = False) -> None:
        self.socket_path = socket_path
        self.state_dir = state_dir
        #: Whether a client may start the daemon: only the user's own default instance.
        self.may_start = may_start

    @property
    def uri(self) -> str:
        return make_uri(self.socket_path)


def make_uri(socket_path: str) -> str:
    """The URI of a socket: `local://` and the absolute path, percent-encoding nothing."""
    return SCHEME + socket_path


def parse_uri(uri: str) -> str:
    """The socket path of a `local:///path` URI. Raises InvalidError for anything else."""
    path = uri[len(SCHEME) :] if uri.startswith(SCHEME) else ""
    if not path.startswith("/"):
        raise InvalidError(f"`{uri}` is not the URI of an instance", "expected local:///absolute/path/to.sock")
    return path


def find(uri: str | None = None, environ: Mapping[str, str] = os.environ) -> Instance:
    """The instance that `uri`, else `LEVERET_URI`, addresses; else the user's own default instance."""
    uri = uri or environ.get(URI_VARIABLE)
    if uri:
        return Instance(parse_uri(uri))
    state_dir = default_state_dir(environ)
    return Instance(socket_path_for(state_dir, environ), state_dir, may_start=True)


def hostname() -> str:
    return os.uname().nodename or "localhost"


def default_state_dir(environ: Mapping[str, str] = os.environ) -> str:
    """`$XDG_STATE_HOME/leveret/<hostname>` (default `~/.local/state`) if local, else `/var/tmp/leveret-<uid>`."""
    base = environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):  # XDG: relative paths are to be ignored
        home = environ.get("HOME", "") or os.path.expanduser("~")
        base = os.path.join(home, ".local", "state") if home.startswith("/") else ""
    if base and is_local(base):
        return os.path.join(os.path.realpath(base), "leveret", hostname())
    return f"/var/tmp/leveret-{os.getuid()}"


def is_local(path: str) -> bool:
    """Whether the file system that holds `path` (or would) is this machine's own, by /proc/self/mountinfo."""
    return fs_type(path) not in SHARED_FILE_SYSTEMS


def fs_type(path: str, mountinfo: str = "/proc/self/mountinfo") -> str:
    """The type of the file system at `path`: that of the longest mount point above it; "" if unknown."""
    path = os.path.realpath(path)
    best, found = -1, ""
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                point = left.split(" ", 5)[4]
                if "\\" in point:  # \040 for a blank, as in fstab(5)
                    point = point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
                under = path == point or path.startswith(point if point.endswith("/") else point + "/")
                # a later line mounts over an earlier one, so the same length wins too
                if under and len(point) >= best:
                    best, found = len(point), right.split(" ", 1)[0]
    except (OSError, IndexError):
        return ""
    return found


def socket_path_for(state_dir: str, environ: Mapping[str, str] = os.environ) -> str:
    """The socket of the instance in `state_dir`. Makes and checks the directory that holds it."""
    key = crc32(os.fsencode(os.path.realpath(state_dir)))
    return os.path.join(runtime_dir(environ), f"{key:08x}.sock")


def runtime_dir(environ: Mapping[str, str] = os.environ) -> str:
    """`$XDG_RUNTIME_DIR/leveret`, else `/tmp/leveret-<uid>`: ours, mode 0700, no symbolic link."""
    base = environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/") and os.access(base, os.W_OK | os.X_OK):
        path = os.path.join(base, "leveret")
    else:
        path = f"/tmp/leveret-{os.getuid()}"
    return secure_dir(path)


def secure_dir(path: str) -> str:
    """Make `path` (mode 0700) or check that it is a directory of ours that nobody else can enter."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UnreachableError(f"cannot make `{path}`: {error.strerror}", path=path)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise UnreachableError(f"`{path}` is not a directory", "remove it, or set XDG_RUNTIME_DIR", path)
    if status.st_uid != os.getuid():
        raise UnreachableError(f"`{path}` belongs to uid {status.st_uid}", "set XDG_RUNTIME_DIR to your own", path)
    if status.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def daemon_command(
    state_dir: str, socket_path: str, size: int = 1, config: str | None = None, extra: Sequence[str] = ()
) -> list[str]:
    """The argv of a daemon. `-P` keeps a `leveret` in the working directory from being imported."""
    command = [sys.executable, "-P", "-m", "leveret.daemon", "--statedir", state_dir, "--socket", socket_path]
    command += ["--size", str(size)]
    if config:
        command += ["--config", os.path.abspath(config)]
    return [*command, *extra]


def daemon_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the daemon keeps of the environment: who and where, nothing of the job or shell it came from."""
    return {name: value for name, value in environ.items() if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)}


def start_daemon(
    state_dir: str,
    socket_path: str,
    size: int = 1,
    config: str | None = None,
    extra: Sequence[str] = (),
    timeout_s: float = START_TIMEOUT_S,
) -> str:
    """Start a daemon of its own session and wait until it serves.

    It gets nothing of ours to hold open: stdin and stdout are /dev/null, stderr is
    `<state_dir>/daemon.err`, so `id=$(leveret submit …)` ends when submit does. Returns "ok", or "held" when
    another daemon has the state directory (connect to that one). Raises UnreachableError with
    what the daemon said otherwise.

    Not done: `systemd-run --user --scope`, which would keep the daemon beyond `KillUserProcesses=yes`; it costs
    about as much as the whole start and fails without a user bus.
    """
    import subprocess

    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnreachableError(f"cannot make `{state_dir}`: {error.strerror}", path=state_dir)
    errors_path = os.path.join(state_dir, "daemon.err")
    read_fd, write_fd = os.pipe()
    try:
        try:
            with open(errors_path, "ab") as errors:
                offset = errors.tell()
                process = subprocess.Popen(
                    [*daemon_command(state_dir, socket_path, size, config, extra), "--ready-fd", str(write_fd)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    env=daemon_environment(),
                    start_new_session=True,
                    pass_fds=(write_fd,),
                    umask=0o022,
                )
        except OSError as error:
            raise UnreachableError(f"cannot start the daemon: {error}", path=errors_path)
        finally:
            os.close(write_fd)
        reset_affinity(process.pid)
        said = read_ready(read_fd, timeout_s)
    finally:
        os.close(read_fd)
    process.returncode = 0  # it is to outlive us: no ResourceWarning about a child that still runs
    if said not in ("ok", "held"):
        raise start_failure(said, errors_path, offset, timeout_s)
    return said


def start_failure(said: str, errors_path: str, offset: int, timeout_s: float) -> UnreachableError:
    """The error for a daemon that did not come up, with the last thing it said."""
    if said.startswith("error "):
        reason = said[len("error ") :]
    elif said == "timeout":
        reason = f"no answer after {timeout_s:g} s"
    else:
        reason = last_line(errors_path, offset) or "it ended without a word"
    return UnreachableError(f"the daemon did not start: {reason}", f"its messages are in {errors_path}", errors_path)


def read_ready(read_fd: int, timeout_s: float) -> str:
    """One line from a daemon's ready pipe: `ok`, `held` or `error TEXT`; "" at end of file, "timeout" after that."""
    import select

    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([read_fd], [], [], left)[0]:
            return "timeout"
        data = os.read(read_fd, 4096)
        if not data:
            break
        line += data
    return line.decode("utf-8", "replace").strip()


def last_line(path: str, offset: int) -> str:
    """The last line that was written to `path` after `offset`; "" if there is none."""
    try:
        with open(path, "rb") as lines:
            lines.seek(max(offset, os.fstat(lines.fileno()).st_size - 4096))
            text = lines.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return text.rpartition("\n")[2].strip()


def reset_affinity(pid: int) -> None:
    """Let a daemon run on every CPU that its cpuset allows, whatever its starter was bound to."""
    try:
        os.sched_setaffinity(pid, range(os.cpu_count() or 1))
    except (OSError, AttributeError):
        pass
