"""Sufficient factors: the gradient of a weight that few rows reach travels as its two factors (TAG, arXiv 2302.06126).

The gradient of a linear layer's weight is dY^T X: a sum over rows, of the gradient of its result times its input. After
the last attention each row is computed by itself, so dY is zero except in the training rows. Where these are few, ranks
gather their rows of X and dY, and each computes the whole product. This is exact, and no rank computes a product over
all its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.models import NodeModel
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.shards.counts import read_figures

from .config import TrainConfig
from .module_places import at_place
from .task import Task


def factored_layers(model: NodeModel, figures: Figures, config: TrainConfig) -> tuple[str, ...]:
    """Names of the linear layers whose gradients take fewer bytes as factors; the same on every rank.

    ``model`` is that of the config. There are none if the masks hold several splits, because figures do not count their
    rows, or if the loss also has a term for rows outside the training rows, or reads edges.
    """
    mask = config.task.mask_of_loss
    if config.task.reads_pairs or config.task.node_embedding or mask not in figures.masked:
        return ()
    rows = figures.masked[mask]
    layers = {name: layer for name, layer in model.after_attention().items() if layer.weight.requires_grad}
    return tuple(name for name, layer in layers.items() if saves_bytes(layer, rows.tolist()))


def saves_bytes(layer: nn.Linear, rows: list[int]) -> bool:
    """Whether a layer's factors take fewer bytes than an all-reduce of its gradient, for this many rows on each rank.

    What counts is the rank that sends or receives most. A ring moves 2 (P - 1) / P times the gradient.
    """
    ranks, width = len(rows), layer.in_features + layer.out_features
    factors = max(max((ranks - 1) * each, sum(rows) - each) for each in rows) * width
    return factors < 2 * (ranks - 1) / ranks * sum(each.numel() for each in layer.parameters())


def factors_of(model: NodeModel, task: Task, sg: ShardedGraph, config: TrainConfig) -> SufficientFactors | None:
    """What sums the gradients that take fewer bytes as factors; None without such. Every rank calls it."""
    names = factored_layers(model, read_figures(sg.manifest), config)
    if not names or task.rows_of_loss is None:
        return None
    counts = sg.comm.gather_objects(len(task.rows_of_loss))  # with the policy alone, mirrors are among the rows
    names = tuple(name for name in names if saves_bytes(model.get_submodule(name), counts))
    return SufficientFactors(sg.comm, model, names, task.rows_of_loss, counts) if names else None


class SufficientFactors:
    """Sums the gradients of some linear layers over ranks, see :func:`factored_layers`.

    Outside of ``rows`` (int64), the gradients of the layers' results are zero; ``counts`` (P,) are their numbers by rank.
    """

    def __init__(self, comm: Comm, model: nn.Module, names: tuple[str, ...], rows: torch.Tensor, counts: list[int]):
        self._comm, self._rows, self._counts = comm, rows, counts
        self._layers = [cast(nn.Linear, model.get_submodule(name)) for name in names]
        self._found: dict[nn.Linear, torch.Tensor] = {}

    @contextmanager
    def summing(self) -> Iterator[None]:
        """A context for one forward and one backward pass; at its end the layers have the gradients of all ranks.

        Inside it, their parameters need no gradient, so no other sum holds them.
        """
        parameters = [each for layer in self._layers for each in layer.parameters()]
        hooks = [layer.register_forward_hook(self._keep) for layer in self._layers]
        for each in parameters:
            each.requires_grad_(False)
        try:
            yield
        finally:
            for each in parameters:
                each.requires_grad_(True)
            for hook in hooks:
                hook.remove()
            found, self._found = self._found, {}
        with at_place("the gradient sum", self._comm):
            self._sum(found)

    def _keep(self, layer: nn.Linear, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        """Keep the rows of the input, and later those of the gradient of the result."""
        if not output.requires_grad:
            return
        x = inputs[0].detach().index_select(0, self._rows)

        def with_gradient(grad: torch.Tensor) -> None:
            dtype = layer.weight.dtype
            self._found[layer] = torch.cat([x.to(dtype), grad.index_select(0, self._rows).to(dtype)], 1)

        output.register_hook(with_gradient)

    @torch.no_grad()
    def _sum(self, found: dict[nn.Linear, torch.Tensor]) -> None:
        widths = [(layer.in_features, layer.out_features) for layer in self._layers]
        none = [each.weight.new_zeros(len(self._rows), sum(width)) for each, width in zip(self._layers, widths)]
        mine = torch.cat([found.get(layer, zeros) for layer, zeros in zip(self._layers, none)], 1)
        gathered = self._comm.gather_counted(mine, self._counts)
        for layer, width, rows in zip(self._layers, widths, gathered.split([sum(width) for width in widths], 1)):
            x, dy = rows.split(width, 1)
            layer.weight.grad = dy.T @ x
            if layer.bias is not None:
                layer.bias.grad = dy.sum(0)
