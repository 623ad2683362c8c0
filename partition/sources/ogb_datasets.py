"""Node property prediction data sets of the Open Graph Benchmark, read by ogb's own readers without PyG or DGL."""

from __future__ import annotations

import contextlib
import csv
import os
import sys
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError, first_line, import_optional
from dgl_gt.partition.graph import SPLIT_MASKS

from .coo import COOGraph
from .options import split_source_name

_INSTALL = "pip install ogb"


def ogb_dataset(source: str) -> COOGraph:
    """Load ``ogb:NAME?root=DIR``; NAME is, for example, ``ogbn-arxiv``, and DIR (default ``dataset``) is ogb's root.

    If the data set is not in DIR, ogb downloads it, up to 1 GiB. Edges are directed as in ogb, and arrays keep ogb's
    names. The files in ``processed/`` are pickles and are never read; the raw files hold the same data.
    """
    name, options = split_source_name(source, {"root": str})
    root = Path(options.get("root", "dataset")).expanduser()
    nodeproppred = import_optional("ogb.nodeproppred", source, _INSTALL)
    meta = _meta(nodeproppred, source, name)
    folder = root / name.replace("-", "_")
    release = folder / f"RELEASE_v{meta['version']}.txt"
    if folder.is_dir() and not release.exists():
        raise InputError(f"{source!r}: {folder} lacks {release.name}, so it is old or incomplete; remove it")
    try:
        with _without_questions():
            if not folder.is_dir():
                try:
                    nodeproppred.NodePropPredDataset(name, root=str(root))
                except EOFError as error:
                    raise InputError(
                        f"{source!r}: not found in {folder}, and ogb asks before it downloads over 1 GiB; download it with "
                        "ogb and name its directory with ?root="
                    ) from error
            graph, label = _read_raw(folder / "raw", meta)
        return _coo_graph(source, graph, label, _read_split(folder / "split" / meta["split"]))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # errors of urllib, zipfile and pandas, and plain exceptions of ogb
        raise InputError(
            f"{source!r}: ogb could not load or download it ({first_line(error)}); check the network, remove "
            f"{folder} to download it again, or name another directory with ?root="
        ) from error


def _meta(nodeproppred, source: str, name: str) -> dict[str, str]:
    """Return ogb's own description of a data set."""
    with open(Path(nodeproppred.__file__).with_name("master.csv"), newline="") as stream:
        names, *rows = csv.reader(stream)
    flat = {row[0]: row for row in rows}
    known = [other for other in names[1:] if flat["is hetero"][names.index(other)] == "False"]
    if name not in known:
        why = "is heterogeneous" if name in names else "is not a data set of ogb.nodeproppred"
        raise InputError(f"{source!r}: {name!r} {why}; allowed are {', '.join(known)}")
    return {key: row[names.index(name)] for key, row in flat.items()}


@contextlib.contextmanager
def _without_questions():
    """Let a question of ogb end in EOFError, and print on stderr."""
    before = sys.stdin
    try:
        with contextlib.redirect_stdout(sys.stderr), open(os.devnull) as sys.stdin:
            yield
    finally:
        sys.stdin = before


def _read_raw(raw: Path, meta: dict[str, str]) -> tuple[dict, np.ndarray]:
    """Return the graph as ogb's dict of arrays, and the labels, (N, tasks)."""
    reader = import_optional("ogb.io.read_graph_raw", str(raw), _INSTALL)
    both_ways = meta["add_inverse_edge"] == "True"
    if meta["binary"] == "True":
        with np.load(raw / "node-label.npz", allow_pickle=False) as archive:
            label = archive["node_label"]
        return reader.read_binary_graph_raw(str(raw), both_ways)[0], label
    node_files, edge_files = (
        [] if meta[key] == "None" else meta[key].split(",")
        for key in ("additional node files", "additional edge files")
    )
    graph = reader.read_csv_graph_raw(str(raw), both_ways, node_files, edge_files)[0]
    return graph, reader.pd.read_csv(raw / "node-label.csv.gz", header=None).values


def _read_split(folder: Path) -> dict[str, np.ndarray]:
    """Return the node ids of ``train``, ``valid`` and ``test``."""
    if not (folder / "split_dict.pt").exists():
        return {part: np.loadtxt(folder / f"{part}.csv.gz", np.int64, ndmin=1) for part in ("train", "valid", "test")}
    torch = import_optional("torch", str(folder), _INSTALL)
    # only the functions that rebuild arrays are allowed; numpy 1 and 2 have them in modules of different names
    rebuild = [(np.zeros(0).__reduce__()[0], f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    with torch.serialization.safe_globals([np.ndarray, np.dtype, type(np.dtype(np.int64)), *rebuild]):
        return torch.load(folder / "split_dict.pt", weights_only=True)


def _coo_graph(source: str, graph: dict, label: np.ndarray, split: dict) -> COOGraph:
    num_nodes = int(graph["num_nodes"])
    node_data, edge_data = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for key, value in graph.items():
        if value is None or key in ("edge_index", "num_nodes"):
            continue
        data = edge_data if key.startswith("edge_") else node_data
        data["feat" if key in ("node_feat", "edge_feat") else key] = np.asarray(value)
    node_data["label"] = np.asarray(label)
    for key, part in zip(SPLIT_MASKS, ("train", "valid", "test")):
        node_data[key] = np.zeros(num_nodes, bool)
        ids = np.asarray(split[part])
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_nodes:
            raise InputError(f"{source!r}: its {part} split names a node outside 0..{num_nodes - 1}; it is damaged")
        node_data[key][ids] = True
    src, dst = np.asarray(graph["edge_index"])
    return COOGraph(src, dst, num_nodes, node_data, edge_data, source)
