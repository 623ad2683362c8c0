"""Questions to the ranks that own some nodes, and their answers: rows of any nodes of the graph, with a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from dgl_gt.partition.shards.counts import user_edge_count

from .sharded_graph import ShardedGraph


class Route:
    """The way of some nodes to their owners and back; every rank makes and uses it.

    ``nodes`` are places in the order of parts, int64 (n,), in which part ``p`` has those from ``manifest["ptr"][p]`` on.
    """

    def __init__(self, sg: ShardedGraph, nodes: Tensor):
        self._comm, ranks = sg.comm, sg.comm.world_size
        bounds = torch.tensor(sg.manifest["ptr"][1:-1], dtype=torch.int64, device=nodes.device)
        owner = torch.bucketize(nodes, bounds, right=True)
        self._order = owner.argsort(stable=True)
        asked = owner.bincount(minlength=ranks)
        self._there = asked.tolist()
        self._here = self._comm.start(asked, [1] * ranks, [1] * ranks).wait().tolist()

    def to_owners(self, values: Tensor) -> Tensor:
        """Send a value for each node, (n, ...), to its owner; the values that arrived here, in the order of ranks."""
        return self._comm.start(values[self._order], self._there, self._here).wait()

    def back(self, answers: Tensor) -> Tensor:
        """Send an answer for each value that arrived here to where it came from; the answers for ``nodes``, (n, ...).

        Differentiable; the answers need a gradient on every rank or on none.
        """
        arrived = self._comm.exchange(answers, self._here, self._there)
        return torch.empty_like(arrived).index_copy(0, self._order, arrived)


def own_places(sg: ShardedGraph) -> Tensor:
    """The places of the owned nodes in the order of parts, int64 (N_owned,)."""
    begin, end = sg.manifest["ptr"][sg.comm.rank : sg.comm.rank + 2]
    return torch.arange(begin, end, device=sg.device)


class RowFetch:
    """Fetches rows of some nodes, wherever they are owned; every rank makes and calls it.

    ``fetch(own)`` returns rows of owned nodes, (N_owned, ...), and others; ``fetch.rows``, int64 (n,), says which of them
    is that of each of ``nodes``. Each row travels once to each rank. Gradients are summed at the owners.
    """

    def __init__(self, sg: ShardedGraph, nodes: Tensor):
        self._comm, first = sg.comm, sg.manifest["ptr"][sg.comm.rank]
        self._route = self._asked = None
        if sg.comm.world_size == 1:
            self.rows = nodes
            return
        unique, self.rows = nodes.unique(return_inverse=True)
        self._route = Route(sg, unique)
        self._asked = self._route.to_owners(unique) - first

    def __call__(self, own: Tensor) -> Tensor:
        if self._route is None:
            return own
        return self._route.back(self._comm.agree_on_grad(own).index_select(0, self._asked))


class EdgeSet:
    """Which pairs of nodes are edges of the whole graph, without those that transforms added; every rank makes and asks it.

    Each rank keeps, sorted, the edges whose destination it owns: 8 bytes for each.
    """

    def __init__(self, sg: ShardedGraph):
        held, (src, dst) = sg.pull(own_places(sg)), sg.edges()
        is_users = sg.edge_ids < user_edge_count(sg.manifest)
        src, dst = held[src[is_users]], held[dst[is_users]]
        self._sg, self._nodes = sg, sg.manifest["nodes"]
        keys = self._keys(src, dst)
        if sg.manifest["cut"] == "vertex" and sg.comm.world_size > 1:
            keys = Route(sg, dst).to_owners(keys)
        self.keys = keys.unique()

    def _keys(self, src: Tensor, dst: Tensor) -> Tensor:
        return dst * self._nodes + src

    def to(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """The edges whose destination is among the places from ``begin`` to ``end``, if this rank owns those: places, (n,) each."""
        bounds = torch.tensor([begin, end], device=self.keys.device) * self._nodes
        first, last = torch.searchsorted(self.keys, bounds).tolist()
        keys = self.keys[first:last]
        return keys % self._nodes, keys // self._nodes

    def contains(self, src: Tensor, dst: Tensor) -> Tensor:
        """Whether pairs, places int64 (n,) each, are edges; bool (n,)."""
        keys = self._keys(src, dst)
        if self._sg.comm.world_size == 1:
            return self._has(keys)
        route = Route(self._sg, dst)
        return route.back(self._has(route.to_owners(keys)))

    def _has(self, keys: Tensor) -> Tensor:
        if not len(self.keys):
            return torch.zeros_like(keys, dtype=torch.bool)
        return self.keys[torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)] == keys
