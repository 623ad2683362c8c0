"""The pictures of a run's report: curves and the timeline of a step. They take their colours from the style sheet.

Lines and bars stretch with the page, while the labels are text of the page: so they can be read in a narrow window,
too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from dgl_gt.partition.report.pages import SPACE, printable, short
from dgl_gt.run_files.run_record import RankStep

MAX_RANKS = 64  # that the timeline draws
_TICKS = 5  # about as many labels as an axis has
_WIDTH = 1000  # of a picture, in its own units
_MAX_SPANS = 8000  # of all ranks; with more, a rank's spans share columns


@dataclass(frozen=True)
class Axis:
    """The range of an axis, and its labels: their places as shares of its length, and their texts."""

    first: float
    last: float
    labels: list[tuple[float, str]]

    @classmethod
    def of(cls, values: list[float], text: Callable[[float], str], *, from_zero: bool = False) -> Axis:
        """An axis that holds these values, and zero if asked for; it begins and ends at round numbers."""
        low, high = min(values), max(values)
        if from_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if high - low <= max(1e-9 * abs(low), 1e-9 * abs(high), 1e-300):  # a flat curve lies in the middle
            margin = max(abs(low) * 0.1, 1e-6)
            low, high = low - margin, high + margin
        step = _round_step((high - low) / _TICKS)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = [number * step for number in range(first, last + 1)]
        digits = max(0, -math.floor(math.log10(step)))
        ticks = [round(tick, digits) if digits < 15 else tick for tick in ticks]
        return cls(ticks[0], ticks[-1], [((tick - ticks[0]) / (ticks[-1] - ticks[0]), text(tick)) for tick in ticks])

    @classmethod
    def of_epochs(cls, epochs: list[int]) -> Axis:
        """An axis from the first epoch to the last, with round numbers between them."""
        first, last = min(epochs), max(epochs)
        length = max(last - first, 1)
        step = max(1, round(_round_step(length / _TICKS)))
        ticks = range(-(-first // step) * step, last + 1, step)
        return cls(first, first + length, [((tick - first) / length, f"{tick:,}") for tick in ticks])

    def place(self, value: float) -> float:
        """The place of a value, as a share of the length of the axis."""
        return (value - self.first) / (self.last - self.first)


def _round_step(step: float) -> float:
    """The next larger number that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def plain(value: float) -> str:
    """A number of a curve as text: 0.05, 1.255, 3,400, 12k."""
    if 10_000 <= value < 1e12:
        return short(round(value))
    return f"{value:,.0f}" if 100 <= abs(value) < 10_000 else f"{value:.4g}"


def share(value: float) -> str:
    """A share of a curve as text: 67.5 %."""
    return f"{100 * value:.4g}{SPACE}%"


def exact_share(value: float) -> str:
    """A share as text, with the digits of a metric: 66.80 %."""
    return f"{100 * value:.2f}{SPACE}%"


def chart(
    curves: dict[str, list],
    name: str,
    text: Callable[[float], str],
    best_epoch: int | None = None,
    from_zero: bool = False,
    over: str = "epochs",
) -> Markup:
    """Draw curves of [epoch, value], by their kinds in the style sheet.

    ``name`` says what is drawn ``over`` what, for screen readers; ``text`` turns a value into a label; a line marks
    ``best_epoch``.
    """
    points = [point for curve in curves.values() for point in curve]
    x = Axis.of_epochs([epoch for epoch, _ in points])
    y = Axis.of([value for _, value in points], text, from_zero=from_zero)
    grid = Markup('<line class="grid" x1="0" x2="{0}" y1="{1:.1f}" y2="{1:.1f}"/>')
    lines = [grid.format(_WIDTH, _WIDTH * (1 - place)) for place, _ in y.labels]
    if best_epoch is not None and x.first <= best_epoch <= x.last:
        across = _WIDTH * x.place(best_epoch)
        lines.append(Markup('<line class="best" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}"/>').format(across, _WIDTH))
    path = Markup('<path class="{}" d="{}"/>')
    lines += [path.format(kind, _path(curve, x, y)) for kind, curve in curves.items() if curve]
    beside, below = Markup('<span style="top:{:.1f}%">{}</span>'), Markup('<span style="left:{:.1f}%">{}</span>')
    return Markup(
        '<div class="chart"><div class="rows">{}</div><svg viewBox="0 0 {width} {width}" preserveAspectRatio="none" '
        'role="img" aria-label="{}">{}</svg><div class="columns">{}</div></div>'
    ).format(
        Markup("").join(beside.format(100 - 100 * at, each) for at, each in y.labels),
        printable(f"{name} over the {over}"),
        Markup("").join(lines),
        Markup("").join(below.format(100 * at, each) for at, each in x.labels),
        width=_WIDTH,
    )


def _path(curve: list, x: Axis, y: Axis) -> str:
    places = [f"{_WIDTH * x.place(epoch):.1f} {_WIDTH * (1 - y.place(value)):.1f}" for epoch, value in curve]
    return f"M{'L'.join(places)}" + ("h0" if len(places) == 1 else "")


def timeline_bars(ranks: list[RankStep]) -> list[Markup]:
    """Draw the step of each of the first :data:`MAX_RANKS` ranks: a bar of computing, exchanging and waiting."""
    longest, shown = max(1e-9, *(rank.seconds for rank in ranks)), ranks[:MAX_RANKS]
    return [_bar(number, rank, longest, _MAX_SPANS // len(shown)) for number, rank in enumerate(shown)]


def _bar(number: int, rank: RankStep, longest: float, most: int) -> Markup:
    pieces = [(each.kind, each.start / longest, each.end / longest, each.name) for each in rank.spans]
    if len(pieces) > most:
        pieces = _in_columns(pieces, min(most, _WIDTH))
    rectangle = Markup('<rect class="{}" x="{:.2f}" width="{:.2f}" height="1"><title>{}</title></rect>')
    rectangles = []
    for kind, start, end, name in pieces:
        title = printable(f"{name}: {kind}, {1000 * longest * (end - start):,.2f} ms")
        rectangles.append(rectangle.format(kind, _WIDTH * start, _WIDTH * (end - start), title))
    return Markup(
        '<svg class="time" viewBox="0 0 {} 1" preserveAspectRatio="none" shape-rendering="crispEdges" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(_WIDTH, f"Timeline of rank {number}", Markup("").join(rectangles))


def _in_columns(pieces: list[tuple], columns: int) -> list[tuple]:
    """Columns of equal width, each of the kind that takes most of it; neighbours of a kind are one."""
    sums: list[dict[str, float]] = [{} for _ in range(columns)]
    for kind, start, end, _ in pieces:
        for column in range(int(start * columns), min(int(end * columns) + 1, columns)):
            part = min(end, (column + 1) / columns) - max(start, column / columns)
            sums[column][kind] = sums[column].get(kind, 0.0) + max(part, 0.0)
    kinds = [(column, max(each, key=lambda kind: each[kind])) for column, each in enumerate(sums) if each]
    found = []
    for kind, group in groupby(kinds, key=lambda each: each[1]):
        members = [column for column, _ in group]
        found.append((kind, members[0] / columns, (members[-1] + 1) / columns, "several parts"))
    return found
