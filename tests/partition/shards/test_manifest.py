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

from dgl_gt.partition import add_expander_edges, add_virtual_nodes, encode, load_graph, read_manifest, verify
from dgl_gt.partition.cli import quality_table
from dgl_gt.partition.cuts.edge_cut import EdgeCut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import default_costs
from dgl_gt.partition.report.counts import count_shards
from dgl_gt.partition.report.write import page
from dgl_gt.partition.shards import manifest as manifest_module
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.cut_selection import choose_cut
from dgl_gt.partition.shards.layout import Layout
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
    quality_table(manifest)
    default_costs().step_seconds(read_figures(manifest))
    page(count_shards(folder, read_manifest(folder)))


@pytest.mark.parametrize("kind", ["edge", "vertex", "auto"])
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
    ("place", "new", "message"),
    [
        (("parts",), "2", "manifest.parts is '2', but must be a whole number from 3 to 3"),
        (("parts",), 10**9, "but must be a whole number from 3 to 3"),
        (("parts",), True, "manifest.parts is True"),
        (("per_part", 1, "owned"), 10**400, "per_part.1..owned is 1000"),
        (("per_part", 1, "halo_by_hop"), [1], "per_part.1..halo_by_hop is .1., but must be a list of 2"),
        (("per_part", 2, "cut_edges"), KeyError, r"manifest.per_part\[2\] has no field 'cut_edges'"),
        (("per_part", 0, "near_edges"), KeyError, r"manifest.per_part\[0\] has no field 'near_edges'"),
        (
            ("per_part", 0, "near_edges"),
            10**6,
            r"per_part.0..near_edges is 1000000, but must be \d+, as other counts say",
        ),
        (("per_part",), KeyError, "manifest has no field 'per_part'"),
        (("shares",), KeyError, "manifest has no field 'shares'"),
        (("quality",), KeyError, "manifest has no field 'quality'"),
        (("received_rows",), KeyError, "manifest has no field 'received_rows'"),
        (("ptr", 0), 1, r"per_part.0..owned is \d+, but must be \d+, as other counts say"),
        (("shares", 2), 0.9, "the sum of shares is"),
        (("quality", "cut_ratio"), float("nan"), "is damaged: not valid JSON"),
        (("seed",), "<script>", "manifest.seed is '<script>'"),
        (("node_data", "feat", "shape"), [4], r"does not fit the manifest: 'feat' has shape \(\d+, 3\) instead of"),
        (("files", "../../x"), {"bytes": 1, "sha256": "0" * 64}, "must be an object with the keys"),
        (("versions",), KeyError, "manifest has no field 'versions'"),
        (("encodings",), KeyError, "manifest has no field 'encodings'"),
        (("encodings",), [], r"manifest.encodings is \[\], but must be an object"),
        (("encodings", "spectral"), {}, "a name in manifest.encodings is 'spectral', but must be 'laplacian' or"),
        (("encodings", "degree"), 3, r"manifest.encodings\['degree'\] is 3, but must be an object"),
        (("encodings", "degree", "columns"), 3, "must be a whole number from 2 to 2"),
        (("encodings", "laplacian", "columns"), 2, r"node_data\['laplacian'\] is .*'shape': \[3\].*must be .*\[2\]"),
        (("encodings", "laplacian", "seed"), -1, r"encodings\['laplacian'\].seed is -1"),
        (("encodings", "laplacian", "eigenvalues"), [0.1] * 4, "eigenvalues is .*, but must be a list of at most 3"),
        (
            ("encodings", "laplacian", "eigenvalues", 0),
            2.5,
            r"eigenvalues\[0\] is 2.5, but must be a number from 0 to 2",
        ),
        (("encodings", "random_walk", "exact_columns"), 4, "exact_columns is 4, but must be at most 3"),
        (("encodings", "random_walk", "probes"), 5, "probes is 5, but must be 0 exactly where all columns are exact"),
        (("encodings", "anchors", "landmarks", 0), 80, "landmarks is .*, but must be a list of numbers below 80"),
        (("encodings", "anchors", "landmarks"), [1, 2, 3], "landmarks is .*, but must be a list of at most 2"),
        (("encodings", "hops", "hops"), 3, "columns is 4, but must be hops times the columns per hop"),
        (("encodings", "hops", "width"), 1, "columns is 4, but must be hops times the columns per hop"),
        (("encodings", "shortest_path", "most"), 7, "must be a whole number from 1 to 6"),
        (("edge_data", "shortest_path", "dtype"), "int8", r"edge_data\['shortest_path'\] is .*, but must be .*'uint8'"),
        (("encodings", "virtual_node", "columns"), 3, r"node_data\['virtual_node'\] is .*, but must be .*\[3\]"),
        (("transforms",), KeyError, "manifest has no field 'transforms'"),
        (("transforms", "rewiring"), {}, "a name in manifest.transforms is 'rewiring', but must be 'expander' or"),
        (("transforms", "expander", "degree"), 3, "must be an even degree and an even number of edges"),
        (("transforms", "expander", "degree"), 2, r"\['expander'\].edges is \d+, but must be at most 156"),
        (("transforms", "virtual_nodes", "nodes"), 80, r"\['virtual_nodes'\].nodes is 80, but must be below 80"),
        (("transforms", "virtual_nodes", "nodes"), 3, r"\['virtual_nodes'\].edges is 312, but must be 462"),
        (
            ("transforms", "virtual_nodes"),
            KeyError,
            r"\['virtual_node'\].columns is 2, but must be the number of virtual",
        ),
        (("node_data", "degree", "dtype"), "float64", r"node_data\['degree'\] is .*, but must be .*'float32'"),
    ],
)
def test_what_is_said(shards, place, new, message):
    path = shards / "edge" / "manifest.json"
    good = path.read_text()
    path.write_text(rendered(altered(json.loads(good), place, new)))
    try:
        with pytest.raises(InputError, match=message + ".*; partition the graph again"):
            use(shards / "edge")
    finally:
        path.write_text(good)


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        ((), KeyError, "manifest has no field 'hosts'"),
        (("2",), KeyError, "manifest.hosts has no field '2'"),
        (("2", "received_rows"), [[0, 1]], r"hosts.2.received_rows is \[\[0, 1\]\], but must be a list of 2"),
        (("2", "received_rows", 0, 0), 1, r"hosts\['2'\].received_rows\[0\]\[0\] is 1, but must be 0"),
        (
            ("2", "received_rows", 1, 0),
            10**6,
            r"the sum of hosts\['2'\].received_rows\[1\] is 1000000, but must be \d+",
        ),
        (("2", "cut_edges", 0), 10**6, r"hosts\['2'\].cut_edges\[0\] is 1000000, but must be \d+, as other counts say"),
    ],
)
def test_counts_of_hosts_are_checked(awkward_graph, tmp_path, place, new, message):
    graph = awkward_graph(2)
    write_shards(Layout(graph, EdgeCut(np.arange(60), np.arange(0, 61, 15), np.ones(4) / 4)), tmp_path, seed=0)
    path = tmp_path / "manifest.json"
    path.write_text(rendered(altered(json.loads(path.read_text()), ("hosts", *place), new)))
    with pytest.raises(InputError, match=message):
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
        with pytest.raises(InputError, match="choice is .*, but must be an object"):
            read_manifest(shards / "edge")
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
    monkeypatch.setattr(manifest_module, "_SLICE", 3)
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

    monkeypatch.setattr(manifest_module, "_sha256", refuse)
    with pytest.raises(InputError, match="part0/structure.safetensors: no permission to read it; check its owner"):
        verify(shards / "edge", read_manifest(shards / "edge"))
