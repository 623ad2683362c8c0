"""Writes a cut as shards on disk (docs/format.md), with one part in memory at a time. No pickle anywhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.sources.tables import write_id_map
from dgl_gt.partition.system.mapped_arrays import take_rows

from .counts import encoding_columns, manifest_counts
from .layout import Layout, Part
from .manifest import ID_MAP, LINKS, NODE_NAMES, PART_FILES, file_entry, write_manifest

_NAMES = 1 << 16  # names of nodes that are written at a time


def write_shards(
    layout: Layout,
    folder: Path,
    *,
    isolated_nodes: int | None = None,
    seed: int | None = None,
    choice=None,
    method: str = "metis",
    id_map: bool = False,
    progress=None,
) -> dict:
    """Write a cut as shards into an empty directory, and return the manifest, written last.

    :func:`dgl_gt.partition.partition` passes a temporary directory, so that incomplete shards never appear. The manifest
    records how many nodes have no edge in the source (by default, in the graph), the seed, the reason for this cut and
    not another (``choice``), and the method, one of
    :data:`dgl_gt.partition.memory_bound.METHODS`.
    """
    graph, cut = layout.graph, layout.cut
    files: dict = {}
    part_bytes = []
    for index in range(cut.parts):
        if progress:
            progress(f"writing part {index + 1} of {cut.parts}")
        written = write_part(graph, folder, index, structure_arrays(layout, layout.part(index), index))
        files.update(written)
        part_bytes.append(sum(file["bytes"] for file in written.values()))
    node_names = add_node_names(folder, graph.node_names, files, id_map=id_map)
    links = _write_links(folder, graph, cut)
    if links:
        files[LINKS] = file_entry(folder / LINKS)
    made = described(layout, part_bytes, isolated_nodes, seed, choice, method)
    return write_manifest(folder, {**made, "node_names": node_names, "links": links, "files": files})


def described(
    layout: Layout, part_bytes: list[int], isolated_nodes: int | None = None, seed=None, choice=None, method="metis"
) -> dict:
    """What a manifest says of a graph and its cut."""
    graph, cut = layout.graph, layout.cut
    made = {"seed": seed, "choice": choice, "method": method}
    made["isolated_nodes"] = graph.count_isolated() if isolated_nodes is None else isolated_nodes
    made["mapping"] = None if cut.mapping is None else asdict(cut.mapping)
    return described_counts(graph, layout.figures, layout.quality, cut.ptr, part_bytes) | made


def described_counts(
    graph: Graph | COOGraph, figures: Figures, quality: dict, ptr: np.ndarray, part_bytes: list[int]
) -> dict:
    """The same without how the cut was made; of ``graph`` the data are described, and edges are not read."""
    return {
        **manifest_counts(figures, part_bytes),
        "quality": quality,
        "ptr": ptr.tolist(),
        "source": graph.name,
        "left_out": list(graph.left_out),
        "notes": list(graph.notes),
        "class_names": None if graph.class_names is None else list(graph.class_names),
        "encodings": _encodings(graph),
        "transforms": graph.transforms,
        "node_data": _columns(graph.node_data),
        "edge_data": _columns(graph.edge_data),
    }


def structure_arrays(layout: Layout, part: Part, index: int) -> dict:
    """Return the arrays of ``structure.safetensors``."""
    cut = layout.cut
    begin, end = cut.ptr[index], cut.ptr[index + 1]
    wanted = [rows for hop in zip(*layout.rings) for rows in layout.wanted(hop, index)]
    received = [layout.by_owner(ring) for ring in layout.rings[index]]
    node_ids = np.concatenate([cut.order[begin:end], cut.order[part.copies]])
    arrays = arrays_of_part(part, node_ids, received, wanted, begin)
    if layout.is_vertex_cut:
        back = layout.wanted(layout.returning, index)
        pairs = [np.isin(rows, those, assume_unique=True) for rows, those in zip(wanted, back)]
        arrays["send_returns"] = np.concatenate(pairs)
    return arrays


def arrays_of_part(part: Part, node_ids: np.ndarray, received: list, wanted: list[np.ndarray], begin: int) -> dict:
    """The arrays that the structures of both cuts have.

    ``node_ids`` are the user's ids of the held rows. ``received``, hop by hop, counts the copies by their owner;
    ``wanted`` are the new ids, from ``begin`` on, of the owned rows that each part copies, hop by hop.
    """
    return {
        "indptr": part.indptr,
        "indices": part.indices,
        "node_ids": node_ids.astype(np.int64),
        "edge_ids": part.edge_ids.astype(np.int64),
        "recv_ptr": np.concatenate([[0], np.cumsum(received)]).astype(np.int64),
        "send_ptr": np.concatenate([[0], np.cumsum([len(rows) for rows in wanted])]).astype(np.int64),
        "send_rows": (np.concatenate(wanted) - begin).astype(np.int64),
    }


def add_node_names(folder: Path, names: np.ndarray | None, files: dict, *, id_map: bool) -> str | None:
    """Write the user's ids of nodes, and add their files to the entries of a manifest; return what it says of them."""
    kind = write_node_names(folder, names)
    if kind:
        files[NODE_NAMES] = file_entry(folder / NODE_NAMES)
    if kind and id_map:
        write_id_map(folder / ID_MAP, names)
        files[ID_MAP] = file_entry(folder / ID_MAP)
    return kind


