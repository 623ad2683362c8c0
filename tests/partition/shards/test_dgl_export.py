"""The export of shards to DGL's partition directory."""

import json
import sys

import numpy as np
import pytest
from dgl_partition_cases import assert_same_shards, exported, original, original_edges, owners, refused

from dgl_gt.partition import partition
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.shards.dgl_export import export_dgl
from dgl_gt.partition.shards.dgl_import import import_dgl


@pytest.mark.parametrize("parts, empty", [(1, None), (2, None), (3, None), (3, 0), (3, 1), (3, 2)])
def test_what_dgl_loads_is_the_graph(dgl, rich_graph, tmp_path, parts, empty):
    graph = rich_graph(parts)
    src, dst = original_edges(graph)
    owner = owners(graph, parts, empty=empty)
    config = exported(graph, owner, parts, tmp_path)
    ids = [original(config, part) for part in range(parts)]
    nodes, edges = (np.concatenate(each) for each in zip(*ids))  # [DGL's id] -> the user's
    assert sorted(nodes) == list(range(graph.num_nodes)) and sorted(edges) == list(range(graph.num_edges))
    for part in range(parts):
        local, node_feats, edge_feats, book, name, node_types, edge_types = dgl.distributed.load_partition(
            str(config), part
        )
        assert (name, node_types, edge_types) == ("g", ["_N"], [("_N", "_E", "_N")])
        inner_node, inner_edge = local.ndata["inner_node"].numpy() == 1, local.edata["inner_edge"].numpy() == 1
        node, edge = nodes[local.ndata["_ID"].numpy()], edges[local.edata["_ID"].numpy()]
        local_src, local_dst = (node[ends.numpy()] for ends in local.edges(order="eid"))
        assert (local_src == src[edge]).all() and (local_dst == dst[edge]).all()
        assert (owner[node] == local.ndata["part_id"].numpy()).all() and (inner_node == (owner[node] == part)).all()
        assert (inner_edge == (owner[dst[edge]] == part)).all(), "an inner edge is one whose destination is inner"
        touching = np.flatnonzero((owner[src] == part) | (owner[dst] == part))
        assert sorted(edge) == touching.tolist()
        around = set(src[touching]) | set(dst[touching]) | set(np.flatnonzero(owner == part))
        assert set(node) == around and len(node) == len(around)
        assert len(ids[part][0]) == inner_node.sum() and inner_node[: inner_node.sum()].all(), "inner nodes come first"
        assert len(ids[part][1]) == inner_edge.sum() and inner_edge[: inner_edge.sum()].all()
        assert (ids[part][0] == nodes[book.partid2nids(part).numpy()]).all()
        assert (ids[part][1] == edges[book.partid2eids(part).numpy()]).all()
        assert (local.in_degrees().numpy()[inner_node] == np.bincount(dst, minlength=60)[node[inner_node]]).all()
        assert (local.out_degrees().numpy()[inner_node] == np.bincount(src, minlength=60)[node[inner_node]]).all()
        for feats, prefix, data, rows in (
            (node_feats, "_N/", graph.node_data, ids[part][0]),
            (edge_feats, "_N:_E:_N/", graph.edge_data, ids[part][1]),
        ):
            # DGL adds its default type to names without a slash only, so ours need theirs
            assert set(feats) == {prefix + key for key in data}
            for key, value in data.items():
                stored = feats[prefix + key].numpy()
                assert stored.dtype == (np.uint8 if value.dtype == bool else value.dtype)
                assert (stored == value[rows]).all()


def test_same_as_dgls_own_partition(dgl, rich_graph, tmp_path, monkeypatch):
    torch = sys.modules["torch"]
    graph = rich_graph(5)
    src, dst = original_edges(graph)
    owner = owners(graph, 3)
    ours = exported(graph, owner, 3, tmp_path)
    whole = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.num_nodes)
    for columns, data in ((whole.ndata, graph.node_data), (whole.edata, graph.edge_data)):
        columns.update({key: torch.from_numpy(value) for key, value in data.items()})
    # METIS or chance choose the parts there; let chance fall as ours did
    monkeypatch.setattr("dgl.distributed.partition.random_choice", lambda *_: torch.from_numpy(owner))
    nodes, edges = dgl.distributed.partition_graph(
        whole, "g", 3, str(tmp_path / "theirs"), num_hops=1, part_method="random", return_mapping=True
    )
    theirs = tmp_path / "theirs" / "g.json"
    books = [json.loads(path.read_text()) for path in (theirs, ours)]
    for key in {*books[0]} - {"part_method"}:
        entry = {**books[1][key]} if isinstance(books[1][key], dict) else books[1][key]
        if key.startswith("part-"):
            del entry["original_ids"]
        assert entry == books[0][key], key
    our_ids = [np.concatenate(each) for each in zip(*(original(ours, part) for part in range(3)))]
    for part in range(3):
        found = []
        for config, (node_of, edge_of) in ((theirs, (nodes.numpy(), edges.numpy())), (ours, our_ids)):
            local, node_feats, edge_feats, *_ = dgl.distributed.load_partition(str(config), part)
            node, edge = node_of[local.ndata["_ID"].numpy()], edge_of[local.edata["_ID"].numpy()]
            columns = {}
            for rows, named in (
                (node, local.ndata),
                (edge, local.edata),
                (node[local.ndata["inner_node"].numpy() == 1], node_feats),
                (edge[local.edata["inner_edge"].numpy() == 1], edge_feats),
            ):
                order = np.argsort(rows)
                columns |= {key: value.numpy()[order] for key, value in named.items() if key != "_ID"}
            ends = [node[each.numpy()][np.argsort(edge)] for each in local.edges(order="eid")]
            found.append({**columns, "node": np.sort(node), "edge": np.sort(edge), "src": ends[0], "dst": ends[1]})
        assert set(found[0]) == set(found[1])
        for key, value in found[0].items():
            assert (value == found[1][key]).all() and value.dtype == found[1][key].dtype, key


