"""GraphTransformerLayer: DGL's dense layer on the edges of a graph, on a block, and recomputed in backward."""

import inspect

import numpy as np
import pytest
import torch
from dgl_or_skip import dgl
from torch.utils.checkpoint import checkpoint

from dgl_gt.nn import BiasedMHA, GraphTransformer, GraphTransformerLayer

C, HIDDEN, H = 12, 20, 3


def make(seed=0, **options):
    torch.manual_seed(seed)
    return GraphTransformerLayer(C, HIDDEN, H, **options).double()


def make_dense(seed=0, **options):
    torch.manual_seed(seed)
    return dgl.nn.GraphormerLayer(C, HIDDEN, H, **options).double()


def random(rows, width, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_the_dense_layer(graph, densify, gradients, norm_first, with_bias):
    ours, dense = make(norm_first=norm_first).eval(), make_dense(norm_first=norm_first).eval()
    feat = random(graph.num_nodes(), C, seed=1)
    bias = random(graph.num_edges(), H, seed=2) if with_bias else None
    inputs = [feat] + ([bias] if with_bias else [])

    out = ours(graph, feat, bias)
    expected = dense(feat[None], *densify(graph, bias))[0]

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    found = gradients(out, inputs + list(ours.parameters()))
    wanted = gradients(expected, inputs + list(dense.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_constructor_arguments_are_those_of_the_dense_layer():
    def arguments(module):
        parameters = inspect.signature(module).parameters.values()
        return [(p.name, p.default) for p in parameters if p.name != "activation"]

    expected = arguments(dgl.nn.GraphormerLayer)
    assert arguments(GraphTransformerLayer)[: len(expected)] == expected
    assert isinstance(make().ffn[1], torch.nn.ReLU)


@pytest.mark.parametrize("norm_first", [True, False])
def test_features_are_dropped_where_the_dense_layer_does(graph, densify, share_masks, norm_first):
    options = {"norm_first": norm_first, "dropout": 0.3, "attn_dropout": 0.0}
    ours, dense = make(**options).train(), make_dense(**options).train()
    for seed, site in enumerate((ours.ffn[2], ours.ffn[4], ours.dropout)):
        site.dropout_seed = seed
    share_masks(dense, ours)
    feat = random(graph.num_nodes(), C, seed=1)
    torch.testing.assert_close(ours(graph, feat), dense(feat[None], *densify(graph))[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": torch.nn.PReLU(dtype=torch.float64)}])
def test_initial_weights_and_checkpoints_are_those_of_the_dense_layer(options):
    ours, dense = make(**options), make_dense(**options)
    assert list(ours.state_dict()) == list(dense.state_dict())
    for key, value in dense.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key

    other = make_dense(seed=5, **options)
    ours.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(ours.ffn[3].weight, other.ffn[3].weight)
    dense.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(dense.attn.k_proj.weight, other.attn.k_proj.weight)


@pytest.mark.parametrize("norm_first", [True, False])
def test_nodes_without_edges_stay_finite(sparse_graph, gradients, norm_first):
    layer = make(norm_first=norm_first).eval()
    feat = random(sparse_graph.num_nodes(), C, seed=1)
    out = layer(sparse_graph, feat)
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(g).all() for g in gradients(out, [feat, *layer.parameters()]))


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_gives_the_rows_of_the_graph(graph, gradients, norm_first):
    layer = make(norm_first=norm_first).eval()
    feat = random(graph.num_nodes(), C, seed=1)
    bias = random(graph.num_edges(), H, seed=2)
    seeds = torch.tensor([17, 2, 9, 0])
    block = dgl.to_block(dgl.in_subgraph(graph, seeds), seeds)
    edges = dgl.in_subgraph(graph, seeds).edata[dgl.EID][block.edata[dgl.EID]]
    assert block.num_src_nodes() > len(seeds)

    out = layer(block, feat[block.srcdata[dgl.NID]], bias[edges])
    expected = layer(graph, feat, bias)[seeds]

    assert out.shape == (4, C)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    tensors = [feat, bias, *layer.parameters()]
    for a, b in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("seed", [None, 41])
def test_recomputing_in_backward_draws_the_same_masks(graph, gradients, reentrant, seed):
    layer = make(dropout=0.2, attn_dropout=0.5).train()
    layer.attn.dropout_seed = seed
    feat = random(graph.num_nodes(), C, seed=1)

    def run(forward):
        torch.manual_seed(6)
        out = forward(feat)
        layer.zero_grad()
        feat.grad = None
        (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        return [out, feat.grad.clone(), *(p.grad.clone() for p in layer.parameters())]

    kept = run(lambda x: layer(graph, x))
    recomputed = run(lambda x: checkpoint(layer, graph, x, use_reentrant=reentrant))
    for a, b in zip(recomputed, kept, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_default_activations_are_not_shared():
    assert make().ffn[1] is not make().ffn[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "num_heads=5 does not divide feat_size=12"),
        ({"num_heads": 0}, "num_heads is 0"),
        ({"hidden_size": torch.zeros(2, 0)}, "hidden_size is tensor"),
        ({"hidden_size": 2.0}, "hidden_size is 2.0"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"dropout": 1.5}, r"dropout=1.5 is not in \[0, 1\)"),
        ({"dropout": torch.zeros(2)}, r"dropout=tensor.* is not in \[0, 1\)"),
        ({"attn_dropout": 1.0}, r"attn_dropout=1.0 is not in \[0, 1\)"),
        ({"attn_bias_type": "max"}, "attn_bias_type is 'max'"),
        ({"attn_bias_type": np.ma.zeros(3)}, "attn_bias_type is masked_array"),
        ({"norm_first": np.zeros(3)}, "norm_first is array.*"),
    ],
)
def test_refuses_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        GraphTransformerLayer(**{"feat_size": C, "hidden_size": HIDDEN, "num_heads": H, **options})


def test_refuses_features_of_another_graph(graph):
    with pytest.raises(ValueError, match="25 rows.*24 source nodes"):
        make()(graph, random(25, C, seed=1))


def test_a_pair_of_features_is_refused_by_name():
    """DGL's convolutions take (h_src, h_dst); here the first sources are the destinations."""
    block, feat = dgl.to_block(dgl.graph(([0, 1], [1, 2]), num_nodes=3)), torch.randn(3, 8)
    for module in (GraphTransformerLayer(8, 8, 2), BiasedMHA(8, 2), GraphTransformer(8, 8, 2, 1, 2)):
        with pytest.raises(ValueError, match=r"features are a tuple.*\(h_src, h_dst\)"):
            module(block, (feat, feat))
