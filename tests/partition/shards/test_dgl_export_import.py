"""DGL's partition directory, both ways."""

import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from partition import partition, read_manifest, verify
from partition.errors import InputError
from partition.graph import from_edges
from partition.shards.dgl_export import export_dgl
from partition.shards.dgl_import import import_dgl, records


@pytest.fixture
def dgl(monkeypatch):
    dgl = pytest.importorskip("dgl")
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")  # load_partition then checks every inner id against its partition book
    return dgl


@pytest.fixture(scope="session")
def rich_graph():
    """A function: seed -> an awkward graph with data of many types."""

    def make(seed, nodes=60, edges=300):
        rng = np.random.default_rng(seed)
        src, dst = rng.integers(0, nodes - 6, (2, edges))  # the last six are isolated
        src[:40], dst[40:80] = 3, 7  # hubs
        src[80:90], dst[80:90] = src[90:100], dst[90:100]  # parallel edges
        dst[100:105] = src[100:105]  # self-loops
        split = rng.integers(0, 2, nodes)
        node_data = {
            "feat": rng.standard_normal((nodes, 5)).astype(np.float32),
            "wide/name": rng.standard_normal((nodes, 2, 3)),
            "label": rng.integers(-1, 3, nodes),
            "small_label": rng.integers(0, 9, nodes).astype(np.int16),
            "half": rng.standard_normal(nodes).astype(np.float16),
            "bits": split.astype(np.uint8),
            "flag": rng.random((nodes, 2)) < 0.5,
            "val_mask": split == 0,
            "test_mask": split == 1,
        }
        edge_data = {"weight": rng.standard_normal((edges, 4)), "kind": rng.integers(0, 5, edges), "on": src < dst}
        return from_edges(src, dst, nodes, node_data, edge_data, name=f"rich-{seed}")

    return make


def original_edges(graph):
    """Sources and destinations in the user's edge order, (2, E)."""
    ends = np.empty((2, graph.num_edges), np.int64)
    ends[:, graph.edge_ids] = graph.indices, graph.destinations()
    return ends


def owners(graph, parts, seed=0, empty=None):
    owner = np.random.default_rng(seed).integers(0, parts, graph.num_nodes)
    owner[owner == empty] = parts - 1 if empty != parts - 1 else 0
    return owner


def exported(graph, owner, parts, tmp_path, **options):
    """Shards in ``tmp_path / "shards"`` and their export; the json of the latter."""
    partition(graph, parts, tmp_path / "shards", owner=owner, **options)
    return export_dgl(tmp_path / "shards", tmp_path / "dgl", graph_name="g")


def original(config, part):
    ids = load_file(config.parent / f"part{part}" / "original_ids.safetensors")
    return ids["node_ids"], ids["edge_ids"]


def assert_same_shards(first, second):
    one, other = read_manifest(first), read_manifest(second)
    assert one["files"] == other["files"]  # sizes and checksums
    assert {**one, "source": 0, "checksum": 0} == {**other, "source": 0, "checksum": 0}
    verify(second, other)


