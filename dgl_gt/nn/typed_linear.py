"""Linear maps of rows with weights of their own for each group: each node type, or each relation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dgl_gt.exchange.relations import RowGroups
from dgl_gt.ops.dispatch import autocast
from dgl_gt.partition.schema import Schema

from .attention import check_sizes


def grouped_linear(
    h: Tensor, groups: RowGroups, weight: Tensor, bias: Tensor | None = None, *, in_place: bool = True
) -> Tensor:
    """Multiply the rows of each group by the group's weight.

    Backward gathers the rows again, so that none but ``h`` and the result are kept.

    Parameters
    ----------
    h : Tensor, floating point, (N, in)
    groups : RowGroups
        Which rows of ``h`` are in which of the G groups.
    weight : Tensor, (G, in, out)
    bias : Tensor, (G, out), optional
    in_place : bool
        Whether each result is at the place of its row, for groups that have each row once; otherwise results follow one
        another as the rows of the groups do.

    Returns
    -------
    Tensor, (N, out) or (S, out)
    """
    h, weight, bias = autocast(h, weight, bias)
    return _GroupedLinear.apply(h, weight, bias, groups, in_place)


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, weight, bias, groups, in_place):
        ctx.save_for_backward(h, weight)
        ctx.groups, ctx.in_place = groups, in_place
        made = h.new_empty(len(h) if in_place else len(groups.rows), weight.shape[2])
        for number, (rows, place) in enumerate(_pieces(groups, in_place)):
            of_group = _rows_of(h, rows)
            if not isinstance(place, slice):
                of_group = of_group @ weight[number]
                made.index_copy_(0, place, of_group if bias is None else of_group.add_(bias[number]))
            elif bias is None:
                torch.mm(of_group, weight[number], out=made[place])
            else:
                torch.addmm(bias[number], of_group, weight[number], out=made[place])
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (h, weight), groups = ctx.saved_tensors, ctx.groups
        needs_h, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        covers = ctx.in_place  # each row is in one group
        grad_h = (torch.empty_like if covers else torch.zeros_like)(h) if needs_h else None
        grad_weight = torch.empty_like(weight) if needs_weight else None
        grad_bias = weight.new_empty(weight.shape[0], weight.shape[2]) if needs_bias else None
        for number, (rows, place) in enumerate(_pieces(groups, ctx.in_place)):
            of_group = _rows_of(grad, place)
            if grad_weight is not None:
                torch.mm(_rows_of(h, rows).T, of_group, out=grad_weight[number])
            if grad_bias is not None:
                torch.sum(of_group, 0, out=grad_bias[number])
            if grad_h is None:
                continue
            of_rows = of_group @ weight[number].T
            if isinstance(rows, slice):
                grad_h[rows] = of_rows if covers else grad_h[rows] + of_rows
            elif covers:
                grad_h.index_copy_(0, rows, of_rows)
            else:
                grad_h.index_add_(0, rows, of_rows)
        return grad_h, grad_weight, grad_bias, None, None


def _rows_of(x: Tensor, rows: Tensor | slice) -> Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _pieces(groups: RowGroups, in_place: bool):
    """For each group its rows, of types as a slice where they lie one after the other, and the places of its results."""
    for number, (begin, end) in enumerate(zip(groups.ptr, groups.ptr[1:])):
        rows = groups.span(number) if in_place else groups.group(number)
        yield rows, rows if in_place else slice(begin, end)


def check_types(schema: Schema, node_types: int | None, relations: int) -> None:
    """Raise ``ValueError`` unless a graph has as many node types, where they matter, and relations as a layer was made for."""
    for what, found, wanted in (("node types", schema.nodes, node_types), ("relations", schema.edges, relations)):
        if wanted not in (None, len(found)):
            raise ValueError(
                f"the layer was made for {wanted} {what}, and the graph has {len(found)}: {' '.join(map(str, found))}; make it "
                "with this number"
            )


class TypedLinear(nn.Module):
    """A linear map without bias for each type, as ``dgl.nn.TypedLinear``: arguments, parameters and initial weights.

    Parameters
    ----------
    in_size, out_size : int
        Widths of the rows and of the result.
    num_types : int
        Number of types.
    num_bases : int, optional
        With it, the maps are sums of this many maps that all types share, with factors of their own (Schlichtkrull et
        al., arXiv:1703.06103).
    """

    def __init__(self, in_size: int, out_size: int, num_types: int, num_bases: int | None = None):
        super().__init__()
        check_sizes(in_size=in_size, out_size=out_size)
        self.in_size, self.out_size, self.num_types = in_size, out_size, num_types
        self.W = nn.Parameter(torch.empty(num_types if num_bases is None else num_bases, in_size, out_size))
        self.coeff = None if num_bases is None else nn.Parameter(torch.empty(num_types, num_bases))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights: uniform within one over the square root of the input's width, and factors of bases Xavier's."""
        bound = 1 / math.sqrt(self.in_size)
        nn.init.uniform_(self.W, -bound, bound)
        if self.coeff is not None:
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))

    def get_weight(self) -> Tensor:
        """Return the weight of each type, (types, in_size, out_size)."""
        return self.W if self.coeff is None else torch.tensordot(self.coeff, self.W, 1)

    def forward(self, h: Tensor, groups: RowGroups, *, in_place: bool = True) -> Tensor:
        """Map rows, see :func:`grouped_linear`."""
        return grouped_linear(h, groups, self.get_weight(), in_place=in_place)

    def extra_repr(self) -> str:
        bases = "" if self.coeff is None else f", num_bases={len(self.W)}"
        return f"in_size={self.in_size}, out_size={self.out_size}, num_types={self.num_types}{bases}"
