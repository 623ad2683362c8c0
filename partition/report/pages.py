"""What every report has: texts of numbers, an environment for its template, and two files that appear together."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file
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
    out = Path(out).absolute()
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
