"""A path, a name or an object of another library -> Graph."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from . import sample
from .edge_list import read_edge_list, read_node_table
from .errors import InputError
from .files import split_name
from .graph import Graph, check_data, with_reverse_edges, with_self_loops
from .metis_file import read_metis
from .numpy_file import read_npy, read_npy_node_data, read_npz, read_npz_node_data
from .raw import RawGraph, customary, to_graph

_FORMS = (
    ".npz, .npy, .bin or .dgl (dgl.save_graphs), .csv, .tsv or .txt (an edge list), .graph (METIS), the last four "
    "also with .gz, dgl:NAME, ogb:NAME, sample:communities"
)
_TEXT_TABLES = (".csv", ".tsv", ".txt")
_SAMPLE_OPTIONS = {"nodes": int, "degree": float, "classes": int, "features": int, "signal": float, "seed": int}
_SPARSEST_IDS = 64  # ids up to so many times the number of edges pass for numbers
_SMALL = 1_000_000


def load_graph(
    source,
    *,
    num_nodes: int | None = None,
    node_data=None,
    self_loops: bool = False,
    undirected: bool = False,
    random_features: int | None = None,
    seed: int = 0,
) -> Graph:
    """Load a graph from whatever names or holds one.

    Parameters
    ----------
    source : str, Path, DGLGraph, networkx graph or Graph
        - ``*.npz``: ``edge_index`` (2, E) and, as far as there are any, ``num_nodes``, ``x`` or ``feat`` (N, F) or
          sparse ``x_indptr``, ``x_indices``, ``x_data``, ``x_shape``, ``y`` or ``label`` (N,), ``train_mask``,
          ``val_mask``, ``test_mask``, ``edge_data_KEY`` (E, ...), ``name``. ``directed`` false: each undirected edge is
          listed once, and is stored both ways, edge ``e`` and ``E + e``; a self-loop once. Other keys are not read.
          Large arrays of an uncompressed archive are memory-mapped.
        - ``*.npy``: ``edge_index`` alone, memory-mapped.
        - ``*.bin``, ``*.dgl``: one homogeneous graph written by ``dgl.save_graphs``.
        - ``*.csv``, ``*.tsv``, ``*.txt``, also ``.gz``: an edge a line, see :func:`partition.edge_list.read_edge_list`.
        - ``*.graph``, also ``.gz``: a METIS file, see :func:`partition.metis_file.read_metis`.
        - ``dgl:NAME?raw_dir=DIR``, ``ogb:NAME?root=DIR``: a data set of ``dgl.data`` or of ``ogb.nodeproppred``.
        - ``sample:communities?nodes=20000&degree=20&classes=10&features=64&signal=0.55&seed=0``: generated, see
          :func:`partition.sample.communities`.
    num_nodes : int, optional
        N, where ``source`` does not say; by default the rows of ``node_data``, else the largest id plus one.
    node_data : path, list of paths or dict of str to array, optional
        Columns to add: an ``.npz`` with the node keys above, a ``.npy`` with the column of its name (``feat.npy``), a
        table (``.csv``, ``.tsv``, ``.txt``, also ``.gz``; see :func:`partition.edge_list.read_node_table`) or arrays
        (N, ...) under the names that Graph uses.
    self_loops : bool
        Add a self-loop to each node that has none.
    undirected : bool
        Add the reverse of each edge that has none.
    random_features : int, optional
        Width W of a normal random ``feat``, float32 (N, W), for a graph that has none.
    seed : int
        Seed of ``random_features``.

    Returns
    -------
    Graph
        Its ``name`` is the npz file's ``name``, the file's name, or ``source``.

    Raises
    ------
    InputError
        What cannot be found, read or trained on; the message says what is allowed and what to do.
    """
    source = open_source(source, num_nodes=num_nodes, node_data=node_data)
    return build(source, self_loops=self_loops, undirected=undirected, random_features=random_features, seed=seed)


def open_source(source, *, num_nodes: int | None = None, node_data=None) -> Graph | RawGraph:
    """The first half of :func:`load_graph`: what is there, joined with what the caller adds, mapped arrays unread."""
    _check_count("num_nodes", num_nodes, 1)
    return _joined(_read(source), num_nodes, _added_node_data(node_data))


def build(
    source: Graph | RawGraph,
    *,
    self_loops: bool = False,
    undirected: bool = False,
    random_features: int | None = None,
    seed: int = 0,
) -> Graph:
    """The second half of :func:`load_graph`: checks, in-edge lists, and what is to be added."""
    _check_count("random_features", random_features, 1)
    _check_count("seed", seed, 0)
    graph = to_graph(source) if isinstance(source, RawGraph) else source
    if undirected:
        graph = with_reverse_edges(graph)
    if self_loops:
        graph = with_self_loops(graph)
    return graph if random_features is None else _with_random_features(graph, random_features, seed)


def _with_random_features(graph: Graph, width: int, seed: int) -> Graph:
    if "feat" in graph.node_data:
        raise InputError(f"{graph.name} has features already; leave random_features={width} out")
    feat = np.random.default_rng(seed).standard_normal((graph.num_nodes, width), dtype=np.float32)
    return replace(graph, node_data={**graph.node_data, "feat": feat})


def _check_count(key: str, value, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least):
        raise InputError(f"{key}={value!r} is wrong; it must be a whole number from {least}")


def _read(source) -> Graph | RawGraph:
    if isinstance(source, Graph):
        return source
    if isinstance(source, os.PathLike):
        return _read_file(Path(source))
    if isinstance(source, str):
        return _read_named(source)
    # whoever holds such an object has imported its library: nothing is imported to find out
    if "dgl" in sys.modules and isinstance(source, sys.modules["dgl"].DGLGraph):
        from .dgl_source import from_dgl

        return from_dgl(source)
    if "networkx" in sys.modules and isinstance(source, sys.modules["networkx"].Graph):
        from .networkx_source import from_networkx

        return from_networkx(source)
    kind = type(source).__name__
    raise InputError(f"a graph cannot be loaded from a {kind}; give a path, a name, a DGLGraph or a networkx graph")


def _read_named(source: str) -> Graph | RawGraph:
    if source.startswith("dgl:"):
        from .dgl_source import dgl_dataset

        return dgl_dataset(source)
    if source.startswith("ogb:"):
        from .ogb_source import ogb_dataset

        return ogb_dataset(source)
    if source.startswith("sample:"):
        name, options = split_name(source, _SAMPLE_OPTIONS)
        if name != "communities":
            raise InputError(f"{source!r}: no generator is called {name!r}; allowed is sample:communities")
        return replace(sample.communities(**options), name=source)
    return _read_file(Path(source))


def _read_file(path: Path) -> RawGraph:
    path = path.expanduser()
    match _kind(path):
        case ".npz":
            return read_npz(path)
        case ".npy":
            return read_npy(path)
        case ".bin" | ".dgl":
            from .dgl_source import read_dgl_file

            return read_dgl_file(path)
        case ".csv" | ".tsv" | ".txt":
            return read_edge_list(path)
        case ".graph":
            return read_metis(path)
    name = path.name
    hint = f"; for a data set write ogb:{name} or dgl:{name}" if not path.exists() and not path.suffix else ""
    raise InputError(f"{str(path)!r} names no graph; allowed are {_FORMS}{hint}")


def _kind(path: Path) -> str:
    """The suffix that says how to read a file; ``.gz`` is looked through where a reader unpacks it."""
    suffix = path.suffix.lower()
    packed = Path(path.stem).suffix.lower()
    return packed if suffix == ".gz" and packed in (*_TEXT_TABLES, ".graph") else suffix


def _added_node_data(node_data) -> dict[str, np.ndarray]:
    if node_data is None:
        return {}
    if isinstance(node_data, dict):
        return {key: np.asarray(value) for key, value in node_data.items()}
    columns = {}
    for path in node_data if isinstance(node_data, (list, tuple)) else [node_data]:
        added = _read_node_data(path)
        twice = sorted(columns.keys() & added.keys())
        if twice:
            raise InputError(
                f"node_data={str(path)!r} has {', '.join(twice)}, which another file has too; leave one out"
            )
        columns |= added
    return columns


def _read_node_data(path) -> dict[str, np.ndarray]:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"node_data cannot be a {type(path).__name__}; give a path, several, or a dict of arrays")
    path = Path(path).expanduser()
    kind = _kind(path)
    if kind == ".npz":
        return read_npz_node_data(path)
    if kind == ".npy":
        return read_npy_node_data(path)
    if kind in _TEXT_TABLES:
        return read_node_table(path)
    raise InputError(
        f"node_data={str(path)!r}: allowed are .npz, .npy, .csv, .tsv and .txt, the last three also with .gz"
    )


def _joined(read: Graph | RawGraph, num_nodes: int | None, added: dict[str, np.ndarray]) -> Graph | RawGraph:
    """What was read, with what the caller adds."""
    twice = sorted(read.node_data.keys() & added.keys())
    if twice:
        raise InputError(f"{read.name} has node data {', '.join(twice)} already; take them out of node_data")
    if read.num_nodes is not None and num_nodes not in (None, read.num_nodes):
        raise InputError(f"{read.name} has {read.num_nodes} nodes, not num_nodes={num_nodes}; leave num_nodes out")
    if isinstance(read, RawGraph):
        read.node_data = {**read.node_data, **added}
        if read.num_nodes is None:
            read.num_nodes = num_nodes or next((len(value) for value in added.values() if value.ndim), None)
        if read.num_nodes is None:
            _check_ids_dense(read)
        return read
    if not added:
        return read
    graph = replace(read, node_data=customary({**read.node_data, **added}, read.name))
    check_data(graph)
    return graph


def _check_ids_dense(read: RawGraph) -> None:
    """Refuse ids that are keys rather than numbers before an array of their range is asked for."""
    largest = read.ends()[1]
    if largest > _SPARSEST_IDS * len(read.src) + _SMALL:
        raise InputError(
            f"{read.name}: the largest node id is {largest}, but there are {len(read.src)} edges; number the nodes "
            "from 0 without gaps, or state num_nodes if so many have no edge"
        )
