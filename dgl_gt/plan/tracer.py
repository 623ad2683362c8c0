"""Traces of a training step with every strategy, made when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.strategies import HALO, LOCAL, StrategyRules, check_strategy

if TYPE_CHECKING:
    from .exchanges_of_policies import Exchange
    from .streamed_trace import StreamedTrace
    from .trace import Trace


class Tracer:
    """Traces of one training step. Several plans can share them.

    Parameters
    ----------
    make_step : callable
        See :func:`dgl_gt.plan.report_costs`. With ``activation_checkpoints``, it is called with the mode as its
        second argument.
    max_depth : int
        The most hops of halo that the step can take.
    activation_checkpoints : tuple of str, optional
        Modes of activation checkpointing that the step can have; by default it applies activation checkpointing
        itself.
    description : dict, optional
        What plans say of the model; by default the name of ``make_step``.
    variant : callable, optional
        Called with the figures of a cut; returns keyword arguments of ``make_step``, where the step does other things
        on one cut than on another.
    kept_as : str, optional
        What tells the step from all others: its traces are kept in the user's cache. By default they are not.
    """

    def __init__(
        self,
        make_step: Callable,
        max_depth: int = 1,
        activation_checkpoints: tuple[str, ...] | None = None,
        description: dict | None = None,
        variant: Callable[[Figures], dict] | None = None,
        kept_as: str | None = None,
    ):
        self._make_step, self._modes, self._kept_as = make_step, activation_checkpoints, kept_as
        self._traces: dict[tuple, Trace] = {}
        self._exchanges: WeakKeyDictionary[Figures, dict] = WeakKeyDictionary()
        self.variant = variant or (lambda figures: {})
        self.max_depth, self.activation_checkpoints = max_depth, activation_checkpoints or ("none",)
        self.description = description or {"step": getattr(make_step, "__qualname__", repr(make_step))}

    def of(self, figures: Figures, strategy: StrategyRules, depth: int, activation_checkpoint: str = "none"):
        """What a step does on a cut: its operations, exchanges and tensors, as functions of the counts of a part.

        Raises
        ------
        InputError
            The cut or the step cannot have the strategy, or the step cannot be traced.
        """
        check_strategy(figures, strategy, depth)
        trace = self._trace(figures, strategy, depth, activation_checkpoint)
        if strategy.moves_keys and trace.does_the_same(self._trace(figures, HALO, 1, activation_checkpoint), figures):
            raise InputError(f"the step does not use this strategy: it runs as with {HALO}")
        return trace

    def streamed(self, figures: Figures, spill_dtype=None) -> StreamedTrace:
        """What a step part by part does on a cut whose figures have ``pieces``; ``InputError`` if there is no such step.

        ``spill_dtype`` is that of a :class:`.Stream`.
        """
        return self._trace(figures, HALO, 1, self.activation_checkpoints[0], streams=True, spill_dtype=spill_dtype)

    def of_one_rank(self, figures: Figures):
        """The trace of a rank that holds the whole graph; None if the step does not run on one rank."""
        try:
            return self._trace(figures.in_one_part(), LOCAL, 1, self.activation_checkpoints[0])
        except InputError:
            return None

    def exchanges(
        self, figures: Figures, strategy: StrategyRules, activation_checkpoint: str = "none"
    ) -> list[Exchange]:
        """The exchanges of a step that follow transmission policies, with the rows between the ranks of a cut."""
        from .exchanges_of_policies import policy_exchanges

        check_strategy(figures, strategy, 1)
        known, key = self._exchanges.setdefault(figures, {}), (strategy, activation_checkpoint)
        if key not in known:
            variant = self.variant(figures)
            known[key] = self._recorded(policy_exchanges, strategy, activation_checkpoint, variant, figures)
        return known[key]

    def _trace(self, figures: Figures, strategy: StrategyRules, depth: int, mode: str, **streamed):
        """The trace, which all cuts with the same columns of data and the same number of parts share."""
        from .kept_traces import kept  # here, because reading a profile needs no torch
        from .tracing import record_trace

        columns, variant = (figures.node_data, figures.edge_data), {} if streamed else self.variant(figures)
        key = strategy, depth, figures.parts, mode, *(tuple(each.items()) for each in (streamed, *columns, variant))
        if figures.schema is not None:
            key = *key, figures.schema.node_types, figures.schema.relations
        if key not in self._traces:
            of_cut = depth, figures.parts, *columns, figures.schema
            record = partial(record_trace, **streamed)
            record = partial(self._recorded, record, strategy, mode, variant, *of_cut)
            self._traces[key] = record() if self._kept_as is None else kept((self._kept_as, key), record)
        return self._traces[key]

    def _recorded(self, record: Callable, strategy: StrategyRules, mode: str, variant: dict, *more):
        """What ``record`` finds out of the step on a cut."""
        modes = () if self._modes is None else (mode,)
        try:
            return record(lambda sg: self._make_step(sg, *modes, **variant), strategy, *more)
        except (ValueError, NotImplementedError) as error:  # such as heads that the ranks cannot share
            raise InputError(f"the step does not run with {strategy}: {error}") from error
