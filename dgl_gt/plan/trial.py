"""``--strategy auto``: predict, time the two best candidates for a few real steps, and keep the faster one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.load import load, read_parts
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import dealt_parts
from dgl_gt.partition.figures.profile import DEFAULT, Profile
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.allocator import keep_if_room, memory_factor
from dgl_gt.partition.system.child_process import run_forked
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.run_files.run_record import PlanOfRun, Trial
from dgl_gt.train.config import TrainConfig
from dgl_gt.train.loop import take_step
from dgl_gt.train.model import ModelFactory, with_measured_precision
from dgl_gt.train.optimizer import make_optimizer
from dgl_gt.train.run import prepare
from dgl_gt.train.sufficient_factors import factors_of
from dgl_gt.train.task import read_task

from .candidates import Candidate, NothingFits, Plan
from .measure import available_rank_memory
from .planned_step import check_files, tracer_of
from .room import figures_with_pieces
from .select import choose
from .tracer import Tracer
from .watch import step_peak_bytes, time_steps


def load_fastest(
    directories: list,
    config: TrainConfig,
    profile: Profile,
    *,
    rank_memory: int | None = None,
    max_depth: int | None = None,
    overlap: bool = True,
    timeout_s: float | None = None,
    factory: ModelFactory | None = None,
    spill: str | None = None,
    parts_per_rank: Sequence[int] | None = None,
) -> tuple[ShardedGraph, TrainConfig, PlanOfRun]:
    """Load the cut with the strategy that trains this model fastest; every rank calls it with the same arguments.

    The directories hold cuts of one graph. An ``activation_checkpoint`` other than ``none`` is kept; otherwise one is
    chosen if memory is short. With ``spill``, layers run part by part where nothing else fits. With the default
    profile, a rank may take its share of the memory that the machine has available. ``factory`` makes the model, by
    default the model of the config. Where there are more parts than ranks, they are dealt by the ranks' speeds. The other
    arguments are those of :func:`dgl_gt.plan.choose` and :func:`dgl_gt.load`. Returns the graph, the config with the
    activation checkpointing that was chosen, and the plan with the predictions and measurements of each candidate that was
    tried.
    """
    profile = profile if overlap else msgspec.structs.replace(profile, overlap=0.0)
    options: dict[str, Any] = {
        "overlap": overlap,
        "timeout_s": timeout_s,
        "keep_freed_memory": rank_memory is None and spill is None,
    }
    sg = load(directories[0], **options, parts_per_rank=parts_per_rank)
    comm = sg.comm
    with comm.together():  # another cut may be missing on one rank only
        config = with_measured_precision(sg, config)
        if sg.device.type == "cpu":
            profile = msgspec.structs.replace(profile, memory_factor=memory_factor())
        dealt = {str(each): _dealt(comm, each, profile, parts_per_rank) for each in directories}
        bounds = {"rank_memory": rank_memory, "max_depth": max_depth}
        candidates, plan = _plan(sg, dealt, config, profile, bounds, factory, spill)
    largest = max(candidates, key=lambda each: each.memory_ratio)
    if sg.device.type == "cpu" and not any(each.spilled for each in candidates):
        bound = largest.memory_bytes / largest.memory_ratio
        holes = keep_if_room(largest.memory_bytes, largest.peak_bytes, bound) - 1
        candidates = [replace(it, memory_bytes=it.memory_bytes + int(holes * it.peak_bytes)) for it in candidates]
    del sg
    options |= {"spill": spill, "parts_per_rank": dealt}
    trials = [_run_trial(each, config, options, factory) for each in candidates]
    fastest = min(range(len(trials)), key=lambda number: trials[number].measured_seconds)
    chosen = candidates[comm.broadcast_object(fastest)]
    return (
        _load(chosen, options),
        config.changed(
            activation_checkpoint=chosen.activation_checkpoint, strategy=chosen.strategy, depth=chosen.depth
        ),
        PlanOfRun(plan["choice"], chosen.title, chosen, plan["profile"], plan["model"], trials),
    )


def _dealt(comm: Comm, directory, profile: Profile, given: Sequence[int] | None) -> Sequence[int] | None:
    """How many parts of a cut each rank takes: as given for as many parts, or by the speeds of rank 0's profile; None for evenly."""
    manifest = read_manifest(directory)
    if given is not None and sum(given) == manifest["parts"]:
        return given
    weights = profile.unequal_weights() if manifest["parts"] > comm.world_size == profile.ranks else None
    return comm.broadcast_object(None if weights is None else dealt_parts(np.array(manifest["shares"]), weights))


