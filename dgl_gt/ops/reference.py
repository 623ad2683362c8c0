"""The eager reference: plain torch operations that define the answer of sparse attention.

It stores arrays of E x H x D elements, so it is for tests, and for machines without a kernel. It also defines the
random bits of dropout: SplitMix64 is written once in Python, here, once in C++ (cpu/vectors.h) and once in Triton
(gpu/dropout.py).
"""

import torch

# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014), in two's complement.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
MAX_HEADS = 2**16


def reference_attention(csc, q, k, v, bias, scale, dropout_p, seed, negative_slope=None, edge=None, kind=None):
    """Attend with gather and scatter; gradients by autograd, through all results.

    q is (N_dst, H, D), k and v (N_src, H, D), the bias (E, H) or None; ``-inf`` in it removes an edge. With a negative
    slope, scores are additive: q is (N_dst, H), k is (N_src, H), and the scale is not used. Returns ``out`` (N_dst, H,
    D), the sum over in-edges of dropped, normalised weights times values, and ``lse`` (N_dst, H), the log-sum-exp of the
    scores before dropout, in the dtype of sums. A row without edges has zeros and ``-inf``.

    With ``edge``, features (E, F) in the order of edge ids, which all heads share, an edge's key and value are those of
    its source and then its features: q and ``out`` are (N_dst, H, D + F). With ``kind`` (E,), in the same order, the bias
    is a table (K, H), and ``kind`` says which row of it an edge has.
    """
    dtype = accumulation_dtype(q.dtype)
    num_dst, num_heads = q.shape[:2]
    src = csc.indices.long()
    dst = torch.repeat_interleave(torch.arange(num_dst, device=q.device), csc.indptr.diff(), output_size=csc.num_edges)
    queries, keys, values = q.to(dtype)[dst], k.to(dtype)[src], v.to(dtype)[src]
    if edge is not None:
        features = (edge if csc.edge_ids is None else edge[csc.edge_ids]).to(dtype)
        features = features.unsqueeze(1).expand(-1, num_heads, -1)
        keys, values = torch.cat([keys, features], 2), torch.cat([values, features], 2)
    if bias is not None:
        bias = bias if kind is None else bias[kind.long()]
        bias = (bias if csc.edge_ids is None else bias[csc.edge_ids]).to(dtype)
        removed = bias == -torch.inf  # such an edge gives nothing, forward or backward, even where its rows hold a NaN
        queries, keys, values = (x.masked_fill(removed.unsqueeze(-1), 0.0) for x in (queries, keys, values))
        bias = bias.masked_fill(removed, -torch.inf)
    if negative_slope is None:
        scores = (queries * keys).sum(-1) * scale
    else:
        scores = torch.nn.functional.leaky_relu(queries + keys, negative_slope)
    if bias is not None:
        scores = scores + bias

    # The result does not depend on the reference point, so no gradient flows through it.
    top = scores.new_full((num_dst, num_heads), -torch.inf)
    top = top.scatter_reduce(0, dst.unsqueeze(-1).expand_as(scores), scores.detach(), "amax")
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(scores - top[dst])
    total = weights.new_zeros(num_dst, num_heads).index_add(0, dst, weights)
    has_edges = total != 0  # a NaN does not mean that there are no edges
    total = torch.where(has_edges, total, 1.0)
    lse = torch.where(has_edges, top + torch.log(total), -torch.inf)

    weights = weights / total[dst]
    if dropout_p > 0:
        weights = weights * dropout_keep(csc, num_heads, dropout_p, seed).to(dtype) / (1 - dropout_p)
    out = torch.zeros(num_dst, *values.shape[1:], dtype=dtype, device=q.device)
    out = out.index_add(0, dst, weights.unsqueeze(-1) * values)
    return out.to(q.dtype), lse


def dropout_keep(csc, num_heads, dropout_p, seed):
    """Return which (edge, head) weights dropout keeps, as bool (E, H) in order of position.

    ``bits = mix64(mix64(seed) + golden * (id * 65536 + head + 1))`` with SplitMix64's finaliser and constants, global
    edge id and global head. A weight is kept where ``bits >> 40`` is at least ``round(p * 2**24)``.
    """
    device = csc.indices.device
    ids = csc.edge_ids if csc.global_edge_ids is None else csc.global_edge_ids
    if ids is None:
        ids = torch.arange(csc.num_edges, device=device)
    heads = torch.arange(num_heads, device=device) + csc.head_offset
    counter = ids.unsqueeze(-1) * MAX_HEADS + heads + 1
    key = mix64(torch.as_tensor(seed, dtype=torch.int64, device=device))
    bits = mix64(key + counter * GOLDEN)
    return _shift_right(bits, 40) >= dropout_threshold(dropout_p)


def column_keep(ids, columns, threshold, seed):
    """Return which elements keyed dropout keeps, as bool (rows, columns); see ``dgl_gt.ops.dropout``."""
    return random_lanes(ids, columns, seed) >= threshold


def random_lanes(ids, columns, seed):
    """Return 16 random bits for each row id and column, int64 (rows, columns); see ``dgl_gt.ops.dropout``."""
    groups = torch.arange((columns + 3) // 4, device=ids.device)
    key = mix64(torch.as_tensor(seed, dtype=torch.int64, device=ids.device))
    bits = mix64(key + (ids.unsqueeze(-1) * 2**16 + groups + 1) * GOLDEN)
    lanes = torch.stack([_shift_right(bits, 16 * lane) & 0xFFFF for lane in range(4)], -1)
    return lanes.flatten(1)[:, :columns]


def dropout_threshold(dropout_p):
    """Return the 24-bit number that random bits must reach for a weight to be kept."""
    return round(dropout_p * 2**24)


def accumulation_dtype(dtype):
    """Return the dtype in which sums and ``lse`` are held: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def readable(tensor):
    """Return a tensor as kernels read it: rows and heads may have any strides, but the elements of a head are adjacent."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def mix64(bits):
    """Return SplitMix64's finaliser of 64-bit numbers in two's complement: an int64 tensor, or an int."""
    bits = _wrap((bits ^ _shift_right(bits, 30)) * _MIX_1)
    bits = _wrap((bits ^ _shift_right(bits, 27)) * _MIX_2)
    return bits ^ _shift_right(bits, 31)


def splitmix64(state):
    """Return the output of SplitMix64 that follows a state; the numbers have the form that :func:`mix64` takes."""
    return mix64(_wrap(state + GOLDEN))


def _wrap(bits):
    # Tensors wrap by themselves; Python's integers have no width.
    return bits if isinstance(bits, torch.Tensor) else (bits + 2**63) % 2**64 - 2**63


def _shift_right(bits, count):
    # An unsigned shift, which torch does not have: shift with the sign, then mask the copies of the sign bit.
    return (bits >> count) & (2 ** (64 - count) - 1)
