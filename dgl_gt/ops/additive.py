"""The weights of additive attention, for those who want to see them."""

import torch
from torch.nn import functional

from .reference import dropout_keep


def attention_weights(csc, q, k, lse, dropout, negative_slope):
    """Return attention weights after dropout, (E, H), in the order of edge ids.

    q is (N_dst, H), k (N_src, H), and ``lse`` (N_dst, H) what ``sparse_attention`` returns for them; ``dropout`` is a pair
    of probability and seed, or None.
    """
    dst = torch.repeat_interleave(
        torch.arange(csc.num_dst, device=q.device), csc.indptr.diff(), output_size=csc.num_edges
    )
    scores = functional.leaky_relu(q.to(lse.dtype)[dst] + k.to(lse.dtype)[csc.indices.long()], negative_slope)
    weights = torch.exp(scores - lse[dst]).to(q.dtype)
    if dropout is not None and dropout[0] > 0:
        weights = weights * dropout_keep(csc, q.shape[1], *dropout).to(q.dtype) / (1 - dropout[0])
    return weights if csc.edge_ids is None else torch.empty_like(weights).index_copy(0, csc.edge_ids, weights)
