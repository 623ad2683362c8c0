"""Edge cuts that follow weights of edges, and parts that are even in weights of nodes."""

import json

import numpy as np
import pymetis
import pytest
from memory_cases import sizes_of
from unequal_ranks import profile_of, slow_pair

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, load_graph, partition, read_manifest
from dgl_gt.partition.cuts import native
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.cuts.weights import scaled, weight_of_cut, weighted_adjacency
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.memory_bound import estimate_needs

PARTS = 4


def owner_of(cut) -> np.ndarray:
    owner = np.empty(len(cut.order), np.int64)
    owner[cut.order] = np.repeat(np.arange(cut.parts), np.diff(cut.ptr))
    return owner


def planted(factor=1, nodes=2000):
    """Heavy cycles inside random groups, and many light edges between nodes with ids near each other."""
    rng = np.random.default_rng(0)
    group, src, dst, weight = rng.integers(0, PARTS, nodes), [], [], []
    for part in (*range(PARTS), *range(PARTS)):
        members = rng.permutation(np.flatnonzero(group == part))
        src, dst = [*src, members], [*dst, np.roll(members, 1)]
        weight.append(np.full(len(members), 100))
    light = rng.integers(0, nodes, 4 * nodes)
    src, dst = [*src, light], [*dst, (light + rng.integers(1, 30, len(light))) % nodes]
    weight.append(np.ones(len(light), int))
    src, dst, weight = map(np.concatenate, (src, dst, weight))
    both = np.concatenate([src, dst]), np.concatenate([dst, src])
    return from_edges(*both, nodes, edge_data={"weight": np.tile(weight, 2) * factor})


@pytest.mark.parametrize(
    ("factor", "options"),
    [
        (1, {}),
        (0.37, {}),
        (1e-30, {}),
        (1, {"attempts": 3}),
        (0.37, {"max_imbalance": 1.05}),
        (1, {"attempts": 2, "seed": 5}),
    ],
)
def test_the_cut_has_as_little_weight_as_metis_makes_it(factor, options):
    graph = planted(factor)
    values, adjacency = graph.edge_data["weight"], weighted_adjacency(graph, graph.edge_data["weight"])
    ends = (array.astype(np.int64) for array in (adjacency.indptr, adjacency.indices))
    _, member = pymetis.part_graph(PARTS, pymetis.CSRAdjacency(*ends), eweights=adjacency.data, recursive=False)
    expected = weight_of_cut(graph, np.array(member), values)
    cut = make_edge_cut(graph, PARTS, cut_weights="weight", **options)
    found = weight_of_cut(graph, owner_of(cut), values)
    assert cut.of_weights["cut_weight"] == pytest.approx(found)
    assert cut.of_weights["cut_weight_ratio"] == pytest.approx(found / values.sum())
    without = weight_of_cut(graph, owner_of(make_edge_cut(graph, PARTS)), values)
    assert found <= 1.5 * expected and found < 0.1 * without
    assert np.diff(cut.ptr).max() <= 1.1 * graph.num_nodes / PARTS


def test_more_attempts_cut_no_more_weight(awkward_graph):
    graph = awkward_graph(2, nodes=300, edges=2500)
    graph.edge_data["weight"] = np.random.default_rng(1).integers(1, 50, graph.num_edges)
    found = [make_edge_cut(graph, 3, cut_weights="weight", attempts=n).of_weights["cut_weight"] for n in (1, 4)]
    assert found[1] <= found[0]


@pytest.mark.parametrize("parts", [1, 2, 7, 60])
@pytest.mark.parametrize("has_native", [True, False])
def test_awkward_graphs(awkward_graph, monkeypatch, parts, has_native):
    if not has_native:
        monkeypatch.setattr(native, "is_available", lambda: False)
    for seed in range(2):
        graph = awkward_graph(seed)
        graph.edge_data["weight"] = np.random.default_rng(seed).integers(0, 3, graph.num_edges).astype(np.float32)
        cut = make_edge_cut(graph, parts, cut_weights="weight")
        assert sorted(cut.order) == list(range(graph.num_nodes)) and np.diff(cut.ptr).min() > 0
        assert cut.of_weights["cut_weight"] == weight_of_cut(graph, owner_of(cut), graph.edge_data["weight"])


