"""Whole models for nodes, a class for each architecture."""

from dgl_gt.model_config import ModelConfig

from .gnn import GNN, Polynormer
from .graph_transformer import GraphTransformer
from .node_model import NodeModel

MODELS: dict[type[ModelConfig], type[NodeModel]] = {each.Config: each for each in (GraphTransformer, GNN, Polynormer)}


def make_model(config: ModelConfig, in_dim: int, out: int, **edge_widths: int) -> NodeModel:
    """The model of a config; ``edge_widths`` are its ``edge_feats`` and ``edge_kinds``, where it takes them."""
    given = {name: width for name, width in edge_widths.items() if width}
    return MODELS[type(config)](in_dim, out=out, **vars(config), **given)
