"""Loading a graph from a path, the name of a data set, or an object of another library."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from partition.added_edges import check_fill, with_reverse_edges, with_self_loops
from partition.errors import InputError, LeftOutWarning, check_flags, printable, whole_number
from partition.graph import Graph, check_data, named_arrays
from partition.system.optional_packages import first_line
from partition.system.user_files import check_fits_memory, regular_file

from . import sample
from .arrays import from_array, from_pair, from_scipy
from .coo import COOGraph, to_graph, with_standard_masks_and_labels
from .edge_list import read_edge_list, read_node_table
from .metis_file import read_metis
from .numpy_file import read_npy, read_npy_node_data, read_npz, read_npz_node_data
from .source_name import split_source_name

_ALLOWED = (
    ".npz, .npy, .bin or .dgl (dgl.save_graphs), .csv, .tsv or .txt (an edge list), .graph (METIS), the last four "
    "also with .gz, dgl:NAME, ogb:NAME, sample:communities"
)
_TEXT_TABLES = (".csv", ".tsv", ".txt")
_KINDS = (".npz", ".npy", ".bin", ".dgl", *_TEXT_TABLES, ".graph")
_SAMPLE_OPTIONS = {"nodes": int, "degree": float, "classes": int, "features": int, "signal": float, "seed": int}
_MAX_NODES_PER_EDGE, _ALWAYS_ALLOWED_NODES = 64, 1_000_000  # beyond them a number of nodes must be stated
_MAX_FEATURES = 10**18  # far beyond any use


def load_graph(
    source,
    *,
    num_nodes: int | None = None,
    node_data=None,
    self_loops: bool = False,
    self_loop_fill=None,
    undirected: bool = False,
    random_features: int | None = None,
    seed: int = 0,
) -> Graph:
    """Load a graph from a file, a data set or an object.

    Parameters
    ----------
    source : str, Path, DGLGraph, networkx graph, scipy matrix, array, tensor, tuple or Graph
        - ``*.npz``: ``edge_index`` (2, E) and optionally ``num_nodes``, ``x`` or ``feat`` (N, F) or sparse
          ``x_indptr``, ``x_indices``, ``x_data``, ``x_shape``, ``y`` or ``label`` (N,), ``train_mask``, ``val_mask``,
          ``test_mask``, ``edge_data_KEY`` (E, ...), ``name``, ``directed``. If ``directed`` is false, each undirected
          edge is listed once and stored in both directions, as edges ``e`` and ``E + e``; a self-loop is stored once.
          Other arrays are left out. Large arrays of an uncompressed archive are memory-mapped.
        - ``*.npy``: only ``edge_index``, memory-mapped.
        - ``*.bin``, ``*.dgl``: one homogeneous graph written by ``dgl.save_graphs``.
        - ``*.csv``, ``*.tsv``, ``*.txt``, also ``.gz``: one edge per line, see docs/cli.md.
        - ``*.graph``, also ``.gz``: a METIS file.
        - ``dgl:NAME?raw_dir=DIR``, ``ogb:NAME?root=DIR``: a data set of ``dgl.data`` or ``ogb.nodeproppred``.
        - ``sample:communities?nodes=20000&degree=20&classes=10&features=64&signal=0.55&seed=0``: a generated graph
          of communities.
        - An array or tensor of integers, (2, E), sources first, or a tuple ``(src, dst)`` of two of shape (E,).
        - A square sparse matrix of scipy, (N, N): each stored entry (i, j) is an edge i -> j, as in
          ``dgl.from_scipy``. Its values become edge data ``weight`` unless all of them are one.
    num_nodes : int, optional
        N, if ``source`` does not say; by default the rows of ``node_data``, else the largest id plus one.
    node_data : path, list of paths or dict of str to array, optional
        Columns to add: an ``.npz`` with the node keys above, a ``.npy`` with the column that its name says
        (``feat.npy``), a table (``.csv``, ``.tsv``, ``.txt``, also ``.gz``; see docs/cli.md),
        or arrays (N, ...) under the names that Graph uses.
    self_loops : bool
        Add a self-loop to each node that has none.
    self_loop_fill : float, "mean", "zero" or dict, optional
        Edge data of these self-loops, for a graph that has edge data: a number; the mean over the in-edges of the node,
        which is zero without any, for floats alone; zero; or one of these for each edge data by name.
    undirected : bool
        Add the reverse of each edge that has none, with the edge data of that edge.
    random_features : int, optional
        Width W of a normally distributed ``feat``, float32 (N, W), for a graph that has no features.
    seed : int
        Seed of ``random_features``.

    Returns
    -------
    Graph
        Its ``name`` is the npz file's ``name``, the file's name, or ``source``. Its ``left_out`` lists data that were
        not read, such as columns of text; if there are any, a ``LeftOutWarning`` is issued.

    Raises
    ------
    InputError
        The source cannot be found, read or trained on.
    """
    source = open_source(source, num_nodes=num_nodes, node_data=node_data)
    return build_graph(
        source,
        self_loops=self_loops,
        self_loop_fill=self_loop_fill,
        undirected=undirected,
        random_features=random_features,
        seed=seed,
    )


def open_source(source, *, num_nodes: int | None = None, node_data=None) -> Graph | COOGraph:
    """Do the first half of :func:`load_graph`: open the source and add the caller's node data.

    Memory-mapped arrays are not read yet.
    """
    num_nodes = None if num_nodes is None else whole_number("num_nodes", num_nodes, 1)
    try:
        opened = _with_additions(_open(source), num_nodes, *_added_node_data(node_data))
        is_stated = num_nodes is None and isinstance(opened, COOGraph) and opened.num_nodes is not None
        if is_stated and isinstance(source, (str, os.PathLike)) and not opened.node_data:  # no column supports it
            _check_plausible_nodes(opened, opened.num_nodes, f"it states {opened.num_nodes} nodes")
    except MemoryError as error:
        raise _too_large(source, error) from error
    if opened.left_out:
        notes = printable(", ".join(opened.left_out))
        warnings.warn(f"{printable(opened.name)}: left out: {notes}", LeftOutWarning, stacklevel=3)
    return opened


def build_graph(
    source: Graph | COOGraph,
    *,
    self_loops: bool = False,
    self_loop_fill=None,
    undirected: bool = False,
    random_features: int | None = None,
    seed: int = 0,
) -> Graph:
    """Do the second half of :func:`load_graph`: check the source, build in-edge lists, add edges and features."""
    check_additions(
        self_loops=self_loops, self_loop_fill=self_loop_fill, undirected=undirected, random_features=random_features
    )
    check_fill(source, self_loop_fill)
    seed = whole_number("seed", seed, 0)
    try:
        graph = to_graph(source) if isinstance(source, COOGraph) else source
        if undirected:
            graph = with_reverse_edges(graph)
        if self_loops:
            graph = with_self_loops(graph, self_loop_fill)
        return graph if random_features is None else _with_random_features(graph, random_features, seed)
    except MemoryError as error:
        raise _too_large(source.name, error) from error


def check_additions(*, self_loops, undirected, random_features, self_loop_fill=None) -> None:
    """Raise :class:`InputError` unless these are two flags, a number of features or None, and what fills self-loops."""
    check_flags(self_loops=self_loops, undirected=undirected)
    check_fill(None, self_loop_fill)
    if self_loop_fill is not None and not self_loops:
        raise InputError(
            f"self_loop_fill (--self-loop-fill) is {self_loop_fill!r}, but no self-loops are added; add self_loops "
            "(--self-loops), or leave it out"
        )
    if random_features is not None:
        whole_number("random_features", random_features, 1, _MAX_FEATURES)


def _too_large(source, error: MemoryError) -> InputError:
    name = source if isinstance(source, (str, os.PathLike)) else type(source).__name__
    return InputError(f"{name}: the graph does not fit into memory ({first_line(error)}); use a larger machine")


def _with_random_features(graph: Graph, width: int, seed: int) -> Graph:
    if "feat" in graph.node_data:
        raise InputError(f"{graph.name} has features already; leave random_features (--random-features) out")
    check_fits_memory(f"{graph.name}: random features of width {width}", 4 * width * graph.num_nodes)
    feat = np.random.default_rng(seed).standard_normal((graph.num_nodes, width), dtype=np.float32)
    return replace(graph, node_data={**graph.node_data, "feat": feat})


def _open(source) -> Graph | COOGraph:
    if isinstance(source, Graph):
        return source
    if isinstance(source, os.PathLike):
        return _open_file(Path(source))
    if isinstance(source, str):
        return _open_named(source)
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return from_pair(*source)
    if isinstance(source, np.ndarray):
        return from_array(source)
    if scipy.sparse.issparse(source):
        return from_scipy(source)
    # an object of another library exists only if that library has been imported, so nothing is imported to find out
    if "dgl" in sys.modules and isinstance(source, sys.modules["dgl"].DGLGraph):
        from .dgl_graphs import from_dgl

        return from_dgl(source)
    if "networkx" in sys.modules and isinstance(source, sys.modules["networkx"].Graph):
        from .networkx_graphs import from_networkx

        return from_networkx(source)
    if "torch" in sys.modules and isinstance(source, sys.modules["torch"].Tensor):
        return from_array(source)
    raise InputError(
        f"a graph cannot be loaded from an object of type {type(source).__name__}; pass a path, a name, a DGLGraph, a "
        "networkx graph, a scipy matrix, an array (2, E) of edges or a tuple (src, dst), or make a Graph with "
        "dgl_gt.partition.from_edges(src, dst)"
    )


def _open_named(source: str) -> Graph | COOGraph:
    if source.startswith("dgl:"):
        from .dgl_graphs import dgl_dataset

        return dgl_dataset(source)
    if source.startswith("ogb:"):
        from .ogb_datasets import ogb_dataset

        return ogb_dataset(source)
    if source.startswith("sample:"):
        name, options = split_source_name(source, _SAMPLE_OPTIONS)
        if name != "communities":
            raise InputError(f"{source!r}: there is no sample graph {name!r}; the only one is sample:communities")
        return replace(sample.communities(**options), name=source)
    return _open_file(Path(source))


def _open_file(path: Path) -> COOGraph:
    kind = _kind(path)
    if kind not in _KINDS:
        looks_like_data_set = not path.suffix and len(path.name) < 100 and not os.path.lexists(path)
        hint = f"; for a data set write ogb:{path.name} or dgl:{path.name}" if looks_like_data_set else ""
        raise InputError(f"{str(path)!r} does not name a graph; allowed are {_ALLOWED}{hint}")
    path = regular_file(path)
    match kind:
        case ".npz":
            return read_npz(path)
        case ".npy":
            return read_npy(path)
        case ".bin" | ".dgl":
            from .dgl_graphs import read_dgl_file

            return read_dgl_file(path)
        case ".csv" | ".tsv" | ".txt":
            return read_edge_list(path)
    return read_metis(path)


def _kind(path: Path) -> str:
    """Return the suffix that tells how to read a file, without ``.gz`` if its reader unpacks it."""
    suffix = path.suffix.lower()
    packed = Path(path.stem).suffix.lower()
    return packed if suffix == ".gz" and packed in (*_TEXT_TABLES, ".graph") else suffix


def _added_node_data(node_data) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the columns to add; also return the names of the data that were left out."""
    if node_data is None:
        return {}, ()
    if isinstance(node_data, dict):
        return named_arrays(node_data, "node data"), ()
    columns, left_out = {}, ()
    for path in node_data if isinstance(node_data, (list, tuple)) else [node_data]:
        added, notes = _read_node_data(path)
        twice = sorted(columns.keys() & added.keys())
        if twice:
            raise InputError(
                f"{path} has node data {', '.join(twice)}, as another file has; leave one of the files out"
            )
        columns |= added
        left_out += notes
    return columns, left_out


