"""The residual to the first rows: DGL's GCN2Conv and the published model, on graphs, blocks and under checkpointing."""

import math

import pytest
import torch
from dgl_or_skip import dgl
from torch.nn import functional

from dgl_gt.nn import GNN, ConvolutionLayer, GraphTransformer, InitialResidual, apply_activation_checkpoint

WIDTH, OPTIONS = 6, {"score": "gcn", "residual": "initial", "norm": "none", "dropout": 0.0}


@pytest.fixture
def undirected(graph):
    return dgl.add_self_loop(dgl.to_bidirected(graph))


def rows(count, width=WIDTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.needs_dgl
@pytest.mark.parametrize(("layer", "initial_weight", "map_weight"), [(1, 0.1, 0.5), (7, 0.5, 1.7), (3, 0.0, 1.0)])
def test_a_layer_equals_dgls_gcn2conv(undirected, gradients, layer, initial_weight, map_weight):
    weights = {"layer": layer, "initial_weight": initial_weight, "map_weight": map_weight}
    ours = ConvolutionLayer(WIDTH, WIDTH, **OPTIONS, **weights).double()
    theirs = dgl.nn.GCN2Conv(WIDTH, layer, initial_weight, map_weight, bias=False, activation=functional.relu).double()
    theirs.weight1.data = ours.residual.linear.weight.T.detach().clone()
    feat, initial = rows(undirected.num_nodes()), rows(undirected.num_nodes(), seed=1)
    results = []
    for out, weight in (
        (ours(undirected, feat, initial=initial), ours.residual.linear.weight),
        (theirs(undirected, feat, initial), theirs.weight1),
    ):
        *found, of_weight = gradients(out, [feat, initial, weight])
        results.append((out, *found, of_weight if weight is theirs.weight1 else of_weight.T))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("map_weight", [0.5, 0.0])
def test_a_model_equals_the_published_formula(undirected, gradients, map_weight):
    model = GNN(5, WIDTH, 3, 4, 1, input="linear", map_weight=map_weight, **OPTIONS).double()
    feat = rows(undirected.num_nodes(), 5)
    adjacency = undirected.adj_external().to_dense().double()
    inverse = adjacency.sum(1).rsqrt()
    first = h = model.encoder(feat)
    for index, layer in enumerate(model.layers, 1):
        mixed = 0.9 * inverse[:, None] * adjacency @ (inverse[:, None] * h) + 0.1 * first
        share = math.log(map_weight / index + 1)
        h = torch.relu((1 - share) * mixed + (share * mixed @ layer.residual.linear.weight.T if share else 0))
    expected = model.output(h)
    tensors = [feat, *model.parameters()]
    of_expected = gradients(expected, tensors)
    for mode in ("none", "full", "keep_exchanges"):
        out = apply_activation_checkpoint(model, mode)(undirected, feat)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        for a, b in zip(gradients(out, tensors), of_expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.needs_dgl
@pytest.mark.parametrize("score", ["mean", "additive", "dot"])
def test_blocks_give_the_rows_of_the_graph(sparse_graph, score):
    model = GNN(5, WIDTH, 3, 3, 2, **{**OPTIONS, "score": score}).double()
    feat, seeds = rows(sparse_graph.num_nodes(), 5), torch.tensor([2, 8, 6])
    inputs, _, blocks = dgl.dataloading.MultiLayerFullNeighborSampler(3).sample(sparse_graph, seeds)
    torch.testing.assert_close(model(blocks, feat[inputs]), model(sparse_graph, feat)[seeds], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InitialResidual(0, 1), "feats is 0"),
        (lambda: InitialResidual(4, 0), "layer is 0"),
        (lambda: InitialResidual(4, 1, 1.1), "initial_weight is 1.1"),
        (lambda: InitialResidual(4, 1, 0.1, float("nan")), "map_weight is nan"),
        (lambda: InitialResidual(4, 1)(torch.ones(3, 4), torch.ones(2, 4)), "initial has 2 rows"),
        (lambda: ConvolutionLayer(5, 4, residual="initial"), "residual is 'initial'"),
        (
            lambda: ConvolutionLayer(4, 4, **OPTIONS)(torch.tensor([[0], [0]]), torch.ones(1, 4)),
            "needs the rows before the first layer; pass initial",
        ),
        (
            lambda: GraphTransformer(5, 4, 3, 2, 1, residual="initial"),
            "residual is 'initial'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
