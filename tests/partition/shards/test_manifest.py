"""Manifests with a valid checksum whose fields are wrong: refused, or read as what they say."""

import copy
import hashlib
import json
import os
import random
import shutil

import numpy as np
import pytest
from hand_made_figures import assert_same_figures
from safetensors.numpy import load_file, save_file

from dgl_gt.partition import (
    add_expander_edges,
    add_virtual_nodes,
    encode,
    from_relations,
    load_graph,
    partition,
    read_manifest,
    verify,
)
from dgl_gt.partition.cli import quality_table
from dgl_gt.partition.cuts.edge_cut import EdgeCut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.by_type import count_by_type
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.report.write import count_shards, page
from dgl_gt.partition.shards import files as files_module
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.layout import Layout, choose_cut
from dgl_gt.partition.shards.manifest import _render, file_entry
from dgl_gt.partition.shards.write import write_shards

WRONG = [None, True, -1, 0, 1, 2, 10**9, 2**62, 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "2", "../x"]
WRONG += [[], {}, [[]], [0], {"a": 1}, "\ud800", "<b>"]


ENCODINGS = "laplacian=3,random_walk=3,degree,anchors=2,hops=2x2,shortest_path=2"


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifests")
    graph = add_expander_edges(load_graph("sample:communities?nodes=78&features=3&degree=15"), 4)
    graph = encode(add_virtual_nodes(graph, 2), ENCODINGS)
    order = np.random.default_rng(0).permutation(80)
    edge = Layout(graph, EdgeCut(order, np.array([0, 30, 60, 80]), np.ones(3) / 3), 2)
    vertex = Layout(graph, make_vertex_cut(graph, 3, by_metis=False))
    choice = choose_cut([edge, vertex], default_costs())
    chosen = vertex if choice["cut"] == "vertex" else edge
    for name, layout, why in (("edge", edge, None), ("vertex", vertex, None), ("auto", chosen, choice)):
        (folder / name).mkdir()
        write_shards(layout, folder / name, seed=3, choice=why)
    src, dst = np.random.default_rng(0).integers(0, 20, (2, 90))
    data = {"a": {"feat": np.eye(20), "train_mask": np.arange(20) < 9}}, {("a", "to", "b"): {"w": np.ones(90)}}
    edges = {("a", "to", "b"): (src, dst), ("b", "of", "b"): (src[:40], dst[40:80]), ("b", "none", "c"): ([], [])}
    typed = encode(from_relations({"a": 20, "b": 20, "c": 3}, edges, *data), "degree")
    partition(typed, 3, folder / "typed", halo_depth=2, link_split="0.8,0.1,0.1", relation="of")
    return folder


def leaves(value, path=()):
    """The places of a JSON value's parts, deepest last."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from leaves(value[key], (*path, key))


def altered(manifest, path, new):
    manifest = copy.deepcopy(manifest)
    place = manifest
    for key in path[:-1]:
        place = place[key]
    if new is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return manifest


def rendered(manifest):
    """The text of a manifest with its checksum, as the writer makes it, but with NaN and Infinity, too."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "checksum": checksum}, indent=1) + "\n"


def use(folder):
    """Everything that reads a manifest of this package."""
    manifest = read_manifest(folder)
    verify(folder, manifest)
    figures, costs = read_figures(manifest), default_costs()
    quality_table(manifest, {"compute_balance": costs.compute_balance(figures), "types": count_by_type(figures)})
    costs.step_seconds(figures)
    page(count_shards(folder, read_manifest(folder)))


@pytest.mark.parametrize("kind", ["edge", "vertex", "auto", "typed"])
def test_any_field_altered_is_refused_or_read(shards, kind):
    path = shards / kind / "manifest.json"
    good = path.read_text()
    manifest, draw, refused = json.loads(good), random.Random(0), 0
    places = [place for place in leaves(manifest) if place and place[0] != "checksum"]
    try:
        for place in draw.sample(places, min(len(places), 100)):
            new = draw.choice([KeyError, *WRONG])
            path.write_text(rendered(altered(manifest, place, new)))
            try:
                use(shards / kind)
            except InputError as error:
                refused += 1
                assert len(str(error)) < 1000 and str(path.parent) in str(error), (place, new)
    finally:
        path.write_text(good)
    assert refused > 50
    use(shards / kind)