def _read_node_data(path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"node data cannot be read from an object of type {type(path).__name__}; pass a path, a list of paths, or "
            "a dict of arrays"
        )
    kind = _kind(Path(path))
    if kind not in (".npz", ".npy", *_TEXT_TABLES):
        raise InputError(
            f"{str(path)!r} is not a file of node data; allowed are .npz, .npy, .csv, .tsv and .txt, the last three "
            "also with .gz"
        )
    path = regular_file(path)
    if kind == ".npz":
        return read_npz_node_data(path)
    return (read_npy_node_data(path) if kind == ".npy" else read_node_table(path)), ()


def _with_additions(
    opened: Graph | COOGraph, num_nodes: int | None, added: dict[str, np.ndarray], left_out: tuple[str, ...]
) -> Graph | COOGraph:
    """Return the opened source with the caller's number of nodes and node data."""
    twice = sorted(opened.node_data.keys() & added.keys())
    if twice:
        raise InputError(f"{opened.name} has node data {', '.join(twice)} already; do not add them again")
    if opened.num_nodes is not None and num_nodes not in (None, opened.num_nodes):
        raise InputError(f"{opened.name} has {opened.num_nodes} nodes, not {num_nodes}; leave num_nodes out")
    if isinstance(opened, COOGraph):
        opened.node_data, opened.left_out = {**opened.node_data, **added}, opened.left_out + left_out
        if opened.num_nodes is None:
            opened.num_nodes = num_nodes or next((len(value) for value in added.values() if value.ndim), None)
        if opened.num_nodes is None:
            largest = opened.id_range[1]
            _check_plausible_nodes(opened, largest + 1, f"the largest node id is {largest}")
        return opened
    if not (added or left_out):
        return opened
    node_data = with_standard_masks_and_labels({**opened.node_data, **added}, opened.name)
    graph = replace(opened, node_data=node_data, left_out=opened.left_out + left_out)
    check_data(graph)
    return graph


def _check_plausible_nodes(opened: COOGraph, num_nodes: int, evidence: str) -> None:
    """Raise :class:`InputError` for a huge number of nodes that may be an error, before memory is allocated for it."""
    if num_nodes > _MAX_NODES_PER_EDGE * len(opened.src) + _ALWAYS_ALLOWED_NODES:
        raise InputError(
            f"{opened.name}: {evidence}, but the number of edges is {len(opened.src)}; number the nodes from 0 without "
            "gaps, or pass num_nodes (--num-nodes) if that many nodes have no edge"
        )
