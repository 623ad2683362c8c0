"""Graph attention with additive scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.local import Local, leading_rows
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.exchange.view import SeededView
from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.dispatch import autocast
from dgl_gt.ops.reference import dropout_keep
from dgl_gt.partition.errors import check_flags
from dgl_gt.structure import CSC, csc

from .attention import (
    EdgeAttention,
    check_features,
    check_in_degrees,
    check_number,
    check_probability,
    check_sizes,
    is_plain,
)
from .dropout import FeatureDropout, begin_pass


class GATConv(EdgeAttention):
    r"""Graph attention layer (Velickovic et al., arXiv:1710.10903).

    With :math:`z_j = W h_j` in each head, a destination ``i`` computes

    .. math::
        o_i = \sum_{j \to i} \mathrm{softmax}_j\!\left(\mathrm{LeakyReLU}(a_l^\top z_j + a_r^\top z_i)\right) z_j

    Constructor arguments, ``state_dict`` keys, initial weights and results are those of ``dgl.nn.GATConv``, but
    nothing of the size of all edges is stored, and the layer runs across ranks. A call takes what DGL's takes: a graph,
    a block or a bipartite graph, one tensor of features or a pair, dimensions between nodes and features, edge weights,
    and whether to return attention weights. The differences are that ``ValueError`` takes the place of ``DGLError``,
    and that on a ``ShardedGraph`` nodes without in-edges are always allowed.

    Parameters
    ----------
    in_feats : int, or pair of int
        Width of the features; a pair gives those of sources and destinations of a bipartite graph, which then have
        projections of their own.
    out_feats : int
        ``D``, the width of a head's result.
    num_heads : int
        ``H``, the number of heads.
    feat_drop, attn_drop : float
        Probabilities in [0, 1) of dropping a feature, and an attention weight, in training.
    negative_slope : float
        Slope of LeakyReLU below 0.
    residual : bool
        Whether to add the destination's features, projected where their width is not ``H * D``.
    activation : callable, optional
        Function of the result.
    allow_zero_in_degree : bool
        Whether nodes without in-edges are allowed. Their result is the residual and the bias alone. On a
        ``ShardedGraph``, in a :class:`LayeredModel`, and inside ``torch.compile``, they always are.
    bias : bool
        Whether to add a bias.

    Raises
    ------
    ValueError
        If a size is below 1, or a probability is outside [0, 1).
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        num_heads: int,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = False,
        activation=None,
        allow_zero_in_degree: bool = False,
        bias: bool = True,
    ):
        super().__init__(attn_drop)
        self.in_src, self.in_dst = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        check_sizes(in_feats=self.in_src, out_feats=out_feats, num_heads=num_heads)
        check_sizes(in_feats=self.in_dst)
        check_flags(residual=residual, allow_zero_in_degree=allow_zero_in_degree, bias=bias)
        check_probability("feat_drop", feat_drop)
        self.num_heads, self.out_feats, self.negative_slope = (
            num_heads,
            out_feats,
            check_number("negative_slope", negative_slope),
        )
        width = num_heads * out_feats
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self.in_src, width, bias=False)
            self.fc_dst = nn.Linear(self.in_dst, width, bias=False)
        else:
            self.fc = nn.Linear(self.in_src, width, bias=False)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop = FeatureDropout(feat_drop)
        if not residual:
            self.register_buffer("res_fc", None)
        else:
            self.res_fc = nn.Identity() if self.in_dst == width else nn.Linear(self.in_dst, width, bias=bias)
        if bias and not isinstance(self.res_fc, nn.Linear):
            self.bias = nn.Parameter(torch.empty(width))
        else:
            self.register_buffer("bias", None)
        self.activation, self.allow_zero_in_degree = activation, allow_zero_in_degree
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights: Xavier normal with the gain of ReLU; biases are zero."""
        gain = nn.init.calculate_gain("relu")
        linear = [getattr(self, name) for name in ("fc", "fc_src", "fc_dst") if hasattr(self, name)]
        for weight in (*(each.weight for each in linear), self.attn_l, self.attn_r):
            nn.init.xavier_normal_(weight, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
            if self.res_fc.bias is not None:
                nn.init.zeros_(self.res_fc.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Set whether nodes without in-edges are allowed."""
        self.allow_zero_in_degree = set_value

    def forward(
        self,
        graph,
        feat: Tensor | tuple[Tensor, Tensor],
        edge_weight: Tensor | None = None,
        get_attention: bool = False,
    ):
        """Attend along the edges of ``graph``.

        Parameters
        ----------
        graph : DGLGraph, DGL block, CSC, ShardedGraph, Data of PyG, or Tensor (2, E)
            Graph along whose edges nodes attend; a tensor is an ``edge_index``, see :func:`dgl_gt.csc`.
        feat : Tensor, floating point, (N_src, ..., in_feats), or pair of Tensor
            Node features: for a block those of its sources (destinations first), for a ``ShardedGraph`` those of the
            owned nodes. A pair has the features of sources and of destinations; not for a ``ShardedGraph``.
        edge_weight : Tensor, floating point, (E,), optional
            Factor of each edge's attention weights, in the order of edge ids. With it, the layer stores a row per edge.
            It is not available on a ``ShardedGraph``.
        get_attention : bool
            Whether to return the attention weights, too. With it, the layer stores a number per edge and head. It is
            not available on a ``ShardedGraph``.

        Returns
        -------
        Tensor, (N_dst, ..., H, D)
            One row for each destination.
        Tensor, (E, ..., H, 1)
            Only with ``get_attention``: weights after dropout and times ``edge_weight``, in the order of edge ids.

        Raises
        ------
        ValueError
            If ``graph`` is of another type, a shape does not fit, a node has no in-edges and this is not allowed, or an
            option is not available.
        """
        if isinstance(feat, tuple):
            return self._attend_pair(graph, feat, edge_weight, get_attention)
        if not hasattr(self, "fc"):
            raise ValueError(
                f"in_feats is {(self.in_src, self.in_dst)}, and feat is one tensor; pass the features of sources and "
                "of destinations as a pair"
            )
        rows, inner = _flat(feat, self.in_src)
        seeded = begin_pass(self, graph, rows)
        view = seeded.view
        h = self.feat_drop(view.source_rows(rows), seeded)
        h_dst = leading_rows(h, view.num_dst)
        if (
            not isinstance(graph, (ShardedGraph, SeededView))
            and isinstance(view, Local)
            and not self.allow_zero_in_degree
        ):
            check_in_degrees(view.csc)
        if edge_weight is None and not get_attention:
            return self._finished(self._attend(seeded, h), h_dst, inner)
        if not isinstance(view, Local):
            name = "edge_weight" if edge_weight is not None else "get_attention"
            raise ValueError(f"{name} is not available on a ShardedGraph; leave it out")
        return self._with_weights(view.csc, h, h_dst, inner, self._dropout(seeded), edge_weight, get_attention)

    def aggregate(self, seeded: SeededView, rows: Tensor) -> Tensor:
        """Return attention's result alone, without residual and bias, (N_dst, H * D), for the rows that the view attends."""
        return self._attend(seeded, rows).flatten(1)

    def _attend(self, seeded: SeededView, rows: Tensor) -> Tensor:
        options = {"dropout": self._dropout(seeded), "negative_slope": self.negative_slope}
        return seeded.view.attend(rows, self._project, **options)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, out_feats={self.out_feats}, attn_drop={self.attn_drop}"

    def _attend_pair(self, graph, feat, edge_weight: Tensor | None, get_attention: bool):
        """Attend from the rows of destinations to those of sources, which have features of their own."""
        rows_src, inner = _flat(feat[0], self.in_src)
        rows_dst, _ = _flat(feat[1], self.in_dst)
        structure = csc(graph, rows_src.device, (len(rows_src), len(rows_dst)))
        if not self.allow_zero_in_degree:
            check_in_degrees(structure)
        seeded = begin_pass(self, structure, rows_src)
        h_src = self.feat_drop(rows_src, seeded)
        ids = torch.arange(len(h_src), len(h_src) + len(rows_dst), device=h_src.device)  # other masks than sources
        h_dst = self.feat_drop(rows_dst, seeded._replace(view=Local(structure, ids)))
        dropout = self._dropout(seeded)
        if edge_weight is not None or get_attention:
            return self._with_weights(structure, h_src, h_dst, inner, dropout, edge_weight, get_attention)
        rows = self._project(h_dst, "q"), self._project(h_src, "kv")
        attended = attend_rows(structure, *rows, dropout=dropout, negative_slope=self.negative_slope)
        return self._finished(attended, h_dst, inner)

    def _with_weights(self, structure: CSC, h_src, h_dst, inner, dropout, edge_weight, get_attention: bool):
        """Return the result, and the attention weights if they are wanted, by storing the weights."""
        if edge_weight is not None and edge_weight.shape != (structure.num_edges,):
            raise ValueError(
                f"edge_weight has shape {tuple(edge_weight.shape)}; allowed: ({structure.num_edges},), one number for each "
                "edge, in the order of edge ids"
            )
        q, kv = autocast(self._project(h_dst, "q"), self._project(h_src, "kv"))
        options = {"dropout": dropout, "negative_slope": self.negative_slope}
        attended, lse = attend_rows(structure, q, kv, return_lse=True, **options)
        weights = attention_weights(structure, q, kv[..., -1], lse, **options)
        if edge_weight is not None:
            weights = weights * edge_weight.unsqueeze(1)
            attended = weighted_sum(structure, weights, kv[..., :-1])
        result = self._finished(attended, h_dst, inner)
        return (result, weights.unflatten(1, (*inner, self.num_heads)).unsqueeze(-1)) if get_attention else result

    def _project(self, h: Tensor, which: str) -> Tensor:
        """Project rows for a view: "q" (rows, H), "kv" (rows, H, D + 1) or "qkv" (rows, H, D + 2).

        The scores' vectors multiply the weights instead of the rows, so that one matrix product gives all numbers.
        Where a row holds the features of several dimensions, each of them has heads of its own.
        """
        linear = getattr(self, "fc", None) or (self.fc_dst if which == "q" else self.fc_src)
        ends = {"q": (self.attn_r,), "kv": (self.attn_l,), "qkv": (self.attn_l, self.attn_r)}[which]
        shape = self.num_heads, self.out_feats
        width = self.in_dst if which == "q" else self.in_src
        slices, h = h.shape[1] // width, h.reshape(-1, width)
        if is_plain(linear):
            weight = linear.weight.unflatten(0, shape)
            folded = [(end.transpose(0, 1).transpose(1, 2) * weight).sum(1, keepdim=True) for end in ends]
            joined = torch.cat(folded if which == "q" else [weight, *folded], 1)
            rows = functional.linear(h, joined.flatten(0, 1)).unflatten(1, (self.num_heads, -1))
        else:
            z = linear(h).unflatten(1, shape)
            folded = [(z * end).sum(2, keepdim=True) for end in ends]
            rows = torch.cat(folded if which == "q" else [z, *folded], 2)
        rows = rows.unflatten(0, (-1, slices)).flatten(1, 2)
        return rows.squeeze(2) if which == "q" else rows

    def _finished(self, attended: Tensor, h_dst: Tensor, inner: tuple[int, ...]) -> Tensor:
        """Add residual and bias, and apply the activation."""
        result = attended.unflatten(1, (*inner, self.num_heads))
        if self.res_fc is not None:
            own = self.res_fc(h_dst.unflatten(1, (*inner, self.in_dst)))
            result = result + own.unflatten(-1, (self.num_heads, self.out_feats))
        if self.bias is not None:
            result = result + self.bias.view(self.num_heads, self.out_feats).to(attended.dtype)
        return self.activation(result) if self.activation else result


