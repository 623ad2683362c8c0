"""Files as other projects write them: matrices, networkx's formats, and .npz archives under other names."""

import io
import json
import tarfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from source_checks import edges, refused, written

from dgl_gt.partition.errors import LeftOutWarning
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.system import user_files

# five stored entries: eight edges, on four nodes that count from 1
SYMMETRIC = "%%MatrixMarket matrix coordinate real symmetric\n% a comment\n4 4 5\n1 1 2\n2 1 3\n3 2 1\n4 4 1\n4 1 7.5\n"


@pytest.mark.parametrize("name", ["g.mtx", "g.txt", "g.csv", "g.edges", "g.txt.gz", "g.mtx.gz"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_matrix_market_is_known_by_its_banner(tmp_path, name, mark):
    graph = load_graph(written(tmp_path / name, mark + SYMMETRIC))
    assert graph.num_nodes == 4 and graph.name == name
    weight = dict(zip(edges(graph), graph.edge_data["weight"].tolist()))
    assert weight == {
        (0, 0): 2,
        (3, 3): 1,
        (0, 1): 3,
        (1, 0): 3,
        (1, 2): 1,
        (2, 1): 1,
        (0, 3): 7.5,
        (3, 0): 7.5,
    }


@pytest.mark.parametrize("end", ["", " ", " x", "\n", "\n\n"])
def test_the_last_line_of_matrix_market_needs_no_end(tmp_path, end):
    assert load_graph(written(tmp_path / "g.mtx", SYMMETRIC.rstrip() + end)).num_edges == 8


@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
def test_matrix_market(tmp_path, field, symmetry):
    rng = np.random.default_rng(0)
    matrix = scipy.sparse.random(20, 20, 0.2, rng=rng, data_rvs=lambda size: rng.integers(1, 9, size).astype(float))
    matrix = matrix + matrix.T if symmetry == "symmetric" else matrix
    matrix = matrix.astype(np.int64) if field == "integer" else matrix
    scipy.io.mmwrite(tmp_path / "g.mtx", matrix.tocoo(), field=field, symmetry=symmetry)
    graph, expected = load_graph(tmp_path / "g.mtx"), load_graph(matrix)
    assert sorted(edges(graph)) == sorted(edges(expected))
    if field == "pattern":
        assert graph.edge_data == {}
    else:
        values = (dict(zip(edges(each), each.edge_data["weight"].tolist())) for each in (graph, expected))
        assert next(values) == pytest.approx(next(values))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SYMMETRIC.replace("4 4 5", "5 4 5").replace("symmetric", "general"), ["(5, 4)", "square"]),
        (SYMMETRIC.replace("4 1 7.5\n", ""), ["g.mtx"]),
        (SYMMETRIC.replace("4 1 7.5", "4 9 7.5"), ["g.mtx"]),
        (SYMMETRIC.replace("real", "odd"), ["g.mtx"]),
        (SYMMETRIC.replace("7.5", "nan"), ["NaN"]),
        ("%%MatrixMarket", ["g.mtx"]),
        ("0 1\n", ["g.mtx"]),
    ],
)
def test_matrix_market_refused(tmp_path, text, words):
    refused(written(tmp_path / "g.mtx", text), *words)


def test_matlab(tmp_path):
    matrix = scipy.sparse.csc_array((np.array([2.0, 3.0]), ([0, 2], [1, 0])), (3, 3))
    scipy.io.savemat(tmp_path / "g.mat", {"network": matrix, "group": np.eye(3)})
    graph = load_graph(tmp_path / "g.mat")
    assert dict(zip(edges(graph), graph.edge_data["weight"].tolist())) == {(0, 1): 2, (2, 0): 3}
    assert graph.left_out == ("group of g.mat (unknown key)",)
    scipy.io.savemat(tmp_path / "p.mat", {"Problem": {"A": matrix, "name": "x"}})
    assert sorted(edges(load_graph(tmp_path / "p.mat"))) == [(0, 1), (2, 0)]
    scipy.io.savemat(tmp_path / "two.mat", {"a": matrix, "b": matrix.T})
    refused(tmp_path / "two.mat", "2 square", "a, b", "--keys edge_index=NAME")
    assert sorted(edges(load_graph(tmp_path / "two.mat", keys={"edge_index": "b"}))) == [(0, 2), (1, 0)]
    assert load_graph(tmp_path / "g.mat", keys={"edge_index": "group"}).num_edges == 3
    refused(written(tmp_path / "x.mat", b"\0" * 200), "x.mat")


