"""Features of edges in keys and values: the kernel against the reference, and the reference against what it folds."""

import math
from dataclasses import replace

import pytest
import torch
from attention_cases import CASES, draw_csc, draw_inputs, from_edges

from dgl_gt import sparse_attention
from dgl_gt.ops import cpu
from dgl_gt.ops.reference import reference_attention

WIDTHS = [1, 5, 16, 33]
SEED = 7
TOLERANCE = {torch.float64: dict(rtol=1e-10, atol=1e-11), torch.float32: dict(rtol=1e-4, atol=2e-4)}
needs_kernel = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")


def drawn(case, width, dtype, device="cpu"):
    """The leaves, and q, k, v, bias and edge of a case."""
    leaves, _ = draw_inputs(case, dtype)
    leaves = [leaf.detach().to(device).requires_grad_() for leaf in leaves]
    inputs = *(leaves[0].unbind(1) if case.packed else leaves[:3]), leaves[-1] if case.bias else None
    generator = torch.Generator().manual_seed(width)
    num_edges = draw_csc(case).num_edges
    shapes = (num_edges, width), (case.num_dst, case.heads, width)
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    edge = [each.to(device, dtype).requires_grad_() for each in numbers]
    return [*leaves, *edge], (*inputs, edge)


def results(function, case, width, dtype, device="cpu"):
    """Return out, lse and out_edge, and every gradient through all of them."""
    leaves, (q, k, v, bias, edge) = drawn(case, width, dtype, device)
    csc = draw_csc(case).to(device)
    if function is reference_attention:
        wide = torch.cat([q, edge[1]], 2)
        out, lse = reference_attention(csc, wide, k, v, bias, case.width**-0.5, case.dropout_p, SEED, None, edge[0])
        out, out_edge = out.split([case.width, width], 2)
    else:
        options = dict(bias=bias, edge=edge, dropout_p=case.dropout_p, seed=SEED, return_lse=True)
        out, out_edge, lse = sparse_attention(csc, q, k, v, **options)
    return with_gradients([out, lse, out_edge], leaves)


def with_gradients(found, leaves):
    """Return results, of which the second is lse, and gradients through all of them."""
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each) for each in found]
    upstream[1] = torch.where(found[1] == -math.inf, 0.0, upstream[1])
    return [*found, *torch.autograd.grad(found, leaves, upstream)]


