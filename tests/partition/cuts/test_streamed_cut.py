"""Vertex cuts of graphs that are read in slices: the shards together are the graph, whatever the slices."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from source_checks import edges

from partition import load_graph, partition, pipeline, read_manifest, verify
from partition.cuts import streamed_cut as streamed_cut_module
from partition.cuts.streamed_cut import edges_both_ways, open_stream, streamed_cut
from partition.errors import InputError
from partition.graph import SPLIT_MASKS
from partition.shards import write
from partition.sources import coo, numpy_file
from partition.sources.load import open_source
from partition.system import mapped_arrays
from partition.system.mapped_arrays import is_mapped

PARTS = [1, 2, 3, 5]


@pytest.fixture(autouse=True)
def streaming(monkeypatch):
    """Choose streaming whatever the bound, and map even the smallest arrays."""
    monkeypatch.setattr(pipeline, "choose_method", lambda *_: "streaming")
    monkeypatch.setattr(pipeline, "check_memory_bound", lambda *_: None)
    monkeypatch.setattr(mapped_arrays, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(numpy_file, "SMALLEST_BYTES", 1)


def listing(seed, once=False, nodes=50, count=260, **changes):
    """Return arrays of an npz with hubs, loops, parallel edges, isolated nodes also at the end, and several dtypes."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes - 6, (2, count))
    src[:40], dst[40:80] = 3, 4  # hubs
    src[80:90], dst[80:90] = src[90:100], dst[90:100]
    dst[100:112] = src[100:112]
    dst[-1] = src[-1]
    if once:
        src, dst = np.maximum(src, dst), np.minimum(src, dst)  # parallel edges are no reverses
    split = rng.integers(0, 3, nodes)
    return {
        "edge_index": np.stack([src, dst]),
        "num_nodes": nodes,
        "directed": not once,
        "x": rng.standard_normal((nodes, 3)).astype(np.float32),
        "y": rng.integers(0, 4, nodes),
        **{key: split == i for i, key in enumerate(SPLIT_MASKS)},
        "edge_data_weight": rng.standard_normal((count, 2)),
        "edge_data_kind": rng.integers(0, 9, count).astype(np.uint8),
        **changes,
    }


def saved(folder, arrays, save=np.savez):
    save(folder / "g.npz", **{key: value for key, value in arrays.items() if value is not None})
    return folder / "g.npz"


def stored(arrays):
    """Return sources, destinations and data rows of all edges from the listed edges, in plain Python."""
    src, dst = arrays["edge_index"].tolist()
    there = [(u, v, e) for e, (u, v) in enumerate(zip(src, dst))]
    back = [] if arrays["directed"] else [(v, u, e) for u, v, e in there if u != v]
    return np.array(there + back, int).reshape(-1, 3).T


def stored_parts(out, parts):
    names = ("structure", "node_data", "edge_data")
    return [[load_file(out / f"part{part}" / f"{name}.safetensors") for name in names] for part in range(parts)]


