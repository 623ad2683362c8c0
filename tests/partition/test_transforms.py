"""Expander edges and virtual nodes: what they add, by brute force, and how it comes through the whole way to shards."""

import json
import os
import re
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file

from dgl_gt.cli.main import main
from dgl_gt.partition import (
    InputError,
    add_expander_edges,
    add_virtual_nodes,
    encode,
    load_graph,
    partition,
    read_manifest,
    verify,
)
from dgl_gt.partition.graph import check_data, from_edges
from dgl_gt.partition.transforms.exphormer import untransformed

SAMPLE = "sample:communities?nodes=120&features=4&seed=2"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def edge_list(graph):
    return list(zip(*(ends.tolist() for ends in graph.edges())))


def new_edges(before, after):
    assert edge_list(after)[: before.num_edges] == edge_list(before)
    return edge_list(after)[before.num_edges :]


# ---- expander edges ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [2, 4, 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_expander_edges(awkward_graph, degree, seed):
    """Each cycle is drawn again here, as a walk over a permutation, and every pair of neighbours is joined once."""
    before = awkward_graph(seed)
    after = add_expander_edges(before, degree, seed=seed)
    check_data(after)
    draw, expected = np.random.default_rng(seed), set()
    for _ in range(degree // 2):
        order = draw.permutation(before.num_nodes).tolist()
        expected |= {(u, v) for a, b in zip(order, order[1:] + order[:1]) for u, v in ((a, b), (b, a))}
    added = new_edges(before, after)
    assert set(added) == expected and len(added) == len(expected)
    one_way = sorted(pair for pair in expected if pair[0] < pair[1])
    assert added == one_way + [(v, u) for u, v in one_way]
    assert after.transforms == {"expander": {"degree": degree, "edges": len(added), "seed": seed}}
    degrees = Counter(u for u, _ in added)
    assert max(degrees.values()) <= degree and sum(degrees.values()) == len(added)
    assert len(degrees) == before.num_nodes, "isolated nodes have neighbours, too"
    assert after.edge_data["edge_kind"].dtype == np.uint8
    assert after.edge_data["edge_kind"].tolist() == [0] * before.num_edges + [1] * len(added)
    np.testing.assert_array_equal(after.edge_data["weight"][: before.num_edges], before.edge_data["weight"])
    assert not after.edge_data["weight"][before.num_edges :].any()
    assert after.node_data is before.node_data or after.node_data.keys() == before.node_data.keys()


def test_it_is_an_expander():
    """The second eigenvalue is near the least possible, 2 sqrt(d - 1) / d: walks mix in a few hops."""
    graph = add_expander_edges(from_edges([], [], 600), 6)
    matrix = np.zeros((600, 600))
    matrix[graph.edges()] = 1
    values = np.linalg.eigvalsh(matrix)
    assert max(values[-2], -values[0]) < 2 * np.sqrt(5) + 0.3 and values[-1] <= 6 + 1e-9


def test_seeds(awkward_graph):
    graph = awkward_graph(0)
    edges = [edge_list(add_expander_edges(graph, 4, seed=seed)) for seed in (3, 3, 4)]
    assert edges[0] == edges[1] != edges[2]


@pytest.mark.parametrize(("nodes", "degree"), [(3, 2), (5, 4), (7, 6)])
def test_small_graphs(nodes, degree):
    graph = add_expander_edges(from_edges([], [], nodes), degree)
    assert graph.in_degrees().max() <= degree and graph.in_degrees().min() >= 2


REFUSED = [
    ({"expander": 3}, "expander is 3; it must be an even number from 2 to 128"),
    ({"expander": 0}, "expander is 0; it must be a whole number from 1 to 128"),
    ({"expander": -2}, "expander is -2"),
    ({"expander": 130}, "expander is 130"),
    ({"expander": 120}, "expander is 120, but sample.* has 120 nodes, so a node has at most 119 neighbours"),
    ({"virtual_nodes": 0}, "virtual_nodes is 0; it must be a whole number from 1 to 128"),
    ({"virtual_nodes": 129}, "virtual_nodes is 129"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[text[:20] for _, text in REFUSED])
@pytest.mark.parametrize("way", ["run", "dry run", "python"])
def test_what_is_refused(capsys, options, message, way):
    if way == "python":
        with pytest.raises(InputError, match=message):
            partition(SAMPLE, 2, "out", **options)
    else:
        given = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        last = ["--out", "out"] if way == "run" else ["--dry-run"]
        assert main(["partition", SAMPLE, "--parts", "2", *given, *last]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        for name in options:
            message = message.replace(f"{name} is", f"--{name.replace('_', '-')} is")
        assert re.search(message, error) and "Traceback" not in error
    assert os.listdir() == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_graph_too_small_for_an_expander(capsys, nodes):
    np.savez("tiny.npz", edge_index=np.zeros((2, 1), np.int64), num_nodes=nodes)
    for last in (["--out", "out"], ["--dry-run"]):
        assert main(["partition", "tiny.npz", "--parts", "1", "--expander", "2", *last]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"--expander is 2, but tiny.npz has {nodes} node" in error and "leave --expander out" in error
    assert os.listdir() == ["tiny.npz"]


@pytest.mark.parametrize(("function", "value"), [(add_expander_edges, 2), (add_virtual_nodes, 1)])
def test_what_a_graph_may_not_have(awkward_graph, function, value):
    graph = awkward_graph(0)
    with pytest.raises(InputError, match="already has"):
        function(function(graph, value), value)
    with pytest.raises(InputError, match="graph is 3"):
        function(3, value)
    with pytest.raises(InputError, match="encoding shortest_path, which the new edges would lack"):
        function(encode(graph, "shortest_path=2"), value)
    graph.edge_data["edge_kind"] = np.zeros(graph.num_edges)
    with pytest.raises(InputError, match="has edge data 'edge_kind'"):
        function(graph, value)


def test_node_data_of_the_name_of_virtual_nodes(awkward_graph):
    graph = awkward_graph(0)
    graph.node_data["virtual_node"] = np.zeros(graph.num_nodes)
    for each in (graph, add_expander_edges(graph, 2)):
        with pytest.raises(InputError, match="has node data 'virtual_node'"):
            add_virtual_nodes(each, 1)


# ---- virtual nodes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_virtual_nodes(awkward_graph, count):
    before = awkward_graph(1)
    nodes = before.num_nodes
    after = add_virtual_nodes(before, count)
    check_data(after)
    expected = []
    for virtual in range(nodes, nodes + count):
        expected += [(node, virtual) for node in range(nodes)] + [(virtual, node) for node in range(nodes)]
    assert new_edges(before, after) == expected and after.num_nodes == nodes + count
    assert after.edge_data["edge_kind"].tolist() == [0] * before.num_edges + [2] * len(expected)
    assert after.transforms == {"virtual_nodes": {"nodes": count, "edges": 2 * count * nodes}}
    for key, value in before.node_data.items():
        np.testing.assert_array_equal(after.node_data[key][:nodes], value)
        assert after.node_data[key].dtype == value.dtype
        assert (after.node_data[key][nodes:] == (-1 if key == "label" else 0)).all()
    assert after.node_data["virtual_node"].dtype == np.uint8
    np.testing.assert_array_equal(after.node_data["virtual_node"], np.eye(nodes + count)[:, nodes:])
    assert before.num_nodes == nodes and len(before.node_data["feat"]) == nodes


DATA = {
    "label": np.array([0, 1, 2], np.uint8),
    "train_mask": np.array([[True, False], [False, True], [True, False]]),
    "year": np.array([2001, 2002, 2003], np.int16),
    "image": np.ones((3, 2, 2), np.float16),
    "wide": np.zeros((3, 0), ">f8"),
}


def test_node_data_of_every_type():
    after = add_virtual_nodes(from_edges([0], [1], 3, DATA), 2)
    check_data(after)
    assert after.node_data["label"].tolist() == [0, 1, 2, -1, -1] and after.node_data["label"].dtype == np.int64
    assert not after.node_data["train_mask"][3:].any() and after.node_data["train_mask"].shape == (5, 2)
    assert after.node_data["year"].tolist() == [2001, 2002, 2003, 0, 0] and after.node_data["year"].dtype == np.int16
    assert after.node_data["image"].shape == (5, 2, 2) and after.node_data["image"].dtype == np.float16
    assert after.node_data["wide"].shape == (5, 0)
    assert add_virtual_nodes(from_edges([], [], 1), 1).num_edges == 2


def test_both_in_either_order_and_back(awkward_graph):
    graph = encode(awkward_graph(2), "degree")
    one = add_virtual_nodes(add_expander_edges(graph, 4, seed=5), 2)
    two = add_expander_edges(add_virtual_nodes(graph, 2), 4, seed=5)
    assert Counter(edge_list(one)) == Counter(edge_list(two))
    assert one.transforms == two.transforms and list(one.transforms) == list(two.transforms)[::-1]
    assert not one.node_data["degree"][-2:].any()
    for each in (one, two):
        plain = untransformed(each)
        for key in ("indptr", "indices", "edge_ids"):
            np.testing.assert_array_equal(getattr(plain, key), getattr(graph, key))
        for made, given in ((plain.node_data, graph.node_data), (plain.edge_data, graph.edge_data)):
            assert made.keys() == given.keys()
            for key in made:
                np.testing.assert_array_equal(made[key], given[key])
        assert not plain.transforms and plain.encodings == graph.encodings
    assert untransformed(graph) is graph


# ---- shards ------------------------------------------------------------------------------------------------------


def read_back(parts):
    """Edges of all parts in the user's ids and their data by edge id, and node data by node id."""
    edges, edge_data, node_data = {}, {}, {}
    for part in range(parts):
        arrays = load_file(f"shards/part{part}/structure.safetensors")
        dst = np.repeat(arrays["node_ids"][: len(arrays["indptr"]) - 1], np.diff(arrays["indptr"]))
        ends = zip(arrays["node_ids"][arrays["indices"]].tolist(), dst.tolist())
        edges |= dict(zip(arrays["edge_ids"].tolist(), ends))
        for found, ids, name in ((edge_data, "edge_ids", "edge_data"), (node_data, "node_ids", "node_data")):
            for key, values in load_file(f"shards/part{part}/{name}.safetensors").items():
                found.setdefault(key, {}).update(zip(arrays[ids].tolist(), values))
    return edges, edge_data, node_data


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_shards_hold_what_was_added(awkward_graph, parts, cut):
    graph = awkward_graph(parts)
    expected = encode(add_virtual_nodes(add_expander_edges(graph, 4, seed=7), 2), "degree,shortest_path=3")
    manifest = partition(
        graph, parts, "shards", cut=cut, seed=7, expander=4, virtual_nodes=2, encode="degree,shortest_path=3"
    )
    verify("shards", manifest)
    assert manifest["transforms"] == expected.transforms and manifest["encodings"] == expected.encodings
    assert (manifest["nodes"], manifest["edges"]) == (expected.num_nodes, expected.num_edges)
    edges, edge_data, node_data = read_back(parts)
    assert [edges[edge] for edge in range(expected.num_edges)] == edge_list(expected)
    for found, data in ((edge_data, expected.edge_data), (node_data, expected.node_data)):
        assert found.keys() == data.keys()
        for key, values in data.items():
            np.testing.assert_array_equal([found[key][row] for row in range(len(values))], values)


def test_self_loops_and_reverse_edges_come_first():
    """So virtual nodes have no self-loops, and every edge that was added is of the graph's kind."""
    graph = from_edges([0, 1, 2], [1, 2, 3], 5, {"feat": np.ones((5, 2), np.float32)})
    partition(graph, 1, "shards", self_loops=True, undirected=True, virtual_nodes=1, encode="degree")
    edges, edge_data, node_data = read_back(1)
    kinds = [int(edge_data["edge_kind"][edge]) for edge in range(len(edges))]
    assert kinds == [0] * (3 + 3 + 5) + [2] * 10 and (5, 5) not in edges.values()
    np.testing.assert_allclose([node_data["degree"][0], node_data["degree"][5]], [[np.log(3)] * 2, [0, 0]], rtol=1e-6)
    again = add_virtual_nodes(graph, 1)
    with pytest.raises(InputError, match="has virtual nodes, which self-loops would lack"):
        partition(again, 1, "more", self_loops=True, self_loop_fill="zero")


def test_without_transforms_nothing_is_recorded():
    manifest = partition(SAMPLE, 2, "shards")
    assert manifest["transforms"] == {} and "edge_kind" not in manifest["edge_data"]


def test_what_is_printed(capsys):
    options = ["--expander", "4", "--virtual-nodes", "2"]
    assert main(["partition", SAMPLE, "--parts", "2", "--out", "shards", *options]) == 0
    out, _ = capsys.readouterr()
    record = json.loads(open("shards/manifest.json").read())["transforms"]["expander"]
    said = f"added: {record['edges']} expander edges of degree 4, 2 virtual nodes with 480 edges\n"
    assert said in out and "virtual_node (2 columns)" in out
    assert main(["inspect", "shards"]) == 0 and said in capsys.readouterr().out
    assert main(["inspect", "shards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["transforms"]["virtual_nodes"] == {"nodes": 2, "edges": 480}
    assert main(["report", "shards", "-o", "report.html"]) == 0
    assert "added: " + said.strip().removeprefix("added: ") in open("report.html").read()
    assert json.loads(open("report.json").read())["transforms"]["expander"] == record


def test_a_dry_run_counts_what_is_added(capsys):
    asked = ["partition", SAMPLE, "--parts", "2", "--dry-run", "--json"]
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*asked, "--expander", "4", "--virtual-nodes", "3"]) == 0
    planned = json.loads(capsys.readouterr().out)
    graph = load_graph(SAMPLE)
    assert planned["nodes"] == plain["nodes"] + 3
    assert planned["edges"] == plain["edges"] + graph.num_nodes * (4 + 2 * 3)
    assert planned["estimates"]["metis"]["memory_bytes"] > plain["estimates"]["metis"]["memory_bytes"]
    assert planned["estimates"]["metis"]["disk_bytes"] > plain["estimates"]["metis"]["disk_bytes"]


def test_a_stream_has_no_transforms(capsys):
    np.savez("graph.npz", edge_index=np.arange(600).reshape(2, 300), num_nodes=600)
    asked = ["partition", "graph.npz", "--parts", "2", "--out", "out", "--memory", "1MiB", "--virtual-nodes", "1"]
    assert main(asked) == 2
    assert "--virtual-nodes cannot be added to a graph that is streamed" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array], ids=["int64", "uint8", "array of one"])
def test_counts_may_be_any_whole_numbers(tmp_path, kind):
    """Also those of numpy and torch, which JSON cannot hold."""
    graph = load_graph("sample:communities?nodes=100")
    partition(graph, 1, tmp_path / "out", expander=kind(2), virtual_nodes=kind(1))
    transforms = read_manifest(tmp_path / "out")["transforms"]
    assert transforms["expander"]["degree"] == 2 and transforms["virtual_nodes"]["nodes"] == 1
