"""What a transmission policy of the user's is predicted to bring, with the strategy and cut on which it is quickest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_gt.transmission.policy import ADAPTIVE, Policy
from partition.errors import InputError
from partition.predict.figures import Figures
from partition.predict.profile import Profile
from partition.predict.strategies import WITH_POLICY

from .plan import Candidate
from .policy_time import PolicyCosts, kept_bytes
from .select import is_for_cut, nothing_fits, predicted
from .step_traces import StepTraces


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
        Bytes that all ranks send in a step, in the mean over steps.
    kept_bytes : int
        Rows and errors that the policy keeps from step to step, on the rank that keeps most (bytes).
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
    traces: StepTraces,
    profile: Profile,
    policy: Policy,
    rank_memory: int | None = None,
) -> PolicyPlan:
    """Predict a training step under a policy, for the cut and strategy that take it quickest.

    Of a sampled boundary, the edges that a step leaves out count as if they were there.

    Parameters
    ----------
    cuts, traces, profile, rank_memory
        See :func:`dgl_gt.selector.choose`. ``traces`` are those of the step of ``dgl-gt train``.
    policy : Policy

    Raises
    ------
    InputError
        The policy has no fixed period, or none of the cuts, strategies and modes of activation checkpointing goes with it;
        as :class:`dgl_gt.selector.NothingFits`, none fits into the memory.
    """
    modes = _modes(cuts, traces, policy)
    ranks = cuts[0][1].parts
    profile.check_ranks(ranks)
    bounds = np.broadcast_to(rank_memory or profile.memory_bytes, ranks)
    strategies = ("mirror",) if policy.exchanges_nothing else WITH_POLICY
    found: list[PolicyPlan] = []
    for directory, figures in cuts:
        for strategy in strategies:
            if is_for_cut(strategy, figures):
                way = Candidate(figures.cut, strategy, 1, modes[0], directory)
                found += _with_modes(way, modes, figures, traces, profile, policy, bounds)
    fitting = [each for each in found if not each.candidate.refused]
    if not fitting:
        raise nothing_fits([each.candidate for each in found], bounds, traces.fixed_bytes(cuts[0][1]))
    return min(fitting, key=lambda each: (each.seconds, each.candidate.memory_bytes))


def _modes(cuts, traces: StepTraces, policy: Policy) -> tuple[str, ...]:
    """The modes of activation checkpointing that go with a policy; raises :class:`InputError` where nothing does."""
    if any(rule.mode.every == ADAPTIVE for rule in policy.rules):
        raise InputError(
            "the policy has stale=auto, whose period is known only in a run; replace it by a fixed period, such as stale=4"
        )
    if cuts[0][1].parts == 1:
        raise InputError("one part exchanges nothing, so a policy changes nothing; partition into two parts or more")
    if policy.exchanges_nothing and all(figures.cut == "edge" for _, figures in cuts):
        raise InputError("the policy none needs a vertex cut; partition with --cut vertex, or choose another policy")
    modes = traces.activation_checkpoints
    return modes if policy.exchanges_nothing else tuple(mode for mode in modes if mode != "full")


def _with_modes(way: Candidate, modes, figures: Figures, traces: StepTraces, profile, policy: Policy, bounds):
    """Plans of one strategy on one cut, with one mode of activation checkpointing after another until one fits."""
    found = []
    for mode in modes:
        trace = traces.of(figures, way.strategy, 1, mode)
        exchanges = traces.exchanges(figures, way.strategy, mode)
        kept = kept_bytes(exchanges, policy) if exchanges else np.zeros(figures.parts, np.int64)
        options = Candidate(way.cut, way.strategy, 1, mode, way.directory), trace, figures, profile, bounds
        candidate, costs = predicted(*options, kept), PolicyCosts.of_trace(trace, figures, profile, exchanges)
        found.append(PolicyPlan(candidate, costs.seconds(policy), costs.sent_bytes(policy), int(kept.max())))
        if not candidate.refused:
            break
    return found
