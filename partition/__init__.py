"""Offline graph partitioning for distributed graph transformers: a graph in, shards out.

This package imports neither torch nor dgl. Each public name below is loaded from its module at first use.
"""

from .lazy_names import lazy_names

_MODULES = {
    # the whole way, from a source to shards
    "partition": "pipeline",
    "DaskEngine": "distributed.engine",
    # sources -> Graph
    "Graph": "graph",
    "from_edges": "graph",
    "from_relations": "relations",
    "Schema": "schema",
    "load_graph": "sources.load",
    "convert": "conversion",
    # Graph -> Graph with structural encodings
    "encode": "transforms.encode",
    # Graph -> Graph with more edges and nodes
    "add_expander_edges": "transforms.exphormer",
    "add_virtual_nodes": "transforms.exphormer",
    # Graph -> assignment
    "EdgeCut": "cuts.edge_cut",
    "make_edge_cut": "cuts.edge_cut",
    "VertexCut": "cuts.vertex_cut",
    "make_vertex_cut": "cuts.vertex_cut",
    # what a training step costs
    "Costs": "figures.costs",
    "read_costs": "figures.costs",
    "default_costs": "figures.costs",
    # ranks that will train, and the links between them
    "Profile": "figures.profile",
    "read_profile": "figures.profile",
    # shards on disk
    "Figures": "figures.figures",
    "read_manifest": "shards.manifest",
    "read_figures": "shards.counts",
    "verify": "shards.files",
    "read_node_names": "shards.files",
    "export_dgl": "shards.dgl_export",
    "import_dgl": "shards.dgl_import",
    "write_report": "report.write",
    # errors
    "InputError": "errors",
    "LeftOutWarning": "errors",
    "SourceWarning": "errors",
}
__all__ = sorted(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, {name: f"{__name__}.{home}" for name, home in _MODULES.items()})
