"""Additive scores: the kernel against the reference, on every instruction set; packed rows; the operator; refusals."""

import pytest
import torch
from attention_cases import CASES, Case, draw_csc, draw_upstream, head_minor

from dgl_gt import sparse_attention
from dgl_gt.nn.gat import attention_weights
from dgl_gt.ops import cpu
from dgl_gt.ops.reference import reference_attention

needs_kernel = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
TOLERANCE = {torch.float64: (1e-10, 1e-12), torch.float32: (1e-4, 5e-5)}  # relative; as a share of the largest
SEED, SLOPE = 7, 0.2


@pytest.fixture(params=["portable", "avx2", "avx512"])
def instructions(request, monkeypatch):
    """Each instruction set that the kernel is made for."""
    number = ["portable", "avx2", "avx512"].index(request.param)
    if cpu.library() is None or number > cpu.best_path():
        pytest.skip(f"this processor, or this build of the kernel, has no {request.param}")
    monkeypatch.setattr(cpu, "best_path", lambda: number)


def draw(case, dtype):
    """Leaves and q (N_dst, H), k (N_src, H), v (N_src, H, D); where the case says so, views of one tensor."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    as_given = head_minor if case.head_minor else lambda rows: rows
    if case.packed:
        packed = as_given(random(case.num_src, case.heads, case.width + 2))
        return [packed], (packed[..., -1], packed[..., -2], packed[..., :-2])
    q, k = random(case.num_dst, case.heads), random(case.num_src, case.heads)
    rows = [q, k, as_given(random(case.num_src, case.heads, case.width))]
    return rows, rows


def run(function, case, dtype, slope=SLOPE, change=lambda ends: ends):
    """Result, log-sum-exp, and every gradient through both."""
    leaves, (q, k, v) = draw(case, dtype)
    rows = change(q), change(k), v
    if function is reference_attention:
        out, lse = reference_attention(draw_csc(case), *rows, None, 1.0, case.dropout_p, SEED, slope)
    else:
        options = dict(score="additive", negative_slope=slope, dropout_p=case.dropout_p, seed=SEED, return_lse=True)
        out, lse = sparse_attention(draw_csc(case), *rows, **options)
    grads = torch.autograd.grad([out, lse], leaves, draw_upstream(out, lse))
    return [out.detach(), lse.detach(), *grads]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@by_name
def test_kernel_equals_reference(case, dtype, instructions):
    for got, expected in zip(run(sparse_attention, case, dtype), run(reference_attention, case, dtype), strict=True):
        largest = max(1.0, float(expected.nan_to_num(0, 0, 0).abs().max())) if expected.numel() else 1.0
        rtol, atol = TOLERANCE[dtype]
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol * largest)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@by_name
def test_low_precision_rounds_results_alone(case, dtype, instructions):
    """The reference sums in float32, as the kernel does, and rounds each result once."""
    for got, expected in zip(run(sparse_attention, case, dtype), run(reference_attention, case, dtype), strict=True):
        assert got.dtype == expected.dtype
        largest = expected.float().nan_to_num(0, 0, 0).abs().max() if expected.numel() else 0.0
        allowed = 8 * torch.finfo(dtype).eps * float(largest)
        torch.testing.assert_close(got.float(), expected.float(), rtol=0.0, atol=allowed)


@pytest.mark.parametrize("change", [lambda ends: -ends.abs(), lambda ends: 0 * ends], ids=["negative", "mean"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("edges", [90, [(3, node % 20) for node in range(5000)]], ids=["few", "hub of pieces"])
def test_a_slope_of_0_at_every_score(edges, packed, change, instructions):
    case = Case("", 20, 20, edges, heads=3, width=8, dropout_p=0.3, packed=packed)
    pairs = [run(each, case, torch.float64, 0.0, change) for each in (sparse_attention, reference_attention)]
    for got, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("slope", [0.0, 1.0, 1.5, -0.4])
def test_slopes(slope, instructions):
    case = Case("", 20, 20, 90, heads=3, width=8, dropout_p=0.3)
    pairs = zip(run(sparse_attention, case, torch.float64, slope), run(reference_attention, case, torch.float64, slope))
    for got, expected in pairs:
        torch.testing.assert_close(got, expected)


@needs_kernel
@by_name
def test_same_bits_at_every_thread_count(case):
    threads = torch.get_num_threads()
    try:
        first = run(sparse_attention, case, torch.float32)
        torch.set_num_threads(3)
        second = run(sparse_attention, case, torch.float32)
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@needs_kernel
@pytest.mark.parametrize("width", [3, 16])
def test_packed_rows(width):
    """Keys and values in one tensor, or queries as well, give the bits of three tensors, and so do gradients."""
    case = Case("", 20, 20, 90, heads=2, width=width, packed=True)
    ((packed,), (q, k, v)), csc = draw(case, torch.float32), draw_csc(case)
    options = dict(score="additive", dropout_p=0.2, seed=3)
    expected = sparse_attention(csc, q, k, v, **options)
    upstream = torch.randn_like(expected)
    (grad,) = torch.autograd.grad(expected, packed, upstream)
    assert torch.equal(sparse_attention(csc, packed, **options), expected)
    assert torch.equal(torch.autograd.grad(sparse_attention(csc, packed, **options), packed, upstream)[0], grad)
    own, kv = q.detach().requires_grad_(), torch.cat([v, k.unsqueeze(-1)], 2).detach().requires_grad_()
    out = sparse_attention(csc, own, kv, **options)
    grads = torch.autograd.grad(out, [own, kv], upstream)
    assert torch.equal(out, expected)
    assert torch.equal(grads[0], grad[..., -1])
    assert torch.equal(grads[1], torch.cat([grad[..., :-2], grad[..., -2:-1]], 2))
    for wanted in (own, kv):  # one gradient by itself
        alone = torch.autograd.grad(sparse_attention(csc, own, kv, **options), wanted, upstream)[0]
        assert torch.equal(alone, grads[0 if wanted is own else 1])


@needs_kernel
@pytest.mark.parametrize("implementation", [sparse_attention, reference_attention], ids=lambda f: f.__name__)
def test_gradcheck_through_both_results(implementation):
    case = Case("", 5, 6, [(0, 0), (1, 0), (1, 0), (4, 2), (0, 2), (5, 3)], heads=2, width=3, dropout_p=0.3)
    csc, (leaves, _) = draw_csc(case), draw(case, torch.float64)
    has_edges = csc.indptr.diff() > 0

    def results(q, k, v):
        if implementation is sparse_attention:
            out, lse = sparse_attention(csc, q, k, v, score="additive", dropout_p=0.3, seed=3, return_lse=True)
        else:
            out, lse = reference_attention(csc, q, k, v, None, 1.0, 0.3, 3, SLOPE)
        return out, lse[has_edges]

    assert not has_edges.all() and torch.autograd.gradcheck(results, leaves)


@needs_kernel
@pytest.mark.parametrize("packing", ["none", "kv", "qkv"])
def test_opcheck(packing):
    case = Case("", 5, 5, [(0, 0), (1, 0), (1, 0), (4, 2), (0, 2)], heads=2, width=3, packed=True)
    csc, ((packed,), (q, k, v)) = draw_csc(case), draw(case, torch.float32)
    q, k, v = {
        "none": (q, k, v),
        "kv": (q, torch.cat([v, k.unsqueeze(-1)], 2), None),
        "qkv": (packed, None, None),
    }[packing]
    rows = [None if each is None else each.detach().requires_grad_() for each in (q, k, v)]
    fields = (csc.indptr, csc.indices, csc.edge_ids, csc.global_edge_ids, csc.rev_indptr, csc.rev_dst, csc.rev_position)
    arguments = (*fields, torch.tensor(3), 0, 1.0, 0.3, SLOPE)
    torch.library.opcheck(torch.ops.dgl_gt.sparse_attention, (*rows, *[None] * 3, *arguments))
    out, lse = torch.ops.dgl_gt.sparse_attention(*rows, *[None] * 3, *arguments)
    tensors = [None if each is None else each.detach() for each in (out, lse, out, lse, *rows)]  # lse of a row is -inf
    torch.library.opcheck(
        torch.ops.dgl_gt.sparse_attention_backward, (*tensors, *[None] * 3, *arguments, True, True, False, False)
    )


def test_weights_make_the_result():
    case = Case("", 9, 9, 40, heads=2, width=4)
    csc, (_, (q, k, v)) = draw_csc(case), draw(case, torch.float64)
    out, lse = sparse_attention(csc, q, k, v, score="additive", dropout_p=0.4, seed=5, return_lse=True)
    weights = attention_weights(csc, q, k, lse, (0.4, 5), SLOPE)
    dst = torch.repeat_interleave(torch.arange(9), csc.indptr.diff())
    moved = weights[csc.edge_ids].unsqueeze(-1) * v[csc.indices.long()]
    torch.testing.assert_close(torch.zeros_like(out).index_add(0, dst, moved), out)


Q, K, V = torch.zeros(4, 2), torch.zeros(5, 2), torch.zeros(5, 2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(score="sum"), "score is 'sum'"),
        (dict(q=torch.zeros(4, 2, 3)), "q has shape .4, 2, 3."),
        (dict(k=torch.zeros(5, 3)), "k has shape .5, 3."),
        (dict(v=torch.zeros(5, 3, 3)), "v has shape .5, 3, 3."),
        (dict(k=torch.zeros(5, 2, 1), v=None), "k has shape .5, 2, 1."),
        (dict(q=torch.zeros(4, 2), k=None, v=None), "q has shape .4, 2."),
        (dict(bias=torch.zeros(6, 2)), "bias is given with additive scores"),
        (dict(negative_slope=float("nan")), "negative_slope is nan"),
        (dict(negative_slope="0.2"), "negative_slope is '0.2'"),
        (dict(k=K.double()), "k has dtype torch.float64"),
    ],
)
def test_refusals(changes, message):
    csc = draw_csc(Case("", 4, 5, 6))
    with pytest.raises(ValueError, match=message):
        sparse_attention(csc, **{"q": Q, "k": K, "v": V, "score": "additive"} | changes)
