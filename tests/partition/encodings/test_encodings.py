"""Every encoding equals its definition, computed by brute force on dense matrices."""

import dense_oracle as oracle
import numpy as np
import pytest

from dgl_gt.partition import InputError, encode, load_graph, partition, read_manifest
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.transforms import laplacian, node_encodings
from dgl_gt.partition.transforms.laplacian import laplacian_encoding
from dgl_gt.partition.transforms.node_encodings import choose_landmarks, simple_adjacency, starting_rows

EMPTY = from_edges([], [], 3, {"feat": np.ones((3, 2), np.float32)})
ONE = from_edges([0, 0], [0, 0], 1, {"feat": np.ones((1, 2), np.float32)})
PAIR = from_edges([1], [0], 2, {"feat": np.ones((2, 2), np.float32)})


@pytest.fixture(params=[*range(6), "pieces", "pieces again", "empty", "one", "pair"])
def graph(request, awkward_graph):
    match request.param:
        case int(seed):
            return awkward_graph(seed, nodes=40, edges=[30, 60, 150][seed % 3] + 110)
        case "pieces" | "pieces again":
            return oracle.pieces(len(request.param))
    return {"empty": EMPTY, "one": ONE, "pair": PAIR}[request.param]


def encoded(graph, text, **options):
    """The only column that ``text`` asks for, and its record."""
    made = encode(graph, text, **options)
    (name,) = made.encodings
    values, record = made.node_data[name], made.encodings[name]
    assert values.dtype == np.float32 and values.shape == (graph.num_nodes, record["columns"])
    return values, record


def isolated(graph):
    return oracle.simple(graph).sum(0) == 0


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_random_walk(graph, steps):
    values, record = encoded(graph, f"random_walk={steps}")
    np.testing.assert_allclose(values, oracle.random_walk(oracle.simple(graph), steps), atol=1e-6)
    assert record == {"columns": steps, "exact_columns": steps, "probes": 0, "seed": 0}
    assert not values[isolated(graph)].any()


def test_random_walk_in_blocks(graph, monkeypatch):
    monkeypatch.setattr(node_encodings, "_BLOCK_BYTES", 8 * 40 * 7)
    values, _ = encoded(graph, "random_walk=5")
    np.testing.assert_allclose(values, oracle.random_walk(oracle.simple(graph), 5), atol=1e-6)


def test_estimated_random_walk(graph, monkeypatch):
    """The first two columns stay exact; the others are within six standard errors, and right in the mean."""
    monkeypatch.setattr(node_encodings, "MAX_MULTIPLICATIONS", 0)
    steps, draws = 7, 8
    matrix = oracle.simple(graph)
    if not matrix.any():  # then nothing is above the bound
        return
    expected = oracle.random_walk(matrix, steps + 1)
    degree, reached = matrix.sum(0), np.isfinite(oracle.distances(matrix))
    rest = np.abs(expected - (degree / np.maximum(reached @ degree, 1))[:, None])
    expected, error = expected[:, :steps], np.zeros((graph.num_nodes, steps))
    for walked in range(3, steps + 1):
        half = walked // 2
        variance = 2 * rest[:, 2 * half - 1] * rest[:, 2 * (walked - half) - 1] / node_encodings.PROBES
        error[:, walked - 1] = np.sqrt(variance)
    mean = np.zeros_like(expected)
    for seed in range(draws):
        values, record = encoded(graph, f"random_walk={steps}", seed=seed)
        assert record == {"columns": steps, "exact_columns": 2, "probes": node_encodings.PROBES, "seed": seed}
        np.testing.assert_allclose(values[:, :2], expected[:, :2], atol=1e-6)
        assert (np.abs(values - expected) <= 6 * error + 1e-5).all()
        assert not values[isolated(graph)].any()
        mean += values / draws
    assert (np.abs(mean - expected) <= 6 * error / np.sqrt(draws) + 1e-5).all()


