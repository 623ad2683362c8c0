"""Where the seconds, bytes and memory of a training step go, for any model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from partition.console import table
from partition.errors import InputError, check_type
from partition.predict.strategies import default_form
from partition.shards.counts import read_figures
from partition.shards.manifest import read_manifest
from partition.system.units import size

from .hardware_profile import Profile, read_profile
from .traced_time import TracedTime, traced_time

_TITLES = {
    "products_s": "matrix products",
    "rows_s": "other operations on rows",
    "attention_s": "passes over edges",
    "exchange_s": "exchanges",
    "hidden_s": "of these, while ranks compute",
    "gradients_s": "sums over ranks",
}


@dataclass(frozen=True)
class StepCosts:
    """The predicted costs of one training step.

    ``str()`` gives them as a table.

    Attributes
    ----------
    strategy : str
    depth : int
    time : TracedTime
        Seconds by what they are spent on.
    sent_bytes : int
        Bytes that all ranks together send in exchanges; exact.
    peak_bytes : list of int, (P,)
        Tensors of each rank at the peak of the step (bytes).
    profile : str
        Name of the hardware profile.
    """

    strategy: str
    depth: int
    time: TracedTime
    sent_bytes: int
    peak_bytes: list[int]
    profile: str

    def as_dict(self) -> dict:
        """The costs as JSON values."""
        return {**asdict(self), "seconds": self.time.total_s}

    def __str__(self):
        total = self.time.total_s
        rows = [
            [title, f"{seconds:.3g}", f"{seconds / total:.0%}" if total else ""]
            for name, title in _TITLES.items()
            if (seconds := getattr(self.time, name)) or name == "products_s"
        ]
        rows.append(["one step", f"{total:.3g}", ""])
        return (
            f"{table(['predicted', 's', 'share'], rows)}\n"
            f"{self.strategy} of depth {self.depth} sends {size(self.sent_bytes)} per step; the tensors of the largest "
            f"rank take {size(max(self.peak_bytes))}; ranks and links of profile {self.profile}"
        )


def report_costs(
    make_step: Callable, directory, strategy: str | None = None, depth: int = 1, *, profile: Profile | None = None
) -> StepCosts:
    """Predict what a training step of any model costs, without running it on the graph.

    The step runs on a few small made-up parts in this process, and how much each of its operations does is found from
    the counts of the parts. Use it before ranks are started.

    Parameters
    ----------
    make_step : callable
        Called as ``make_step(sg)`` with a made-up :class:`dgl_gt.ShardedGraph`, whose data have the names, dtypes and
        widths of the shards' data. They are zeros, but masks select random rows. It returns a function without
        arguments that takes one training step: forward, loss, backward, ``sg.comm.sum_gradients`` and optimiser. It
        should make its own model and optimiser, because the steps change their weights.
    directory : path
        Shards.
    strategy, depth
        See :func:`dgl_gt.load`.
    profile : Profile, optional
        Hardware profile; by default the documented default, see :func:`dgl_gt.selector.read_profile`.

    Returns
    -------
    StepCosts

    Raises
    ------
    InputError
        The shards cannot have the strategy, the profile is for another number of ranks, or the operations of the step
        depend on the data.
    """
    from dgl_gt.exchange.sharded_graph import check_choice  # here, because planning needs no torch
    from dgl_gt.trace.trace_step import trace_step

    profile = read_profile() if profile is None else profile
    check_type("profile", profile, Profile)
    manifest = read_manifest(directory)
    strategy = default_form(check_choice(directory, manifest, strategy, depth))
    figures = read_figures(manifest)
    profile.check_ranks(figures.parts)
    if not callable(make_step):
        raise InputError(
            f"make_step is {make_step!r}; it must be a function that takes a ShardedGraph, returning a step"
        )
    trace = trace_step(make_step, strategy, depth, figures.parts, figures.node_data, figures.edge_data)
    return StepCosts(
        strategy,
        depth,
        traced_time(trace, figures, profile),
        trace.sent_bytes(figures),
        trace.peak_bytes(figures).tolist(),
        profile.name,
    )
