"""Whole models for nodes, a class for each architecture."""

from collections.abc import Mapping

from dgl_gt.model_config import GraphTransformerConfig, ModelConfig
from dgl_gt.partition.errors import InputError

from .gnn import GNN, Polynormer
from .graph_transformer import GraphTransformer
from .hetero import HeteroGraphTransformer
from .hop_tokens import HopTokenTransformer
from .node_model import NodeModel

MODELS: dict[type[ModelConfig], type[NodeModel]] = {each.Config: each for each in (GraphTransformer, GNN, Polynormer)}


def make_model(
    config: ModelConfig,
    in_dim: int | Mapping[str, int],
    out: int,
    relations=None,
    token_width: int = 0,
    **edge_widths: int,
) -> NodeModel | HeteroGraphTransformer | HopTokenTransformer:
    """The model of a config; ``edge_widths`` are its ``edge_feats`` and ``edge_kinds``, where it takes them.

    For a typed graph, ``in_dim`` has the width of each node type, and ``relations`` are those of the graph. With
    ``token_width``, these are widths of hop tokens.
    """
    given = {name: width for name, width in edge_widths.items() if width}
    if not isinstance(in_dim, Mapping):
        return MODELS[type(config)](in_dim, out=out, **vars(config), **given)
    if not isinstance(config, GraphTransformerConfig):
        raise InputError(f"architecture is {config.architecture!r}, and the graph is typed; choose 'transformer'")
    if token_width:
        return HopTokenTransformer(
            in_dim, out=out, relations=relations, token_width=token_width, **vars(config), **given
        )
    return HeteroGraphTransformer(in_dim, out=out, relations=relations, **vars(config), **given)
