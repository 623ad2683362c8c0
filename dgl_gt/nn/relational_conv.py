"""The relational graph convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_gt.exchange.local import leading_rows
from dgl_gt.exchange.relations import RowGroups
from dgl_gt.exchange.typed_graphs import as_typed
from dgl_gt.exchange.view import SeededView
from dgl_gt.partition.errors import check_flags, check_one_of

from .attention import check_features, check_sizes
from .dropout import FeatureDropout, begin_pass
from .typed_linear import TypedLinear, check_types, grouped_linear


class RelationalConv(nn.Module):
    r"""Relational graph convolution, R-GCN (Schlichtkrull et al., arXiv:1703.06103).

    .. math:: h_i' = W_0 h_i + b + \sum_r \frac{1}{c_{i, r}} \sum_{j \to_r i} W_r h_j

    where :math:`c_{i, r}` is 1, or the number of in-edges of relation ``r``. The weights of relations may share bases,
    :math:`W_r = \sum_b a_{r b} V_b`. Arguments, ``state_dict`` keys and initial weights are those of
    ``dgl.nn.RelGraphConv``, whose results these are with ``aggregate`` "sum".

    Parameters
    ----------
    in_feat, out_feat : int
        Widths of the rows and of the result.
    num_rels : int
        Number of relations of the graphs.
    regularizer : {None, "basis"}
        Whether the weights of relations are sums of bases.
    num_bases : int, optional
        Number of bases; as many as relations by default.
    bias, self_loop, layer_norm : bool
        Whether there are the terms b and :math:`W_0 h_i`, and a layer norm of the sum over relations.
    activation : callable, optional
        Function of the result.
    dropout : float
        Probability in [0, 1) of dropping a feature of the result in training.
    aggregate : {"sum", "mean"}
        What is taken of the sources of a relation.

    Raises
    ------
    ValueError
        A size is below 1, an option is unknown, or the probability is outside [0, 1).
    """

    def __init__(
        self,
        in_feat: int,
        out_feat: int,
        num_rels: int,
        regularizer: str | None = None,
        num_bases: int | None = None,
        bias: bool = True,
        activation=None,
        self_loop: bool = True,
        dropout: float = 0.0,
        layer_norm: bool = False,
        aggregate: str = "sum",
    ):
        super().__init__()
        check_sizes(in_feat=in_feat, out_feat=out_feat)
        check_flags(bias=bias, self_loop=self_loop, layer_norm=layer_norm)
        if regularizer is not None:
            check_one_of("regularizer", regularizer, ("basis",))
        check_one_of("aggregate", aggregate, ("sum", "mean"))
        bases = (num_bases or num_rels) if regularizer else None
        self.in_feat, self.num_rels, self.aggregate, self.activation = in_feat, num_rels, aggregate, activation
        self.linear_r = TypedLinear(in_feat, out_feat, num_rels, bases)
        self.h_bias = nn.Parameter(torch.zeros(out_feat)) if bias else None
        self.layer_norm_weight = nn.LayerNorm(out_feat) if layer_norm else None
        self.loop_weight = nn.Parameter(torch.empty(in_feat, out_feat)) if self_loop else None
        if self.loop_weight is not None:
            nn.init.xavier_uniform_(self.loop_weight, gain=nn.init.calculate_gain("relu"))
        self.dropout = FeatureDropout(dropout)

    def forward(self, graph, h: Tensor) -> Tensor:
        """Sum over the in-edges of all relations of a typed graph, (N, out_feat).

        Parameters
        ----------
        graph, h
            See :meth:`HGTLayer.forward`, which also says what is raised.
        """
        check_features(h, "in_feat", self.in_feat)
        seeded = begin_pass(self, as_typed(graph, h.device), h)
        view = seeded.view
        return self.along_edges(seeded, view.source_rows(h))

    def along_edges(self, seeded: SeededView, rows: Tensor) -> Tensor:
        """Return the result for the rows that a view attends."""
        view = seeded.view
        check_types(view.checked_schema, None, self.num_rels)

        def project(rows: Tensor, sources: RowGroups, which: str) -> Tensor:
            return grouped_linear(rows, sources, self.linear_r.get_weight(), in_place=False)

        out = view.sum_relations(rows, project, mean=self.aggregate == "mean")
        if self.layer_norm_weight is not None:
            out = self.layer_norm_weight(out)
        if self.h_bias is not None:
            out = out + self.h_bias
        if self.loop_weight is not None:
            out = out + leading_rows(rows, view.num_dst) @ self.loop_weight
        out = out if self.activation is None else self.activation(out)
        return self.dropout(out, seeded)
