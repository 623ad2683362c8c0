"""COOGraph, which every reader returns (edges as listed, columns as named), and its conversion to a checked Graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS, Graph, compact, from_edges
from dgl_gt.partition.schema import Schema, columns_by_type
from dgl_gt.partition.system.mapped_arrays import is_mapped, release_pages, take_rows

_SLICE_EDGES = 1 << 18
_SAMPLE_EDGES = 1000


@dataclass
class COOGraph:
    """Edges and columns as they are in the source; arrays may be memory-mapped.

    If edges are undirected, each listed once, they are stored in both directions: the reverse of edge ``e`` is edge
    ``listed + e``, with the same data. A self-loop is stored once; reverses are numbered without self-loops.
    """

    src: np.ndarray  # source of each listed edge, (listed,)
    dst: np.ndarray  # destination of each listed edge
    num_nodes: int | None = None  # None if the source does not say
    node_data: dict[str, np.ndarray] = field(default_factory=dict)  # (N, ...)
    edge_data: dict[str, np.ndarray] = field(default_factory=dict)  # (listed, ...)
    name: str = "graph"  # in messages
    listed_once: bool = False
    left_out: tuple[str, ...] = ()  # data of the source that were not read, and why: "node data title (text)"
    notes: tuple[str, ...] = ()  # what was assumed of the source
    node_names: np.ndarray | None = None  # the user's id of each node, (N,) integers or str; None: the node itself
    used_keys: frozenset[str] = frozenset()  # of the names in a file that the user gave
    class_names: tuple[str, ...] | None = None  # the name of each class; None: the number itself
    encodings: dict[str, dict] = field(default_factory=dict)  # as in Graph; no source has any
    transforms: dict[str, dict] = field(default_factory=dict)  # as in Graph; no source has any
    links: None = None  # as in Graph; no source has any
    link_split: dict[str, np.ndarray] | None = None  # as in Graph
    node_type: str = "_N"  # as in Graph
    schema: Schema | None = None  # as in Graph
    split_ids: dict[str, np.ndarray] = field(default_factory=dict)  # the user's ids of nodes, by the names of SPLIT_IDS

    @cached_property
    def loops(self) -> np.ndarray:
        """Positions of the listed self-loops, int64, ascending."""
        found = [np.flatnonzero(src == dst) + start for start, src, dst in self.slices()]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def count_isolated(self) -> int:
        """Return how many of the ``num_nodes`` nodes have no edge to another node."""
        has_edge = np.zeros(self.num_nodes, np.bool_)
        for _, src, dst in self.slices():
            apart = src != dst
            has_edge[src[apart]] = has_edge[dst[apart]] = True
        return len(has_edge) - int(np.count_nonzero(has_edge))

    @property
    def num_edges(self) -> int:
        """E, the number of edges that will be stored."""
        return 2 * len(self.src) - len(self.loops) if self.listed_once else len(self.src)

    def slices(self):
        """Yield the listed edges in slices: (position of the first, src, dst)."""
        for start in range(0, len(self.src), _SLICE_EDGES):
            rows = slice(start, start + _SLICE_EDGES)
            src, dst = np.array(self.src[rows]), np.array(self.dst[rows])
            release_pages(self.src), release_pages(self.dst)
            yield start, src, dst
            del src, dst  # those of the next slice are made before this function forgets them

    def rows_of(self, kind: str, column: str) -> slice:
        """Return the ids of the nodes or edges of which a column has rows, see :meth:`Schema.rows_of`."""
        if self.schema is None:
            return slice(0, self.num_nodes if kind == "node" else self.num_edges)
        return self.schema.rows_of(kind, column)

    def edge_rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of ``edge_data`` of each edge id."""
        if not self.listed_once:
            return ids
        reverse = ids - len(self.src)
        skipped = np.searchsorted(self.loops - np.arange(len(self.loops)), reverse, side="right")
        return np.where(reverse < 0, ids, reverse + skipped)

    def listed_reverse(self) -> tuple[int, int] | None:
        """Return an edge whose reverse is listed as well, or None; of mapped edges only a sample is checked."""
        if all((src <= dst).all() for _, src, dst in self.slices()):
            return None
        found = self._with_listed_reverse(_SAMPLE_EDGES if is_mapped(self.src) else len(self.src))
        return next(iter(found), None)

    def reciprocity(self) -> float:
        """Estimate from a sample the share of edges (other than self-loops) whose reverse is listed."""
        sampled = min(_SAMPLE_EDGES, len(self.src))
        return len(self._with_listed_reverse(sampled)) / sampled if sampled else 0.0

    def _with_listed_reverse(self, count: int) -> list[tuple[int, int]]:
        """Sample ``count`` listed edges, and return those (u, v), u != v, whose reverse is listed, too."""
        if not len(self.src):
            return []
        chosen = np.unique(np.linspace(0, len(self.src) - 1, count).astype(np.int64))
        src, dst = take_rows(self.src, chosen), take_rows(self.dst, chosen)
        src, dst = src[src != dst], dst[src != dst]
        # a pair of raw ids may be too large for one int64 key, so the ids of the sample are renumbered
        nodes = np.unique(np.concatenate([src, dst]))
        keys, reverse_keys = np.searchsorted(nodes, src) * len(nodes) + np.searchsorted(nodes, dst), []
        for _, u, v in self.slices():
            at_u, at_v = (np.minimum(np.searchsorted(nodes, ends), len(nodes) - 1) for ends in (u, v))
            sampled = np.flatnonzero((nodes[at_u] == u) & (nodes[at_v] == v)) if len(nodes) else np.zeros(0, np.int64)
            reverse_keys.append(at_v[sampled] * len(nodes) + at_u[sampled])
        hit = np.isin(keys, np.concatenate(reverse_keys))
        return list(zip(src[hit].tolist(), dst[hit].tolist()))

    @cached_property
    def id_range(self) -> tuple[int, int]:
        """Smallest and largest node id; (0, -1) without edges."""
        found = [(min(src.min(), dst.min()), max(src.max(), dst.max())) for _, src, dst in self.slices()]
        return (int(min(low for low, _ in found)), int(max(high for _, high in found))) if found else (0, -1)


