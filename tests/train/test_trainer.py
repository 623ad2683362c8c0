"""The trainer in this process, on one part."""

import copy

import numpy as np
import pytest
import torch

import dgl_gt
from dgl_gt.partition import InputError, from_edges, partition
from dgl_gt.train import loop, predict, read_config, train
from dgl_gt.train.inputs import describe_unused_data
from dgl_gt.train.task_config import NodeClassificationConfig
from dgl_gt.train.tasks.classification import NodeClassification

QUICK = read_config(layers=1, hidden=8, heads=2, epochs=3)


@pytest.fixture
def sharded(awkward_graph, tmp_path):
    """A function: node data to change (None drops one) -> the awkward graph as a ShardedGraph of one part."""

    def make(**changes):
        graph = awkward_graph(0)
        data = {key: value for key, value in {**graph.node_data, **changes}.items() if value is not None}
        src, dst = np.empty((2, graph.num_edges), int)
        src[graph.edge_ids], dst[graph.edge_ids] = graph.indices, graph.destinations()
        partition(from_edges(src, dst, graph.num_nodes, data), 1, tmp_path / "shards", force=True)
        return dgl_gt.load(tmp_path / "shards")

    return make


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64", "bool"])
def test_features_of_any_dtype_train_as_float32(sharded, dtype):
    feat = np.random.default_rng(0).integers(0, 2, (60, 4))
    as_float = train(sharded(feat=feat.astype("float32")), QUICK)
    sg = sharded(feat=feat.astype(dtype))
    result = train(sg, QUICK)
    assert result.losses == pytest.approx(as_float.losses, rel=1e-6)  # matrix products round by where rows lie
    assert predict(result.model, sg)[1].shape == (60, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(feat=np.ones(60, np.float32)), r"row shape \(\); it must be \(N, F\)"),
        (dict(feat=np.ones((60, 2, 2), np.float32)), r"row shape \(2, 2\)"),
        (dict(feat=np.ones((60, 0), np.float32)), r"row shape \(0,\)"),
        (dict(feat=None), "no node data 'feat'"),
        (dict(label=None), "no node data 'label'"),
        (dict(test_mask=None), "no node data 'test_mask'"),
        (dict(label=np.zeros(60, int)), "at least two"),
        (dict(label=np.arange(60) * 10**8), "largest label is 5900000000"),
    ],
)
def test_data_that_cannot_be_trained_on(sharded, changes, message):
    with pytest.raises(InputError, match=message):
        train(sharded(**changes), QUICK)


def test_what_training_does_not_read_is_named(sharded):
    manifest = sharded(age=np.zeros((60, 2), np.float32)).manifest
    with_edges, usual = manifest | {"edge_data": {"w": {}}}, NodeClassificationConfig()
    assert describe_unused_data(manifest, usual) == "not used by train: node data 'age'"
    assert describe_unused_data(with_edges, usual) == "not used by train: node data 'age', edge data 'w'"
    assert describe_unused_data(with_edges, NodeClassificationConfig(encodings="age", edge_features="w")) is None
    assert describe_unused_data(manifest | {"node_data": {"feat": {}, "label": {}, "val_mask": {}}}, usual) is None


def test_a_diverged_run_is_an_error(sharded):
    feat = np.full((60, 2), 1e38, np.float32)
    with pytest.raises(InputError, match="the loss is (nan|inf) in epoch 1"):
        train(sharded(feat=feat), QUICK)


def test_a_run_that_diverges_in_its_last_step_is_an_error(sharded):
    config = read_config(layers=1, hidden=8, heads=2, epochs=1, warmup=0)
    object.__setattr__(config.optimizer, "lr", 1e30)  # beyond what is allowed
    with pytest.raises(InputError, match="the validation metric is nan in epoch 1"):
        train(sharded(label=np.arange(60) % 2), config)


def test_early_stopping_keeps_the_best_epoch(sharded):
    result = train(sharded(), read_config(layers=1, hidden=8, heads=2, epochs=60, patience=5, lr=0.05))
    assert result.best_epoch == int(np.argmax(result.validations))
    assert len(result.losses) == len(result.validations) <= result.best_epoch + 6
    assert result.validation == max(result.validations)


def test_two_classes_are_judged_by_roc_auc(sharded):
    result = train(sharded(label=np.arange(60) % 2), QUICK)
    assert result.metric_name == "roc_auc"


def test_roc_auc_of_more_classes_is_refused(sharded):
    config = read_config(layers=1, hidden=8, heads=2, epochs=1, metric="roc_auc")
    with pytest.raises(InputError, match="metric is roc_auc"):
        train(sharded(), config)


def test_roc_auc_is_the_share_of_pairs_in_order():
    import torch

    from dgl_gt.comm.group import Comm
    from dgl_gt.train.metrics import roc_auc

    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 200), rng.integers(0, 9, 200) / 4  # with ties
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    logits = torch.from_numpy(np.stack([np.zeros(200), scores], 1))
    assert roc_auc(logits, torch.from_numpy(labels), Comm()) == pytest.approx(np.mean(pairs))


