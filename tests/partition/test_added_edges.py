"""Self-loops and reverse edges of graphs that have edge data."""

import json

import numpy as np
import pytest
from memory_cases import sizes_of

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, add_virtual_nodes, encode, load_graph, partition
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.memory_bound import estimate_needs
from dgl_gt.partition.transforms.added_edges import with_reverse_edges, with_self_loops

TYPES = ("float32", "float64", "float16", "int64", "uint8", "int8", "bool")


def graph_of(dtype="float32", shape=()):
    """Node 1 has a self-loop, node 3 no in-edge."""
    values = np.arange(1, 5 * np.prod(shape, dtype=int) + 1).reshape(5, *shape)
    return from_edges([0, 1, 2, 3, 3], [1, 1, 0, 0, 2], 4, edge_data={"weight": values.astype(dtype)})


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (0,)])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fill", [1, 1.0, 0, "zero"])
def test_self_loops_get_the_number(dtype, shape, fill):
    graph = graph_of(dtype, shape)
    loops = with_self_loops(graph, fill)
    weight = loops.edge_data["weight"]
    assert weight.dtype == graph.edge_data["weight"].dtype and loops.num_edges == len(weight) == 8
    assert (weight[:5] == graph.edge_data["weight"]).all() and (weight[5:] == (0 if fill == "zero" else fill)).all()
    assert [ends.tolist()[5:] for ends in loops.edges()] == [[0, 2, 3]] * 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_is_that_of_the_in_edges(dtype):
    assert with_self_loops(graph_of(dtype), "mean").edge_data["weight"].tolist() == [1, 2, 3, 4, 5, 3.5, 5, 0]
    wide = with_self_loops(graph_of(dtype, (2,)), "mean").edge_data["weight"]
    assert wide[5:].tolist() == [[6, 7], [9, 10], [0, 0]] and wide.dtype == dtype


@pytest.mark.needs_dgl
@pytest.mark.parametrize("fill", [2.0, "mean"])
def test_fills_are_those_of_dgl(awkward_graph, fill):
    import dgl

    graph = awkward_graph(0)
    alone = from_edges(*(ends[graph.edges()[0] != graph.edges()[1]] for ends in graph.edges()), graph.num_nodes)
    alone.edge_data["weight"] = np.random.default_rng(0).random((alone.num_edges, 3), np.float32)
    expected = dgl.add_self_loop(alone.to_dgl(), fill_data=fill)
    found = with_self_loops(alone, fill).to_dgl()
    assert (found.edges()[0] == expected.edges()[0]).all() and (found.edges()[1] == expected.edges()[1]).all()
    np.testing.assert_allclose(found.edata["weight"], expected.edata["weight"], rtol=1e-6)


def test_a_value_for_each_edge_data():
    graph = from_edges([0, 1], [1, 0], 3, edge_data={"weight": np.array([0.5, 1.5]), "type": np.array([4, 5])})
    loops = with_self_loops(graph, {"type": 7, "weight": "mean"})
    assert loops.edge_data["weight"].tolist() == [0.5, 1.5, 1.5, 0.5, 0]
    assert loops.edge_data["type"].tolist() == [4, 5, 7, 7, 7]


def test_self_loops_are_in_no_split_of_edges():
    data = {"train_mask": np.array([True, False]), "val_mask": np.array([False, True]), "rating": np.array([3.0, 4.0])}
    masks = {key: value for key, value in data.items() if key != "rating"}
    assert with_self_loops(from_edges([0, 1], [1, 0], 2, edge_data=masks)).edge_data["train_mask"].sum() == 1
    loops = with_self_loops(from_edges([0, 1], [1, 0], 2, edge_data=data), {"rating": "mean"}).edge_data
    assert loops["rating"].tolist() == [3, 4, 4, 3] and loops["val_mask"].tolist() == [False, True, False, False]
    labelled = from_edges([0, 1], [1, 0], 2, edge_data={"label": np.array([0, 2])})
    assert with_self_loops(labelled).edge_data["label"].tolist() == [0, 2, -1, -1]


