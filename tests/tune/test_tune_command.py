"""``dgl-gt tune`` as a user runs it: what it leaves, bad input, and a search that is killed and goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from html_page import Page

from dgl_gt.cli.main import main
from dgl_gt.partition import partition
from dgl_gt.run_files.search_files import read_record, read_trials

pytest.importorskip("optuna")

ROOT = Path(__file__).parents[2]
FEW = ["--budget", "10m", "--models", "gcn,mlp", "--set", "epochs=6", "--set", "model.hidden=16", "--trials"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("tune") / "shards"
    partition("sample:communities?nodes=150", 1, str(out), self_loops=True)
    return str(out)


@pytest.fixture(scope="module")
def found(shards, tmp_path_factory):
    """A search that has ended."""
    out = tmp_path_factory.mktemp("tune") / "best"
    assert main(["tune", shards, *FEW, "3", "--out", str(out), "--jobs", "1"]) == 0
    return out


def test_links_of_a_graph_without_features(tmp_path):
    ring = np.arange(60)
    edges = np.concatenate([[ring, (ring + 1) % 60], [ring, (ring + 3) % 60]], 1)
    np.savez(tmp_path / "bare.npz", edge_index=edges, num_nodes=60, directed=False)
    shards, out = str(tmp_path / "shards"), tmp_path / "best"
    assert (
        main(["partition", str(tmp_path / "bare.npz"), "--parts", "1", "--link-split", "0.8,0.1,0.1", "--out", shards])
        == 0
    )
    options = ["--models", "gae,sage", "--budget", "60s", "--set", "epochs=12", "--trials", "2", "--jobs", "1"]
    assert main(["tune", shards, *options, "--out", str(out)]) == 0  # the task is that of shards with links
    assert read_record(out).given["task"] == "link_prediction"
    assert all(each.settings["node_embedding"] == 128 for each in read_trials(out))


def test_it_leaves_a_model_its_config_the_trials_and_a_page(found, shards, tmp_path, capsys):
    names = {"config.yaml", "model.safetensors", "record.json", "metrics.jsonl"}
    assert {each.name for each in found.iterdir()} == names | {
        *("search.json", "trials.jsonl", "study.log", "report.html", "report.json")
    }
    record, trials = read_record(found), read_trials(found)
    assert record.finished and record.trials == len(trials) == 3
    assert [each.model for each in trials[:2]] == ["gcn", "mlp"] and record.best in {each.number for each in trials}
    assert len(record.runs) == 10 and all(0 <= each.test <= 1 for each in record.runs)
    config = str(found / "config.yaml")
    assert main(["train", shards, "--config", config, "--epochs", "3"]) == 0
    assert main(["predict", shards, "--model", str(found), "--out", str(tmp_path / "classes.csv")]) == 0


def test_the_report_is_that_of_a_search(found, tmp_path):
    assert main(["report", str(found), "--out", str(tmp_path / "page.html")]) == 0
    numbers = json.loads((tmp_path / "page.json").read_text())
    page = Page((tmp_path / "page.html").read_text())
    assert len(numbers["trials"]) == 3 and len(numbers["runs"]) == 10
    assert f"(trial {numbers['best']}) was chosen" in page.words() and "has not finished" not in page.words()
    assert [tag for tag, _ in page.tags].count("path") >= 2 and numbers["trials"][0]["curve"]
    assert [len(table) for table in page.tables][-2:] == [11, 4]  # the last runs, and the trials, below their heads


def test_a_killed_search_goes_on_to_the_same_model(found, shards, tmp_path):
    out = tmp_path / "killed"
    arguments = ["tune", shards, *FEW, "3", "--out", str(out), "--jobs", "1"]
    environment = {key: value for key, value in os.environ.items() if key != "RANK"} | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "dgl_gt", *arguments], env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not (out / "trials.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not read_record(out).finished
    assert main([*arguments, "--resume"]) == 0
    of_both = [read_trials(each) for each in (found, out)]
    assert [[(each.number, each.settings, each.value) for each in trials] for trials in of_both][0] == [
        (each.number, each.settings, each.value) for each in of_both[1]
    ]
    assert read_record(out).best == read_record(found).best and read_record(out).runs == read_record(found).runs


def edited(found, out, **changes):
    """A copy of a search that has not ended, with a changed record."""
    shutil.copytree(found, out)
    values = json.loads((out / "search.json").read_text()) | {"finished": False} | changes
    (out / "search.json").write_text(json.dumps(values))
    return str(out)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"dgl_gt": "0.0.1"}, "0.0.1"), ({"graph": {"source": "another"}}, "another"), ({"seed": 7}, "7")],
)
def test_a_search_of_other_data_or_another_version_does_not_go_on(changes, named, found, shards, tmp_path, capfd):
    out = edited(found, tmp_path / "other", **changes)
    assert main(["tune", shards, *FEW, "3", "--out", out, "--resume"]) == 2
    error = capfd.readouterr().err
    assert named in error and "--force" in error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--models", "gcn,transformer"], "transformer"),
        (["--models", "hgt"], "hgt"),
        (["--ranks", "2"], "--ranks is 2"),
        (["--resume", "--force"], "--resume"),
        (["--resume"], "no search"),
        (["--set", "model.architecture=gnn"], "architecture"),
        (["--set", "seed=3"], "seed"),
        (["--models", "gcn", "--set", "model.ffn=2"], "ffn"),
        (["--label", "age"], "age"),
        (["--split", "3"], "split is 3"),
    ],
)
def test_bad_input(arguments, named, shards, tmp_path, capfd):
    assert main(["tune", shards, "--budget", "60s", "--out", str(tmp_path / "best"), *arguments]) == 2
    assert named in capfd.readouterr().err
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize("budget", ["45", "0s", "-3m", "1000d", "45 m", "nan"])
def test_what_is_no_time_is_refused(budget, shards, tmp_path, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["tune", shards, f"--budget={budget}", "--out", str(tmp_path / "best")])
    assert ended.value.code == 2 and repr(budget) in capfd.readouterr().err


def test_a_budget_too_short_for_a_trial_says_what_one_takes(shards, tmp_path, capfd):
    assert main(["tune", shards, "--budget", "1s", "--out", str(tmp_path / "best")]) == 2
    error = capfd.readouterr().err
    assert "budget is 1 s" in error and "--budget" in error
    assert not (tmp_path / "best").exists()


def test_no_memory_for_any_trial(shards, tmp_path, capfd):
    too_large = ["--models", "gcn", "--set", "model.hidden=1000000", "--set", "model.layers=5", "--trials", "2"]
    assert main(["tune", shards, "--budget", "60s", "--out", str(tmp_path / "best"), *too_large]) == 2
    error = capfd.readouterr().err
    assert "every trial failed" in error and "parameters" in error and not (tmp_path / "best").exists()


def test_no_validation_nodes(tmp_path, capfd):
    import numpy as np

    count = 12
    masks = {f"{name}_mask": np.arange(count) % 3 == place for place, name in enumerate(("train", "val", "test"))}
    ends = np.arange(count)
    arrays = {"edge_index": np.stack([ends, np.roll(ends, 1)]), "num_nodes": count, "feat": np.eye(count, dtype="f4")}
    np.savez(tmp_path / "graph.npz", **arrays, label=np.where(masks["val_mask"], -1, ends % 2), **masks)
    assert main(["partition", str(tmp_path / "graph.npz"), "--parts", "1", "--out", str(tmp_path / "shards")]) == 0
    assert main(["tune", str(tmp_path / "shards"), "--budget", "60s", "--out", str(tmp_path / "best")]) == 2
    assert "val_mask" in capfd.readouterr().err and not (tmp_path / "best").exists()


def test_another_program_s_directory_is_not_replaced(shards, tmp_path, capfd):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert main(["tune", shards, "--budget", "60s", "--out", str(tmp_path / "mine"), "--force"]) == 2
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_two_ranks_train_one_model(tmp_path):
    partition("sample:communities?nodes=150", 2, str(tmp_path / "shards"), self_loops=True)
    out = tmp_path / "best"
    assert main(["tune", str(tmp_path / "shards"), "--ranks", "2", *FEW, "2", "--out", str(out), "--jobs", "1"]) == 0
    assert json.loads((out / "record.json").read_text())["ranks"] == 2 and read_record(out).finished


def test_a_rank_that_is_killed_ends_the_search_which_goes_on(shards, tmp_path):
    out = tmp_path / "best"
    arguments = ["tune", shards, "--budget", "10m", "--models", "gcn", "--trials", "2", "--set", "epochs=200"]
    arguments += ["--set", "model.hidden=16", "--out", str(out), "--jobs", "1"]
    environment = {key: value for key, value in os.environ.items() if key != "RANK"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dgl_gt", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 300
        while not (out / "study.log").exists() and time.monotonic() < until:
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        error = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGKILL and "--resume" in error and "Traceback" not in error