def test_what_metis_sees():
    src, dst = [0, 1, 0, 2, 2, 3, 1], [1, 0, 1, 2, 3, 2, 3]
    graph = from_edges(src, dst, 4, edge_data={"weight": np.array([1, 2, 4, 9, 3, 0, 0])})
    found = weighted_adjacency(graph, graph.edge_data["weight"])
    assert found.toarray().tolist() == [[0, 7, 0, 0], [7, 0, 0, 0], [0, 0, 0, 3], [0, 0, 3, 0]] and found.nnz == 4
    rng = np.random.default_rng(0)
    graph = from_edges(*rng.integers(0, 9, (2, 400)), 9, edge_data={"weight": rng.random(400, np.float32)})
    found = weighted_adjacency(graph, graph.edge_data["weight"])
    assert (
        found.dtype == np.int64 and (found != found.T).nnz == 0 and found.data.mean() == pytest.approx(1000, rel=1e-3)
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 300], [1, 2, 300]),
        ([1.0, 2.0], [1, 2]),
        ([0.5, 1.5], [500, 1500]),
        ([0.5, 0.5, 1e9], [1, 1, 3000]),
        ([1e308, 1e308], [1000, 1000]),
        ([1e-300, 3e-300], [500, 1500]),
        ([2**53, 2**53], [1000, 1000]),
        ([], []),
    ],
)
def test_weights_become_whole_numbers(values, expected):
    assert scaled(np.array(values)).tolist() == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"cut_weights": "weights"},
            r"cut_weights .--cut-weights. is 'weights', but .* it has weight, wide, flag, negative",
        ),
        ({"cut_weights": "wide"}, r"'wide', edge data of float64 \(3, 2\)"),
        ({"cut_weights": "flag"}, "'flag', edge data of bool"),
        ({"cut_weights": "negative"}, "'negative' of graph, with weights from -2"),
        ({"cut_weights": 3}, "is 3, but"),
        ({"node_weights": "weight"}, r"node_weights .--node-weights. is 'weight', but .* it has load, feat"),
        ({"node_weights": "feat"}, r"'feat', node data of float64 \(3, 2\)"),
        ({"node_weights": "load"}, "'load' of graph, with weights from -1"),
        ({"cut_weights": "weight", "cut": "vertex"}, "cut_weights .--cut-weights. applies only to edge cuts"),
        ({"node_weights": "load", "cut": "auto"}, "node_weights .--node-weights. applies only to edge cuts"),
    ],
)
def test_weights_that_are_refused(tmp_path, options, named):
    edge_data = {
        "weight": np.ones(3),
        "wide": np.ones((3, 2)),
        "flag": np.ones(3, bool),
        "negative": np.array([1, -2, 0]),
    }
    node_data = {"load": np.array([1, 2, -1]), "feat": np.ones((3, 2))}
    graph = from_edges([0, 1, 2], [1, 2, 0], 3, node_data, edge_data)
    with pytest.raises(InputError, match=named):
        partition(graph, 2, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_node_weights_are_even(awkward_graph):
    graph, rng = awkward_graph(0, nodes=500, edges=4000), np.random.default_rng(0)
    graph.node_data["load"] = rng.pareto(1.5, 500)
    loads = graph.node_data["load"]

    def balance(**options):
        cut = make_edge_cut(graph, 3, **options)
        return np.bincount(owner_of(cut), loads).max() / loads.mean() / 500 * 3, cut.of_weights.get("weight_balance")

    for options in ({}, {"target_weights": [2, 1, 1]}, {"attempts": 7}):
        shares = np.array(options.get("target_weights", [1, 1, 1]))
        cut = make_edge_cut(graph, 3, node_weights="load", **options)
        found = (np.bincount(owner_of(cut), loads) / loads.sum() / (shares / shares.sum())).max()
        assert found == pytest.approx(cut.of_weights["weight_balance"]) and found < 1.05
    assert balance()[0] > 1.05 and balance()[1] is None


METIS_FILE = "4 4 011\n10 2 1 4 9\n1 1 1 3 1\n1 2 1 4 1\n10 3 1 1 9\n"  # a ring whose edge 1 - 4 weighs 9


def test_weights_of_a_metis_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.graph").write_text(METIS_FILE)
    graph = load_graph("g.graph")
    assert graph.node_data["weight"].tolist() == [10, 1, 1, 10] and graph.left_out == ()
    assert sorted(graph.edge_data["weight"]) == [1, 1, 1, 1, 1, 1, 9, 9]
    options = ["partition", "g.graph", "--parts", "2", "--json"]
    for names, cut_weight, balance in (
        (["--cut-weights", "weight"], 4.0, None),
        (["--node-weights", "weight"], None, 1.0),
    ):
        assert main([*options, "--out", names[0][2:], *names]) == 0
        quality = json.loads(capsys.readouterr().out)["quality"]
        assert (quality.get("cut_weight"), quality.get("weight_balance")) == (cut_weight, balance)
    assert read_manifest("cut-weights")["quality"]["cut_weight_ratio"] == pytest.approx(4 / 24)


def test_what_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    graph = planted()
    src, dst = graph.edges()
    np.savez("g.npz", edge_index=np.stack([src, dst]), edge_data_weight=graph.edge_data["weight"])
    assert main(["partition", "g.npz", "--parts", "4", "--out", "out", "--cut-weights", "weight"]) == 0
    figures = capsys.readouterr().out
    cut = read_manifest("out")["quality"]["cut_weight"]
    assert f"cut weight {f'{cut:,.10g}':>15}  weight (--cut-weights) of these edges" in figures
    assert main(["report", "out", "-o", "page.html"]) == 0 and "Cut weight" in (tmp_path / "page.html").read_text()
    assert main(["partition", "g.npz", "--parts", "4", "--dry-run", "--cut-weights", "length"]) == 2
    assert "--cut-weights is 'length'" in capsys.readouterr().err
    needs = [estimate_needs(sizes_of(graph, 4, cut_weights=name), "metis") for name in (None, "weight")]
    assert needs[1].memory_bytes > needs[0].memory_bytes and needs[1].disk_bytes > needs[0].disk_bytes


def test_parts_are_placed_on_ranks_and_nodes_stay(tmp_path):
    graph = planted()
    alone = make_edge_cut(graph, PARTS, cut_weights="weight")
    manifest = partition(
        graph, PARTS, tmp_path / "out", cut_weights="weight", profile=profile_of((1.0,) * PARTS, slow_pair(PARTS, 0, 1))
    )
    assert manifest["mapping"] and manifest["quality"]["cut_weight"] == alone.of_weights["cut_weight"]


def test_a_given_owner_is_weighed():
    graph = from_edges([0, 1, 2], [1, 2, 0], 3, edge_data={"weight": np.array([0.5, 2, 4])})
    assert make_edge_cut(graph, 2, owner=[0, 0, 1], cut_weights="weight").of_weights == {
        "cut_weight": 6.0,
        "cut_weight_ratio": pytest.approx(6 / 6.5),
    }
