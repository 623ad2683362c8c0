"""What a training step costs under a transmission policy: seconds and bytes, from the exchanges of the step and a profile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dgl_gt.exchange.policy.policy import ADAPTIVE, EDGE_SAMPLES, Mode, Policy
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile

from .policy_exchanges import Exchange
from .traced_time import traced_time

_EDGE_BYTES = 24  # of the structure of a graph, for each edge: both ends, its id, and its place in the reverse index
_ROW_BYTES = 32  # and for each row: where its edges begin, in both directions, and its degrees
_PASSES = 4  # over a row in memory, to pack it on one rank and restore it on another


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
        row_bytes, modes = each.columns * each.itemsize, modes_of(each, policy)
        for rank in ranks:
            others = [other for other in ranks if other != rank]
            arriving, leaving = [modes[other][rank] for other in others], [modes[rank][other] for other in others]
            times = any(mode.every == ADAPTIVE or (mode.bits < 32 and mode.is_stale) for mode in leaving)
            times += each.direction == "gradients" and any(0 < mode.bits < 16 for mode in leaving)
            total[rank] += row_bytes * times * each.rows[rank].sum()
            total[rank] += row_bytes * any(mode.is_stale for mode in arriving) * each.rows[:, rank].sum()
    return np.rint(total).astype(np.int64)


def modes_of(exchange: Exchange, policy: Policy) -> list[list[Mode]]:
    """The mode of an exchange from each rank to each other rank."""
    ranks = range(len(exchange.rows))
    return [[policy.mode(exchange.layer, exchange.direction, i, j) for j in ranks] for i in ranks]


@dataclass(frozen=True)
class PolicyCosts:
    """The costs of a training step under any policy. Under an adaptive period,
    rows count as sent in every step and used in the next, as in its first steps.

    Attributes
    ----------
    exchanges : list of Exchange
        Exchanges of a step that follow policies.
    compute_s : float
        Time of a step without these exchanges (s).
    exposed_share : float
        Share of an exchange that computation in the same step does not hide.
    other_bytes : int
        Bytes that all ranks send in other exchanges of an exact step, such as log-sum-exps.
    profile : Profile
    """

    exchanges: list[Exchange]
    compute_s: float
    exposed_share: float
    other_bytes: int
    profile: Profile

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
        modes = modes_of(each, Policy(rules))
        row_bytes = np.array([[each.row_bytes(mode) for mode in row] for row in modes])
        is_stale = np.array([[mode.is_stale and each.follows_policies for mode in row] for row in modes])
        arriving = each.rows * row_bytes * self._byte_s
        now, later = np.where(is_stale, 0, arriving).sum(0).max(), np.where(is_stale, arriving, 0).sum(0).max()
        is_awaited = now or not (is_stale.any() or policy.exchanges_nothing)
        awaited = (now + self.profile.latency_s) * self.exposed_share if is_awaited else 0.0
        is_packed = np.array([[0 < mode.bits < 32 and each.follows_policies for mode in row] for row in modes])
        every = np.array([[max(mode.every, 1) for mode in row] for row in modes])
        touched = np.where(is_packed, each.rows / every, 0).sum(0).max() * each.columns * each.itemsize
        packed = _PASSES * touched / np.min(self.profile.stream_bytes_per_s)
        self._known[number, rules] = awaited + packed, later
        return self._known[number, rules]

    @cached_property
    def _known(self) -> dict[tuple, tuple[float, float]]:
        return {}

    def sent_bytes(self, policy: Policy) -> int:
        """Return the bytes that all ranks send in a step, on average."""
        total = 0.0
        for each in self.exchanges:
            row_bytes = np.array([[each.row_bytes(mode) for mode in row] for row in modes_of(each, policy)])
            total += float((each.rows * row_bytes).sum())
        return round(total + self.other_bytes * (0 if policy.exchanges_nothing else policy.sampled_share))
