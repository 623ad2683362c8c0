"""A digest of the data that a run trains on, which does not depend on how the graph is cut.

Each node and each edge gives a number from its own id and contents, and the numbers are summed over all ranks: so every
cut of a graph into any number of parts has the same digest. It finds data that were changed or mixed up, not forgeries.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.reference import splitmix64

_NUMBERS = 1 << 20  # hashed at a time
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def data_digest(sg: ShardedGraph, names, edge_names=()) -> dict[str, str | int]:
    """Digests of the edges and of node and edge data by name, and the numbers of nodes and edges; every rank calls it."""
    held = sg.pull(sg.node_ids)
    source, destination = sg.edges()
    ends = torch.stack([held[source], held[destination]], 1).cpu()
    sums = [_sum_of_rows(sg.edge_ids.cpu(), ends, "edges")]
    sums += [_sum_of_rows(sg.node_ids.cpu(), sg.ndata[name].cpu(), name) for name in names]
    sums += [_sum_of_rows(sg.edge_ids.cpu(), sg.edata[name].cpu(), f"edge {name}") for name in edge_names]
    totals = sg.comm.all_reduce(torch.tensor(sums)).tolist()
    labels = ("edges", *names, *(f"edge data {name}" for name in edge_names))
    digests = {name: f"{total % 2**64:016x}" for name, total in zip(labels, totals)}
    return {"number of nodes": sg.manifest["nodes"], "number of edges": sg.manifest["edges"], **digests}


def _sum_of_rows(ids: Tensor, rows: Tensor, name: str) -> int:
    """The sum of a hash of each row with its id, in 64 bits with a sign."""
    rows = rows.reshape(len(ids), -1) if len(ids) else rows.reshape(0, 1)
    columns = splitmix64(torch.arange(rows.shape[1]) + zlib.crc32(name.encode())) | 1
    total = torch.zeros((), dtype=torch.int64)
    step = max(1, _NUMBERS // max(1, rows.shape[1]))
    for start in range(0, len(ids), step):
        some = rows[start : start + step].contiguous().view(_WORDS[rows.element_size()]).long()
        total += splitmix64((splitmix64(some) * columns).sum(1) + splitmix64(ids[start : start + step])).sum()
    return int(total)