def refused(function, *arguments, words, **options):
    with pytest.raises(InputError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


# ---- export ------------------------------------------------------------------------------------------------------


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
        import_dgl(config, tmp_path / "back", force=force, progress=lambda stage, *_: stages.append(stage))
    assert stages[:3] == ["reading the partition", "reading part 1 of 2", "reading part 2 of 2"]
    assert capfd.readouterr().out == ""


# ---- import ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts, empty", [(1, None), (2, None), (4, 2)])
def test_there_and_back(dgl, rich_graph, tmp_path, parts, empty):
    graph = rich_graph(parts, nodes=2500, edges=9000)  # several clusters a part, so that the order within it matters
    config = exported(graph, owners(graph, parts, empty=empty), parts, tmp_path, seed=7)
    manifest = import_dgl(config, tmp_path / "back", seed=7)
    assert manifest["source"] == "g.json" and manifest["parts"] == parts
    assert_same_shards(tmp_path / "shards", tmp_path / "back")


def test_there_and_back_with_metis_and_labels_of_another_type(dgl, tmp_path):
    rng = np.random.default_rng(0)
    graph = from_edges(*rng.integers(0, 90, (2, 400)), 90, {"label": rng.integers(0, 3, 90).astype(np.int32)})
    partition(graph, 3, tmp_path / "shards")
    import_dgl(export_dgl(tmp_path / "shards", tmp_path / "dgl"), tmp_path / "back")
    assert_same_shards(tmp_path / "shards", tmp_path / "back")


@pytest.mark.parametrize("parts, hops", [(1, 1), (2, 1), (3, 2)])
def test_dgls_own_partition(dgl, rich_graph, tmp_path, parts, hops):
    torch = sys.modules["torch"]
    graph = rich_graph(parts)
    src, dst = original_edges(graph)
    whole = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.num_nodes)
    for columns, data in ((whole.ndata, graph.node_data), (whole.edata, graph.edge_data)):
        columns.update({key: torch.from_numpy(value) for key, value in data.items()})
    whole.ndata["label"] = whole.ndata["label"].float().unsqueeze(1)
    nodes, edges = dgl.distributed.partition_graph(
        whole, "own", parts, str(tmp_path / "own"), num_hops=hops, part_method="metis", return_mapping=True
    )
    nodes, edges = nodes.numpy(), edges.numpy()
    manifest = import_dgl(tmp_path / "own" / "own.json", tmp_path / "shards")
    book = json.loads((tmp_path / "own" / "own.json").read_text())
    owned = np.array(manifest["ptr"])
    assert np.stack([owned[:-1], owned[1:]], 1).tolist() == book["node_map"]["_N"]
    seen = []
    for part in range(parts):
        structure, node_data, edge_data = (
            load_file(tmp_path / "shards" / f"part{part}" / f"{kind}.safetensors")
            for kind in ("structure", "node_data", "edge_data")
        )
        held, edge = nodes[structure["node_ids"]], edges[structure["edge_ids"]]
        count = len(structure["indptr"]) - 1
        assert sorted(structure["node_ids"][:count]) == list(range(owned[part], owned[part + 1]))
        assert (src[edge] == held[structure["indices"]]).all()
        assert (dst[edge] == held[np.repeat(np.arange(count), np.diff(structure["indptr"]))]).all()
        seen.extend(edge)
        for data, columns, ids in ((node_data, graph.node_data, held), (edge_data, graph.edge_data, edge)):
            assert set(data) == set(columns)
            for key, value in columns.items():
                assert (data[key] == value[ids]).all(), key
                is_known = value.dtype != bool or key.endswith("_mask")
                assert data[key].dtype == (value.dtype if is_known else np.uint8), key
    assert sorted(seen) == list(range(graph.num_edges))


@pytest.fixture(scope="module")
def exported_once(rich_graph, tmp_path_factory):
    pytest.importorskip("dgl")
    graph = rich_graph(0)
    return exported(graph, owners(graph, 2), 2, tmp_path_factory.mktemp("two parts"))


@pytest.fixture
def two_parts(dgl, exported_once, tmp_path):
    """The json of an export of two parts, which a test may damage."""
    shutil.copytree(exported_once.parents[1], tmp_path, dirs_exist_ok=True)
    return tmp_path / exported_once.relative_to(exported_once.parents[1])


def with_change(config, **changes):
    """Change the json; ``None`` removes a key."""
    book = {**json.loads(config.read_text()), **changes}
    config.write_text(json.dumps({key: value for key, value in book.items() if value is not None}))


def test_older_spellings(two_parts, tmp_path):
    """Maps of ends alone, no types, edge types and data names without their ends."""
    import dgl

    book = json.loads(two_parts.read_text())
    ends = {kind: [end for _, end in next(iter(book[f"{kind}_map"].values()))] for kind in ("node", "edge")}
    with_change(two_parts, node_map=ends["node"], edge_map={"_E": ends["edge"]}, ntypes=None, etypes=None)
    for kind, name in (("node", "{}"), ("edge", "_E/{}")):
        for path in two_parts.parent.glob(f"part*/{kind}_feat.dgl"):
            data = {key.split("/", 1)[1]: value for key, value in dgl.data.utils.load_tensors(str(path)).items()}
            data.pop("wide/name", None)
            dgl.data.utils.save_tensors(str(path), {name.format(key): value for key, value in data.items()})
    import_dgl(two_parts, tmp_path / "back")
    for part in range(2):
        for name in ("structure", "edge_data"):
            one, other = (tmp_path / f / f"part{part}" / f"{name}.safetensors" for f in ("shards", "back"))
            assert one.read_bytes() == other.read_bytes()


