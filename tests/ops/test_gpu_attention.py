"""The Triton kernels against the reference: on a GPU where one is, else in Triton's interpreter (see conftest)."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; pip install triton")

import triton
import triton.language as tl
from attention_cases import CASES, HUB, Case, draw_csc, draw_inputs, draw_upstream, from_edges
from slow_case import slow
from test_additive_attention import SLOPE
from test_additive_attention import draw as draw_additive
from test_sparse_attention import SEED, TOLERANCE, eager_attention

from dgl_gt import CSC, sparse_attention
from dgl_gt.ops import dispatch
from dgl_gt.ops.checks import unpack
from dgl_gt.ops.gpu import attention as kernels
from dgl_gt.ops.gpu import blocks, passes
from dgl_gt.ops.reference import accumulation_dtype, dropout_keep, reference_attention

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SCORES = ("dot", "additive")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MORE_CASES = [
    Case("width 128", 9, 7, 20, heads=3, width=128, bias=True, dropout_p=0.2),
    Case("width 256, groups of heads", 7, 9, 20, heads=2, width=256, index_dtype=torch.int32, bias=True),
    Case("width 300", 5, 5, 12, heads=1, width=300, packed=True),
    Case("heads that leave a group half full", 7, 7, 20, heads=11, width=16, bias=True, dropout_p=0.2),
    Case("one narrow head", 10, 10, 60, heads=1, width=2, bias=True, dropout_p=0.2, packed=True),
]
# The interpreter takes milliseconds an edge, so cases have fewer edges there. Dtypes other than float32, which change no
# order of sums, have a few cases; bfloat16 is truncated there, where a GPU rounds.
SLOW = ("large hub", "large hub, eight heads", "many chunks")
OTHER_DTYPES = ("self loops and parallel edges", "packed", "no source")
CUT_CASES = [
    Case("some rows cut", 10, 12, 65, heads=2, width=4, bias=True, dropout_p=0.3),
    Case("most rows cut", 4, 3, 60, heads=3, width=5, index_dtype=torch.int32, dropout_p=0.3),
    Case("hub cut", 40, 40, HUB[:60] + HUB[-5:], heads=1, width=16, bias=True),
]


def runs_all(dtype):
    return DEVICE == "cuda" or dtype == torch.float32


def cases(dtype):
    """The cases that are run here."""
    if DEVICE == "cuda":
        return CASES + MORE_CASES
    if runs_all(dtype):
        kept = (case for case in CASES + MORE_CASES if case.name not in SLOW)
        return [replace(case, edges=shorter(case.edges)) for case in kept]
    return [replace(case, edges=shorter(case.edges)) for case in CASES + MORE_CASES if case.name in OTHER_DTYPES]


def shorter(edges):
    """At most 48 random edges, or a hub of one piece and a few edges more."""
    if isinstance(edges, int):
        return min(edges, 48)
    return edges if len(edges) < 150 else edges[:135] + edges[-5:]


def name_of(value):
    return value.name if isinstance(value, Case) else str(value)


by_score = pytest.mark.parametrize("score", SCORES)
real_backend, real_has_kernel = dispatch.backend, dispatch.has_kernel


@pytest.fixture(autouse=True)
def through_triton(monkeypatch):
    """The public function runs the Triton kernels, on the CPU too."""
    monkeypatch.setattr(dispatch, "has_kernel", lambda *_: True)
    monkeypatch.setattr(dispatch, "backend", lambda _: kernels)


@pytest.fixture
def short_pieces(monkeypatch):
    monkeypatch.setattr(passes, "_MIN_PIECE", 4)


def draw_leaves(case, dtype, score):
    return (draw_additive if score == "additive" else draw_inputs)(case, dtype)[0]


def inputs_of(case, leaves, score):
    """q, k, v and bias of leaf tensors as ``draw_leaves`` makes them."""
    rows = unpack(leaves[0], None, None, score == "additive") if case.packed else leaves[:3]
    return *rows, leaves[-1] if case.bias and score == "dot" else None


def run(function, case, dtype, leaves, score, device="cpu", slope=SLOPE):
    """Return out, lse and every gradient through both, on the CPU in float64; inputs are leaves as dtype."""
    leaves = [leaf.detach().to(device, dtype).requires_grad_() for leaf in leaves]
    q, k, v, bias = inputs_of(case, leaves, score)
    csc = draw_csc(case).to(device)
    if function is sparse_attention:
        options = dict(score=score, negative_slope=slope, dropout_p=case.dropout_p, seed=SEED, return_lse=True)
        out, lse = function(csc, q, k, v, bias=bias, **options)
        assert out.dtype == dtype and lse.dtype == accumulation_dtype(dtype)
    else:
        slope = slope if score == "additive" else None
        out, lse = function(csc, q, k, v, bias, case.width**-0.5, case.dropout_p, SEED, slope)
    grads = torch.autograd.grad([out, lse], leaves, draw_upstream_of(out, lse))
    assert [grad.dtype for grad in grads] == [dtype] * len(leaves)
    return [tensor.detach().cpu().double() for tensor in (out, lse, *grads)]


def draw_upstream_of(out, lse):
    # Drawn in bfloat16, so that every dtype holds the same numbers.
    grad_out, grad_lse = draw_upstream(out.detach().cpu().bfloat16(), lse.detach().cpu().bfloat16())
    return grad_out.to(out), grad_lse.to(lse)


def check_against_reference(case, dtype, score, slope=SLOPE):
    leaves = draw_leaves(case, dtype, score)
    exact = run(reference_attention, case, torch.float64, leaves, score, slope=slope)
    got = run(sparse_attention, case, dtype, leaves, score, DEVICE, slope)
    if dtype in TOLERANCE:
        for one, other in zip(got, exact, strict=True):
            torch.testing.assert_close(one, other, **TOLERANCE[dtype])
        return
    eager = run(eager_attention, case, dtype, leaves, score)
    for number, (true, low, ours) in enumerate(zip(exact, eager, got, strict=True)):
        if true.numel() == 0:
            continue
        assert torch.equal(ours.isinf(), true.isinf()) and not ours.isnan().any()
        errors = [(other - true).nan_to_num(0).abs().max() for other in (ours, low)]
        rounding = torch.finfo(dtype).eps * true.nan_to_num(0, 0, 0).abs().max()
        assert errors[0] <= 2 * errors[1] + rounding, number


def by_case(score):
    """The cases of a score; where Triton's interpreter runs them, of the second score few."""
    for dtype in DTYPES:
        for case in cases(dtype):
            is_slow = score != SCORES[0] and DEVICE != "cuda" and case.name not in OTHER_DTYPES
            yield slow(dtype, case, score) if is_slow else (dtype, case, score)


