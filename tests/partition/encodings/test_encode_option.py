"""What ``--encode`` may say, what is refused before anything is written, and what is recorded."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from memory_cases import sizes_of
from safetensors.numpy import load_file

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, add_expander_edges, encode, load_graph, partition, read_manifest, verify
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.memory_bound import estimate_needs
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.transforms import encode as encode_module
from dgl_gt.partition.transforms import encodings as needs
from dgl_gt.partition.transforms import node_encodings
from dgl_gt.partition.transforms.encode import add_encodings
from dgl_gt.partition.transforms.encodings import Encoding, parse_encodings
from dgl_gt.partition.transforms.exphormer import transformed

SAMPLE = "sample:communities?nodes=300&features=8&seed=1"
ALL = "laplacian=6,random_walk=5,degree,anchors=4,hops=2x3"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_what_a_text_names():
    assert parse_encodings(None) == ()
    assert parse_encodings(" laplacian=16 ,degree, hops = 3 x 64") == (
        Encoding("laplacian", 16),
        Encoding("degree", 2),
        Encoding("hops", 3, 64),
    )
    assert Encoding("hops", 3, 64).columns(10) == 30 and Encoding("hops", 3, 64).columns(100) == 192


REFUSED = [
    ("laplacian=0", "is 'laplacian=0': laplacian takes a whole number from 1 to 128"),
    ("laplacian=129", "laplacian takes a whole number from 1 to 128"),
    ("laplacian=-1", "laplacian takes a whole number from 1 to 128"),
    ("laplacian=1.5", "laplacian takes a whole number from 1 to 128"),
    ("laplacian", "laplacian takes a whole number from 1 to 128"),
    ("laplacian=٣", "laplacian takes a whole number from 1 to 128"),
    ("random_walk=3x4", "random_walk takes a whole number from 1 to 128"),
    ("anchors=1025", "anchors takes a whole number from 1 to 1,024"),
    ("anchors=" + "9" * 5000, "anchors takes a whole number from 1 to 1,024"),
    ("hops=33", "hops takes a whole number from 1 to 32"),
    ("hops=3x0", "hops=KxW a width W from 1 to 4,096"),
    ("hops=3x4097", "hops=KxW a width W from 1 to 4,096"),
    ("hops=3x", "hops=KxW a width W from 1 to 4,096"),
    ("degree=2", "there is no encoding 'degree=2'"),
    ("degree,,anchors=2", "there is no encoding ''"),
    ("", "there is no encoding ''; write laplacian=K"),
    ("pagerank=3", "there is no encoding 'pagerank=3'"),
    ("Degree", "there is no encoding 'Degree'"),
    ("shortest_path=0", "shortest_path takes a whole number from 1 to 6, as in shortest_path=4"),
    ("shortest_path=7", "shortest_path takes a whole number from 1 to 6"),
    ("degree,anchors=2,degree", "it names degree twice; give each encoding at most once"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:20] for text, _ in REFUSED])
@pytest.mark.parametrize("options", [["--out", "shards"], ["--dry-run"]], ids=["run", "dry run"])
def test_what_is_refused(capsys, text, message, options):
    """Before the source is read: it does not exist."""
    assert main(["partition", "nowhere.npz", "--parts", "2", "--encode", text, *options]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last and "error: --encode is '" in last and len(last) < 700
    assert os.listdir() == []


@pytest.mark.parametrize("options", [["--out", "shards"], ["--dry-run"]], ids=["run", "dry run"])
def test_what_does_not_suit_the_graph(capsys, options, monkeypatch):
    monkeypatch.setattr(encode_module, "add_encodings", None)  # nothing is computed
    np.savez("taken.npz", edge_index=np.array([[0, 1], [1, 2]]), num_nodes=3)
    np.save("degree.npy", np.zeros((3, 2)))
    asked = ["partition", "taken.npz", "--parts", "1", *options]
    assert main([*asked, "--node-data", "degree.npy", "--encode", "degree"]) == 2
    message = "has node data 'degree' already; rename them in the source, or leave degree out of --encode"
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert main([*asked, "--encode", "hops=2"]) == 2
    message = "has no features, which the encoding 'hops' needs; add node data 'feat', or leave 'hops' out of --encode"
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(os.listdir()) == ["degree.npy", "taken.npz"]


def test_wrong_types_from_python(awkward_graph):
    graph = awkward_graph(0)
    for bad, message in ((3, "encodings is 3; it must be a str"), (None, "encodings is None"), (["degree"], "a str")):
        with pytest.raises(InputError, match=message):
            encode(graph, bad)
    with pytest.raises(InputError, match="graph is 'g.npz'"):
        encode("g.npz", "degree")
    with pytest.raises(InputError, match="seed is -1"):
        encode(graph, "degree", seed=-1)
    with pytest.raises(InputError, match="encode is 3"):
        partition(graph, 2, "out", encode=3)
    with pytest.raises(InputError, match="has node data 'degree' already"):
        encode(encode(graph, "degree"), "degree")


def test_more_than_fits_into_memory(monkeypatch, awkward_graph):
    def refuse(what, needed_bytes):
        raise InputError(f"{what}: {needed_bytes}")

    monkeypatch.setattr(encode_module, "check_fits_memory", refuse)
    with pytest.raises(InputError, match="awkward-0: 37 columns of encodings: 8880"):
        encode(awkward_graph(0), "hops=7,degree")


# ---- shards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_shards_hold_the_encodings_of_the_whole_graph(cut):
    graph = encode(load_graph(SAMPLE, seed=7), ALL, seed=7)
    manifest = partition(SAMPLE, 3, "shards", cut=cut, encode=ALL, seed=7)
    assert manifest["encodings"] == graph.encodings == read_manifest("shards")["encodings"]
    verify("shards", manifest)
    for part in range(3):
        ids = load_file(f"shards/part{part}/structure.safetensors")["node_ids"]
        data = load_file(f"shards/part{part}/node_data.safetensors")
        for name in graph.encodings:
            np.testing.assert_array_equal(data[name], graph.node_data[name][ids])
    assert partition(graph, 3, "again", cut=cut, seed=7)["encodings"] == graph.encodings
    assert read_manifest("again")["files"] == manifest["files"]


def test_features_and_edges_that_options_add_are_seen():
    graph = from_edges([0, 1, 2], [1, 2, 3], 5)
    manifest = partition(graph, 2, "out", random_features=4, encode="hops=2,degree", undirected=True)
    assert manifest["encodings"]["hops"]["columns"] == 8
    ids = load_file("out/part0/structure.safetensors")["node_ids"]
    degree = load_file("out/part0/node_data.safetensors")["degree"]
    np.testing.assert_allclose(degree[:, 0], np.log1p(np.array([1, 2, 2, 1, 0])[ids]), rtol=1e-6)


def test_a_record_whose_data_were_replaced_is_not_written(awkward_graph):
    graph = encode(awkward_graph(0), "degree,anchors=2,random_walk=2")
    del graph.node_data["anchors"]
    graph.node_data["degree"] = np.zeros((graph.num_nodes, 3))
    assert list(partition(graph, 2, "out")["encodings"]) == ["random_walk"]
    read_manifest("out")


def test_what_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(node_encodings, "MAX_MULTIPLICATIONS", 0)
    assert main(["partition", SAMPLE, "--parts", "2", "--out", "shards", "--encode", ALL]) == 0
    out, err = capsys.readouterr()
    for name in ("laplacian", "random_walk", "degree", "anchors", "hops"):
        assert f"encoding, {name}" in err
    assert (
        "encodings: laplacian (6 columns), random_walk (5 columns, estimated with 256 random vectors from column 3 on), "
        "degree (2 columns), anchors (4 columns), hops (6 columns)\n" in out
    )
    assert main(["inspect", "shards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["encodings"]["random_walk"]["exact_columns"] == 2
    np.savez("tiny.npz", edge_index=np.array([[0, 1], [1, 2]]), num_nodes=3)
    assert main(["partition", "tiny.npz", "--parts", "1", "--out", "tiny", "--encode", "laplacian=5,anchors=4"]) == 0
    expected = "laplacian (5 columns, the last 3 are zero), anchors (4 columns, the last one is zero)"
    assert expected in capsys.readouterr().out


# ---- memory ------------------------------------------------------------------------------------------------------


def peak_bytes(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "is_exact"),
    [
        *[(text, True) for text in ("degree", "laplacian=3", "laplacian=40", "random_walk=8", "anchors=8")],
        *[(text, True) for text in ("hops=2", "hops=2x8", "degree,anchors=2,hops=3x4")],
        ("random_walk=8", False),
    ],
)
def test_estimates_of_memory_against_runs(monkeypatch, text, is_exact):
    """Bytes of all arrays, as numpy reports them, with those of scipy's solvers."""
    monkeypatch.setattr(node_encodings, "_BLOCK_BYTES", 1 << 21)
    if not is_exact:
        monkeypatch.setattr(node_encodings, "MAX_MULTIPLICATIONS", 0)
    rng = np.random.default_rng(0)
    nodes, edges = 6000, 60_000
    feat = rng.standard_normal((nodes, 64)).astype(np.float32)
    graph = from_edges(*rng.integers(0, nodes, (2, edges)), nodes, {"feat": feat})
    encodings = parse_encodings(text)
    add_encodings(graph, parse_encodings("laplacian=1"), seed=0)  # what scipy loads at the first use
    peak = peak_bytes(lambda: add_encodings(graph, encodings, seed=0))
    result = nodes * needs.row_bytes(encodings, 64)
    estimate = needs.work_bytes(encodings, needs.Sizes(nodes, edges, edges, 64)) + result
    assert 0.7 < peak / estimate < 1.15
    plain, found = sizes_of(graph, 2), sizes_of(graph, 2, encode=text)
    assert found.node_bytes - plain.node_bytes == found.added_bytes == result // nodes
    assert estimate_needs(found, "expansion").memory_bytes >= estimate + graph.node_data["feat"].nbytes


