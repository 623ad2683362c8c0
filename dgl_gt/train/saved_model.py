"""A trained model on disk, and its predictions. ``model.safetensors`` alone is needed to read it.

``config.yaml`` and ``record.json`` are for people and reports: the settings, and the results of the run.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.traits import traits_of
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.run_files.run_directory import CONFIG, RECORD, WEIGHTS, RunDirectory
from dgl_gt.run_files.run_record import RunRecord, values_of
from dgl_gt.run_files.tensor_file import MODEL_FILE, read_bytes

from .config import TrainConfig
from .inputs import ModelInputs, read_inputs
from .model import FactoryError, ModelFactory, build_model, share_weights
from .module_places import first_not_finite
from .task import task_class
from .task_config import NodeClassificationConfig

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
    path = Path(directory) if os.path.isfile(directory) else Path(directory) / WEIGHTS
    if not os.path.isfile(path):
        raise InputError(
            f"{directory} holds no model ({WEIGHTS}); give the directory that `dgl-gt train --out` has written"
        )
    content = read_bytes(path)
    try:
        values, state = MODEL_FILE.unpack(content)
    except InputError as error:
        raise InputError(f"{path} {error}; train the model again") from error
    try:
        config, shape = values["config"], dict(values["shape"])
        _check_factory(path, shape.pop("model_factory", None), factory)
        class_names, learned = shape.pop("class_names", None), shape.pop("learned", {})
        with torch.device("meta" if factory is None else "cpu"):  # sizes from a damaged file take no memory
            table = next((value for name, value in state.items() if name.endswith("table.weight")), ())
            sizes = shape.pop("in_dim"), shape.pop("out_dim")
            model = build_model(TrainConfig().changed(**config), *sizes, factory, max(1, len(table)), **shape)
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


def _check_factory(path: Path, made_by, factory: ModelFactory | None) -> None:
    """Raise :class:`FactoryError` unless a model that a factory made is read with a factory, and no other is."""
    if made_by is not None and factory is None:
        raise FactoryError(
            f"{path} holds a model that the factory {made_by} made; give that factory again (--model-factory)"
        )
    if made_by is None and factory is not None:
        raise FactoryError(
            f"{path} holds a model of dgl-gt, which --model-factory {factory.name} did not make; leave that option out"
        )


# ---- predictions ----


def predict(model: torch.nn.Module, sg: ShardedGraph) -> Any | None:
    """The answer of a model to its task, in the original node order, without virtual nodes.

    Every rank calls it with the same kind of model; the weights of rank 0 are used. Rank 0 gets the result, and the
    others get None. A model that was not made for a task predicts classes of nodes.

    Returns
    -------
    prediction : ndarray, int64, (N,)
        The result is a named tuple; these are the fields for classes of nodes.
    probability : ndarray, float32, (N, classes)

    Raises
    ------
    InputError
        The shards do not have as many features as the model takes.
    """
    with sg.comm.together(), torch.no_grad():
        task = getattr(model, "dgl_gt_task", NodeClassificationConfig())
        inputs = read_inputs(sg, task.inputs)
        _check_sizes(traits_of(model).input_sizes or inputs.sizes, inputs)
        model = model.to(sg.device).eval()
        share_weights(model, sg.comm)  # each rank may have read another file
        return task_class(task).answer(model, inputs)


def _check_sizes(taken: Mapping[str, int], inputs: ModelInputs) -> None:
    """Raise :class:`InputError` if a model takes rows of other widths."""
    if taken != inputs.sizes:
        mine, found = (", ".join(f"{name} {width}" for name, width in each.items()) for each in (taken, inputs.sizes))
        raise InputError(
            f"the model takes rows of widths {mine}, and {inputs.graph.manifest['source']} gives {found}; use shards with the "
            "features and edge data that the model was trained on"
        )


ORDERS = {
    "node": "in the original node order",
    "edge": "in the order of edge ids, added edges last",
    "link": "by source, the best first",
}


def rows_of(answer: Any) -> str:
    """What the rows of an answer are, a key of ``ORDERS``."""
    if "source" not in answer._fields:
        return "node"
    return "link" if "score" in answer._fields else "edge"


def write_predictions(
    path,
    answer: Any,
    *,
    node_names: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    force: bool = False,
) -> None:
    """Write the fields of an answer, a named tuple, to ``.npz``, or to ``.csv`` with a row for each node, or each edge.

    A field of shape (N, K) is K columns in a ``.csv``. Nodes, also ``source`` and ``destination``, are written by name
    where they have names, and so are classes, the whole numbers of an answer with a ``probability``: in a ``.csv`` in
    place of their numbers, in an ``.npz`` as ``node_names`` and ``class_names``. The file appears when it is complete; with ``force`` it replaces an existing one.
    """
    fields = answer._asdict()
    of_edges = "source" in fields
    if "probability" not in fields or of_edges:
        class_names = None
    elif class_names is not None:
        class_names = class_names[: answer.probability.shape[1]]  # the last ones may have no node
    with new_file(path, force=force) as file:
        if Path(path).suffix == ".npz":
            names = {"node_names": node_names, "class_names": None if class_names is None else np.array(class_names)}
            names = {key: value for key, value in names.items() if value is not None}
            np.savez(file, **fields, **names)
            return
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        lines = csv.writer(text, lineterminator="\n")
        rows = range(len(answer[0])) if node_names is None or of_edges else node_names.tolist()
        heads, columns = [rows_of(answer)], list[Any]([rows])
        for name in ("source", "destination") if of_edges else ():
            ends = fields.pop(name)
            heads, columns = [*heads, name], [*columns, (ends if node_names is None else node_names[ends]).tolist()]
        for name, values in fields.items():
            wide = values.reshape(len(values), -1).T
            of_class = range(len(wide)) if class_names is None else class_names
            heads += [name] if values.ndim == 1 else [f"{name}_{each}" for each in of_class]
            columns += [_cells(column, class_names) for column in wide]
        lines.writerow(heads)
        lines.writerows(zip(*columns))
        text.detach()


def _cells(column: np.ndarray, class_names: Sequence[str] | None) -> Iterator:
    """The texts of numbers; whole ones are classes."""
    if column.dtype.kind == "f":
        digits = 9 if column.dtype.itemsize == 4 else 12  # nine tell any two float32 apart
        return (f"{number:.{digits}g}" for number in column.tolist())
    return iter(column.tolist() if class_names is None else (class_names[each] for each in column.tolist()))
