"""The main job as a user runs it: partition, train over two processes, predict."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from slow_case import slow

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, load_graph, partition
from dgl_gt.run_files.run_record import RunRecord
from dgl_gt.train import load_model, predict, read_config
from dgl_gt.train.predictions import write_predictions
from dgl_gt.train.summary import final_table
from dgl_gt.train.tasks.classification import NodeClasses

ROOT = Path(__file__).parents[2]
SAMPLE = "sample:communities?nodes=2000&seed=3"
QUICK = ["--epochs", "4", "--hidden", "16", "--heads", "2", "--layers", "1"]


def command(*arguments, prefix=("-m", "dgl_gt")):
    return [sys.executable, *prefix, *map(str, arguments)]


def environment():
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(*arguments, **options):
    return subprocess.run(
        command(*arguments, **options), capture_output=True, text=True, env=environment(), timeout=300
    )


def refused(done, message):
    """Exit code 2, one clear line, nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def here(capsys):
    """A function that runs a command in this process: for what is refused before ranks start."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def graph():
    return load_graph(SAMPLE)


@pytest.fixture(scope="module")
def shards(graph, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sample") / "shards"
    partition(graph, 2, directory)
    return directory


@pytest.fixture(scope="module")
def trained(shards):
    """The JSON of a run over two ranks, and the model it wrote."""
    model = shards.parent / "model"
    done = run("train", shards, "--nproc", 2, "--epochs", 40, "--hidden", 32, "--heads", 4, "--out", model, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), model


@pytest.fixture(scope="module")
def configured(shards):
    """A quick run with a config file and options over it: what it printed, and the model directory that it wrote."""
    folder = shards.parent / "configured"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "model: {hidden: 16, heads: 2, layers: 1, dropout: 0}\noptimizer:\n  lr: 1e-3\nepochs: 9\n"
    )
    done = run("train", shards, "--config", folder / "config.yaml", "--epochs", 4, "--out", folder / "model")
    assert done.returncode == 0, done.stderr
    return done.stdout, folder / "model"


def test_train_reports_what_the_documentation_lists(trained):
    record, model = trained
    assert set(record) == {
        "finished",
        "strategy",
        "depth",
        "ranks",
        "graph",
        "epochs",
        "best_epoch",
        "losses",
        "validations",
        "metric",
        "seconds_per_epoch",
        "exchange_share",
        "exchanged_bytes_per_epoch",
        "policy",
        "peak_memory_bytes",
        "allocator",
        "compute_seconds",
    }
    assert (record["strategy"], record["ranks"], record["epochs"]) == ("halo_h", 2, 40) and record["finished"] is True
    assert len(record["losses"]) == 40 and record["losses"][-1] < record["losses"][0] / 2
    assert record["metric"]["name"] == "accuracy"
    assert len(record["peak_memory_bytes"]) == 2 and 0 < record["exchange_share"] < 1
    on_disk = json.loads((model / "record.json").read_text())
    assert on_disk.pop("started_by") and on_disk == record


def test_bytes_are_halo_rows_times_width_both_ways(shards, trained):
    halo = json.loads((shards / "manifest.json").read_text())["quality"]["volume"]
    layers, width_bytes, directions = 2, 32 * 4, 2
    assert trained[0]["exchanged_bytes_per_epoch"] == halo * layers * width_bytes * directions


def test_attention_beats_a_features_only_network(graph, trained):
    """The generated graph is one where edges matter: the same test nodes, an MLP on their features alone."""
    from sklearn.neural_network import MLPClassifier

    data = graph.node_data
    train, test = data["train_mask"] | data["val_mask"], data["test_mask"]
    mlp = MLPClassifier((64,), random_state=0, early_stopping=True).fit(data["feat"][train], data["label"][train])
    assert trained[0]["metric"]["test"] > mlp.score(data["feat"][test], data["label"][test]) + 0.2


def test_predictions_are_in_the_original_order(graph, shards, trained, tmp_path):
    record, model = trained
    done = run("predict", shards, "--model", model, "--out", tmp_path / "p.npz", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == graph.num_nodes
    with np.load(tmp_path / "p.npz") as file:
        prediction, probability = file["prediction"], file["probability"]
    assert prediction.shape == (graph.num_nodes,) and probability.shape == (graph.num_nodes, 10)
    np.testing.assert_allclose(probability.sum(1), 1, atol=1e-5)
    for split, key in (("test_mask", "test"), ("val_mask", "validation")):
        mask = graph.node_data[split]
        assert (prediction[mask] == graph.node_data["label"][mask]).mean() == pytest.approx(record["metric"][key])

    write_predictions(tmp_path / "p.csv", NodeClasses(prediction, probability))
    table = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True)
    assert (table["probability_9"].astype(np.float32) == probability[:, 9]).all()
    assert table["node"].tolist() == list(range(graph.num_nodes))
    assert (table["prediction"] == prediction).all()


def test_torchrun_gives_the_same_run(shards, configured):
    """As the launcher, and as the config file's settings given as options."""
    prefix = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dgl_gt")
    theirs = run("train", shards, *QUICK, "--lr", 1e-3, "--dropout", 0, "--json", prefix=prefix)
    assert theirs.returncode == 0, theirs.stderr
    assert json.loads(theirs.stdout)["losses"] == json.loads((configured[1] / "record.json").read_text())["losses"]


