"""What a transmission policy of the user's is predicted to bring, with the strategy and cut on which it is quickest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_gt.exchange.policy.policy import Policy
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import MIRROR, WITH_POLICY, StrategyRules, strategy_of

from .plan import Candidate
from .policy_time import PolicyCosts, kept_bytes
from .select import Search
from .tracer import Tracer


@dataclass(frozen=True)
class PolicyPlan:
    """The predictions of a training step under a policy.

    Attributes
    ----------
    candidate : Candidate
        The cut and the strategy. Seconds and bytes sent are those of an exact step; what the policy keeps from step to
        step is part of the memory.
    seconds : float
        Time of a step (s).
    sent_bytes : int
        Bytes that all ranks send in a step, on average.
    kept_bytes : int
        Rows, errors and samples of edges that the policy keeps from step to step, on the rank that keeps most (bytes).
    """

    candidate: Candidate
    seconds: float
    sent_bytes: int
    kept_bytes: int

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

    Parameters
    ----------
    cuts, traces, profile, rank_memory
        See :func:`dgl_gt.plan.choose`. ``traces`` are those of the step of ``dgl-gt train``.
    policy : Policy

    Raises
    ------
    InputError
        None of the cuts, strategies and modes of activation checkpointing goes with the policy;
        as :class:`dgl_gt.plan.NothingFits`, none fits into the memory.
    """
    ranks = cuts[0][1].parts
    profile.check_ranks(ranks)

    def kept(figures: Figures, strategy: StrategyRules, mode: str) -> np.ndarray:
        return kept_bytes(traces.exchanges(figures, strategy, mode), policy, figures)

    bounds = np.broadcast_to(rank_memory or profile.memory_bytes, ranks)
    strategies = (MIRROR,) if policy.exchanges_nothing else tuple(map(strategy_of, WITH_POLICY))
    search = Search(traces, profile, bounds, _modes(cuts, traces, policy), 1, strategies, kept)
    found = [(each, figures) for directory, figures in cuts for each in search.candidates(figures, directory)]
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
