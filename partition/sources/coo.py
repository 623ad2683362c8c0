"""What every reader hands over: edges as listed and columns as named. Here they become a checked Graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from partition.errors import InputError
from partition.graph import SPLIT_MASKS, Graph, compact, from_edges
from partition.system.mapped_arrays import is_mapped, let_go

_SLICE_EDGES = 1 << 20
_SAMPLE = 1000  # edges


@dataclass
class COOGraph:
    """Edges and columns as a reader found them; arrays may be memory-mapped.

    Attributes
    ----------
    src, dst : ndarray of integers, (listed,)
    num_nodes : int or None
        None where the source does not say.
    node_data, edge_data : dict of str to ndarray, (N, ...) and (listed, ...)
    name : str
    listed_once : bool
        Edges are undirected, each is listed once and is to be stored both ways: the reverse of edge ``e`` is edge
        ``listed + e``, with the same data. A self-loop is stored once; where there are any, the reverses are numbered
        in order without them.
    left_out : tuple of str
        What the source has besides, and why it is not here, such as ``"node data title (text)"``.
    """

    src: np.ndarray
    dst: np.ndarray
    num_nodes: int | None = None
    node_data: dict[str, np.ndarray] = field(default_factory=dict)
    edge_data: dict[str, np.ndarray] = field(default_factory=dict)
    name: str = "graph"
    listed_once: bool = False
    left_out: tuple[str, ...] = ()

    @cached_property
    def loops(self) -> np.ndarray:
        """Numbers of the listed self-loops, int64, ascending."""
        found = [np.flatnonzero(src == dst) + start for start, src, dst in self.slices()]
        return np.concatenate([np.zeros(0, np.int64), *found])

    @property
    def num_edges(self) -> int:
        """E, as stored."""
        return 2 * len(self.src) - len(self.loops) if self.listed_once else len(self.src)

    def slices(self):
        """The listed edges in slices: (number of the first, src, dst)."""
        for start in range(0, len(self.src), _SLICE_EDGES):
            rows = slice(start, start + _SLICE_EDGES)
            yield start, np.array(self.src[rows]), np.array(self.dst[rows])
            let_go(self.src), let_go(self.dst)

    def edge_rows(self, ids: np.ndarray) -> np.ndarray:
        """The row of ``edge_data`` of each edge."""
        if not self.listed_once:
            return ids
        reverse = ids - len(self.src)
        skipped = np.searchsorted(self.loops - np.arange(len(self.loops)), reverse, side="right")
        return np.where(reverse < 0, ids, reverse + skipped)

    def listed_reverse(self) -> tuple[int, int] | None:
        """An edge whose reverse is listed as well, or None; of mapped edges a sample alone is looked for."""
        if all((src <= dst).all() for _, src, dst in self.slices()):
            return None
        found = self._reversed(_SAMPLE if is_mapped(self.src) else len(self.src))
        return next(iter(found), None)

    def reciprocity(self) -> float:
        """The share of edges between two nodes whose reverse is listed, estimated from a sample."""
        sampled = min(_SAMPLE, len(self.src))
        return len(self._reversed(sampled)) / sampled if sampled else 0.0

    def _reversed(self, count: int) -> list[tuple[int, int]]:
        """Of so many of the listed edges, those (u, v), u != v, whose reverse is listed, too."""
        if not len(self.src):
            return []
        chosen = np.unique(np.linspace(0, len(self.src) - 1, count).astype(np.int64))
        src, dst = self.src[chosen], self.dst[chosen]
        src, dst = src[src != dst], dst[src != dst]
        # ids as they come may be too large to make one number of two
        nodes = np.unique(np.concatenate([src, dst]))
        keys, there = np.searchsorted(nodes, src) * len(nodes) + np.searchsorted(nodes, dst), []
        for _, u, v in self.slices():
            at_u, at_v = (np.minimum(np.searchsorted(nodes, ends), len(nodes) - 1) for ends in (u, v))
            near = np.flatnonzero((nodes[at_u] == u) & (nodes[at_v] == v)) if len(nodes) else np.zeros(0, np.int64)
            there.append(at_v[near] * len(nodes) + at_u[near])
        hit = np.isin(keys, np.concatenate(there))
        return list(zip(src[hit].tolist(), dst[hit].tolist()))

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest node id; (0, -1) without edges."""
        found = [(min(src.min(), dst.min()), max(src.max(), dst.max())) for _, src, dst in self.slices()]
        return (int(min(low for low, _ in found)), int(max(high for _, high in found))) if found else (0, -1)


def to_graph(coo: COOGraph) -> Graph:
    """Build the Graph; :class:`InputError` where the edges or the columns cannot be used."""
    node_data, edge_data = with_standard_masks_and_labels(coo.node_data, coo.name), coo.edge_data
    src, dst = coo.src, coo.dst
    if coo.listed_once:
        src, dst = (compact(ends, max(coo.ends[1], 0)) for ends in (src, dst))
        rows = coo.edge_rows(np.arange(len(src), coo.num_edges))
        src, dst = np.concatenate([src, dst[rows]]), np.concatenate([dst, src[rows]])
        edge_data = {key: np.concatenate([value, value[rows]]) for key, value in edge_data.items()}
    graph = from_edges(src, dst, coo.num_nodes, node_data, edge_data, coo.name)
    return replace(graph, left_out=coo.left_out)


def with_standard_masks_and_labels(node_data: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Bring masks and labels to the one form that Graph knows; all else passes as it is, without a copy.

    Masks of 0 and 1 of any type become bool; where one mask has a column for each split and another has none, the
    latter stands for every split. Labels become int64 (N,), with -1 for NaN.
    """
    node_data = dict(node_data)
    masks = {key: _bool_mask(node_data[key], key, name) for key in SPLIT_MASKS if key in node_data}
    splits = {mask.shape[1] for mask in masks.values() if mask.ndim == 2}
    for key, mask in masks.items():
        one_for_all = len(splits) == 1 and mask.ndim == 1
        node_data[key] = np.repeat(mask[:, None], min(splits), axis=1) if one_for_all else mask
    if "label" in node_data:
        node_data["label"] = _integer_label(node_data["label"])
    return node_data


def _bool_mask(mask: np.ndarray, key: str, name: str) -> np.ndarray:
    if mask.dtype == bool:
        return mask
    if mask.dtype.kind not in "iuf":
        raise InputError(f"{name}: {key} holds {mask.dtype}; a mask is bool, or 0 and 1")
    as_bool = mask == 1
    other = ~as_bool & (mask != 0)
    if other.any():
        raise InputError(f"{name}: {key} holds {mask[other].ravel()[0]}; a mask is bool, or 0 and 1")
    return as_bool


def _integer_label(label: np.ndarray) -> np.ndarray:
    """Labels as int64 (N,) where that is what they mean; others are left for the Graph's own check to refuse."""
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.ndim != 1:
        return label
    if label.dtype.kind in "biu":
        return label.astype(np.int64, copy=False)
    if label.dtype.kind == "f":
        whole = np.where(np.isnan(label), -1, label)
        if (np.abs(whole) < 2**63).all() and (whole == np.floor(whole)).all():
            return whole.astype(np.int64)
    return label


def narrowed(column: np.ndarray) -> np.ndarray:
    """A column of numbers that came as text or Python objects: float64 becomes float32 where that is exact."""
    if column.dtype != np.float64:
        return column
    with np.errstate(over="ignore"):
        narrow = column.astype(np.float32)
    return narrow if np.array_equal(narrow, column) else column
