"""Vertex cut of a graph beyond memory: its edges are read in slices, placed, and left on disk by part."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from partition.errors import InputError
from partition.graph import check_data, checked_num_nodes
from partition.sources.coo import COOGraph, with_standard_masks_and_labels

from . import native
from .vertex_cut import LARGEST_ID, VertexCut, capacity_of, masters

_BALANCE = 1.1  # of HDRF's score: what its authors advise


@dataclass(frozen=True)
class EdgeStream:
    """A graph of which nothing but the edges' slices is in memory; what :class:`partition.shards.layout.Layout` reads of one.

    Attributes
    ----------
    coo : COOGraph
    num_nodes, num_edges : int
    node_data : dict of str to ndarray, (N, ...)
    edge_data : dict of str to ndarray, (listed, ...)
        See :meth:`partition.sources.coo.COOGraph.edge_rows`.
    name : str
    """

    coo: COOGraph
    num_nodes: int
    num_edges: int
    node_data: dict[str, np.ndarray] = field(default_factory=dict)
    edge_data: dict[str, np.ndarray] = field(default_factory=dict)
    name: str = "graph"
    left_out: tuple[str, ...] = ()

    def edge_rows(self, ids: np.ndarray) -> np.ndarray:
        """The row of ``edge_data`` of each edge."""
        return self.coo.edge_rows(ids)

    def slices(self):
        """The stored edges in slices: (src, dst, ids), int32 each."""
        listed, loops = len(self.coo.src), 0
        for start, src, dst in self.coo.slices():
            src, dst = src.astype(np.int32), dst.astype(np.int32)
            yield src, dst, np.arange(start, start + len(src), dtype=np.int32)
            if not self.coo.listed_once:
                continue
            apart = src != dst
            first = listed + start - loops
            count = int(np.count_nonzero(apart))
            yield dst[apart], src[apart], np.arange(first, first + count, dtype=np.int32)
            loops += len(src) - count


def open_stream(coo: COOGraph) -> EdgeStream:
    """Check a source without reading more than a slice of it at once.

    Raises
    ------
    InputError
        As for :func:`partition.graph.from_edges`; also more than 2**31 - 1 nodes or edges.
    """
    num_nodes = checked_num_nodes(coo.num_nodes, *coo.id_range, coo.name)
    if max(num_nodes, coo.num_edges) > LARGEST_ID:
        raise InputError(
            f"{coo.name} has {num_nodes} nodes and {coo.num_edges} edges; a vertex cut takes at most {LARGEST_ID} "
            "of each"
        )
    node_data = with_standard_masks_and_labels(coo.node_data, coo.name)
    stream = EdgeStream(coo, num_nodes, coo.num_edges, node_data, coo.edge_data, coo.name, coo.left_out)
    check_data(replace(stream, num_edges=len(coo.src)))  # edge data have a row for each listed edge
    return stream


@dataclass(frozen=True)
class StreamedCut(VertexCut):
    """A vertex cut whose edges lie on disk by part; ``edge_part`` is empty.

    Attributes
    ----------
    folder : path
        ``{i}.edges``: source, destination and id of the edges of part i, int32 (edges, 3).
    """

    folder: Path

    def part_edges(self, graph: EdgeStream, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See :meth:`partition.cuts.vertex_cut.VertexCut.part_edges`."""
        edges = np.fromfile(_bucket(self.folder, index), np.int32).reshape(-1, 3)
        edges = edges[np.argsort(edges[:, 2], kind="stable")]  # reverses of edges listed once come out of order
        return edges[:, 0], edges[:, 1], edges[:, 2]


@contextmanager
def streamed_cut(stream: EdgeStream, parts: int, folder: Path, progress=None):
    """Cut a graph by nodes in two passes over its edges, and keep the edges of each part in a file while in use.

    The first pass counts degrees, the second gives each edge to the part of the highest HDRF score. Memory: about 40
    bytes a node, a bit for each node and part, and a slice of edges.

    Parameters
    ----------
    stream : EdgeStream
    parts : int
    folder : path
        Made here, and removed at the end; 12 bytes an edge.
    progress : callable, optional

    Yields
    ------
    StreamedCut
    """
    progress = progress or (lambda *_: None)
    degrees = np.zeros(stream.num_nodes, np.int64)
    for src, dst, _ in stream.slices():
        progress("vertex cut, counting degrees")
        for ends in (src, dst):
            np.add.at(degrees, ends, 1)
    folder.mkdir()
    try:
        copies = _place(stream, parts, degrees, folder, progress)
        del degrees
        master, ptr = masters(copies, parts)
        del copies
        order = np.argsort(master, kind="stable").astype(np.int32)
        yield StreamedCut(order, ptr, np.zeros(0, np.int32), folder)
    finally:
        for part in range(parts):
            _bucket(folder, part).unlink(missing_ok=True)
        folder.rmdir()


def _place(stream: EdgeStream, parts: int, degrees: np.ndarray, folder: Path, progress) -> np.ndarray:
    """Write each edge to the file of its part; return which parts hold each node."""
    copies = np.zeros((stream.num_nodes, -(-parts // 64)), np.uint64)
    sizes = np.zeros(parts, np.int64)
    capacity = capacity_of(stream.num_edges, parts)
    for part in range(parts):
        _bucket(folder, part).touch()
    for src, dst, ids in stream.slices():
        progress("vertex cut, streaming edges")
        src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
        owner = np.empty(len(src), np.int32)
        listed = np.arange(len(src), dtype=np.int32)
        native.run("hdrf", len(src), listed, src, dst, degrees, 0, parts, _BALANCE, capacity, copies, sizes, owner)
        by_part = np.argsort(owner, kind="stable")
        edges = np.stack([src, dst, ids], axis=1)[by_part]
        ends = np.cumsum(np.bincount(owner, minlength=parts))
        for part, (begin, end) in enumerate(zip(ends - np.diff(ends, prepend=0), ends)):
            with open(_bucket(folder, part), "ab") as file:
                file.write(edges[begin:end].data)  # tofile does not say that a disk is full
    return copies


def _bucket(folder: Path, part: int) -> Path:
    return folder / f"{part}.edges"
