"""The heterogeneous graph transformer's layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_gt.exchange.local import leading_rows
from dgl_gt.exchange.relations import RowGroups
from dgl_gt.exchange.typed_graphs import as_typed
from dgl_gt.ops.head_minor import has_head_minor_kernel, is_head_minor
from dgl_gt.partition.errors import check_flags

from .attention import check_features, check_sizes
from .dropout import FeatureDropout, begin_pass
from .typed_linear import TypedLinear, check_types, grouped_linear


class HGTLayer(nn.Module):
    r"""Layer of the heterogeneous graph transformer (Hu et al., arXiv:2003.01332).

    A destination ``i`` of type :math:`\tau` attends to the sources of all its in-edges in one softmax. For an edge of
    relation ``r`` from a source ``j``, a head's score is
    :math:`q_i^\top A_r^\top k_j \, \mu_r / \sqrt{D}` and its value :math:`M_r^\top v_j`, where queries, keys and values are
    linear maps of the nodes' types. The result is :math:`\alpha_\tau W_\tau o_i + (1 - \alpha_\tau) h_i`.

    Constructor arguments, ``state_dict`` keys, initial weights and results are those of ``dgl.nn.HGTConv``. Keys and
    values are made for each relation that a source has, and not for each edge.

    Parameters
    ----------
    in_size : int
        Width of the rows.
    head_size : int
        ``D``, the width of a head.
    num_heads : int
        ``H``, the number of heads; the result is ``H * D`` wide.
    num_ntypes, num_etypes : int
        Number of node types and of relations of the graphs.
    dropout : float
        Probability in [0, 1) of dropping a feature of the result in training.
    use_norm : bool
        Whether to apply a layer norm to the result.

    Raises
    ------
    ValueError
        A size is below 1, or the probability is outside [0, 1).
    """

    def __init__(
        self,
        in_size: int,
        head_size: int,
        num_heads: int,
        num_ntypes: int,
        num_etypes: int,
        dropout: float = 0.2,
        use_norm: bool = False,
    ):
        super().__init__()
        check_sizes(in_size=in_size, head_size=head_size, num_heads=num_heads, num_ntypes=num_ntypes)
        check_flags(use_norm=use_norm)
        width = head_size * num_heads
        self.in_size, self.head_size, self.num_heads, self.use_norm = in_size, head_size, num_heads, use_norm
        self.linear_k, self.linear_q, self.linear_v = (TypedLinear(in_size, width, num_ntypes) for _ in range(3))
        self.linear_a = TypedLinear(width, width, num_ntypes)
        self.relation_pri = nn.ParameterList([nn.Parameter(torch.ones(num_etypes)) for _ in range(num_heads)])
        self.relation_att, self.relation_msg = (
            nn.ModuleList([TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads)]) for _ in range(2)
        )
        self.skip = nn.Parameter(torch.ones(num_ntypes))
        self.drop = FeatureDropout(dropout)
        if use_norm:
            self.norm = nn.LayerNorm(width)
        if in_size != width:
            self.residual_w = nn.Parameter(torch.empty(in_size, width))
            nn.init.xavier_uniform_(self.residual_w)

    def forward(self, graph, h: Tensor) -> Tensor:
        """Attend along the edges of a typed graph.

        Parameters
        ----------
        graph : ShardedGraph, DGLGraph, HeteroData, or TypedGraph
            With as many node types and relations as the layer, in the same order.
        h : Tensor, floating point, (N, in_size)
            Rows of all nodes, type by type, as :func:`dgl.to_homogeneous` orders them; on a ``ShardedGraph`` those of
            the owned nodes, in the order of ``sg.node_ids``.

        Returns
        -------
        Tensor, (N, H * D)

        Raises
        ------
        ValueError
            The graph has another number of types, or the rows do not fit it.
        """
        check_features(h, "in_size", self.in_size)
        seeded = begin_pass(self, as_typed(graph, h.device), h)
        view = seeded.view
        rows = view.source_rows(h)
        check_types(view.checked_schema, len(self.skip), len(self.relation_pri[0]))
        attended = view.attend_relations(rows, self._projection(view.checked_schema))
        own = leading_rows(rows, view.num_dst)
        out = self.drop(self._output(attended, view.types), seeded)
        alpha = torch.sigmoid(self.skip).index_select(0, view.types.of_row).unsqueeze(1)
        residual = own if self.in_size == out.shape[1] else own @ self.residual_w
        out = torch.lerp(residual, out, alpha)  # residual + alpha (out - residual)
        return self.norm(out) if self.use_norm else out

    def _output(self, attended: Tensor, types: RowGroups) -> Tensor:
        """Map results by their types; where heads lie side by side, the weights take that order, and no row is copied."""
        weight = self.linear_a.W
        if is_head_minor(attended):
            attended = attended.transpose(1, 2)
            weight = weight.unflatten(1, (self.num_heads, self.head_size)).transpose(1, 2).flatten(1, 2)
        return grouped_linear(attended.flatten(1), types, weight)

    def _projection(self, schema):
        """Return the projection that the view calls, with the weights of each relation folded into those of its source type."""
        shape, sources = (self.num_heads, self.head_size), torch.as_tensor(schema.ends[:, 0])
        att, msg = (torch.stack([each.W for each in maps], 1) for maps in (self.relation_att, self.relation_msg))
        att = att * torch.stack(list(self.relation_pri), 1)[:, :, None, None]

        def folded(linear: TypedLinear, of_relation: Tensor) -> Tensor:
            of_type = linear.W.index_select(0, sources.to(linear.W.device)).unflatten(2, shape)  # R, in, H, D
            return torch.einsum("rihd,rhde->rihe", of_type, of_relation)

        def project(h: Tensor, groups: RowGroups, which: str) -> Tensor:
            if which == "q":
                weight = self.linear_q.W.unflatten(2, shape).unsqueeze(2)
            else:
                weight = torch.stack([folded(self.linear_k, att), folded(self.linear_v, msg)], 2)
            head_minor = has_head_minor_kernel(self.num_heads, self.head_size, h)
            weight = weight.transpose(3, 4) if head_minor else weight  # groups, in, q or k and v, heads, width
            rows = grouped_linear(h, groups, weight.flatten(2), in_place=which == "q").unflatten(1, weight.shape[2:])
            rows = rows.transpose(2, 3) if head_minor else rows
            return rows.squeeze(1) if which == "q" else rows

        return project

    def extra_repr(self) -> str:
        return f"in_size={self.in_size}, head_size={self.head_size}, num_heads={self.num_heads}"
