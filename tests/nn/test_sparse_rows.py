"""Products of features that are mostly zeros are those of dense rows, with their gradients."""

import pytest
import torch
from torch import nn

from dgl_gt.nn import GraphConv, apply_precision
from dgl_gt.nn.feed_forward import make_encoder
from dgl_gt.plan.watch import LiveTensors


def _words(rows=600, columns=700, share=0.01, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(rows, columns, generator=generator) < share).to(dtype)


def _dense(rows):
    return rows.clone().requires_grad_()  # rows that need a gradient are multiplied as they are


def _gradients(result, module):
    module.zero_grad()
    result.square().sum().backward()
    return [each.grad.clone() for each in module.parameters()]


@pytest.fixture
def products(monkeypatch):
    """How many sparse matrices were made."""
    made, make = [], torch.Tensor.to_sparse_csr
    monkeypatch.setattr(torch.Tensor, "to_sparse_csr", lambda rows: made.append(1) or make(rows))
    return made


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_encoder(kind, products):
    encoder = make_encoder(kind, 700, 16, "relu", 0.0).double()
    rows = _words()
    sparse, dense = encoder(rows), encoder(_dense(rows))
    assert len(products) == 1
    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-12)
    for got, want in zip(_gradients(sparse, encoder), _gradients(dense, encoder)):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_graph_convolution(weighted, products):
    layer, rows = GraphConv(700, 16).double(), _words()
    edges = torch.stack([torch.arange(600), torch.arange(600).roll(1)])
    weight = torch.rand(600, dtype=torch.float64) if weighted else None
    sparse, dense = layer(edges, rows, weight), layer(edges, _dense(rows), weight)
    assert len(products) == 1
    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-12)
    for got, want in zip(_gradients(sparse, layer), _gradients(dense, layer)):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


def test_rows_that_change_are_read_again(products):
    encoder, rows = make_encoder("linear", 700, 16, "relu", 0.0).double(), _words()
    first = encoder(rows)
    assert torch.equal(encoder(rows), first) and len(products) == 1
    rows.mul_(2)
    torch.testing.assert_close(encoder(rows), encoder(_dense(rows)), rtol=0, atol=1e-12)
    assert len(products) == 2
    with torch.inference_mode():
        rows = _words()
        for factor in (1, 2):
            torch.testing.assert_close(
                encoder(rows.mul_(factor)),
                nn.functional.linear(rows, encoder[0].weight, encoder[0].bias),
                rtol=0,
                atol=1e-12,
            )


def test_rows_with_many_numbers_and_small_ones_are_dense(products):
    encoder = nn.Sequential(make_encoder("linear", 700, 16, "relu", 0.0)).double()
    encoder(_words(share=0.5))
    encoder(_words(rows=20))
    assert not products


def test_a_plan_that_watches_operations_sees_dense_rows(products):
    encoder = make_encoder("linear", 700, 16, "relu", 0.0).double()
    with LiveTensors():
        encoder(_words())
    assert not products


def test_half_precision_is_dense(products):
    encoder = make_encoder("linear", 700, 16, "relu", 0.0).bfloat16()
    encoder(_words(dtype=torch.bfloat16))
    assert not products


def test_bfloat16_is_dense(products):
    encoder = apply_precision(make_encoder("linear", 700, 16, "relu", 0.0), "bf16")
    encoder(_words(dtype=torch.float32))
    assert not products
