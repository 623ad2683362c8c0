"""The vertex cut by many tasks: the files that one process writes for the same edges and masters, few mirrors, even parts."""

import json

import numpy as np
import pytest
from distributed_cases import Counting, files_of, save_graph, written_by_one_process
from safetensors.numpy import load_file

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, encode, from_edges, load_graph, partition, read_manifest, verify
from dgl_gt.partition.cuts import native
from dgl_gt.partition.cuts.vertex_cut import capacities_of
from dgl_gt.partition.distributed.engine import local
from dgl_gt.partition.distributed.job import Sizes
from dgl_gt.partition.distributed.stages import InProcess

GRAPHS = {
    "directed": {},
    "listed once": {"directed": False},
    "no data": {"data": False, "hub": False},
    "mostly isolated": {"nodes": 300, "edges": 60, "isolated": 250},
    "no edges": {"nodes": 30, "edges": 0, "data": False},
    "one node": {"nodes": 1, "edges": 3, "isolated": 0, "data": False},
}


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_edges_and_masters_give_the_same_bytes(tmp_path, name, parts):
    path = save_graph(tmp_path / "graph.npz", seed=parts, **GRAPHS[name])
    if name == "one node":
        parts = 1
    manifest = partition(path, parts, tmp_path / "many", engine=InProcess(), cut="vertex", seed=3)
    verify(tmp_path / "many", manifest)
    assert manifest["cut"] == "vertex" and read_manifest(tmp_path / "many") == manifest
    graph = load_graph(path)
    assert manifest["isolated_nodes"] == graph.count_isolated()
    assert manifest == written_by_one_process(graph, manifest, tmp_path / "many", tmp_path / "one")
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("added", [{"undirected": True}, {"undirected": True, "self_loops": True}])
def test_edges_that_are_added_degrees_and_unequal_parts(tmp_path, added):
    path, weights = save_graph(tmp_path / "graph.npz", data=False), [1, 1, 4]
    options = {**added, "encode": "degree", "target_weights": weights}
    manifest = partition(path, 3, tmp_path / "many", engine=InProcess(), cut="vertex", **options)
    graph = encode(load_graph(path, **added), "degree")
    assert manifest == written_by_one_process(graph, manifest, tmp_path / "many", tmp_path / "one")
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")
    assert manifest["per_part"][2]["edges"] > 2 * manifest["per_part"][0]["edges"]


@pytest.mark.usefixtures("small_tasks")
def test_each_copy_is_held_by_a_part_with_its_edges(tmp_path):
    draw = np.random.default_rng(0)
    graph = from_edges(*draw.integers(0, 200, (2, 900)), 230)
    manifest = partition(graph, 4, tmp_path / "out", engine=InProcess(), cut="vertex")
    unused = 0
    for part, counts in enumerate(manifest["per_part"]):
        arrays = load_file(tmp_path / "out" / f"part{part}" / "structure.safetensors")
        used = np.union1d(arrays["indices"], np.flatnonzero(np.diff(arrays["indptr"])))
        mirrors = np.arange(counts["owned"], counts["owned"] + counts["mirrors"])
        assert np.isin(mirrors, used).all()
        unused += counts["owned"] - np.isin(np.arange(counts["owned"]), used).sum()
    assert unused == 230 - len(np.unique(np.concatenate(graph.edges()))) > 0


@pytest.mark.parametrize("parts", [2, 6])
@pytest.mark.parametrize("source", ["sample:communities?nodes=2000&degree=8&classes=8&seed=1", "hubs"])
def test_few_mirrors_and_even_parts(tmp_path, monkeypatch, source, parts):
    sizes = Sizes(chunk_edges=5000, range_ends=3000, coarse_ends=4000, group_edges=10)
    monkeypatch.setattr(Sizes, "within", classmethod(lambda cls, *given: sizes))
    if source == "hubs":
        draw = np.random.default_rng(0)
        src, dst = draw.integers(0, 3000, 12000), (3000 * draw.random(12000) ** 4).astype(int)
        source = from_edges(src, dst, 3000)
    found = partition(source, parts, tmp_path / "many", engine=InProcess(), cut="vertex")["quality"]
    alone = partition(source, parts, tmp_path / "one", cut="vertex")["quality"]
    assert found["edge_balance"] < 1.0501
    assert found["replication_factor"] < 1.25 * alone["replication_factor"]
    assert found["node_balance"] < 1.3


