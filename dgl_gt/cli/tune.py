"""``dgl-gt tune``."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec

from dgl_gt import __version__
from dgl_gt.partition.command_options import show_at_first
from dgl_gt.partition.console import table
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.memory import available_cpus
from dgl_gt.partition.system.output_checks import check_target
from dgl_gt.partition.system.storage import Url, located
from dgl_gt.partition.system.units import format_count
from dgl_gt.run_files.search_files import FOUND, PAGE, SearchRecord, is_search, read_record, read_trials, write_record
from dgl_gt.train.config import SETTINGS
from dgl_gt.train.metric_kinds import shown_metric
from dgl_gt.tune.recipes import RECIPES

from .options import add_json, add_settings, duration, given_settings, positive_integer, whole_number

_COMMON = (  # options that --help shows; --help-all shows all
    *("budget", "out", "models", "ranks", "jobs", "trials", "seed", "resume", "force", "set", "json"),
    *("task", "label", "metric", "split", "type", "relation", "edge_features"),
)
_MOST_TRIALS = 150  # by then the best of many is rather lucky than good


def add_commands(commands) -> None:
    """Add ``tune`` to an argparse subparsers object."""
    command = commands.add_parser(
        "tune",
        usage="dgl-gt tune SHARDS --budget 45m --out DIR [options]",
        help="search for a good model within a time",
        description="Try recipes of published models with settings that their authors found to matter, choose by the "
        "validation metric, and write the best model and its config. Needs the extra 'tune'; see docs/cli.md.",
    )
    add = command.add_argument
    add("directory", metavar="SHARDS", help="shards made by `dgl-gt partition`")
    add("--budget", type=duration, required=True, metavar="TIME", help="time of the whole search, such as 45m or 2h")
    add(
        "--out",
        required=True,
        metavar="DIR",
        help="directory of the search: the best model, its config, trials, a page",
    )
    text = f"recipes to try, with commas (default: all that fit the graph and the task): {', '.join(RECIPES)}"
    add("--models", type=lambda text: text.split(","), metavar="NAME,...", help=text)
    text = "ranks that train a model together: the number of parts (default)"
    add("--ranks", type=positive_integer, metavar="P", help=text)
    text = "models that train at the same time (default: processors / ranks; 1 on a GPU)"
    add("--jobs", type=positive_integer, metavar="N", help=text)
    text = f"most trials (default: {_MOST_TRIALS}); with enough time for them, the same command finds the same model"
    add("--trials", type=positive_integer, default=_MOST_TRIALS, metavar="N", help=text)
    add(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="seed of what is tried, and of the last runs (default: 0)",
    )
    add("--resume", action="store_true", help="go on with the search in --out")
    add("--force", action="store_true", help="replace the search in --out")
    text = (
        "a setting that is not searched, by its place in a config file, such as task.metric=f1_micro; may be repeated"
    )
    add("--set", metavar="KEY=VALUE", action="append", default=[], help=text)
    names = [name for name, (section, _) in SETTINGS.items() if section == "task"]
    of_shards = {"task": "link_prediction of links that were split off, or else by the kind of labels"}
    add_settings(command.add_argument_group("what is learned"), names, of_shards)
    add_json(command)
    show_at_first(command, _COMMON)
    command.set_defaults(command=_tune, config=None)


def _tune(args):
    from dgl_gt.tune.crew import WorkerFailed
    from dgl_gt.tune.spaces import given_settings as checked
    from dgl_gt.tune.spaces import spaces_for

    if "RANK" in os.environ:
        raise InputError("RANK is set in the environment, and tune starts ranks by itself; start it without torchrun")
    manifest = read_manifest(args.directory)
    values = given_settings(args, [name for name in SETTINGS if hasattr(args, name) and name != "seed"])
    given = checked(values, manifest)
    ranks = manifest["parts"]
    if args.ranks not in (None, ranks):
        raise InputError(
            f"--ranks is {args.ranks} but {args.directory} has {format_count(ranks, 'part')}; use --ranks {ranks}, or partition "
            "the graph again"
        )
    if "task" not in values:
        text = f"the task is {given['task']}, by what the shards hold; --task NAME is for another"
        print(f"dgl-gt: {text}", file=sys.stderr)
    spaces, refused = spaces_for(manifest, given, args.models)
    out = located(args.out)
    if isinstance(out, Url):
        raise InputError(f"--out is {args.out}; a search needs a directory on this machine")
    asked = {
        "dgl_gt": __version__,
        "graph": {key: manifest[key] for key in ("source", "cut", "nodes", "edges", "checksum")},
        "given": given,
        "models": list(spaces),
        "seed": args.seed,
        "ranks": ranks,
    }
    earlier = _earlier(args, out, asked)
    for name, why in {} if earlier else refused.items():
        print(f"dgl-gt: {name} is left out: {why}", file=sys.stderr)
    try:
        record = _search(args, out, asked, spaces, earlier)
    except KeyboardInterrupt:
        _say_how_to_go_on(out)
        raise
    except WorkerFailed as failed:
        print(f"dgl-gt: {failed}", file=sys.stderr)
        _say_how_to_go_on(out)
        return failed.code
    return _result(args, out, record)


def _say_how_to_go_on(out: Path) -> None:
    if is_search(out):
        print(f"dgl-gt: what has been found is in {out}; --resume goes on with it", file=sys.stderr)


def _earlier(args, out: Path, asked: dict) -> SearchRecord | None:
    """The record of the search that goes on; the directory is checked, and cleared where it is replaced."""
    if args.resume and args.force:
        raise InputError("--resume goes on with the search in --out, and --force replaces it; leave one of them out")
    if not args.resume:
        check_target(out, FOUND, force=args.force)
        return None
    if not is_search(out):
        raise InputError(f"{out} holds no search to go on with; leave --resume out")
    earlier = read_record(out)
    if earlier.finished:
        raise InputError(f"the search in {out} has ended; leave --resume out, and choose another --out or --force")
    for key, value in asked.items():
        theirs = getattr(earlier, key)
        if theirs != value:
            what = {"graph": "of other data", "dgl_gt": "by another version"}.get(key, f"with another {key}")
            raise InputError(
                f"{out} holds a search {what}: {key} was {_shown(theirs)}, and is {_shown(value)}; give the same, or begin "
                "anew with --force"
            )
    earlier.most_trials, earlier.budget_s = args.trials, args.budget
    return earlier


def _shown(value) -> str:
    return ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)


def _search(args, out: Path, asked: dict, spaces, earlier: SearchRecord | None) -> SearchRecord:
    """Search; returns the record, which is on the disk, as is the best model."""
    from dgl_gt.partition.errors import import_optional
    from dgl_gt.report.search_report import write_search_report
    from dgl_gt.tune.crew import Worker
    from dgl_gt.tune.finals import Finals
    from dgl_gt.tune.search import Clock, Crew, Search, check_found

    import_optional("optuna", "dgl-gt tune", "pip install 'dgl-gt[tune]'")
    clock = Clock(args.budget, max((each.at_s for each in read_trials(out)), default=0.0) if earlier else 0.0)
    jobs = args.jobs or (earlier.jobs if earlier else None)
    most = max(1, available_cpus() // asked["ranks"])
    with Crew(lambda jobs: Worker(args.directory, asked["ranks"], asked["given"], jobs), jobs, most, clock) as crew:
        hello = crew.hello
        record = earlier or SearchRecord(
            **asked,
            jobs=crew.jobs,
            budget_s=args.budget,
            most_trials=args.trials,
            metric=hello.metric,
            lower_is_better=hello.lower_is_better,
            splits=hello.splits,
            rows=hello.rows,
        )
        if not earlier and out.exists() and args.force:
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
        write_record(out, record)
        search = Search(out, record, spaces, crew, clock)
        crew.show(list(search.results.values()))
        search.run()
        try:
            check_found(search.results, clock)
        except InputError:
            shutil.rmtree(out)
            raise
        finals = Finals(out, record, search, crew, clock)
        chosen = finals.choose()
        finals.report(chosen)
        record.trials, record.finished, record.used_s = len(search.results), True, round(clock.elapsed_s, 1)
        record.importances = search.proposals.importances(chosen.model, search.results)
    write_record(out, record)
    write_search_report(out, out / PAGE, force=True)
    return record


def _result(args, out: Path, record: SearchRecord) -> tuple[dict[str, Any], str]:
    kind = shown_metric(record.metric)
    best = next(each for each in read_trials(out) if each.number == record.best)
    tests, validations = [each.test for each in record.runs], [each.validation for each in record.runs]

    def spread(values: list[float]) -> str:
        deviation = f" ± {kind.text(statistics.stdev(values))}" if len(values) > 1 else ""
        return kind.text(statistics.fmean(values)) + deviation

    splits = len({each.split for each in record.runs})
    of_runs = format_count(len(record.runs), "run") + (f" on {splits} splits" if splits > 1 else " with other seeds")
    rows = [
        ("model", f"{best.model}, {RECIPES[best.model].title}"),
        (f"test {kind.title}", f"{spread(tests)}, {of_runs}"),
        (f"validation {kind.title}", spread(validations)),
        (
            "chosen among",
            f"{format_count(record.trials, 'trial')} by validation, {len(record.finalists)} of them with more seeds",
        ),
        *((name, value) for name, value in best.settings.items()),
    ]
    text = f"{table(['result', ''], rows, (0, 1))}\n\nwrote {args.out} in {record.used_s:.0f} s; see {out / PAGE}"
    return msgspec.to_builtins(record) | {"model": best.model, "settings": best.settings}, text
