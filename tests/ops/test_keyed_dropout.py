"""Feature dropout: one mask by (seed, id, column) for the kernel and the reference, its rate, its gradient."""

import pytest
import torch
from torch.autograd import forward_ad

from dgl_gt.ops import cpu, dispatch
from dgl_gt.ops.dropout import keyed_dropout
from dgl_gt.ops.reference import column_keep

P, SEED, STEPS = 0.3, 11, 2**16
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
needs_kernel = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")


def draw(rows, columns, dtype=torch.float32, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def draw_ids(rows, seed=1):
    """Ids beyond 32 bits, and in no order."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed)) * 97 + 2**40


def expected(x, p, seed, ids=None):
    """What the docstring says, from the reference's mask."""
    threshold = round(p * STEPS)
    keep = column_keep(torch.arange(len(x)) if ids is None else ids, x.shape[1], threshold, seed)
    return torch.where(keep, x * (STEPS / (STEPS - threshold)), 0)


@pytest.fixture(autouse=True)
def threads(request):
    """By default one: rows are too few to share out, and threads that wait for each other slow small calls down."""
    before = torch.get_num_threads()
    torch.set_num_threads(getattr(request, "param", 1))
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["portable", "avx2", "avx512", "torch"])
def path(request, monkeypatch):
    """The kernel in each instruction set that is there, and plain torch."""
    if request.param == "torch":
        monkeypatch.setattr(dispatch, "backend", lambda device_type: None)
        return
    number = ["portable", "avx2", "avx512"].index(request.param)
    if cpu.library() is None or number > cpu.best_path():
        pytest.skip("the CPU kernel is not built, or this processor lacks the instructions")
    monkeypatch.setattr(cpu, "best_path", lambda: number)


@pytest.mark.parametrize("threads", [3], indirect=True)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_mask_is_the_references(path, dtype):
    """Widths around the kernel's groups of 4 and blocks of 64 columns, more rows than a thread takes at once."""
    for rows, columns in [(1, 1), (700, 3), (5, 4), (3, 5), (9, 63), (9, 64), (9, 65), (2, 131), (300, 128)]:
        x = draw(rows, columns, dtype)
        for ids in (None, draw_ids(rows)):
            for seed in (0, SEED, 2**63 - 1):
                assert torch.equal(keyed_dropout(x, P, seed, ids), expected(x, P, seed, ids)), (rows, columns, seed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_number_of_16_bits(path, dtype):
    """Rounded as torch does, with subnormal numbers, infinities, what overflows, and NaN."""
    x = torch.arange(STEPS, dtype=torch.int32).to(torch.int16).view(dtype)[:, None].expand(-1, 5)
    torch.testing.assert_close(keyed_dropout(x, P, SEED), expected(x, P, SEED), rtol=0, atol=0, equal_nan=True)


def test_what_is_dropped_is_zero_whatever_it_was(path):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan]).repeat(50, 4)
    dropped = keyed_dropout(torch.ones_like(x), P, SEED) == 0
    assert (keyed_dropout(x, P, SEED)[dropped] == 0).all() and dropped.any()


