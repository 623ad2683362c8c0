"""Models of PyG across ranks: training steps with norms of all ranks; what is refused; graphs of PyG as sources."""

import copy

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from torch import nn

import dgl_gt
from dgl_gt.partition import InputError, load_graph, partition

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install torch_geometric")
SAMPLE = "sample:communities?nodes=120&classes=4&features=8"


class OwnNorm(nn.Module):
    """A layer of the user's that calls ``gcn_norm``, and reads its own rows when it updates them."""

    def __init__(self):
        from torch_geometric.nn import MessagePassing
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        class Updating(MessagePassing):
            def forward(self, x, edge_index):
                edge_index, weight = globals()["users_norm"](
                    edge_index, None, len(x), add_self_loops=False, dtype=x.dtype
                )
                return self.propagate(edge_index, x=x, weight=weight, z=x.cos())

            def message(self, x_j, weight):
                return weight[:, None] * x_j

            def update(self, out, x, z):
                return out + x.sin() * z

        super().__init__()
        globals().setdefault("users_norm", gcn_norm)
        self.layer, self.out = Updating(), nn.Linear(8, 4)

    def forward(self, x, edge_index):
        return self.out(self.layer(x, edge_index))


class Own(nn.Module):
    """A message passing layer of the user's with rows of both ends, an edge's weight and a norm, called twice."""

    def __init__(self):
        from torch_geometric.nn import MessagePassing

        class Layer(MessagePassing):
            def forward(self, x, edge_index, weight):
                return self.propagate(edge_index, x=x, weight=weight)

            def message(self, x_i, x_j, weight):
                return weight[:, None] * torch.tanh(x_j - x_i)

        super().__init__()
        self.into, self.layer, self.norm = nn.Linear(8, 4), Layer(aggr="mean"), nn.BatchNorm1d(4)

    def forward(self, x, edge_index, weight):
        h = self.layer(self.into(x), edge_index, weight)
        return self.layer(self.norm(h), edge_index, weight)


def models():
    import torch_geometric.nn as p

    yield p.GCN(8, 16, 3, 4, norm="batch_norm", jk="cat"), False
    yield p.GAT(8, 16, 2, 4, heads=2, v2=True, norm=p.LayerNorm(16, mode="node")), False
    yield (
        p.PNA(8, 16, 2, 4, aggregators=["mean", "max"], scalers=["identity", "attenuation"], deg=torch.ones(60)),
        False,
    )
    yield (
        p.Sequential("x, e", [(p.SAGEConv(8, 16), "x, e -> x"), nn.ReLU(), (p.TransformerConv(16, 4), "x, e -> x")]),
        False,
    )
    yield p.GIN(8, 16, 2, 4, norm="batch_norm"), False
    yield OwnNorm(), False
    yield Own(), True


def losses(x, y, edge_index, weight, sg=None):
    found = []
    torch.manual_seed(0)
    for model, reads_weight in models():
        model.double()
        if sg:
            dgl_gt.pyg.distribute(dgl_gt.pyg.distribute(model, sg), sg)  # the same as once
            model = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            out = model(x, edge_index, *([weight] if reads_weight else []))
            loss = nn.functional.cross_entropy(out, y, reduction="sum") / 100
            optimizer.zero_grad()
            loss.backward()
            if sg:
                sg.comm.sum_gradients(model.parameters())
            optimizer.step()
            found.append(float(loss.detach() if sg is None else sg.comm.all_reduce(loss.detach())))
    return found


def on_rank(rank, folder):
    sg = dgl_gt.load(folder)
    data = dgl_gt.pyg.data_of(sg)
    return losses(data.x.double(), data.y, data.edge_index, data.edge_weight, sg)


@pytest.mark.parametrize("parts", [1, slow(2), 3])
def test_models_train_as_on_one_process(parts, tmp_path):
    graph = load_graph(SAMPLE)
    weight = np.random.default_rng(0).random(graph.num_edges)
    graph.edge_data["weight"] = weight
    partition(graph, parts, tmp_path / "shards")
    feat, label = (torch.from_numpy(graph.node_data[name]) for name in ("feat", "label"))
    edge_index = torch.from_numpy(np.stack(graph.edges()).astype(np.int64))
    expected = losses(feat.double(), label, edge_index, torch.from_numpy(weight))
    assert len(set(expected)) == len(expected) == 28
    for found in run_ranks(parts, on_rank, tmp_path / "shards"):
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # the norms' variances are float32


