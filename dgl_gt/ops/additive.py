"""The weights of additive attention, for those who want to see or change them."""

import torch
from torch.nn import functional

from .reference import dropout_keep


def attention_weights(csc, q, k, lse, dropout, negative_slope):
    """Return attention weights after dropout, (E, H), in the order of edge ids.

    q is (N_dst, H), k (N_src, H), and ``lse`` (N_dst, H) is what ``sparse_attention`` returns for them; ``dropout`` is
    a pair of probability and seed, or None.
    """
    dst = _destinations(csc)
    scores = functional.leaky_relu(q.to(lse.dtype)[dst] + k.to(lse.dtype)[csc.indices.long()], negative_slope)
    weights = torch.exp(scores - lse[dst]).to(q.dtype)
    if dropout is not None and dropout[0] > 0:
        weights = weights * dropout_keep(csc, q.shape[1], *dropout).to(q.dtype) / (1 - dropout[0])
    return weights if csc.edge_ids is None else torch.empty_like(weights).index_copy(0, csc.edge_ids, weights)


def weighted_sum(csc, weights, values):
    """Return each row's sum of its sources' values times weights, (N_dst, H, D); weights (E, H) are in edge-id order.

    It stores E x H x D numbers.
    """
    by_position = weights if csc.edge_ids is None else weights[csc.edge_ids]
    messages = by_position.unsqueeze(2) * values[csc.indices.long()]
    return messages.new_zeros(csc.num_dst, *messages.shape[1:]).index_add(0, _destinations(csc), messages)


def _destinations(csc):
    """Return the destination of each position."""
    rows = torch.arange(csc.num_dst, device=csc.device)
    return torch.repeat_interleave(rows, csc.indptr.diff(), output_size=csc.num_edges)
