"""A cut as shards on disk, format 1 (docs/format.md), one part in memory at a time. No pickle anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from .edge_cut import Rows
from .graph import Graph
from .manifest import PART_FILES, file_entry, write_manifest
from .quality import edge_cut_quality, vertex_cut_quality
from .vertex_cut import VertexCut


@dataclass(frozen=True)
class _Part:
    """Structure of one part before it is written; ids are new ids unless said otherwise."""

    positions: np.ndarray  # of the part's edges in the graph's CSR, row by row
    indptr: np.ndarray  # over owned rows; of a vertex cut over all held rows, as mirrors have in-edges too
    indices: np.ndarray  # rows of held nodes: owned first, then copies
    copies: np.ndarray  # nodes held but not owned, halo or mirrors: ascending, hence grouped by owner
    cut_edges: int  # edges with a remote end

    def with_in_edges(self, owned: int) -> np.ndarray:
        """Which copies have in-edges, (len(copies),) bool: mirrors that send a result home."""
        return np.diff(self.indptr)[owned:] > 0


def write_shards(graph: Graph, cut: Rows, folder: Path, *, seed: int | None = None, progress=None) -> dict:
    """Write a cut as shards into an empty directory; :func:`partition.partition` is the safe way to call it.

    Parameters
    ----------
    graph : Graph
    cut : EdgeCut or VertexCut
    folder : path
        An empty directory, see :func:`partition.atomic.new_directory`.
    seed : int, optional
        Recorded in the manifest.
    progress : callable, optional
        Called as ``progress(stage)``.

    Returns
    -------
    dict
        The manifest, written last.
    """
    is_vertex_cut = isinstance(cut, VertexCut)
    new_ids = cut.new_ids()
    slot = np.full(graph.num_nodes, -1, np.int64)
    copies, returning, cut_edges = [], [], []
    owned = np.diff(cut.ptr)
    for index in range(cut.parts):
        part = _structure(graph, cut, new_ids, slot, index)
        copies.append(part.copies)
        cut_edges.append(part.cut_edges)
        if is_vertex_cut:
            returning.append(part.copies[part.with_in_edges(owned[index])])
        del part
    figures, files = [], {}
    for index in range(cut.parts):
        if progress:
            progress(f"writing part {index + 1} of {cut.parts}")
        part = _structure(graph, cut, new_ids, slot, index)
        structure = _structure_arrays(graph, cut, part, copies, index)
        if is_vertex_cut:
            structure["send_returns"] = _send_returns(cut, copies, returning, index)
        written = _write_part(graph, folder, index, structure)
        files.update(written)
        figures.append(
            {
                "owned": int(owned[index]),
                "mirrors" if is_vertex_cut else "halo": len(part.copies),
                "edges": len(part.indices),
                "sent": len(structure["send_rows"]),
                "bytes": sum(file["bytes"] for file in written.values()),
            }
        )
        if is_vertex_cut:
            figures[-1] |= {"returned": len(returning[index]), "returns": int(structure["send_returns"].sum())}
        del part, structure
    return write_manifest(
        folder,
        {
            "cut": "vertex" if is_vertex_cut else "edge",
            "halo_depth": 0 if is_vertex_cut else 1,
            "parts": cut.parts,
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "source": graph.name,
            "seed": seed,
            "node_data": _columns(graph.node_data),
            "edge_data": _columns(graph.edge_data),
            "ptr": cut.ptr.tolist(),
            "quality": _quality(figures, cut_edges, is_vertex_cut).as_dict(),
            "per_part": figures,
            "received_rows": [np.diff(np.searchsorted(rows, cut.ptr)).tolist() for rows in copies],
            "files": files,
        },
    )


def _quality(figures: list[dict], cut_edges: list[int], is_vertex_cut: bool):
    names = ("owned", "mirrors", "returned", "edges") if is_vertex_cut else ("owned", "halo", "edges")
    columns = {name: [figure[name] for figure in figures] for name in names}
    return vertex_cut_quality(**columns) if is_vertex_cut else edge_cut_quality(**columns, cut_edges=cut_edges)


def _structure(graph: Graph, cut: Rows, new_ids, slot, index: int) -> _Part:
    """The structure of a part; ``slot`` is an all -1 scratch array of length N, left as it was."""
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    if isinstance(cut, VertexCut):
        positions = np.flatnonzero(cut.edge_part == index)
        target = new_ids[np.searchsorted(graph.indptr, positions, side="right") - 1]
    else:
        rows = cut.order[begin:end]
        degree = graph.indptr[rows + 1] - graph.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(degree)])
        positions = np.repeat(graph.indptr[rows] - indptr[:-1], degree) + np.arange(indptr[-1])
        target = np.repeat(np.arange(begin, end, dtype=new_ids.dtype), degree)
    source = new_ids[graph.indices[positions]]
    remote = (source < begin) | (source >= end)
    remote_target = (target < begin) | (target >= end)
    seen = np.zeros(graph.num_nodes, bool)
    seen[source[remote]] = True
    seen[target[remote_target]] = True
    copies = np.flatnonzero(seen)
    del seen
    slot[begin:end] = np.arange(end - begin)
    slot[copies] = np.arange(len(copies)) + (end - begin)
    held = end - begin + len(copies)
    indices = slot[source].astype(np.int32 if held < 2**31 else np.int64)
    if isinstance(cut, VertexCut):
        row = slot[target]
        by_row = np.argsort(row, kind="stable")  # within a row, edges keep the user's order
        positions, indices = positions[by_row], indices[by_row]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=held))])
    slot[begin:end] = -1
    slot[copies] = -1
    return _Part(positions, indptr, indices, copies.astype(cut.order.dtype), int((remote | remote_target).sum()))


def _structure_arrays(graph: Graph, cut: Rows, part: _Part, copies, index: int) -> dict:
    """The arrays of ``structure.safetensors``."""
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    wanted = [_within(rows, begin, end) - begin for rows in copies]
    return {
        "indptr": part.indptr,
        "indices": part.indices,
        "node_ids": np.concatenate([cut.order[begin:end], cut.order[part.copies]]).astype(np.int64),
        "edge_ids": graph.edge_ids[part.positions].astype(np.int64),
        "recv_ptr": np.searchsorted(part.copies, cut.ptr).astype(np.int64),
        "send_ptr": np.concatenate([[0], np.cumsum([len(rows) for rows in wanted])]).astype(np.int64),
        "send_rows": np.concatenate(wanted).astype(np.int64),
    }


def _send_returns(cut: Rows, copies, returning, index: int) -> np.ndarray:
    """Whether the mirror that each of ``send_rows`` goes to sends a result back, bool."""
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    pairs = [(_within(rows, begin, end), _within(back, begin, end)) for rows, back in zip(copies, returning)]
    return np.concatenate([np.isin(rows, back, assume_unique=True) for rows, back in pairs])


def _within(rows: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Those of ascending ids that lie in a range."""
    return rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)]


def _write_part(graph: Graph, folder: Path, index: int, structure: dict) -> dict:
    """Write a part's three files, return their manifest entries."""
    (folder / f"part{index}").mkdir()
    written = {}
    for name in PART_FILES:
        if name == "structure.safetensors":
            arrays = structure
        elif name == "node_data.safetensors":
            arrays = {key: value[structure["node_ids"]] for key, value in graph.node_data.items()}
        else:
            arrays = {key: value[structure["edge_ids"]] for key, value in graph.edge_data.items()}
        path = folder / f"part{index}" / name
        try:
            save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, path)
        except SafetensorError as error:  # how the library reports a full disk
            raise OSError(str(error)) from error
        written[f"part{index}/{name}"] = file_entry(path)
    return written


def _columns(data: dict) -> dict:
    return {key: {"dtype": str(value.dtype), "shape": list(value.shape[1:])} for key, value in data.items()}
