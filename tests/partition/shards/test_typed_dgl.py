"""DGL's partition directories of typed graphs: what DGL loads of ours, what it writes itself, and the way back."""

import json
import sys

import numpy as np
import pytest
from dgl_partition_cases import assert_same_shards, original, refused
from safetensors.numpy import load_file, save_file

from dgl_gt.partition import encode, from_relations, partition, read_manifest
from dgl_gt.partition.shards.dgl_export import export_dgl
from dgl_gt.partition.shards.dgl_import import import_dgl

pytestmark = pytest.mark.needs_dgl
COUNTS = {"author": 20, "paper": 30, "topic": 4}  # in the order of names, as DGL puts them
PARTS = 3


@pytest.fixture
def dgl():
    return pytest.importorskip("dgl")


def typed(seed=0, none=True):
    """A typed graph with self-loops, parallel edges, masks and, with ``none``, a relation without edges."""
    rng = np.random.default_rng(seed)
    sizes = {("author", "writes", "paper"): 70, ("paper", "cites", "paper"): 60, ("paper", "on", "topic"): 25}
    sizes |= {("topic", "of", "author"): 0} if none else {}
    edges = {key: [rng.integers(0, COUNTS[end], count) for end in key[::2]] for key, count in sizes.items()}
    masks = {f"{name}_mask": np.arange(30) % 3 == number for number, name in enumerate(("train", "val", "test"))}
    nodes = {
        "paper": {"feat": rng.random((30, 3)), "label": rng.integers(0, 2, 30), **masks},
        "topic": {"x": np.arange(4)},
    }
    return from_relations(
        COUNTS, edges, nodes, {("paper", "cites", "paper"): {"w": rng.random((60, 2)), "flag": np.arange(60) % 2 == 0}}
    )


def owners(seed=1, parts=PARTS):
    owner = np.random.default_rng(seed).integers(0, parts, 54)
    owner[50:] = 1  # no other part has topics
    return owner


def exported(graph, folder, owner=None):
    partition(graph, PARTS, folder / "shards", owner=owners() if owner is None else owner)
    return export_dgl(folder / "shards", folder / "dgl", graph_name="g")


def test_what_dgl_loads_is_the_graph(dgl, tmp_path, monkeypatch):
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")  # DGL compares its maps with the graph
    graph, owner = typed(), owners()
    config = exported(graph, tmp_path)
    nodes, edges = (np.concatenate(each) for each in zip(*(original(config, part) for part in range(PARTS))))
    src, dst = graph.edges()
    schema = graph.schema
    for part in range(PARTS):
        local, node_feats, edge_feats, book, _, node_types, edge_types = dgl.distributed.load_partition(
            str(config), part
        )
        assert node_types == [*COUNTS] and edge_types == [tuple(each) for each in schema.edges]
        node, edge = nodes[local.ndata["_ID"].numpy()], edges[local.edata["_ID"].numpy()]
        local_src, local_dst = (node[ends.numpy()] for ends in local.edges(order="eid"))
        assert (local_src == src[edge]).all() and (local_dst == dst[edge]).all()
        assert (local.ndata["_TYPE"].numpy() == schema.type_of(node)).all()
        assert (local.edata["_TYPE"].numpy() == schema.relation_of(edge)).all()
        assert (local.ndata["inner_node"].numpy() == (owner[node] == part)).all()
        for number, name in enumerate(COUNTS):
            own = book.partid2nids(part, name).numpy()
            wanted = [each for each in node[: int(local.ndata["inner_node"].sum())] if schema.type_of(each) == number]
            assert len(own) == len(wanted)
            for key, value in graph.node_data.items():
                if key.startswith(f"{name}/"):
                    rows = np.array(wanted, int) - schema.node_ptr[number]
                    assert np.array_equal(node_feats[key].numpy(), value[rows].astype(node_feats[key].numpy().dtype))
        cites = edges[book.partid2eids(part).numpy()]
        cites = cites[schema.relation_of(cites) == 1] - schema.edge_ptr[1]
        assert np.array_equal(edge_feats["paper:cites:paper/w"].numpy(), graph.edge_data["paper,cites,paper/w"][cites])


