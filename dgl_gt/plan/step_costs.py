"""Where the seconds, bytes and memory of a training step go, for any model: predicted, and measured on ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.ops.dispatch import EDGES
from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError, check_type, import_optional
from dgl_gt.partition.figures.profile import Profile, read_profile
from dgl_gt.partition.figures.strategies import strategy_for
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.units import format_bytes
from dgl_gt.torch_internals import OperationMode

from .trace import TERMS, TracedTime, traced_time
from .tracing import RANGE_BEGIN, RANGE_END, kind_of, record_trace
from .watch import TIMED_STEPS, LayerTracker, synchronise, time_steps

_TITLES = {
    "products_s": "matrix products",
    "rows_s": "other operations on rows",
    "attention_s": "passes over edges",
    "exchange_s": "exchanges",
    "gradients_s": "sums over ranks",
    "other_s": "between operations",
}
_TERM_OF = {"product": "products_s", "edges": "attention_s", "rows": "rows_s"}  # by the kind of an operation
_COLOURS = ("tab:blue", "tab:cyan", "tab:green", "tab:orange", "tab:red", "lightgrey")
_HEIGHT = 0.36  # of a bar, where two of a layer are 0.4 apart
_ELSEWHERE = "loss, optimiser, sums"


@dataclass(frozen=True)
class LayerCosts:
    """What one layer of a model costs in a training step, forward and backward.

    Seconds are by kind: ``products_s``, ``rows_s``, ``attention_s``, ``exchange_s`` as far as computation does not hide
    it, and ``gradients_s``; of a real step, on average over ranks and with ``other_s`` between operations (s).
    """

    layer: str  # its name in the model, or a phrase for work outside all layers
    predicted: dict[str, float]
    measured: dict[str, float] | None
    sent_bytes: int  # by all ranks together


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
        figure = _draw(self.layers)
        with new_file(path, force=force) as file:
            figure.savefig(file, format=form, dpi=120)

    def _by_kind(self) -> str:
        rows, total = [], self.time.total_s
        for name, title in _TITLES.items():
            predicted, *measured = [sum(of.get(name, 0.0) for of in column) for column in _columns(self.layers)]
            if predicted or any(measured) or name == "products_s":
                rows.append(
                    [title, f"{predicted:.3g}", _share(predicted, total), *(f"{each:.3g}" for each in measured)]
                )
        step = [] if self.measured_seconds is None else [f"{self.measured_seconds:.3g}"]
        rows.append(["one step", f"{total:.3g}", "", *step])
        return table(["kind", "predicted s", "share", *["measured s"] * len(step)], rows)

    def _by_layer(self) -> str:
        rows = []
        for each in self.layers:
            seconds = sum(each.predicted.values())
            kinds = [f"{each.predicted[name]:.3g}" for name in ("products_s", "rows_s", "attention_s", "exchange_s")]
            cells = [f"{seconds:.3g}", _share(seconds, self.time.total_s), format_bytes(each.sent_bytes)]
            measured = [] if each.measured is None else [f"{sum(each.measured.values()):.3g}"]
            rows.append([each.layer, *kinds, *cells, *measured])
        header = ["layer", "products", "rows", "edges", "exchange", "predicted s", "share", "sent"]
        return table(header + ([] if self.measured_seconds is None else ["measured s"]), rows)


def _columns(layers: list[LayerCosts]) -> list[list[dict[str, float]]]:
    """Seconds by kind of all layers: predicted and, where there are some, measured."""
    is_measured = any(each.measured is not None for each in layers)
    return [[each.predicted for each in layers], *[[each.measured or {} for each in layers]] * is_measured]


def _share(seconds: float, total: float) -> str:
    return f"{seconds / total:.0%}" if total else ""


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
        The shards cannot have the strategy, the graph was loaded with ``spill``, the profile is for another number of
        ranks, or the operations of the step depend on the data.
    """
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
        if sg.stream is not None:
            raise InputError(
                "shards is a graph with spill, and costs are those of steps in memory; load it without spill"
            )
        manifest, rules, depth = sg.manifest, sg.strategy, sg.depth
    else:
        manifest = read_manifest(shards)
        rules = strategy_for(read_figures(manifest), strategy, depth, shards)
    figures = read_figures(manifest)
    profile.check_ranks(figures.parts)
    trace = record_trace(make_step, rules, depth, figures.parts, figures.node_data, figures.edge_data, figures.schema)
    seconds, sent, layers = (None, None, None) if sg is None else _measure_step(make_step, sg)
    predicted = traced_time(trace, figures, profile)
    return StepCosts(
        rules.name,
        depth,
        predicted,
        trace.sent_bytes(figures),
        trace.peak_bytes(figures).tolist(),
        profile.name,
        _layers(predicted.layers, layers, trace.sent_by_layer(figures)),
        seconds,
        sent,
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


def _draw(layers: list[LayerCosts]):
    """Draw a matplotlib figure of costs by layer and kind of work."""
    pictures = import_optional("matplotlib.figure", "a picture of costs", "pip install matplotlib")
    figure = pictures.Figure(figsize=(9, 1.6 + 0.5 * len(layers)), layout="constrained")
    axes, columns = figure.subplots(), _columns(layers)
    is_measured = len(columns) > 1
    for offset, of_layers in zip((-0.2, 0.2) if is_measured else (0.0,), columns):
        places, ends = [row + offset for row in range(len(layers))], [0.0] * len(layers)
        for (name, title), colour in zip(_TITLES.items(), _COLOURS):
            widths = [each.get(name, 0.0) for each in of_layers]
            is_new = any(widths) and title not in axes.get_legend_handles_labels()[1]
            axes.barh(places, widths, _HEIGHT, left=ends, color=colour, label=title if is_new else None)
            ends = [end + width for end, width in zip(ends, widths)]
    axes.set_yticks(range(len(layers)), [each.layer for each in layers])
    axes.invert_yaxis()
    axes.set(xlabel="seconds per step" + (" (upper bar: predicted, lower bar: measured)" if is_measured else ""))
    axes.legend(fontsize=8)
    return figure


# ---- real steps ----


def _measure_step(
    make_step: Callable[[ShardedGraph], Callable[[], object]], sg: ShardedGraph
) -> tuple[float, int, dict[str, dict[str, float]]]:
    """Run a step a few times; return its seconds, the bytes that all ranks send in it, and the seconds of each layer.

    Those of a layer are by kind and on average over ranks: ``exchange_s`` with the wait for other ranks, and ``other_s``
    between operations. They come from extra steps, which timing each operation makes slower. Every rank calls it.
    """
    comm = sg.comm
    with comm.together():
        step, found = make_step(sg), []
        step()
        seconds, sent = time_steps(sg, step)
        for _ in range(TIMED_STEPS):
            with StepTimer(sg) as timer:  # a new one for each step, which may make modules of its own
                step()
            found.append(timer.layers)
    steps = [layers for of_rank in comm.gather_objects(found) for layers in of_rank]
    terms = (*_TERM_OF.values(), "exchange_s", "gradients_s", "other_s")
    layers = {
        layer: {term: sum(of.get(layer, {}).get(term, 0.0) for of in steps) / len(steps) for term in terms}
        for layer in dict.fromkeys(layer for of in steps for layer in of)
    }
    return seconds, sent, layers


class StepTimer(OperationMode):
    """Inside the block, adds up the seconds of this rank by layer and by kind of work, in ``layers``."""

    def __init__(self, sg: ShardedGraph):
        super().__init__()
        self.layers: dict[str, dict[str, float]] = {}
        self._comm, self._device, self._tracker = sg.comm, sg.device, LayerTracker()
        self._ranges: list[bool] = []  # ranges of the profiler that are open, and whether they are passes over edges
        self._waits_for: str | None = None  # a collective that may still run on a GPU

    def __enter__(self):
        self._tracker.__enter__()
        self._ended, self._exchange_s = self._now(), self._comm.exchange_s
        return super().__enter__()

    def __exit__(self, *error):
        try:
            self._add_gap()
        finally:
            self._tracker.__exit__()
            super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":  # its time is in the gap before the next operation
            self._waits_for = "gradients_s" if "allreduce" in function.name() else "exchange_s"
            return function(*args, **(kwargs or {}))
        self._add_gap()
        result = function(*args, **(kwargs or {}))
        if function is RANGE_BEGIN:
            self._ranges.append(args[0] == EDGES)
        elif function is RANGE_END:
            self._ranges.pop()
        ended = self._now()
        self._add("attention_s" if any(self._ranges) else _TERM_OF[kind_of(function)], ended - self._ended)
        self._ended = ended
        return result

    def _add_gap(self) -> None:
        """Add the time since the last operation."""
        now = self._now()
        gap, exchanged = now - self._ended, self._comm.exchange_s - self._exchange_s
        exchanged = min(exchanged, gap)
        self._add("exchange_s", exchanged)
        rest = self._waits_for or ("attention_s" if any(self._ranges) else "other_s")
        self._add(rest, gap - exchanged)
        self._ended, self._exchange_s, self._waits_for = now, self._comm.exchange_s, None

    def _add(self, term: str, seconds: float) -> None:
        of_layer = self.layers.setdefault(self._tracker.layer, {})
        of_layer[term] = of_layer.get(term, 0.0) + seconds

    def _now(self) -> float:
        synchronise(self._device)
        return time.perf_counter()
