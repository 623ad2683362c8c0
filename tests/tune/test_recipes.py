"""Recipes: each is a model that trains, at every size and at both ends of its space."""

import itertools

import msgspec
import numpy as np
import pytest

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, partition
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.train import TrainConfig, read_config
from dgl_gt.tune.jobs import Job
from dgl_gt.tune.recipes import OF_TASKS, RECIPES, SIZES, Choice, in_epochs, settings_of
from dgl_gt.tune.spaces import given_settings, spaces_for
from dgl_gt.tune.worker import _Run

pytestmark = pytest.mark.usefixtures("rank_here")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    out = tmp_path_factory.mktemp("recipes") / "shards"
    partition("sample:communities?nodes=120", 1, str(out), self_loops=True)
    return str(out)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("size", SIZES)
def test_a_middle_is_a_config(name, size):
    config = read_config(**settings_of(name, size))
    assert config.epochs == RECIPES[name].epochs
    widths = RECIPES[name].space["hidden"].values
    assert widths == tuple(sorted(widths))
    assert config.model.hidden == {"small": widths[0], "large": widths[-1]}.get(
        size, RECIPES[name].space["hidden"].middle
    )


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_of_a_space_is_allowed_beside_the_middles_of_the_others(name):
    middles = {key: each.middle for key, each in RECIPES[name].space.items()}
    for key, each in RECIPES[name].space.items():
        values = each.values if isinstance(each, Choice) else (each.least, each.most)
        assert each.middle in values or each.least < each.middle < each.most
        for value in values:
            TrainConfig().changed(**in_epochs(RECIPES[name].fixed | middles | {key: value}, 100))


@pytest.mark.parametrize("task", OF_TASKS)
def test_every_value_of_what_a_task_adds_is_allowed(task):
    for key, each in OF_TASKS[task].items():
        for value in each.values if isinstance(each, Choice) else (each.least, each.most):
            TrainConfig().changed(**{"task": task, key: value})


@pytest.mark.parametrize("name", ["gcn", "gat", "sage", "polynormer", "gt", "gcnii", "sgformer", "mlp"])
def test_a_recipe_trains(name, shards):
    config = read_config(**settings_of(name, "small", epochs=4))
    with dgl_gt.Comm() as comm:
        assert len(dgl_gt.train.train(dgl_gt.load(shards, group=comm), config).losses) == 4


def test_train_takes_a_recipe(shards, capsys):
    assert main(["train", shards, "--model", "polynormer", "--size", "small", "--epochs", "4"]) == 0


def test_the_floor_reads_no_neighbours(shards):
    """Its result for a node depends on the row of that node alone."""
    import torch

    from dgl_gt.train.model import build_model

    config = read_config(**settings_of("mlp", "small"))
    csc = dgl_gt.CSC.build(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0]), 3)
    model = build_model(config, 5, 2).eval()
    feat = torch.randn(3, 5)
    alone = model(csc, feat)
    feat[1:] += 1
    torch.testing.assert_close(model(csc, feat)[0], alone[0])
    assert not torch.allclose(model(csc, feat)[1], alone[1])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "gnc"], "gnc"),
        (["--size", "small"], "small"),
        (["--model", "gcn", "--size", "huge"], "huge"),
        (["--model", "gcn", "--config", "some.yaml"], "some.yaml"),
    ],
)
def test_what_is_no_recipe_is_refused(arguments, named, shards, capfd):
    assert main(["train", shards, *arguments]) == 2
    assert named in capfd.readouterr().err


def test_options_win_over_a_recipe():
    from dgl_gt.cli.options import _recipe_of

    class args:
        recipe, size, config = "gat", "large", None

    assert read_config(None, **_recipe_of(args) | {"hidden": 16, "layers": 1}).model.hidden == 16


