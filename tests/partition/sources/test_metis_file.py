"""METIS graph files."""

import numpy as np
import pytest
from source_checks import edges, refused, written

from dgl_gt.partition.sources import text_table
from dgl_gt.partition.sources.load import load_graph


@pytest.mark.parametrize(
    "text, expected, weight",
    [
        ("% c\n4 2\n2 3\n1\n% in between\n1\n\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("4 2\n2 3\n1\n1\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("4 2 000\n2 3\n1\n1\n\n\n\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("3 2 1\n2 5 3 6\n1 5\n1 6", [(0, 1), (0, 2), (1, 0), (2, 0)], [5, 6, 5, 6]),
        ("3 2 10\n9 2 3\n9 1\n9 1\n", [(0, 1), (0, 2), (1, 0), (2, 0)], None),
        ("3 2 011 2\n9 9 2 5 3 6\n9 9 1 5\n9 9 1 6\n", [(0, 1), (0, 2), (1, 0), (2, 0)], [5, 6, 5, 6]),
        ("3 2 111 2\n8 9 9 2 5 3 6\n8 9 9 1 5\n8 9 9 1 6\n", [(0, 1), (0, 2), (1, 0), (2, 0)], [5, 6, 5, 6]),
        ("2 0\n\n\n", [], None),
    ],
)
@pytest.mark.parametrize("block", [7, 1 << 24])
def test_metis(tmp_path, monkeypatch, text, expected, weight, block):
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", block)
    graph = load_graph(written(tmp_path / "g.graph", text))
    assert edges(graph) == expected
    assert graph.num_nodes == int(text.removeprefix("% c\n").split()[0])
    assert (graph.edge_data["weight"].tolist() if weight else graph.edge_data) == (weight or {})


def test_metis_against_a_plain_writing(tmp_path, small_blocks):
    rng = np.random.default_rng(0)
    pairs = {(int(min(e)), int(max(e))) for e in rng.integers(0, 40, (90, 2)) if e[0] != e[1]}
    neighbours = [sorted(v for e in pairs for u, v in (e, e[::-1]) if u == i) for i in range(45)]
    lines = [f"45 {len(pairs)}", *(" ".join(str(v + 1) for v in row) for row in neighbours)]
    graph = load_graph(written(tmp_path / "g.graph.gz", "\n".join(lines)))
    assert edges(graph) == [(u, v) for u, row in enumerate(neighbours) for v in row]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", ["header"]),
        ("% c\n", ["header"]),
        ("3\n", ["line 1", "'3'"]),
        ("3 x\n", ["line 1"]),
        ("3 2 2\n", ["line 1", "fmt"]),
        ("3 2\n2 3\n1\n", ["3 neighbours are listed", "4"]),
        ("5 2\n2 3\n1\n1\n", ["3 lines", "5 nodes", "truncated"]),
        ("2 2\n2\n1\n1\n", ["3 lines", "2 nodes of the header; correct"]),
        ("3 1\n2 3\n1\n1\n", ["4 neighbours", "1 edges"]),
        ("3 2\n2 4\n1\n1\n", ["node 1 lists 4", "1..3"]),
        ("3 2\n2 0\n1\n1\n", ["node 1 lists 0"]),
        ("3 2\n2 3\n1\n2\n", ["nodes 1 and 3 do not both list each other"]),
        ("3 1\n1 1\n\n\n", ["lists itself"]),
        ("3 2\n2 3\n1 a\n1\n", ["line 3", "'1 a'"]),
        ("3 2\n2 3\n1.5\n1\n", ["line 3"]),
        ("3 2\n2-3\n1\n1\n", ["line 2"]),
        ("3 2 1\n2 5 3\n1 5\n1 6\n", ["node 1", "3 numbers", "pairs"]),
        ("3 2 10\n9 2 3\n\n9 1\n", ["node 2", "0 numbers"]),
    ],
)
def test_metis_refused(tmp_path, small_blocks, text, words):
    refused(written(tmp_path / "g.graph", text), "g.graph", *words)


@pytest.mark.parametrize("header", ["1" + "0" * 30 + " 2\n", "3 " + "9" * 5000 + "\n", "3 2 11 " + "9" * 30 + "\n"])
def test_metis_header_beyond_any_file(tmp_path, header):
    refused(written(tmp_path / "g.graph", header + "2 3\n1\n1\n"), "line 1", "digits", "header")
    refused(written(tmp_path / "g.graph", "9" * 18 + " 2\n2 3\n1\n1\n"), "truncated")


def test_metis_weights_of_nodes_are_node_data(tmp_path, small_blocks):
    graph = load_graph(written(tmp_path / "g.graph", "3 2 111 2\n8 1 2 2 5 3 6\n8 3 4 1 5\n8 5 6 1 6"))
    assert graph.node_data["weight"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert graph.edge_data["weight"].tolist() == [5, 6, 5, 6]
    assert graph.left_out == ("node sizes of g.graph (used by METIS only)",)
    graph = load_graph(written(tmp_path / "g.graph", "3 1 10\n7 2\n8 1\n9\n"))
    assert graph.node_data["weight"].tolist() == [7, 8, 9] and graph.node_data["weight"].dtype == np.int64
    assert graph.num_edges == 2 and graph.edge_data == {} and graph.left_out == ()
    refused(written(tmp_path / "g.graph", "3 1 10\n7 2\n8 1\n"), "2 lines", "truncated")


@pytest.mark.parametrize("weight", ["9223372036854775808", "99999999999999999999", "-9223372036854775809"])
def test_weights_beyond_int64_are_refused(tmp_path, weight):
    refused(written(tmp_path / "g.graph", f"2 1 001\n2 {weight}\n1 {weight}\n"), "line 2", "whole numbers below 2**63")
