"""Predictions of a model, and its rows of nodes: made on all ranks, written by the first one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from dgl_gt.exchange.route import RowFetch, own_places
from dgl_gt.exchange.sharded_graph import ShardedGraph
from dgl_gt.nn.global_attention import PolynormerAttention
from dgl_gt.nn.models.node_model import NodeModel
from dgl_gt.nn.traits import traits_of
from dgl_gt.partition.errors import InputError, import_optional
from dgl_gt.partition.shards.counts import user_node_count
from dgl_gt.partition.system.atomic_write import new_file
from dgl_gt.partition.transforms.link_split import nodes_of

from .around_nodes import AroundNodes, PairModel
from .inputs import ModelInputs, read_inputs
from .model import logits_of, share_weights
from .required_data import learned_type, nodes_at_ends, nodes_of_links
from .task import task_class
from .task_config import NodeClassificationConfig
from .task_settings import TaskConfig

_PAIRS = 2**18  # that a rank scores at a time


def predict(model: nn.Module, sg: ShardedGraph) -> Any | None:
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
        return task_class(_task_of(model)).answer(model, _ready(model, sg))


def _task_of(model: nn.Module) -> TaskConfig:
    return getattr(model, "dgl_gt_task", NodeClassificationConfig())


def _ready(model: nn.Module, sg: ShardedGraph) -> ModelInputs:
    """Put a model on the device of a graph, with the weights of rank 0; the inputs on the graph."""
    inputs = read_inputs(sg, _task_of(model).inputs)
    _check_sizes(traits_of(model).input_sizes or inputs.sizes, inputs)
    share_weights(model.to(sg.device).eval(), sg.comm)  # each rank may have read another file
    return inputs


def _check_sizes(taken: Mapping[str, int], inputs: ModelInputs) -> None:
    """Raise :class:`InputError` if a model takes rows of other widths."""
    if taken != inputs.sizes:
        _check_types(taken.get("in_dim"), inputs)
        mine, found = (", ".join(f"{name} {width}" for name, width in each.items()) for each in (taken, inputs.sizes))
        raise InputError(
            f"the model takes rows of widths {mine}, and {inputs.graph.manifest['source']} gives {found}; use shards with the "
            "features and edge data that the model was trained on"
        )


def _check_types(taken: Any, inputs: ModelInputs) -> None:
    """Raise :class:`InputError` that names the first node type of a typed graph with features of another width."""
    found: Any = inputs.sizes["in_dim"]
    if not (isinstance(taken, Mapping) and isinstance(found, Mapping) and taken.keys() == found.keys()):
        return
    for name, width in taken.items():
        if width != found[name]:
            raise InputError(
                f"the model reads {width or 'no'} features of the node type {name!r}, and {inputs.graph.manifest['source']} has "
                f"{found[name] or 'none'}; use shards with the features that the model was trained on"
            )


ORDERS = {
    "node": "in the original node order",
    "edge": "in the order of edge ids, added edges last",
    "link": "by source, the best first",
    "pair": "in the order of the file",
}


def rows_of(answer: Any) -> str:
    """What the rows of an answer are, a key of ``ORDERS``."""
    if "source" not in answer._fields:
        return "node"
    if isinstance(answer, ScoredPairs):
        return "pair"
    return "link" if "score" in answer._fields else "edge"


class NodeRows(NamedTuple):
    """The row of every node, in the original node order, without virtual nodes."""

    embedding: np.ndarray  # float32 (N, C)


def embed(model: nn.Module, sg: ShardedGraph) -> NodeRows | None:
    """The rows of nodes from which a model makes its predictions; every rank calls it, and rank 0 gets them.

    For a task on nodes they are what the last projection of a model of dgl-gt reads; for a task on pairs, the rows that
    are scored.

    Raises
    ------
    InputError
        The shards do not have as many features as the model takes; or it is a model of the user's for a task on nodes,
        of which no such rows are known.
    """
    with sg.comm.together(), torch.no_grad():
        inputs = _ready(model, sg)
        own = logits_of(model, inputs) if isinstance(model, PairModel) else _before_output(model, inputs)
        rows = sg.gather(own.float(), to=0)
        return None if rows is None else NodeRows(rows[: user_node_count(sg.manifest)].cpu().numpy())


def _before_output(model: nn.Module, inputs: ModelInputs) -> torch.Tensor:
    of_nodes, found = model, []
    while isinstance(of_nodes, AroundNodes):
        of_nodes = of_nodes.nodes
    if not isinstance(of_nodes, NodeModel):
        raise InputError(
            f"--embeddings asks for the rows before the last projection, which are not known of a {type(of_nodes).__name__}; "
            "return them from a model of your own, and call it"
        )
    is_global = isinstance(of_nodes.global_attention, PolynormerAttention) and of_nodes.uses_global
    output = of_nodes.global_output if is_global else of_nodes.output
    handle = output.register_forward_pre_hook(lambda _, arguments: found.append(arguments[0]))
    try:
        logits_of(model, inputs)
    finally:
        handle.remove()
    return found[0]


class ScoredPairs(NamedTuple):
    """Pairs of nodes with the scores that a model of links gives them, in the order in which they were asked for."""

    source: np.ndarray  # int64 (n,)
    destination: np.ndarray  # int64 (n,)
    score: np.ndarray  # float32 (n,)


def score_pairs(model: nn.Module, sg: ShardedGraph, pairs: np.ndarray) -> ScoredPairs | None:
    """The scores that a model of links gives to pairs of nodes, (2, n); every rank calls it with the same pairs.

    Pairs are scored in pieces, each rank its share of them; rank 0 gets the result. Nodes have the user's numbers, of a typed
    graph within the types of the links' ends.

    Raises
    ------
    InputError
        The model was trained for another task, the shards do not have as many features as it takes, or pairs are no whole
        numbers from 0 to N - 1.
    """
    with sg.comm.together(), torch.no_grad():
        task, comm, of_model = _task_of(model), sg.comm, cast(Any, model)
        if not task.reads_links:
            raise InputError(
                f"pairs are scored by a model of links, and the model was trained for {task.kind}; leave --pairs out"
            )
        ends = nodes_of_links(sg.manifest)
        pairs = nodes_of("pairs", np.asarray(pairs), None, ends, sg.manifest["source"])
        of_all = pairs + np.array([[each.start] for each in ends])
        own = logits_of(model, _ready(model, sg))
        places: Any = sg.gather(own_places(sg))
        each = -(-pairs.shape[1] // comm.world_size)
        mine = torch.from_numpy(of_all[:, each * comm.rank : each * (comm.rank + 1)]).to(sg.device)
        found = [own.new_empty(0)]
        for begin in range(0, each, _PAIRS):
            fetch = RowFetch(sg, places[mine[:, begin : begin + _PAIRS]].flatten())
            both_ways = bool(of_model.dgl_gt_learned["is_undirected"])
            found.append(of_model.scores(fetch(own), *fetch.rows.view(2, -1), None, both_ways)[:, 0])
        scores = comm.gather_rows(torch.cat(found).float(), to=0)
        return None if scores is None else ScoredPairs(pairs[0], pairs[1], torch.cat(scores).cpu().numpy())


def names_of(answer: Any, model: nn.Module, sg: ShardedGraph, node_names: np.ndarray | None) -> list[np.ndarray] | None:
    """The names of the nodes that an answer numbers, of all that have ``node_names``: of its rows, or of both ends."""
    if node_names is None:
        return None
    task, kind = _task_of(model), rows_of(answer)
    if isinstance(answer, NodeRows) or sg.schema is None:
        return [node_names] * (1 if kind == "node" else 2)
    if kind == "node":
        return [node_names[sg.schema.rows_of("node", f"{learned_type(sg, task.type)}/")]]
    links, relation = kind in ("link", "pair"), task.relation
    ends = (
        nodes_of_links(sg.manifest) if links else nodes_at_ends(sg.manifest, learned_type(sg, relation, of_edges=True))
    )
    return [node_names[each.start : each.stop] for each in ends]


def write_predictions(
    path,
    answer: Any,
    *,
    node_names: Sequence[np.ndarray] | None = None,
    class_names: Sequence[str] | None = None,
    force: bool = False,
) -> None:
    """Write the fields of an answer, a named tuple: ``.npz``, or ``.csv`` or ``.parquet`` with a row for each node, edge or link.

    A field of shape (N, K) is K columns of a table. Nodes, also ``source`` and ``destination``, are written by name
    where they have names (see :func:`names_of`), and so are classes, the whole numbers of an answer with a ``probability``: in a table in
    place of their numbers, in an ``.npz`` as ``node_names`` and ``class_names``, of both ends of a relation between two types
    as ``source_names`` and ``destination_names``. The file appears when it is complete;
    with ``force`` it replaces an existing one. Parquet needs pyarrow.
    """
    if "probability" not in answer._fields or rows_of(answer) != "node":
        class_names = None
    elif class_names is not None:
        class_names = class_names[: answer.probability.shape[1]]  # the last ones may have no node
    kind = Path(path).suffix
    parquet: Any = (
        import_optional("pyarrow.parquet", f"writing {path}", "pip install pyarrow") if kind == ".parquet" else None
    )
    with new_file(path, force=force) as file:
        if kind == ".npz":
            names = {} if class_names is None else {"class_names": np.array(class_names)}
            if node_names is not None and all(each is node_names[0] for each in node_names):
                names["node_names"] = node_names[0]
            elif node_names is not None:
                names["source_names"], names["destination_names"] = node_names
            np.savez(file, **answer._asdict(), **names)
            return
        columns = _table(answer, node_names, class_names)
        if parquet:
            parquet.write_table(import_optional("pyarrow", "", "").table(columns), file)
            return
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(columns)
        lines.writerows(zip(*map(_cells, columns.values())))
        text.detach()


def _table(
    answer: Any, node_names: Sequence[np.ndarray] | None, class_names: Sequence[str] | None
) -> dict[str, np.ndarray]:
    """The columns of a table by name."""
    fields, kind = answer._asdict(), rows_of(answer)
    rows = np.arange(len(answer[0]))
    columns = {kind: rows if node_names is None or kind != "node" else node_names[0]}
    for number, name in enumerate(("source", "destination") if kind != "node" else ()):
        ends = fields.pop(name)
        columns[name] = ends if node_names is None else node_names[number][ends]
    for name, values in fields.items():
        wide = values.reshape(len(values), -1).T
        for number, column in enumerate(wide):
            head = name if values.ndim == 1 else f"{name}_{number if class_names is None else class_names[number]}"
            is_class = class_names is not None and column.dtype.kind != "f"
            columns[head] = np.array(class_names)[column] if is_class else column
    return columns


def _cells(column: np.ndarray) -> Iterator:
    """The texts of numbers."""
    if column.dtype.kind == "f":
        digits = 9 if column.dtype.itemsize == 4 else 12  # nine tell any two float32 apart
        return (f"{number:.{digits}g}" for number in column.tolist())
    return iter(column.tolist())
