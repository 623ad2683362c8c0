"""A graph transformer layer: attention along edges, then a feed-forward network, each with a residual and a norm."""

from __future__ import annotations

from torch import Tensor, nn

from dgl_gt.exchange import Strategy, as_strategy
from dgl_gt.exchange.local import leading_rows
from partition.errors import check_flags

from .attention import BiasedMHA, check_features, check_probability, check_sizes
from .dropout import FeatureDropout, RowSequential, draw_seeds

SITES = 4  # dropouts of a layer: one on attention weights, two in the feed-forward network, one on attention's result


class GraphTransformerLayer(nn.Module):
    """A transformer layer whose attention runs along the edges of a graph.

    The layer of Graphormer (Ying et al., arXiv:2106.05234) with attention restricted to edges (Dwivedi and Bresson,
    arXiv:2012.09699). Constructor arguments, ``state_dict`` keys, initial weights and the order of operations are those
    of ``dgl.nn.GraphormerLayer``. So its checkpoints load, and the results on edges are the same, see
    :class:`BiasedMHA`.

    Parameters
    ----------
    feat_size : int
        ``C``, the width of the features.
    hidden_size : int
        Width inside the feed-forward network.
    num_heads : int
        ``H``, the number of heads, which divides ``feat_size``.
    attn_bias_type : {"add"}
        How ``attn_bias`` enters the scores; "mul" is not available on edges.
    norm_first : bool
        Whether to normalise before attention and before the feed-forward network, instead of after each residual.
    dropout : float
        Probability in [0, 1) of dropping a feature in training.
    attn_dropout : float
        Probability in [0, 1) of dropping an attention weight in training.
    activation : Module, optional
        Activation of the feed-forward network; ``nn.ReLU()`` by default.

    Raises
    ------
    ValueError
        If ``hidden_size`` is below 1, a probability is outside [0, 1), or :class:`BiasedMHA` refuses its arguments.
    """

    def __init__(
        self,
        feat_size: int,
        hidden_size: int,
        num_heads: int,
        attn_bias_type: str = "add",
        norm_first: bool = False,
        dropout: float = 0.1,
        attn_dropout: float = 0.1,
        activation: nn.Module | None = None,
    ):
        super().__init__()
        check_sizes(hidden_size=hidden_size)
        check_flags(norm_first=norm_first)
        check_probability("dropout", dropout)
        self.norm_first = norm_first
        self.attn = BiasedMHA(feat_size, num_heads, attn_bias_type=attn_bias_type, attn_drop=attn_dropout)
        self.ffn = RowSequential(
            nn.Linear(feat_size, hidden_size),
            nn.ReLU() if activation is None else activation,
            FeatureDropout(dropout),
            nn.Linear(hidden_size, feat_size),
            FeatureDropout(dropout),
        )
        self.dropout = FeatureDropout(dropout)
        self.attn_layer_norm = nn.LayerNorm(feat_size)
        self.ffn_layer_norm = nn.LayerNorm(feat_size)

    @property
    def lacks_seed(self) -> bool:
        """Whether the next pass draws seeds of dropout masks unless its caller gives them."""
        return self.attn.lacks_seed or self.ffn.lacks_seed or self.dropout.lacks_seed

    def draw_seeds(self, strategy: Strategy) -> Tensor | None:
        """Return new seeds of one pass's dropout masks, the same on all ranks; None where the pass needs none."""
        return strategy.broadcast(draw_seeds(SITES)) if self.lacks_seed else None

    def forward(self, graph, feat: Tensor, attn_bias: Tensor | None = None, seeds: Tensor | None = None) -> Tensor:
        """Run the layer on ``graph``.

        Parameters
        ----------
        graph, feat, attn_bias
            See :meth:`BiasedMHA.forward`, which also says what is raised.
        seeds : Tensor, int64, (4,), on the CPU, optional
            Seeds of this pass's dropout masks where none is set, the same on all ranks: one for attention weights, two
            for the feed-forward network, and one for attention's result. By default each pass in training draws them
            from torch's default CPU generator, and all ranks take the seeds that rank 0 draws.

        Returns
        -------
        Tensor, (N_dst, C)
            One row for each destination.
        """
        check_features(feat, "feat_size", self.attn.feat_size)
        strategy = as_strategy(graph, feat.device)
        feat = strategy.source_rows(feat)
        residual = leading_rows(feat, strategy.num_owned)
        ids = None if strategy.node_ids is None else leading_rows(strategy.node_ids, strategy.num_owned)
        if seeds is None:
            seeds = self.draw_seeds(strategy)
        attention_seed, ffn_seeds, seed = (None,) * 3 if seeds is None else (seeds[0], seeds[1:3], seeds[3])
        rows = self.attn_layer_norm(feat) if self.norm_first else feat
        attended = self.attn(strategy, rows, attn_bias, attention_seed)
        h = residual + self.dropout(attended, ids, seed)
        if self.norm_first:
            return h + self.ffn(self.ffn_layer_norm(h), ids, ffn_seeds)
        h = self.attn_layer_norm(h)
        return self.ffn_layer_norm(h + self.ffn(h, ids, ffn_seeds))
