"""Predictions of a trained model, in the original node order."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.traits import traits_of
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.system.atomic_write import new_file

from .inputs import ModelInputs, read_inputs
from .model import share_weights
from .task import task_class
from .task_config import NodeClassificationConfig


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


def write_predictions(
    path,
    answer: Any,
    *,
    node_names: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    force: bool = False,
) -> None:
    """Write the fields of an answer, a named tuple, to ``.npz``, or to ``.csv`` with a row for each node.

    A field of shape (N, K) is K columns in a ``.csv``. Nodes are written by name where they have names, and so are
    classes, the whole numbers of an answer with a ``probability``: in a ``.csv`` in place of their numbers, in an ``.npz``
    as ``node_names`` and ``class_names``. The file appears when it is complete; with ``force`` it replaces an existing one.
    """
    fields = answer._asdict()
    if "probability" not in fields:
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
        rows = csv.writer(text, lineterminator="\n")
        heads, columns = ["node"], [range(len(answer[0])) if node_names is None else node_names.tolist()]
        for name, values in fields.items():
            wide = values.reshape(len(values), -1).T
            of_class = range(len(wide)) if class_names is None else class_names
            heads += [name] if values.ndim == 1 else [f"{name}_{each}" for each in of_class]
            columns += [_cells(column, class_names) for column in wide]
        rows.writerow(heads)
        rows.writerows(zip(*columns))
        text.detach()


def _cells(column: np.ndarray, class_names: Sequence[str] | None) -> Iterator:
    """The texts of numbers; whole ones are classes."""
    if column.dtype.kind == "f":
        return (f"{number:.9g}" for number in column.tolist())  # nine digits tell any two float32 apart
    return iter(column.tolist() if class_names is None else (class_names[each] for each in column.tolist()))
