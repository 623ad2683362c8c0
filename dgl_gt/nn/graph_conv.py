"""Graph convolution: sums over neighbours whose weights depend on degrees alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.local import Local
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.exchange.view import SeededView, View
from dgl_gt.partition.errors import check_flags, check_one_of

from .attention import check_features, check_in_degrees, check_sizes
from .sparse_rows import linear

DEGREE_NORMS = ("both", "right", "left", "none")


class GraphConv(nn.Module):
    r"""Graph convolution layer (Kipf and Welling, arXiv:1609.02907).

    A destination ``i`` computes

    .. math:: o_i = \sum_{j \to i} c_{ji} e_{ji} W^\top h_j + b

    where :math:`e_{ji}` is the edge's weight, or 1 without ``edge_weight``, and
    with :math:`c_{ji} = 1 / \sqrt{d_j d_i}` where ``norm`` is "both", :math:`1 / d_i` (the mean) for "right",
    :math:`1 / d_j` for "left" and 1 for "none". :math:`d_j` is the out-degree of the source and :math:`d_i` the
    in-degree of the destination, in the whole graph. A sum is the mean times the in-degree, and a mean is attention
    whose scores are all equal; so without weights this layer runs on the kernels of attention, and with every
    strategy but ``heads`` and ``mesh=M``. With weights it runs with every strategy.

    Constructor arguments, ``state_dict`` keys, initial weights and results are those of ``dgl.nn.GraphConv``. Pairs of
    features and an external ``weight`` are not available.

    Parameters
    ----------
    in_feats, out_feats : int
        Widths of the features and of the result.
    norm : {"both", "right", "left", "none"}
        Weights of the edges, see above.
    weight, bias : bool
        Whether to multiply by a weight matrix, and to add a bias.
    activation : callable, optional
        Function of the result.
    allow_zero_in_degree : bool
        Whether nodes without in-edges are allowed. Their result is the bias alone. On a ``ShardedGraph``, in a
        :class:`LayeredModel`, and inside ``torch.compile``, they always are.

    Raises
    ------
    ValueError
        If a size is below 1, the norm is unknown, or without a weight the widths differ.
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        norm: str = "both",
        weight: bool = True,
        bias: bool = True,
        activation=None,
        allow_zero_in_degree: bool = False,
    ):
        super().__init__()
        check_sizes(in_feats=in_feats, out_feats=out_feats)
        check_one_of("norm", norm, DEGREE_NORMS)
        check_flags(weight=weight, bias=bias, allow_zero_in_degree=allow_zero_in_degree)
        if not weight and in_feats != out_feats:
            raise ValueError(
                f"in_feats is {in_feats} and out_feats {out_feats}, but without a weight they must be equal; pass "
                "weight=True"
            )
        self.in_feats, self.out_feats, self.norm = in_feats, out_feats, norm
        self.weight = nn.Parameter(torch.empty(in_feats, out_feats)) if weight else None
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        self.activation, self.allow_zero_in_degree = activation, allow_zero_in_degree
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights: Xavier uniform; the bias is zero."""
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Sum along the edges of ``graph``.

        Parameters
        ----------
        graph : DGLGraph, DGL block, CSC, ShardedGraph, Data of PyG, or Tensor (2, E)
            Graph along whose edges rows are summed; a tensor is an ``edge_index``, see :func:`dgl_gt.csc`.
        feat : Tensor, floating point, (N_src, in_feats)
            Node features: for a block those of its sources (destinations first), for a ``ShardedGraph`` those of the
            owned nodes.
        edge_weight : Tensor, floating point, (E,), optional
            Weight of each edge, of any sign, in the order of edge ids; for a ``ShardedGraph``, of this part's edges, in
            the order of ``sg.edata``. Degrees count edges, whatever they weigh.

        Returns
        -------
        Tensor, (N_dst, out_feats)
            One row for each destination.

        Raises
        ------
        ValueError
            If ``graph`` is of another type, a shape does not fit, or a node has no in-edges and this is not allowed.
        """
        check_features(feat, "in_feats", self.in_feats)
        view = as_view(graph, feat, self)
        if (
            not isinstance(graph, (ShardedGraph, SeededView))
            and isinstance(view, Local)
            and not self.allow_zero_in_degree
        ):
            check_in_degrees(view.csc)
        return self.aggregate(view, view.source_rows(feat), edge_weight)

    def aggregate(self, view: View, rows: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return the result of the destinations, (N_dst, out_feats), from the rows that the view attends."""
        if self.norm in ("both", "left"):
            power = -0.5 if self.norm == "both" else -1
            rows = rows * _power(view.out_degrees().clamp(min=1), power, rows.dtype)
        first = self.weight if self.in_feats > self.out_feats else None  # then narrower rows are summed
        last = self.weight if first is None else None
        if edge_weight is None:
            project = _padded if first is None else self._projected
            result, of_mean = view.attend(rows, project, negative_slope=0.0).squeeze(1), 1.0
        else:
            rows = rows if first is None else linear(rows, first.T)
            result, of_mean = view.sum_of_weighted_rows(rows, edge_weight), 0.0
        power = of_mean - {"both": 0.5, "right": 1.0}.get(self.norm, 0.0)
        if power:
            result = result * _power(view.in_degrees().clamp(min=1), power, result.dtype)
        if last is not None:
            result = result @ last
        if self.bias is not None:
            result = result + self.bias.to(result.dtype)
        return self.activation(result) if self.activation else result

    def extra_repr(self) -> str:
        return f"{self.in_feats}, {self.out_feats}, norm={self.norm!r}"

    def _projected(self, rows: Tensor, which: str) -> Tensor:
        """Project rows for a view as one head with equal scores; the scores come from rows of zeros in the weight."""
        if which == "q":
            return _padded(rows, which)
        weight = functional.pad(self.weight.T, (0, 0, 0, len(which) - 1))
        return linear(rows, weight).unsqueeze(1)


def _power(degrees: Tensor, power: float, dtype: torch.dtype) -> Tensor:
    """Return powers of degrees, (rows, 1), computed in float32 at least."""
    return degrees.to(torch.promote_types(dtype, torch.float32)).pow(power).to(dtype).unsqueeze(1)


def _padded(rows: Tensor, which: str) -> Tensor:
    """Return rows for a view as one head with scores of zero: "q" (rows, 1), "kv" and "qkv" (rows, 1, C + 1 or 2)."""
    if which == "q":
        return rows.new_zeros(len(rows), 1)
    return functional.pad(rows, (0, len(which) - 1)).unsqueeze(1)