@pytest.mark.parametrize("text", ["shortest_path=1", "shortest_path=2", "shortest_path=4"])
@pytest.mark.parametrize("degree", [0, 6])
def test_estimates_of_shortest_paths_against_runs(text, degree):
    rng = np.random.default_rng(0)
    nodes, edges = 6000, 60_000
    plain = from_edges(*rng.integers(0, nodes, (2, edges)), nodes)
    graph = add_expander_edges(plain, degree) if degree else plain
    encodings = parse_encodings(text)
    peak = peak_bytes(lambda: add_encodings(graph, encodings, seed=0))
    sizes = needs.Sizes(nodes, edges, edges, 0, graph.num_edges - edges, graph.num_edges - edges)
    assert needs.edge_bytes(encodings) == 2 and needs.row_bytes(encodings, 0) == 0
    assert 0.6 < peak / (needs.work_bytes(encodings, sizes) + 2 * graph.num_edges) < 1.1
    found = sizes_of(plain, 2, encode=text, expander=degree or None)
    assert found.edge_bytes == found.added_edge_bytes == (3 if degree else 2)
    assert estimate_needs(found, "expansion").memory_bytes >= peak


@pytest.mark.parametrize(("name", "value"), [("expander", 6), ("virtual_nodes", 2)])
def test_estimates_of_transforms_against_runs(name, value):
    rng = np.random.default_rng(0)
    graph = from_edges(*rng.integers(0, 6000, (2, 40_000)), 6000, {"feat": np.ones((6000, 64), np.float32)})
    options = {"expander": None, "virtual_nodes": None, name: value}
    peak = peak_bytes(lambda: transformed(graph, **options, seed=0))
    sizes = sizes_of(graph, 2, **options)
    data = sizes.nodes * sizes.added_bytes + sizes.edges * sizes.added_edge_bytes
    estimate = 8 * sizes.nodes + 8 * sizes.edges + data + sizes.transform_bytes
    assert 0.6 < peak / estimate < 1.1
    assert estimate_needs(sizes, "expansion").memory_bytes >= peak


