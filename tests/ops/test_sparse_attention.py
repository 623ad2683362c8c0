"""The kernel against the reference, and the reference against dense attention."""

import math
import os
import warnings

import pytest
import torch
from attention_cases import CASES, Case, draw_csc, draw_inputs, draw_upstream, from_edges, head_minor

from dgl_gt import CSC, sparse_attention
from dgl_gt.ops import cpu, dispatch
from dgl_gt.ops.head_minor import is_head_minor
from dgl_gt.ops.reference import dropout_keep, readable, reference_attention

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


@pytest.fixture(params=["portable", "avx2", "avx512"])
def instructions(request, monkeypatch):
    """Each instruction set that the kernel is made for."""
    number = ["portable", "avx2", "avx512"].index(request.param)
    if cpu.library() is None or number > cpu.best_path():
        pytest.skip(f"this processor, or this build of the kernel, has no {request.param}")
    monkeypatch.setattr(cpu, "best_path", lambda: number)


@pytest.fixture(params=["head-major", "head-minor"])
def path(request, instructions, monkeypatch):
    """Both layouts of rows, on each instruction set."""
    monkeypatch.setattr(cpu, "_EDGES_PER_ROW", math.inf if request.param == "head-major" else 0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@by_name
def test_kernel_equals_reference(case, dtype, path):
    for got, expected in zip(run(sparse_attention, case, dtype), run(reference_attention, case, dtype), strict=True):
        torch.testing.assert_close(got, expected, **TOLERANCE[dtype])


def eager_attention(csc, q, k, v, bias, scale, dropout_p, seed, negative_slope=None):
    """The same in the tensors' own precision, step by step, as a user would write it."""
    src, dst = csc.indices.long(), torch.repeat_interleave(torch.arange(csc.num_dst), csc.indptr.diff())
    if negative_slope is None:
        scores = (q[dst] * k[src]).sum(-1) * scale
    else:
        scores = torch.nn.functional.leaky_relu(q[dst] + k[src], negative_slope)
    if bias is not None:
        scores = scores + bias[csc.edge_ids]
    top = scores.new_full(q.shape[:2], -torch.inf)
    top = top.scatter_reduce(0, dst[:, None].expand_as(scores), scores.detach(), "amax")
    weights = torch.exp(scores - top[dst])
    total = weights.new_zeros(q.shape[:2]).index_add(0, dst, weights)
    lse = torch.where(total > 0, top + torch.log(total), -torch.inf)
    weights = weights / total[dst]
    if dropout_p > 0:
        weights = weights * dropout_keep(csc, q.shape[1], dropout_p, seed) / (1 - dropout_p)
    return v.new_zeros(len(q), *v.shape[1:]).index_add(0, dst, weights.unsqueeze(-1) * v[src]), lse


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@by_name
def test_low_precision_errs_at_most_twice_as_eager(case, dtype, path):
    csc = draw_csc(case)
    leaves, inputs = draw_inputs(case, dtype)
    # The same rounded inputs in float64, so that what is compared is the error of the computation alone.
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact_inputs = [*(exact_leaves[0].unbind(1) if case.packed else exact_leaves[:3]), None]
    if case.bias:
        exact_inputs[3] = exact_leaves[-1]
    numbers = (case.width**-0.5, case.dropout_p, SEED)
    options = dict(bias=inputs[3], dropout_p=case.dropout_p, seed=SEED, return_lse=True)
    exact = reference_attention(csc, *exact_inputs, *numbers)
    results = [
        (exact, exact_leaves),
        (eager_attention(csc, *inputs, *numbers), leaves),
        (sparse_attention(csc, *inputs[:3], **options), leaves),
    ]
    assert results[2][0][0].dtype == dtype and results[2][0][1].dtype == torch.float32
    upstream = draw_upstream(*results[1][0])
    all_tensors = []
    for (out, lse), wanted in results:
        grads = torch.autograd.grad([out, lse], wanted, [upstream[0].to(out.dtype), upstream[1].to(lse.dtype)])
        assert [grad.dtype for grad in grads] == [leaf.dtype for leaf in wanted]
        all_tensors.append([tensor.detach().double() for tensor in (out, lse, *grads)])
    for number, (true, eager, got) in enumerate(zip(*all_tensors, strict=True)):
        if true.numel() == 0:
            continue
        assert torch.equal(got.isinf(), true.isinf())
        errors = [(other - true).nan_to_num(0).abs().max() for other in (got, eager)]
        rounding = torch.finfo(dtype).eps * true.nan_to_num(0, 0, 0).abs().max()
        assert errors[0] <= 2 * errors[1] + rounding, number


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
    check_nan(sparse_attention)


def test_nan_reaches_the_result_of_its_row_alone_in_the_reference():
    check_nan(lambda csc, q, k, v, return_lse: reference_attention(csc, q, k, v, None, 1.0, 0.0, None))


def check_nan(attend):
    case = Case("", 3, 3, [(0, 0), (1, 0), (2, 1), (1, 1), (0, 2)])
    _, (q, k, v, _) = draw_inputs(case, torch.float32)
    with torch.no_grad():
        k[0] = torch.nan
    out, lse = attend(from_edges(*torch.tensor(case.edges).T, 3, 3), q, k, v, return_lse=True)
    assert out[[0, 2]].isnan().all() and lse[[0, 2]].isnan().all()
    assert out[1].isfinite().all() and lse[1].isfinite().all()


@pytest.mark.parametrize("edges", range(1, 6))
def test_infinite_values_stay_infinite(edges, path):
    case = Case("", 1, 6, [(source, 0) for source in range(edges)], heads=1, width=16)
    _, (q, k, v, _) = draw_inputs(case, torch.float32)
    with torch.no_grad():
        v[edges - 1, 0, 3] = torch.inf
    out = sparse_attention(draw_csc(case), q, k, v)
    assert out[0, 0, 3] == torch.inf and out.isfinite().sum() == 15


@needs_kernel
@pytest.mark.parametrize("default", ["meta", "cpu"])
def test_the_default_device_does_not_matter(default):
    csc = draw_csc(Case("", 9, 9, 30))
    packed = torch.randn(9, 3, 2, 8, requires_grad=True)
    expected = sparse_attention(csc, packed, dropout_p=0.5, seed=2)
    with torch.device(default):
        out = sparse_attention(csc, packed, dropout_p=0.5, seed=2)
        (grad,) = torch.autograd.grad(out.sum(), packed)
    assert torch.equal(out, expected) and grad.device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_of_ten_thousand_do_not_overflow(sign, dtype, path):
    case = Case("", 20, 20, 90, bias=True)
    csc = draw_csc(case)
    leaves, (q, k, v, bias) = draw_inputs(case, dtype)
    shifted = bias + sign * 1e4
    out, lse = sparse_attention(csc, q * 30, k * 30, v, bias=shifted, return_lse=True)
    upcast = [tensor.detach().double() for tensor in (q * 30, k * 30, v, shifted)]
    expected = reference_attention(csc, *upcast, 3**-0.5, 0.0, None)
    has_edges = csc.indptr.diff() > 0
    assert (lse[has_edges] * sign > 5000).all()
    torch.testing.assert_close(lse.double(), expected[1], rtol=1e-5, atol=1e-2)
    grads = torch.autograd.grad(out.sum() + lse[has_edges].sum(), leaves)
    assert all(tensor.isfinite().all() for tensor in (out, *grads))


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
    monkeypatch.setattr(cpu, "backward", lambda *args, **terms: asked.append(args[-2]) or backward(*args, **terms))
    alone = torch.autograd.grad(sparse_attention(draw_csc(case), **named).square().sum(), named[wanted])[0]
    assert torch.equal(alone, whole)
    (grads,) = asked
    assert [grad is not None for grad in grads] == [
        *(wanted == "q", wanted in ("k", "v"), wanted in ("k", "v"), wanted == "bias", False)
    ]


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
        assert readable(tensor).data_ptr() == tensor.data_ptr()


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
@pytest.mark.parametrize("edges", [50, 600])  # as many as 50 per row are gathered head-minor
def test_heads_that_overlap(edges):
    csc = draw_csc(Case("", 12, 12, edges))
    q = torch.randn(12, 8 + 4 - 1).unfold(1, 4, 1)  # (12, 8, 4), whose strides of head and number are both 1
    k, v = torch.randn(2, 12, 8, 4)
    torch.testing.assert_close(sparse_attention(csc, q, k, v), sparse_attention(csc, q.contiguous(), k, v))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("given", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)])
