"""The exchanges of a training step that follow transmission policies, found on a made-up part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dgl_gt.exchange.policy.policy import MIN_COLUMNS, Mode, Policy
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.quantise import packed_bytes
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.strategies import StrategyRules

from .stand_in import make_layout, stand_in


@dataclass(frozen=True)
class Exchange:
    """One exchange of a step in one direction, on all ranks.

    Attributes
    ----------
    layer : int
        Layer of the model that exchanges, counted from 0.
    direction : {"rows", "gradients"}
    columns : int
        Numbers in a row.
    itemsize : int
        Size of a number that is not packed (bytes).
    rows : ndarray, (P, P)
        Rows that go from each rank to each other rank.
    """

    layer: int
    direction: str
    columns: int
    itemsize: int
    rows: np.ndarray

    @property
    def follows_policies(self) -> bool:
        """Whether its rows are wide enough to be packed."""
        return self.columns >= MIN_COLUMNS

    def row_bytes(self, mode: Mode) -> float:
        """Mean bytes per row and step; rows that a sample leaves out count as 0 bytes.

        An adaptive period counts as 1, its initial value.
        """
        if mode.bits == 0:
            return 0.0
        full = self.columns * self.itemsize
        if not self.follows_policies:
            return mode.share * full
        return mode.share * (full if mode.bits == 32 else packed_bytes(self.columns, mode.bits)) / max(mode.every, 1)


def policy_exchanges(
    make_step: Callable[[ShardedGraph], Callable[[], object]], strategy: StrategyRules, figures: Figures
) -> list[Exchange]:
    """Run a training step once, and list those of its exchanges that a policy can change.

    Parameters
    ----------
    make_step, strategy
        See :func:`dgl_gt.plan.tracing.record_trace`. The step must run inside ``sg.view.training_step``, as that
        of ``dgl-gt train`` does; other steps have no such exchanges.
    figures : Figures
        Figures of the cut.
    """
    layout = make_layout(strategy, 1, figures.parts, 0, figures.node_data, figures.edge_data)
    with torch.random.fork_rng(devices=[]):  # the user's generator stays where it is
        sg = stand_in(layout, strategy, 1)
        transmission = sg.view.follow(Policy(), 0)
        make_step(sg)()
    found, first_of_layer = [], {}
    for (number, direction), (layer, columns, itemsize, _) in sorted(transmission.exchanges.items()):
        is_of_results = number > first_of_layer.setdefault(
            layer, number
        )  # mirrors: copies go out, then results come home
        rows = _rows_between(figures, direction, is_of_results)
        found.append(Exchange(layer, direction, columns, itemsize, rows))
    return found


def _rows_between(figures: Figures, direction: str, is_of_results: bool) -> np.ndarray:
    """The rows that go from each rank to each other rank in an exchange with a halo of one hop, or with mirrors, (P, P).

    Parameters
    ----------
    figures : Figures
    direction : {"rows", "gradients"}
    is_of_results : bool
        Whether partial results of mirrors travel. For them, and for the first hop of a deeper halo, the figures hold
        one total per rank, which is assumed to divide among the other ranks as all its copies do.
    """
    rows = figures.received_rows.astype(float)  # of all hops, in rank i of rank j
    wanted = figures.returned if is_of_results else figures.copies_by_hop[:, 0]
    rows *= (wanted / np.maximum(rows.sum(axis=1), 1))[:, None]
    return rows if is_of_results == (direction == "rows") else rows.T