@pytest.mark.parametrize("suffix", [".graphml", ".gml", ".gexf", ".net", ".json"])
def test_files_of_networkx(tmp_path, suffix):
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph([("ann", "bob", {"weight": 2.5}), ("bob", "cat x", {"weight": 4.0})])
    path = tmp_path / f"g{suffix}"
    match suffix:
        case ".json":
            path.write_text(json.dumps(networkx.node_link_data(graph, edges="links")))
        case ".net":
            networkx.write_pajek(graph, path)
        case _:
            getattr(networkx, f"write_{suffix[1:]}")(graph, path)
    loaded = load_graph(path)
    names = loaded.node_names.tolist()
    weight = {(names[u], names[v]): float(w) for (u, v), w in zip(edges(loaded), loaded.edge_data["weight"])}
    assert weight == {
        ("ann", "bob"): 2.5,
        ("bob", "ann"): 2.5,
        ("bob", "cat x"): 4,
        ("cat x", "bob"): 4,
    }
    refused(written(tmp_path / f"bad{suffix}", "{[<"), f"bad{suffix}")


THREE = '*Vertices 3\n1 "a"\n2 "b"\n3 "c"\n'


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        (f"{THREE}*Arcs\n1 2 1\n*Edges\n2 3 1\n", "a>b|b>c|c>b"),
        (f"{THREE}*Edges\n2 3\n*Arcs\n1 2\n", "b>c|c>b|a>b"),
        (f"% x\n*Network y\n{THREE}\n*Arcs\n1 2 1\n*Edges\n", "a>b"),
        (f'{THREE}*Arcs :1 "knows"\n1 2\n*Edges :2 "likes"\n2 3\n', "a>b|b>c|c>b"),
        (f"{THREE}*Edges\n3 3\n1 2\n", "c>c|a>b|b>a"),
        (f"{THREE}*Arcslist\n1 2 3\n2 3\n", "a>b|a>c|b>c"),
        (f"{THREE}*edgeslist\n1 2 3\n", "a>b|b>a|a>c|c>a"),
        (THREE.replace('"a"', '"2"').replace('"b"', "1") + "*Arcs\n1 2\n2 3\n", "2>1|1>c"),
        ("*Vertices 3\n1 2\n2 3\n3 1\n*Arcs\n1 2\n2 3\n", "2>3|3>1"),
        ("*Vertices 3\n*Edges\n1 2\n", "1>2|2>1"),
        ("*Vertices 3\r\n1 Lee\r\n3 O'Neil\r\n*Edges\r\n1 2\r\n1 3\r\n", "Lee>2|2>Lee|Lee>O'Neil|O'Neil>Lee"),
        ('*Vertices 3\n1 "a"\n3 "c"\n*Arcs\n1 2\n3 1\n', "a>2|c>a"),
        (THREE.replace('"a"', '"a x" 0.5 0.5 ic Red') + "*Arcs\n1 2 1 c Blue\n", "a x>b"),
    ],
)
def test_sections_of_pajek(tmp_path, text, listed):
    pytest.importorskip("networkx")
    graph = load_graph(written(tmp_path / "g.net", text))
    names = graph.node_names.tolist()
    assert sorted(f"{names[u]}>{names[v]}" for u, v in edges(graph)) == sorted(listed.split("|"))
    assert graph.num_nodes == int(text.split("*Vertices ")[1].split()[0])
    assert graph.left_out == tuple(
        f"{each} data further columns (no numbers)" for each in ("node", "edge") if "Blue" in text
    )