@pytest.mark.parametrize(("dtype", "case", "score"), [each for score in SCORES for each in by_case(score)], ids=name_of)
def test_equals_reference(dtype, case, score):
    check_against_reference(case, dtype, score)


@by_score
@pytest.mark.parametrize(
    ("dtype", "case"),
    [(dtype, case) for dtype in DTYPES for case in (CUT_CASES if runs_all(dtype) else CUT_CASES[:1])],
    ids=name_of,
)
def test_rows_cut_into_pieces_equal_reference(dtype, case, score, short_pieces):
    check_against_reference(case, dtype, score)


@pytest.mark.parametrize("slope", [0.0, 1.0, 1.5, -0.4])
def test_slopes(slope):
    check_against_reference(Case("", 8, 8, 30, heads=3, width=8, dropout_p=0.3), torch.float64, "additive", slope)


@triton.jit(do_not_specialize=passes.VARYING)
def record_span(indptr, num_rows, num_slots, spans, PIECE: tl.constexpr):
    row, begin, count, number, pieces, slot = blocks.span(indptr, num_rows, num_slots, PIECE)
    at = spans + slot * 5
    tl.store(at, row)
    tl.store(at + 1, begin)
    tl.store(at + 2, count)
    tl.store(at + 3, number)
    tl.store(at + 4, pieces)


