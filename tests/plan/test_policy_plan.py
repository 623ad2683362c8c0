"""Predictions for a policy of the user's: ``dgl-gt plan --policy``."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from selector_cases import SMALL, planned, profile_values, refused, write_profile

from dgl_gt.exchange.policy.policy import read_policy
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import HALO
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.plan import NothingFits, Tracer, read_profile, tracer_of
from dgl_gt.plan.policy_costs import kept_bytes, plan_policy
from dgl_gt.train import read_config

WIDE = ["--hidden", 64, *SMALL[2:]]
CONFIG = read_config(layers=2, hidden=64, heads=4)
MODES = ("exact", "int8", "stale=4,int8", "sampled=0.25", "sampled=0.25,int8", "stale=auto", "alone", "alone,edges=0.5")


@pytest.fixture
def slow(tmp_path):
    """A profile with links of 1 MB/s."""
    return write_profile(tmp_path / "slow.yaml", profile_values(link_bytes_per_s=[[1e6] * 2] * 2))


def test_beside_an_exact_step(here, both, slow):
    plan = ["plan", *both, *WIDE, "--profile", slow, "--json", "--policy"]
    found = {mode: planned(here(*plan, mode)) for mode in MODES}
    assert "policy" not in found["exact"]
    assert found["int8"]["choice"] == found["exact"]["choice"]
    of_mode = {mode: plan["policy"] for mode, plan in found.items() if mode != "exact"}
    assert of_mode["int8"]["policy"] == [{"mode": "int8"}]
    ratios = {mode: each["predicted_sent_bytes"] / each["predicted_exact_sent_bytes"] for mode, each in of_mode.items()}
    for each in of_mode.values():
        assert each["predicted_seconds"] < each["predicted_exact_seconds"]
        exact = next(
            way
            for way in found["exact"]["candidates"]
            if (way["directory"], way["strategy"], way["depth"]) == (each["directory"], each["strategy"], 1)
        )
        assert each["predicted_exact_sent_bytes"] == exact["sent_bytes"] and each["strategy"] in ("halo_h", "mirror")
    assert ratios["stale=auto"] == 1 and of_mode["stale=auto"]["kept_bytes"] > of_mode["int8"]["kept_bytes"] > 0
    assert all(of_mode[mode]["kept_bytes"] == 0 for mode in ("alone", "sampled=0.25", "sampled=0.25,int8"))
    assert of_mode["alone,edges=0.5"]["kept_bytes"] > 0
    assert ratios["alone"] == 0 and of_mode["alone"]["strategy"] == "mirror"
    assert ratios["sampled=0.25"] == pytest.approx(0.25)
    assert ratios["int8"] == pytest.approx(72 / 256, abs=0.02) and ratios["stale=4,int8"] < 0.1
    text = here(*plan[:-2], "--policy", "stale=4,int8").stdout
    assert "policy, approximate       stale=4,int8\nstrategy                  " in text
    assert "from step to step" in text
    assert "from step to step" not in here(*plan[:-2], "--policy", "alone").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "int9"], "--policy is 'int9'; it must be exact, bf16"),
        (["--policy", "alone"], "policy 'alone' needs a vertex cut, and this is an edge cut"),
        (["--policy", "int8", "--search-policy", "a.yaml"], "leave --policy out"),
    ],
)
def test_what_cannot_be_predicted(here, shards, words, message):
    refused(here("plan", shards / "edge", *WIDE, *words), message, lines=None)


def test_graphs_and_single_parts_are_refused(here, tmp_path):
    graph = "sample:communities?nodes=300&features=12&seed=0"
    done = here("plan", graph, *WIDE, "--world-size", 2, "--policy", "int8")
    refused(done, "plan predicts policies for shards only; partition the graph first, or leave --policy out")
    assert here("partition", graph, "--parts", 1, "--out", tmp_path / "one").returncode == 0
    refused(here("plan", tmp_path / "one", *WIDE, "--policy", "int8"), "one part exchanges nothing", lines=None)


def test_rules_must_fit_the_model_and_the_ranks(here, shards, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{mode: int8, layers: [5]}]")
    refused(
        here("plan", shards / "edge", *WIDE, "--policy", path),
        "the policy names layer 5, but the model has 2",
        lines=None,
    )


def figures_of(folder):
    return str(folder), read_figures(read_manifest(folder))


def test_layers_that_are_computed_again_exchange_once(both):
    """With kept exchanges, backward takes a layer's rows from the tape."""
    cuts, policy = [figures_of(folder) for folder in both], read_policy("stale=4,int8")
    once, again = (
        plan_policy(cuts, tracer_of(CONFIG.changed(activation_checkpoint=mode), 12, 10), read_profile(), policy)
        for mode in ("none", "keep_exchanges")
    )
    assert (again.sent_bytes, again.kept_bytes) == (once.sent_bytes, once.kept_bytes) and again.seconds > once.seconds
    assert again.candidate.activation_checkpoint == "keep_exchanges"


