"""Rows that belong to nodes: trained as on one process, saved in node order, loaded with any number of ranks."""

import copy
import pickle

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from test_strategies import make_shards
from whole_graph import csc_of

import dgl_gt
from dgl_gt.nn import Dropout, GraphConv, GraphTransformerLayer, NodeEmbedding

WIDTH = 6


class Model(torch.nn.Module):
    """Trained rows, a dropout on them and between the layers, and layers that exchange."""

    def __init__(self, graph):
        super().__init__()
        self.table = NodeEmbedding(graph, WIDTH)
        self.first = GraphTransformerLayer(WIDTH, 8, 2, dropout=0.2, attn_dropout=0.0)
        self.second = GraphConv(WIDTH, 3, allow_zero_in_degree=True)
        self.dropout = Dropout(0.3)

    def forward(self, graph):
        h = self.first(graph, self.dropout(self.table.weight, graph))
        return self.second(graph, self.dropout(h.view(len(h), 2, WIDTH // 2), graph).flatten(1))


def train(graph, state=None, steps=4):
    """Losses, the state at first and at the end, and the next draw; ``state`` is one to begin with."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Model(graph)
    first = {key: value.clone() for key, value in model.state_dict().items()}
    if state is not None:
        model.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-3)  # of which rounding makes little
    is_sharded, losses = isinstance(graph, dgl_gt.ShardedGraph), []
    for _ in range(steps):
        loss = model(graph).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        if is_sharded:
            graph.comm.sum_gradients(model.parameters())
        optimizer.step()
        losses.append(float(graph.comm.all_reduce(loss.detach()) if is_sharded else loss.detach()))
    last = copy.deepcopy(model).state_dict()
    draw, _ = float(torch.rand(())), torch.set_default_dtype(torch.float32)
    return losses, *({key: value.numpy() for key, value in each.items()} for each in (first, last)), draw


def on_rank(rank, folder, state):
    results = []
    for cut in ("edge", "vertex"):
        sg = dgl_gt.load(folder / cut, timeout_s=60).to("cpu")
        results += [train(sg), train(sg, state)]
    return results


@pytest.mark.parametrize("parts", [1, slow(2), 3])
def test_ranks_train_the_table_of_one_process(awkward_graph, tmp_path, parts):
    graph = awkward_graph(3)
    owner = np.random.default_rng(parts).integers(0, max(parts - 1, 1), graph.num_nodes)  # the last rank owns none
    make_shards(graph, parts, tmp_path, owner)
    expected = train(csc_of(graph))
    again = train(csc_of(graph), expected[2])
    assert expected[1]["table.weight"].shape == (graph.num_nodes, WIDTH) and again[0][0] < expected[0][0]
    for results in run_ranks(parts, on_rank, tmp_path, expected[2]):
        for found, wanted in zip(results, 2 * [expected, again], strict=True):
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-9)
            assert found[3] == wanted[3], "as many numbers are drawn as on one process"
            for states in zip(found[1:3], wanted[1:3]):
                assert states[0].keys() == states[1].keys()
                for key, value in states[0].items():
                    np.testing.assert_allclose(value, states[1][key], rtol=1e-7, atol=1e-9, err_msg=key)


def states(rank, folder):
    """Loading states of other shapes, by assignment, and a copy of a model; single precision."""
    sg = dgl_gt.load(folder / "edge", timeout_s=60)
    torch.manual_seed(0)
    table = NodeEmbedding(sg, 2)
    whole = torch.arange(2.0 * sg.manifest["nodes"]).view(-1, 2)
    with pytest.raises(RuntimeError, match=r"weight is \(3, 2\)"):
        table.load_state_dict({"weight": torch.ones(3, 2)})
    with pytest.raises(RuntimeError, match="Missing key"):
        table.load_state_dict({})
    first = table.state_dict()["weight"].numpy()
    for assign in (False, True):
        model = copy.deepcopy(torch.nn.ModuleList([table]))
        model.load_state_dict({"0.weight": whole}, assign=assign)
        own = model[0].weight
        assert torch.equal(own, whole[sg.node_ids]) and torch.equal(model.state_dict()["0.weight"], whole)
        assert own.is_rank_own and own.requires_grad and list(model.parameters()) == [own]
        assert torch.equal(model[0](sg.nodes()), own)
    return first


def test_states_and_copies(awkward_graph, tmp_path):
    graph = awkward_graph(4)
    make_shards(graph, 2, tmp_path)
    torch.manual_seed(0)
    expected = NodeEmbedding(graph.num_nodes, 2)
    assert type(expected.weight) is torch.nn.Parameter
    for found in run_ranks(2, states, tmp_path):
        np.testing.assert_array_equal(found, expected.weight.detach().numpy())


def test_first_values_are_normal():
    torch.manual_seed(0)
    values = NodeEmbedding(20_000, 5).weight.detach()
    torch.testing.assert_close(values.mean(0), torch.zeros(5), rtol=0, atol=0.03)
    torch.testing.assert_close(torch.cov(values.T), torch.eye(5), rtol=0, atol=0.04)
    assert abs(float((values.abs() < 1).double().mean()) - 0.6827) < 0.01 and values.isfinite().all()
    assert not torch.equal(values, NodeEmbedding(20_000, 5).weight), "each table has its own"


def rows_that_do_not_fit(rank, folder):
    sg = dgl_gt.load(folder / "edge", timeout_s=60)
    dropout = Dropout(0.5)
    with pytest.raises(ValueError, match=f"got {sg.num_nodes() + 1} rows.*before sg.pull"):
        dropout(torch.ones(sg.num_nodes() + 1, 2), sg)
    x = torch.ones(sg.num_nodes())
    assert set(dropout(x, sg).tolist()) <= {0.0, 2.0} and dropout.eval()(x, sg) is x


def test_dropout_refuses_rows_of_no_known_node(awkward_graph, tmp_path):
    make_shards(awkward_graph(4), 2, tmp_path)
    run_ranks(2, rows_that_do_not_fit, tmp_path)


@pytest.mark.parametrize("p", [-0.1, 1, "half"])
def test_probabilities_and_sizes_are_checked(p):
    with pytest.raises(ValueError, match=f"p={p!r}"):
        Dropout(p)
    with pytest.raises(ValueError, match="graph is 0"):
        NodeEmbedding(0, 2)
    with pytest.raises(ValueError, match="embedding_dim is 0"):
        NodeEmbedding(3, 0)


def pickled(rank, folder):
    table = NodeEmbedding(dgl_gt.load(folder / "edge"), WIDTH)
    with pytest.raises(TypeError, match=r"save model\.state_dict\(\)"):
        pickle.dumps(table)


def test_a_table_of_one_rank_is_not_pickled(awkward_graph, tmp_path):
    make_shards(awkward_graph(4), 2, tmp_path)
    run_ranks(2, pickled, tmp_path)
