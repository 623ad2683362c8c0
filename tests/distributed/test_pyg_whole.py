"""Scripts of PyG that hold the whole graph: their losses, metrics and weights on ranks are those of one process."""

import copy
import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from slow_case import slow
from torch import nn

import dgl_gt
from dgl_gt.partition import InputError, partition

pytest.importorskip("torch_geometric", reason="PyG is not installed: pip install torch_geometric")
NODES, EDGES, WIDTH, CLASSES = 60, 240, 8, 4


def sample():
    """A directed graph with parallel edges, self-loops, a hub and isolated nodes."""
    from torch_geometric.data import Data

    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, NODES - 3, (2, EDGES), generator=draw)
    dst[:30] = 5
    x = torch.randn(NODES, WIDTH, generator=draw, dtype=torch.float64)
    data = Data(x=x, edge_index=torch.stack([src, dst]), y=torch.randint(0, CLASSES, (NODES, 1), generator=draw))
    data.weight = 0.1 + torch.rand(EDGES, generator=draw, dtype=torch.float64)
    data.train_mask = torch.rand(NODES, generator=draw) < 0.5
    return data


def gat_script(distribute):
    """Labels, by a model of the user's; metrics of three sets; Adam with decay, and the best state."""
    from torch_geometric.nn import GATConv

    class GAT(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = GATConv(WIDTH, 8, 2), GATConv(16, CLASSES, concat=False)

        def forward(self, x, edge_index):
            return self.conv2(F.elu(self.conv1(F.dropout(x, 0.0, self.training), edge_index)), edge_index)

    data = sample()
    model = GAT().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    distribute(model, data)
    found = []
    for _ in range(4):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask].view(-1))
        loss.backward()
        optimizer.step()
        best = copy.deepcopy(model.state_dict())
        model.eval()
        with torch.no_grad():
            right = model(data.x, data.edge_index).argmax(-1) == data.y.view(-1)
        found += [float(loss.detach()), float(right[data.train_mask].double().mean()), float(right.double().mean())]
    model.load_state_dict(best)
    return found + [float(each.detach().sum()) for each in model.parameters()]


def transformer_script(distribute):
    """Labels in part of the input, drawn anew in each step (UniMP); the model is given the Data."""
    from torch_geometric.nn import DeepGCNLayer, MaskLabel, TransformerConv

    class UniMP(nn.Module):
        def __init__(self):
            super().__init__()
            self.labels = MaskLabel(CLASSES, WIDTH)
            self.conv1 = TransformerConv(WIDTH, 8, 2, beta=True, edge_dim=1)
            self.again = DeepGCNLayer(TransformerConv(16, 16), nn.LayerNorm(16), nn.ReLU(), ckpt_grad=True)
            self.conv2 = TransformerConv(16, CLASSES, 2, concat=False)

        def forward(self, data, mask):
            x = self.labels(data.x, data.y.view(-1), mask)
            x = self.conv1(x, data.edge_index, data.weight[:, None]).relu()
            return self.conv2(self.again(x, data.edge_index), data.edge_index), x

    data = sample()
    model = UniMP().double()
    distribute(model, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(4):
        given = MaskLabel.ratio_mask(data.train_mask, 0.6)
        asked = data.train_mask ^ given
        optimizer.zero_grad()
        out, hidden = model(data, mask=given)
        loss = F.cross_entropy(out[asked], data.y[asked].view(-1)) + 0.1 * hidden.pow(2).mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def sage_script(distribute):
    """Links, scored outside of the model, against pairs that are drawn; trained rows of nodes and weights of edges."""
    from torch_geometric.nn import GCN, GraphSAGE, Sequential
    from torch_geometric.utils import negative_sampling

    data = sample()
    rows = nn.Parameter(data.x.clone())
    weight = nn.Parameter(data.weight.clone())
    sage, gcn = GraphSAGE(WIDTH, 8, 2, norm="batch_norm"), GCN(8, 8, 1)
    model = Sequential("x, e, w", [(sage, "x, e -> x"), (gcn, "x, e, w -> x")]).double()
    distribute(model, data)
    decoder = nn.Linear(8, 1).double()
    nn.init.constant_(decoder.weight, 0.5), nn.init.zeros_(decoder.bias)
    trained = [rows, weight, *model.parameters(), *decoder.parameters()]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    found = []
    for step in range(5):
        others = negative_sampling(data.edge_index, NODES, 50)
        pairs = torch.cat([data.edge_index, others], 1)
        h = model(rows, data.edge_index, weight)
        score = decoder(h[pairs[0]] * h[pairs[1]]).view(-1)
        loss = F.binary_cross_entropy_with_logits(score, (torch.arange(len(score)) < EDGES).double())
        loss = loss + 0.01 * sum(each.pow(2).sum() for each in model.parameters())
        loss.backward()
        if step % 2:  # the gradients of two steps together
            nn.utils.clip_grad_norm_(trained, 0.1)
            optimizer.step()
            optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found + [float(each.detach().abs().sum()) for each in (rows, weight)]


SCRIPTS = (gat_script, transformer_script, sage_script)


def on_rank(rank, folder):
    found = []
    for script in SCRIPTS:
        for draw in (torch.manual_seed, np.random.seed, random.seed):
            draw(rank)  # other ranks draw other weights, and get those of rank 0
        found.append(script(lambda model, data: dgl_gt.pyg.distribute_whole(model, data, folder)))
    return found


@pytest.mark.parametrize("parts", [1, slow(2), 3])
def test_scripts_compute_on_ranks_what_they_do_on_one_process(parts, tmp_path):
    if parts == 3:  # the third part has no node
        data = sample()
        partition(data, 3, tmp_path / "shards", owner=np.arange(NODES) % 2)
    expected = []
    for script in SCRIPTS:
        for draw in (torch.manual_seed, np.random.seed, random.seed):
            draw(0)
        expected.append(script(lambda model, data: None))
    for found in run_ranks(parts, on_rank, tmp_path / "shards"):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)  # the norm's variances are float32
    assert len({*expected[0][::3]}) > 3