def test_a_config_file_and_options_over_it(configured):
    _, model = configured
    assert json.loads((model / "record.json").read_text())["epochs"] == 4
    saved = (model / "config.yaml").read_text()
    assert "hidden: 16" in saved and "lr: 0.001" in saved and "epochs: 4" in saved and "in_dim: 64" in saved
    again = read_config(model / "config.yaml")
    assert again == read_config(hidden=16, heads=2, layers=1, dropout=0, lr=1e-3, epochs=4)


def test_the_final_table(configured):
    stdout, model = configured
    assert stdout.endswith(f"wrote {model}\n")
    for words in (
        "test accuracy",
        "seconds per epoch",
        "share spent exchanging",
        "exchanged per epoch",
        "peak memory per rank",
    ):
        assert words in stdout


@pytest.mark.parametrize(
    ("exact", "text"), [(0, "0 B, as in exact steps"), (4096, "0 B, 100.0% less than the 4.0 KiB of exact steps")]
)
def test_a_policy_where_exact_steps_send_nothing(configured, exact, text):
    record = json.loads((configured[1] / "record.json").read_text())
    record |= {"exchanged_bytes_per_epoch": 0, "policy": {"rules": [{"mode": "int8"}], "exact_bytes_per_epoch": exact}}
    assert text in final_table(msgspec.convert(record, RunRecord))


def test_bad_options_are_refused(here, shards, tmp_path):
    (tmp_path / "typo.yaml").write_text("hiden: 16\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "exists").mkdir()
    cases = [
        (["--nproc", 3], "--nproc is 3 but"),
        (["--heads", 5], "hidden is 16; it must be a multiple of heads (5)"),
        (["--dropout", 1.5], "dropout is 1.5; it must be at least 0 and below 1"),
        (["--lr", "nan"], "lr is nan"),
        (["--metric", "f1"], "metric is 'f1'; for the task node_classification it must be auto, accuracy, roc_auc"),
        (["--config", tmp_path / "typo.yaml"], "unknown key 'hiden'"),
        (["--config", tmp_path / "list.yaml"], "keys and values"),
        (["--config", tmp_path / "none.yaml"], "no such file"),
        (["--out", tmp_path / "exists"], "exists"),
        (["--resume"], "--resume needs --out DIR"),
        (["--max-restarts", 2], "--max-restarts needs --out DIR"),
        (
            ["--out", tmp_path / "new", "--resume"],
            "new holds no checkpoint, so there is nothing to go on from; start a run without --resume\n",
        ),
        (["--out", tmp_path / "exists", "--resume"], "without --resume, in another directory or with --force\n"),
        (["--seeds", 2, "--resume"], "leave --resume out"),
        (["--seeds", 2, "--out", tmp_path / "new"], "leave --out out"),
        (
            ["--splits", 0, "--resume", "--max-restarts", 2, "--out", tmp_path / "new"],
            "leave --out and --resume and --max-restarts out",
        ),
        (["--out", tmp_path / "new", "--resume", "--force"], "leave one of them out"),
        (
            ["--out", tmp_path / "new", "--checkpoint-every", "soon"],
            "--checkpoint-every is 'soon'; it must be a number",
        ),
        (["--out", tmp_path / "typo.yaml" / "model"], "is not a writable directory"),
    ]
    for options, message in cases:
        refused(here("train", shards, *QUICK, *options), message)


def test_errors_on_the_ranks_are_said_once(shards):
    stderr = refused(run("train", shards, *QUICK, "--split", 3), "the masks hold 1 split,")
    assert stderr.count("error:") == 1


def test_damaged_shards_are_refused(graph, tmp_path):
    partition(graph, 2, tmp_path / "shards")
    path = tmp_path / "shards" / "part1" / "node_data.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    stderr = refused(run("train", tmp_path / "shards", *QUICK), "node_data.safetensors is damaged")
    assert stderr.count("error:") == 1


@pytest.mark.parametrize("how", [slow(signal.SIGKILL), signal.SIGTERM])
def test_ranks_end_with_their_launcher(shards, how):
    process, ranks = endless(shards)
    process.send_signal(how)
    process.communicate(timeout=60)
    for _ in range(100):
        alive = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(map(str, ranks))], capture_output=True, text=True)
        if all(stat.startswith("Z") for stat in alive.stdout.split()):
            return
        time.sleep(0.1)
    pytest.fail("ranks outlived their launcher")