def drawn_kinds(case, dtype, device="cpu", kinds=5):
    """A table of biases, of which one number removes edges, and the kind of each edge."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(kinds, case.heads, generator=generator, dtype=torch.float64).to(device, dtype)
    table[kinds - 1, 0] = -math.inf
    kind = torch.randint(0, kinds, (draw_csc(case).num_edges,), generator=generator, dtype=torch.int32).to(device)
    return table.requires_grad_(), kind


def kind_results(function, case, dtype, device="cpu", kinds=5):
    """Return out and lse with a bias by kind, and every gradient through both."""
    case = replace(case, bias=False)
    leaves, (q, k, v, _, _) = drawn(case, 1, dtype, device)
    table, kind = drawn_kinds(case, dtype, device, kinds)
    csc = draw_csc(case).to(device)
    if function is reference_attention:
        out, lse = function(csc, q, k, v, table, case.width**-0.5, case.dropout_p, SEED, kind=kind)
    else:
        options = dict(bias_of_kind=(table, kind), dropout_p=case.dropout_p, seed=SEED, return_lse=True)
        out, lse = function(csc, q, k, v, **options)
    return with_gradients([out, lse], [*leaves[:-2], table])


@needs_kernel
@pytest.mark.parametrize("number", [0, 1, 2], ids=["portable", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_equals_reference(case, dtype, number, monkeypatch):
    if number > cpu.best_path():
        pytest.skip("this processor has no such instructions")
    monkeypatch.setattr(cpu, "best_path", lambda: number)
    for width in WIDTHS if case.num_dst < 100 else [5]:
        expected = results(reference_attention, case, width, dtype)
        for got, wanted in zip(results(sparse_attention, case, width, dtype), expected, strict=True):
            torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES[:12], ids=lambda case: case.name)
def test_half_precision(case, dtype):
    exact = results(sparse_attention, case, 16, torch.float64)
    for got, wanted in zip(results(sparse_attention, case, 16, dtype), exact, strict=True):
        assert (got.double() - wanted).nan_to_num(0).norm() <= 0.03 * wanted.nan_to_num(0, 0, 0).norm() + 1e-6


def test_what_is_folded():
    """It is attention with W x added to keys and values of each edge (PyG's TransformerConv, UniMP)."""
    case, width = CASES[2], 5
    leaves, (q, k, v, _, (x, _)) = drawn(case, width, torch.float64)
    csc = draw_csc(case)
    weight = torch.randn(case.heads, case.width, width, dtype=torch.float64)
    out, out_edge = sparse_attention(csc, q, k, v, edge=(x, torch.einsum("nhd,hdf->nhf", q, weight)))
    found = out + torch.einsum("nhf,hdf->nhd", out_edge, weight)
    src, dst = csc.indices.long(), torch.repeat_interleave(torch.arange(csc.num_dst), csc.indptr.diff())
    of_edges = torch.einsum("hdf,ef->ehd", weight, x[csc.edge_ids])
    scores = (q[dst] * (k[src] + of_edges)).sum(-1) * case.width**-0.5
    expected = torch.zeros_like(found)
    for node in range(csc.num_dst):
        own = dst == node
        expected[node] = torch.einsum("eh,ehd->hd", scores[own].softmax(0), (v[src] + of_edges)[own])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@needs_kernel
def test_operators_and_compile():
    case = CASES[6]
    _, (q, k, v, bias, edge) = drawn(case, 5, torch.float64)
    csc = draw_csc(case)
    fields = (csc.indptr, csc.indices, csc.edge_ids, csc.global_edge_ids, csc.rev_indptr, csc.rev_dst, csc.rev_position)
    wide, numbers = torch.cat([q, edge[1]], 2).detach().requires_grad_(), (torch.tensor(3), 0, 0.5, 0.3, None)
    torch.library.opcheck(torch.ops.dgl_gt.sparse_attention, (wide, k, v, bias, edge[0], None, *fields, *numbers))

    def attend(q, k, v):
        return sparse_attention(csc, q, k, v, bias=bias, edge=edge, dropout_p=0.3, seed=3)

    for got, wanted in zip(torch.compile(attend, fullgraph=True)(q, k, v), attend(q, k, v), strict=True):
        torch.testing.assert_close(got, wanted)


@needs_kernel
@pytest.mark.parametrize("number", [0, 1, 2], ids=["portable", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bias_by_kind_is_that_of_its_rows(case, dtype, number, monkeypatch):
    if number > cpu.best_path():
        pytest.skip("this processor has no such instructions")
    monkeypatch.setattr(cpu, "best_path", lambda: number)
    for kinds in (1, 5, 300):
        expected = kind_results(reference_attention, case, dtype, kinds=kinds)
        for got, wanted in zip(kind_results(sparse_attention, case, dtype, kinds=kinds), expected, strict=True):
            torch.testing.assert_close(got, wanted, **TOLERANCE[dtype])


@needs_kernel
@pytest.mark.parametrize("terms", ["features", "kinds"])
def test_gradients_and_operator(terms):
    case = replace(
        CASES[5], edges=[(0, 0), (1, 1), (0, 1), (2, 0)], bias=False
    )  # gradcheck asks for a lse without -inf
    csc = from_edges(*torch.tensor(case.edges).T, 3, 2)
    case = replace(case, num_dst=2, edges=4)
    _, (q, k, v, _, (x, q_edge)) = drawn(case, 2, torch.float64)
    table, kind = torch.randn(3, case.heads, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 2, 0])

    def attend(q, k, v, x, q_edge, table):
        options = dict(edge=(x, q_edge)) if terms == "features" else dict(bias_of_kind=(table, kind))
        return sparse_attention(csc, q, k, v, dropout_p=0.3, seed=3, return_lse=True, **options)

    assert torch.autograd.gradcheck(attend, (q, k, v, x, q_edge, table))
    fields = (csc.indptr, csc.indices, csc.edge_ids, csc.global_edge_ids, csc.rev_indptr, csc.rev_dst, csc.rev_position)
    rows = q, k, v, table, None, kind
    if terms == "features":
        rows = torch.cat([q, q_edge], 2).detach().requires_grad_(), k, v, None, x, None
    arguments = *rows, *fields, torch.tensor(3), 0, 0.5, 0.3, None
    torch.library.opcheck(torch.ops.dgl_gt.sparse_attention, arguments)
    out, lse = (each.detach() for each in torch.ops.dgl_gt.sparse_attention(*arguments))
    detached = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
    needs = True, True, terms == "kinds", terms == "features"
    torch.library.opcheck(torch.ops.dgl_gt.sparse_attention_backward, (out, lse, out, lse, *detached, *needs))


@needs_kernel
@pytest.mark.parametrize("terms", ["features", "kinds"])
def test_the_same_bits_with_any_number_of_threads(terms):
    case, threads = CASES[7], torch.get_num_threads()
    try:
        found = []
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            if terms == "features":
                found.append(results(sparse_attention, case, 16, torch.float32))
            else:
                found.append(kind_results(sparse_attention, case, torch.float32))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for other in found[1:] for one, other in zip(found[0], other, strict=True))


def test_removed_edges_give_nothing():
    case = CASES[5]
    _, (q, k, v, bias, (x, q_edge)) = drawn(case, 5, torch.float64)
    csc = draw_csc(case)
    bias, x = bias.detach().clone(), x.detach().clone()
    bias[2], x[2] = -math.inf, math.nan
    out, out_edge = sparse_attention(csc, q, k, v, bias=bias, edge=(x, q_edge))
    kept = x.clone()
    kept[2] = 0
    wanted, wanted_edge = sparse_attention(csc, q, k, v, bias=bias, edge=(kept, q_edge))
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(out_edge, wanted_edge)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(edge=lambda x, q: (x[1:], q)), "edge[0]"),
        (dict(edge=lambda x, q: (x[:, :0], q[..., :0])), "edge[0]"),
        (dict(edge=lambda x, q: (x, q[..., 1:])), "edge[1]"),
        (dict(edge=lambda x, q: (x.float(), q)), "edge[0]"),
    ],
)
def test_bad_arguments(change, named):
    _, (q, k, v, _, edge) = drawn(CASES[0], 5, torch.float64)
    with pytest.raises(ValueError) as error:
        sparse_attention(draw_csc(CASES[0]), q, k, v, edge=change["edge"](*edge))
    assert named in str(error.value)
    with pytest.raises(ValueError, match="additive"):
        sparse_attention(draw_csc(CASES[0]), q[..., 0], k[..., 0], v, score="additive", edge=edge)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda table, kind: (table[:, :1], kind), "bias_of_kind[0]"),
        (lambda table, kind: (table[:0], kind), "bias_of_kind[0]"),
        (lambda table, kind: (table.float(), kind), "float32"),
        (lambda table, kind: (table, kind[1:]), "bias_of_kind[1]"),
        (lambda table, kind: (table, kind.float()), "bias_of_kind[1]"),
        (lambda table, kind: (table, kind + 5), "bias_of_kind[1] holds 9"),
        (lambda table, kind: (table, kind - 1), "bias_of_kind[1] holds -1"),
    ],
)
def test_bad_kinds(change, named):
    _, (q, k, v, _, _) = drawn(CASES[0], 5, torch.float64)
    given = change(*drawn_kinds(CASES[0], torch.float64))
    with pytest.raises(ValueError) as error:
        sparse_attention(draw_csc(CASES[0]), q, k, v, bias_of_kind=given)
    assert named in str(error.value)
    with pytest.raises(ValueError, match="both given"):
        sparse_attention(draw_csc(CASES[0]), q, k, v, bias=torch.zeros(90, 2), bias_of_kind=given)
