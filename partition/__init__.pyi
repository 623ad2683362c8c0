"""What type checkers read of the names that ``__init__.py`` loads lazily."""

from partition.cuts.edge_cut import EdgeCut as EdgeCut
from partition.cuts.edge_cut import make_edge_cut as make_edge_cut
from partition.cuts.vertex_cut import VertexCut as VertexCut
from partition.cuts.vertex_cut import make_vertex_cut as make_vertex_cut
from partition.encodings.encode import encode as encode
from partition.errors import InputError as InputError
from partition.errors import LeftOutWarning as LeftOutWarning
from partition.errors import SourceWarning as SourceWarning
from partition.graph import Graph as Graph
from partition.graph import from_edges as from_edges
from partition.pipeline import partition as partition
from partition.predict.costs import Costs as Costs
from partition.predict.costs import default_costs as default_costs
from partition.predict.costs import read_costs as read_costs
from partition.predict.figures import Figures as Figures
from partition.predict.profile import Profile as Profile
from partition.predict.profile import read_profile as read_profile
from partition.report.write import write_report as write_report
from partition.shards.counts import read_figures as read_figures
from partition.shards.dgl_export import export_dgl as export_dgl
from partition.shards.dgl_import import import_dgl as import_dgl
from partition.shards.manifest import read_manifest as read_manifest
from partition.shards.manifest import verify as verify
from partition.shards.node_names import read_node_names as read_node_names
from partition.sources.load import load_graph as load_graph
from partition.transforms import add_expander_edges as add_expander_edges
from partition.transforms import add_virtual_nodes as add_virtual_nodes

DGL_GT: bool
