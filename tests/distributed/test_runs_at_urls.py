"""Ranks that train from shards on object storage, and keep their run there: the same results as on a disk."""

import io
import json
import os

import numpy as np
import pytest
from ranks import run_ranks

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, partition
from dgl_gt.partition.system.storage import located, names_at
from dgl_gt.report import report
from dgl_gt.run_files.run_directory import MetricsLog, RunDirectory, checkpoints_in
from dgl_gt.run_files.run_record import EpochNumbers
from dgl_gt.train import load_model, predict, read_config, train_and_save

pytestmark = pytest.mark.usefixtures("rank_here")

GRAPH = "sample:communities?nodes=150&features=5"
SETTINGS = {"layers": 1, "hidden": 8, "heads": 2, "epochs": 6, "checkpoint_every": 2, "dropout": 0.2}
CONFIG = read_config(**SETTINGS)


def on_ranks(bucket, function, *args, **options):
    """What a function returns on each of two ranks, which know the bucket's server."""
    environment = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "DGL_GT_"))}
    return run_ranks(2, _with_environment, environment, function, args, options)


def _with_environment(rank, environment, function, args, options):
    os.environ.update(environment)
    return function(*args, **options)


def trained(shards, out, config, **options):
    _, record = train_and_save(dgl_gt.load(shards), config, out, **options)
    return record.losses, record.validations


def predicted(shards, model):
    answer = predict(load_model(model), dgl_gt.load(shards))
    return None if answer is None else answer._asdict()


def metrics(out):
    return [json.loads(line) for line in (located(out) / "metrics.jsonl").read_text().splitlines()]


def command(capfd, *arguments):
    code = main([*map(str, arguments), "--json"])
    text = capfd.readouterr()
    assert code == 0, text.err
    return json.loads(text.out)


def test_a_server_that_fails_each_tenth_request_gives_the_same_results(tmp_path, bucket, capfd):
    """The commands of a user; all that they write and read is at URLs."""
    address, system, store = bucket
    partition(GRAPH, 2, tmp_path / "shards")
    losses, validations = on_ranks(bucket, trained, tmp_path / "shards", tmp_path / "run", CONFIG)[0]
    store.fail_every = 10
    shards, run = f"{address}/shards", f"{address}/run"
    options = [each for name, value in SETTINGS.items() for each in (f"--{name.replace('_', '-')}", value)]
    command(capfd, "partition", GRAPH, "--parts", 2, "--out", shards)
    on_ranks(bucket, trained, shards, run, CONFIG.changed(epochs=4))
    record = command(capfd, "train", shards, "--out", run, *options, "--resume")
    assert (record["losses"], record["validations"]) == (losses, validations)
    assert [each["epoch"] for each in metrics(run)] == [*range(1, 7)]
    assert {*names_at(located(run))} == {*os.listdir(tmp_path / "run")}
    command(capfd, "predict", shards, "--model", run, "--out", f"{address}/p.npz")
    wanted = on_ranks(bucket, predicted, tmp_path / "shards", tmp_path / "run")[0]
    with np.load(io.BytesIO(system.cat_file(f"{address}/p.npz"))) as found:
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)
    assert command(capfd, "inspect", shards)["nodes"] == 150
    assert command(capfd, "plan", shards, "--hidden", 8, "--layers", 1)["choice"]
    assert command(capfd, "report", run, "-o", f"{address}/run.html")["epochs"] == 6
    assert report(shards).numbers == report(tmp_path / "shards").numbers
    assert names_at(located(f"{address}/run.json")) == [""] and store.failed > 10
    assert not any(b"a-secret-key" in system.cat_file(name) for name in system.find(address))


def test_a_run_replaces_another_and_nothing_else(tmp_path, bucket, capfd):
    address, system, store = bucket
    partition(GRAPH, 2, tmp_path / "shards")
    run, short = f"{address}/run", CONFIG.changed(epochs=2)
    on_ranks(bucket, trained, tmp_path / "shards", run, CONFIG)
    assert len(checkpoints_in(located(run))) == 2
    assert main(["train", str(tmp_path / "shards"), "--out", run]) == 2 and run in capfd.readouterr().err
    on_ranks(bucket, trained, tmp_path / "shards", run, short, force=True)
    assert checkpoints_in(located(run)) == [] and [each["epoch"] for each in metrics(run)] == [1, 2]
    system.pipe_file(f"{address}/other/model.safetensors", b"another's")
    for out, option in ((f"{address}/other", "--force"), (f"{address}/none", "--resume"), (run, "--tensorboard")):
        assert main(["train", str(tmp_path / "shards"), "--out", out, option]) == 2
        assert out in capfd.readouterr().err
    assert names_at(located(f"{address}/other")) == ["model.safetensors"] and names_at(located(f"{address}/none")) == []
    store.is_forbidden = lambda method, path: method == "PUT"
    for arguments in (["train", tmp_path / "shards"], ["predict", tmp_path / "shards", "--model", run]):
        out = f"{address}/new.npz"
        assert main([*map(str, arguments), "--out", out]) == 2
        assert "PermissionError" in (text := capfd.readouterr().err) and address in text


def test_a_run_in_the_folder_of_another_is_left_alone(bucket):
    """Checkpoints are read, pruned and forgotten in the folder of the run itself, as on a disk."""
    address, system, _ = bucket
    inner = f"{address}/run/inner/checkpoint-000009.safetensors"
    system.pipe_file(inner, b"another's")
    directory = RunDirectory(f"{address}/run", force=True, is_ours=True)
    for epoch in (1, 2, 3):
        directory.write_checkpoint(epoch, b"mine")
    assert [each.name[-13] for each in checkpoints_in(directory.out)] == ["3", "2"]
    assert [each.name for each in directory.out.iterdir()][-1] == "inner"
    directory.forget_checkpoints()
    assert system.find(address) == [inner.removeprefix("s3://")]


def test_the_last_numbers_are_written_at_the_end_where_writing_them_failed(bucket):
    address, _, store = bucket
    log = MetricsLog(located(f"{address}/run"))
    counts = {"seconds": 1, "nodes_per_s": 1, "edges_per_s": 1, "exchange_share": 0, "exchanged_bytes": 0}
    for epoch in (1, 2):
        store.is_forbidden = lambda method, path, epoch=epoch: method == "PUT" and epoch == 2
        log.add(EpochNumbers(epoch=epoch, peak_memory_bytes=[1], **counts), is_there=True, is_due=True)
    store.is_forbidden = lambda *_: False
    log.close()
    assert [each["epoch"] for each in metrics(f"{address}/run")] == [1, 2]


def test_an_earlier_checkpoint_where_the_latest_is_damaged(tmp_path, bucket, capfd):
    address, system, _ = bucket
    partition(GRAPH, 2, tmp_path / "shards")
    run = f"{address}/run"
    full = on_ranks(bucket, trained, tmp_path / "shards", run, CONFIG)[0]
    latest, earlier = checkpoints_in(located(run))
    system.pipe_file(latest, system.cat_file(latest)[:-7])
    assert on_ranks(bucket, trained, tmp_path / "shards", run, CONFIG, resume=True)[0] == full
    assert f"{latest.name}.damaged" in names_at(located(run))
    model = located(run) / "model.safetensors"
    system.pipe_file(model, system.cat_file(model)[:-7])
    with pytest.raises(InputError, match=str(model)):
        load_model(run)