@pytest.mark.parametrize("count", [1, 4, 50])
def test_laplacian(graph, count):
    values, record = encoded(graph, f"laplacian={count}")
    check_eigenvectors(oracle.simple(graph), values, record["eigenvalues"], count)
    assert not values[isolated(graph)].any()


def check_eigenvectors(matrix, values, eigenvalues, count):
    """They are eigenvectors of the least eigenvalues above 0, of length 1, at right angles, and the rest is zero."""
    expected = oracle.laplacian_values(matrix)[:count]
    np.testing.assert_allclose(eigenvalues, expected, atol=1e-8)
    found = values[:, : len(expected)].astype(np.float64)
    assert not values[:, len(expected) :].any()
    np.testing.assert_allclose(found - oracle.normalised(matrix) @ found, found * expected, atol=2e-6)
    np.testing.assert_allclose(found.T @ found, np.eye(len(expected)), atol=2e-6)
    largest = np.abs(found).argmax(axis=0)
    assert (found[largest, np.arange(len(expected))] > 0).all() or count > 4, "the largest entry is positive"


def test_eigenvectors_are_those_of_a_dense_solver(awkward_graph):
    """Where an eigenvalue occurs once, its vector is determined but for the sign, which has a rule."""
    graph = awkward_graph(0)
    matrix = oracle.simple(graph)
    kept = matrix.sum(0) > 0
    values, vectors = np.linalg.eigh(np.eye(kept.sum()) - oracle.normalised(matrix)[kept][:, kept])
    found, _ = encoded(graph, "laplacian=5")
    compared = 0
    for column in range(5):
        place = column + np.count_nonzero(values < 1e-9)
        if np.diff(values[place - 1 : place + 2]).min() > 1e-4:
            expected = vectors[:, place]
            expected = expected * np.sign(expected[np.abs(expected).argmax()])
            np.testing.assert_allclose(found[kept, column], expected, atol=1e-5)
            compared += 1
    assert compared >= 3


@pytest.fixture
def always_sparse(monkeypatch):
    """Solve components of more than 60 nodes as large ones are solved."""
    monkeypatch.setattr(laplacian, "MAX_DENSE", 60)


def torus(width, height):
    ids = np.arange(width * height).reshape(width, height)
    return np.concatenate(
        [[ids.ravel(), np.roll(ids, 1, 0).ravel()], [ids.ravel(), np.roll(ids, 1, 1).ravel()]], axis=1
    )


def star(arms, length):
    ids = np.arange(1, 1 + arms * length).reshape(arms, length)
    before = np.concatenate([np.zeros((arms, 1), int), ids[:, :-1]], axis=1)
    return np.stack([before.ravel(), ids.ravel()])


def two_blocks(nodes):
    rng = np.random.default_rng(0)
    blocks = [rng.integers(0, nodes, (2, 6 * nodes)), rng.integers(nodes, 2 * nodes, (2, 5 * nodes))]
    return np.concatenate([*blocks, [[0], [nodes]]], axis=1)


@pytest.mark.parametrize(
    "edges",
    [
        torus(18, 18),
        torus(15, 20),
        star(30, 10),
        star(150, 1),
        two_blocks(100),
        np.stack([np.arange(199), np.arange(1, 200)]),
        np.stack(np.triu_indices(120, 1)),
        np.stack([np.repeat(np.arange(70), 70), 70 + np.tile(np.arange(70), 70)]),
        np.concatenate([torus(10, 10) + 100 * piece for piece in range(3)], axis=1),
    ],
    ids=["torus", "long torus", "star of paths", "star", "two blocks", "path", "complete", "bipartite", "three tori"],
)
def test_large_components_and_eigenvalues_that_occur_often(always_sparse, edges):
    """Lanczos' method alone would miss copies: an eigenvalue of the star of paths occurs 29 times."""
    graph = from_edges(*edges)
    values, found = laplacian_encoding(simple_adjacency(graph), 12, 0)
    check_eigenvectors(oracle.simple(graph), values, found, 12)


