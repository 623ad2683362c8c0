"""Multi-head attention over the edges of a graph."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.exchange.local import leading_rows
from dgl_gt.exchange.view import SeededView
from dgl_gt.ops.checks import is_finite_number
from dgl_gt.ops.head_minor import has_head_minor_kernel, is_head_minor
from dgl_gt.partition.errors import check_flags, check_one_of
from dgl_gt.structure import CSC
from dgl_gt.torch_internals import has_hooks

from .dropout import DropoutSite, begin_pass, check_probability
from .recomputed import Normed, is_norm, linear_of_norm, may_recompute


def is_plain(projection: nn.Module) -> bool:
    """Return whether a projection is a plain linear layer: a user has neither replaced it nor put a hook on it."""
    return type(projection) is nn.Linear and not has_hooks(projection)


def check_features(feat, name: str, width: int) -> None:
    """Raise ``ValueError`` unless the features are one tensor, (nodes, width); the argument ``name`` sets the width."""
    if isinstance(feat, (tuple, list)):
        raise ValueError(
            f"the features are a {type(feat).__name__}; allowed: one tensor (nodes, {width}). Instead of DGL's pair "
            "(h_src, h_dst), pass h_src alone: its first rows are the destinations"
        )
    if feat.ndim != 2 or feat.shape[1] != width:
        raise ValueError(
            f"the features have shape {tuple(feat.shape)}, but this module takes (nodes, {width}); pass one row for "
            f"each node, or make the module with {name} equal to the width of the features"
        )


def check_sizes(**sizes) -> None:
    """Raise ``ValueError`` unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} is {reprlib.repr(size)}; it must be a whole number of at least 1")


def check_heads(feat_size: int, num_heads: int) -> None:
    """Raise ``ValueError`` unless both are at least 1 and heads have equal widths."""
    check_sizes(feat_size=feat_size, num_heads=num_heads)
    if feat_size % num_heads:
        raise ValueError(
            f"num_heads={num_heads} does not divide feat_size={feat_size} into heads of equal width; choose a width that "
            "is a multiple of the number of heads"
        )


