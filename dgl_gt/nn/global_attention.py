"""Attention of every node to every node at linear cost: sums over all nodes in place of scores of pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.view import SeededView, View
from dgl_gt.partition.errors import check_one_of

from .attention import check_features, check_heads, check_number, check_probability, check_sizes
from .dropout import FeatureDropout, begin_pass


def _begin_whole_pass(module: nn.Module, graph, x: Tensor, width: int) -> SeededView:
    """Return the view of a pass, after a check that the rows are those of all nodes that the rank owns."""
    check_features(x, "in_feats", width)
    seeded = begin_pass(module, graph, x)
    if len(x) != seeded.view.num_owned:
        raise ValueError(
            f"got {len(x)} rows, but global attention takes those of the {seeded.view.num_owned} nodes that this rank "
            "owns, each once; pass a graph in place of a block, and its own rows alone"
        )
    return seeded


class PolynormerAttention(nn.Module):
    r"""The global attention of Polynormer (Deng et al., arXiv:2403.01232), several layers of it.

    With :math:`k_n = \sigma(W_k x_n)` as key and query, :math:`v_n = W_v x_n`, and in each head
    :math:`S = \sum_n k_n v_n^\top` and :math:`z = \sum_n k_n` over all nodes, a layer computes

    .. math:: o_n = \frac{k_n^\top S}{k_n^\top z}, \qquad
              x_n \leftarrow \mathrm{drop}(\mathrm{ReLU}(W_o(\mathrm{LN}(o_n) * (W_h x_n + \beta))))

    where :math:`W_o` is shared by the layers. Ranks exchange :math:`S` and :math:`z`, ``C (D + 1)`` numbers per layer
    and direction. Heads are the slow index of a row, as elsewhere in this package; in the published code they are the
    fast one.

    Parameters
    ----------
    feat_size : int
        ``C``, the width of the rows.
    num_heads : int
        ``H``, which divides ``feat_size``.
    layers : int
        Number of layers.
    dropout : float
        Probability in [0, 1) of dropping a feature in training.
    beta : {"sigmoid", "free", "constant"}
        The sigmoid of a learned vector for each layer, a learned vector that begins at ``beta_start``, or the constant
        ``beta_start``.
    beta_start : float
        See ``beta``.

    Raises
    ------
    ValueError
        If ``num_heads`` does not divide ``feat_size``, a size is below 1, or the probability is outside [0, 1).
    """

    def __init__(
        self,
        feat_size: int,
        num_heads: int,
        layers: int = 1,
        dropout: float = 0.0,
        beta: str = "sigmoid",
        beta_start: float = 0.9,
    ):
        super().__init__()
        check_heads(feat_size, num_heads)
        check_sizes(layers=layers)
        self.feat_size, self.num_heads = feat_size, num_heads
        self.h_proj, self.k_proj, self.v_proj = (
            nn.ModuleList(nn.Linear(feat_size, feat_size) for _ in range(layers)) for _ in range(3)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(feat_size) for _ in range(layers))
        self.out_proj = nn.Linear(feat_size, feat_size)
        self.beta = Gate(layers, feat_size, beta, check_number("beta_start", beta_start))
        self.dropouts = nn.ModuleList(FeatureDropout(check_probability("dropout", dropout)) for _ in range(layers))

    def forward(self, graph, x: Tensor) -> Tensor:
        """Attend from every node to every node.

        Parameters
        ----------
        graph : DGLGraph, CSC, ShardedGraph, or Tensor (2, E)
            Graph to which the rows belong; its edges are not read.
        x : Tensor, floating point, (N_owned, C)
            Rows of all nodes that this rank owns.

        Returns
        -------
        Tensor, (N_owned, C)

        Raises
        ------
        ValueError
            ``x`` has another shape.
        """
        seeded = _begin_whole_pass(self, graph, x, self.feat_size)
        shape = self.num_heads, self.feat_size // self.num_heads
        for layer, (norm, drop) in enumerate(zip(self.norms, self.dropouts)):
            h = self.h_proj[layer](x)
            k = torch.sigmoid(self.k_proj[layer](x)).unflatten(1, shape)
            v = self.v_proj[layer](x).unflatten(1, shape)
            attended = _attend_all(seeded.view, k, k, v)
            x = norm(attended) * (h + self.beta(layer))
            x = drop(functional.relu(self.out_proj(x)), seeded)
        return x


class Gate(nn.Module):
    """A vector for each of several layers that weighs features: learned through a sigmoid, learned freely, or constant.

    Parameters
    ----------
    layers, width : int
        The shape of the vectors.
    kind : {"sigmoid", "free", "constant"}
        With "sigmoid" the vectors are the sigmoid of weights drawn from Xavier's normal distribution. With "free" the
        weights begin at ``start``. With "constant" they stay there.
    start : float
        See ``kind``.

    Raises
    ------
    ValueError
        The kind is unknown.
    """

    def __init__(self, layers: int, width: int, kind: str, start: float):
        super().__init__()
        check_one_of("kind", kind, ("sigmoid", "free", "constant"))
        start = check_number("start", start)
        self.kind = kind
        if kind == "constant":
            self.register_buffer("weight", torch.full((layers, width), start))
            return
        self.weight = nn.Parameter(torch.full((layers, width), start))
        if kind == "sigmoid":
            nn.init.xavier_normal_(self.weight)

    def forward(self, layer: int = 0) -> Tensor:
        """Return the vector of a layer, (width,)."""
        vector = self.weight[layer]
        return torch.sigmoid(vector) if self.kind == "sigmoid" else vector


class SGFormerAttention(nn.Module):
    r"""The global attention of SGFormer (Wu et al., arXiv:2306.10759), with its input projection.

    With :math:`\tilde Q = Q / \|Q\|_F` and :math:`\tilde K = K / \|K\|_F`, whose norms run over all nodes and heads, a
    layer computes in each head

    .. math:: o_n = \frac{\tilde q_n^\top \sum_m \tilde k_m v_m^\top + N v_n}{\tilde q_n^\top \sum_m \tilde k_m + N}

    and its result is :math:`\mathrm{drop}(\mathrm{LN}((\bar o_n + x_n) / 2))` with the mean :math:`\bar o_n` over
    heads. Each head is as wide as the rows. Ranks exchange ``H C (C + 1) + 3`` numbers per layer and direction.

    Parameters
    ----------
    in_feats, feat_size : int
        Widths of the features and of the rows, ``C``.
    num_heads : int
        ``H``.
    layers : int
        Number of layers.
    dropout : float
        Probability in [0, 1) of dropping a feature in training.

    Raises
    ------
    ValueError
        If a size is below 1, or the probability is outside [0, 1).
    """

    def __init__(self, in_feats: int, feat_size: int, num_heads: int = 1, layers: int = 1, dropout: float = 0.0):
        super().__init__()
        check_sizes(in_feats=in_feats, feat_size=feat_size, num_heads=num_heads, layers=layers)
        self.in_feats, self.num_heads = in_feats, num_heads
        self.input = nn.Linear(in_feats, feat_size)
        self.input_norm = nn.LayerNorm(feat_size)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.ModuleList(nn.Linear(feat_size, feat_size * num_heads) for _ in range(layers)) for _ in range(3)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(feat_size) for _ in range(layers))
        self.dropouts = nn.ModuleList(FeatureDropout(check_probability("dropout", dropout)) for _ in range(layers + 1))

    def forward(self, graph, x: Tensor) -> Tensor:
        """Attend from every node to every node; (N_owned, in_feats) -> (N_owned, C).

        The arguments and errors are those of :meth:`PolynormerAttention.forward`.
        """
        seeded = _begin_whole_pass(self, graph, x, self.in_feats)
        x = self.dropouts[0](functional.relu(self.input_norm(self.input(x))), seeded)
        for layer, norm in enumerate(self.norms):
            q, k, v = (
                projections[layer](x).unflatten(1, (self.num_heads, -1))
                for projections in (self.q_proj, self.k_proj, self.v_proj)
            )
            attended = _attend_normalised(seeded.view, q, k, v)
            x = self.dropouts[layer + 1](norm((attended.mean(1) + x) / 2), seeded)
        return x


def _attend_all(view: View, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return ``(q S) / (q . z)`` with ``S`` and ``z`` summed over all nodes, (N, C), for rows (N, H, D)."""
    with torch.autocast(q.device.type, enabled=False):
        q32, k32, v32 = _in_float32(q, k, v)
        sums = torch.einsum("nhd,nhe->hde", k32, functional.pad(v32, (0, 1), value=1.0))
        both = torch.einsum("nhd,hde->nhe", q32, view.sum_over_ranks(sums))
        return (both[..., :-1] / both[..., -1:]).flatten(1).to(v.dtype)


def _attend_normalised(view: View, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return SGFormer's attention, (N, H, C), for rows (N, H, C)."""
    with torch.autocast(q.device.type, enabled=False):
        q32, k32, v32 = _in_float32(q, k, v)
        num_heads, width = q.shape[1:]
        sums = torch.einsum("nhd,nhe->hde", k32, functional.pad(v32, (0, 1), value=1.0))
        rows = q32.new_full((1,), q.shape[0])  # a traced model counts the nodes of each call
        own = torch.cat([sums.flatten(), q32.square().sum().view(1), k32.square().sum().view(1), rows])
        of_all = view.sum_over_ranks(own)
        sums = of_all[:-3].view(num_heads, width, width + 1)
        of_q, of_k, nodes = of_all[-3:]
        both = torch.einsum("nhd,hde->nhe", q32, sums) / torch.sqrt(of_q * of_k)
        return ((both[..., :-1] + nodes * v32) / (both[..., -1:] + nodes)).to(v.dtype)


def _in_float32(*rows: Tensor) -> list[Tensor]:
    """Return rows in float32 at least, because sums over all nodes in fewer bits lose most of their precision."""
    return [each.to(torch.promote_types(each.dtype, torch.float32)) for each in rows]
