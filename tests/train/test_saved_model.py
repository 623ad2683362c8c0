"""The model directory: written as a run goes on, kept where it fails, and checked when it is read."""

import json
import os
import resource
import shutil
import signal
from collections import namedtuple

import numpy as np
import pytest
import torch

import dgl_gt
from dgl_gt.partition import InputError, partition
from dgl_gt.run_files.run_record import Metric, RunRecord
from dgl_gt.run_files.tensor_file import MODEL_FILE
from dgl_gt.train import loop, train_and_save
from dgl_gt.train import store as store_module
from dgl_gt.train.config import read_config
from dgl_gt.train.model import build_model
from dgl_gt.train.run import train
from dgl_gt.train.saved_model import load_model, save_model
from dgl_gt.train.store import RunStore
from dgl_gt.train.tasks.classification import NodeClassification

CONFIG = read_config(layers=1, hidden=8, heads=2, epochs=6, patience=0)


@pytest.fixture
def sg(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards")
    return dgl_gt.load(tmp_path / "shards")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def store(sg, out):
    return RunStore(sg, CONFIG, out)


@pytest.fixture
def rising(monkeypatch):
    """Each epoch validates better than the one before."""
    epochs = iter(range(100))
    monkeypatch.setattr(NodeClassification, "evaluate", lambda *_: {"val": next(epochs) / 100, "test": 0.0})


@pytest.fixture
def diverging(monkeypatch, rising):
    """The loss of the fourth epoch is NaN."""
    real = loop.take_step
    monkeypatch.setattr(loop, "take_step", lambda *args, **more: real(*args, **more) if args[4] < 3 else float("nan"))


def record_of(folder) -> dict:
    return json.loads((folder / "record.json").read_text())


def test_a_run_that_diverges_keeps_its_best_model(sg, out, diverging):
    """Though it was too early to write it when it came."""
    with pytest.raises(InputError, match=r"the loss is nan in epoch 4; .*lr .* of epoch 3, is in .*model$"):
        train_and_save(sg, CONFIG, out)
    record = record_of(out)
    assert (record["finished"], record["best_epoch"], record["epochs"]) == (False, 3, 3)
    assert load_model(out).in_dim == 5


def test_a_run_that_is_stopped_keeps_its_best_model(sg, out, rising, capsys):
    def stop(epoch, *_):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_and_save(sg, CONFIG, out, on_epoch=stop)
    assert record_of(out)["best_epoch"] == 3
    assert "the best model so far, of epoch 3, is in" in capsys.readouterr().err


def test_better_models_are_on_disk_while_the_run_goes_on(sg, out, rising, monkeypatch):
    """Where the last one was written long enough ago: every one here, and the first only with the usual pause."""
    monkeypatch.setattr(store_module, "_MAX_WRITING_SHARE", 1e9)
    for pause_s, expected in ((0.0, [1, 2, 3, 4, 5]), (1000.0, [1] * 5)):
        monkeypatch.setattr(store_module, "_MIN_PAUSE_S", pause_s)
        found = []
        look = lambda epoch, *_: epoch and found.append(record_of(out)["epochs"])  # noqa: E731
        train_and_save(sg, CONFIG, out, force=True, on_epoch=look)
        assert found == expected


def test_the_disk_is_compared_with_the_model_before_training(sg, out, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("usage", "free")(1000))
    monkeypatch.setattr(loop, "take_step", lambda *_: pytest.fail("it trained"))
    with pytest.raises(InputError, match="model needs 1.0 MiB of disk"):
        train_and_save(sg, CONFIG, out)
    assert not out.exists()


def test_a_first_model_that_cannot_be_written_ends_the_run(sg, out, rising):
    seen, limit = [], resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk(epoch, *_):
        seen.append(epoch)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))

    try:
        with pytest.raises(InputError, match="cannot write .*model"):
            train_and_save(sg, CONFIG, out, on_epoch=fill_the_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert seen == [0] and not out.exists()


@pytest.fixture
def interrupting(monkeypatch):
    """A function; after its call, a signal comes in the middle of the next writes of the model."""

    def begin():
        def interrupted(*args):
            signal.raise_signal(signal.SIGINT)
            return real(*args)

        monkeypatch.setattr(store_module, "model_files", interrupted)

    real = store_module.model_files
    return begin


def test_a_signal_lets_the_last_write_finish(sg, store, out, rising, interrupting):
    """Where the run has finished; the signal takes effect afterwards."""
    with pytest.raises(KeyboardInterrupt), store:
        result = train(sg, CONFIG, store=store)
        interrupting()
        store.finish(result)
    assert record_of(out)["finished"] is True


def test_a_signal_lets_the_write_after_an_error_finish(sg, store, out, diverging, interrupting):
    """The best model, of the third epoch, was not on disk yet; the error, with its message, ends the run."""
    with pytest.raises(InputError, match="the best model so far, of epoch 3, is in"), store:
        try:
            train(sg, CONFIG, store=store)
        finally:
            interrupting()
    assert record_of(out)["best_epoch"] == 3


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """The directory for temporary files."""
    monkeypatch.setattr(store_module.tempfile, "gettempdir", lambda: tmp_path / "here")
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def lose_the_disk(out):
    shutil.rmtree(out)
    out.write_text("")


def test_a_signal_does_not_hide_where_the_last_model_is(sg, store, out, rising, elsewhere, interrupting, capsys):
    with pytest.raises(KeyboardInterrupt), store:
        result = train(sg, CONFIG, store=store)
        lose_the_disk(out)
        interrupting()
        store.finish(result)
    err = capsys.readouterr().err
    assert "The model is in" in err and "the best model so far" not in err


def test_a_model_that_cannot_be_written_is_written_elsewhere(sg, out, rising, monkeypatch, elsewhere, capsys):
    """At the end; and training does not stop for it; the message says where the model is."""
    monkeypatch.setattr(store_module, "_MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(store_module, "_MAX_WRITING_SHARE", 1e9)
    seen = []

    def look(epoch, *_):
        seen.append(epoch)
        if epoch == 1:
            lose_the_disk(out)

    with pytest.raises(InputError, match=r"cannot write .*model.*\. The model is in .*here/dgl-gt-model-\d+ instead"):
        train_and_save(sg, CONFIG, out, on_epoch=look)
    assert len(seen) == 6 and "Training goes on" in capsys.readouterr().err
    (place,) = elsewhere.iterdir()
    assert record_of(place)["finished"] is True and load_model(place).in_dim == 5


def test_a_model_elsewhere_takes_no_other_models_place(sg, store, out, rising, elsewhere):
    model = build_model(CONFIG, 5, 3)
    other = elsewhere / f"dgl-gt-model-{os.getpid()}"
    record = {"strategy": "local", "ranks": 1, "losses": [np.float64(0.5)], "metric": {}}  # as a loop of one's own has
    save_model(other, model.state_dict(), CONFIG, {"in_dim": 5, "out_dim": 3}, record)
    with (
        pytest.raises(InputError, match=r"could not be written to another place either \(.*; .* the model of epoch 1"),
        store,
    ):
        result = train(sg, CONFIG, store=store)
        lose_the_disk(out)
        store.finish(result)
    assert record_of(other) == record


def test_a_record_may_hold_numbers_of_numpy(tmp_path):
    state = build_model(CONFIG, 5, 3).state_dict()
    numbers = RunRecord(
        strategy="local", ranks=1, losses=[np.float64(0.5)], metric=Metric("accuracy", np.float32(1), 1.0)
    )
    save_model(tmp_path / "numbers", state, CONFIG, {"in_dim": 5, "out_dim": 3}, numbers)
    assert record_of(tmp_path / "numbers")["losses"] == [0.5]


def test_weights_that_are_not_finite_are_no_best_model(sg, out, monkeypatch):
    """Accuracy is finite all the same."""
    real = loop.take_step

    def step(model, *args, **more):
        loss = real(model, *args, **more)
        with torch.no_grad():
            model.output.bias[0] = torch.nan
        return loss

    monkeypatch.setattr(loop, "take_step", step)
    with pytest.raises(InputError, match="output.bias holds NaN or infinity after epoch 1"):
        train_and_save(sg, CONFIG, out)
    assert not out.exists()


@pytest.fixture
def saved(tmp_path):
    """A function: change to the weights -> a model directory."""

    def make(change=lambda state: None):
        model = build_model(CONFIG, 5, 3)
        state = model.state_dict()
        change(state)
        save_model(tmp_path / "model", state, CONFIG, {"in_dim": 5, "out_dim": 3}, {})
        return tmp_path / "model"

    return make


def test_a_model_is_read_back_as_it_was_written(saved):
    kept = {}
    model = load_model(saved(lambda state: kept.update(state)))
    assert not model.training and all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_altered_weights_are_refused(saved):
    folder = saved()
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(
        InputError,
        match="model.safetensors is damaged or was changed: its checksum does not match",
    ):
        load_model(folder)


def test_weights_that_are_not_finite_are_refused(saved):
    with pytest.raises(InputError, match="encoder.0.weight holds NaN or infinity"):
        load_model(saved(lambda state: state["encoder.0.weight"].fill_(torch.nan)))


def test_weights_of_eight_bits_are_refused(saved):
    with pytest.raises(InputError, match="is damaged or from another version of dgl-gt"):
        load_model(
            saved(lambda state: state.update({"encoder.0.weight": state["encoder.0.weight"].to(torch.float8_e4m3fn)}))
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"in_dim": 10**15},
        {"in_dim": "wide"},
        {"out_dim": 10**12},
        {"layers": 7},
        {"hidden": 100_000},
        {"unknown": 1},
        {"in_dim": None},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_the_weights_are_refused(saved, changes):
    """Whatever sizes they name, at once."""
    folder = saved()
    path = folder / "model.safetensors"
    values, state = MODEL_FILE.unpack(path.read_bytes())
    for part in (values["config"], values["shape"]):
        part.update({name: changes.get(name, value) for name, value in part.items()})
    values["config"] |= {name: value for name, value in changes.items() if name not in values["shape"]}
    path.write_bytes(MODEL_FILE.pack(values, state))
    with pytest.raises(InputError, match="is damaged or from another version of dgl-gt") as refused:
        load_model(folder)
    assert len(str(refused.value)) < 1000  # torch names every tensor that does not fit
