"""What is learned: the protocol of a task, which makes the batches, the loss and the metric of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from .inputs import ModelInputs


@dataclass(frozen=True)
class Batch:
    """What one step computes on this rank.

    Attributes
    ----------
    inputs : ModelInputs
        The graph of the step, and the rows that the model reads.
    targets : dict of str to Tensor
        What the loss compares the model's result with; the task alone reads them.
    """

    inputs: ModelInputs
    targets: Mapping[str, Tensor] = field(default_factory=dict)


class Task(Protocol):
    """A task on the graph of a rank. Each method is a collective: every rank calls it."""

    sizes: Mapping[str, int]  # arguments of the model: in_dim, classes, edge_feats and edge_kinds
    metric: str  # a key of METRIC_TITLES
    node_data: Sequence[str]  # names of the node data that it reads
    rows_of_loss: Tensor | None  # int64: rows of the model's result that the loss reads; None where it reads all

    def batches(self, step: int) -> Iterator[Batch]:
        """Make the batches of a step, counted from 0; as many on every rank."""

    def loss(self, out: Tensor, batch: Batch) -> Tensor:
        """Return this rank's share of the loss, (), of a model's result; the loss is the sum over ranks."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metric of each split, such as ``val`` and ``test``; the same on every rank."""
