"""Graph: in-edges in CSR form with node data and edge data, and its checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.system.mapped_arrays import is_mapped, release_pages
from dgl_gt.partition.system.user_files import check_fits_memory

from .errors import INSTALL_DGL, InputError, first_line, import_optional, whole_number
from .schema import Relation, Schema, columns_by_type

SPLIT_MASKS = ("train_mask", "val_mask", "test_mask")
LINK_SETS = ("train", "val", "test", "val_neg", "test_neg")
_CHUNK_BYTES, _CHUNK_EDGES, _CHUNK_NODES = 1 << 22, 1 << 20, 1 << 16


@dataclass(frozen=True)
class Links:
    """The links of a graph, by the names ``LINK_SETS``.

    Attributes
    ----------
    pairs : dict of str to ndarray, integers, (2, n)
        Sources and destinations, as numbers of nodes; those with "neg" are pairs that are no links. No source is its
        own destination.
    is_undirected : bool
        Whether every edge has a reverse; then each two nodes are a pair once.
    own_negatives : bool
        Whether each link of validation and test is ranked among negatives of its own. These lie next to each other, as
        many for each link, in the order of the links.
    relation : Relation or None
        The relation that the links are of, in a typed graph: all pairs, also those that are no links, have ends of its
        types.
    """

    pairs: dict[str, np.ndarray]
    is_undirected: bool
    own_negatives: bool = False
    relation: Relation | None = None


@dataclass(frozen=True, repr=False)
class Graph:
    """A directed graph held by its in-edges; build it with :func:`from_edges`.

    Attributes
    ----------
    indptr : ndarray, int64, (N + 1,)
        Positions of the in-edges: those of node ``v`` are at ``indptr[v]:indptr[v + 1]``.
    indices : ndarray, int32 if N < 2**31, else int64, (E,)
        Source of each in-edge. Parallel edges and self-loops are kept.
    edge_ids : ndarray, int32 if E < 2**31, else int64, (E,)
        The user's edge id at each CSR position; edge ``e`` is the ``e``-th edge that the graph was built from.
    node_data : dict of str to ndarray, (N, ...)
        Columns under DGL's usual names: ``feat``, ``label`` (-1 or NaN if unlabelled), ``train_mask``, ``val_mask``,
        ``test_mask``; others keep the names they have.
    edge_data : dict of str to ndarray, (E, ...)
        Columns in the user's edge order; ``edge_data[key][edge_ids]`` is in CSR order.
    name : str
        The source of the graph, for messages.
    left_out : tuple of str
        Data of the source that were not read, and why, such as ``"node data title (text)"``.
    notes : tuple of str
        What was assumed of the source, such as which columns became features.
    node_names : ndarray of integers or str, (N,), or None
        The user's id of each node, without virtual nodes; None where it is the node's number.
    class_names : tuple of str or None
        The name of each class, where labels are names.
    encodings : dict of str to dict
        What :func:`dgl_gt.partition.encode` computed, by the name of the node data or edge data.
    transforms : dict of str to dict
        What :func:`dgl_gt.partition.add_expander_edges` and :func:`dgl_gt.partition.add_virtual_nodes` added. Nodes and edges that
        they add have the last ids.
    links : Links or None
        The links to learn; those of validation and test are not among the edges.
    link_split : dict of str to array, or None
        The split of links that the data set has, under the names of a file of ``link_split``.
    node_type : str
        What DGL calls the nodes; ``"_N"`` where a source has no name for them.
    schema : Schema or None
        The types of nodes and edges; None if there is one of each. Data of a type are called ``paper/feat``.
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray
    node_data: dict[str, np.ndarray] = field(default_factory=dict)
    edge_data: dict[str, np.ndarray] = field(default_factory=dict)
    name: str = "graph"
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    node_names: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    encodings: dict[str, dict] = field(default_factory=dict)
    transforms: dict[str, dict] = field(default_factory=dict)
    links: Links | None = None
    link_split: dict[str, np.ndarray] | None = None
    node_type: str = "_N"
    schema: Schema | None = None

    def __repr__(self):
        return (
            f"Graph({self.name!r}: {self.num_nodes} nodes, {self.num_edges} edges, indices {self.indices.dtype}, "
            f"node_data {_columns(self.node_data)}, edge_data {_columns(self.edge_data)})"
        )

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    def in_degrees(self) -> np.ndarray:
        """Return the in-degree of every node, int64, (N,)."""
        return np.diff(self.indptr)

    def count_isolated(self) -> int:
        """Return how many nodes have no edge to another node."""
        has_edge = np.zeros(self.num_nodes, bool)
        for start in range(0, self.num_nodes, _CHUNK_NODES):
            ptr = self.indptr[start : start + _CHUNK_NODES + 1]
            src = self.indices[ptr[0] : ptr[-1]]
            dst = np.repeat(np.arange(start, start + len(ptr) - 1), np.diff(ptr))
            apart = src != dst
            has_edge[src[apart]] = has_edge[dst[apart]] = True
        return self.num_nodes - int(np.count_nonzero(has_edge))

    def edge_rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of ``edge_data`` of each edge id, which is the id itself; of data without a relation."""
        return ids

    def rows_of(self, kind: str, column: str) -> slice:
        """Return the ids of the nodes or edges of which a column has rows, see :meth:`Schema.rows_of`."""
        if self.schema is None:
            return slice(0, self.num_nodes if kind == "node" else self.num_edges)
        return self.schema.rows_of(kind, column)

    def destinations(self) -> np.ndarray:
        """Return the destination of every edge in CSR order, same dtype as ``indices``, (E,)."""
        return np.repeat(np.arange(self.num_nodes, dtype=self.indices.dtype), self.in_degrees())

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return source and destination of every edge in edge-id order, same dtype as ``indices``, (E,) each."""
        src, dst = np.empty_like(self.indices), np.empty_like(self.indices)
        src[self.edge_ids], dst[self.edge_ids] = self.indices, self.destinations()
        return src, dst

    def to_dgl(self):
        """Return the same graph as a DGLGraph on the CPU: edges in edge-id order, all node and edge data.

        A typed graph becomes a heterograph; data without a type are left out.

        Raises
        ------
        InputError
            DGL cannot be imported.
        """
        dgl, torch = (import_optional(package, "to_dgl()", INSTALL_DGL) for package in ("dgl", "torch"))
        src, dst = (torch.from_numpy(ends) for ends in self.edges())

        def native(value: np.ndarray):  # tensors support neither foreign byte order nor read-only memory
            return torch.from_numpy(np.require(value, value.dtype.newbyteorder("="), ["C", "W"]))

        if (schema := self.schema) is None:
            made = dgl.graph((src, dst), num_nodes=self.num_nodes)
            for columns, data in ((made.ndata, self.node_data), (made.edata, self.edge_data)):
                columns.update({key: native(value) for key, value in data.items()})
            return made
        begins = torch.from_numpy(schema.node_ptr)[torch.from_numpy(schema.ends)]
        pairs = zip(schema.relations, schema.edge_ptr, schema.edge_ptr[1:], begins)
        edges = {tuple(each): (src[i:j] - at[0], dst[i:j] - at[1]) for each, i, j, at in pairs}
        made = dgl.heterograph(edges, num_nodes_dict=dict(schema.nodes))
        for columns_of, data in ((made.nodes, self.node_data), (made.edges, self.edge_data)):
            for of_type, columns in columns_by_type(data).items():
                if of_type:
                    key = tuple(of_type.split(",")) if "," in of_type else of_type
                    columns_of[key].data.update({name: native(value) for name, value in columns.items()})
        return made


