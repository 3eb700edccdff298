"""The continuous check: resources of active jobs + housekeeping + free + drained (+ down, excluded) = the pool, no overlap.

Cheap enough to run after every step of a test, and for an operator who does not trust what he sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core import idset
from leveret.core.resources import Rset

if TYPE_CHECKING:
    from leveret.manager.manager import Manager


def holders(manager: Manager) -> list[Rset]:
    """Everything that holds resources: active jobs, by their own logs, housekeeping, and quarantined ones."""
    held = [
        entry.rset
        for entry in manager.entries.values()
        if entry.rset is not None and entry.job.allocated and not entry.job.freed
    ]
    for run in manager.housekeeping.runs.values():
        held += [place.rset for place in run.places.values()]
    return held + [aside.rset for aside in manager.quarantine.jobs.values() if aside.rset is not None]


def wrong(manager: Manager) -> list[str]:
    """What does not add up, in words; [] is well."""
    pool, state = manager.pool, manager.resources.state
    found = pool.check(holders(manager))
    amounts = pool.amounts()
    if amounts.total != amounts.free + amounts.allocated + amounts.drained + amounts.down + amounts.excluded:
        found.append(f"the parts of the pool do not make the whole: {amounts}")
    nodes = pool.nodes
    known = {
        "up": {rank for rank, node in nodes.items() if node.up} ^ ((state.online - state.torpid) & nodes.keys()),
        "drained": {rank for rank, node in nodes.items() if node.drained} ^ (state.drains.keys() & nodes.keys()),
        "excluded": {rank for rank, node in nodes.items() if node.excluded} ^ manager.resources.excluded,
    }
    found += [
        f"rank {idset.encode(ranks)}: the pool and the log disagree about {what}"
        for what, ranks in known.items()
        if ranks
    ]
    return found
