"""Graphs in DGL's chunked format."""

import json
import os

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, load_graph

N, E = 7, 12
RNG = np.random.default_rng(0)
ENDS = RNG.integers(0, N, (E, 2))
NODE_DATA = {
    "feat": RNG.random((N, 3), np.float32),
    "label": RNG.integers(-1, 3, N),
    "train_mask": np.arange(N) == 1,
    "cube": RNG.random((N, 2, 2)),
}
NODE_DATA["label"][1] = 2
EDGE_DATA = {"weight": RNG.random((E, 1), np.float32), "kind": RNG.integers(0, 9, E)}
ENDINGS = {"csv": "txt", "numpy": "npy", "parquet": "parquet"}


def rows_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), int(np.prod(array.shape[1:])))


def write(path, kind: str, array: np.ndarray, delimiter: str = " ") -> None:
    """A chunk as DGL's tools write it: Parquet holds rows of columns, and their shape."""
    if kind == "numpy":
        np.save(path, array)
    elif kind == "csv":
        lines = (delimiter.join(map(repr, row)) for row in (1 * rows_of(array)).tolist())
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
        columns = rows_of(array)
        table = pyarrow.table({str(i): columns[:, i] for i in range(columns.shape[1])})
        parquet.write_table(table.replace_schema_metadata({"shape": str(array.shape)}), path)


def chunks(folder, kind: str, arrays: dict, counts: list[int], delimiter: str = " ") -> dict:
    described = {}
    for name, array in arrays.items():
        files = [f"{folder.name}/{name}-{i}.{ENDINGS[kind]}" for i in range(len(counts))]
        for file, piece in zip(files, np.split(array, np.cumsum(counts)[:-1])):
            write(folder.parent / file, kind, piece, delimiter)
        described[name] = {"format": {"name": kind, "delimiter": delimiter}, "data": files}
    return described


