"""The rows of a graph that have labels, on one rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .inputs import ModelInputs


@dataclass(frozen=True)
class LabelledRows:
    """The nodes of a graph, or its edges, on this rank."""

    inputs: ModelInputs
    label: Tensor  # (N,) or (N, L), as the task reads it
    rows: dict[str, Tensor]  # int64: labelled rows of train, val and test; a rank may have none
    user_rows: Tensor | None = None  # bool (N,), false for virtual nodes; None where there are none
    weights: Tensor | None = None  # float32 (N,), of the rows in the loss; None where each counts once

    @property
    def train_label(self) -> Tensor:
        """The labels of the training rows."""
        return self.label[self.rows["train"]]


def total(losses: Tensor, rows: LabelledRows, chosen: Tensor) -> Tensor:
    """Return the sum of the losses of some rows, each times its weight where rows have weights."""
    if rows.weights is None:
        return losses.sum()
    weights = rows.weights[chosen]
    return (losses * (weights if losses.dim() == 1 else weights[:, None])).sum()


def at_least_float32(out: Tensor) -> Tensor:
    """A model's result in float32, or in float64 where it is that."""
    return out if out.dtype == torch.float64 else out.float()


def whole(label: Tensor) -> Tensor:
    """Floating-point labels as whole numbers, -1 for NaN, where they are; others as they are."""
    if not label.is_floating_point():
        return label
    known = label.nan_to_num(nan=-1.0)
    return known.long() if bool((known == known.floor()).all()) else label
