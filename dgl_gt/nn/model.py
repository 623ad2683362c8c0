"""A whole model for nodes: input projection, layers, optionally global attention, output projection."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor, nn

from dgl_gt.exchange.as_view import views_of
from dgl_gt.exchange.local import Local, leading_rows
from dgl_gt.exchange.view import View
from dgl_gt.model_config import ModelConfig
from dgl_gt.partition.errors import check_flags

from .attention import check_features, check_sizes
from .batch_norm import NORM_MODULES, BatchNorm, normalise
from .convolution_layer import ConvolutionLayer
from .dropout import FeatureDropout, with_seeds
from .edge_features import EdgeEncoder
from .feed_forward import make_encoder, make_output
from .global_attention import PolynormerAttention, SGFormerAttention
from .layer import GraphTransformerLayer
from .traits import ModelTraits


class GraphTransformer(nn.Module):
    r"""Model for node-level prediction on one graph, whose options cover graph transformers and tuned GNNs.

    By default it has a linear projection with dropout and GELU, transformer layers of attention along edges (Dwivedi
    and Bresson, arXiv:2012.09699) with GELU inside, and a linear projection. With ``norm_first`` the layers are
    pre-norm and a norm precedes the last projection, as in the GT of Platonov et al. (arXiv:2302.11640). With
    ``layer="convolution"`` it has the layers of :class:`ConvolutionLayer` instead: with ``score`` "gcn", "mean" or
    "additive" these are the tuned GCN, SAGE and GAT of Luo et al. (arXiv:2406.08993), and with a gate,
    ``jumping="sum"`` and ``global_attention="polynormer"`` the model is Polynormer (arXiv:2403.01232).
    docs/models.md has a config for each. To save memory in training, see :func:`apply_activation_checkpoint`.

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
        Width inside the feed-forward networks of transformer layers, as a multiple of ``hidden``; 0 for none.
    dropout : float
        Probability in [0, 1) of dropping a feature in training.
    attention_dropout : float
        Probability in [0, 1) of dropping an attention weight in training.
    norm_first : bool
        Whether to normalise what a layer takes. Otherwise transformer layers normalise after each residual, and
        convolution layers before ReLU. Transformer layers that normalise first also have a norm before the output.
    layer : {"transformer", "convolution"}
        The kind of layer: :class:`GraphTransformerLayer` or :class:`ConvolutionLayer`.
    score : {"dot", "additive", "gcn", "mean"}
        What a layer does along edges, see :class:`ConvolutionLayer`.
    residual : {"none", "identity", "linear", "initial"}
        What a layer adds to the result of that; transformer layers need "identity" or "linear".
    initial_weight, map_weight : float
        See :class:`InitialResidual`, for the residual "initial".
    norm : {"layer", "rms", "batch", "none"}
        The norm of the layers.
    activation : {"relu", "gelu", "swiglu"}
        Activation of feed-forward networks, and of an input or output that has one.
    input : {"activated", "linear", "mlp", "none"}
        Projection before the layers. "activated" is linear, then dropout and an activation; "linear" is linear, then
        dropout; "mlp" is two linear projections with an activation between them. With "none", the first convolution
        layer takes the features themselves.
    output : {"linear", "mlp"}
        Projection after the layers: linear, or two with an activation between them.
    input_dropout : float
        Probability in [0, 1) of dropping a node feature in training.
    jumping : {"last", "sum", "concat"}
        Whether the output reads the last layer, the sum of all layers, or all of them side by side (Xu et al.,
        arXiv:1806.03536).
    gate, gate_start
        See :class:`ConvolutionLayer`.
    global_attention : {"none", "polynormer", "sgformer"}
        Attention of every node to every node: :class:`PolynormerAttention` after the layers, with an output projection
        of its own, or :class:`SGFormerAttention` beside them, whose result is averaged with theirs.
    global_layers : int
        Number of layers of global attention.
    global_dropout : float
        Probability in [0, 1) of dropping a feature there.
    global_weight : float
        Weight in [0, 1] of SGFormer's attention in the average.
    edge_feats, edge_kinds : int
        Number of columns of numbers and of kinds that describe an edge, see :class:`EdgeEncoder`; 0 and 0 for none.
        Each transformer layer adds a linear map of them to its scores, one number for each head.
    edge_hidden : int
        Width of the rows that the model makes of them.
    edge_update : bool
        Whether each layer but the last updates these rows, see :class:`EdgeUpdate`.

    Attributes
    ----------
    reads : object, optional
        How the trainer made the input rows from node and edge data, kept for later predictions; None at first.
    uses_global : bool
        Whether the forward pass uses Polynormer's global attention, True at first. Its authors train the layers alone
        until they are good, and then the whole.

    Raises
    ------
    ValueError
        If a width or count is below 1, there are more than 1,000 layers, ``heads`` does not divide ``hidden``, a
        probability is outside [0, 1), or options contradict each other.
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
        layer: str = "transformer",
        score: str = "dot",
        residual: str = "identity",
        norm: str = "layer",
        activation: str = "gelu",
        input: str = "activated",
        output: str = "linear",
        input_dropout: float = 0.0,
        jumping: str = "last",
        gate: str = "none",
        gate_start: float = 0.9,
        global_attention: str = "none",
        global_layers: int = 1,
        global_dropout: float = 0.0,
        global_weight: float = 0.5,
        edge_feats: int = 0,
        edge_kinds: int = 0,
        edge_hidden: int = 16,
        edge_update: bool = False,
        initial_weight: float = 0.1,
        map_weight: float = 0.5,
    ):
        given = dict(locals())
        super().__init__()
        check_sizes(in_dim=in_dim, out=out)
        config = ModelConfig(**{each.name: given[each.name] for each in fields(ModelConfig)})
        has_edges = bool(edge_feats or edge_kinds)
        config.check_with_edges(has_edges)
        self.in_dim, self.jumping, self.global_weight = in_dim, jumping, global_weight
        self.reads, self._uses_global = None, True
        self.input_dropout = FeatureDropout(input_dropout)
        self.encoder = make_encoder(input, in_dim, hidden, activation, dropout)
        shared = {"score": score, "residual": residual, "norm": norm, "norm_first": norm_first}
        shared |= {"dropout": dropout, "attn_dropout": attention_dropout}
        self.edge_encoder = EdgeEncoder(edge_feats, edge_kinds, edge_hidden) if has_edges else None
        edges = {"edge_hidden": edge_hidden} if has_edges else {}
        self.has_initial = residual == "initial"
        weights = {"initial_weight": initial_weight, "map_weight": map_weight} if self.has_initial else {}
        self.layers = nn.ModuleList()
        for index in range(layers):
            if layer == "transformer":
                edges |= {"edge_update": edge_update and index + 1 < layers}
                made = GraphTransformerLayer(hidden, ffn * hidden, heads, activation=activation, **shared, **edges)
            else:
                features = in_dim if input == "none" and not index else hidden
                options = {"gate": gate, "gate_start": gate_start, "layer": index + 1, **weights}
                made = ConvolutionLayer(features, hidden, heads, **shared, **options)
            self.layers.append(made)
        width = hidden * layers if jumping == "concat" else hidden
        has_norm = layer == "transformer" and norm_first
        self.output_norm = NORM_MODULES[norm](width) if has_norm else nn.Identity()
        self.output = make_output(output, width, out, activation)
        self.global_attention = None
        if global_attention == "polynormer":
            beta = ("sigmoid", 0.0) if gate == "none" else (gate, gate_start)
            self.global_norm = nn.LayerNorm(width)
            self.global_attention = PolynormerAttention(width, heads, global_layers, global_dropout, *beta)
            self.global_output = make_output(output, width, out, activation)
            self.register_buffer("phase", torch.tensor(1))  # 0 while only the layers train; saved with the weights
            self.register_load_state_dict_post_hook(_follow_phase)
            self._set_uses_global(True)
        elif global_attention == "sgformer":
            self.global_attention = SGFormerAttention(in_dim, width, 1, global_layers, global_dropout)

    def forward(self, graph, feat: Tensor, attn_bias=None, edge_feat=None, edge_kind=None) -> Tensor:
        """Predict for the destinations of ``graph``.

        Parameters
        ----------
        graph : DGLGraph, CSC, ShardedGraph, Tensor (2, E), or list of ``L`` DGL blocks
            Graph along whose edges nodes attend; a tensor is an ``edge_index``, see :func:`dgl_gt.csc`. A list gives each
            layer its own block, outermost first, as DGL's samplers return them.
        feat : Tensor, floating point, (N_src, in_dim)
            Node features, as :meth:`BiasedMHA.forward` takes them; for blocks those of the first block's sources.
        attn_bias : Tensor (E, H), or list of ``L`` such tensors, optional
            Term added to the scores, in the order of edge ids. One tensor is used by every layer; a list gives each
            layer its own tensor. Blocks need a list, because their edges differ.
        edge_feat, edge_kind : Tensor, (E, edge_feats) and (E, edge_kinds), optional
            Numbers and kinds of the edges, see :meth:`EdgeEncoder.forward`; for a model that takes them, on one graph.

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
        views = views_of(graph, self, len(self.layers), feat)
        biases, first, last = self._biases(graph, attn_bias), views[0], views[-1]
        feat = first.input_rows(feat)
        seeded = with_seeds(self, views)
        x = self.input_dropout(feat, seeded[0])
        h = self.encoder(x, seeded[0])
        more = self._edges(graph, edge_feat, edge_kind)
        if self.has_initial:
            # With a deep halo, later layers also compute copies of rows, whose initial rows are among the first layer's
            # sources.
            more["initial"] = first.source_rows(h)
        outputs = []
        for layer, its_view, bias in zip(self.layers, seeded, biases, strict=True):
            h = layer(its_view, h, bias, **more)
            if "edge" in more and layer.edge_update is not None:
                h, more["edge"] = h
            outputs.append(h if self.jumping != "last" else None)
        h = normalise(self.output_norm, self._joined(outputs, h), last)
        if isinstance(self.global_attention, PolynormerAttention) and self._uses_global:
            _check_whole(last)
            return self.global_output(self.global_attention(seeded[-1], self.global_norm(h)))
        if isinstance(self.global_attention, SGFormerAttention):
            _check_whole(last)
            of_all = self.global_attention(seeded[-1], leading_rows(x, last.num_dst))
            h = (1 - self.global_weight) * h + self.global_weight * of_all
        return self.output(h)

    def _edges(self, graph, edge_feat: Tensor | None, edge_kind: Tensor | None) -> dict[str, Tensor]:
        """Return the edge embeddings with which the first layer begins; none for a model without edge features."""
        if self.edge_encoder is None:
            if edge_feat is not None or edge_kind is not None:
                raise ValueError("the model takes no edge_feat or edge_kind; make it with edge_feats or edge_kinds")
            return {}
        if isinstance(graph, (list, tuple)) and not all(isinstance(each, View) for each in graph):
            raise ValueError(
                "a model with edge features needs one graph, but got a list of blocks, whose edges differ; pass one graph"
            )
        return {"edge": self.edge_encoder(edge_feat, edge_kind)}

    def _joined(self, outputs: list, last: Tensor) -> Tensor:
        """Return what the output reads of the results of all layers, for the rows of the last layer."""
        if self.jumping == "last":
            return last
        rows = [leading_rows(each, len(last)) for each in outputs]
        return torch.cat(rows, 1) if self.jumping == "concat" else sum(rows[1:], start=rows[0])

    @property
    def input_sizes(self) -> dict[str, int]:
        """The arguments ``in_dim``, ``edge_feats`` and ``edge_kinds`` with which the model was made."""
        encoder = self.edge_encoder
        widths = {name: 0 if encoder is None else getattr(encoder, name) for name in ("edge_feats", "edge_kinds")}
        return {"in_dim": self.in_dim, **widths}

    @property
    def dgl_gt_traits(self) -> ModelTraits:
        """What the trainer and plans know of the model."""
        return ModelTraits(len(self.layers), self.input_sizes, self.reads, tuple(self._dropout_parts()))

    def after_attention(self) -> dict[str, nn.Linear]:
        """Return the linear layers after the last attention, by name: there each row is computed by itself."""
        if self.global_attention is not None:
            return {}
        last, prefixes = self.layers[-1], ["output."]
        has_network = isinstance(last, GraphTransformerLayer) and last.ffn is not None
        if has_network and not any(isinstance(norm, BatchNorm) for norm in (self.output_norm, last.ffn_layer_norm)):
            prefixes.append(f"layers.{len(self.layers) - 1}.ffn.")
        return {
            name: each
            for name, each in self.named_modules()
            if type(each) is nn.Linear and f"{name}.".startswith(tuple(prefixes))
        }

    @property
    def uses_global(self) -> bool:
        """Whether the forward pass uses Polynormer's global attention."""
        return self._uses_global

    @uses_global.setter
    def uses_global(self, flag: bool) -> None:
        if not isinstance(self.global_attention, PolynormerAttention):
            raise ValueError(
                "uses_global can be set only on a model with global_attention='polynormer'; make the model with it"
            )
        check_flags(uses_global=flag)
        self.phase.fill_(int(flag))
        self._set_uses_global(flag)

    def _set_uses_global(self, flag: bool) -> None:
        """Use one of the two outputs; the parameters of the other one need no gradient, and no optimiser moves them."""
        self._uses_global = flag
        for part in (self.global_norm, self.global_attention, self.global_output):
            part.requires_grad_(flag)
        self.output.requires_grad_(not flag)

    def _dropout_parts(self) -> list[nn.Module]:
        parts = [*self.layers, self.encoder, self.input_dropout]
        return parts if self.global_attention is None else [*parts, self.global_attention]

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


def _follow_phase(model: GraphTransformer, _) -> None:
    """Use global attention or not, as the state that a model has loaded says."""
    if bool(model.phase) != model.uses_global:
        model._set_uses_global(bool(model.phase))


def _check_whole(view: View) -> None:
    """Raise ``ValueError`` if the last layer runs on a sampled block, where global attention would miss nodes."""
    if isinstance(view, Local) and view.csc.num_src != view.csc.num_dst:
        raise ValueError(
            "global attention reads all nodes, but the last layer runs on a block, which has only some of them; pass the whole "
            "graph, or make the model with global_attention='none'"
        )
