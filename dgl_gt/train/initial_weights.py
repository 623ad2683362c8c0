"""The weights of a model that was trained before, as the start of another run."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from dgl_gt.partition.errors import InputError

from .config import SETTINGS, TrainConfig

_AROUND = re.compile(r"\A(nodes\.)+")  # of a model around another one, see around_nodes.py
_HEAD = ("output.", "global_output.", "scorer.")  # of models of dgl-gt
_READ = ("normalize_features", "encodings", "edge_features", "node_embedding")
_MAY_DIFFER = ("output",)  # and all rates of dropout


def start_from(model: nn.Module, config: TrainConfig, saved: tuple, has_factory: bool = False) -> str:
    """Give a new model the weights of ``config.init``; with ``config.frozen`` these are not trained. Says what is new.

    ``saved`` is what :func:`dgl_gt.train.saved_model.read_model` gives of it; every rank calls this.

    The head, which is what comes after the rows of nodes, starts anew unless all of it fits, and is trained. In a model
    of a factory, what has no weights of its name and shape is the head.

    Raises
    ------
    InputError
        The settings of that model are others, or its tensors have other shapes.
    """
    path, values, state = saved
    given = {_AROUND.sub("", name): value for name, value in state.items()}
    mine = model.state_dict()
    fits = {name for name, value in mine.items() if _shape(given.get(_AROUND.sub("", name))) == _shape(value)}
    if has_factory:
        head = mine.keys() - fits
    else:
        _check_settings(config, values["config"])
        head = {name for name in mine if _AROUND.sub("", name).startswith(_HEAD)}
        head = set() if head <= fits else head
    wrong = sorted(mine.keys() - head - fits) if fits else sorted(mine)
    if wrong:
        name = wrong[0]
        had = _shape(given.get(_AROUND.sub("", name)))
        raise InputError(
            f"init is {config.init}, in which {name} has {f'shape {had}' if had else 'no weights'}, and the new model needs "
            f"{_shape(mine[name])}; start from a model of the same settings, trained on features of the same width"
        )
    model.load_state_dict(
        {name: value if name in head else given[_AROUND.sub("", name)] for name, value in mine.items()}
    )
    is_head = {name for name in mine if _AROUND.sub("", name).startswith(_HEAD)} | head
    if config.frozen:
        for name, parameter in model.named_parameters():
            if name not in is_head:
                parameter.requires_grad_(False)
        if not any(each.requires_grad for each in model.parameters()):
            raise InputError(f"frozen is true, and all weights of the model are those of {config.init}; leave it out")
    new = f"all but {', '.join(sorted(head))}" if head else "all"
    return f"started with the weights of {path}: {new}{', which alone are trained' if config.frozen and head else ''}"


def _shape(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(value.shape)


def _check_settings(config: TrainConfig, before: dict) -> None:
    """Raise :class:`InputError` that names the first setting on which weights depend and that differs."""
    for name, value in config.flat().items():
        is_read = SETTINGS[name][0] == "model" and "dropout" not in name and name not in _MAY_DIFFER or name in _READ
        if is_read and before.get(name) != value:
            raise InputError(
                f"init is {config.init}, whose {name} is {before.get(name)!r}, and this run's is {value!r}; they must be the same: "
                f"give --set {SETTINGS[name][0]}.{name}={before.get(name)}"
            )