def chunked(
    folder, *, edges="csv", data="numpy", nodes=(3, 0, 4), edge_counts=(5, 7), delimiter=" ", types=("_N", "_E")
):
    """A graph in the chunked format; returns its metadata, which is written, too."""
    node_type, relation = types[0], f"{types[0]}:{types[1]}:{types[0]}"
    for name in ("edges", "nodes", "edge_data"):
        (folder / name).mkdir()
    metadata = {
        "graph_name": "tiny",
        "node_type": [node_type],
        "edge_type": [relation],
        "num_nodes_per_chunk": [list(nodes)],
        "num_edges_per_chunk": [list(edge_counts)],
        "edges": {relation: chunks(folder / "edges", edges, {"e": ENDS}, edge_counts, delimiter)["e"]},
        "node_data": {node_type: chunks(folder / "nodes", data, NODE_DATA, nodes)},
        "edge_data": {relation: chunks(folder / "edge_data", data, EDGE_DATA, edge_counts)},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return metadata


@pytest.mark.parametrize("edges", ENDINGS)
@pytest.mark.parametrize("data", ENDINGS)
@pytest.mark.parametrize("source", ["folder", "file"])
def test_a_graph_in_chunks(tmp_path, edges, data, source):
    chunked(tmp_path, edges=edges, data=data)
    graph = load_graph(tmp_path if source == "folder" else str(tmp_path / "metadata.json"))
    assert (np.stack(graph.edges(), 1) == ENDS).all() and graph.num_nodes == N and graph.name == "tiny"
    for found, given in ((graph.node_data, NODE_DATA), (graph.edge_data, EDGE_DATA)):
        assert {*found} == {*given}
        for key, value in given.items():
            assert (rows_of(found[key]) == rows_of(value)).all(), key
            assert data == "csv" or found[key].dtype == value.dtype and found[key].shape == value.shape, key
    assert graph.node_data["feat"].dtype == np.float32 and graph.node_data["label"].dtype == np.int64


@pytest.mark.parametrize("delimiter", [",", " ", "\t", "|"])
def test_delimiters_and_one_chunk(tmp_path, delimiter):
    chunked(tmp_path, delimiter=delimiter, nodes=(N,), edge_counts=(E,))
    assert (np.stack(load_graph(tmp_path).edges(), 1) == ENDS).all()


def test_what_graphstorm_writes(tmp_path):
    """Lists in one column, the rows of each file, the number of nodes of a type, and a name of the file of its own."""
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    metadata = chunked(tmp_path, edges="parquet", data="parquet", types=("movie", "likes"))
    del metadata["num_nodes_per_chunk"], metadata["num_edges_per_chunk"], metadata["graph_name"]
    metadata |= {"num_nodes_per_type": [N], "num_edges_per_type": [E], "raw_id_mappings": {}}
    metadata["edges"]["movie:likes:movie"]["row_counts"] = [5, 7]
    for i, rows in enumerate(np.split(NODE_DATA["feat"], [3, 3])):
        parquet.write_table(pyarrow.table({"feat": list(rows)}), tmp_path / f"nodes/feat-{i}.parquet")
    for i, rows in enumerate(np.split(EDGE_DATA["kind"], [5])):
        parquet.write_table(pyarrow.table({"kind": rows}), tmp_path / f"edge_data/kind-{i}.parquet")
    os.remove(tmp_path / "metadata.json")
    path = tmp_path / "updated_row_counts_metadata.json"
    path.write_text(json.dumps(metadata))
    graph = load_graph(path)
    assert (graph.node_data["feat"] == NODE_DATA["feat"]).all() and graph.node_type == "movie"
    assert (graph.edge_data["kind"] == EDGE_DATA["kind"]).all() and graph.name == tmp_path.name


@pytest.mark.needs_dgl
def test_types_are_those_of_dgl(tmp_path):
    import dgl

    graph = dgl.heterograph({("paper", "cites", "paper"): ([0, 1], [1, 2])})
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    assert load_graph(graph).node_type == load_graph(tmp_path / "g.bin").node_type == "paper"


def typed(folder, kind="numpy"):
    """The metadata of a chunked graph of two types and two relations, one without edges."""
    for name in ("edges", "nodes"):
        (folder / name).mkdir()
    rates = np.array([[0, 3], [2, 0], [2, 0]])
    none = {"format": {"name": kind}, "data": []}
    metadata = {
        "node_type": ["user", "item"],
        "edge_type": ["user:rates:item", "item:is:item"],
        "num_nodes_per_chunk": [[2, 1], [4]],
        "num_edges_per_chunk": [[1, 2], []],
        "edges": {"user:rates:item": chunks(folder / "edges", kind, {"e": rates}, [1, 2])["e"], "item:is:item": none},
        "node_data": {"item": chunks(folder / "nodes", kind, {"feat": np.eye(4, 2, dtype=np.float32)}, [4])},
        "edge_data": {"user:rates:item": chunks(folder / "edges", kind, {"stars": np.array([1, 2, 3])}, [1, 2])},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return metadata


@pytest.mark.parametrize("kind", ENDINGS)
def test_several_types(tmp_path, kind):
    typed(tmp_path, kind)
    graph = load_graph(tmp_path)
    assert dict(graph.schema.nodes) == {"user": 3, "item": 4} and [*graph.schema.edges.values()] == [3, 0]
    assert np.stack(graph.edges()).tolist() == [[0, 2, 2], [6, 3, 3]]
    assert graph.node_data["item/feat"].shape == (4, 2)
    assert graph.edge_data["user:rates:item".replace(":", ",") + "/stars"].tolist() == [1, 2, 3]


def test_an_id_of_another_type_is_refused(tmp_path):
    typed(tmp_path)
    np.save(tmp_path / "edges/e-1.npy", np.array([[3, 0], [2, 0]]))
    with pytest.raises(InputError, match=r"e-1.npy: edge 1 .* node 3, .* 0 to 2"):
        load_graph(tmp_path)


def test_an_assignment_has_a_file_for_each_type(tmp_path):
    typed(tmp_path)
    assert (
        main(
            [
                "partition",
                str(tmp_path),
                "--parts",
                "2",
                "--assignment-only",
                "--format",
                "dgl",
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 0
    )
    lines = {name: (tmp_path / "o" / f"{name}.txt").read_text().split() for name in ("user", "item")}
    assert [len(each) for each in lines.values()] == [3, 4] and {*sum(lines.values(), [])} == {"0", "1"}


def changed(metadata, keys, value):
    *inner, last = keys
    for key in inner:
        metadata = metadata[key]
    if value is None:
        del metadata[last]
    else:
        metadata[last] = value


RELATION = "_N:_E:_N"
FILES = ("edges", RELATION)


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (("node_type",), ["a", "b"], f"'{RELATION}'.* a, b"),
        (("edge_type",), [RELATION, "x"], "no files of 'x'"),
        (("node_type",), ["_N", "b"], "num_nodes_per_chunk lists 1 types.* _N, b"),
        (("node_type",), ["other"], f"'{RELATION}'.* other"),
        (("edge_type",), ["other"], f"edges is of '{RELATION}'"),
        (("edges",), {}, f"no files of '{RELATION}'"),
        (("edges",), None, "missing required field `edges`"),
        (("edges",), [], r"metadata.json is no metadata .*\$.edges"),
        ((*FILES, "format", "name"), "orc", "orc"),
        ((*FILES, "format", "delimiter"), "", 'delimiter ""'),
        ((*FILES, "data"), ["edges/absent.txt"], "absent.txt: no such file"),
        ((*FILES, "data"), ["edges"], "edges is a directory"),
        ((*FILES, "row_counts"), [5, 8], "e-1.txt has 7 rows, and should have 8"),
        (("num_edges_per_chunk",), [[5, 6]], "e-1.txt has 7 rows, and should have 6"),
        (("num_nodes_per_chunk",), None, "num_nodes_per_type"),
        (("num_nodes_per_chunk",), [[3, 0, 5]], "feat-2.npy has 4 rows, and should have 5"),
        (("num_nodes_per_chunk",), [[8]], "'feat' have 7 rows, not 8"),
        (("num_nodes_per_chunk",), [[5]], "names node [56], and metadata.json has nodes 0 to 4"),
        (("num_nodes_per_chunk",), [["7"]], "num_nodes_per_chunk"),
        (("node_data", "_N", "feat", "data", 2), "nodes/label-2.npy", "label-2.npy has rows of shape"),
    ],
)
def test_metadata_that_is_refused(tmp_path, keys, value, named, capfd):
    metadata = chunked(tmp_path)
    changed(metadata, keys, value)
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=named):
        load_graph(tmp_path)
    assert main(["partition", str(tmp_path), "--parts", "2", "--out", str(tmp_path / "out")]) == 2
    assert str(tmp_path) in capfd.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("metadata.json", b"", "metadata.json is no metadata"),
        ("metadata.json", b'{"node_type": ["a"', "metadata.json is no metadata"),
        ("metadata.json", b'{"node_type": ["\xff"]}', "metadata.json is no metadata"),
        ("metadata.json", b"[" * 100_000, "metadata.json is no metadata"),
        ("metadata.json", b'{"node_map": {}, "part-0": {}}', "dgl-gt import"),
        ("edges/e-1.txt", b"0 1\n2 x\n", "e-1.txt, line 2: '2 x'"),
        ("edges/e-1.txt", b"0 1\n2 1.5\n", "e-1.txt, line 2: '2 1.5' must hold whole numbers"),
        ("edges/e-1.txt", b"0 1\n2", "e-1.txt, line 2"),
        ("edges/e-1.txt", b"0\n1\n", "e-1.txt"),
        ("edges/e-1.txt", b"", "e-1.txt has 0 rows, and should have 7"),
        ("edges/e-1.txt", b"\xff\xfe0\x00", "e-1.txt is not UTF-8"),
        ("edges/e-1.txt", b"0 1\n" * 6 + b"0 7\n", "e-1.txt: edge 7 of this file names node 7"),
        ("edges/e-1.txt", b"0 1\n" * 6 + b"-1 0\n", "e-1.txt: edge 7 of this file names node -1"),
        ("nodes/feat-2.npy", b"", "feat-2.npy"),
        ("nodes/feat-2.npy", b"\x93NUMPY", "feat-2.npy"),
    ],
)
def test_files_that_are_refused(tmp_path, file, content, named):
    chunked(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=named):
        load_graph(tmp_path / "metadata.json")


