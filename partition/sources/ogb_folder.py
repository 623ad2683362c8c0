"""A folder of text files as the Open Graph Benchmark keeps a raw data set: ``raw/edge.csv.gz`` and its neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.user_files import regular_file

from .coo import COOGraph
from .folders import number_files
from .number_files import as_in_text, read_text

_SPLIT = {"train": "train_idx", "valid": "val_idx", "test": "test_idx"}


def read_ogb_folder(raw: Path) -> COOGraph:
    """Read one graph with one type of nodes: edges as listed, data of nodes and edges, labels and the split.

    Names of data are those of :func:`dgl_gt.partition.sources.ogb_datasets.ogb_dataset`. Only ``edge`` and
    ``num-node-list`` are needed. The split is ``split/NAME/`` beside the folder ``raw``.
    """
    files, root = number_files(raw), raw.absolute().parent if raw.absolute().name == "raw" else raw.absolute()
    if "triplet-type-list" in files or (raw / "relations").is_dir():
        raise InputError(f"{raw} has several types of nodes or edges; a folder of one type of each can be read")
    num_nodes = _count(files["num-node-list"])
    num_edges = _count(files["num-edge-list"]) if "num-edge-list" in files else None
    edges = _rows(files["edge"], np.int64, num_edges, "edges")
    if edges.shape[1] != 2:
        raise InputError(f"{files['edge']} has {edges.shape[1]} columns; an edge is two ids of nodes")
    _check_ids(files["edge"], edges, num_nodes)
    data: dict[str, dict[str, np.ndarray]] = {"node": {}, "edge": {}}
    for stem, file in sorted(files.items()):
        kind, mark, rest = stem[:4], stem[4:5], stem[5:]
        if kind in data and mark in ("-", "_"):
            key, count = rest if mark == "-" else stem, num_nodes if kind == "node" else len(edges)
            data[kind][key] = as_in_text(_rows(file, np.float32 if key == "feat" else np.float64, count, f"{kind}s"))
    note = f"{root.name}: an edge from u to v is one direction; for both, choose undirected (--undirected)"
    more = {"notes": (note,), "split_ids": _read_split(root, num_nodes)}
    return COOGraph(edges[:, 0], edges[:, 1], num_nodes, data["node"], data["edge"], root.name, **more)


def _count(path: Path) -> int:
    counts = read_text(regular_file(path), np.int64)
    if counts.size != 1:
        raise InputError(f"{path} counts the nodes or edges of {len(counts)} graphs; it must hold one number")
    return int(counts[0, 0])


def _rows(path: Path, dtype: type, count: int | None, what: str) -> np.ndarray:
    """The numbers of a file with a row for each node or edge, (rows, columns)."""
    values = read_text(regular_file(path), dtype)
    if count is not None and len(values) != count:
        raise InputError(f"{path} has {len(values)} rows for {count} {what}; it may be incomplete: fetch it again")
    return values


def _check_ids(path: Path, ids: np.ndarray, num_nodes: int) -> None:
    outside = (ids < 0) | (ids >= num_nodes)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise InputError(
            f"{path}, row {row + 1}: there is no node {ids[row, column]}, as num-node-list counts nodes 0 to {num_nodes - 1}; "
            "correct one of them"
        )


def _read_split(root: Path, num_nodes: int) -> dict[str, np.ndarray]:
    """The ids of the nodes of each set, by the names that :attr:`COOGraph.split_ids` has."""
    splits = [each for each in sorted((root / "split").glob("*")) if "train" in number_files(each)]
    if len(splits) > 1:
        raise InputError(f"{root / 'split'} has {', '.join(each.name for each in splits)}; keep one of them")
    files, found = number_files(splits[0]) if splits else {}, {}
    for part, key in _SPLIT.items() if files else ():
        if part not in files:
            raise InputError(f"{splits[0]} has no {part}.csv.gz; add it")
        ids = read_text(regular_file(files[part]), np.int64)
        if ids.shape[1] != 1:
            raise InputError(f"{files[part]} has {ids.shape[1]} columns; it must have one, of ids of nodes")
        _check_ids(files[part], ids, num_nodes)
        found[key] = ids[:, 0]
    return found
