"""Linear costs, fitted from traces: on the cut that they were fitted on they say what the traces say."""

import json

import numpy as np
import pytest
from selector_cases import MadeUpTraces, profile_values, refused, write_profile

from dgl_gt.partition import default_costs, from_edges, load_graph, read_costs, read_figures, read_manifest
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.figures.costs import CutCosts, PerCount
from dgl_gt.partition.figures.strategies import Count, strategy_of
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.plan import choose, read_profile, tracer_of
from dgl_gt.train import read_config

DEFAULT_SOURCE, DEFAULT_RANKS = "sample:communities?nodes=20000&features=128", 4


def even_cuts(parts=2, side=24):
    """Cuts of a torus into parts that are alike, so that linear costs lose nothing by their averages over ranks."""
    node = np.arange(side * side).reshape(side, side)
    ends = [(node, np.roll(node, 1, axis)) for axis in (0, 1)]
    src, dst = (np.concatenate([pair[i].ravel() for pair in ends]) for i in (0, 1))
    data = {"feat": np.zeros((side * side, 5), np.float32), "label": np.arange(side * side) % 3}
    graph = from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), side * side, data)
    edge = make_edge_cut(graph, parts, owner=np.arange(side * side) * parts // (side * side))
    return graph, [Layout(graph, edge).figures, Layout(graph, make_vertex_cut(graph, parts, by_metis=False)).figures]


@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_on_their_own_cut_they_are_the_plan(tmp_path, overlap):
    _, cuts = even_cuts()
    profile = read_profile(write_profile(tmp_path / "two.yaml", profile_values(overlap=overlap)))
    traces = tracer_of(read_config(layers=3, hidden=16, heads=4), 5, 3)
    plan = choose([(None, figures) for figures in cuts], traces, profile)
    for figures in cuts:
        of_cut = plan.costs.of(figures.cut)
        (same,) = (each for each in plan.candidates if (each.strategy, each.depth) == (of_cut.strategy, 1))
        assert plan.costs.sent_bytes(figures) == same.sent_bytes
        assert plan.costs.step_seconds(figures) == pytest.approx(same.seconds, rel=0.05)
        assert plan.costs.rank_memory_bytes(figures).max() == pytest.approx(same.peak_bytes, rel=0.02)
    assert plan.costs.model == plan.model and plan.costs.profile == profile.name
    fastest = min(
        (each for each in plan.candidates if each.strategy in ("halo_h", "halo_kv")), key=lambda it: it.seconds
    )
    assert plan.costs.edge.strategy == fastest.strategy


def test_costs_of_made_up_traces_are_their_sizes():
    """Bytes and calls."""
    _, cuts = even_cuts()
    plan = choose([(None, cuts[0])], MadeUpTraces(modes=("none",)), read_profile())
    assert plan.costs.vertex is None and isinstance(plan.costs.edge, CutCosts)
    trace = MadeUpTraces(modes=("none",)).of(cuts[0], strategy_of(plan.costs.edge.strategy), 1)
    at = dict(zip(trace.counts, trace.sizes.T[trace.positions("begin")[0]]))
    assert plan.costs.edge.sent_bytes == PerCount(sent=pytest.approx(at[Count("sent", 0)], rel=1e-5))
    assert plan.costs.edge.calls == 1


def test_more_work_costs_more():
    """Twice the width, more layers, or a slower link."""
    _, cuts = even_cuts()
    costs = {}
    for preset in ("8xH100", "4hosts-100GbE"):
        plan = choose(
            [(None, cuts[0])], tracer_of(read_config(), 5, 3), read_profile(preset=preset), strategies=("halo_h",)
        )
        costs[preset] = plan.costs.edge
    assert costs["4hosts-100GbE"].byte_s > costs["8xH100"].byte_s
    for name, config in (("base", {}), ("wide", {"hidden": 128}), ("deep", {"layers": 4})):
        plan = choose([(None, cuts[0])], tracer_of(read_config(**config), 5, 3), read_profile(), strategies=("halo_h",))
        costs[name] = plan.costs.edge
    for name in ("wide", "deep"):
        assert costs[name].compute_s.edges > 1.5 * costs["base"].compute_s.edges
        assert costs[name].sent_bytes.copies == 2 * costs["base"].sent_bytes.copies
    assert costs["deep"].calls == 2 * costs["base"].calls


def test_the_default_costs_are_those_of_the_default_model():
    """The file was made by the command in docs/selector.md."""
    graph = load_graph(DEFAULT_SOURCE)
    cuts = [make(graph, DEFAULT_RANKS) for make in (make_edge_cut, make_vertex_cut)]
    plan = choose([(None, Layout(graph, cut).figures) for cut in cuts], tracer_of(read_config(), 128), read_profile())
    found, stored = plan.costs, default_costs()
    assert found.model == stored.model and found.profile == stored.profile
    for made, kept in ((found.edge, stored.edge), (found.vertex, stored.vertex)):
        assert made.strategy == kept.strategy and made.calls == kept.calls
        for name in ("compute_s", "sent_bytes", "tensor_bytes"):
            amounts = [
                [getattr(getattr(each, name), count) for count in PerCount.__struct_fields__] for each in (made, kept)
            ]
            np.testing.assert_allclose(*amounts, rtol=0.02, atol=1e-9, err_msg=name)
        assert (made.byte_s, made.call_s) == pytest.approx((kept.byte_s, kept.call_s), rel=0.02)


def test_from_a_plan_to_a_partition(here, tmp_path):
    """On the command line."""
    source, file = "sample:communities?nodes=300&features=4", tmp_path / "costs.json"
    save = ["plan", source, "--world-size", "2", "--layers", "1", "--hidden", "8", "--save-costs", file]
    done = here(*save)
    assert done.returncode == 0, done.stderr
    costs = read_costs(file)
    assert costs.model["hidden"] == 8 and costs.edge and costs.vertex
    made = here(
        "partition", source, "--parts", 2, "--out", tmp_path / "out", "--cut", "auto", "--costs", file, "--json"
    )
    choice = json.loads(made.stdout)["choice"]
    assert choice["model"]["hidden"] == 8 and choice["profile"] == costs.profile
    expected = [costs.step_seconds(read_figures(read_manifest(tmp_path / "out")))]
    assert [each["predicted_seconds"] for each in choice["candidates"] if each["cut"] == choice["cut"]] == expected
    refused(here(*save), "exists", lines=None)
    save[3] = "1"
    refused(here(*save, "--force"), "a plan for one rank has none; add --world-size 2 or more", lines=None)
    assert read_costs(file) == costs
