"""The loss of a training step, from the settings of a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dgl_gt.comm.group import Comm

from .config import TrainConfig
from .task import Task


@dataclass(frozen=True)
class Objective:
    """Cross-entropy of the training rows of all ranks, and where wanted entropies of predictions.

    The loss is a sum over ranks: each returns its rows' share of the mean over all rows. Entropies follow transductive
    sharpening (arXiv:2605.20248): the loss adds ``entropy_unlabelled`` times the mean entropy of the predictions for
    rows outside the training rows, other than virtual nodes, and subtracts ``entropy_labelled`` times that of the
    training rows.

    Attributes
    ----------
    label_smoothing, entropy_unlabelled, entropy_labelled : float
        See :class:`dgl_gt.train.TrainConfig`.
    class_weights : Tensor, float32, (classes,), optional
        Weight of each class in the cross-entropy.
    """

    label_smoothing: float = 0.0
    class_weights: Tensor | None = None
    entropy_unlabelled: float = 0.0
    entropy_labelled: float = 0.0

    def __call__(self, logits: Tensor, task: Task) -> Tensor:
        """Return this rank's share of the loss, (), for logits (N_owned, classes)."""
        rows, label = task.rows["train"], task.label[task.rows["train"]]
        options = {"weight": self.class_weights, "label_smoothing": self.label_smoothing, "reduction": "none"}
        loss = _total(functional.cross_entropy(logits[rows], label, **options), task, rows) / task.counts["train"]
        if self.entropy_labelled:
            loss = loss - self.entropy_labelled * _total(_entropy(logits[rows]), task, rows) / task.counts["train"]
        others = task.num_nodes - task.counts["train"]
        if self.entropy_unlabelled and others:
            is_other = torch.ones(len(logits), dtype=torch.bool, device=logits.device).index_fill(0, rows, False)
            if task.user_rows is not None:
                is_other &= task.user_rows
            loss = loss + self.entropy_unlabelled * _total(_entropy(logits[is_other]), task, is_other) / others
        return loss


def make_objective(config: TrainConfig, task: Task, comm: Comm) -> Objective:
    """Return the objective of a config; a collective.

    The balanced weight of a class is n / (k n_c): n training rows, k classes among them, and n_c rows of the class. So
    the mean weight of a training row is 1.
    """
    weights = None
    if config.class_weights == "balanced":
        own = torch.bincount(task.label[task.rows["train"]], minlength=task.classes)
        counts = comm.all_reduce(own).float()
        present = counts > 0
        weights = torch.where(present, task.counts["train"] / (present.sum() * counts.clamp(min=1)), 0.0)
    return Objective(config.label_smoothing, weights, config.entropy_unlabelled, config.entropy_labelled)


def _total(losses: Tensor, task: Task, rows: Tensor) -> Tensor:
    """Return the sum of the rows' losses, each times its weight where rows have weights."""
    return losses.sum() if task.weights is None else (losses * task.weights[rows]).sum()


def _entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row's class probabilities (nats), (rows,)."""
    log_probability = functional.log_softmax(logits, 1)
    return -(log_probability.exp() * log_probability).sum(1)
