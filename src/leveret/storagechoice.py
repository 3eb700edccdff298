"""Which storage adapter an instance has, from `[rabbit]`: only the daemon asks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from leveret.config import Config, Rabbit, at_key
from leveret.core import directives, hostlist
from leveret.errors import ConfigError, InvalidError, LeveretError
from leveret.storage.local_disk import LocalDisk, Served
from leveret.storage.local_move import COPIER
from leveret.storage.port import Storage


def storage(settings: Config, state_dir: Path, hosts: Sequence[str], instance: str) -> Storage:
    """The adapter; nothing is asked of it yet. Raises ConfigError with file and line."""
    said = settings.rabbit
    if said.adapter == "dws":
        try:
            from leveret.storage.dws import Dws
        except ImportError as error:
            raise at_key(settings, "rabbit.adapter", f"rabbit.adapter: {error}", "pip install 'leveret[dws]'") from None
        return Dws(
            instance=instance,
            kubeconfig=said.kubeconfig,
            context=said.context,
            namespace=said.namespace,
            api_version=said.dws_api_version,
            nnf_api_version=said.nnf_api_version,
        )
    root = Path(said.root) if said.root else state_dir / "rabbit"
    if not root.is_absolute():
        raise at_key(settings, "rabbit.root", "rabbit.root: must be an absolute path")
    return LocalDisk(root, rabbits(settings, said, root, hosts), roots=said.roots, copier=said.copier or COPIER)


def rabbits(settings: Config, said: Rabbit, root: Path, hosts: Sequence[str]) -> list[Served]:
    """The rabbits that are described, or `rabbit0` for all nodes."""
    if not said.servers:
        return [Served("rabbit0", tuple(hosts), _free(root) // 2)]
    found: list[tuple[str, tuple[str, ...], int]] = []
    named: set[str] = set()
    for one in said.servers:
        try:
            own = tuple(hostlist.parse(one.hosts)) if one.hosts is not None else ()
            size = directives.capacity(one.capacity) if one.capacity is not None else 0
        except (LeveretError, InvalidError) as error:
            raise _bad(settings, f"{one.name}: {error.message}") from None
        if strangers := sorted(set(own) - set(hosts)):
            raise _bad(settings, f"{one.name}: no such node: {hostlist.encode(strangers)}")
        if twice := sorted(set(own) & named):
            raise _bad(settings, f"{one.name}: {hostlist.encode(twice)} is behind another rabbit already")
        if any(one.name == other for other, _, _ in found):
            raise _bad(settings, f"{one.name} is described twice")
        named |= set(own)
        found.append((one.name, own, size))
    rest = tuple(host for host in hosts if host not in named)
    free = [one.name for one in said.servers if one.hosts is None]
    if len(free) > 1:
        raise _bad(settings, f"{free[1]}: only one may be without `hosts`")
    share = _free(root) // 2 // len(found)
    return [Served(name, rest if name in free else own, size or share) for name, own, size in found]


def _bad(settings: Config, text: str) -> ConfigError:
    return at_key(settings, "rabbit.servers", f"rabbit.servers: {text}")


def _free(root: Path) -> int:
    there = root
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free
