"""Several labels a node, or an edge: a logistic loss for each known label of the training rows of all ranks."""

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
from .labels import LabelTask, OnEdges


class NodeLabels(NamedTuple):
    """The labels of every node and their probabilities, in the original node order, without virtual nodes."""

    prediction: np.ndarray  # int64 (N, L), 0 or 1
    probability: np.ndarray  # float32 (N, L)


class EdgeLabels(NamedTuple):
    """The ends, the labels and their probabilities of every edge, in the order of edge ids."""

    source: np.ndarray  # int64 (E,)
    destination: np.ndarray  # int64 (E,)
    prediction: np.ndarray  # int64 (E, L), 0 or 1
    probability: np.ndarray  # float32 (E, L)


@dataclass(frozen=True, kw_only=True)
class NodeMultilabel(LabelTask):
    """A task: the mean logistic loss of all known labels of the training rows.

    ``entries`` is their number on all ranks, and ``positive_weights``, float32 (L,), weigh those that are 1.
    """

    entries: int
    positive_weights: Tensor | None

    missing = "-1 in every column"

    @staticmethod
    def labels(column: Tensor, name: str, comm: Comm) -> Tensor:
        label = whole(column[:, None] if column.dim() == 1 else column)
        if label.dim() != 2 or label.is_floating_point() or bool(((label > 1) | (label < -1)).any()):
            raise InputError(
                f"{name!r} holds {column.dtype} of row shape {tuple(column.shape[1:])}; a multilabel task needs 0, 1 or -1 "
                "(unknown), in a column for each label: choose another task (--task), or another label"
            )
        return label.to(torch.int8)

    @staticmethod
    def known(label: Tensor) -> Tensor:
        return label >= 0

    @staticmethod
    def assumed_labels(count: int, out_dim: int) -> Tensor:
        return torch.zeros(count, out_dim, dtype=torch.int8)

    @classmethod
    def counted(cls, rows: LabelledRows, counts: dict, out_dim: int, settings: Any, comm: Comm) -> dict[str, Any]:
        label = rows.train_label
        zeros, ones = comm.all_reduce(torch.stack([(label == 0).sum(0), (label == 1).sum(0)]).cpu())
        weights = None
        if settings.positive_weights == "balanced":
            weights = torch.where(ones > 0, zeros / ones.clamp(min=1), 1.0).to(label.device)
        return {"entries": int((zeros + ones).sum()), "positive_weights": weights}

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), for logits (N, L)."""
        train = self.trained.rows["train"]
        label, logits = batch.targets["label"][train], self.of_loss(out)
        options = {"pos_weight": self.positive_weights, "reduction": "none"}
        losses = functional.binary_cross_entropy_with_logits(logits, label.clamp(min=0).to(logits.dtype), **options)
        return total(losses.masked_fill(label < 0, 0.0), self.trained, train) / self.entries

    @staticmethod
    def predictions(out: Tensor, learned: dict) -> NodeLabels:
        return NodeLabels((out > 0).long().numpy(), out.sigmoid().numpy())


class EdgeMultilabel(OnEdges, NodeMultilabel):
    """The same for edges."""

    answers = EdgeLabels