def test_what_does_not_converge_is_named(always_sparse, monkeypatch):
    monkeypatch.setattr(laplacian, "_MAX_RESTARTS", 1)
    graph = from_edges(np.arange(1999), np.arange(1, 2000))
    message = r"laplacian=12: \d+ of 12 eigenvectors of a component of 2,000 nodes converged within 1 restarts; choose "
    with pytest.raises(InputError, match=message + "(laplacian=[0-9]+, or )?random_walk or anchors"):
        encode(graph, "laplacian=12")


def test_degree(graph):
    values, record = encoded(graph, "degree")
    src, dst = graph.edges()
    expected = [[np.log1p((ends == node).sum()) for ends in (dst, src)] for node in range(graph.num_nodes)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert record == {"columns": 2}


@pytest.mark.parametrize("count", [1, 5, 60])
def test_anchors(graph, count):
    values, record = encoded(graph, f"anchors={count}")
    matrix, landmarks = oracle.simple(graph), record["landmarks"]
    expected = np.zeros((graph.num_nodes, count))
    expected[:, : len(landmarks)] = 1 / (1 + oracle.distances(matrix)[:, landmarks])
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert len(set(landmarks)) == len(landmarks) == min(count, np.count_nonzero(matrix.sum(0)))


def test_landmarks_are_of_high_degree_and_apart(graph):
    matrix = oracle.simple(graph)
    degree, left = matrix.sum(0), list(np.flatnonzero(matrix.sum(0)))
    expected, later = [], []
    while left:
        node = max(left, key=lambda each: (degree[each], -each))
        left.remove(node)
        (later if any(matrix[node, other] for other in expected) else expected).append(node)
    assert choose_landmarks(simple_adjacency(graph), 100).tolist() == expected + later


@pytest.mark.parametrize("hops", [1, 3])
def test_hops(graph, hops):
    values, record = encoded(graph, f"hops={hops}")
    matrix, rows, expected = oracle.normalised(oracle.simple(graph)), graph.node_data["feat"].astype(np.float64), []
    for _ in range(hops):
        rows = matrix @ rows
        expected.append(rows)
    np.testing.assert_allclose(values, np.concatenate(expected, axis=1), atol=1e-5)
    assert record == {"columns": hops * rows.shape[1], "hops": hops, "width": None, "seed": 0}


def test_projected_hops(awkward_graph):
    graph = awkward_graph(1)
    values, record = encoded(graph, "hops=2x3", seed=5)
    assert record == {"columns": 6, "hops": 2, "width": 3, "seed": 5}
    (rows,) = starting_rows(graph.node_data["feat"], 3, 5)
    matrix = oracle.normalised(oracle.simple(graph))
    np.testing.assert_allclose(values, np.concatenate([matrix @ rows, matrix @ matrix @ rows], axis=1), atol=1e-5)
    projection = np.linalg.lstsq(graph.node_data["feat"], rows)[0]
    np.testing.assert_allclose(graph.node_data["feat"] @ projection, rows, atol=1e-5)
    wide, _ = encoded(graph, "hops=2x100", seed=5)
    np.testing.assert_array_equal(wide, encoded(graph, "hops=2")[0])


def test_a_projection_keeps_lengths():
    feat = np.random.default_rng(0).standard_normal((50, 400)).astype(np.float16)
    (rows,) = starting_rows(feat, 200, 0)
    ratio = np.linalg.norm(rows, axis=1) / np.linalg.norm(feat.astype(np.float32), axis=1)
    assert rows.shape == (50, 200) and abs(ratio.mean() - 1) < 0.05


@pytest.mark.parametrize("feat", [np.arange(5), np.ones((5, 2, 3), bool), np.ones((5, 2), ">f8")])
def test_features_of_other_kinds(feat):
    graph = from_edges([0, 1, 2], [1, 2, 3], 5, {"feat": feat})
    values, _ = encoded(graph, "hops=1")
    expected = oracle.normalised(oracle.simple(graph)) @ feat.reshape(5, -1).astype(np.float64)
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize("text", ["hops=2", "hops=2x1"])
@pytest.mark.filterwarnings("error")
def test_features_beyond_float32_are_refused(text):
    graph = from_edges([0, 1, 2], [1, 2, 3], 5, {"feat": np.full((5, 2), 1e300)})
    with pytest.raises(InputError, match="hops: feat holds numbers beyond the range of float32 .*"):
        encode(graph, text)


@pytest.mark.parametrize("shape", [(5, 0), (5, 2, 0)])
def test_features_without_columns(shape, tmp_path):
    graph = encode(from_edges([0, 1, 2], [1, 2, 3], 5, {"feat": np.zeros(shape, np.float32)}), "hops=3x2")
    assert graph.node_data["hops"].shape == (5, 0)
    partition(graph, 2, tmp_path / "out")
    assert read_manifest(tmp_path / "out")["encodings"]["hops"]["columns"] == 0


ALL = "laplacian=6,random_walk=5,degree,anchors=4,hops=2x3"


def test_the_same_seed_gives_the_same_encodings(awkward_graph, always_sparse, monkeypatch):
    monkeypatch.setattr(node_encodings, "MAX_MULTIPLICATIONS", 0)
    graph = awkward_graph(2, nodes=100)
    one, again, other = (encode(graph, ALL, seed=seed) for seed in (3, 3, 4))
    for name in one.encodings:
        np.testing.assert_array_equal(one.node_data[name], again.node_data[name])
    assert (one.node_data["random_walk"] != other.node_data["random_walk"]).any()
    np.testing.assert_allclose(one.node_data["laplacian"], other.node_data["laplacian"], atol=1e-5)


def test_encodings_do_not_depend_on_the_numbering(awkward_graph):
    """What is said of a node stays the same where nodes and edges are listed in another order."""
    graph = awkward_graph(3)
    rng = np.random.default_rng(0)
    names, order = rng.permutation(graph.num_nodes), rng.permutation(graph.num_edges)
    src, dst = graph.edges()
    feat = np.empty_like(graph.node_data["feat"])
    feat[names] = graph.node_data["feat"]
    moved = from_edges(names[src[order]], names[dst[order]], graph.num_nodes, {"feat": feat})
    for text in ("random_walk=4", "degree", "hops=2"):
        np.testing.assert_allclose(encoded(moved, text)[0][names], encoded(graph, text)[0], atol=1e-5)


def test_the_source_is_left_as_it_was(awkward_graph):
    graph = awkward_graph(4)
    before = set(graph.node_data)
    made = encode(encode(graph, "degree"), "anchors=2")
    assert set(graph.node_data) == before and graph.encodings == {}
    assert set(made.node_data) == before | {"degree", "anchors"} and set(made.encodings) == {"degree", "anchors"}


def test_a_real_graph(real_graph):
    graph = encode(load_graph(real_graph("cora")), "laplacian=8,random_walk=8,anchors=8")
    values, record = graph.node_data["laplacian"].astype(np.float64), graph.encodings["laplacian"]
    adjacency = simple_adjacency(graph)
    scale = 1 / np.sqrt(np.maximum(np.diff(adjacency.indptr), 1))
    product = values - scale[:, None] * (adjacency @ (scale[:, None] * values))
    np.testing.assert_allclose(product, values * record["eigenvalues"], atol=1e-6)
    assert (np.diff(record["eigenvalues"]) >= -1e-9).all() and record["eigenvalues"][0] > 0
    walk = graph.node_data["random_walk"]
    assert not walk[:, 0].any() and 0 <= walk.min() <= walk.max() <= 1


@pytest.mark.parametrize("graph", [EMPTY, ONE], ids=["empty", "one"])
@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_shards_of_a_graph_without_links_can_be_read(tmp_path, graph, cut):
    partition(graph, 1, tmp_path / "shards", cut=cut, encode="anchors=2,laplacian=1,random_walk=2,hops=1,degree")
    assert set(read_manifest(tmp_path / "shards")["encodings"]) >= {"anchors", "laplacian"}
