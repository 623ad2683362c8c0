"""Pretraining on any ranks gives the losses, metrics and rows of one process; other tasks start from it."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from tasks_on_ranks import STRATEGIES, check_ranks, on_ranks, trained_alone

import dgl_gt
from dgl_gt.partition import InputError, encode, from_edges, partition
from dgl_gt.train.config import read_config
from dgl_gt.train.model import ModelFactory
from dgl_gt.train.run import prepare, train, train_and_save
from dgl_gt.train.tasks.pretrain import Pretrain

NODES = 110
SETTINGS = dict(task="pretrain", epochs=4, layers=2, hidden=12, heads=6, dropout=0.1, lr=0.01, patience=0)
TASKS = {
    "features and edges": {"encodings": "degree,laplacian", "pairs_per_step": 100},
    "features alone": {"architecture": "gnn", "score": "gcn", "heads": 1, "edge_weight": 0.0, "norm": "batch"},
    "edges alone": {"node_embedding": 8, "edge_weight": 1.0},
    "with edge data": {"edge_features": "length", "mask_share": 0.3},
}


def graph_of(kind):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, NODES - 4, (2, 500))  # the last nodes have no edges
    nodes = {"label": rng.integers(0, 3, NODES)}
    nodes |= {f"{name}_mask": np.arange(NODES) % 3 == each for each, name in enumerate(("train", "val", "test"))}
    if kind != "edges alone":
        nodes["feat"] = rng.random((NODES, 5)).astype(np.float32)
    graph = from_edges(src, dst, NODES, nodes, {"length": rng.random(500).astype(np.float32)})
    return encode(graph, "degree,laplacian=3") if kind == "features and edges" else graph


@on_ranks(TASKS)
def test_any_ranks_pretrain_as_one(kind, parts, tmp_path):
    graph, settings = graph_of(kind), SETTINGS | TASKS[kind]
    expected = trained_alone(graph, settings, tmp_path)
    strategies = [each for each in STRATEGIES if each != "heads" or (parts < 4 and settings["heads"] > 1)]
    check_ranks(graph, settings, tmp_path, expected, parts, strategies)


def test_ranks_without_edges_or_nodes_take_part(tmp_path):
    """Part 2 has the nodes without edges, and part 3 no node."""
    kind = "features and edges"
    graph, settings = graph_of(kind), SETTINGS | TASKS[kind]
    owner = np.where(np.arange(NODES) < NODES - 4, np.arange(NODES) % 2, 2)
    expected = trained_alone(graph, settings, tmp_path)
    check_ranks(graph, settings, tmp_path, expected, 4, ["halo_h"], owner=owner)


def test_a_deep_halo_and_a_transmission_policy(tmp_path):
    graph, settings = graph_of("features alone"), SETTINGS | {"dropout": 0.0}
    partition(graph, 2, tmp_path / "two", halo_depth=2)
    partition(graph, 1, tmp_path / "one")
    expected = train(dgl_gt.load(tmp_path / "one"), read_config(**settings)).losses
    for losses in run_ranks(2, losses_on_rank, tmp_path / "two", settings, 2):
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for losses in run_ranks(2, losses_on_rank, tmp_path / "two", settings | {"policy": "bf16"}, 1):
        np.testing.assert_allclose(losses, expected, rtol=0.05)


def losses_on_rank(rank, folder, settings, depth):
    return train(dgl_gt.load(folder, depth=depth), read_config(**settings | {"depth": depth})).losses


def test_what_is_held_out_is_never_learned(tmp_path):
    partition("sample:communities?nodes=400", 1, tmp_path / "shards")
    task = Pretrain.read(dgl_gt.load(tmp_path / "shards"), read_config(**SETTINGS))
    held_out = np.concatenate([task.rows("val"), task.rows("test")])
    assert 20 < len(held_out) < 70 and len(np.unique(held_out)) == len(held_out)
    hidden = [next(task.batches(step)).targets["rows"].numpy() for step in range(6)]
    assert not any(np.isin(held_out, each).any() for each in hidden) and len({each.tobytes() for each in hidden}) == 6
    batch = next(task.batches(0))
    assert not batch.inputs.feat[batch.targets["rows"]].any() and batch.inputs.feat[held_out].all(1).any()


# ---- starting from a model ----


@pytest.fixture
def pretrained(tmp_path):
    """Shards, the settings of a pretrained model, and its directory."""
    partition(graph_of("features alone"), 1, tmp_path / "shards")
    sg, settings = dgl_gt.load(tmp_path / "shards"), {**SETTINGS, "epochs": 3}
    result = train_and_save(sg, read_config(**settings), tmp_path / "model")[0]
    return sg, settings, tmp_path / "model", result.model.state_dict()


@pytest.mark.parametrize("task", ["node_classification", "link_prediction", "pretrain"])
def test_a_task_starts_from_a_pretrained_model(pretrained, task, tmp_path):
    sg, settings, model, before = pretrained
    if task == "link_prediction":
        partition(graph_of("features alone"), 1, tmp_path / "linked", link_split="0.8,0.1,0.1")
        sg = dgl_gt.load(tmp_path / "linked")
    found = prepare(sg, read_config(**settings | {"task": task, "seed": 5, "init": str(model)}))[1].state_dict()
    new = prepare(sg, read_config(**settings | {"task": task, "seed": 5}))[1].state_dict()
    for name, value in found.items():
        is_new = task != "pretrain" and name.removeprefix("nodes.").startswith("output.")
        expected = new[name] if is_new else before[name.removeprefix("nodes.")]
        assert torch.equal(value, expected), name


FROZEN = [
    {
        "layers": 2,
        "hidden": 96,
        "heads": 1,
        "weight_decay": 0.1,
    },  # few rows of a wide layer: gradients travel as factors
    {"architecture": "gnn", "score": "gcn", "heads": 1, "norm": "batch"},
]


@pytest.mark.parametrize("settings", FROZEN, ids=["wide", "batch"])
def test_frozen_weights_and_statistics_stay_on_any_ranks(settings, tmp_path):
    graph, settings = graph_of("features alone"), SETTINGS | settings
    graph.node_data["train_mask"] &= np.arange(NODES) < 12
    losses = []
    for parts in (1, 2):
        partition(graph, parts, tmp_path / str(parts))
    train_and_save(dgl_gt.load(tmp_path / "1"), read_config(**settings), tmp_path / "model")
    for parts in (1, 2):
        for changed, found in run_ranks(parts, changed_on_rank, tmp_path, settings):
            assert changed == ["output.bias", "output.weight"]
            losses.append(found)
    np.testing.assert_allclose(losses, losses[:1] * 3, rtol=1e-5)


def changed_on_rank(rank, folder, settings):
    sg = dgl_gt.load(folder / str(torch.distributed.get_world_size()))
    settings = settings | {"task": "node_classification", "init": str(folder / "model"), "frozen": True}
    before = prepare(sg, read_config(**settings))[1].state_dict()
    result = train(sg, read_config(**settings))
    after = result.model.state_dict()
    return sorted(name for name in after if not torch.equal(after[name], before[name])), result.losses


def test_a_table_of_the_users_is_not_that_of_the_nodes(tmp_path):
    partition(graph_of("features alone"), 1, tmp_path / "shards")
    sg, factory = dgl_gt.load(tmp_path / "shards"), ModelFactory("tests:WithTable", WithTable)
    config = read_config(task="pretrain", epochs=1, node_embedding=4)
    before = train_and_save(sg, config, tmp_path / "model", factory=factory)[0].model.state_dict()
    after = prepare(sg, config.changed(init=str(tmp_path / "model"), seed=1), factory)[1].state_dict()
    assert {"table.weight", "nodes.table.weight"} < after.keys()
    assert all(torch.equal(after[name], before[name]) for name in after)


class WithTable(torch.nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.table, self.output = torch.nn.Linear(in_dim, 12), torch.nn.Linear(12, out_dim)

    def forward(self, graph, feat):
        return self.output(self.table(feat))


def test_a_run_goes_on_where_its_first_model_is_another_path(pretrained, tmp_path, monkeypatch):
    sg, settings, model, _ = pretrained
    settings = settings | {"task": "node_classification", "frozen": True}
    monkeypatch.chdir(tmp_path)
    whole = train(sg, read_config(**settings | {"init": "model", "epochs": 4})).losses
    train_and_save(sg, read_config(**settings | {"init": "model", "epochs": 2, "checkpoint_every": 1}), "run")
    config = read_config(**settings | {"init": str(model), "epochs": 4, "checkpoint_every": 1})
    assert train_and_save(sg, config, "run", resume=True)[0].losses == whole
    with pytest.raises(InputError, match="^init is model, which is also the directory"):
        train_and_save(sg, config.changed(init="model"), tmp_path / "model", force=True)


@pytest.mark.parametrize(
    "settings, names",
    [
        ({"hidden": 24}, ["hidden", "12", "24"]),
        ({"heads": 2}, ["heads", "6", "2"]),
        ({"node_embedding": 4}, ["node_embedding", "0", "4"]),
        ({"init": "nowhere"}, ["nowhere"]),
    ],
)
def test_a_model_of_other_settings_is_refused(pretrained, settings, names):
    sg, own, model, _ = pretrained
    with pytest.raises(InputError) as caught:
        train(sg, read_config(**own | {"task": "node_classification", "init": str(model)} | settings))
    assert all(name in str(caught.value) for name in names)


def test_a_graph_of_other_features_is_refused(pretrained, tmp_path):
    _, own, model, _ = pretrained
    partition("sample:communities?nodes=200&features=7", 1, tmp_path / "other")
    with pytest.raises(InputError, match="encoder") as caught:
        train(dgl_gt.load(tmp_path / "other"), read_config(**own | {"init": str(model)}))
    assert "(12, 5)" in str(caught.value) and "(12, 7)" in str(caught.value)


def test_frozen_needs_a_model_to_start_from():
    with pytest.raises(InputError, match="frozen"):
        read_config(frozen=True)


def test_a_graph_without_held_out_nodes_is_refused(tmp_path):
    partition("sample:communities?nodes=10&degree=2&classes=2", 1, tmp_path / "few")
    with pytest.raises(InputError, match="10 nodes"):
        train(dgl_gt.load(tmp_path / "few"), read_config(task="pretrain", epochs=1))


@pytest.mark.parametrize(
    "settings", [{"mask_share": 0.0, "edge_weight": 0.0}, {"node_embedding": 4, "edge_weight": 0.0}]
)
def test_a_run_that_would_learn_nothing_is_refused(settings, tmp_path):
    partition(graph_of("edges alone" if "node_embedding" in settings else "features alone"), 1, tmp_path / "shards")
    with pytest.raises(InputError, match="edge_weight 0.0"):
        train(dgl_gt.load(tmp_path / "shards"), read_config(**SETTINGS | settings))
