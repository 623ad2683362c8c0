"""A trained model on disk. ``model.safetensors`` alone is needed to read it.

``config.yaml`` and ``record.json`` are for people and reports: the settings, and the results of the run.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
import yaml

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.storage import Url, is_file, located
from dgl_gt.run_files.run_directory import CONFIG, RECORD, WEIGHTS, RunDirectory
from dgl_gt.run_files.run_record import RunRecord, values_of
from dgl_gt.run_files.tensor_file import MODEL_FILE, read_bytes

from .config import TrainConfig
from .model import FactoryError, ModelFactory, build_model
from .module_places import first_not_finite

_LONGEST_CAUSE = 400  # characters


def save_model(
    out, state: dict, config: TrainConfig, shape: dict, record: RunRecord | dict, *, force: bool = False
) -> None:
    """Write a model directory; it appears when it is complete.

    Parameters
    ----------
    out : path
    state : dict of str to Tensor
        The model's ``state_dict``.
    config : TrainConfig
    shape : dict
        ``in_dim`` and ``out_dim`` of the model, its ``class_names``, what its task has ``learned``, the number of its
        ``edge_feats`` and ``edge_kinds`` if it has any, and the name of its ``model_factory`` if it has one.
    record : RunRecord or dict
        Record of the run, or its values as ``dgl-gt train --json`` prints them.
    force : bool
        Whether to replace ``out`` if it holds a model.

    Raises
    ------
    InputError
        ``out`` exists, or cannot be written.
    """
    RunDirectory(out, force=force).write(model_files(state, config, shape, record))


def model_files(state: dict | None, config: TrainConfig, shape: dict, record: RunRecord | dict) -> dict[str, bytes]:
    """The files that :func:`save_model` writes; without a state, the others alone."""
    record = values_of(record) if isinstance(record, RunRecord) else record
    files = {}
    if state is not None:  # first: a kill between two files leaves a model that is newer than its record
        values = {"config": config.flat(), "shape": shape, "best_epoch": record.get("best_epoch")}
        files[WEIGHTS] = MODEL_FILE.pack(values, state)
    files[CONFIG] = yaml.safe_dump({**asdict(config), "shape": shape}, sort_keys=False).encode()
    files[RECORD] = f"{json.dumps(record, indent=1)}\n".encode()
    return files


def load_model(directory, factory: ModelFactory | None = None) -> torch.nn.Module:
    """Read a model directory; the model is on the CPU, in torch's default dtype and in evaluation mode.

    Its ``class_names`` is the list of the names of its classes, or None where labels were numbers.

    Parameters
    ----------
    directory : path
        The directory, or ``model.safetensors`` in it.
    factory : ModelFactory, optional
        Factory that made the model, if one did. It is code, so it is never imported by a name in a file.

    Raises
    ------
    InputError
        The directory holds no model, its file is damaged or of another version, its weights are not finite, or
        the model is not one of the factory.
    """
    path, values, state = read_model(directory)
    try:
        config, shape = values["config"], dict(values["shape"])
        _check_factory(path, shape.pop("model_factory", None), factory)
        class_names, learned = shape.pop("class_names", None), shape.pop("learned", {})
        with torch.device("meta" if factory is None else "cpu"):  # sizes from a damaged file take no memory
            sizes, settings = (shape.pop("in_dim"), shape.pop("out_dim")), TrainConfig().changed(**config)
            table = "nodes.table.weight" if settings.task.pair_scorer else "table.weight"
            rows = len(state[table]) if settings.task.node_embedding else 1
            model = build_model(settings, *sizes, factory, rows, **shape)
        model.load_state_dict(state, assign=True)
        name = first_not_finite(model.state_dict())
    except FactoryError:
        raise
    except (KeyError, TypeError, RuntimeError, OverflowError, ValueError) as error:
        cause = " ".join(str(error).split())
        cause = cause if len(cause) < _LONGEST_CAUSE else f"{cause[:_LONGEST_CAUSE]} ..."  # torch lists every tensor
        raise InputError(
            f"{path} is damaged or from another version of dgl-gt: {cause}; train the model again"
        ) from error
    if name is not None:
        raise InputError(f"{path}: {name} holds NaN or infinity; train the model again with a lower lr")
    model.class_names, model.dgl_gt_learned = class_names, learned
    return model.to(torch.get_default_dtype()).eval()


def read_model(directory) -> tuple[Path | Url, dict, dict[str, torch.Tensor]]:
    """The file of a model directory, the values in it and the state of the model; ``InputError`` as :func:`load_model`."""
    place = located(directory)
    path = place if is_file(place) else place / WEIGHTS
    if not is_file(path):
        raise InputError(
            f"{directory} holds no model ({WEIGHTS}); give the directory that `dgl-gt train --out` has written"
        )
    content = read_bytes(path)
    try:
        return path, *MODEL_FILE.unpack(content)
    except InputError as error:
        raise InputError(f"{path} {error}; train the model again") from error


def _check_factory(path: Path | Url, made_by, factory: ModelFactory | None) -> None:
    """Raise :class:`FactoryError` unless a model that a factory made is read with a factory, and no other is."""
    if made_by is not None and factory is None:
        raise FactoryError(
            f"{path} holds a model that the factory {made_by} made; give that factory again (--model-factory)"
        )
    if made_by is None and factory is not None:
        raise FactoryError(
            f"{path} holds a model of dgl-gt, which --model-factory {factory.name} did not make; leave that option out"
        )
