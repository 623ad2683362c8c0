"""``--model-factory``: models of a user's own are planned, trained, saved and used; what is none is refused with words."""

import os
import sys

import factories
import numpy as np
import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.nn import dropout_seed
from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.plan import choose, read_profile, tracer_of
from dgl_gt.train import load_model, predict, read_config, save_model, train
from dgl_gt.train.model import ModelFactory, build_model, check_settings, find_factory, max_depth

pytestmark = pytest.mark.usefixtures("rank_here")

CONFIG = read_config(epochs=4, patience=0)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """One graph in one part and in two."""
    folder = tmp_path_factory.mktemp("factory")
    graph = load_graph("sample:communities?nodes=300&features=12&seed=0")
    for parts in (1, 2):
        partition(graph, parts, folder / str(parts), halo_depth=2)
    return folder


def trained(rank, folder, name, depth=1):
    """Losses, weights and predictions of a run, or what was refused."""
    sg = dgl_gt.load(folder, depth=depth)
    try:
        result = train(sg, CONFIG, factory=find_factory(name))
    except InputError as error:
        return str(error)
    state = {key: value.numpy() for key, value in result.model.state_dict().items()}
    return result.losses, state, predict(result.model, sg)


@pytest.mark.parametrize("name", ["Pulled", "Rows", "transformer", "Named", "Smoothed"])
def test_two_ranks_train_as_one(shards, name):
    ((losses, state, (labels, _)),) = run_ranks(1, trained, shards / "1", f"factories:{name}")
    first, second = run_ranks(2, trained, shards / "2", f"factories:{name}")
    np.testing.assert_allclose(first[0], losses, rtol=1e-4)
    assert first[0] == second[0] and losses[-1] < losses[0]
    for key, value in state.items():
        np.testing.assert_allclose(first[1][key], value, atol=0.01)  # AdamW divides by small gradients
        np.testing.assert_array_equal(first[1][key], second[1][key])
    assert (first[2][0] == labels).mean() > 0.99 and second[2] is None


def losses_and_seed(rank, folder):
    """Losses of a run, and the seed of a mask of its last step."""
    result = train(dgl_gt.load(folder), CONFIG, factory=find_factory("factories:Pulled"))
    return result.losses, result.model.layer.attn.dropout_seed


def test_dropout_masks_follow_seed_and_step_on_any_number_of_ranks(shards):
    found = [*run_ranks(1, losses_and_seed, shards / "1"), *run_ranks(2, losses_and_seed, shards / "2")]
    for losses, seed in found:
        assert seed == dropout_seed(CONFIG.seed, CONFIG.epochs - 1, 0)
        np.testing.assert_allclose(losses, found[0][0], rtol=1e-4)


def test_ranks_start_with_the_weights_of_rank_0(shards):
    first, second = run_ranks(2, trained, shards / "2", "factories:Random")
    for key, value in first[1].items():
        np.testing.assert_array_equal(value, second[1][key])


def test_a_graph_transformer_of_a_factory_takes_deep_halos(shards):
    first, _ = run_ranks(2, trained, shards / "2", "factories:transformer", 2)
    (expected,) = run_ranks(1, trained, shards / "1", "factories:transformer")
    np.testing.assert_allclose(first[0], expected[0], rtol=1e-4)


def test_few_labels_and_a_model_derived_from_ours(tmp_path):
    """The gradients of few labelled rows do not travel as factors where the model computes rows together at its end."""
    graph = load_graph("sample:communities?nodes=300&features=12&seed=0")
    graph.node_data["train_mask"] &= np.arange(300) % 30 == 0
    for parts in (1, 2):
        partition(graph, parts, tmp_path / str(parts))
    (expected,) = run_ranks(1, trained, tmp_path / "1", "factories:Smoothed")
    first, _ = run_ranks(2, trained, tmp_path / "2", "factories:Smoothed")
    np.testing.assert_allclose(first[0], expected[0], rtol=1e-4)