def check_shards(out, arrays, parts):
    """Recount everything from the list of edges."""
    manifest = read_manifest(out)
    verify(out, manifest)
    want_src, want_dst, rows = stored(arrays)
    count, nodes = len(want_src), arrays["num_nodes"]
    assert (manifest["cut"], manifest["halo_depth"], manifest["parts"]) == ("vertex", 0, parts)
    assert (manifest["nodes"], manifest["edges"], manifest["method"]) == (nodes, count, "streaming")
    node_data = {new: arrays[old] for old, new in (("x", "feat"), ("y", "label")) if old in arrays}
    node_data |= {key: arrays[key] for key in SPLIT_MASKS if key in arrays}
    edge_data = {key.removeprefix("edge_data_"): arrays[key] for key in arrays if key.startswith("edge_data_")}
    src, dst, masters, per_part = np.full(count, -1), np.full(count, -1), [], []
    linked = set(want_src) | set(want_dst)
    there = stored_parts(out, parts)
    for part, (structure, nodes_here, edges_here) in enumerate(there):
        ids, edge, indptr = structure["node_ids"], structure["edge_ids"], structure["indptr"]
        owned = manifest["ptr"][part + 1] - manifest["ptr"][part]
        assert len(set(edge.tolist())) == len(edge) and (src[edge] == -1).all(), "an edge has one owner"
        assert len(indptr) == len(ids) + 1 and indptr[-1] == len(edge) == len(structure["indices"])
        targets = np.repeat(np.arange(len(ids)), np.diff(indptr))
        src[edge], dst[edge] = ids[structure["indices"]], ids[targets]
        for begin, end in zip(indptr, indptr[1:]):
            assert (np.diff(edge[begin:end]) > 0).all(), "inside a row edges keep the user's order"
        masters.extend(ids[:owned].tolist())
        touched = set(src[edge]) | set(dst[edge])
        assert set(ids[:owned]) & linked <= touched, "a master has edges of its node"
        mirrors = ids[owned:].tolist()
        assert set(mirrors) == touched - set(ids[:owned]) and len(set(mirrors)) == len(mirrors)
        assert nodes_here.keys() == node_data.keys() and edges_here.keys() == edge_data.keys()
        for key, value in node_data.items():
            assert np.array_equal(nodes_here[key], value[ids]) and nodes_here[key].dtype == value.dtype
        for key, value in edge_data.items():
            assert np.array_equal(edges_here[key], value[rows[edge]]) and edges_here[key].dtype == value.dtype
        returned = len(set(dst[edge]) - set(ids[:owned]))
        per_part.append({"owned": owned, "mirrors": len(mirrors), "edges": len(edge), "returned": returned})
    assert (src == want_src).all() and (dst == want_dst).all(), "every edge is somewhere"
    assert sorted(masters) == list(range(nodes))
    assert [{key: figure[key] for key in per_part[0]} for figure in manifest["per_part"]] == per_part
    check_exchange(manifest, [structure for structure, *_ in there])
    check_quality(manifest, per_part, arrays)
    return manifest


def check_exchange(manifest, structures):
    """Each part sends the rows that the other lists as mirrors, and mirrors with in-edges send results back."""
    owned = np.diff(manifest["ptr"])
    for i, sender in enumerate(structures):
        assert manifest["per_part"][i]["sent"] == len(sender["send_rows"]) == len(sender["send_returns"])
        assert manifest["per_part"][i]["returns"] == sender["send_returns"].sum()
        for j, receiver in enumerate(structures):
            between = slice(*sender["send_ptr"][j : j + 2])
            mirrors = slice(*(receiver["recv_ptr"][i : i + 2] + owned[j]))
            sent = sender["send_rows"][between]
            assert ((sent >= 0) & (sent < owned[i])).all()
            assert sender["node_ids"][sent].tolist() == receiver["node_ids"][mirrors].tolist()
            assert sender["send_returns"][between].tolist() == (np.diff(receiver["indptr"])[mirrors] > 0).tolist()
            assert manifest["received_rows"][j][i] == len(sent)
            assert i != j or not len(sent)


def check_quality(manifest, per_part, arrays):
    parts, nodes, quality = manifest["parts"], manifest["nodes"], manifest["quality"]
    column = {key: np.array([counts[key] for counts in per_part]) for key in per_part[0]}
    held = column["owned"] + column["mirrors"]
    assert quality["mirrors"] == column["mirrors"].sum() == np.sum(manifest["received_rows"])
    assert quality["volume"] == column["mirrors"].sum() + column["returned"].sum()
    assert quality["replication_factor"] == pytest.approx(held.sum() / nodes)
    assert quality["max_copies_factor"] == pytest.approx(held.max() * parts / nodes)
    assert quality["node_balance"] == pytest.approx(column["owned"].max() * parts / nodes)
    edge_count = column["edges"].sum()
    assert quality["edge_balance"] == pytest.approx(column["edges"].max() * parts / edge_count if edge_count else 1)
    assert column["edges"].max() <= np.ceil(1.05 * edge_count / parts), "the cap"
    assert (quality["train_balance"] is None) == ("train_mask" not in arrays)


