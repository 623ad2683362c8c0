"""The kernel against the reference, and the reference against dense attention."""

import warnings

import pytest
import torch
from attention_cases import CASES, Case, draw_csc, draw_inputs, draw_upstream, from_edges

from dgl_gt import sparse_attention
from dgl_gt.ops import attention, cpu
from dgl_gt.ops.reference import reference_attention

needs_kernel = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
TOLERANCE = {torch.float64: dict(rtol=1e-10, atol=1e-12), torch.float32: dict(rtol=1e-4, atol=2e-5)}
SEED = 7


def run(function, case, dtype, csc=None):
    """Return out, lse and every gradient, through both, of one of the implementations."""
    leaves, (q, k, v, bias) = draw_inputs(case, dtype)
    csc = draw_csc(case) if csc is None else csc
    scale = case.width**-0.5
    if function is reference_attention:
        out, lse = reference_attention(csc, q, k, v, bias, scale, case.dropout_p, SEED)
    else:
        options = dict(bias=bias, dropout_p=case.dropout_p, seed=SEED, return_lse=True)
        out, lse = sparse_attention(csc, q, k, v, **options)
    return [out, lse, *torch.autograd.grad([out, lse], leaves, draw_upstream(out, lse))]


@needs_kernel
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@by_name
def test_kernel_equals_reference(case, dtype):
    for got, expected in zip(run(sparse_attention, case, dtype), run(reference_attention, case, dtype), strict=True):
        torch.testing.assert_close(got, expected, **TOLERANCE[dtype])


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_no_worse_than_eager(dtype):
    allowed = torch.rand(30, 30, generator=torch.Generator().manual_seed(5)) < 0.2
    dst, src = allowed.nonzero().T
    case = Case("", 30, 30, len(src), heads=4, width=16, bias=True)
    csc = from_edges(src, dst, 30, 30)
    leaves, (q, k, v, bias) = draw_inputs(case, dtype)
    # The same rounded inputs in float64, so that what is compared is the error of the computation alone.
    upcast = [tensor.double() for tensor in (q, k, v, bias)]
    exact, _ = reference_attention(csc, *upcast, 0.25, 0.0, None)

    scores = torch.einsum("ihd,jhd->hij", q, k) * 0.25
    scores = scores.index_put((torch.arange(4)[:, None], dst, src), bias.T, accumulate=True)
    weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
    eager = torch.einsum("hij,jhd->ihd", weights, v)

    out, lse = sparse_attention(csc, q, k, v, bias=bias, return_lse=True)
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert (eager - exact).abs().max() < 0.1  # eager is the same attention
    assert (out - exact).abs().max() <= (eager - exact).abs().max()
    assert [grad.dtype for grad in torch.autograd.grad(out.sum(), leaves)] == [dtype] * 4


@pytest.mark.parametrize("implementation", [sparse_attention, reference_attention], ids=lambda f: f.__name__)
def test_equals_dense_masked_attention(implementation):
    allowed = torch.rand(17, 12, generator=torch.Generator().manual_seed(3)) < 0.3
    allowed[5] = False
    dst, src = allowed.nonzero().T
    case = Case("", 17, 12, len(src), heads=2, width=8, bias=True)
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    dense_bias = torch.full((2, 17, 12), -torch.inf, dtype=torch.float64)
    dense_bias[:, dst, src] = bias.T
    scores = torch.einsum("ihd,jhd->hij", q, k) * 0.4 + dense_bias
    lse = torch.logsumexp(scores, -1).T
    out = torch.einsum("hij,jhd->ihd", torch.softmax(scores, -1).nan_to_num(0), v)
    csc = from_edges(src, dst, 12, 17)
    if implementation is sparse_attention:
        got = sparse_attention(csc, q, k, v, bias=bias, scale=0.4, return_lse=True)
    else:
        got = reference_attention(csc, q, k, v, bias, 0.4, 0.0, None)
    torch.testing.assert_close(got, (out, lse))
    assert (got[0][5] == 0).all() and (got[1][5] == -torch.inf).all()


@needs_kernel
@pytest.mark.parametrize("implementation", [sparse_attention, reference_attention], ids=lambda f: f.__name__)
def test_rows_masked_by_the_bias_are_empty_rows(implementation):
    case = Case("", 4, 4, [(0, 1), (2, 1), (3, 2), (1, 2), (0, 0)], bias=True)
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    with torch.no_grad():
        bias[:3] = -torch.inf  # every edge of row 1, the first of row 2
    csc = from_edges(*torch.tensor(case.edges).T, 4, 4)
    if implementation is sparse_attention:
        out, lse = sparse_attention(csc, q, k, v, bias=bias, return_lse=True)
    else:
        out, lse = reference_attention(csc, q, k, v, bias, 1.0, 0.0, None)
    assert (out[1] == 0).all() and (lse[1] == -torch.inf).all()
    torch.testing.assert_close(out[2], v[1])
    grads = torch.autograd.grad(out.sum() + lse[0].sum(), [q, k, v, bias])
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[3][:3] == 0).all()


@needs_kernel
def test_nan_reaches_the_result_of_its_row_alone():
    case = Case("", 3, 3, [(0, 0), (1, 0), (2, 1), (1, 1), (0, 2)])
    _, (q, k, v, _) = draw_inputs(case, torch.float32)
    with torch.no_grad():
        k[0] = torch.nan
    out, lse = sparse_attention(from_edges(*torch.tensor(case.edges).T, 3, 3), q, k, v, return_lse=True)
    assert out[[0, 2]].isnan().all() and lse[[0, 2]].isnan().all()
    assert out[1].isfinite().all() and lse[1].isfinite().all()


