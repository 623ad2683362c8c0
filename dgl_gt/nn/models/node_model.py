"""What the models for nodes share: input projection, layers, optionally global attention, output projection."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dgl_gt.exchange.any_graph import as_view, views_of
from dgl_gt.exchange.local import Local, leading_rows
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.exchange.view import SeededView, View
from dgl_gt.model_config import ModelConfig
from dgl_gt.partition.errors import check_flags

from ..attention import check_features, check_sizes
from ..batch_norm import normalise
from ..dropout import FeatureDropout, with_seeds
from ..feed_forward import make_encoder, make_output
from ..global_attention import PolynormerAttention, SGFormerAttention
from ..layered_model import LayeredModel
from ..streamed import run_streamed
from ..traits import ModelTraits


class NodeModel(LayeredModel):
    """Base class of the models for nodes; a subclass makes ``layers``, and then calls ``_make_end``."""

    Config: ClassVar[type[ModelConfig]]
    phase: Tensor  # of a model with Polynormer's global attention

    def __init__(self, in_dim: int, hidden: int, out: int, layers: int, heads: int, options: dict[str, Any]):
        super().__init__()
        check_sizes(in_dim=in_dim, out=out)
        self.config = self.Config(**{"dropout": 0.0} | options, hidden=hidden, layers=layers, heads=heads)
        self.in_dim, self.out_dim = in_dim, out
        self.input_dropout = FeatureDropout(self.config.input_dropout)
        self.encoder = make_encoder(self.config.input, in_dim, hidden, self.config.activation, self.config.dropout)
        self.layers = nn.ModuleList()

    def _make_end(self, output_norm: nn.Module) -> None:
        """Make what follows the layers."""
        config, out = self.config, self.out_dim
        self.output_norm = output_norm
        self.output = make_output(config.output, self.width, out, config.activation)
        self.global_attention: nn.Module | None = None
        self._uses_global = True
        if config.global_attention == "polynormer":
            of_size = (self.width, config.heads, config.global_layers, config.global_dropout)
            self.global_norm = nn.LayerNorm(self.width)
            self.global_attention = PolynormerAttention(*of_size, *self._gate_of_global())
            self.global_output = make_output(config.output, self.width, out, config.activation)
            self.register_buffer("phase", torch.tensor(1))  # 0 while only the layers train; saved with the weights
            self.register_load_state_dict_post_hook(_follow_phase)
            self._set_uses_global(True)
        elif config.global_attention == "sgformer":
            layers, dropout = config.global_layers, config.global_dropout
            self.global_attention = SGFormerAttention(self.in_dim, self.width, 1, layers, dropout)

    @property
    def width(self) -> int:
        """Width of the rows that the output reads."""
        return self.config.hidden * (len(self.layers) if self.config.jumping == "concat" else 1)

    def _gate_of_global(self) -> tuple[str, float]:
        """The kind and the first value of the gate in Polynormer's attention."""
        return "sigmoid", 0.0

    def forward(self, graph, feat: Tensor, attn_bias=None) -> Tensor:
        """Predict for the destinations of ``graph``.

        Parameters
        ----------
        graph : DGLGraph, CSC, ShardedGraph, Data of PyG, Tensor (2, E), or list of ``L`` DGL blocks
            Graph along whose edges nodes attend; a tensor is an ``edge_index``, see :func:`dgl_gt.csc`. A list gives each
            layer its own block, outermost first, as DGL's samplers return them.
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
        return self._predict(graph, feat, attn_bias)

    def _predict(self, graph, feat: Tensor, attn_bias, edge: Tensor | None = None) -> Tensor:
        check_features(feat, "in_dim", self.in_dim)
        if isinstance(graph, ShardedGraph) and graph.stream is not None:
            self.config.check_streamed()
            view = as_view(graph, feat, self)
            (of_rank,) = with_seeds(self, [view])
            biases = self._biases(graph, attn_bias)
            return run_streamed(self, graph.stream, of_rank.seeds, view.input_rows(feat), biases, edge)
        views = views_of(graph, self, len(self.layers), feat)
        biases = self._biases(graph, attn_bias)
        feat = views[0].input_rows(feat)
        seeded = with_seeds(self, views)
        x = self.input_dropout(feat, seeded[0])
        outputs = self._run_layers(self.encoder(x, seeded[0]), seeded, biases, edge)
        h = normalise(self.output_norm, self._joined(outputs), views[-1])
        return self._after_layers(h, x, seeded[-1])

    def encode(self, feat: Tensor, seeded: SeededView) -> Tensor:
        """Return what the first layer reads, each row from one row of features, (rows, C)."""
        return self.encoder(self.input_dropout(feat, seeded), seeded)

    def decode(self, h: Tensor, seeded: SeededView) -> Tensor:
        """Return the result, each row from one row of the last layer, (rows, out)."""
        return self.output(normalise(self.output_norm, h, seeded.view))

    def _run_layers(self, h: Tensor, seeded: list[SeededView], biases: list, edge: Tensor | None) -> list[Tensor]:
        """Return the rows of each layer; of the last one alone, where the output reads no other."""
        outputs: list[Tensor] = []
        more: dict[str, Tensor] = self._for_all_layers(h, seeded[0].view)
        for layer, its_view, bias in zip(self.layers, seeded, biases, strict=True):
            if edge is not None:
                more["edge"] = edge
            h = layer(its_view, h, bias, **more)
            if isinstance(h, tuple):
                h, edge = h
            outputs = [*outputs, h] if self.config.jumping != "last" else [h]
        return outputs

    def _for_all_layers(self, h: Tensor, view: View) -> dict[str, Tensor]:
        """What every layer is given besides its rows, from the rows before the first one."""
        return {}

    def _joined(self, outputs: list[Tensor]) -> Tensor:
        """Return what the output reads of the results of layers, for the rows of the last layer."""
        if self.config.jumping == "last":
            return outputs[-1]
        rows = [leading_rows(each, len(outputs[-1])) for each in outputs]
        return torch.cat(rows, 1) if self.config.jumping == "concat" else sum(rows[1:], start=rows[0])

    def _after_layers(self, h: Tensor, x: Tensor, seeded: SeededView) -> Tensor:
        """Return the result, from the rows after the layers and those before the encoder."""
        if isinstance(self.global_attention, PolynormerAttention) and self._uses_global:
            _check_whole(seeded.view)
            return self.global_output(self.global_attention(seeded, self.global_norm(h)))
        if isinstance(self.global_attention, SGFormerAttention):
            _check_whole(seeded.view)
            of_all = self.global_attention(seeded, leading_rows(x, seeded.view.num_dst))
            h = (1 - self.config.global_weight) * h + self.config.global_weight * of_all
        return self.output(h)

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

    @property
    def input_sizes(self) -> dict[str, int]:
        """The arguments ``in_dim``, ``edge_feats`` and ``edge_kinds`` with which the model was made."""
        return {"in_dim": self.in_dim, "edge_feats": 0, "edge_kinds": 0}

    @property
    def dgl_gt_traits(self) -> ModelTraits:
        """What the trainer and plans know of the model."""
        parts = (*self.layers, self.encoder, self.input_dropout, self.global_attention)
        return ModelTraits(len(self.layers), self.input_sizes, tuple(each for each in parts if each is not None))

    def after_attention(self) -> dict[str, nn.Linear]:
        """Return the linear layers after the last attention, by name: there each row is computed by itself."""
        if self.global_attention is not None:
            return {}
        prefixes = tuple(self._prefixes_after_attention())
        return {
            name: each
            for name, each in self.named_modules()
            if type(each) is nn.Linear and f"{name}.".startswith(prefixes)
        }

    def _prefixes_after_attention(self) -> list[str]:
        return ["output."]

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


def _follow_phase(model: NodeModel, _) -> None:
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