# ---- the shards are the graph ------------------------------------------------------------------------------------


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


# ---- strange graphs ----------------------------------------------------------------------------------------------


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
    with pytest.raises(InputError, match="choose 1 to 50 parts"):
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
    "labels": {"y": np.full(50, 0.5)},
    "labels of two columns": {"y": np.ones((50, 2), int)},
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


# ---- nothing is left ---------------------------------------------------------------------------------------------


class Folders:
    """A progress callback that keeps the names of edge files."""

    def __init__(self, parent):
        self.parent, self.seen = parent, set()

    def __call__(self, *_):
        self.seen |= {path.name for path in self.parent.rglob("*.edges")}


def test_no_buckets_are_left(tmp_path):
    arrays, folders = listing(1), Folders(tmp_path)
    partition(saved(tmp_path, arrays), 3, tmp_path / "out", memory=1, progress=folders)
    assert folders.seen == {"0.edges", "1.edges", "2.edges"}, "they were there"
    assert sorted(os.listdir(tmp_path)) == ["g.npz", "out"]
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"manifest.json", *read_manifest(tmp_path / "out")["files"]}


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stopped(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "name", "how", "error"),
    [
        (write, "_write_part", no_space, InputError),
        (write, "save_file", no_space, InputError),
        (write, "write_manifest", no_space, InputError),
        (write, "_write_part", stopped, KeyboardInterrupt),
        (streamed_cut_module, "_place", no_space, InputError),
        (streamed_cut_module.native, "place_by_hdrf", stopped, KeyboardInterrupt),
        (streamed_cut_module.StreamedCut, "part_edges", stopped, KeyboardInterrupt),
        (pipeline, "check_memory", stopped, KeyboardInterrupt),
    ],
)
def test_nothing_is_left_after_a_failure(tmp_path, monkeypatch, module, name, how, error):
    source, folders = saved(tmp_path, listing(1)), Folders(tmp_path)
    monkeypatch.setattr(module, name, how)
    with pytest.raises(error) as caught:
        partition(source, 3, tmp_path / "out", memory=1, progress=folders)
    assert os.listdir(tmp_path) == ["g.npz"]
    assert error is KeyboardInterrupt or os.strerror(errno.ENOSPC) in str(caught.value)


def test_a_failure_in_a_later_part_leaves_what_force_was_to_replace(tmp_path, monkeypatch):
    source, whole = saved(tmp_path, listing(1)), write._write_part
    first = partition(source, 2, tmp_path / "out", memory=1)
    full = lambda *arguments: whole(*arguments) if arguments[2] == 0 else no_space()
    monkeypatch.setattr(write, "_write_part", full)
    with pytest.raises(InputError, match="No space left on device.*free space"):
        partition(source, 3, tmp_path / "out", memory=1, force=True)
    assert sorted(os.listdir(tmp_path)) == ["g.npz", "out"]
    assert read_manifest(tmp_path / "out")["files"] == first["files"]


def test_buckets_go_when_their_context_ends(tmp_path):
    opened = open_stream(open_source(saved(tmp_path, listing(1))))
    with pytest.raises(ZeroDivisionError), streamed_cut(opened, 3, tmp_path / "edges") as cut:
        assert sorted(os.listdir(cut.folder)) == ["0.edges", "1.edges", "2.edges"]
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["g.npz"]


# ---- the placement -----------------------------------------------------------------------------------------------


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


def test_a_disk_that_fills_while_edges_are_placed(tmp_path, monkeypatch):
    """/dev/full takes no byte, like a full disk."""
    monkeypatch.setattr(streamed_cut_module, "_bucket", lambda folder, part: Path("/dev/full"))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(InputError, match="No space left on device; free space"):
        partition(saved(tmp_path, listing(0)), 2, tmp_path / "out", memory=1)
    assert os.listdir(tmp_path) == ["g.npz"]
