"""Odd graphs that are streamed: those with hardly an edge, and those that are refused as in memory."""

import os

import numpy as np
import pytest
from streamed_cases import check_shards, listing, saved, stored

from dgl_gt.partition import load_graph, partition
from dgl_gt.partition.cuts import streamed_cut as streamed_cut_module
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.sources import coo

pytestmark = pytest.mark.usefixtures("streaming")


def bare(pairs, nodes, directed=True):
    index = np.array(pairs, int).reshape(-1, 2).T
    return {"edge_index": index, "num_nodes": nodes, "directed": directed}


STRANGE = {
    "no edges": (bare([], 7), 3),
    "one edge": (bare([(0, 1)], 6), 4),
    "one edge listed once": (bare([(1, 0)], 2, False), 2),
    "loops alone": (bare([(2, 2), (2, 2), (0, 0)], 4), 3),
    "loops alone, listed once": (bare([(2, 2), (2, 2), (0, 0)], 4, False), 3),
    "one node": (bare([(0, 0)] * 5, 1), 1),
    "parallel edges alone": (bare([(0, 1)] * 9, 3), 3),
    "a star": (bare([(0, v) for v in range(1, 20)], 20, False), 20),
    "more parts than edges": (bare([(0, 1), (5, 2)], 60), 60),
    "more parts than bits in a word": (bare([(v, (v * 7 + 3) % 80) for v in range(80)], 80), 70),
    "loop first and last, listed once": (bare([(0, 0), (0, 1), (1, 1), (1, 2), (3, 3)], 5, False), 2),
}


@pytest.mark.parametrize("slices", [1, 3, 1 << 20])
@pytest.mark.parametrize("case", STRANGE)
def test_strange_graphs(tmp_path, monkeypatch, case, slices):
    arrays, parts = STRANGE[case]
    monkeypatch.setattr(coo, "_SLICE_EDGES", slices)
    partition(saved(tmp_path, arrays), parts, tmp_path / "out", memory=1)
    manifest = check_shards(tmp_path / "out", arrays, parts)
    if len(arrays["edge_index"][0]) < 2:
        assert manifest["quality"]["node_balance"] <= 2, "nodes without edges are spread"


@pytest.mark.parametrize("parts", [0, -1, 51])
def test_impossible_numbers_of_parts(tmp_path, parts):
    with pytest.raises(InputError, match=f"parts is {parts};|into {parts} parts"):
        partition(saved(tmp_path, listing(0)), parts, tmp_path / "out", memory=1)
    assert os.listdir(tmp_path) == ["g.npz"]


@pytest.mark.parametrize("bound", ["nodes", "edges"])
def test_more_than_32_bits_are_refused(tmp_path, monkeypatch, bound):
    arrays = listing(0, once=True)
    monkeypatch.setattr(streamed_cut_module, "LARGEST_ID", {"nodes": 49, "edges": len(stored(arrays)[0]) - 1}[bound])
    with pytest.raises(InputError, match="a vertex cut takes at most"):
        partition(saved(tmp_path, arrays), 2, tmp_path / "out", memory=1)
    monkeypatch.setattr(streamed_cut_module, "LARGEST_ID", len(stored(arrays)[0]))
    partition(saved(tmp_path, arrays), 2, tmp_path / "out", memory=1)


WRONG = {
    "id not below N": {"num_nodes": 40},
    "rows of features": {"x": np.ones((49, 2))},
    "rows of edge data": {"edge_data_kind": np.ones(261)},
    "NaN": {"x": np.full((50, 2), np.nan, np.float32)},
    "infinite edge data": {"edge_data_weight": np.full(260, np.inf)},
    "text": {"x": np.full((50, 2), "a")},
    "labels": {"y": np.full(50, np.inf)},
    "labels of two dimensions": {"y": np.ones((50, 2, 2), int)},
    "masks overlap": {"train_mask": np.ones(50, bool)},
    "empty mask": {"test_mask": np.zeros(50, bool)},
    "mask of 2": {"val_mask": np.full(50, 2)},
    "unlabelled training nodes": {"y": np.full(50, -1)},
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("once", [False, True])
def test_refused_in_the_words_of_load_graph(tmp_path, once, case):
    source = saved(tmp_path, listing(0, once, **WRONG[case]))
    with pytest.raises(InputError) as expected:
        load_graph(source)
    with pytest.raises(InputError) as caught:
        partition(source, 2, tmp_path / "out", memory=1)
    assert str(caught.value) == str(expected.value)
    assert os.listdir(tmp_path) == ["g.npz"]