def _flat(feat, width: int) -> tuple[Tensor, tuple[int, ...]]:
    """Return the features of nodes side by side, (nodes, * width), and the dimensions between nodes and features."""
    if isinstance(feat, Tensor) and feat.ndim > 2 and feat.shape[-1] == width:
        return feat.flatten(1), tuple(feat.shape[1:-1])
    check_features(feat, "in_feats", width)
    return feat, ()


def attention_weights(csc, q, k, lse, dropout, negative_slope):
    """Return attention weights after dropout, (E, H), in the order of edge ids.

    q is (N_dst, H), k (N_src, H), and ``lse`` (N_dst, H) is what ``sparse_attention`` returns for them; ``dropout`` is
    a pair of probability and seed, or None.
    """
    dst = _destinations(csc)
    scores = functional.leaky_relu(q.to(lse.dtype)[dst] + k.to(lse.dtype)[csc.indices.long()], negative_slope)
    weights = torch.exp(scores - lse[dst]).to(q.dtype)
    if dropout is not None and dropout[0] > 0:
        weights = weights * dropout_keep(csc, q.shape[1], *dropout).to(q.dtype) / (1 - dropout[0])
    return weights if csc.edge_ids is None else torch.empty_like(weights).index_copy(0, csc.edge_ids, weights)


def weighted_sum(csc, weights, values):
    """Return each row's sum of its sources' values times weights, (N_dst, H, D); weights (E, H) are in edge-id order.

    It stores E x H x D numbers.
    """
    by_position = weights if csc.edge_ids is None else weights[csc.edge_ids]
    messages = by_position.unsqueeze(2) * values[csc.indices.long()]
    return messages.new_zeros(csc.num_dst, *messages.shape[1:]).index_add(0, _destinations(csc), messages)


def _destinations(csc):
    """Return the destination of each position."""
    rows = torch.arange(csc.num_dst, device=csc.device)
    return torch.repeat_interleave(rows, csc.indptr.diff(), output_size=csc.num_edges)
