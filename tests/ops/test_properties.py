"""Attention on graphs and sizes that nobody chose."""

import pytest
import torch
from attention_cases import from_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_gt import merge, sparse_attention
from dgl_gt.ops import cpu
from dgl_gt.ops.reference import reference_attention

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")


@st.composite
def problems(draw):
    """A graph, q, k, v and bias in float64, and options."""
    num_dst, num_src = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    node = st.tuples(st.integers(0, max(num_src - 1, 0)), st.integers(0, max(num_dst - 1, 0)))
    edges = draw(st.lists(node, max_size=60)) if num_dst and num_src else []
    heads, width = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    q, k, v = (
        torch.randn(rows, heads, width, dtype=torch.float64, generator=generator).requires_grad_()
        for rows in (num_dst, num_src, num_src)
    )
    bias = None
    if draw(st.booleans()):
        bias = torch.randn(len(edges), heads, dtype=torch.float64, generator=generator)
        hidden = torch.rand(len(edges), heads, generator=generator) < draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
        bias = bias.masked_fill(hidden, -torch.inf).requires_grad_()
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    index_dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    csc = from_edges(src, dst, num_src, num_dst, index_dtype)
    options = dict(scale=draw(st.sampled_from([0.25, 1.0, -2.0])), dropout_p=draw(st.sampled_from([0.0, 0.3, 0.9])))
    return csc, q, k, v, bias, {**options, "seed": draw(st.integers(0, 2**63 - 1))}


def gradients(out, lse, tensors):
    """Gradients through both results, where lse is finite."""
    wanted = [tensor for tensor in tensors if tensor is not None]
    loss = out.square().sum() + lse.masked_fill(lse == -torch.inf, 0).sin().sum()
    return torch.autograd.grad(loss, wanted)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_kernel_equals_reference(problem):
    csc, q, k, v, bias, options = problem
    got = sparse_attention(csc, q, k, v, bias=bias, return_lse=True, **options)
    expected = reference_attention(csc, q, k, v, bias, **options)
    got, expected = ((*results, *gradients(*results, (q, k, v, bias))) for results in (got, expected))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(problems(), st.integers(0, 2**20))
def test_merge_of_any_two_halves_is_the_whole(problem, chosen):
    csc, q, k, v, bias, options = problem
    dst = torch.repeat_interleave(torch.arange(csc.num_dst), csc.indptr.diff())
    in_first = torch.rand(csc.num_edges, generator=torch.Generator().manual_seed(chosen)) < 0.5
    parts = []
    for mask in (in_first, ~in_first):
        # Positions take the place of edge ids, so that the dropout keys are those of the whole.
        ids = mask.nonzero().squeeze(1)
        global_ids = csc.edge_ids[ids]
        half = from_edges(csc.indices[ids].long(), dst[ids], csc.num_src, csc.num_dst, global_ids=global_ids)
        half_bias = None if bias is None else bias[global_ids]
        parts.append(sparse_attention(half, q, k, v, bias=half_bias, return_lse=True, **options))
    whole = sparse_attention(csc, q, k, v, bias=bias, return_lse=True, **options)
    tensors = (q, k, v, bias)
    merged, whole = ((*results, *gradients(*results, tensors)) for results in (merge(parts), whole))
    for one, other in zip(merged, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
