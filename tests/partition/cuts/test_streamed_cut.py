"""Vertex cuts of graphs that are read in slices: the shards together are the graph, whatever the slices."""

import numpy as np
import pytest
from source_checks import edges
from streamed_cases import check_shards, listing, saved, stored, stored_parts

from dgl_gt.partition import load_graph, partition, read_manifest, verify
from dgl_gt.partition.cuts.streamed_cut import edges_both_ways, open_stream
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.sources import coo
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.system.mapped_arrays import is_mapped

pytestmark = pytest.mark.usefixtures("streaming")
PARTS = [1, 2, 3, 5]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_parts_together_are_the_graph(tmp_path, seed, once, parts, save):
    arrays = listing(seed, once)
    source = saved(tmp_path, arrays, save)
    assert is_mapped(open_source(source).src) == (save is np.savez)
    returned = partition(source, parts, tmp_path / "out", memory=1)
    assert check_shards(tmp_path / "out", arrays, parts) == read_manifest(tmp_path / "out")
    assert returned["files"] == read_manifest(tmp_path / "out")["files"]


@pytest.mark.parametrize("once", [False, True])
def test_edges_have_the_ids_of_the_graph_in_memory(tmp_path, once):
    """Edge data and predictions then mean the same whichever way a graph was cut."""
    source = saved(tmp_path, listing(2, once))
    graph = load_graph(source)
    partition(source, 3, tmp_path / "out", memory=1)
    of_id = edges(graph)
    for structure, _, edge_data in stored_parts(tmp_path / "out", 3):
        ids = structure["node_ids"]
        targets = np.repeat(np.arange(len(ids)), np.diff(structure["indptr"]))
        ends = list(zip(ids[structure["indices"]].tolist(), ids[targets].tolist()))
        assert ends == [of_id[edge] for edge in structure["edge_ids"]]
        assert (edge_data["weight"] == graph.edge_data["weight"][structure["edge_ids"]]).all()


@pytest.mark.parametrize("size", [1, 7, 64, 259, 260, 261])
@pytest.mark.parametrize("once", [False, True])
def test_slices_of_any_size_hold_the_same_edges(tmp_path, monkeypatch, once, size):
    arrays = listing(3, once)
    monkeypatch.setattr(coo, "_SLICE_EDGES", size)
    source = open_source(saved(tmp_path, arrays))
    slices = list(edges_both_ways(open_stream(source)))
    src, dst, ids = (np.concatenate(each) for each in zip(*slices))
    assert all(each.dtype == np.int32 for each in (src, dst, ids)) and max(len(each[0]) for each in slices) <= size
    want_src, want_dst, _ = stored(arrays)
    assert sorted(zip(ids.tolist(), src.tolist(), dst.tolist())) == list(
        zip(range(len(want_src)), want_src.tolist(), want_dst.tolist())
    )


@pytest.mark.parametrize("parts", PARTS)
def test_tiny_slices_give_the_same_bytes(tmp_path, monkeypatch, parts):
    arrays = listing(4)
    source = saved(tmp_path, arrays)
    partition(source, parts, tmp_path / "whole", memory=1)
    for size in (7, 1):
        monkeypatch.setattr(coo, "_SLICE_EDGES", size)
        partition(source, parts, tmp_path / str(size), memory=1)
        same = (tmp_path / f"{name}/manifest.json" for name in ("whole", size))
        assert len({path.read_bytes() for path in same}) == 1


@pytest.mark.parametrize("parts", PARTS)
def test_tiny_slices_of_edges_listed_once(tmp_path, monkeypatch, parts):
    """Reverse edges follow each slice, so the cut may differ, but it is a cut of the same graph."""
    arrays = listing(5, once=True)
    monkeypatch.setattr(coo, "_SLICE_EDGES", 7)
    partition(saved(tmp_path, arrays), parts, tmp_path / "out", memory=1)
    check_shards(tmp_path / "out", arrays, parts)


def test_same_seed_same_bytes(tmp_path):
    for once in (False, True):
        source = saved(tmp_path, listing(6, once))
        for name in "ab":
            partition(source, 3, tmp_path / name, memory=1, seed=5, force=True)
        assert (tmp_path / "a/manifest.json").read_bytes() == (tmp_path / "b/manifest.json").read_bytes()


@pytest.mark.parametrize("form", ["u1", "i1", ">i4", "u8", "F"])
@pytest.mark.parametrize("once", [False, True])
def test_ids_of_any_integer_type(tmp_path, once, form):
    arrays = listing(7, once)
    index = arrays["edge_index"]
    partition(saved(tmp_path, arrays), 3, tmp_path / "plain", memory=1)
    index = np.asfortranarray(index) if form == "F" else index.astype(form)
    partition(saved(tmp_path, {**arrays, "edge_index": index}), 3, tmp_path / "other", memory=1)
    plain, other = (read_manifest(tmp_path / name) for name in ("plain", "other"))
    assert plain == other