def test_no_data_and_no_edges(dgl, tmp_path):
    graph = from_edges([0, 1, 1], [1, 0, 1], 5)  # nodes 2 to 4, hence the last two parts, have no edges
    config = exported(graph, [0, 0, 1, 1, 2], 3, tmp_path)
    for part, edges in enumerate((3, 0, 0)):
        local, node_feats, edge_feats, *_ = dgl.distributed.load_partition(str(config), part)
        assert local.num_edges() == edges and node_feats == edge_feats == {}
    import_dgl(config, tmp_path / "back")
    assert_same_shards(tmp_path / "shards", tmp_path / "back")


def test_the_halo_is_one_hop_whatever_the_depth(dgl, rich_graph, tmp_path):
    graph = rich_graph(9)
    config = exported(graph, owners(graph, 3), 3, tmp_path)
    partition(graph, 3, tmp_path / "deep", owner=owners(graph, 3), halo_depth=2)
    deeper = export_dgl(tmp_path / "deep", tmp_path / "deep-dgl", graph_name="g")
    assert deeper.read_bytes() == config.read_bytes()
    for path in config.parent.glob("part*/*"):
        other = deeper.parent / path.parent.name / path.name
        if path.name != "graph.dgl":  # DGL writes it with the same content in different bytes
            assert other.read_bytes() == path.read_bytes(), path
            continue
        one, two = (dgl.load_graphs(str(each))[0][0] for each in (path, other))
        pairs = [*zip(one.edges(order="eid"), two.edges(order="eid"))]
        pairs += [(one.ndata[key], two.ndata[key]) for key in one.ndata] + [
            (one.edata[key], two.edata[key]) for key in one.edata
        ]
        assert all(a.tolist() == b.tolist() for a, b in pairs)


def test_export_refused(dgl, rich_graph, tmp_path, monkeypatch):
    graph = rich_graph(0)
    partition(graph, 2, tmp_path / "vertex", cut="vertex")
    refused(export_dgl, tmp_path / "vertex", tmp_path / "out", words=["vertex cut", "no format", "--cut edge"])
    refused(export_dgl, tmp_path / "absent", tmp_path / "out", words=["holds no shards"])
    shards = tmp_path / "shards"
    partition(graph, 2, shards)
    for name in ("", "a/b", "a b", "x" * 101, "manifest", "ä"):
        refused(export_dgl, shards, tmp_path / "out", graph_name=name, words=[repr(name), "graph_name"])
    refused(export_dgl, shards, shards, words=["exists", "--force"])
    refused(export_dgl, shards, shards, force=True, words=["it has no shards.json", "will not replace"])
    path = shards / "part1" / "edge_data.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(export_dgl, shards, tmp_path / "out", words=[str(path), "checksum"])
    path.write_bytes(whole)

    def full(*_):
        raise dgl.DGLError("[1:2:3] local_filesys.cc: FileStream.Write incomplete\nStack trace")

    with monkeypatch.context() as patch:
        patch.setattr(dgl, "save_graphs", full)
        refused(export_dgl, shards, tmp_path / "out", words=["cannot write", "Write incomplete", "free space"])
    refused(export_dgl, shards, tmp_path / "out\udcff", words=["UTF-8", "another directory"])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "dgl", None)
        refused(export_dgl, shards, tmp_path / "out", words=["needs dgl", "pip install"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["shards", "vertex"]


def test_force_stages_and_a_silent_stdout(dgl, rich_graph, tmp_path, capfd):
    graph, stages = rich_graph(0), []
    partition(graph, 2, tmp_path / "two parts")
    refused(export_dgl, tmp_path / "two parts", tmp_path / "dgl", words=["'two parts'", "graph_name"])
    (tmp_path / "two parts").rename(tmp_path / "two-parts")
    for force in (False, True):
        config = export_dgl(tmp_path / "two-parts", tmp_path / "dgl", force=force, progress=stages.append)
        assert config == tmp_path / "dgl" / "two-parts.json"
    assert stages[:3] == ["verifying checksums", "writing part 1 of 2", "writing part 2 of 2"]
    stages.clear()
    for force in (False, True):
        import_dgl(config, tmp_path / "back", force=force, progress=lambda stage: stages.append(stage))
    assert stages[:3] == ["reading the partition", "reading part 1 of 2", "reading part 2 of 2"]
    assert capfd.readouterr().out == ""
