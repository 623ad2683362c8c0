"""Memory-mapped arrays, and graphs made of them."""

import io
import mmap
import zipfile

import numpy as np
import pytest
from source_checks import edges, refused

from partition.graph import from_edges
from partition.sources import numpy_file
from partition.sources.load import load_graph, open_source
from partition.system import mapped_arrays
from partition.system.mapped_arrays import is_mapped, map_npy, map_npz_member, release_pages, take_rows

DTYPES = [
    "bool",
    "int8",
    "uint16",
    "<i4",
    ">i4",
    "<i8",
    "uint64",
    "float16",
    "<f4",
    ">f8",
    "complex64",
    "S3",
    "<U2",
    "M8[s]",
]
SHAPES = [(), (0,), (1,), (5,), (0, 3), (3, 0), (4, 3), (2, 3, 4)]


@pytest.fixture
def everything_mapped(monkeypatch):
    """Map what is as small as a byte."""
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(numpy_file, "SMALLEST_BYTES", 1)


def sample(dtype, shape, order="C"):
    values = np.random.default_rng(0).integers(0, 100, shape)
    return np.array(values.astype(dtype), order=order, ndmin=len(shape))


def same(array, expected):
    assert array.dtype == expected.dtype and array.shape == expected.shape
    assert np.array_equal(array, expected)


# ---- arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_map_npy_is_load(tmp_path, everything_mapped, dtype, order):
    for shape in SHAPES:
        np.save(tmp_path / "a.npy", sample(dtype, shape, order))
        array = map_npy(tmp_path / "a.npy")
        same(array, np.load(tmp_path / "a.npy"))
        assert is_mapped(array) == (array.nbytes >= 1)
        assert not is_mapped(array) or not array.flags.writeable