DATA = {
    "big-endian": {"x": np.arange(150, dtype=">f8").reshape(50, 3), "edge_data_weight": np.arange(260, dtype=">i2")},
    "Fortran order": {"x": np.asfortranarray(np.random.default_rng(0).random((50, 4), np.float32))},
    "half": {"x": np.arange(150, dtype=np.float16).reshape(50, 3)},
    "bool and deep": {"x": np.random.default_rng(0).random((50, 2, 3, 2)) < 0.5, "edge_data_kind": np.ones(260, bool)},
    "no width": {"x": np.zeros((50, 0), np.float32), "edge_data_weight": np.zeros((260, 0))},
    "none": {key: None for key in ("x", "y", *SPLIT_MASKS, "edge_data_weight", "edge_data_kind")},
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("once", [False, True])
def test_data_of_any_type(tmp_path, once, data):
    arrays = {key: value for key, value in listing(8, once, **DATA[data]).items() if value is not None}
    partition(saved(tmp_path, arrays), 3, tmp_path / "out", memory=1)
    for key, value in arrays.items():
        if isinstance(value, np.ndarray) and value.dtype.byteorder == ">":
            arrays[key] = value.astype(value.dtype.newbyteorder("="))  # files are little-endian
    check_shards(tmp_path / "out", arrays, 3)


def test_labels_and_masks_in_other_forms_become_those_of_the_graph(tmp_path):
    rng = np.random.default_rng(0)
    split, second = rng.integers(0, 3, (2, 50))
    label = rng.integers(0, 4, 50).astype(np.float32)
    label[(split == 2) & (second == 2)] = np.nan
    changes = {"y": label[:, None], "test_mask": (split == 2).astype(np.uint8)}
    changes["train_mask"] = np.stack([split == 0, split == 0], axis=1).astype(float)
    changes["val_mask"] = np.stack([(split == 1) & (second == 1), split == 1], axis=1).astype(np.int64)
    source = saved(tmp_path, listing(9, True, **changes))
    expected = load_graph(source).node_data
    manifest = partition(source, 3, tmp_path / "out", memory=1)
    assert manifest["quality"]["train_balance"] is not None
    for structure, node_data, _ in stored_parts(tmp_path / "out", 3):
        assert node_data.keys() == expected.keys()
        for key, value in expected.items():
            assert np.array_equal(node_data[key], value[structure["node_ids"]]) and node_data[key].dtype == value.dtype


def test_a_typed_graph(tmp_path):
    rng, ends = np.random.default_rng(0), {}
    for key, sizes, count in (("a,to,b", (30, 20), 90), ("b,of,b", (20, 20), 40), ("b,no,a", (20, 30), 0)):
        ends[f"edge_index/{key}"] = np.stack([rng.integers(0, size, count) for size in sizes])
    arrays = {"node_types": np.array(["a", "b"]), "num_nodes": np.array([30, 20]), **ends}
    arrays |= {"node_data/b/feat": rng.random((20, 3)), "node_data/b/train_mask": np.arange(20) % 2}
    arrays |= {"node_data/b/y": rng.integers(0, 2, 20), "edge_data/b,of,b/w": np.arange(40.0)}
    np.savez(tmp_path / "g.npz", **arrays)
    graph = load_graph(tmp_path / "g.npz")
    manifest = partition(tmp_path / "g.npz", 3, tmp_path / "out", memory=1)
    verify(tmp_path / "out", manifest)
    assert manifest["method"] == "streaming" and sum(manifest["masked"]["b/train_mask"]) == 10
    src, dst = graph.edges()
    for structure, node_data, edge_data in stored_parts(tmp_path / "out", 3):
        ids, edge = structure["node_ids"], structure["edge_ids"]
        rows = np.repeat(np.arange(len(ids)), np.diff(structure["indptr"]))
        assert np.array_equal(ids[rows], dst[edge]) and np.array_equal(ids[structure["indices"]], src[edge])
        assert np.array_equal(node_data["b/feat"], graph.node_data["b/feat"][ids[ids >= 30] - 30])
        assert edge_data["b,of,b/w"].tolist() == (edge[(edge >= 90) & (edge < 130)] - 90).tolist()


def test_npy_files_and_text(tmp_path):
    arrays = listing(10)
    for key in ("edge_data_weight", "edge_data_kind"):
        del arrays[key]
    np.save(tmp_path / "edge_index.npy", arrays["edge_index"])
    columns = {"feat": arrays["x"], "label": arrays["y"], **{key: arrays[key] for key in SPLIT_MASKS}}
    for key, value in columns.items():
        np.save(tmp_path / f"{key}.npy", value)
    files = [tmp_path / f"{key}.npy" for key in columns]
    partition(tmp_path / "edge_index.npy", 3, tmp_path / "out", memory=1, node_data=files)
    check_shards(tmp_path / "out", arrays, 3)
    lines = [f"{u},{v}" for u, v in arrays["edge_index"].T.tolist()]
    (tmp_path / "g.csv").write_text("\n".join(["src,dst", *lines]) + "\n")
    partition(tmp_path / "g.csv", 3, tmp_path / "text", memory=1, node_data=columns)
    check_shards(tmp_path / "text", arrays, 3)
    entries = [read_manifest(tmp_path / name)["files"] for name in ("out", "text")]
    assert entries[0] == entries[1]


def test_the_source_is_not_written_to(tmp_path):
    source = saved(tmp_path, listing(11, True))
    before = source.read_bytes()
    partition(source, 3, tmp_path / "out", memory=1)
    assert source.read_bytes() == before