def _columns(data: dict[str, np.ndarray]) -> str:
    """Describe columns by name, dtype and row shape: ``{'feat': float32 (5,), 'label': int64 ()}``."""
    return "{" + ", ".join(f"{key!r}: {value.dtype} {value.shape[1:]}" for key, value in data.items()) + "}"


def from_edges(
    src, dst, num_nodes=None, node_data=None, edge_data=None, name="graph", schema: Schema | None = None
) -> Graph:
    """Build a :class:`Graph` from an edge list and check it.

    Parameters
    ----------
    src, dst : array of integers, (E,)
        Edge ``e`` goes from ``src[e]`` to ``dst[e]``.
    num_nodes : int, optional
        N; by default the largest id plus one.
    node_data, edge_data : dict of str to array, (N, ...) and (E, ...), optional
        Booleans, and integers or floats of at most 64 bits; torch tensors and sparse matrices are converted. ``label``
        is classes, integers (N,); several labels of 0 and 1, integers (N, L); or numbers, floats (N,) or (N, T). A node
        without has -1, or NaN among floats. Masks are bool, (N,) or (N, splits), and do not overlap.
    name : str
        The source of the graph, for messages.
    schema : Schema, optional
        The types of nodes and edges, whose ids are in its order; :func:`from_relations` makes such graphs.

    Returns
    -------
    Graph

    Raises
    ------
    InputError
        An id is negative or not below N, an array has the wrong length, a feature is not finite, masks overlap or
        are empty, or a training node has no label.
    """
    src, dst = as_array(src, f"{name}: the sources"), as_array(dst, f"{name}: the destinations")
    if src.ndim != 1 or src.shape != dst.shape:
        raise InputError(f"{name}: sources {src.shape} and destinations {dst.shape} must be two lists of one length")
    if len(src) and not (np.issubdtype(src.dtype, np.integer) and np.issubdtype(dst.dtype, np.integer)):
        raise InputError(f"{name}: node ids must be integers, not {src.dtype} and {dst.dtype}")
    if not len(src):  # empty lists become float64 arrays
        src = dst = np.zeros(0, np.int64)
    largest = max(int(src.max()), int(dst.max())) if len(src) else -1
    smallest = min(int(src.min()), int(dst.min())) if len(src) else 0
    release_pages(src)
    release_pages(dst)
    num_nodes = checked_num_nodes(num_nodes, smallest, largest, name)
    node_data, edge_data = named_arrays(node_data, f"{name}: node data"), named_arrays(edge_data, f"{name}: edge data")
    for kind, data, rows in (("node", node_data, num_nodes), ("edge", edge_data, len(src))):
        _check_columns(name, kind, data, rows, schema)  # before memory of that size is allocated
    src, dst = (compact(ends, num_nodes) for ends in (src, dst))
    ids = np.arange(len(src), dtype=np.int32 if len(src) < 2**31 else np.int64)
    rows = scipy.sparse.coo_array((ids, (dst, src)), shape=(num_nodes, num_nodes))
    rows.has_canonical_format = True  # keeps parallel edges: tocsr would add up their ids
    rows = rows.tocsr()
    graph = Graph(
        indptr=rows.indptr.astype(np.int64),
        indices=rows.indices.astype(np.int32 if num_nodes < 2**31 else np.int64, copy=False),
        edge_ids=rows.data,
        node_data=node_data,
        edge_data=edge_data,
        name=name,
        schema=schema,
    )
    check_data(graph)
    return graph


