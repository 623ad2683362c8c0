"""Data sets of the Open Graph Benchmark for classes of nodes and for links, read by ogb's own readers without PyG or DGL."""

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
    """Load ``ogb:NAME?root=DIR``; NAME is, for example, ``ogbn-arxiv`` or ``ogbl-ddi``, and DIR (default ``dataset``) ogb's root.

    If the data set is not in DIR, ogb downloads it, up to 1 GiB. Edges are directed as in ogb, and arrays keep ogb's
    names. The files in ``processed/`` are pickles and are never read; the raw files hold the same data. Data sets of links
    come with their split, as :attr:`Graph.link_split`.
    """
    name, options = split_source_name(source, {"root": str})
    root = Path(options.get("root", "dataset")).expanduser()
    has_links = name.startswith("ogbl-")
    package = import_optional("ogb.linkproppred" if has_links else "ogb.nodeproppred", source, _INSTALL)
    meta = _meta(package, source, name)
    folder = root / name.replace("-", "_")
    release = folder / f"RELEASE_v{meta['version']}.txt"
    if folder.is_dir() and not release.exists():
        raise InputError(f"{source!r}: {folder} lacks {release.name}, so it is old or incomplete; remove it")
    try:
        with _without_questions():
            if not folder.is_dir():
                try:
                    (package.LinkPropPredDataset if has_links else package.NodePropPredDataset)(name, root=str(root))
                except EOFError as error:
                    raise InputError(
                        f"{source!r}: not found in {folder}, and ogb asks before it downloads over 1 GiB; download it with "
                        "ogb and name its directory with ?root="
                    ) from error
            graph = _read_raw(folder / "raw", meta)
        split, found = folder / "split" / meta["split"], _coo_graph(source, graph)
        if has_links:
            found.link_split = _read_link_split(split)
        else:
            found.node_data |= _labels(source, found.num_nodes, _read_label(folder / "raw", meta), _read_split(split))
        return found
    except (InputError, MemoryError):
        raise
    except Exception as error:  # errors of urllib, zipfile and pandas, and plain exceptions of ogb
        raise InputError(
            f"{source!r}: ogb could not load or download it ({first_line(error)}); check the network, remove "
            f"{folder} to download it again, or name another directory with ?root="
        ) from error


def _meta(package, source: str, name: str) -> dict[str, str]:
    """Return ogb's own description of a data set."""
    with open(Path(package.__file__).with_name("master.csv"), newline="") as stream:
        names, *rows = csv.reader(stream)
    flat = {row[0]: row for row in rows}
    is_typed = [
        each == "True" or task == "KG completion"
        for each, task in zip(flat["is hetero"], flat["task type"], strict=True)
    ]
    known = [other for other, has_types in zip(names[1:], is_typed[1:]) if not has_types]
    if name not in known:
        why = "has types of nodes or edges" if name in names else f"is not a data set of {package.__name__}"
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


def _read_raw(raw: Path, meta: dict[str, str]) -> dict:
    """Return the graph as ogb's dict of arrays."""
    reader = import_optional("ogb.io.read_graph_raw", str(raw), _INSTALL)
    both_ways = meta["add_inverse_edge"] == "True"
    if meta["binary"] == "True":
        return reader.read_binary_graph_raw(str(raw), both_ways)[0]
    node_files, edge_files = (
        [] if meta[key] == "None" else meta[key].split(",")
        for key in ("additional node files", "additional edge files")
    )
    return reader.read_csv_graph_raw(str(raw), both_ways, node_files, edge_files)[0]


def _read_label(raw: Path, meta: dict[str, str]) -> np.ndarray:
    """Return the labels of nodes, (N, tasks)."""
    if meta["binary"] == "True":
        with np.load(raw / "node-label.npz", allow_pickle=False) as archive:
            return archive["node_label"]
    reader = import_optional("ogb.io.read_graph_raw", str(raw), _INSTALL)
    return reader.pd.read_csv(raw / "node-label.csv.gz", header=None).values


def _read_split(folder: Path) -> dict[str, np.ndarray]:
    """Return the node ids of ``train``, ``valid`` and ``test``."""
    if not (folder / "split_dict.pt").exists():
        return {part: np.loadtxt(folder / f"{part}.csv.gz", np.int64, ndmin=1) for part in ("train", "valid", "test")}
    return _load(folder / "split_dict.pt")


def _read_link_split(folder: Path) -> dict[str, np.ndarray]:
    """Return the links, (n, 2), and pairs that are none, under the names of a file of ``--link-split``."""
    found: dict[str, np.ndarray] = {}
    whole = _load(folder / "split_dict.pt") if (folder / "split_dict.pt").exists() else {}
    for name in ("train", "valid", "test"):
        values = {key: np.asarray(each) for key, each in (whole.get(name) or _load(folder / f"{name}.pt")).items()}
        if "source_node" in values:  # with other targets for each link
            source, target = values["source_node"], values["target_node"]
            values["edge"] = np.stack([source, target], 1)
            if (others := values.get("target_node_neg")) is not None:
                values["edge_neg"] = np.stack([np.broadcast_to(source[:, None], others.shape), others], 2)
        found[f"{name}_edge"] = values["edge"]
        if name != "train":
            found[f"{name}_neg"] = values["edge_neg"]
    return found


def _load(path: Path):
    """Return what a file of torch holds: tensors and arrays."""
    torch = import_optional("torch", str(path), _INSTALL)
    # only the functions that rebuild arrays are allowed; numpy 1 and 2 have them in modules of different names
    rebuild = [(np.zeros(0).__reduce__()[0], f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    with torch.serialization.safe_globals([np.ndarray, np.dtype, type(np.dtype(np.int64)), *rebuild]):
        return torch.load(path, weights_only=True)


def _coo_graph(source: str, graph: dict) -> COOGraph:
    node_data, edge_data = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for key, value in graph.items():
        if value is None or key in ("edge_index", "num_nodes"):
            continue
        data = edge_data if key.startswith("edge_") else node_data
        data["feat" if key in ("node_feat", "edge_feat") else key] = np.asarray(value)
    src, dst = np.asarray(graph["edge_index"])
    return COOGraph(src, dst, int(graph["num_nodes"]), node_data, edge_data, source)


def _labels(source: str, num_nodes: int | None, label: np.ndarray, split: dict) -> dict[str, np.ndarray]:
    """Return labels and masks of nodes."""
    found = {"label": np.asarray(label)}
    for key, part in zip(SPLIT_MASKS, ("train", "valid", "test")):
        found[key] = np.zeros(num_nodes or 0, bool)
        ids = np.asarray(split[part])
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(found[key]):
            raise InputError(
                f"{source!r}: its {part} split names a node outside 0..{len(found[key]) - 1}; it is damaged"
            )
        found[key][ids] = True
    return found
