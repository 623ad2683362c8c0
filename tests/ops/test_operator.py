"""The torch operators: gradcheck, opcheck, torch.compile."""

import pytest
import torch
from attention_cases import Case, draw_csc, draw_inputs

from dgl_gt import sparse_attention
from dgl_gt.ops import cpu
from dgl_gt.ops.reference import reference_attention

needs_kernel = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")
EDGES = [(0, 0), (1, 0), (1, 0), (4, 2), (0, 2), (2, 3), (3, 3), (4, 3), (3, 4)]  # row 1 has none
CASES = [
    Case("bias and dropout", 5, 6, EDGES + [(5, 2), (5, 0)], heads=2, width=3, bias=True, dropout_p=0.3),
    Case("no bias, packed", 5, 5, EDGES, heads=1, width=2, packed=True),
]
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@needs_kernel
@pytest.mark.parametrize("implementation", [sparse_attention, reference_attention], ids=lambda f: f.__name__)
@by_name
def test_gradcheck_through_both_results(case, implementation):
    csc = draw_csc(case)
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    has_edges = csc.indptr.diff() > 0

    def results(q, k, v, bias):
        if implementation is sparse_attention:
            options = dict(bias=bias, dropout_p=case.dropout_p, seed=3, return_lse=True)
            out, lse = sparse_attention(csc, q, k, v, **options)
        else:
            out, lse = reference_attention(csc, q, k, v, bias, 0.5, case.dropout_p, 3)
        return out, lse[has_edges]

    inputs = [None if tensor is None else tensor.detach().requires_grad_() for tensor in (q, k, v, bias)]
    assert not has_edges.all()
    assert torch.autograd.gradcheck(results, inputs)


@needs_kernel
@by_name
def test_opcheck(case):
    csc = draw_csc(case)
    _, (q, k, v, bias) = draw_inputs(case, torch.float32)
    fields = (csc.indptr, csc.indices, csc.edge_ids, csc.global_edge_ids, csc.rev_indptr, csc.rev_dst, csc.rev_position)
    numbers = (csc.head_offset, 0.5, case.dropout_p, 3)
    torch.library.opcheck(torch.ops.dgl_gt.sparse_attention, (q, k, v, bias, *fields, *numbers))

    out, lse = torch.ops.dgl_gt.sparse_attention(q, k, v, bias, *fields, *numbers)
    tensors = [None if tensor is None else tensor.detach() for tensor in (out, lse, out, lse, q, k, v, bias)]
    for needs in [(True, True, case.bias), (True, False, False), (False, True, False)]:
        arguments = (*tensors, *fields, *numbers, *needs)
        torch.library.opcheck(torch.ops.dgl_gt.sparse_attention_backward, arguments)


@needs_kernel
def test_compiles_as_one_graph():
    case = Case("", 8, 8, 30, heads=2, width=4, bias=True, packed=True)
    csc = draw_csc(case)
    leaves, _ = draw_inputs(case, torch.float32)

    def loss(csc, packed, bias, seed):
        q, k, v = (packed * 2).unbind(1)
        out, lse = sparse_attention(csc, q, k, v, bias=bias, dropout_p=0.25, seed=seed, return_lse=True)
        return out.square().sum() + lse[csc.indptr.diff() > 0].sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for seed in (1, 2, 3):
        expected, got = (function(csc, *leaves, seed) for function in (loss, compiled))
        torch.testing.assert_close(got, expected)
        pairs = zip(torch.autograd.grad(got, leaves), torch.autograd.grad(expected, leaves), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other)


@needs_kernel
def test_second_derivative_is_refused():
    case = CASES[0]
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    out = sparse_attention(draw_csc(case), q, k, v, bias=bias)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative.*create_graph"):
        grad.sum().backward()
