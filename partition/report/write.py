"""``dgl-gt report``: one self-contained page about a shard directory, with its pictures and its numbers beside it."""

from __future__ import annotations

import io
import json
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from partition.errors import InputError
from partition.shards.manifest import read_manifest, verify
from partition.system.atomic_write import new_file
from partition.system.optional_packages import need
from partition.system.output_checks import check_file

from . import style as show
from .counts import figures
from .page import page

__all__ = ["figures", "write_report"]

_BLUE, _ORANGE, _GREY, _INK, _SOFT = "#0b65a8", "#d98200", "#9aa4ae", "#1a1f25", "#5b6672"  # as the page, when light
_MOST_NUMBERS = 16  # parts beyond which numbers do not fit into the heat map


def write_report(directory, out, *, force: bool = False) -> dict:
    """Write the report of a shard directory: a page, its pictures and its numbers.

    Parameters
    ----------
    directory : path
        Shards; their checksums are verified first.
    out : path
        The page, ``NAME.html``. ``NAME.png`` (its pictures) and ``NAME.json`` (its numbers) are written beside it.
    force : bool
        Replace those files where they exist.

    Returns
    -------
    dict
        The numbers, see :func:`partition.report.counts.figures`.

    Raises
    ------
    InputError
        No shards, damaged ones, ``out`` does not end in .html, exists or cannot be written, or matplotlib is missing.
    """
    targets = _checked_targets(directory, out, force)
    Figure = need("matplotlib.figure", "the report", "install it with: pip install matplotlib").Figure
    verify(directory, read_manifest(directory))
    numbers = figures(directory)
    contents = {
        ".html": page(numbers).encode(),
        ".png": _picture(Figure, numbers),
        ".json": (json.dumps(numbers, indent=1) + "\n").encode(),
    }
    with ExitStack() as stack:  # all appear when all are complete: the last one first, the page at the end
        for suffix, content in contents.items():
            file = stack.enter_context(new_file(targets[suffix], force=force))
            file.write(content)
            file.flush()  # here a full disk leaves none of them
    return numbers


def _checked_targets(directory, out, force: bool) -> dict[str, Path]:
    out = Path(out).absolute()
    if out.suffix != ".html":
        raise InputError(f"{out} does not end in .html; the report is a page: name it report.html, for example")
    targets = {suffix: out.with_suffix(suffix) for suffix in (".json", ".png", ".html")}
    for path in targets.values():
        if os.path.realpath(path) == os.path.realpath(Path(directory) / "manifest.json"):
            raise InputError(f"{path} is not to be replaced by a report; choose another name")
        check_file(path, force=force)
    return targets


# ---- pictures --------------------------------------------------------------------------------------------------------


def _picture(Figure, numbers: dict) -> bytes:
    """The page's pictures as one PNG."""
    figure = Figure(figsize=(12, 13.7), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.13)
    head, upper, middle, lower = figure.subfigures(4, 1, height_ratios=[0.8, 5, 2.9, 4])
    _title(head, numbers)
    left, right = upper.subfigures(1, 2, width_ratios=[1, 1.15])
    _draw_random(left.subplots(), numbers)
    _draw_traffic(right, numbers)
    _draw_parts(middle, numbers)
    if show.candidates(numbers):
        lower, right = lower.subfigures(1, 2, width_ratios=[1.15, 1])
        _draw_cuts(right.subplots(), numbers)
    _draw_replication(lower.subplots(), numbers)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _title(head, numbers: dict) -> None:
    name = show.printable(numbers["source"])
    name = name if len(name) <= 60 else name[:59] + "…"
    facts = ", ".join(show.count(numbers[f"{noun}s"], noun) for noun in ("node", "edge", "part"))
    head.text(0.012, 0.62, name, size=20, weight="bold", color=_INK, va="center", parse_math=False)
    head.text(0.012, 0.18, f"{facts}, {numbers['cut']} cut", size=12, color=_SOFT, va="center")


