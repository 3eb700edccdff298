"""The inventory of an instance that begins: what `[resource]` describes, else what this machine has."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from leveret.config import Config, at_key
from leveret.core import inventory as inventories
from leveret.core import resources
from leveret.core.inventory import Found, Inventory
from leveret.errors import ConfigError, FormatError, InvalidError
from leveret.exec.discover import discover


def inventory(settings: Config, size: int, found: Found | None = None) -> Inventory:
    """The nodes of an instance of `size` (where they are not described). Raises ConfigError with file and line."""
    said = settings.resource
    simulated = settings.exec.engine == "simulated"
    try:
        if said.config is not None:
            result = inventories.described(said.config)
        elif said.path is not None:
            result = inventories.of_r(_read(Path(said.path)))
        elif simulated:
            names = [f"node{rank}" for rank in range(size)]
            result = inventories.discovered(names, Found(settings.exec.simulated_cores))
        else:
            found = found or discover(restrict=not said.norestrict)
            host = socket.gethostname()
            result = inventories.discovered([host] if size == 1 else [f"node{rank}" for rank in range(size)], found)
        if said.reserve:
            inventories.reserve(result, said.reserve)
        if said.exclude:
            result.excluded = inventories.exclude(result, said.exclude)
    except InvalidError as error:
        key = (error.path or "resource.path").partition("[")[0]
        raise at_key(settings, key, error.message, error.hint) from None
    if result.method == "configuration" and not simulated and not said.noverify:
        # every node of this engine is this machine
        result.missing = inventories.verify(result, found or discover(restrict=not said.norestrict))
    return result


def _read(path: Path) -> resources.Rset:
    try:
        return resources.from_dict(json.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"resource.path: {path}: {error.strerror}", path="resource.path") from None
    except (ValueError, FormatError) as error:
        raise ConfigError(
            f"resource.path: {path}: {error}", "a resource set (RFC 20), as JSON", "resource.path"
        ) from None