@pytest.mark.parametrize("degrees", ["few", "around two pieces", "hubs between empty rows", "one row"])
def test_spans_cover_every_edge_once(degrees):
    piece = 4
    generator = torch.Generator().manual_seed(0)
    counts = {
        "few": torch.randint(0, 4, (40,), generator=generator),
        "around two pieces": torch.randint(5, 12, (40,), generator=generator),
        "hubs between empty rows": torch.tensor([0, 0, 97, 0, 8, 8, 0, 33, 1, 0, 64, 0]),
        "one row": torch.tensor([50]),
    }[degrees]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(DEVICE)
    num_rows, slots = len(counts), int(counts.sum()) // piece
    spans = torch.empty(slots + num_rows, 5, dtype=torch.int64, device=DEVICE)
    record_span[(slots + num_rows,)](indptr, num_rows, slots, spans, PIECE=piece)
    spans, indptr = spans.tolist(), indptr.tolist()
    covered, by_row = [], {}
    for slot, (row, begin, count, number, pieces) in enumerate(spans):
        if number < pieces:
            covered += range(begin, begin + count)
            assert indptr[row] <= begin and begin + count <= indptr[row + 1]
            assert (pieces == 1) == (slot >= slots) == (counts[row] < 2 * piece)
            assert pieces == 1 or piece <= count < 2 * piece
            by_row.setdefault(row, []).append((slot, number, pieces))
    assert sorted(covered) == list(range(indptr[-1]))
    for programs in by_row.values():  # what the merge relies on: neighbouring slots, in order
        first = programs[0][0]
        assert programs == [(first + n, n, len(programs)) for n in range(programs[0][2])]


@by_score
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 0x123456789ABCDEF0, 2**63 - 1])
def test_dropout_mask_is_that_of_the_reference(seed, score):
    rows, columns, heads = 6, 8, 3
    ids = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(0)) + 2**45
    indices = torch.arange(columns).repeat(rows)
    csc = CSC.build(torch.arange(rows + 1) * columns, indices, columns, global_edge_ids=ids, head_offset=5).to(DEVICE)
    width = (columns,) if score == "dot" else ()
    q, k = (torch.zeros(count, heads, *width, device=DEVICE) for count in (rows, columns))
    v = torch.eye(columns, device=DEVICE).unsqueeze(1).expand(-1, heads, -1)
    out = sparse_attention(csc, q, k, v, score=score, dropout_p=0.4, seed=seed)
    mask = (out > 0).permute(0, 2, 1).reshape(rows * columns, heads)
    assert torch.equal(mask, dropout_keep(csc, heads, 0.4, seed))


@by_score
def test_any_strides(score):
    case = Case("", 5, 6, 20, heads=3, width=8, bias=True)
    csc = draw_csc(case).to(DEVICE)
    leaves = [leaf.detach().to(DEVICE) for leaf in draw_leaves(case, torch.float32, score)]
    upstream = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE).transpose(0, 1)

    def results(*tensors):
        q, k, v, bias = inputs_of(case, [tensor.requires_grad_() for tensor in tensors], score)
        out = sparse_attention(csc, q, k, v, score=score, bias=bias)
        return out, *torch.autograd.grad(out, tensors, upstream)

    expected = results(*(leaf.clone() for leaf in leaves))
    columns = results(*(leaf.mT.contiguous().mT for leaf in leaves))
    by_head = results(*(leaf.transpose(0, 1).contiguous().transpose(0, 1) for leaf in leaves))
    wider = results(*(torch.nn.functional.pad(leaf, (0, 5))[..., : leaf.shape[-1]] for leaf in leaves))
    for other in (columns, by_head, wider):
        torch.testing.assert_close(other, expected)


