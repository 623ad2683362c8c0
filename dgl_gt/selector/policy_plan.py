"""What a transmission policy of the user's is predicted to bring, with the strategy and cut on which it is quickest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_gt.transmission.policy import ADAPTIVE, Policy
from partition.errors import InputError
from partition.predict.figures import Figures
from partition.predict.profile import Profile
from partition.predict.strategies import WITH_POLICY
from partition.system.units import size

from .plan import Candidate
from .policy_time import PolicyCosts, kept_bytes
from .select import choose
from .step_traces import StepTraces


@dataclass(frozen=True)
class PolicyPlan:
    """The predictions of a training step under a policy.

    Attributes
    ----------
    candidate : Candidate
        The cut and the strategy, with the predictions of an exact step.
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
            "predicted_memory_bytes": exact.memory_bytes + self.kept_bytes,
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
        or see :func:`dgl_gt.selector.choose`.
    """
    if any(rule.mode.every == ADAPTIVE for rule in policy.rules):
        raise InputError("the policy has stale=auto, whose period is known only in a run; plan for stale=4, say")
    if cuts[0][1].parts == 1:
        raise InputError("one part exchanges nothing, so a policy changes nothing; partition into two parts or more")
    strategies, modes = WITH_POLICY, traces.activation_checkpoints
    if policy.exchanges_nothing:
        strategies = ("mirror",)
    else:
        modes = tuple(mode for mode in modes if mode != "full")
    if not modes:
        raise InputError("activation_checkpoint is full, which no policy goes with; choose keep_exchanges or none")
    if policy.exchanges_nothing and all(figures.cut == "edge" for _, figures in cuts):
        raise InputError("the policy none needs a vertex cut; partition with --cut vertex, or choose another policy")
    exact = choose(
        cuts, traces, profile, rank_memory=rank_memory, max_depth=1, activation_checkpoints=modes, strategies=strategies
    )
    figures_of = dict(cuts)
    found = [
        _predicted(each, figures_of[each.directory], traces, profile, policy)
        for each in exact.candidates
        if not each.refused
    ]
    bound = rank_memory or float(np.min(profile.memory_bytes))
    fitting = [each for each in found if each.candidate.memory_bytes + each.kept_bytes <= bound]
    if not fitting:
        least = min(found, key=lambda each: each.candidate.memory_bytes + each.kept_bytes)
        needed = least.candidate.memory_bytes + least.kept_bytes
        raise InputError(
            f"with what the policy keeps from step to step, a rank needs {size(needed)}, and it has {size(bound)}; choose a "
            "policy without stale, or partition for more ranks"
        )
    return min(fitting, key=lambda each: (each.seconds, each.candidate.memory_bytes))


def _predicted(candidate: Candidate, figures: Figures, traces: StepTraces, profile: Profile, policy: Policy):
    options = figures, candidate.strategy, candidate.activation_checkpoint
    trace, exchanges = (
        traces.of(figures, candidate.strategy, 1, candidate.activation_checkpoint),
        traces.exchanges(*options),
    )
    costs = PolicyCosts.of_trace(trace, figures, profile, exchanges)
    kept = int(kept_bytes(exchanges, policy).max(initial=0))
    return PolicyPlan(candidate, costs.seconds(policy), costs.sent_bytes(policy), kept)