def test_weights_and_relations_of_pajek(tmp_path):
    pytest.importorskip("networkx")
    graph = load_graph(written(tmp_path / "g.net", f"{THREE}*Edges :3\n1 2 0.5\n*Arcs :4\n2 3\n"))
    assert graph.edge_data["weight"].tolist() == [0.5, 0.5, 1] and graph.edge_data["relation"].tolist() == [3, 3, 4]
    graph = load_graph(written(tmp_path / "g.net", f"{THREE}*Arcs :3\n1 2\n2 3\n"))
    assert graph.edge_data == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{THREE}*Arcs\n1 2\n2 4\n", ["line 7", "'2 4'", "1 to 3"]),
        (f"{THREE}*Arcs\n0 1\n", ["line 6", "'0 1'"]),
        (f"{THREE}*Arcs\n1 2 x\n", ["line 6", "'1 2 x'"]),
        (f"{THREE}*Arcs\n1\n", ["line 6", "'1'"]),
        (f"{THREE}*Arcslist\n1 2 x\n", ["line 6", "'1 2 x'"]),
        (f"{THREE}*Matrix\n0 1 0\n0 0 1\n0 0 0\n", ["line 5", "*Matrix"]),
        (f"{THREE}*Arcs\n1 2\n*Partition x\n*Vertices 3\n1\n2\n3\n", ["line 7", "*Partition x"]),
        (f"{THREE}*Arcs\n1 2\n{THREE}*Arcs\n2 3\n", ["line 7", "*Vertices 3"]),
        (f"{THREE}3 d\n*Arcs\n1 2\n", ["line 5", "'3 d'"]),
        (f"{THREE}4 d\n*Arcs\n1 2\n", ["line 5", "'4 d'"]),
        ('*Vertices 2\n1 "Smith"\n2 "Smith"\n*Edges\n1 2\n', ["'Smith'"]),
        ('*Vertices 2\n1 "2"\n*Edges\n1 2\n', ["'2'"]),
        ("*Arcs\n1 2\n", ["line 1", "*Arcs"]),
        ("*Vertices many\n*Arcs\n1 2\n", ["line 1", "*Vertices many"]),
        ("1 2\n", ["line 1", "'1 2'", "*Vertices"]),
        ("*Vertices 999999999999\n*Arcs\n1 2\n", ["999999999999"]),
        (f"*Vertices {'9' * 5000}\n*Arcs\n1 2\n", ["line 1"]),
        ("", ["0 nodes"]),
    ],
)
def test_pajek_refused(tmp_path, text, words):
    pytest.importorskip("networkx")
    refused(written(tmp_path / "g.net", text), "g.net", *words)


@pytest.mark.parametrize("directed", ["", "directed 1"])
def test_gml_without_labels_and_with_parallel_edges(tmp_path, directed):
    pytest.importorskip("networkx")
    text = f'Creator "M. Newman"\ngraph\n[\n {directed}\n node [ id 7 ]\n node [ id 9 ]\n edge [ source 7 target 9 ]\n'
    graph = load_graph(written(tmp_path / "g.gml", f"{text} edge [ source 7 target 9 ]\n]\n"))
    assert graph.node_names.tolist() == [7, 9] and edges(graph) == [(0, 1)] * 2 + [(1, 0)] * (0 if directed else 2)


def test_node_link_json_with_an_id_twice(tmp_path):
    pytest.importorskip("networkx")
    data = {"nodes": [{"id": "a"}, {"id": "a"}, {"id": "c"}], "links": [{"source": "a", "target": "c"}]}
    refused(written(tmp_path / "g.json", json.dumps(data)), "the id a")


