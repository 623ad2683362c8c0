"""The model that a run trains: that of a config, or one that a function of the user's makes; and the precision ``auto``."""

from __future__ import annotations

import reprlib
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dgl_gt.comm.failure import RankError
from dgl_gt.comm.group import Comm
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn import apply_activation_checkpoint, apply_precision
from dgl_gt.nn.activation_checkpoint import checkpoint_modes
from dgl_gt.nn.layered_model import LayeredModel
from dgl_gt.nn.models import make_model
from dgl_gt.nn.pair_scorer import PairScorer
from dgl_gt.nn.traits import traits_of
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.storage import located
from dgl_gt.partition.system.yaml_file import read_yaml
from dgl_gt.run_files.run_directory import CONFIG

from .around_nodes import AroundNodes, EmbeddedModel, PairModel
from .config import SETTINGS, TrainConfig
from .inputs import ModelInputs
from .user_function import cause_of, find_function


@dataclass(frozen=True)
class ModelFactory:
    """A function that makes models, and the name by which it was found.

    Attributes
    ----------
    name : str
        ``package.module:function``.
    make : callable
        Called as ``make(in_dim, classes)`` with the width of the features and the number of classes, or for a task on
        edges ``hidden``; returns a Module that is called as ``model(sg, feat)`` with a :class:`dgl_gt.ShardedGraph` and
        the features of its owned rows, and returns one row of logits for each of them, (N_owned, classes).
    """

    name: str
    make: Callable


def find_factory(name: str | None) -> ModelFactory | None:
    """The factory of this name; None for no name. Modules in the working directory are found, too.

    Raises
    ------
    InputError
        The name is not ``package.module:function``, the module cannot be imported, or has no such function.
    """
    return None if name is None else ModelFactory(name, find_function(name, "--model-factory"))


def check_settings(config: TrainConfig, factory: ModelFactory | None) -> None:
    """Raise :class:`InputError` if a setting of the models of dgl-gt is given along with a factory."""
    defaults = TrainConfig().flat()
    of_inputs = ("encodings", "normalize_features", "edge_features")
    of_pairs = "hidden" if config.task.pair_scorer else None  # the width of the rows that a factory's model gives
    given = [
        name
        for name, value in config.flat().items()
        if (SETTINGS[name][0] == "model" or name in of_inputs) and value != defaults.get(name) and name != of_pairs
    ]
    if factory is not None and given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(
            f"{option} is for the models of dgl-gt, and {factory.name} makes its own; leave it out, and set it in the function"
        )


def build_model(
    config: TrainConfig,
    in_dim: int | Mapping[str, int],
    out_dim: int,
    factory: ModelFactory | None = None,
    nodes_of: ShardedGraph | int = 1,
    **edge_widths: Any,
) -> nn.Module:
    """The model of a config, or of a factory, on the CPU; ``edge_widths`` are its ``edge_feats`` and ``edge_kinds``.

    ``nodes_of`` has the nodes of which the model has trained rows, if it has any, as a graph or as their number.

    Raises
    ------
    InputError
        The factory fails, returns no Module, or one without a layer whose activations could be checkpointed although
        the config asks for that.
    """
    task: Any = config.task
    width = config.model.hidden if task.pair_scorer else out_dim
    ntypes = None
    if isinstance(in_dim, Mapping) and task.node_embedding:
        ntypes = [name for name, features in in_dim.items() if not features]
        if not ntypes:
            raise InputError(
                f"node_embedding is {task.node_embedding}, and every node type has features ({', '.join(in_dim)}), so that "
                "nothing reads trained rows; leave it out"
            )
        in_dim = {**in_dim, **dict.fromkeys(ntypes, task.node_embedding)}
    if factory is None:
        model: nn.Module = make_model(config.model, in_dim, width, **edge_widths)
    else:
        if config.task.edge_features:
            raise InputError(
                f"edge_features is {config.task.edge_features!r}, and the model of {factory.name} is called with features of "
                "nodes alone; leave it out, and read sg.edata in the model"
            )
        model = _made(factory, in_dim, width)
        is_streamed = isinstance(nodes_of, ShardedGraph) and nodes_of.stream is not None
        if is_streamed and not any(isinstance(each, LayeredModel) for each in model.modules()):
            raise InputError(
                f"with spill (--spill) layers run part by part, and {factory.name} makes a {type(model).__name__}, whose layers cannot; "
                "make it a dgl_gt.nn.LayeredModel, or leave spill out"
            )
    if task.node_embedding:
        model = EmbeddedModel(model, nodes_of, task.node_embedding, ntypes)
    if task.pair_scorer:
        edge_feats = 0 if task.reads_links else edge_widths.get("edge_feats", 0)  # pairs that are no edges have none
        if isinstance(edge_feats, Mapping):
            edge_feats = edge_feats.get(task.relation, 0)
        model = PairModel(model, PairScorer(task.pair_scorer, width, out_dim, edge_feats), task.relation)
    model.dgl_gt_task = task  # for predictions
    if config.activation_checkpoint not in checkpoint_modes(model):
        raise InputError(
            f"activation_checkpoint is {config.activation_checkpoint}, but the model of {factory.name} has no "
            "GraphTransformerLayer or ConvolutionLayer; leave it out, and call torch.utils.checkpoint in the model"
        )
    if config.activation_checkpoint != "none":
        apply_activation_checkpoint(model, config.activation_checkpoint)
    return apply_precision(model, config.precision)


class FactoryError(InputError):
    """A user's function fails, returns no model that can be trained, or did not make the model that is read with it."""


