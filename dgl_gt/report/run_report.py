"""The report of a run: one page that needs nothing else, and its numbers as JSON beside it.

Any file of the run may be missing: the run may have just begun, or been interrupted.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median

import msgspec

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.report import pages
from dgl_gt.partition.report.pages import bar, percent
from dgl_gt.partition.system.storage import Url, is_file, located
from dgl_gt.partition.system.user_files import reading, regular_file
from dgl_gt.partition.system.yaml_file import read_yaml
from dgl_gt.run_files.run_directory import CONFIG, METRICS_FILE, RECORD, STEP_TIMELINE, checkpoints_in
from dgl_gt.run_files.run_record import EpochNumbers, Metric, RunRecord, StepTimeline, compared, read_json
from dgl_gt.train.config import TrainConfig, by_path
from dgl_gt.train.metric_kinds import shown_metric

from . import pictures

MAX_POINTS = 1000  # of a curve
_CURVES = ("loss", "validation", "test", "lr", "nodes_per_s", "exchange_share")
_MAX_PARTS = 12  # of the step, in the table of where its time goes
_LONGEST_LINE = 1 << 20  # one number for each of ten thousand ranks takes a quarter of it
_ADVICE = "move it away to see the report without it"


def write_run_report(directory, out, *, force: bool = False) -> dict:
    """Write the report of a run that finished, still goes on or was interrupted; return its numbers, see docs/cli.md.

    The page is ``out``, ``NAME.html``, outside of the directory of the run, and its numbers are ``NAME.json`` beside it.
    ``force`` replaces these files.

    Raises
    ------
    InputError
        A file of the run is damaged; or ``out`` does not end in .html, is in the directory of the run, exists or cannot
        be written.
    """
    page, of_run = located(out), Path(os.path.realpath(located(directory)))
    for path in (page, page.with_suffix(".json")):
        if of_run in Path(os.path.realpath(path)).parents:
            raise InputError(
                f"{path} would be in the directory of the run, which --force replaces only while it holds nothing else; "
                "choose another place"
            )
    targets = pages.check_targets(out, force=force)
    numbers, text = make_run_report(directory)
    pages.write_both(targets, text, numbers, force=force)
    return numbers


def make_run_report(directory) -> tuple[dict, str]:
    """The numbers of a run, and their page."""
    run = read_run(directory)
    numbers = _numbers(run)
    return numbers, _page(run, numbers)


def _page(run: RunFiles, numbers: dict) -> str:
    """The page as HTML."""
    environment = pages.make_environment(Path(__file__).parent)
    name = numbers["metric"]["name"]
    kind = shown_metric(name or "metric")
    is_share = kind.is_share or name is None
    metric_text = pictures.exact_share if is_share else pictures.plain
    environment.filters |= {"metric_text": metric_text, "plain": pictures.plain}
    return environment.get_template("run_page.html.j2").render(
        numbers,
        metric_name=kind.title,
        metric_text=metric_text,
        metric_tick=pictures.share if is_share else pictures.plain,
        shown_settings=_settings(numbers["settings"]),
        pictures=pictures,
        percent=percent,
        bar=bar,
        timeline=pictures.timeline_bars(run.step.ranks) if run.step else [],
        most_ranks=pictures.MAX_RANKS,
    )


def _settings(settings: dict) -> list[list[tuple[str, object]]]:
    """The settings that differ from their defaults, and those that do not."""
    defaults = by_path(asdict(TrainConfig()))
    found: list[list[tuple[str, object]]] = [[], []]
    for name, value in settings.items():
        found[name in defaults and value == defaults[name]].append((name, value))
    return found


# ---- files ----


class RunFiles(msgspec.Struct):
    """What a run left in its directory; None or empty where a file is missing."""

    directory: Path | Url
    record: RunRecord | None
    epochs: list[EpochNumbers]
    settings: dict
    step: StepTimeline | None
    checkpoints: list[int]  # epochs before each of them, in ascending order


def is_run(directory) -> bool:
    """Whether a directory holds a run of ``dgl-gt train --out``, or what an interrupted one left."""
    folder = located(directory)
    if isinstance(folder, Path) and not os.path.isdir(folder):
        return False
    with reading(folder):
        return any(is_file(folder / name) for name in (RECORD, METRICS_FILE)) or bool(checkpoints_in(folder))


def read_run(directory) -> RunFiles:
    """Read the directory of a run; :class:`InputError` names a file that is damaged, and the line of ``metrics.jsonl``."""
    folder = located(directory)
    settings = by_path(read_yaml(folder / CONFIG)) if is_file(folder / CONFIG) else {}
    return RunFiles(
        folder,
        _read_if_there(folder / RECORD, RunRecord),
        list(_read_epochs(folder / METRICS_FILE)) if is_file(folder / METRICS_FILE) else [],
        settings,
        _read_if_there(folder / STEP_TIMELINE, StepTimeline),
        sorted(int(re.sub(r"\D", "", each.name)) for each in checkpoints_in(folder)),
    )


def _read_if_there(path: Path | Url, kind):
    return read_json(path, kind, _ADVICE) if is_file(path) else None


def _read_epochs(path: Path | Url) -> Iterator[EpochNumbers]:
    """Yield the epochs. The last line may lack its end: the run may be writing it."""
    decoder, last = msgspec.json.Decoder(EpochNumbers), 0
    with reading(path), regular_file(path).open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                return
            try:
                epoch = decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise _damaged(path, number, str(error)) from None
            if epoch.epoch <= last:
                raise _damaged(path, number, f"epoch {epoch.epoch} comes after epoch {last}")
            last = epoch.epoch
            yield epoch


def _damaged(path: Path | Url, line: int, problem: str) -> InputError:
    return InputError(
        f"{path}, line {line}: {problem}; each line must be a JSON object as dgl-gt train writes it: remove this line, or "
        "move the file away to see the report without curves"
    )


# ---- numbers ----


def _numbers(run: RunFiles) -> dict:
    """The numbers that the report shows, as values that JSON can hold."""
    record, epochs = run.record, run.epochs
    finished = record is not None and record.finished
    planned = run.settings.get("epochs")
    done = epochs[-1].epoch if epochs else len(record.losses) if record else max(run.checkpoints, default=0)
    return {
        "run": (run.directory.resolve() if isinstance(run.directory, Path) else run.directory).name,
        "finished": finished,
        "graph": msgspec.to_builtins(record.graph) if record else None,
        "ranks": record.ranks if record else len(epochs[-1].peak_memory_bytes) if epochs else None,
        "strategy": record.strategy if record else None,
        "depth": record.depth if record else None,
        "epochs": done,
        "planned_epochs": planned if type(planned) is int and planned >= 0 else None,
        **_best(run),
        **_measured(run),
        "policy": msgspec.to_builtins(record.policy) if record and record.policy else None,
        "curves": _curves(run),
        "checkpoints": run.checkpoints,
        "prediction": compared(record, run.directory / RECORD) if finished and record.plan else None,
        "step": _step(run.step) if run.step else None,
        "settings": {str(name): _plain(value) for name, value in run.settings.items()},
    }


def _plain(value):
    """A setting as JSON can hold it: a number or a truth value, or else text."""
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if value is None or is_number else str(value)


def _curves(run: RunFiles) -> dict[str, list]:
    if run.epochs:
        return {name: thinned((each.epoch, getattr(each, name)) for each in run.epochs) for name in _CURVES}
    return {"loss": thinned(enumerate(run.record.losses, start=1))} if run.record else {}


def _best(run: RunFiles) -> dict:
    """The epoch that validated best, and its metrics: the record of an unfinished run may be older than its epochs."""
    record = run.record
    name = record.metric.name if record else None
    evaluated = [each for each in run.epochs if each.validation is not None]
    if evaluated and not (record and record.finished):
        choose = min if record and record.metric.lower_is_better else max
        best = choose(evaluated, key=attrgetter("validation"))  # the first of equals, as the trainer keeps
        found = Metric(name, best.validation, best.test, bool(record and record.metric.lower_is_better))
        return {"best_epoch": best.epoch, "metric": msgspec.to_builtins(found)}
    if record and record.best_epoch:
        return {"best_epoch": record.best_epoch, "metric": msgspec.to_builtins(record.metric)}
    return {"best_epoch": None, "metric": {"name": name, "validation": None, "test": None, "lower_is_better": False}}


def _measured(run: RunFiles) -> dict:
    """Medians over epochs, the share of all steps, and the largest memory; those of the record where it has them."""
    epochs = run.epochs
    seconds = sum(each.seconds for each in epochs)
    found = {
        "seconds_per_epoch": _median(each.seconds for each in epochs),
        "nodes_per_s": _median(each.nodes_per_s for each in epochs),
        "edges_per_s": _median(each.edges_per_s for each in epochs),
        "exchange_share": sum(each.exchange_share * each.seconds for each in epochs) / seconds if seconds else None,
        "exchanged_bytes_per_epoch": round(fmean(each.exchanged_bytes for each in epochs)) if epochs else None,
        "peak_memory_bytes": epochs[-1].peak_memory_bytes if epochs else [],
    }
    for name in found if run.record else ():
        if value := getattr(run.record, name, None):
            found[name] = value
    return found


def _median(values: Iterable[float]) -> float | None:
    values = list(values)
    return median(values) if values else None


def thinned(points: Iterable[tuple[int, float | None]]) -> list[list]:
    """At most :data:`MAX_POINTS` points of a curve, ``[epoch, value]``; peaks stay, and so do the first and the last.

    Epochs without a value are left out.
    """
    there = [[epoch, value] for epoch, value in points if value is not None]
    if len(there) <= MAX_POINTS:
        return there
    inner, kept = there[1:-1], [there[0]]
    length = math.ceil(len(inner) / ((MAX_POINTS - 2) // 2))
    for start in range(0, len(inner), length):
        piece = inner[start : start + length]
        ends = [min(piece, key=lambda each: each[1]), max(piece, key=lambda each: each[1])]
        kept += sorted(ends) if ends[0] != ends[1] else ends[:1]
    return [*kept, there[-1]]


def _step(step: StepTimeline) -> dict:
    """A profiled step without its spans: the seconds of each rank, and of the parts that take the most, mean over ranks."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for rank in step.ranks:
        for span in rank.spans:
            sums[span.name, span.kind] += (span.end - span.start) / len(step.ranks)
    longest = sorted(sums.items(), key=lambda item: -item[1])[:_MAX_PARTS]
    names = ("seconds", "compute_s", "exchange_s", "wait_s", "file_s")
    return {
        "epoch": step.epoch,
        "strategy": step.strategy,
        "ranks": [{name: getattr(rank, name) for name in names} for rank in step.ranks],
        "longest": [{"name": name, "kind": kind, "seconds": seconds} for (name, kind), seconds in longest],
    }