def test_node_link_json_with_edges(tmp_path):
    pytest.importorskip("networkx")
    data = {"directed": True, "multigraph": False, "nodes": [{"id": "a"}, {"id": "b"}]}
    data["edges"] = [{"source": "b", "target": "a"}]
    loaded = load_graph(written(tmp_path / "g.json", json.dumps(data)))
    assert edges(loaded) == [(1, 0)] and loaded.node_names.tolist() == ["a", "b"]
    refused(written(tmp_path / "g.json", "[1, 2]"), "g.json")


# ---- .npz of other projects


def test_npz_of_a_benchmark_of_heterophilous_graphs(tmp_path):
    """edges (E, 2), node_features, node_labels, train_masks (splits, N), each undirected edge once."""
    masks = np.array([[1, 0, 0, 0], [0, 1, 0, 0]], bool)
    np.savez(
        tmp_path / "g.npz",
        edges=np.array([[0, 1], [1, 2], [2, 3]]),
        node_features=np.eye(4, dtype=np.float32),
        node_labels=np.array([0, 1, 1, 0]),
        **{f"{part}_masks": np.roll(masks, shift, axis=1) for shift, part in enumerate(("train", "val", "test"))},
    )
    graph = load_graph(tmp_path / "g.npz", undirected=True)
    assert sorted(edges(graph)) == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    assert graph.node_data["label"].tolist() == [0, 1, 1, 0] and graph.node_data["feat"].shape == (4, 4)
    assert graph.node_data["train_mask"].tolist() == masks.T.tolist()
    said = " ".join(graph.notes)
    for words in (
        "node_features is read as feat",
        "node_labels is read as label",
        "edges is read as edge_index",
        "--undirected",
    ):
        assert words in said


def test_npz_of_a_benchmark_of_gnns(tmp_path):
    """adj_* and attr_* are CSR matrices, labels (N,)."""
    adjacency = scipy.sparse.csr_array((np.ones(3, np.float32), ([0, 1, 2], [1, 2, 0])), (3, 3))
    attributes = scipy.sparse.csr_array(np.array([[0, 2.0], [1, 0], [0, 0]], np.float32))
    arrays = {}
    for name, matrix in (("adj", adjacency), ("attr", attributes)):
        arrays |= {f"{name}_{key}": getattr(matrix, key) for key in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "g.npz", **arrays, labels=np.array([1, 0, 1]))
    graph = load_graph(tmp_path / "g.npz")
    assert sorted(edges(graph)) == [(0, 1), (1, 2), (2, 0)] and graph.num_nodes == 3 and graph.edge_data == {}
    assert np.array_equal(graph.node_data["feat"], attributes.toarray())
    del arrays["adj_shape"]
    np.savez(tmp_path / "g.npz", **arrays)
    assert load_graph(tmp_path / "g.npz").num_nodes == 3
    del arrays["adj_indptr"]
    np.savez(tmp_path / "g.npz", **arrays)
    refused(tmp_path / "g.npz", "adj_indptr")


def test_npz_like_ogb(tmp_path):
    np.savez(
        tmp_path / "g.npz",
        edge_index=np.array([[0, 1], [1, 2]]),
        edge_feat=np.array([[1.0], [2.0]]),
        node_feat=np.eye(3),
        num_nodes=3,
    )
    graph = load_graph(tmp_path / "g.npz")
    assert graph.edge_data["feat"].tolist() == [[1], [2]] and graph.node_data["feat"].shape == (3, 3)
    assert not any("undirected" in note for note in graph.notes)


