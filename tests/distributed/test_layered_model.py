"""Models of a user's own as layers, which run whole, on ranks, and part by part."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from test_merged_parts import graph  # noqa: F401
from torch import nn

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.nn import BiasedMHA, Dropout, GraphConv, LayeredModel, set_dropout_step
from dgl_gt.partition import InputError, partition

PARTS = 4


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.mean = BiasedMHA(width, 2), GraphConv(width, width, norm="right")
        self.norm, self.dropout = nn.LayerNorm(width), Dropout(0.4)

    def forward(self, view, h):
        out = self.dropout(self.attention(view, h) + self.mean(view, h), view)
        return self.norm(h[: len(out)] + out)


class Model(LayeredModel):
    def __init__(self, in_dim, classes):
        super().__init__()
        self.first, self.last, self.dropout = nn.Linear(in_dim, 12), nn.Linear(12, classes), Dropout(0.2)
        self.layers = nn.ModuleList([Layer(12), Layer(12)])

    def encode(self, feat, view):
        return self.dropout(self.first(feat).relu(), view)

    def decode(self, h, view):
        return self.last(self.dropout(h, view))


class Plain(nn.Dropout):
    def forward(self, x, view):
        return super().forward(x)


class Unkeyed(Model):
    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes)
        self.layers[1].dropout = Plain(0.4)


class Normed(Model):
    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes)
        self.layers[0].norm = nn.BatchNorm1d(12)


class Nested(Model):
    """A layer that is such a model, in one piece."""

    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes)
        inner = Model(12, 12)
        inner.layers = inner.layers[:1]
        self.layers[1] = inner


class Headed(Model):
    """A layer that returns heads."""

    def __init__(self, in_dim, classes):
        super().__init__(in_dim, classes)
        self.layers[0] = dgl_gt.nn.GATConv(12, 6, 2)


class Bare(LayeredModel):
    def __init__(self, in_dim, classes):
        super().__init__()
        self.layers = nn.ModuleList([GraphConv(in_dim, classes)])


def found_by(rank, path, spill):
    torch.set_default_dtype(torch.float64)
    sg = dgl_gt.load(path, spill=spill)
    torch.manual_seed(0)
    model = Model(5, 3)
    set_dropout_step(model, 0, 0)
    feat = sg.ndata["feat"].double().requires_grad_()
    out = model(sg, feat)
    (out * torch.cos(sg.node_ids.double()).unsqueeze(1)).sum().backward()
    sg.comm.sum_gradients(model.parameters())
    whole = [sg.gather(each) for each in (out, feat.grad)]
    return [each.numpy() for each in (*whole, *(parameter.grad for parameter in model.parameters()))]


@pytest.fixture(scope="module")
def shards(graph, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("shards")
    for parts, cut in ((1, "edge"), (PARTS, "edge"), (2, "vertex")):
        partition(graph, parts, folder / str(parts), cut=cut)
    return folder


@pytest.fixture(scope="module")
def expected(shards):
    return run_ranks(1, found_by, shards / "1", None)[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_part_by_part_with_dropout(shards, tmp_path, ranks, expected):
    for found in run_ranks(ranks, found_by, shards / str(PARTS), str(tmp_path)):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9 * max(1, np.linalg.norm(theirs)))


@pytest.mark.parametrize("parts", [2, PARTS])
def test_in_memory_on_ranks(shards, expected, parts):
    for found in run_ranks(2, found_by, shards / str(parts), None):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9 * max(1, np.linalg.norm(theirs)))


def test_on_one_graph(graph, shards):  # noqa: F811
    torch.manual_seed(0)
    model = Model(5, 3).eval()
    sg, edges = dgl_gt.load(shards / "1"), torch.from_numpy(np.stack(graph.edges()))
    feat = torch.from_numpy(graph.node_data["feat"])
    torch.testing.assert_close(model(edges, feat), sg.gather(model(sg, sg.ndata["feat"])))


def test_features_go_into_layers_and_rows_come_out(shards, tmp_path):
    results = []
    for spill in (None, tmp_path):
        sg = dgl_gt.load(shards / str(PARTS), spill=spill)
        torch.manual_seed(0)
        results.append(Bare(5, 3)(sg, sg.ndata["feat"]))
    torch.testing.assert_close(*results)


@pytest.mark.usefixtures("rank_here")
def test_the_commands(shards, tmp_path, capfd, monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    path, options = str(shards / str(PARTS)), ["--model-factory", "test_layered_model:Model"]
    assert main(["train", path, "--nproc", "1", "--epochs", "2", "--spill", str(tmp_path), *options]) == 0
    plan = ["plan", path, "--world-size", "2", "--classes", "3", "--rank-memory", "1", *options]
    assert main(plan) == 2
    assert "part by part" in capfd.readouterr().err


@pytest.mark.parametrize("kind", [Model, Unkeyed, Nested])
def test_numbers_that_are_drawn_in_a_pass_are_drawn_again_in_backward(shards, tmp_path, kind):
    """The derivative along a direction, against the difference of two losses with the same seed."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        sg = dgl_gt.load(shards / str(PARTS), spill=tmp_path)
        torch.manual_seed(0)
        model, feat = kind(5, 3), sg.ndata["feat"].double()
        direction = [torch.randn_like(each) for each in model.parameters()]

        def loss():
            torch.manual_seed(1)
            return (model(sg, feat) * torch.cos(sg.node_ids.double()).unsqueeze(1)).sum()

        loss().backward()
        found = sum((each.grad * along).sum() for each, along in zip(model.parameters(), direction))
        ends = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                for each, along in zip(model.parameters(), direction):
                    each += step * along
                ends.append(loss())
        torch.testing.assert_close(found, (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-5)
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize(("model", "named"), [(Normed, "layers.0.norm"), (Headed, r"\(\d+, 2, 6\)")])
def test_layers_that_cannot_run_part_by_part(shards, tmp_path, model, named):
    sg = dgl_gt.load(shards / str(PARTS), spill=tmp_path)
    with pytest.raises(InputError, match=named):
        model(5, 3)(sg, sg.ndata["feat"])