def test_results_and_gradients_have_the_layout_of_their_rows(given, dtype):
    """The result that of q; float64, for which there is no such kernel, has none but the usual one."""
    case = Case("", 30, 25, 150, heads=8, width=4)
    csc, (_, usual) = draw_csc(case), draw_inputs(case, dtype)
    rows = [head_minor(x) if minor else x for x, minor in zip(usual[:3], given)]
    expected, got = sparse_attention(csc, *usual[:3]), sparse_attention(csc, *rows)
    tolerance = dict(rtol=1e-5, atol=1e-5) if dtype != torch.bfloat16 else dict(rtol=0.02, atol=0.02)
    torch.testing.assert_close(got, expected, **tolerance)
    wanted, grads = (torch.autograd.grad(out.square().sum(), x) for out, x in ((expected, usual[:3]), (got, rows)))
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
    layouts = [is_head_minor(x) for x in (got, *grads)]
    assert layouts == [dtype != torch.float64 and bool(minor) for minor in (given[0], *given)]


@needs_kernel
def test_falls_back_to_the_reference_with_one_warning(monkeypatch):
    case = Case("", 12, 12, 50, bias=True, dropout_p=0.25)
    expected = run(sparse_attention, case, torch.float64)
    monkeypatch.setattr(cpu, "library", lambda: None)
    dispatch.warn_slow.cache_clear()
    with pytest.warns(RuntimeWarning, match="C\\+\\+ compiler.*pip install"):
        got = run(sparse_attention, case, torch.float64)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(sparse_attention, case, torch.float64)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packing", ["qkv", "kv"])
