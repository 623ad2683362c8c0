"""Graph transformer layers and models. They read as single-device code, and run on one device or on many."""

from .activation_checkpoint import apply_activation_checkpoint
from .attention import BiasedMHA
from .dropout import dropout_seed
from .gat import GATConv
from .layer import GraphTransformerLayer
from .model import GraphTransformer
from .precision import apply_precision

__all__ = [
    "BiasedMHA",
    "GATConv",
    "GraphTransformer",
    "GraphTransformerLayer",
    "apply_activation_checkpoint",
    "apply_precision",
    "dropout_seed",
]
