"""A table of trained rows, one for each node, of which each rank has the rows of its own nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import cast

import torch
from torch import Tensor, nn

from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.sharded_graph import ShardedGraph, gather_by_id
from dgl_gt.ops.reference import GOLDEN, mix64
from dgl_gt.partition.errors import InputError, whole_number
from dgl_gt.partition.schema import Schema

from .attention import check_sizes
from .dropout import draw_seeds

MAX_COLUMNS = 2**16
_ROWS = 2**14  # rows that are drawn at once, so that memory is taken for these alone


class NodeParameter(nn.Parameter):
    """A parameter with a row for each node of this rank; ranks neither sum its gradients nor compare it."""

    is_rank_own = True


class _Gather:
    """Collects the rows of all ranks by their ids. Copies share the graph, and none is written to a file."""

    def __init__(self, graph: ShardedGraph):
        self._graph = graph

    def __call__(self, values: Tensor, ids: Tensor, count: int) -> Tensor:
        comm = self._graph.comm
        comm.place = "state_dict() of a NodeEmbedding, which every rank calls"
        try:
            return cast(Tensor, gather_by_id(comm, values.detach(), ids.to(values.device), count))
        finally:
            comm.place = ""

    def __deepcopy__(self, _) -> _Gather:
        return self

    def __reduce__(self):
        raise TypeError("a NodeEmbedding has the rows of one rank and cannot be pickled; save model.state_dict()")


class NodeEmbedding(nn.Embedding):
    """``torch.nn.Embedding`` with a row for each node of a graph; with several ranks, each has those of its own nodes.

    ``embedding(rows)`` looks up rows of owned nodes, and ``embedding.weight`` has all of them, in the order of
    ``sg.ndata``. The first values are normal with variance 1, as those of ``torch.nn.Embedding``, and depend on the seed
    and the node id alone: the table is the same with any number of ranks. ``sg.comm.sum_gradients`` leaves it out,
    because no other rank has these rows. Their gradients are whole, since layers send those of copies home.

    ``state_dict()`` has the rows of all nodes, (N, embedding_dim), in the order of the node ids, so it loads with any
    number of ranks. It gathers them, so every rank calls it. An optimiser's own ``state_dict()`` has the rows of one
    rank.

    With ``ntypes``, nodes of these types alone have rows, type after type: ``embedding.weight`` has those of
    ``sg.rows(name)`` for each name, and ``state_dict()`` all of them in the order of their ids.

    Parameters
    ----------
    graph : ShardedGraph, DGLGraph, CSC, or int
        The nodes. A graph that one process holds, or a number of nodes, makes an ordinary table. On a ShardedGraph
        every rank makes it, because all take the seed of rank 0.
    embedding_dim : int
        Width of a row.
    ntypes : sequence of str, optional
        Node types of a typed ShardedGraph whose nodes have rows; by default all nodes have.

    Raises
    ------
    ValueError
        ``graph`` is something else, or a size is below 1.
    """

    def __init__(self, graph, embedding_dim: int, ntypes: Sequence[str] | None = None):
        check_sizes(embedding_dim=embedding_dim)
        whole_number("embedding_dim", embedding_dim, 1, MAX_COLUMNS)
        node_ids, device = None, None
        if isinstance(graph, ShardedGraph):
            (node_ids, count), device = ids_in_table(graph, ntypes), graph.device
            rows = len(node_ids)
        elif ntypes is not None:
            raise InputError(f"ntypes is {ntypes!r}, which is for a typed ShardedGraph; leave it out")
        elif isinstance(graph, Integral):
            check_sizes(graph=graph)
            rows = count = int(graph)
        else:
            rows = count = as_view(graph).num_owned
        super().__init__(rows, embedding_dim, _weight=torch.empty(rows, embedding_dim, device=device))
        self._gather, self._shape = None, (count, embedding_dim)
        if isinstance(graph, ShardedGraph):
            self._gather = _Gather(graph)
            self.weight = NodeParameter(self.weight.detach())
        self.register_buffer("node_ids", node_ids, persistent=False)
        seed = draw_seeds()
        self._fill(as_view(graph).broadcast(seed) if isinstance(graph, ShardedGraph) else seed)

    @torch.no_grad()
    def _fill(self, seed: Tensor) -> None:
        ids = torch.arange(len(self.weight), device=self.weight.device) if self.node_ids is None else self.node_ids
        self.weight.copy_(keyed_normal(ids, self.embedding_dim, seed, self.weight.dtype))

    def gathered(self, values: Tensor) -> Tensor:
        """Return the rows of all nodes, (N, ...), of what has a row for each row of the weight; every rank calls it."""
        return values if self._gather is None else self._gather(values, self.node_ids, self._shape[0])

    def own(self, values: Tensor) -> Tensor:
        """Return the rows of this rank of what has a row for each node of the table."""
        return values if self.node_ids is None else values.index_select(0, self.node_ids.to(values.device))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.gathered(destination[prefix + "weight"])

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        key = prefix + "weight"
        if self.node_ids is not None and key in state_dict:
            whole = state_dict[key]
            if whole.shape != self._shape:
                error_msgs.append(
                    f"{key} is {tuple(whole.shape)}; it must be {self._shape}, with a row for each node of the table"
                )
                return
            state_dict = state_dict | {key: NodeParameter(self.own(whole), self.weight.requires_grad)}
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def ids_in_table(graph: ShardedGraph, ntypes: Sequence[str] | None) -> tuple[Tensor, int]:
    """The ids that the rows of a rank have in the table of some node types, or of all nodes, int64; and how many there are."""
    if ntypes is None:
        return graph.node_ids, graph.manifest["nodes"]
    names = graph.ntypes
    schema, begin, ids = cast(Schema, graph.schema), 0, [graph.node_ids[:0]]
    for name in ntypes:
        rows = graph.rows(name)
        ids.append(graph.node_ids[rows] + (begin - int(schema.node_ptr[names.index(name)])))
        begin += schema.nodes[name]
    return torch.cat(ids), begin


def keyed_normal(ids, columns, seed, dtype):
    """Return normal numbers of mean 0 and variance 1, (rows, columns), for row ids, (rows,) int64.

    ``bits = mix64(mix64(seed) + golden * (id * 65536 + column + 1))`` with SplitMix64's finaliser and constants (Steele,
    Lea and Flood, OOPSLA 2014); its lower 52 bits are a number in (0, 1), of which the result is the normal quantile.
    There are at most ``MAX_COLUMNS`` columns.
    """
    key = mix64(torch.as_tensor(seed, dtype=torch.int64, device=ids.device))
    counters, result = torch.arange(columns, device=ids.device) + 1, []
    for some in ids.split(_ROWS):
        bits = mix64(key + (some.unsqueeze(-1) * 2**16 + counters) * GOLDEN)
        uniform = ((bits & (2**52 - 1)).double() + 0.5) / 2**52
        result.append((torch.erfinv(2 * uniform - 1) * math.sqrt(2)).to(dtype))
    return torch.cat(result)