def test_a_folder_of_tables_may_hold_metadata_of_another_kind(tmp_path):
    (tmp_path / "edge.csv").write_text("src,dst\n0,1\n1,2\n")
    (tmp_path / "metadata.json").write_text('{"rows": 2}')
    assert load_graph(tmp_path).num_edges == 2


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"a": ["x"] * 7, "b": [1] * 7}, "column 'a' holds string"),
        ({"a": [None, *[1] * 6], "b": [1] * 7}, "column 'a' lacks 1 values"),
        ({"a": [[1], *[[1, 2]] * 6]}, "column 'a' holds lists of several lengths"),
        ({"a": [[1, None], *[[1, 2]] * 6]}, "column 'a' lacks 1 values"),
        ({"a": [1] * 7}, "edges are two whole numbers"),
        ({"a": [1.0] * 7, "b": [1.0] * 7}, "edges are two whole numbers"),
        ({}, "no column"),
        (None, "e-1.parquet is no Parquet file"),
    ],
)
def test_parquet_that_is_refused(tmp_path, columns, named):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    chunked(tmp_path, edges="parquet")
    path = tmp_path / "edges/e-1.parquet"
    if columns is None:
        path.write_bytes(path.read_bytes()[:-20])
    else:
        parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(InputError, match=named):
        load_graph(tmp_path)
