"""The offline package under its documented name: ``dgl_gt.partition`` is a facade of the top-level ``partition``."""

from partition import (
    EdgeCut,
    Graph,
    InputError,
    Model,
    from_edges,
    load_graph,
    make_edge_cut,
    partition,
    read_manifest,
    verify,
)

__all__ = [
    "EdgeCut",
    "Graph",
    "InputError",
    "Model",
    "from_edges",
    "load_graph",
    "make_edge_cut",
    "partition",
    "read_manifest",
    "verify",
]