def test_what_needs_more_than_a_part_is_refused_by_name(tmp_path):
    import torch_geometric.nn as p

    partition(SAMPLE, 1, tmp_path / "shards")
    sg = dgl_gt.load(tmp_path / "shards")
    wrong = [
        p.ChebConv(8, 4, 2),
        p.GPSConv(8, p.GINConv(nn.Linear(8, 8))),
        p.GraphNorm(8),
        p.LayerNorm(8),
        p.TopKPooling(8),
    ]
    wrong += [nn.BatchNorm2d(3), p.GCNConv(8, 4, flow="target_to_source"), p.models.SGFormer(8, 8, 4)]
    wrong += [p.BatchNorm(8, allow_single_element=True), p.SAGEConv(-1, 4).lin_l, p.Set2Set(8, 2)]
    wrong += [
        p.SAGEConv(8, 4, aggr="lstm").aggr_module,
        p.PatchTransformerAggregation(8, 8, 2, 8),
        p.LCMAggregation(8, 8),
        p.EquilibriumAggregation(8, 8, [8]),
    ]
    for module in wrong:
        with pytest.raises(InputError) as caught:
            dgl_gt.pyg.distribute(nn.Sequential(nn.Linear(8, 8), module), sg)
        assert type(module).__name__ in str(caught.value)
    conv = dgl_gt.pyg.distribute(p.SAGEConv(8, 4), sg)
    with pytest.raises(InputError, match="119 rows of x"):
        conv(sg.ndata["feat"][1:], sg.edge_index)
    for call in (conv, lambda x, sparse: conv(x, edge_index=sparse)):
        with pytest.raises(InputError, match="SAGEConv was given a sparse matrix"):
            call(sg.ndata["feat"], torch.eye(120).to_sparse_csr())
    conv = dgl_gt.pyg.distribute(p.EdgeConv(p.MLP([16, 8, 4])), sg)
    with pytest.raises(InputError, match="messages of EdgeConv"):
        conv(sg.ndata["feat"], sg.edge_index)

    class Mean(p.MessagePassing):
        def message(self, x_j, size_j):
            return x_j / size_j

    with pytest.raises(InputError, match="size_j"):
        dgl_gt.pyg.distribute(Mean(), sg)
    graph = load_graph(SAMPLE)
    graph.node_data["x"] = np.zeros(120)
    partition(graph, 1, tmp_path / "two")
    with pytest.raises(InputError, match="call x"):
        dgl_gt.pyg.data_of(dgl_gt.load(tmp_path / "two"))


def test_a_layer_forgets_what_it_cached_of_another_graph(tmp_path):
    import torch_geometric.nn as p

    graph = load_graph(SAMPLE)
    partition(graph, 1, tmp_path / "shards")
    sg = dgl_gt.load(tmp_path / "shards")
    x, others = sg.ndata["feat"], sg.edge_index.flip(0)[:, ::2]
    for conv in (p.GCNConv(8, 4, cached=True), p.SGConv(8, 4, cached=True), p.SSGConv(8, 4, 0.1, cached=True)):
        wanted = copy.deepcopy(conv)(x, sg.edge_index)
        conv(x, others)
        dgl_gt.pyg.distribute(conv, sg)
        torch.testing.assert_close(conv(x, sg.edge_index), wanted)


def refusals_on_rank(rank, folder):
    import torch_geometric.nn as p

    found = []
    sg = dgl_gt.load(folder / "plain")
    for conv in (p.SAGEConv(8, 4), OwnNorm().layer):
        dgl_gt.pyg.distribute(conv, sg)
        with pytest.raises(InputError, match="was given edges to nodes of other ranks"):
            conv(sg.ndata["feat"], sg.edge_index.flip(0))
    for name, depth in (("vertex", 1), ("deep", 2)):
        with pytest.raises(InputError) as caught:
            dgl_gt.pyg.distribute(p.SAGEConv(8, 4), dgl_gt.load(folder / name, depth=depth))
        found.append(str(caught.value))
    return found


def test_other_cuts_deep_halos_and_edges_of_others_are_refused(tmp_path):
    partition(SAMPLE, 2, tmp_path / "plain")
    partition(SAMPLE, 2, tmp_path / "vertex", cut="vertex")
    partition(SAMPLE, 2, tmp_path / "deep", halo_depth=2)
    for messages in run_ranks(2, refusals_on_rank, tmp_path):
        assert all("--cut edge" in each and "depth 1" in each for each in messages)


def test_a_data_is_a_source_and_so_is_its_file(tmp_path):
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    data = Data(x=torch.rand(4, 3), edge_index=edges, y=torch.tensor([0, 1, 0, -1]), edge_attr=torch.rand(4, 2))
    data.train_mask, data.note = torch.tensor([True, False, True, False]), "a word"
    torch.save(data, tmp_path / "graph.pt")
    for source in (data, tmp_path / "graph.pt"):
        with pytest.warns(match="note"):
            graph = load_graph(source)
        assert np.stack(graph.edges()).tolist() == edges.tolist() and graph.num_nodes == 4
        assert {*graph.node_data} == {"feat", "label", "train_mask"} and graph.edge_data["edge_attr"].shape == (4, 2)
    partition(graph, 1, tmp_path / "shards")
    back = dgl_gt.pyg.data_of(dgl_gt.load(tmp_path / "shards"))
    assert torch.equal(back.x[back.y.argsort()], data.x[data.y.argsort()]) and back.edge_attr.shape == (4, 2)
    (tmp_path / "text.pt").write_text("no graph")
    torch.save({"x": 1}, tmp_path / "dict.pt")
    with pytest.raises(InputError, match="text.pt"):
        load_graph(tmp_path / "text.pt")
    with pytest.raises(InputError, match="dict"):
        load_graph(tmp_path / "dict.pt")
    with pytest.raises(InputError, match="edge_index"):
        load_graph(Data(x=torch.rand(2, 2)))