@needs_kernel
def test_large_scores_do_not_overflow():
    case = Case("", 20, 20, 90)
    _, (q, k, v, _) = draw_inputs(case, torch.float32)
    csc = draw_csc(case)
    out, lse = sparse_attention(csc, q * 100, k * 100, v, return_lse=True)
    expected = reference_attention(csc, q.double() * 100, k.double() * 100, v.double(), None, 3**-0.5, 0.0, None)
    assert lse.max() > 1000  # exp of it is no float32
    torch.testing.assert_close(lse.double(), expected[1], rtol=1e-5, atol=1e-2)
    assert out.isfinite().all()


@needs_kernel
@pytest.mark.parametrize("wanted", ["q", "k", "v", "bias"])
def test_each_gradient_by_itself(wanted, monkeypatch):
    case = Case("", 20, 15, 70, bias=True)
    _, inputs = draw_inputs(case, torch.float64)
    named = dict(zip(("q", "k", "v", "bias"), inputs))
    whole = torch.autograd.grad(sparse_attention(draw_csc(case), **named).square().sum(), named[wanted])[0]
    named = {name: tensor.detach().requires_grad_(name == wanted) for name, tensor in named.items()}
    asked = []
    backward = cpu.backward
    monkeypatch.setattr(cpu, "backward", lambda *args: asked.append(args[-1]) or backward(*args))
    alone = torch.autograd.grad(sparse_attention(draw_csc(case), **named).square().sum(), named[wanted])[0]
    assert torch.equal(alone, whole)
    assert asked == [(wanted == "q", wanted in ("k", "v"), wanted == "bias")]


@needs_kernel
@by_name
def test_same_bits_at_every_run_and_thread_count(case):
    threads = torch.get_num_threads()
    try:
        first, second = (run(sparse_attention, case, torch.float32) for _ in range(2))
        torch.set_num_threads(3)
        third = run(sparse_attention, case, torch.float32)
    finally:
        torch.set_num_threads(threads)
    for one, two, three in zip(first, second, third, strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)


@needs_kernel
def test_packed_views_are_read_in_place():
    _, (q, k, v, _) = draw_inputs(Case("", 9, 9, 20, heads=2, width=4, packed=True), torch.float32)
    for tensor in (q, k, v):
        assert not tensor.is_contiguous()
        assert cpu._readable(tensor, torch.float32).data_ptr() == tensor.data_ptr()


def test_any_strides():
    case = Case("", 12, 12, 50, heads=3, width=8, bias=True)
    csc = draw_csc(case)
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    expected = sparse_attention(csc, q, k, v, bias=bias)
    strided = [tensor.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0) for tensor in (q, k, v)]
    got = sparse_attention(csc, *strided, bias=bias.detach().T.contiguous().T)
    torch.testing.assert_close(got, expected.detach())
    shared = sparse_attention(csc, q, k, v, bias=bias[:, :1].expand(-1, 3))
    torch.testing.assert_close(shared, sparse_attention(csc, q, k, v, bias=bias[:, :1].repeat(1, 3)))


@needs_kernel
def test_falls_back_to_the_reference_with_one_warning(monkeypatch):
    case = Case("", 12, 12, 50, bias=True, dropout_p=0.25)
    expected = run(sparse_attention, case, torch.float64)
    monkeypatch.setattr(cpu, "library", lambda: None)
    attention._warn_slow.cache_clear()
    with pytest.warns(RuntimeWarning, match="C\\+\\+ compiler.*pip install"):
        got = run(sparse_attention, case, torch.float64)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(sparse_attention, case, torch.float64)


BAD_CALLS = [
    (dict(q=torch.zeros(5, 2, 3)), "q has shape .5, 2, 3.*N_dst = 4"),
    (dict(q=torch.zeros(4, 2, 3, dtype=torch.int64)), "q has dtype torch.int64; allowed: torch.float32"),
    (dict(k=torch.zeros(5, 2, 4)), "k has shape"),
    (dict(v=torch.zeros(4, 2, 3)), "v has shape .4, 2, 3.*N_src, H, D. = .5, 2, 3"),
    (dict(v=torch.zeros(5, 2, 3, dtype=torch.float64)), "v has dtype torch.float64; allowed: that of q, torch.float32"),
    (dict(k=torch.zeros(5, 2, 3, device="meta")), "k is on meta, q on cpu"),
    (dict(bias=torch.zeros(6, 1)), "bias has shape .6, 1.*E, H. = .6, 2"),
    (dict(bias=torch.zeros(6, 2, dtype=torch.float64)), "bias has dtype torch.float64"),
    (dict(dropout_p=1.0, seed=1), "dropout_p is 1.0; allowed: 0 <= dropout_p < 1"),
    (dict(dropout_p=-0.1, seed=1), "dropout_p is -0.1"),
    (dict(dropout_p=0.1), "seed is None"),
    (dict(dropout_p=0.1, seed=-1), "seed is -1; allowed"),
    (dict(dropout_p=0.1, seed=1.5), "seed is 1.5; allowed"),
    (dict(graph="a graph"), "graph is a str; allowed: a DGLGraph"),
]


@pytest.mark.parametrize("wrong, message", BAD_CALLS, ids=[message[:20] for _, message in BAD_CALLS])
def test_wrong_arguments_are_refused(wrong, message):
    rows = torch.zeros(5, 2, 3)
    right = dict(graph=draw_csc(Case("", 4, 5, 6)), q=torch.zeros(4, 2, 3), k=rows, v=rows)
    sparse_attention(**right)
    with pytest.raises(ValueError, match=message):
        sparse_attention(**{**right, **wrong})
