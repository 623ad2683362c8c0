"""What is advised where a rank runs out of memory."""

import re

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import from_edges, partition
from dgl_gt.partition.errors import InputError
from dgl_gt.ranks import launch


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards") / "shards"
    partition("sample:communities?nodes=400&features=8", 2, directory)
    return directory


@pytest.mark.parametrize("strategy", [None, "halo", "halo_kv"])
def test_advice_names_what_was_predicted(shards, strategy):
    from dgl_gt.plan.planned_step import advice_for_strategy
    from dgl_gt.train.config import read_config

    asked = {"strategy": strategy or "default"}
    text = advice_for_strategy(shards, read_config(**asked))
    assert "--layers 2 --hidden 64 is predicted to need" in text and "MiB of that for rows of its own nodes" in text
    text = advice_for_strategy(shards, read_config(hidden=100_000, heads=1, **asked))  # too large for a trace
    assert re.search(
        r"the model has 160,\d{3},\d{3},\d{3} parameters, which .* take 2\.3 TiB, and .*choose a smaller", text
    )


def test_advice_names_the_largest_term(shards, tmp_path):
    """Each term in turn: a large model; many edges; layers that are computed for two hops of copies."""
    from dgl_gt.plan.planned_step import advice_for_strategy
    from dgl_gt.train.config import read_config

    wide = read_config(layers=1, hidden=512, heads=8)
    text = advice_for_strategy(shards, wide)
    assert "of that for parameters, gradients and the optimiser; choose a smaller --hidden or fewer --layers" in text
    partition("sample:communities?nodes=2000&features=8", 2, tmp_path / "many")
    text = advice_for_strategy(tmp_path / "many", read_config(precision="bf16"))
    assert (
        "own nodes; choose --activation-checkpoint full, a smaller --hidden or more parts on more machines, or" in text
    )
    edges = np.random.default_rng(0).integers(0, 400, (2, 100_000))
    graph = from_edges(*edges, 400, {"feat": np.ones((400, 4), np.float32)})
    partition(graph, 2, tmp_path / "dense")
    narrow = read_config(layers=1, hidden=2, heads=1, ffn=0)
    assert "of that for edges; choose more parts" in advice_for_strategy(tmp_path / "dense", narrow)
    edges = np.random.default_rng(0).integers(0, 4000, (2, 20_000))
    partition(from_edges(*edges, 4000, {"feat": np.ones((4000, 4), np.float32)}), 8, tmp_path / "deep", halo_depth=2)
    text = advice_for_strategy(tmp_path / "deep", read_config(layers=2, ffn=0, depth=2))
    assert "of that for rows of nodes of other ranks; choose another --strategy" in text


def test_a_model_of_the_users_is_not_told_to_change_options_that_it_has_not(shards, tmp_path, monkeypatch):
    from dgl_gt.plan.planned_step import advice_for_strategy
    from dgl_gt.train.config import read_config

    (tmp_path / "wide_model.py").write_text(
        "import torch, dgl_gt\nclass Model(torch.nn.Module):\n"
        "    def __init__(self, in_dim, classes):\n        super().__init__()\n"
        "        self.first = torch.nn.Linear(in_dim, 4096)\n        self.second = torch.nn.Linear(4096, classes)\n"
        "        self.conv = dgl_gt.nn.GraphConv(classes, classes, allow_zero_in_degree=True)\n"
        "    def forward(self, graph, feat):\n        return self.conv(graph, self.second(self.first(feat).relu()))\n"
        "def make(in_dim, classes):\n    return Model(in_dim, classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = advice_for_strategy(shards, read_config(), "wide_model:make")
    assert (
        "a training step of wide_model:make is predicted" in text and "--hidden" not in text and "--layers" not in text
    )
    assert "a smaller model" in text


@pytest.mark.parametrize("problem", [InputError("the shards are gone"), MemoryError()], ids=repr)
def test_advice_that_cannot_be_given_does_not_replace_the_message(problem):
    def advise():
        raise problem

    message = launch.out_of_memory_message(1, "it asked for 1 TiB", advise)
    assert message == (
        "rank 1 ran out of memory: it asked for 1 TiB; free memory, or partition into more parts on more machines"
    )


@pytest.mark.parametrize("node_data", [{}, {"feat": np.ones(4, np.float32)}], ids=["none", "one number a node"])
def test_advice_on_shards_without_rows_of_features(tmp_path, node_data):
    from dgl_gt.plan.planned_step import advice_for_strategy
    from dgl_gt.train.config import read_config

    partition(from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4, node_data), 2, tmp_path / "shards")
    assert "no node data 'feat'" in advice_for_strategy(tmp_path / "shards", read_config())


def test_advice_where_ranks_choose_names_no_figure_of_another_run(shards, monkeypatch):
    advised = []
    monkeypatch.setattr(
        "dgl_gt.cli.train.run_on_parts", lambda *_, memory_advice, **__: advised.append(memory_advice()) or 0
    )
    assert main(["train", str(shards), "--strategy", "auto", "--hidden", "100000", "--heads", "1"]) == 0
    assert advised == [
        "choose a smaller model, partition into more parts on more machines, or let --rank-memory SIZE bound what "
        "--strategy auto chooses from"
    ]
