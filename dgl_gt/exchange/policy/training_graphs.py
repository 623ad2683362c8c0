"""The graphs of training steps: a rank's part, or what a transmission policy leaves of it."""

from __future__ import annotations

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.dropout import dropout_seed

from .isolated_part import isolated_part, shares_of_nodes, with_some_edges
from .policy import EDGE_SAMPLES, Policy
from .sampled_part import sampled_part

_OF_SAMPLE, _OF_EDGES = -2, -3  # in place of a layer, in the seeds of a step's sample and of samples of edges


class TrainingGraphs:
    """The graph of each training step; inside its block, exchanges in training steps follow the policy.

    Attributes
    ----------
    base : ShardedGraph
        Its nodes are those of every step: the owned nodes, or all held nodes where ranks exchange no rows.
    weights : Tensor, float32, (N,), optional
        Weight of each of these nodes in a sum over all ranks; None where each node is on one rank alone.
    policy : Policy
    is_exact : bool
        Whether training steps are those without a policy.
    """

    def __init__(self, sg: ShardedGraph, policy: Policy, seed: int):
        self.base, self.weights, self._masked = sg, None, []
        self.policy, self._sg, self._transmission, self._seed = policy, sg, None, seed
        self.is_exact = policy.is_exact or sg.comm.world_size == 1
        self._is_sampled = not self.is_exact and policy.sampled_share < 1
        if not self.is_exact and policy.exchanges_nothing:
            self.base, self.weights = isolated_part(sg.view), shares_of_nodes(sg.view)
            self._masked = self._parts_with_some_edges() if policy.edge_share < 1 else []

    def __enter__(self) -> TrainingGraphs:
        if not (self.is_exact or self._is_sampled or self.policy.exchanges_nothing):
            self._transmission = self._sg.view.follow(self.policy, self._seed)
        return self

    def __exit__(self, kind, *_) -> None:
        if self._transmission is not None:
            self._sg.view.exchange_exactly()
            if kind is None:
                self._transmission.close()

    def of_step(self, step: int) -> ShardedGraph:
        """Return the graph of a training step: the base, or one with a sample of its edges; a collective."""
        if not self._masked and not self._is_sampled:
            return self.base
        of_step = dropout_seed(self._seed, step, _OF_SAMPLE)
        if self._masked:
            return self._masked[of_step % len(self._masked)]
        sample = sampled_part(self.base.view, self.policy.sampled_share, of_step)
        sample.view.follow(self.policy.without_sampling(), self._seed)
        return sample

    def _parts_with_some_edges(self) -> list[ShardedGraph]:
        seeds = (dropout_seed(self._seed, number, _OF_EDGES) for number in range(EDGE_SAMPLES))
        return [with_some_edges(self.base, self.policy.edge_share, seed) for seed in seeds]

    def after_step(self, loss: float) -> None:
        """Take notice of the loss of a step, which is the same on every rank."""
        if self._transmission is not None:
            self._transmission.after_step(loss)

    def forget_exchanges(self) -> None:
        """Use no row again that arrived in an earlier step; every rank calls it after a step that was skipped."""
        self._sg.view.forget_exchanges()

    def exact_bytes(self, step_bytes: list[int], evaluation_bytes: list[int]) -> int:
        """Return what all ranks would have sent in an exact step, from what this one sent in steps and evaluations."""
        if self._transmission is None:  # an exact step sends backward what it, or an evaluation, sends forward
            exact = 2 * max(evaluation_bytes)
        else:
            exact = (sum(step_bytes) + self._transmission.saved_bytes) / len(step_bytes)
        return round(float(self._sg.comm.all_reduce(torch.tensor([exact], dtype=torch.float64))[0]))
