"""``--strategy auto``: predict, time the two best for a few real steps, keep the quicker."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace

import torch

from dgl_gt.exchange.load import load
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.selector.calibrate import memory_at_hand
from dgl_gt.selector.hardware_profile import DEFAULT, Profile
from dgl_gt.selector.select import Candidate, choose
from partition.errors import InputError
from partition.predict.traffic import ACTIVATION_CHECKPOINTS, Model, feature_width
from partition.shards.manifest import read_manifest

from .config import TrainConfig
from .live_tensors import step_peak_bytes
from .task import node_classification
from .trainer import build_model, train_step

_STEPS = 3


@dataclass(frozen=True)
class Trial:
    """What a few steps of a candidate took.

    Attributes
    ----------
    candidate : Candidate
    seconds : float
        Median of the slowest rank's.
    sent_bytes : int
        By all ranks, in one step.
    peak_bytes : int
        Of live tensors on the rank that has most, structure and features included; on a GPU the allocator's.
    """

    candidate: Candidate
    seconds: float
    sent_bytes: int
    peak_bytes: int


def load_best(
    directories: list,
    config: TrainConfig,
    profile: Profile,
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    overlap: bool = True,
    timeout_s: float | None = None,
) -> tuple[ShardedGraph, TrainConfig, dict]:
    """Load the cut and strategy that train this model fastest; every rank calls it with the same arguments.

    Parameters
    ----------
    directories : list of path
        Cuts of one graph, each into as many parts as there are ranks.
    config : TrainConfig
        A ``activation_checkpoint`` other than ``none`` is kept; else one is chosen where memory asks for it.
    profile, rank_memory, max_depth
        See :func:`dgl_gt.selector.choose`. With the default profile a rank may take its share of what memory the
        machine has available.
    overlap, timeout_s
        See :func:`dgl_gt.load`.

    Returns
    -------
    sg : ShardedGraph
    config : TrainConfig
        With the activation checkpointing that was chosen.
    record : dict
        The plan, and of each candidate that was tried what was predicted and measured.
    """
    profile = profile if overlap else replace(profile, overlap=0.0)
    options = {"overlap": overlap, "timeout_s": timeout_s}
    sg = load(directories[0], **options)
    comm = sg.comm
    with comm.together():  # only one rank may find another cut missing
        tried, plan = _plan(sg, directories, config, profile, rank_memory, max_depth)
    del sg
    trials = [_try(each, config, options) for each in tried]
    best = min(range(len(trials)), key=lambda number: trials[number].seconds)
    chosen = trials[comm.broadcast_object(best)].candidate
    return (
        _load(chosen, options),
        replace(config, activation_checkpoint=chosen.activation_checkpoint),
        _record(plan, chosen, trials),
    )


def _plan(sg: ShardedGraph, directories: list, config: TrainConfig, profile: Profile, rank_memory, max_depth):
    """The candidates to try, and the plan as a dict.

    Rank 0 makes the plan for all ranks, by its own profile. Another host's profile may rank the candidates differently,
    and ranks that try different candidates would wait for each other for good.
    """
    comm, cuts = sg.comm, [(str(directory), read_manifest(directory)) for directory in directories]
    classes = node_classification(sg, config.split).classes
    features = feature_width(cuts[0][1])
    model = Model(config.layers, config.hidden, config.heads, config.ffn, features=features, classes=classes)
    at_hand = int(-comm.all_reduce(torch.tensor([-memory_at_hand(comm)]), "max")[0])
    if rank_memory is None and profile.name == DEFAULT:
        rank_memory = at_hand
    activation_checkpoints = (
        ACTIVATION_CHECKPOINTS if config.activation_checkpoint == "none" else (config.activation_checkpoint,)
    )
    plan = error = None
    try:
        if comm.rank == 0:
            plan = choose(
                cuts,
                model,
                profile,
                rank_memory=rank_memory,
                max_depth=max_depth,
                activation_checkpoints=activation_checkpoints,
            )
    except InputError as caught:
        error = caught
    comm.raise_together(error)
    tried = [asdict(each) for each in (plan.choice, plan.runner_up) if each is not None] if plan else None
    tried, record, named = comm.broadcast_object([tried, plan and plan.as_dict(), [name for name, _ in cuts]])
    here = dict(zip(named, (name for name, _ in cuts)))  # hosts may keep the same shards in different places
    return [Candidate(**each | {"directory": here[each["directory"]]}) for each in tried], record


def _load(candidate: Candidate, options: dict) -> ShardedGraph:
    return load(candidate.directory, candidate.strategy, candidate.depth, **options)


def _try(candidate: Candidate, config: TrainConfig, options: dict) -> Trial:
    sg = _load(candidate, options)
    with sg.comm.together():
        return _time(sg, candidate, config)


def _time(sg: ShardedGraph, candidate: Candidate, config: TrainConfig) -> Trial:
    task, comm = node_classification(sg, config.split), sg.comm
    torch.manual_seed(config.seed)
    config = replace(config, activation_checkpoint=candidate.activation_checkpoint)
    model = build_model(config, task.feat.shape[1], task.classes).to(sg.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)

    def step() -> None:
        train_step(model, sg, task, optimizer, 0, config.seed)

    step()
    peak_bytes = step_peak_bytes(sg, model, task.feat, step)
    before, seconds = comm.sent_bytes, []
    for _ in range(_STEPS):
        comm.all_reduce(torch.zeros(1))
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    sent = torch.tensor([(comm.sent_bytes - before) // _STEPS])
    slowest = comm.all_reduce(torch.tensor(seconds, dtype=torch.float64), "max").tolist()
    largest = int(comm.all_reduce(torch.tensor([peak_bytes]), "max")[0])
    return Trial(candidate, statistics.median(slowest), int(comm.all_reduce(sent)[0]), largest)


def _record(plan: dict, chosen: Candidate, trials: list[Trial]) -> dict:
    """The documented ``plan`` of a run's record."""
    return {
        "predicted_choice": plan["choice"],
        "chosen": chosen.title,
        "choice": asdict(chosen),
        "profile": plan["profile"],
        "model": plan["model"],
        "trials": [
            {
                "choice": trial.candidate.title,
                "predicted_seconds": trial.candidate.seconds,
                "measured_seconds": trial.seconds,
                "predicted_sent_bytes": trial.candidate.sent_bytes,
                "measured_sent_bytes": trial.sent_bytes,
                "predicted_peak_bytes": trial.candidate.peak_bytes,
                "measured_peak_bytes": trial.peak_bytes,
            }
            for trial in trials
        ],
    }
