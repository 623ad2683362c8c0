"""Policies that are searched on ranks: bytes as counted in real runs, bounds, and the command."""

from pathlib import Path

import msgspec
import pytest
from ranks import run_ranks
from slow_case import slow

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.exchange.policy.policy import read_policy
from dgl_gt.partition import InputError, partition
from dgl_gt.partition.figures.profile import Hosts
from dgl_gt.partition.figures.strategies import HALO, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.plan import policy_search, read_profile
from dgl_gt.plan.planned_step import tracer_of
from dgl_gt.plan.policy_costs import PolicyCosts, kept_bytes
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

pytestmark = pytest.mark.usefixtures("rank_here")

CONFIG = read_config(epochs=8, layers=2, hidden=32, heads=4, dropout=0.2, lr=0.01, patience=0, seed=3)
STRATEGIES = ["halo_h", "halo_kv", "mirror"]
SLOW = Hosts(within=1e4, between=1e4, ranks_per_host=1)


@pytest.fixture(scope="module", params=[slow(2), 3])
def shards(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    graph = "sample:communities?nodes=400&features=16&classes=4&seed=0"
    partition(graph, request.param, folder / "edge")
    partition(graph, request.param, folder / "vertex", cut="vertex")
    return folder, request.param


def loaded(folder, strategy):
    directory = folder / ("vertex" if strategy == "mirror" else "edge")
    return dgl_gt.load(directory, strategy), read_figures(read_manifest(directory))


def search_on_rank(rank, folder, strategy, max_loss, loses, steps):
    """A search with few steps; where ``loses``, approximate steps are made to look bad."""
    policy_search._WARM_UP, policy_search._STEPS, policy_search.CHECKED_STEPS = steps
    if loses:
        measured = policy_search._Probe.metric_with

        def worse(probe, policy, steps):
            metric = measured(probe, policy, steps)
            return metric if policy.is_exact else metric - 0.5

        policy_search._Probe.metric_with = worse
    sg, figures = loaded(folder, strategy)
    profile = msgspec.structs.replace(read_profile(), link_bytes_per_s=SLOW)
    found = policy_search.search_policy(sg, figures, CONFIG, profile, max_loss)
    assert sg.view.transmission is None
    return found.policy.described(), found.loss, found.seconds, found.exact_seconds, found.sent_bytes


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slow_links_get_an_approximate_policy(shards, strategy):
    folder, parts = shards
    first, *others = run_ranks(parts, search_on_rank, folder, strategy, 50.0, False, (3, 2, 2))
    assert all(other == first for other in others)
    rules, loss, seconds, exact_seconds, _ = first
    assert rules and loss <= 50.0 and seconds < 0.7 * exact_seconds


def test_what_loses_too_much_is_not_taken(shards):
    folder, parts = shards
    rules, loss, seconds, exact_seconds, _ = run_ranks(parts, search_on_rank, folder, "halo_h", 0.1, True, (3, 2, 2))[0]
    assert rules in ([], [{"mode": "exact"}]) and loss == 0 and seconds == exact_seconds


POLICIES = ["exact", "bf16", "int8", "stale=4", "stale=4,int8", "rules.yaml"]


def bytes_on_rank(rank, folder, strategy):
    """Bytes of a step by the costs, and as runs of eight epochs count them."""
    sg, figures = loaded(folder, strategy)
    traces = tracer_of(CONFIG, figures.features, 4)
    exchanges = traces.exchanges(figures, strategy_of(strategy))
    costs = PolicyCosts.of_trace(traces.of(figures, strategy_of(strategy), 1), figures, read_profile(), exchanges)
    names = [str(folder / name) if name.endswith("yaml") else name for name in POLICIES]
    expected = [costs.sent_bytes(read_policy(name)) for name in names]
    return expected, [train(sg, CONFIG.changed(policy=name)).exchanged_bytes_per_epoch for name in names]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bytes_are_those_that_are_counted(shards, strategy):
    folder, parts = shards
    (folder / "rules.yaml").write_text(
        "rules: [{mode: int8}, {mode: 'stale=2,int4', direction: rows, peers: [[0, 1]]}]"
    )
    expected, counted = run_ranks(parts, bytes_on_rank, folder, strategy)[0]
    for name, wanted, got in zip(POLICIES, expected, counted):
        assert got == pytest.approx(wanted, abs=1), name


def kept_on_rank(rank, folder, strategy):
    """Bytes that lanes keep after two steps, as predicted and as they are."""
    policy_search._WARM_UP = 1
    sg, figures = loaded(folder, strategy)
    exchanges, found = tracer_of(CONFIG, figures.features, 4).exchanges(figures, strategy_of(strategy)), []
    probe = policy_search._Probe(sg, CONFIG, lambda text: None)
    for mode in KEPT:
        policy = read_policy(mode)
        transmission = sg.view.follow(policy, 0)
        for step in (1, 2):
            probe._take(step)
        tensors = [each for lane in transmission._lanes.values() for each in (lane._here, lane._there, lane._error)]
        transmission.close()
        found.append(
            (int(kept_bytes(exchanges, policy, figures)[rank]), sum(x.nbytes for x in tensors if x is not None))
        )
    return found


KEPT = ["bf16", "int8", "stale=4", "stale=2,int4", "stale=auto"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_kept_from_step_to_step(shards, strategy):
    folder, parts = shards
    for found in run_ranks(parts, kept_on_rank, folder, strategy):
        for mode, (predicted, kept) in zip(KEPT, found, strict=True):
            assert kept == pytest.approx(predicted, rel=1e-3), mode
            assert (kept > 0) == (mode != "bf16")


def narrow_on_rank(rank, folder):
    policy_search._WARM_UP, policy_search._STEPS, policy_search.CHECKED_STEPS = 1, 2, 2
    sg, figures = loaded(folder, "halo_h")
    with pytest.raises(InputError, match="no exchange has rows of 32 numbers or more"):
        policy_search.search_policy(sg, figures, CONFIG.changed(hidden=16), read_profile(), 1.0)
    with pytest.raises(InputError, match="the loss is"):
        policy_search.search_policy(sg, figures, CONFIG.changed(lr=1000.0, warmup=0, norm="none"), read_profile(), 1.0)
    return sg.view.transmission is None


def test_narrow_rows_and_losses_that_are_not_finite_are_refused(shards):
    policies = run_ranks(shards[1], narrow_on_rank, shards[0])
    assert all(policies)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_loss": 0.0}, "max_loss is 0.0"),
        ({"max_loss": 100}, "max_loss is 100"),
        ({"mode": "full"}, "activation_checkpoint is full"),
        ({}, "one rank exchanges nothing"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path, monkeypatch, change, message):
    partition("sample:communities?nodes=100", 1, tmp_path / "one")
    sg, figures = dgl_gt.load(tmp_path / "one"), read_figures(read_manifest(tmp_path / "one"))
    if "max_loss" not in change:
        change = {"max_loss": 1.0} | change
    if "mode" in change:
        monkeypatch.setattr(sg.comm, "world_size", 2)
        monkeypatch.setattr(sg, "strategy", HALO)
    config = CONFIG.changed(activation_checkpoint=change.get("mode", "none"))
    with pytest.raises(InputError, match=message):
        policy_search.search_policy(sg, figures, config, read_profile(), change["max_loss"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--search-policy", "found.txt"], "--search-policy is found.txt; it must end in .yaml"),
        (["--search-policy", "found.yaml", "--max-loss", "100"], "--max-loss is 100; it must be below 100"),
        (["--max-loss", "1"], "--max-loss needs --search-policy FILE.yaml"),
        (["--search-policy", "found.yaml", "--classes", "3"], "leave --classes out"),
        (["--search-policy", "there.yaml"], "there.yaml"),
    ],
)
def test_the_command_refuses(shards, capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").touch()
    assert main(["plan", str(shards[0] / "edge"), *words]) == 2
    assert message in capsys.readouterr().err
    assert main(["plan", str(shards[0] / "edge"), str(shards[0] / "vertex"), "--search-policy", "a.yaml"]) == 2
    assert "needs one shard directory, and 2 are named" in capsys.readouterr().err
