"""What a step costs under a transmission policy: its exchanges, from a made-up part, and their seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from dgl_gt.exchange.policy.policy import ADAPTIVE, EDGE_SAMPLES, MIN_COLUMNS, Mode, Policy
from dgl_gt.exchange.shard_view import ShardView
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.quantise import packed_bytes
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import StrategyRules

from .stand_in import make_layout, stand_in
from .traced_time import traced_time

_EDGE_BYTES = 24  # of the structure of a graph, for each edge: both ends, its id, and its place in the reverse index
_ROW_BYTES = 32  # and for each row: where its edges begin, in both directions, and its degrees
_PASSES = 4  # over a row in memory, to pack it on one rank and restore it on another


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


def _of_modes(modes: list[list[Mode]], function: Callable[[Mode], float]) -> np.ndarray:
    """A function of the mode from each rank to each other rank, (P, P)."""
    return np.array([[function(mode) for mode in row] for row in modes])


def policy_exchanges(
    make_step: Callable[[ShardedGraph], Callable[[], object]], strategy: StrategyRules, figures: Figures
) -> list[Exchange]:
    """Run a training step once, and list those of its exchanges that a policy can change.

    The step must run inside ``sg.view.training_step``, as that of ``dgl-gt train`` does; other steps have no such
    exchanges.
    """
    layout = make_layout(strategy, 1, figures.parts, 0, figures.node_data, figures.edge_data)
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


def kept_bytes(exchanges: list[Exchange], policy: Policy, figures: Figures) -> np.ndarray:
    """Bytes that each rank keeps from step to step under a policy, int64, (P,).

    They are rows and errors of exchanges, see :class:`dgl_gt.exchange.policy.transmission.Lane`, and samples of edges, see
    :func:`dgl_gt.exchange.policy.training_graphs.with_some_edges`.
    """
    total, ranks = np.zeros(figures.parts), range(figures.parts)
    if policy.edge_share < 1:
        of_edge = policy.edge_share * (_EDGE_BYTES + figures.edge_bytes)
        total += EDGE_SAMPLES * (of_edge * figures.edges + _ROW_BYTES * figures.held_within(1))
    for each in exchanges if policy.sampled_share == 1 else ():  # each step has a sample of its own
        if not each.follows_policies:
            continue
        row_bytes, modes = each.columns * each.itemsize, each.modes(policy)
        for rank in ranks:
            others = [other for other in ranks if other != rank]
            arriving, leaving = [modes[other][rank] for other in others], [modes[rank][other] for other in others]
            times: int = any(mode.every == ADAPTIVE or (mode.bits < 32 and mode.is_stale) for mode in leaving)
            times += each.direction == "gradients" and any(0 < mode.bits < 16 for mode in leaving)
            total[rank] += row_bytes * times * each.rows[rank].sum()
            total[rank] += row_bytes * any(mode.is_stale for mode in arriving) * each.rows[:, rank].sum()
    return np.rint(total).astype(np.int64)


@dataclass(frozen=True)
class PolicyCosts:
    """The costs of a training step under any policy.

    Under an adaptive period, rows count as sent in every step and used in the next, as in its first steps.
    """

    exchanges: list[Exchange]  # those of a step that follow policies
    compute_s: float  # of a step without these exchanges
    exposed_share: float  # of an exchange: what computation in the same step does not hide
    other_bytes: int  # that all ranks send in other exchanges of an exact step, such as log-sum-exps
    profile: Profile
    _known: dict[tuple, tuple[float, float]] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of_trace(trace, figures: Figures, profile: Profile, exchanges: list[Exchange]) -> PolicyCosts:
        """Return the costs of a step that was traced with exact exchanges on a cut."""
        time, exact = traced_time(trace, figures, profile), Policy()
        exposed = 1 - time.hidden_s / time.exchange_s if time.exchange_s > 0 else 1.0
        alone = PolicyCosts(exchanges, 0.0, exposed, 0, profile)
        return replace(
            alone,
            compute_s=max(0.0, time.total_s - alone.seconds(exact)),
            other_bytes=trace.sent_bytes(figures) - alone.sent_bytes(exact),
        )

    @cached_property
    def _byte_s(self) -> np.ndarray:
        """Seconds per byte from each rank to each other rank, (P, P)."""
        ranks = len(self.exchanges[0].rows)
        return (1 - np.eye(ranks)) / self.profile.links(ranks).T

    def seconds(self, policy: Policy) -> float:
        """Predict the time of a step (s).

        An exchange lasts as long as the rank with the slowest arrivals needs. Rows of a stale mode have the whole step
        to arrive, so their exchanges delay a step only by what they take beyond it, and rows that are packed are read
        and written a few times more.
        """
        step_s, hidden = self.compute_s, 0.0
        for number in range(len(self.exchanges)):
            exposed_s, later = self._exchange_seconds(number, policy)
            step_s, hidden = step_s + exposed_s, hidden + later
        return float(step_s + max(0.0, hidden - step_s))

    def _exchange_seconds(self, number: int, policy: Policy) -> tuple[float, float]:
        """What one exchange takes where it delays the step, with packing, and where it does not (s).

        It is kept for the rules that are for this exchange, because a search asks for the same ones many times.
        """
        each = self.exchanges[number]
        rules = tuple(rule for rule in policy.rules if rule.is_for(each.layer, each.direction))
        if (number, rules) in self._known:
            return self._known[number, rules]
        modes = each.modes(Policy(rules))
        is_stale = _of_modes(modes, lambda mode: mode.is_stale and each.follows_policies)
        arriving = each.rows * _of_modes(modes, each.row_bytes) * self._byte_s
        now, later = np.where(is_stale, 0, arriving).sum(0).max(), np.where(is_stale, arriving, 0).sum(0).max()
        is_awaited = now or not (is_stale.any() or policy.exchanges_nothing)
        awaited = (now + self.profile.latency_s) * self.exposed_share if is_awaited else 0.0
        is_packed = _of_modes(modes, lambda mode: 0 < mode.bits < 32 and each.follows_policies)
        every = _of_modes(modes, lambda mode: max(mode.every, 1))
        touched = np.where(is_packed, each.rows / every, 0).sum(0).max() * each.columns * each.itemsize
        packed = _PASSES * touched / np.min(self.profile.stream_bytes_per_s)
        self._known[number, rules] = awaited + packed, later
        return self._known[number, rules]

    def sent_bytes(self, policy: Policy) -> int:
        """Return the bytes that all ranks send in a step, on average."""
        total = 0.0
        for each in self.exchanges:
            total += float((each.rows * _of_modes(each.modes(policy), each.row_bytes)).sum())
        return round(total + self.other_bytes * (0 if policy.exchanges_nothing else policy.sampled_share))
