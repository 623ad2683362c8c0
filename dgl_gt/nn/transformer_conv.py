"""Attention with features of edges in keys and values, as PyG's ``TransformerConv`` has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_gt.exchange.local import leading_rows
from dgl_gt.ops.attention import attend_rows
from dgl_gt.ops.head_minor import has_head_minor_kernel
from dgl_gt.partition.errors import check_flags
from dgl_gt.structure import csc

from .attention import EdgeAttention, EdgeTerm, check_features, check_sizes, project_heads
from .dropout import begin_pass


class TransformerConv(EdgeAttention):
    r"""Graph transformer layer of UniMP (Shi et al., arXiv:2009.03509), with features of edges in keys and values.

    With query, key and value :math:`q_i, k_j, v_j` of each head and edge features :math:`x_{ji}`,

    .. math::
        o_i = W_{skip} h_i + \sum_{j \to i} \mathrm{softmax}_j\!\left(q_i^\top (k_j + W_e x_{ji}) / \sqrt{D}\right)
        (v_j + W_e x_{ji})

    Constructor arguments, ``state_dict`` keys, initial weights and results are those of
    ``torch_geometric.nn.TransformerConv``; a call takes the graph first, as all layers of this package do. Nothing of the
    size of edges times width is stored: :math:`W_e^\top q` multiplies the features, and :math:`W_e` their weighted sums.
    Rows travel between ranks as for :class:`BiasedMHA`, and features of edges stay with their edges, except that
    ``heads`` and ``mesh=M`` send them within a host, and a deep halo those of replicated edges.

    Parameters
    ----------
    in_channels : int, or pair of int
        Width of the features; a pair gives those of sources and destinations of a bipartite graph.
    out_channels : int
        ``D``, the width of a head's result.
    heads : int
        ``H``, the number of heads.
    concat : bool
        Whether heads follow one another in the result, (N_dst, H * D), or are averaged, (N_dst, D).
    beta : bool
        Whether a gate weighs :math:`W_{skip} h_i` against attention's result; without ``root_weight`` there is none.
    dropout : float
        Probability in [0, 1) of dropping an attention weight in training.
    edge_dim : int, optional
        ``F``, the width of the features of edges; None for none.
    bias : bool
        Whether the projections of nodes have biases.
    root_weight : bool
        Whether to add :math:`W_{skip} h_i`. Its weights exist even without.

    Raises
    ------
    ValueError
        If a size is below 1, an option is no bool, or the probability is outside [0, 1).
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
    ):
        super().__init__(dropout)
        self.in_src, self.in_dst = in_channels if isinstance(in_channels, tuple) else (in_channels, in_channels)
        check_sizes(in_channels=self.in_src, out_channels=out_channels, heads=heads)
        check_sizes(in_channels=self.in_dst)
        check_flags(concat=concat, beta=beta, bias=bias, root_weight=root_weight)
        if edge_dim is not None:
            check_sizes(edge_dim=edge_dim)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.beta, self.root_weight, self.edge_dim = concat, beta and root_weight, root_weight, edge_dim
        width = heads * out_channels
        result = width if concat else out_channels
        self.lin_key = nn.Linear(self.in_src, width, bias=bias)
        self.lin_query = nn.Linear(self.in_dst, width, bias=bias)
        self.lin_value = nn.Linear(self.in_src, width, bias=bias)
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, width, bias=False)
        self.lin_skip = nn.Linear(self.in_dst, result, bias=bias)
        self.lin_beta = nn.Linear(3 * result, 1, bias=False) if self.beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, as ``torch.nn.Linear`` does."""
        for linear in self.children():
            if isinstance(linear, nn.Linear):
                linear.reset_parameters()

    def forward(self, graph, feat: Tensor | tuple[Tensor, Tensor], edge_attr: Tensor | None = None) -> Tensor:
        """Attend along the edges of ``graph``.

        Parameters
        ----------
        graph : DGLGraph, DGL block, CSC, ShardedGraph, Data of PyG, or Tensor (2, E)
            Graph along whose edges nodes attend; a tensor is an ``edge_index``, see :func:`dgl_gt.csc`.
        feat : Tensor, floating point, (N_src, in_channels), or pair of Tensor
            Node features: for a block those of its sources (destinations first), for a ``ShardedGraph`` those of the
            owned nodes. A pair has the features of sources and of destinations; not for a ``ShardedGraph``.
        edge_attr : Tensor, floating point, (E, edge_dim), optional
            Features of edges, in the order of edge ids, which is that of an ``edge_index``; for a ``ShardedGraph``,
            of this part's edges, in the order of ``sg.edata``.

        Returns
        -------
        Tensor, (N_dst, H * D) or (N_dst, D)
            One row for each destination. A node without in-edges has :math:`W_{skip} h_i` alone.

        Raises
        ------
        ValueError
            If ``graph`` is of another type, or features are missing or have another shape.
        """
        edge = self._edge_term(edge_attr)
        features = None if edge is None else edge.features

        def project(h: Tensor, which: str) -> Tensor:
            names = {"q": ("query",), "kv": ("key", "value"), "qkv": ("query", "key", "value")}[which]
            head_minor = has_head_minor_kernel(self.heads, self.out_channels, h)
            projections = [getattr(self, f"lin_{name}") for name in names]
            return project_heads(h, projections, (self.heads, self.out_channels), head_minor, edge=edge)

        if isinstance(feat, tuple):
            check_features(feat[0], "in_channels", self.in_src)
            check_features(feat[1], "in_channels", self.in_dst)
            structure = csc(graph, feat[0].device, (len(feat[0]), len(feat[1])))
            own, dropout = feat[1], self._dropout(begin_pass(self, structure, feat[0]))
            attended = attend_rows(structure, project(own, "q"), project(feat[0], "kv"), edge=features, dropout=dropout)
        else:
            check_features(feat, "in_channels", self.in_src)
            seeded = begin_pass(self, graph, feat)
            rows = seeded.view.source_rows(feat)
            own = leading_rows(rows, seeded.view.num_dst)
            attended = seeded.view.attend(rows, project, edge=features, dropout=self._dropout(seeded))
        return self._finished(attended if edge is None else edge.folded(attended), own)

    def _edge_term(self, edge_attr: Tensor | None) -> EdgeTerm | None:
        shape = None if edge_attr is None else tuple(edge_attr.shape)
        if (shape is None) != (self.lin_edge is None) or (
            shape is not None and (len(shape), shape[-1]) != (2, self.edge_dim)
        ):
            raise ValueError(
                f"edge_attr has shape {shape}, but edge_dim is {self.edge_dim}; pass one row for each edge, (E, edge_dim), or "
                "None where edge_dim is None"
            )
        if edge_attr is None or self.lin_edge is None:
            return None
        return EdgeTerm(edge_attr, self.lin_edge.weight.unflatten(0, (self.heads, self.out_channels)))

    def _finished(self, attended: Tensor, own: Tensor) -> Tensor:
        """Join the heads, and add what the layer makes of a row itself."""
        out = attended.flatten(1) if self.concat else attended.mean(1)
        if not self.root_weight:
            return out
        skip = self.lin_skip(own)
        if self.lin_beta is None:
            return out + skip
        share = self.lin_beta(torch.cat([out, skip, out - skip], 1)).sigmoid()
        return share * skip + (1 - share) * out

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
