"""Node classification: features, labels and splits of a sharded graph, and the loss over labelled rows of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dgl_gt.comm.group import Comm
from dgl_gt.exchange.policy.training_graphs import TrainingGraphs
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.shards.counts import user_node_count
from dgl_gt.partition.system.units import format_count

from ..config import TrainConfig
from ..inputs import ModelInputs, read_inputs, required
from ..metrics import METRIC_FUNCTIONS, choose_metric
from ..model import logits_of
from ..task import Batch
from ..task_config import NodeClassificationConfig

SPLITS = tuple(mask.removesuffix("_mask") for mask in SPLIT_MASKS)


@dataclass(frozen=True)
class LabelledRows:
    """The nodes of a graph, on this rank."""

    inputs: ModelInputs
    label: Tensor  # int64 (N,); below 0 for none
    rows: dict[str, Tensor]  # int64: labelled rows of train, val and test; a rank may have none
    user_rows: Tensor | None = None  # bool (N,), false for virtual nodes; None where there are none
    weights: Tensor | None = None  # float32 (N,), of the rows in the loss; None where each counts once


class NodeClasses(NamedTuple):
    """The class and the class probabilities of every node, in the original node order, without virtual nodes."""

    prediction: np.ndarray  # int64 (N,)
    probability: np.ndarray  # float32 (N, classes)


@dataclass(frozen=True)
class NodeClassification:
    """A :class:`dgl_gt.train.task.Task`: the mean cross-entropy of the training rows, and where wanted entropies.

    The loss is a sum over ranks: each returns its rows' share of the mean over all rows. Entropies follow transductive
    sharpening (arXiv:2605.20248): the loss adds ``entropy_unlabelled`` times the mean entropy of the predictions for
    rows outside the training rows, other than virtual nodes, and subtracts ``entropy_labelled`` times that of the
    training rows.

    Attributes
    ----------
    evaluated, trained : LabelledRows
        The owned nodes, and the nodes of training steps.
    counts : dict of str to int
        Rows of each split on all ranks together.
    classes : int
        The largest label on any rank plus one.
    num_nodes : int
        Nodes of the whole graph, without virtual nodes.
    config : NodeClassificationConfig
    seed : int
        Seed of the signs of eigenvectors.
    comm : Comm
    class_weights : Tensor, float32, (classes,), optional
        Weight of each class in the cross-entropy.
    graph_of_step : callable, optional
        Graph of each training step, with the nodes of ``trained``; by default that of its inputs.
    """

    evaluated: LabelledRows
    trained: LabelledRows
    counts: dict[str, int]
    classes: int
    num_nodes: int
    config: NodeClassificationConfig
    seed: int
    comm: Comm
    class_weights: Tensor | None = None
    graph_of_step: Callable[[int], ShardedGraph] | None = None

    @classmethod
    def read(cls, sg: ShardedGraph, config: TrainConfig, graphs: TrainingGraphs | None = None) -> NodeClassification:
        """Read features with encodings, labels and masks of a sharded graph. Rows without a label are left out.

        ``InputError`` says that features, labels or masks are missing or have the wrong shape, that the split does not
        exist or has no labelled row, that the labels are not class numbers, or that the metric needs another number of
        classes.
        """
        evaluated = trained = _labelled_rows(sg, config)
        counts = {}
        for name, rows in evaluated.rows.items():
            counts[name] = int(sg.comm.all_reduce(torch.tensor([len(rows)]))[0])
            if not counts[name]:
                raise InputError(
                    f"{name}_mask of split {config.task.split} selects no labelled node; it must select at least one: fix "
                    "the mask"
                )
        label = evaluated.label
        largest = label.max().reshape(1).cpu() if len(label) else torch.tensor([-1])
        classes = int(sg.comm.all_reduce(largest, "max")[0]) + 1
        if not 2 <= classes <= sg.manifest["nodes"]:
            raise InputError(
                f"the largest label is {classes - 1}; labels must number classes from 0, at least two of them and at most "
                f"one per node ({sg.manifest['nodes']})"
            )
        if graphs is not None and graphs.base is not sg:
            trained = replace(_labelled_rows(graphs.base, config), weights=graphs.weights)
        return cls.of_rows(evaluated, trained, counts, classes, user_node_count(sg.manifest), config, sg.comm, graphs)

    @classmethod
    def assume(cls, sg: ShardedGraph, config: TrainConfig, out_dim: int) -> NodeClassification:
        """All nodes count as training rows where labels or masks are missing."""
        mask = sg.ndata.get("train_mask")
        label = sg.ndata["label"].long() if "label" in sg.ndata else torch.zeros(sg.num_nodes(), dtype=torch.int64)
        if mask is None or mask.dim() > 1:  # masks of several splits are taken to select all rows
            mask = torch.ones(sg.num_nodes(), dtype=torch.bool)
        rows = LabelledRows(read_inputs(sg, config.task.inputs), label, {"train": mask.nonzero().squeeze(1)})
        counts = {"train": sg.num_nodes()}
        return cls.of_rows(rows, rows, counts, out_dim, 2 * sg.num_nodes(), config, sg.comm)

    @classmethod
    def of_rows(
        cls, evaluated, trained, counts, classes: int, num_nodes: int, config: TrainConfig, comm: Comm, graphs=None
    ) -> NodeClassification:
        """Make the task with the class weights of its rows; a collective.

        The balanced weight of a class is n / (k n_c): n training rows, k classes among them, and n_c rows of the class. So
        the mean weight of a training row is 1.
        """
        settings, weights = config.task, None
        assert isinstance(settings, NodeClassificationConfig)
        if settings.class_weights == "balanced":
            own = torch.bincount(evaluated.label[evaluated.rows["train"]], minlength=classes)
            of_class = comm.all_reduce(own).float()
            present = of_class > 0
            weights = torch.where(present, counts["train"] / (present.sum() * of_class.clamp(min=1)), 0.0)
        graph_of_step = None if graphs is None or graphs.is_exact else graphs.of_step
        return cls(evaluated, trained, counts, classes, num_nodes, settings, config.seed, comm, weights, graph_of_step)

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of the model: ``in_dim``, ``edge_feats`` and ``edge_kinds``, and ``out_dim``."""
        return {**self.evaluated.inputs.sizes, "out_dim": self.classes}

    @property
    def metric(self) -> str:
        """Accuracy or ROC-AUC."""
        return choose_metric(self.config.metric, self.classes)

    @property
    def rows_of_loss(self) -> Tensor | None:
        """Rows of the model's result that the loss reads, the training rows; None where it reads all of them."""
        return self.trained.rows["train"] if self.config.mask_of_loss else None

    def batches(self, step: int) -> Iterator[Batch]:
        """Make one batch of all nodes."""
        inputs = self.trained.inputs
        if self.graph_of_step is not None:
            graph = self.graph_of_step(step)
            inputs = inputs if graph is inputs.graph else inputs.on(graph)
        yield Batch(inputs.in_step(self.seed, step), {"label": self.trained.label})

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), for logits (N, classes)."""
        config, rows, train = self.config, self.trained, self.trained.rows["train"]
        label, train_count = batch.targets["label"][train], self.counts["train"]
        options = {"weight": self.class_weights, "label_smoothing": config.label_smoothing, "reduction": "none"}
        loss = _total(functional.cross_entropy(out[train], label, **options), rows, train) / train_count
        if config.entropy_labelled:
            loss = loss - config.entropy_labelled * _total(_entropy(out[train]), rows, train) / train_count
        others = self.num_nodes - train_count
        if config.entropy_unlabelled and others:
            is_other = torch.ones(len(out), dtype=torch.bool, device=out.device).index_fill(0, train, False)
            if rows.user_rows is not None:
                is_other &= rows.user_rows
            loss = loss + config.entropy_unlabelled * _total(_entropy(out[is_other]), rows, is_other) / others
        return loss

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metric of the validation rows and of the test rows."""
        model.eval()
        rows, metric = self.evaluated, METRIC_FUNCTIONS[self.metric]
        logits = logits_of(model, rows.inputs)
        return {
            name: metric(logits[rows.rows[name]], rows.label[rows.rows[name]], self.comm) for name in ("val", "test")
        }

    @staticmethod
    def answer(model: nn.Module, inputs: ModelInputs) -> NodeClasses | None:
        """Predict the class of every node."""
        probability = inputs.graph.gather(logits_of(model, inputs).float().softmax(1), to=0)
        if probability is None:
            return None
        probability = probability[: user_node_count(inputs.graph.manifest)]
        return NodeClasses(probability.argmax(1).cpu().numpy(), probability.cpu().numpy())


