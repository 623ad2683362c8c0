"""Figures of a graph that is not there, from those of a sample."""

import json

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, load_graph, make_edge_cut, make_vertex_cut
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.scaled import scaled
from dgl_gt.partition.shards.layout import Layout
from dgl_gt.plan.partitioning_hours import partitioning_of

PARTS = 4


def figures_of(nodes: int, cut: str) -> Figures:
    graph = load_graph(f"sample:communities?nodes={nodes}&degree=8&features=4")
    made = make_edge_cut(graph, PARTS) if cut == "edge" else make_vertex_cut(graph, PARTS)
    return Layout(graph, made, 2 if cut == "edge" else 1).figures


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_counts_grow_in_proportion(cut):
    sample = figures_of(1000, cut)
    edges = int(sample.edges.sum())
    same = scaled(sample, 1000, edges)
    for name in ("owned", "edges_by_hop", "copies_by_hop", "received_rows", "near_edges", "returned_edges"):
        np.testing.assert_array_equal(getattr(same, name), getattr(sample, name), err_msg=name)
    large = scaled(sample, 10**9 + 7, 8 * 10**9 + 1)
    assert (large.nodes, int(large.edges.sum())) == (10**9 + 7, 8 * 10**9 + 1)
    np.testing.assert_allclose(large.copies_by_hop / large.nodes, sample.copies_by_hop / sample.nodes, rtol=1e-5)
    assert sum(each.sum() for each in large.masked.values()) == pytest.approx(large.nodes, rel=1e-6)


def test_a_sample_foretells_a_larger_graph():
    small, large = (figures_of(nodes, "edge") for nodes in (4000, 16000))
    found = scaled(small, large.nodes, int(large.edges.sum()))
    assert found.copies_within(1).sum() == pytest.approx(large.copies_within(1).sum(), rel=0.25)


def test_another_degree_is_refused():
    with pytest.raises(InputError, match=r"mean degree of 20, and the sample has 8"):
        scaled(figures_of(1000, "edge"), 10**6, 2 * 10**7)


@pytest.mark.parametrize("text", ["1e9", "0,5", "a,b", "1e9,1e99", "inf,1"])
def test_what_is_no_size(text, capfd):
    with pytest.raises(SystemExit):
        main(["plan", "sample:communities?nodes=1000", "--figures-of", text])
    assert repr(text) in capfd.readouterr().err


def test_plan(capfd):
    sample = "sample:communities?nodes=1000&degree=8&features=4"
    assert main(["plan", sample, "--figures-of", "1e6,8e6", "--world-size", "2", "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["partitioning"]["seconds"] > 0 and "memory_bytes" in json.dumps(printed["candidates"])


def test_hours_of_partitioning_grow_with_edges_and_fall_with_workers():
    few = partitioning_of(10**8, 10**9, 64, 16, 64 << 30)
    more_workers = partitioning_of(10**8, 10**9, 64, 64, 64 << 30)
    more_edges = partitioning_of(10**8, 4 * 10**9, 64, 16, 256 << 30)
    assert more_workers.seconds < few.seconds < more_edges.seconds
    assert few.written_bytes > 10**8 * 64 * 4 + 10**9 * 8
    assert partitioning_of(10**9, 10**10, 64, 64, 48 << 30).seconds is None  # a run refuses so little memory
