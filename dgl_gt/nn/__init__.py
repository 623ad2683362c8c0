"""Graph transformer layers and models. They read as single-device code, and run on one device or on many."""

from dgl_gt.ops.dropout import dropout_seed

from .activation_checkpoint import apply_activation_checkpoint
from .attention import BiasedMHA
from .batch_norm import BatchNorm
from .convert import from_dgl_sparse_gt, from_pyg_transformer_conv
from .convolution_layer import ConvolutionLayer, InitialResidual
from .dropout import Dropout, set_dropout_step
from .edge_features import EdgeEncoder, EdgeUpdate
from .feed_forward import SwiGLU
from .gat import GATConv
from .global_attention import Gate, PolynormerAttention, SGFormerAttention
from .graph_conv import GraphConv
from .hetero_conv import HeteroConv
from .hgt import HGTLayer
from .layer import GraphTransformerLayer
from .layered_model import LayeredModel
from .models import GNN, GraphTransformer, HeteroGraphTransformer, HopTokenTransformer, Polynormer
from .node_embedding import NodeEmbedding
from .precision import apply_precision
from .relational_conv import RelationalConv
from .transformer_conv import TransformerConv
from .typed_layer import TypedTransformerLayer
from .typed_linear import TypedLinear

__all__ = [
    "GNN",
    "BatchNorm",
    "BiasedMHA",
    "ConvolutionLayer",
    "Dropout",
    "EdgeEncoder",
    "EdgeUpdate",
    "GATConv",
    "Gate",
    "GraphConv",
    "GraphTransformer",
    "GraphTransformerLayer",
    "HGTLayer",
    "HeteroConv",
    "HeteroGraphTransformer",
    "HopTokenTransformer",
    "InitialResidual",
    "LayeredModel",
    "NodeEmbedding",
    "Polynormer",
    "PolynormerAttention",
    "RelationalConv",
    "SGFormerAttention",
    "SwiGLU",
    "TransformerConv",
    "TypedLinear",
    "TypedTransformerLayer",
    "apply_activation_checkpoint",
    "apply_precision",
    "dropout_seed",
    "from_dgl_sparse_gt",
    "from_pyg_transformer_conv",
    "set_dropout_step",
]
