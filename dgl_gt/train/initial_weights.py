"""The weights of a model that was trained before, as the start of another run."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from dgl_gt.partition.errors import InputError

from .config import SETTINGS, TrainConfig
from .task_settings import TaskConfig

_HEAD = ("output.", "global_output.", "around scorer.")  # of models of dgl-gt, in the names of :func:`_keys`
_READ = ("normalize_features", "encodings", "edge_features", "node_embedding")
_MAY_DIFFER = ("output",)  # and all rates of dropout


def start_from(model: nn.Module, config: TrainConfig, values: dict, state: dict[str, Tensor], is_ours: bool) -> str:
    """Give a new model the weights of ``config.init``; with ``config.frozen`` these are not trained. Says what is new.

    ``values`` and ``state`` are what :func:`dgl_gt.train.saved_model.read_model` gives of it; every rank calls this. The
    head, which is what comes after the rows of nodes, starts anew unless all of it fits, and is trained. In a model of a
    factory, ``is_ours`` is false, and what has no weights of its name and shape is the head.

    Raises
    ------
    InputError
        The settings of that model are others, its tensors have other shapes, or nothing is left to train.
    """
    try:
        before = TrainConfig().changed(**values["config"])
    except InputError as error:
        raise InputError(
            f"init is {config.init}, which is from another version of dgl-gt ({error}); train it again"
        ) from error
    if is_ours:
        _check_settings(config, before)
    given = {key: state[name] for name, key in _keys(state, before.task).items()}
    mine = model.state_dict()
    keys = _keys(mine, config.task)
    fits = {name for name, key in keys.items() if key in given and given[key].shape == mine[name].shape}
    head = {name for name, key in keys.items() if key.startswith(_HEAD)} if is_ours else mine.keys() - fits
    wrong = sorted(mine.keys() - head - fits) if fits else sorted(mine)
    if wrong:
        had = given.get(keys[wrong[0]])
        raise InputError(
            f"init is {config.init}, in which {wrong[0]} {'does not exist' if had is None else f'has shape {tuple(had.shape)}'}, and the "
            f"new model needs {tuple(mine[wrong[0]].shape)}; start from the same kind of model, trained on features of the same width"
        )
    new = set() if head <= fits else head
    model.load_state_dict({name: value if name in new else given[keys[name]] for name, value in mine.items()})
    if config.frozen:
        for name, parameter in model.named_parameters():
            if name not in head:
                parameter.requires_grad_(False)
        if not any(each.requires_grad for each in model.parameters()):
            raise InputError(f"frozen is true, and all weights of the model are those of {config.init}; leave it out")
    but = f" but {', '.join(sorted(new))}" if new else ""
    trained = f"; {', '.join(sorted(head))} alone are trained" if config.frozen else ""
    return f"started with the weights of {config.init}: all{but}{trained}"


def _keys(names: Iterable[str], task: TaskConfig) -> dict[str, str]:
    """By the name of a tensor one that does not depend on the task: which models are around that of nodes."""
    inner = "nodes." * (bool(task.pair_scorer) + bool(task.node_embedding))  # see build_model
    outer = {name: f"around {name.removeprefix('nodes.')}" for name in names if not name.startswith(inner)}
    return {name: outer.get(name, name.removeprefix(inner)) for name in names}


def _check_settings(config: TrainConfig, before: TrainConfig) -> None:
    """Raise :class:`InputError` that names the first setting on which weights depend and that differs."""
    earlier = before.flat()
    for name, value in config.flat().items():
        is_read = SETTINGS[name][0] == "model" and "dropout" not in name and name not in _MAY_DIFFER or name in _READ
        if is_read and earlier.get(name) != value:
            raise InputError(
                f"init is {config.init}, whose {name} is {earlier.get(name)!r}, and this run's is {value!r}; they must be the same: "
                f"give --set {SETTINGS[name][0]}.{name}={earlier.get(name)}"
            )
