"""Edge features: rows of edge data that become a bias of attention, and that layers update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.view import View
from dgl_gt.model_config import EDGE_KINDS, OPTION_VALUES
from dgl_gt.partition.errors import InputError, check_one_of, whole_number

from .attention import check_sizes


class EdgeEncoder(nn.Module):
    r"""The first edge embeddings, from edge data: a linear map of numbers, plus a learned row for each kind.

    .. math:: e = W x + b + \sum_i \mathrm{table}_i[\mathrm{kind}_i]

    All layers of a model share them.

    Parameters
    ----------
    edge_feats, edge_kinds : int
        Number of columns of numbers, and of columns of kinds. One of them may be 0.
    edge_hidden : int
        Width of the rows.
    kind : {"linear", "mlp", "raw"}
        "mlp" puts a ReLU and another linear map behind. "raw" returns the numbers themselves, of which there must be
        some, and no kinds; it has no weights.

    Attributes
    ----------
    width : int
        Width of the rows that it returns.
    """

    def __init__(self, edge_feats: int, edge_kinds: int, edge_hidden: int, kind: str = "linear"):
        super().__init__()
        check_sizes(edge_hidden=edge_hidden)
        check_one_of("edge_input", kind, OPTION_VALUES["edge_input"])
        self.edge_feats = whole_number("edge_feats", edge_feats, 0, 10**6)
        self.edge_kinds = whole_number("edge_kinds", edge_kinds, 0, 10**6)
        if not edge_feats + edge_kinds:
            raise ValueError("edge_feats and edge_kinds are both 0; give the number of columns of one of them")
        if kind == "raw" and edge_kinds:
            raise InputError(
                f"edge_input is 'raw', but {edge_kinds} of the edge features are kinds, which need an embedding; choose "
                "'linear' or 'mlp', or call them :number"
            )
        self.is_raw = kind == "raw"
        self.width = edge_feats if self.is_raw else edge_hidden
        self.proj = nn.Linear(edge_feats, edge_hidden) if edge_feats and not self.is_raw else None
        self.tables = nn.ModuleList(nn.Embedding(EDGE_KINDS, edge_hidden) for _ in range(edge_kinds))
        self.mlp = nn.Sequential(nn.ReLU(), nn.Linear(edge_hidden, edge_hidden)) if kind == "mlp" else None

    def forward(self, edge_feat: Tensor | None = None, edge_kind: Tensor | None = None) -> Tensor:
        """Return the edge embeddings.

        Parameters
        ----------
        edge_feat : Tensor, floating point, (E, edge_feats)
            Numbers; left out if ``edge_feats`` is 0.
        edge_kind : Tensor, integer, (E, edge_kinds)
            Kinds in [0, 256); left out if ``edge_kinds`` is 0.

        Returns
        -------
        Tensor, (E, width)

        Raises
        ------
        ValueError
            If one of them has another shape, is missing, or is given to a module that takes none.
        """
        for name, value, width in (
            ("edge_feat", edge_feat, self.edge_feats),
            ("edge_kind", edge_kind, self.edge_kinds),
        ):
            shape = None if value is None else tuple(value.shape)
            if shape is not None and (len(shape) != 2 or shape[1] != width) or (shape is None and width):
                wanted = f"(edges, {width})" if width else "None"
                raise ValueError(
                    f"{name} has shape {shape}, but this module takes {wanted}; pass one row for each edge, in the order "
                    f"of edge ids, or make the module with {name}s equal to the number of columns"
                )
        if edge_feat is not None and self.is_raw:
            return edge_feat
        rows = [] if self.proj is None else [self.proj(edge_feat)]
        rows += [
            table(kind) for table, kind in zip(self.tables, () if edge_kind is None else edge_kind.int().unbind(1))
        ]
        encoded = sum(rows[1:], start=rows[0])
        return encoded if self.mlp is None else self.mlp(encoded)


class RelationEdgeEncoder(nn.Module):
    """The first edge embeddings of a typed graph: an :class:`EdgeEncoder` for each relation whose edges have data.

    Edges of the other relations have zeros.

    Parameters
    ----------
    relations : sequence of str
        The relations of the graph, each as three names with commas between them.
    edge_feats, edge_kinds : dict of str to int
        By relation, as in :class:`EdgeEncoder`; a relation that is not there has none.
    edge_hidden, kind
        See :class:`EdgeEncoder`.

    Raises
    ------
    ValueError
        There is no such relation, or with ``kind`` "raw" relations have different numbers of columns.
    """

    def __init__(
        self,
        relations: Sequence[str],
        edge_feats: Mapping[str, int],
        edge_kinds: Mapping[str, int],
        edge_hidden: int,
        kind: str = "linear",
    ):
        super().__init__()
        self.relations = tuple(relations)
        if unknown := [name for name in (*edge_feats, *edge_kinds) if name not in self.relations]:
            raise InputError(f"there is no relation {unknown[0]!r}; the relations are {' '.join(self.relations)}")
        sizes = {name: (edge_feats.get(name, 0), edge_kinds.get(name, 0)) for name in self.relations}
        self.having = [name for name in self.relations if any(sizes[name])]
        encoders = [EdgeEncoder(*sizes[name], edge_hidden, kind) for name in self.having]
        self.encoders, self.width = nn.ModuleList(encoders), encoders[0].width
        widths = {name: encoder.width for name, encoder in zip(self.having, encoders)}
        if different := [name for name, width in widths.items() if width != self.width]:
            raise InputError(
                f"edge_input is 'raw', and {different[0]} has {widths[different[0]]} numbers an edge where {self.having[0]} has "
                f"{self.width}; choose 'linear' or 'mlp'"
            )

    def forward(self, view: View, edge_feat: Mapping[str, Tensor], edge_kind: Mapping[str, Tensor]) -> Tensor:
        """Return the edge embeddings, (E, width), from the data of each relation, in the order of a bias."""
        if unknown := [name for name in (*edge_feat, *edge_kind) if name not in self.having]:
            raise InputError(
                f"the model takes no data of the edges of {unknown[0]!r}; make it with edge_feats or edge_kinds of that relation"
            )
        groups, encoded = view.edges_by_relation, []
        rows = [groups.group(self.relations.index(name)) for name in self.having]
        for name, encoder, of_relation in zip(self.having, self.encoders, rows):
            encoded.append(encoder(edge_feat.get(name), edge_kind.get(name)))
            if len(encoded[-1]) != len(of_relation):
                raise InputError(
                    f"the data of the edges of {name} have {len(encoded[-1])} rows; this process has {len(of_relation)} such edges"
                )
        joined = torch.cat(encoded)
        return joined.new_zeros(len(groups.rows), self.width).index_copy(0, torch.cat(rows), joined)


class EdgeUpdate(nn.Module):
    r"""New edge embeddings, from the old ones and from attention's queries and keys at the two ends.

    For the edge :math:`j \to i`, where :math:`[\,]` puts rows side by side,

    .. math:: e \leftarrow e + W_2\,\mathrm{ReLU}(W_1 [e, q_i, k_j] + b_1) + b_2 .

    The product with :math:`W_1` is computed for edges and for nodes by themselves, so that rows of the edges' width
    travel between ranks, and nothing as wide as three rows is stored for each edge. Updates of edges by both ends are
    those of edge-augmented graph transformers (Hussain, Zaki and Subramanian, arXiv:2108.03348).

    Parameters
    ----------
    edge_hidden : int
        Width of the edge embeddings, and of the hidden layer.
    feat_size : int
        ``C``, the width of queries and of keys.
    """

    def __init__(self, edge_hidden: int, feat_size: int):
        super().__init__()
        check_sizes(edge_hidden=edge_hidden, feat_size=feat_size)
        self.of_edge = nn.Linear(edge_hidden, edge_hidden)
        self.of_dst = nn.Linear(feat_size, edge_hidden, bias=False)
        self.of_src = nn.Linear(feat_size, edge_hidden, bias=False)
        self.out = nn.Linear(edge_hidden, edge_hidden)

    def forward(self, graph, edge: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return the new rows; on several ranks this is a collective.

        Parameters
        ----------
        graph : DGLGraph, DGL block, CSC or ShardedGraph
        edge : Tensor, floating point, (E, edge_hidden)
            Rows of the edges, in the order of edge ids; for a ``ShardedGraph``, of this part's edges.
        q, k : Tensor, floating point, (N_dst, C) and (N_src, C)
            Rows of the destinations and of the sources; for a ``ShardedGraph``, of the owned nodes.

        Returns
        -------
        Tensor, (E, edge_hidden)
        """
        ends = as_view(graph, k).add_ends(self.of_dst(q), self.of_src(k))
        return edge + self.out(functional.relu(self.of_edge(edge) + ends))
