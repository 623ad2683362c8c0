"""The pictures of the report, as SVG that takes its colours from the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from .pages import short

MAX_NUMBERED_PARTS = 16  # with more parts, numbers do not fit into the cells of the heat map
_MAX_LINES = 64  # of the heat map; with more parts, several parts share a line
_SIDE, _LARGEST_CELL = 640.0, 56.0  # of the heat map, in its own units
_LEFT, _TOP = 34, 40  # room for its labels


def bar(share: float, kind: str = "", target: float | None = None) -> Markup:
    """Draw a bar of ``share`` of the full width, with a mark at ``target``; ``kind`` is "", "orange" or "grey"."""
    mark = ""
    if target is not None:
        mark = Markup('<line x1="{0:.1f}%" x2="{0:.1f}%" y2="100%"/>').format(100 * target)
    return Markup(
        '<svg class="bar {}" aria-hidden="true"><rect class="none" width="100%" y="20%" height="60%" rx="2"/>'
        '<rect width="{:.1f}%" y="20%" height="60%" rx="2"/>{}</svg>'
    ).format(kind, 100 * share, mark)


def dots(mean: float, most: float) -> Markup:
    """Draw two dots on a line from 0 to 1: a filled one at ``mean`` and a ring at ``most``."""
    return Markup(
        '<svg class="dots" aria-hidden="true"><line x2="100%" y1="50%" y2="50%"/>'
        '<line class="range" x1="{0:.1f}%" x2="{1:.1f}%" y1="50%" y2="50%"/>'
        '<circle class="ring" cx="{1:.1f}%" cy="50%" r="5"/><circle cx="{0:.1f}%" cy="50%" r="5.5"/></svg>'
    ).format(100 * mean, 100 * most)


@dataclass(frozen=True)
class HeatMap:
    """Rows that each part receives from each other part."""

    cells: np.ndarray  # rows per cell, int64
    parts_per_line: int  # parts that share a line
    darkest: int  # rows that the darkest colour stands for

    @classmethod
    def of(cls, rows: np.ndarray, random_pair: float) -> HeatMap:
        """Group the P x P rows; ``random_pair`` is the mean number of rows between two parts in a random cut."""
        shared = -(-len(rows) // _MAX_LINES)
        starts = np.arange(0, len(rows), shared)
        cells = np.add.reduceat(np.add.reduceat(rows, starts, axis=0), starts, axis=1)
        return cls(cells, shared, max(int(cells.max()), round(random_pair * shared**2), 1))

    def svg(self) -> Markup:
        """Draw the map."""
        lines = len(self.cells)
        unit = min(_LARGEST_CELL, _SIDE / lines)
        return Markup(
            '<svg class="map" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" stroke-width="{gap:.1f}" '
            'role="img" aria-label="Rows that each part receives from each other part">\n'
            '<text x="{left}" y="12">from part</text>\n'
            '<rect class="none" x="{left}" y="{top}" width="{side:.1f}" height="{side:.1f}"/>{cells}\n{labels}\n'
            '<g class="inside{crowded}">{numbers}</g>\n</svg>'
        ).format(
            left=_LEFT,
            top=_TOP,
            side=lines * unit,
            width=_LEFT + lines * unit,
            height=_TOP + lines * unit,
            gap=min(2, unit / 10),
            cells=Markup("").join(self._cell(unit, i, j) for i, j in np.argwhere(self.cells).tolist()),
            labels=Markup("").join(self._label(unit, i) for i in range(0, lines, -(-lines // MAX_NUMBERED_PARTS))),
            crowded=" crowded" if lines > MAX_NUMBERED_PARTS // 2 else "",
            numbers=Markup("").join(self._numbers(unit)),
        )

    def _cell(self, unit: float, i: int, j: int) -> Markup:
        rows, title = int(self.cells[i, j]), ""
        if self.parts_per_line == 1:
            title = Markup("<title>part {} from part {}: {:,}</title>").format(i, j, rows)
        return Markup(
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill-opacity="{:.2f}">{}</rect>'
        ).format(_LEFT + j * unit, _TOP + i * unit, unit, unit, max(rows / self.darkest, 0.05), title)

    def _label(self, unit: float, i: int) -> Markup:
        """Draw the number of a line's first part, on the left and on top."""
        middle = (i + 0.5) * unit
        return Markup(
            '<text x="{}" y="{:.1f}" text-anchor="end">{part}</text>'
            '<text x="{:.1f}" y="{}" text-anchor="middle">{part}</text>'
        ).format(_LEFT - 8, _TOP + middle + 4, _LEFT + middle, _TOP - 8, part=i * self.parts_per_line)

    def _numbers(self, unit: float) -> Iterator[Markup]:
        """Draw the number of each cell off the diagonal, where there are few cells."""
        lines = len(self.cells)
        for i, j in np.ndindex(lines, lines) if lines <= MAX_NUMBERED_PARTS else ():
            if i != j:
                rows = int(self.cells[i, j])
                ink = "deep" if rows > 0.8 * self.darkest else "half" if rows > 0.5 * self.darkest else ""
                x, y = _LEFT + (j + 0.5) * unit, _TOP + (i + 0.5) * unit + 4
                yield Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>').format(x, y, ink, short(rows))
