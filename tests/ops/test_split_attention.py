"""Attention in pieces: each piece alone and merged, and two joined with one softmax, against attention at once."""

import pytest
import torch

from dgl_gt import CSC, merge, sparse_attention
from dgl_gt.ops import cpu, dispatch
from dgl_gt.ops.merge import merge_into, merge_rows
from dgl_gt.ops.split_attention import TwoPieceAttention, forward, prepare, split

NODES, WIDTH = 24, 5
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
DROPOUT = (0.35, 9)


@pytest.fixture(autouse=True)
def one_thread():
    """Rows are too few to share out, and threads that wait for each other slow such small calls down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["kernel", "torch"])
def path(request, monkeypatch):
    """The kernel, and the way without one."""
    if request.param == "torch":
        monkeypatch.setattr(dispatch, "has_kernel", lambda *_: False)
    elif cpu.library() is None:
        pytest.skip("the CPU kernel is not built")
    return request.param


def draw_graph(seed, num_src, index_dtype=torch.int64, edges=130):
    """In-edges of NODES rows in order, with keys of dropout; rows 0 to 3 have none, and 4 and 5 have one each."""
    generator = torch.Generator().manual_seed(seed)
    dst = torch.cat([torch.tensor([4, 5]), torch.randint(6, NODES, (edges - 2,), generator=generator)]).sort().values
    src = torch.randint(0, num_src, (edges,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(dst, minlength=NODES).cumsum(0)])
    keys = torch.randperm(edges, generator=generator) + 2**41
    return indptr, src.to(index_dtype), keys


def draw(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def close(got, wanted, dtype):
    """Equal up to rounding, at the scale of the whole; ``-inf`` is equal to itself."""
    finite = wanted[wanted.isfinite()]
    scale = float(finite.detach().abs().max()) if len(finite) else 1.0
    torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_pieces_merged_are_the_whole(path, number, dtype):
    """Random pieces of random ranges of sources, some without an edge, one of them without a source."""
    for seed, index_dtype, with_bias, dropout in (
        (0, torch.int64, True, DROPOUT),
        (1, torch.int32, False, None),
        (2, torch.int32, True, None),
    ):
        indptr, src, keys = draw_graph(seed, 31, index_dtype)
        bounds = torch.randint(0, 32, (number - 1,), generator=torch.Generator().manual_seed(seed)).sort().values
        bounds = [0, *bounds.tolist(), 31]
        ranges = [*zip(bounds[:-1], bounds[1:]), (31, 31)]
        piece_of = torch.bucketize(src, torch.tensor(bounds[1:-1], dtype=src.dtype), right=True)
        q, (k, v) = draw((NODES, 3, WIDTH), dtype, 3), draw((2, 31, 3, WIDTH), dtype, 4)
        bias = draw((len(src), 3), dtype, 5) if with_bias else None
        p, key = dropout or (0.0, None)

        made = split(indptr, src, keys, piece_of, ranges)
        *_, settings = prepare(made[0], q, torch.stack([k, v], 1)[slice(*ranges[0])], bias, dropout)
        partials = [
            forward(piece, settings, q, k[b:e], v[b:e], bias) for piece, (b, e) in zip(made, ranges, strict=True)
        ]
        out, lse = (x.clone() for x in partials[0])
        for part in partials[1:]:
            merge_into(out, lse, *part)

        whole = CSC.build(indptr, src, 31, global_edge_ids=keys)
        wanted = sparse_attention(whole, q, k, v, bias=bias, dropout_p=p, seed=key, return_lse=True)
        assert sum(piece.num_edges for piece in made) == len(src) and made[-1].num_edges == 0
        for got, one in zip((out, lse), wanted):
            assert not got.requires_grad
            close(got, one.detach(), dtype)
        assert (out[:4] == 0).all() and (lse[:4] == -torch.inf).all()


def test_pieces_of_other_kinds_than_ranges():
    """Any edges may be a piece, so long as its range covers them; bias and keys stay with their edges."""
    indptr, src, keys = draw_graph(6, 20)
    piece_of = torch.randint(0, 3, src.shape, generator=torch.Generator().manual_seed(7))
    made = split(indptr, src, keys, piece_of, [(0, 20)] * 3)
    for number, piece in enumerate(made):
        positions = (piece_of == number).nonzero().squeeze(1)
        assert torch.equal(piece.edge_ids, positions) and torch.equal(piece.global_edge_ids, keys[positions])
        assert torch.equal(piece.indices, src[positions])
        dst = torch.repeat_interleave(torch.arange(NODES), indptr.diff())
        assert torch.equal(piece.indptr.diff(), torch.bincount(dst[positions], minlength=NODES))


PIECES = {
    "both": lambda src, dst: src >= NODES,
    "first empty": lambda src, dst: torch.ones_like(src, dtype=torch.bool),
    "second empty": lambda src, dst: torch.zeros_like(src, dtype=torch.bool),
    "rows in one piece": lambda src, dst: dst % 2 == 0,
}


def joined(made, dropout, packing, q, kv, rest, bias):
    both = TwoPieceAttention(made, dropout)
    if packing == "qkv":
        packed = torch.cat([q.unsqueeze(1), kv], 1)
        begun = both.attend_first(packed, None, bias)
        return both.attend_second(begun, packed, rest, bias)
    begun = both.attend_first(q, kv, bias)
    return both.attend_second(begun, q, rest, bias)


def at_once(whole, dropout, q, kv, rest, bias):
    p, seed = dropout or (0.0, None)
    return sparse_attention(whole, q, torch.cat([kv, rest]), bias=bias, dropout_p=p, seed=seed, return_lse=True)


def draw_joint(kind, dtype, with_bias, index_dtype=torch.int64, seed=0):
    """Sources 0 to NODES - 1 are the rows themselves, 7 more are others'; in pieces, whole, and the leaves."""
    indptr, src, keys = draw_graph(seed, NODES + 7, index_dtype, edges=150)
    dst = torch.repeat_interleave(torch.arange(NODES), indptr.diff())
    if kind == "rows in one piece":  # even rows have edges from the others alone, odd ones from rows alone
        src = torch.where(dst % 2 == 0, NODES + src % 7, src % NODES).to(index_dtype)
    elif kind != "both":
        src = (NODES + src % 7 if kind == "first empty" else src % NODES).to(index_dtype)
    is_rest = PIECES[kind](src, dst)
    made = split(indptr, src, keys, is_rest, [(0, NODES), (NODES, NODES + 7)])
    whole = CSC.build(indptr, src, NODES + 7, global_edge_ids=keys)
    leaves = [
        draw((NODES, 3, WIDTH), dtype, 11),
        draw((NODES, 2, 3, WIDTH), dtype, 12),
        draw((7, 2, 3, WIDTH), dtype, 13),
    ]
    bias = draw((len(src), 3), dtype, 14) if with_bias else None
    return made, whole, leaves, bias


