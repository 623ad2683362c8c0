"""An edge with a bias of -inf gives nothing to any result or gradient, whatever the rows at its ends hold."""

from dataclasses import replace

import pytest
import torch
from attention_cases import CASES, Case, draw_csc, draw_inputs, draw_upstream
from test_sparse_attention import SEED, TOLERANCE, instructions, path  # noqa: F401

from dgl_gt import sparse_attention
from dgl_gt.ops import cpu, dispatch
from dgl_gt.ops.reference import reference_attention
from dgl_gt.ops.split_attention import TwoPieceAttention, split

BIASED = [case for case in CASES if case.bias and case.edges and case.num_src]
BAD = torch.tensor([torch.nan, torch.inf, -torch.inf])
needs_kernel = pytest.mark.skipif(cpu.library() is None, reason="the CPU kernel is not built")
by_name = pytest.mark.parametrize("case", BIASED, ids=lambda case: case.name)


class Removed:
    """A case of which some heads of some nodes have no edge left; their rows hold NaN and infinities, or numbers."""

    def __init__(self, case: Case, dtype: torch.dtype, bad: bool):
        self.csc = csc = draw_csc(case)
        self.leaves, (q, k, v, bias) = draw_inputs(case, dtype)
        generator = torch.Generator().manual_seed(5)
        of_dst, of_src = (torch.rand(rows, case.heads, generator=generator) < 0.3 for rows in (len(q), len(k)))
        if case.packed:
            of_dst = of_src = of_dst | of_src
        of_dst[0] = of_src[-1] = True
        dst = torch.repeat_interleave(torch.arange(len(q)), csc.indptr.diff())
        removed = torch.empty(bias.shape, dtype=torch.bool)
        removed[csc.edge_ids] = of_dst[dst] | of_src[csc.indices.long()]
        bias.detach()[removed] = -torch.inf
        if bad:
            rows = self.leaves[0].detach().unbind(1) if case.packed else (q.detach(), k.detach(), v.detach())
            for array, chosen in zip(rows, (of_dst, of_src, of_src), strict=True):
                array[chosen] = BAD[torch.randint(3, array[chosen].shape, generator=generator)].to(dtype)
        q, k, v = self.leaves[0].unbind(1) if case.packed else (q, k, v)
        self.inputs, self.of_dst, self.bad = (q, k, v, bias), of_dst, bad

    def gradients(self, out, lse):
        """The results, and the gradients of the leaves, with an upstream gradient that is as bad as the rows."""
        grad_out, grad_lse = draw_upstream(out, lse)
        if self.bad:
            grad_out[self.of_dst] = torch.nan
        return [x.detach() for x in (out, lse, *torch.autograd.grad([out, lse], self.leaves, [grad_out, grad_lse]))]


def attend(drawn, case):
    options = dict(dropout_p=case.dropout_p, seed=SEED, return_lse=True)
    return sparse_attention(drawn.csc, *drawn.inputs[:3], bias=drawn.inputs[3], **options)


def attend_slowly(drawn, case):
    return reference_attention(drawn.csc, *drawn.inputs, case.width**-0.5, case.dropout_p, SEED)


def check(function, case, dtype):
    """Bad rows change no bit, numbers give what the reference gives, and nothing comes back to what was removed."""
    found, plain, slow = (
        drawn.gradients(*way(drawn, case))
        for way, drawn in (
            (function, Removed(case, dtype, bad=True)),
            (function, Removed(case, dtype, bad=False)),
            (attend_slowly, Removed(case, dtype, bad=False)),
        )
    )
    for one, other, truth in zip(found, plain, slow, strict=True):
        assert torch.equal(one, other)
        if dtype in TOLERANCE:
            torch.testing.assert_close(one, truth, **TOLERANCE[dtype])
    removed = Removed(case, dtype, bad=True).inputs[3] == -torch.inf
    assert removed.any() and not removed.all() and (found[-1][removed] == 0).all()


@by_name
def test_bad_rows_give_nothing(case, path):  # noqa: F811
    check(attend, case, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_bad_rows_give_nothing_in_other_dtypes(dtype, path):  # noqa: F811
    for name in ("eight heads", "hub"):
        check(attend, next(case for case in BIASED if case.name == name), dtype)


@by_name
def test_bad_rows_give_nothing_in_the_reference(case):
    check(attend_slowly, case, torch.float64)


@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, in the interpreter
@pytest.mark.parametrize("name", ["self loops and parallel edges", "width 8", "packed", "isolated rows"])
def test_bad_rows_give_nothing_on_a_gpu(name, monkeypatch):
    """Without a GPU in Triton's interpreter; with pieces of rows, too."""
    pytest.importorskip("triton", reason="triton is not installed; pip install triton")
    from dgl_gt.ops.gpu import attention as kernels
    from dgl_gt.ops.gpu import passes

    monkeypatch.setattr(dispatch, "has_kernel", lambda *_: True)
    monkeypatch.setattr(dispatch, "backend", lambda _: kernels)
    monkeypatch.setattr(passes, "_MIN_PIECE", 4)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def attend_there(drawn, case):
        q, k, v, bias = (tensor.to(device) for tensor in drawn.inputs)
        options = dict(bias=bias, dropout_p=case.dropout_p, seed=SEED, return_lse=True)
        return [tensor.cpu() for tensor in sparse_attention(drawn.csc.to(device), q, k, v, **options)]

    check(attend_there, next(case for case in BIASED if case.name == name), torch.float32)


@pytest.mark.parametrize("has_kernel", [pytest.param(True, marks=needs_kernel), False])
def test_bad_rows_give_nothing_in_pieces(has_kernel, monkeypatch):
    """As a strategy attends: over owned sources, then over those that arrived."""
    if not has_kernel:
        monkeypatch.setattr(dispatch, "has_kernel", lambda *_: False)

    def attend_in_pieces(drawn, case):
        csc, (q, k, v, bias) = drawn.csc, drawn.inputs
        middle = csc.num_src // 2
        keys = torch.arange(csc.num_edges)
        in_order = bias[csc.edge_ids]
        ranges = [(0, middle), (middle, csc.num_src)]
        both = TwoPieceAttention(split(csc.indptr, csc.indices, keys, (csc.indices >= middle).long(), ranges))
        kv = torch.stack([k, v], 1)
        first = both.attend_first(q, kv[:middle], in_order)
        return both.attend_second(first, q, kv[middle:], in_order)

    for name in ("width 8", "eight heads"):
        case = replace(next(case for case in BIASED if case.name == name), dropout_p=0.0)
        check(attend_in_pieces, case, torch.float64)
