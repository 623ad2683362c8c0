"""The transmission policy of a run: which rules training steps follow, and what they save."""

from __future__ import annotations

from dataclasses import replace

import torch

from dgl_gt.exchange.isolated_part import isolated_part, shares_of_nodes, with_some_edges
from dgl_gt.exchange.sampled_part import sampled_part
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn import GraphTransformer, dropout_seed
from dgl_gt.run_files.run_record import PolicyOfRun
from dgl_gt.transmission.policy import EDGE_SAMPLES, Policy

from .config import TrainConfig, policy_of
from .edge_rows import edge_rows
from .run_state import EpochFigures
from .task import Task, node_classification

_OF_SAMPLE, _OF_EDGES = -2, -3  # in place of a layer, in the seeds of a step's sample and of samples of edges


class FollowedPolicy:
    """A context in which training steps follow a policy, if it changes anything.

    Attributes
    ----------
    graph : ShardedGraph
        Graph on which training steps run: that of the run, or the part alone where ranks exchange no rows.
    task : Task
        Data of the rows of that graph.
    """

    def __init__(self, sg: ShardedGraph, task: Task, policy: Policy, config: TrainConfig):
        self._sg, self._policy, self._transmission, self._config = sg, policy, None, config
        self.graph, self.task, self._masked = sg, task, []
        self._is_followed = not policy.is_exact and sg.comm.world_size > 1
        self._is_sampled = self._is_followed and policy.sampled_share < 1
        if self._is_followed and policy.exchanges_nothing:
            self.graph = isolated_part(sg.view)
            held = node_classification(self.graph, config.split, config.inputs)
            self.task = replace(held, counts=task.counts, weights=shares_of_nodes(sg.view))
            self._masked = self._parts_with_some_edges() if policy.edge_share < 1 else []
        elif self._is_followed and not self._is_sampled:
            self._transmission = sg.view.follow(policy, config.seed)

    def __enter__(self) -> FollowedPolicy:
        return self

    def __exit__(self, kind, *_) -> None:
        if self._transmission is not None:
            self._sg.view.exchange_exactly()
            if kind is None:
                self._transmission.close()

    def step_on(self, step: int) -> tuple[ShardedGraph, Task]:
        """Return the graph of a training step, and the data of its rows; a collective.

        It is :attr:`graph`, or a part of it with a sample of the copies or of the edges.
        """
        seed = self._config.seed
        of_step = dropout_seed(seed, step, _OF_SAMPLE)
        if self._masked:
            sample = self._masked[of_step % len(self._masked)]
        elif self._is_sampled:
            sample = sampled_part(self.graph.view, self._policy.sampled_share, of_step)
            sample.view.follow(self._policy.without_sampling(), seed)
        else:
            return self.graph, self.task
        return sample, replace(self.task, edges=edge_rows(sample, self._config.inputs))

    def _parts_with_some_edges(self) -> list[ShardedGraph]:
        seeds = (dropout_seed(self._config.seed, number, _OF_EDGES) for number in range(EDGE_SAMPLES))
        return [with_some_edges(self.graph, self._policy.edge_share, seed) for seed in seeds]

    def after_step(self, loss: float) -> None:
        """Take notice of the loss of a step, which is the same on every rank."""
        if self._transmission is not None:
            self._transmission.after_step(loss)

    def record(self, measured: list[EpochFigures]) -> PolicyOfRun | None:
        """Return the rules and the bytes that an exact step would have sent, all ranks together; None if all is exact."""
        if not self._is_followed:
            return None
        if self._transmission is None:  # an exact step sends backward what it, or an evaluation, sends forward
            exact_bytes = 2 * max(each.evaluation_bytes for each in measured)
        else:
            exact_bytes = (sum(each.sent_bytes for each in measured) + self._transmission.saved_bytes) / len(measured)
        exact = self._sg.comm.all_reduce(torch.tensor([exact_bytes], dtype=torch.float64))
        return PolicyOfRun(self._policy.described(), round(float(exact[0])))


def follow_policy(sg: ShardedGraph, task: Task, config: TrainConfig, model: torch.nn.Module) -> FollowedPolicy:
    """Let training steps follow the policy of a config; every rank calls it.

    Raises
    ------
    InputError
        The policy cannot be read, is not the same on all ranks, or does not fit the strategy, the model or the ranks.
    """
    policy = policy_of(config)
    sg.comm.check_agreement({"policy": policy.described()})
    policy.check(config.layers if isinstance(model, GraphTransformer) else None, sg.comm.world_size)
    if sg.comm.world_size > 1:
        policy.check_strategy(sg.strategy, sg.depth, sg.manifest["cut"])
        policy.check_model(config.activation_checkpoint, config.global_attention)
    return FollowedPolicy(sg, task, policy, config)
