"""Triton kernels that read features and kinds of edges, against the reference; see test_gpu_attention.py."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; pip install triton")

from attention_cases import CASES, draw_csc
from slow_case import slow
from test_edge_attention import drawn, kind_results, results
from test_gpu_attention import CUT_CASES, DEVICE, OTHER_DTYPES, short_pieces, through_triton  # noqa: F401

from dgl_gt import sparse_attention
from dgl_gt.ops.gpu import passes
from dgl_gt.ops.reference import reference_attention

SMALL = [
    replace(case, edges=case.edges[:60] if isinstance(case.edges, list) else min(case.edges, 60)) for case in CASES
]
NAMED = {case.name: case for case in SMALL if case.num_dst < 100}
QUICK = {"hub cut", "fewer sources", "packed", "one head, width one", "given head-minor", "isolated rows", "no edge"}
_ALL = [*NAMED.values(), *CUT_CASES]
by_case = pytest.mark.parametrize(
    "case", [each if each.name in QUICK else slow(each) for each in _ALL], ids=lambda case: case.name
)
TOLERANCE = {torch.float64: dict(rtol=1e-10, atol=1e-11), torch.float32: dict(rtol=1e-4, atol=2e-4)}


def check(found, expected, dtype):
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.cpu(), wanted, **TOLERANCE[dtype])


@by_case
def test_features(case, short_pieces):  # noqa: F811
    width = 1 + len(case.name) % 9
    found = results(sparse_attention, case, width, torch.float32, DEVICE)
    check(found, results(reference_attention, case, width, torch.float32), torch.float32)


@pytest.mark.parametrize("width", [1, 16, 33, 300, 512])
def test_widths(width):
    case = replace(NAMED["self loops and parallel edges"], heads=3, width=5, dropout_p=0.2)
    found = results(sparse_attention, case, width, torch.float64, DEVICE)
    check(found, results(reference_attention, case, width, torch.float64), torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OTHER_DTYPES)
def test_half_precision(name, dtype):
    exact = results(reference_attention, NAMED[name], 5, torch.float64)
    for got, wanted in zip(results(sparse_attention, NAMED[name], 5, dtype, DEVICE), exact, strict=True):
        assert (got.cpu().double() - wanted).nan_to_num(0).norm() <= 0.06 * wanted.nan_to_num(0, 0, 0).norm() + 1e-6


@pytest.mark.parametrize("name", ["hub", slow("plain"), "no edge", slow("large hub")])
def test_kinds(name, short_pieces):  # noqa: F811
    case = NAMED[name]
    found = kind_results(sparse_attention, case, torch.float32, DEVICE)
    check(found, kind_results(reference_attention, case, torch.float32), torch.float32)
    again = kind_results(sparse_attention, case, torch.float32, DEVICE)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def test_sums_by_kind():
    kinds = torch.randint(0, 4, (1000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    kinds[kinds == 2] = 5  # none of kind 2, and many of 5
    rows = torch.randn(1000, 3, dtype=torch.float64)
    expected = torch.zeros(7, 3, dtype=torch.float64).index_add(0, kinds.long(), rows)
    torch.testing.assert_close(passes.sum_by_kind(rows, kinds, 7), expected)


@pytest.mark.parametrize("name", ["x", "q_edge"])
def test_one_gradient_alone(name):
    case = NAMED["packed"]
    _, (q, k, v, bias, edge) = drawn(case, 5, torch.float32, DEVICE)
    csc = draw_csc(case).to(DEVICE)
    wanted = edge[name == "q_edge"]
    whole = torch.autograd.grad(sparse_attention(csc, q, k, v, bias=bias, edge=edge)[1].square().sum(), wanted)
    edge = [x if x is wanted else x.detach() for x in edge]
    rows = (None if x is None else x.detach() for x in (q, k, v, bias))
    q, k, v, bias = rows
    alone = torch.autograd.grad(sparse_attention(csc, q, k, v, bias=bias, edge=edge)[1].square().sum(), wanted)
    assert torch.equal(*whole, *alone)
