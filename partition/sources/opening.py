"""Opening one source of a graph: which reader a path, a name or an object goes to."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy  # imports its parts at their first use

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import Graph
from dgl_gt.partition.system.storage import located
from dgl_gt.partition.system.user_files import regular_file

from . import sample
from .coo import COOGraph
from .dgl_chunks import read_dgl_chunks
from .edge_list import read_edge_list
from .folders import meta_of_types, metadata_of_chunks, raw_folder
from .matrices import from_array, from_pair, from_scipy, is_matrix_market, read_matlab, read_matrix_market
from .matrix_archive import read_matrix_archive
from .metis_file import read_metis
from .numpy_file import read_npy, read_npz
from .ogb_folder import read_ogb_folder
from .options import SourceOptions, split_source_name
from .table_files import fetched
from .typed_npz import is_typed_npz, read_typed_npz

TEXT_TABLES = (".csv", ".tsv", ".txt")
_EDGE_LISTS = (*TEXT_TABLES, ".edges", ".edgelist", ".el")
_NETWORKX_FILES = (".graphml", ".gml", ".gexf", ".net", ".json")
_MATRICES = (".mtx", ".mat", ".tar", ".tgz")
_KINDS = (".npz", ".npy", ".bin", ".dgl", ".pt", ".graph", *_MATRICES, *_EDGE_LISTS, *_NETWORKX_FILES)
_ALLOWED = (
    ".npz, .npy, .bin or .dgl (dgl.save_graphs), .pt (a Data or HeteroData of PyG), .csv, .tsv, .txt, .edges, .edgelist or .el (an edge list), .parquet, a folder, a pattern or an address of tables, .graph "
    "(METIS), .mtx (Matrix Market), .tar (of SuiteSparse), these also with .gz, .mat (MATLAB), .graphml, .gml, .gexf, .net (Pajek), .json "
    "(node-link), a directory of DGL's chunked format, of OGB's raw files or with a meta.yaml, dgl:NAME, pyg:NAME, ogb:NAME, sample:communities; in Python also a DGLGraph, a Data or HeteroData of PyG, a networkx graph, a scipy matrix and an "
    "array (2, E) of edges"
)
_SAMPLE_OPTIONS = {"nodes": int, "degree": float, "classes": int, "features": int, "signal": float, "seed": int}


def open_graph(source, options: SourceOptions) -> Graph | COOGraph:
    if isinstance(source, Graph):
        return source
    if isinstance(source, os.PathLike):
        return _open_file(Path(source), options)
    if isinstance(source, str):
        return _open_named(source, options)
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return from_pair(*source)
    if isinstance(source, np.ndarray):
        return from_array(source)
    if scipy.sparse.issparse(source):
        return from_scipy(source)
    # an object of another library exists only if that library has been imported, so nothing is imported to find out
    if "dgl" in sys.modules and isinstance(source, sys.modules["dgl"].DGLGraph):
        from .dgl_graphs import from_dgl

        return from_dgl(source)
    if "torch_geometric.data.data" in sys.modules and isinstance(
        source, sys.modules["torch_geometric.data.data"].BaseData
    ):
        from .pyg_graphs import from_pyg

        return from_pyg(source)
    if "networkx" in sys.modules and isinstance(source, sys.modules["networkx"].Graph):
        from .networkx_graphs import from_networkx

        return from_networkx(source)
    if "torch" in sys.modules and isinstance(source, sys.modules["torch"].Tensor):
        return from_array(source)
    raise InputError(
        f"a graph cannot be loaded from an object of type {type(source).__name__}; pass a path, a name, a DGLGraph, a "
        "Data of PyG, a networkx graph, a scipy matrix, an array (2, E) of edges or a tuple (src, dst), or make a Graph with "
        "dgl_gt.partition.from_edges(src, dst)"
    )


def _open_named(source: str, options: SourceOptions) -> Graph | COOGraph:
    if source.startswith("dgl:"):
        from .dgl_graphs import dgl_dataset

        return dgl_dataset(source)
    if source.startswith("pyg:"):
        from .pyg_datasets import pyg_dataset

        return pyg_dataset(source)
    if source.startswith("ogb:"):
        from .ogb_datasets import ogb_dataset

        return ogb_dataset(source)
    if source.startswith("sample:"):
        name, values = split_source_name(source, _SAMPLE_OPTIONS)
        if name != "communities":
            raise InputError(f"{source!r}: there is no sample graph {name!r}; the only one is sample:communities")
        return replace(sample.communities(**values), name=source)
    place = located(source, is_source=True)
    if isinstance(place, Path):
        return _open_file(place, options)
    with tempfile.TemporaryDirectory(prefix="dgl-gt-") as folder:
        ((path, _),) = fetched(place, Path(folder))
        try:
            return replace(_open_file(path, options), name=source)
        except InputError as error:
            raise InputError(str(error).replace(str(path), source)) from error


def _open_file(path: Path, options: SourceOptions) -> COOGraph:
    if (metadata := metadata_of_chunks(path)) is not None:
        return read_dgl_chunks(metadata)
    if (raw := raw_folder(path)) is not None:
        return read_ogb_folder(raw)
    if (meta := meta_of_types(path)) is not None:
        from .typed_tables import read_typed_tables

        return read_typed_tables(meta, options)
    kind = file_kind(path)
    if kind not in _KINDS:
        looks_like_data_set = re.fullmatch(r"[A-Za-z][\w-]{,99}", str(path)) and not os.path.lexists(path)
        hint = f"; for a data set write ogb:{path}, pyg:{path} or dgl:{path}" if looks_like_data_set else ""
        raise InputError(f"{str(path)!r} does not name a graph; allowed are {_ALLOWED}{hint}")
    path = regular_file(path)
    if kind in (".tar", ".tgz"):
        return read_matrix_archive(path)
    if kind == ".mtx" or (kind in _EDGE_LISTS and is_matrix_market(path)):
        return read_matrix_market(path)
    if kind in _EDGE_LISTS:
        return read_edge_list(path, options.ids)
    if kind in _NETWORKX_FILES:
        from .networkx_graphs import read_networkx_file

        return read_networkx_file(path)
    if kind in (".bin", ".dgl"):
        from .dgl_graphs import read_dgl_file

        return read_dgl_file(path)
    if kind == ".pt":
        from .pyg_graphs import read_pyg_file

        return read_pyg_file(path)
    if kind == ".npz" and is_typed_npz(path):
        return read_typed_npz(path)
    if kind in (".npz", ".mat"):
        return (read_npz if kind == ".npz" else read_matlab)(path, options.keys)
    return (read_npy if kind == ".npy" else read_metis)(path)


def file_kind(path: Path) -> str:
    """Return the suffix that tells how to read a file, without ``.gz`` if its reader unpacks it."""
    suffix = path.suffix.lower()
    packed = Path(path.stem).suffix.lower()
    return packed if suffix == ".gz" and packed in (*_EDGE_LISTS, ".graph", ".mtx", ".tar") else suffix