def test_a_bias_may_be_shared_by_heads():
    case = Case("", 5, 6, 20, heads=3, width=8, bias=True)
    csc = draw_csc(case).to(DEVICE)
    q, k, v, bias = (leaf.detach().to(DEVICE) for leaf in draw_inputs(case, torch.float32)[0])
    shared = [sparse_attention(csc, q, k, v, bias=x) for x in (bias[:, :1].expand(-1, 3), bias[:, :1].repeat(1, 3))]
    torch.testing.assert_close(*shared)


@by_score
@pytest.mark.parametrize("packing", ["qkv", "kv"])
def test_packed_tensors_equal_their_views(packing, score):
    csc = draw_csc(Case("", 6, 6, 25)).to(DEVICE)
    generator = torch.Generator().manual_seed(0)
    count, width = len(packing), (16,) if score == "dot" else ()
    shape = (6, count, 2, 16) if score == "dot" else (6, 2, 16 + count - 1)
    packed = torch.randn(shape, generator=generator).to(DEVICE).requires_grad_()
    q = [] if packing == "qkv" else [torch.randn(6, 2, *width, generator=generator).to(DEVICE).requires_grad_()]
    options = dict(score=score, dropout_p=0.2, seed=1)
    views = unpack(*[*q, packed, None, None][:3], score == "additive")
    whole, split = sparse_attention(csc, *q, packed, **options), sparse_attention(csc, *views, **options)
    grads = [torch.autograd.grad(out.square().sum(), [*q, packed]) for out in (whole, split)]
    for one, other in zip([whole, *grads[0]], [split, *grads[1]], strict=True):
        torch.testing.assert_close(one, other)


def test_bias_may_be_of_the_dtype_of_sums():
    case = Case("", 5, 5, 20, heads=2, width=16, bias=True)
    csc, leaves = draw_csc(case), [leaf.detach() for leaf in draw_inputs(case, torch.float16)[0]]
    leaves[3] = leaves[3].float() + 1e-5  # no number of float16
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    _, lse = reference_attention(csc, *exact, 0.25, 0.0, None)
    ours = [leaf.to(DEVICE).requires_grad_() for leaf in leaves]
    _, got = sparse_attention(csc.to(DEVICE), *ours[:3], bias=ours[3], return_lse=True)
    torch.testing.assert_close(got.double().cpu(), lse, rtol=1e-6, atol=2e-6)
    has_edges = csc.indptr.diff() > 0
    grads = [torch.autograd.grad(x[has_edges].sum(), bias)[0] for x, bias in ((got, ours[3]), (lse, exact[3]))]
    torch.testing.assert_close(grads[0].cpu(), grads[1].float())


@pytest.mark.parametrize(
    ("score", "wanted"), [*(("dot", name) for name in ("q", "k", "v", "bias")), *(("additive", name) for name in "qkv")]
)
def test_each_gradient_by_itself(score, wanted, short_pieces):
    case = Case("", 3, 4, 30, bias=True)
    csc = draw_csc(case).to(DEVICE)
    drawn = (leaf.detach().to(DEVICE) for leaf in draw_leaves(case, torch.float32, score))
    named = dict(zip(("q", "k", "v", "bias"), drawn))
    grads = []
    for others in (True, False):
        leaves = {name: tensor.clone().requires_grad_(others or name == wanted) for name, tensor in named.items()}
        grads += torch.autograd.grad(sparse_attention(csc, score=score, **leaves).square().sum(), leaves[wanted])
    assert torch.equal(*grads)


@by_score
def test_rows_without_in_edges_are_zeros(score):
    case = Case("", 4, 3, [(0, 1), (2, 1), (0, 3)])
    leaves = [leaf.detach().to(DEVICE).requires_grad_() for leaf in draw_leaves(case, torch.float32, score)]
    out, lse = sparse_attention(draw_csc(case).to(DEVICE), *leaves, score=score, return_lse=True)
    assert (out[[0, 2]] == 0).all() and (lse[[0, 2]] == -torch.inf).all() and lse[[1, 3]].isfinite().all()
    for grad, row in zip(torch.autograd.grad(out.sum() + lse[[1, 3]].sum(), leaves), (0, 1, 1), strict=True):
        assert grad.isfinite().all() and (grad[row] == 0).all()