def test_only_large_arrays_are_mapped(tmp_path):
    for count, expected in ((mapped_arrays.SMALLEST_BYTES // 8 - 1, False), (mapped_arrays.SMALLEST_BYTES // 8, True)):
        np.save(tmp_path / "a.npy", np.arange(count))
        array = map_npy(tmp_path / "a.npy")
        assert is_mapped(array) == expected
        same(array, np.arange(count))
    for count, expected in ((mapped_arrays.SMALLEST_BYTES // 16, False), (mapped_arrays.SMALLEST_BYTES // 8, True)):
        np.savez(tmp_path / "a.npz", edge_index=np.zeros((2, 1), int), num_nodes=count, x=np.arange(count))
        feat = open_source(tmp_path / "a.npz").node_data["feat"]
        assert is_mapped(feat) == expected
        same(feat, np.arange(count))


def test_small_arrays_can_be_written_to(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    map_npy(tmp_path / "a.npy")[0] = 7
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]


def test_map_npy_inside_another_file(tmp_path, everything_mapped):
    first, second = io.BytesIO(), io.BytesIO()
    np.save(first, np.arange(5))
    np.save(second, np.eye(3, dtype=np.float32))
    (tmp_path / "two").write_bytes(b"abc" + first.getvalue() + second.getvalue())
    same(map_npy(tmp_path / "two", 3), np.arange(5))
    same(map_npy(tmp_path / "two", 3 + len(first.getvalue())), np.eye(3, dtype=np.float32))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_format_versions(tmp_path, everything_mapped, version):
    """numpy itself writes the third for field names alone, which no array here has."""
    with open(tmp_path / "g.npy", "wb") as file:
        np.lib.format.write_array(file, np.array([[0, 1], [1, 2]]), version)
    if version == (3, 0):
        refused(tmp_path / "g.npy", "g.npy", "version (3, 0)")
    else:
        assert edges(load_graph(tmp_path / "g.npy")) == [(0, 1), (1, 2)]


def members(path):
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_map_npz_member_is_load(tmp_path, everything_mapped, dtype, order):
    arrays = {f"a{i}": sample(dtype, shape, order) for i, shape in enumerate(SHAPES)}
    np.savez(tmp_path / "a.npz", **arrays)
    for member in members(tmp_path / "a.npz"):
        same(map_npz_member(tmp_path / "a.npz", member), arrays[member.filename.removesuffix(".npy")])


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_members_of_unusual_archives(tmp_path, everything_mapped):
    """Names that are long, in folders, not ASCII or without .npy, extra fields, zip64, a comment, rubbish before."""
    arrays = {
        name: np.arange(i + 2) for i, name in enumerate(["x" * 300, "sub/dir/x.npy", "größe.npy", "a b", "..", "x"])
    }
    with zipfile.ZipFile(tmp_path / "plain.npz", "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(name)
            info.extra, info.comment = b"\x99\x99\x04\x00abcd", b"of a member"
            with archive.open(info, "w", force_zip64=name == "x") as file:
                file.write(npy(array))
        archive.comment = b"a comment"
    shifted = tmp_path / "shifted.npz"
    shifted.write_bytes(b"#!/bin/sh\n" * 7 + (tmp_path / "plain.npz").read_bytes())
    for path in (tmp_path / "plain.npz", shifted):
        assert [member.filename for member in members(path)] == list(arrays)
        for member in members(path):
            same(map_npz_member(path, member), arrays[member.filename])


def test_graph_of_an_archive_with_unusual_members(tmp_path, everything_mapped):
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("unused.npy", b"not an array at all")
        archive.writestr("num_nodes", npy(np.array(4)))
        archive.writestr("edge_data_größe.npy", npy(np.array([[5.0], [6.0]])), zipfile.ZIP_DEFLATED)
        archive.writestr("edge_index", npy(np.array([[0, 1], [1, 2]])))
        archive.writestr("edge_data_a/b.npy", npy(np.array([1, 2])))
    graph = load_graph(tmp_path / "g.npz")
    assert edges(graph) == [(0, 1), (1, 2)] and graph.num_nodes == 4
    assert graph.edge_data["größe"].tolist() == [[5], [6]] and graph.edge_data["a/b"].tolist() == [1, 2]


def test_every_flipped_byte_of_a_stored_member_is_noticed(tmp_path, everything_mapped):
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.array([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    (first, _), good = members(path), path.read_bytes()
    load_graph(path)
    begin = good.index(b"\x93NUMPY")
    for position in range(begin, begin + first.file_size):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        refused(path, str(path), "damaged", "bad checksum of edge_index.npy")


def test_a_member_cut_short_is_refused(tmp_path, everything_mapped):
    """Its checksum is right, but its array would reach into what follows it in the archive."""
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("edge_index.npy", npy(np.ones((2, 50), int))[:-400])
        archive.writestr("unused.npy", npy(np.zeros(500, int)))
    refused(tmp_path / "g.npz", "g.npz", "damaged")


@pytest.mark.parametrize("smallest", [1, 1 << 20])
def test_a_truncated_npy_is_refused(tmp_path, monkeypatch, smallest):
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", smallest)
    path = tmp_path / "g.npy"
    np.save(path, np.random.default_rng(0).integers(0, 9, (2, 40)))
    whole = path.read_bytes()
    load_graph(path)
    for length in [*range(0, 140, 3), 200, len(whole) - 8, len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(path, "g.npy")


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1") + bytes(4800)


@pytest.mark.parametrize(
    "text",
    [
        # the first three fail: numpy reads headers by way of tokenize and of dtype strings, which raise TokenError and
        # SyntaxError; only ValueError is expected
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 300), ",
        "{'descr': '<i8', 'fortran_order': False, 'shape': \xe22, 300), }",
        "{'descr': '<08', 'fortran_order': False, 'shape': (2, 300), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2, -300), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 99999999999999), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 4611686018427387904), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1e2), }",
        "{'descr': '<i8', 'fortran_order': 7, 'shape': (2, 300), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (2, 300), }",
        "{'descr': '<i8', 'shape': (2, 300), }",
        "[]",
        "",
    ],
)
@pytest.mark.parametrize("smallest", [1, 1 << 20])
def test_a_damaged_npy_header_is_refused(tmp_path, monkeypatch, text, smallest):
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", smallest)
    (tmp_path / "g.npy").write_bytes(header(text))
    refused(tmp_path / "g.npy", "g.npy")


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize("count", [1, 300_000])
def test_object_arrays_are_refused_and_not_unpickled(tmp_path, count):
    """Small ones and, by their shape, large ones."""
    array = np.full((2, count), None, object)
    array[0, 0] = Bomb()
    np.save(tmp_path / "g.npy", array)
    np.savez(tmp_path / "g.npz", edge_index=array)
    refused(tmp_path / "g.npy", "g.npy", "objects")
    refused(tmp_path / "g.npz", "g.npz", "damaged", "bject")


ROWS = {
    "none": [],
    "one": [3],
    "all": list(range(50)),
    "backwards": list(range(49, -1, -1)),
    "repeated": [7, 7, 0, 49, 7, 0, 0],
    "many": np.random.default_rng(0).integers(0, 50, 1000).tolist(),
}


@pytest.mark.parametrize("slice_bytes", [1, 3 * mmap.PAGESIZE, 1 << 24])
@pytest.mark.parametrize("rows", ROWS)
def test_take_rows_is_indexing(tmp_path, monkeypatch, everything_mapped, rows, slice_bytes):
    monkeypatch.setattr(mapped_arrays, "_SLICE_BYTES", slice_bytes)
    for shape in ((50,), (50, 3), (50, 2, 2), (50, 0)):
        for dtype, order in (("f4", "C"), (">f8", "C"), ("bool", "F"), ("i8", "F")):
            expected = sample(dtype, shape, order)
            np.save(tmp_path / "a.npy", expected)
            for array in (map_npy(tmp_path / "a.npy"), expected):
                for kind in (np.int32, np.int64):
                    ids = np.array(ROWS[rows], kind)
                    taken = take_rows(array, ids)
                    same(taken, expected[ids])
                    assert not is_mapped(taken)


def test_is_mapped_sees_through_views(tmp_path, everything_mapped):
    np.save(tmp_path / "a.npy", np.arange(60).reshape(2, 30))
    array = map_npy(tmp_path / "a.npy")
    views = [
        array,
        array[0],
        array[1, ::2],
        array.T,
        array.reshape(-1)[5:],
        array.view(np.uint64),
        np.asarray(array)[1][3:],
    ]
    copies = [
        array.copy(),
        array[[0, 1]],
        array + 0,
        np.array(array[0]),
        array[0].astype(np.int32),
        np.concatenate(array),
    ]
    assert all(map(is_mapped, views)) and not any(map(is_mapped, copies))
    assert not is_mapped(np.arange(3)) and not is_mapped(np.arange(9).reshape(3, 3)[0])


def test_what_was_let_go_is_read_again(tmp_path, everything_mapped):
    expected = np.random.default_rng(0).random((1000, 7))
    np.save(tmp_path / "a.npy", expected)
    array = map_npy(tmp_path / "a.npy")
    for view, same_view in ((array, expected), (array[5:, 2], expected[5:, 2]), (array.T, expected.T)):
        for _ in range(2):
            release_pages(view)
            same(view, same_view)
    kept = np.arange(3)
    release_pages(kept)
    assert kept.tolist() == [0, 1, 2]


def test_nothing_of_the_users_own_mappings_is_lost(tmp_path):
    """A copy-on-write map has changes that no file has; taking its pages out of memory would undo them."""
    np.ones((4, 2)).tofile(tmp_path / "a.bin")
    feat = np.memmap(tmp_path / "a.bin", np.float64, "c", shape=(4, 2))
    feat[:] = 5
    graph = from_edges(np.array([0, 1, 2]), np.array([1, 2, 3]), 4, {"feat": feat})
    assert (graph.node_data["feat"] == 5).all() and (feat == 5).all()


def test_nothing_of_anonymous_memory_is_lost():
    memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.ndarray(512, np.int64, buffer=memory)
    array[:] = 3
    release_pages(array)
    assert (array == 3).all()


# ---- graphs ------------------------------------------------------------------------------------------------------


def listing(seed, once=False, nodes=40, count=200):
    """Arrays of an npz: self-loops, parallel edges, isolated nodes also at the end, data of every kind."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes - 5, (2, count))
    src[:20], dst[:20] = src[20:40], dst[20:40]
    dst[40:50] = src[40:50]
    if once:
        src, dst = np.maximum(src, dst), np.minimum(src, dst)  # parallel edges are no reverses
    split = rng.integers(0, 3, nodes)
    return {
        "edge_index": np.stack([src, dst]),
        "num_nodes": nodes,
        "directed": not once,
        "x": rng.standard_normal((nodes, 3)).astype(np.float32),
        "y": rng.integers(0, 4, nodes),
        **{f"{name}_mask": split == i for i, name in enumerate(("train", "val", "test"))},
        "edge_data_weight": rng.standard_normal((count, 2)),
        "edge_data_kind": rng.integers(0, 9, count).astype(np.uint8),
    }


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
        assert load_graph(tmp_path / "edge_index.npy", num_nodes=41).num_nodes == 41


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
    """Refused where directed is false; self-loops and parallel edges are no reverses."""
    path = tmp_path / "g.npz"
    save(path, edge_index=np.array([[0, 1, 2, 2], [1, 2, 1, 2]]), directed=False)
    refused(path, "both ways", "directed")
    save(path, edge_index=np.array([[0, 1, 1, 2, 3, 3], [1, 2, 2, 2, 3, 0]]), directed=False)
    assert edges(load_graph(path))[6:] == [(1, 0), (2, 1), (2, 1), (0, 3)]


def test_many_mapped_edges_listed_both_ways(tmp_path, everything_mapped):
    """A sample is looked at, so a list that has every edge twice is noticed and one that is in order passes."""
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
    """The bad id ends an edge from a larger id to a smaller one, so that the search for reverses runs."""
    save(tmp_path / "g.npz", edge_index=np.array([[0, 2, 4], [1, bad, 3]], dtype), directed=directed)
    refused(tmp_path / "g.npz", "g.npz", str(bad))


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
    refused(tmp_path / "two.npy", "(3, 2)", "5", node_data=tmp_path / "feat.npy", num_nodes=5)
    np.save(tmp_path / "two.npy", np.array([[0], [3]]))
    refused(tmp_path / "two.npy", "node id 3", "0..2", node_data=tmp_path / "feat.npy")


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
