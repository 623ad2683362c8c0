"""Sums over in-edges with a weight for each edge."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import embedding_bag

from dgl_gt.structure import CSC


def sum_of_weighted_rows(csc: CSC, weights: Tensor, rows: Tensor) -> Tensor:
    """Return each destination's sum of its sources' rows times the weights of the edges, (N_dst, W).

    ``weights`` (E,), in the order of edge ids, may have any sign. Differentiable in both; it stores nothing as large as
    E x W.
    """
    weights = weights.to(rows.dtype)
    by_position = weights if csc.edge_ids is None else weights[csc.edge_ids]
    indices, begins = csc.indices.long(), csc.indptr[:-1].long()
    if not csc.num_edges:  # embedding_bag takes none
        none = rows.index_select(0, indices) * by_position.unsqueeze(1)
        return rows.new_zeros(csc.num_dst, rows.shape[1]).index_add(0, indices, none)
    return embedding_bag(indices, rows, begins, mode="sum", per_sample_weights=by_position)
