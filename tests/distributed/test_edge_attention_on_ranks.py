"""Features of edges in keys and values: ranks have the numbers of the whole graph with every strategy, gradients too."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from torch import nn
from torch.utils.checkpoint import checkpoint
from whole_graph import csc_of

import dgl_gt
from dgl_gt.nn import TransformerConv
from dgl_gt.partition import partition
from dgl_gt.partition.figures.strategies import NAMES

FEATURES, EDGE_DIM, HEADS = 5, 3, 12
MESH = {4: ["mesh=2"]}
WAYS = [(name, 1, True) for name in NAMES if name != "local"] + [("ring", 1, False), ("halo", 2, True)]


class Model(nn.Module):
    """Two layers with dropout, one with a gate; the second is computed again in backward where ``again`` says so."""

    def __init__(self):
        super().__init__()
        self.first = TransformerConv(FEATURES, 4, HEADS, dropout=0.3, edge_dim=EDGE_DIM)
        self.second = TransformerConv(4 * HEADS, 3, HEADS, concat=False, beta=True, dropout=0.2, edge_dim=EDGE_DIM)

    def forward(self, graphs, feat, edge, again=None):
        hidden = torch.tanh(self.first(graphs[0], feat, edge))
        if again is None:
            return self.second(graphs[1], hidden, edge)
        return checkpoint(self.second, graphs[1], hidden, edge, use_reentrant=False, context_fn=again)


def run_model(graph, feat, edge, checkpoints=False):
    """One step's output and gradients: of features, of those of edges, and of parameters."""
    torch.manual_seed(0)
    model = Model().double()
    torch.manual_seed(4)  # the seeds of masks, which all ranks take from rank 0
    feat, edge = feat.double().requires_grad_(), edge.double().clone().requires_grad_()
    is_part = isinstance(graph, dgl_gt.ShardedGraph)
    out = model(graph.views(2) if is_part else [graph] * 2, feat, edge, graph.kept_exchanges if checkpoints else None)
    (out * torch.linspace(-1, 1, out.shape[1], dtype=torch.float64)).pow(2).sum().backward()
    if is_part:
        graph.comm.sum_gradients(model.parameters())
    return out.detach(), feat.grad, edge.grad, {name: p.grad.numpy() for name, p in model.named_parameters()}


def on_rank(rank, folder, feat, ways):
    found = {}
    for strategy, depth, overlap in ways:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth, overlap=overlap)
        for checkpoints in (False, True) if strategy in ("halo_h", "mirror") else (False,):
            out, grad, edge_grad, parameters = run_model(sg, feat[sg.node_ids], sg.edata["x"], checkpoints)
            of_edges = sg.edge_ids.numpy(), edge_grad.numpy()
            found[strategy, depth, overlap, checkpoints] = (
                sg.gather(out).numpy(),
                sg.gather(grad).numpy(),
                of_edges,
                parameters,
            )
    return found


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("parts", [1, slow(2), 3, slow(4)])
def test_every_strategy_has_the_numbers_of_the_whole_graph(awkward_graph, tmp_path, parts, empty):
    """Isolated nodes, hubs, parallel edges, self-loops; with METIS's parts, or one of them empty."""
    graph = awkward_graph(parts)
    graph.edge_data["x"] = np.random.default_rng(parts).standard_normal((graph.num_edges, EDGE_DIM))
    owner = np.random.default_rng(0).integers(0, parts, graph.num_nodes) % max(parts - 1, 1) if empty else None
    partition(graph, parts, tmp_path / "edge", halo_depth=2, owner=owner)
    partition(graph, parts, tmp_path / "vertex", cut="vertex")
    feat = torch.randn(graph.num_nodes, FEATURES, generator=torch.Generator().manual_seed(1))
    out, grad, edge_grad, parameters = run_model(csc_of(graph), feat, torch.from_numpy(graph.edge_data["x"]))
    exact = {"rtol": 1e-9, "atol": 1e-11 * max(abs(each).max() for each in parameters.values())}
    ways = WAYS + [(name, 1, True) for name in MESH.get(parts, [])]
    of_ranks = run_ranks(parts, on_rank, tmp_path, feat, ways)
    assert len(of_ranks[0]) == len(ways) + 2
    for results in of_ranks:
        for way, (found, found_grad, _, found_parameters) in results.items():
            np.testing.assert_allclose(found, out, rtol=1e-9, atol=1e-11, err_msg=way)
            np.testing.assert_allclose(found_grad, grad, **exact, err_msg=way)
            for name, each in parameters.items():
                np.testing.assert_allclose(found_parameters[name], each, **exact, err_msg=f"{way} {name}")
    for way in of_ranks[0]:
        ids, grads = (np.concatenate([results[way][2][i] for results in of_ranks]) for i in (0, 1))
        assert sorted(ids) == list(range(graph.num_edges)), way
        np.testing.assert_allclose(grads, edge_grad[ids], **exact, err_msg=way)


def refused(rank, folder):
    sg = dgl_gt.load(folder)
    with pytest.raises(ValueError, match="edge has"):
        TransformerConv(FEATURES, 2, edge_dim=2)(sg, torch.zeros(sg.num_nodes(), FEATURES), torch.zeros(1, 2))
    return True


def test_features_of_too_few_edges_are_refused(awkward_graph, tmp_path):
    partition(awkward_graph(0), 2, tmp_path / "edge")
    assert run_ranks(2, refused, tmp_path / "edge") == [True, True]
