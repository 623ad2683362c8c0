"""Writes the report of a run: one page that needs nothing else, and its numbers as JSON beside it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.report import pages
from dgl_gt.partition.report.pages import percent
from dgl_gt.partition.report.pictures import bar
from dgl_gt.train.config import METRIC_TITLES, TrainConfig, by_path

from . import pictures
from .numbers import run_numbers
from .run_files import RunFiles, read_run


def write_run_report(directory, out, *, force: bool = False) -> dict:
    """Write the report of a run: a page, and its numbers.

    Parameters
    ----------
    directory : path
        A directory that ``dgl-gt train --out`` wrote. The run may have finished, still go on, or have been interrupted.
    out : path
        The page, ``NAME.html``, outside of that directory. Its numbers are written beside it as ``NAME.json``.
    force : bool
        Whether to replace these files where they exist.

    Returns
    -------
    dict
        The numbers, see :func:`dgl_gt.report.numbers.run_numbers`.

    Raises
    ------
    InputError
        A file of the run is damaged; or ``out`` does not end in .html, is in the directory of the run, exists or cannot
        be written.
    """
    page, of_run = Path(out), Path(os.path.realpath(directory))
    for path in (page, page.parent / f"{page.stem}.json"):
        if of_run in Path(os.path.realpath(path)).parents:
            raise InputError(
                f"{path} would be in the directory of the run, which --force replaces only while it holds nothing else; "
                "choose another place"
            )
    targets = pages.check_targets(out, force=force)
    run = read_run(directory)
    numbers = run_numbers(run)
    pages.write_both(targets, run_page(run, numbers), numbers, force=force)
    return numbers


def run_page(run: RunFiles, numbers: dict) -> str:
    """Return the page as HTML; ``numbers`` are those of :func:`.numbers.run_numbers`."""
    environment = pages.make_environment(Path(__file__).parent)
    environment.filters |= {"metric_text": pictures.metric_text, "plain": pictures.plain}
    name = numbers["metric"]["name"]
    return environment.get_template("run_page.html.j2").render(
        numbers,
        metric_name=METRIC_TITLES.get(name, name) or "metric",
        settings_changed=_settings(numbers["settings"], changed=True),
        settings_default=_settings(numbers["settings"], changed=False),
        chart=pictures.chart,
        plain=pictures.plain,
        share=pictures.share,
        metric_text=pictures.metric_text,
        percent=percent,
        bar=bar,
        timeline=pictures.timeline_bars(run.step.ranks) if run.step else [],
        most_ranks=pictures.MAX_RANKS,
    )


def _settings(settings: dict, changed: bool) -> list[tuple[str, object]]:
    """The settings that differ from their defaults, or those that do not."""
    defaults = by_path(asdict(TrainConfig()))
    return [
        (name, value)
        for name, value in settings.items()
        if (name not in defaults or value != defaults[name]) == changed
    ]
