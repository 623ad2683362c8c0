"""Training under transmission policies: what stays exact, what comes near, and what is counted and recorded."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.exchange.policy.policy import read_policy
from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.partition import InputError, partition
from dgl_gt.run_files.run_record import PolicyOfRun
from dgl_gt.train import loop
from dgl_gt.train.config import read_config
from dgl_gt.train.run import prepare, train

pytestmark = pytest.mark.usefixtures("rank_here")

CONFIG = read_config(epochs=8, layers=2, hidden=32, heads=4, dropout=0.2, lr=0.01, patience=0, seed=3)
STRATEGIES = ["halo_h", "halo_kv", "mirror"]


def train_on_rank(rank, folder, strategy, configs):
    """Of each config: losses, validations, bytes, and the policy of the record."""
    results = []
    sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
    for config in configs:
        found = train(sg, config)
        results.append((found.losses, found.validations, found.exchanged_bytes_per_epoch, found.policy))
    return results


@pytest.fixture(scope="module", params=[slow(2), 3])
def shards(request, tmp_path_factory):
    """Shards with features that tell the classes, in 2 and in 3 parts; their folder and their number."""
    folder = tmp_path_factory.mktemp("policies")
    graph = "sample:communities?nodes=400&features=16&classes=4&seed=0"
    partition(graph, request.param, folder / "edge")
    partition(graph, request.param, folder / "vertex", cut="vertex")
    return folder, request.param


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exact_and_a_staleness_of_one_are_exact_and_others_come_near(shards, strategy):
    folder, parts = shards
    names = ["exact", "stale=1", "bf16", "int8", "int4", "stale=3", "stale=3,int8"]
    configs = [CONFIG.changed(policy=name) for name in names]
    first, *others = run_ranks(parts, train_on_rank, folder, strategy, configs)
    assert all(other == first for other in others)
    found = dict(zip(names, first))
    exact = found["exact"]
    assert found["stale=1"] == exact and exact[3] is None
    for name in names[2:]:
        losses, validations, sent, policy = found[name]
        assert policy == PolicyOfRun([{"mode": name}], exact[2])
        assert losses != exact[0] and np.isfinite(losses).all()
        assert abs(losses[-1] - exact[0][-1]) < 0.1 * exact[0][0] and losses[-1] < 0.9 * losses[0]
        assert sent < exact[2] * (1 if name in ("bf16", "stale=3") else 0.6)
    sizes = [found[name][2] for name in ("exact", "bf16", "int8", "int4", "stale=3,int8")]
    assert sizes == sorted(sizes, reverse=True)
    assert found["bf16"][0] == pytest.approx(exact[0], rel=2e-2)


def gradients_on_rank(rank, folder, strategy, policies):
    """The logits' loss and the gradients of one step under each policy, and an evaluation after it."""
    results = []
    for policy in policies:
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
        config = CONFIG.changed(policy=policy, dropout=0.0, epochs=1)
        graphs = TrainingGraphs(sg, read_policy(policy), 0)
        task, model = prepare(sg, config, graphs=graphs)
        with graphs:
            loop.take_step(model, task, sg.comm, torch.optim.SGD(model.parameters(), lr=0.0), 0)
            evaluated = task.evaluate(model)
        gradients = torch.cat([each.grad.flatten() for each in model.parameters()]).numpy()
        results.append((gradients, evaluated))
    return results


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_come_near_and_evaluations_are_exact(shards, strategy):
    folder, parts = shards
    policies = ["exact", "bf16", "int8", "int4", "stale=2"]
    exact, *others = run_ranks(parts, gradients_on_rank, folder, strategy, policies)[0]
    for policy, (gradients, evaluated), bound in zip(policies[1:], others, (0.02, 0.05, 0.5, 1e-6)):
        error = np.linalg.norm(gradients - exact[0]) / np.linalg.norm(exact[0])
        assert error < bound, policy  # the first step of a stale policy is exact
        assert evaluated == exact[1]


def test_kept_exchanges_change_nothing(shards):
    folder, parts = shards
    configs = [CONFIG.changed(policy="stale=2,int8", activation_checkpoint=mode) for mode in ("none", "keep_exchanges")]
    kept, again = run_ranks(parts, train_on_rank, folder, "halo_kv", configs)[0]
    assert kept == again