def test_keys_name_arrays(tmp_path):
    links, group = np.array([[0, 1], [1, 2], [2, 0]]), np.array(["b", "a", "b"])
    np.savez(tmp_path / "g.npz", links=links, emb=np.eye(3), group=group, who=np.array([9, 8, 7]), y=np.arange(3))
    keys = {"edge_index": "links", "x": "emb", "label": "group", "node_names": "who", "node_data_y": "y"}
    graph = load_graph(tmp_path / "g.npz", keys=keys)
    assert edges(graph) == [(0, 1), (1, 2), (2, 0)] and graph.node_names.tolist() == [9, 8, 7]
    assert graph.class_names == ("a", "b") and graph.node_data["label"].tolist() == [1, 0, 1]
    assert set(graph.node_data) == {"feat", "label", "y"} and graph.left_out == ()
    refused(tmp_path / "g.npz", "links, emb, group, who, y", "--keys edge_index=NAME")
    refused(tmp_path / "g.npz", "'nodes'", "x", keys={**keys, "x": "nodes"})
    refused(tmp_path / "g.npz", "'colour'", "edge_index", keys={"colour": "emb"})
    np.savez(tmp_path / "n.npz", emb=np.eye(3))
    refused((np.arange(3), np.arange(3)), "emb", "--keys x=NAME", node_data=tmp_path / "n.npz")
    loaded = load_graph((np.arange(3), np.arange(3)), node_data=tmp_path / "n.npz", keys={"x": "emb"})
    assert loaded.node_data["feat"].shape == (3, 3)
    for odd in ("x=emb", {"x": 1}, 3):
        refused(tmp_path / "g.npz", "keys", keys=odd)


def test_other_node_data_has_a_way_in(tmp_path):
    targets = np.array([0.5, 1.5, 2.5])
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 2]]), y=targets)
    assert load_graph(tmp_path / "g.npz").node_data["label"].tolist() == targets.tolist()
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 2]]), node_data_target=targets)
    assert load_graph(tmp_path / "g.npz").node_data["target"].tolist() == targets.tolist()
    np.savez(tmp_path / "extra.npz", node_data_several=np.eye(3))
    graph = load_graph(tmp_path / "g.npz", node_data=tmp_path / "extra.npz")
    assert set(graph.node_data) == {"target", "several"}


def test_names_of_nodes_in_an_archive(tmp_path):
    ends = np.array([[0, 1], [1, 2]])
    np.savez(tmp_path / "g.npz", edge_index=ends, node_names=np.array(["a", "b", "c"]))
    assert load_graph(tmp_path / "g.npz").node_names.tolist() == ["a", "b", "c"]
    for names in (np.array(["a", "b"]), np.array(["a", "b", "b"]), np.array([0.5, 1, 2]), np.array([["a"]] * 3)):
        np.savez(tmp_path / "g.npz", edge_index=ends, node_names=names, num_nodes=3)
        refused(tmp_path / "g.npz", "node_names")


@pytest.mark.parametrize("name", ["bitcoin_otc", "ppi_multilabel", "ogbl_ddi_eval"])
def test_real_files_of_other_kinds_are_read_or_say_how(name, real_graph):
    path = real_graph(name)
    match name:
        case "bitcoin_otc":
            keys = {"node_names": "user_id", "edge_data_rating": "rating", "edge_data_time": "time"}
            graph = load_graph(path, keys=keys)
            assert graph.num_nodes == 5881 and len(graph.edge_data["rating"]) == 35592 and len(graph.node_names) == 5881
        case "ppi_multilabel":
            label = load_graph(path).node_data["label"]
            assert (label.shape, label.dtype) == ((3890, 50), np.int8)
        case _:
            refused(path, "--keys edge_index=NAME", "valid_edge")


def test_a_given_key_comes_before_documented_names(tmp_path):
    ends = np.array([[0, 1], [1, 2]])
    np.savez(
        tmp_path / "g.npz", edge_index=ends, feat=np.eye(3), foo=np.ones((3, 1)), label=np.zeros(3), group=np.arange(3)
    )
    graph = load_graph(tmp_path / "g.npz", keys={"x": "foo", "y": "group"})
    assert graph.node_data["feat"].tolist() == [[1], [1], [1]] and graph.node_data["label"].tolist() == [0, 1, 2]
    assert graph.left_out == ("feat of g.npz (unknown key)", "label of g.npz (unknown key)")


