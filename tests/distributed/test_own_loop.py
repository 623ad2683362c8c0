"""The code of docs/own_model.md, block by block, on one rank and on two: same losses, parameters, scores, gradients."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import from_edges, partition

DOCUMENT = Path(__file__).parents[2] / "docs" / "own_model.md"
NODES, EDGES, WIDTH = 40, 160, 5
SPLITS = {"train": [1, 2, 4, 5], "val": [0], "test": [3]}


def sample():
    rng = np.random.default_rng(0)
    node_data = {
        "feat": rng.standard_normal((NODES, WIDTH)),
        "price": rng.standard_normal(NODES),
        **{f"{name}_mask": np.isin(np.arange(NODES) % 6, at) for name, at in SPLITS.items()},
    }
    ends = rng.integers(0, NODES, (2, EDGES))
    edge_data = {"kind": rng.integers(0, 2, EDGES), "weight": rng.random(EDGES) + 0.1}
    return from_edges(*ends, NODES, node_data, edge_data)


def save_model(folder):
    from dgl_gt.train import read_config, save_model
    from dgl_gt.train.model import build_model

    config = read_config(hidden=16, heads=2)
    torch.manual_seed(1)
    model = build_model(config, WIDTH, 4)
    save_model(folder / "model", model.state_dict(), config, {"in_dim": WIDTH, "out_dim": 4}, {})
    return model.eval()


def parameters(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()


def run_document(rank, folder):
    """What each block leaves, in an own namespace that goes from block to block."""
    os.chdir(folder)
    torch.set_default_dtype(torch.float64)
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    names, printed, models = {}, [], []
    names["print"] = printed.append
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
        if "print(" in block:
            models.append(parameters(names["model"]))
    sg, rank_scores = names["sg"], torch.load(f"scores-{rank}.pt", weights_only=True)
    assert torch.equal(rank_scores["edge"], sg.edge_ids)
    norm = dgl_gt.nn.BatchNorm(WIDTH)
    feat = names["feat"].clone().requires_grad_()
    out = norm(feat, sg)
    (out * torch.linspace(-1, 2, WIDTH)).sigmoid().square().sum().backward()
    sg.comm.sum_gradients(norm.parameters())
    models.append(sg.gather(names["weighted"]).numpy())
    normed = [sg.gather(each).numpy() for each in (out, feat.grad)] + [norm.weight.grad.numpy(), norm.bias.grad.numpy()]
    tables = [sg.gather(names["rows_out"].detach()).numpy(), names["checkpoint"]["weight"].numpy()]
    return (
        printed,
        models,
        normed + tables,
        names["classes"].numpy(),
        {key: each.numpy() for key, each in rank_scores.items()},
    )


def by_edge(results):
    order = np.concatenate([scores["edge"] for *_, scores in results])
    assert sorted(order) == list(range(EDGES))
    return np.concatenate([scores["score"] for *_, scores in results])[np.argsort(order)]


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * max(1, abs(np.asarray(expected)).max()))


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    partition(sample(), 1, folder / "shards")
    save_model(folder)
    return run_ranks(1, run_document, folder)


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_two_ranks_do_as_one(tmp_path, one_rank, cut):
    partition(sample(), 2, tmp_path / "shards", cut=cut)
    save_model(tmp_path)
    losses, models, normed, classes, _ = one_rank[0]
    results = run_ranks(2, run_document, tmp_path)
    for found_losses, found_models, found_normed, found_classes, _ in results:
        same(found_losses, losses)
        for found, expected in zip([*found_models, *found_normed], [*models, *normed], strict=True):
            same(found, expected)
        np.testing.assert_array_equal(found_classes, classes)
    same(by_edge(results), by_edge(one_rank))


def test_one_rank_does_as_plain_torch(one_rank, tmp_path):
    """The losses fall, batch statistics are those of BatchNorm1d, the saved model is the one that was saved."""
    losses, _, (out, feat_grad, weight_grad, bias_grad, *_), classes, _ = one_rank[0]
    assert len(losses) == 3 and losses[0] < 1.4 and losses[2] < 0.7
    graph = sample()
    norm = torch.nn.BatchNorm1d(WIDTH).double()
    feat = torch.from_numpy(graph.node_data["feat"]).requires_grad_()
    expected = norm(feat)
    (expected * torch.linspace(-1, 2, WIDTH, dtype=torch.float64)).sigmoid().square().sum().backward()
    same(out, expected.detach().numpy())
    for found, each in ((feat_grad, feat), (weight_grad, norm.weight), (bias_grad, norm.bias)):
        same(found, each.grad.numpy())
    csc = dgl_gt.CSC.build(torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices), NODES)
    expected = save_model(tmp_path).double()(csc, feat.detach()).argmax(1)
    np.testing.assert_array_equal(classes, expected.numpy())
