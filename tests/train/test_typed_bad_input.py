"""What training, plans and predictions refuse of typed graphs; each names the type or the relation."""

import numpy as np
import pytest
from typed import typed_graph

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, partition
from dgl_gt.train import predict, read_config, train

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = {"epochs": 1, "hidden": 16, "heads": 2, "layers": 1}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed") / "shards"
    partition(typed_graph(), 1, folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"task": "edge", "type": "paper"}, ["type is 'paper'", "edge_classification"]),
        ({"task": "link", "type": "paper"}, ["type is 'paper'", "link_prediction"]),
        ({"task": "node", "relation": "cites"}, ["relation is 'cites'", "node_classification"]),
    ],
)
def test_what_the_task_does_not_read(settings, named):
    with pytest.raises(InputError) as caught:
        read_config(**settings)
    assert all(each in str(caught.value) for each in named)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--policy", "int8"], "policy is int8"),
        (["--set", "task.kind=edge", "--set", "task.relation=a,b,c"], "'a,b,c'"),
        (["--set", "task.type=reader"], "'reader'"),
    ],
)
def test_plans(shards, capfd, options, named):
    assert main(["plan", str(shards), *options]) == 2
    assert named in capfd.readouterr().err


def without(graph):
    del graph.node_data["author/feat"]


def wider(graph):
    graph.node_data["author/feat"] = np.ones((80, 6), np.float32)


def more(graph):
    graph.node_data["subject/feat"] = np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "name", "widths"),
    [(without, "author", ["5", "none"]), (wider, "author", ["5", "6"]), (more, "subject", ["no", "2"])],
)
@pytest.mark.parametrize("trained_rows", [0, 4])
def test_features_of_a_type_that_are_others_now(shards, tmp_path, change, name, widths, trained_rows):
    graph = typed_graph()
    change(graph)
    partition(graph, 1, tmp_path / "shards")
    with dgl_gt.load(shards) as sg:
        model = train(sg, read_config(**QUICK, node_embedding=trained_rows)).model
    with dgl_gt.load(tmp_path / "shards") as sg, pytest.raises(InputError) as caught:
        predict(model, sg)
    assert repr(name) in str(caught.value) and all(each in str(caught.value) for each in widths)
