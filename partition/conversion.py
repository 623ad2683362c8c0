"""Any source as one ``.npz`` file, for those who want to look at a graph before they cut it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dgl_gt.partition.sources.coo import COOGraph
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.sources.options import SourceOptions
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file

from .errors import InputError
from .graph import SPLIT_MASKS, Graph
from .schema import Schema

_ADDED = {"undirected", "self_loops", "self_loop_fill", "reverse_kind", "random_features"}
_STANDARD = ("feat", "label", *SPLIT_MASKS)


def convert(source, out, *, force: bool = False, **options) -> Graph | COOGraph:
    """Read a source and write it as an uncompressed ``.npz`` file, which :func:`dgl_gt.partition.partition` maps.

    Parameters
    ----------
    source, options
        See :func:`dgl_gt.partition.load_graph`; not those that add edges or features, which belong to partitioning.
    out : path
        The ``.npz`` file to write; it appears when it is complete.
    force : bool
        Replace ``out`` if it exists.

    Returns
    -------
    Graph or COOGraph
        What was read, with the notes on it.

    Raises
    ------
    InputError
        The source or an argument is wrong; nothing has been written.
    """
    if Path(out).suffix != ".npz":
        raise InputError(f"out (--out) is {out}; it must end in .npz")
    if added := sorted(_ADDED & options.keys()):
        raise InputError(f"{added[0]} is no option of convert, which adds nothing; give it to partition")
    check_file(out, force=force)
    graph = open_source(source, SourceOptions(**options))
    for name, of_what in (
        ("link_split", "a split of links"),
        ("transforms", "added edges or nodes"),
        ("encodings", "encodings"),
    ):
        if getattr(graph, name):
            raise InputError(f"{graph.name} has {of_what}, for which an .npz file has no place; partition it as it is")
    with new_file(out, force=force) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        src, dst = graph.edges() if isinstance(graph, Graph) else (graph.src, graph.dst)
        for name, ends in _edges(graph.schema, src, dst):
            _write(archive, name, np.result_type(*ends), (2, len(ends[0])), ends)
        for name, array in _arrays(graph).items():
            array = np.ascontiguousarray(array)
            _write(archive, name, array.dtype, array.shape, (array,))
    return graph


def _edges(schema: Schema | None, src: np.ndarray, dst: np.ndarray) -> Iterator[tuple[str, tuple]]:
    """Yield the edges, or those of each relation by numbers within their types, with the key in the file."""
    if schema is None:
        yield "edge_index", (src, dst)
        return
    for relation, at, to, types in zip(schema.edges, schema.edge_ptr, schema.edge_ptr[1:], schema.ends):
        first = schema.node_ptr[types].astype(src.dtype)
        yield f"edge_index/{relation}", (src[at:to] - first[0], dst[at:to] - first[1])


def _arrays(graph: Graph | COOGraph) -> dict[str, np.ndarray]:
    """Return all but the edges by the keys of docs/cli.md. Labels of classes with names are these names."""
    if graph.schema is not None:
        return _typed_arrays(graph, graph.schema)
    arrays = {"num_nodes": np.array(graph.num_nodes), "name": np.array(graph.name)}
    arrays["node_type"] = np.array(graph.node_type)
    arrays["directed"] = np.array(isinstance(graph, Graph) or not graph.listed_once)
    if graph.node_names is not None:
        arrays["node_names"] = graph.node_names
    for name, array in graph.node_data.items():
        array = _as_words(array, graph.class_names) if name == "label" else array
        arrays[name if name in _STANDARD else f"node_data_{name}"] = array
    return arrays | {f"edge_data_{name}": array for name, array in graph.edge_data.items()}


def _typed_arrays(graph: Graph | COOGraph, schema: Schema) -> dict[str, np.ndarray]:
    counts = [*schema.nodes.values()]
    arrays = {"node_types": np.array([*schema.nodes]), "num_nodes": np.array(counts), "name": np.array(graph.name)}
    if graph.node_names is not None:
        pieces = zip(schema.nodes, schema.node_ptr, schema.node_ptr[1:])
        arrays |= {f"node_names/{name}": graph.node_names[at:to] for name, at, to in pieces}
    for name, array in graph.node_data.items():
        arrays[f"node_data/{name}"] = _as_words(array, graph.class_names) if name.endswith("/label") else array
    return arrays | {f"edge_data/{name}": array for name, array in graph.edge_data.items()}


def _as_words(label: np.ndarray, class_names: tuple[str, ...] | None) -> np.ndarray:
    """Labels as the names of their classes, where these have names."""
    if class_names is None:
        return label
    codes = np.nan_to_num(label.astype(np.float64), nan=-1).astype(np.int64)
    return np.array([*class_names, ""])[codes]  # no label: -1, and so the last


def _write(archive: zipfile.ZipFile, name: str, dtype: np.dtype, shape: tuple[int, ...], rows) -> None:
    """Write an array from parts that follow each other, without a copy of all of it."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in rows:
            for start in range(0, max(1, len(part) if part.ndim else 1), 1 << 18):
                piece = part[start : start + (1 << 18)] if part.ndim else part
                file.write(piece.astype(dtype, copy=False).tobytes())
