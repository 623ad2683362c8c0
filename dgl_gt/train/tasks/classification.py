"""A class for each node, or for each edge, and the loss over labelled rows of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError

from ..label_rows import LabelledRows, total, whole
from ..task import Batch
from ..task_config import LabelTaskConfig
from .labels import LabelTask, OnEdges


class NodeClasses(NamedTuple):
    """The class and the class probabilities of every node, in the original node order, without virtual nodes."""

    prediction: np.ndarray  # int64 (N,)
    probability: np.ndarray  # float32 (N, classes)


class EdgeClasses(NamedTuple):
    """The ends, the class and the class probabilities of every edge, in the order of edge ids."""

    source: np.ndarray  # int64 (E,)
    destination: np.ndarray  # int64 (E,)
    prediction: np.ndarray  # int64 (E,)
    probability: np.ndarray  # float32 (E, classes)


@dataclass(frozen=True)
class NodeClassification(LabelTask):
    """A task: the mean cross-entropy of the training rows, and where wanted entropies.

    The loss is a sum over ranks: each returns its rows' share of the mean over all rows. Entropies follow transductive
    sharpening (arXiv:2605.20248): the loss adds ``entropy_unlabelled`` times the mean entropy of the predictions for
    rows outside the training rows, other than virtual nodes, and subtracts ``entropy_labelled`` times that of the
    training rows. ``class_weights``, float32 (classes,), are of the cross-entropy.
    """

    class_weights: Tensor | None = None

    missing = "-1"

    @staticmethod
    def labels(column: Tensor, name: str, comm: Comm) -> Tensor:
        column = whole(column)
        if column.dim() == 1 and not column.is_floating_point():
            return column.long()
        other = "multilabel task" if column.dim() == 2 and not column.is_floating_point() else "regression"
        raise InputError(
            f"{name!r} holds {column.dtype} of row shape {tuple(column.shape[1:])}; a classification needs the number of a "
            f"class in each row: choose a {other} (--task), or another label"
        )

    @staticmethod
    def known(label: Tensor) -> Tensor:
        return label >= 0

    @staticmethod
    def assumed_labels(count: int, out_dim: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64)

    @classmethod
    def width_of(cls, label: Tensor, most: int, comm: Comm) -> int:
        """The largest label on any rank plus one."""
        largest = label.max().reshape(1).cpu() if len(label) else torch.tensor([-1])
        classes = int(comm.all_reduce(largest, "max")[0]) + 1
        if not 2 <= classes <= most:
            raise InputError(
                f"the largest label is {classes - 1}; labels must number classes from 0, at least two of them and at most "
                f"one per row ({most})"
            )
        return classes

    @classmethod
    def chosen_metric(cls, settings: LabelTaskConfig, out_dim: int) -> str:
        """ROC-AUC for two classes by default, else accuracy."""
        if settings.metric == "roc_auc" and out_dim != 2:
            raise InputError(f"metric is roc_auc, but there are {out_dim} classes and it needs two; choose accuracy")
        return ("roc_auc" if out_dim == 2 else "accuracy") if settings.metric == "auto" else settings.metric

    @classmethod
    def counted(cls, rows: LabelledRows, counts: dict, out_dim: int, settings: Any, comm: Comm) -> dict[str, Any]:
        """The weights of classes: n / (k n_c) if balanced, with n training rows, k classes among them, n_c of the class.

        So the mean weight of a training row is 1.
        """
        if settings.class_weights == "none":
            return {}
        of_class = comm.all_reduce(torch.bincount(rows.train_label, minlength=out_dim)).float()
        present = of_class > 0
        return {"class_weights": torch.where(present, counts["train"] / (present.sum() * of_class.clamp(min=1)), 0.0)}

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), for logits (N, classes)."""
        config, rows, train = self.config, self.trained, self.trained.rows["train"]
        label, train_count, of_train = batch.targets["label"][train], self.counts["train"], self.of_loss(out)
        options = {"weight": self.class_weights, "label_smoothing": config.label_smoothing, "reduction": "none"}
        loss = total(functional.cross_entropy(of_train, label, **options), rows, train) / train_count
        if config.entropy_labelled:
            loss = loss - config.entropy_labelled * total(_entropy(of_train), rows, train) / train_count
        others = self.num_rows - train_count
        if config.entropy_unlabelled and others:
            is_other = torch.ones(len(out), dtype=torch.bool, device=out.device).index_fill(0, train, False)
            if rows.user_rows is not None:
                is_other &= rows.user_rows
            loss = loss + config.entropy_unlabelled * total(_entropy(out[is_other]), rows, is_other) / others
        return loss

    @staticmethod
    def predictions(out: Tensor, learned: dict) -> NodeClasses:
        probability = out.softmax(1)
        return NodeClasses(probability.argmax(1).numpy(), probability.numpy())


class EdgeClassification(OnEdges, NodeClassification):
    """The same for edges."""

    answers = EdgeClasses


def _entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row's class probabilities (nats), (rows,)."""
    log_probability = functional.log_softmax(logits, 1)
    return -(log_probability.exp() * log_probability).sum(1)
