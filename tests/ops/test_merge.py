"""merge: the union of edge sets, rows without edges, gradients."""

import numpy as np
import pytest
import torch
from attention_cases import Case, draw_inputs, draw_upstream, from_edges

from dgl_gt import merge, sparse_attention

CASE = Case("", 24, 18, 90, heads=2, width=4, bias=True)


def draw_edges():
    """Edges that leave rows 0 to 3 empty, and to which set of three each belongs: rows 4 to 7 have edges in one."""
    generator = torch.Generator().manual_seed(4)
    src = torch.randint(0, 18, (90,), generator=generator)
    dst = torch.randint(4, 24, (90,), generator=generator)
    group = torch.randint(0, 3, (90,), generator=generator)
    return src, dst, torch.where(dst < 8, dst % 3, group)


def attend(src, dst, ids, q, k, v, bias, **options):
    csc = from_edges(src[ids], dst[ids], 18, 24, global_ids=ids)
    return sparse_attention(csc, q, k, v, bias=bias[ids], return_lse=True, **options)


@pytest.mark.parametrize("groups", [1, 2, 3, 5], ids="{} partials".format)
@pytest.mark.parametrize("options", [{}, dict(dropout_p=0.3, seed=2)], ids=["", "dropout"])
def test_merge_is_attention_over_the_union(groups, options):
    src, dst, group = draw_edges()
    group = group if groups >= 3 else group % groups  # with 5, the last two sets have no edge at all
    leaves, inputs = draw_inputs(CASE, torch.float64)
    whole = attend(src, dst, torch.arange(90), *inputs, **options)
    partials = [attend(src, dst, (group == part).nonzero().squeeze(1), *inputs, **options) for part in range(groups)]
    merged = merge(partials)
    torch.testing.assert_close(merged, whole)
    assert (merged[0][:4] == 0).all() and (merged[1][:4] == -torch.inf).all()

    upstream = draw_upstream(*whole)
    expected = torch.autograd.grad(whole, leaves, upstream)
    for got, wanted in zip(torch.autograd.grad(merged, leaves, upstream), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_merge_is_associative_and_symmetric():
    generator = torch.Generator().manual_seed(0)
    a, b, c = (
        (torch.randn(5, 2, 3, generator=generator).double(), torch.randn(5, 2, generator=generator).double() * 50)
        for _ in range(3)
    )
    torch.testing.assert_close(merge([merge([a, b]), c]), merge([a, b, c]))
    torch.testing.assert_close(merge([c, a, b]), merge([a, b, c]))


def test_gradcheck_with_empty_rows():
    generator = torch.Generator().manual_seed(0)
    outs = [torch.randn(4, 1, 2, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    lses = [torch.randn(4, 1, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    empty = [torch.tensor([[False], [True], [False], [True]]), torch.tensor([[False], [False], [True], [True]])]

    def merged(*tensors):
        partials = [(out, lse.masked_fill(none, -torch.inf)) for out, lse, none in zip(tensors[:2], tensors[2:], empty)]
        out, lse = merge(partials)
        return out, lse[:3]

    assert torch.autograd.gradcheck(merged, (*outs, *lses))
    out, lse = merge([(out, lse.masked_fill(none, -torch.inf)) for out, lse, none in zip(outs, lses, empty)])
    assert torch.equal(lse[3], torch.tensor([-torch.inf], dtype=torch.float64)) and (out[3] == 0).all()
    grads = torch.autograd.grad([out, lse], [*outs, *lses], [torch.ones_like(out), torch.ones_like(lse)])
    assert all(grad.isfinite().all() for grad in grads)


def test_low_precision_out_keeps_its_dtype():
    partials = [(torch.ones(3, 1, 2, dtype=torch.bfloat16), torch.zeros(3, 1)) for _ in range(2)]
    out, lse = merge(partials)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert (out == 1).all()
    torch.testing.assert_close(lse, torch.full((3, 1), 2.0).log())


BAD_PARTIALS = [
    ([], "partials is empty"),
    (np.zeros((2, 0), int), "partial 0 is a ndarray; allowed: a pair of tensors"),
    ([(torch.zeros(2, 1, 3), None)], "partial 0 is a tuple; allowed: a pair of tensors"),
    ([(torch.zeros(2, 1, 3), torch.zeros(2, 1)), (torch.zeros(3, 1, 3), torch.zeros(3, 1))], "out of partial 1"),
    ([(torch.zeros(2, 1, 3), torch.zeros(2, 3))], "lse of partial 0 has shape .2, 3"),
    ([(torch.zeros(2, 3), torch.zeros(2, 3))], "out of partial 0 has shape .2, 3"),
]


@pytest.mark.parametrize("partials, message", BAD_PARTIALS, ids=[message for _, message in BAD_PARTIALS])
def test_wrong_partials_are_refused(partials, message):
    with pytest.raises(ValueError, match=message):
        merge(partials)
