"""What a training step costs under a transmission policy, and with which strategy and cut it is quickest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dgl_gt.exchange.policy.policy import ADAPTIVE, EDGE_SAMPLES, Mode, Policy
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import MIRROR, WITH_POLICY, StrategyRules, strategy_of
from dgl_gt.partition.system.units import format_bytes

from .candidates import Candidate
from .exchanges_of_policies import Exchange
from .select import Search
from .trace import traced_time
from .tracer import Tracer

_EDGE_BYTES = 24  # of the structure of a graph, for each edge: both ends, its id, and its place in the reverse index
_ROW_BYTES = 32  # and for each row: where its edges begin, in both directions, and its degrees
_PASSES = 4  # over a row in memory, to pack it on one rank and restore it on another


def _of_modes(modes: list[list[Mode]], function: Callable[[Mode], float]) -> np.ndarray:
    """A function of the mode from each rank to each other rank, (P, P)."""
    return np.array([[function(mode) for mode in row] for row in modes])


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


@dataclass(frozen=True)
class PolicyPlan:
    """The predictions of a training step under a policy."""

    candidate: Candidate  # cut and strategy; seconds and bytes sent of an exact step; memory with what the policy keeps
    seconds: float
    sent_bytes: int  # of all ranks in a step, on average
    kept_bytes: int  # from step to step: rows, errors and samples of edges, on the rank that keeps most

    def as_dict(self) -> dict:
        """The predictions as ``dgl-gt plan --json`` prints them."""
        exact = self.candidate
        return {
            **{name: getattr(exact, name) for name in ("cut", "strategy", "activation_checkpoint", "directory")},
            "predicted_seconds": self.seconds,
            "predicted_exact_seconds": exact.seconds,
            "predicted_sent_bytes": self.sent_bytes,
            "predicted_exact_sent_bytes": exact.sent_bytes,
            "predicted_memory_bytes": exact.memory_bytes,
            "kept_bytes": self.kept_bytes,
        }


def plan_policy(
    cuts: list[tuple[str | None, Figures]],
    traces: Tracer,
    profile: Profile,
    policy: Policy,
    rank_memory: int | None = None,
) -> PolicyPlan:
    """Predict a training step under a policy, for the cut and strategy with which it is fastest.

    Edges that a step leaves out, at a sampled boundary or inside the part, still count. Under the policy ``alone``, memory
    other than that of the samples of edges is assumed to be that of ``mirror``. Under an adaptive period,
    rows count as sent in every step and used in the next, as in its first steps.

    The other arguments are those of :func:`dgl_gt.plan.choose`, with the traces of the step of ``dgl-gt train``. Raises
    :class:`InputError` where no cut, strategy and mode of activation checkpointing goes with the policy, and
    :class:`NothingFits` where none fits into the memory.
    """
    ranks = cuts[0][1].parts
    profile.check_ranks(ranks)

    def kept(figures: Figures, strategy: StrategyRules, mode: str) -> np.ndarray:
        return kept_bytes(traces.exchanges(figures, strategy, mode), policy, figures)

    bounds = np.broadcast_to(rank_memory or profile.memory_bytes, ranks)
    strategies = (MIRROR,) if policy.exchanges_nothing else tuple(map(strategy_of, WITH_POLICY))
    search = Search(traces, profile, bounds, _modes(cuts, traces, policy), 1, strategies, kept)
    found = search.candidates(cuts)
    fitting = []
    for each, figures in found:
        if not each.refused:
            strategy, mode = strategy_of(each.strategy), each.activation_checkpoint
            exchanges = traces.exchanges(figures, strategy, mode)
            costs = PolicyCosts.of_trace(traces.of(figures, strategy, 1, mode), figures, profile, exchanges)
            largest = int(kept(figures, strategy, mode).max())
            fitting.append(PolicyPlan(each, costs.seconds(policy), costs.sent_bytes(policy), largest))
    if not fitting:
        raise search.refusal([each for each, _ in found], cuts[0][1])
    return min(fitting, key=lambda each: (each.seconds, each.candidate.memory_bytes))


def _modes(cuts, traces: Tracer, policy: Policy) -> tuple[str, ...]:
    """The modes of activation checkpointing that go with a policy; raises :class:`InputError` where nothing does."""
    if cuts[0][1].parts == 1:
        raise InputError("one part exchanges nothing, so a policy changes nothing; partition into two parts or more")
    if all(figures.cut == "edge" for _, figures in cuts):
        policy.check_cut("edge")
    modes = traces.activation_checkpoints
    if modes == ("full",):
        policy.check_model("full")
    return tuple(filter(policy.goes_with, modes))


def text_of_policy(planned: PolicyPlan, policy: str) -> str:
    """What a policy changes, compared with an exact step with the same strategy."""
    exact = planned.candidate
    saved = 1 - planned.sent_bytes / exact.sent_bytes if exact.sent_bytes else 0.0
    kept = f", of which the policy keeps up to {format_bytes(planned.kept_bytes)} from step to step"
    lines = [
        f"policy, approximate       {policy}",
        f"strategy                  {exact.title}",
        f"a step, predicted         {planned.seconds:.3g} s instead of {exact.seconds:.3g} s",
        f"sent in a step            {format_bytes(planned.sent_bytes)}, {saved:.1%} less than {format_bytes(exact.sent_bytes)}",
        f"memory / rank             {format_bytes(exact.memory_bytes)}{kept if planned.kept_bytes else ''}",
    ]
    return "\n".join(lines)
