"""The transmission policy of a run: which rules the strategy follows, and what they save."""

from __future__ import annotations

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn import GraphTransformer
from dgl_gt.transmission.policy import Policy
from partition.errors import InputError
from partition.predict.strategies import WITH_POLICY

from .config import TrainConfig, policy_of
from .run_state import EpochFigures


class FollowedPolicy:
    """A context in which the strategy of a graph follows a policy in training steps, if the policy changes anything."""

    def __init__(self, sg: ShardedGraph, policy: Policy, seed: int):
        self._sg, self._policy = sg, policy
        is_followed = not policy.is_exact and sg.comm.world_size > 1
        self._transmission = sg.strategy.follow(policy, seed) if is_followed else None

    def __enter__(self) -> FollowedPolicy:
        return self

    def __exit__(self, kind, *_) -> None:
        if self._transmission is not None:
            self._sg.strategy.exchange_exactly()
            if kind is None:
                self._transmission.close()

    def record(self, measured: list[EpochFigures]) -> dict | None:
        """Return the rules and the bytes that an exact step would have sent, all ranks together; None if all is exact."""
        if self._transmission is None:
            return None
        exact_bytes = sum(each.sent_bytes for each in measured) + self._transmission.saved_bytes
        exact = self._sg.comm.all_reduce(torch.tensor([exact_bytes]))
        return {"rules": self._policy.described(), "exact_bytes_per_epoch": round(int(exact[0]) / len(measured))}


def follow_policy(sg: ShardedGraph, config: TrainConfig, model: torch.nn.Module) -> FollowedPolicy:
    """Let a graph follow the policy of a config; every rank calls it.

    Raises
    ------
    InputError
        The policy cannot be read, is not the same on all ranks, or does not fit the strategy, the model or the ranks.
    """
    policy = policy_of(config)
    sg.comm.check_agreement({"policy": policy.described()})
    policy.check(config.layers if isinstance(model, GraphTransformer) else None, sg.comm.world_size)
    if not policy.is_exact and sg.comm.world_size > 1:
        if sg.strategy.name not in WITH_POLICY:
            raise InputError(
                f"the strategy {sg.strategy.name} has no policy ({config.policy}); use --strategy {', '.join(WITH_POLICY)}, "
                "or the policy full"
            )
        if sg.depth > 1:
            raise InputError(f"the policy {config.policy} needs --depth 1, and the depth is {sg.depth}")
    return FollowedPolicy(sg, policy, config.seed)
