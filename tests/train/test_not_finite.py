"""Losses that are not finite: where they come from, steps that are skipped, and what stays on disk."""

import json

import numpy as np
import pytest
import torch

import dgl_gt
from dgl_gt.partition import InputError, partition
from dgl_gt.run_files.run_directory import checkpoints_in
from dgl_gt.train import ModelFactory, load_model, read_config, train, train_and_save
from dgl_gt.train.module_places import find_not_finite, named_places
from dgl_gt.train.tasks.classification import NodeClassification

CONFIG = read_config(epochs=8, patience=0)
BAD = []  # the calls of forward in training that give NaN or infinity


class Fragile(torch.nn.Module):
    """A model with batch statistics, of which some calls overflow."""

    def __init__(self, in_dim, classes):
        super().__init__()
        self.first, self.norm, self.last = (
            torch.nn.Linear(in_dim, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, classes),
        )
        self.calls = 0

    def forward(self, sg, feat):
        h = self.first(feat)
        if self.training:
            self.calls += 1
            if self.calls - 1 in BAD:
                h = h + torch.inf
        return self.last(self.norm(h))


FACTORY = ModelFactory("here:Fragile", Fragile)


@pytest.fixture(autouse=True)
def calls():
    BAD.clear()
    yield
    BAD.clear()


@pytest.fixture
def sg(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards")
    return dgl_gt.load(tmp_path / "shards")


def test_the_epoch_and_the_module_are_named(sg, tmp_path):
    """The last checkpoint and the best model stay as they are."""
    BAD.extend([5, 6])  # the epoch, and the pass that looks for the cause
    message = "the loss is nan in epoch 6; lower lr .* In a repeated forward pass, the output of norm is the first that is not finite; the best model"
    with pytest.raises(InputError, match=message):
        train_and_save(sg, CONFIG.changed(checkpoint_every=2), tmp_path / "run", factory=FACTORY)
    assert [each.name for each in checkpoints_in(tmp_path / "run")][0] == "checkpoint-000004.safetensors"
    assert load_model(tmp_path / "run", FACTORY)
    BAD.clear()
    assert train_and_save(sg, CONFIG, tmp_path / "run", factory=FACTORY, resume=True)[1].epochs == 8


def test_skipped_steps_leave_the_model_as_it_was(sg, tmp_path):
    """A run of eight epochs of which two are skipped has the numbers of the six others."""
    expected = train(sg, CONFIG.changed(epochs=6, warmup=0), factory=FACTORY)
    BAD.extend([2, 3])
    result, record = train_and_save(sg, CONFIG.changed(warmup=0, on_nan="skip"), tmp_path / "run", factory=FACTORY)
    assert record.losses[2:4] == [None, None]
    assert [loss for loss in result.losses if loss is not None] == expected.losses
    state = expected.model.state_dict()
    assert all(torch.equal(result.model.state_dict()[name], value) for name, value in state.items())
    assert json.loads((tmp_path / "run" / "record.json").read_text())["losses"] == record.losses


def test_ten_skipped_steps_in_a_row_are_an_error(sg):
    BAD.extend(range(3, 99))
    with pytest.raises(InputError, match="loss or its gradient is nan in epoch 13"):
        train(sg, CONFIG.changed(epochs=30, on_nan="skip"), factory=FACTORY)


def test_gradients_that_overflow_are_skipped_too(sg, monkeypatch):
    real, seen = torch.Tensor.backward, []

    def backward(loss, *args):
        real(loss, *args)
        seen.append(1)
        if len(seen) == 3:
            model.first.weight.grad[0] = torch.inf

    model = Fragile(5, 3)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    result = train(sg, CONFIG.changed(on_nan="skip"), factory=ModelFactory("here:same", lambda *_: model))
    assert [loss is None for loss in result.losses] == [number == 2 for number in range(8)]


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_test_metric_that_is_not_finite_ends_the_run(sg, tmp_path, monkeypatch, on_nan):
    monkeypatch.setattr(NodeClassification, "evaluate", lambda *_: {"val": 0.5, "test": float("nan")})
    with pytest.raises(InputError, match="the test metric is nan in epoch 1"):
        train_and_save(sg, CONFIG.changed(on_nan=on_nan), tmp_path / "run")


def test_another_word_is_refused(sg):
    with pytest.raises(InputError, match="on_nan is 'ignore'"):
        train(sg, CONFIG.changed(on_nan="ignore"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model, feat: model.last.bias.data.fill_(torch.nan),
            "The weights last.bias hold NaN or infinity already",
        ),
        (lambda model, feat: feat[0].fill_(torch.inf), "The features hold NaN or infinity"),
        (lambda model, feat: feat.fill_(3e38), "the output of norm is the first"),
        (lambda model, feat: None, None),
    ],
    ids=["weights", "features", "overflow", "loss"],
)
def test_where_numbers_stop_being_finite(sg, change, message):
    torch.manual_seed(0)
    model, feat = Fragile(5, 3), sg.ndata["feat"].clone()
    change(model, feat)
    found = find_not_finite(model, lambda: model(sg, feat), feat, sg.comm)
    assert message in found if message else found is None
    assert not any(module._forward_hooks for module in model.modules())


def test_places_are_those_of_the_layers(sg):
    torch.manual_seed(0)
    model, seen = dgl_gt.nn.GraphTransformer(5, 8, 3, layers=2, heads=2), []
    for each in model.layers:
        each.norm1.register_forward_hook(lambda *_: seen.append(sg.comm.place)) if hasattr(each, "norm1") else None
    model.encoder.register_forward_hook(lambda *_: seen.append(sg.comm.place))
    with named_places(model, sg.comm):
        model(sg, sg.ndata["feat"])
        assert sg.comm.place == ""
    assert seen and set(seen) <= {"encoder", "layers.0", "layers.1"}
    assert np.all([not module._forward_pre_hooks for module in model.modules()])


def test_a_skipped_step_of_several_leaves_the_others(tmp_path):
    """The second of some steps of the first epoch overflows; its weights and statistics are not used."""
    partition("sample:communities?nodes=100", 1, tmp_path / "shards", link_split="0.8,0.1,0.1")
    sg = dgl_gt.load(tmp_path / "shards")
    config = read_config(task="link_prediction", pairs_per_step=200, epochs=3, hidden=8, on_nan="skip")
    steps = train(sg, config.changed(epochs=1), factory=FACTORY).model.nodes.calls
    assert steps > 2
    BAD.append(1)
    result = train(sg, config, factory=FACTORY)
    assert [loss is None for loss in result.losses] == [True, False, False]
    assert result.model.nodes.norm.num_batches_tracked == (result.best_epoch + 1) * steps - 1
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
