"""What the stages of a run are estimated to write and to take, before it begins."""

from __future__ import annotations

from dgl_gt.partition.cuts.local_search import sweeps_for
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.sources.coo import COOGraph

from .cut import group_size, rounds
from .job import Sizes

# Microseconds of one worker for each edge, on two cores of a server (benchmarks/distributed_cut.py)
_SORT_US, _CLUSTER_US, _METIS_US, _SWEEP_US, _WRITE_US = 0.35, 1.9, 0.1, 0.08, 0.4
_MIB_S = 0.003  # seconds to write and to read again
_ID_BYTES = 4
_CONTRACTIONS, _CLUSTER_ROUNDS = 5, 10  # where clusters are needed, at most


def estimated_stages(source: Graph | COOGraph, parts: int, memory_bytes: int) -> list[tuple[str, int, int, float]]:
    """For each group of stages its name, tasks that run at once, bytes that are written, and seconds of one worker."""
    sizes, edges = Sizes.within(memory_bytes), source.num_edges
    nodes = source.num_nodes or 0
    data = sum(value.nbytes for value in source.node_data.values())
    of_edges = sum(value.nbytes for value in source.edge_data.values())
    chunks, ranges = max(1, -(-edges // sizes.chunk_edges)), max(1, -(-2 * edges // sizes.range_ends))
    groups = rounds(parts, group_size(parts, edges, sizes)) if parts > 1 else []
    clustered = 2 * edges > sizes.coarse_ends
    coarse = min(2 * edges, 2 * sizes.coarse_ends)
    sorted_bytes = edges * 5 * _ID_BYTES + edges * 4 * _ID_BYTES
    cluster_bytes = clustered * (_CONTRACTIONS * 24 * edges + _CLUSTER_ROUNDS * 3 * 8 * nodes)
    searched_bytes = (len(groups) + 1) * edges * 2 * _ID_BYTES
    shards = 2 * data + of_edges + edges * 3 * _ID_BYTES
    work = [
        ("edges sorted by ranges of nodes", min(chunks, ranges), sorted_bytes, _SORT_US * edges),
        ("clusters", ranges, cluster_bytes, clustered * _CLUSTER_US * edges),
        ("METIS", 1, 0, _METIS_US * coarse),
        ("local search", max(map(len, groups), default=1), searched_bytes, _search_us(len(groups), edges)),
        ("parts written", parts, shards + edges * 10, _WRITE_US * edges),
    ]
    return [(name, tasks, int(size), us / 1e6 + _MIB_S * size / 2**20) for name, tasks, size, us in work]


def _search_us(rounds_: int, edges: int) -> float:
    return rounds_ * sweeps_for(edges) * _SWEEP_US * edges
