"""The exchanges of a training step that follow transmission policies, found on a made-up part."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.transmission.policy import Policy

from .stand_in import make_layout, stand_in


class PolicyExchange(NamedTuple):
    """One exchange of a step in one direction.

    Attributes
    ----------
    layer : int
        Layer of the model that exchanges, counted from 0.
    direction : {"rows", "gradients"}
    columns : int
        Numbers in a row.
    itemsize : int
        Size of a number (bytes).
    is_of_results : bool
        Whether partial results of mirrors travel, or their gradients, and not copies of rows.
    """

    layer: int
    direction: str
    columns: int
    itemsize: int
    is_of_results: bool


def policy_exchanges(
    make_step: Callable[[ShardedGraph], Callable[[], object]], strategy: str, parts: int, node_data, edge_data
) -> list[PolicyExchange]:
    """Run a training step once, and list those of its exchanges that a policy can change.

    Parameters
    ----------
    make_step, strategy, parts, node_data, edge_data
        See :func:`dgl_gt.trace.trace_step.trace_step`. The step must run inside ``sg.strategy.training_step``, as that of
        ``dgl-gt train`` does; other steps have no such exchanges.
    """
    with torch.random.fork_rng(devices=[]):  # the user's generator stays where it is
        sg = stand_in(make_layout(strategy, 1, parts, 0, node_data, edge_data), strategy, 1)
        transmission = sg.strategy.follow(Policy(), 0)
        make_step(sg)()
    found, first_of_layer = [], {}
    for (number, direction), (layer, columns, itemsize, _) in sorted(transmission.exchanges.items()):
        first = first_of_layer.setdefault(layer, number)
        found.append(PolicyExchange(layer, direction, columns, itemsize, number > first))
    return found
