"""What every report has: an environment for its template, and two files that appear together, the page and its numbers."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.system.output_checks import check_file

from . import formats

_FILTERS = ("bytes_text", "count", "degrees", "figure", "percent", "seconds")


def make_environment(*folders: Path) -> Environment:
    """Return an environment with the templates of these folders and of this one. It escapes all values."""
    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=formats.printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(formats, name) for name in _FILTERS}
    return environment


def check_targets(out, kept: Path | None = None, *, force: bool) -> dict[str, Path]:
    """Return the paths of a page ``NAME.html`` and of its numbers ``NAME.json``, by their endings.

    Raises
    ------
    InputError
        The name does not end in .html; a path is ``kept``, the manifest, which a report must not replace; or it
        exists without ``force``, or cannot be written.
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
