"""A whole graph transformer: input projection, layers, output projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dgl_gt.exchange import as_strategy
from partition.predict.strategies import ACTIVATION_CHECKPOINTS

from .attention import check_features, check_probability, check_sizes
from .dropout import FeatureDropout, RowSequential, as_seed, draw_seeds
from .layer import SITES, GraphTransformerLayer

_MASK64 = 2**64 - 1


def dropout_seed(run_seed: int, step: int, layer: int, *site: int) -> int:
    """Seed of one layer's attention dropout in one training step, or, with a ``site``, of one of its feature dropouts.

    From state 0, each integer in turn is added to the state, and the next output of SplitMix64 (Steele, Lea and Flood,
    *Fast splittable pseudorandom number generators*, OOPSLA 2014) is the new state; the upper 63 bits of the last are
    the seed. It depends on the arguments alone, so every rank derives the same.

    Parameters
    ----------
    run_seed, step, layer, *site : int
        Any integers; taken modulo 2**64.

    Returns
    -------
    int
        In [0, 2**63).
    """
    state = 0
    for word in (run_seed, step, layer, *site):
        state = _splitmix64((state + word) & _MASK64)
    return state >> 1


def _splitmix64(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return state ^ (state >> 31)


class GraphTransformer(nn.Module):
    """Graph transformer for node-level prediction.

    A linear projection with dropout and GELU, layers of attention along edges (Dwivedi and Bresson, arXiv:2012.09699)
    with GELU inside, and a linear projection. With ``norm_first`` the layers are pre-norm and a LayerNorm precedes the
    last projection, as in the GT of Platonov et al. (arXiv:2302.11640).

    Parameters
    ----------
    in_dim : int
        Width of the node features.
    hidden : int
        ``C``, the width of the layers.
    out : int
        Width of the result: classes or targets.
    layers : int
        ``L``, at least 1.
    heads : int
        ``H``, a divisor of ``hidden``.
    ffn : int
        Width inside the feed-forward networks, as a multiple of ``hidden``.
    dropout : float
        Probability in [0, 1) of dropping a feature in training.
    attention_dropout : float
        Probability in [0, 1) of dropping an attention weight in training.
    norm_first : bool
        Normalise before attention and feed-forward network (and before the output), instead of after each residual.
    activation_checkpoint : {"none", "full", "keep_exchanges"}
        What a training step keeps of a layer for backward: all it needs, or its input alone, so that backward computes
        the layer again (Chen et al., arXiv:1604.06174). On ranks ``full`` then exchanges again, too, and ``keep_exchanges``
        keeps what the exchanges brought.

    Raises
    ------
    ValueError
        If a width or count is below 1, ``heads`` does not divide ``hidden``, or a probability is outside [0, 1).
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
        activation_checkpoint: str = "none",
    ):
        super().__init__()
        if activation_checkpoint not in ACTIVATION_CHECKPOINTS:
            raise ValueError(
                f"activation_checkpoint={activation_checkpoint!r} is unknown: choose one of {', '.join(ACTIVATION_CHECKPOINTS)}"
            )
        check_sizes(in_dim=in_dim, hidden=hidden, out=out, layers=layers, heads=heads, ffn=ffn)
        check_probability("dropout", dropout)
        check_probability("attention_dropout", attention_dropout)
        self.in_dim = in_dim
        self.activation_checkpoint = activation_checkpoint
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
            Node features; for blocks those of the first block's sources, for a ``ShardedGraph`` the owned nodes'.
        attn_bias : Tensor (E, H), or list of ``L`` such tensors, optional
            Added to the scores, in edge-id order. One tensor serves every layer; a list gives each layer its own, and
            blocks need a list, since their edges differ.

        Returns
        -------
        Tensor, (N_dst, out)
            One row for each node; for blocks, each destination of the last; for a ``ShardedGraph``, each owned node.

        Raises
        ------
        ValueError
            If a list does not have ``L`` entries, ``attn_bias`` is one tensor for a list of blocks, ``graph`` is of
            another type, or a shape does not fit.
        """
        check_features(feat, "in_dim", self.in_dim)
        views, biases = self._views(graph, feat.device), self._biases(graph, attn_bias)
        feat = views[0].input_rows(feat)
        ids = None if views[0].node_ids is None else views[0].node_ids[: len(feat)]
        *layer_seeds, encoder_seeds = self._seeds(views[0])
        h = self.encoder(feat, ids, encoder_seeds)
        for layer, view, bias, seeds in zip(self.layers, views, biases, layer_seeds, strict=True):
            h = self._run(layer, view, h, bias, seeds)
        return self.output(self.output_norm(h))

    def _seeds(self, view) -> list[Tensor] | list[None]:
        """Seeds of this pass's masks for each layer and the encoder, or Nones where none is missing.

        Drawn here and not where they are used, so that layers which are computed again find the same, and so that
        ranks agree once.
        """
        parts = len(self.layers) + 1
        if not any([part.lacks_seed for part in (*self.layers, self.encoder)]):
            return [None] * parts
        return list(view.agreed(draw_seeds(parts, SITES)))

    def _run(self, layer, view, h: Tensor, bias: Tensor | None, seeds: Tensor | None) -> Tensor:
        if self.activation_checkpoint == "none" or not torch.is_grad_enabled():
            return layer(view, h, bias, seeds)
        keeping = {"context_fn": view.kept_exchanges} if self.activation_checkpoint == "keep_exchanges" else {}
        return checkpoint(layer, view, h, bias, seeds, use_reentrant=False, **keeping)

    def set_dropout_step(self, run_seed: int, step: int) -> None:
        """Fix every dropout mask until the next call.

        Masks differ by layer and step, are the same on all ranks if each calls this with the same arguments, and do
        not depend on torch's generators, from which each training pass draws its masks otherwise. See
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

    def _views(self, graph, device) -> list:
        """The graph as each layer sees it."""
        if not isinstance(graph, (list, tuple)):
            if hasattr(graph, "blocks"):
                return graph.blocks(len(self.layers))
            return [as_strategy(graph, device)] * len(self.layers)
        if len(graph) != len(self.layers):
            raise ValueError(
                f"got {len(graph)} blocks for {len(self.layers)} layers: pass one block a layer "
                "(sample with as many fan-outs as there are layers), or one graph"
            )
        return [as_strategy(each, device) for each in graph]

    def _biases(self, graph, attn_bias) -> list:
        """The bias of each layer."""
        if isinstance(attn_bias, (list, tuple)):
            if len(attn_bias) != len(self.layers):
                raise ValueError(
                    f"got {len(attn_bias)} attention biases for {len(self.layers)} layers: "
                    "pass a list with one a layer, or (for one graph) a tensor for all"
                )
            return list(attn_bias)
        if attn_bias is not None and isinstance(graph, (list, tuple)):
            raise ValueError(
                "attn_bias is one tensor for a list of blocks, whose edges differ: "
                "pass a list with one (E, H) tensor for each block"
            )
        return [attn_bias] * len(self.layers)
