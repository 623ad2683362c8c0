"""Attention over the edges of a graph: the operation, the structure it reads, and the merge of partial results.

``csc`` and ``merge`` are both modules here and functions inside them; only the modules go by these names in this
package, and the functions are ``dgl_gt.csc`` and ``dgl_gt.merge``.
"""

from dgl_gt.structure import CSC

from .attention import sparse_attention
from .dropout import keyed_dropout

__all__ = ["CSC", "keyed_dropout", "sparse_attention"]
