"""Which compute node is behind which rabbit, as tables that people and schedulers read. Pure.

`mapping` is Flux's rabbitmapping document, `jgf` the resource graph in JSON Graph Format that Fluxion takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leveret.core import hostlist
from leveret.core.resources import Rset
from leveret.errors import InvalidError, NotFoundError

_GIB = 1 << 30
#: Fluxion's word for a vertex that nothing may be scheduled on
_DOWN = 1


def mapping(rabbits: Iterable[Mapping[str, Any]], *, order: bool = True, external: bool = True) -> dict[str, Any]:
    """{computes: {host: rabbit}, rabbits: {rabbit: {hostlist, capacity}}}, capacities in bytes.

    `rabbits` as the API lists them. A capacity that is not known is taken to be the largest one that is. With `external`
    what others than jobs of this instance hold is taken off.
    """
    found = sorted(rabbits, key=lambda one: str(one["name"])) if order else list(rabbits)
    largest = max((int(one["capacity_bytes"]) for one in found), default=0)
    computes: dict[str, str] = {}
    servers: dict[str, Any] = {}
    for one in found:
        capacity = int(one["capacity_bytes"]) or largest
        if external:
            capacity = max(0, capacity - int(one.get("external_bytes") or 0))
        hosts = list(one["computes"])
        computes |= dict.fromkeys(hosts, str(one["name"]))
        servers[str(one["name"])] = {"hostlist": hostlist.encode(hosts), "capacity": capacity}
    if order:
        computes = {host: computes[host] for host in sorted(computes, key=_natural)}
    return {"computes": computes, "rabbits": servers}


def _natural(host: str) -> tuple[str, int, str]:
    stem = host.rstrip("0123456789")
    number = host[len(stem) :]
    return stem, int(number or 0), number


def rabbits_of(table: Mapping[str, Any], hosts: Iterable[str]) -> list[str]:
    """The rabbits that these compute nodes are behind, each once. Raises NotFoundError."""
    found: dict[str, None] = {}
    for host in hosts:
        if host not in table["computes"]:
            raise NotFoundError(
                f"no rabbit is known for the node {host}", "`leveret rabbit list` shows which there are"
            )
        found[table["computes"][host]] = None
    return list(found)


def computes_of(table: Mapping[str, Any], rabbits: Iterable[str]) -> list[str]:
    """The compute nodes behind these rabbits. Raises NotFoundError."""
    found: list[str] = []
    for rabbit in rabbits:
        if rabbit not in table["rabbits"]:
            raise NotFoundError(f"there is no rabbit {rabbit}", "`leveret rabbit list` shows which there are")
        found += hostlist.parse(table["rabbits"][rabbit]["hostlist"])
    return found


def jgf(
    rset: Rset,
    table: Mapping[str, Any],
    *,
    chunks: int = 36,
    cluster: str = "cluster",
    exclude: Sequence[int] = (),
    validate: bool = True,
) -> dict[str, Any]:
    """{graph: {nodes, edges}}: cluster → chassis (one a rabbit) → ssd × `chunks` and node → core, gpu.

    Ssds are down, so that they are given out only to jobs that ask with storage. Nodes that are rabbits themselves are of
    type storage_node. Ranks of `exclude` are left out. Raises InvalidError for a host that no rabbit is known for, unless
    `validate` is off: then it hangs below the cluster.
    """
    graph = _Graph()
    root = graph.add("cluster", cluster, 0, None, cluster)
    chassis: dict[str, _Vertex] = {}
    for number, (rabbit, server) in enumerate(table["rabbits"].items()):
        properties = {"rabbit": rabbit, "ssdcount": str(chunks)}
        chassis[rabbit] = graph.add("chassis", f"chassis{number}", number, root, properties=properties)
        size = int(server["capacity"]) // chunks // _GIB
        for i in range(chunks):
            graph.add("ssd", f"ssd{i}", i, chassis[rabbit], size=max(size, 1), unit="GiB", exclusive=True, status=_DOWN)
    for rank, node in rset.ranks.items():
        if rank in exclude:
            continue
        home = node.host if node.host in chassis else table["computes"].get(node.host)
        if home is None and validate:
            raise InvalidError(
                f"no rabbit is known for the node {node.host} (rank {rank})", "--no-validate hangs it below the cluster"
            )
        kind = "storage_node" if node.host in chassis else "node"
        properties = {name: "" for name, ranks in rset.properties.items() if rank in ranks}
        host = graph.add(kind, node.host, rank, chassis[home] if home else root, rank=rank, properties=properties)
        for word, ids in (("core", node.cores), ("gpu", node.gpus)):
            for i in ids:
                graph.add(word, f"{word}{i}", i, host, rank=rank)
    return {"graph": {"nodes": graph.nodes, "edges": graph.edges}}


class _Vertex:
    __slots__ = ("number", "path")

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []

    def add(
        self,
        kind: str,
        name: str,
        number: int,
        parent: _Vertex | None,
        basename: str = "",
        *,
        rank: int = -1,
        size: int = 1,
        unit: str = "",
        exclusive: bool = False,
        status: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> _Vertex:
        path = f"{parent.path if parent else ''}/{name}"
        vertex = _Vertex(len(self.nodes), path)
        metadata: dict[str, Any] = {
            "type": kind,
            "basename": basename or name.rstrip("0123456789") or kind,
            "name": name,
            "id": number,
            "uniq_id": vertex.number,
            "rank": rank,
            "exclusive": exclusive,
            "unit": unit,
            "size": size,
            "paths": {"containment": path},
        }
        if status:
            metadata["status"] = status
        if properties:
            metadata["properties"] = dict(properties)
        self.nodes.append({"id": str(vertex.number), "metadata": metadata})
        if parent is not None:
            metadata = {"name": {"containment": "contains"}}
            self.edges.append({"source": str(parent.number), "target": str(vertex.number), "metadata": metadata})
        return vertex