def test_estimates_grow_with_every_encoding():
    def needs_with(text):
        return estimate_needs(sizes_of(open_source(SAMPLE), 2, encode=text), "metis")

    before = needs_with(None)
    for text in ("laplacian=128", "random_walk=128", "anchors=1024", "hops=32x8", "shortest_path=3"):
        after = needs_with(text)
        assert after.memory_bytes > before.memory_bytes and after.disk_bytes > before.disk_bytes
        assert after.seconds > before.seconds


def test_a_dry_run_counts_encodings_and_a_stream_has_none(capsys):
    np.savez("graph.npz", edge_index=np.arange(600).reshape(2, 300), num_nodes=600)
    asked = ["partition", "graph.npz", "--parts", "2", "--dry-run", "--json"]
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)["estimates"]
    assert main([*asked, "--encode", "anchors=1000"]) == 0
    planned = json.loads(capsys.readouterr().out)["estimates"]
    assert planned["metis"]["memory_bytes"] >= plain["metis"]["memory_bytes"] + 4 * 1000 * 600
    assert "streaming" in plain and "streaming" not in planned
    assert main([*asked[:4], "--out", "out", "--encode", "degree", "--memory", "1MiB"]) == 2
    assert "--encode cannot be added to a graph that is streamed" in capsys.readouterr().err


def test_encoding_loads_no_torch():
    code = (
        "import sys; from dgl_gt import partition; g = partition.encode(partition.load_graph('sample:communities?nodes=100'), 'laplacian=2'); "
        "sys.exit(bool({'torch', 'dgl'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
