"""The cut by many tasks, run in this process: the same files as one process writes, resumed anywhere, refused in time."""

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest
from distributed_cases import Counting, files_of, owner_of, save_graph
from search_cases import random_graph

from dgl_gt.partition import InputError, from_edges, partition, verify
from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.cuts.permutation import count_assignment, in_edges
from dgl_gt.partition.distributed.cut import _move, rounds
from dgl_gt.partition.distributed.files import Folder
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
def test_the_same_assignment_gives_the_same_bytes(tmp_path, name, parts):
    path = save_graph(tmp_path / "graph.npz", seed=parts, **GRAPHS[name])
    if name == "one node":
        parts = 1
    manifest = partition(path, parts, tmp_path / "many", engine=InProcess())
    verify(tmp_path / "many", manifest)
    alone = partition(path, parts, tmp_path / "one", owner=owner_of(tmp_path / "many", manifest))
    assert manifest == alone
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize(
    "added", [{}, {"undirected": True}, {"self_loops": True}, {"undirected": True, "self_loops": True}]
)
@pytest.mark.parametrize("directed", [True, False])
def test_edges_that_are_added_and_degrees(tmp_path, added, directed):
    path = save_graph(tmp_path / "graph.npz", data=False, directed=directed)
    added = {**added, "encode": "degree"}
    manifest = partition(path, 3, tmp_path / "many", engine=InProcess(), **added)
    alone = partition(path, 3, tmp_path / "one", owner=owner_of(tmp_path / "many", manifest), **added)
    assert manifest == alone
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


@pytest.mark.parametrize("added", ["undirected", "self_loops"])
def test_added_edges_would_need_edge_data(tmp_path, added):
    path = save_graph(tmp_path / "graph.npz")
    with pytest.raises(InputError, match="weight"):
        partition(path, 3, tmp_path / "out", engine=InProcess(), **{added: True})


@pytest.mark.usefixtures("small_tasks")
def test_a_given_owner_with_empty_parts(tmp_path):
    path = save_graph(tmp_path / "graph.npz")
    owner = np.random.default_rng(0).integers(0, 3, 200) * 2
    for name, engine in (("many", InProcess()), ("one", None)):
        partition(path, 6, tmp_path / name, owner=owner, engine=engine)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


@pytest.mark.usefixtures("small_tasks")
def test_a_graph_in_memory_and_parts_of_unequal_weights(tmp_path):
    draw = np.random.default_rng(0)
    graph = from_edges(*draw.integers(0, 300, (2, 2000)), 300, {"feat": draw.random((300, 2))}, {"w": np.arange(2000)})
    manifest = partition(graph, 3, tmp_path / "many", engine=InProcess(), target_weights=[1, 1, 4], attempts=2)
    owner, weights = owner_of(tmp_path / "many", manifest), {"target_weights": [1, 1, 4]}
    assert manifest == partition(graph, 3, tmp_path / "one", owner=owner, **weights)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")
    assert make_balance(graph, 3, **weights).largest_load(owner) <= 1


@pytest.mark.usefixtures("small_tasks")
def test_a_folder_of_parquet_files(tmp_path):
    pyarrow, _ = pytest.importorskip("pyarrow"), pytest.importorskip("duckdb")
    from pyarrow import parquet

    draw, folder = np.random.default_rng(0), tmp_path / "edges"
    folder.mkdir()
    for number in range(3):
        src, dst = draw.integers(0, 90, (2, 200)) * 7 + 5
        parquet.write_table(
            pyarrow.table({"src": src, "dst": dst, "w": draw.random(200)}), folder / f"{number}.parquet"
        )
    manifest = partition(folder, 3, tmp_path / "many", engine=InProcess(), ids="compact")
    assert manifest["node_names"] == "integers"
    owner = owner_of(tmp_path / "many", manifest)
    assert manifest == partition(folder, 3, tmp_path / "one", owner=owner, ids="compact")
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


@pytest.mark.usefixtures("small_tasks")
def test_names_of_nodes_and_tables(tmp_path):
    lines = [f"n{(i * 7) % 60},n{(i * 11 + 3) % 60},{i % 5}" for i in range(400)]
    (tmp_path / "edges.csv").write_text("\n".join(["src,dst,weight", *lines]) + "\n")
    manifest = partition(tmp_path / "edges.csv", 3, tmp_path / "many", engine=InProcess(), ids="names")
    alone = partition(
        tmp_path / "edges.csv", 3, tmp_path / "one", ids="names", owner=owner_of(tmp_path / "many", manifest)
    )
    assert manifest == alone and manifest["node_names"] == "text"
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_nearly_as_few_halo_rows_as_one_process(tmp_path, monkeypatch):
    sizes = Sizes(chunk_edges=5000, range_ends=6000, coarse_ends=4000, group_edges=10)
    monkeypatch.setattr(Sizes, "within", classmethod(lambda cls, *given: sizes))
    source = "sample:communities?nodes=2000&degree=8&classes=8&seed=1"
    for parts in (2, 6):
        found = partition(source, parts, tmp_path / f"many-{parts}", engine=InProcess())["quality"]
        alone = partition(source, parts, tmp_path / f"one-{parts}")["quality"]
        assert found["halo"] <= 1.15 * alone["halo"]
        assert found["node_balance"] < 1.2


@pytest.mark.usefixtures("small_tasks")
def test_a_run_goes_on_after_any_task(tmp_path):
    path, whole = save_graph(tmp_path / "graph.npz"), Counting()
    partition(path, 4, tmp_path / "whole", engine=whole)
    expected = files_of(tmp_path / "whole")
    for most in range(0, len(whole.tasks), 23):
        out, first, second = tmp_path / f"after-{most}", Counting(most), Counting()
        with pytest.raises(KeyboardInterrupt):
            partition(path, 4, out, engine=first)
        assert not out.exists()
        partition(path, 4, out, engine=second, resume=True)
        assert files_of(out) == expected
        assert sorted(first.tasks + second.tasks) == sorted(whole.tasks)


