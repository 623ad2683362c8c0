"""Options that several verbs share, and what they stand for: ranks to run on, the shards that each rank loads, and settings."""

from __future__ import annotations

import argparse
import math
import re
import reprlib
from collections.abc import Iterable, Mapping

from dgl_gt.partition.command_options import size_in_bytes
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.profile import PRESETS
from dgl_gt.partition.figures.strategies import CHOICES, strategy_for
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import check_joined, read_manifest
from dgl_gt.partition.system.allocator import ALLOCATORS
from dgl_gt.partition.system.units import format_count
from dgl_gt.partition.system.yaml_file import check_keys, parse_yaml
from dgl_gt.train.config import CHOOSE_KIND, KINDS, PATHS, SECTIONS, SETTINGS, TrainConfig, read_config
from dgl_gt.tune.recipes import RECIPES, SIZES, settings_of

_MAX_NUMBERS = 1000  # in a list
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S = 30 * 86400
_LARGEST, _SMALLEST_FLOAT = 10**9, 1e-6  # allowed numbers of options, far beyond any use


def add_shard_options(command, optional: bool = False) -> None:
    """Add the options of a verb that runs on shards, one rank per part; ``optional`` where others may name the shards."""
    add = command.add_argument
    number = {"nargs": "?"} if optional else {}
    add("directory", metavar="DIR", help="shards made by `dgl-gt partition`", **number)
    text = "number of ranks to start on this machine (default: one per part); with fewer, a rank takes several parts"
    add("--nproc", type=int, metavar="P", help=text)
    add_timeout(command)
    text = f"memory allocator of the ranks: {', '.join(ALLOCATORS)} (default: auto, the first that is installed)"
    add("--allocator", metavar="NAME", default="auto", help=text)
    text = "compute while rows travel between ranks (default: yes)"
    add("--overlap", action=argparse.BooleanOptionalAction, default=True, help=text)
    text = "directory for the rows between layers, which then run one part after the other; see docs/spilling.md"
    add("--spill", metavar="DIR", help=text)
    text = (
        "how --spill keeps rows: fp32, or bf16, in smaller files, from which layers read rounded rows (default: fp32)"
    )
    add("--spill-dtype", metavar="NAME", help=text)
    add("--force", action="store_true", help="replace the output if it exists")
    add_json(command)


def add_strategy(command) -> None:
    """Add ``--strategy`` and ``--depth``, for a verb that takes no settings."""
    names = ", ".join(CHOICES)
    text = f"how rows travel between ranks: {names} (default: halo; mirror on vertex cuts)"
    command.add_argument("--strategy", metavar="NAME", help=text)
    text = "layers between two exchanges; more than 1 needs shards made with --halo-depth (default: 1)"
    command.add_argument("--depth", type=int, default=1, metavar="R", help=text)


def add_json(command) -> None:
    """Add ``--json``."""
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_timeout(command) -> None:
    """Add ``--timeout``."""
    text = "longest time that ranks wait for each other (default: no limit; after 60 s a message names the late rank)"
    command.add_argument("--timeout", type=positive_float, metavar="SECONDS", help=text)


def add_model_factory(command) -> None:
    """Add ``--model-factory``."""
    text = "your own model: a function of (in_dim, classes) that returns a torch.nn.Module; see docs/own_model.md"
    command.add_argument("--model-factory", metavar="MODULE:FUNCTION", help=text)


def add_selection_options(command) -> None:
    """Add the options that the choice of a strategy depends on."""
    add = command.add_argument
    add("--profile", metavar="FILE.yaml", help="hardware profile written by `dgl-gt calibrate`")
    add("--preset", metavar="NAME", help=f"hardware to assume without a profile: {', '.join(PRESETS)}")
    text = "memory per rank, such as 4GiB; candidates that need more are refused"
    add("--rank-memory", type=size_in_bytes, metavar="SIZE", help=text)
    add("--max-depth", type=positive_integer, metavar="R", help="largest halo depth to consider")


