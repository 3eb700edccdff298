"""leveret.toml: every key, and messages that say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret import config
from leveret.errors import ConfigError

WHOLE = """\
[sched]
queue-policy = "easy"
queue-params.queue-depth = 32
policy-params.reservation-depth = 8

[notify]
webhook = "https://example.org/jobs"
command = ["/bin/tell"]
results = ["FAILED"]
timeout = "30s"
give-up = "1d"

[ingest]
feasibility = true

[job-manager]
plugins = ["one", "/two.py", { load = "three", conf = { ports = 4 } }]
hold-deadline = "2d"
hold-alarm = "10m"
plugin-grace = "5m"
inactive-age-limit = "30d"
inactive-num-limit = 1000
update-allow = ["job.name"]

[job-manager.prolog]
command = ["/bin/prolog", "--now"]
timeout = "10m"
kill-timeout = "30s"
cancel-on-exception = false
per-rank = true
alarm = "1h"

[job-manager.epilog]
command = ["/bin/epilog"]
timeout = "1h"
kill-timeout = "20s"
per-rank = true
alarm = "2h"

[job-manager.perilog]
log-ignore = ["^debug:"]

[job-manager.housekeeping]
command = ["/bin/tidy"]
release-after = "1m"

[exec]
kill-timeout = "7s"
engine = "simulated"
simulated-cores = 8
cpu-affinity = "on"
output-limit = 1000
max-kill-time = "1h"
node-lost-timeout = "2m"

[resource]
path = "/etc/leveret/R"
exclude = "n1"
reserve = "0@0"
noverify = true
norestrict = true

[[resource.config]]
hosts = "n[0-1]"
cores = "0-3"
gpus = "0"
memory = "64G"
properties = ["big"]

[staging]
copier = ["cp", "{src}", "{dst}"]
timeout = "2d"
retries = 2
retry-delay = "3s"
post-timeout = "2h"

[rabbit]
adapter = "dws"
early-free = true
root = "/scratch/rabbit"
servers = [{ name = "r1", hosts = "n[0-1]", capacity = "2TiB" }]
roots = ["/home", "/project"]
copier = ["cp", "{src}", "{dst}"]
restrict-persistent-creation = false
setup-timeout = "1m"
prerun-timeout = "2m"
postrun-timeout = "3m"
teardown-after = "4m"
epilog-timeout = "5m"
tc-timeout = "6s"
kubeconfig = "/etc/kube"
context = "site"
namespace = "rabbits"
dws-api-version = "v1alpha6"
nnf-api-version = "v1alpha10"

[rabbit.presets]
small = "#DW jobdw type=xfs capacity=10GiB name=small"

[rabbit.policy.maximums]
xfs = "1TiB"
gfs2 = "2TiB"
raw = "3TiB"
lustre = "4TiB"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "leveret.toml"
    path.write_text(text)
    return path


def refused(tmp_path: Path, text: str) -> str:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert caught.value.path == str(path)
    assert caught.value.message.startswith(str(path))
    return caught.value.message.removeprefix(str(path))


def test_every_key(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    found = config.load(path)
    assert found == config.Config(
        job_manager=config.JobManager(
            prolog=config.Perilog(["/bin/prolog", "--now"], "10m", "30s", False, True, "1h"),
            epilog=config.Perilog(["/bin/epilog"], "1h", "20s", True, True, "2h"),
            housekeeping=config.Housekeeping(["/bin/tidy"], "1m"),
            perilog=config.PerilogCommon(["^debug:"]),
            plugins=["one", "/two.py", config.PluginDirective("three", {"ports": 4})],
            hold_deadline="2d",
            hold_alarm="10m",
            plugin_grace="5m",
            inactive_age_limit="30d",
            inactive_num_limit=1000,
            update_allow=["job.name"],
        ),
        sched=config.Sched("easy", config.QueueParams(32), config.PolicyParams(8)),
        notify=config.Notify("https://example.org/jobs", ["/bin/tell"], ["FAILED"], "30s", "1d"),
        ingest=config.Ingest(True),
        exec=config.Exec("7s", "1h", "2m", "simulated", 8, "on", 1000),
        resource=config.Resource(
            "/etc/leveret/R", [config.ResourceEntry("n[0-1]", "0-3", "0", "64G", ["big"])], "n1", "0@0", True, True
        ),
        staging=config.Staging(["cp", "{src}", "{dst}"], "2d", 2, "3s", "2h"),
        rabbit=config.Rabbit(
            "dws",
            True,
            "/scratch/rabbit",
            [config.RabbitServer("r1", "n[0-1]", "2TiB")],
            ["/home", "/project"],
            ["cp", "{src}", "{dst}"],
            {"small": "#DW jobdw type=xfs capacity=10GiB name=small"},
            config.RabbitPolicy(config.RabbitMaximums("1TiB", "2TiB", "3TiB", "4TiB")),
            False,
            "1m",
            "2m",
            "3m",
            "4m",
            "5m",
            "6s",
            "/etc/kube",
            "site",
            "rabbits",
            "v1alpha6",
            "v1alpha10",
        ),
        source=str(path),
    )


def test_the_whole_example_has_every_key_of_the_settings() -> None:
    import msgspec

    def keys(kind: type, prefix: str = "") -> set[str]:
        out = set()
        for field in msgspec.structs.fields(kind):
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                out |= keys(field.type, f"{prefix}{field.encode_name}.")
            else:
                out.add(f"{prefix}{field.encode_name}")
        return out

    import tomllib

    def flat(table: dict, prefix: str = "") -> set[str]:
        out = set()
        for key, value in table.items():
            inner = isinstance(value, dict) and key != "presets"  # whose names are anybody's
            out |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}"}
        return out

    left_out = {"source", "job-manager.epilog.cancel-on-exception"}
    queues = {key for key in keys(config.Config) if key.startswith(("policy.", "queues"))}  # tests/manager/test_queues
    assert keys(config.Config) - left_out - queues == flat(tomllib.loads(WHOLE))


