"""The import of DGL's partition directory, our own exports and damaged ones included."""

import json
import shutil
import sys

import numpy as np
import pytest
from dgl_partition_cases import assert_same_shards, exported, original, original_edges, owners, refused
from safetensors.numpy import load_file, save_file

from dgl_gt.partition import partition
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.shards.dgl_export import export_dgl
from dgl_gt.partition.shards.dgl_import import import_dgl, records


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
    "hetero nodes": ({"node_map": HETERO}, ["node_map has a, b", "ntypes _N"]),
    "hetero edges": ({"etypes": {"a:x:b": 0, "a:y:b": 1}}, ["edge_map has _N:_E:_N", "etypes a:x:b, a:y:b"]),
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
    monkeypatch.setattr("dgl_gt.partition.shards.dgl_import.read_in_child", lambda module, path, library: records(path))
    monkeypatch.setattr("dgl_gt.partition.shards.dgl_import.bound_memory", lambda count_bytes: None)


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