def run_on_parts(
    argv: list[str],
    directory: str,
    work,
    nproc: int | None = None,
    timeout: float | None = None,
    *,
    choice: tuple[str | None, int] | None = None,
    spills: bool = False,
    bounded: bool = False,
    **options,
):
    """Run ``work()`` on one rank per part of the shards; returns what :func:`dgl_gt.ranks.launch.run_on_ranks` returns.

    ``nproc`` is what the user asked for, and ``choice`` a strategy and depth that the shards must allow. Both are
    checked before ranks start. With ``spills``, a vertex cut runs as an edge cut, and memory is ``bounded``. Other options
    are those of that function.
    """
    from dgl_gt.ranks.launch import run_on_ranks

    options |= {"nproc": nproc, "timeout": timeout, "bounded": bounded or spills}
    return run_on_ranks(argv, lambda: _number_of_parts(directory, nproc, choice, spills), work, **options)


def _number_of_parts(directory: str, nproc: int | None, choice: tuple[str | None, int] | None, spills: bool) -> int:
    """The number of ranks to start."""
    manifest = read_manifest(directory)
    parts = manifest["parts"]
    if nproc is not None and nproc > parts:
        raise InputError(
            f"--nproc is {nproc} but {directory} has {format_count(parts, 'part')}; use at most --nproc {parts}, or "
            "partition the graph again"
        )
    if nproc not in (None, parts):
        check_joined(directory, manifest, nproc)
    elif choice and not (spills and manifest["cut"] == "vertex"):  # which then runs as an edge cut
        strategy_for(read_figures(manifest), *choice, directory)
    return nproc or parts


def load_shards(args, strategy: str | None, depth: int):
    """The :class:`dgl_gt.ShardedGraph` of this rank, loaded as the options say."""
    from dgl_gt import load

    dealt = getattr(args, "parts_per_rank", None)
    options = {"timeout_s": args.timeout, "overlap": args.overlap, "parts_per_rank": dealt}
    return load(args.directory, strategy, depth, **options, **spill_options(args))


def spill_options(args) -> dict:
    """The options of :func:`dgl_gt.load` for rows in files."""
    return {"spill": args.spill, "spill_dtype": args.spill_dtype or "fp32"}


def positive_integer(text: str) -> int:
    """Convert an option's text to an int from 1 to 1,000,000,000."""
    return whole_number(text, least=1)


def positive_integers(text: str) -> list[int]:
    """Convert an option's text of such numbers with commas to a list."""
    return [positive_integer(each) for each in text.split(",")]


def whole_number(text: str, least: int = 0) -> int:
    """Convert an option's text to an int from ``least`` to 1,000,000,000."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not least <= number <= _LARGEST:
        raise argparse.ArgumentTypeError(
            f"{reprlib.repr(text)} is not allowed; give a whole number from {least} to {_LARGEST:,}"
        )
    return number


def numbers(text: str) -> list[int]:
    """Convert an option's text such as ``0-3,7`` to whole numbers, each once, at most 1,000."""
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", piece)
        if not match or int(match[2] or match[1]) - int(match[1]) not in range(_MAX_NUMBERS):
            raise argparse.ArgumentTypeError(
                f"{reprlib.repr(text)} is not a list of numbers; write it as 0-9 or 0,2, with at most {_MAX_NUMBERS:,}"
            )
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(found) > _MAX_NUMBERS:
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} has more than {_MAX_NUMBERS:,} numbers; write fewer")
    return list(dict.fromkeys(found))


def positive_float(text: str) -> float:
    """Convert an option's text to a float from 1e-6 to 1e9."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not _SMALLEST_FLOAT <= number <= _LARGEST:
        raise argparse.ArgumentTypeError(
            f"{reprlib.repr(text)} is not allowed; give a number from {_SMALLEST_FLOAT:g} to {_LARGEST:g}"
        )
    return number


def duration(text: str) -> float:
    """Convert an option's text such as ``45m`` or ``2h`` to seconds, from 1 second to 30 days."""
    match = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)([smhd])", text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 1 <= seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write it as 90s, 45m or 2h, from 1 second to 30 days"
        )
    return seconds