def test_bad_models_and_outputs_are_refused(here, shards, trained, tmp_path):
    model = trained[1]
    for path in (tmp_path, tmp_path / ("long" * 80)):
        refused(here("predict", shards, "--model", path, "--out", tmp_path / "p.npz"), "holds no model")
    assert load_model(model / "model.safetensors").in_dim == 64  # as completion of a shell gives it
    refused(
        here("predict", shards, "--model", model, "--out", tmp_path / "p.txt"), "must end in .npz, .csv or .parquet"
    )
    (tmp_path / "p.npz").write_text("mine")
    refused(here("predict", shards, "--model", model, "--out", tmp_path / "p.npz"), "exists")
    partition(load_graph("sample:communities?nodes=300&features=7"), 1, tmp_path / "narrow")
    with pytest.raises(InputError, match="takes rows of widths in_dim 64.* in_dim 7"):
        predict(load_model(model), dgl_gt.load(tmp_path / "narrow"))
    bad = tmp_path / "bad"
    bad.mkdir()
    weights = load_file(model / "model.safetensors")
    weights.pop("output.bias")
    save_file(weights, bad / "model.safetensors")
    refused(
        here("predict", shards, "--model", bad, "--out", tmp_path / "q.npz"),
        "is truncated, damaged or not a model of dgl-gt",
    )
    assert not (tmp_path / "q.npz").exists()


def endless(shards):
    """A training run that has begun and has most of its epochs before it, and the process ids of its ranks."""
    arguments = command("train", shards, "--epochs", 300, "--patience", 0)
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    assert "--out DIR" in process.stderr.readline()  # before the first epoch
    assert process.stderr.readline().startswith("epoch 30/300 ")
    found = subprocess.run(
        ["ps", "-ww", "--ppid", str(process.pid), "-o", "pid=,args="], capture_output=True, text=True
    )
    return process, [int(line.split()[0]) for line in found.stdout.splitlines() if "dgl_gt" in line]


@pytest.mark.parametrize("how", [signal.SIGKILL, slow(signal.SIGTERM)])
def test_a_rank_that_dies_ends_the_run(shards, how):
    """It alone is named, by one line, and the exit code is as if the signal had come to the command."""
    process, ranks = endless(shards)
    os.kill(ranks[1], how)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + how and out == ""
    lines = [line for line in err.splitlines() if not line.startswith("epoch ")]
    assert lines == [f"dgl-gt: rank 1 was ended by signal {how.value} ({how.name})"]


def test_training_goes_on_when_nobody_reads_what_it_says(shards, tmp_path):
    """As with ``2>&1 | head -1``: the model is written, and the exit code is that of a run that ended well."""
    reader, writer = os.pipe()
    os.close(reader)
    words = command("train", shards, *QUICK, "--out", tmp_path / "model")
    try:
        done = subprocess.run(words, stdout=writer, stderr=writer, env=environment(), timeout=300)
    finally:
        os.close(writer)
    assert done.returncode == 0
    assert (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("seconds", "said"), [([2.0, 1.0], "rank 0 computes 33% longer"), ([1.0, 1.05], ""), (None, "")]
)
def test_what_is_said_of_uneven_ranks(configured, seconds, said):
    record = msgspec.convert(json.loads((configured[1] / "record.json").read_text()) | {"ranks": 2}, RunRecord)
    text = final_table(msgspec.structs.replace(record, compute_seconds=seconds))
    assert (said in text) if said else "longer than the mean" not in text
    assert ("seconds computing, by rank" in text) == (seconds is not None)
