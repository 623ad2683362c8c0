"""Typed graphs, halos of several hops and hop tokens by many tasks: the files of one process for the same assignment."""

from dataclasses import replace

import numpy as np
import pytest
from distributed_cases import Counting, files_of, owner_of, save_graph, written_by_one_process

from dgl_gt.partition import InputError, encode, from_edges, from_relations, load_graph, partition, relations, verify
from dgl_gt.partition.distributed import halo
from dgl_gt.partition.distributed.engine import local
from dgl_gt.partition.distributed.job import EDGE_BYTES, Sizes
from dgl_gt.partition.distributed.stages import InProcess
from dgl_gt.partition.schema import Schema
from dgl_gt.partition.sources import numpy_file
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.system import mapped_arrays
from dgl_gt.partition.system.mapped_arrays import is_mapped

pytestmark = pytest.mark.usefixtures("small_tasks")


def typed(seed=0):
    """A graph with a hub, parallel edges, self-loops, isolated nodes, a type without nodes and a relation without edges."""
    draw = np.random.default_rng(seed)
    counts = {"paper": 90, "author": 70, "venue": 0, "topic": 6}
    kinds = [("author", "writes", "paper", 300), ("paper", "cites", "paper", 250), ("paper", "has", "topic", 120)]
    edges = {(s, n, d): [draw.integers(0, counts[end] - 3, size) for end in (s, d)] for s, n, d, size in kinds}
    edges["author", "writes", "paper"][0][:60] = 7
    edges["topic", "rev_has", "paper"] = edges["paper", "has", "topic"][::-1]
    edges["paper", "in", "venue"] = np.zeros((2, 0), int)
    split = draw.permutation(90) % 3
    papers = {name: split == i for i, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    papers |= {"feat": draw.standard_normal((90, 5)).astype(np.float32), "label": draw.integers(0, 4, 90)}
    data = {"paper": papers, "author": {"feat": draw.standard_normal((70, 90)).astype(np.float32)}}
    weights = {("author", "writes", "paper"): {"weight": draw.random(300)}}
    return from_relations(counts, edges, data, weights)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_same_assignment_gives_the_same_bytes(tmp_path, parts, depth):
    graph, options = typed(parts), {"halo_depth": depth}
    manifest = partition(graph, parts, tmp_path / "many", engine=InProcess(), **options)
    verify(tmp_path / "many", manifest)
    owner = owner_of(tmp_path / "many", manifest)
    assert manifest == partition(graph, parts, tmp_path / "one", owner=owner, **options)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_a_given_owner_with_empty_parts(tmp_path):
    owner = np.random.default_rng(0).integers(0, 3, 166) * 2
    for name, engine in (("many", InProcess()), ("one", None)):
        partition(typed(), 6, tmp_path / name, owner=owner, engine=engine, halo_depth=2)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_same_edges_and_masters_give_the_same_bytes(tmp_path, parts):
    graph = typed(parts)
    manifest = partition(graph, parts, tmp_path / "many", engine=InProcess(), cut="vertex", encode="hops=1")
    verify(tmp_path / "many", manifest)
    graph = encode(graph, "hops=1")
    assert manifest == written_by_one_process(graph, manifest, tmp_path / "many", tmp_path / "one")
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def write_npz(folder):
    graph = typed()
    arrays = {"node_types": np.array([*graph.schema.nodes]), "num_nodes": np.array([*graph.schema.nodes.values()])}
    for (first, name, second), each in zip(graph.schema.edges, relation_ends(graph)):
        arrays[f"edge_index/{first},{name},{second}"] = each
    np.savez(folder / "graph.npz", **arrays | {f"node_data/{key}": each for key, each in graph.node_data.items()})
    return folder / "graph.npz"


def relation_ends(graph):
    """The ends of each relation's edges, as numbers within their types."""
    ends, ptr = np.stack(graph.edges()), graph.schema.edge_ptr
    return [
        ends[:, at:to] - graph.schema.node_ptr[of_types][:, None]
        for at, to, of_types in zip(ptr, ptr[1:], graph.schema.ends)
    ]


META = """
node_data: [{file_name: authors.csv, ntype: author}, {file_name: papers.csv, ntype: paper}]
edge_data: [{file_name: wrote.csv, etype: [author, writes, paper]}]
"""


def write_folder(folder):
    pytest.importorskip("duckdb")
    (folder / "graph").mkdir()
    files = {
        "meta.yaml": META,
        "authors.csv": "node_id,age\n" + "".join(f"a{i},{i % 9}\n" for i in range(40)),
        "papers.csv": "node_id,x\n" + "".join(f"p{i},{i / 8}\n" for i in range(60)),
        "wrote.csv": "src_id,dst_id,stars\n" + "".join(f"a{i * 7 % 40},p{i * 11 % 60},{i % 5}\n" for i in range(200)),
    }
    for name, text in files.items():
        (folder / "graph" / name).write_text(text)
    return folder / "graph"


def test_types_are_kept_even(tmp_path):
    draw, sizes = np.random.default_rng(0), {"paper": 400, "author": 200, "venue": 0}
    edges = {(name, "knows", name): draw.integers(0, size, (2, 4 * size)) for name, size in sizes.items() if size}
    edges["author", "writes", "paper"] = draw.integers(0, 200, (2, 300))
    graph, shares = from_relations(sizes, edges), np.array([0.25, 0.25, 0.5])
    most = {}
    for balance in (None, "types"):
        options = {"balance": balance, "target_weights": shares}
        manifest = partition(graph, 3, tmp_path / str(balance), engine=InProcess(), **options)
        owned = np.array(manifest["typed"]["nodes"])[:, 0]
        most[balance] = (owned[:, :2] / np.outer(shares, [400, 200])).max()
    assert most["types"] <= 1.1 < most[None]


def test_one_type_cannot_be_kept_even(tmp_path):
    path = save_graph(tmp_path / "graph.npz")
    with pytest.raises(InputError, match="balance"):
        partition(path, 3, tmp_path / "out", engine=InProcess(), balance="types")
    assert [each.name for each in tmp_path.iterdir()] == ["graph.npz"]


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("write", [write_npz, write_folder])
def test_sources_of_typed_graphs(tmp_path, monkeypatch, write, in_files):
    """Edges that are mapped from files stay in files."""
    path = write(tmp_path)
    for module in (mapped_arrays, numpy_file):
        monkeypatch.setattr(module, "SMALLEST_BYTES", 1 if in_files else 1 << 30)
    monkeypatch.setattr(relations, "_AT_ONCE", 37)
    opened = open_source(path)
    assert is_mapped(opened.src) == is_mapped(opened.dst) == in_files
    graph, expected = load_graph(path), typed() if write is write_npz else load_graph(path)
    assert all(map(np.array_equal, graph.edges(), expected.edges()))
    manifest = partition(path, 3, tmp_path / "many", engine=InProcess())
    owner = owner_of(tmp_path / "many", manifest)
    assert manifest == partition(path, 3, tmp_path / "one", owner=owner)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_worker_processes(tmp_path):
    pytest.importorskip("distributed")
    graph, options = typed(), {"halo_depth": 2, "encode": "degree,hops=1", "balance": "types"}
    partition(graph, 3, tmp_path / "expected", engine=InProcess(), **options)
    with local(1, 1 << 30) as engine:
        partition(graph, 3, tmp_path / "out", engine=engine, worker_memory=1 << 30, **options)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("directed", [True, False])
def test_halos_of_several_hops(tmp_path, depth, directed):
    path, options = save_graph(tmp_path / "graph.npz", directed=directed), {"halo_depth": depth}
    manifest = partition(path, 4, tmp_path / "many", engine=InProcess(), **options)
    verify(tmp_path / "many", manifest)
    assert manifest == partition(path, 4, tmp_path / "one", owner=owner_of(tmp_path / "many", manifest), **options)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_a_run_goes_on_after_any_task(tmp_path):
    graph, whole = typed(), Counting()
    partition(graph, 3, tmp_path / "whole", engine=whole, halo_depth=2)
    for most in range(5, len(whole.tasks), 29):
        out, rest = tmp_path / f"out-{most}", Counting()
        with pytest.raises(KeyboardInterrupt):
            partition(graph, 3, out, engine=Counting(most), halo_depth=2)
        partition(graph, 3, out, engine=rest, halo_depth=2, resume=True)
        assert len(rest.tasks) == len(whole.tasks) - most
        assert files_of(out) == files_of(tmp_path / "whole")


def test_resume_refuses_other_types(tmp_path):
    graph = typed()
    with pytest.raises(KeyboardInterrupt):
        partition(graph, 3, tmp_path / "out", engine=Counting(30))
    edges = {each._replace(name=each.name.replace("cites", "quotes")): n for each, n in graph.schema.edges.items()}
    renamed = replace(graph, schema=Schema(graph.schema.nodes, edges))
    with pytest.raises(InputError, match="source"):
        partition(renamed, 3, tmp_path / "out", engine=InProcess(), resume=True)


@pytest.mark.parametrize("option", ["undirected", "self_loops"])
def test_edges_are_not_added_to_relations(tmp_path, option):
    path = write_npz(tmp_path)
    with pytest.raises(InputError, match=option):
        partition(path, 3, tmp_path / "out", engine=InProcess(), **{option: True})
    graph = load_graph(path, **{option: True})
    assert partition(graph, 3, tmp_path / "out", engine=InProcess())["edges"] == graph.num_edges


@pytest.mark.parametrize("parts, whose", [(12, "halos of all parts"), (2, "halo of part")])
def test_halos_that_do_not_fit_are_refused(tmp_path, small_tasks, monkeypatch, parts, whose):
    """Many small halos in the task of a range, or a large one in that of a part."""
    path, seen = save_graph(tmp_path / "graph.npz"), {}
    owner = np.arange(load_graph(path).num_nodes) % parts
    with monkeypatch.context() as patch:
        patch.setattr(halo, "_check_fits", lambda job, edges, name: seen.setdefault(whose in name, []).append(edges))
        partition(path, parts, tmp_path / "whole", engine=InProcess(), owner=owner, halo_depth=2)
    assert max(seen[True]) > max(seen[False])
    usable = halo.BASE_BYTES + max(seen[False]) * EDGE_BYTES
    sizes = replace(Sizes.within(0, 0, 0), usable_bytes=usable)
    monkeypatch.setattr(Sizes, "within", classmethod(lambda cls, *given: sizes))
    with pytest.raises(InputError, match=rf"halo_depth.* 2, .*{whose}.*worker-memory"):
        partition(path, parts, tmp_path / "out", engine=InProcess(), owner=owner, halo_depth=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("encode", ["hops=2", "degree,hops=1x7", "hops=3x100"])
@pytest.mark.parametrize("kind", ["typed", "directed", "listed once"])
def test_hop_tokens(tmp_path, kind, encode):
    if kind == "typed":
        source = typed()
    else:
        source = save_graph(tmp_path / "graph.npz", directed=kind == "directed")
        arrays = dict(np.load(source))
        np.savez(source, **arrays | {"x": np.random.default_rng(0).standard_normal((200, 40)).astype(np.float32)})
    manifest = partition(source, 3, tmp_path / "many", engine=InProcess(), encode=encode, seed=4)
    verify(tmp_path / "many", manifest)
    owner = owner_of(tmp_path / "many", manifest)
    assert manifest == partition(source, 3, tmp_path / "one", owner=owner, encode=encode, seed=4)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_features_beyond_float32(tmp_path):
    graph = from_edges(np.arange(50), np.arange(50)[::-1], 50, {"feat": np.full((50, 2), 1e300)})
    with pytest.raises(InputError, match="feat"):
        partition(graph, 2, tmp_path / "out", engine=InProcess(), encode="hops=2")
    assert not (tmp_path / "out").exists()
