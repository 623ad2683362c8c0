"""Predictions of a trained model, in the original node order."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.traits import traits_of
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.counts import user_node_count
from dgl_gt.partition.system.atomic_write import new_file

from .config import Inputs
from .inputs import ModelInputs, read_inputs
from .model import logits_of, share_weights


def predict(model: torch.nn.Module, sg: ShardedGraph) -> tuple[np.ndarray, np.ndarray] | None:
    """The class and the class probabilities of every node, in the original node order, without virtual nodes.

    Every rank calls it with the same kind of model; the weights of rank 0 are used. Rank 0 gets the result, and the
    others get None.

    Returns
    -------
    prediction : ndarray, int64, (N,)
    probability : ndarray, float32, (N, classes)

    Raises
    ------
    InputError
        The shards do not have as many features as the model takes.
    """
    with sg.comm.together(), torch.no_grad():
        traits = traits_of(model)
        inputs = read_inputs(sg, traits.reads or Inputs())
        _check_sizes(traits.input_sizes or inputs.sizes, inputs)
        model = model.to(sg.device).eval()
        share_weights(model, sg.comm)  # each rank may have read another file
        probability = sg.gather(logits_of(model, inputs).float().softmax(1), to=0)
    if probability is None:
        return None
    probability = probability[: user_node_count(sg.manifest)]
    return probability.argmax(1).cpu().numpy(), probability.cpu().numpy()


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
    prediction: np.ndarray,
    probability: np.ndarray,
    *,
    node_names: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    force: bool = False,
) -> None:
    """Write ``.npz`` (``prediction``, ``probability``) or ``.csv`` (``node``, ``prediction``, ``probability_0``, ...).

    Nodes and classes that have names are written by name: in a ``.csv`` in place of their numbers, in an ``.npz`` as
    ``node_names`` and ``class_names``. The file appears when it is complete; with ``force`` it replaces an existing one.
    """
    if class_names is not None:
        class_names = class_names[: probability.shape[1]]  # the last ones may have no node
    with new_file(path, force=force) as file:
        if Path(path).suffix == ".npz":
            names = {"node_names": node_names, "class_names": None if class_names is None else np.array(class_names)}
            names = {key: value for key, value in names.items() if value is not None}
            np.savez(file, prediction=prediction, probability=probability, **names)
            return
        classes = range(probability.shape[1]) if class_names is None else class_names
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["node", "prediction", *(f"probability_{name}" for name in classes)])
        nodes = range(len(prediction)) if node_names is None else node_names.tolist()
        for node, chosen, row in zip(nodes, prediction.tolist(), probability.tolist()):
            # nine digits tell any two float32 apart
            rows.writerow([node, classes[chosen], *(f"{number:.9g}" for number in row)])
        text.detach()
