"""The first attempts at edge cuts, which METIS starts: how they differ, and how they are ranked."""

import numpy as np
from hand_made_costs import hand_made_costs, on_links

from dgl_gt.partition.cuts import metis
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.figures.costs import Costs, default_costs
from dgl_gt.partition.shards.layout import Layout


def test_attempts_are_ranked_by_the_seconds_that_are_reported(awkward_graph, monkeypatch):
    """They agree to the last digit."""
    draw = np.random.default_rng(0)
    monkeypatch.setattr(metis, "k_way", lambda *_, **__: draw.integers(0, 3, 60).astype(np.int32))
    ranked, costs, step_seconds = [], hand_made_costs(), Costs.step_seconds
    monkeypatch.setattr(Costs, "step_seconds", lambda *given: ranked.append(step_seconds(*given)) or ranked[-1])
    graph = awkward_graph(1)
    cut = make_edge_cut(graph, 3, attempts=4, costs=costs)
    assert len(ranked) == 4 and min(ranked) == step_seconds(costs, Layout(graph, cut).figures)


def test_more_attempts_are_never_predicted_to_be_slower(awkward_graph, monkeypatch):
    graph, known, original = awkward_graph(2, nodes=300, edges=2400), {}, metis.k_way

    def k_way(adjacency, parts, weights, **options):  # METIS is slow to start
        key = (weights.tobytes(), options["objective"], options["seed"])
        if key not in known:
            known[key] = original(adjacency, parts, weights, **options)
        return known[key].copy()

    monkeypatch.setattr(metis, "k_way", k_way)
    kept = set()
    for costs in (default_costs(), hand_made_costs(byte_s=1e-11), on_links(4e-8)):
        seconds = []
        for attempts in (1, 2, 4, 7):
            cut = make_edge_cut(graph, 3, attempts=attempts, costs=costs)
            seconds.append(costs.step_seconds(Layout(graph, cut).figures))
            kept.add((cut.order.tobytes(), cut.ptr.tobytes()))
        assert seconds == sorted(seconds, reverse=True)
    assert len(known) == 8 and len(kept) > 1  # two of the six weigh nodes by costs, of which two are alike


def test_twelve_attempts_differ_in_objective_weights_and_levels(awkward_graph, monkeypatch):
    graph, asked, stages = awkward_graph(1), [], []
    original = metis.k_way

    def k_way(adjacency, parts, weights, **options):
        asked.append((options["objective"], tuple(weights - graph.in_degrees()), options["seed"]))
        return original(adjacency, parts, weights, **options)

    monkeypatch.setattr(metis, "k_way", k_way)
    make_edge_cut(graph, 2, seed=5, attempts=12, progress=lambda stage: stages.append(stage))
    assert len(asked) == 12 and len(set(asked)) == 6
    assert {objective for objective, *_ in asked[:6]} == {"cut", "volume"}
    assert len({weights for _, weights, _ in asked}) == 3
    assert asked[6:] == asked[:6] and {seed for *_, seed in asked} == {5}
    stages = {stage.rpartition(": ")[2] for stage in stages}
    assert {"METIS, 2 parts, cut", "METIS, 2 parts, volume", "edge cut, local search"} <= stages


def test_the_same_seed_gives_the_same_cut_of_many(awkward_graph):
    graph = awkward_graph(6, nodes=200, edges=1200)
    one, two = (make_edge_cut(graph, 3, seed=4, attempts=2) for _ in range(2))
    assert (one.order == two.order).all() and (one.ptr == two.ptr).all()
