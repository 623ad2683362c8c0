"""What all layers of a model have in common: how a layer and its caller share the seeds of dropout masks."""

from __future__ import annotations

from torch import Tensor, nn

from dgl_gt.exchange import Strategy

from .attention import EdgeAttention
from .dropout import FeatureDropout, draw_seeds

SITES = 4  # the most dropouts of a layer


class GraphLayer(nn.Module):
    """Base class of layers; its ``forward(graph, feat, attn_bias=None, seeds=None)`` is that of the transformer layer."""

    @property
    def lacks_seed(self) -> bool:
        """Whether the next pass draws seeds of dropout masks unless its caller gives them."""
        dropouts = [module for module in self.modules() if isinstance(module, (EdgeAttention, FeatureDropout))]
        return any([module.lacks_seed for module in dropouts])

    def draw_seeds(self, strategy: Strategy) -> Tensor | None:
        """Return new seeds of one pass's dropout masks, the same on all ranks; None where the pass needs none."""
        return strategy.broadcast(draw_seeds(SITES)) if self.lacks_seed else None
