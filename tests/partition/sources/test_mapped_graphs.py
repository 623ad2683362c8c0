"""Graphs made of memory-mapped arrays equal those of arrays in memory."""

import numpy as np
import pytest
from source_checks import edges, refused, same
from streamed_cases import listing

from dgl_gt.partition.errors import SourceWarning
from dgl_gt.partition.sources.load import load_graph, open_source
from dgl_gt.partition.system import mapped_arrays
from dgl_gt.partition.system.mapped_arrays import is_mapped


def same_graph(graph, expected, but=()):
    assert graph.num_nodes == expected.num_nodes
    same(graph.indptr, expected.indptr)
    same(graph.indices, expected.indices)
    same(graph.edge_ids, expected.edge_ids)
    for data, wanted in ((graph.node_data, expected.node_data), (graph.edge_data, expected.edge_data)):
        assert data.keys() == wanted.keys() - set(but)
        for key, value in data.items():
            same(value, wanted[key])


def with_index(arrays, form):
    index = arrays["edge_index"]
    index = np.asfortranarray(index) if form == "F" else index.astype(form)
    return {**arrays, "edge_index": index}


@pytest.mark.parametrize("form", ["i8", "F", "u2", ">i4", "u8", "i1"])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_graph_is_the_same_from_mapped_arrays(tmp_path, everything_mapped, seed, once, form):
    arrays = with_index(listing(seed, once), form)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    np.savez(tmp_path / "plain.npz", **arrays)
    packed, plain = open_source(tmp_path / "packed.npz"), open_source(tmp_path / "plain.npz")
    assert is_mapped(plain.src) and is_mapped(plain.node_data["feat"]) and not is_mapped(packed.src)
    assert plain.num_edges == packed.num_edges and plain.loops.tolist() == packed.loops.tolist()
    expected = load_graph(tmp_path / "packed.npz")
    same_graph(load_graph(tmp_path / "plain.npz"), expected)
    assert len(edges(expected)) == plain.num_edges
    src, dst = arrays["edge_index"].astype(int).tolist()
    there = list(zip(src, dst))
    back = [(e, (v, u)) for e, (u, v) in enumerate(there) if u != v] if once else []
    assert edges(expected) == there + [pair for _, pair in back]
    rows = [*range(len(there)), *(e for e, _ in back)]
    assert (expected.edge_data["weight"] == arrays["edge_data_weight"][rows]).all()
    assert (plain.edge_rows(np.arange(plain.num_edges)) == rows).all()


def test_a_graph_is_the_same_from_npy_files(tmp_path, monkeypatch):
    arrays = listing(3)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    names = {"edge_index": "edge_index", "x": "feat", "y": "label", "train_mask": "train_mask", "val_mask": "val_mask"}
    for key, name in [*names.items(), ("test_mask", "test_mask")]:
        np.save(tmp_path / f"{name}.npy", arrays[key])
    columns = [tmp_path / f"{name}.npy" for name in ("feat", "label", "train_mask", "val_mask", "test_mask")]
    expected = load_graph(tmp_path / "packed.npz")
    for smallest in (1 << 20, 1):
        monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", smallest)
        graph = load_graph(tmp_path / "edge_index.npy", node_data=columns)
        expected.edge_data.clear()
        same_graph(graph, expected)
        assert graph.name == "edge_index.npy"
        bare = load_graph(tmp_path / "edge_index.npy")
        assert edges(bare) == edges(expected) and bare.num_nodes == arrays["edge_index"].max() + 1
        assert load_graph(tmp_path / "edge_index.npy", num_nodes=51).num_nodes == 51


def test_additions_to_a_mapped_graph(tmp_path, everything_mapped):
    arrays = {key: value for key, value in listing(4).items() if not key.startswith("edge_data")}
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    np.savez(tmp_path / "plain.npz", **arrays)
    options, before = dict(self_loops=True, undirected=True), (tmp_path / "plain.npz").read_bytes()
    same_graph(load_graph(tmp_path / "plain.npz", **options), load_graph(tmp_path / "packed.npz", **options))
    assert before == (tmp_path / "plain.npz").read_bytes()


def test_sparse_features_from_mapped_arrays(tmp_path, everything_mapped):
    sparse = dict(x_indptr=np.array([0, 1, 1, 3]), x_indices=np.array([1, 0, 1]), x_data=np.array([2.0, 3.0, 4.0]))
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [1]]), num_nodes=3, x_shape=np.array([3, 2]), **sparse)
    assert load_graph(tmp_path / "g.npz").node_data["feat"].tolist() == [[0, 2], [0, 0], [3, 4]]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_mapped_labels_and_masks_in_other_forms(tmp_path, everything_mapped, save):
    save(
        tmp_path / "g.npz",
        edge_index=np.array([[0], [1]]),
        num_nodes=3,
        label=np.array([[2.0], [np.nan], [1.0]], np.float32),
        train_mask=np.array([[1, 0], [0, 0], [0, 1]], np.int8),
        test_mask=np.array([0, 1, 0], np.float64),
    )
    data = load_graph(tmp_path / "g.npz").node_data
    same(data["label"], np.array([2, -1, 1]))
    same(data["train_mask"], np.array([[1, 0], [0, 0], [0, 1]], bool))
    same(data["test_mask"], np.array([[0, 0], [1, 1], [0, 0]], bool))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_edges_listed_both_ways(tmp_path, everything_mapped, save):
    """They are refused if directed is false; self-loops and parallel edges are not reverses."""
    path = tmp_path / "g.npz"
    save(path, edge_index=np.array([[0, 1, 2, 2], [1, 2, 1, 2]]), directed=False)
    refused(path, "both ways", "directed")
    save(path, edge_index=np.array([[0, 1, 1, 2, 3, 3], [1, 2, 2, 2, 3, 0]]), directed=False)
    assert edges(load_graph(path))[6:] == [(1, 0), (2, 1), (2, 1), (0, 3)]


