"""Where an instance is looked for, and how one is started."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from leveret import instance
from leveret.errors import InvalidError, UnreachableError

MOUNTS = """\
22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /home rw shared:2 - nfs4 server:/home rw
31 22 0:31 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:32 / /data rw - lustre mgs:/data rw
33 32 0:33 / /data rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/tmp/x", "ext4"),
        ("/home/u/.local/state", "nfs4"),
        ("/homework", "ext4"),
        ("/home/local disk/u", "xfs"),
        ("/data/u", "tmpfs"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path: Path, path: str, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    assert instance.fs_type(path, str(table)) == kind


def test_an_unreadable_mount_table_counts_as_local(tmp_path: Path) -> None:
    assert instance.fs_type("/x", str(tmp_path / "none")) == ""
    assert "" not in instance.SHARED_FILE_SYSTEMS


def test_state_is_in_xdg_state_home_by_host(tmp_path: Path) -> None:
    expected = os.path.join(os.path.realpath(tmp_path), "leveret", instance.hostname())
    assert instance.default_state_dir({"XDG_STATE_HOME": str(tmp_path), "HOME": "/nowhere"}) == expected


def test_a_relative_xdg_state_home_is_ignored(tmp_path: Path) -> None:
    state = instance.default_state_dir({"XDG_STATE_HOME": "relative", "HOME": str(tmp_path)})
    assert state.startswith(os.path.realpath(tmp_path / ".local" / "state"))


def test_a_home_that_machines_share_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "fs_type", lambda path: "nfs4")
    assert instance.default_state_dir({"HOME": str(tmp_path)}) == f"/var/tmp/leveret-{os.getuid()}"


def test_two_state_directories_have_two_sockets_in_a_private_directory(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    one, two = (instance.socket_path_for(str(tmp_path / name), environ) for name in "ab")
    assert one != two
    assert one == instance.socket_path_for(str(tmp_path / "x" / ".." / "a"), environ)
    folder = tmp_path / "leveret"
    assert os.path.dirname(one) == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_runtime_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    instance.secure_dir(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_symbolic_link_or_a_file_is_no_runtime_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(UnreachableError, match="not a directory"):
            instance.secure_dir(str(tmp_path / name))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    with pytest.raises(UnreachableError, match="belongs to uid 12345"):
        instance.secure_dir(str(folder))


def test_uris() -> None:
    assert instance.parse_uri("local:///run/x.sock") == "/run/x.sock"
    assert instance.make_uri("/run/x.sock") == "local:///run/x.sock"
    for bad in ("ssh://host/x", "local://relative", "/run/x.sock", ""):
        with pytest.raises(InvalidError):
            instance.parse_uri(bad)


def test_a_uri_addresses_an_instance_that_is_never_started() -> None:
    found = instance.find(environ={"LEVERET_URI": "local:///run/x.sock"})
    assert (found.socket_path, found.state_dir, found.may_start) == ("/run/x.sock", "", False)
    assert instance.find("local:///y", {"LEVERET_URI": "local:///run/x.sock"}).socket_path == "/y"


def test_the_daemon_gets_no_environment_of_the_job_that_starts_it() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "FLUX_JOB_ID": "f1",
        "LEVERET_URI": "local:///x",
        "SECRET": "s",
        "HOME": "/h",
    }
    assert instance.daemon_environment(environ) == {"PATH": "/bin", "LC_ALL": "C", "HOME": "/h"}


def scripted(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script in the daemon's place; `fd` is its ready pipe."""
    prelude = "import os, sys, time; fd = int(sys.argv[-1]);"
    monkeypatch.setattr(instance, "daemon_command", lambda *_: [sys.executable, "-c", prelude + script])


@pytest.mark.parametrize("said", ["ok", "held"])
def test_start_waits_until_the_daemon_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    mark = tmp_path / "ran"
    script = f"open({str(mark)!r}, 'w').write(f'{{os.getsid(0) == os.getpid()}} {{os.getcwd()}}');"
    scripted(monkeypatch, script + f"os.write(fd, b'{said}\\n')")
    assert instance.start_daemon(str(tmp_path / "state"), str(tmp_path / "s")) == said
    assert mark.read_text() == "True /"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("os.write(fd, b'error no space left\\n')", "the daemon did not start: no space left"),
        ("print('early', file=sys.stderr); sys.exit('TypeError: boom')", "the daemon did not start: TypeError: boom"),
        ("pass", "the daemon did not start: it ended without a word"),
    ],
)
def test_a_daemon_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    scripted(monkeypatch, script)
    (tmp_path / "daemon.err").write_text("of an earlier start\n")
    with pytest.raises(UnreachableError) as caught:
        instance.start_daemon(str(tmp_path), str(tmp_path / "s"))
    assert caught.value.message == message
    assert "daemon.err" in caught.value.hint


def test_a_daemon_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "time.sleep(3)")
    with pytest.raises(UnreachableError, match=r"no answer after 0\.2 s"):
        instance.start_daemon(str(tmp_path), str(tmp_path / "s"), timeout_s=0.2)
