"""The offline package under its documented name: ``dgl_gt.partition`` is a facade of the top-level ``partition``."""

import partition as _package

if not hasattr(_package, "DGL_GT"):
    _home = getattr(_package, "__file__", None) or list(_package.__path__)
    raise ImportError(
        f"the package 'partition' at {_home} is not dgl-gt's: another distribution "
        "or a local folder of that name hides it; uninstall or rename that one"
    )

from partition import EdgeCut, Graph, InputError, edge_cut, from_edges, load_graph, partition, read_manifest, verify

__all__ = [
    "EdgeCut",
    "Graph",
    "InputError",
    "edge_cut",
    "from_edges",
    "load_graph",
    "partition",
    "read_manifest",
    "verify",
]