def rules_on_rank(rank, folder, path):
    sg = dgl_gt.load(folder / "edge", "halo_h")
    found = train(sg, CONFIG.changed(epochs=3, policy=str(path)))
    exact = train(sg, CONFIG.changed(epochs=3))
    return found.policy, found.exchanged_bytes_per_epoch, exact.exchanged_bytes_per_epoch, exact.policy


def test_rules_by_layer_direction_and_pair(shards, tmp_path):
    """Rows of layer 1 from rank 0 to rank 1 are not quantised; all else is."""
    folder, parts = shards
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{mode: int8}, {mode: exact, layers: [1], direction: rows, peers: [[0, 1]]}]")
    (policy, sent, exact, none), *_ = run_ranks(parts, rules_on_rank, folder, path)
    assert none is None and policy.exact_bytes_per_epoch == exact
    assert policy.rules[1] == {"mode": "exact", "layers": [1], "direction": "rows", "peers": [[0, 1]]}
    rows = exact // (4 * 4 * 32)  # two layers, two directions
    one_pair = (sent - 4 * rows * (8 + 32)) / (4 * 32 - 8 - 32)  # rows from rank 0 to rank 1
    assert one_pair == int(one_pair) and 0 < one_pair < rows


def refused_on_rank(rank, folder):
    found = []
    for cut, strategy, change in (
        ("edge", "gather", {"policy": "int8"}),
        ("edge", "halo_h", {"policy": "exact" if rank == 0 else "int8"}),
        ("edge", "halo_h", {"policy": str(folder / "layers.yaml")}),
        ("edge", "halo_h", {"policy": str(folder / "ranks.yaml")}),
    ):
        try:
            train(dgl_gt.load(folder / cut, strategy), CONFIG.changed(**change))
        except InputError as error:
            found.append(str(error))
    return found


def test_policies_that_do_not_fit_are_refused(shards):
    folder, parts = shards
    (folder / "layers.yaml").write_text("rules: [{mode: int8, layers: [2]}]")
    (folder / "ranks.yaml").write_text("rules: [{mode: int8, peers: [[0, 9]]}]")
    for found in run_ranks(parts, refused_on_rank, folder):
        assert [text.split(";")[0] for text in found] == [
            "policy is int8, but the strategy gather follows no policy",
            "policy is 'exact' on rank 0 but 'int8' on rank 1",
            "the policy names layer 2, but the model has 2 layers, counted from 0",
            f"the policy names the pair [0, 9], but there are {parts} ranks, counted from 0",
        ]


def diverging_on_rank(rank, folder):
    try:
        train(
            dgl_gt.load(folder / "edge", "halo_h"),
            CONFIG.changed(policy="stale=2,int8", lr=1e3, warmup=0, norm="none"),
        )
    except InputError as error:
        return str(error)


def test_numbers_that_are_not_finite_end_the_run(shards):
    """They stay so in whole numbers of 8 bits."""
    folder, parts = shards
    for message in run_ranks(parts, diverging_on_rank, folder):
        assert message.startswith("the loss is ") and "lower lr (1000.0)" in message


def skipping_on_rank(rank, folder, strategy):
    """The losses of a run whose third step gives NaN, on one rank alone."""
    forward = loop.forward
    loop.forward = lambda model, task, batch, step, seed: (
        forward(model, task, batch, step, seed) * (float("nan") if step == 2 and rank == 0 else 1.0)
    )
    sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy)
    return train(sg, CONFIG.changed(policy="stale=2,int8", on_nan="skip")).losses


@pytest.mark.parametrize("strategy", ["halo_kv", "mirror"])
def test_a_step_that_is_skipped_leaves_nothing_behind(shards, strategy):
    folder, parts = shards
    for losses in run_ranks(parts, skipping_on_rank, folder, strategy):
        assert [step for step, loss in enumerate(losses) if loss is None] == [2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "int5"], "policy is 'int5'; it must be exact, bf16, int8, int4"),
        (["--policy", "missing.yaml"], "missing.yaml"),
        (["--policy", "int8", "--strategy", "auto"], "--strategy auto compares exact exchanges"),
        (["--policy", "stale=2", "--activation-checkpoint", "full"], "exchanges again in the backward pass"),
    ],
)
def test_the_command_refuses_before_ranks_start(shards, capsys, words, message):
    assert main(["train", str(shards[0] / "edge"), *words]) == 2
    assert message in capsys.readouterr().err
