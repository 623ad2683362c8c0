"""Numbers that attention and layers take: what is no such number is refused by name, where it is given."""

import math

import numpy as np
import pytest
import torch
from attention_cases import Case, draw_csc, head_minor

from dgl_gt import nn, sparse_attention
from dgl_gt.ops.dropout import keyed_dropout

GRAPH = draw_csc(Case("", 6, 6, 20))
ROWS = torch.randn(6, 3, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NO_NUMBERS = ["0.1", np.str_("0.1"), math.nan, True, False, None, [0.1], 0.1j]
NO_PROBABILITIES = [*NO_NUMBERS, -0.1, 1, 1.5, torch.tensor(0.1)]
NO_SEEDS = ["3", True, False, -1, 2**63, 1.0, math.nan, torch.tensor(-1), torch.tensor(1.0), torch.tensor([1])]


def refused(name, value, call):
    with pytest.raises(ValueError) as caught:
        call()
    text = str(caught.value)
    shown = (
        str(int(value)) if isinstance(value, torch.Tensor) and value.dtype == torch.int64 and not value.dim() else ""
    )
    assert name in text and (isinstance(value, torch.Tensor) or repr(value) in text) and shown in text


@pytest.mark.parametrize("value", [x for x in NO_NUMBERS if x is not None] + [math.inf, -math.inf], ids=repr)
def test_scale(value):
    refused("scale", value, lambda: sparse_attention(GRAPH, ROWS, scale=value))


@pytest.mark.parametrize("value", [torch.ones(2), torch.ones(1, 4, 1), torch.tensor(1)], ids=repr)
def test_scale_as_a_tensor_has_one_floating_point_number(value):
    with pytest.raises(ValueError, match="scale is a tensor of shape"):
        sparse_attention(GRAPH, ROWS, scale=value)


def test_additive_scores_take_no_scale():
    q, k, v = ROWS.unbind(1)
    with pytest.raises(ValueError, match="scale is given with additive scores"):
        sparse_attention(GRAPH, q[..., 0], k[..., 0], v, score="additive", scale=1.0)


@pytest.mark.parametrize("value", NO_PROBABILITIES, ids=repr)
def test_probabilities(value):
    refused("dropout_p", value, lambda: sparse_attention(GRAPH, ROWS, dropout_p=value, seed=1))
    refused("p=", value, lambda: keyed_dropout(ROWS[:, 0, 0], value, 1))


@pytest.mark.parametrize("value", NO_SEEDS, ids=repr)
def test_seeds(value):
    refused("seed", value, lambda: sparse_attention(GRAPH, ROWS, dropout_p=0.5, seed=value))
    refused("seed", value, lambda: keyed_dropout(ROWS[:, 0, 0], 0.5, value))

    def set_seed():
        nn.BiasedMHA(8, 2).dropout_seed = value

    if not isinstance(value, torch.Tensor):
        refused("seed", value, set_seed)


def _readers_of(name):
    """Options with which a model reads another one."""
    return {"gate": "free"} if name == "gate_start" else {"global_attention": "sgformer"} if "global" in name else {}


LAYERS = {
    "BiasedMHA": (lambda **options: nn.BiasedMHA(8, 2, **options), {"attn_drop": True}),
    "GATConv": (
        lambda **options: nn.GATConv(8, 4, 2, **options),
        {"attn_drop": True, "feat_drop": True, "negative_slope": False},
    ),
    "GraphTransformerLayer": (
        lambda **options: nn.GraphTransformerLayer(8, 8, 2, **options),
        {"dropout": True, "attn_dropout": True},
    ),
    "ConvolutionLayer": (
        lambda **options: nn.ConvolutionLayer(8, 8, 2, score="dot", residual="initial", **options),
        {"dropout": True, "attn_dropout": True, "gate_start": False, "initial_weight": False, "map_weight": False},
    ),
    "InitialResidual": (
        lambda **options: nn.InitialResidual(8, 1, **options),
        {"initial_weight": False, "map_weight": False},
    ),
    "PolynormerAttention": (
        lambda **options: nn.PolynormerAttention(8, 2, **options),
        {"dropout": True, "beta_start": False},
    ),
    "SGFormerAttention": (lambda **options: nn.SGFormerAttention(8, 8, **options), {"dropout": True}),
    "Gate": (lambda **options: nn.Gate(1, 8, "free", **options), {"start": False}),
    "GraphTransformer": (
        lambda **options: nn.GraphTransformer(8, 8, 2, layers=1, heads=2, **_readers_of(*options), **options),
        {
            **dict.fromkeys(("dropout", "attention_dropout", "input_dropout", "global_dropout"), True),
            "global_weight": False,
        },
    ),
    "GNN": (
        lambda **options: nn.GNN(8, 8, 2, layers=1, heads=2, **_readers_of(*options), **options),
        {"gate_start": False},
    ),
}


@pytest.mark.parametrize(
    ("layer", "name"), [(layer, name) for layer, (_, names) in LAYERS.items() for name in names], ids=str
)
def test_layers(layer, name):
    make, names = LAYERS[layer]
    for value in NO_PROBABILITIES if names[name] else [*NO_NUMBERS, math.inf]:
        refused(name, value, lambda value=value: make(**{name: value}))
    make(**{name: np.float32(0.5)})


@pytest.mark.parametrize("layout", ["packed", "apart", "head-minor"])
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_a_learnt_scale_has_a_gradient(layout, shape):
    """Of a tensor, the gradient is that of the factor of q."""
    given = {"packed": (ROWS,), "apart": ROWS.unbind(1), "head-minor": (head_minor(ROWS.float()),)}[layout]
    scale = torch.tensor(0.3, dtype=given[0].dtype).reshape(shape).requires_grad_()
    other = torch.tensor(0.3, dtype=given[0].dtype, requires_grad=True)
    q, k, v = given if len(given) == 3 else given[0].unbind(1)
    out = sparse_attention(GRAPH, *given, scale=scale)
    expected = sparse_attention(GRAPH, q * other, k, v, scale=1.0)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(out, sparse_attention(GRAPH, *given, scale=0.3))
    (grad,) = torch.autograd.grad(out.square().sum(), scale)
    (wanted,) = torch.autograd.grad(expected.square().sum(), other)
    assert grad.shape == shape and wanted.abs() > 1e-3
    torch.testing.assert_close(grad.reshape(()), wanted)
    assert sparse_attention(GRAPH, *(x.bfloat16() for x in given), scale=scale).dtype == torch.bfloat16
