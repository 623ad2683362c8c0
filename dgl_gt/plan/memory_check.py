"""Before training: the memory that a step is predicted to take is compared with what is free."""

from __future__ import annotations

import numpy as np
import torch

from dgl_gt.exchange.policy.policy import Policy
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.profile import read_profile
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.train.config import TrainConfig, policy_of
from dgl_gt.train.model import ModelFactory

from .calibrate import available_rank_memory
from .planned_step import tracer_of
from .policy_plan import plan_policy
from .policy_time import kept_bytes
from .select import choose

_ROWS_OF_A_LAYER = 40  # of width hidden that a transformer layer keeps for the backward pass; more than any does
_SAFE_SHARE = 0.25  # of the memory; below, no prediction is made, because that takes a second or more


def check_memory(directory, sg: ShardedGraph, config: TrainConfig, factory: ModelFactory | None = None) -> None:
    """Refuse a run whose tensors alone need more memory than a rank can have; every rank calls it.

    Limits of control groups count. The message says what would fit. A step that cannot be traced is not refused.

    Raises
    ------
    InputError
        The memory is too little on one of the ranks.
    """
    comm, figures = sg.comm, read_figures(sg.manifest)
    available = available_rank_memory(comm)
    keeps_samples = policy_of(config).edge_share < 1
    is_plain = factory is None and not config.task.edge_features and not keeps_samples
    is_safe = is_plain and _rough_bytes(figures, config) < _SAFE_SHARE * available
    if int(comm.all_reduce(torch.tensor([int(not is_safe)]), "max")[0]) == 0:
        return
    with comm.raising_together():
        _check_step(directory, sg, figures, config, factory, available)


def _check_step(directory, sg: ShardedGraph, figures: Figures, config: TrainConfig, factory, available: int) -> None:
    try:
        traces = tracer_of(config, figures.features, factory=factory)
    except InputError:  # the model is too large to be traced; or one of the user's cannot be made of made-up sizes
        if factory:
            return
        raise
    needed = _needed_bytes(traces, figures, sg, config)
    if needed is not None and needed > available:
        raise InputError(
            f"a training step is predicted to need {format_bytes(needed)} for tensors on this rank, and {format_bytes(available)} are "
            f"free; {_what_fits(directory, figures, traces, available, policy_of(config))}"
        )


def _needed_bytes(traces, figures: Figures, sg: ShardedGraph, config: TrainConfig) -> int | None:
    """What a step takes on this rank; None for a step that cannot be traced, such as one that reads its data."""
    strategy, mode, policy = sg.strategy, config.activation_checkpoint, policy_of(config)
    is_exact = policy.is_exact or not strategy.sends_copies
    try:
        trace = traces.of(figures, strategy, min(sg.depth, traces.max_depth), mode)
        exchanges = [] if is_exact else traces.exchanges(figures, strategy, mode)
    except InputError:
        return None
    kept = np.zeros(figures.parts, np.int64) if is_exact else kept_bytes(exchanges, policy, figures)
    return int((trace.peak_bytes(figures) + kept)[sg.comm.rank])


def _rough_bytes(figures: Figures, config: TrainConfig) -> float:
    """More than a step of the graph transformer takes, from its sizes alone."""
    rows = float(np.max(figures.owned + figures.copies_by_hop.sum(1)))
    layers = config.model.layers + config.model.global_layers
    weights = layers * 20 * config.model.hidden**2 + figures.features * config.model.hidden
    return 4 * (rows * (3 * figures.features + _ROWS_OF_A_LAYER * layers * config.model.hidden) + 6 * weights)


def _what_fits(directory, figures: Figures, traces, available: int, policy: Policy) -> str:
    cuts, profile = [(str(directory), figures)], read_profile(None, None)
    try:
        if policy.is_exact or figures.parts == 1:
            choice = choose(cuts, traces, profile, rank_memory=available).choice
        else:
            choice = plan_policy(cuts, traces, profile, policy, available).candidate
    except InputError as error:
        return str(error)
    options = (
        f"--strategy {choice.strategy} --depth {choice.depth} --activation-checkpoint {choice.activation_checkpoint}"
    )
    return f"{options} is predicted to fit, with {format_bytes(choice.memory_bytes)}"