def check_number(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number as a float; raise ``ValueError`` with the argument's name unless it is finite and in the range."""
    if not is_finite_number(value) or not low <= value <= high:
        allowed = "a finite number" if low == -math.inf else f"from {low:g} to {high:g}"
        raise ValueError(f"{name} is {value!r}; it must be {allowed}")
    return float(value)


def check_in_degrees(structure: CSC) -> None:
    """Raise ``ValueError`` if there are nodes without in-edges; not inside torch.compile, which cannot read values."""
    if torch.compiler.is_compiling():
        return
    count = int((structure.indptr.diff() == 0).sum())
    if count:
        raise ValueError(
            f"{count} of {structure.num_dst} nodes have no in-edges, so they receive zeros; add self-loops with "
            "dgl.add_self_loop(graph), or allow that with allow_zero_in_degree=True"
        )


class EdgeAttention(DropoutSite):
    """Base class of attention modules: dropout of attention weights.

    Attributes
    ----------
    attn_drop : float
        Probability in [0, 1) of dropping an attention weight in training.
    dropout_seed : int or None
        See :class:`DropoutSite`.
    """

    def __init__(self, attn_drop: float):
        super().__init__()
        self.attn_drop = check_probability("attn_drop", attn_drop)

    @property
    def drops(self) -> bool:
        return self.training and self.attn_drop > 0

    def _dropout(self, seeded: SeededView) -> tuple[float, Tensor] | None:
        """Return the probability and the seed of this pass's mask; None without dropout."""
        return (self.attn_drop, seeded.seeds[self]) if self.drops else None


class EdgeTerm(NamedTuple):
    r"""What is added to keys and values of edges: ``weight (H, D, F)`` times ``features (E, F)``.

    It is never computed: :math:`q^\top (k + W x) = q^\top k + (W^\top q)^\top x`, and :math:`\sum a (v + W x) = \sum a v + W
    \sum a x`. So queries become :math:`[q, W^\top q]`, and attention returns both sums.
    """

    features: Tensor
    weight: Tensor

    def queries(self, q: Tensor) -> Tensor:
        """Return queries for attention with features, (..., H, D + F), from q (..., H, D)."""
        return torch.cat([q, torch.einsum("...hd,hdf->...hf", q, self.weight)], -1)

    def folded(self, attended: Tensor) -> Tensor:
        """Return the sums over edges of keys and values with this term, from what attention returned, (N, H, D + F)."""
        out, out_edge = attended.split([self.weight.shape[1], self.weight.shape[2]], 2)
        return out + torch.einsum("nhf,hdf->nhd", out_edge, self.weight.to(out.dtype))


def project_heads(
    h: Tensor,
    projections: Sequence[nn.Module],
    shape: tuple[int, int],
    head_minor: bool = False,
    of: Normed | None = None,
    edge: EdgeTerm | None = None,
) -> Tensor:
    """Project rows with one matrix product for all projections, and therefore one in backward; ``shape`` is (H, D).

    Returns (rows, 3, H, D) for queries, keys and values, (rows, 2, H, D) for keys and values, and (rows, H, D) for
    queries, (rows, H, D + F) with an ``edge``. With ``of``, ``h`` is its normed rows. Head-minor rows come from the same
    weights in another order, which costs nothing for each row.
    """
    folds = edge is not None and len(projections) == 1
    if not all(map(is_plain, projections)):
        rows = torch.cat([projection(h) for projection in projections], 1).unflatten(1, (-1, *shape))
        rows = edge.queries(rows) if edge is not None and folds else rows
    else:
        head_minor = head_minor and edge is None
        order = (1, 0) if head_minor else (0, 0)  # dimensions of a weight (H, D, C) that change places

        def joined(parameters):
            rows = torch.stack([x.unflatten(0, shape).transpose(*order) for x in parameters])
            if edge is None or not folds:
                return rows
            return torch.cat([rows, torch.einsum("phd...,hdf->phf...", rows, edge.weight)], 2)

        weight = joined([projection.weight for projection in projections])
        bias = None if projections[0].bias is None else joined([each.bias for each in projections]).flatten()
        flat = weight.flatten(0, 2)
        rows = functional.linear(h, flat, bias) if of is None else linear_of_norm(of.rows, of.norm, flat, bias, h)
        rows = rows.unflatten(1, weight.shape[:3])
        rows = rows.transpose(2, 3) if head_minor else rows
    return rows.squeeze(1) if len(projections) == 1 else rows


class BiasedMHA(EdgeAttention):
    r"""Multi-head attention along edges, with an additive bias for each edge and head.

    A node attends to the sources of its in-edges. With query :math:`q_i` of destination ``i`` and key :math:`k_j` of
    source ``j``, each head computes

    .. math:: o_i = \sum_{j \to i} \mathrm{softmax}_j\!\left(q_i^\top k_j / \sqrt{D} + b_{ji}\right) v_j

    and the concatenated heads pass through the output projection. This is attention restricted to edges (Dwivedi and
    Bresson, arXiv:2012.09699) with the bias of Graphormer (Ying et al., arXiv:2106.05234).

    Constructor arguments, ``state_dict`` keys and initial weights are those of ``dgl.nn.BiasedMHA``. On a graph without
    parallel edges, the result equals that of the dense module with ``attn_mask[dst, src] = False`` on the edges and
    ``True`` elsewhere, with one exception: for a node without in-edges this module returns the bias of the output
    projection, and the dense module NaN. Each of several parallel edges counts as an edge.

    A call without a graph, ``mha(ndata, attn_bias=None, attn_mask=None)``, computes what the dense module computes,
    with the same dropout masks for the same ``torch.manual_seed``: see its documentation for the shapes.

    Parameters
    ----------
    feat_size : int
        ``C``, the width of the features.
    num_heads : int
        ``H``, the number of heads, which divides ``feat_size``; a head is ``D = C / H`` wide.
    bias : bool
        Whether the four projections have biases.
    attn_bias_type : {"add", "mul"}
        Whether the bias is added to the scores or multiplies them. On edges only "add" can have a bias.
    attn_drop : float
        Probability in [0, 1) of dropping an attention weight in training.

    Raises
    ------
    ValueError
        If ``num_heads`` does not divide ``feat_size``, ``attn_drop`` is outside [0, 1), ``attn_bias_type`` is
        unknown, or a seed is out of range.
    """

    def __init__(
        self,
        feat_size: int,
        num_heads: int,
        bias: bool = True,
        attn_bias_type: str = "add",
        attn_drop: float = 0.1,
    ):
        super().__init__(attn_drop)
        check_heads(feat_size, num_heads)
        check_flags(bias=bias)
        check_one_of("attn_bias_type", attn_bias_type, ("add", "mul"))
        self.feat_size = feat_size
        self.num_heads = num_heads
        self.head_dim = feat_size // num_heads
        self.attn_bias_type = attn_bias_type
        self.q_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.k_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.v_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.out_proj = nn.Linear(feat_size, feat_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, as Graphormer's authors do.

        The distribution is Xavier uniform, with gain ``2**-0.5`` for queries, keys and values. The bias of the output
        projection is zero.
        """
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    @overload
    def forward(self, graph, feat: Tensor, attn_bias: Tensor | None = None) -> Tensor: ...
    @overload
    def forward(self, ndata: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor: ...
    def forward(self, *args, **kwargs) -> Tensor:
        """Attend along the edges of ``graph``, or with ``ndata`` in its place, among all nodes.

        Parameters
        ----------
        graph : DGLGraph, DGL block, CSC, ShardedGraph, Data of PyG, or Tensor (2, E)
            Graph along whose edges nodes attend; a tensor is an ``edge_index``, see :func:`dgl_gt.csc`.
        feat : Tensor, floating point, (N_src, C)
            Node features: for a block those of its sources (destinations first), for a ``ShardedGraph`` those of the
            owned nodes, ``(N_owned, C)``.
        attn_bias : Tensor, floating point, (E, H), optional
            Term added to the scores, in the order of edge ids.
        ndata : Tensor, floating point, (B, N, C)
            Node features of a batch of graphs, for the dense call, with the arguments of ``dgl.nn.BiasedMHA``:
            ``attn_bias`` (B, N, N, H) and ``attn_mask`` (B, N, N), in which a row is a query, and which is true where
            the query may not see the key.

        Returns
        -------
        Tensor, (N_dst, C) or (B, N, C)
            One row for each destination (``N_owned`` for a ``ShardedGraph``), in the dtype of ``feat``.

        Raises
        ------
        ValueError
            If ``graph`` is of another type, ``feat`` or ``attn_bias`` has another shape, or on edges ``attn_bias``
            would have to multiply.
        """
        return (self._among_all if is_dense("ndata", args, kwargs) else self._along_edges)(*args, **kwargs)

    def _among_all(self, ndata: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """Compute the dense call."""
        check_batch(ndata, self.feat_size)
        qkv = self._project(ndata.flatten(0, 1), "qkv").unflatten(0, ndata.shape[:2])
        dropout_p = self.attn_drop if self.training else 0.0
        attended = attend_all(qkv, attn_bias, attn_mask, self.attn_bias_type == "mul", dropout_p)
        return self.out_proj(attended.flatten(2))

    def _along_edges(
        self, graph, feat, attn_bias=None, *, of: Normed | None = None, edge: EdgeTerm | None = None
    ) -> Tensor:
        """Compute the call on a graph. ``of`` says what ``feat`` was made of, so that backward need not keep it.

        ``edge`` is added to keys and values.
        """
        self._check(feat, attn_bias)
        seeded = begin_pass(self, graph, feat)

        def project(h: Tensor, which: str) -> Tensor:
            is_known = of is not None and h is of.normed and is_norm(of.norm) and may_recompute()
            return self._project(
                h, which, has_head_minor_kernel(self.num_heads, self.head_dim, h), of if is_known else None, edge
            )

        options = {"bias": attn_bias, "dropout": self._dropout(seeded)}
        if edge is None:
            return self._output(seeded.view.attend(feat, project, **options))
        return self._output(edge.folded(seeded.view.attend(feat, project, edge=edge.features, **options)))

    def extra_repr(self) -> str:
        return f"feat_size={self.feat_size}, num_heads={self.num_heads}, attn_drop={self.attn_drop}"

    def _project(
        self,
        h: Tensor,
        which: str,
        head_minor: bool = False,
        of: Normed | None = None,
        edge: EdgeTerm | None = None,
    ) -> Tensor:
        projections = [getattr(self, f"{letter}_proj") for letter in which]
        return project_heads(h, projections, (self.num_heads, self.head_dim), head_minor, of, edge)

    def _output(self, attended: Tensor) -> Tensor:
        """Apply the output projection; where rows are head-minor, its columns take their order."""
        if not is_head_minor(attended) or not is_plain(self.out_proj):
            return self.out_proj(attended.flatten(1))
        weight = self.out_proj.weight.unflatten(1, attended.shape[1:]).transpose(1, 2).flatten(1)
        return functional.linear(attended.transpose(1, 2).flatten(1), weight, self.out_proj.bias)

    def queries_and_keys(self, h: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
        """Return the queries of the first rows, (num_dst, C), and the keys of all rows, (rows, C)."""
        return self._project(leading_rows(h, num_dst), "q").flatten(1), self._project(h, "k").flatten(1)

    def _check(self, feat: Tensor, attn_bias: Tensor | None) -> None:
        check_features(feat, "feat_size", self.feat_size)
        if attn_bias is not None and self.attn_bias_type == "mul":
            raise ValueError(
                "attn_bias_type is 'mul', and a bias that multiplies the scores is not available on edges; make the module "
                "with 'add', and pass a bias that is added to the scores"
            )
        if attn_bias is not None and (attn_bias.ndim != 2 or attn_bias.shape[1] != self.num_heads):
            raise ValueError(
                f"attn_bias has shape {tuple(attn_bias.shape)}, but this module takes (edges, {self.num_heads}); pass "
                "one row for each edge, in the order of edge ids, and one column for each head"
            )


# Attention among all nodes of small graphs, a batch of which is one tensor, as DGL's dense modules compute it.


def is_dense(name: str, arguments: tuple, named: dict) -> bool:
    """Return whether a call of a module is DGL's dense one, with features and no graph.

    ``arguments`` and ``named`` are those of the call, and ``name`` is DGL's name for the features. A tensor of whole
    numbers is an ``edge_index``, not features.
    """
    first = arguments[0] if arguments else None
    return name in named or isinstance(first, Tensor) and first.is_floating_point()


def check_batch(feat, width: int) -> None:
    """Raise ``ValueError`` unless the features of a dense call are one tensor, (batch, nodes, width)."""
    shape = tuple(feat.shape) if isinstance(feat, Tensor) else type(feat).__name__
    if not isinstance(feat, Tensor) or feat.ndim != 3 or feat.shape[2] != width:
        raise ValueError(
            f"without a graph, the features are {shape}; allowed: a tensor (batch, nodes, {width}) for attention among all "
            "nodes. For attention along edges, pass the graph first and then the features"
        )


def attend_all(
    qkv: Tensor, bias: Tensor | None, mask: Tensor | None, multiplies: bool = False, dropout_p: float = 0.0
) -> Tensor:
    """Attend from every node of a graph to every node of it.

    ``qkv`` is (B, N, 3, H, D). ``bias`` (B, N, N, H), for a query and a key, is added to the scores or multiplies them.
    ``mask`` (B, N, N) is true where a query may not see a key. Returns (B, N, H, D); as with DGL's module, a query that
    may see no key gets NaN. Raises ``ValueError`` if a shape does not fit.
    """
    batch, nodes, _, heads, width = qkv.shape
    q, k, v = (rows.transpose(1, 2) for rows in qkv.unbind(2))
    scores = (q * width**-0.5) @ k.transpose(2, 3)
    if bias is not None:
        bias = _broadcast("attn_bias", bias, (batch, nodes, nodes, heads)).permute(0, 3, 1, 2)
        scores = scores * bias if multiplies else scores + bias
    if mask is not None:
        scores = scores.masked_fill(
            _broadcast("attn_mask", mask, (batch, nodes, nodes)).bool().unsqueeze(1), -torch.inf
        )
    # Heads lie beside the batch, as in DGL's module, so that a seed of torch's generator gives the same dropout mask.
    weights = functional.dropout(functional.softmax(scores, 3), dropout_p)
    return (weights @ v).transpose(1, 2)


def _broadcast(name: str, given: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        return given.broadcast_to(shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}; allowed: {shape}, or a shape that broadcasts to it; reshape it"
        ) from error
