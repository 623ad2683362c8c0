"""Which recipes fit shards and a task, and what a search may change of each."""

from __future__ import annotations

from typing import Any

from dgl_gt.partition.errors import InputError, check_one_of
from dgl_gt.partition.figures.figures import TypedWidths
from dgl_gt.partition.graph import SPLIT_MASKS
from dgl_gt.partition.shards.counts import read_figures, read_schema
from dgl_gt.partition.transforms.exphormer import EDGE_KIND
from dgl_gt.train.config import SETTINGS, TrainConfig
from dgl_gt.train.task_settings import TaskConfig

from .proposals import Space
from .recipes import OF_TASKS, RECIPES, Choice, Recipe, in_epochs
from .search import fixed_settings

_TRAINED_ROWS = Choice((64, 128, 256), 128)  # where nodes have no features
_ROWS_OF_SOME = Choice((0, 64), 64)  # of the types without features: the number of edges of each, or a row
_OF_FEATURES = "normalize_features", "input_dropout"  # not of trained rows


def spaces_for(
    manifest: dict, given: dict[str, Any], models: list[str] | None
) -> tuple[dict[str, Space], dict[str, str]]:
    """The spaces of the recipes that fit, by name, and why others for graphs with types, or without, do not.

    Parameters
    ----------
    manifest : dict
        Of the shards.
    given : dict
        The user's settings, which no space has.
    models : list of str, optional
        Recipes to try; by default all that fit.

    Raises
    ------
    InputError
        There is no such recipe, one that was named does not fit, or none does.
    """
    for name in models or ():
        check_one_of("models", name, tuple(RECIPES))
    spaces, refused = {}, {}
    kind = (manifest["schema"] is not None), _task(given).kind
    for name in models or [name for name, recipe in RECIPES.items() if recipe.fits(*kind)]:
        try:
            spaces[name] = _space(name, RECIPES[name], manifest, given)
        except InputError as error:
            if models:
                raise InputError(f"models has {name!r}, which does not fit: {error}") from None
            refused[name] = str(error)
    if not spaces:
        raise InputError(f"no recipe fits; {next(iter(refused))} for one: {next(iter(refused.values()))}")
    return spaces, refused


def _space(name: str, recipe: Recipe, manifest: dict, given: dict[str, Any]) -> Space:
    """The space of a recipe on these shards; ``InputError`` says why it does not fit."""
    is_typed = manifest["schema"] is not None
    task = _task(given)
    if recipe.typed != is_typed:
        fitting = ", ".join(each for each, its in RECIPES.items() if its.fits(is_typed, task.kind))
        raise InputError(
            f"{manifest['source']} {'has types' if is_typed else 'has one type'} of nodes and edges; choose from {fitting}"
        )
    if not recipe.fits(is_typed, task.kind):
        raise InputError(
            f"it is for the task {recipe.fixed['task']}, and the task is {task.kind}; name another recipe, or give that task"
        )
    if recipe.encodings and recipe.encodings not in manifest["encodings"]:
        raise InputError(f"it reads the encoding {recipe.encodings}; partition with --encode {recipe.encodings}=...")
    space = OF_TASKS.get(task.kind, {}) | recipe.space
    space |= {"epochs": Choice((recipe.epochs, 2 * recipe.epochs), recipe.epochs)}
    features, encodings = read_figures(manifest).features, recipe.encodings or task.encodings
    widths = features.as_dict().values() if isinstance(features, TypedWidths) else [features]
    if not is_typed:
        space |= _of_features(name, manifest, task)
    elif {0} < set(widths) and not encodings:
        space |= {"node_embedding": _ROWS_OF_SOME}  # where no type has features, all have rows
    if not any(widths) and not encodings and "encodings" not in space:
        space = {key: each for key, each in space.items() if key not in _OF_FEATURES}
    found = {key: each for key, each in space.items() if key not in given}
    for size in (min, max):  # where they contradict the user's settings, that shows at the ends or nowhere
        ends = {key: _end(each, size) for key, each in found.items()}
        TrainConfig().changed(**in_epochs(fixed_settings(name) | ends | given, recipe.epochs))
    return found


def _of_features(name: str, manifest: dict, task: TaskConfig) -> Space:
    """What a recipe reads besides features: encodings and edge data that are stored, and trained rows where nodes have none.

    Edge data of whole numbers, other than this package's, may be ids or times, and are left to the user.
    """
    learned = {"label", *SPLIT_MASKS, *task.edge_data}
    ours = {EDGE_KIND, *manifest["encodings"]}
    stored = {
        "encodings": [each for each in manifest["encodings"] if each in manifest["node_data"]],
        "edge_features": [
            each
            for each, column in manifest["edge_data"].items()
            if each not in learned and (each in ours or "float" in column["dtype"])
        ],
    }
    found = {key: ",".join(names) for key, names in stored.items() if name == "gt" and names}
    space = {key: Choice(("", names), names) for key, names in found.items()}
    has_rows = read_figures(manifest).features or task.encodings
    return space if has_rows else space | {"node_embedding": _TRAINED_ROWS}


def _end(each, size) -> Any:
    if isinstance(each, Choice):
        return each.values[0 if size is min else -1]
    return each.least if size is min else each.most


def given_settings(values: dict[str, Any], manifest: dict) -> dict[str, Any]:
    """Settings of the user's, and the task by what the shards hold; ``InputError`` for what the search itself decides."""
    for name in ("architecture", "seed", "local_epochs"):
        if name in values:
            section = SETTINGS[name][0]
            advice = {"architecture": "name recipes with --models", "seed": "give --seed"}.get(name, "leave it out")
            raise InputError(
                f"{f'{section}.' if section else ''}{name} is {values[name]!r}, which the search chooses; {advice}"
            )
    return values if "task" in values else {"task": likely_task(manifest, values)} | values


def likely_task(manifest: dict, given: dict[str, Any]) -> str:
    """What a user of these shards wants to learn: their links, or else their labels, by the kind of these.

    It is the first that reads all settings of the user's: with a label there are no links, and with ``metric rmse`` no classes.
    """
    kinds = ["link_prediction"] if manifest["links"] else []
    schema, label = read_schema(manifest), given.get("label", "label")
    owner = given.get("type", "")
    if schema and "relation" in given:
        owner = str(schema.relations[schema.relation(str(given["relation"]))])
    for each in ("node", "edge"):
        for name, column in manifest[f"{each}_data"].items():
            if name == f"{owner}/{label}" or not owner and name.rpartition("/")[2] == label:
                is_whole = "float" not in column["dtype"]
                kinds += [f"{each}_{'multilabel' if column['shape'] else 'classification'}"] * is_whole
                kinds += [f"{each}_regression"]
    for kind in kinds:
        try:
            return _task({"task": kind} | given).kind
        except InputError:
            continue
    return kinds[0] if kinds else TrainConfig().task.kind  # whose error says what is wrong


def _task(given: dict[str, Any]) -> TaskConfig:
    """The task; a user's settings of models fit some recipes alone."""
    return TrainConfig().changed(**{key: value for key, value in given.items() if SETTINGS[key][0] == "task"}).task