_METAVARS = {int: "N", float: "X", str: "NAME"}
_METAVAR_OF = {
    "encodings": "NAME,...",
    "edge_features": "NAME[:number|:kind],...",
    "checkpoint_every": "N|TIME",
    "init": "DIR",
}


def add_settings(command, names: Iterable[str], defaults: Mapping[str, str] | None = None) -> None:
    """Add an option for each of these settings; one that is not given is None. ``defaults`` replace those of settings in the help."""
    for name in names:
        plain = type(SETTINGS[name][1].default)
        kind = {"type": plain, "metavar": _METAVAR_OF.get(name, _METAVARS.get(plain))}
        if plain is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        option = "--" + name.replace("_", "-")
        command.add_argument(option, dest=name, default=None, help=_help_of(name, (defaults or {}).get(name)), **kind)


def _help_of(name: str, default: str | None = None) -> str:
    """The text of a setting with its default, which may differ between the kinds of a section that have it."""
    section, each = SETTINGS[name]
    kinds = KINDS[section][1] if section in KINDS else {"": SECTIONS[section]}
    of_kinds = {key: getattr(kind, each.name) for key, kind in kinds.items() if hasattr(kind, each.name)}
    first, *others = of_kinds.items()
    if "default" in each.metadata["help"]:
        return each.metadata["help"]
    others = [] if (section, each.name) in CHOOSE_KIND else [(key, value) for key, value in others if value != first[1]]
    default = default or "; ".join([str(first[1]), *(f"{key}: {value}" for key, value in others)]) or "none"
    readers = f" for {' or '.join(of_kinds)};" if len(of_kinds) < len(kinds) else ""
    return f"{each.metadata['help']} ({readers} default: {default})".replace("( ", "(")


def add_config(command) -> None:
    """Add ``--config`` and ``--set``."""
    command.add_argument("--config", metavar="FILE", help="YAML file with settings; the options below override it")
    text = "a setting by its place in the file, such as model.hidden=256; may be repeated"
    command.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=text)


def config_of(args, names=None) -> TrainConfig:
    """The config that ``--model``, ``--config``, ``--set`` and the options of settings give; later ones override earlier ones."""
    given = given_settings(args, names)
    return read_config(args.config, **_recipe_of(args, given.get("epochs")) | given)


def add_recipe(command) -> None:
    """Add ``--model`` and ``--size``."""
    text = f"a published model with settings for a good first run: {', '.join(RECIPES)}; other options override these"
    command.add_argument("--model", metavar="NAME", dest="recipe", help=text)
    text = f"its width: {', '.join(SIZES)} (default: base)"
    command.add_argument("--size", metavar="NAME", help=text)


def _recipe_of(args, epochs: int | None = None) -> dict:
    """The settings of the recipe that ``--model`` names."""
    name, size = getattr(args, "recipe", None), getattr(args, "size", None)
    if name is None and size is not None:
        raise InputError(f"size is {size}, which is that of a recipe; name one with --model, or leave it out")
    if name is not None and args.config:
        raise InputError(f"--model {name} and --config {args.config} both say how to train; leave one of them out")
    return {} if name is None else settings_of(name, size or "base", epochs)


def given_settings(args, names=None) -> dict:
    """The settings that ``--set`` and the options of settings give, by their names alone; the latter win."""
    found = {}
    for text in args.set:
        path, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set is {text!r}; write it as KEY=VALUE, such as model.hidden=256")
        check_keys({path: None}, PATHS, "--set")
        found[PATHS[path]] = parse_yaml(value, f"--set {path}")
        if found[PATHS[path]] is None:
            raise InputError(
                f"--set is {text!r}, which gives no value; write it as KEY=VALUE, such as model.hidden=256"
            )
    given = {name: getattr(args, name) for name in (SETTINGS if names is None else names)}
    return found | {name: value for name, value in given.items() if value is not None}
