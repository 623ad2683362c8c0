"""A whole graph transformer: input projection, layers, output projection."""

from __future__ import annotations

from torch import Tensor, nn

from dgl_gt.exchange import strategies_of_layers
from dgl_gt.model_limits import MODEL_LIMITS
from partition.errors import check_flags, whole_number

from .attention import check_features, check_probability, check_sizes
from .dropout import FeatureDropout, RowSequential, as_seed, draw_seeds, dropout_seed
from .layer import SITES, GraphTransformerLayer


class GraphTransformer(nn.Module):
    """Graph transformer for node-level prediction.

    It has a linear projection with dropout and GELU, layers of attention along edges (Dwivedi and Bresson,
    arXiv:2012.09699) with GELU inside, and a linear projection. With ``norm_first`` the layers are pre-norm and a
    LayerNorm precedes the last projection, as in the GT of Platonov et al. (arXiv:2302.11640). To save memory in
    training, see :func:`apply_activation_checkpoint`.

    Parameters
    ----------
    in_dim : int
        Width of the node features.
    hidden : int
        ``C``, the width of the layers.
    out : int
        Width of the result: number of classes or targets.
    layers : int
        ``L``, the number of layers, at least 1.
    heads : int
        ``H``, the number of heads, which divides ``hidden``.
    ffn : int
        Width inside the feed-forward networks, as a multiple of ``hidden``.
    dropout : float
        Probability in [0, 1) of dropping a feature in training.
    attention_dropout : float
        Probability in [0, 1) of dropping an attention weight in training.
    norm_first : bool
        Whether to normalise before attention, the feed-forward network and the output, instead of after each residual.

    Raises
    ------
    ValueError
        If a width or count is below 1, there are more than 1,000 layers, ``heads`` does not divide ``hidden``, or a probability is outside [0, 1).
    """

    def __init__(
        self,
        in_dim: int,
        hidden: int,
        out: int,
        layers: int,
        heads: int,
        ffn: int = 2,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        norm_first: bool = True,
    ):
        super().__init__()
        check_sizes(in_dim=in_dim, hidden=hidden, out=out, heads=heads, ffn=ffn)
        layers = whole_number("layers", layers, *MODEL_LIMITS["layers"])
        check_flags(norm_first=norm_first)
        check_probability("dropout", dropout)
        check_probability("attention_dropout", attention_dropout)
        self.in_dim = in_dim
        self.encoder = RowSequential(nn.Linear(in_dim, hidden), FeatureDropout(dropout), nn.GELU())
        self.layers = nn.ModuleList(
            GraphTransformerLayer(
                hidden,
                ffn * hidden,
                heads,
                norm_first=norm_first,
                dropout=dropout,
                attn_dropout=attention_dropout,
                activation=nn.GELU(),
            )
            for _ in range(layers)
        )
        self.output_norm = nn.LayerNorm(hidden) if norm_first else nn.Identity()
        self.output = nn.Linear(hidden, out)

    def forward(self, graph, feat: Tensor, attn_bias=None) -> Tensor:
        """Predict for the destinations of ``graph``.

        Parameters
        ----------
        graph : DGLGraph, CSC, ShardedGraph, or list of ``L`` DGL blocks
            A list gives each layer its own block, outermost first, as DGL's samplers return them.
        feat : Tensor, floating point, (N_src, in_dim)
            Node features, as :meth:`BiasedMHA.forward` takes them; for blocks those of the first block's sources.
        attn_bias : Tensor (E, H), or list of ``L`` such tensors, optional
            Term added to the scores, in the order of edge ids. One tensor is used by every layer; a list gives each
            layer its own tensor. Blocks need a list, because their edges differ.

        Returns
        -------
        Tensor, (N_dst, out)
            One row for each destination; for blocks, for each one of the last block.

        Raises
        ------
        ValueError
            If a list does not have ``L`` entries, ``attn_bias`` is one tensor for a list of blocks, ``graph`` is of
            another type, or a shape does not fit.
        """
        check_features(feat, "in_dim", self.in_dim)
        strategies = strategies_of_layers(graph, len(self.layers), feat.device)
        biases, first = self._biases(graph, attn_bias), strategies[0]
        feat = first.input_rows(feat)
        ids = None if first.node_ids is None else first.node_ids[: len(feat)]
        *layer_seeds, encoder_seeds = self._seeds(first)
        h = self.encoder(feat, ids, encoder_seeds)
        for layer, strategy, bias, seeds in zip(self.layers, strategies, biases, layer_seeds, strict=True):
            h = layer(strategy, h, bias, seeds)
        return self.output(self.output_norm(h))

    def _seeds(self, strategy) -> list[Tensor] | list[None]:
        """Return seeds of this pass's masks for each layer and for the encoder, or Nones where all seeds are set.

        They are drawn all at once, so that the ranks communicate once.
        """
        parts = len(self.layers) + 1
        if not any([part.lacks_seed for part in (*self.layers, self.encoder)]):
            return [None] * parts
        return list(strategy.broadcast(draw_seeds(parts, SITES)))

    def set_dropout_step(self, run_seed: int, step: int) -> None:
        """Fix every dropout mask until the next call.

        Masks differ by layer and step, and are the same on all ranks if each rank calls this with the same arguments.
        They do not depend on torch's generators, from which each pass in training draws its masks otherwise. See
        :func:`dropout_seed`.

        Parameters
        ----------
        run_seed, step : int
            Any integers.
        """
        for index, layer in enumerate([*self.layers, self.encoder]):
            if index < len(self.layers):
                layer.attn.dropout_seed = dropout_seed(run_seed, step, index)
            sites = [module for module in layer.modules() if isinstance(module, FeatureDropout)]
            for site, module in enumerate(sites):
                module.seed = as_seed(dropout_seed(run_seed, step, index, site))

    def _biases(self, graph, attn_bias) -> list:
        """Return the bias of each layer."""
        if isinstance(attn_bias, (list, tuple)):
            if len(attn_bias) != len(self.layers):
                raise ValueError(
                    f"got {len(attn_bias)} attention biases for {len(self.layers)} layers; pass a list with one bias "
                    "for each layer, or (for one graph) one tensor for all layers"
                )
            return list(attn_bias)
        if attn_bias is not None and isinstance(graph, (list, tuple)):
            raise ValueError(
                "attn_bias is one tensor for a list of blocks, whose edges differ; pass a list with one (E, H) tensor "
                "for each block"
            )
        return [attn_bias] * len(self.layers)
