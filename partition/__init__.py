"""Offline graph partitioning for distributed graph transformers: a graph in, shards out.

Imports neither torch nor dgl; every name below loads its module at first use.
"""

from importlib import import_module

DGL_GT = True  # lets dgl_gt.partition tell this package from another of its name

_HOMES = {
    "Graph": "graph",
    "from_edges": "graph",
    "load_graph": "sources.load",
    "InputError": "errors",
    "Model": "predict.traffic",
    "EdgeCut": "cuts.edge_cut",
    "make_edge_cut": "cuts.edge_cut",
    "partition": "pipeline",
    "read_manifest": "shards.manifest",
    "verify": "shards.manifest",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
