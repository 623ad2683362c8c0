"""What reports have in common: texts of numbers, templates, and two files that appear together; pictures as SVG.

Pictures take their colours from the page's style sheet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file
from dgl_gt.partition.system.storage import located
from dgl_gt.partition.system.units import format_bytes, format_count

SPACE = "\N{NO-BREAK SPACE}"


def make_environment(*folders: Path) -> Environment:
    """An environment with the templates of these folders and of this one. It escapes all values."""
    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (bytes_text, count, degrees, figure, percent, seconds)
    environment.filters |= {each.__name__: each for each in filters}
    return environment


def check_targets(out, kept: Path | None = None, *, force: bool) -> dict[str, Path]:
    """The paths of a page ``NAME.html`` and of its numbers ``NAME.json``, by their endings.

    :class:`InputError` where the name does not end in .html, or a path exists without ``force``, cannot be written, or is
    ``kept``, the manifest, which a report must not replace.
    """
    out = located(out).absolute()
    if out.suffix != ".html":
        raise InputError(f"{out} does not end in .html, and the report is a page; name it report.html, for example")
    targets = {suffix: out.with_suffix(suffix) for suffix in (".json", ".html")}
    for path in targets.values():
        if kept is not None and os.path.realpath(path) == os.path.realpath(kept):
            raise InputError(f"{path} describes the shards, and a report must not replace it; choose another name")
        check_file(path, force=force)
    return targets


def write_both(targets: dict[str, Path], page: str, numbers: dict, *, force: bool) -> None:
    """Write a page and its numbers to the paths of :func:`check_targets`."""
    contents = {".html": page, ".json": json.dumps(numbers, indent=1, allow_nan=False) + "\n"}
    with ExitStack() as stack:  # both appear when both are complete: the page last
        for suffix, text in contents.items():
            file = stack.enter_context(new_file(targets[suffix], force=force))
            file.write(text.encode())
            file.flush()  # where the disk is full, this fails before any file appears


# ---- numbers as text for people ---------------------------------------------------------------------------------------


def printable(value):
    """A text without control characters and lone surrogates; any other value as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):  # markup of our own
        return value
    return "".join(each if each.isprintable() or each == SPACE else "\N{REPLACEMENT CHARACTER}" for each in value)


def percent(share: float) -> str:
    """A share as 5.7 %, 12.5 % or 31 %."""
    number = 100 * share
    text = f"{number:,.0f}" if number >= 20 else f"{number:.1f}".removesuffix(".0")
    return ("less than 0.1" if 0 < number < 0.05 else text) + f"{SPACE}%"


def figure(number: float, key: str) -> str:
    """A quality figure as text."""
    if key.endswith("_ratio"):
        return percent(number)
    if key == "cut_weight":
        return f"{number:,.10g}"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.2f}"


def short(number: int) -> str:
    """A count in at most five characters: 9,999, 10k, 1.2M."""
    for unit, letter in ((10**9, "G"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.{1 if number < 10 * unit else 0}f}{letter}"
    return f"{number // 1000}k" if number >= 10_000 else f"{number:,}"


def seconds(number: float) -> str:
    """A time with three digits, without its unit."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def bytes_text(number: float) -> str:
    """A number of bytes as 1.5 MiB, without a line break."""
    return format_bytes(number).replace(" ", SPACE)


def count(number: int, noun: str) -> str:
    """Such as 1 part, 2 parts, without a line break."""
    return format_count(number, noun).replace(" ", SPACE)


def degrees(entry: dict) -> str:
    """The degrees of an entry of ``by_degree`` as 4–7."""
    first, last = entry["degrees"]
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


# ---- pictures ----

MAX_NUMBERED_PARTS = 16  # with more parts, numbers do not fit into the cells of the heat map
_MAX_LINES = 64  # of the heat map; with more parts, several parts share a line
_SIDE, _LARGEST_CELL = 640.0, 56.0  # of the heat map, in its own units
_LEFT, _TOP = 34, 40  # room for its labels


def bar(share: float, kind: str = "", target: float | None = None) -> Markup:
    """Draw a bar of ``share`` of the full width, with a mark at ``target``; ``kind`` is "", "orange", "grey" or "soft"."""
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