def test_a_model_that_fails_on_one_part(shards):
    with pytest.raises(InputError, match="the model failed"):
        train(dgl_gt.load(shards / "1"), CONFIG, factory=find_factory("factories:Fails"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("by_rank", r"shape of bias is \[.*10\] on rank 0 but \[.*11\] on rank 1"),
        ("Held", r"the model returned \(\d+, 10\); it must return a tensor with one row of logits for each of the"),
        ("Pair", "the model returned tuple; it must return a tensor"),
        ("Fails", r"the model failed: RuntimeError: mat1 and mat2 .* \(factories.py, line \d+\); fix the model"),
        ("three", "factories:three returned 3; it must return a torch.nn.Module"),
        (
            "Wide",
            r"the model returned 11 logits of torch.float32 for each node; it must return one .* of the 10 classes",
        ),
        ("Whole", "the model returned 10 logits of torch.int64 for each node"),
        ("no_parameters", "factories:no_parameters returned a model without parameters to train; give it some"),
        ("Extra", "the state of the model of factories:Extra holds _extra_state"),
        ("one_argument", r"factories:one_argument\(12, 10\) failed: TypeError"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_on_all_ranks(shards, name, message):
    for found in run_ranks(2, trained, shards / "2", f"factories:{name}"):
        assert isinstance(found, str)
        with pytest.raises(InputError, match=message):
            raise InputError(found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("factories", "is 'factories'; write it as package.module:function"),
        ("factories:Rows:more", "write it as package.module:function"),
        ("../factories:Rows", "write it as package.module:function"),
        (":", "write it as package.module:function"),
        ("no_such_module:make", "importing no_such_module failed: ModuleNotFoundError"),
        ("factories:nothing", "factories has no function nothing"),
        ("factories:number", "factories has no function number"),
    ],
)
def test_names_that_lead_to_no_function(name, message):
    with pytest.raises(InputError, match=message):
        find_factory(name)


def test_tied_weights_are_saved(tmp_path):
    """And a factory that fails later is told from a damaged directory."""
    factory = find_factory("factories:Tied")
    model = factory.make(10, 10)
    shape = {"in_dim": 10, "out_dim": 10, "model_factory": factory.name}
    save_model(tmp_path / "model", model.state_dict(), read_config(), shape, {})
    loaded = load_model(tmp_path / "model", factory)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value)
    with pytest.raises(InputError, match=r"^factories:Tied\(10, 10\) failed: TypeError"):
        load_model(tmp_path / "model", ModelFactory("factories:Tied", factories.one_argument))


def test_deep_halos_are_for_a_graph_transformer(shards):
    for found in run_ranks(2, trained, shards / "2", "factories:Pulled", 2):
        assert "depth is 2" in found and "--depth" in found


def test_a_module_that_fails_while_it_is_imported(tmp_path, monkeypatch):
    """It is found in the working directory, where the command was started."""
    (tmp_path / "broken_module.py").write_text("raise SystemError('as it is\\nimported')\n")
    (tmp_path / "good_module.py").write_text("def make(in_dim, classes):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError,
        match=r"importing broken_module failed: SystemError: as it is imported \(broken_module.py, line 1\)",
    ):
        find_factory("broken_module:make")
    assert find_factory("good_module:make").make(1, 2) is None
    assert find_factory(None) is None


def test_settings_of_the_graph_transformer_are_for_it_alone():
    factory = find_factory("factories:Rows")
    check_settings(read_config(lr=0.1, epochs=3), factory)
    check_settings(read_config(hidden=32), None)
    with pytest.raises(InputError, match="--hidden is for the models of dgl-gt"):
        check_settings(read_config(hidden=32), factory)
    with pytest.raises(InputError, match="activation_checkpoint is full"):
        build_model(read_config(activation_checkpoint="full"), 12, 3, factory)
    with pytest.raises(InputError, match="edge_features is 'weight'"):
        build_model(read_config(edge_features="weight"), 12, 3, factory)


def test_plans(shards):
    """A layer of this package has all modes; a graph transformer takes halos as deep as it has layers."""
    figures = read_figures(read_manifest(shards / "2"))
    traces = tracer_of(read_config(), figures.features, 10, find_factory("factories:Pulled"))
    assert tracer_of(read_config(lr=1.0), 12) is tracer_of(read_config(), 12)
    assert traces.activation_checkpoints == ("none", "keep_exchanges", "full") and traces.max_depth == 1
    plan = choose([(None, figures)], traces, read_profile(), strategies=("halo_h", "halo_kv", "mirror"))
    assert plan.model == {
        "model_factory": "factories:Pulled",
        "precision": "fp32",
        "features": 12,
        "classes": 10,
    }
    assert {each.strategy for each in plan.candidates if not each.refused} == {"halo_h", "halo_kv"}
    of_rows = tracer_of(read_config(), 12, 10, find_factory("factories:Rows"))
    assert of_rows.activation_checkpoints == ("none",)
    assert max_depth(factories.transformer(12, 10)) == 2


def test_a_model_larger_than_the_machine_is_refused():
    huge = ModelFactory("huge", lambda in_dim, classes: torch.nn.Linear(in_dim, 10**12, device="meta"))
    for config, factory in ((read_config(hidden=10**6, heads=1), None), (read_config(), huge)):
        with pytest.raises(InputError, match=r"the model has [\d,]+ parameters"):
            tracer_of(config, 12, 3, factory)


def test_commands(shards, tmp_path, capsys, monkeypatch):
    """Planned, trained with a plan, and used, by the function's name each time."""
    option = ["--model-factory", "factories:Pulled"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert main(["plan", str(shards / "1"), *option, "--classes", "10"]) == 0
    assert "chosen: local on the edge cut" in capsys.readouterr().out
    out = tmp_path / "model"
    assert main(["train", str(shards / "1"), *option, "--strategy", "auto", "--epochs", "2", "--out", str(out)]) == 0
    assert "model_factory: factories:Pulled" in (out / "config.yaml").read_text()
    with pytest.raises(InputError, match="--model-factory factories:Pulled"):
        read_config(out / "config.yaml")
    predict_it = ["predict", str(shards / "1"), "--model", str(out), "--out", str(tmp_path / "found.csv")]
    assert main([*predict_it, *option]) == 0
    capsys.readouterr()
    assert main([*predict_it, "--force"]) == 2
    assert (
        "holds a model that the factory factories:Pulled made; give that factory again (--model-factory)"
        in capsys.readouterr().err
    )
    assert main(["train", str(shards / "1"), *option, "--hidden", "32"]) == 2
    assert "--hidden is for the models" in capsys.readouterr().err


def test_saved_models_and_factories_that_do_not_belong_together(tmp_path):
    factory, shape = find_factory("factories:Pulled"), {"in_dim": 5, "out_dim": 3}
    save_model(tmp_path / "own", build_model(CONFIG, 5, 3).state_dict(), CONFIG, shape, {})
    with pytest.raises(InputError, match="holds a model of dgl-gt, which --model-factory factories:Pulled did"):
        load_model(tmp_path / "own", factory)
    model = build_model(CONFIG, 5, 3, factory)
    save_model(tmp_path / "made", model.state_dict(), CONFIG, shape | {"model_factory": factory.name}, {})
    loaded = load_model(tmp_path / "made", factory)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    with pytest.raises(InputError, match="is damaged or from another version of dgl-gt"):
        load_model(tmp_path / "made", find_factory("factories:Rows"))
