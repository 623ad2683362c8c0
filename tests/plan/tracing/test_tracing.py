"""Traces of training steps: bytes sent and passes over edges, for every strategy and any number of ranks."""

import pytest
from expected_bytes import Sizes, step_bytes
from ranks import run_ranks
from traced_steps import CLASSES, COLUMNS, FEATURES, MODEL, WAYS, measured, step_of, transformer_step

import dgl_gt
from dgl_gt.nn import GraphTransformer
from dgl_gt.partition import partition
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.strategies import HALO, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.plan import report_costs
from dgl_gt.plan.stand_in import make_layout
from dgl_gt.plan.tracing import record_trace


@pytest.mark.parametrize(("strategy", "depth"), [*WAYS, ("mesh=2", 1)])
def test_bytes_and_passes_over_edges(shards, strategy, depth):
    """Memory, and modes of activation checkpointing, are compared with ranks in test_predicted_memory.py."""
    figures = read_figures(dgl_gt.partition.read_manifest(shards / ("vertex" if strategy == "mirror" else "edge")))
    parts = figures.parts
    if strategy == "mesh=2" and parts == 2:
        with pytest.raises(InputError, match="mesh=2 on 2 ranks is the same as heads"):
            record_trace(transformer_step, strategy_of(strategy), depth, parts, *COLUMNS)
        return
    trace = record_trace(transformer_step, strategy_of(strategy), depth, parts, *COLUMNS)
    sent, _ = step_bytes(figures, MODEL, strategy, depth)
    assert trace.sent_bytes(figures) == sent.sum()
    calls = {"halo_h": 2, "halo_kv": 2, "gather": 2 * (parts - 1), "heads": 4, "ring": 3 * (parts - 1), "mirror": 6}
    calls |= {"mesh=2": 6}
    assert len(trace.positions("begin")) == (MODEL.layers * calls[strategy] if depth == 1 else 0)
    if depth == 1:
        assert passes_over_edges(trace, figures) == pytest.approx(3 * MODEL.layers * MODEL.heads * figures.edges.sum())


def passes_over_edges(trace, figures) -> float:
    """Passes over each edge by each head, summed over edges and ranks: a layer has one forward and two backward."""
    edges = trace.sizes_of(figures)[:, trace.positions("edges")].sum(axis=0)
    return edges @ [event.what[0] * event.what[3] for event in trace.events if event.kind == "edges"]


def test_one_part_alone(graph, tmp_path):
    partition(graph, 1, tmp_path / "one")
    costs = report_costs(transformer_step, tmp_path / "one", "local")
    assert costs.sent_bytes == 0 and costs.time.exchange_s == 0
    ((peak, sent),) = run_ranks(1, measured, tmp_path / "one", transformer_step, "local")
    assert costs.peak_bytes == pytest.approx([peak], rel=0.03) and sent == 0


def test_many_ranks(graph, parts=20):
    """The made-up parts of many ranks are small, and the traces still tell all counts apart; no size is below 0."""
    edge = Layout(graph, make_edge_cut(graph, parts), 2).figures
    vertex = Layout(graph, make_vertex_cut(graph, parts, by_metis=False)).figures
    ways = [("halo_h", 2), ("gather", 1), ("ring", 1), ("mirror", 1), ("mesh=2", 1), ("mesh=4", 1)]
    for strategy, depth in ways:
        figures = vertex if strategy == "mirror" else edge
        trace = record_trace(transformer_step, strategy_of(strategy), depth, parts, *COLUMNS)
        sizes = trace.sizes_of(figures)
        assert trace.sent_bytes(figures) == step_bytes(figures, MODEL, strategy, depth)[0].sum()
        for kind in ("product", "rows", "edges", "begin"):
            assert sizes[:, trace.positions(kind)].min(initial=0) > -1e-3
        if depth == 1:
            assert passes_over_edges(trace, figures) == pytest.approx(3 * MODEL.layers * MODEL.heads * edge.edges.sum())


def test_halos_of_several_hops(graph):
    """No hop of the made-up parts is empty; with two hops, five layers need two exchanges besides the stored halo."""

    def deep_step(sg):
        made = GraphTransformer(FEATURES, 16, CLASSES, 5, 2, ffn=2)
        return step_of(sg, made, lambda: made(sg.taking_held_rows(), sg.srcdata["feat"]))

    for parts, depth, exchanges in ((2, 5, 0), (5, 2, 2)):
        figures = Layout(graph, make_edge_cut(graph, parts), 5).figures
        trace = record_trace(deep_step, HALO, depth, parts, *COLUMNS)
        sent, _ = step_bytes(figures, Sizes(5, 16, 2), "halo_h", depth)
        assert trace.sent_bytes(figures) == sent.sum() and len(trace.positions("begin")) == 2 * exchanges
        assert (trace.peak_bytes(figures) > 4 * 16 * 5 * figures.owned).all()


@pytest.mark.parametrize("strategy", ["halo", "gather", "ring"])
def test_any_strategy_on_one_part(graph, tmp_path, strategy):
    """Counts that are always zero there are left out."""
    partition(graph, 1, tmp_path / "one")
    costs = report_costs(transformer_step, tmp_path / "one", strategy)
    assert costs.sent_bytes == 0 and costs.peak_bytes[0] > 0


@pytest.mark.parametrize(("strategy", "depth", "parts"), [("halo_h", 12, 2), ("halo_h", 12, 16), ("mirror", 1, 200)])
def test_made_up_graphs_for_many_hops_or_parts(strategy, depth, parts):
    figures = make_layout(strategy_of(strategy), depth, parts, 0, *COLUMNS).figures
    assert figures.parts == parts and figures.copies_by_hop[0].min() > 0


def test_more_hops_than_made_up_graphs_have():
    with pytest.raises(InputError, match="a halo of 90 hops in 2 parts cannot be traced"):
        make_layout(HALO, 90, 2, 0, *COLUMNS)