@pytest.mark.parametrize(
    ("place", "new", "said"),
    [
        (("schema", "edges", 0, 1), "other", "'a,to,b/w'.*'a,to,b'"),
        (("schema", "edges", 0, 3), 91, "typed.edges"),
        (("schema", "nodes", "a"), 19, "typed.nodes"),
        (("typed", "cut_edges", 0, 0), 91, "typed.cut_edges"),
        (("typed", "own_sources", 1, 0), 91, "typed.own_sources"),
        (("links", "relation"), ["a", "on", "b"], "links are of the relation"),
        (("typed",), None, "typed"),
    ],
)
def test_altered_fields_of_types_are_named(shards, tmp_path, place, new, said):
    shutil.copytree(shards / "typed", tmp_path / "out")
    path = tmp_path / "out/manifest.json"
    path.write_text(rendered(altered(json.loads(path.read_text()), place, new)))
    with pytest.raises(InputError, match=said):
        read_manifest(tmp_path / "out")


@pytest.mark.parametrize(
    ("place", "new", "said"),
    [
        (("parts",), "2", "parts"),
        (("parts",), 10**9, "parts is 1000000000"),
        (("parts",), True, "parts"),
        (("per_part", 1, "owned"), 10**400, "per_part"),
        (("per_part", 1, "halo_by_hop"), [1], "per_part"),
        (("per_part", 2, "cut_edges"), KeyError, "cut_edges"),
        (("per_part", 0, "near_edges"), KeyError, "near_edges"),
        (("per_part", 0, "near_edges"), 10**6, "near_edges is .*1000000"),
        (("per_part",), KeyError, "per_part"),
        (("shares",), KeyError, "shares"),
        (("shares", 2), 0.9, "shares is"),
        (("quality",), KeyError, "quality"),
        (("quality", "cut_ratio"), float("nan"), "is damaged: not valid JSON"),
        (("received_rows",), KeyError, "received_rows"),
        (("ptr", 0), 1, "ptr is"),
        (("seed",), "<script>", "seed"),
        (("node_data", "feat", "shape"), [4], r"does not fit the manifest: 'feat' has shape \(\d+, 3\) instead of"),
        (("files", "../../x"), {"bytes": 1, "sha256": "0" * 64}, "files"),
        (("files", "part0/structure.safetensors", "sha256"), "0", "sha256"),
        (("versions",), KeyError, "versions"),
        (("encodings",), KeyError, "encodings"),
        (("encodings",), [], "encodings"),
        (("encodings", "spectral"), {}, "spectral"),
        (("encodings", "degree"), 3, "encodings.degree"),
        (("encodings", "degree", "columns"), 3, "encodings.degree.columns"),
        (("encodings", "laplacian", "columns"), 2, r"node_data.laplacian is .*\[3\].*\[2\]"),
        (("encodings", "laplacian", "seed"), -1, "encodings.laplacian.seed"),
        (("encodings", "laplacian", "eigenvalues", 0), 2.5, "encodings.laplacian.eigenvalues"),
        (("encodings", "anchors", "landmarks", 0), -1, "encodings.anchors.landmarks"),
        (("encodings", "hops", "width"), 0, "encodings.hops.width"),
        (("encodings", "laplacian", "eigenvalues"), [0.1] * 4, "laplacian.eigenvalues is 4"),
        (("encodings", "random_walk", "exact_columns"), 4, "random_walk.exact_columns is 4"),
        (("encodings", "random_walk", "probes"), 5, "random_walk.probes"),
        (("encodings", "anchors", "landmarks", 0), 80 + 2, "anchors.landmarks is 82"),
        (("encodings", "anchors", "landmarks"), [1, 2, 3], "anchors.landmarks is 3"),
        (("encodings", "hops", "hops"), 3, "hops.columns"),
        (("encodings", "hops", "width"), 1, "hops.columns is 2"),
        (("transforms", "expander", "degree"), 3, "transforms.expander"),
        (("transforms", "expander", "degree"), 2, "transforms.expander.edges"),
        (("transforms", "virtual_nodes", "nodes"), 3, "transforms.virtual_nodes.edges"),
        (("edges",), 2**62, "edges"),
        (("encodings", "shortest_path", "most"), 7, "encodings.shortest_path.most"),
        (("edge_data", "shortest_path", "dtype"), "int8", "edge_data.shortest_path is .*int8.*uint8"),
        (("encodings", "virtual_node", "columns"), 3, r"node_data.virtual_node is .*\[3\]"),
        (("transforms",), KeyError, "transforms"),
        (("transforms", "rewiring"), {}, "rewiring"),
        (("transforms", "expander", "degree"), 1, "transforms.expander.degree"),
        (("transforms", "expander", "edges"), 10**6, "transforms.expander.edges is .*1000000"),
        (("transforms", "virtual_nodes", "nodes"), 80, "transforms.virtual_nodes"),
        (("node_data", "degree", "dtype"), "float64", "node_data.degree is .*float64.*float32"),
        (("choice",), {"cut": "edge"}, "choice"),
    ],
)
def test_what_is_said(shards, place, new, said):
    path = shards / "edge" / "manifest.json"
    good = path.read_text()
    path.write_text(rendered(altered(json.loads(good), place, new)))
    try:
        with pytest.raises(InputError, match=said + ".*; partition the graph again"):
            use(shards / "edge")
    finally:
        path.write_text(good)