POLYNORMER = {"architecture": "gnn", "score": "additive", "global_attention": "polynormer", "warmup": 0}


def test_the_layers_alone_are_trained_first(sharded, monkeypatch):
    seen, real = [], loop.take_step

    def step(model, *arguments, **more):
        states = [{key: value.clone() for key, value in model.state_dict().items()}]
        loss = real(model, *arguments, **more)
        states.append({key: value.clone() for key, value in model.state_dict().items()})
        moved = {key for key in states[0] if not torch.equal(states[0][key], states[1][key])}
        seen.append((model.uses_global, {key.partition(".")[0] for key in moved}))
        return loss

    monkeypatch.setattr(loop, "take_step", step)
    config = read_config(hidden=8, heads=2, epochs=5, local_epochs=3, weight_decay=0.1, decay="all", **POLYNORMER)
    result = train(sharded(), config)
    local, of_all = {"encoder", "layers"}, {"encoder", "layers", "global_norm", "global_attention", "global_output"}
    assert seen == [(False, local | {"output"})] * 3 + [(True, of_all)] * 2
    assert result.model.uses_global == (result.best_epoch >= 3)
    assert len(result.losses) == 5


def test_the_second_phase_starts_from_the_best_weights_and_their_optimiser(sharded, monkeypatch):
    """Validation is best in the first epoch, so the second phase starts from the state after it."""
    scores, first = iter([0.9, 0.1, 0.2, 0.3, 0.4]), []
    real_step, real_load = loop.take_step, torch.optim.Optimizer.load_state_dict

    def step(model, task, comm, optimizer, *arguments, **more):
        loss = real_step(model, task, comm, optimizer, *arguments, **more)
        first.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
        return loss

    def load(optimizer, state):
        assert state["state"][0]["step"] == first[0][1]["state"][0]["step"] == 1
        return real_load(optimizer, state)

    monkeypatch.setattr(loop, "take_step", step)
    monkeypatch.setattr(NodeClassification, "evaluate", lambda *_: {"val": next(scores), "test": 0.5})
    monkeypatch.setattr(torch.optim.Optimizer, "load_state_dict", load)
    config = read_config(hidden=8, heads=2, epochs=5, local_epochs=3, **POLYNORMER)
    result = train(sharded(), config)
    assert result.best_epoch == 0 and not result.model.uses_global
    for key, value in first[0][0].items():
        assert torch.equal(result.model.state_dict()[key], value)


def test_evaluation_every_few_epochs(sharded):
    config = read_config(layers=1, hidden=8, heads=2, epochs=7, evaluate_every=3)
    result = train(sharded(), config)
    assert len(result.losses) == 7 and len(result.validations) == 3 and result.best_epoch in (2, 5, 6)


def test_patience_counts_when_the_model_is_evaluated(sharded):
    config = read_config(layers=1, hidden=8, heads=2, epochs=9, evaluate_every=4, patience=2)
    result = train(sharded(), config)
    assert result.best_epoch >= 3 and len(result.validations) >= 1


def test_the_second_phase_has_a_learning_rate_of_its_own(sharded, monkeypatch):
    """The rate is neither that of the best epoch nor what a plateau of the first phase left."""
    rates, real = [], loop.take_step

    def step(model, task, comm, optimizer, *arguments, **more):
        rates.append(optimizer.param_groups[0]["lr"])
        return real(model, task, comm, optimizer, *arguments, **more)

    monkeypatch.setattr(loop, "take_step", step)
    monkeypatch.setattr(NodeClassification, "evaluate", lambda *_: {"val": 0.5, "test": 0.5})
    config = read_config(
        hidden=8, heads=2, epochs=8, local_epochs=5, lr=1.0, patience=4, schedule="plateau", **POLYNORMER
    )
    train(sharded(), config)
    assert rates == [1.0, 1.0, 0.5, 0.25, 0.125, 1.0, 1.0, 0.5]


def test_labels_are_no_encoding(sharded):
    with pytest.raises(InputError, match="encodings has 'label'"):
        train(sharded(), QUICK.changed(encodings="label"))


@pytest.mark.parametrize("asked", [{"strategy": "gather"}, {"depth": 2}], ids=str)
def test_a_config_that_names_another_exchange_than_the_graph_has(sharded, asked):
    ((name, value),) = asked.items()
    with pytest.raises(InputError, match=f"^{name} is {value}, but the graph was loaded with"):
        train(sharded(), QUICK.changed(**asked))


def test_a_config_that_names_the_exchange_of_the_graph(sharded):
    sg = sharded()
    assert train(sg, QUICK.changed(strategy=sg.strategy.name, depth=1)).losses == train(sg, QUICK).losses
