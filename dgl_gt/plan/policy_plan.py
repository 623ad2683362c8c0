"""What a transmission policy of the user's is predicted to bring, with the strategy and cut on which it is quickest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_gt.exchange.policy.policy import Policy
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import Profile
from dgl_gt.partition.figures.strategies import MIRROR, WITH_POLICY, StrategyRules, strategy_of
from dgl_gt.partition.system.units import format_bytes

from .plan import Candidate
from .policy_costs import PolicyCosts, kept_bytes
from .select import Search
from .tracer import Tracer


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