def _made(factory: ModelFactory, in_dim: int, out_dim: int) -> nn.Module:
    try:
        model = factory.make(in_dim, out_dim)
    except Exception as error:  # whatever the user's function raises
        raise FactoryError(
            f"{factory.name}({in_dim}, {out_dim}) failed: {cause_of(error)}; it must take the number of features and of "
            "classes, and return a torch.nn.Module"
        ) from error
    if not isinstance(model, nn.Module):
        raise FactoryError(f"{factory.name} returned {reprlib.repr(model)}; it must return a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise FactoryError(f"{factory.name} returned a model without parameters to train; give it some")
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise FactoryError(
                f"the state of the model of {factory.name} holds {name}, which is not a tensor and cannot be saved; leave it "
                "out of the state"
            )
    return model


def max_depth(model: nn.Module) -> int:
    """The most hops of halo that one exchange can fill for a model: one, unless its layers take a view each."""
    return traits_of(model).num_views or 1


def logits_of(model: nn.Module, inputs: ModelInputs, out_dim: int | None = None) -> torch.Tensor:
    """Run a model; (N_owned, out_dim).

    Raises
    ------
    InputError
        A user's own code fails, the model returns no such rows, or no logit for each class, where their number is
        given; or the graph exchanges halos of several hops, which such a model cannot take.
    """
    graph, of_nodes = inputs.graph, model
    while isinstance(of_nodes, AroundNodes):
        of_nodes = of_nodes.nodes
    if graph.depth > 1 and traits_of(model).num_views is None:
        raise InputError(
            f"depth is {graph.depth}, and only the models of dgl-gt take halos of several hops; leave depth (--depth) out "
            "for this model"
        )
    try:
        pairs = {} if inputs.pairs is None else {"pairs": inputs.pairs}
        logits = model(graph, inputs.feat, **inputs.edges, **pairs)
    except (InputError, RankError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a user's model raises; what fails in one of ours is a defect of ours
        if "allocate memory" in str(error) or type(of_nodes).__module__.startswith("dgl_gt."):
            raise
        raise InputError(f"the model failed: {cause_of(error)}; fix the model") from error
    rows = graph.num_nodes() if inputs.pairs is None else len(inputs.pairs.source)
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != rows:
        shown = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(
            f"the model returned {shown}; it must return a tensor with one row of logits for each of the "
            f"{rows:,} nodes that the rank owns"
        )
    if out_dim not in (None, logits.shape[1]) or not logits.is_floating_point():
        raise InputError(
            f"the model returned {logits.shape[1]} logits of {logits.dtype} for each node; it must return one "
            f"floating-point logit for each of the {out_dim or logits.shape[1]} classes"
        )
    return logits


def share_weights(model: nn.Module, comm: Comm) -> None:
    """Give all ranks the weights of rank 0; every rank calls it.

    Raises
    ------
    InputError
        The ranks have different models.
    """
    state = model.state_dict()
    comm.check_agreement(
        {"type of the model": type(model).__name__}
        | {f"shape of {name}": [str(value.dtype), *value.shape] for name, value in state.items()}
    )
    for value in state.values():
        value.copy_(comm.broadcast(value.byte() if value.dtype == torch.bool else value))


# ---- the precision ``auto``: two products of the model's shapes are timed before training ----

_FLOPS = 4e9  # of a product with its backward pass, at most
_RUNS = 3  # of which the fastest counts


def with_measured_precision(sg: ShardedGraph, config: TrainConfig) -> TrainConfig:
    """The config with a precision in place of ``auto``: what is faster on rank 0; every rank calls it.

    Where bfloat16 is asked for and no faster, rank 0 says so on stderr.
    """
    if config.precision == "fp32":
        return config
    seconds = [0.0, 0.0]
    if sg.comm.rank == 0:
        seconds = [product_seconds(sg, config.model.hidden, dtype) for dtype in (torch.float32, torch.bfloat16)]
    fp32_s, bf16_s = sg.comm.broadcast_object(seconds)
    is_slower, precision = bf16_s >= fp32_s, config.precision
    if precision == "auto":
        precision = "fp32" if is_slower else "bf16"
    if sg.comm.rank == 0:
        times = f"a product of width {config.model.hidden} takes {1e3 * bf16_s:.1f} ms in bfloat16, {1e3 * fp32_s:.1f} ms in float32"
        if config.precision == "auto":
            print(f"dgl-gt: precision is {precision}: {times}", file=sys.stderr)
        elif is_slower:
            print(f"dgl-gt: bf16 is no faster on this processor: {times}; it still saves memory", file=sys.stderr)
    return config.changed(precision=precision)


def with_earlier_precision(comm: Comm, config: TrainConfig, out) -> TrainConfig:
    """The config with the precision of the run in ``out`` that goes on, in place of ``auto``; every rank calls it."""
    if config.precision != "auto":
        return config
    found = "auto"
    if comm.rank == 0:
        with suppress(InputError):  # there may be no run yet
            found = read_yaml(located(out) / CONFIG).get("precision", found)
    return config.changed(precision=comm.broadcast_object(found))


def product_seconds(sg: ShardedGraph, width: int, dtype: torch.dtype) -> float:
    """Seconds of the projection to Q, K and V of the rank's rows, (rows, C) x (C, 3C), with its backward pass."""
    rows = int(max(64, min(sg.num_nodes(), _FLOPS / (18 * width**2))))
    shapes = (rows, width), (3 * width, width), (rows, 3 * width)
    x, weight, upstream = (
        torch.full(shape, 0.5, dtype=dtype, device=sg.device, requires_grad=True) for shape in shapes
    )

    def run() -> float:
        started = time.perf_counter()
        torch.autograd.grad(functional.linear(x, weight), (x, weight), upstream)
        if sg.device.type == "cuda":
            torch.cuda.synchronize(sg.device)
        return time.perf_counter() - started

    run()
    return min(run() for _ in range(_RUNS))