@pytest.mark.parametrize("part_of_topics", [1, 2])
def test_round_trip(dgl, tmp_path, part_of_topics):
    owner = owners()
    owner[50:] = part_of_topics
    config = exported(typed(), tmp_path, owner)
    import_dgl(config, tmp_path / "back")
    assert_same_shards(tmp_path / "shards", tmp_path / "back")


def test_encodings_become_data_of_each_type(dgl, tmp_path):
    graph = encode(typed(), "degree")
    config = exported(graph, tmp_path)
    manifest = import_dgl(config, tmp_path / "back")
    assert {f"{each}/degree" for each in COUNTS} <= {*manifest["node_data"]}


def test_same_as_dgls_own_partition(dgl, tmp_path, monkeypatch):
    torch = sys.modules["torch"]
    graph, owner = typed(none=False), np.arange(54) % PARTS  # DGL wants each type in each part
    ours = exported(graph, tmp_path, owner)
    monkeypatch.setattr("dgl.distributed.partition.random_choice", lambda *_: torch.from_numpy(owner))
    dgl.distributed.partition_graph(
        graph.to_dgl().long(), "g", PARTS, str(tmp_path / "theirs"), num_hops=1, part_method="random"
    )
    theirs = tmp_path / "theirs" / "g.json"
    books = [json.loads(path.read_text()) for path in (theirs, ours)]
    for key in ("node_map", "edge_map", "ntypes", "etypes", "num_nodes", "num_edges"):
        assert books[0][key] == books[1][key], key
    for part in range(PARTS):
        loaded = [dgl.distributed.load_partition(str(path), part) for path in (theirs, ours)]
        for kind in ("ndata", "edata"):
            columns = [getattr(local, kind) for local, *_ in loaded]
            assert {*columns[0]} == {*columns[1]}
            assert all(
                columns[0][key].dtype == columns[1][key].dtype and len(columns[0][key]) == len(columns[1][key])
                for key in columns[0]
            )
        for number in (1, 2):
            shapes = [{key: (value.dtype, value.shape) for key, value in each[number].items()} for each in loaded]
            assert shapes[0] == shapes[1]
    manifest = import_dgl(theirs, tmp_path / "imported")
    assert manifest["schema"] == read_manifest(tmp_path / "shards")["schema"]
    assert [part["owned"] for part in manifest["per_part"]] == [18, 18, 18]
    assert manifest["node_data"]["paper/train_mask"]["dtype"] == "bool"
    for part, ((_, papers, _), *_) in enumerate(manifest["typed"]["nodes"]):
        rows = [
            load_file(tmp_path / name / f"part{part}/node_data.safetensors")["paper/feat"][:papers]
            for name in ("shards", "imported")
        ]
        assert np.array_equal(*(each[np.lexsort(each.T)] for each in rows)), "a part has the same papers"


def test_directories_at_odds(dgl, tmp_path):
    config = exported(typed(), tmp_path)
    path = config.parent / "part0" / "original_ids.safetensors"
    good = load_file(path)
    swapped = good["node_ids"].copy()
    swapped[[0, -1]] = swapped[[-1, 0]]
    save_file({**good, "node_ids": swapped}, path)
    refused(import_dgl, config, tmp_path / "out", words=["original_ids", "node", "type"])
    save_file(good, path)
    book = json.loads(config.read_text())
    renamed = json.dumps(book).replace("author:writes:paper", "topic:writes:paper")
    config.write_text(renamed)
    refused(import_dgl, config, tmp_path / "out", words=["topic,writes,paper", "author to paper"])
    config.write_text(json.dumps(book).replace("author:writes:paper", "writes"))
    refused(import_dgl, config, tmp_path / "out", words=["'writes'", "ends"])
    partition(
        from_relations({"a": 2, "b:c": 2}, {("a", "x", "b:c"): ([0], [1]), ("a", "y", "a"): ([], [])}),
        1,
        tmp_path / "colon",
    )
    refused(export_dgl, tmp_path / "colon", tmp_path / "out", words=["'b:c'"])