HETERO = {"a": [[0, 30], [30, 60]], "b": [[30, 30], [60, 60]]}
MISSING = {"node_feats": "part0/node_feat.dgl", "edge_feats": "part0/edge_feat.dgl", "part_graph": "part0/x.dgl"}
BOOKS = {
    "hetero nodes": ({"node_map": HETERO}, ["types _N, a, b", "homogeneous"]),
    "hetero edges": ({"etypes": {"a:x:b": 0, "a:y:b": 1}}, ["a:x:b, a:y:b", "homogeneous"]),
    "map in a file": ({"node_map": "node_map.npy"}, ["node_map.npy", "ranges", "reshuffle"]),
    "typed map in a file": ({"edge_map": {"_N:_E:_N": "e.npy"}}, ["e.npy", "ranges"]),
    "gap": ({"node_map": [[0, 20], [30, 60]]}, ["node_map", "0..60", "2 ranges"]),
    "overlap": ({"node_map": [[0, 40], [30, 60]]}, ["node_map"]),
    "backwards": ({"node_map": [[0, 70], [70, 60]]}, ["node_map"]),
    "short": ({"node_map": [[0, 30], [30, 59]]}, ["node_map", "0..60"]),
    "too few": ({"node_map": [[0, 60]]}, ["node_map", "2 ranges"]),
    "no numbers": ({"node_map": [["0", 30], [30, 60]]}, ["node_map", "numbers"]),
    "fractions": ({"num_parts": 2.0}, ["num_parts", "numbers"]),
    "negative": ({"num_edges": -1}, ["numbers"]),
    "no parts": ({"num_parts": 0, "node_map": [], "num_nodes": 0}, ["node_map", "0 ranges"]),
    "empty pairs": ({"node_map": [[], []]}, ["damaged"]),
    "no map": ({"edge_map": None}, ["'edge_map'", "damaged"]),
    "no part": ({"part-1": None}, ["'part-1'", "damaged"]),
    "no names": ({"part-1": []}, ["damaged"]),
    "no file": ({"part-1": MISSING}, ["part0/x.dgl", "no such file"]),
    "absolute": ({"part-0": {**MISSING, "part_graph": "/etc/passwd"}}, ["'/etc/passwd'", "outside"]),
    "upwards": ({"part-0": {**MISSING, "part_graph": "part0/../../g"}}, ["'part0/../../g'", "outside"]),
    "a long name": ({"part-0": {**MISSING, "part_graph": "a" * 300}}, ["no such file"]),
    "a zero byte": ({"part-0": {**MISSING, "part_graph": "a\0"}}, ["no such file"]),
    "ids in one part": ({"part-1": {**MISSING, "part_graph": "part1/graph.dgl"}}, ["original_ids", "all"]),
}


@pytest.mark.parametrize("change, words", BOOKS.values(), ids=BOOKS)
def test_json_at_odds(two_parts, tmp_path, change, words):
    with_change(two_parts, **change)
    refused(import_dgl, two_parts, tmp_path / "out", words=[str(two_parts.parent), *words])
    assert not (tmp_path / "out").exists()


def test_no_json(two_parts, tmp_path, monkeypatch):
    refused(import_dgl, tmp_path / "no.json", tmp_path / "out", words=["no.json", "no such file"])
    refused(import_dgl, tmp_path, tmp_path / "out", words=["is a directory"])
    refused(import_dgl, two_parts, tmp_path / "out", seed=-1, words=["seed is -1"])
    refused(import_dgl, two_parts, tmp_path / "shards", words=["exists"])
    with monkeypatch.context() as patch:
        (tmp_path / "dgl.py").write_text("raise ImportError")
        patch.setenv("PYTHONPATH", str(tmp_path))
        refused(import_dgl, two_parts, tmp_path / "out", words=["needs dgl", "pip install"])
    for text in (b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100000, b'{"num_parts": NaN}'):
        two_parts.write_bytes(text)
        refused(import_dgl, two_parts, tmp_path / "out", words=["g.json", "damaged"])


