"""Weights of DGL's sparse graph transformer and of PyG's TransformerConv give the same numbers and gradients here."""

import math

import pytest
import torch
from dgl_sparse_gt import GTLayer, SparseMHA
from torch import nn

from dgl_gt.nn import BiasedMHA, GraphTransformerLayer, from_dgl_sparse_gt, from_pyg_transformer_conv

NODES, C, H = 11, 12, 3
# Directed, with a self-loop and nodes without in-edges (3, 10), without out-edges (6, 10), and without both.
EDGE_INDEX = torch.tensor([[4, 0, 1, 5, 4, 2, 3, 7, 8, 9, 1, 3], [2, 1, 2, 2, 4, 6, 0, 8, 9, 7, 5, 5]])


@pytest.fixture
def feat():
    return torch.randn(NODES, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)


def adjacency():
    dense = torch.zeros(NODES, NODES, dtype=torch.bool)
    dense[EDGE_INDEX[0], EDGE_INDEX[1]] = True
    return dense


def gradients_of(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def random_weights(module):
    torch.manual_seed(2)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def convert_dgl(state):
    return from_dgl_sparse_gt(state, H)


@pytest.mark.parametrize("kind", ["attention", "layer"])
def test_dgls_sparse_graph_transformer(feat, kind):
    """Its queries are sources, so the edges are reversed; running statistics are converted and updated, too."""
    if kind == "attention":
        ours, theirs = BiasedMHA(C, H, attn_drop=0), SparseMHA(C, H)
    else:
        ours = GraphTransformerLayer(C, 2 * C, H, dropout=0, attn_dropout=0, norm="batch")
        theirs = GTLayer(C, H)
    random_weights(theirs)
    ours.double().load_state_dict(convert_dgl(theirs.state_dict()))
    found = []
    for module, edges in ((ours, EDGE_INDEX.flip(0)), (theirs, adjacency())):
        feat.grad = None
        out = module(edges, feat)
        (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        found.append({"out": out, "feat": feat.grad, **gradients_of(module)})
    wanted = {**convert_dgl(gradients_of(theirs)), "out": found[1]["out"], "feat": found[1]["feat"]}
    assert found[0].keys() == wanted.keys()
    for name, value in wanted.items():  # gradients are permuted as the weights are
        torch.testing.assert_close(found[0][name], value, rtol=0, atol=1e-10, msg=name)
    for name, value in convert_dgl(theirs.state_dict()).items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=0, atol=1e-12)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(EDGE_INDEX.flip(0), feat), theirs(adjacency(), feat), rtol=0, atol=1e-11)


def test_direction_and_order_of_heads_matter(feat):
    theirs = random_weights(SparseMHA(C, H))
    ours = BiasedMHA(C, H, attn_drop=0).double()
    expected = theirs(adjacency(), feat)
    ours.load_state_dict(convert_dgl(theirs.state_dict()))
    assert not torch.allclose(ours(EDGE_INDEX, feat), expected)
    ours.load_state_dict(theirs.state_dict())
    assert not torch.allclose(ours(EDGE_INDEX.flip(0), feat), expected)


def test_other_weights_of_a_model_stay():
    state = {f"layers.1.{name}": value for name, value in GTLayer(C, H).state_dict().items()}
    own = {"predictor.0.weight": torch.randn(2, C), "readout.out_proj.weight": torch.randn(C, C)}
    converted = convert_dgl({**own, **state})
    assert all(converted[name] is value for name, value in own.items())
    layer = {name.removeprefix("layers.1."): value for name, value in converted.items() if name not in own}
    GraphTransformerLayer(C, 2 * C, H, norm="batch").load_state_dict(layer)


@pytest.mark.parametrize(
    ("state", "heads", "message"),
    [
        ({}, 3, "the state has no q_proj.weight"),
        (nn.LSTM(2, 2, 2).state_dict(), 3, r"it has weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, \.\.\."),
        (SparseMHA(C, H).state_dict(), 5, "num_heads is 5"),
        (SparseMHA(C, H).state_dict(), 0, "num_heads is 0"),
    ],
    ids=["empty", "other", "heads", "no heads"],
)
def test_refusals_of_dgls(state, heads, message):
    with pytest.raises(ValueError, match=message):
        from_dgl_sparse_gt(state, heads)


class TransformerConv(nn.Module):
    """The published formula of PyG's convolution, with its names of weights, on a dense matrix (source, destination)."""

    def __init__(self, bias=True):
        super().__init__()
        for name in ("lin_key", "lin_query", "lin_value", "lin_skip"):
            setattr(self, name, nn.Linear(C, C, bias=bias))

    def forward(self, adjacency, x):
        q, k, v = (linear(x).view(NODES, H, -1) for linear in (self.lin_query, self.lin_key, self.lin_value))
        scores = torch.einsum("jhd,ihd->jih", k, q) / math.sqrt(C // H)
        weights = scores.masked_fill(~adjacency[..., None], -torch.inf).softmax(0)
        weights = weights.masked_fill(~adjacency.any(0)[None, :, None], 0)
        return torch.einsum("jih,jhd->ihd", weights, v).flatten(1) + self.lin_skip(x)


def ours_for_pyg():
    return GraphTransformerLayer(C, 0, H, dropout=0, attn_dropout=0, residual="linear", norm="none")


@pytest.mark.parametrize("bias", [True, False])
def test_pygs_transformer_conv(feat, bias):
    ours, theirs = ours_for_pyg(), random_weights(TransformerConv(bias))

    def convert(tensors):
        return from_pyg_transformer_conv(tensors)

    ours.double().load_state_dict(convert(theirs.state_dict()))
    out, expected = ours(EDGE_INDEX, feat), theirs(adjacency(), feat)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    (of_feat,) = torch.autograd.grad((out * weights).sum(), feat, retain_graph=True)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), feat, retain_graph=True)
    torch.testing.assert_close(of_feat, wanted, rtol=0, atol=1e-11)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    found = gradients_of(ours)
    for name, value in convert(gradients_of(theirs)).items():
        if "out_proj" not in name and (bias or "bias" not in name):  # what the convolution has
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)


def without(state, *names):
    return {name: value for name, value in state.items() if not name.startswith(names)}


PYG = TransformerConv().state_dict()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({**PYG, "lin_edge.weight": torch.ones(C, 4)}, "lin_edge.weight; only a TransformerConv with edge_dim=None"),
        ({**PYG, "lin_beta.weight": torch.ones(1, 3 * C)}, "lin_beta.weight; only a TransformerConv with beta=False"),
        ({**PYG, "lin_skip.weight": torch.ones(C // H, C)}, r"lin_skip.weight has shape \(4, 12\).*concat=True"),
        ({**PYG, "lin_key.weight": torch.ones(C, 7)}, r"lin_key.weight has shape \(12, 7\)"),
        (
            without(PYG, "lin_skip"),
            "pass the state_dict of a TransformerConv, which has weights and biases of lin_query",
        ),
        ({**PYG, "weight": torch.ones(1)}, "pass the state_dict of a TransformerConv"),
        ({}, "the state has nothing"),
    ],
    ids=["edge_dim", "beta", "concat", "in_channels", "root_weight", "other", "empty"],
)
def test_refusals_of_pygs(state, message):
    with pytest.raises(ValueError, match=message):
        from_pyg_transformer_conv(state)
