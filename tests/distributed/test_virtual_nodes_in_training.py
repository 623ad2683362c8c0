"""Training on graphs with virtual nodes and expander edges: the losses of one process, and predictions without them."""

import numpy as np
import pytest
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import InputError, partition
from dgl_gt.train import predict, read_config, train
from dgl_gt.train.tasks.classification import NodeClassification

OPTIONS = {"expander": 4, "virtual_nodes": 2, "encode": "laplacian=2,shortest_path=2"}
SETTINGS = {
    "hidden": 8,
    "heads": 4,
    "epochs": 4,
    "warmup": 0,
    "lr": 0.01,
    "encodings": "laplacian,virtual_node",
    "edge_features": "edge_kind,shortest_path",
    "entropy_unlabelled": 0.3,
}


def trained(rank, folder, strategy):
    sg = dgl_gt.load(folder, strategy=strategy)
    result = train(sg, read_config(**SETTINGS))
    return result.losses, predict(result.model, sg)


@pytest.mark.parametrize(("cut", "strategy"), [("edge", "halo"), ("vertex", "mirror")])
def test_two_ranks_train_and_predict_as_one(awkward_graph, tmp_path, cut, strategy):
    graph = awkward_graph(0)
    for parts in (1, 2):
        partition(graph, parts, tmp_path / str(parts), cut=cut, **OPTIONS)
    ((expected, predictions),) = run_ranks(1, trained, tmp_path / "1", strategy)
    (losses, found), (_, none) = run_ranks(2, trained, tmp_path / "2", strategy)
    assert losses == pytest.approx(expected, rel=1e-4) and none is None
    assert predictions[0].shape == found[0].shape == (graph.num_nodes,)
    assert found[1].shape == (graph.num_nodes, 3) and np.allclose(found[1].sum(1), 1, atol=1e-5)
    assert found[1] == pytest.approx(predictions[1], abs=1e-3)


def test_a_task_knows_the_users_rows(awkward_graph, tmp_path):
    graph = awkward_graph(0)
    partition(graph, 1, tmp_path / "shards", virtual_nodes=3)
    with dgl_gt.load(tmp_path / "shards") as sg:
        task = NodeClassification.read(sg, read_config())
        user_rows = task.evaluated.user_rows
        assert task.num_rows == 60 and user_rows.sum() == 60 and len(user_rows) == 63
        assert sorted(sg.node_ids[~user_rows].tolist()) == [60, 61, 62]
        assert task.counts == {name: graph.node_data[f"{name}_mask"].sum() for name in ("train", "val", "test")}
        assert task.out_dim == 3


def test_an_encoding_of_edges_is_no_feature(awkward_graph, tmp_path):
    partition(awkward_graph(0), 1, tmp_path / "shards", encode="shortest_path=2")
    with dgl_gt.load(tmp_path / "shards") as sg:
        with pytest.raises(InputError, match="encodings has 'shortest_path'"):
            train(sg, read_config(**{**SETTINGS, "encodings": "shortest_path", "edge_features": "shortest_path"}))