@pytest.mark.parametrize(
    ("dtype", "fill", "named"),
    [
        ("int64", "mean", "mean for edge data 'weight' .* int64"),
        ("bool", "mean", "mean .* bool"),
        ("int64", 0.5, "0.5 .* int64"),
        ("uint8", 256, "256 .* uint8"),
        ("uint8", -1, "-1 .* uint8"),
        ("bool", 2, "2 .* bool"),
        ("float32", 1e39, r"1e\+39 .* float32"),
        ("float32", float("nan"), "nan; it must be a finite number, mean or zero"),
        ("float32", "one", "'one'; it must"),
        ("float32", True, "True; it must"),
        ("float32", {"weight": "max"}, "'max'; it must"),
        ("float32", {"length": 1}, "names edge data length, and graph has weight"),
        ("float32", {}, "names edge data nothing"),
        ("float32", None, "self-loops need edge data weight"),
    ],
)
def test_fills_that_are_refused(dtype, fill, named):
    with pytest.raises(InputError, match=r"self_loop_fill \(--self-loop-fill\)") as error:
        load_graph(graph_of(dtype), self_loops=True, self_loop_fill=fill)
    assert error.match(named)


def test_a_fill_needs_self_loops():
    with pytest.raises(InputError, match="self_loop_fill .* is 1, but no self-loops are added"):
        load_graph(graph_of(), self_loop_fill=1)


def test_reverse_edges_take_the_data_of_their_edges():
    data = {
        "weight": np.array([1.5, 2.5, 3.5, 4.5, 5.5]),
        "vector": np.arange(10).reshape(5, 2),
        "flag": np.eye(5)[0] > 0,
    }
    graph = from_edges([0, 1, 1, 2, 3], [1, 0, 2, 2, 1], 4, edge_data=data)
    both = with_reverse_edges(graph)
    src, dst = both.edges()
    rows = {pair: row for row, pair in enumerate(zip(src.tolist(), dst.tolist()))}
    assert both.num_edges == 7 and (rows[2, 1], rows[1, 3]) in ((5, 6), (6, 5))
    for key, values in data.items():
        found = both.edge_data[key]
        assert found.dtype == values.dtype and (found[:5] == values).all()
        assert (found[rows[2, 1]] == values[2]).all() and (found[rows[1, 3]] == values[4]).all()


@pytest.mark.parametrize("seed", range(3))
def test_reverse_edges_of_random_graphs(seed):
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, 30, (200, 2)), axis=0)
    src, dst = rng.permutation(pairs).T
    graph = with_reverse_edges(from_edges(src, dst, 31, edge_data={"weight": 100 * src + dst}))
    src, dst = graph.edges()
    assert len({*zip(src.tolist(), dst.tolist())}) == graph.num_edges
    expected = np.where(np.arange(graph.num_edges) < len(pairs), 100 * src + dst, 100 * dst + src)
    assert (graph.edge_data["weight"] == expected).all()


def test_each_parallel_edge_without_a_reverse_gets_one():
    ends = [0, 0, 2, 2, 1], [1, 1, 1, 1, 2]
    both = load_graph(from_edges(*ends, 3, edge_data={"weight": np.arange(5)}), undirected=True)
    assert [each[5:].tolist() for each in (*both.edges(), both.edge_data["weight"])] == [[1, 1], [0, 0], [0, 1]]
    assert load_graph(from_edges(*ends, 3), undirected=True).num_edges == 7
    back = from_edges(*(np.append(ends, [[1], [0]], 1)), 3, edge_data={"weight": np.arange(6)})
    assert load_graph(back, undirected=True).num_edges == 6


