"""Exact merge of attention results over disjoint sets of edges."""

import torch


def merge(partials):
    """Join the results of attention over disjoint edge sets into the result over their union.

    With ``m = max_p lse_p`` and ``w_p = exp(lse_p - m)``: ``lse = m + log(sum_p w_p)`` and
    ``out = sum_p w_p out_p / sum_p w_p``, which is the associative step of the online softmax (Milakov and Gimelshein
    2018, arXiv 1805.02867). The result is differentiable in every `out` and `lse`. A row for which no partial has an
    edge gives zeros and ``-inf``, and no NaN, forward or backward.

    Parameters
    ----------
    partials : sequence of (out, lse)
        ``out (N, H, D)``, all of one dtype, and ``lse (N, H)`` float32 or float64, as
        ``sparse_attention(..., return_lse=True)`` gives them; ``lse`` is ``-inf`` where a partial has no edge.

    Returns
    -------
    out : torch.Tensor, (N, H, D)
    lse : torch.Tensor, (N, H)

    Raises
    ------
    ValueError
        `partials` is empty, or shapes or dtypes differ.
    """
    partials = list(partials)
    _check(partials)
    if len(partials) == 1:
        return partials[0]
    lses = torch.stack([lse for _, lse in partials])
    # The result does not depend on the reference point, so no gradient flows through it.
    top = lses.detach().amax(0)
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(lses - top)
    total = weights.sum(0)
    has_edges = total != 0  # a NaN does not mean that there are no edges
    total = torch.where(has_edges, total, 1.0)
    lse = torch.where(has_edges, top + torch.log(total), -torch.inf)
    weights = weights / total
    out = sum(weight.unsqueeze(-1) * out for weight, (out, _) in zip(weights, partials))
    return out.to(partials[0][0].dtype), lse


def merge_into(out, lse, part, part_lse):
    """Merge two results as :func:`merge` does, without a gradient: ``out`` and ``lse`` become the result, in place."""
    top = torch.maximum(lse, part_lse)
    top = torch.where(top == -torch.inf, 0.0, top)
    weight, part_weight = torch.exp(lse - top), torch.exp(part_lse - top)
    total = weight + part_weight
    has_edges = total != 0
    total = torch.where(has_edges, total, 1.0)
    out.mul_((weight / total).unsqueeze(-1)).add_(part * (part_weight / total).unsqueeze(-1))
    lse.copy_(torch.where(has_edges, top + torch.log(total), -torch.inf))


def merge_rows(out, lse, parts, part_lses, rows, counts):
    """Merge results of all N rows with M results that other ranks have for some of them, as :func:`merge` does.

    ``rows`` (M,) int64 is the row to which each of the M results belongs, and ``counts`` says how many come from each
    rank; among these, each row occurs at most once. Returns ``out`` (N, H, D).
    """
    return _MergeRows.apply(out, lse, parts, part_lses, rows, counts)


class _MergeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, lse, parts, part_lses, rows, counts):
        merged, merged_lse = out.to(lse.dtype, copy=True), lse.clone()
        for part, part_lse, at in zip(*(x.split(counts) for x in (parts, part_lses, rows))):
            here, here_lse = merged[at], merged_lse[at]
            merge_into(here, here_lse, part, part_lse)
            merged[at], merged_lse[at] = here, here_lse
        merged = merged.to(out.dtype)
        ctx.save_for_backward(out, lse, parts, part_lses, rows, merged, merged_lse)
        return merged

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        # with weight w = exp(lse_p - lse): d out / d out_p = w, d out / d lse_p = w (out_p - out)
        out, lse, parts, part_lses, rows, merged, merged_lse = ctx.saved_tensors
        merged_lse = torch.where(merged_lse == -torch.inf, 0.0, merged_lse)
        grads = []
        for part, part_lse, total, total_lse, upstream in (
            (out, lse, merged, merged_lse, grad),
            (parts, part_lses, merged[rows], merged_lse[rows], grad[rows]),
        ):
            weight = torch.exp(part_lse - total_lse)
            grads.append((weight.unsqueeze(-1) * upstream).to(part.dtype))
            grads.append(weight * (upstream * (part - total)).sum(-1, dtype=weight.dtype))
        return *grads, None, None


def _check(partials):
    if not partials:
        raise ValueError("partials is empty; pass at least one pair (out, lse)")
    for number, pair in enumerate(partials):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(x, torch.Tensor) for x in pair)):
            raise ValueError(f"partial {number} is a {type(pair).__name__}; allowed: a pair of tensors, (out, lse)")
    first_out, first_lse = partials[0]
    for number, (out, lse) in enumerate(partials):
        if out.dim() != 3 or out.shape != first_out.shape or out.dtype != first_out.dtype:
            raise ValueError(
                f"out of partial {number} has shape {tuple(out.shape)} and dtype {out.dtype}; allowed: (N, H, D) as in "
                f"the first partial, {tuple(first_out.shape)} and {first_out.dtype}"
            )
        if lse.shape != out.shape[:2] or lse.dtype != first_lse.dtype:
            raise ValueError(
                f"lse of partial {number} has shape {tuple(lse.shape)} and dtype {lse.dtype}; allowed: "
                f"{tuple(out.shape[:2])}, and {first_lse.dtype} as in the first partial"
            )