def test_keys_name_arrays_of_any_file_and_of_one_at_least(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 2]]))
    np.savez(tmp_path / "n.npz", foo=np.eye(3), kind=np.array(["a", "b", "a"]))
    keys = {"x": "foo", "y": "kind"}
    graph = load_graph(tmp_path / "g.npz", node_data=tmp_path / "n.npz", keys=keys)
    assert graph.node_data["feat"].shape == (3, 3) and sum("2 classes" in note for note in graph.notes) == 1
    edges_alone = written(tmp_path / "g.csv", "0,1\n1,2\n")
    assert load_graph(edges_alone, node_data=tmp_path / "n.npz", keys=keys).class_names == ("a", "b")
    refused(edges_alone, "x", "'fooo'", "--keys", node_data=tmp_path / "n.npz", keys={"x": "fooo", "y": "kind"})
    refused(edges_alone, "'foo'", keys={"x": "foo"})


def test_pairs_under_another_name(tmp_path):
    """A (2, 2) array under a name that the user gives is sources first; ``edges`` of other projects is a list of pairs."""
    np.savez(tmp_path / "g.npz", links=np.array([[0, 1], [2, 0]]))
    assert edges(load_graph(tmp_path / "g.npz", keys={"edge_index": "links"})) == [(0, 2), (1, 0)]
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 1], [2, 0]]))
    assert edges(load_graph(tmp_path / "g.npz")) == [(0, 1), (2, 0)]


def test_names_of_nodes_in_node_data_stay_numbers(tmp_path):
    np.savez(tmp_path / "n.npz", x=np.arange(3.0)[:, None], node_names=np.array([2, 0, 1]))
    graph = load_graph((np.array([0, 1]), np.array([1, 2])), node_data=tmp_path / "n.npz")
    assert graph.node_names is None and graph.node_data["feat"].ravel().tolist() == [1, 2, 0]


def test_numbers_as_names_of_nodes_in_xml(tmp_path):
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    graph.add_nodes_from(["2", "0", "1"])
    graph.add_edge("2", "0")
    networkx.write_graphml(graph, tmp_path / "g.graphml")
    loaded = load_graph(tmp_path / "g.graphml", node_data={"feat": np.arange(3.0)[:, None]})
    assert edges(loaded) == [(2, 0)] and loaded.node_names is None
    networkx.write_graphml(networkx.relabel_nodes(graph, {"2": "b", "0": "c", "1": "a"}), tmp_path / "g.graphml")
    named = load_graph(tmp_path / "g.graphml", node_data={"feat": np.arange(3.0)[:, None]})
    assert named.node_names.tolist() == ["b", "c", "a"] and "begins with b, c, a" in named.notes[-1]
    refused(tmp_path / "g.graphml", "names, such as b", ids="compact")


def test_links_to_nodes_that_are_not_listed(tmp_path):
    pytest.importorskip("networkx")
    data = {"directed": True, "nodes": [{"id": 7}, {"id": 9}], "links": [{"source": 0, "target": 1}]}
    refused(written(tmp_path / "g.json", json.dumps(data)), "g.json", "not among the ids")


def test_a_stated_number_of_nodes_does_not_keep_ids_from_being_numbered(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[5], [10**7]]), num_nodes=10**8)
    refused(tmp_path / "g.npz", "100000000 nodes")
    assert load_graph(tmp_path / "g.npz", ids="compact").node_names.tolist() == [5, 10**7]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