@pytest.mark.parametrize(
    "file, damage",
    [
        ("node_feat.dgl", lambda whole: whole[:30]),  # DGL 1.1.3 dies of this one
        ("edge_feat.dgl", lambda whole: whole[: len(whole) // 2]),
        ("graph.dgl", lambda whole: whole[: len(whole) // 2]),
        ("graph.dgl", lambda _: b"rubbish" * 99),
        ("original_ids.safetensors", lambda whole: whole[:-1]),
    ],
)
def test_damaged_files(two_parts, tmp_path, file, damage, capfd):
    path = two_parts.parent / "part1" / file
    path.write_bytes(damage(path.read_bytes()))
    refused(import_dgl, two_parts, tmp_path / "out", words=["part", "1", "damaged", "again"])
    assert not (tmp_path / "out").exists()
    assert capfd.readouterr().out == ""


def resaved(dgl, path, change):
    """Change the dict of tensors in a file."""
    tensors = dgl.data.utils.load_tensors(str(path))
    change(tensors)
    dgl.data.utils.save_tensors(str(path), tensors)


def without_child(monkeypatch):
    """Read in this process: the child is what the damaged files test; elsewhere it would only take its time."""
    monkeypatch.setattr("partition.shards.dgl_import.read_in_child", lambda module, path, library: records(path))
    monkeypatch.setattr("partition.shards.dgl_import.bound_memory", lambda count_bytes: None)


def test_data_at_odds(dgl, two_parts, tmp_path, monkeypatch):
    torch = sys.modules["torch"]
    without_child(monkeypatch)
    path = two_parts.parent / "part1" / "node_feat.dgl"
    whole = path.read_bytes()
    rows = len(original(two_parts, 1)[0])
    nan = torch.full((rows, 5), float("nan"))
    cases = [
        ({"_N/feat": torch.ones(rows + 1, 5)}, ["'_N/feat'", f"({rows + 1}, 5)", f"{rows} inner rows"]),
        ({"_N/feat": torch.ones(rows, 5, dtype=torch.bfloat16)}, ["'_N/feat'", "bfloat16", ".float()"]),
        ({"_N/feat": torch.ones(rows, 4)}, ["'feat'", "part 0"]),
        ({"_N/feat": torch.ones(rows, 5, dtype=torch.float64)}, ["'feat'", "part 0"]),
        ({"_N/more": torch.ones(rows)}, ["'more'", "part 0"]),
        ({"user/more": torch.ones(rows)}, ["'user/more'", "'user'"]),
        ({"_N/feat": nan}, ["'feat'", "NaN"]),
    ]
    for change, words in cases:
        resaved(dgl, path, lambda tensors, change=change: tensors.update(change))
        refused(import_dgl, two_parts, tmp_path / "out", words=words)
        path.write_bytes(whole)


def test_graphs_at_odds(dgl, two_parts, tmp_path, monkeypatch):
    without_child(monkeypatch)
    path = two_parts.parent / "part0" / "graph.dgl"
    graph = dgl.load_graphs(str(path))[0][0]
    float_ids, other, far, bare = (graph.clone() for _ in range(4))
    float_ids.edata["_ID"] = float_ids.edata["_ID"].double()
    other.edata["inner_edge"] = graph.edata["inner_edge"] * 0
    far.ndata["_ID"] = graph.ndata["_ID"] + 60 * (1 - graph.ndata["inner_node"].long())
    del bare.ndata["inner_node"]
    hetero = dgl.heterograph({("a", "to", "b"): ([0], [0])})
    for graphs, words in (
        ([float_ids], ["'_ID'"]),
        ([other], ["inner edges", "g.json"]),
        ([far], ["outside 0..59"]),
        ([bare], ["'inner_node'"]),
        ([hetero], ["one homogeneous graph"]),
        ([graph, graph], ["one homogeneous graph"]),
    ):
        dgl.save_graphs(str(path), graphs)
        refused(import_dgl, two_parts, tmp_path / "out", words=[str(path), *words])


def test_original_ids_at_odds(dgl, two_parts, tmp_path, monkeypatch):
    without_child(monkeypatch)
    path = two_parts.parent / "part0" / "original_ids.safetensors"
    good = load_file(path)
    for change, words in (
        ({"node_ids": good["node_ids"][1:]}, ["node_ids", f"not int64 ({len(good['node_ids'])},)"]),
        ({"edge_ids": good["edge_ids"].astype(np.float64)}, ["edge_ids", "float64"]),
        ({"node_ids": np.zeros_like(good["node_ids"])}, ["node_ids", "every node exactly once"]),
        ({"edge_ids": good["edge_ids"] + 10**6}, ["edge_ids", "every edge exactly once"]),
    ):
        save_file({**good, **change}, path)
        refused(import_dgl, two_parts, tmp_path / "out", words=words)
