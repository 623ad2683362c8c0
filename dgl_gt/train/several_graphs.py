"""One task on several graphs: the model learns from each of them in turn."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError

from .config import TrainConfig, policy_of
from .edge_inputs import with_stated_meanings
from .metric_kinds import MetricKind
from .task import Batch, Task, read_task


@dataclass(frozen=True)
class BatchOfTask(Batch):
    """The batch of one of several tasks."""

    task: Task = field(kw_only=True)
    batch: Batch = field(kw_only=True)


class SeveralGraphs:
    """A task made of the same one on each of several graphs: a step takes that of each graph in turn.

    Metrics are the means over the graphs. ``rows_of_loss`` is None, since each graph has others.
    """

    rows_of_loss: Tensor | None = None

    def __init__(self, tasks: Sequence[Task]):
        self._tasks = tasks
        self.sizes: Mapping[str, int] = tasks[0].sizes
        self.metric: MetricKind = tasks[0].metric
        self.learned: Mapping[str, Any] = tasks[0].learned

    def batches(self, step: int) -> Iterator[Batch]:
        """Make the batches of an epoch: all of the first graph, then all of the next one."""
        for place, task in enumerate(self._tasks):
            for batch in task.batches(step):
                number = len(self._tasks) * (step if batch.number is None else batch.number) + place
                yield BatchOfTask(batch.inputs, batch.targets, number, task=task, batch=batch)

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), on the graph of the batch."""
        assert isinstance(batch, BatchOfTask)
        return batch.task.loss(out, batch.batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the mean metric of each split over the graphs."""
        found = [task.evaluate(model) for task in self._tasks]
        return {split: statistics.fmean(each[split] for each in found) for split in found[0]}


def task_on(graphs: Sequence[ShardedGraph], config: TrainConfig, of_steps: TrainingGraphs | None = None) -> Task:
    """The task of a config on one graph or several; a collective. ``of_steps`` are the graphs of training steps.

    Raises
    ------
    InputError
        The graphs differ in what a model depends on, or the config has what belongs to one graph alone.
    """
    if len(graphs) == 1:
        return read_task(graphs[0], config, of_steps)
    _check_config(config)
    tasks = [_read_one(sg, config) for sg in graphs]
    (first, mine), *others = zip(graphs, (_what_a_model_knows(*each, config) for each in zip(graphs, tasks)))
    for sg, its in others:
        if name := next((name for name in mine if mine[name] != its[name]), None):
            raise InputError(
                f"the {name} of {first.manifest['source']} are {mine[name]}, and those of {sg.manifest['source']} {its[name]}; one "
                "model needs the same, so change a graph, or train a model for each"
            )
    several: Any = SeveralGraphs(tasks)  # a Task but for answers, which are of one graph
    return several


def _what_a_model_knows(sg: ShardedGraph, task: Task, config: TrainConfig) -> dict[str, Any]:
    names = sg.manifest["class_names"] if config.task.has_class_names else None
    return {"widths": dict(task.sizes), "class names": names, "constants of the task": dict(task.learned)}


def _read_one(sg: ShardedGraph, config: TrainConfig) -> Task:
    if (stated := with_stated_meanings(sg, config)) != config:
        raise InputError(
            f"edge_features is {config.task.edge_features} for the first graph, and for {sg.manifest['source']} it would be "
            f"{stated.task.edge_features}; write :number or :kind after each name"
        )
    return read_task(sg, config)


def _check_config(config: TrainConfig) -> None:
    """Raise :class:`InputError` if a setting is for one graph alone."""
    if config.task.kind.endswith("_regression"):
        raise InputError(
            f"task is {config.task.kind}, whose targets are scaled by those of one graph; choose another task, or train on one graph"
        )
    if config.task.node_embedding:
        raise InputError(
            f"node_embedding is {config.task.node_embedding}, and trained rows belong to the nodes of one graph; leave it out, "
            "or train on one graph"
        )
    if not policy_of(config).is_exact:
        raise InputError(
            f"policy is {config.exchange.policy}, which follows the steps of one graph; leave it out, or train on one graph"
        )
