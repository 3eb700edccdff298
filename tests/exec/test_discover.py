"""What a machine has for us, read from made-up file systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret import config
from leveret.core.inventory import Found
from leveret.errors import ConfigError
from leveret.exec.discover import discover
from leveret.exec.inventory import inventory

FOUR = {0, 1, 2, 3}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\n", "sys/devices/system/cpu/online": "0-7\n"}


def test_the_affinity_mask_counts(tmp_path: Path) -> None:
    root = tree(tmp_path, MACHINE)
    assert discover(root, FOUR) == Found(4, 16000, 0)
    assert discover(root, FOUR, restrict=False) == Found(8, 16000, 0)
    assert discover(tmp_path / "nothing", {5}) == Found(1, 0, 0)


def test_control_groups_v2_limit_cores_and_memory_at_every_level(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/cpu.max": "250000 100000",
            "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/job/memory.max": "max",
            "sys/fs/cgroup/user.slice/memory.max": str(2 << 30),
        },
    )
    assert discover(root, FOUR) == Found(2, 2048, 0)
    assert discover(root, FOUR, restrict=False) == Found(8, 16000, 0)


def test_control_groups_v1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(1 << 30),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert discover(root, FOUR) == Found(1, 1024, 0)
    tree(root, {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1"})
    assert discover(root, FOUR).cores == 4


@pytest.mark.parametrize(
    ("files", "gpus"),
    [
        ({"proc/driver/nvidia/gpus/0000:01:00.0/information": "", "dev/nvidia0": "", "dev/nvidiactl": ""}, 1),
        # a container sees the driver's list of both, and has the device of one
        (
            {
                "proc/driver/nvidia/gpus/0000:01:00.0/information": "",
                "proc/driver/nvidia/gpus/0000:02:00.0/information": "",
                "dev/nvidia1": "",
            },
            1,
        ),
        ({"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidia-uvm": ""}, 2),
        ({"proc/driver/nvidia/gpus/0000:01:00.0/information": ""}, 0),
        # the first node of the topology is the processor
        (
            {
                "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 16\nsimd_count 0\n",
                "sys/class/kfd/kfd/topology/nodes/1/properties": "cpu_cores_count 0\nsimd_count 256\n",
                "sys/class/kfd/kfd/topology/nodes/2/properties": "simd_count 256\n",
                "sys/class/drm/card0/device/vendor": "0x1002\n",
            },
            2,
        ),
        ({"sys/class/drm/card0/device/vendor": "0x1002\n", "sys/class/drm/card0-DP-1/status": ""}, 1),
        # Intel: what drives a screen is not for computing
        ({"sys/class/drm/card0/device/vendor": "0x8086", "sys/class/drm/card0/device/class": "0x030000"}, 0),
        ({"sys/class/drm/card0/device/vendor": "0x8086", "sys/class/drm/card0/device/class": "0x038000"}, 1),
        ({}, 0),
    ],
)
def test_gpus(tmp_path: Path, files: dict[str, str], gpus: int) -> None:
    assert discover(tree(tmp_path, files), {0}).gpus == gpus


def load(tmp_path: Path, text: str) -> config.Config:
    path = tmp_path / "leveret.toml"
    path.write_text(text)
    return config.load(path)


def test_an_inventory_is_described_or_discovered(tmp_path: Path) -> None:
    assert inventory(config.Config(), 3, Found(2, 100, 1)).rset.summary() == "rank[0-2]/core[0-1],gpu0"
    settings = load(tmp_path, '[exec]\nengine="simulated"\nsimulated-cores=8\n')
    assert inventory(settings, 2).rset.summary() == "rank[0-1]/core[0-7]"
    described = '[resource]\nexclude="b"\n[[resource.config]]\nhosts="a,b"\ncores="0-3"\n'
    found = inventory(load(tmp_path, described), 1, Found(2))
    assert (found.method, found.excluded, found.rset.nodelist()) == ("configuration", {1}, "a,b")
    assert found.missing[0] == "missing resources: rank0/core[2-3]"
    assert inventory(load(tmp_path, described.replace("exclude", "noverify=true\nexclude")), 1, Found(2)).missing == {}
    (tmp_path / "R").write_text(
        '{"version":1,"execution":{"R_lite":[{"rank":"0-1","children":{"core":"0-63"}}],'
        '"nodelist":["n[5-6]"],"properties":{"big":"1"}}}'
    )
    found = inventory(load(tmp_path, f'[exec]\nengine="simulated"\n[resource]\npath="{tmp_path}/R"\n'), 1)
    assert found.rset.ncores() == 128 and found.properties(1) == ["big"] and found.missing == {}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('[resource]\npath = "/nowhere/R"\n', 2, "No such file"),
        ('[exec]\nengine="simulated"\n[resource]\nexclude = "x1"\n', 4, "no such host: x1"),
        ('[[resource.config]]\nhosts="a"\ncores="zero"\n', 1, "cores"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        inventory(load(tmp_path, text), 1, Found(2))
    assert f"leveret.toml:{line}:" in caught.value.message
