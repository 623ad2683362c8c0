"""Tuned GNNs, and Polynormer, which is one of them with a gate and global attention."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from dgl_gt.exchange.view import View
from dgl_gt.model_config import GNNConfig, PolynormerConfig
from dgl_gt.settings import describing

from ..convolution_layer import ConvolutionLayer
from .node_model import NodeModel


@describing(GNNConfig, "architecture", "layers", "hidden", "heads", "dropout")
class GNN(NodeModel):
    """Graph neural network for node-level prediction on one graph: layers of :class:`ConvolutionLayer`.

    With ``score`` "gcn", "mean" or "additive" these are the tuned GCN, SAGE and GAT of Luo et al. (arXiv:2406.08993),
    with the residual "initial" GCNII (Chen et al., arXiv:2007.02133). docs/models.md has the options of each.

    Attributes
    ----------
    config : GNNConfig
    uses_global : bool
        See :class:`GraphTransformer`.

    Parameters
    ----------
    in_dim, hidden, out, layers, heads : int
        See :class:`GraphTransformer`.
    **options
        The settings of the architecture, by name: ``dropout``, by default 0, and those below. With the input "none", the first layer
        takes the features themselves.

    Raises
    ------
    ValueError
        An option is out of range or contradicts another one; the message names it and says what is allowed.
    """

    Config: ClassVar = GNNConfig
    config: GNNConfig

    def __init__(self, in_dim: int, hidden: int, out: int, layers: int, heads: int, **options):
        super().__init__(in_dim, hidden, out, layers, heads, options)
        config = self.config
        for index in range(layers):
            layer = ConvolutionLayer(
                in_dim if config.input == "none" and not index else hidden,
                hidden,
                heads,
                score=config.score,
                residual=config.residual,
                norm=config.norm,
                norm_first=config.norm_first,
                gate=config.gate,
                gate_start=config.gate_start,
                dropout=config.dropout,
                attn_dropout=config.attention_dropout,
                layer=index + 1,
                initial_weight=config.initial_weight,
                map_weight=config.map_weight,
            )
            self.layers.append(layer)
        self._make_end(nn.Identity())

    def _for_all_layers(self, h: Tensor, view: View) -> dict[str, Tensor]:
        # With a deep halo, later layers also compute copies of rows, whose initial rows are among the first layer's sources.
        return {"initial": view.source_rows(h)} if self.config.residual == "initial" else {}

    def _gate_of_global(self) -> tuple[str, float]:
        config = self.config
        return super()._gate_of_global() if config.gate == "none" else (config.gate, config.gate_start)


@describing(PolynormerConfig, "architecture", "layers", "hidden", "heads", "dropout")
class Polynormer(GNN):
    """Polynormer (Deng et al., arXiv:2403.01232): a GAT with gates whose layers are summed, then global attention.

    Attributes
    ----------
    config : PolynormerConfig
    uses_global : bool
        See :class:`GraphTransformer`.

    Parameters
    ----------
    in_dim, hidden, out, layers, heads : int
        See :class:`GraphTransformer`.
    **options
        The settings of the architecture, by name: ``dropout``, by default 0, and those below.

    Raises
    ------
    ValueError
        An option is out of range or contradicts another one; the message names it and says what is allowed.
    """

    Config: ClassVar = PolynormerConfig