@pytest.mark.parametrize("make", ["array", "matrix"])
def test_a_matrix_that_scipy_saved(tmp_path, kind, make):
    entries = (np.array([1.0, 2.0]), (np.array([0, 1]), np.array([1, 2])))
    scipy.sparse.save_npz(tmp_path / "g.npz", getattr(scipy.sparse, f"{kind}_{make}")(entries, shape=(4, 4)))
    graph = load_graph(tmp_path / "g.npz")
    assert sorted(edges(graph)) == [(0, 1), (1, 2)] and graph.num_nodes == 4 and graph.left_out == ()
    assert sorted(graph.edge_data["weight"].tolist()) == [1, 2]
    if kind != "coo":
        keys = {f"adj_{part}": part for part in ("indptr", "indices", "data", "shape")}
        assert sorted(edges(load_graph(tmp_path / "g.npz", keys=keys))) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "dok"}, ["no matrix of scipy"]),
        ({"format": b"\xff"}, ["no matrix of scipy"]),
        ({"format": "coo"}, ["no matrix of scipy"]),
        ({"indices": np.array([1, 99])}, ["damaged"]),
        ({"shape": np.array([4, 5])}, ["square"]),
        ({"data": np.array(["a", "b"])}, []),
        ({"data": np.array([1, None], object)}, ["Python objects"]),
    ],
)
def test_a_matrix_that_scipy_did_not_save(tmp_path, change, words):
    arrays = {"indices": np.array([1, 2]), "indptr": np.array([0, 1, 2, 2, 2]), "data": np.ones(2), "format": "csr"}
    np.savez(tmp_path / "g.npz", **{**arrays, "shape": np.array([4, 4]), **change})
    refused(tmp_path / "g.npz", "g.npz", *words)


def test_an_attribute_key_of_gml_is_kept(tmp_path):
    pytest.importorskip("networkx")
    nodes = 'node [ id 1 label "a" ] node [ id 2 label "b" ]'
    for listed, keys in (
        ("source 1 target 2 key 5", [5]),
        ("source 1 target 2 key 5 ] edge [ source 2 target 1 key 5", [5, 5]),
    ):
        text = f"graph [\n directed 1\n {nodes}\n edge [ {listed} ]\n]\n"
        assert load_graph(written(tmp_path / "g.gml", text)).edge_data["key"].tolist() == keys


def archive(path, files):
    mode = "w" if path.suffix == ".tar" else "w:gz"
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return path


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar"])
def test_an_archive_of_suitesparse(tmp_path, ending):
    files = {"cage/cage.mtx": SYMMETRIC, "cage/cage_b.mtx": "no matrix", "cage/notes.txt": "text"}
    with pytest.warns(LeftOutWarning, match=r"cage/cage_b\.mtx of cage.*cage/notes\.txt"):
        graph = load_graph(archive(tmp_path / f"cage{ending}", files))
    written(tmp_path / "cage.mtx", SYMMETRIC)
    alone = load_graph(tmp_path / "cage.mtx")
    assert edges(graph) == edges(alone) and graph.num_nodes == 4 and graph.name == f"cage{ending}"
    assert (graph.edge_data["weight"] == alone.edge_data["weight"]).all()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"cage.mtx": SYMMETRIC}, ["holds 0 files NAME/NAME.mtx"]),
        ({"a/a.mtx": SYMMETRIC, "b/b.mtx": SYMMETRIC}, ["holds 2 files"]),
        ({"a/a.mtx": "%%MatrixMarket"}, ["a.tar.gz: a/a.mtx", "Matrix Market"]),
        ({"a/a.mtx": SYMMETRIC.replace("4 4 5", "4 5 5").replace("symmetric", "general")}, ["(4, 5)", "square"]),
        ({"a/a.mtx": SYMMETRIC.replace("4 4 1\n", "4 9 1\n")}, ["a.tar.gz: a/a.mtx"]),
    ],
)
def test_archives_that_are_refused(tmp_path, files, words):
    refused(archive(tmp_path / "a.tar.gz", files), *words)


def test_archives_that_are_damaged(tmp_path, monkeypatch):
    path = archive(tmp_path / "a.tar.gz", {"a/a.mtx": SYMMETRIC + "% long\n" * 20_000})
    whole = path.read_bytes()
    for content in (b"", whole[:60], whole[:-30], b"text", b"\x1f\x8b" + whole[10:40]):
        path.write_bytes(content)
        refused(path, "a.tar.gz")
    monkeypatch.setattr(user_files, "_TRUSTED_BYTES", 1 << 16)
    bomb = archive(tmp_path / "bomb.tar.gz", {"a/a.mtx": "0" * (1 << 20)})
    refused(bomb, "bomb.tar.gz unpacks to over 500 times its size")