def nodes_alone(num_nodes: int, node_data: dict[str, np.ndarray], name: str, node_names=None) -> COOGraph:
    """The nodes of one type as a graph without edges."""
    none = np.zeros(0, np.int32)
    return COOGraph(none, none, num_nodes, node_data, name=name, node_names=node_names)


def to_graph(coo: COOGraph) -> Graph:
    """Build the Graph; raise :class:`InputError` if the edges or the columns cannot be used."""
    node_data, edge_data = (standard_by_type(each, coo) for each in (coo.node_data, coo.edge_data))
    src, dst = coo.src, coo.dst
    if coo.listed_once:
        src, dst = (compact(ends, max(coo.id_range[1], 0)) for ends in (src, dst))
        rows = coo.edge_rows(np.arange(len(src), coo.num_edges))
        src, dst = np.concatenate([src, dst[rows]]), np.concatenate([dst, src[rows]])
        edge_data = {key: np.concatenate([value, value[rows]]) for key, value in edge_data.items()}
    graph = from_edges(src, dst, coo.num_nodes, node_data, edge_data, coo.name, coo.schema)
    passed = ("left_out", "notes", "node_names", "class_names", "link_split", "node_type")
    return replace(graph, **{name: getattr(coo, name) for name in passed})


def standard_by_type(data: dict[str, np.ndarray], coo: COOGraph) -> dict[str, np.ndarray]:
    """Convert masks and labels as :func:`with_standard_masks_and_labels` does, those of each type by themselves."""
    if coo.schema is None:
        return with_standard_masks_and_labels(data, coo.name)
    found: dict[str, np.ndarray] = {}
    for of_type, columns in columns_by_type(data).items():
        standard = with_standard_masks_and_labels(columns, f"{coo.name}: {of_type}")
        found |= {f"{of_type}/{key}" if of_type else key: value for key, value in standard.items()}
    return found


def with_standard_masks_and_labels(data: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Convert masks and labels of nodes, or edges, to the form that Graph requires; other columns pass unchanged, without a copy.

    Masks of 0 and 1 of any type become bool. If one mask has a column for each split and another is (N,), the latter
    is repeated for every split. Labels that may be classes become int64 (N,), and several labels a node int8 (N, L), both
    with -1 for NaN; other labels are numbers, float32 or float64, with NaN for none.
    """
    data = dict(data)
    masks = {key: _bool_mask(data[key], key, name) for key in SPLIT_MASKS if key in data}
    splits = {mask.shape[1] for mask in masks.values() if mask.ndim == 2}
    for key, mask in masks.items():
        shared_by_splits = len(splits) == 1 and mask.ndim == 1
        data[key] = np.repeat(mask[:, None], min(splits), axis=1) if shared_by_splits else mask
    if "label" in data:
        data["label"] = standard_label(data["label"])
    return data


def _bool_mask(mask: np.ndarray, key: str, name: str) -> np.ndarray:
    if mask.dtype == bool:
        return mask
    if mask.dtype.kind not in "iuf":
        raise InputError(f"{name}: {key} holds {mask.dtype}; a mask must hold bool, or only 0 and 1; convert it")
    as_bool = mask == 1
    other = ~as_bool & (mask != 0)
    if other.any():
        raise InputError(f"{name}: {key} holds {mask[other].ravel()[0]}; a mask must hold bool, or only 0 and 1")
    return as_bool


def standard_label(label: np.ndarray) -> np.ndarray:
    """Labels as classes, as several labels a node, or as numbers; others pass, and the Graph's own check refuses them."""
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.dtype.kind not in "biuf" or label.ndim not in (1, 2):
        return label
    known = np.nan_to_num(label, nan=-1.0) if label.dtype.kind == "f" else label
    is_whole = label.dtype.kind != "f" or bool(((known == np.floor(known)) & (np.abs(known) < 2**63)).all())
    least, most = (known.min(), known.max()) if known.size else (0, 0)
    if is_whole and least >= -1 and (label.ndim == 1 or most <= 1):
        return known.astype(np.int64 if label.ndim == 1 else np.int8, copy=False)
    if label.dtype.kind == "f":
        return label
    return np.where(label == -1, np.nan, label) if least == -1 else label.astype(np.float64)


def as_float32_if_exact(column: np.ndarray) -> np.ndarray:
    """Convert a float64 column to float32 if float32 holds every number exactly; return other columns unchanged."""
    if column.dtype != np.float64:
        return column
    with np.errstate(over="ignore"):
        narrow = column.astype(np.float32)
    return narrow if np.array_equal(narrow, column) else column
