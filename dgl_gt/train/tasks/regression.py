"""Numbers of nodes, or of edges: the model sees them standardised by the training rows of all ranks, and predictions are as given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dgl_gt.comm.group import Comm
from dgl_gt.partition.errors import InputError

from ..label_rows import LabelledRows, total
from ..task import Batch
from .labels import LabelTask, OnEdges

_LOSSES: dict[str, Callable] = {"mse": functional.mse_loss, "l1": functional.l1_loss, "huber": functional.huber_loss}


class NodeNumbers(NamedTuple):
    """The numbers of every node, in the original node order, without virtual nodes."""

    prediction: np.ndarray  # float64 (N,), or (N, T) of several targets


class EdgeNumbers(NamedTuple):
    """The ends and the numbers of every edge, in the order of edge ids."""

    source: np.ndarray  # int64 (E,)
    destination: np.ndarray  # int64 (E,)
    prediction: np.ndarray  # float64 (E,), or (E, T) of several targets


@dataclass(frozen=True, kw_only=True)
class NodeRegression(LabelTask):
    """A task: the mean loss of all known targets of the training rows, standardised.

    ``entries`` is their number on all ranks; ``mean`` and ``scale``, float64 (T,), are the mean and the standard
    deviation of each target's.
    """

    entries: int
    mean: Tensor
    scale: Tensor

    missing = "NaN, or -1 among whole numbers without others below 0,"

    @staticmethod
    def labels(column: Tensor, name: str, comm: Comm) -> Tensor:
        """Among whole numbers -1 means none, unless there are numbers below."""
        label = column[:, None] if column.dim() == 1 else column
        if label.dim() != 2:
            raise InputError(
                f"{name!r} has row shape {tuple(column.shape[1:])}; a regression needs a number, or a row of numbers: choose "
                "another label"
            )
        if label.is_floating_point():
            return label.double()
        least = -comm.all_reduce(-label.min().reshape(1).long() if label.numel() else torch.zeros(1).long(), "max")
        return label.double().masked_fill(label == -1, torch.nan) if int(least) == -1 else label.double()

    @staticmethod
    def known(label: Tensor) -> Tensor:
        return ~label.isnan()

    @staticmethod
    def assumed_labels(count: int, out_dim: int) -> Tensor:
        return torch.zeros(count, out_dim, dtype=torch.float64)

    @classmethod
    def counted(cls, rows: LabelledRows, counts: dict, out_dim: int, settings: Any, comm: Comm) -> dict[str, Any]:
        target = rows.train_label
        known = cls.known(target)
        count, sums = comm.all_reduce(torch.stack([known.double().sum(0), target.nansum(0)]).cpu())
        mean = (sums / count.clamp(min=1)).to(target.device)
        squares = comm.all_reduce((target - mean).square().nansum(0).cpu())
        scale = (squares / count.clamp(min=1)).sqrt().to(target.device)
        return {"entries": int(count.sum()), "mean": mean, "scale": torch.where(scale > 0, scale, 1.0)}

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), for standardised numbers (N, T)."""
        train = self.trained.rows["train"]
        target, values = (batch.targets["label"][train] - self.mean) / self.scale, self.of_loss(out)
        is_known = self.known(target)
        target = torch.where(is_known, target, 0.0).to(values.dtype)
        losses = _LOSSES[self.config.loss](values, target, reduction="none")
        return total(losses.masked_fill(~is_known, 0.0), self.trained, train) / self.entries

    def compared(self, out: Tensor) -> Tensor:
        return out * self.scale + self.mean

    @property
    def learned(self) -> dict[str, Any]:
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @staticmethod
    def predictions(out: Tensor, learned: dict) -> NodeNumbers:
        mean, scale = (torch.tensor(learned[name], dtype=torch.float64) for name in ("mean", "scale"))
        numbers = (out * scale + mean).numpy()
        return NodeNumbers(numbers[:, 0] if numbers.shape[1] == 1 else numbers)


class EdgeRegression(OnEdges, NodeRegression):
    """The same for edges."""

    answers = EdgeNumbers
