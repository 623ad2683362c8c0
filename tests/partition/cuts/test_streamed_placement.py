"""Where streaming places each edge: by HDRF with exact degrees, which copies less than chance does."""

import numpy as np
import pytest
from streamed_cases import listing, saved

from dgl_gt.partition.cuts.streamed_cut import edges_both_ways, open_stream, streamed_cut
from dgl_gt.partition.sources import coo
from dgl_gt.partition.sources.load import open_source

pytestmark = pytest.mark.usefixtures("streaming")


def hdrf(pairs, nodes, parts, balance=1.1, slack=1.05):
    """Return the part of each edge of the stream by HDRF with exact degrees and a cap, in plain Python."""
    degree = np.bincount(np.array(pairs).ravel(), minlength=nodes)
    capacity = int(np.ceil(slack * len(pairs) / parts))
    held, sizes, owner = [set() for _ in range(nodes)], [0] * parts, []
    for u, v in pairs:
        share = degree[u] / (degree[u] + degree[v])
        scores = {}
        for part in range(parts):
            if sizes[part] >= capacity and min(sizes) < capacity:
                continue
            copies = (2 - share if part in held[u] else 0) + (1 + share if part in held[v] else 0)
            scores[part] = copies + balance * (max(sizes) - sizes[part]) / (1 + max(sizes) - min(sizes))
        best = min(scores, key=lambda part: (-scores[part], sizes[part], part))
        owner.append(best)
        sizes[best] += 1
        held[u].add(best)
        held[v].add(best)
    return owner


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("size", [11, 1 << 20])
def test_edges_are_placed_by_hdrf_with_exact_degrees(tmp_path, monkeypatch, size, once, parts):
    monkeypatch.setattr(coo, "_SLICE_EDGES", size)
    opened = open_stream(open_source(saved(tmp_path, listing(12, once))))
    src, dst, ids = (np.concatenate(each).tolist() for each in zip(*edges_both_ways(opened)))
    expected = dict(zip(ids, hdrf(list(zip(src, dst)), opened.num_nodes, parts)))
    with streamed_cut(opened, parts, tmp_path / "edges") as cut:
        assert cut.parts == parts and len(cut.edge_part) == 0
        placed = {}
        for part in range(parts):
            *_, listed = cut.part_edges(opened, part)
            assert (np.diff(listed) > 0).all()
            placed |= dict.fromkeys(listed.tolist(), part)
    assert placed == expected


def replication(src, dst, owner, nodes, parts):
    pairs = np.concatenate([src * parts + owner, dst * parts + owner])
    return len(np.unique(pairs)) / nodes


@pytest.mark.parametrize("parts", [4, 16])
def test_streaming_copies_less_than_hashing(real_graph, tmp_path, parts):
    opened = open_stream(open_source(real_graph("email_enron")))
    src, dst, ids = (np.concatenate(each).astype(np.int64) for each in zip(*edges_both_ways(opened)))
    owner = np.empty(opened.num_edges, int)
    with streamed_cut(opened, parts, tmp_path / "edges") as cut:
        for part in range(parts):
            owner[cut.part_edges(opened, part)[2]] = part
    by_score = replication(src, dst, owner[ids], opened.num_nodes, parts)
    at_random = np.random.default_rng(0).integers(0, parts, len(ids))
    assert by_score < 0.8 * replication(src, dst, at_random, opened.num_nodes, parts)
    assert np.bincount(owner, minlength=parts).max() <= np.ceil(1.05 * opened.num_edges / parts)
