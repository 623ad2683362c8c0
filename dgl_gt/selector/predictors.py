"""What predicts the seconds, bytes and memory of a candidate: formulas for one model, or traces of any training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from partition.errors import InputError
from partition.predict.figures import Figures
from partition.predict.model import Model
from partition.predict.step_memory import step_memory
from partition.predict.step_time import StepTime, step_time
from partition.predict.strategies import ACTIVATION_CHECKPOINTS, check_strategy
from partition.predict.traffic import step_bytes, step_traffic
from partition.shards.manifest import read_manifest

from .hardware_profile import Profile
from .traced_time import TracedTime, traced_time


@dataclass(frozen=True)
class Prediction:
    """What one training step takes.

    Attributes
    ----------
    time : StepTime or TracedTime
    sent_bytes : int
        Bytes that all ranks send; exact.
    memory : dict of str to ndarray, int64, (P,)
        Tensors of each rank at the peak, by what they are for (bytes).
    """

    time: StepTime | TracedTime
    sent_bytes: int
    memory: dict[str, np.ndarray]


class ByFormulas:
    """Predicts steps of ``dgl_gt.nn.GraphTransformer`` with any activation checkpointing."""

    activation_checkpoints = ACTIVATION_CHECKPOINTS

    def __init__(self, model: Model, profile: Profile):
        self._model, self._profile = model, profile
        self.description = asdict(model)

    def deepest(self, figures: Figures) -> int:
        """The most hops of halo that one exchange can fill."""
        return min(figures.halo_depth, self._model.layers)

    def exchanges(self, figures: Figures, strategy: str, depth: int) -> bool:
        """Whether ranks exchange rows; raises :class:`InputError` if the cut or the model cannot have the strategy."""
        check_strategy(figures, strategy, depth, self._model)
        return figures.parts > 1 and bool(step_traffic(figures, self._model, strategy, depth))

    def predict(self, figures: Figures, strategy: str, depth: int, activation_checkpoint: str) -> Prediction:
        speeds = self._profile.speeds(self._model, figures.parts, figures.held_within(1))
        options = strategy, depth, activation_checkpoint
        return Prediction(
            step_time(figures, self._model, speeds, *options),
            step_bytes(figures, self._model, *options),
            vars(step_memory(figures, self._model, *options)),
        )

    def one_rank_seconds(self, figures: Figures) -> float:
        """Seconds of a step of the whole graph on the slowest rank."""
        speeds = self._profile.of_slowest_rank().speeds(self._model, 1, figures.nodes)
        return step_time(figures.in_one_part(), self._model, speeds, "local").total_s


class ByTraces:
    """Predicts a user's own training step by tracing it; the step applies activation checkpointing itself.

    Parameters
    ----------
    make_step : callable
        See :func:`dgl_gt.selector.report_costs`.
    directory : path
        Shards that hold the data which the step reads.
    profile : Profile
    max_depth : int
        The most hops of halo that the step can take.
    """

    activation_checkpoints = ("none",)

    def __init__(self, make_step: Callable, directory, profile: Profile, max_depth: int):
        manifest = read_manifest(directory)
        self._make_step, self._profile, self._max_depth, self._traces = make_step, profile, max_depth, {}
        self._data = columns_of_data(manifest)
        self.description = {"step": getattr(make_step, "__qualname__", repr(make_step))}

    def deepest(self, figures: Figures) -> int:
        """The most hops of halo that one exchange can fill."""
        return min(figures.halo_depth, self._max_depth)

    def exchanges(self, figures: Figures, strategy: str, depth: int) -> bool:
        """Whether ranks exchange rows; raises :class:`InputError` if the cut or the step cannot have the strategy."""
        check_strategy(figures, strategy, depth)
        trace = self._trace(strategy, depth, figures.parts)
        if strategy in ("halo_kv", "gather", "heads", "ring") and trace.does_the_same(
            self._trace("halo_h", 1, figures.parts), figures
        ):
            raise InputError("the step does not use this strategy: it runs as with halo_h")
        return bool(trace.sent_bytes(figures))

    def predict(self, figures: Figures, strategy: str, depth: int, activation_checkpoint: str) -> Prediction:
        trace = self._trace(strategy, depth, figures.parts)
        kept, peak = trace.kept(figures), trace.peak_bytes(figures)
        memory = {"kept": kept, "made in the step": peak - kept}
        return Prediction(traced_time(trace, figures, self._profile), trace.sent_bytes(figures), memory)

    def one_rank_seconds(self, figures: Figures) -> float | None:
        """Seconds of a step of the whole graph on the slowest rank; None if the step needs several ranks."""
        try:
            trace = self._trace("local", 1, 1)
        except InputError:
            return None
        return traced_time(trace, figures.in_one_part(), self._profile.of_slowest_rank()).total_s

    def _trace(self, strategy: str, depth: int, parts: int):
        """The trace of a strategy, which all cuts into so many parts share."""
        from dgl_gt.trace.trace_step import trace_step  # here, because planning by formulas needs no torch

        key = strategy, depth, parts
        if key not in self._traces:
            try:
                self._traces[key] = trace_step(self._make_step, *key, *self._data)
            except (ValueError, NotImplementedError) as error:  # such as heads that the ranks cannot share
                raise InputError(f"the step does not run with {strategy}: {error}") from error
        return self._traces[key]


def columns_of_data(manifest: dict) -> tuple[dict, dict]:
    """Type and shape of each column of the node and the edge data of shards, see ``make_layout`` in ``dgl_gt.trace``."""
    node_data, edge_data = (
        {name: (each["dtype"], tuple(each["shape"])) for name, each in manifest[kind].items()}
        for kind in ("node_data", "edge_data")
    )
    return node_data, edge_data