def _plan(
    sg: ShardedGraph,
    dealt: dict[str, Sequence[int] | None],
    config: TrainConfig,
    profile: Profile,
    bounds: dict,
    factory,
    spill,
):
    """The candidates to try on the cuts whose directories ``dealt`` has, and the plan as a dict.

    Rank 0 makes the plan for all ranks, with its own profile. The profile of another host may order the candidates
    differently, and ranks that try different candidates would wait for each other forever.
    """
    comm = sg.comm
    cuts = [(each, figures_with_pieces(read_parts(each, comm, parts)[0])) for each, parts in dealt.items()]
    classes = read_task(sg, config).sizes["out_dim"]
    available = int(-comm.all_reduce(torch.tensor([-available_rank_memory(comm)]), "max")[0])
    if bounds["rank_memory"] is None and profile.name == DEFAULT:
        bounds = bounds | {"rank_memory": available}

    def make_plan():
        traces = tracer_of(config, cuts[0][1].features, classes, factory)
        try:
            plan = choose(cuts, traces, profile, **bounds, spill=spill is not None)
        except NothingFits as error:
            raise (
                error if spill or sg.device.type != "cpu" else _with_advice(error, cuts, traces, profile, bounds)
            ) from None
        return list(map(asdict, _to_try(plan))), plan.as_dict()

    def make_plan_in_child():
        torch.set_num_threads(1)  # libgomp's threads do not survive a fork, and work on them would wait forever
        return make_plan()

    found = None, None
    with comm.raising_together():
        if comm.rank == 0:
            # Traces load more than training does, which would count as this rank's memory. A forked process cannot use a
            # GPU, whose memory is what counts there.
            found = (
                make_plan() if torch.cuda.is_available() else run_forked(make_plan_in_child, "the process that plans")
            )
    candidates, record, first = comm.broadcast_object([*found, [name for name, _ in cuts]])
    here = dict(zip(first, (name for name, _ in cuts)))  # hosts may keep the same shards in different places
    return [Candidate(**each | {"directory": here[each["directory"]]}) for each in candidates], record


def _with_advice(error: NothingFits, cuts: list, traces: Tracer, profile: Profile, bounds: dict) -> NothingFits:
    """The error, which names ``spill`` where that would do."""
    try:
        choice = choose(cuts, traces, profile, **bounds, spill=True).choice
    except InputError:
        return error
    needed, files = format_bytes(choice.memory_bytes), format_bytes(choice.file_bytes["at_once"])
    text = f"{error}; or add --spill DIR, with which {choice.title} is predicted to need {needed}, and {files} on disk"
    return NothingFits(text, error.least_bytes, error.missing_bytes)


def _to_try(plan: Plan) -> list[Candidate]:
    """The choice and the next best candidate, but none that loads libraries which the choice does without.

    They would stay in memory, and the run may exceed what was predicted for the choice.
    """
    may_load = plan.choice.activation_checkpoint != "none"
    others = [
        each for each in plan.candidates[1:] if not each.refused and (may_load or each.activation_checkpoint == "none")
    ]
    return [plan.choice, *others[:1]]


def _load(candidate: Candidate, options: dict) -> ShardedGraph:
    spill, parts_per_rank = options["spill"] if candidate.spilled else None, options["parts_per_rank"]
    options = options | {"spill": spill, "parts_per_rank": parts_per_rank[candidate.directory]}
    return load(candidate.directory, candidate.strategy, candidate.depth, **options)


def _run_trial(candidate: Candidate, config: TrainConfig, options: dict, factory) -> Trial:
    sg = _load(candidate, options)
    with sg.comm.together():
        if sg.stream is not None:
            check_files(candidate.directory, sg, config, factory)
        return _measure(sg, candidate, config, factory)


def _measure(sg: ShardedGraph, candidate: Candidate, config: TrainConfig, factory) -> Trial:
    comm, config = sg.comm, config.changed(activation_checkpoint=candidate.activation_checkpoint)
    task, model = prepare(sg, config, factory)
    is_plain = factory is None and sg.stream is None
    factors = factors_of(model, task, sg, config) if is_plain else None  # as in training
    step = partial(take_step, model, task, comm, make_optimizer(model, config), 0, config.seed, factors=factors)
    step()
    peak_bytes = step_peak_bytes(sg, model, next(task.batches(0)).inputs.feat, step)
    seconds, sent = time_steps(sg, step)
    return Trial(
        choice=candidate.title,
        predicted_seconds=candidate.seconds,
        measured_seconds=seconds,
        predicted_sent_bytes=candidate.sent_bytes,
        measured_sent_bytes=sent,
        predicted_peak_bytes=candidate.peak_bytes,
        measured_peak_bytes=int(comm.all_reduce(torch.tensor([peak_bytes]), "max")[0]),
    )
