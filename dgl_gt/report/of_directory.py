"""The report of a directory, whatever it holds: written by ``dgl-gt report``, or shown in a notebook."""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.report.write import make_report, write_report
from dgl_gt.partition.shards.manifest import is_shards
from dgl_gt.partition.system.storage import Url, located
from dgl_gt.run_files.search_files import is_search

from .run_report import is_run, make_run_report, write_run_report
from .search_report import make_search_report, write_search_report

_HEIGHT_PX = 600  # where a notebook does not let the page say its own


@dataclass(frozen=True, repr=False)
class Report:
    """The report of shards or of a run, which a notebook shows as a page.

    Attributes
    ----------
    directory : path
        What it is about.
    numbers : dict
        All that the page shows, as values that JSON can hold; docs/cli.md lists them.
    page : str
        The page as HTML, which needs no network.
    """

    directory: Path | Url
    numbers: dict
    page: str

    def __repr__(self) -> str:
        return f"report of {self.directory}"

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles stay there."""
        fit = "this.style.height = this.contentDocument.documentElement.scrollHeight + 'px'"
        style = f"width: 100%; height: {_HEIGHT_PX}px; border: 0"
        return f'<iframe srcdoc="{html.escape(self.page)}" style="{style}" onload="{fit}"></iframe>'


def report(directory) -> Report:
    """The report of shards, or of a run of training: how even and how good the cut is, or how the run goes or went.

    Parameters
    ----------
    directory : path
        What :func:`dgl_gt.partition.partition` or :func:`dgl_gt.train.train_and_save` wrote, also while the run goes on.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        The directory holds neither, or is damaged.

    Examples
    --------
    >>> from dgl_gt.report import report
    >>> report("shards")  # the last line of a cell shows it  # doctest: +SKIP
    """
    return Report(located(directory), *kind_of(directory).make(directory))


class Kind(NamedTuple):
    """How the report of one kind of directory is made, as its numbers and its page, and how it is written."""

    make: Callable[..., tuple[dict, str]]
    write: Callable[..., dict]


def kind_of(directory) -> Kind:
    """What a directory holds; ``InputError`` if it is neither shards nor a run nor a search."""
    if is_shards(directory):
        return Kind(make_report, write_report)
    if is_search(located(directory)):
        return Kind(make_search_report, write_search_report)
    if is_run(directory):
        return Kind(make_run_report, write_run_report)
    place = located(directory)
    is_there = isinstance(place, Url) or os.path.isdir(place)
    problem = "holds neither shards nor a run of training nor a search" if is_there else "is not a directory"
    raise InputError(
        f"{directory} {problem}; name a directory that `dgl-gt partition --out`, `dgl-gt train --out` or `dgl-gt tune --out` wrote"
    )
