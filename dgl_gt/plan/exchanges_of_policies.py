"""The exchanges of a training step that a transmission policy can change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dgl_gt.exchange.policy.policy import MIN_COLUMNS, Mode, Policy
from dgl_gt.exchange.shard_view import ShardView
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.quantise import packed_bytes
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.strategies import StrategyRules

from .stand_in import make_layout, stand_in


@dataclass(frozen=True)
class Exchange:
    """One exchange of a step in one direction, on all ranks."""

    layer: int  # of the model, counted from 0
    direction: str  # "rows" or "gradients"
    columns: int
    itemsize: int  # of a number that is not packed (bytes)
    rows: np.ndarray  # that go from each rank to each other rank, (P, P)

    @property
    def follows_policies(self) -> bool:
        """Whether its rows are wide enough to be packed."""
        return self.columns >= MIN_COLUMNS

    def row_bytes(self, mode: Mode) -> float:
        """Mean bytes per row and step; rows that a sample leaves out count as 0 bytes, and an adaptive period as 1."""
        if mode.bits == 0:
            return 0.0
        full = self.columns * self.itemsize
        if not self.follows_policies:
            return mode.share * full
        return mode.share * (full if mode.bits == 32 else packed_bytes(self.columns, mode.bits)) / max(mode.every, 1)

    def modes(self, policy: Policy) -> list[list[Mode]]:
        """Its mode from each rank to each other rank."""
        ranks = range(len(self.rows))
        return [[policy.mode(self.layer, self.direction, i, j) for j in ranks] for i in ranks]


def policy_exchanges(
    make_step: Callable[[ShardedGraph], Callable[[], object]], strategy: StrategyRules, figures: Figures
) -> list[Exchange]:
    """Run a training step once, and list those of its exchanges that a policy can change.

    The step must run inside ``sg.view.training_step``, as that of ``dgl-gt train`` does; other steps have no such
    exchanges.
    """
    layout = make_layout(strategy, 1, figures.parts, 0, figures.node_data, figures.edge_data, figures.schema)
    with torch.random.fork_rng(devices=[]):  # the user's generator stays where it is
        sg = stand_in(layout, strategy, 1)
        assert isinstance(sg.view, ShardView), "other strategies follow no policies"
        transmission = sg.view.follow(Policy(), 0)
        make_step(sg)()
    found: list[Exchange] = []
    first_of_layer: dict[int, int] = {}
    for (number, direction), (layer, columns, itemsize, _) in sorted(transmission.exchanges.items()):
        # with mirrors, copies go out first, then results come home
        is_of_results = number > first_of_layer.setdefault(layer, number)
        rows = _rows_between(figures, direction, is_of_results)
        found.append(Exchange(layer, direction, columns, itemsize, rows))
    return found


def _rows_between(figures: Figures, direction: str, is_of_results: bool) -> np.ndarray:
    """The rows that go from each rank to each other rank with a halo of one hop, or with mirrors, (P, P).

    For partial results of mirrors, and for the first hop of a deeper halo, the figures hold one total per rank, which
    is assumed to divide among the other ranks as all its copies do.
    """
    rows = figures.received_rows.astype(float)  # of all hops, in rank i of rank j
    wanted = figures.returned if is_of_results else figures.copies_by_hop[:, 0]
    rows *= (wanted / np.maximum(rows.sum(axis=1), 1))[:, None]
    return rows if is_of_results == (direction == "rows") else rows.T