def grads_of(results, leaves, which):
    """Gradients of an uneven weighting of ``out``, of ``lse`` where finite, or of both."""
    out, lse = results
    loss = out.new_zeros(())
    if "out" in which:
        loss = loss + (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum()
    if "lse" in which:
        weights = torch.linspace(2, -1, lse.numel(), dtype=lse.dtype).view_as(lse)
        loss = loss + (lse * weights)[lse.detach().isfinite()].sum().to(out.dtype)
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("packing", ["q and kv", "qkv"])
def test_two_joined_are_the_whole(path, packing, kind, dtype):
    """Outputs, lse and all gradients, from out, lse and both, with and without bias and dropout."""
    for with_bias, dropout, index_dtype in (
        (True, DROPOUT, torch.int64),
        (False, None, torch.int32),
        (False, DROPOUT, torch.int32),
        (True, None, torch.int64),
    ):
        made, whole, rows, bias = draw_joint(kind, dtype, with_bias, index_dtype)
        got = joined(made, dropout, packing, *rows, bias)
        wanted = at_once(whole, dropout, *rows, bias)
        close(got[0], wanted[0], dtype)
        close(got[1], wanted[1], dtype)
        assert (got[0][:4] == 0).all() and (got[1][:4] == -torch.inf).all()
        leaves = rows + [bias] * with_bias
        for which in ("out", "lse", "out and lse"):
            expected = grads_of(at_once(whole, dropout, *rows, bias), leaves, which)
            found = grads_of(joined(made, dropout, packing, *rows, bias), leaves, which)
            for one, other in zip(found, expected, strict=True):
                close(one, other, dtype)


def test_some_inputs_need_no_gradient(path):
    """Each leaf by itself: its gradient is what it is when all want theirs."""
    made, whole, rows, bias = draw_joint("both", torch.float64, True)
    expected = grads_of(at_once(whole, DROPOUT, *rows, bias), [*rows, bias], "out and lse")
    for packing in ("q and kv", "qkv"):
        for wanted, grad in enumerate(expected):
            leaves = [x.detach().requires_grad_(number == wanted) for number, x in enumerate([*rows, bias])]
            (found,) = grads_of(joined(made, DROPOUT, packing, *leaves), [leaves[wanted]], "out and lse")
            close(found, grad, torch.float64)


def test_backward_twice_gives_the_same_twice(path):
    made, _, rows, bias = draw_joint("both", torch.float64, True)
    out, _ = joined(made, DROPOUT, "q and kv", *rows, bias)
    loss = out.square().sum()
    first, second = (torch.autograd.grad(loss, [*rows, bias], retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_two_layers_at_once_do_not_mix(path):
    """One object for each layer: the second layer's backward runs before the first's."""
    made, whole, rows, bias = draw_joint("both", torch.float64, True)

    def twice(attend):
        out, _ = attend(*rows, bias)
        return attend(out, *rows[1:], bias)

    got = twice(lambda *inputs: joined(made, DROPOUT, "q and kv", *inputs))
    wanted = twice(lambda *inputs: at_once(whole, DROPOUT, *inputs))
    close(got[0], wanted[0], torch.float64)
    grads = (grads_of(results, [*rows, bias], "out and lse") for results in (got, wanted))
    for one, other in zip(*grads, strict=True):
        close(one, other, torch.float64)


def test_gradcheck(path):
    made, _, rows, bias = draw_joint("both", torch.float64, True)
    has_edges = made[0].indptr.diff() + made[1].indptr.diff() > 0

    def results(q, kv, rest, bias):
        out, lse = joined(made, DROPOUT, "q and kv", q, kv, rest, bias)
        return out, lse[has_edges]

    assert torch.autograd.gradcheck(results, (*rows, bias), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_errs_no_more_than_the_whole_does(path, dtype):
    """Both against the same inputs in float64; two roundings more than attention at once has."""
    made, whole, rows, bias = draw_joint("both", dtype, True)
    exact = [x.detach().double().requires_grad_() for x in (*rows, bias)]
    wanted = at_once(whole, DROPOUT, *exact)
    whole_out, joint_out = at_once(whole, DROPOUT, *rows, bias), joined(made, DROPOUT, "q and kv", *rows, bias)
    assert joint_out[0].dtype == dtype and joint_out[1].dtype == torch.float32

    def error(got, truth):
        return float((got.double() - truth).abs().max())

    truths = [wanted[0].detach(), *grads_of(wanted, exact, "out")]
    alone = [whole_out[0].detach(), *grads_of(whole_out, [*rows, bias], "out")]
    in_two = [joint_out[0].detach(), *grads_of(joint_out, [*rows, bias], "out")]
    for truth, one, two in zip(truths, alone, in_two, strict=True):
        scale = float(truth.abs().max())
        assert error(two, truth) <= 3 * error(one, truth) + torch.finfo(dtype).eps * scale


def test_autocast_runs_in_its_dtype(path):
    made, whole, rows, _ = draw_joint("both", torch.float32, False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = joined(made, None, "qkv", *rows, None)
    wanted, wanted_lse = joined(made, None, "qkv", *(x.bfloat16() for x in rows), None)
    assert out.dtype == torch.bfloat16 and torch.equal(out, wanted) and torch.equal(lse, wanted_lse)
    grads = torch.autograd.grad(out.float().square().sum(), rows)
    assert [grad.dtype for grad in grads] == [torch.float32] * 3
    assert all(map(torch.equal, grads, torch.autograd.grad(wanted.float().square().sum(), rows)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(dropout=(1.0, 3)), "dropout_p=1.0"),
        (dict(dropout=(0.3, None)), "seed is None"),
        (dict(kv=torch.zeros(NODES, 2, 3, WIDTH + 1)), r"k has shape \(24, 3, 6\)"),
        (dict(kv=torch.zeros(NODES, 2, 3, WIDTH, dtype=torch.float64)), "dtype torch.float64"),
        (dict(bias=torch.zeros(150, 2)), r"bias has shape \(150, 2\)"),
        (dict(bias=torch.zeros(150, 3, dtype=torch.float64)), "bias has dtype torch.float64"),
    ],
    ids=["p", "seed", "width", "dtype", "heads of bias", "dtype of bias"],
)
def test_what_does_not_fit_is_refused(changes, message):
    made, _, (q, kv, _), bias = draw_joint("both", torch.float32, True)
    given = {"kv": kv, "bias": bias, "dropout": None, **changes}
    with pytest.raises(ValueError, match=message):
        TwoPieceAttention(made, given["dropout"]).attend_first(q, given["kv"], given["bias"])


def draw_parts(dtype=torch.float64):
    """Rows of three others: 6, 0 and 4 of 8 rows; some have no edge there, some none here, row 7 none anywhere."""
    counts, rows = [6, 0, 4], torch.tensor([5, 0, 2, 7, 3, 1, 3, 7, 5, 6])
    out, parts = draw((8, 2, 3), dtype, 1), draw((10, 2, 3), dtype, 2)
    lse, part_lses = (draw(shape, torch.promote_types(dtype, torch.float32), 3) for shape in ((8, 2), (10, 2)))
    none = torch.tensor([0, 0, 1, 1, 0, 1, 0, 1], dtype=torch.bool), torch.tensor([3, 4, 7])
    with torch.no_grad():
        lse[none[0]] = -torch.inf
        part_lses[none[1]] = -torch.inf
        out[none[0]] = 0
        parts[none[1]] = 0
    return out, lse, parts, part_lses, rows, counts


def merge_padded(out, lse, parts, part_lses, rows, counts):
    """The same by ``merge``, each other's rows laid out over all."""
    partials = [(out, lse)]
    for part, part_lse, at in zip(*(x.split(counts) for x in (parts, part_lses, rows))):
        whole = torch.zeros_like(out).index_put((at,), part)
        partials.append((whole, torch.full_like(lse, -torch.inf).index_put((at,), part_lse)))
    return merge(partials)[0]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_merge_of_some_rows_is_merge_of_all_with_padding(dtype):
    arguments = draw_parts(dtype)
    got, wanted = merge_rows(*arguments), merge_padded(*arguments)
    close(got, wanted, dtype)
    assert (got[7] == 0).all() and got.dtype == dtype
    weights = torch.linspace(-1, 2, got.numel(), dtype=dtype).view_as(got)
    found, expected = (torch.autograd.grad((x * weights).sum(), arguments[:4]) for x in (got, wanted))
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        close(one, other, dtype)


def test_merge_of_some_rows_leaves_its_arguments_alone():
    arguments = [x.detach().clone() for x in draw_parts()[:5]]
    before = [x.clone() for x in arguments]
    merge_rows(*arguments, draw_parts()[5])
    assert all(map(torch.equal, arguments, before))


def test_gradcheck_of_merge_of_some_rows():
    *tensors, rows, counts = draw_parts()
    leaves = [x.detach().nan_to_num(neginf=0.5).requires_grad_() for x in tensors]
    none = [tensors[1].detach() == -torch.inf, tensors[3].detach() == -torch.inf]

    def merged(out, lse, parts, part_lses):
        lses = [x.masked_fill(absent, -torch.inf) for x, absent in zip((lse, part_lses), none)]
        return merge_rows(out, lses[0], parts, lses[1], rows, counts)

    assert torch.autograd.gradcheck(merged, leaves)


def test_merge_of_no_rows_is_what_was_there():
    out, lse, *_ = draw_parts()
    nothing = out.new_empty((0, 2, 3)), lse.new_empty((0, 2)), torch.empty(0, dtype=torch.int64), [0, 0]
    got = merge_rows(out, lse, *nothing)
    assert torch.equal(got, out)
    (grad,) = torch.autograd.grad(got.sum(), out)
    assert torch.equal(grad, torch.where(lse.detach().unsqueeze(-1) == -torch.inf, 0.0, 1.0).expand_as(grad))


def test_merge_of_low_precision_rows_keeps_its_dtype():
    arguments = draw_parts(torch.bfloat16)
    exact = [x.double() if x.is_floating_point() else x for x in arguments[:5]]
    got = merge_rows(*arguments)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), merge_rows(*exact, arguments[5]), rtol=0, atol=2**-7)
    grads = torch.autograd.grad(got.float().sum(), arguments[:4])
    assert [grad.dtype for grad in grads] == [x.dtype for x in arguments[:4]]


@pytest.mark.parametrize("negative_slope", [None, 0.2], ids=["dot", "additive"])
@pytest.mark.parametrize("lift", [0.0, 1.3, -0.7])
def test_a_lift_is_added_to_the_scores_of_the_second_piece(path, lift, negative_slope):
    """Against the pieces merged with a lifted log-sum-exp, in results and gradients."""
    dtype, heads, border = torch.float64, 2, 9
    indptr, indices, keys = draw_graph(3, NODES)
    pieces = split(indptr, indices, keys, indices >= border, [(0, border), (border, NODES)])
    columns = WIDTH if negative_slope is None else WIDTH + 1
    nothing = split(indptr, indices, keys, torch.zeros_like(indices), [(0, NODES), (0, 1)])[1]
    q = draw((NODES, heads, WIDTH) if negative_slope is None else (NODES, heads), dtype, 1)
    kv = draw((NODES, 2, heads, WIDTH) if negative_slope is None else (NODES, heads, columns), dtype, 2)
    upstream = draw((NODES, heads, WIDTH), dtype, 4), draw((NODES, heads), dtype, 5)

    both = TwoPieceAttention(pieces, None, negative_slope, lift)
    found = both.attend_second(both.attend_first(q, kv[:border]), q, kv[border:])
    parts = []
    for piece, rows in zip(pieces, (kv[:border], kv[border:])):
        lonely = TwoPieceAttention([piece, nothing], None, negative_slope)
        parts.append(lonely.attend_second(lonely.attend_first(q, rows), q, rows[:1]))
    wanted = merge([parts[0], (parts[1][0], parts[1][1] + lift)])
    for got, want in zip(found, wanted):
        close(got, want, dtype)
    has_edges = wanted[1] > -torch.inf
    gradients = [
        torch.autograd.grad((out * upstream[0]).sum() + (lse * upstream[1])[has_edges].sum(), (q, kv))
        for out, lse in (found, wanted)
    ]
    for got, want in zip(*gradients):
        close(got, want, dtype)