def test_the_bits_are_those_of_the_formula():
    """Against SplitMix64 in Python's integers."""

    def mix64(bits):
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
        return bits ^ (bits >> 31)

    ids, threshold = [0, 3, 2**45 + 1], round(P * STEPS)
    kept = keyed_dropout(torch.ones(3, 10), P, SEED, torch.tensor(ids)) != 0
    for row, number in enumerate(ids):
        for column in range(10):
            bits = mix64((mix64(SEED) + 0x9E3779B97F4A7C15 * (number * STEPS + column // 4 + 1)) % 2**64)
            assert bool(kept[row, column]) == ((bits >> 16 * (column % 4) & 0xFFFF) >= threshold)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_do_not_matter(path, dtype):
    base, all_ids = draw(40, 30, dtype), draw_ids(80)
    for x in (base.T, base[::2], base[:, 3:17], base[::3, ::2], base[:1].expand(20, 30), base[5:5], base[:, :0]):
        ids = all_ids[: len(x) * 2 : 2]
        assert len(x) < 2 or not ids.is_contiguous()
        assert torch.equal(keyed_dropout(x, P, SEED, ids), expected(x, P, SEED, ids))
        assert keyed_dropout(x, P, SEED, ids).shape == x.shape


def test_the_input_is_left_alone_and_the_result_is_new(path):
    for p in (0.0, P):
        x = draw(5, 6)
        before, out = x.clone(), keyed_dropout(x, p, SEED)
        out.add_(1)
        assert torch.equal(x, before)


def test_no_rows_and_no_columns(path):
    for shape in ((0, 8), (4, 0), (0, 0)):
        x = torch.zeros(shape, requires_grad=True)
        out = keyed_dropout(x, P, SEED)
        out.sum().backward()
        assert out.shape == x.grad.shape == shape


def test_a_row_is_dropped_by_its_id_wherever_it_stands(path):
    x, ids = draw(50, 20), draw_ids(50)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    whole = keyed_dropout(x, P, SEED, ids)
    assert torch.equal(keyed_dropout(x[order], P, SEED, ids[order]), whole[order])
    assert torch.equal(keyed_dropout(x[7:9], P, SEED, ids[7:9]), whole[7:9])
    assert not torch.equal(keyed_dropout(x[order], P, SEED), whole[order])
    assert torch.equal(keyed_dropout(x, P, SEED, torch.arange(50)), keyed_dropout(x, P, SEED))
    same = keyed_dropout(torch.ones(3, 200), P, SEED, torch.full((3,), 5))
    assert torch.equal(same[0], same[1]) and torch.equal(same[1], same[2])


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_the_rate_is_p_and_masks_of_other_rows_columns_and_seeds_are_independent(p):
    """Within five standard deviations: the whole, each column, and agreement of neighbours and of seeds."""
    x = torch.ones(2000, 96)
    first, second = (keyed_dropout(x, p, seed) != 0 for seed in (1, 2))
    q = round(p * STEPS) / STEPS
    deviation = (q * (1 - q)) ** 0.5
    for mask in (first, second):
        assert abs(mask.double().mean() - (1 - q)) < 5 * deviation / mask.numel() ** 0.5
        assert (mask.double().mean(0) - (1 - q)).abs().max() < 5 * deviation / len(mask) ** 0.5
    pairs = {
        "seeds": (first, second),
        "rows": (first[1:], first[:-1]),
        **{f"columns {shift} apart": (first[:, shift:], first[:, :-shift]) for shift in (1, 2, 3, 4, 64)},
    }
    for name, (one, other) in pairs.items():
        covariance = ((one.double() - (1 - q)) * (other.double() - (1 - q))).mean()
        assert abs(covariance) < 5 * deviation**2 / one.numel() ** 0.5, name


def test_ids_a_power_of_two_apart_draw_other_masks():
    """Rows and columns share one counter: no id must reach into another's."""
    ids = torch.tensor([0, 1, 2**16, 2**32, 2**47])
    masks = keyed_dropout(torch.ones(5, 4 * STEPS), 0.5, SEED, ids) != 0
    for one in range(5):
        for other in range(one):
            agreement = (masks[one] == masks[other]).double().mean()
            assert abs(agreement - 0.5) < 5 * 0.5 / masks.shape[1] ** 0.5, (one, other)


@pytest.mark.parametrize("p", [0.1, 0.123456, 0.75])
def test_the_mean_over_seeds_is_the_input(p):
    x = draw(4, 6, torch.float64) + 3
    runs = torch.stack([keyed_dropout(x, p, seed) for seed in range(1500)])
    assert ((runs.mean(0) - x).abs() <= 5 * runs.std(0) / len(runs) ** 0.5).all()
    kept = runs[runs != 0]
    scale = STEPS / (STEPS - round(p * STEPS))
    torch.testing.assert_close(kept, (x * scale).expand_as(runs)[runs != 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradient_is_the_mask(path, dtype):
    ids = draw_ids(30)
    x = draw(30, 17, dtype).requires_grad_()
    upstream = draw(17, 30, dtype, seed=5).T
    (grad,) = torch.autograd.grad(keyed_dropout(x, P, SEED, ids), x, upstream)
    assert torch.equal(grad, expected(upstream, P, SEED, ids))
    (ones,) = torch.autograd.grad(keyed_dropout(x, P, SEED, ids).sum(), x)
    assert torch.equal(ones, expected(torch.ones_like(x), P, SEED, ids))


def test_gradcheck(path):
    x, ids = draw(6, 9, torch.float64).requires_grad_(), draw_ids(6)
    for given in (None, ids):
        assert torch.autograd.gradcheck(lambda x, given=given: keyed_dropout(x, P, SEED, given), x)
        assert torch.autograd.gradgradcheck(lambda x, given=given: keyed_dropout(x, P, SEED, given), x)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "rows apart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck(dtype, layout):
    """What the operator tells torch of its result, strides included, is so."""
    x = {"contiguous": draw(6, 9, dtype), "transposed": draw(9, 6, dtype).T, "rows apart": draw(12, 9, dtype)[::2]}
    x = x[layout]
    for ids in (None, draw_ids(6)):
        torch.library.opcheck(torch.ops.dgl_gt.keyed_dropout, (x.requires_grad_(), P, torch.tensor(SEED), ids))


@needs_kernel
def test_compiles_as_one_graph_for_all_seeds():
    ids, compilations = draw_ids(20), []

    def backend(graph_module, _):
        compilations.append(graph_module)
        return graph_module

    def double(x, seed):
        return keyed_dropout(x * 2, P, seed, ids) + 1

    compiled = torch.compile(double, fullgraph=True, backend=backend)
    for seed in range(4):
        x = draw(20, 10).requires_grad_()
        got, wanted = (function(x, torch.tensor(seed)) for function in (compiled, double))
        assert torch.equal(got, wanted)
        assert torch.equal(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (got, wanted)))
    assert len(compilations) == 1


@needs_kernel
def test_compiles_with_autograd_and_an_int_seed():
    ids, x = draw_ids(20), draw(20, 10).requires_grad_()

    def double(x):
        return keyed_dropout(x * 2, P, SEED, ids) + 1

    compiled = torch.compile(double, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), double(x))
    assert torch.equal(*(torch.autograd.grad(f(x).square().sum(), x)[0] for f in (compiled, double)))


def test_p_of_zero_keeps_all_and_near_one_little(path):
    x = draw(4000, 200)
    assert torch.equal(keyed_dropout(x, 0.0, SEED), x)
    assert torch.equal(keyed_dropout(x, 1e-7, SEED), x)
    for p in (1 - 1e-5, 1 - 1e-9, 1 - 2**-16):  # at least one step of 65,536 is kept
        out = keyed_dropout(x, p, SEED)
        kept = out != 0
        assert 0 < kept.sum() < 40 and torch.equal(out[kept], x[kept] * STEPS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(p=1.0), "p=1.0 "),
        (dict(p=-0.1), "p=-0.1 "),
        (dict(p=float("nan")), "p=nan "),
        (dict(x=torch.ones(4)), r"x has shape \(4,\)"),
        (dict(x=torch.ones(4, 2, 3)), r"x has shape \(4, 2, 3\)"),
        (dict(x=torch.ones(1, 1).expand(1, 4 * STEPS + 1)), "C at most 262144"),
        (dict(ids=torch.arange(5)), r"ids has shape \(5,\).*\(4,\), one for each row"),
        (dict(ids=torch.arange(4)[:, None]), r"ids has shape \(4, 1\)"),
        (dict(ids=torch.arange(4, dtype=torch.int32)), "dtype torch.int32.*torch.int64 on cpu"),
        (dict(ids=torch.arange(4, device="meta")), "on meta"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        keyed_dropout(**{"x": torch.ones(4, 6), "p": P, "seed": SEED, **arguments})


@pytest.mark.parametrize("seed", [None, 1.5, 2**63, torch.tensor(1.5), torch.tensor([1, 2])], ids=str)
def test_a_seed_that_does_not_fit_is_refused(seed):
    """As of ``sparse_attention``: an int that 63 bits hold, or a tensor () of int64."""
    with pytest.raises(ValueError, match="seed is"):
        keyed_dropout(torch.ones(4, 6), P, seed)


def test_forward_mode_is_refused(path):
    """By torch.func.jvp and dual tensors: the operator would give no tangent, or zeros."""
    x = draw(4, 6)
    with pytest.raises(NotImplementedError, match="keyed_dropout has no derivative in forward mode.*reverse mode"):
        torch.func.jvp(lambda x: keyed_dropout(x, P, SEED), (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        keyed_dropout(forward_ad.make_dual(x, x), P, SEED)


def test_integers_are_refused():
    with pytest.raises(ValueError, match="x has dtype torch.int64"):
        keyed_dropout(torch.ones(4, 6, dtype=torch.int64), P, SEED)
