"""The training step of ``dgl-gt train`` for plans: its traces; a run is refused where memory cannot hold it, with advice."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import torch

from dgl_gt.exchange.policy.policy import Policy
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.activation_checkpoint import checkpoint_modes
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import Costs
from dgl_gt.partition.figures.figures import Figures, TypedWidths
from dgl_gt.partition.figures.profile import Profile, read_profile
from dgl_gt.partition.figures.strategies import CHOICES, counts_of_parts, default_strategy, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.allocator import memory_factor
from dgl_gt.partition.system.memory import available_memory_bytes
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.train.config import TrainConfig, policy_of, with_typed_defaults
from dgl_gt.train.loop import take_step
from dgl_gt.train.model import ModelFactory, build_model, find_factory, max_depth
from dgl_gt.train.optimizer import make_optimizer
from dgl_gt.train.sufficient_factors import SufficientFactors, factored_layers
from dgl_gt.train.task import task_class

from .candidates import Plan
from .forecast import forecast
from .measure import available_rank_memory
from .policy_costs import kept_bytes, plan_policy
from .room import check_room, figures_with_pieces
from .select import choose
from .tracer import Tracer

_OF_NO_TRACE = (  # settings on which no trace depends
    *("epochs", "local_epochs", "evaluate_every", "patience", "seed", "metric", "split"),
    *(
        "lr",
        "weight_decay",
        "map_decay",
        "schedule",
        "warmup",
        "policy",
        "strategy",
        "depth",
        "checkpoint_every",
        "on_nan",
    ),
    *("init", "frozen"),
)
_ROWS_OF_A_LAYER = 40  # of width hidden that a transformer layer keeps for the backward pass; more than any does
_SPACES = 3  # files, at most, beside one for the rows of each layer
_SAFE_SHARE = (
    0.25  # of the memory, or of the room on a disk; below, no prediction is made, because that takes a second or more
)
_DEFAULT_GRAPH, _DEFAULT_FEATURES, _DEFAULT_RANKS = (
    "sample:communities?nodes=20000&features=128",
    128,
    4,
)  # of default costs
_SMALLER, _FEWER = "a smaller --hidden", "fewer --layers"
_TERMS = {  # what a rank holds, by the count on which it depends; and what makes it smaller
    "rows of its own nodes": (
        ("owned", "selected", "typed_nodes", "own_sources"),
        ("--activation-checkpoint full", "--precision bf16", _SMALLER, "more parts on more machines"),
    ),
    "rows of nodes of other ranks": (
        ("copies", "sent", "returned", "returns", "nodes", "sources"),
        ("another --strategy", _SMALLER, "a cut with fewer copies"),
    ),
    "edges": (
        ("edges", "typed_edges", "sent_edges", "cut_edges", "all_edges", "returned_edges"),
        ("more parts on more machines",),
    ),
    "parameters, gradients and the optimiser": (("one",), (_SMALLER, _FEWER)),
}


def _make_step(
    config: TrainConfig,
    out_dim: int,
    factory: ModelFactory | None,
    sg: ShardedGraph,
    activation_checkpoint: str,
    factored: tuple[str, ...] = (),
    train_rows: int = 0,
):
    """A training step on a part; gradients of the layers ``factored`` travel as factors of ``train_rows`` rows in all."""
    config, comm, factors = config.changed(activation_checkpoint=activation_checkpoint), sg.comm, None
    task = task_class(config.task).assume(sg, config, out_dim)
    model = build_model(config, factory=factory, nodes_of=sg, **task.sizes).to(sg.device)
    if factored:
        rows, others = task.rows_of_loss, [train_rows] + [0] * (comm.world_size - 2)
        factors = SufficientFactors(comm, model, factored, rows, [len(rows), *others])
    return partial(take_step, model, task, comm, make_optimizer(model, config), 0, config.seed, factors=factors)


def tracer_of(
    config: TrainConfig,
    features: int | TypedWidths,
    classes: int | None = None,
    factory: ModelFactory | None = None,
) -> Tracer:
    """The training step of ``dgl-gt train``, for :func:`dgl_gt.plan.choose`; plans of one model share its traces.

    Parameters
    ----------
    config : TrainConfig
        An ``activation_checkpoint`` other than ``none`` is kept; otherwise all modes are considered.
    features : int or TypedWidths
        Width of the node features, or those of each type of a typed graph, see ``Figures.features``.
    classes : int, optional
        Number of classes, or width of the result for another task.
    factory : ModelFactory, optional
        What makes the model; by default that of the config is meant.

    Raises
    ------
    InputError
        There are no features, or the factory fails.
    """
    if not isinstance(features, TypedWidths) and features + config.task.node_embedding < 1:
        raise InputError(
            "the graph has no node data 'feat' of shape (N, F), which training needs; partition a graph that has it, add random "
            "features with --random-features, or train rows of nodes with --node-embedding"
        )
    config = config if factory else with_typed_defaults(config, features)
    if config.precision == "auto":
        raise InputError("precision is auto, which is measured when training starts; plan with fp32 or bf16")
    defaults, settings = TrainConfig().flat(), config.flat()
    others = {name: defaults[name] for name in _OF_NO_TRACE if name in settings}
    make = _traces if factory else _shared_traces  # a user's function may depend on more than its name says
    return make(config.changed(**others), features, classes or config.task.assumed_out_dim, factory)


def _traces(config: TrainConfig, features: int | TypedWidths, out_dim: int, factory: ModelFactory | None) -> Tracer:
    with torch.device("cpu" if factory else "meta"):  # a model that is too large takes no memory
        sizes: dict[str, Any]
        if isinstance(features, TypedWidths):
            sizes = {"in_dim": dict(features.widths), "relations": features.relations}
            if config.task.inputs.edge_features:  # of one relation at least
                sizes["edge_feats"] = {str(features.relations[0]): len(config.task.inputs.edge_features)}
        else:  # of edge data at most: numbers need fewer weights than kinds
            of_edges = "edge_feats" if getattr(config.model, "edge_input", None) == "raw" else "edge_kinds"
            tables = len(config.task.inputs.edge_features)
            sizes = {"in_dim": features + config.task.node_embedding, of_edges: tables}
        model = build_model(config, out_dim=out_dim, factory=factory, **sizes)
    mode = config.activation_checkpoint
    needed, available = 4 * sum(each.nbytes for each in model.parameters()), available_memory_bytes()
    if needed > available:
        raise InputError(
            f"the model has {sum(each.numel() for each in model.parameters()):,} parameters, which with gradients and the "
            f"optimiser take {format_bytes(needed)}, and this machine has {format_bytes(available)} available; choose a "
            "smaller model"
        )

    def variant(figures: Figures) -> dict:
        names = () if factory else factored_layers(model, figures, config)
        return {"factored": names, "train_rows": int(figures.masked[config.task.mask_of_loss].sum())} if names else {}

    of_model = {"model_factory": factory.name} if factory else asdict(config.model)
    return Tracer(
        partial(_make_step, config, out_dim, factory),
        max_depth(model),
        checkpoint_modes(model) if mode == "none" else (mode,),
        {
            **of_model,
            "precision": config.precision,
            "features": features.as_dict() if isinstance(features, TypedWidths) else features,
            "classes": out_dim,
        },
        variant,
        kept_as=None if factory else repr((config, features, out_dim)),
    )


_shared_traces = lru_cache(maxsize=16)(_traces)


# ---- memory ----


def check_memory(directory, sg: ShardedGraph, config: TrainConfig, factory: ModelFactory | None = None) -> None:
    """Refuse a run whose tensors alone need more memory than a rank can have, or whose files have no room; every rank calls it.

    Limits of control groups count. The message says what would fit. A step that cannot be traced is not refused, nor
    one of a task on edges, because predictions count all edges as training edges.
    """
    if sg.stream is not None:
        check_files(directory, sg, config, factory)
    if config.task.reads_pairs:
        return
    comm, figures = sg.comm, figures_with_pieces(sg.manifest)
    available = available_rank_memory(comm)
    keeps_samples = policy_of(config).edge_share < 1
    is_plain = factory is None and not config.task.edge_features and not keeps_samples
    is_safe = is_plain and _rough_bytes(figures, config) < _SAFE_SHARE * available
    if int(comm.all_reduce(torch.tensor([int(not is_safe)]), "max")[0]) == 0:
        return
    with comm.raising_together():
        _check_step(directory, sg, figures, config, factory, available)


def check_files(directory, sg: ShardedGraph, config: TrainConfig, factory: ModelFactory | None = None) -> None:
    """Refuse a run part by part whose files have no room, see :func:`.room.check_room`; every rank calls it."""
    figures, stream = figures_with_pieces(sg.manifest), sg.stream
    assert stream is not None and stream.directory is not None and isinstance(figures.features, int)
    rows, width = float((figures.owned + figures.copies_within(1)).sum()), max(config.model.hidden, figures.features)
    rough = 8 * rows * width * (config.model.layers + _SPACES)
    is_safe = factory is None and rough < _SAFE_SHARE * shutil.disk_usage(stream.directory).free
    if int(sg.comm.all_reduce(torch.tensor([int(not is_safe)]), "max")[0]) == 0:
        return
    trace = None
    with suppress(InputError):  # which training says in the words of the model
        trace = tracer_of(config, figures.features, factory=factory).streamed(figures.with_pieces, stream.spill_dtype)
    if trace is not None:
        check_room(trace, figures.with_pieces, sg)


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
            f"free; {_what_fits(directory, figures, traces, available, policy_of(config), sg.stream is not None)}"
        )


def _needed_bytes(traces, figures: Figures, sg: ShardedGraph, config: TrainConfig) -> int | None:
    """What a step takes on this rank; None for a step that cannot be traced, such as one that reads its data."""
    strategy, mode, policy = sg.strategy, config.activation_checkpoint, policy_of(config)
    is_exact = policy.is_exact or not strategy.sends_copies
    if not strategy.has_counts(figures):
        return None
    try:
        if sg.stream is not None:
            figures = figures.with_pieces
            return int(traces.streamed(figures, sg.stream.spill_dtype).peak_bytes(figures)[sg.comm.rank])
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
    widths = figures.features
    features = sum(widths.as_dict().values()) if isinstance(widths, TypedWidths) else widths
    features += 2 * config.task.node_embedding  # trained rows have gradients and an optimiser, too
    weights = layers * 20 * config.model.hidden**2 + features * config.model.hidden
    return 4 * (rows * (3 * features + _ROWS_OF_A_LAYER * layers * config.model.hidden) + 6 * weights)


def _what_fits(directory, figures: Figures, traces, available: int, policy: Policy, spills: bool = False) -> str:
    cuts, profile = [(str(directory), figures)], read_profile(None, None)
    if not torch.cuda.is_available():
        profile = msgspec.structs.replace(profile, memory_factor=memory_factor())
    try:
        if policy.is_exact or figures.parts == 1:
            choice = choose(cuts, traces, profile, rank_memory=available, spill=spills).choice
        else:
            choice = plan_policy(cuts, traces, profile, policy, available).candidate
    except InputError as error:
        return str(error)
    options = (
        "--spill"
        if choice.spilled
        else (
            f"--strategy {choice.strategy} --depth {choice.depth} --activation-checkpoint {choice.activation_checkpoint}"
        )
    )
    return f"{options} is predicted to fit, with {format_bytes(choice.memory_bytes)}"


def advice_for_strategy(directory, config: TrainConfig, model_factory: str | None = None) -> str:
    """What a training step was predicted to need on the largest rank, what most of that is for, and what to change."""
    figures, (strategy, depth) = read_figures(read_manifest(directory)), config.exchange.choice
    rules = default_strategy(figures) if strategy is None else strategy_of(strategy, CHOICES)
    if config.precision == "auto":  # what takes more
        config = config.changed(precision="fp32")
    try:
        traces = tracer_of(config, figures.features, factory=find_factory(model_factory))
        trace = traces.of(figures, rules, min(depth, traces.max_depth), config.activation_checkpoint)
    except InputError as error:  # the model is too large to be traced
        return str(error)
    rank, per_unit = trace.peak_of_largest_rank(figures)
    needed = counts_of_parts(figures, trace.counts)[rank] * per_unit
    by_term = [
        (sum(some for count, some in zip(trace.counts, needed) if count.of in words), name)
        for name, (words, _) in _TERMS.items()
    ]
    most, largest = max(by_term)
    options = f"with --layers {config.model.layers} --hidden {config.model.hidden}"
    model = f"of {model_factory}" if model_factory else options
    return (
        f"a training step {model} is predicted to need {format_bytes(needed.sum())} for tensors on the largest rank, and "
        f"{format_bytes(most)} of that for {largest}; choose {_changes(largest, config, model_factory)}, or let "
        "`dgl-gt plan DIR --rank-memory SIZE` find a strategy that fits"
    )


def _changes(largest: str, config: TrainConfig, model_factory: str | None) -> str:
    """What makes the largest term smaller, without what is done already and what a model of the user's has no option for."""
    done = (f"--activation-checkpoint {config.activation_checkpoint}", f"--precision {config.precision}")
    changes = [each for each in _TERMS[largest][1] if each not in done]
    if model_factory:
        changes = ["a smaller model" if each == _SMALLER else each for each in changes if each != _FEWER]
    return " or ".join(filter(None, [", ".join(changes[:-1]), changes[-1]]))


# ---- costs of a machine ----


def default_costs_on(profile: Profile) -> Costs:
    """What a step of the default model costs on these ranks and links, as in :func:`dgl_gt.partition.default_costs`."""
    tracer = tracer_of(TrainConfig(), _DEFAULT_FEATURES)
    plan = forecast([_DEFAULT_GRAPH], [_DEFAULT_RANKS], lambda _: tracer, profile.of_slowest_rank())[_DEFAULT_RANKS]
    if not isinstance(plan, Plan):
        raise plan
    return plan.costs
