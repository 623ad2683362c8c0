"""What tasks take: the memory that is planned, searches that would not fit, clusters that METIS can take, files that are read."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from distributed_cases import Counting, files_of, owner_of, save_graph

from dgl_gt.partition import InputError, from_edges, partition, verify
from dgl_gt.partition.config import PartitionConfig
from dgl_gt.partition.distributed import cut, estimate, pipeline, thinning
from dgl_gt.partition.distributed.cut import group_size, rounds
from dgl_gt.partition.distributed.files import Folder
from dgl_gt.partition.distributed.job import BASE_BYTES, COARSE_BYTES, EDGE_BYTES, Sizes, search_bytes
from dgl_gt.partition.distributed.stages import InProcess
from dgl_gt.partition.sources.coo import COOGraph

GIB = 1 << 30
SMALL = Sizes(chunk_edges=300, range_ends=600, coarse_ends=100, group_edges=10)


def least_memory(coo, **options):
    """The least worker memory (MiB) that a graph needs."""
    config, low, high = PartitionConfig(**options), 1, 1 << 20
    while low < high:
        middle = (low + high) // 2
        try:
            estimate.check_worker_memory(coo, config, middle << 20)
            high = middle
        except InputError:
            low = middle + 1
    return low


def of_size(nodes, edges, **data):
    ends = np.broadcast_to(np.int32(0), (edges,))
    return COOGraph(ends, ends, nodes, **data)


def test_memory_counts_edges_that_are_added():
    coo = of_size(1_000_000, 20_000_000)
    assert least_memory(coo, parts=4, undirected=True) > 1.6 * least_memory(coo, parts=4)
    few = of_size(20_000_000, 1_000_000)
    assert least_memory(few, parts=4, self_loops=True) > 2 * least_memory(few, parts=4)


def test_memory_counts_halo_rows_and_wide_ids():
    def with_features(edges):
        return of_size(10**6, edges, node_data={"feat": np.broadcast_to(np.float32(0), (10**6, 512))})

    assert least_memory(with_features(10**7), parts=16) > 2 * least_memory(with_features(10**6), parts=16)
    narrow, wide = (Sizes.within(4 * GIB, 10**6, edges) for edges in (10**9 // 2, 2**31))
    assert wide.group_edges < narrow.group_edges


def test_tasks_are_smaller_than_what_dask_ends_a_worker_for():
    sizes = Sizes.within(4 * GIB, 10**6, 10**8)
    assert BASE_BYTES + EDGE_BYTES * sizes.group_edges <= 0.75 * 4 * GIB
    assert sizes.usable_bytes < 0.95 * 4 * GIB


def test_a_large_graph_has_few_ranges_where_memory_allows():
    nodes, edges = 10**9, 10**10
    small, large = (Sizes.within(memory * GIB, nodes, edges) for memory in (4, 256))
    assert 2 * edges / large.range_ends <= 256 < 2 * edges / small.range_ends


def test_groups_of_many_parts_count_the_table_of_the_search():
    nodes = edges = 10**7  # the table of nodes and parts is far larger than the edges
    sizes = Sizes.within(4 * GIB, nodes, edges)
    size = group_size(64, nodes, edges, sizes)
    assert 2 < size < 64
    shares = [each / 64 * nodes for each in (size, size + 1)]
    needs = [search_bytes(size + i, nodes, share, share) for i, share in enumerate(shares)]
    assert needs[0] <= sizes.group_edges * EDGE_BYTES < needs[1]
    assert group_size(64, nodes, edges, sizes, types=100) < size


@pytest.mark.parametrize("usable", [BASE_BYTES, None])
def test_a_group_that_does_not_fit_is_not_searched(tmp_path, monkeypatch, usable):
    moved = []
    sizes = replace(SMALL, usable_bytes=usable)
    monkeypatch.setattr(Sizes, "within", classmethod(lambda cls, *given: sizes))
    monkeypatch.setattr("dgl_gt.partition.distributed.clusters._kept_share", lambda *given: 1.0)
    monkeypatch.setattr(cut, "_move", lambda *given: moved.append(1))
    manifest = partition(save_graph(tmp_path / "graph.npz"), 3, tmp_path / "out", engine=InProcess())
    verify(tmp_path / "out", manifest)
    assert bool(moved) == (usable is None)


def test_rounds_are_few_and_begin_with_the_heaviest_pairs():
    draw = np.random.default_rng(0)
    between = draw.integers(0, 1000, (60, 60))
    between = between + between.T
    between[3, 41] = between[41, 3] = 10**6
    found = rounds(60, 2, between)
    assert len(found) == 16
    assert all(sorted(part for group in groups for part in group) == [*range(60)] for groups in found)
    assert [3, 41] in found[0]
    pairs = [tuple(group) for groups in found for group in groups if len(group) > 1]
    assert len(pairs) == len({*pairs})
    met = np.mean([between[pair] for pair in pairs])
    assert met > 1.2 * between[np.triu_indices(60, 1)].mean()


def metis_sizes(monkeypatch):
    """Nodes and ends of edges of the graphs that METIS gets."""
    seen, k_way = [], cut.k_way

    def watching(undirected, *args, **options):
        seen.append((undirected.shape[0], undirected.nnz))
        return k_way(undirected, *args, **options)

    monkeypatch.setattr(cut, "k_way", watching)
    return seen


@pytest.mark.parametrize("directed", [True, False])
def test_edges_that_metis_has_no_room_for(tmp_path, monkeypatch, directed):
    """Of eight dense blocks, which stay whole where each node keeps half of its edges."""
    seen, draw = metis_sizes(monkeypatch), np.random.default_rng(0)
    inside = draw.integers(0, 50, (2, 40_000)) + 50 * draw.integers(0, 8, 40_000)
    edges = np.concatenate([inside, draw.integers(0, 400, (2, 2000))], axis=1)
    edges = edges if directed else np.concatenate([edges, edges[::-1]], axis=1)
    graph, room = from_edges(*edges, 400), 14_000
    monkeypatch.setattr(cut, "_move", lambda *given: None)
    for usable in (None, BASE_BYTES + 400 * (80 + 2 * COARSE_BYTES) + room * COARSE_BYTES, BASE_BYTES + 400):
        sizes = replace(SMALL, usable_bytes=usable, coarse_ends=10**6)
        monkeypatch.setattr(Sizes, "within", classmethod(lambda cls, *given: sizes))
        out = tmp_path / str(usable)
        if usable == BASE_BYTES + 400:
            with pytest.raises(InputError, match="worker_memory"):
                partition(graph, 8, out, engine=InProcess())
            break
        manifest = partition(graph, 8, out, engine=InProcess())
        verify(out, manifest)
        owner = owner_of(out, manifest)
        assert all(len({*owner[begin : begin + 50]}) == 1 for begin in range(0, 400, 50))
    (_, all_ends), (nodes, ends) = seen
    assert nodes == 400 and 0.5 * room < ends <= room + 800 < all_ends


@pytest.mark.parametrize("ties", [False, True])
def test_each_cluster_keeps_its_heaviest_edges(tmp_path, ties):
    """In slices of all clusters, one of which has no edge; among equals by lot, the same in both directions."""
    clusters, share, draw = 40, 0.3, np.random.default_rng(0)
    weight = np.triu(draw.permutation(clusters**2).reshape(clusters, -1) // (400 if ties else 1) + 1, 1)
    weight[draw.random(weight.shape) < 0.5] = 0
    weight[:, 7] = weight[7] = 0
    weight += weight.T
    job = SimpleNamespace(folder=Folder(str(tmp_path)), ranges=3, seed=5)

    def whole(index):
        rows = weight[-(-clusters * index // 3) : -(-clusters * (index + 1) // 3)]
        row, neighbour = np.nonzero(rows)
        load = np.ones(len(rows), np.int64)
        degree = np.bincount(row, minlength=len(rows))
        return {"degree": degree, "neighbour": neighbour.astype(np.int32), "weight": rows[row, neighbour], "load": load}

    for stage, task in (
        ("coarse-2", whole),
        ("least-kept", lambda index: thinning._least_kept(job, index, "coarse-2", clusters, share)),
        ("thinned", lambda index: thinning._thinned(job, index, "coarse-2", clusters)),
    ):
        for index in range(3):
            job.folder.save(f"{stage}/{index}", task(index))
    kept = np.zeros_like(weight)
    for index in range(3):
        degree, neighbour, found, load = job.folder.load(f"thinned/{index}", "degree", "neighbour", "weight", "load")
        row = np.repeat(np.arange(len(degree)) + -(-clusters * index // 3), degree)
        kept[row, neighbour] = found
        assert load.tolist() == [1] * len(degree)
    assert (kept == kept.T).all() and (kept[kept > 0] == weight[kept > 0]).all()
    most = np.ceil(share * (weight > 0).sum(1)).astype(int)
    lightest = np.array([np.sort(each)[::-1][max(0, count - 1)] for each, count in zip(weight, most)])
    heavy = (weight > lightest[:, None]) | (weight > lightest[None])
    assert (kept[heavy & (weight > 0)] > 0).all() and ((kept > 0).sum(1) >= most).all()
    assert (kept > 0).sum() <= 2 * most.sum()
    if not ties:
        wanted = (weight >= lightest[:, None]) | (weight >= lightest[None])
        assert ((kept > 0) == (wanted & (weight > 0))).all()


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("kind", ["leaves", "isolated"])
def test_leaves_of_hubs_and_isolated_nodes_come_together(tmp_path, monkeypatch, kind):
    seen, count = metis_sizes(monkeypatch), 4000
    leaves = np.arange(1, count)
    src, dst = (leaves, 0 * leaves) if kind == "leaves" else np.arange(2 * 200).reshape(2, 200)
    graph = from_edges(src, dst, count)
    manifest = partition(graph, 2, tmp_path / "many", engine=InProcess())
    assert seen[0][0] < count / 5
    alone = partition(graph, 2, tmp_path / "one", owner=owner_of(tmp_path / "many", manifest))
    assert manifest == alone and files_of(tmp_path / "many") == files_of(tmp_path / "one")
    assert manifest["quality"]["node_balance"] < 1.3


def test_rounds_of_clusters_end_when_they_save_little(tmp_path, monkeypatch, small_tasks):
    draw, engine = np.random.default_rng(0), Counting()
    graph = from_edges(*draw.integers(0, 60, (2, 1500)), 60)  # nodes are heavier than clusters may be
    partition(graph, 8, tmp_path / "out", engine=engine)
    assert len({stage for stage, _ in engine.tasks if stage.startswith("moves-")}) == 4


def test_a_graph_of_clusters_that_metis_cannot_take(tmp_path, monkeypatch):
    sizes = replace(SMALL, usable_bytes=BASE_BYTES + 1000)
    monkeypatch.setattr(Sizes, "within", classmethod(lambda cls, *given: sizes))
    with pytest.raises(InputError, match=r"worker_memory.*MiB"):
        partition(save_graph(tmp_path / "graph.npz"), 3, tmp_path / "out", engine=InProcess())
    assert not (tmp_path / "out").exists()


def test_a_disk_without_room_for_the_files_of_the_run(tmp_path, monkeypatch):
    path = save_graph(tmp_path / "graph.npz")
    asked = []
    monkeypatch.setattr(pipeline, "check_room", lambda out, needed: asked.append(needed))
    partition(path, 3, tmp_path / "out", engine=InProcess())
    shards = sum(each.stat().st_size for each in (tmp_path / "out").rglob("*.safetensors"))
    assert asked[0] > 2 * 990 * 8 and asked[0] > 0.5 * shards


@pytest.mark.usefixtures("small_tasks")
def test_a_part_reads_what_others_want_of_it_alone(tmp_path, monkeypatch):
    read, load = [], Folder.load

    def watching(self, name, *keys):
        read.extend((name, key) for key in keys)
        return load(self, name, *keys)

    monkeypatch.setattr(Folder, "load", watching)
    partition(save_graph(tmp_path / "graph.npz"), 5, tmp_path / "out", engine=InProcess())
    assert read.count(("rows/0", "ring0")) == 1  # for the manifest
