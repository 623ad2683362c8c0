"""A trained model on disk: ``model.safetensors``, the resolved ``config.yaml`` and the run's ``record.json``."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from partition.atomic import new_directory
from partition.errors import InputError

from ..nn import GraphTransformer
from ..yaml_file import read_yaml
from .config import MODEL, WEIGHTS, TrainConfig, as_dict
from .trainer import build_model


def save(out, model: GraphTransformer, config: TrainConfig, record: dict, *, force: bool = False) -> None:
    """Write a model directory; it appears when it is complete.

    Parameters
    ----------
    out : path
    model : GraphTransformer
    config : TrainConfig
    record : dict
        What ``dgl-gt train --json`` prints.
    force : bool
        Replace ``out`` where it holds a model.
    """
    with new_directory(out, MODEL, force=force) as folder:
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}, folder / WEIGHTS
        )
        shape = {"in_dim": model.in_dim, "classes": model.output.out_features}
        (folder / "config.yaml").write_text(yaml.safe_dump({**as_dict(config), **shape}, sort_keys=False))
        (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n")


def load(directory) -> GraphTransformer:
    """Read a model back, on the CPU, in evaluation mode.

    Raises
    ------
    InputError
        Not a model directory, or files that do not fit each other.
    """
    folder = Path(directory)
    if not (folder / WEIGHTS).is_file() or not (folder / "config.yaml").is_file():
        raise InputError(
            f"{folder} holds no model ({WEIGHTS} and config.yaml); make one with `dgl-gt train ... --out {folder}`"
        )
    values = read_yaml(folder / "config.yaml")
    try:
        in_dim, classes = values.pop("in_dim"), values.pop("classes")
        model = build_model(TrainConfig(**values), in_dim, classes)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (KeyError, TypeError, RuntimeError, SafetensorError, ValueError) as error:
        raise InputError(
            f"{folder} is damaged or from another version of dgl-gt: {' '.join(str(error).split())}"
        ) from error
    return model.eval()