def test_packed_tensors_equal_their_views(packing, dtype):
    csc = draw_csc(Case("", 30, 30, 150))
    generator = torch.Generator().manual_seed(0)
    columns = len(packing)
    packed = torch.randn(30, columns, 2, 16, generator=generator).to(dtype).requires_grad_()
    q = [] if packing == "qkv" else [torch.randn(30, 2, 16, generator=generator).to(dtype).requires_grad_()]
    options = dict(dropout_p=0.2, seed=1)
    whole, split = sparse_attention(csc, *q, packed, **options), sparse_attention(csc, *q, *packed.unbind(1), **options)
    assert torch.equal(whole, split)
    grads = [torch.autograd.grad(out.square().sum(), [*q, packed]) for out in (whole, split)]
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)
    bias = torch.zeros(150, 2, dtype=dtype, requires_grad=True)
    fixed = [tensor.detach() for tensor in (*q, packed)]
    (alone,) = torch.autograd.grad(sparse_attention(csc, *fixed, bias=bias, **options).square().sum(), bias)
    assert alone.abs().max() > 0
    if q:  # the gradient of q by itself
        (alone,) = torch.autograd.grad(sparse_attention(csc, *q, packed.detach(), **options).square().sum(), q)
        assert torch.equal(alone, grads[0][0])


@needs_kernel
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system keeps no resettable peak")
def test_nothing_of_the_size_of_the_edges_is_stored():
    num_edges, heads = 1_000_000, 8
    generator = torch.Generator().manual_seed(0)
    csc = CSC.build(
        torch.arange(0, num_edges + 1, 1000), torch.randint(0, 1000, (num_edges,), generator=generator), 1000
    )
    packed = torch.randn(1000, 3, heads, 16, requires_grad=True)
    sparse_attention(csc, packed, dropout_p=0.1, seed=1).sum().backward()

    def resident_bytes(name):
        line = next(line for line in open("/proc/self/status") if line.startswith(name))
        return int(line.split()[1]) * 1024

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew
    before = resident_bytes("VmRSS")
    sparse_attention(csc, packed, dropout_p=0.1, seed=1).sum().backward()
    assert resident_bytes("VmHWM") - before < num_edges * heads


BAD_CALLS = [
    (dict(q=torch.zeros(5, 2, 3)), "q has shape .5, 2, 3.*N_dst = 4"),
    (dict(q=torch.zeros(4, 2, 3, dtype=torch.int64)), "q has dtype torch.int64; allowed: torch.float32"),
    (dict(k=torch.zeros(5, 2, 4)), "k has shape"),
    (dict(v=torch.zeros(4, 2, 3)), "v has shape .4, 2, 3.*N_src, H, D. = .5, 2, 3"),
    (
        dict(v=torch.zeros(5, 2, 3, dtype=torch.float64)),
        "v has dtype torch.float64; allowed: the dtype of q, torch.float32",
    ),
    (dict(k=None), "k is None, but v is given"),
    (
        dict(v=None),
        "k has shape .5, 2, 3., and v is None; pass a packed k of shape .N_src, 2, H, D.",
    ),
    (dict(k=None, v=None), "q has shape .4, 2, 3., and k and v are None; pass a packed q of shape .N, 3, H, D."),
    (dict(k=torch.zeros(5, 2, 3, device="meta")), "k is on meta, but q is on cpu"),
    (dict(bias=torch.zeros(6, 1)), "bias has shape .6, 1.*E, H. = .6, 2"),
    (dict(bias=torch.zeros(6, 2, dtype=torch.float64)), "bias has dtype torch.float64; allowed: torch.float32$"),
    (dict(dropout_p=1.0, seed=1), "dropout_p=1.0 "),
    (dict(dropout_p=-0.1, seed=1), "dropout_p=-0.1"),
    (dict(dropout_p=0.1), "seed is None"),
    (dict(dropout_p=0.1, seed=-1), "seed is -1; allowed"),
    (dict(dropout_p=0.1, seed=1.5), "seed is 1.5; allowed"),
    (dict(dropout_p=0.1, seed=torch.zeros(1)), "seed is a tensor of shape .1,. and dtype torch.float32 on cpu"),
    (dict(graph="a graph"), "graph is a str; allowed: a DGLGraph"),
]


@pytest.mark.parametrize("wrong, message", BAD_CALLS, ids=[message[:20] for _, message in BAD_CALLS])
def test_wrong_arguments_are_refused(wrong, message):
    if "DGLGraph" in message:  # telling a DGLGraph from something else takes DGL
        pytest.importorskip("dgl")
    rows = torch.zeros(5, 2, 3)
    right = dict(graph=draw_csc(Case("", 4, 5, 6)), q=torch.zeros(4, 2, 3), k=rows, v=rows)
    sparse_attention(**right)
    with pytest.raises(ValueError, match=message):
        sparse_attention(**{**right, **wrong})
