"""What a model says of itself to those who train, plan and use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ModelTraits:
    """What a model says besides that it is called as ``model(graph, feat)``; the defaults hold for any model.

    Attributes
    ----------
    num_views : int, optional
        Number of layers that take a view each, so that a halo of several hops serves as many of them; None where one
        graph serves the whole model.
    input_sizes : dict of str to int, optional
        Widths of its inputs, ``in_dim``, ``edge_feats`` and ``edge_kinds``; None where they are unknown.
    dropout_parts : tuple of Module
        The parts whose numbers are in the seeds of :func:`dgl_gt.nn.set_dropout_step`; layers elsewhere come after
        them.
    """

    num_views: int | None = None
    input_sizes: Mapping[str, int] | None = None
    dropout_parts: tuple[nn.Module, ...] = ()


def traits_of(model: nn.Module) -> ModelTraits:
    """Return what a model says of itself, by its attribute ``dgl_gt_traits``; a model of a user's need not have one."""
    traits = getattr(model, "dgl_gt_traits", None)
    return traits if isinstance(traits, ModelTraits) else ModelTraits()