def write_node_names(folder: Path, names: np.ndarray | None) -> str | None:
    """Write the user's ids of nodes, if there are any: line i is the id of node i. Return ``"integers"`` or ``"text"``."""
    if names is None:
        return None
    with open(folder / NODE_NAMES, "wb") as file:
        for start in range(0, len(names), _NAMES):
            file.write("".join(f"{name}\n" for name in names[start : start + _NAMES].tolist()).encode())
    return "text" if names.dtype.kind == "U" else "integers"


def _write_links(folder: Path, graph: Graph, cut) -> dict | None:
    """Write the links and the new id of each node, if there are links; return what the manifest says of them."""
    links = graph.links
    if links is None:
        return None
    arrays = {**links.pairs, "new_ids": cut.new_ids()}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / LINKS)
    counts = {name: pairs.shape[1] for name, pairs in links.pairs.items()}
    relation = None if links.relation is None else list(links.relation)
    flags = {"is_undirected": links.is_undirected, "own_negatives": links.own_negatives}
    return {"pairs": counts, **flags, "relation": relation}


def write_part(graph: Graph | COOGraph, folder: Path, index: int, structure: dict) -> dict:
    """Write a part's three files; return their manifest entries."""
    (folder / f"part{index}").mkdir()
    written = {}
    for name in PART_FILES:
        if name == "structure.safetensors":
            arrays = structure
        elif name == "node_data.safetensors":
            ids = structure["node_ids"]
            arrays = {key: take_rows(value, of_type(graph, "node", key, ids)) for key, value in graph.node_data.items()}
        else:
            ids = graph.edge_rows(structure["edge_ids"])
            arrays = {key: take_rows(value, of_type(graph, "edge", key, ids)) for key, value in graph.edge_data.items()}
        path = folder / f"part{index}" / name
        save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, path)
        written[f"part{index}/{name}"] = file_entry(path)
    return written


def of_type(graph: Graph, kind: str, column: str, ids: np.ndarray) -> np.ndarray:
    """The rows of a column that some nodes or edges have, in their order."""
    if graph.schema is None:
        return ids
    of_type = graph.schema.rows_of(kind, column)
    return ids[(ids >= of_type.start) & (ids < of_type.stop)] - of_type.start


def _encodings(graph: Graph) -> dict:
    """The records of those encodings of a graph that its node data and edge data still hold."""
    columns = {"node_data": _columns(graph.node_data), "edge_data": _columns(graph.edge_data)}
    records = {}
    for name, record in graph.encodings.items():
        kind, described = encoding_columns(name, record)
        if all(columns[kind].get(each) == column for each, column in described.items()):
            records[name] = record
    return records


def _columns(data: dict) -> dict:
    return {
        key: {"dtype": str(value.dtype.newbyteorder("=")), "shape": list(value.shape[1:])}
        for key, value in data.items()  # files are little-endian, whatever the source's byte order
    }