def as_array(values, what: str) -> np.ndarray:
    """Convert a list, torch tensor (on any device) or sparse matrix to an array, without a copy if possible.

    ``what`` names the values in messages.
    """
    if scipy.sparse.issparse(values):
        check_fits_memory(f"{what} as a full matrix", math.prod(values.shape) * values.dtype.itemsize)
    try:
        values = values.toarray() if scipy.sparse.issparse(values) else values
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = getattr(values, "dtype", type(values).__name__)
        raise InputError(
            f"{what} cannot become a numpy array from {kind} ({first_line(error)}); try .float()"
        ) from None


def named_arrays(data, what: str) -> dict[str, np.ndarray]:
    """Convert a dict of arrays by name; None stands for no data."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise InputError(f"{what} is a {type(data).__name__}; it must be a dict of arrays by name, or None")
    for key in data:
        if not isinstance(key, str):
            raise InputError(f"{what} {key!r}: a name must be a str; rename it")
    return {key: as_array(value, f"{what} {key!r}") for key, value in data.items()}


def checked_num_nodes(num_nodes: int | None, smallest: int, largest: int, name: str) -> int:
    """Return N, by default the largest id plus one; raise :class:`InputError` if an id is out of range or N is not possible."""
    num_nodes = largest + 1 if num_nodes is None else whole_number(f"{name}: num_nodes", num_nodes, 0)
    if num_nodes < 1:
        raise InputError(f"{name}: the graph has {num_nodes} nodes; at least one is needed")
    if smallest < 0 or largest >= num_nodes:
        bad = smallest if smallest < 0 else largest
        raise InputError(
            f"{name}: node id {bad} is outside 0..{num_nodes - 1}; correct the id, or num_nodes (--num-nodes)"
        )
    check_fits_memory(f"{name}: a graph of {num_nodes} nodes", 8 * num_nodes)
    return num_nodes


def compact(ids: np.ndarray, num_nodes: int) -> np.ndarray:
    """Convert ids below N to the dtype that scipy uses without a copy; the pages of mapped ids are released."""
    dtype = np.int32 if max(num_nodes, len(ids)) < 2**31 else np.int64
    if not is_mapped(ids):
        return ids.astype(dtype, copy=False)
    compact = np.empty(len(ids), dtype)
    for start in range(0, len(ids), _CHUNK_EDGES):
        compact[start : start + _CHUNK_EDGES] = ids[start : start + _CHUNK_EDGES]
        release_pages(ids)
    return compact


def check_data(graph) -> None:
    """Raise :class:`InputError` if data of a Graph or COOGraph cannot be used for training; edges are not checked."""
    for kind, data, rows in (("node", graph.node_data, graph.num_nodes), ("edge", graph.edge_data, graph.num_edges)):
        _check_columns(graph.name, kind, data, rows, graph.schema)
        by_type = {"": data} if graph.schema is None else columns_by_type(data)
        for of_type, columns in by_type.items():
            name = f"{graph.name}: {of_type}" if of_type else graph.name
            for key, value in columns.items():
                if value.dtype.kind == "f" and key != "label":
                    _check_finite(name, kind, key, value)
            _check_labels_and_masks(name, kind, columns)


def _check_columns(name: str, kind: str, data: dict[str, np.ndarray], rows: int, schema: Schema | None) -> None:
    for key, value in data.items():
        if schema is not None:
            ids = schema.rows_of(kind, key)
            rows = ids.stop - ids.start
        if key == "__metadata__" or any("\ud800" <= each <= "\udfff" for each in key):
            raise InputError(f"{name}: {kind} data {key!r}: files of shards cannot hold this name; rename it")
        if value.ndim < 1 or len(value) != rows:
            raise InputError(f"{name}: {kind} data {key!r} has shape {value.shape}; its first dimension must be {rows}")
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
            raise InputError(
                f"{name}: {kind} data {key!r} has dtype {value.dtype}; allowed are bool, and integers and floats of up "
                "to 64 bits: convert it, or remove it"
            )


def _check_finite(name: str, kind: str, key: str, value: np.ndarray) -> None:
    rows = max(1, _CHUNK_BYTES // max(1, value.dtype.itemsize * math.prod(value.shape[1:])))
    for start in range(0, len(value), rows):
        finite = np.isfinite(value[start : start + rows])
        release_pages(value)
        if not finite.all():
            row = start + int(np.argwhere(~finite)[0, 0])
            raise InputError(f"{name}: {kind} data {key!r} has a NaN or infinite value at row {row}; replace it")


def _check_labels_and_masks(name: str, kind: str, data: dict[str, np.ndarray]) -> None:
    masks = {key: data[key] for key in SPLIT_MASKS if key in data}
    for key, mask in masks.items():
        if mask.dtype != bool or mask.ndim > 2 or 0 in mask.shape[1:]:
            raise InputError(f"{name}: {key} must be bool (N,) or (N, splits), not {mask.dtype} {mask.shape}")
        if not mask.any(axis=0).all():
            split = f" in split {int(mask.any(axis=0).argmin())}" if mask.ndim == 2 else ""
            raise InputError(f"{name}: {key} selects no {kind}{split}; set one at least, or leave the mask out")
    if len({mask.shape for mask in masks.values()}) > 1:
        shapes = {key: mask.shape for key, mask in masks.items()}
        raise InputError(f"{name}: the masks differ in shape: {shapes}; give each the same splits")
    for first, second in combinations(masks, 2):
        both = masks[first] & masks[second]
        if both.any():
            row = int(np.argwhere(both)[0, 0])
            raise InputError(f"{name}: {first} and {second} overlap, first at {kind} {row}; make them disjoint")
    label = data.get("label")
    if label is None:
        return
    if label.dtype.kind not in "iuf" or label.ndim > 2 or 0 in label.shape[1:]:
        raise InputError(
            f"{name}: label must be integers or floats of shape (N,) or (N, L), not {label.dtype} {label.shape}"
        )
    if np.isinf(label).any():
        raise InputError(f"{name}: label is infinite at {kind} {int(np.argwhere(np.isinf(label))[0, 0])}; correct it")
    if "train_mask" in masks:
        known = (label == label if label.dtype.kind == "f" else label >= 0).reshape(len(label), -1)
        missing = masks["train_mask"].reshape(len(label), -1) & ~known.any(axis=1, keepdims=True)
        if missing.any():
            row = int(np.argwhere(missing)[0, 0])
            raise InputError(f"{name}: training {kind} {row} has no label; label it, or remove it from train_mask")


def symmetrised(graph: Graph) -> scipy.sparse.csr_array:
    """Return the adjacency that METIS sees, (N, N): undirected, without duplicates and self-loops, all values one."""
    one_way = without_loops(graph)
    both = one_way + one_way.T.tocsr()
    both.sum_duplicates()
    return both


def without_loops(graph: Graph) -> scipy.sparse.csr_array:
    """Return the in-edges without self-loops, bool, (N, N): rows are destinations, and parallel edges are kept."""
    n, indptr, indices = graph.num_nodes, graph.indptr, graph.indices
    keep = indices != graph.destinations()
    if not keep.all():
        indptr, indices = indptr - np.concatenate([[0], np.cumsum(~keep)])[indptr], indices[keep]
    return scipy.sparse.csr_array((np.ones(len(indices), bool), indices, indptr), shape=(n, n))