@pytest.mark.usefixtures("small_tasks")
def test_a_task_that_has_ended_does_not_run_again(tmp_path, monkeypatch):
    class Twice(InProcess):
        def run(self, stage, task, items):
            return (max(task(item), task(item)) for item in items)

    saved, save = [], Folder.save
    monkeypatch.setattr(Folder, "save", lambda self, name, arrays: saved.append(name) or save(self, name, arrays))
    path = save_graph(tmp_path / "graph.npz")
    for name, engine in (("once", InProcess()), ("twice", Twice())):
        partition(path, 4, tmp_path / name, engine=engine)
    assert len(saved) == 2 * len(set(saved))
    assert files_of(tmp_path / "once") == files_of(tmp_path / "twice")


@pytest.mark.usefixtures("small_tasks")
def test_without_resume_a_run_starts_again(tmp_path):
    path, whole = save_graph(tmp_path / "graph.npz"), Counting()
    with pytest.raises(KeyboardInterrupt):
        partition(path, 3, tmp_path / "out", engine=Counting(30))
    partition(path, 3, tmp_path / "out", engine=whole)
    assert whole.tasks[0] == ("count", 0)


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize(
    ("change", "named"), [({"seed": 1}, "options"), ({"parts": 4}, "options"), ("edges", "source"), ("data", "source")]
)
def test_resume_refuses_another_run(tmp_path, change, named):
    path, arguments = save_graph(tmp_path / "graph.npz"), {"parts": 3, "seed": 0}
    with pytest.raises(KeyboardInterrupt):
        partition(path, out=tmp_path / "out", engine=Counting(30), **arguments)
    if change == "edges":
        save_graph(path, seed=5)
    elif change == "data":
        arrays = dict(np.load(path))
        np.savez(path, **arrays | {"x": arrays["x"] + 1})
    else:
        arguments |= change
    with pytest.raises(InputError, match=named):
        partition(path, out=tmp_path / "out", engine=InProcess(), resume=True, **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("small_tasks", "everything_mapped")
@pytest.mark.parametrize("what", ["changed", "gone"])
def test_a_source_that_changes_between_stages(tmp_path, what):
    path = save_graph(tmp_path / "graph.npz")

    class Changing(InProcess):
        def run(self, stage, task, items):
            if stage == "edges":
                os.utime(path, ns=(1, 1)) if what == "changed" else path.unlink()
            return map(task, items)

    with pytest.raises(InputError, match=r"graph\.npz"):
        partition(path, 3, tmp_path / "out", engine=Changing())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "option",
    [
        *({"cut": "auto"}, {"cut_weights": "weight"}, {"self_loops": True, "reverse_kind": True}),
        *({"encode": "degree,laplacian=2"}, {"max_imbalance": 1.1}, {"memory": 1 << 30}, {"link_split": "0.8,0.1,0.1"}),
    ],
)
def test_options_that_are_not_there(tmp_path, option):
    path = save_graph(tmp_path / "graph.npz")
    with pytest.raises(InputError, match=list(option)[-1]):
        partition(path, 3, tmp_path / "out", engine=InProcess(), **option)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph.npz"]


def test_too_little_memory_is_refused_with_what_would_fit(tmp_path):
    source = "sample:communities?nodes=20000&degree=20&seed=0"
    with pytest.raises(InputError, match="worker_memory") as refused:
        partition(source, 2, tmp_path / "out", engine=InProcess(), worker_memory=210 << 20)
    assert list(tmp_path.iterdir()) == []
    least = int(str(refused.value).rpartition("MiB")[0].split()[-1]) + 1
    partition(source, 2, tmp_path / "out", engine=InProcess(), worker_memory=least << 20)


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize("per_group", [2, 3, 4, 7, 100])
def test_every_two_parts_meet(parts, per_group):
    met = set()
    for groups in rounds(parts, per_group, np.zeros((parts, parts))):
        assert sorted(itertools.chain(*groups)) == list(range(parts))
        met |= {frozenset(pair) for group in groups for pair in itertools.combinations(group, 2)}
        assert max(map(len, groups)) <= max(2, per_group)
    assert len(met) == parts * (parts - 1) // 2


@pytest.mark.parametrize("seed", range(6))
def test_groups_that_search_at_the_same_time_save_what_each_saves(seed):
    graph, draw = random_graph(seed), np.random.default_rng(seed)
    count, before = graph.num_nodes, draw.integers(0, 5, graph.num_nodes).astype(np.int32)
    job = SimpleNamespace(
        num_nodes=count,
        num_edges=graph.num_edges,
        node_type=np.int32,
        loads=lambda nodes, _, others: np.repeat([[1], [0]], (len(nodes), others), axis=0),
    )

    def halo(owner):
        return int(count_assignment(graph, owner, np.ones(5) / 5).copies_by_hop.sum())

    def searched(owner, group):
        nodes = np.flatnonzero(np.isin(before, group))
        degree, src = in_edges(graph, nodes)
        found = np.searchsorted(group, before[nodes]).astype(np.int32)
        room = np.full((len(group), 1), count)
        _move(job, nodes, np.diff(degree), graph.indices[src], found, room, 0 * room, seed)
        owner = owner.copy()
        owner[nodes] = np.array(group, np.int32)[found]
        return owner

    first, second = searched(before, [0, 3]), searched(before, [1, 2, 4])
    both = searched(first, [1, 2, 4])
    saved = [halo(before) - halo(each) for each in (first, second, both)]
    assert saved[2] == saved[0] + saved[1]
    assert min(saved) >= 0
