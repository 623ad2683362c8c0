"""One full-graph training step: what it needs, and how it is taken."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn import GraphTransformer, dropout_seed
from dgl_gt.partition.shards.counts import read_figures

from .config import TrainConfig
from .model import ModelFactory, build_model, logits_of, share_weights
from .module_places import at_place
from .objective import Objective, make_objective
from .optimizer import make_optimizer
from .sufficient_factors import SufficientFactors, factored_layers, saves_bytes
from .task import Task, flip_signs, node_classification


@dataclass(frozen=True)
class TrainingStep:
    """A model on a rank's part, and all that a step of it needs."""

    model: torch.nn.Module
    sg: ShardedGraph
    task: Task
    optimizer: torch.optim.Optimizer
    objective: Objective
    seed: int

    def __call__(self, number: int) -> float:
        """Take step ``number``, counted from 0; see :func:`train_step`."""
        return train_step(self.model, self.sg, self.task, self.optimizer, number, self.seed, self.objective)


def prepare_step(sg: ShardedGraph, config: TrainConfig, factory: ModelFactory | None = None) -> TrainingStep:
    """A training step of a new model on the task of the graph; all ranks get the same weights.

    It sets the seed of torch, and every rank calls it.
    """
    task = node_classification(sg, config.split, config.inputs)
    torch.manual_seed(config.seed)
    step = assemble_step(sg, config, task, factory)
    if factory:
        share_weights(step.model, sg)
    return step


def assemble_step(
    sg: ShardedGraph, config: TrainConfig, task: Task, factory: ModelFactory | None = None
) -> TrainingStep:
    """A step of a new model on a task."""
    model = build_model(config, task.feat.shape[1], task.classes, factory, **task.edges.widths).to(sg.device)
    optimizer, objective = make_optimizer(model, config), make_objective(config, task, sg.comm)
    return TrainingStep(model, sg, task, optimizer, objective, config.seed)


def with_factors(task: Task, model: torch.nn.Module, sg: ShardedGraph, config: TrainConfig) -> Task:
    """The task, with the sums of gradients that take fewer bytes as factors; every rank calls it."""
    names = factored_layers(model, read_figures(sg.manifest), config)
    if not names:
        return task
    counts = sg.comm.gather_objects(len(task.rows["train"]))  # with the policy none, mirrors are among the rows
    names = tuple(name for name in names if saves_bytes(model.get_submodule(name), counts))
    if not names:
        return task
    return replace(task, factors=SufficientFactors(sg.comm, model, names, task.rows["train"], counts))


def train_step(
    model: torch.nn.Module,
    sg: ShardedGraph,
    task: Task,
    optimizer,
    step: int,
    seed: int = 0,
    objective: Objective | None = None,
    checks_gradients: bool = False,
) -> float:
    """Take one full-graph step; returns the loss, which is that of the rows of all ranks.

    If the loss is not finite, the optimiser does nothing. With ``checks_gradients`` the same holds for the gradients,
    and NaN is returned.
    """
    optimizer.zero_grad()
    factored = task.factors.summing() if task.factors else nullcontext()
    with factored, sg.comm.summing_gradients(model.parameters()):
        with sg.view.training_step(step):
            loss = (objective or Objective())(training_logits(model, sg, task, step, seed), task)
            loss.backward()
    total = float(sg.comm.all_reduce(loss.detach().double().reshape(1).cpu())[0])
    if checks_gradients and not all(
        torch.isfinite(each.grad).all() for each in model.parameters() if each.requires_grad
    ):
        total = math.nan  # on every rank, because gradients are summed over ranks
    if math.isfinite(total):
        with at_place("the optimiser", sg.comm):
            optimizer.step()
    return total


def training_logits(model: torch.nn.Module, sg: ShardedGraph, task: Task, step: int, seed: int) -> torch.Tensor:
    """The logits of a training step, with its dropout and the signs of its encodings."""
    model.train()
    if isinstance(model, GraphTransformer):
        model.set_dropout_step(seed, step)
    feat = flip_signs(task.feat, task.signed, dropout_seed(seed, step, -1)) if task.signed else task.feat
    return logits_of(model, sg, feat, task.classes, task.edges)