class Noise(nn.Module):
    """A model with dropout and without a layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, edge_index):
        return F.dropout(self.scale * torch.ones_like(x))


def noise_on_rank(rank, folder):
    data = sample()
    torch.manual_seed(rank)
    model = dgl_gt.pyg.distribute_whole(Noise(), data, folder)
    masks = [model(data.x, data.edge_index).detach().numpy() for _ in range(2)]
    masks.append(copy.deepcopy(model)(data.x, data.edge_index).detach().numpy())
    own = masks[0][dgl_gt.load(folder).node_ids]
    return [*masks, torch.rand(3).numpy()], own


def test_ranks_draw_masks_of_their_own_and_the_script_the_same_numbers(tmp_path):
    (one, own), (two, others) = run_ranks(2, noise_on_rank, tmp_path / "shards")
    assert not np.array_equal(own[:20], others[:20])
    for mine, theirs in zip(one, two, strict=True):
        assert np.array_equal(mine, theirs)
    assert {*np.unique(one[0])} == {0, 2}
    assert len({each.tobytes() for each in one[:3]}) == 3
    torch.manual_seed(0)
    assert np.array_equal(one[3], torch.rand(3).numpy())


class Wrong(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.weight, self.change = nn.Parameter(torch.ones(WIDTH, 2, dtype=torch.float64)), change

    def forward(self, x, edge_index):
        return self.change(x @ self.weight)


@contextmanager
def refused(*words):
    with pytest.raises(InputError) as caught:
        yield
    assert all(each in str(caught.value) for each in words), caught.value


def refusals_on_rank(rank, folder):
    from torch_geometric.nn import SAGEConv

    data, distribute = sample(), dgl_gt.pyg.distribute_whole
    model = distribute(Wrong(lambda h: h), data, folder / "shards")
    with refused("239 edges"):
        model(data.x, data.edge_index[:, 1:])
    out = model(data.x, data.edge_index.clone())  # others of the same ends
    with refused("differs between ranks"):
        (out.sum() * (rank + 1)).backward()
    model = distribute(Wrong(lambda h: h.mean(0)), data, folder / "shards")
    with refused("returned", "(2,)"):
        model(data.x, data.edge_index)
    model = distribute(SAGEConv(WIDTH, 2).double(), data, folder / "shards")
    with torch.inference_mode():
        assert model(data.x, data.edge_index).shape == (NODES, 2)
    with refused("SAGEConv", "sparse"):
        model(data.x, torch.eye(NODES).to_sparse())
    other = sample()
    other.edge_index = other.edge_index.flip(1)
    with refused("shards", "another graph"):
        distribute(model, other, folder / "shards")
    with refused("Tensor", "Data"):
        distribute(model, data.edge_index, folder / "shards")
    with refused("1 part", "ranks is 2"):
        distribute(model, data, folder / "one")
    other.edge_index[0, 0] = NODES
    with refused(str(NODES)):
        distribute(model, other, folder / "new")
    return (folder / "new").exists()


def ring_on_rank(rank, folder):
    from torch_geometric.data import Data
    from torch_geometric.nn import GraphConv

    ends = torch.arange(NODES)
    data = Data(x=torch.eye(NODES), edge_index=torch.stack([ends, ends.roll(7)]), edge_weight=0.1 + torch.rand(NODES))
    torch.manual_seed(0)
    conv = GraphConv(NODES, 2)
    wanted = conv(data.x, data.edge_index, data.edge_weight)
    dgl_gt.pyg.distribute_whole(conv, data, folder)
    torch.testing.assert_close(conv(data.x, data.edge_index, data.edge_weight), wanted)
    with refused(f"{NODES} nodes", f"({NODES},)"):
        conv(data.x, data.edge_index, 2 * data.edge_weight)


def test_rows_of_nodes_are_not_taken_for_edges_where_there_are_as_many(tmp_path):
    run_ranks(2, ring_on_rank, tmp_path / "shards")


def test_what_a_rank_cannot_do_is_refused(tmp_path, monkeypatch):
    partition(sample(), 1, tmp_path / "one")
    assert run_ranks(2, refusals_on_rank, tmp_path) == [False, False]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("init_process_group"):
        dgl_gt.pyg.distribute_whole(nn.Linear(1, 1), sample(), tmp_path / "shards")
