"""What the stages of a run are estimated to write and to take, before it begins."""

from __future__ import annotations

import math

import numpy as np

from dgl_gt.partition.cuts.local_search import sweeps_for
from dgl_gt.partition.cuts.permutation import row_type
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.system.mapped_arrays import is_mapped
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.partition.transforms.encodings import row_bytes

from .cut import group_size, rounds
from .job import BASE_BYTES, FILE_BYTES, PLANNED, ROWS_BYTES, SEARCH_BYTES, Sizes, edge_bytes, search_bytes

# Microseconds of one worker for each edge, on two cores of a server (benchmarks/distributed_cut.py)
_SORT_US, _CLUSTER_US, _METIS_US, _SWEEP_US, _PLACE_US, _WRITE_US = 0.35, 1.75, 0.1, 0.23, 0.75, 0.4
_MIB_S = 0.003  # seconds to write and to read again
_ID_BYTES = 4
_PLACED_BYTES = 60  # of the stages of a vertex cut, for each edge; half of it stays until the parts are written
_UNEVEN = 1.5  # of the largest part over an even share
_HALO = 0.5  # of the halo rows that a part can have at most
_CONTRACTIONS, _CLUSTER_ROUNDS = 2, 10  # where clusters are needed; later ones are smaller, all together write as two


def most_edges(source: COOGraph, config) -> int:
    """How many edges there will be, at most: reverses may be there already, and self-loops, too."""
    return source.num_edges * (1 + config.undirected) + (source.num_nodes or 0) * config.self_loops


def check_worker_memory(coo: COOGraph, config, memory_bytes: int) -> None:
    """Raise :class:`InputError` where two parts do not fit into the memory of a task."""
    nodes, edges, parts = coo.num_nodes or 0, most_edges(coo, config), config.parts
    of_node, data_bytes = (
        sum(each.nbytes for each in data.values()) / max(1, rows)
        for data, rows in ((coo.node_data, nodes), (coo.edge_data, len(coo.src)))
    )
    of_node += _encoded_bytes(coo, config)
    together, types = min(2, parts) / parts, _types_kept_even(coo, config)
    of_search, of_rows, of_file = (edge_bytes(nodes, edges, each) for each in (SEARCH_BYTES, ROWS_BYTES, FILE_BYTES))
    searched = search_bytes(2, nodes, together * nodes, together * edges, of_search, types)
    rows = nodes / parts + _HALO * min(nodes, edges / parts)
    written = edges / parts * (of_file + data_bytes) + rows * 2 * of_node
    needed = int((BASE_BYTES + _UNEVEN * max(searched, edges / parts * of_rows, written)) / PLANNED)
    if needed > memory_bytes:
        raise InputError(
            f"worker_memory (--worker-memory) is {format_bytes(memory_bytes)}, and tasks on {parts} parts of {coo.name} need about "
            f"{needed >> 20}MiB: give that much, or make more parts"
        )


def disk_bytes(coo: COOGraph, config, memory_bytes: int) -> int:
    """Disk that the shards and the files of a run take at one time, at most."""
    (_, _, ranges, _), (_, _, clusters, _), _, (_, _, searched, _), (_, _, written, _) = estimated_stages(
        coo, config, memory_bytes
    )
    edges = most_edges(coo, config)
    sources = coo.src, coo.dst, *coo.node_data.values(), *coo.edge_data.values()
    copies = sum(each.nbytes for each in sources if not is_mapped(each))
    at_once = (
        2 * edges * (_ID_BYTES + _edge_id_bytes(coo, edges))
    )  # what one round of the search reads, and what it writes
    later = searched + written if config.cut == "vertex" else max(min(searched, at_once), written)
    return int(copies + ranges + max(min(clusters, _contracted_bytes(coo, edges)), later))


def estimated_stages(source: COOGraph, config, memory_bytes: int) -> list[tuple[str, int, int, float]]:
    """For each group of stages its name, tasks that run at once, bytes that are written, and seconds of one worker."""
    parts, nodes, edges = config.parts, source.num_nodes or 0, most_edges(source, config)
    sizes = Sizes.within(memory_bytes, nodes, edges)
    encoded = _encoded_bytes(source, config) * nodes
    data = encoded + sum(value.nbytes for value in source.node_data.values())
    of_edges = sum(value.nbytes for value in source.edge_data.values())
    chunks, ranges = max(1, -(-edges // sizes.chunk_edges)), max(1, -(-2 * edges // sizes.range_ends))
    is_vertex_cut = config.cut == "vertex"
    size = group_size(parts, nodes, edges, sizes, _types_kept_even(source, config))
    groups = rounds(parts, size, np.zeros((parts, parts))) if parts > 1 and not is_vertex_cut else []
    clustered = 2 * edges > sizes.coarse_ends
    coarse = min(2 * edges, 2 * sizes.coarse_ends)
    id_bytes = _edge_id_bytes(source, edges)
    sorted_bytes = edges * (7 * _ID_BYTES + 4 * id_bytes) + 2 * encoded
    cluster_bytes = clustered * (_CONTRACTIONS * _contracted_bytes(source, edges) + _CLUSTER_ROUNDS * 3 * 8 * nodes)
    searched_bytes = (len(groups) + 1) * edges * (_ID_BYTES + id_bytes)
    placing = "local search", max(map(len, groups), default=1), searched_bytes, _search_us(len(groups), edges)
    if is_vertex_cut:
        placing = "edges and masters placed", ranges, edges * _PLACED_BYTES, _PLACE_US * edges
    shards = 2 * data + of_edges + edges * (_ID_BYTES + 8)
    work = [
        ("edges sorted by ranges of nodes", min(chunks, ranges), sorted_bytes, _SORT_US * edges),
        ("clusters", ranges, cluster_bytes, clustered * _CLUSTER_US * edges),
        ("METIS", 1, 0, _METIS_US * coarse),
        placing,
        ("parts written", parts, shards + edges * 10, _WRITE_US * edges),
    ]
    return [(name, tasks, int(size), us / 1e6 + _MIB_S * size / 2**20) for name, tasks, size, us in work]


def _encoded_bytes(source: COOGraph, config) -> int:
    """Bytes of the encodings of a node, on average."""
    feat = source.node_data.get("feat")
    features = 0 if feat is None else math.prod(feat.shape[1:])
    return row_bytes([each.on(source.schema) for each in config.encodings], features)


def _types_kept_even(source: COOGraph, config) -> int:
    is_asked = source.schema is not None and config.balance is not None
    return sum(nodes > 0 for nodes in source.schema.nodes.values()) if is_asked else 0


def _edge_id_bytes(source: COOGraph, edges: int) -> int:
    return np.dtype(row_type(2 * edges + (source.num_nodes or 0))).itemsize


def _contracted_bytes(source: COOGraph, edges: int) -> int:
    """Bytes that the edges between clusters take as pieces and when they are added up, where no cluster has two nodes."""
    return 2 * edges * (4 * _ID_BYTES + _edge_id_bytes(source, edges))


def _search_us(rounds_: int, edges: int) -> float:
    return rounds_ * sweeps_for(edges) * _SWEEP_US * edges
