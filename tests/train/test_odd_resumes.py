"""Runs that go on, or end, in unusual places: in the last epoch, from an old disk, with nothing left to do."""

import json
import shutil
import signal
import tempfile

import numpy as np
import pytest
import torch

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_edges, partition
from dgl_gt.plan.planned_step import check_memory
from dgl_gt.ranks.launch import run_on_ranks
from dgl_gt.run_files.run_directory import MetricsLog, checkpoints_in
from dgl_gt.train import ModelFactory, load_model, read_config, train, train_and_save

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = read_config(layers=1, hidden=8, heads=2, epochs=12, patience=0, dropout=0.3, lr=0.02, warmup=2)


@pytest.fixture
def shards(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards")
    return tmp_path / "shards"


@pytest.fixture
def sg(shards):
    return dgl_gt.load(shards)


def test_a_patience_that_has_run_out(sg, tmp_path):
    _, record = train_and_save(sg, QUICK.changed(checkpoint_every=11), tmp_path / "run")
    assert record.best_epoch < 10  # so that patience 1 is over after epoch 11
    files = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(
        InputError,
        match="patience is 1, and the checkpoint after epoch 11 has used it up, because its best model is that of epoch "
        f"{record.best_epoch};",
    ):
        train_and_save(sg, QUICK.changed(patience=1), tmp_path / "run", resume=True)
    assert files == {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_a_model_on_disk_that_is_older_than_the_checkpoint_is_written_again(tmp_path):
    """As after a kill: better models are written every few seconds, and a checkpoint may have come in between."""
    run, old = tmp_path / "run", tmp_path / "old"
    partition("sample:communities?nodes=300&seed=0", 1, tmp_path / "learnable")
    sg = dgl_gt.load(tmp_path / "learnable")

    def stop(epoch, *_):
        if epoch == 1:
            shutil.copytree(run, old)
        if epoch == 10:
            raise InputError("stopped")

    with pytest.raises(InputError, match="stopped"):
        train_and_save(sg, QUICK.changed(checkpoint_every=10), run, on_epoch=stop)
    for name in ("model.safetensors", "record.json", "config.yaml"):
        shutil.copy(old / name, run / name)
    assert json.loads((run / "record.json").read_text())["best_epoch"] == 1

    def again(epoch, *_):
        raise InputError("stopped again")

    with pytest.raises(InputError, match="stopped again"):
        train_and_save(sg, QUICK, run, resume=True, on_epoch=again)
    best = json.loads((run / "record.json").read_text())["best_epoch"]
    assert best > 1
    load_model(run)


def test_a_model_on_disk_that_is_newer_than_the_checkpoint_stays_until_the_run_is_beyond_it(tmp_path):
    """Going on from the checkpoint, the run comes by models that are worse, and may be killed again there."""
    run, newer = tmp_path / "run", tmp_path / "newer"
    partition("sample:communities?nodes=300&seed=0", 1, tmp_path / "learnable")
    sg = dgl_gt.load(tmp_path / "learnable")
    best = train_and_save(sg, QUICK, newer)[1].best_epoch

    def stop_after(last):
        def stop(epoch, *_):
            if epoch == last:
                raise InputError("stopped")

        return stop

    with pytest.raises(InputError, match="stopped"):
        train_and_save(sg, QUICK.changed(checkpoint_every=1), run, on_epoch=stop_after(2))
    shutil.copy(newer / "model.safetensors", run / "model.safetensors")
    kept = (newer / "model.safetensors").read_bytes()
    assert best > 6
    with pytest.raises(InputError, match=f"stopped; the best model so far, of epoch {best}, is in "):
        train_and_save(sg, QUICK, run, resume=True, on_epoch=stop_after(4))
    assert (run / "model.safetensors").read_bytes() == kept
    assert train_and_save(sg, QUICK, run, resume=True)[1].best_epoch == best


def test_a_signal_in_the_last_epoch_acts_after_the_run_is_written(sg, tmp_path):
    def ask(epoch, *_):
        if epoch == 11:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        train_and_save(sg, QUICK, tmp_path / "run", on_epoch=ask)
    assert ended.value.code == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "run" / "record.json").read_text())["finished"] is True


