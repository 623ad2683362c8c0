"""Hostile sources, drawn from a seed: files, folders, matrices, graphs and names, most of them damaged or absurd."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np

NUMBERS = (
    *("-1", "0", "1", "2", "7", "2147483647", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551616", "1" + "0" * 30, "9" * 5000, "1e3", "1e400", "-1e-400", "nan", "inf", "0.1", "1.0", "1_0"),
)
WORDS = (
    *("", " ", "x", '"', '""', '"a', "'", "\\", "\x1b[31mred\x1b[0m", "\x00", "\x85", "\u2028", "é", "１", "٣", "0x10"),
    *("#", "%", ",", ";", "\t", "\r", "\n", "\r\n", "\ufeff", "True", "None", "a" * 3000, "label", "src", "train_mask"),
)
DTYPES = (
    *("?", "i1", "u1", "<i4", ">i4", "<i8", ">i8", "u8", "f2", "<f4", ">f8", "f8", "g", "c8", "S3", "S0", "U2", "U0"),
    *("M8[s]", "m8[s]", "V4", "V0", [("a", "<i4")], [("train_mask", "?"), ("b", "f8", (2,))], "O"),
)
SHAPES = (
    *((), (0,), (1,), (2,), (3,), (6,), (2, 0), (2, 5), (2, 6), (5, 2), (6, 1), (6, 0), (6, 3), (1, 1, 1), (0, 2)),
    *((6, 2, 2), (2, 2, 6), (6, 10**6, 0)),
)
CLAIMS = ((2, 10**12), (10**18,), (2**63,), (2, 2**62), (-1, 5), (2, -1), (True, 5), (2, True), (1.0,), (2, 10**9, 0))
KEYS = (
    *("edge_index", "num_nodes", "directed", "name", "x", "feat", "y", "label", "train_mask", "val_mask", "test_mask"),
    *("train_idx", "val_idx", "test_idx", "idx_train"),
    *("edges", "node_features", "node_labels", "train_masks", "adj_indptr", "adj_indices", "adj_data", "labels"),
    *(
        "node_names",
        "node_data_z",
        "attr_matrix",
        "x_indptr",
        "x_indices",
        "x_data",
        "x_shape",
        "edge_data_w",
        "edge_data_",
        "edge_data_\x1b[31m",
        "other",
        "é",
    ),
)


def numpy_arrays(rng: random.Random) -> dict[str, np.ndarray]:
    """Return the arrays of a valid .npz of 6 nodes and 5 edges."""
    arrays = {
        "edge_index": np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]),
        "num_nodes": np.array(6),
        "y": np.arange(6),
        "train_mask": np.arange(6) < 3,
        "test_mask": np.arange(6) > 3,
        "edge_data_w": np.ones(5),
        "name": np.array("six"),
    }
    if rng.random() < 0.5:
        arrays["directed"] = np.array(False)
    if rng.random() < 0.5:
        return arrays | {"x": np.eye(6, dtype=np.float32)}
    sparse = {"x_indptr": np.arange(7), "x_indices": np.zeros(6, int), "x_data": np.ones(6)}
    return arrays | sparse | {"x_shape": np.array([6, 2])}


def some_array(rng: random.Random) -> np.ndarray:
    dtype, shape = np.dtype(rng.choice(DTYPES)), rng.choice(SHAPES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = np.zeros(shape, dtype)
        if dtype.kind in "iuf" and values.size:
            values = np.array([rng.choice((0, 1, 2, 5, 6, -1, 127, np.nan)) for _ in range(values.size)], "f8")
            values = values.reshape(shape).astype(dtype)
        if dtype.kind in "iuf" and values.size and rng.random() < 0.2:
            values.flat[rng.randrange(values.size)] = rng.choice(
                (0, np.iinfo(dtype).max if dtype.kind in "iu" else np.inf)
            )
    return values


def npy(rng: random.Random, array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    if rng.random() < 0.15:  # a header that claims more than follows
        header = {"descr": np.dtype(rng.choice(DTYPES[:-1])).str, "fortran_order": rng.random() < 0.5}
        np.lib.format.write_array_header_1_0(stream, header | {"shape": rng.choice(CLAIMS + SHAPES)})
        stream.write(rng.randbytes(rng.choice((0, 8, 80))))
    else:
        np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def archive(rng: random.Random, arrays: dict[str, np.ndarray], path: Path) -> None:
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        key = rng.choice(KEYS)
        if rng.random() < 0.3:
            arrays.pop(key, None)
        else:
            arrays[key] = some_array(rng)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as file:
        warnings.simplefilter("ignore")  # of names that stand twice
        for key, array in arrays.items():
            method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
            file.writestr(zipfile.ZipInfo(f"{key}.npy"), npy(rng, array), method)


def edge_list(rng: random.Random, mark: str) -> str:
    rows = [[str(i), str(i + 1), str(i / 4), str(10**18 + i), "text"] for i in range(5)]
    width = rng.choice((2, 3, 5))
    rows = [row[:width] for row in rows]
    if rng.random() < 0.5:
        rows.insert(0, ["src", "dst", "w", "t", "kind"][:width])
    return table(rng, rows, mark)


def node_table(rng: random.Random, mark: str) -> str:
    names = ["node", "label", "train_mask", "a", "b"]
    return table(rng, [names, *([str(i), str(i % 2), str(i % 2), "0.5", "7"] for i in range(6))], mark)


def metis(rng: random.Random, mark: str) -> str:
    rows = [["4", "3", *rng.choice(([], ["1"], ["11", "1"], ["011", "2"]))], ["2", "3"], ["1"], ["1", "4"], ["3"]]
    return table(rng, rows, " ")


def table(rng: random.Random, rows: list[list[str]], mark: str) -> str:
    """Return rows as text, with some cells, lines and separators replaced."""
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        row = rng.choice(rows)
        what = rng.random()
        if what < 0.6 and row:
            row[rng.randrange(len(row))] = rng.choice(NUMBERS + WORDS)
        elif what < 0.8:
            row.insert(rng.randrange(len(row) + 1), rng.choice(NUMBERS + WORDS))
        elif row:
            row.pop()
    end = rng.choice(("\n", "\n", "\n", "\r\n", "\r", "\n\n", ""))
    return end.join(mark.join(row) for row in rows) + rng.choice((end, ""))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return the data with some bytes changed, removed, repeated or inserted."""
    data = bytearray(data)
    for _ in range(rng.choice((0, 0, 1, 1, 3, 10))):
        at = rng.randrange(len(data) + 1)
        what = rng.random()
        if what < 0.5 and at < len(data):
            data[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif what < 0.6:
            del data[at:]
        elif what < 0.7:
            del data[at : at + rng.choice((1, 4, 8, 50))]
        elif what < 0.8:
            data[at:at] = data[at : at + rng.choice((1, 8, 100))]
        elif what < 0.9:
            data[at : at + 8] = rng.choice((0, 1, 2**31, 2**40, 2**62, 2**64 - 1)).to_bytes(8, "little")
        else:
            data[at:at] = rng.randbytes(rng.choice((1, 8, 100)))
    return bytes(data)


def matrix_market(rng: random.Random, mark: str) -> str:
    rows = [["%%MatrixMarket", "matrix", "coordinate", "real", rng.choice(("general", "symmetric"))], ["4", "4", "3"]]
    return table(rng, [*rows, ["2", "1", "0.5"], ["3", "1", "1"], ["4", "4", "1"]], mark)


def graph_text(rng: random.Random, suffix: str) -> str:
    """Return a graph of named nodes as networkx writes it."""
    import networkx

    graph = networkx.DiGraph([("a", "b", {"weight": 0.5}), ("b", "c", {"weight": 2.0})])
    graph.nodes["a"]["label"] = "x"
    if suffix == ".json":
        return json.dumps(networkx.node_link_data(graph, edges=rng.choice(("links", "edges"))))
    stream = io.BytesIO()
    getattr(networkx, "write_pajek" if suffix == ".net" else f"write_{suffix[1:]}")(graph, stream)
    return stream.getvalue().decode()


TEXTS = {".csv": (edge_list, ","), ".tsv": (edge_list, "\t"), ".txt": (edge_list, " "), ".graph": (metis, " ")}
TEXTS |= {".mtx": (matrix_market, " "), ".edges": (matrix_market, " ")}
NETWORKX = (".graphml", ".gml", ".gexf", ".net", ".json")


def text_file(rng: random.Random, folder: Path, kinds: dict) -> Path:
    suffix = rng.choice(list(kinds))
    make, mark = kinds[suffix]
    data = make(rng, mark).encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16")), "replace")
    if rng.random() < 0.3:
        data = damaged(rng, data)
    if rng.random() < 0.2 and suffix != ".mtx":
        suffix, data = f"{suffix}.gz", gzip.compress(data)
        data = damaged(rng, data) if rng.random() < 0.5 else data
    path = folder / f"g{suffix}"
    path.write_bytes(data)
    return path


def networkx_file(rng: random.Random, folder: Path) -> Path:
    suffix = rng.choice(NETWORKX)
    path = folder / f"g{suffix}"
    path.write_bytes(damaged(rng, graph_text(rng, suffix).encode()))
    return path


def matlab_file(rng: random.Random, folder: Path) -> Path:
    import scipy.io

    matrix = scipy.sparse.csc_array(np.eye(4)[:, [1, 2, 3, 0]])
    values = {"A": matrix, "group": np.eye(4)} if rng.random() < 0.5 else {"Problem": {"A": matrix, "x": "y"}}
    scipy.io.savemat(folder / "g.mat", values, do_compression=rng.random() < 0.5)
    (folder / "g.mat").write_bytes(damaged(rng, (folder / "g.mat").read_bytes()))
    return folder / "g.mat"


def numpy_file(rng: random.Random, folder: Path) -> Path:
    path = folder / rng.choice(("g.npz", "g.npz", "feat.npy"))
    arrays = numpy_arrays(rng)
    if path.suffix == ".npz":
        archive(rng, arrays, path)
    else:
        path.write_bytes(npy(rng, arrays["edge_index"] if rng.random() < 0.5 else some_array(rng)))
    if rng.random() < 0.4:
        path.write_bytes(damaged(rng, path.read_bytes()))
    return path


def suitesparse_file(rng: random.Random, folder: Path) -> Path:
    path, text = folder / rng.choice(("g.tar.gz", "g.tgz", "g.tar")), matrix_market(rng, " ").encode()
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name in rng.choice((["a/a.mtx"], ["a/a.mtx", "a/a_b.mtx"], ["a/a.mtx", "b/b.mtx"], ["a.mtx"], [])):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    path.write_bytes(damaged(rng, path.read_bytes()) if rng.random() < 0.5 else path.read_bytes())
    return path


def piece(rng: random.Random, path: Path, array: np.ndarray, mark: str = " ") -> str:
    """Write rows as a chunk of the kind that the ending says, perhaps damaged; return the path as metadata have it."""
    if path.suffix == ".npy":
        np.save(path, array)
        if rng.random() < 0.1:
            path.write_bytes(npy(rng, some_array(rng)))
    elif path.suffix == ".parquet":
        import pyarrow.parquet

        columns = {str(i): each for i, each in enumerate(array.reshape(len(array), -1).T)}
        shape = rng.choice((str(array.shape), "(3)", "9" * 9, "()", "x"))
        made = pyarrow.table(columns).replace_schema_metadata({"shape": shape} if rng.random() < 0.5 else None)
        pyarrow.parquet.write_table(made, path)
    else:
        rows = [list(map(str, row)) for row in array.reshape(len(array), -1).tolist()]
        text = table(rng, rows, mark) if rng.random() < 0.1 else "\n".join(map(mark.join, rows))
        path.write_text(text, "utf-8", "replace")
    path.write_bytes(damaged(rng, path.read_bytes()) if rng.random() < 0.05 else path.read_bytes())
    return str(path) if rng.random() < 0.5 else path.name


def chunked(rng: random.Random, folder: Path) -> Path:
    endings = {"csv": "txt", "numpy": "npy", "parquet": "parquet"}

    def files(name: str, arrays: list[np.ndarray]) -> dict:
        kind = rng.choice(list(endings))
        data = [piece(rng, folder / f"{name}{i}.{endings[kind]}", array) for i, array in enumerate(arrays)]
        return {"format": {"name": kind, "delimiter": " "}, "data": data}

    metadata: dict = {
        "node_type": ["n"],
        "edge_type": ["n:e:n"],
        rng.choice(("num_nodes_per_chunk", "num_nodes_per_type")): rng.choice(
            ([[3, 3]], [6], [6], [6], [0], [10**18], [-1])
        ),
        "edges": {"n:e:n": files("e", [np.array([[0, 1], [1, 2]]), np.array([[4, 5]])])},
        "node_data": {"n": {"feat": files("x", [np.eye(3), np.eye(3)]), "label": files("y", [np.arange(6)])}},
        "edge_data": {"n:e:n": {"w": files("w", [np.ones(3)])}},
    }
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        metadata[rng.choice(list(metadata))] = rng.choice(([], {}, None, 3, "n", {"n": {}}, [[1]], ["n", "m"]))
    text = json.dumps(metadata).encode()
    (folder / "metadata.json").write_bytes(damaged(rng, text) if rng.random() < 0.2 else text)
    return folder / "metadata.json"


def ogb_folder(rng: random.Random, folder: Path) -> Path:
    arrays = {
        "edge": np.array([[0, 1], [1, 2], [4, 5]]),
        "num-node-list": np.array([[rng.choice((6, 6, 6, 0, 10**15))]]),
    }
    arrays |= {"num-edge-list": np.array([[3]]), "node-feat": np.eye(6), "node-label": np.arange(6.0)}
    arrays |= {"edge_w": np.ones(3), "train": np.arange(3), "valid": np.array([3]), "test": np.array([5])}
    for name in ("raw", "split", "split/a"):
        (folder / name).mkdir()
    for name, array in arrays.items():
        if rng.random() < 0.95 or name in ("edge", "num-node-list"):  # without them it is a folder of tables
            place = folder / ("split/a" if name in ("train", "valid", "test") else "raw")
            piece(rng, place / f"{name}.csv", array, ",")
    return folder


def networkx_graph(rng: random.Random):
    import networkx

    graph = rng.choice((networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph))()
    names = rng.choice(
        (list(range(5)), list(np.arange(5)), [True, 0, 2, 3], ["a", "b", (1, 2)], [0.0, 1, 2], [2, 0, 1], [])
    )
    values = (0, 1, True, 0.1, 2**53 + 1, 2**63, 2**64, 10**400, "x", b"x", None, [1, 2], [1], [], [[1], [2, 3]], {})
    values += (np.float32(0.5), np.int64(7), np.arange(2), float("nan"), 1j, object(), np.datetime64(0, "s"))
    for name in names:
        graph.add_node(name)
    for _ in range(len(names) and 6):
        graph.add_edge(rng.choice(names), rng.choice(names))
    for key in rng.sample(["feat", "label", "train_mask", "w", 1, "1", "\x1b[31m"], rng.randrange(4)):
        chosen = rng.choices(values, k=rng.choice((1, 1, 2)))
        for data in rng.choice(([data for _, data in graph.nodes(data=True)], [d for *_, d in graph.edges(data=True)])):
            data[key] = rng.choice(chosen)
    return graph


def scipy_matrix(rng: random.Random):
    import scipy.sparse

    shape = rng.choice(((4, 4), (4, 4), (0, 0), (2, 3), (10**6, 10**6), (10**12, 10**12)))
    place = [rng.randrange(max(1, min(shape))) for _ in range(3)]
    if min(shape) == 0:
        return scipy.sparse.csr_array(shape)
    values = np.array([rng.choice((1, 0, 0.5, np.nan)) for _ in place]).astype(
        rng.choice(("f4", "f8", "i8", "c8", "?"))
    )
    matrix = scipy.sparse.coo_array((values, (place, place[::-1])), shape)
    return matrix if max(shape) > 10**6 else matrix.asformat(rng.choice(("coo", "csr", "csc")))


def arrays(rng: random.Random):
    pool = (
        some_array(rng),
        [0, 1, 2],
        [],
        [0, "x"],
        [[0], [1, 2]],
        "01",
        None,
        3,
        range(3),
        {0: 1},
        [10**30, 0],
        [0.5],
    )
    return rng.choice((some_array(rng), tuple(rng.choices(pool, k=2)), rng.choices(pool, k=rng.choice((1, 2, 3)))))


def named(rng: random.Random, folder: Path) -> str:
    name = rng.choice(("sample:communities?", "sample:", "", "a" * 250, "a" * 5000, "~x/", "\x1b[31m", "é"))
    options = [f"{rng.choice(('nodes', 'degree', 'seed', 'signal'))}={rng.choice(NUMBERS + WORDS)}" for _ in range(2)]
    return name + "&".join(options) + rng.choice(("", ".csv", ".npz", "\0.csv"))


def case(rng: random.Random, folder: Path) -> tuple[object, dict]:
    """Draw a source and options for it."""
    kinds = (
        "text",
        "text",
        "numpy",
        "numpy",
        "networkx",
        "scipy",
        "arrays",
        "named",
        "node data",
        "networkx file",
        "matlab",
        "suitesparse",
        "chunks",
        "chunks",
        "folder",
    )
    kind, options = rng.choice(kinds), {}
    if rng.random() < 0.2:
        options["ids"] = rng.choice(("as-they-are", "compact", "names", "other", 1))
    if rng.random() < 0.1:
        options["keys"] = rng.choice(
            ({"edge_index": "edges"}, {"x": rng.choice(KEYS)}, {"edge_index": "A"}, {"z": "y"}, 3)
        )
    if rng.random() < (0.3 if kind == "node data" else 0.02):
        options[rng.choice(("label", "features", "skip"))] = rng.choice(("a", ["a", "b"], ["node"], 5))
    if rng.random() < 0.15:
        options["num_nodes"] = rng.choice((6, 1, 0, -1, 10**6, 10**15, 2**63, True, 2.0, "6", None))
    if rng.random() < 0.2:
        options[rng.choice(("undirected", "self_loops"))] = True
    if rng.random() < 0.05:
        options["random_features"] = rng.choice((3, 0, 10**15, 2**70, 2.5, True))
    if kind == "node data":
        tables = {suffix: (node_table, mark) for suffix, mark in ((".csv", ","), (".tsv", "\t"), (".txt", " "))}
        nodes = rng.choice((numpy_file, lambda rng, folder: text_file(rng, folder, tables)))(rng, folder)
        nodes = rng.choice((nodes, nodes, [nodes, nodes], {rng.choice(("feat", "label", "w", 1)): some_array(rng)}, 3))
        return (np.arange(5), np.arange(5) + 1), options | {"node_data": nodes}
    make = {"networkx": networkx_graph, "scipy": scipy_matrix, "arrays": arrays}
    if kind in make:
        return make[kind](rng), options
    if kind == "text":
        return text_file(rng, folder, TEXTS), options
    files = {"named": named, "networkx file": networkx_file, "matlab": matlab_file}
    files |= {"suitesparse": suitesparse_file, "chunks": chunked, "folder": ogb_folder}
    return files.get(kind, numpy_file)(rng, folder), options
