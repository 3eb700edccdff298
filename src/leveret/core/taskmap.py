"""Which task runs on which node: block distribution, and RFC 34 task maps."""

from __future__ import annotations

from collections.abc import Sequence


def distribute(ntasks: int, slots: Sequence[int]) -> list[int]:
    """Tasks per node: as even as the nodes' slots allow, the first nodes taking what is over.

    `slots[i]` is the number of slots of node i; when there are fewer slots than tasks the rest is
    spread over all nodes in turn (several tasks a slot).
    """
    counts = [0] * len(slots)
    left = ntasks
    while left > 0:
        room = [i for i, n in enumerate(counts) if n < slots[i]] or list(range(len(slots)))
        for i in room:
            if left == 0:
                break
            counts[i] += 1
            left -= 1
    return counts


def encode(counts: Sequence[int]) -> list[list[int]]:
    """The RFC 34 map of a block distribution: [[first node, nodes, tasks per node, repeats], …]."""
    out: list[list[int]] = []
    for node, count in enumerate(counts):
        if count == 0:
            continue
        if out and out[-1][2] == count and out[-1][0] + out[-1][1] == node:
            out[-1][1] += 1
        else:
            out.append([node, 1, count, 1])
    return out