def test_a_directory_that_disappears_costs_checkpoints_and_not_the_run(sg, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def remove(epoch, *_):
        if epoch == 5:
            shutil.rmtree(run)
            run.touch()

    with pytest.raises(InputError, match=f"The model is in {tmp_path}"):
        train_and_save(sg, QUICK.changed(checkpoint_every=4), run, on_epoch=remove)
    assert "no checkpoint after epoch 8" in capsys.readouterr().err


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_whole_one(sg, tmp_path):
    run = tmp_path / "run"
    train_and_save(sg, QUICK.changed(checkpoint_every=5), run)
    (run / "checkpoint-000010.safetensors").write_bytes(b"damaged")
    train_and_save(sg, QUICK.changed(epochs=9, checkpoint_every=7), run, resume=True)
    names = [each.name for each in checkpoints_in(run)]
    assert names == ["checkpoint-000007.safetensors", "checkpoint-000005.safetensors"]
    assert (run / "checkpoint-000010.safetensors.damaged").is_file()


def test_lines_are_written_once_where_tensorboard_fails(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)
    monkeypatch.setattr(log, "_add_scalars", lambda lines: (_ for _ in ()).throw(OSError(28, "no space")))
    for epoch in (1, 2, 3):
        log.add({"epoch": epoch}, True)
    assert [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


class OfItsData(torch.nn.Module):
    """A model that cannot be traced: it reads the number of classes and compares all pairs of rows."""

    def __init__(self, in_dim, classes):
        super().__init__()
        assert classes == 3
        self.layer = torch.nn.Linear(in_dim, classes)

    def forward(self, sg, feat):
        h = self.layer(feat)
        return h + (h @ h.T).mean()


@pytest.mark.parametrize("make", [OfItsData, lambda in_dim, classes: OfItsData(in_dim, 3)])
def test_a_model_that_cannot_be_traced_is_trained(sg, shards, make):
    factory, config = ModelFactory("own:make", make), read_config(epochs=2, patience=0)
    check_memory(shards, sg, config, factory)
    if make is OfItsData:
        train(sg, config, factory=factory)


def test_force_removes_nothing_where_the_command_is_wrong(sg, shards, tmp_path):
    run = tmp_path / "run"
    train_and_save(sg, QUICK.changed(checkpoint_every=5), run)
    before = checkpoints_in(run)
    assert before
    for arguments in (
        [str(shards), "--checkpoint-every", "banana"],
        [str(tmp_path / "nowhere")],
        [str(shards), "--depth", "2", "--strategy", "auto"],
        [str(shards), "--strategy", "mirror"],
        [str(shards), "--nproc", "3"],
    ):
        assert main(["train", *arguments, "--out", str(run), "--force"]) == 2
    assert checkpoints_in(run) == before


def test_torchrun_has_its_own_restarts(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="max_restarts is 2"):
        run_on_ranks(["train"], lambda: 1, lambda: None, max_restarts=2)


def test_edge_features_of_a_graph_without_edges(tmp_path):
    nodes = 30
    data = {"feat": np.ones((nodes, 2), np.float32), "label": np.arange(nodes) % 2}
    data |= {f"{name}_mask": np.arange(nodes) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    none = np.zeros(0, np.int64)
    graph = from_edges(none, none, nodes, data, {"weight": np.zeros(0, np.float32), "wide": np.zeros((0, 2, 2))})
    partition(graph, 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg:
        result = train(sg, QUICK.changed(epochs=2, edge_features="weight,wide", edge_update=True))
        assert len(result.losses) == 2 and result.model.input_sizes["edge_feats"] == 5
