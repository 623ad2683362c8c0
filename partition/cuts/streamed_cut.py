"""Vertex cut of a graph that does not fit into memory: edges are read in slices, placed, and kept on disk by part."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import check_data, checked_num_nodes
from dgl_gt.partition.sources.coo import COOGraph, standard_by_type

from . import native
from .balance import shares
from .permutation import slice_pointers
from .vertex_cut import LARGEST_ID, VertexCut, capacities_of

_HDRF_BALANCE = 1.1  # as the authors of HDRF advise


def edges_both_ways(coo: COOGraph):
    """Yield the edges that will be stored, in slices: sources, destinations and ids, int32 each."""
    loops = 0
    for start, src, dst in coo.slices():
        src, dst = src.astype(np.int32), dst.astype(np.int32)
        yield src, dst, np.arange(start, start + len(src), dtype=np.int32)
        if not coo.listed_once:
            continue
        apart = src != dst
        first = len(coo.src) + start - loops
        count = int(np.count_nonzero(apart))
        yield dst[apart], src[apart], np.arange(first, first + count, dtype=np.int32)
        loops += len(src) - count


def open_stream(coo: COOGraph) -> COOGraph:
    """Check a source whose edges will be read in slices, and complete its number of nodes, masks and labels.

    Never more than a slice of the edges is in memory.
    """
    coo.num_nodes = checked_num_nodes(coo.num_nodes, *coo.id_range, coo.name)
    if max(coo.num_nodes, coo.num_edges) > LARGEST_ID:
        raise InputError(
            f"{coo.name} has {coo.num_nodes} nodes and {coo.num_edges} edges; a vertex cut takes at most {LARGEST_ID} "
            "of each: make an edge cut with a larger memory bound (--memory)"
        )
    coo.node_data, coo.edge_data = (standard_by_type(each, coo) for each in (coo.node_data, coo.edge_data))
    check_data(replace(coo, listed_once=False))  # edge data has a row for each listed edge
    return coo


@dataclass(frozen=True)
class StreamedCut(VertexCut):
    """A vertex cut whose edges lie on disk by part; ``edge_part`` is empty.

    The file ``{files[i]}.edges`` in ``folder`` holds source, destination and id of the edges of part i, int32, (edges,
    3).
    """

    folder: Path
    files: np.ndarray

    def _renumbered(self, rank_of_part: np.ndarray, parts: np.ndarray) -> dict:
        return super()._renumbered(rank_of_part, parts) | {"files": self.files[parts]}

    def part_edges(self, graph, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sources, destinations and ids of a part's edges, in the order of ids."""
        edges = np.fromfile(_bucket(self.folder, self.files[index]), np.int32).reshape(-1, 3)
        edges = edges[np.argsort(edges[:, 2], kind="stable")]  # reverse edges do not come in order
        return edges[:, 0], edges[:, 1], edges[:, 2]


@contextmanager
def streamed_cut(stream: COOGraph, parts: int, folder: Path, progress=None, target_weights=None):
    """Make a vertex cut in two passes over the edges; the edges of each part lie in ``folder`` until the context ends.

    The first pass counts degrees, and the second gives each edge to the part of the highest HDRF score. This takes
    about 40 bytes of memory per node, one bit per node and part, and a slice of edges; and 12 bytes of disk per edge.
    """
    progress, of_parts = progress or (lambda stage: None), shares(parts, target_weights)
    capacities = capacities_of(stream.num_edges, of_parts)
    degrees = np.zeros(stream.num_nodes, np.int64)
    for src, dst, _ in edges_both_ways(stream):
        progress("vertex cut, counting degrees")
        for ends in (src, dst):
            np.add.at(degrees, ends, 1)
    folder.mkdir()
    try:
        copies = _place(stream, capacities, degrees, folder, progress)
        del degrees
        master = native.choose_masters(copies, parts, capacities)
        del copies
        order = np.argsort(master, kind="stable").astype(np.int32)
        yield StreamedCut(
            order, slice_pointers(master, parts), np.zeros(0, np.int32), of_parts, folder, np.arange(parts)
        )
    finally:
        for part in range(parts):
            _bucket(folder, part).unlink(missing_ok=True)
        folder.rmdir()


def _place(stream: COOGraph, capacities: np.ndarray, degrees: np.ndarray, folder: Path, progress) -> np.ndarray:
    """Write each edge to the file of its part; return the parts that hold each node, (N, ceil(P / 64)) bits."""
    parts = len(capacities)
    copies, sizes = native.no_copies(stream.num_nodes, parts), np.zeros(parts, np.int64)
    state = {"degrees": degrees, "copies": copies, "sizes": sizes, "capacity": capacities}
    for part in range(parts):
        _bucket(folder, part).touch()
    for src, dst, ids in edges_both_ways(stream):
        progress("vertex cut, streaming edges")
        src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
        owner = np.empty(len(src), np.int32)
        listed = np.arange(len(src), dtype=np.int32)
        native.place_by_hdrf(listed, src, dst, **state, owner=owner, balance=_HDRF_BALANCE)
        by_part = np.argsort(owner, kind="stable")
        edges = np.stack([src, dst, ids], axis=1)[by_part]
        ends = np.cumsum(np.bincount(owner, minlength=parts))
        for part, (begin, end) in enumerate(zip(ends - np.diff(ends, prepend=0), ends)):
            with open(_bucket(folder, part), "ab") as file:
                file.write(edges[begin:end].data)  # tofile does not say that a disk is full
    return copies


def _bucket(folder: Path, part: int) -> Path:
    return folder / f"{part}.edges"
