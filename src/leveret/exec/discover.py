"""What this machine has for us: cores, memory, GPUs; never more than we may use.

Cores: our affinity mask, and the CPU quota of our control groups. Memory: the machine's, and the limits of the control
groups. GPUs: what the drivers show. Every reader takes the root of the file system, so that tests can make one up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from leveret.core.inventory import Found

#: limits above this are none (control groups v1 write "no limit" as a huge number)
UNLIMITED = 1 << 60
AMD, INTEL = "0x1002", "0x8086"
#: PCI class of a display controller that drives no screen
ACCELERATOR = "0x0380"


def discover(root: Path = Path("/"), affinity: set[int] | None = None, restrict: bool = True) -> Found:
    """What we may use; with `restrict` off all that the machine has."""
    mask = os.sched_getaffinity(0) if affinity is None else affinity
    cores = len(mask) if restrict else online_cores(root) or len(mask)
    memory_bytes = total_memory(root)
    if restrict:
        quota = cpu_quota(root)
        if quota is not None:
            cores = min(cores, max(1, int(quota)))
        limit = memory_limit(root)
        if limit is not None:
            memory_bytes = min(memory_bytes, limit) if memory_bytes else limit
    return Found(max(1, cores), memory_bytes >> 20, gpus(root))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def online_cores(root: Path) -> int:
    """Processors that are online."""
    count = 0
    for part in filter(None, _read(root / "sys/devices/system/cpu/online").split(",")):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return count


def total_memory(root: Path) -> int:
    """Bytes of the machine; 0 when it does not say."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, directory) of our control group and of those around it, for one controller."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, where = rest.partition(":")
        if number == "0" and not names:
            version, bases = 2, [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in names.split(","):
            version, bases = 1, [root / "sys/fs/cgroup" / names, root / "sys/fs/cgroup" / controller]
        else:
            continue
        parts = [part for part in where.split("/") if part not in ("", "..")]
        for base in bases:
            for depth in range(len(parts), -1, -1):
                yield version, base.joinpath(*parts[:depth])


def cpu_quota(root: Path) -> float | None:
    """Processors' worth of time that our control groups give us; None without a limit."""
    found = []
    for version, group in groups(root, "cpu"):
        if version == 2:
            quota, _, period = _read(group / "cpu.max").partition(" ")
        else:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found) if found else None


def memory_limit(root: Path) -> int | None:
    """Bytes that our control groups give us; None without a limit."""
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    texts = (_read(group / names[version]) for version, group in groups(root, "memory"))
    found = [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED]
    return min(found) if found else None


def gpus(root: Path) -> int:
    """GPUs for computing: NVIDIA's, and AMD's and Intel's."""
    return nvidia_gpus(root) + (kfd_gpus(root) or drm_gpus(root, AMD)) + drm_gpus(root, INTEL)


def nvidia_gpus(root: Path) -> int:
    """As the driver lists them; in a container that shows devices only, those."""
    listed = _names(root / "proc/driver/nvidia/gpus")
    devices = [name for name in _names(root / "dev") if re.fullmatch(r"nvidia\d+", name)]
    # a container sees all of the driver's list, and the devices that it was given
    return min(len(listed), len(devices)) if listed and devices else len(devices)


def kfd_gpus(root: Path) -> int:
    """AMD: nodes of the compute topology that are GPUs (processors have none of its SIMDs)."""
    count = 0
    topology = root / "sys/class/kfd/kfd/topology/nodes"
    for name in _names(topology):
        match = re.search(r"^simd_count (\d+)", _read(topology / name / "properties"), re.MULTILINE)
        count += bool(match and int(match[1]))
    return count


def drm_gpus(root: Path, vendor: str) -> int:
    """Cards of a vendor that are made for computing; AMD's all are."""
    count = 0
    for name in _names(root / "sys/class/drm"):
        if re.fullmatch(r"card\d+", name):
            device = root / "sys/class/drm" / name / "device"
            if _read(device / "vendor") == vendor:
                count += vendor == AMD or _read(device / "class").startswith(ACCELERATOR)
    return count


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
