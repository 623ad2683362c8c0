"""The training step of ``dgl-gt train`` on made-up parts, so that the selector can trace it."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache, partial

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.activation_checkpoint import checkpoint_modes
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.system.memory import available_memory_bytes
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.train.config import ASSUMED_CLASSES, TrainConfig
from dgl_gt.train.fit import take_step
from dgl_gt.train.model import ModelFactory, build_model, max_depth
from dgl_gt.train.optimizer import make_optimizer
from dgl_gt.train.sufficient_factors import SufficientFactors, factored_layers
from dgl_gt.train.tasks.node_classification import assumed_node_classification

from .tracer import Tracer

_OF_NO_TRACE = (  # settings on which no trace depends
    *("epochs", "local_epochs", "evaluate_every", "patience", "seed", "metric", "split"),
    *("lr", "weight_decay", "schedule", "warmup", "policy"),
)


def _make_step(
    config: TrainConfig,
    classes: int,
    factory: ModelFactory | None,
    sg: ShardedGraph,
    activation_checkpoint: str,
    factored: tuple[str, ...] = (),
    train_rows: int = 0,
):
    """A training step on a part; gradients of the layers ``factored`` travel as factors of ``train_rows`` rows in all."""
    config, comm, factors = config.changed(activation_checkpoint=activation_checkpoint), sg.comm, None
    task = assumed_node_classification(sg, config, classes)
    model = build_model(config, factory=factory, **task.sizes).to(sg.device)
    if factored:
        rows, others = task.rows_of_loss, [train_rows] + [0] * (comm.world_size - 2)
        factors = SufficientFactors(comm, model, factored, rows, [len(rows), *others])
    return partial(take_step, model, task, comm, make_optimizer(model, config), 0, config.seed, factors=factors)


def tracer_of(
    config: TrainConfig, features: int, classes: int = ASSUMED_CLASSES, factory: ModelFactory | None = None
) -> Tracer:
    """The training step of ``dgl-gt train``, for :func:`dgl_gt.plan.choose`; plans of one model share its traces.

    Parameters
    ----------
    config : TrainConfig
        An ``activation_checkpoint`` other than ``none`` is kept; otherwise all modes are considered.
    features, classes : int
        Width of the node features, and number of classes.
    factory : ModelFactory, optional
        What makes the model; by default that of the config is meant.

    Raises
    ------
    InputError
        There are no features, or the factory fails.
    """
    if features < 1:
        raise InputError(
            "the graph has no node data 'feat' of shape (N, F), which training needs; partition a graph that has it, or "
            "add random features with --random-features"
        )
    defaults = TrainConfig().flat()
    others = {name: defaults[name] for name in _OF_NO_TRACE}
    make = _traces if factory else _shared_traces  # a user's function may depend on more than its name says
    return make(config.changed(**others), features, classes, factory)


def _traces(config: TrainConfig, features: int, classes: int, factory: ModelFactory | None) -> Tracer:
    with torch.device("cpu" if factory else "meta"):  # a model that is too large takes no memory
        tables = {"edge_kinds": len(config.task.inputs.edge_features)}  # at most: numbers need fewer weights than kinds
        model, mode = build_model(config, features, classes, factory, **tables), config.activation_checkpoint
    needed, available = 4 * sum(each.nbytes for each in model.parameters()), available_memory_bytes()
    if needed > available:
        raise InputError(
            f"the model has {sum(each.numel() for each in model.parameters()):,} parameters, which with gradients and the "
            f"optimiser take {format_bytes(needed)}, and this machine has {format_bytes(available)} available; choose a "
            "smaller model"
        )

    def variant(figures: Figures) -> dict:
        names = () if factory else factored_layers(model, figures, config)
        return {"factored": names, "train_rows": int(figures.masked["train_mask"].sum())} if names else {}

    of_model = {"model_factory": factory.name} if factory else asdict(config.model)
    return Tracer(
        partial(_make_step, config, classes, factory),
        max_depth(model),
        checkpoint_modes(model) if mode == "none" else (mode,),
        {**of_model, "precision": config.precision, "features": features, "classes": classes},
        variant,
    )


_shared_traces = lru_cache(maxsize=16)(_traces)
