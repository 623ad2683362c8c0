"""Graph transformer layers and models; they read as single-device code and run on whatever graph they are given."""

from .attention import BiasedMHA
from .layer import GraphTransformerLayer
from .model import GraphTransformer, dropout_seed

__all__ = ["BiasedMHA", "GraphTransformer", "GraphTransformerLayer", "dropout_seed"]
