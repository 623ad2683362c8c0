"""Training with encodings and with every recipe: the losses of one process on several ranks, and what is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, add_expander_edges, encode, partition
from dgl_gt.train import predict, read_config, train, train_and_save
from dgl_gt.train.edge_inputs import edge_rows
from dgl_gt.train.saved_model import load_model
from dgl_gt.train.task_settings import Inputs

pytestmark = pytest.mark.usefixtures("rank_here")

RECIPES = {
    "encodings and sharpening": {
        "encodings": "laplacian,degree",
        "normalize_features": True,
        "entropy_unlabelled": 0.3,
        "entropy_labelled": 0.1,
        "label_smoothing": 0.1,
        "class_weights": "balanced",
        "norm": "batch",
        "optimizer": "adam",
    },
    "Polynormer in two phases": {
        "architecture": "polynormer",
        "local_epochs": 2,
        "weight_decay": 0.01,
        "schedule": "cosine",
        "evaluate_every": 2,
    },
    "edge features that layers update": {
        "edge_features": "weight,kind:kind,flag",
        "edge_hidden": 5,
        "edge_update": True,
        "activation_checkpoint": "keep_exchanges",
    },
    "edge features in keys and values": {
        "edge_features": "weight:number,kind:number",
        "edge_input": "raw",
        "edge_role": "key_value",
        "activation_checkpoint": "full",
    },
}
SMALL = {"hidden": 8, "heads": 4, "epochs": 4, "warmup": 0, "lr": 0.01}


def losses_of(rank, folder):
    found = {}
    for depth in (1, 2):
        sg = dgl_gt.load(folder, depth=depth)
        for name, recipe in RECIPES.items():
            result = train(sg, read_config(**SMALL, **recipe))
            found[depth, name] = result.losses, result.validations, predict(result.model, sg)
    return found


def with_edge_data(graph):
    rng = np.random.default_rng(0)
    graph.edge_data["weight"] = rng.standard_normal((graph.num_edges, 2)).astype(np.float32)
    graph.edge_data["kind"] = rng.integers(0, 3, graph.num_edges)
    graph.edge_data["flag"] = rng.random(graph.num_edges) < 0.5
    graph.edge_data["time"] = rng.integers(-3, 300, graph.num_edges)
    return graph


def test_losses_are_those_of_one_process(awkward_graph, tmp_path):
    graph = with_edge_data(awkward_graph(0))
    for parts in (1, 3):
        partition(graph, parts, tmp_path / str(parts), halo_depth=2, encode="laplacian=3,degree,random_walk=2")
    (expected,) = run_ranks(1, losses_of, tmp_path / "1")
    for rank, found in enumerate(run_ranks(3, losses_of, tmp_path / "3")):
        for key, (losses, validations, predictions) in found.items():
            assert losses == pytest.approx(expected[key][0], rel=1e-4), key
            assert validations == pytest.approx(expected[key][1], abs=0.08), key  # a few rows may change sides
            if rank == 0:
                assert predictions[1] == pytest.approx(expected[key][2][1], abs=1e-3), key


def test_an_encoding_that_the_shards_do_not_hold(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards", encode="degree")
    with dgl_gt.load(tmp_path / "shards") as sg:
        with pytest.raises(InputError, match="encodings has 'anchors'"):
            train(sg, read_config(**SMALL, encodings="anchors"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("weights", "edge_features has 'weights'"),
        (
            "time:kind",
            "edge data 'time' of .* holds -?[0-9]+; kinds are from 0 to 255: write time:number",
        ),
        ("weight:kind", "edge_features has weight:kind"),
        ("time:number,flag,time:kind", "edge_features names 'time' twice"),
        ("time:numbers", "edge_features has 'time:numbers'"),
    ],
)
def test_edge_data_that_a_model_cannot_read(awkward_graph, tmp_path, names, message):
    partition(with_edge_data(awkward_graph(0)), 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg, pytest.raises(InputError, match=message):
        train(sg, read_config(**SMALL, edge_features=names))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int16"])
def test_kinds_of_any_integer_dtype_and_name(awkward_graph, tmp_path, dtype):
    graph = awkward_graph(0)
    graph.edge_data.clear()
    graph.edge_data["K 16"] = (np.arange(graph.num_edges) % 5).astype(dtype)
    partition(graph, 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg:
        assert (
            edge_rows(sg, Inputs(edge_features={"K 16": "kind"}))["edge_kind"].flatten().tolist()
            == (sg.edge_ids % 5).tolist()
        )
        if dtype != "uint8":
            sg.edata["K 16"][3] = 256
            with pytest.raises(InputError, match="edge data 'K 16' of .* holds 256"):
                edge_rows(sg, Inputs(edge_features={"K 16": "kind"}))


def test_edge_data_without_a_number(awkward_graph, tmp_path):
    graph = awkward_graph(0)
    graph.edge_data["none"] = np.zeros((graph.num_edges, 0), np.float32)
    partition(graph, 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg:
        with pytest.raises(InputError, match="edge data 'none' of .* has row shape .0,., which holds no number"):
            train(sg, read_config(**SMALL, edge_features="none"))


def test_predictions_need_the_columns_that_the_model_was_trained_on(awkward_graph, tmp_path):
    graph = with_edge_data(awkward_graph(0))
    partition(graph, 1, tmp_path / "shards")
    config = read_config(**SMALL, edge_features="weight,kind:kind")
    with dgl_gt.load(tmp_path / "shards") as sg:
        model = train(sg, config).model
    graph.edge_data["weight"] = graph.edge_data["weight"][:, :1]
    partition(graph, 1, tmp_path / "other")
    with dgl_gt.load(tmp_path / "other") as sg:
        with pytest.raises(InputError, match="edge_feats 2, edge_kinds 1.* gives .*edge_feats 1, edge_kinds 1"):
            predict(model, sg)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int32"])
def test_whole_numbers_are_numbers_unless_kinds_are_stated(awkward_graph, tmp_path, dtype):
    graph, whole = awkward_graph(0), np.arange(awkward_graph(0).num_edges) % 7
    graph.edge_data.update(weight=whole.astype(dtype), real=whole.astype(np.float32), flag=whole > 3)
    partition(graph, 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg:
        found = edge_rows(sg, read_config(edge_features="weight,flag:kind").task.inputs)
        assert found["edge_feat"].dtype == torch.float32
        assert found["edge_feat"].equal(sg.edata["weight"][:, None].float())
        assert found["edge_kind"].flatten().tolist() == sg.edata["flag"].int().tolist()
        losses = [train(sg, read_config(**SMALL, edge_features=name)).losses for name in ("weight", "real:number")]
        assert losses[0] == losses[1] != train(sg, read_config(**SMALL, edge_features="weight:kind")).losses


def test_a_saved_model_remembers_what_is_a_kind(awkward_graph, tmp_path):
    graph = awkward_graph(0)
    partition(graph, 1, tmp_path / "shards", expander=2, encode="shortest_path=2")
    names = "shortest_path,edge_kind,weight"
    with dgl_gt.load(tmp_path / "shards") as sg:
        config = read_config(**SMALL, edge_features=names)
        expected = predict(train_and_save(sg, config.changed(checkpoint_every=2), tmp_path / "run")[0].model, sg)
        for resume, epochs in ((True, 6), ("if_possible", 6)):  # the same settings, stated or not
            train_and_save(sg, config.changed(epochs=epochs), tmp_path / "run", resume=resume)
    model = load_model(tmp_path / "run")
    assert model.dgl_gt_task.inputs.edge_features == {"shortest_path": "kind", "edge_kind": "kind", "weight": "number"}
    assert [model.input_sizes[name] for name in ("edge_feats", "edge_kinds")] == [4, 3]
    graph = encode(add_expander_edges(awkward_graph(0), 2), "shortest_path=2")
    graph.edge_data["weight"] = graph.edge_data["weight"].round().astype(int)
    partition(replace(graph, encodings={}, transforms={}), 1, tmp_path / "plain")  # nothing says what these columns are
    with dgl_gt.load(tmp_path / "plain") as sg:
        assert predict(model, sg)[1].shape == expected[1].shape


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("weight,shortest_path,kind", "read as numbers: edge data 'kind'; if these are kinds, write kind:kind in"),
        ("weight:number,shortest_path:kind,kind:number", None),
        ("kind:kind,time", "read as numbers: edge data 'time'; if these are kinds, write time:kind in"),
    ],
)
def test_one_line_says_what_was_assumed(awkward_graph, tmp_path, capfd, names, said):
    partition(with_edge_data(awkward_graph(0)), 1, tmp_path / "shards", encode="shortest_path=2")
    options = ["--nproc", "1", "--epochs", "1", "--hidden", "8", "--edge-features", names]
    assert main(["train", str(tmp_path / "shards"), *options]) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "read as numbers" in line]
    assert len(lines) == (said is not None) and (said is None or re.search(said, lines[0]))