def test_kinds_of_edges_that_are_added(tmp_path):
    graph = from_edges([0, 1, 1, 3], [1, 0, 2, 3], 4)
    both = {"undirected": True, "self_loops": True, "reverse_kind": True}
    kinds = load_graph(graph, **both).edge_data["reverse_kind"]
    assert kinds.dtype == np.uint8 and kinds.tolist() == [0] * 4 + [1] + [2] * 3
    assert load_graph(graph, undirected=True, reverse_kind=True).edge_data["reverse_kind"].tolist() == [0] * 4 + [1]
    weighted = from_edges([0, 1], [1, 2], 3, edge_data={"weight": np.array([0.5, 1.5])})
    data = load_graph(weighted, **both, self_loop_fill="zero").edge_data
    assert data["weight"].tolist() == [0.5, 1.5, 0.5, 1.5, 0, 0, 0]
    assert data["reverse_kind"].tolist() == [0, 0, 1, 1, 2, 2, 2]
    added = {"expander": 2, "virtual_nodes": 1}
    assert partition(graph, 2, tmp_path / "out", **both, **added)["edge_data"]["reverse_kind"]["dtype"] == "uint8"


def test_kinds_that_cannot_be():
    with pytest.raises(InputError, match=r"reverse_kind \(--reverse-kind\) .* undirected"):
        load_graph(graph_of(), reverse_kind=True)
    named = from_edges([0], [1], 2, edge_data={"reverse_kind": np.zeros(1)})
    with pytest.raises(InputError, match="has edge data 'reverse_kind' already"):
        load_graph(named, undirected=True, reverse_kind=True)
    with pytest.raises(InputError, match="reverse_kind is 1; it must be True or False"):
        load_graph(graph_of(), undirected=True, reverse_kind=1)


@pytest.mark.parametrize("additions", [{"undirected": True}, {"self_loops": True, "self_loop_fill": 1}])
def test_a_graph_with_what_new_edges_would_lack(additions):
    graph = from_edges([0, 1], [1, 2], 4)
    with pytest.raises(InputError, match="has the encoding shortest_path, which .* would lack"):
        load_graph(encode(graph, "shortest_path=2"), **additions)
    with pytest.raises(InputError, match="has virtual nodes, which .* would lack"):
        load_graph(add_virtual_nodes(graph, 1), self_loops=True, self_loop_fill=1)


def test_the_command_line_fills(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    index = np.array([np.arange(299), np.arange(1, 300)])
    np.savez("graph.npz", edge_index=index, edge_data_weight=np.ones(299, np.float32), edge_data_type=np.arange(299))
    options = ["--self-loops", "--undirected", "--reverse-kind", "--self-loop-fill", "weight=0.25,type=7"]
    assert main(["partition", "graph.npz", "--parts", "2", "--out", "out", *options]) == 0
    assert main(["partition", "graph.npz", "--parts", "2", "--dry-run", "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["edges"] == 2 * 299 + 300
    for dry in ([], ["--dry-run"]):
        given = ["--self-loops", "--self-loop-fill", "mean", "--out", "bad", *dry]
        assert main(["partition", "graph.npz", "--parts", "2", *given]) == 2
        assert "--self-loop-fill is mean for edge data 'type'" in capsys.readouterr().err


def test_a_memory_bound_counts_the_copies_of_edge_data(awkward_graph, tmp_path):
    graph, additions = awkward_graph(1), {"self_loops": True, "self_loop_fill": 1}
    graph.edge_data["wide"] = np.ones((graph.num_edges, 5000), np.float32)
    without = estimate_needs(sizes_of(graph, 3), "expansion").memory_bytes
    need = estimate_needs(sizes_of(graph, 3, **additions), "expansion").memory_bytes
    assert need > without + graph.edge_data["wide"].nbytes
    manifest = partition(graph, 3, tmp_path / "out", memory=need, **additions)
    assert manifest["method"] == "expansion"


def test_shards_hold_the_data_of_added_edges(tmp_path):
    from safetensors.numpy import load_file

    graph = from_edges([0, 1, 2], [1, 2, 3], 4, edge_data={"weight": np.array([1.0, 2.0, 3.0], np.float32)})
    manifest = partition(graph, 1, tmp_path / "out", undirected=True, self_loops=True, self_loop_fill="mean")
    assert manifest["edges"] == 10
    weights = [load_file(path).get("weight") for path in sorted((tmp_path / "out").rglob("*.safetensors"))]
    found = np.concatenate([each for each in weights if each is not None])
    assert sorted(found.tolist()) == [1, 1, 1, 1.5, 2, 2, 2.5, 3, 3, 3]
