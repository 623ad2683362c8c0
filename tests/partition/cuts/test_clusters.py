"""Clusters by label propagation, beside a plain reference; the order of rows by them, and METIS's cuts of them."""

import ctypes

import numpy as np
import pytest
import scipy.sparse
from xorshift import Xorshift64Star

from dgl_gt.partition import load_graph, make_edge_cut, make_vertex_cut
from dgl_gt.partition.cuts import clusters, metis, native
from dgl_gt.partition.distributed.job import mixed
from dgl_gt.partition.graph import from_edges, symmetrised

compiled = pytest.mark.skipif(not native.is_available(), reason="clusters need the compiled extension")


def drawn(seed, nodes=60, edges=150):
    """An undirected graph with isolated nodes and a hub, edge weights, node weights and groups."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, nodes - 5, (2, edges))
    src[:20] = 3
    undirected = symmetrised(from_edges(src, dst, nodes))
    weights = scipy.sparse.triu(undirected).tocsr().astype(np.int64)
    weights.data = draw.integers(1, 4, weights.nnz)
    weighted = (weights + weights.T).tocsr()
    weighted.sort_indices()
    undirected.sort_indices()
    assert (weighted.indices == undirected.indices).all()
    undirected.indices = undirected.indices.astype(np.int32)
    return undirected, weighted.data, draw.integers(1, 5, nodes), draw.integers(0, 3, nodes).astype(np.int32)


def propagated(undirected, edge_weights, node_weights, groups, heaviest, sweeps, seed):
    """The clusters in plain Python."""
    nodes, random = undirected.shape[0], Xorshift64Star(seed)
    label, weight = list(range(nodes)), node_weights.tolist()
    for _ in range(sweeps):
        moves = 0
        for node in range(nodes):
            at = slice(*undirected.indptr[node : node + 2])
            affinity = {}
            for to, each in zip(undirected.indices[at], edge_weights[at]):
                if groups[to] == groups[node]:
                    affinity[label[to]] = affinity.get(label[to], 0) + each
            own, best, ties = label[node], label[node], 1
            for cluster, found in affinity.items():
                if cluster == own or weight[cluster] + node_weights[node] > heaviest:
                    continue
                most = affinity.get(best, 0)
                if found > most:
                    best, ties = cluster, 1
                elif found == most and best != own:
                    ties += 1
                    if random.next() % ties == 0:
                        best = cluster
            if best != own:
                weight[own] -= node_weights[node]
                weight[best] += node_weights[node]
                label[node] = best
                moves += 1
        if moves * 50 < nodes:
            break
    first = {each: number for number, each in enumerate(dict.fromkeys(label))}
    return [first[each] for each in label]


@compiled
@pytest.mark.parametrize("seed", range(6))
def test_the_clusters_that_nodes_choose(seed):
    undirected, _, node_weights, own = drawn(seed)
    draw = np.random.default_rng(seed)
    asks, of_neighbour = draw.random(len(own)) < 0.7, draw.integers(0, 3, len(own)).astype(np.int32)
    names, room = np.array([4, 9, 70]), draw.integers(0, 5, 3)
    joined, wished = native.choose_clusters(
        undirected.indptr.astype(np.int64),
        undirected.indices,
        of_neighbour=of_neighbour,
        own=own,
        asks=asks,
        node_weights=node_weights,
        names=names,
        room=room,
        salt=7,
    )
    for node in range(len(own)):
        reached = of_neighbour[undirected.indices[slice(*undirected.indptr[node : node + 2])]]
        affinity = np.bincount(reached, minlength=3)
        lot = mixed(names * 31 + node, 7)
        others = [c for c in range(3) if asks[node] and affinity[c] and c != own[node]]
        fitting = [c for c in others if affinity[c] > affinity[own[node]] and room[c] >= node_weights[node]]
        for found, among in ((joined[node], fitting), (wished[node], others)):
            assert found == max(among, key=lambda c: (affinity[c], lot[c]), default=-1)


@compiled
@pytest.mark.parametrize("heaviest", [1, 12, 10**6])
@pytest.mark.parametrize("seed", range(6))
def test_clusters_are_those_of_the_reference(seed, heaviest):
    undirected, edge_weights, node_weights, groups = drawn(seed)
    for weights in (edge_weights, None):
        settings = {"heaviest": heaviest, "sweeps": 1 + seed, "seed": seed}
        found = native.find_clusters(
            undirected.indptr.astype(np.int64),
            undirected.indices,
            weights,
            node_weights=node_weights,
            groups=groups,
            **settings,
        )
        full = weights if weights is not None else np.ones(undirected.nnz, np.int64)
        assert found.tolist() == propagated(undirected, full, node_weights, groups, **settings)
        heavy = np.bincount(found, node_weights) > heaviest
        assert (np.bincount(found)[heavy] == 1).all()
        assert all(len(set(groups[found == cluster])) == 1 for cluster in range(found.max() + 1))


@compiled
@pytest.mark.parametrize("seed", range(4))
def test_the_graph_of_clusters_sums_the_weights_between_them(seed):
    undirected, edge_weights, *_ = drawn(seed)
    cluster = np.random.default_rng(seed).permutation(np.arange(60) % 7).astype(np.int32)
    member = np.eye(7, dtype=int)[cluster]
    for weights in (edge_weights, None):
        indptr, to, found = native.contract(undirected.indptr.astype(np.int64), undirected.indices, weights, cluster)
        full = weights if weights is not None else np.ones(undirected.nnz, np.int64)
        dense = scipy.sparse.csr_array((full, undirected.indices, undirected.indptr), undirected.shape).toarray()
        expected = member.T @ dense @ member
        np.fill_diagonal(expected, 0)
        assert (scipy.sparse.csr_array((found, to, indptr), (7, 7)).toarray() == expected).all()
        assert len(to) == len(found) == indptr[-1] == np.count_nonzero(expected)


@compiled
def test_ids_of_the_wrong_type_are_refused():
    undirected, edge_weights, _, groups = drawn(0)
    with pytest.raises(ctypes.ArgumentError):
        native.contract(undirected.indptr.astype(np.int64), undirected.indices.astype(np.int64), edge_weights, groups)


# ---- the order of rows -----------------------------------------------------------------------------------------------


def communities(seed=0, count=40, size=50):
    """Dense communities whose nodes have random numbers, and the community of each node."""
    draw = np.random.default_rng(seed)
    label = draw.permutation(np.arange(count * size) % count)
    inside = [draw.choice(np.flatnonzero(label == each), (2, 20 * size)) for each in range(count)]
    src, dst = np.concatenate([*inside, draw.integers(0, count * size, (2, 1000))], axis=1)
    return from_edges(src, dst, count * size), label


@pytest.mark.parametrize("parts", [1, 3])
def test_nodes_are_sorted_by_part_and_communities_lie_together(parts, monkeypatch):
    monkeypatch.setattr(clusters, "CLUSTER_NODES", 60)
    graph, label = communities()
    owner = label % parts
    order = clusters.order_in_parts(symmetrised(graph), owner)
    assert sorted(order) == list(range(graph.num_nodes)) and (np.diff(owner[order]) >= 0).all()
    if native.is_available():
        changes = np.count_nonzero(np.diff(label[order]))
        assert changes < 3 * 40  # of the 2,000 that a random order has


@compiled
def test_clusters_that_are_linked_lie_near_each_other(monkeypatch):
    """A path of cliques in random order: of those that follow each other, most do so in the order of rows, too."""
    monkeypatch.setattr(clusters, "CLUSTER_NODES", 8)
    cliques, size = 256, 8
    number = np.random.default_rng(0).permutation(cliques)  # the place of each clique on the path
    node = lambda place, i: number[place] * size + i  # noqa: E731
    pairs = [(node(p, i), node(p, j)) for p in range(cliques) for i in range(size) for j in range(i)]
    pairs += [(node(p, 0), node(p + 1, 1)) for p in range(cliques - 1)]
    order = clusters.order_in_parts(symmetrised(from_edges(*np.array(pairs).T, cliques * size)), np.zeros(2048, int))
    row = np.argsort(order)
    distances = [abs(row[node(p, 0)] - row[node(p + 1, 1)]) for p in range(cliques - 1)]
    assert np.median(distances) < 8 * size


@pytest.mark.parametrize("edges", [0, 1, 40])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_nearly_empty_graphs_and_stars_are_ordered(monkeypatch, edges, is_compiled):
    if not is_compiled:
        monkeypatch.setattr(native, "_loaded", lambda: None)
    star = symmetrised(from_edges(np.zeros(edges, int), np.arange(1, edges + 1), 5000))
    owner = np.arange(5000) % 7 % 3
    order = clusters.order_in_parts(star, owner)
    assert sorted(order) == list(range(5000)) and (np.diff(owner[order]) >= 0).all()


@compiled
def test_a_hub_of_many_nodes_is_ordered_quickly():
    """Its cluster is full after a thousand nodes, at each level."""
    spokes = 200_000
    star = symmetrised(from_edges(np.arange(1, spokes + 1), np.zeros(spokes, int), spokes + 1))
    order = clusters.order_in_parts(star, np.zeros(spokes + 1, np.int32))
    assert len(np.unique(order)) == spokes + 1


# ---- METIS on clusters -----------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """What METIS is given, with every graph treated as a large one."""
    monkeypatch.setattr(clusters, "_MIN_ENTRIES", 0)
    given, original = [], metis.k_way

    def k_way(undirected, parts, weights, **options):
        given.append((undirected, weights, options))
        return original(undirected, parts, weights, **options)

    monkeypatch.setattr(metis, "k_way", k_way)
    return given


@compiled
def test_a_large_graph_is_cut_by_its_clusters(seen):
    graph, label = communities()
    weights = 1 + np.arange(graph.num_nodes) % 3
    owner = clusters.k_way(symmetrised(graph), 4, weights, seed=3)
    ((coarse, coarse_weights, options),) = seen
    assert coarse.shape[0] <= graph.num_nodes / 2 and coarse.dtype == np.int64 and coarse.data.max() > 1
    assert coarse_weights.sum() == weights.sum() and options["seed"] == 3
    heaviest = weights.sum() // (64 * 4)
    assert coarse_weights.max() <= heaviest
    loads = np.bincount(owner, weights, 4)
    assert owner.shape == (graph.num_nodes,) and loads.max() < 1.1 * loads.mean()
    src, dst = graph.indices, graph.destinations()
    assert (owner[src] != owner[dst]).mean() < 0.1  # 0.75 by chance


@compiled
def test_other_objectives_and_graphs_without_clusters_are_cut_whole(seen):
    graph, _ = communities()
    undirected = symmetrised(graph)
    clusters.k_way(undirected, 4, np.ones(graph.num_nodes, np.int64), objective="volume")
    clusters.k_way(undirected, 500, np.ones(graph.num_nodes, np.int64))  # no two nodes fit into a cluster
    assert [given[0] is undirected for given in seen] == [True, True]
    assert seen[0][2]["objective"] == "volume"


def test_a_small_graph_is_cut_whole(monkeypatch):
    given = []
    monkeypatch.setattr(metis, "k_way", lambda undirected, *_, **__: given.append(undirected))
    undirected = symmetrised(communities()[0])
    clusters.k_way(undirected, 4, np.ones(2000, np.int64))
    assert given == [undirected]


@compiled
@pytest.mark.parametrize("make", [make_edge_cut, make_vertex_cut])
def test_cuts_by_clusters_are_about_as_good_as_cuts_of_nodes(real_graph, monkeypatch, make):
    """Edges between parts, of METIS's cut of ogbn-arxiv with the local search or the placement of edges after it."""
    graph = load_graph(real_graph("ogbn_arxiv_nofeat"))
    copies = {}
    for least in (0, 10**12):
        monkeypatch.setattr(clusters, "_MIN_ENTRIES", least)
        cut = make(graph, 4)
        part = np.repeat(np.arange(4), np.diff(cut.ptr))[cut.new_ids()]
        edges = (graph.indices, graph.destinations())
        of_edge = cut.edge_part if make is make_vertex_cut else part[edges[1]]
        ends = np.concatenate([of_edge * graph.num_nodes + each for each in edges])
        copies[least] = len(np.unique(ends)) - graph.num_nodes
    assert copies[0] < 1.05 * copies[10**12]


def test_the_order_of_a_part_is_that_of_its_own_graph():
    draw = np.random.default_rng(0)
    undirected = symmetrised(from_edges(*draw.integers(0, 300, (2, 900)), 300))
    owner = draw.integers(0, 5, 300) * 2  # parts 1, 3, 5 and 7 are empty
    order = clusters.order_in_parts(undirected, owner, seed=3)
    expected = []
    for part in range(9):
        nodes = np.flatnonzero(owner == part)
        expected.append(nodes[clusters.order_of_part(undirected[nodes][:, nodes], seed=3)] if len(nodes) else nodes)
    assert np.array_equal(order, np.concatenate(expected))