def test_spaces_fit_the_shards(shards):
    manifest = read_manifest(shards)
    spaces, refused = spaces_for(manifest, {"hidden": 32}, None)
    of_nodes = {name for name, recipe in RECIPES.items() if recipe.fits(False, "node_classification")}
    assert set(spaces) | set(refused) == of_nodes and not of_nodes & {"gae", "link_sage", "rgcn", "hops"}
    assert "hidden" not in set(itertools.chain.from_iterable(spaces.values()))
    assert all("entropy_unlabelled" in space for space in spaces.values())
    with pytest.raises(InputError, match="hgt"):
        spaces_for(manifest, {}, ["gcn", "hgt"])
    with pytest.raises(InputError, match="gae.*link_prediction"):
        spaces_for(manifest, {}, ["gae"])
    with pytest.raises(InputError, match="gnc"):
        spaces_for(manifest, {}, ["gnc"])
    with pytest.raises(InputError, match="ffn"):  # of the transformer alone
        spaces_for(manifest, {"ffn": 2}, ["gcn"])
    assert list(spaces_for(manifest, {"ffn": 3}, None)[0]) == ["gt"]


def test_what_shards_hold_besides_features_is_in_the_space(tmp_path):
    encoded = str(tmp_path / "encoded")
    assert not main(
        ["partition", "sample:communities?nodes=120", "--parts", "1", "--encode", "degree", "--out", encoded]
    )
    spaces, _ = spaces_for(read_manifest(encoded), {}, None)
    assert spaces["gt"]["encodings"].values == ("", "degree") and "encodings" not in spaces["gcn"]
    edges = {"edge_index": [[0, 1, 2, 3], [1, 2, 3, 0]], "num_nodes": 4, "feat": np.eye(4, dtype=np.float32)}
    data = {"rating": [1.0, 2, 3, 4], "hour": [1.0, 2, 3, 4], "time": [1, 2, 3, 4], "label": [1.0, 2, 3, 4]}
    np.savez(tmp_path / "rated.npz", **edges, **{f"edge_data_{name}": values for name, values in data.items()})
    rated = str(tmp_path / "rated")
    assert not main(["partition", str(tmp_path / "rated.npz"), "--parts", "1", "--out", rated])
    spaces, _ = spaces_for(read_manifest(rated), {"task": "edge_regression", "label": "rating"}, None)
    assert spaces["gt"]["edge_features"].values == ("", "hour") and "edge_features" not in spaces["gcn"]
    np.savez(tmp_path / "bare.npz", edge_index=[[0, 1, 2, 3], [1, 2, 3, 0]], num_nodes=4)
    bare = str(tmp_path / "bare")
    assert not main(["partition", str(tmp_path / "bare.npz"), "--parts", "1", "--out", bare, "--undirected"])
    spaces, _ = spaces_for(read_manifest(bare), {"task": "pretrain"}, None)
    assert "node_embedding" in spaces["gcn"] and "normalize_features" not in spaces["gcn"]
    encode = ["--encode", "degree", "--force"]
    assert not main(["partition", str(tmp_path / "bare.npz"), "--parts", "1", "--out", bare, "--undirected", *encode])
    spaces, _ = spaces_for(read_manifest(bare), {"task": "pretrain"}, None)
    assert {"node_embedding", "encodings"} <= spaces["gt"].keys()
    spaces, _ = spaces_for(read_manifest(bare), {"task": "pretrain", "encodings": "degree"}, None)
    assert not {"node_embedding", "encodings"} & spaces["gt"].keys() and "input_dropout" in spaces["gcnii"]
    spaces, _ = spaces_for(read_manifest(bare), {"task": "pretrain", "initial_weight": 0.2}, ["gcnii"])
    assert not {"input_dropout", "initial_weight"} & spaces["gcnii"].keys()


@pytest.mark.parametrize("removed", [set(), {"subject"}, {"author", "paper"}])
def test_types_without_features_have_trained_rows_where_others_have_features(removed, tmp_path):
    from typed import typed_graph

    graph = typed_graph()
    if "subject" in removed:  # then all types have features
        graph.node_data["subject/feat"] = np.ones((3, 2), np.float32)
    for name in removed - {"subject"}:
        del graph.node_data[f"{name}/feat"]
    partition(graph, 1, str(tmp_path / "shards"))
    spaces, _ = spaces_for(read_manifest(str(tmp_path / "shards")), {}, None)
    assert all(("node_embedding" in space) == (not removed) for space in spaces.values()) and spaces


