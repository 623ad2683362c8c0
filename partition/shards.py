"""An edge cut as shards on disk, format 1 (docs/format.md), one part in memory at a time. No pickle anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from .edge_cut import EdgeCut
from .graph import Graph
from .manifest import PART_FILES, file_entry, write_manifest
from .quality import edge_cut_quality


@dataclass(frozen=True)
class _Part:
    """Structure of one part before it is written; ids are new ids unless said otherwise."""

    positions: np.ndarray  # of the part's edges in the graph's CSR, row by row
    indptr: np.ndarray
    indices: np.ndarray  # rows of held nodes: owned first, then halo
    halo: np.ndarray  # new ids, ascending, hence grouped by owner
    cut_edges: int  # edges with a remote source


def write_shards(graph: Graph, cut: EdgeCut, folder: Path, *, seed: int | None = None, progress=None) -> dict:
    """Write an edge cut as shards into an empty directory; :func:`partition.partition` is the safe way to call it.

    Parameters
    ----------
    graph : Graph
    cut : EdgeCut
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
    new_ids = cut.new_ids()
    slot = np.full(graph.num_nodes, -1, np.int64)
    halos, cut_edges = [], []
    for index in range(cut.parts):
        part = _structure(graph, cut, new_ids, slot, index)
        halos.append(part.halo)
        cut_edges.append(part.cut_edges)
        del part
    figures, files = [], {}
    for index in range(cut.parts):
        if progress:
            progress(f"writing part {index + 1} of {cut.parts}")
        part = _structure(graph, cut, new_ids, slot, index)
        structure = _structure_arrays(graph, cut, part, halos, index)
        written = _write_part(graph, folder, index, structure)
        files.update(written)
        figures.append(
            {
                "owned": int(cut.ptr[index + 1] - cut.ptr[index]),
                "halo": len(part.halo),
                "edges": len(part.indices),
                "sent": len(structure["send_rows"]),
                "bytes": sum(file["bytes"] for file in written.values()),
            }
        )
        del part, structure
    columns = {key: [figure[key] for figure in figures] for key in ("owned", "halo", "edges")}
    return write_manifest(
        folder,
        {
            "cut": "edge",
            "halo_depth": 1,
            "parts": cut.parts,
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "source": graph.name,
            "seed": seed,
            "node_data": _columns(graph.node_data),
            "edge_data": _columns(graph.edge_data),
            "ptr": cut.ptr.tolist(),
            "quality": edge_cut_quality(**columns, cut_edges=cut_edges).as_dict(),
            "per_part": figures,
            "received_rows": [np.diff(np.searchsorted(halo, cut.ptr)).tolist() for halo in halos],
            "files": files,
        },
    )


def _structure(graph: Graph, cut: EdgeCut, new_ids, slot, index: int) -> _Part:
    """The structure of a part; ``slot`` is an all -1 scratch array of length N, left as it was."""
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    rows = cut.order[begin:end]
    degree = graph.indptr[rows + 1] - graph.indptr[rows]
    indptr = np.concatenate([[0], np.cumsum(degree)])
    positions = np.repeat(graph.indptr[rows] - indptr[:-1], degree) + np.arange(indptr[-1])
    source = new_ids[graph.indices[positions]]
    remote = (source < begin) | (source >= end)
    seen = np.zeros(graph.num_nodes, bool)
    seen[source[remote]] = True
    halo = np.flatnonzero(seen)
    del seen
    slot[begin:end] = np.arange(end - begin)
    slot[halo] = np.arange(len(halo)) + (end - begin)
    held = end - begin + len(halo)
    indices = slot[source].astype(np.int32 if held < 2**31 else np.int64)
    slot[begin:end] = -1
    slot[halo] = -1
    return _Part(positions, indptr, indices, halo.astype(cut.order.dtype), int(remote.sum()))


def _structure_arrays(graph: Graph, cut: EdgeCut, part: _Part, halos, index: int) -> dict:
    """The arrays of ``structure.safetensors``."""
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    wanted = [halo[np.searchsorted(halo, begin) : np.searchsorted(halo, end)] - begin for halo in halos]
    return {
        "indptr": part.indptr,
        "indices": part.indices,
        "node_ids": np.concatenate([cut.order[begin:end], cut.order[part.halo]]).astype(np.int64),
        "edge_ids": graph.edge_ids[part.positions].astype(np.int64),
        "recv_ptr": np.searchsorted(part.halo, cut.ptr).astype(np.int64),
        "send_ptr": np.concatenate([[0], np.cumsum([len(rows) for rows in wanted])]).astype(np.int64),
        "send_rows": np.concatenate(wanted).astype(np.int64),
    }


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