def test_many_mapped_edges_listed_both_ways(tmp_path, everything_mapped):
    """A sample is checked: it finds a list that has every edge twice, and passes a correct one."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.sort(rng.integers(0, 3000, (20_000, 2))), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    rng.shuffle(pairs)
    flip = rng.random(len(pairs)) < 0.5
    pairs[flip] = pairs[flip][:, ::-1]
    np.savez(tmp_path / "once.npz", edge_index=pairs.T, directed=False)
    np.savez(tmp_path / "twice.npz", edge_index=np.concatenate([pairs, pairs[:, ::-1]]).T, directed=False)
    assert open_source(tmp_path / "once.npz").num_edges == 2 * len(pairs)
    refused(tmp_path / "twice.npz", "both ways")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(
    ("bad", "dtype"), [(-50, np.int64), (2**40, np.int64), (2**63 - 1, np.int64), (2**63 + 5, np.uint64)]
)
def test_impossible_ids_are_refused(tmp_path, everything_mapped, save, directed, bad, dtype):
    """The bad id is on an edge from a larger to a smaller id, so that the search for reverses runs."""
    save(tmp_path / "g.npz", edge_index=np.array([[0, 2, 4], [1, bad, 3]], dtype), directed=directed)
    refused(tmp_path / "g.npz", "g.npz", str(bad), ids="as-they-are")
    if bad < 0:
        refused(tmp_path / "g.npz", "g.npz", str(bad))
        return
    with pytest.warns(SourceWarning, match=f"{bad}, 6 are used"):
        graph = load_graph(tmp_path / "g.npz")
    assert graph.node_names.tolist() == [0, 1, 2, 3, 4, bad]
    assert edges(graph)[:3] == [(0, 1), (2, 5), (4, 3)] and graph.num_edges == (3 if directed else 6)


def test_the_search_for_reverses_does_not_mix_up_large_ids(tmp_path):
    """Keys of edges, source x N + destination, pass 2**32 here, and the ids are int32."""
    near = 2**17
    src, dst = np.array([near, 0, 5, near + 1]), np.array([0, near, near, 5])
    np.savez(tmp_path / "g.npz", edge_index=np.stack([src, dst]).astype(np.int32), directed=False)
    refused(tmp_path / "g.npz", "both ways")
    np.savez(tmp_path / "g.npz", edge_index=np.stack([src[[0, 2, 3]], dst[[0, 2, 3]]]).astype(np.int32), directed=False)
    assert load_graph(tmp_path / "g.npz").num_edges == 6


@pytest.mark.parametrize("key", ["feat", "label"])
def test_a_single_number_is_no_column(tmp_path, key):
    np.save(tmp_path / "edge_index.npy", np.array([[0, 1], [1, 3]]))
    np.save(tmp_path / f"{key}.npy", np.float32(3))
    refused(tmp_path / "edge_index.npy", key, node_data=tmp_path / f"{key}.npy")


def test_graphs_without_edges_and_with_unused_ids(tmp_path, everything_mapped):
    np.save(tmp_path / "none.npy", np.zeros((2, 0), int))
    np.save(tmp_path / "feat.npy", np.ones((3, 2)))
    assert load_graph(tmp_path / "none.npy", num_nodes=3).indptr.tolist() == [0, 0, 0, 0]
    assert load_graph(tmp_path / "none.npy", node_data=tmp_path / "feat.npy").num_nodes == 3
    refused(tmp_path / "none.npy", "0 nodes")
    np.save(tmp_path / "two.npy", np.array([[0], [1]]))
    assert load_graph(tmp_path / "two.npy", node_data=tmp_path / "feat.npy").num_nodes == 3
    refused(tmp_path / "two.npy", "feat.npy has 3 rows", "5 nodes", node_data=tmp_path / "feat.npy", num_nodes=5)
    np.save(tmp_path / "two.npy", np.array([[0], [3]]))
    refused(tmp_path / "two.npy", "feat.npy ends at node 2", "node 3", node_data=tmp_path / "feat.npy")


@pytest.mark.parametrize("array", [np.array([0, 1]), np.zeros((3, 4), int), np.eye(2), np.array([["a"], ["b"]])])
def test_npy_that_is_no_edge_index(tmp_path, everything_mapped, array):
    np.save(tmp_path / "g.npy", array)
    refused(tmp_path / "g.npy", "g.npy", str(array.dtype), "(2, E)")


def test_missing_npy_and_directories(tmp_path):
    (tmp_path / "dir.npy").mkdir()
    refused(tmp_path / "no.npy", "no such file")
    refused(tmp_path / "dir.npy", "is a directory")
    np.save(tmp_path / "g.npy", np.array([[0], [1]]))
    refused(tmp_path / "g.npy", "no such file", node_data=tmp_path / "feat.npy")
    (tmp_path / "feat.npy").write_bytes(b"rubbish")
    refused(tmp_path / "g.npy", "feat.npy is not a .npy array", node_data=tmp_path / "feat.npy")