@pytest.mark.parametrize(("longest_s", "usual_s", "expected"), [(200, 75, 12), (200, 200, 18), (900, 900, 50)])
def test_a_run_has_the_epochs_for_its_time_and_never_too_few(longest_s, usual_s, expected, shards, monkeypatch):
    monkeypatch.setattr(_Run, "_seconds_per_epoch", lambda self, config: 10.0)
    sg = dgl_gt.load(shards)
    job = Job(0, {"hidden": 8}, 50, 0.0, longest_s, usual_s)
    assert _Run(sg, TrainConfig(), job, shards, None)._config().epochs == expected
    with pytest.raises(InputError, match="12"):
        _Run(sg, TrainConfig(), msgspec.structs.replace(job, longest_s=119.0, usual_s=75.0), shards, None)._config()


@pytest.mark.parametrize("name", ["architecture", "seed", "local_epochs"])
def test_what_the_search_chooses_cannot_be_given(name):
    with pytest.raises(InputError, match=name):
        given_settings({name: 1}, {})


@pytest.mark.parametrize(
    ("seconds", "expected"), [([0.9, 0.2, 0.3, 0.1], 0.2), ([2.6, 0.1], 2.6), ([1.5, 1.4, 0.1], 1.4)]
)
def test_work_is_timed_again_while_that_is_quick(seconds, expected, monkeypatch):
    left = iter(seconds)
    monkeypatch.setattr(_Run, "_slowest", lambda self, work: next(left))
    assert _Run._fastest(_Run.__new__(_Run), print) == expected


OF_TYPES = {"node_data/paper/label": "int64", "node_data/author/label": "float32"}
OF_RELATIONS = {
    "edge_data/user,likes,item/label": "int64",
    "edge_data/user,rates,item/label": "float32",
    "node_data/user/label": "int64",
}


@pytest.mark.parametrize(
    ("held", "given", "expected"),
    [
        ({"links": "", "node_data/label": "int64"}, {}, "link_prediction"),
        ({"links": "", "node_data/label": "int64"}, {"metric": "hits@20"}, "link_prediction"),
        ({"links": "", "node_data/label": "int64"}, {"label": "label"}, "node_classification"),
        ({"links": "", "node_data/label": "int64"}, {"metric": "accuracy"}, "node_classification"),
        ({"node_data/label": "int64"}, {}, "node_classification"),
        ({"node_data/label": "int64"}, {"metric": "rmse"}, "node_regression"),
        ({"node_data/label": "int8 (50)"}, {}, "node_multilabel"),
        ({"node_data/label": "float32"}, {}, "node_regression"),
        (OF_TYPES, {}, "node_classification"),
        (OF_TYPES, {"type": "author"}, "node_regression"),
        ({"edge_data/rating": "float32"}, {"label": "rating"}, "edge_regression"),
        ({"edge_data/label": "int8 (3)"}, {}, "edge_multilabel"),
        (OF_RELATIONS, {}, "node_classification"),
        (OF_RELATIONS, {"relation": "user,likes,item"}, "edge_classification"),
        (OF_RELATIONS, {"relation": "rates"}, "edge_regression"),
        ({"node_data/feat": "float32 (3)"}, {}, "node_classification"),  # which says that there are no labels
        ({"node_data/label": "int64"}, {"task": "pretrain"}, "pretrain"),
    ],
)
def test_the_task_follows_from_what_the_shards_hold(held, given, expected):
    relations = [["user", name, "item", 1] for name in ("likes", "rates")]
    schema = {"nodes": dict.fromkeys(("user", "item", "paper", "author"), 1), "edges": relations}
    manifest = {"links": {"pairs": {}} if "links" in held else None, "node_data": {}, "edge_data": {}}
    manifest["schema"] = schema if any(place.count("/") == 2 for place in held) else None
    for place, dtype in held.items():
        of, _, name = place.partition("/")
        if name:
            dtype, _, width = dtype.partition(" ")
            manifest[of][name] = {"dtype": dtype, "shape": [int(width.strip("()"))] if width else []}
    assert given_settings(given, manifest)["task"] == expected
