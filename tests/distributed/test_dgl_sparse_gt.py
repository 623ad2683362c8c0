"""DGL's example of a sparse graph transformer, ported with its batch norms: its losses on any number of ranks."""

import numpy as np
import pytest
import torch
from dgl_sparse_gt import GTModel
from ranks import run_ranks
from slow_case import slow
from torch import nn
from torch.nn import functional

import dgl_gt
from dgl_gt.nn import GraphTransformerLayer, from_dgl_sparse_gt
from dgl_gt.partition import from_edges, partition

FEATURES, HIDDEN, HEADS, LAYERS, CLASSES = 5, 16, 4, 3, 3
STEPS, LEARNING_RATE = 12, 1e-2
STRATEGIES = [("halo", 1), ("halo", 2), ("heads", 1), ("mirror", 1)]


class Ported(nn.Module):
    """The example's model, with its names, made of layers that take a ShardedGraph."""

    def __init__(self):
        super().__init__()
        options = {"dropout": 0.0, "attn_dropout": 0.0, "norm": "batch"}
        layers = (GraphTransformerLayer(HIDDEN, 2 * HIDDEN, HEADS, **options) for _ in range(LAYERS))
        self.encoder = nn.Linear(FEATURES, HIDDEN)
        self.layers = nn.ModuleList(layers)
        self.predictor = nn.Sequential(nn.Linear(HIDDEN, HIDDEN // 2), nn.ReLU(), nn.Linear(HIDDEN // 2, CLASSES))

    def forward(self, sg, feat):
        h = self.encoder(feat)
        for layer, view in zip(self.layers, sg.views(LAYERS), strict=True):
            h = layer(view, h)
        return self.predictor(h)


def original():
    torch.manual_seed(0)
    return GTModel(FEATURES, HIDDEN, HEADS, LAYERS, CLASSES).double()


def train(model, logits, label, train_mask, comm=None):
    """Return the loss of each step, and the predictions in evaluation, which read the running statistics."""
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    count, losses = train_mask.sum(), []
    if comm is not None:
        count = comm.all_reduce(count)
    for _ in range(STEPS):
        loss = functional.cross_entropy(logits()[train_mask], label[train_mask], reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        if comm is not None:
            comm.sum_gradients(model.parameters())
        optimizer.step()
        losses.append(float(loss.detach() if comm is None else comm.all_reduce(loss.detach())))
    model.eval()
    with torch.no_grad():
        return losses, logits()


def on_rank(rank, folder, strategies):
    results = []
    for strategy, depth in strategies:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth)
        model = Ported().double()
        model.load_state_dict(from_dgl_sparse_gt(original().state_dict(), HEADS))
        feat = sg.ndata["feat"].double()
        losses, logits = train(model, lambda: model(sg, feat), sg.ndata["label"], sg.ndata["train_mask"], sg.comm)
        results.append((losses, sg.gather(logits).numpy()))
    return results


@pytest.fixture
def case(awkward_graph):
    """A directed graph without parallel edges, which a dense matrix cannot hold, and its numbers in plain torch."""
    drawn = awkward_graph(7)
    src, dst = np.unique(np.stack(drawn.edges()), axis=1)
    adjacency = torch.zeros(drawn.num_nodes, drawn.num_nodes, dtype=torch.bool)
    adjacency[src, dst] = True
    data = {name: torch.from_numpy(values) for name, values in drawn.node_data.items()}
    model, feat = original(), data["feat"].double()
    expected = train(model, lambda: model(adjacency, feat), data["label"], data["train_mask"])
    return from_edges(dst, src, drawn.num_nodes, drawn.node_data), expected  # reversed: its queries are sources


@pytest.mark.parametrize("parts", [1, slow(2), 3])
def test_its_losses(case, tmp_path, parts):
    reversed_graph, (expected, expected_logits) = case
    assert expected[-1] < 0.8 * expected[0]
    partition(reversed_graph, parts, tmp_path / "edge", halo_depth=2)
    partition(reversed_graph, parts, tmp_path / "vertex", cut="vertex")
    strategies = [each for each in STRATEGIES if HEADS % parts == 0 or each[0] != "heads"]
    for results in run_ranks(parts, on_rank, tmp_path, strategies):
        for way, (losses, logits) in zip(strategies, results, strict=True):
            np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-9, err_msg=str(way))
            np.testing.assert_allclose(logits, expected_logits, rtol=0, atol=1e-8, err_msg=str(way))