def test_rows_masked_by_the_bias_are_empty_rows(short_pieces):
    edges = [(0, 1), (2, 1), (3, 2), (1, 2), (0, 0)] + [(3, 3)] * 9
    case = Case("", 4, 4, edges, bias=True)
    leaves = [leaf.detach() for leaf in draw_inputs(case, torch.float32)[0]]
    leaves[3][[0, 1, 2, *range(5, 14)]] = -torch.inf  # every edge of rows 1 and 3, the first of row 2
    q, k, v, bias = leaves = [leaf.to(DEVICE).requires_grad_() for leaf in leaves]
    csc = from_edges(*torch.tensor(edges).T, 4, 4).to(DEVICE)
    out, lse = sparse_attention(csc, q, k, v, bias=bias, return_lse=True)
    assert (out[[1, 3]] == 0).all() and (lse[[1, 3]] == -torch.inf).all()
    torch.testing.assert_close(out[2], v[1])
    grads = torch.autograd.grad(out.sum() + lse[0].sum(), leaves)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[3][:3] == 0).all()


@by_score
def test_nan_reaches_the_result_of_its_row_alone(score):
    case = Case("", 3, 3, [(0, 0), (1, 0), (2, 1), (1, 1), (0, 2)])
    q, k, v = (leaf.detach().to(DEVICE) for leaf in draw_leaves(case, torch.float32, score))
    k[0] = torch.nan
    csc = from_edges(*torch.tensor(case.edges).T, 3, 3).to(DEVICE)
    out, lse = sparse_attention(csc, q, k, v, score=score, return_lse=True)
    assert out[[0, 2]].isnan().all() and lse[[0, 2]].isnan().all()
    assert out[1].isfinite().all() and lse[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sign", [-1, 1])
@by_score
def test_scores_of_ten_thousand_do_not_overflow(score, sign, dtype, short_pieces):
    case = Case("", 5, 5, 40, bias=True)
    csc = draw_csc(case)
    tensors = [leaf.detach() for leaf in draw_leaves(case, dtype, score)]
    if score == "dot":
        tensors = [tensors[0] * 30, tensors[1] * 30, tensors[2], tensors[3] + sign * 1e4]
    else:
        tensors[0] += sign * (1e4 if sign > 0 else 1e5)  # below 0 a slope makes it less
    exact_inputs = inputs_of(case, [tensor.double() for tensor in tensors], score)
    slope = SLOPE if score == "additive" else None
    exact = reference_attention(csc, *exact_inputs, 3**-0.5, 0.0, None, slope)
    leaves = [tensor.to(DEVICE).requires_grad_() for tensor in tensors]
    q, k, v, bias = inputs_of(case, leaves, score)
    out, lse = sparse_attention(csc.to(DEVICE), q, k, v, bias=bias, score=score, return_lse=True)
    has_edges = csc.indptr.diff() > 0
    assert (lse[has_edges] * sign > 5000).all()
    torch.testing.assert_close(lse.double().cpu(), exact[1], rtol=1e-5, atol=1e-2)
    grads = torch.autograd.grad(out.sum() + lse[has_edges].sum(), leaves)
    assert all(tensor.isfinite().all() for tensor in (out, *grads))


@by_score
def test_same_bits_at_every_run(score, short_pieces):
    case = CUT_CASES[0]
    leaves = draw_leaves(case, torch.float32, score)
    first, second = (run(sparse_attention, case, torch.float32, leaves, score, DEVICE) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_tensors_on_cuda_devices_come_here(monkeypatch):
    assert real_backend("cuda") is kernels and real_has_kernel("cuda")
    dispatch.warn_slow.cache_clear()
    monkeypatch.setattr(dispatch, "backend", real_backend)
    monkeypatch.setattr(dispatch, "triton_kernels", lambda: None)
    with pytest.warns(RuntimeWarning, match="stores E x H x D elements.*pip install triton"):
        assert not real_has_kernel("cuda")
    dispatch.warn_slow.cache_clear()
