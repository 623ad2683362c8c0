"""The report of a search: one page that needs nothing else, and its numbers as JSON beside it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dgl_gt.partition.report import pages
from dgl_gt.partition.report.pages import bar
from dgl_gt.partition.system.storage import located
from dgl_gt.run_files.search_files import TrialLine, in_words, ranked, read_record, read_trials
from dgl_gt.train.metric_kinds import shown_metric

from . import pictures

_CURVES = 6


def write_search_report(directory, out, *, force: bool = False) -> dict:
    """Write the report of a search that has ended or still goes on; return its numbers, see docs/cli.md.

    Raises
    ------
    InputError
        A file of the search is damaged; or ``out`` does not end in .html, exists or cannot be written.
    """
    targets = pages.check_targets(out, force=force)
    numbers, text = make_search_report(directory)
    pages.write_both(targets, text, numbers, force=force)
    return numbers


def make_search_report(directory) -> tuple[dict, str]:
    """The numbers of a search, and their page."""
    folder = Path(located(directory))
    record, trials = read_record(folder), read_trials(folder)
    numbers = {
        "search": folder.resolve().name,
        **msgspec.to_builtins(record),
        "trials": [msgspec.to_builtins(each) for each in trials],
    }
    tests = [each.test for each in record.runs]
    if tests:
        deviation = statistics.stdev(tests) if len(tests) > 1 else 0.0
        numbers["test"] = {"mean": statistics.fmean(tests), "deviation": deviation}
    return numbers, _page(numbers, trials)


def _page(numbers: dict, trials: list[TrialLine]) -> str:
    kind = shown_metric(numbers["metric"])
    metric_text = pictures.exact_share if kind.is_share else pictures.plain
    ordered = ranked(trials, numbers["lower_is_better"])
    ordered += [each for each in trials if each.value is None]
    drawn = [each for each in ordered if each.curve][:_CURVES]
    curves = {f"next{place}" if place else "test": each.curve for place, each in enumerate(drawn)}
    environment = pages.make_environment(Path(__file__).parent)
    environment.filters |= {"metric_text": metric_text}
    return environment.get_template("search_page.html.j2").render(
        numbers,
        chosen=next((each for each in trials if each.number == numbers["best"]), None),
        ordered=[msgspec.to_builtins(each) | {"words": in_words(each.settings)} for each in ordered],
        so_far=_best_so_far(trials, numbers["lower_is_better"]),
        curves=dict(reversed(curves.items())),  # the best is drawn last, on top
        best_title=f"trial {drawn[0].number}, {drawn[0].model}" if drawn else "",
        metric_name=kind.title,
        metric_text=metric_text,
        metric_tick=pictures.share if kind.is_share else pictures.plain,
        pictures=pictures,
        bar=bar,
    )


def _best_so_far(trials: Sequence[TrialLine], lower_is_better: bool) -> list:
    choose = min if lower_is_better else max
    found: list[list] = []
    for each in trials:
        if each.value is not None:
            found.append([len(found), choose([value for _, value in found[-1:]] + [each.value])])
    return found
