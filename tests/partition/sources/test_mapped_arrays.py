"""Memory-mapped arrays of .npy and .npz files."""

import io
import mmap
import zipfile
from pathlib import Path

import numpy as np
import pytest
from source_checks import edges, refused, same

from dgl_gt.partition import graph
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.sources import coo
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.sources.load import load_graph, open_source
from dgl_gt.partition.system import mapped_arrays
from dgl_gt.partition.system.mapped_arrays import is_mapped, map_npy, map_npz_member, release_pages, take_rows

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


def sample(dtype, shape, order="C"):
    values = np.random.default_rng(0).integers(0, 100, shape)
    return np.array(values.astype(dtype), order=order, ndmin=len(shape))


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
    """numpy writes version 3 only for structured arrays with unusual field names; no array here has any."""
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
    """Names: long, in folders, not ASCII, without .npy. Archives: extra fields, zip64, a comment, bytes before."""
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
    """The checksum is right, but the array would extend into the next member of the archive."""
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
        # numpy reads headers with tokenize and dtype strings, so the first three raise TokenError or SyntaxError inside
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
    """Both arrays that are read and arrays that, by their shape, would be mapped."""
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
    """A copy-on-write mapping has changes that are in no file; releasing its pages would undo them."""
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


def mapped_bytes():
    """Bytes of files that are in this process's memory."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in status if line.startswith("RssFile")), None)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell what is in memory")
@pytest.mark.parametrize(
    ("use", "most_mib"),
    [("rows far apart", 20), ("a sample of edges", 20), ("slices of edges", 12), ("a check of wide rows", 8)],
)
def test_little_of_a_mapped_array_is_in_memory(tmp_path, monkeypatch, use, most_mib):
    """Linux maps 64 KiB around an address that is read, so rows far apart bring more with them than pages."""
    array = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.int64, (2, 1 << 23))  # 128 MiB, which no disk takes
    del array
    mapped = map_npy(tmp_path / "a.npy")
    before, held = mapped_bytes(), []
    for module in (mapped_arrays, coo, graph):
        monkeypatch.setattr(module, "release_pages", lambda array: held.append(mapped_bytes()) or release_pages(array))
    edges_of_file = COOGraph(mapped[0], mapped[1], 1)
    if use == "rows far apart":
        take_rows(mapped[0], np.arange(0, 1 << 23, 1 << 13))
    elif use == "a sample of edges":
        edges_of_file.reciprocity()
    elif use == "slices of edges":
        for _ in edges_of_file.slices():
            held.append(mapped_bytes())
    else:
        graph._check_finite("g", "node", "wide", mapped.view(np.float64).reshape(-1, 1 << 12))
    assert held and max(held) - before < most_mib << 20
