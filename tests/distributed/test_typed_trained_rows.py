"""Trained rows on typed graphs: a table of the types without features alone, with the numbers of one process."""

import shutil

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from typed import typed_graph

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.nn import NodeEmbedding
from dgl_gt.partition import from_relations, partition
from dgl_gt.run_files.run_directory import WEIGHTS, checkpoints_in
from dgl_gt.run_files.tensor_file import CHECKPOINT_FILE, MODEL_FILE, read_bytes
from dgl_gt.train import load_model, predict, read_config, train_and_save

pytestmark = pytest.mark.usefixtures("rank_here")

WIDTH, SUBJECTS = 6, 3
CONFIG = read_config(
    epochs=8,
    layers=2,
    hidden=16,
    heads=4,
    dropout=0.2,
    attention_dropout=0.1,
    lr=0.01,
    node_embedding=WIDTH,
    patience=0,
)
CUTS = {
    1: [("edge", "local")],
    2: [("edge", "halo"), ("vertex", "mirror")],
    3: [("edge", "halo"), ("vertex", "mirror")],
}


def on_rank(rank, folder, ways):
    torch.set_default_dtype(torch.float64)
    found = {}
    for cut, strategy in ways:
        with dgl_gt.load(folder / cut, strategy) as sg:
            out = folder / f"run {cut}"
            result, record = train_and_save(sg, CONFIG.changed(checkpoint_every=4), out)
            answer = predict(load_model(out), sg)
            owned = len(sg.rows("subject"))
            rows = result.model.table.weight.shape, owned
            found[cut] = record.losses, record.validations, answer and answer.probability, rows
    return found


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    partition(typed_graph(subjects=SUBJECTS), 1, folder / "edge")
    return run_ranks(1, on_rank, folder, CUTS[1])[0]["edge"], folder / "run edge"


@pytest.mark.parametrize("parts", [slow(2), 3])
def test_ranks_train_the_rows_of_one_process(one_process, tmp_path, parts):
    for cut in ("edge", "vertex"):
        partition(typed_graph(subjects=SUBJECTS), parts, tmp_path / cut, cut=cut)
    (losses, validations, probability, _), _ = one_process
    found = run_ranks(parts, on_rank, tmp_path, CUTS[parts])
    for cut, _ in CUTS[parts]:
        shapes = [of_rank[cut][3] for of_rank in found]
        assert sum(owned for _, owned in shapes) == SUBJECTS
        assert all(shape == (owned, WIDTH) for shape, owned in shapes), "a rank has rows of its own subjects alone"
        its_losses, its_validations, its_probability, _ = found[0][cut]
        np.testing.assert_allclose(its_losses, losses, rtol=1e-9, err_msg=cut)
        assert its_validations == validations
        np.testing.assert_allclose(its_probability, probability, rtol=1e-6, atol=1e-9, err_msg=cut)


def test_files_hold_no_other_rows(one_process):
    _, out = one_process
    state = MODEL_FILE.unpack(read_bytes(out / WEIGHTS))[1]
    tensors = CHECKPOINT_FILE.unpack(read_bytes(checkpoints_in(out)[0]))[1]
    assert state["table.weight"].shape == (SUBJECTS, WIDTH)
    most = max(len(value) for value in tensors.values() if value.dim() == 2 and value.shape[1] == WIDTH)
    assert tensors["best/table.weight"].shape == (SUBJECTS, WIDTH) and most < 60


def resumed(rank, shards, out):
    torch.set_default_dtype(torch.float64)
    with dgl_gt.load(shards) as sg:
        return train_and_save(sg, CONFIG, out, resume=True)[1].losses


@pytest.mark.parametrize("parts", [1, 3])
def test_a_run_goes_on_with_another_number_of_ranks(one_process, tmp_path, parts):
    (losses, *_), run = one_process
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-000008.safetensors").unlink(missing_ok=True)
    partition(typed_graph(subjects=SUBJECTS), parts, tmp_path / "shards")
    found = run_ranks(parts, resumed, tmp_path / "shards", tmp_path / "run")[0]
    np.testing.assert_allclose(found, losses, rtol=1e-9)


# ---- what is refused


def shards_and_run(folder, **of_graph):
    partition(typed_graph(**of_graph), 1, folder / "shards")
    settings = ["--epochs", "2", "--node-embedding", "4", "--set", "model.hidden=16", "--out", str(folder / "run")]
    assert main(["train", str(folder / "shards"), *settings]) == 0
    return folder / "run"


def test_rows_that_nothing_reads(tmp_path, capfd):
    graph = typed_graph()
    graph.node_data["subject/feat"] = np.ones((3, 2), np.float32)
    partition(graph, 1, tmp_path / "shards")
    for command, settings, named in (
        ("train", ["--node-embedding", "4"], "--node-embedding is 4"),
        ("plan", ["--set", "task.node_embedding=4"], "node_embedding is 4"),
    ):
        assert main([command, str(tmp_path / "shards"), *settings]) == 2
        assert named in capfd.readouterr().err


def test_a_table_of_another_graph(tmp_path, capfd):
    run = shards_and_run(tmp_path)
    partition(typed_graph(subjects=5), 1, tmp_path / "more")
    assert main(["predict", str(tmp_path / "more"), "--model", str(run), "--out", str(tmp_path / "rows.csv")]) == 2
    text = capfd.readouterr().err
    assert "subject" in text and " 3 nodes" in text and not (tmp_path / "rows.csv").exists()


def test_a_table_with_rows_of_all_nodes_is_refused(tmp_path, capfd):
    """As models were saved before: the types with trained rows had their width in ``in_dim``."""
    run = shards_and_run(tmp_path)
    values, state = MODEL_FILE.unpack(read_bytes(run / WEIGHTS))
    values["shape"]["in_dim"]["subject"] = 4
    state["table.weight"] = torch.ones(143, 4)
    (run / WEIGHTS).write_bytes(MODEL_FILE.pack(values, state))
    assert main(["predict", str(tmp_path / "shards"), "--model", str(run), "--out", str(tmp_path / "rows.csv")]) == 2
    assert "train the model again" in capfd.readouterr().err


def test_types_of_a_table_are_those_of_a_typed_graph(tmp_path):
    with pytest.raises(ValueError, match="ntypes"):
        NodeEmbedding(3, 2, ["subject"])
    partition(from_relations({"a": 2, "b": 3}, {"a,to,b": ([0, 1], [2, 2])}), 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg:
        assert NodeEmbedding(sg, 2, ["b"]).weight.shape == (3, 2)
        with pytest.raises(ValueError, match="'c'"):
            NodeEmbedding(sg, 2, ["c"])