STAR = np.zeros(2000, int), np.arange(2000)
CLIQUE = np.nonzero(~np.eye(50, dtype=bool))
UNEVEN = {
    "edges into a hub": STAR[::-1],
    "edges out of a hub": STAR,
    "two hubs": (np.append(STAR[1], STAR[0]), np.append(STAR[0], STAR[1] // 2)),
    "a clique": CLIQUE,
    "parallel edges": (np.zeros(900, int), np.ones(900, int)),
}


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("weights", [None, [1, *[2] * 14, 4]])
@pytest.mark.parametrize("name", UNEVEN)
def test_no_part_holds_more_edges_than_one_process_allows(tmp_path, name, weights):
    graph = from_edges(*UNEVEN[name], 3000)
    options = {"cut": "vertex", "target_weights": weights}
    manifest = partition(graph, 16, tmp_path / "out", engine=InProcess(), **options)
    verify(tmp_path / "out", manifest)
    edges, shares = np.array([each["edges"] for each in manifest["per_part"]]), np.array(manifest["shares"])
    assert edges.sum() == graph.num_edges
    if name == "two hubs":  # the edges of a leaf stay together
        assert manifest["quality"]["mirrors"] < 100
    assert (edges <= capacities_of(graph.num_edges, shares)).all()


@pytest.mark.usefixtures("small_tasks")
def test_a_run_goes_on_after_any_task(tmp_path):
    path, whole = save_graph(tmp_path / "graph.npz"), Counting()
    partition(path, 3, tmp_path / "whole", engine=whole, cut="vertex")
    for most in range(5, len(whole.tasks), 11):
        out = tmp_path / f"out-{most}"
        with pytest.raises(KeyboardInterrupt):
            partition(path, 3, out, engine=Counting(most), cut="vertex")
        rest = Counting()
        partition(path, 3, out, engine=rest, cut="vertex", resume=True)
        assert len(rest.tasks) == len(whole.tasks) - most
        assert files_of(out) == files_of(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("small_tasks")
def test_any_number_of_workers_gives_the_same_shards(tmp_path):
    pytest.importorskip("distributed")
    path, memory = save_graph(tmp_path / "graph.npz"), 1 << 30
    partition(path, 4, tmp_path / "expected", engine=InProcess(), cut="vertex")
    with local(1, memory) as engine:
        for workers in (1, 2, 4):
            engine.client.cluster.scale(workers)
            engine.client.wait_for_workers(workers, timeout=120)
            partition(path, 4, tmp_path / f"{workers}", engine=engine, cut="vertex", worker_memory=memory)
            assert files_of(tmp_path / f"{workers}") == files_of(tmp_path / "expected")


def test_the_command_and_its_dry_run(tmp_path, capfd):
    arguments = [str(save_graph(tmp_path / "graph.npz")), "--parts", "2", "--cut", "vertex", "--engine", "local"]
    arguments += ["--workers", "1", "--worker-memory", "1GiB", "--json"]
    assert main(["partition", *arguments, "--dry-run"]) == 0
    stages = json.loads(capfd.readouterr().out)
    assert len(stages) == 5 and all(each["bytes"] >= 0 and each["tasks"] >= 1 for each in stages.values())
    assert main(["partition", *arguments, "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["cut"] == "vertex" and found["quality"] == read_manifest(tmp_path / "out")["quality"]


@pytest.mark.usefixtures("small_tasks")
def test_resume_refuses_the_other_cut(tmp_path):
    path = save_graph(tmp_path / "graph.npz")
    with pytest.raises(KeyboardInterrupt):
        partition(path, 3, tmp_path / "out", engine=Counting(30))
    with pytest.raises(InputError, match="options"):
        partition(path, 3, tmp_path / "out", engine=InProcess(), cut="vertex", resume=True)


@pytest.mark.parametrize("kind", ["edge", "vertex"])
def test_without_the_compiled_extension_it_is_refused_at_once(tmp_path, monkeypatch, kind):
    path = save_graph(tmp_path / "graph.npz")
    monkeypatch.setattr(native, "_loaded", lambda: None)
    with pytest.raises(InputError, match="compiled extension"):
        partition(path, 2, tmp_path / "out", engine=InProcess(), cut=kind)
    assert [each.name for each in tmp_path.iterdir()] == ["graph.npz"]
