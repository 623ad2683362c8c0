"""What the name of a file says of how to read it."""

from __future__ import annotations

from pathlib import Path

TEXT_TABLES = (".csv", ".tsv", ".txt")
EDGE_LISTS = (*TEXT_TABLES, ".edges", ".edgelist", ".el")
NETWORKX_FILES = (".graphml", ".gml", ".gexf", ".net", ".json")
KINDS = (".npz", ".npy", ".bin", ".dgl", ".graph", ".mtx", ".mat", *EDGE_LISTS, *NETWORKX_FILES)
ALLOWED = (
    ".npz, .npy, .bin or .dgl (dgl.save_graphs), .csv, .tsv, .txt, .edges, .edgelist or .el (an edge list), .graph "
    "(METIS), .mtx (Matrix Market), these also with .gz, .mat (MATLAB), .graphml, .gml, .gexf, .net (Pajek), .json "
    "(node-link), dgl:NAME, ogb:NAME, sample:communities; in Python also a DGLGraph, a networkx graph, a scipy matrix and an "
    "array (2, E) of edges"
)


def file_kind(path: Path) -> str:
    """Return the suffix that tells how to read a file, without ``.gz`` if its reader unpacks it."""
    suffix = path.suffix.lower()
    packed = Path(path.stem).suffix.lower()
    return packed if suffix == ".gz" and packed in (*EDGE_LISTS, ".graph", ".mtx") else suffix
