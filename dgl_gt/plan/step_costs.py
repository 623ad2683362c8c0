"""Where the seconds, bytes and memory of a training step go, for any model: predicted, and measured on ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError, check_type
from dgl_gt.partition.figures.profile import Profile, read_profile
from dgl_gt.partition.figures.strategies import strategy_for
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.optional_packages import import_optional
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.units import format_bytes

from .traced_time import TERMS, TracedTime, traced_time

_TITLES = {
    "products_s": "matrix products",
    "rows_s": "other operations on rows",
    "attention_s": "passes over edges",
    "exchange_s": "exchanges",
    "gradients_s": "sums over ranks",
    "other_s": "between operations",
}
_COLOURS = ("tab:blue", "tab:cyan", "tab:green", "tab:orange", "tab:red", "lightgrey")
_HEIGHT = 0.36  # of a bar, where two of a layer are 0.4 apart
_ELSEWHERE = "loss, optimiser, sums"


@dataclass(frozen=True)
class LayerCosts:
    """What one layer of a model costs in a training step, forward and backward.

    Attributes
    ----------
    layer : str
        Name of the layer in the model, or a phrase for work outside all layers.
    predicted : dict of str to float
        Seconds by kind: ``products_s``, ``rows_s``, ``attention_s``, ``exchange_s`` as far as computation does not hide
        it, and ``gradients_s`` (s).
    measured : dict of str to float, or None
        The same for a real step, on average over ranks, with ``other_s`` between operations (s).
    sent_bytes : int
        Bytes that all ranks together send.
    """

    layer: str
    predicted: dict[str, float]
    measured: dict[str, float] | None
    sent_bytes: int


@dataclass(frozen=True)
class StepCosts:
    """The costs of one training step. ``str()`` gives them as tables, and :meth:`plot` as a picture.

    Attributes
    ----------
    strategy : str
    depth : int
    time : TracedTime
        Predicted seconds by what they are spent on.
    sent_bytes : int
        Bytes that all ranks together send in exchanges; exact.
    peak_bytes : list of int, (P,)
        Tensors of each rank at the peak of the step (bytes).
    profile : str
        Name of the hardware profile.
    layers : list of LayerCosts
    measured_seconds : float or None
        Median time of real steps, where ranks took some (s).
    measured_sent_bytes : int or None
        Bytes that all ranks together sent in one of them.
    """

    strategy: str
    depth: int
    time: TracedTime
    sent_bytes: int
    peak_bytes: list[int]
    profile: str
    layers: list[LayerCosts]
    measured_seconds: float | None = None
    measured_sent_bytes: int | None = None

    def as_dict(self) -> dict:
        """The costs as JSON values."""
        return {**asdict(self), "time": self.time.terms, "seconds": self.time.total_s}

    def __str__(self):
        return (
            f"{self._by_kind()}\n\n{self._by_layer()}\n\n"
            f"{self.strategy} of depth {self.depth} sends {format_bytes(self.sent_bytes)} per step; the tensors of the largest "
            f"rank take {format_bytes(max(self.peak_bytes))}; ranks and links of profile {self.profile}"
        )

    def plot(self, path, *, force: bool = False) -> None:
        """Draw the seconds of each layer by kind, as ``.png`` or ``.svg``; ``force`` replaces an existing file.

        Raises
        ------
        InputError
            The name ends otherwise, the file exists, or matplotlib is not installed.
        """

        form = Path(path).suffix.removeprefix(".")
        if form not in ("png", "svg"):
            raise InputError(f"path is {str(path)!r}; it must end in .png or .svg")
        check_file(path, force=force)
        figure = _draw(self.layers, _TITLES)
        with new_file(path, force=force) as file:
            figure.savefig(file, format=form, dpi=120)

    def _by_kind(self) -> str:
        rows, sums = [], {}
        for name in _TITLES:
            found = [sum(of.get(name, 0.0) for of in column) for column in self._columns()]
            if any(found) or name == "products_s":
                sums[name] = found
        total = self.time.total_s
        for name, found in sums.items():
            share = f"{found[0] / total:.0%}" if total else ""
            rows.append([_TITLES[name], f"{found[0]:.3g}", share, *(f"{each:.3g}" for each in found[1:])])
        step = [] if self.measured_seconds is None else [f"{self.measured_seconds:.3g}"]
        rows.append(["one step", f"{total:.3g}", "", *step])
        return table(["kind", "predicted s", "share", *["measured s"] * len(step)], rows)

    def _by_layer(self) -> str:
        rows, total = [], self.time.total_s
        for each in self.layers:
            seconds = sum(each.predicted.values())
            kinds = [f"{each.predicted[name]:.3g}" for name in ("products_s", "rows_s", "attention_s", "exchange_s")]
            cells = [
                each.layer,
                *kinds,
                f"{seconds:.3g}",
                f"{seconds / total:.0%}" if total else "",
                format_bytes(each.sent_bytes),
            ]
            rows.append(cells + ([] if each.measured is None else [f"{sum(each.measured.values()):.3g}"]))
        measured = [] if self.measured_seconds is None else ["measured s"]
        return table(
            ["layer", "products", "rows", "edges", "exchange", "predicted s", "share", "sent"] + measured, rows
        )

    def _columns(self) -> list[list[dict[str, float]]]:
        """Seconds by kind of all layers, predicted and, where there are some, measured."""
        columns = [[each.predicted for each in self.layers]]
        return columns if self.measured_seconds is None else [*columns, [each.measured or {} for each in self.layers]]


def report_costs(
    make_step: Callable, shards, strategy: str | None = None, depth: int = 1, *, profile: Profile | None = None
) -> StepCosts:
    """Predict what a training step of any model costs, by layer and by kind of work; on ranks, measure it, too.

    The step runs on a few small made-up parts in this process. They show how the size of each operation depends on the
    counts of a part. With shards, no rank is needed. With a ShardedGraph, every rank calls this function; a few
    real steps follow, and measuring takes some 20 microseconds per operation.

    Parameters
    ----------
    make_step : callable
        Called as ``make_step(sg)`` with a made-up :class:`dgl_gt.ShardedGraph`, whose data have the names, dtypes and
        widths of the shards' data. They are zeros, but masks select random rows. It returns a function without
        arguments that takes one training step: forward, loss, backward, ``sg.comm.sum_gradients`` and optimiser. It
        should make its own model and optimiser, because the steps change their weights.
    shards : path or ShardedGraph
        A shard directory, or what :func:`dgl_gt.load` returned on this rank.
    strategy, depth
        See :func:`dgl_gt.load`; a ShardedGraph has its own.
    profile : Profile, optional
        Hardware profile; by default the documented default, see :func:`dgl_gt.plan.read_profile`.

    Returns
    -------
    StepCosts

    Raises
    ------
    InputError
        The shards cannot have the strategy, the profile is for another number of ranks, or the operations of the step
        depend on the data.
    """
    from dgl_gt.exchange.sharded_graph import ShardedGraph  # here, because planning needs no torch

    from .measure_step import measure_step
    from .tracing import record_trace

    profile = read_profile() if profile is None else profile
    check_type("profile", profile, Profile)
    if not callable(make_step):
        raise InputError(
            f"make_step is {make_step!r}; it must be a function that takes a ShardedGraph and returns a step"
        )
    sg = shards if isinstance(shards, ShardedGraph) else None
    if sg is not None:
        if strategy is not None or depth != 1:
            raise InputError("strategy and depth are those of the ShardedGraph; leave them out")
        manifest, rules, depth = sg.manifest, sg.strategy, sg.depth
    else:
        manifest = read_manifest(shards)
        rules = strategy_for(read_figures(manifest), strategy, depth, shards)
    figures = read_figures(manifest)
    profile.check_ranks(figures.parts)
    trace = record_trace(make_step, rules, depth, figures.parts, figures.node_data, figures.edge_data)
    measured = None if sg is None else measure_step(make_step, sg)
    time = traced_time(trace, figures, profile)
    return StepCosts(
        rules.name,
        depth,
        time,
        trace.sent_bytes(figures),
        trace.peak_bytes(figures).tolist(),
        profile.name,
        _layers(time.layers, measured and measured.layers, trace.sent_by_layer(figures)),
        measured and measured.seconds,
        measured and measured.sent_bytes,
    )


def _layers(predicted: dict, measured: dict | None, sent: dict) -> list[LayerCosts]:
    """The costs of all layers; the names say no more of the model than is needed to tell them apart."""
    names = list(dict.fromkeys([*predicted, *(measured or {}), *sent]))
    names.sort(key=lambda name: name == "")
    models = {name.partition("/")[0] for name in names if name}
    found = []
    for name in names:
        model, _, child = name.partition("/")
        title = (child or f"between the layers of {model}") if len(models) == 1 and len(names) > 2 else name
        seconds = dict.fromkeys(TERMS, 0.0) | predicted.get(name, {})
        seconds["exchange_s"] -= seconds.pop("hidden_s")
        of_step = None if measured is None else measured.get(name, {})
        found.append(LayerCosts(title if name else _ELSEWHERE, seconds, of_step, sent.get(name, 0)))
    return found


def _draw(layers: list, titles: dict[str, str]):
    """Draw a matplotlib figure of costs by layer, see :class:`dgl_gt.plan.step_costs.LayerCosts`.

    ``titles`` are the kinds of work, and what they are called.
    """
    pictures = import_optional("matplotlib.figure", "a picture of costs", "pip install matplotlib")
    figure = pictures.Figure(figsize=(9, 1.6 + 0.5 * len(layers)), layout="constrained")
    axes, is_measured = figure.subplots(), any(each.measured is not None for each in layers)
    columns = [(-0.2 * is_measured, [each.predicted for each in layers])]
    if is_measured:
        columns.append((0.2, [each.measured or {} for each in layers]))
    for offset, of_layers in columns:
        places, ends = [row + offset for row in range(len(layers))], [0.0] * len(layers)
        for (name, title), colour in zip(titles.items(), _COLOURS):
            widths = [each.get(name, 0.0) for each in of_layers]
            is_new = any(widths) and title not in axes.get_legend_handles_labels()[1]
            axes.barh(places, widths, _HEIGHT, left=ends, color=colour, label=title if is_new else None)
            ends = [end + width for end, width in zip(ends, widths)]
    axes.set_yticks(range(len(layers)), [each.layer for each in layers])
    axes.invert_yaxis()
    axes.set(xlabel="seconds per step" + (" (upper bar: predicted, lower bar: measured)" if is_measured else ""))
    axes.legend(fontsize=8)
    return figure
