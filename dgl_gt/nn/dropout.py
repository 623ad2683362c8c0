"""Dropout whose masks depend on nodes and edges, not on the rank or the order in which rows are computed, and their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn

from dgl_gt.exchange.any_graph import as_view
from dgl_gt.exchange.local import leading_rows
from dgl_gt.exchange.view import SeededView, View
from dgl_gt.ops.checks import check_probability, check_seed
from dgl_gt.ops.dropout import dropout_seed, keyed_dropout

from .recomputed import is_linear
from .sparse_rows import linear
from .traits import traits_of

_SEED_LIMIT = 2**63 - 1


def draw_seeds(*shape: int) -> Tensor:
    """Return seeds of masks, int64 on the CPU, from torch's default CPU generator.

    ``torch.manual_seed`` sets that generator, and ``torch.utils.checkpoint`` restores it.
    """
    return torch.randint(_SEED_LIMIT, shape, device="cpu")


class DropoutSite(nn.Module):
    """Base class of modules that drop something, each with one mask in a pass.

    Attributes
    ----------
    dropout_seed : int or None
        Seed of the dropout mask, in [0, 2**63), the same on all ranks that share a graph. With None, each forward pass
        in training draws a seed from torch's default CPU generator, which ``torch.manual_seed`` sets and
        ``torch.utils.checkpoint`` restores; all ranks take the seed that rank 0 draws.
    """

    # A tensor, because torch.compile treats a number on a module as a constant and would compile again for each step.
    _seed: Tensor | None = None

    @property
    def dropout_seed(self) -> int | None:
        return None if self._seed is None else int(self._seed)

    @dropout_seed.setter
    @torch.inference_mode(False)  # a module keeps it, and backward reads it
    def dropout_seed(self, seed: int | None) -> None:
        if seed is not None:
            check_seed(seed)
        self._seed = None if seed is None else torch.tensor(seed, device="cpu")

    @property
    def drops(self) -> bool:
        """Whether it drops anything now."""
        raise NotImplementedError


def _sites(module: nn.Module) -> list[DropoutSite]:
    return [each for each in module.modules() if isinstance(each, DropoutSite)]


def begin_pass(module: nn.Module, graph, feat: Tensor) -> SeededView:
    """Return the view of a graph for a pass of a module; inside another module's pass, it is given that one's.

    The arguments and errors are those of :func:`as_view`.
    """
    if isinstance(graph, SeededView):
        return graph
    (seeded,) = with_seeds(module, [as_view(graph, feat, module)])
    return seeded


def with_seeds(module: nn.Module, views: list[View]) -> list[SeededView]:
    """Return views with the seeds of all masks of a pass of a module.

    Those that are not set are drawn all at once, so that ranks communicate once.
    """
    kinds = DropoutSite, Dropout
    seeds = {site: getattr(site, "_seed", None) for site in module.modules() if isinstance(site, kinds) and site.drops}
    unset = [site for site, seed in seeds.items() if seed is None]
    if unset:
        seeds.update(zip(unset, views[0].broadcast(draw_seeds(len(unset)))))
    return [SeededView(view, seeds) for view in views]


def set_dropout_step(model: nn.Module, run_seed: int, step: int) -> None:
    """Fix the dropout masks of this package's layers in a model until the next call.

    Masks differ by layer and step, and are the same on all ranks if each rank calls this with the same arguments. They do
    not depend on torch's generators, from which each pass in training draws its masks otherwise. A layer that a step
    calls twice has the same masks twice. :class:`Dropout` is no such layer: it draws its masks in every call, or once in a
    pass of a :class:`LayeredModel`.

    Parameters
    ----------
    model : Module
        A model of this package or of your own, or a single layer.
    run_seed, step : int
        Any integers; see :func:`dropout_seed`.
    """
    parts = traits_of(model).dropout_parts
    numbered = {id(site) for part in parts for site in _sites(part)}
    for index, part in enumerate([*parts, *(site for site in _sites(model) if id(site) not in numbered)]):
        places = count()
        for site in _sites(part):
            place = [next(places)] if isinstance(site, FeatureDropout) else []
            site.dropout_seed = dropout_seed(run_seed, step, index, *place)


class FeatureDropout(DropoutSite, nn.Dropout):
    """Dropout keyed by (seed, node id, column)."""

    @property
    def drops(self) -> bool:
        return self.training and self.p > 0

    def forward(self, h: Tensor, seeded: SeededView | None = None) -> Tensor:
        """Drop features of ``h``, (rows, C), the first rows that the view attends; without a view, as ``nn.Dropout``."""
        if seeded is None:
            return super().forward(h)
        return self.mask(seeded, len(h))(h)

    def mask(self, seeded: SeededView, rows: int) -> Callable[[Tensor], Tensor]:
        """Return what drops the features of this many rows, with one mask whenever it is called."""
        if not self.drops:
            return _unchanged
        ids = seeded.view.node_ids
        ids = None if ids is None else leading_rows(ids, rows)
        return partial(keyed_dropout, p=self.p, seed=seeded.seeds[self], ids=ids)


def _unchanged(rows: Tensor) -> Tensor:
    return rows


class RowSequential(nn.Sequential):
    """An ``nn.Sequential`` that gives its dropouts the view."""

    def forward(self, h: Tensor, seeded: SeededView | None = None) -> Tensor:
        """Run the modules."""
        for module in self:
            if isinstance(module, FeatureDropout):
                h = module(h, seeded)
            else:
                h = linear(h, module.weight, module.bias) if is_linear(module) else module(h)
        return h


class Dropout(nn.Module):
    """``torch.nn.Dropout`` for rows of nodes: with several ranks, the masks are those of one process.

    A mask depends on a seed, the node id and the column alone. Each pass in training draws the seed from torch's default
    CPU generator, which ``torch.manual_seed`` sets, and all ranks take that of rank 0. A pass of a
    :class:`LayeredModel` draws it once.

    Parameters
    ----------
    p : float
        Probability in [0, 1) of dropping a feature in training.

    Raises
    ------
    ValueError
        The probability is outside [0, 1).
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        self.p = check_probability("p", p)

    @property
    def drops(self) -> bool:
        """Whether it drops anything now."""
        return self.training and self.p > 0

    def forward(self, x: Tensor, graph) -> Tensor:
        """Drop features of ``x``.

        Parameters
        ----------
        x : Tensor, floating point, (rows, ...)
            Rows of nodes. On a ``ShardedGraph`` those of the owned nodes, before ``sg.pull``.
        graph : ShardedGraph, DGLGraph, DGL block, CSC, or Tensor (2, E)
            Graph to which the rows belong. With several ranks every rank takes part.

        Returns
        -------
        Tensor, (rows, ...)
            The others are multiplied by ``1 / (1 - p)``.

        Raises
        ------
        ValueError
            The rows are not those of the owned nodes, or ``graph`` is of another type.
        """
        if not self.drops:
            return x
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        view = as_view(graph, flat)
        ids = view.node_ids
        if ids is not None:
            if len(x) not in (view.num_dst, len(ids)):
                raise ValueError(
                    f"got {len(x)} rows, but this rank owns {view.num_owned} nodes; pass one row for each, and drop "
                    "before sg.pull"
                )
            ids = leading_rows(ids, len(x))
        seed = graph.seeds.get(self) if isinstance(graph, SeededView) else None
        seed = view.broadcast(draw_seeds()) if seed is None else seed
        return keyed_dropout(flat, self.p, seed, ids).view(x.shape)

    def extra_repr(self) -> str:
        return f"p={self.p}"