def pull_step(sg, mode="alone"):
    """A step that no strategy changes, and that runs on edge cuts alone."""
    model = torch.nn.Linear(12, 10)

    def step():
        model.zero_grad()
        sg.block  # a vertex cut has none
        model(sg.pull(sg.ndata["feat"])).sum().backward()

    return step


@pytest.mark.needs_dgl
def test_strategies_that_cannot_run_are_left_out(both):
    """halo_kv runs as halo_h, and the vertex cut not at all."""
    cuts = [figures_of(folder) for folder in both]
    found = plan_policy(cuts, Tracer(pull_step), read_profile(), read_policy("int8"))
    assert (found.candidate.strategy, found.candidate.cut) == ("halo_h", "edge")
    with pytest.raises(InputError, match="a vertex cut has no block"):
        plan_policy(cuts[1:], Tracer(pull_step), read_profile(), read_policy("int8"))


def test_no_policy_goes_with_exchanges_that_run_again(both):
    traces = tracer_of(CONFIG.changed(activation_checkpoint="full"), 12, 10)
    with pytest.raises(InputError, match="activation_checkpoint .full. exchanges again in the backward pass"):
        plan_policy([figures_of(both[0])], traces, read_profile(), read_policy("int8"))


def test_nothing_is_written_for_a_policy_that_is_refused(here, shards, tmp_path):
    done = here("plan", shards / "edge", *WIDE, "--policy", "alone", "--save-costs", tmp_path / "costs.json")
    refused(done, "policy 'alone' needs a vertex cut", lines=None)
    assert not (tmp_path / "costs.json").exists()


def test_each_rank_is_held_to_its_own_memory(tmp_path, awkward_graph):
    """Nearly all nodes are on rank 0, and rank 1 has just the memory for the rest; with less, another mode is tried."""
    graph = awkward_graph(3)
    owner = np.zeros(graph.num_nodes, int)
    owner[:4] = 1
    figures = Layout(graph, make_edge_cut(graph, 2, owner=owner)).figures
    figures = replace(figures, node_data={"feat": ("float32", (12,)), "label": ("int64", ())})
    traces, policy = tracer_of(CONFIG.changed(layers=3, hidden=16), 12, 10), read_policy("int8")
    values = profile_values(process_bytes=[0, 0])
    trace = traces.of(figures, HALO, 1)
    needed = trace.peak_bytes(figures) + kept_bytes(traces.exchanges(figures, HALO), policy, figures)
    assert needed[0] > 1.2 * needed[1]

    def planned_with(memory):
        profile = read_profile(write_profile(tmp_path / "p.yaml", {**values, "memory_bytes": memory}))
        return plan_policy([(None, figures)], traces, profile, policy).candidate

    enough = [float(each) for each in needed]
    first = planned_with(enough)
    assert (first.strategy, first.activation_checkpoint) == ("halo_h", "none")
    less = planned_with([enough[0] - 1, enough[1]])
    assert (less.strategy, less.activation_checkpoint) != ("halo_h", "none")
    with pytest.raises(NothingFits, match="nothing fits ranks"):
        planned_with([1e4, 1e9])


def test_other_numbers_of_ranks_are_refused(here, shards):
    refused(here("plan", shards / "edge", "--policy", "int8", "--world-size", 4), "--world-size 4", lines=None)


@pytest.mark.slow
def test_memory_that_the_policy_keeps_counts(here, shards, slow):
    plan = ["plan", shards / "edge", *WIDE, "--profile", slow, "--policy"]
    exact = planned(here(*plan, "bf16", "--json"))["policy"]["predicted_memory_bytes"]
    found = planned(here(*plan, "stale=4,int8", "--rank-memory", exact, "--json"))["policy"]
    assert found["predicted_memory_bytes"] <= exact and found["activation_checkpoint"] == "keep_exchanges"
    done = here(*plan, "stale=4,int8", "--rank-memory", exact // 2)
    refused(done, "nothing fits ranks of", lines=None)
