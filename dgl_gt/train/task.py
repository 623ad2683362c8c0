"""What is learned: the protocol of a task, which makes the batches, the loss and the metric of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor, nn

from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.exchange.sharded_graph import ShardedGraph

from .config import TrainConfig
from .inputs import ModelInputs
from .metric_kinds import MetricKind
from .task_settings import TaskConfig


@dataclass(frozen=True)
class Batch:
    """What one step computes on this rank.

    Attributes
    ----------
    inputs : ModelInputs
        The graph of the step, and the rows that the model reads.
    targets : dict of str to Tensor
        What the loss compares the model's result with; the task alone reads them.
    number : int, optional
        The number of the batch in the run, where an epoch has several; dropout and policies count by it.
    """

    inputs: ModelInputs
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    number: int | None = None


class Task(Protocol):
    """A task on the graph of a rank. Each method is a collective: every rank calls it.

    The class of the task ``a_b`` is ``AB`` in ``tasks/b.py``, and its settings are ``ABConfig`` in ``task_config.py``.
    """

    sizes: Mapping[str, int]  # arguments of the model: in_dim, out_dim, edge_feats and edge_kinds
    metric: MetricKind
    learned: Mapping[str, Any]  # what answers need besides the model, as values that JSON can hold
    rows_of_loss: Tensor | None  # int64: rows of the model's result that the loss reads; None where it reads all

    @classmethod
    def read(cls, sg: ShardedGraph, config: TrainConfig, graphs: TrainingGraphs | None = None) -> Task:
        """Make the task of a graph; ``InputError`` says what its data lack.

        ``graphs`` are those of training steps under a policy; by default all steps run on ``sg``.
        """

    @classmethod
    def assume(cls, sg: ShardedGraph, config: TrainConfig, out_dim: int) -> Task:
        """Make the task on a part whose data may lack what is learned, to trace its steps."""

    def batches(self, step: int) -> Iterator[Batch]:
        """Make the batches of a step, counted from 0; as many on every rank."""

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), of a model's result; the loss is the sum over ranks."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metric of each split, such as ``val`` and ``test``; the same on every rank."""

    @classmethod
    def answer(cls, model: nn.Module, inputs: ModelInputs) -> Any | None:
        """Return what ``predict`` writes, a named tuple of arrays in the user's order; None on all ranks but rank 0.

        ``model.dgl_gt_learned`` is the task's ``learned``.
        """


def task_class(config: TaskConfig) -> type[Task]:
    """The class of a task."""
    module = config.kind.rpartition("_")[2]
    return getattr(import_module(f"{__package__}.tasks.{module}"), type(config).__name__.removesuffix("Config"))


def read_task(sg: ShardedGraph, config: TrainConfig, graphs: TrainingGraphs | None = None) -> Task:
    """The task of a config, see :meth:`Task.read`; every rank calls it."""
    return task_class(config.task).read(sg, config, graphs)
