"""Loading a graph from a path, the name of a data set, or an object of another library."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError, LeftOutWarning, SourceWarning, first_line, printable
from dgl_gt.partition.graph import Graph, named_arrays
from dgl_gt.partition.system.storage import Url, get, located
from dgl_gt.partition.system.user_files import check_fits_memory, regular_file
from dgl_gt.partition.transforms.added_edges import check_fill, with_added_edges
from dgl_gt.partition.transforms.node_split import SPLIT_IDS

from .coo import COOGraph, to_graph
from .folders import meta_of_types
from .node_data import NodeColumns, read_node_table, with_columns
from .numbering import check_plausible_nodes, numbered
from .numpy_file import read_npy_node_data, read_npz_node_data
from .opening import TEXT_TABLES, file_kind, open_graph
from .options import SourceOptions
from .splits import with_split
from .table_files import names_tables
from .tables import tables_open

_AS_IT_COMES = SourceOptions()


def load_graph(
    source,
    *,
    num_nodes: int | None = None,
    node_data=None,
    node_table=None,
    id: str | None = None,
    ends=None,
    fill_missing=None,
    memory: int | None = None,
    ids: str | None = None,
    label: str | None = None,
    features=None,
    skip=None,
    keys=None,
    self_loops: bool = False,
    self_loop_fill=None,
    undirected: bool = False,
    reverse_kind: bool = False,
    random_features: int | None = None,
    split: str | None = None,
    stratify: bool = False,
    seed: int = 0,
) -> Graph:
    """Load a graph from a file, a data set or an object.

    Parameters
    ----------
    source : str, Path, DGLGraph, Data or HeteroData of PyG, networkx graph, scipy matrix, array, tensor, tuple or Graph
        - ``*.npz``: ``edge_index`` (2, E) and optionally ``num_nodes``, ``x`` or ``feat`` (N, F) or sparse
          ``x_indptr``, ``x_indices``, ``x_data``, ``x_shape``, ``y`` or ``label`` (N,), ``train_mask``, ``val_mask``,
          ``test_mask``, or ids of nodes as ``train_idx``, ``val_idx``, ``test_idx``, ``node_data_NAME`` (N, ...), ``edge_data_NAME`` (E, ...), ``node_names`` (N,), ``name``,
          ``directed``. In place of ``edge_index``, ``adj_indptr``, ``adj_indices`` and ``adj_data`` may hold a sparse
          matrix. Some names of other projects are known, too; ``keys`` maps others. If ``directed`` is false, each undirected
          edge is listed once and stored in both directions, as edges ``e`` and ``E + e``; a self-loop is stored once.
          Other arrays are left out. Large arrays of an uncompressed archive are memory-mapped. With ``node_types``, the
          names of types, and ``num_nodes`` of each, it holds a typed graph: ``edge_index/author,writes,paper``,
          ``node_data/paper/feat``, ``edge_data/author,writes,paper/weight``, or ``author_writes_paper``, ``paper_x``.
        - ``*.npy``: only ``edge_index``, memory-mapped.
        - ``*.bin``, ``*.dgl``: one graph written by ``dgl.save_graphs``.
        - ``*.pt``: one ``Data`` or ``HeteroData`` of PyG written by ``torch.save``, or what PyG has processed of a data set with one graph.
        - ``*.csv``, ``*.tsv``, ``*.txt``, ``*.edges``, ``*.edgelist``, ``*.el``, also ``.gz``: one edge per line, see
          docs/cli.md; also a Matrix Market file under such a name.
        - ``*.parquet``, a folder, a pattern, an address such as ``s3://bucket/edges/``: tables of edges in CSV, TSV and
          Parquet files, see docs/cli.md.
        - ``*.graph``, also ``.gz``: a METIS file.
        - ``*.mtx``, ``*.mat``: a square sparse matrix, as one of scipy; also ``*.tar.gz`` with ``NAME/NAME.mtx``.
        - A directory with ``metadata.json``, or that file: DGL's chunked format.
        - A directory with ``meta.yaml``, or that file: a table for each node type and each relation, as DGL's
          ``CSVDataset`` has, see docs/cli.md.
        - A directory with ``edge.csv.gz``, in it or in its ``raw``: a data set of OGB's form, as listed.
        - ``*.graphml``, ``*.gml``, ``*.gexf``, ``*.net`` (Pajek), ``*.json`` (node-link): read by networkx.
        - ``dgl:NAME?raw_dir=DIR``, ``pyg:NAME?root=DIR``, ``ogb:NAME?root=DIR``: a data set of ``dgl.data``, of
          ``torch_geometric.datasets`` or of ``ogb``.
        - ``sample:communities?nodes=20000&degree=20&classes=10&features=64&signal=0.55&seed=0``: a generated graph
          of communities.
        - An array or tensor of integers, (2, E), sources first, or a tuple ``(src, dst)`` of two of shape (E,).
        - A square sparse matrix of scipy, (N, N): each stored entry (i, j) is an edge i -> j, as in
          ``dgl.from_scipy``. Its values become edge data ``weight`` unless all of them are one.
    num_nodes : int, optional
        N, if ``source`` does not say; by default the rows of ``node_data``, else what ``ids`` leads to.
    node_data : path, list of paths or dict of str to array, optional
        Columns to add: an ``.npz`` with the node keys above, a ``.npy`` with the column that its name says
        (``feat.npy``), a table (``.csv``, ``.tsv``, ``.txt``, also ``.gz``; see docs/cli.md),
        or arrays (N, ...) under the names that Graph uses.
    node_table : path or address, optional
        Tables with a row for each node, as for ``source``.
    id : str, optional
        Column of ``node_table`` that holds the ids which edges use.
    ends : two str, optional
        Columns of tables of edges that are source and destination, where their names do not say so.
    fill_missing : float, "mean", "zero" or dict, optional
        What missing numbers of tables become; a dict says it by column.
    memory : int, optional
        Bound on the memory of reading tables, bytes.
    ids : {"as-they-are", "compact", "names"}, optional
        What node ids are: numbers from 0, also of nodes without edges (``"as-they-are"``); numbers, of which those that
        are used become nodes 0..N-1 in ascending order (``"compact"``); or any text (``"names"``). The Graph keeps the
        user's ids as its ``node_names``. The default keeps numbers, unless more than half of those up to the largest are
        unused and no number of nodes is stated, or a table of nodes has other ids.
    label, features, skip : str, list of str, list of str, optional
        Columns of node tables: which one is the label, which ones are features, and which ones to leave out.
    keys : dict of str to str, optional
        Names in an ``.npz`` or ``.mat`` file, by the names above: ``{"edge_index": "links", "y": "group"}``.
    self_loops : bool
        Add a self-loop to each node that has none; in a typed graph, in each relation within a type.
    self_loop_fill : float, "mean", "zero" or dict, optional
        Edge data of these self-loops, for a graph that has edge data: a number; the mean over the in-edges of the node,
        which is zero without any, for floats alone; zero; or one of these for each edge data by name.
    undirected : bool
        Add the reverse of each edge that has none, with the edge data of that edge. Parallel edges get one each. A typed
        graph gets a relation ``(destination type, "rev_NAME", source type)`` for each that has no reverse.
    reverse_kind : bool
        Add edge data ``reverse_kind``, uint8: 0 for an edge of the source, 1 for a reverse that ``undirected`` added, 2
        for a self-loop that ``self_loops`` added.
    random_features : int, optional
        Width W of a normally distributed ``feat``, float32 (N, W), for a graph, or each type, that has no features.
    split : str, optional
        Shares of the labelled nodes for training, validation and test, such as "60/20/20", for a graph without masks; of
        each type that has labels.
    stratify : bool
        Whether ``split`` splits each class by itself.
    seed : int
        Seed of ``random_features`` and ``split``, and of the tenth of the training nodes that becomes ``val_mask`` where a
        source has masks of training and test alone.

    Returns
    -------
    Graph
        It has a ``schema`` if there are several node types or relations. Its ``name`` is the npz file's ``name``, the file's name, or ``source``. Its ``left_out`` lists data that were
        not read, such as columns of text; if there are any, a ``LeftOutWarning`` is issued. Its ``notes`` say what was
        assumed, and a ``SourceWarning`` is issued for what was assumed of ids.

    Raises
    ------
    InputError
        The source cannot be found, read or trained on.
    """
    arguments = locals()  # all of them, by name
    options = SourceOptions(**{each.name: arguments[each.name] for each in fields(SourceOptions)})
    return build_graph(open_source(source, options), options)


def open_source(source, options: SourceOptions = _AS_IT_COMES) -> Graph | COOGraph:
    """Do the first half of :func:`load_graph`: open the source, number its nodes and add the caller's node data.

    Memory-mapped arrays are not read yet, unless their ids change.
    """
    try:
        opened, columns = _open_all(source, options)
        _check_keys(options, opened, columns)
        is_file = isinstance(source, (str, os.PathLike)) and isinstance(opened, COOGraph)
        is_stated = opened.num_nodes is not None and options.num_nodes is None and opened.node_names is None
        is_stated &= options.ids in (None, "as-they-are")  # others number the nodes anew
        if is_file and is_stated and not opened.node_data:  # no column supports it
            check_plausible_nodes(opened, opened.num_nodes, f"it states {opened.num_nodes} nodes")
        if options.num_nodes is not None and opened.num_nodes not in (None, options.num_nodes):
            raise InputError(f"{opened.name} has {opened.num_nodes} nodes, not num_nodes = {options.num_nodes}")
        _check_untyped(opened, options)
        opened, columns, note = numbered(opened, columns, options.num_nodes, options.ids)
        opened = with_columns(opened, columns)
        opened, of_split = with_split(opened, columns, options)
    except MemoryError as error:
        raise _too_large(source, error) from error
    for said in filter(None, (note, of_split)):
        opened = replace(opened, notes=(*opened.notes, said))
        warnings.warn(printable(said), SourceWarning, stacklevel=3)
    told = len(source.left_out) if isinstance(source, Graph) else 0  # when that graph was loaded
    if opened.left_out[told:]:
        notes = printable(", ".join(opened.left_out[told:]))
        warnings.warn(f"{printable(opened.name)}: left out: {notes}", LeftOutWarning, stacklevel=3)
    return opened


_OF_ONE_TYPE = ("node_data", "node_table", "ids", "label", "features", "skip")


def _check_untyped(opened: Graph | COOGraph, options: SourceOptions) -> None:
    """Raise :class:`InputError` for options that say nothing of the type that they are of, where there are several."""
    given = [name for name in _OF_ONE_TYPE if getattr(options, name)]
    if opened.schema is not None and given:
        raise InputError(
            f"{opened.name} has the node types {', '.join(opened.schema.nodes)}, and {given[0]} (--{given[0].replace('_', '-')}) is "
            "for graphs of one type; put such data into the source, by type"
        )


def _check_keys(options: SourceOptions, opened: Graph | COOGraph, columns: list) -> None:
    """Raise :class:`InputError` if a name that the user gave is in no file."""
    files = [opened, *columns] if isinstance(opened, COOGraph) else columns
    unused = sorted(options.keys.keys() - frozenset().union(*(each.used_keys for each in files)))
    if unused:
        key = unused[0]
        raise InputError(
            f"keys (--keys) says that {key} is called {options.keys.get(key)!r}, but no .npz or .mat file has an array of that name "
            "to read as such; correct the name, or leave it out"
        )


def build_graph(source: Graph | COOGraph, options: SourceOptions) -> Graph:
    """Do the second half of :func:`load_graph`: check the source, build in-edge lists, add edges and features."""
    check_fill(source, options.self_loop_fill)
    try:
        graph = to_graph(source) if isinstance(source, COOGraph) else source
        added = ("undirected", "self_loops", "self_loop_fill", "reverse_kind")
        graph = with_added_edges(graph, **{name: getattr(options, name) for name in added})
        width = options.random_features
        return graph if width is None else _with_random_features(graph, width, options.seed)
    except MemoryError as error:
        raise _too_large(source.name, error) from error


def _too_large(source, error: MemoryError) -> InputError:
    name = source if isinstance(source, (str, os.PathLike)) else type(source).__name__
    return InputError(f"{name}: the graph does not fit into memory ({first_line(error)}); use a larger machine")


def _with_random_features(graph: Graph, width: int, seed: int) -> Graph:
    """The graph with a random ``feat``; of a typed graph, each type that has none gets one."""
    names = ["feat"] if graph.schema is None else [f"{each}/feat" for each in graph.schema.nodes]
    new = [name for name in names if name not in graph.node_data]
    if not new:
        raise InputError(f"{graph.name} has features already; leave random_features (--random-features) out")
    check_fits_memory(f"{graph.name}: random features of width {width}", 4 * width * graph.num_nodes)
    draw, data = np.random.default_rng(seed), dict(graph.node_data)
    for name in new:
        ids = graph.rows_of("node", name)
        data[name] = draw.standard_normal((ids.stop - ids.start, width), dtype=np.float32)
    return replace(graph, node_data=data)


def _open_all(source, options: SourceOptions) -> tuple[Graph | COOGraph, list[NodeColumns]]:
    """Open the source, and read the columns to add."""
    are_tables = names_tables(source, options.ends)
    if options.ends is not None and not are_tables:
        raise InputError(f"ends (--ends) name columns of a table, and {source} is none; leave them out")
    is_typed = isinstance(source, (str, os.PathLike)) and meta_of_types(source) is not None
    if options.fill_missing is not None and not (are_tables or is_typed or options.node_table is not None):
        raise InputError("fill_missing (--fill-missing) is for tables, and there is none; leave it out")
    if not are_tables and options.node_table is None:
        return open_graph(source, options), _read_node_data(options)
    from .edge_tables import read_edge_tables
    from .node_tables import read_node_tables

    with tables_open(options.memory) as (con, folder):
        listed = [] if options.node_table is None else [read_node_tables(con, folder, options)]
        if are_tables:
            edges, header = read_edge_tables(con, folder, source, options, *listed)
            opened = with_columns(edges, [replace(each, ids=None) for each in listed])  # they are in node order
            listed = [replace(header, header=header.header + each.header) for each in listed] or [header]
        else:
            opened = open_graph(source, options)
        return opened, listed + _read_node_data(options, listed)


def _read_node_data(options: SourceOptions, tables: Sequence[NodeColumns] = ()) -> list[NodeColumns]:
    """Read the columns to add, file by file; names of columns may be those of ``tables``."""
    node_data = options.node_data
    if node_data is None:
        columns = []
    elif isinstance(node_data, dict):
        arrays = named_arrays(node_data, "node data")
        split_ids = {key: arrays.pop(key) for key in SPLIT_IDS if key in arrays}
        columns = [NodeColumns(arrays, split_ids=split_ids)]
    else:
        paths = node_data if isinstance(node_data, (list, tuple)) else [node_data]
        columns = [_read_columns(path, options) for path in paths]
    listed = {name for each in (*tables, *columns) for name in each.header}
    if missing := sorted(options.named_columns - listed):
        names = ", ".join(sorted(listed)) or "none, as no table of node data is given"
        raise InputError(f"there is no column {missing[0]!r} of node data; the columns are: {names}")
    return columns


def _read_columns(path, options: SourceOptions) -> NodeColumns:
    kind = file_kind(Path(path)) if isinstance(path, (str, os.PathLike)) else None
    if kind not in (".npz", ".npy", *TEXT_TABLES):
        raise InputError(
            f"node data is {path!r}; it must be a .npz, .npy, .csv, .tsv or .txt file (the last three also with .gz), a list "
            "of files, or a dict of arrays"
        )
    if isinstance(place := located(path), Url):
        with tempfile.TemporaryDirectory(prefix="dgl-gt-") as folder:
            copy = Path(folder) / place.name
            get(place, copy)
            try:
                return _read_columns(copy, options)
            except InputError as error:
                raise InputError(str(error).replace(str(copy), place)) from error
    path = regular_file(path)
    if kind == ".npz":
        return read_npz_node_data(path, options.keys)
    return read_npy_node_data(path) if kind == ".npy" else read_node_table(path, options)