@pytest.mark.parametrize(
    ("place", "new", "said"),
    [
        ((), KeyError, "hosts"),
        (("2",), KeyError, "hosts is"),
        (("2", "received_rows"), [[0, 1]], "hosts.2.received_rows"),
        (("2", "received_rows", 0, 0), 1, "hosts.2.received_rows"),
        (("2", "received_rows", 1, 0), 10**6, "hosts.2.received_rows is .*1000000"),
        (("2", "cut_edges", 0), 10**6, "hosts.2.cut_edges is .*1000000"),
        (("2", "cut_edges"), [0], "hosts.2.cut_edges"),
    ],
)
def test_counts_of_hosts_are_checked(awkward_graph, tmp_path, place, new, said):
    graph = awkward_graph(2)
    write_shards(Layout(graph, EdgeCut(np.arange(60), np.arange(0, 61, 15), np.ones(4) / 4)), tmp_path, seed=0)
    path = tmp_path / "manifest.json"
    path.write_text(rendered(altered(json.loads(path.read_text()), ("hosts", *place), new)))
    with pytest.raises(InputError, match=said):
        read_manifest(tmp_path)


@pytest.mark.parametrize("cut", ["edge", "vertex"])
@pytest.mark.parametrize("parts", [1, 3, 4])
def test_figures_come_back_as_they_were_counted(awkward_graph, tmp_path, cut, parts):
    graph = awkward_graph(2)
    if cut == "edge":
        order = np.random.default_rng(0).permutation(60)
        ptr = np.array({1: [0, 60], 3: [0, 30, 30, 60], 4: [0, 20, 20, 40, 60]}[parts])
        layout = Layout(graph, EdgeCut(order, ptr, np.ones(parts) / parts), 3)
    else:
        layout = Layout(graph, make_vertex_cut(graph, parts, by_metis=False))
    write_shards(layout, tmp_path, seed=0)
    figures = read_figures(read_manifest(tmp_path))
    assert_same_figures(figures, layout.figures)
    assert (figures.halo_depth, figures.parts, figures.nodes) == ({"edge": 3, "vertex": 0}[cut], parts, 60)
    data = [array.nbytes // len(array) for name, array in graph.node_data.items() if name != "feat"]
    assert (figures.features, figures.feature_bytes, figures.node_bytes) == (5, 20, sum(data))
    assert figures.edge_bytes == sum(array.nbytes // len(array) for array in graph.edge_data.values())


NOT_MANIFESTS = ["[" * 100_000, '{"format": ' * 5000 + "1" + "}" * 5000, "1" * 10_000, "\ufeff{}", "null", ""]


@pytest.mark.parametrize("text", NOT_MANIFESTS)
def test_what_is_no_manifest_at_all(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="damaged|not a dgl-gt manifest"):
        read_manifest(tmp_path)


def test_deep_json_with_a_valid_checksum(shards):
    path = shards / "edge" / "manifest.json"
    good, deep = path.read_text(), 1
    for _ in range(300):
        deep = [deep]
    path.write_text(_render({**json.loads(good), "extra": deep, "choice": deep}))
    try:
        with pytest.raises(InputError, match="choice"):
            read_manifest(shards / "edge")
    finally:
        path.write_text(good)


def test_fields_of_a_later_version_are_allowed(shards):
    path = shards / "edge" / "manifest.json"
    good = path.read_text()
    for place in (("extra",), ("per_part", 0, "extra"), ("quality", "extra")):
        path.write_text(rendered(altered(json.loads(good), place, 3)))
        try:
            use(shards / "edge")
        finally:
            path.write_text(good)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(InputError, match="holds no shards"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("key", "place", "value", "message"),
    [
        ("indices", 0, 10**6, "'indices' holds a value that is not a number from 0 to"),
        ("node_ids", 1, -1, "'node_ids' holds a value that is not a number from 0 to 79"),
        ("send_rows", 0, 10**6, "'send_rows' holds a value that is not a number"),
        ("indptr", 2, 10**6, "'indptr' does not rise from 0 to"),
        ("recv_ptr", -1, 10**6, "'recv_ptr' does not rise from 0 to"),
    ],
)
def test_shards_that_were_crafted_throughout(shards, tmp_path, key, place, value, message):
    """Their checksums match, and compiled loops would read beyond their arrays."""
    shutil.copytree(shards / "edge", tmp_path / "out")
    path = tmp_path / "out" / "part1" / "structure.safetensors"
    arrays = load_file(path)
    arrays[key][place] = value
    save_file(arrays, path)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["files"]["part1/structure.safetensors"] = file_entry(path)
    (tmp_path / "out" / "manifest.json").write_text(_render(manifest))
    with pytest.raises(InputError, match=f"part1/structure.safetensors is damaged: {message}"):
        use(tmp_path / "out")


def resigned(shards, folder, file, change):
    """A copy of shards with an altered file, whose checksums match."""
    shutil.copytree(shards / "edge", folder)
    path = folder / file
    change(path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][file] = file_entry(path)
    manifest["per_part"][1]["bytes"] = sum(each.stat().st_size for each in path.parent.iterdir())
    (folder / "manifest.json").write_text(_render(manifest))


@pytest.mark.parametrize(
    ("file", "old", "new", "width", "message"),
    [
        ("structure", "I32", "BF16", 2, "'indices' has type BF16 instead of I32 or I64"),
        ("node_data", "F32", "F8_E4M3", 1, "'feat' has type F8_E4M3 instead of F32"),
        ("node_data", "F32", "I32", 4, "'feat' has type I32 instead of F32"),
    ],
)
def test_types_that_the_manifest_does_not_say(shards, tmp_path, file, old, new, width, message):
    """Numpy has no type for some of them."""

    def retype(path):
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        key = message.split("'")[1]
        assert header[key]["dtype"] == old
        changed, lost = header[key]["data_offsets"], 0
        for entry in sorted(header.values(), key=lambda each: each["data_offsets"]):
            begin, end = entry["data_offsets"]
            own = (end - begin) * width // 4 if entry["data_offsets"] is changed else end - begin
            entry["data_offsets"] = [begin - lost, begin - lost + own]
            lost += end - begin - own
        header[key]["dtype"] = new
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[: len(data) - lost])

    resigned(shards, tmp_path / "out", f"part1/{file}.safetensors", retype)
    with pytest.raises(InputError, match=f"{file}.safetensors does not fit the manifest: {message}; partition"):
        use(tmp_path / "out")


def test_indices_are_checked_in_slices(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_SLICE", 3)
    use(shards / "edge")
    use(shards / "vertex")

    def fall(path):
        arrays = load_file(path)
        arrays["indptr"][6:] -= 1  # between two slices
        arrays["indptr"][5] = arrays["indptr"][6] + 1
        save_file(arrays, path)

    resigned(shards, tmp_path / "out", "part1/structure.safetensors", fall)
    with pytest.raises(InputError, match="'indptr' does not rise from 0 to"):
        verify(tmp_path / "out", read_manifest(tmp_path / "out"))


def test_a_part_that_cannot_be_read(shards, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files_module, "file_checksum", refuse)
    with pytest.raises(InputError, match="part0/structure.safetensors: no permission to read it"):
        verify(shards / "edge", read_manifest(shards / "edge"))