def _labelled_rows(sg: ShardedGraph, config: TrainConfig) -> LabelledRows:
    inputs, label, rows = read_inputs(sg, config.task.inputs), required(sg, "label").long(), {}
    for name in SPLITS:
        mask = required(sg, f"{name}_mask")
        splits = mask.shape[1] if mask.dim() == 2 else 1
        if config.task.split >= splits:
            raise InputError(
                f"split is {config.task.split}; the masks hold {format_count(splits, 'split')}, counted from 0"
            )
        chosen = mask[:, config.task.split] if mask.dim() == 2 else mask
        rows[name] = (chosen & (label >= 0)).nonzero().squeeze(1)
    num_nodes = user_node_count(sg.manifest)
    user_rows = sg.node_ids < num_nodes if num_nodes < sg.manifest["nodes"] else None
    return LabelledRows(inputs, label, rows, user_rows)


def _total(losses: Tensor, rows: LabelledRows, chosen: Tensor) -> Tensor:
    """Return the sum of the losses of some rows, each times its weight where rows have weights."""
    return losses.sum() if rows.weights is None else (losses * rows.weights[chosen]).sum()


def _entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row's class probabilities (nats), (rows,)."""
    log_probability = functional.log_softmax(logits, 1)
    return -(log_probability.exp() * log_probability).sum(1)