def _ticks(parts: int) -> list[int]:
    """At most nine parts, evenly apart."""
    return list(range(0, parts, -(-parts // 8)))


def _style(axes, title: str, *, grid: str = "x") -> None:
    axes.set_title(title, loc="left", size=12, weight="bold", color=_INK, pad=10)
    axes.tick_params(colors=_SOFT, labelsize=9, length=0)
    axes.spines[:].set_visible(False)
    if grid:
        axes.grid(axis=grid, color="#dde2e7", linewidth=0.8)
        axes.set_axisbelow(True)


def _draw_random(axes, numbers: dict) -> None:
    keys = show.quality_keys(numbers)
    shares = [numbers["of_random"][key] for key in keys]
    drawn = [100 * (share or 0) for share in shares]
    # Balances are near 1 in most random cuts: what is longer than the line there is no fault.
    colours = [
        _GREY if key.endswith("balance") else _ORANGE if share > 105 else _BLUE for key, share in zip(keys, drawn)
    ]
    axes.barh(range(len(keys)), drawn, height=0.5, color=colours)
    axes.axvline(100, color=_INK, linewidth=1.2, alpha=0.6)
    under = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for place, (key, share) in enumerate(zip(keys, shares)):
        text = show.value(key, numbers["quality"][key])
        text += "" if share is None else f"  ({show.percent(share)})"
        axes.text(drawn[place] + 2, place, text, va="center", size=9, color=_INK, bbox=under)
    axes.set_yticks(range(len(keys)), [show.MEANINGS[key][0] for key in keys])
    axes.set_xlim(0, 1.4 * max(100, *drawn))
    axes.invert_yaxis()
    axes.set_xlabel("% of a random cut; the line is the random cut", size=9, color=_SOFT)
    _style(axes, "Beside a random cut")


def _draw_traffic(panel, numbers: dict) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    rows, axes = np.array(numbers["traffic"]["rows"]), panel.subplots()
    most = show.darkest(rows, numbers["random"]["volume"] / max(len(rows) * (len(rows) - 1), 1))
    blues = LinearSegmentedColormap.from_list("blues", ["#f2f4f6", _BLUE])
    image = axes.imshow(rows, cmap=blues, vmin=0, vmax=most, interpolation="nearest")
    if len(rows) <= _MOST_NUMBERS:
        for i, j in np.argwhere(rows):
            ink = "white" if rows[i, j] > 0.8 * most else _INK
            axes.text(
                j, i, show.short(int(rows[i, j])), ha="center", va="center", size=min(9, 96 / len(rows)), color=ink
            )
    axes.set_xticks(_ticks(len(rows)))
    axes.set_yticks(_ticks(len(rows)))
    axes.set_xlabel("sends", size=9, color=_SOFT)
    axes.set_ylabel("receives", size=9, color=_SOFT)
    _style(axes, "Who sends to whom", grid="")
    scale = panel.colorbar(image, ax=axes, shrink=0.6, label="rows")
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=_SOFT, labelsize=9, length=0)


def _draw_parts(panel, numbers: dict) -> None:
    copies = show.copies_key(numbers)
    names = {"owned": "Nodes owned", copies: "Halo rows" if copies == "halo" else "Mirrors", "edges": "Edges"}
    colours = [_BLUE, _ORANGE, _BLUE, _GREY]
    for axes, (key, name), colour in zip(panel.subplots(1, 4), {**names, "bytes": "KiB on disk"}.items(), colours):
        heights, targets = np.array([[part[key] for part in numbers["per_part"]], show.targets(numbers, key)])
        if key == "bytes":
            heights, targets = heights / 1024, targets / 1024
        places = np.arange(len(heights))
        axes.bar(places, heights, color=colour, width=0.8)
        axes.hlines(targets, places - 0.5, places + 0.5, color=_INK, linewidth=1.2, alpha=0.6)
        axes.set_xticks(_ticks(len(heights)))
        axes.set_ylim(0, 1.08 * max(heights.max(), targets.max(), 1))
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_major_formatter(lambda number, _: show.short(int(number)))
        axes.set_xlabel("part; the line is its share", size=9, color=_SOFT)
        _style(axes, name, grid="y")


def _draw_replication(axes, numbers: dict) -> None:
    bins = numbers["replication"]["by_degree"]
    mean, most = ([each[key] for each in bins] for key in ("mean", "max"))
    places = range(len(bins))
    axes.vlines(places, mean, most, color=_ORANGE, alpha=0.45, linewidth=3)
    axes.plot(places, most, "o", markerfacecolor="white", markeredgecolor=_ORANGE, markeredgewidth=2, label="most")
    axes.plot(places, mean, "o", color=_BLUE, label="mean")
    axes.set_xticks(places, [show.degrees(each) for each in bins], rotation=45, ha="right")
    axes.set_yticks([part + 1 for part in _ticks(numbers["parts"])])
    axes.set_ylim(1 - 0.04 * numbers["parts"], 1.04 * numbers["parts"])
    axes.set_xlabel("degree (in + out)", size=9, color=_SOFT)
    axes.set_ylabel("parts that hold a node", size=9, color=_SOFT)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    _style(axes, "Replication against degree", grid="y")


def _draw_cuts(axes, numbers: dict) -> None:
    candidates = show.candidates(numbers)
    keys = ("volume", "replication_factor", "max_copies_factor", "node_balance", "edge_balance")
    names = ["Predicted step", *(show.MEANINGS[key][0] for key in keys)]
    lines = [[each["predicted_seconds"], *(each["quality"][key] for key in keys)] for each in candidates]
    most = np.maximum(np.max(lines, axis=0), 1e-9)
    for place, (each, line) in enumerate(zip(candidates, lines)):
        chosen = each["cut"] == numbers["cut"]
        heights = np.arange(len(names)) + 0.36 * (place - (len(lines) - 1) / 2)
        label = f"{each['cut']} cut{' (chosen)' if chosen else ''}"
        axes.barh(heights, line / most, height=0.3, color=_BLUE if chosen else _GREY, label=label)
        for key, height, number, share in zip(("", *keys), heights, line, line / most):
            text = show.value(key, number) if key else f"{show.seconds(number)} s"
            axes.text(share + 0.02, height, text, va="center", size=8.5, color=_INK)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks([])
    axes.set_xlim(0, 1.25)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.02), ncols=len(lines))
    _style(axes, "Edge cut beside vertex cut", grid="")
