"""Which task runs on which node: distribution over slots, placement schemes, and RFC 34 task maps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from leveret.errors import FormatError


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


def place(scheme: str, value: str, counts: Sequence[int]) -> list[list[int]]:
    """The ranks of the tasks of each node, ascending; `counts` says how many tasks a node has.

    Schemes as in Flux: `block`, `cyclic` (value: tasks at a time, default 1) and `manual` (value: an RFC 34 map,
    with the same number of tasks on each node). Raises FormatError.
    """
    if scheme == "block":
        first, ranks = 0, []
        for count in counts:
            ranks.append(list(range(first, first + count)))
            first += count
        return ranks
    if scheme == "cyclic":
        return _cyclic(_stride(value), counts)
    if scheme == "manual":
        return _manual(value, counts)
    raise FormatError(f"unknown taskmap scheme `{scheme}`", "block, cyclic[:N] or manual:MAP")


def encode_ranks(ranks: Sequence[Sequence[int]]) -> list[list[int]]:
    """The RFC 34 map of any placement; `ranks` as `place` gives them."""
    node_of = {rank: node for node, own in enumerate(ranks) for rank in own}
    runs: list[list[int]] = []  # [node, consecutive ranks]
    for rank in range(len(node_of)):
        if runs and runs[-1][0] == node_of[rank]:
            runs[-1][1] += 1
        else:
            runs.append([node_of[rank], 1])
    blocks: list[list[int]] = []
    at = 0
    while at < len(runs):
        node, tasks = runs[at]
        nodes = 1
        while at + nodes < len(runs) and runs[at + nodes] == [node + nodes, tasks]:
            nodes += 1
        if blocks and blocks[-1][:3] == [node, nodes, tasks]:
            blocks[-1][3] += 1
        else:
            blocks.append([node, nodes, tasks, 1])
        at += nodes
    return blocks


def decode(text: str) -> list[int]:
    """The node of each task, by rank, of an RFC 34 map in JSON: a list of blocks, or an object with `map`.

    Raises FormatError.
    """
    try:
        found: Any = json.loads(text)
    except ValueError:
        raise FormatError(f"`{text}` is no task map") from None
    blocks = found.get("map") if isinstance(found, dict) else found
    nodes: list[int] = []
    for block in blocks if isinstance(blocks, list) else [None]:
        if not (isinstance(block, list) and len(block) == 4 and all(type(n) is int and n >= 0 for n in block)):
            raise FormatError(f"`{text}` is no task map", "[[first node, nodes, tasks per node, repeats], …]")
        first, count, tasks, repeats = block
        if count * tasks * repeats > 1 << 24:
            raise FormatError(f"`{text}` has too many tasks")
        nodes += [node for node in range(first, first + count) for _ in range(tasks)] * repeats
    return nodes


def _stride(value: str) -> int:
    if not value:
        return 1
    if not (value.isascii() and value.isdigit() and 0 < int(value) < 1 << 31):
        raise FormatError(f"cyclic: `{value}` is no number of tasks")
    return int(value)


def _cyclic(stride: int, counts: Sequence[int]) -> list[list[int]]:
    ranks: list[list[int]] = [[] for _ in counts]
    rank, total = 0, sum(counts)
    while rank < total:
        for own, count in zip(ranks, counts, strict=True):
            take = min(stride, count - len(own))
            own += range(rank, rank + take)
            rank += take
    return ranks


def _manual(value: str, counts: Sequence[int]) -> list[list[int]]:
    ranks: list[list[int]] = [[] for _ in counts]
    used = [index for index, count in enumerate(counts) if count]  # nodes are numbered without those that have no task
    for rank, node in enumerate(decode(value)):
        if node >= len(used):
            raise FormatError(f"manual: the job has no node {node}")
        ranks[used[node]].append(rank)
    if [len(own) for own in ranks] != list(counts):
        raise FormatError("manual: not the tasks that the job has on each node")
    return ranks