def test_no_file_is_the_defaults(tmp_path: Path) -> None:
    found = config.load(None)
    assert found == config.Config()
    assert (found.source, found.job_manager.prolog.command, found.exec.output_limit) == ("", None, None)
    assert config.load(write(tmp_path, "")).exec == found.exec


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("colour = 1\n", 1, "colour"),
        ("# one\n\n[exec]\nkill-timeout = '1s'\nkill_timeout = '1s'\n", 5, "exec.kill_timeout"),
        ("[job-manager.prolog]\ncommand = ['x']\n\nper-node = true\n", 4, "job-manager.prolog.per-node"),
        ("[exec]\n[stagging]\ntimeout = '1d'\n", 2, "stagging"),
        ("[exec]\nkill-timeout = '1s'\n[exec.deeper]\nx = 1\n", 3, "exec.deeper"),
        ("[job-manager]\nprolog = {command = ['x'], nope = 1}\n", 2, "job-manager.prolog.nope"),
        ('[exec]\n"what is this" = 1\n', 2, "exec.what is this"),
        ("[exec]\n[staging]\nsource = 'x'\n", 3, "staging.source"),
        ("\nsource = 'x'\n", 2, "source"),
        ("exec.kill-timeout = '1s'\nstaging.'what is'=1\n", 2, "staging.what is"),
        # the same word elsewhere does not mislead
        ("[staging]\ntimeout = '1d'\n[exec]\ntimeout = '1d'\n", 4, "exec.timeout"),
    ],
)
def test_an_unknown_key_is_named_with_its_line(tmp_path: Path, text: str, line: int, key: str) -> None:
    assert refused(tmp_path, text) == f":{line}: unknown key `{key}`"


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("[exec]\nkill-timeout = 5\n", 2, "exec.kill-timeout"),
        ("[exec]\n\noutput-limit = 'much'\n", 3, "exec.output-limit"),
        ("[job-manager.epilog]\ncommand = 'a string'\n", 2, "job-manager.epilog.command"),
        ("[job-manager.epilog]\ncommand = ['x', 3]\n", 2, "job-manager.epilog.command"),
        ("[job-manager.prolog]\ncancel-on-exception = 'yes'\n", 2, "job-manager.prolog.cancel-on-exception"),
        ("[job-manager]\nplugins = {}\n", 2, "job-manager.plugins"),
        ("[staging]\ncopier = 'cp'\n", 2, "staging.copier"),
        ("exec = 1\n", 1, "exec"),
        ("[staging]\n[job-manager]\nprolog = 1\n", 3, "job-manager.prolog"),
    ],
)
def test_a_wrong_type_is_named_with_its_path(tmp_path: Path, text: str, line: int, key: str) -> None:
    message = refused(tmp_path, text)
    assert message.startswith(f":{line}: {key}: Expected")


@pytest.mark.parametrize(
    ("text", "line"),
    [("[exec\n", 1), ("[exec]\nkill-timeout = \n", 2), ("[exec]\n\nkill-timeout = 'x\n", 3), ("a = 1\na = 2\n", 2)],
)
def test_a_syntax_error_says_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    assert refused(tmp_path, text).startswith(f":{line}: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        config.load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        config.load(tmp_path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "leveret.toml"
    path.write_bytes(b"[exec]\n\xff\xfe = 1\n")
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert caught.value.message == f"{path}:2: not UTF-8 text"


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "xdg"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.delenv("LEVERET_CONFIG", raising=False)
    system = Path("/etc/leveret/leveret.toml")
    assert config.find() == (system if system.is_file() else None)
    own = home / "leveret" / "leveret.toml"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert config.find() == own
    monkeypatch.setenv("LEVERET_CONFIG", str(tmp_path / "env.toml"))
    assert config.find() == tmp_path / "env.toml"
    assert config.find(str(tmp_path / "given.toml")) == tmp_path / "given.toml"


def test_a_duration_that_cannot_be_read_is_an_error_with_its_line(tmp_path: Path) -> None:
    found = config.load(write(tmp_path, "# mine\n[job-manager.prolog]\ntimeout = 'soon'\n"))
    error = config.duration_error(found, "job-manager.prolog.timeout", "invalid Flux standard duration")
    assert error.message == f"{found.source}:3: job-manager.prolog.timeout: invalid Flux standard duration"
    assert error.path == found.source
